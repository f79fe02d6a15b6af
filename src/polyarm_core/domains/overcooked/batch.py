"""Many kitchens on one layout at once, in numpy: the same transition as ``kitchen``, for self-play and roll-outs.

Every array has the kitchens on its last axis (B of them). The content of a tile is one integer: the item on a counter,
or the code of a pot. An interact is then one look-up by what the tile ahead is, what it holds and what the hands hold.

Pot codes, for a cook time T: n = idle with n onions (0..3); ``4 + (n - 1) * (T + 1) + tick`` = cooking or ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from polyarm_core.domains.overcooked.layouts import (
    COUNTER,
    DISHES,
    NORTH,
    ONIONS,
    POT,
    SERVING,
    TILES,
    Layout,
)
from polyarm_core.errors import InvalidValue

Ints = NDArray[np.intp]
Floats = NDArray[np.float32]

# Shaped rewards of the package (BASE_REW_SHAPING_PARAMS), and what it pays for a delivered order.
PLACEMENT_IN_POT, DISH_PICKUP, SOUP_PICKUP, DELIVERY = 3.0, 3.0, 5.0, 20.0

_QUIET, _POTTED, _TOOK_DISH, _TOOK_SOUP, _DELIVERED = range(5)  # what an interact did, as far as it is rewarded
_SHAPED = np.array([0.0, PLACEMENT_IN_POT, 0.0, SOUP_PICKUP, 0.0], np.float32)
_ITEMS = len(ITEM_NAMES)


class Frame(NamedTuple):
    """What one frame brought.

    Attributes:
        delivered: orders delivered by each player, shape (2, B), 0 or 1.
        shaped: the package's shaped reward of each player, shape (2, B); deliveries are not in it.
    """

    delivered: Ints
    shaped: Floats


class Tables:
    """Look-up tables of one layout and cook time; shared by all batches of it.

    Args:
        kitchen: the rules, from which the tables are filled.
    """

    def __init__(self, kitchen: Kitchen) -> None:
        layout, cook_time = kitchen.layout, kitchen.cook_time
        self.kitchen = kitchen
        self.cells = layout.width * layout.height
        self.pots = np.array(layout.pots, np.intp)
        self.counters = np.array(layout.counters, np.intp)

        # Pots: code <-> (onions, tick), and the code after one tick.
        self.pot_of_code = [(onions, IDLE) for onions in range(FULL + 1)]
        self.pot_of_code += [(onions, tick) for onions in range(1, FULL + 1) for tick in range(cook_time + 1)]
        self.code_of_pot = {pot: code for code, pot in enumerate(self.pot_of_code)}
        self.codes = len(self.pot_of_code)
        self.ticked = np.array(
            [
                self.code_of_pot[(onions, tick + 1 if IDLE < tick < cook_time else tick)]
                for onions, tick in self.pot_of_code
            ],
            np.intp,
        )
        # Pots that make a dish useful, as the package counts them: cooking, ready, or idle with one or two onions.
        self.wants_dish = np.array([tick > IDLE or 0 < onions < FULL for onions, tick in self.pot_of_code])

        # Poses: ``cell * 4 + facing``. The tile ahead, where each control leads, and the facing after it.
        poses = [(cell, facing) for cell in range(self.cells) for facing in range(4)]
        ahead = [layout.front[cell][facing] for cell, facing in poses]
        self.ahead = np.array([tile if tile >= 0 else 0 for tile in ahead], np.intp)
        self.end = np.array(
            [layout.move[cell][control] if control < STAY else cell for cell, _ in poses for control in range(6)],
            np.intp,
        )
        self.turn = np.array(
            [control if control < STAY else facing for _, facing in poses for control in range(6)], np.intp
        )

        # Interacts: key = (tile * items + held) * codes + content, one row of the table per tile of the map.
        size = self.cells * _ITEMS * self.codes
        held, content, event = (np.zeros(size, np.intp) for _ in range(3))
        for tile, kind in enumerate(layout.terrain):
            for item in range(_ITEMS):
                for code in range(self.codes):
                    key = (tile * _ITEMS + item) * self.codes + code
                    held[key], content[key], event[key] = self._interact(kind, item, code)
        self.new_held, self.new_content, self.event = held, content, event

    @cached_property
    def encoder(self) -> Encoder:
        """Encoder of observations of the layout."""
        return Encoder(self)

    def _interact(self, kind: str, item: int, content: int) -> tuple[int, int, int]:
        """(Held item, content, event) after an interact with a tile of a kind; see ``Kitchen.step``."""
        if kind == COUNTER and content < _ITEMS and (item == NOTHING) != (content == NOTHING):
            return content, item, _QUIET
        if kind == POT:
            onions, tick = self.pot_of_code[content]
            if item == NOTHING and tick == IDLE and onions:
                return item, self.code_of_pot[(onions, 0)], _QUIET
            if item == DISH and tick == self.kitchen.cook_time:
                return SOUP if onions == FULL else SPOILED, 0, _TOOK_SOUP
            if item == ONION and tick == IDLE and onions < FULL:
                return NOTHING, self.code_of_pot[(onions + 1, IDLE)], _POTTED
        if kind == ONIONS and item == NOTHING:
            return ONION, content, _QUIET
        if kind == DISHES and item == NOTHING:
            return DISH, content, _TOOK_DISH
        if kind == SERVING and item >= SOUP:
            return NOTHING, content, _DELIVERED if item == SOUP else _QUIET
        return item, content, _QUIET


@lru_cache(maxsize=32)
def _tables(layout: Layout, cook_time: int) -> Tables:
    return Tables(Kitchen(layout, cook_time))


class KitchenBatch:
    """B kitchens that step together. It changes in place; ``copy`` and ``take`` give batches of their own.

    A finished episode is the caller's: look at ``delivered`` and ``frame``, then ``reset`` those rows.

    Args:
        layout: the map, the same for all.
        size: number of kitchens, B.
        cook_time: frames from the start of cooking to a ready soup, at least 1.

    Attributes:
        positions, facings, held: of each player, shape (2, B); codes as in ``KitchenState``.
        content: what each tile holds, shape (cells, B); codes as the module says.
        delivered, frame: shape (B,).
        blocked: tiles out of use, shape (cells, B); None = none in any kitchen.
    """

    def __init__(self, layout: Layout, size: int, cook_time: int = COOK_TIME) -> None:
        self._allocate(_tables(layout, cook_time), size)
        self.reset()

    def _allocate(self, tables: Tables, size: int) -> None:
        if size < 1:
            raise InvalidValue("size", size, "at least 1 kitchen")
        self.tables = tables
        self.size = size
        self.positions: Ints = np.zeros((2, size), np.intp)
        self.facings: Ints = np.zeros((2, size), np.intp)
        self.held: Ints = np.zeros((2, size), np.intp)
        self.content: Ints = np.zeros((tables.cells, size), np.intp)
        self.delivered: Ints = np.zeros(size, np.intp)
        self.frame: Ints = np.zeros(size, np.intp)
        self.blocked: NDArray[np.bool_] | None = None
        self._column: Ints = np.arange(size, dtype=np.intp)

    @property
    def layout(self) -> Layout:
        """The map of all kitchens."""
        return self.tables.kitchen.layout

    @property
    def kitchen(self) -> Kitchen:
        """The same rules for one state at a time."""
        return self.tables.kitchen

    # --- states in and out ---

    @staticmethod
    def of(kitchen: Kitchen, states: Sequence[KitchenState]) -> KitchenBatch:
        """A batch of these states, in their order.

        Raises:
            InvalidValue: no state.
        """
        batch = KitchenBatch(kitchen.layout, len(states), kitchen.cook_time)
        for row, state in enumerate(states):
            batch.put(row, state)
        return batch

    def reset(self, rows: ArrayLike | slice = slice(None)) -> None:
        """Standard start of some kitchens: index, indices or mask; all without."""
        where = rows if isinstance(rows, slice) else np.asarray(rows)
        for player, start in enumerate(self.layout.starts):
            self.positions[player, where] = start
        self.facings[:, where] = NORTH
        self.held[:, where] = NOTHING
        self.content[:, where] = 0
        self.delivered[where] = 0
        self.frame[where] = 0
        if self.blocked is not None:
            self.blocked[:, where] = False

    def state(self, row: int) -> KitchenState:
        """One kitchen as a state."""
        tables, content = self.tables, self.content[:, row].tolist()
        blocked = () if self.blocked is None else tuple(np.flatnonzero(self.blocked[:, row]).tolist())
        return KitchenState(
            positions=tuple(self.positions[:, row].tolist()),
            facings=tuple(self.facings[:, row].tolist()),
            held=tuple(self.held[:, row].tolist()),
            pots=tuple(tables.pot_of_code[content[cell]] for cell in self.layout.pots),
            counters=tuple(content[cell] for cell in self.layout.counters),
            delivered=int(self.delivered[row]),
            frame=int(self.frame[row]),
            blocked=blocked,
        )

    def put(self, rows: int | ArrayLike, state: KitchenState) -> None:
        """Put a state into one kitchen, or the same into several: index, indices or mask."""
        where = np.asarray(rows)
        for player in (0, 1):
            self.positions[player, where] = state.positions[player]
            self.facings[player, where] = state.facings[player]
            self.held[player, where] = state.held[player]
        for cell, pot in zip(self.layout.pots, state.pots, strict=True):
            self.content[cell, where] = self.tables.code_of_pot[pot]
        for cell, item in zip(self.layout.counters, state.counters, strict=True):
            self.content[cell, where] = item
        self.delivered[where] = state.delivered
        self.frame[where] = state.frame
        if state.blocked and self.blocked is None:
            self.blocked = np.zeros(self.content.shape, np.bool_)
        if self.blocked is not None:
            self.blocked[:, where] = False
            for cell in state.blocked:
                self.blocked[cell, where] = True

    def take(self, rows: ArrayLike) -> KitchenBatch:
        """A batch of its own with these kitchens, in this order; indices (with repeats) or a mask."""
        where = np.asarray(rows)
        where = np.flatnonzero(where) if where.dtype == np.bool_ else where.astype(np.intp)
        other = object.__new__(KitchenBatch)
        other._allocate(self.tables, len(where))
        other.positions, other.facings = self.positions[:, where], self.facings[:, where]
        other.held, other.content = self.held[:, where], self.content[:, where]
        other.delivered, other.frame = self.delivered[where], self.frame[where]
        other.blocked = None if self.blocked is None else self.blocked[:, where]
        return other

    def copy(self) -> KitchenBatch:
        """The same kitchens, in a batch of their own."""
        return self.take(np.arange(self.size))

    # --- transition ---

    def step(self, controls: ArrayLike) -> Frame:
        """Advance every kitchen by one frame.

        Args:
            controls: of both players, shape (2, B), as in ``kitchen.CONTROLS``.

        Raises:
            InvalidValue: wrong shape.
        """
        chosen = np.asarray(controls, np.intp)
        if chosen.shape != (2, self.size):
            raise InvalidValue("shape of controls", chosen.shape, f"(2, {self.size})")
        tables = self.tables
        pots_before = self.content[tables.pots]  # a copy: whether a dish is useful is judged by the frame's beginning
        shaped: Floats = np.zeros((2, self.size), np.float32)
        delivered: Ints = np.zeros((2, self.size), np.intp)

        poses = self.positions * 4 + self.facings
        for player in (0, 1):
            acting = np.flatnonzero(chosen[player] == INTERACT)
            tile = tables.ahead[poses[player, acting]]
            if self.blocked is not None:
                usable = ~self.blocked[tile, acting]
                acting, tile = acting[usable], tile[usable]
            key = (tile * _ITEMS + self.held[player, acting]) * tables.codes + self.content[tile, acting]
            event = tables.event[key]
            shaped[player, acting] = _SHAPED[event]
            dish = acting[event == _TOOK_DISH]
            if len(dish):
                shaped[player, dish] = DISH_PICKUP * self._dish_is_useful(dish, pots_before)
            delivered[player, acting] = event == _DELIVERED
            self.held[player, acting] = tables.new_held[key]
            self.content[tile, acting] = tables.new_content[key]

        moves = poses * 6 + chosen
        ends = tables.end[moves]
        self.facings = tables.turn[moves]
        clash = (ends[0] == ends[1]) | ((ends[0] == self.positions[1]) & (ends[1] == self.positions[0]))
        self.positions = np.where(clash, self.positions, ends)

        self.content[tables.pots] = tables.ticked[self.content[tables.pots]]
        self.delivered += delivered[0] + delivered[1]
        self.frame += 1
        return Frame(delivered, shaped)

    def _dish_is_useful(self, rows: Ints, pots_before: Ints) -> NDArray[np.bool_]:
        """The package's rule: no dish on a counter, and fewer dishes in hands than pots that want one."""
        on_counters = (self.content[np.ix_(self.tables.counters, rows)] == DISH).any(axis=0)
        in_hands = (self.held[:, rows] == DISH).sum(axis=0)
        wanted = self.tables.wants_dish[pots_before[:, rows]].sum(axis=0)
        useful: NDArray[np.bool_] = ~on_counters & (in_hands < wanted)
        return useful

    def effective(self) -> NDArray[np.bool_]:
        """Which controls would change anything, were the other player to stay; shape (2, B, 6). Stay is always True."""
        tables = self.tables
        poses = self.positions * 4 + self.facings
        mask = np.ones((2, self.size, 6), np.bool_)
        for player in (0, 1):
            pose, here, other = poses[player], self.positions[player], self.positions[1 - player]
            for control in range(STAY):
                end = tables.end[pose * 6 + control]
                mask[player, :, control] = (self.facings[player] != control) | ((end != here) & (end != other))
            tile = tables.ahead[pose]
            held, content = self.held[player], self.content[tile, self._column]
            key = (tile * _ITEMS + held) * tables.codes + content
            acts = (tables.new_held[key] != held) | (tables.new_content[key] != content)
            if self.blocked is not None:
                acts &= ~self.blocked[tile, self._column]
            mask[player, :, INTERACT] = acts
        return mask

    # --- observation ---

    @property
    def encoder(self) -> Encoder:
        """Encoder of both players' observations; shared by all batches of the layout and cook time."""
        return self.tables.encoder

    def observe(self) -> Floats:
        """Both players' observations, shape (B, 2, ``encoder.size``)."""
        return self.encoder(self)


class Encoder:
    """What a player sees, as one flat vector; the same function for both players, each with itself first.

    In this order: own cell (one-hot over the floor), own facing (4), kind of the tile ahead (one-hot of ``TILES``),
    (dx, dy) from oneself to every pot, dispenser and serving tile, own item (one-hot); the other's cell, facing and
    item, and (dx, dy) to it; every pot: onions / 3, idle and full, cooking, time left / cook time, ready; item ahead
    if the tile is a counter (one-hot without nothing), pot ahead as above; item on every counter beside floor (one-hot
    without nothing). Displacements are divided by the larger side of the map. Tiles out of use are not shown.

    Args:
        tables: of the layout.

    Attributes:
        size: length of the vector, K.
    """

    def __init__(self, tables: Tables) -> None:
        layout, cook_time = tables.kitchen.layout, tables.kitchen.cook_time
        self.tables = tables
        self.places = np.array([cell for cell in layout.counters if layout.access[cell]], np.intp)
        scale = float(max(layout.width, layout.height))
        floor, kinds = np.eye(len(layout.floor), dtype=np.float32), np.eye(len(TILES), dtype=np.float32)
        stations = [
            cell
            for cells in (layout.pots, layout.onion_dispensers, layout.dish_dispensers, layout.servings)
            for cell in cells
        ]

        def towards(origin: int, target: int) -> list[float]:
            (x, y), (to_x, to_y) = layout.xy(origin), layout.xy(target)
            return [(to_x - x) / scale, (to_y - y) / scale]

        def pose(cell: int, facing: int) -> list[float]:
            return [*floor[layout.floor.index(cell)], *np.eye(4)[facing]]

        def own(cell: int, facing: int) -> list[float]:
            ahead = layout.terrain[layout.front[cell][facing]]
            vectors = [part for station in stations for part in towards(cell, station)]
            return [*pose(cell, facing), *kinds[TILES.index(ahead)], *vectors]

        def by_pose(rows: dict[int, list[float]]) -> Floats:
            table = np.zeros((tables.cells * 4, len(next(iter(rows.values())))), np.float32)
            for index, row in rows.items():
                table[index] = row
            return table

        poses = [(cell, facing) for cell in layout.floor for facing in range(4)]
        self.own = by_pose({cell * 4 + facing: own(cell, facing) for cell, facing in poses})
        self.other = by_pose({cell * 4 + facing: pose(cell, facing) for cell, facing in poses})
        self.between = np.zeros((tables.cells, tables.cells, 2), np.float32)
        for origin in layout.floor:
            for target in layout.floor:
                self.between[origin, target] = towards(origin, target)
        self.item = np.eye(_ITEMS, dtype=np.float32)
        self.pot = np.array(
            [
                [
                    onions / FULL,
                    onions == FULL and tick == IDLE,
                    IDLE < tick < cook_time,
                    (cook_time - tick) / cook_time if tick > IDLE else 0.0,
                    tick == cook_time,
                ]
                for onions, tick in tables.pot_of_code
            ],
            np.float32,
        )
        # What the tile ahead holds: item and pot features by tile and content, zero where they do not apply.
        wide = _ITEMS - 1 + self.pot.shape[1]
        self.ahead = np.zeros((tables.cells, tables.codes, wide), np.float32)
        for cell in layout.counters:
            self.ahead[cell, :_ITEMS, : _ITEMS - 1] = self.item[:, 1:]
        for cell in layout.pots:
            self.ahead[cell, :, _ITEMS - 1 :] = self.pot
        self.size = (
            self.own.shape[1]
            + _ITEMS
            + self.other.shape[1]
            + _ITEMS
            + 2
            + len(layout.pots) * self.pot.shape[1]
            + wide
            + len(self.places) * (_ITEMS - 1)
        )

    def __call__(self, batch: KitchenBatch) -> Floats:
        """Observations of a batch, shape (B, 2, ``size``)."""
        tables = self.tables
        result: Floats = np.empty((batch.size, 2, self.size), np.float32)
        poses = batch.positions * 4 + batch.facings
        pots = self.pot[batch.content[tables.pots].T].reshape(batch.size, -1)
        counters = self.item[batch.content[self.places].T, 1:].reshape(batch.size, -1)
        for player in (0, 1):
            tile = tables.ahead[poses[player]]
            parts = (
                self.own[poses[player]],
                self.item[batch.held[player]],
                self.other[poses[1 - player]],
                self.item[batch.held[1 - player]],
                self.between[batch.positions[player], batch.positions[1 - player]],
                pots,
                self.ahead[tile, batch.content[tile, np.arange(batch.size)]],
                counters,
            )
            np.concatenate(parts, axis=1, out=result[:, player])
        return result
