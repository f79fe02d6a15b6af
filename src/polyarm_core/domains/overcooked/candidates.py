"""Joint plans worth trying, from any state: a search over the order of interacts, with ideal walking times.

A node of the search is the kitchen after some interacts (who, with which tile), each as early as walking, cooking and
the other cook's interacts allow, if nobody ever had to make way. So roles, hand-over counters, who fetches the dish,
who starts the pot and who serves are all decided by one mechanism, and items that are held or lie about are just other
beginnings. Sequences come out in order of their finish (best-first, with a bound that takes no account of waiting for
each other), and become chains: an interact that needs something of the other cook, or of time, gets a
``Wait_entity``, and where there is time to spare, the walk to the place comes before the wait.

Collisions are left to the roll-outs of the search coordinator, which takes the best of these plans.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from polyarm_core.chains.terms import Action, Chain, Plan, Step, Wait, WaitAgents, WaitEntity
from polyarm_core.domains.overcooked.kitchen import (
    DISH,
    FULL,
    IDLE,
    ITEM_NAMES,
    NOTHING,
    ONION,
    SOUP,
    Kitchen,
    KitchenState,
)
from polyarm_core.domains.overcooked.layouts import COUNTER, DIRECTION_NAMES, DISHES, ONIONS, POT, SERVING
from polyarm_core.domains.overcooked.navigation import Navigation

EXPANSIONS = 1500  # nodes per call in the order of their bounds
HURRIED = 1000  # further ones in the order of their bounds and of how far they have come
PATCH_EXPANSIONS = 500  # nodes per call where only one chain is new
HURRY = 4  # frames that one interact less to do is worth there
DETOUR = 1  # frames: places to use a tile from are considered up to this much farther than the nearest
FAR = 10_000  # frames: out of reach
PARKING = 3  # counters considered to put a useless item away
EARLY = -1  # frames between arrival and condition from which a wait is written down

MAX_STEPS = 16  # of a chain
BLOCKED = -2  # stands for the item on a counter that is out of use
DELIVERED = -1  # in the hands of who has just served a soup

TAKE_ONION, TAKE_DISH, TAKE, PUT, ADD, START, FILL, SERVE = range(8)  # what an interact does


class Interact(NamedTuple):
    """One interact of a sequence.

    Attributes:
        player: who.
        what: it does, e.g. ``ADD`` an onion to a pot.
        tile: cell of the target.
        pose: 4 * floor index + direction from which it is done.
        arrival: frame in which the player is in place.
        condition: frame from which the tile is as it must be, if that is not the player's own doing; -1 otherwise.
        item: in the player's hands afterwards.
    """

    player: int
    what: int
    tile: int
    pose: int
    arrival: int
    condition: int
    item: int


class _Node(NamedTuple):
    """The kitchen after a sequence of interacts. Frames count from the state of the request.

    Attributes:
        times, poses, held: of both players after their last interact.
        onions, ready: of the pot in question; ready = frame from which its soup is ready, -1 = it does not cook.
        pot_time, pot_player: last change of the pot.
        counters: occupied counters, as (cell, item), sorted.
        changes: counter -> (frame, player) of its last change.
        last: frame of the last interact; later ones do not come before it.
        previous: tile of each player's last interact.
        path: interacts so far, newest first, as nested pairs.
        scripted: how far the script of a cook whose chain is kept has come.
    """

    times: tuple[int, int]
    poses: tuple[int, int]
    held: tuple[int, int]
    pot: int
    onions: int
    ready: int
    pot_time: int
    pot_player: int
    counters: tuple[tuple[int, int], ...]
    changes: Mapping[int, tuple[int, int]]
    last: int
    previous: tuple[int, int]
    path: tuple[Interact, object] | None
    scripted: int


class PlanSearch:
    """Plans for one kitchen; keeps tables of walking times, nothing of an episode.

    Args:
        kitchen: rules and layout.
        navigation: of the same layout.
        names: cell of a tile -> its name in chains.

    Attributes:
        pass_counters: counters that help to hand something over, best first.
    """

    def __init__(self, kitchen: Kitchen, navigation: Navigation, names: Mapping[int, str]) -> None:
        self._kitchen = kitchen
        self._names = names
        layout = self._layout = kitchen.layout
        self._floor = layout.floor
        self._index = {cell: i for i, cell in enumerate(layout.floor)}
        poses = [(cell, d) for cell in layout.floor for d in range(4)]
        self._ways: dict[int, list[list[tuple[int, int]]]] = {}  # tile -> pose -> (frames, pose there), near ones
        self._frames: dict[int, list[int]] = {}  # tile -> pose -> frames
        self._ends: dict[int, list[int]] = {}  # tile -> poses in front of it
        for tile in names:
            ways = []
            for cell, d in poses:
                arrivals = navigation.arrivals(cell, d, tile)
                near = min(arrivals.values(), default=FAR)
                ways.append(sorted((n, self._pose(*end)) for end, n in arrivals.items() if n <= near + DETOUR))
            self._ways[tile] = ways
            self._frames[tile] = [way[0][0] if way else FAR for way in ways]
            self._ends[tile] = [p for p, (cell, d) in enumerate(poses) if layout.front[cell][d] == tile]
        counters = [tile for tile in names if layout.terrain[tile] == COUNTER]
        goals = [tile for tile in names if layout.terrain[tile] in (POT, SERVING)]
        # Frames to bring an item that is held in a pose to a tile: directly, or handed over on a counter.
        self._carry: dict[int, list[int]] = {}
        for goal in goals:
            direct = self._frames[goal]
            onward = {c: 2 + min(direct[end] for end in self._ends[c]) for c in counters}
            self._carry[goal] = [
                min(direct[p], min((self._frames[c][p] + onward[c] for c in counters), default=FAR))
                for p in range(len(poses))
            ]
        # The same from a tile from which it was just taken.
        self._from: dict[int, dict[int, int]] = {
            goal: {tile: min(self._carry[goal][end] for end in self._ends[tile]) for tile in names} for goal in goals
        }
        # The quickest way of a new item: from a pose over its dispenser to a pot; and of a soup to any serving tile.
        self._serve = [min(self._carry[s][p] for s in layout.servings) for p in range(len(poses))]
        self._serve_from = {tile: min(self._from[s][tile] for s in layout.servings) for tile in names}
        self._fetch: dict[int, dict[int, list[int]]] = {
            kind: {
                pot: [min(self._frames[s][p] + self._from[pot][s] for s in cells) for p in range(len(poses))]
                for pot in layout.pots
            }
            for kind, cells in ((ONION, layout.onion_dispensers), (DISH, layout.dish_dispensers))
        }
        # Frames between two onions that one cook puts into a pot, at least.
        sources = [*counters, *layout.onion_dispensers]
        self._again = {
            pot: 2
            + min(
                self._frames[s][end] + min(self._frames[pot][back] for back in self._ends[s])
                for s in sources
                for end in self._ends[pot]
            )
            for pot in layout.pots
        }
        self._counters = frozenset(counters)
        self.pass_counters = tuple(sorted(counters, key=self._detour))
        self._shared = self.pass_counters[:6]
        self._apart = layout.distances[layout.starts[0]][layout.starts[1]] < 0  # no way from one cook to the other

    def _pose(self, cell: int, direction: int) -> int:
        return 4 * self._index[cell] + direction

    def _detour(self, counter: int) -> tuple[int, int, int]:
        """How far a counter is from the way of onions to pots; those with one place to stand come last."""
        layout = self._layout
        ends = self._ends[counter]

        def near(goal: int, tile: int) -> int:
            return min(self._frames[goal][end] for end in self._ends[tile])

        here = min(near(counter, onions) for onions in layout.onion_dispensers)
        there = min(self._frames[pot][end] for pot in layout.pots for end in ends)
        return (int(len(ends) < 2), here + there, counter)

    # --- plans ---

    def plans(self, state: KitchenState) -> Iterator[tuple[int, Plan]]:
        """(frames to the delivery at least, joint plan), in this order, without repetitions."""
        yield from self._plans(state, None, ())

    def patches(self, state: KitchenState, player: int, remaining: Plan) -> Iterator[Plan]:
        """Plans in which only this player's chain is new, in order of their estimated finish.

        None where the other's chain counts steps of this one (``Wait_agents``), or cannot be followed.
        """
        agents = list(remaining)
        kept = remaining[agents[1 - player]]
        for step in kept:
            if isinstance(step, Wait) and any(isinstance(a, WaitAgents) for a in step.atoms):
                return
        script = self._script(kept)
        if script is None:
            return
        for _, plan in self._plans(state, 1 - player, script):
            new = list(plan.chains)
            new[1 - player] = (agents[1 - player], kept)
            yield Plan(tuple(new))

    def _script(self, chain: Sequence[Step]) -> tuple[int, ...] | None:
        """Tiles of a chain's interacts, and floor cells to which it walks; None where it is not understood."""
        cells = {name: cell for cell, name in self._names.items()}
        script: list[int] = []
        for step in chain:
            if isinstance(step, Action):
                if step.name == "Interact" and step.arguments[0] in cells:
                    script.append(cells[step.arguments[0]])
                elif step.name not in ("Move_to", "Face"):
                    return None
        return tuple(script)

    def _plans(self, state: KitchenState, kept: int | None, script: tuple[int, ...]) -> Iterator[tuple[int, Plan]]:
        seen: set[Plan] = set()
        for bound, path in self._sequences(state, kept, script):
            plan = self._chains(state, path)
            if plan not in seen:
                seen.add(plan)
                yield bound, plan

    # --- search ---

    def _sequences(
        self, state: KitchenState, kept: int | None, script: tuple[int, ...]
    ) -> Iterator[tuple[int, tuple[Interact, ...]]]:
        """(frame of delivery, sequence that ends with it), earliest first.

        Args:
            state: where they begin.
            kept: player whose interacts are given.
            script: tiles of these interacts.
        """
        poses = [self._pose(c, f) for c, f in zip(state.positions, state.facings, strict=True)]
        items = zip(self._layout.counters, state.counters, strict=True)
        occupied = tuple(
            (c, BLOCKED if c in state.blocked else item)
            for c, item in items
            if c in self._names and (item or c in state.blocked)
        )
        heap: list[tuple[int, int, int, int, _Node]] = []  # (order, bound, interacts left, number, node)
        count = 0
        for index, pot in enumerate(self._layout.pots):
            onions, tick = state.pots[index]
            ready = max(0, self._kitchen.cook_time - tick) if tick != IDLE else -1
            if ready >= 0 and onions < FULL:
                continue  # spoiled: no order
            node = _Node(
                (0, 0), (poses[0], poses[1]), (state.held[0], state.held[1]), pot, onions, ready, 0, -1,
                occupied, {}, 0, (-1, -1), None, 0,
            )  # fmt: skip
            bound = self._bound(node)
            if bound < FAR:
                count += 1
                heap.append((bound, bound, _left(node), count, node))
        heapq.heapify(heap)
        best: dict[object, list[tuple[int, ...]]] = {}
        expansions = hurry = floor = 0
        calm, most = (EXPANSIONS, EXPANSIONS + HURRIED) if kept is None else (PATCH_EXPANSIONS // 2, PATCH_EXPANSIONS)
        while heap and expansions < most:
            if expansions == calm and not hurry:
                # Too many equals: from now on those with the least left to do come first.
                hurry = HURRY
                heap = [(bound + hurry * left, bound, left, number, node) for _, bound, left, number, node in heap]
                heapq.heapify(heap)
            _, bound, _, _, node = heapq.heappop(heap)
            if not hurry:
                floor = bound
            if _delivered(node):
                yield floor, _unroll(node)
                continue
            expansions += 1
            for child in self._children(state, node, kept, script):
                if _delivered(child):
                    new_bound = child.last
                else:
                    _, places, held, pot, onions, ready, _, _, lying, *_, scripted = child
                    key = (places, held, pot, onions, ready < 0, lying, scripted)
                    cost = (*child.times, child.ready, child.pot_time)
                    known = best.get(key)
                    if known is None:
                        best[key] = [cost]
                    elif any(_no_worse(old, cost) for old in known):
                        continue
                    else:
                        known.append(cost)
                    new_bound = max(bound, self._bound(child))
                    if new_bound >= FAR:
                        continue
                count += 1
                left = _left(child)
                heapq.heappush(heap, (new_bound + hurry * left, new_bound, left, count, child))

    def _children(self, state: KitchenState, node: _Node, kept: int | None, script: tuple[int, ...]) -> Iterator[_Node]:
        for player in (0, 1):
            if player == kept:
                tiles: Sequence[int] = script[node.scripted : node.scripted + 1]
            else:
                tiles = self._tiles(node, player)
            for tile in tiles:
                if tile in state.blocked:
                    continue
                yield from self._interact(node, player, tile, player == kept)

    def _tiles(self, node: _Node, player: int) -> list[int]:
        """Tiles that are worth an interact of this player now or later."""
        layout = self._layout
        item, other = node.held[player], node.held[1 - player]
        missing = FULL - node.onions if node.ready < 0 else 0
        lying = node.counters
        if item == NOTHING:
            tiles: list[int] = []
            soups = [c for c, there in lying if there == SOUP]
            if soups:
                return [c for c in soups if c != node.previous[player]]
            passed = [there for c, there in lying if c in node.changes]  # on its way to the other player
            coming = (other == ONION) + passed.count(ONION)
            if missing > coming:
                tiles += layout.onion_dispensers
            if missing > (other == ONION):
                tiles += [c for c, there in lying if there == ONION and c != node.previous[player]]
            if missing <= coming and other not in (DISH, SOUP):
                if DISH not in passed:
                    tiles += layout.dish_dispensers
                tiles += [c for c, there in lying if there == DISH and c != node.previous[player]]
            if node.ready < 0 and node.onions == FULL:
                tiles.append(node.pot)
            if self._apart and missing > coming and not self._hand_over(node, player):  # make room for what is to come
                tiles += [c for c, there in lying if c in self._shared and there > 0 and c != node.previous[player]]
            return tiles
        if item == ONION:
            if missing:
                return [node.pot, *self._hand_over(node, player)]
            return self._put_away(node, player)
        if item == DISH:
            if node.ready >= 0:
                return [node.pot, *self._hand_over(node, player)]
            if node.previous[player] not in layout.dish_dispensers:  # the hands may be needed for something else first
                return [*self._hand_over(node, player), *self._put_away(node, player)]
            return self._hand_over(node, player)
        if item == SOUP:
            return [*layout.servings, *self._hand_over(node, player)]
        return [*layout.servings, *self._put_away(node, player)]

    def _hand_over(self, node: _Node, player: int) -> list[int]:
        """Free counters from which the other player can take something; not for what was just taken from a counter."""
        if node.previous[player] in self._counters:
            return []
        occupied = {c for c, _ in node.counters}
        mine, other = node.poses[player], node.poses[1 - player]
        return [
            c
            for c in self._shared
            if c not in occupied and self._frames[c][other] < FAR and self._frames[c][mine] < FAR
        ]

    def _put_away(self, node: _Node, player: int) -> list[int]:
        """The nearest free counters."""
        occupied = {c for c, _ in node.counters}
        here = node.poses[player]
        free = [(frames[here], c) for c, frames in self._frames.items() if c not in occupied]
        free = [(n, c) for n, c in free if n < FAR and self._layout.terrain[c] == COUNTER]
        return [c for _, c in heapq.nsmallest(PARKING, free)]

    def _interact(self, node: _Node, player: int, tile: int, given: bool) -> Iterator[_Node]:
        """The node after an interact, for each place from which it may be done; nothing where it has no effect."""
        kind, item = self._layout.terrain[tile], node.held[player]
        onions, ready, pot_time, pot_player = node.onions, node.ready, node.pot_time, node.pot_player
        counters, changes = node.counters, node.changes
        condition, foreign = 0, False
        new_item = item
        if kind == COUNTER:
            there = next((i for c, i in counters if c == tile), NOTHING)
            if (item == NOTHING) == (there == NOTHING):
                return
            if tile in changes:
                condition, by = changes[tile]
                foreign = by != player
            what = PUT if item else TAKE
            new_item = there
            counters = tuple(entry for entry in counters if entry[0] != tile)
            if item:
                counters = tuple(sorted((*counters, (tile, item))))
        elif kind == POT:
            if tile != node.pot:
                return
            condition, foreign = pot_time, pot_player not in (player, -1)
            if item == ONION and ready < 0 and onions < FULL:
                what, new_item, onions = ADD, NOTHING, onions + 1
                condition, foreign = 0, False  # there is room for it anyway
            elif item == NOTHING and ready < 0 and onions == FULL:
                what = START
            elif item == DISH and ready >= 0:
                what, new_item, onions = FILL, SOUP, 0
                condition, foreign = ready, True
            else:
                return
        elif item == NOTHING and kind == ONIONS:
            what, new_item = TAKE_ONION, ONION
        elif item == NOTHING and kind == DISHES:
            what, new_item = TAKE_DISH, DISH
        elif item >= SOUP and kind == SERVING:
            what, new_item = SERVE, DELIVERED if item == SOUP else NOTHING
        else:
            return
        start, pose = node.times[player], node.poses[player]
        for frames, end in self._ways[tile][pose]:
            finish = max(start + frames, condition) + 1
            if finish < node.last:
                continue
            new_ready = finish + self._kitchen.cook_time - 1 if what == START else -1 if what == FILL else ready
            interact = Interact(player, what, tile, end, start + frames, condition if foreign else -1, new_item)
            new_changes = changes
            if kind == COUNTER:
                new_changes = {**changes, tile: (finish, player)}
            elif kind == POT:
                pot_time, pot_player = finish, player
            if player == 0:
                times, poses, held = (finish, node.times[1]), (end, node.poses[1]), (new_item, node.held[1])
                previous = (tile, node.previous[1])
            else:
                times, poses, held = (node.times[0], finish), (node.poses[0], end), (node.held[0], new_item)
                previous = (node.previous[0], tile)
            yield _Node(
                times, poses, held, node.pot, onions, new_ready, pot_time, pot_player, counters, new_changes,
                finish, previous, (interact, node.path), node.scripted + given,
            )  # fmt: skip

    def _bound(self, node: _Node) -> int:
        """Frame before which no delivery is possible; hand-overs are taken into account, waiting for each other not."""
        pot, (time_1, time_2), (pose_1, pose_2) = node.pot, node.times, node.poses
        held_1, held_2 = node.held
        frames, lying = self._frames, node.counters
        serve = FAR
        # A soup that is in somebody's hands or on a counter.
        if held_1 == SOUP:
            serve = time_1 + self._serve[pose_1] + 1
        if held_2 == SOUP:
            serve = min(serve, time_2 + self._serve[pose_2] + 1)
        for c, item in lying:
            if item == SOUP:
                take = min(time_1 + frames[c][pose_1], time_2 + frames[c][pose_2])
                serve = min(serve, take + self._serve_from[c] + 2)
        if serve < FAR:
            return max(serve, node.last)
        # The dish at the pot.
        carry, onward = self._carry[pot], self._from[pot]
        fetch = self._fetch[DISH][pot]
        dish = min(time_1 + fetch[pose_1], time_2 + fetch[pose_2]) + 1
        if held_1 == DISH:
            dish = min(dish, time_1 + carry[pose_1])
        if held_2 == DISH:
            dish = min(dish, time_2 + carry[pose_2])
        for c, item in lying:
            if item == DISH:
                take = min(time_1 + frames[c][pose_1], time_2 + frames[c][pose_2]) + 1
                dish = min(dish, take + onward[c])
        # The soup.
        ready = node.ready
        if ready < 0:
            missing = FULL - node.onions
            full = node.pot_time
            if missing:
                # Each cook's first onion, be it one that the other hands over, and at least ``again`` between two.
                again = self._again[pot]
                handed_1 = time_1 + carry[pose_1] + 1 if held_1 == ONION else FAR
                handed_2 = time_2 + carry[pose_2] + 1 if held_2 == ONION else FAR
                arrivals: list[int] = []
                for time, pose, first, handed in (
                    (time_1, pose_1, handed_1, handed_2),
                    (time_2, pose_2, handed_2, handed_1),
                ):
                    if first == FAR:
                        first = min(handed, time + self._fetch[ONION][pot][pose] + 2)
                        for c, there in lying:
                            if there == ONION:
                                first = min(first, time + frames[c][pose] + onward[c] + 2)
                    arrivals += (first, first + again, first + 2 * again)
                arrivals.sort()
                full = max(arrivals[missing - 1], node.last)
            start = max(full, min(time_1 + frames[pot][pose_1], time_2 + frames[pot][pose_2])) + 1
            ready = start + self._kitchen.cook_time - 1
        return max(ready, dish) + self._serve_from[pot] + 2

    # --- chains ---

    def _chains(self, state: KitchenState, path: Sequence[Interact]) -> Plan:
        """The plan of a sequence of interacts."""
        # For each player and interact: (frames that the wait is expected to last, steps before it, the interact).
        parts: tuple[list[tuple[int, list[Step], Step]], ...] = ([], [])
        poses = [self._pose(c, f) for c, f in zip(state.positions, state.facings, strict=True)]
        for interact in path:
            player, what, tile, pose, arrival, condition, item = interact
            name, before = self._names[tile], poses[player]
            lead: list[Step] = []
            spare = condition - arrival
            waits = condition >= 0 and spare >= EARLY
            nearest = self._ways[tile][before][0][1] // 4 == pose // 4
            if before // 4 != pose // 4 and (waits or not nearest):
                x, y = self._layout.xy(self._floor[pose // 4])
                lead.append(Action("Move_to", (str(x), str(y))))
            if waits:
                if spare >= 1 and before != pose:
                    lead.append(Action("Face", (DIRECTION_NAMES[pose % 4],)))
                lead.append(Wait((_wait(what, name, item),)))
            parts[player].append((spare, lead, Action("Interact", (name,))))
            poses[player] = pose
        return Plan((("agent_1", _chain(parts[0])), ("agent_2", _chain(parts[1]))))


def _chain(parts: Sequence[tuple[int, list[Step], Step]]) -> Chain:
    """Steps of one player; where they are more than MAX_STEPS, those go first that cost the least time."""

    def surplus() -> int:
        return sum(1 + len(lead) for _, lead, _ in parts) - MAX_STEPS

    for spare, lead, _ in sorted(parts, key=lambda part: part[0]):
        if surplus() > 0 and spare <= 1:  # hardly a wait: an interact is tried again anyway
            lead.clear()
    for name in ("Face", "Move_to"):
        for _, lead, _ in parts:
            if surplus() > 0:
                lead[:] = [step for step in lead if not (isinstance(step, Action) and step.name == name)]
    return tuple(step for _, lead, interact in parts for step in (*lead, interact))


def _delivered(node: _Node) -> bool:
    """Whether the last interact delivered a soup."""
    return node.path is not None and node.held[node.path[0].player] == DELIVERED


def _left(node: _Node) -> int:
    """Interacts that are left at least, if nothing is handed over."""
    if _delivered(node):
        return 0
    if SOUP in node.held:
        return 1
    if any(item == SOUP for _, item in node.counters):
        return 2
    dish = 2 + (DISH not in node.held)
    if node.ready >= 0:
        return dish
    missing = FULL - node.onions
    return dish + 1 + 2 * missing - min(missing, node.held.count(ONION))


def _no_worse(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether nothing of the one comes later than of the other."""
    return one[0] <= other[0] and one[1] <= other[1] and one[2] <= other[2] and one[3] <= other[3]


def _wait(what: int, name: str, item: int) -> WaitEntity:
    """The condition of an interact; ``item`` is what it takes."""
    if what == FILL:
        return WaitEntity(name, "status", "==", "ready")
    if what == START:
        return WaitEntity(name, "status", "==", "full")
    return WaitEntity(name, "item", "==", ITEM_NAMES[NOTHING if what == PUT else item])


def _unroll(node: _Node) -> tuple[Interact, ...]:
    """Interacts from first to last."""
    result: list[Interact] = []
    path = node.path
    while path is not None:
        result.append(path[0])
        path = path[1]  # type: ignore[assignment]
    return tuple(reversed(result))
