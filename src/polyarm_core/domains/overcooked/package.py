"""The package overcooked-ai 1.1.0 behind the interface of ``Kitchen``: the reference for our simulators, and pictures.

The package was written for numpy 1 and gym. ``require_package`` is the one place that makes it importable today: it
puts back two names that numpy 2 removed and lets ``import gym`` find gymnasium. Only the package's transition function
is used; its environment class writes a planner next to the package's files at the first step.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from polyarm_core.domains.overcooked.kitchen import (
    COOK_TIME,
    DISH,
    FULL,
    IDLE,
    INTERACT,
    ITEM_NAMES,
    NOTHING,
    ONION,
    SOUP,
    SPOILED,
    STAY,
    Kitchen,
    KitchenState,
)
from polyarm_core.domains.overcooked.layouts import Layout
from polyarm_core.errors import MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image

_PACKAGE = "overcooked_ai_py"


def require_package() -> ModuleType:
    """The package's module of the transition function, importable under numpy 2 and without gym.

    Raises:
        MissingExtra: the package is not installed.
    """
    for name, value in (("Inf", np.inf), ("int", int)):
        if name not in vars(np):
            setattr(np, name, value)
    # Each by its own name: a submodule found through the alias would be loaded twice, and register everything twice.
    for name in ("gym", "gym.envs", "gym.envs.registration"):
        if name not in sys.modules:
            try:
                sys.modules[name] = importlib.import_module(name.replace("gym", "gymnasium", 1))
            except ModuleNotFoundError:
                raise MissingExtra("gymnasium", "overcooked") from None
    try:
        return importlib.import_module(f"{_PACKAGE}.mdp.overcooked_mdp")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != _PACKAGE:
            raise MissingExtra(error.name or "a library of overcooked-ai", "overcooked") from None
        raise MissingExtra("overcooked-ai", "overcooked") from None


class PackageKitchen(Kitchen):
    """A ``Kitchen`` each step of which is carried out by the package.

    Two things are ours, since the package has neither: interacts with ``blocked`` tiles are turned into stay, and
    the soups delivered are counted (an order is one that the package pays for).

    Args:
        layout: the map; the package gets this grid, so maps of our own work as well.
        cook_time: frames from the start of cooking to a ready soup, at least 1.

    Raises:
        MissingExtra: the package is not installed.
        InvalidValue: the cook time is below 1.
    """

    def __init__(self, layout: Layout, cook_time: int = COOK_TIME) -> None:
        super().__init__(layout, cook_time)
        self._module = require_package()
        rows = [list(layout.terrain[y * layout.width : (y + 1) * layout.width]) for y in range(layout.height)]
        for player, start in enumerate(layout.starts):
            x, y = layout.xy(start)
            rows[y][x] = str(player + 1)
        order = {"ingredients": ["onion"] * FULL}
        self.mdp: Any = self._module.OvercookedGridworld.from_grid(
            ["".join(row) for row in rows],
            {"layout_name": layout.name, "start_all_orders": [order], "cook_time": cook_time},
        )
        actions = importlib.import_module(f"{_PACKAGE}.mdp.actions")
        self._actions: list[Any] = actions.Action.INDEX_TO_ACTION
        self._directions: list[Any] = actions.Direction.INDEX_TO_DIRECTION

    def step(self, state: KitchenState, controls: Sequence[int]) -> KitchenState:
        """The next state, computed by the package. One control of ``CONTROLS`` per player."""
        return self.step_with_reward(state, controls)[0]

    def step_with_reward(
        self, state: KitchenState, controls: Sequence[int]
    ) -> tuple[KitchenState, tuple[float, ...], tuple[float, ...]]:
        """The next state, and both players' sparse and shaped rewards as the package computes them."""
        usable = []
        for position, facing, control in zip(state.positions, state.facings, controls, strict=True):
            out_of_use = control == INTERACT and self.layout.front[position][facing] in state.blocked
            usable.append(self._actions[STAY if out_of_use else control])
        self._configure()
        after, information = self.mdp.get_state_transition(self.to_package(state), tuple(usable))
        sparse = tuple(float(reward) for reward in information["sparse_reward_by_agent"])
        shaped = tuple(float(reward) for reward in information["shaped_reward_by_agent"])
        delivered = state.delivered + sum(reward > 0 for reward in sparse)
        return self.from_package(after, delivered, state.blocked), sparse, shaped

    def _configure(self) -> None:
        """Recipes are global in the package: take them back if another kitchen has set its own cook time."""
        if self._module.Recipe.configuration is not self.mdp.recipe_config:
            self._module.Recipe.configure(self.mdp.recipe_config)

    # --- conversions ---

    def to_package(self, state: KitchenState) -> Any:
        """The package's ``OvercookedState``. A spoiled soup becomes one of two onions."""
        self._configure()
        xy = self.layout.xy
        players = [
            self._module.PlayerState(xy(cell), self._directions[facing], self._object(item, xy(cell)))
            for cell, facing, item in zip(state.positions, state.facings, state.held, strict=True)
        ]
        objects = {}
        for cell, (onions, tick) in zip(self.layout.pots, state.pots, strict=True):
            if onions:
                objects[xy(cell)] = self._soup(xy(cell), onions, tick)
        for cell, item in zip(self.layout.counters, state.counters, strict=True):
            if item != NOTHING:
                objects[xy(cell)] = self._object(item, xy(cell))
        return self._module.OvercookedState(
            players, objects, bonus_orders=[], all_orders=self.mdp.start_all_orders, timestep=state.frame
        )

    def _object(self, item: int, at: tuple[int, int]) -> Any:
        if item == NOTHING:
            return None
        if item in (SOUP, SPOILED):
            return self._soup(at, FULL if item == SOUP else FULL - 1, self.cook_time)
        return self._module.ObjectState(ITEM_NAMES[item], at)

    def _soup(self, at: tuple[int, int], onions: int, tick: int) -> Any:
        return self._module.SoupState.get_soup(at, num_onions=onions, cooking_tick=tick)

    def from_package(self, state: Any, delivered: int, blocked: tuple[int, ...] = ()) -> KitchenState:
        """Our state of an ``OvercookedState``; the package knows neither deliveries so far nor blocked tiles."""
        pots = []
        for cell in self.layout.pots:
            soup = state.objects.get(self.layout.xy(cell))
            pots.append((0, IDLE) if soup is None else (len(soup.ingredients), soup._cooking_tick))
        return KitchenState(
            positions=tuple(self.layout.cell(*player.position) for player in state.players),
            facings=tuple(self._directions.index(player.orientation) for player in state.players),
            held=tuple(self._item(player.held_object) for player in state.players),
            pots=tuple(pots),
            counters=tuple(self._item(state.objects.get(self.layout.xy(cell))) for cell in self.layout.counters),
            delivered=delivered,
            frame=state.timestep,
            blocked=blocked,
        )

    def _item(self, thing: Any) -> int:
        if thing is None:
            return NOTHING
        if thing.name == "soup":
            return SOUP if len(thing.ingredients) == FULL else SPOILED
        return {"onion": ONION, "dish": DISH}[thing.name]


def render(kitchen: Kitchen, state: KitchenState, tile_size: int = 75) -> Image:
    """A picture of a state as the package draws it, without its text lines; needs no display.

    Args:
        kitchen: of the state; any ``Kitchen``, its layout and cook time are used.
        state: what to draw.
        tile_size: side of a cell in pixels.

    Raises:
        MissingExtra: the package, pygame or pillow is not installed.
    """
    # Both are read when pygame is imported and when its display starts: no window and no sound card are needed.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    package = kitchen if isinstance(kitchen, PackageKitchen) else PackageKitchen(kitchen.layout, kitchen.cook_time)
    try:
        pygame: Any = importlib.import_module("pygame")
        image = importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), "overcooked") from None
    visualizer = _visualizer(tile_size)
    surface = visualizer.render_state(package.to_package(state), package.mdp.terrain_mtx)
    picture: Image = image.frombytes("RGB", surface.get_size(), pygame.image.tobytes(surface, "RGB"))
    return picture


def _visualizer(tile_size: int) -> Any:
    """The package's drawing class. It imports IPython for notebooks only; where that is missing, a stand-in goes in."""
    for name, attributes in (("IPython", ()), ("IPython.display", ("Image", "display"))):
        _stand_in(name, attributes)
    _stand_in("ipywidgets", ("interactive", "IntSlider"))
    module = importlib.import_module(f"{_PACKAGE}.visualization.state_visualizer")
    return module.StateVisualizer(tile_size=tile_size, is_rendering_hud=False)


def _stand_in(name: str, attributes: tuple[str, ...]) -> None:
    """An empty module with these names, unless the real one can be imported."""
    if name in sys.modules:
        return
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module = ModuleType(name)
        for attribute in attributes:
            setattr(module, attribute, None)
        sys.modules[name] = module
