"""The physical minimum of a kitchen: the fewest frames in which two perfect players can deliver one soup.

Exact, by breadth-first search over the joint states. Four thoughts keep it small, and none gives exactness away:

* A joint state is a joint pose (where both stand and look) and a configuration of the items (hands, pots, counters).
  Poses change by a table of moves, configurations by a table of interacts, so one layer is a few numpy look-ups.
* More than three onions, a second dish, a second pot in use or a soup started early never help: drop the interacts that
  handle the surplus, and the rest goes through as before. Configurations with such things are left out.
* Until cooking starts nobody needs the dish. The search without it finds the earliest start of cooking; no soup is
  ready before the cook time has passed, and serving it takes at least as long as from the best joint pose with the dish
  already in hand. If the search from all joint states of that earliest start meets this bound, it is the minimum.
* Only otherwise is the full problem searched, and no deeper than what the search before has found.

``python -m polyarm_core.domains.overcooked.minimum`` prints the table of the classic layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyarm_core.domains.overcooked.kitchen import (
    CONTROLS,
    COOK_TIME,
    DISH,
    EMPTY_POT,
    FULL,
    IDLE,
    INTERACT,
    NOTHING,
    ONION,
    SOUP,
    SPOILED,
    STAY,
    Kitchen,
    KitchenState,
)
from polyarm_core.domains.overcooked.layouts import FLOOR, LAYOUT_NAMES, Layout, load_layout
from polyarm_core.errors import InvalidValue

Team = Literal["joint", "no_hand_over", "solo"]
TEAMS: tuple[Team, ...] = ("joint", "no_hand_over", "solo")

# What ``minimum`` finds for the classic layouts with the standard cook time and both players.
CLASSIC_MINIMA = MappingProxyType(
    {
        "coordination_ring": 40,
        "counter_circuit_o_1order": 41,
        "asymmetric_advantages": 31,
        "cramped_room": 34,
        "forced_coordination": 40,
    }
)

_Indices = NDArray[np.int64]
_Mask = NDArray[np.bool_]
_DROPPED = -1  # in place of a configuration that is left out


@dataclass(frozen=True)
class Minimum:
    """The result of a search.

    Attributes:
        frames: from the standard start to the delivery.
        controls: joint controls that attain it, one pair a frame.
    """

    frames: int
    controls: tuple[tuple[int, int], ...]


@lru_cache(maxsize=64)
def minimum(layout: Layout, cook_time: int = COOK_TIME, team: Team = "joint") -> Minimum | None:
    """Fewest frames from the standard start to one delivered soup, with controls that attain it.

    Args:
        layout: the map.
        cook_time: frames from the start of cooking to a ready soup.
        team: ``joint`` = both do what they like; ``no_hand_over`` = nothing is ever put on a counter; ``solo`` = one
            works, the better one of the two, puts nothing on counters either, and the other stands where it starts.

    Returns:
        None where no soup can be delivered.

    Raises:
        InvalidValue: unknown team, or a cook time below 1.
    """
    if team not in TEAMS:
        raise InvalidValue("team", team, f"one of {', '.join(TEAMS)}")
    kitchen = Kitchen(layout, cook_time)
    workers: tuple[tuple[int, ...], ...] = ((0,), (1,)) if team == "solo" else ((0, 1),)
    found = [_solve(_Problem(kitchen, active, counters=team == "joint")) for active in workers]
    return min((result for result in found if result), key=lambda result: result.frames, default=None)


def _solve(problem: _Problem) -> Minimum | None:
    cook_time = problem.kitchen.cook_time
    start = np.array([problem.start], np.int64)
    to_cook = _search(problem, start, goal=problem.cooks, allowed=problem.without_dish)
    to_serve = _search(problem, problem.best_servers(), goal=problem.served)
    if to_cook is None or to_serve is None:
        return None
    best = None
    to_finish = _search(problem, to_cook.ends, goal=problem.served)
    if to_finish is not None:
        middle, last = to_finish.path()
        best = Minimum(to_cook.frames + to_finish.frames, (*to_cook.path(middle)[1], *last))
        # The frame in which cooking starts is its first tick.
        if best.frames == to_cook.frames + cook_time - 1 + to_serve.frames:
            return best
    longest = best.frames - 1 if best else None
    latest_start = best.frames - cook_time - to_serve.frames if best else None
    whole = _search(problem, start, goal=problem.served, longest=longest, latest_start=latest_start)
    return Minimum(whole.frames, whole.path()[1]) if whole else best


class _Items(NamedTuple):
    """A configuration: all of a state but poses and time; fields as in ``KitchenState``."""

    held: tuple[int, ...]
    pots: tuple[tuple[int, int], ...]
    counters: tuple[int, ...]
    delivered: int


class _Problem:
    """The tables of one search problem. A joint state is ``configuration * poses + joint pose``.

    Args:
        kitchen: the rules.
        active: players who do anything but stay.
        counters: whether anything may be put on counters.
    """

    def __init__(self, kitchen: Kitchen, active: tuple[int, ...], counters: bool) -> None:
        self.kitchen, self.active, self.counters = kitchen, active, counters
        start = kitchen.start()
        self._tabulate_poses(start)
        self._tabulate_items(_Items(start.held, start.pots, start.counters, start.delivered))
        first = np.flatnonzero((self.cells == np.array(start.positions)[:, None]).all(axis=0))
        self.start = int(first[start.facings[0] * 4 + start.facings[1]])

        items = self.items
        self.without_dish: _Mask = np.array([DISH not in (*i.held, *i.counters) for i in items])
        self.cooks: _Mask = np.array([any(tick > IDLE for _, tick in i.pots) for i in items])
        self.served: _Mask = np.array([i.delivered > 0 for i in items])
        self.fills: _Mask = np.array([SOUP not in (*i.held, *i.counters) for i in items]) & ~self.cooks & ~self.served

    def _tabulate_poses(self, start: KitchenState) -> None:
        """Joint poses in which each player is in its own region and no two share a cell; moves and tiles ahead."""
        layout = self.kitchen.layout
        singles = [
            [(cell, facing) for cell in layout.region(position) for facing in range(4)] for position in start.positions
        ]
        # Facings vary fastest, so that the poses of one pair of cells stand together, in the order of their facings.
        joint = sorted((one[0], two[0], one[1], two[1]) for one in singles[0] for two in singles[1] if one[0] != two[0])
        number = {pose: index for index, pose in enumerate(joint)}
        self.poses = len(joint)
        self.cells: _Indices = np.array([pose[:2] for pose in joint], np.int64).T
        self.tiles = [
            cell for cell, access in enumerate(layout.access) if layout.terrain[cell] != FLOOR and len(access) > 0
        ]
        tile_number = {cell: index for index, cell in enumerate(self.tiles)}
        no_tile = len(self.tiles)
        self.ahead: _Indices = np.array(
            [
                [tile_number.get(layout.front[pose[player]][pose[2 + player]], no_tile) for pose in joint]
                for player in (0, 1)
            ],
            np.int64,
        )
        self.moved: _Indices = np.zeros((6, 6, self.poses), np.int64)
        empty = start._replace(counters=(NOTHING,) * len(layout.counters))
        for index, (here, there, look_here, look_there) in enumerate(joint):
            state = empty._replace(positions=(here, there), facings=(look_here, look_there))
            for one in range(STAY + 1):
                for two in range(STAY + 1):
                    after = self.kitchen.step(state, (one, two))
                    (a, b), (look_a, look_b) = after.positions, after.facings
                    self.moved[one, two, index] = number[a, b, look_a, look_b]
        self.moved[INTERACT] = self.moved[STAY]
        self.moved[:, INTERACT] = self.moved[:, STAY]

    def _tabulate_items(self, first: _Items) -> None:
        """Every configuration that can come up, what each interact makes of it, and what a tick does."""
        layout = self.kitchen.layout
        reach = [
            {tile for tile in self.tiles if set(layout.access[tile]) & set(layout.region(position))}
            for position in layout.starts
        ]
        self.items = [first]
        number = {first: 0}

        def index_of(items: _Items) -> int:
            if not self._is_needed(items):
                return _DROPPED
            if items not in number:
                number[items] = len(self.items)
                self.items.append(items)
            return number[items]

        interacts: tuple[list[list[int]], list[list[int]]] = ([], [])
        ticks: list[int] = []
        for items in self.items:  # grows
            own = number[items]
            for player in (0, 1):
                row = [own] * (len(self.tiles) + 1)
                if player in self.active and not items.delivered:
                    for place, tile in enumerate(self.tiles):
                        if tile in reach[player]:
                            row[place] = index_of(_Items(*self.kitchen.interact(tile, player, *items, ())))
                interacts[player].append(row)
            pots = tuple(
                (onions, tick + 1 if IDLE < tick < self.kitchen.cook_time else tick) for onions, tick in items.pots
            )
            ticks.append(index_of(items._replace(pots=pots)))
        self.interacted: _Indices = np.array(interacts, np.int64)
        self.ticked: _Indices = np.array(ticks, np.int64)

    def _is_needed(self, items: _Items) -> bool:
        """Whether the configuration holds no more than one soup needs."""
        things = (*items.held, *items.counters)
        soups = things.count(SOUP) + items.delivered
        used = [pot for pot in items.pots if pot != EMPTY_POT]
        return (
            SPOILED not in things
            and things.count(DISH) + soups <= 1
            and len(used) + soups <= 1
            and things.count(ONION) + sum(onions for onions, _ in used) + FULL * soups <= FULL
            and all(tick == IDLE or onions == FULL for onions, tick in used)
            and (self.counters or not any(items.counters))
        )

    def best_servers(self) -> _Indices:
        """Joint states with a ready pot and the dish in somebody's hand, in every joint pose."""
        ready = (FULL, self.kitchen.cook_time)
        configurations = [index for index, items in enumerate(self.items) if ready in items.pots and DISH in items.held]
        return (np.array(configurations, np.int64)[:, None] * self.poses + np.arange(self.poses)).reshape(-1)

    def successors(self, states: _Indices) -> Iterator[tuple[tuple[int, int], _Indices, _Indices]]:
        """For each joint control: the control, rows of ``states`` it applies to, and the states it leads to."""
        items, pose = np.divmod(states, self.poses)
        rows = np.arange(len(states))
        choices = [CONTROLS if player in self.active else (STAY,) for player in (0, 1)]
        for one in choices[0]:
            between, kept = items, rows
            if one == INTERACT:
                between = self.interacted[0][items, self.ahead[0][pose]]
                kept = np.flatnonzero((between != items) & (between != _DROPPED))
            for two in choices[1]:
                after, left = between[kept], kept
                if two == INTERACT:
                    after = self.interacted[1][after, self.ahead[1][pose[kept]]]
                    changed = (after != between[kept]) & (after != _DROPPED)
                    after, left = after[changed], kept[changed]
                if len(left):
                    yield (one, two), left, self.ticked[after] * self.poses + self.moved[one, two][pose[left]]


@dataclass(frozen=True)
class _Layers:
    """The layers of a search that has reached its goal."""

    problem: _Problem
    layers: list[_Indices]
    ends: _Indices  # states of the last layer that are goals

    @property
    def frames(self) -> int:
        return len(self.layers) - 1

    def path(self, end: int | None = None) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The state of the first layer from which an end is reached, and the controls in between."""
        state = int(self.ends[0]) if end is None else end
        controls: list[tuple[int, int]] = []
        for layer in reversed(self.layers[:-1]):
            for control, rows, after in self.problem.successors(layer):
                hits = np.flatnonzero(after == state)
                if len(hits):
                    state = int(layer[rows[hits[0]]])
                    controls.append(control)
                    break
        return state, tuple(reversed(controls))


def _search(
    problem: _Problem,
    starts: _Indices,
    goal: _Mask,
    allowed: _Mask | None = None,
    longest: int | None = None,
    latest_start: int | None = None,
) -> _Layers | None:
    """Breadth-first search.

    Args:
        problem: the tables.
        starts: first layer.
        goal: configurations to reach.
        allowed: configurations that may be passed through, goals included; all without.
        longest: give up after so many frames.
        latest_start: give up states in which cooking has not begun after so many frames.
    """
    layers = [np.unique(starts)]
    seen = np.zeros(len(problem.items) * problem.poses, np.bool_)
    seen[layers[0]] = True
    while len(layers[-1]) and (longest is None or len(layers) <= longest):
        usable = np.ones(len(problem.items), np.bool_) if allowed is None else allowed
        if latest_start is not None and len(layers) >= latest_start:
            usable = usable & ~problem.fills
        parts = []
        for _, _, after in problem.successors(layers[-1]):
            fresh = after[~seen[after] & usable[after // problem.poses]]
            if len(fresh):
                fresh = np.unique(fresh)
                seen[fresh] = True
                parts.append(fresh)
        layers.append(np.concatenate(parts) if parts else np.zeros(0, np.int64))
        reached = layers[-1][goal[layers[-1] // problem.poses]]
        if len(reached):
            return _Layers(problem, layers, reached)
    return None


def main() -> None:
    """Print the minima of the classic layouts: both players, without hand-over, and one cook alone."""
    print(f"{'layout':<26}" + "".join(f"{team:>14}" for team in TEAMS))
    for name in LAYOUT_NAMES:
        results = [minimum(load_layout(name), team=team) for team in TEAMS]
        print(f"{name:<26}" + "".join(f"{result.frames if result else '-':>14}" for result in results), flush=True)


if __name__ == "__main__":
    main()
