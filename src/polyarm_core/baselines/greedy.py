"""Two players who each do what looks most urgent, without a word to each other.

:class:`Greedy` is the pair of ``GreedyHumanModel`` agents of overcooked_ai (Carroll et al., 2019), written anew from
their description: the package's own class needs a planner that it pickles into its installation. A test compares the
two decision by decision. :class:`CollisionAwareGreedy` has the same goals, but walks around the partner and gives way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from polyarm_core.domains.overcooked.kitchen import (
    COOK_TIME,
    DISH,
    FULL,
    INTERACT,
    NOTHING,
    ONION,
    SOUP,
    SPOILED,
    STAY,
    KitchenState,
)
from polyarm_core.domains.overcooked.layouts import Layout

_OPPOSITE = (1, 0, 3, 2)  # of north, south, east, west
_RANK = {SOUP: 0, SPOILED: 0, DISH: 1, ONION: 2, NOTHING: 3}  # who goes first, by what is in hand

Stand = tuple[int, int]  # a cell, and the direction to face there


class Routes:
    """Shortest ways of one player through a kitchen.

    Args:
        layout: of the kitchen.

    Attributes:
        stands: for each tile that is not floor, the stands from which a player interacts with it.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.stands: dict[int, tuple[Stand, ...]] = {
            # In the package's order: the stand north of the tile first.
            tile: tuple((cell, _OPPOSITE[d]) for d, cell in enumerate(beside) if cell in layout.floor)
            for tile, beside in enumerate(layout.front)
            if tile not in layout.floor
        }
        self._distances: dict[tuple[Stand, frozenset[int]], dict[Stand, int]] = {}

    def neighbours(self, cell: int) -> list[tuple[int, int]]:
        """``(direction, cell)`` of the floor cells next to a floor cell."""
        return [(direction, near) for direction, near in enumerate(self.layout.move[cell]) if near != cell]

    def turn(self, stand: Stand, direction: int, closed: Collection[int] = ()) -> Stand:
        """Where a move leads: the next cell, or only a turn where no floor is, or a closed cell."""
        target = self.layout.move[stand[0]][direction]
        return (stand[0] if target in closed else target, direction)

    def distances(self, goal: Stand, closed: frozenset[int] = frozenset()) -> dict[Stand, int]:
        """Moves from every stand to the goal that never enter a closed cell. Unreachable stands are missing."""
        key = (goal, closed)
        known = self._distances.get(key)
        if known is None:
            known = self._distances[key] = self._search(goal, closed)
        return known

    def _search(self, goal: Stand, closed: frozenset[int]) -> dict[Stand, int]:
        """Breadth-first search from the goal against the direction of the moves."""
        distance = {goal: 0}
        queue = deque([goal])
        while queue:
            cell, facing = here = queue.popleft()
            before = [(cell, other) for other in range(4)] if self.turn(here, facing, closed) == here else []
            origin = self.layout.move[cell][_OPPOSITE[facing]]
            if origin != cell and origin not in closed:
                before += [(origin, other) for other in range(4)]
            for stand in before:
                if stand not in distance:
                    distance[stand] = distance[here] + 1
                    queue.append(stand)
        return distance

    def control(self, start: Stand, goal: Stand, closed: frozenset[int] = frozenset()) -> int:
        """First control of a shortest way to the goal that ends with an interaction. The goal must be reachable."""
        if start == goal:
            return INTERACT
        distance = self.distances(goal, closed)
        nexts = [(self.turn(start, direction, closed), direction) for direction in range(4)]
        # Of equally short ways the package takes the one whose next stand comes first in its list of stands.
        return min((distance[stand], *stand, direction) for stand, direction in nexts if stand in distance)[3]


class Greedy:
    """Both players take the most urgent task and the shortest way, as if alone.

    Empty hands: a dish when a soup cooks or is ready and the partner has no dish, otherwise start a full pot, otherwise
    an onion. Onion: to a pot with room. Dish: to a pot that cooks or is ready. Soup: to the serving tile. Where nothing
    of this is possible: to the nearest dispenser or pot. A player whom nothing moved in the last frame steps to a
    random free neighbour cell. Dishes and onions are also taken from counters (the package's planner with all counters
    as goals), soups are not. Tiles that are out of use are not approached.

    Args:
        layout: of the kitchen.
        cook_time: frames from the start of cooking to a ready soup.
    """

    name = "greedy"

    def __init__(self, layout: Layout, cook_time: int = COOK_TIME) -> None:
        self.layout = layout
        self.cook_time = cook_time
        self.routes = Routes(layout)
        self.reset(0)

    def reset(self, seed: int) -> None:
        """See :class:`~polyarm_core.baselines.interface.Policy`."""
        self._random = np.random.default_rng(seed)
        self._last: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def act(self, state: KitchenState) -> tuple[int, int]:
        """See :class:`~polyarm_core.baselines.interface.Policy`."""
        stands = (state.positions, state.facings)
        stuck = stands == self._last
        self._last = stands
        if stuck:
            return self._unstick(state, 0), self._unstick(state, 1)
        return self._alone(state, 0), self._alone(state, 1)

    def _alone(self, state: KitchenState, player: int) -> int:
        """Control of a player who ignores where the partner is."""
        start = (state.positions[player], state.facings[player])
        goals = [goal for goal in self.goals(state, player) if start in self.routes.distances(goal)]
        if not goals:
            return STAY
        # min takes the first of equal ones, as the package does
        return self.routes.control(start, min(goals, key=lambda goal: self.routes.distances(goal)[start]))

    def _unstick(self, state: KitchenState, player: int) -> int:
        """A random step to a free cell; stay where there is none."""
        other = state.positions[1 - player]
        moves = [d for d, cell in self.routes.neighbours(state.positions[player]) if cell != other]
        return moves[int(self._random.integers(len(moves)))] if moves else STAY

    def goals(self, state: KitchenState, player: int) -> list[Stand]:
        """Stands from which the player can do what is most urgent, those of equal worth in the package's order."""
        layout = self.layout
        pots = dict(zip(layout.pots, state.pots, strict=True))
        ready = [tile for tile, (_, tick) in pots.items() if tick >= self.cook_time]
        cooking = [tile for tile, (_, tick) in pots.items() if 0 <= tick < self.cook_time]
        held = state.held[player]
        tiles: Sequence[int]
        if held == ONION:
            some = [tile for tile, (onions, tick) in pots.items() if tick < 0 and 0 < onions < FULL]
            tiles = some + [tile for tile, (onions, _) in pots.items() if onions == 0]
        elif held == DISH:
            tiles = ready + cooking
        elif held >= SOUP:  # a spoiled one too
            tiles = layout.servings
        elif (ready or cooking) and state.held[1 - player] != DISH:
            tiles = [*layout.dish_dispensers, *self._on_counters(state, DISH)]
        else:
            full = [tile for tile, (onions, tick) in pots.items() if onions == FULL and tick < 0]
            tiles = full or [*layout.onion_dispensers, *self._on_counters(state, ONION)]
        start = (state.positions[player], state.facings[player])
        goals = self._reachable(start, tiles, state.blocked)
        if goals:
            return goals
        nearest = (*layout.onion_dispensers, *layout.pots, *layout.dish_dispensers)
        features = self._reachable(start, nearest, state.blocked)
        if not features:
            return []
        best = min(features, key=lambda goal: self.routes.distances(goal)[start])
        tile = next(tile for tile in nearest if best in self.routes.stands[tile])
        return self._reachable(start, [tile], state.blocked)

    def _on_counters(self, state: KitchenState, item: int) -> list[int]:
        """Counters on which an item lies."""
        return [tile for tile, there in zip(self.layout.counters, state.counters, strict=True) if there == item]

    def _reachable(self, start: Stand, tiles: Sequence[int], blocked: Collection[int]) -> list[Stand]:
        """Stands of the tiles in use that can be reached from a start in an empty kitchen."""
        return [
            goal
            for tile in tiles
            if tile not in blocked
            for goal in self.routes.stands[tile]
            if start in self.routes.distances(goal)
        ]


class CollisionAwareGreedy(Greedy):
    """The goals of :class:`Greedy`, but ways that lead around the partner, and a rule who gives way.

    The player with the more valuable thing in hand goes first (soup, dish, onion, nothing; player 0 among equals): its
    way avoids the cell where the partner stands, if there is such a way. The other's way avoids the first's cell and
    the cell it enters next. If the first must pass where the second stands, the second steps aside.
    """

    name = "collision_aware_greedy"

    def act(self, state: KitchenState) -> tuple[int, int]:
        """See :class:`~polyarm_core.baselines.interface.Policy`."""
        first = min((0, 1), key=lambda player: (_RANK[state.held[player]], player))
        second = 1 - first
        here, there = state.positions[first], state.positions[second]
        control, around = self._walk(state, first, frozenset((there,)))
        if not around:
            control = self._alone(state, first)
        target = self.routes.turn((here, state.facings[first]), control)[0] if control < STAY else here
        other, free = self._walk(state, second, frozenset((here, target)) - {there})
        if not free or target == there:
            other = self._give_way(state, second, {here, target})
        return (control, other) if first == 0 else (other, control)

    def _walk(self, state: KitchenState, player: int, closed: frozenset[int]) -> tuple[int, bool]:
        """Control of a player for whom cells are closed, and whether any goal is reachable so."""
        start = (state.positions[player], state.facings[player])
        best = None
        for goal in self.goals(state, player):
            distance = self.routes.distances(goal, closed).get(start) if goal[0] not in closed else None
            if distance is not None and (best is None or distance < best[0]):
                best = (distance, goal)
        return (STAY, False) if best is None else (self.routes.control(start, best[1], closed), True)

    def _give_way(self, state: KitchenState, player: int, wanted: Collection[int]) -> int:
        """A step out of the way when the player stands in it, otherwise wait.

        Of the free neighbours the one with the most ways out, so that a dead end comes last.
        """
        cell = state.positions[player]
        if cell not in wanted:
            return STAY
        moves = [(d, near) for d, near in self.routes.neighbours(cell) if near not in wanted]
        if not moves:
            return STAY
        return max(moves, key=lambda move: len(self.routes.neighbours(move[1])))[0]
