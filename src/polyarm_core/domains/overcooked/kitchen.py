"""One kitchen, one frame at a time: the transition of overcooked-ai 1.1.0 in plain Python on immutable states.

A frame has three parts, as in ``OvercookedGridworld.get_state_transition``: both players' interacts, the first player's
first; then both moves at once; then one tick of every cooking pot. Two points are easily overlooked:

* Nothing cooks by itself. An empty-handed interact starts *any* idle pot that holds an onion, a full one or not. The
  soup of a pot started too early (``SPOILED``) is no order: serving it only frees the hands.
* Two players who would enter the same cell, or swap cells, both stay where they are, but turn.

Not in the package: a tile in ``KitchenState.blocked`` is out of use, and an interact with it does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from polyarm_core.domains.overcooked.layouts import (
    COUNTER,
    DISHES,
    EAST,
    NORTH,
    ONIONS,
    POT,
    SERVING,
    SOUTH,
    WEST,
    Layout,
)
from polyarm_core.errors import InvalidValue

STAY, INTERACT = 4, 5
CONTROLS = (NORTH, SOUTH, EAST, WEST, STAY, INTERACT)
CONTROL_NAMES = ("north", "south", "east", "west", "stay", "interact")

NOTHING, ONION, DISH, SOUP, SPOILED = 0, 1, 2, 3, 4
ITEM_NAMES = ("nothing", "onion", "dish", "soup", "spoiled")

FULL = 3  # onions of the order, and of a full pot
IDLE = -1  # tick of a pot that does not cook
COOK_TIME = 20  # frames
HORIZON = 100  # frames of an episode
EMPTY_POT = (0, IDLE)


class KitchenState(NamedTuple):
    """A kitchen in one frame: immutable and hashable, plain integers only.

    Attributes:
        positions: cell of each player.
        facings: direction in which each player looks: 0 north, 1 south, 2 east, 3 west.
        held: item in each player's hands: 0 nothing, 1 onion, 2 dish, 3 soup, 4 spoiled soup.
        pots: (onions, tick) of each pot, in the order of ``layout.pots``; tick -1 = idle, 0 .. cook time - 1 =
            cooking, cook time = ready.
        counters: item on each counter, in the order of ``layout.counters``; codes as in ``held``.
        delivered: soups of three onions delivered so far.
        frame: frames since the start.
        blocked: cells of tiles that are out of use, sorted.
    """

    positions: tuple[int, ...]
    facings: tuple[int, ...]
    held: tuple[int, ...]
    pots: tuple[tuple[int, int], ...]
    counters: tuple[int, ...]
    delivered: int
    frame: int
    blocked: tuple[int, ...] = ()


class Kitchen:
    """The rules of a kitchen on one layout, for two players. Holds no episode: states go in and come out.

    Args:
        layout: the map.
        cook_time: frames from the start of cooking to a ready soup, at least 1.

    Raises:
        InvalidValue: the cook time is below 1.
    """

    def __init__(self, layout: Layout, cook_time: int = COOK_TIME) -> None:
        if cook_time < 1:
            raise InvalidValue("cook_time", cook_time, "at least 1 frame")
        self.layout = layout
        self.cook_time = cook_time
        # Index of a pot or counter in the state's tuples, by its cell.
        self.pot_index = {cell: index for index, cell in enumerate(layout.pots)}
        self.counter_index = {cell: index for index, cell in enumerate(layout.counters)}

    def start(self) -> KitchenState:
        """Standard start: both players look north with empty hands, everything is empty."""
        layout = self.layout
        return KitchenState(
            positions=layout.starts,
            facings=(NORTH, NORTH),
            held=(NOTHING, NOTHING),
            pots=(EMPTY_POT,) * len(layout.pots),
            counters=(NOTHING,) * len(layout.counters),
            delivered=0,
            frame=0,
        )

    def step(self, state: KitchenState, controls: Sequence[int]) -> KitchenState:
        """The next state. One control of ``CONTROLS`` per player."""
        positions, facings, held, pots, counters, delivered, frame, blocked = state
        first, second = controls

        if first == INTERACT or second == INTERACT:
            for player, control in ((0, first), (1, second)):
                if control == INTERACT:
                    held, pots, counters, delivered = self.interact(
                        self.layout.front[positions[player]][facings[player]],
                        player,
                        held,
                        pots,
                        counters,
                        delivered,
                        blocked,
                    )

        if first < STAY or second < STAY:
            here, there = positions
            new_here, new_there = here, there
            look_here, look_there = facings
            if first < STAY:
                new_here, look_here = self.layout.move[here][first], first
            if second < STAY:
                new_there, look_there = self.layout.move[there][second], second
            facings = (look_here, look_there)
            if new_here != new_there and not (new_here == there and new_there == here):
                positions = (new_here, new_there)

        cook_time = self.cook_time
        for _, tick in pots:
            if IDLE < tick < cook_time:
                pots = tuple([(n, tick + 1 if IDLE < tick < cook_time else tick) for n, tick in pots])
                break
        return KitchenState(positions, facings, held, pots, counters, delivered, frame + 1, blocked)

    def interact(
        self,
        tile: int,
        player: int,
        held: tuple[int, ...],
        pots: tuple[tuple[int, int], ...],
        counters: tuple[int, ...],
        delivered: int,
        blocked: tuple[int, ...],
    ) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...], int]:
        """Hands, pots, counters and deliveries after one player's interact with the tile ahead; no tick of the pots."""
        kind = self.layout.terrain[tile]
        item = held[player]
        new_item = item
        if tile in blocked:
            pass
        elif kind == COUNTER:
            index = self.counter_index[tile]
            if (item == NOTHING) != (counters[index] == NOTHING):
                new_item = counters[index]
                counters = (*counters[:index], item, *counters[index + 1 :])
        elif kind == POT:
            index = self.pot_index[tile]
            onions, tick = pots[index]
            pot = pots[index]
            if item == NOTHING and tick == IDLE and onions:
                pot = (onions, 0)
            elif item == DISH and tick >= self.cook_time:
                new_item = SOUP if onions == FULL else SPOILED
                pot = EMPTY_POT
            elif item == ONION and tick == IDLE and onions < FULL:
                new_item = NOTHING
                pot = (onions + 1, IDLE)
            if pot is not pots[index]:
                pots = (*pots[:index], pot, *pots[index + 1 :])
        elif kind == ONIONS:
            if item == NOTHING:
                new_item = ONION
        elif kind == DISHES:
            if item == NOTHING:
                new_item = DISH
        elif kind == SERVING and item >= SOUP:
            new_item = NOTHING
            delivered += item == SOUP
        if new_item != item:
            held = (new_item, held[1]) if player == 0 else (held[0], new_item)
        return held, pots, counters, delivered
