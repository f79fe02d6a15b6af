"""The largest consistent set, exactly: branch and bound over bit masks, component by component (eqs. 15-16).

**Objective.** The number of admitted arms plus, for each arm served by age (``aging.py``), a bonus of the number of
arms in its component. Of two sets of equal worth the better one is that with the arm of highest priority which is in
only one of them. Both are one integer, ``worth << arms | mask`` with the mask's highest bit for the first arm:
comparing integers compares sets, and the optimum is unique.

**Search.** Units that share no element, group or need, not even indirectly, cannot influence one another, so each
connected component is solved alone. In a component units are branched on in a fixed order, breadth first. What a
partial choice means for the rest is one bit mask: the elements taken, the needs covered and the needs still to be
covered, as far as units to come touch them. Of two nodes with the same mask only the better one can lead to the
optimum (dominance), so that a layer holds few nodes where the coupling is sparse; the order keeps few elements and
needs open at a time. The rest is bounded by a cover: of the units that one element covers at most one is admitted,
and none where the node has taken the element. Nodes that cannot beat the best set known, at first that of
``maximal``, are cut.

**Budget.** A small component is first searched with the most promising nodes of each layer only; if none had to be
dropped, that is the optimum, else it is a good set to start the search proper from. A large one is improved in
*windows*: some admitted units near one unit are set free, with all units that only they keep out; the rest is held as
it is, and the window is searched in the same way, as long as some window helps. None of this makes the set worse.
Where the budget ends before the proof, the upper bound is that of the cover.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from polyarm_core.orchestrator.maximal import Admission
from polyarm_core.orchestrator.problem import Problem

SMALL = 128  # components of up to so many units are searched as a whole first, larger ones in windows
HOPELESS = 4096  # nodes in a layer at which a search for the proof is given up
WIDE = 100  # nodes kept in a layer in the first search of a small component
HUB = 64  # a condition with more suppliers, or more that need it, does not make them neighbours
WINDOWS = (25, 40)  # admitted units that a window sets free, first and where that helps no longer
NARROW = 40  # nodes kept in a layer of a window
SCORE = 1 << 16  # more than a unit has items: the second key of the order of units fits below the first
MANY = 24  # nodes in a layer from which on the tighter bound pays

_Step = tuple[int, int, int, int, int, int]


class Solution:
    """Result of :func:`optimal`.

    Attributes:
        admitted: by unit number.
        upper_bound: proven bound of the number of admitted arms.
        proven: the set is the optimum.
        nodes: nodes expanded.
    """

    __slots__ = ("admitted", "nodes", "proven", "upper_bound")

    def __init__(self, admitted: list[bool]) -> None:
        self.admitted = admitted
        self.upper_bound = 0
        self.proven = True
        self.nodes = 0


def optimal(problem: Problem, start: list[bool], served: Collection[str], node_budget: int) -> Solution:
    """Improve the consistent set ``start`` to the optimum, or as far as the budget goes.

    Args:
        problem: the arms.
        start: by unit number; holds every served arm.
        served: names of the arms served by age.
        node_budget: nodes that may be expanded, shared among the components in proportion to their units.
    """
    solution = Solution(start.copy())
    components = _components(problem)
    units_left = sum(len(component) for component in components)
    for component in sorted(components, key=lambda units: (len(units), units)):
        size = len(component)
        if size == 1:
            # Alone and viable: it shares nothing and needs nobody.
            solution.admitted[component[0]] = True
            solution.upper_bound += len(problem.members[component[0]])
        else:
            budget = (node_budget - solution.nodes) * size // units_left
            _Component(problem, component, served, solution).solve(budget)
        units_left -= size
    if not solution.proven:  # a search that dropped nodes may end with a set that can be added to
        admission = Admission(problem, [unit for unit, inside in enumerate(solution.admitted) if inside])
        admission.grow()
        solution.admitted = admission.admitted
    return solution


def _components(problem: Problem) -> list[list[int]]:
    """Connected components of the viable units, each in order of priority."""
    members, elements, users, viable = problem.members, problem.elements, problem.users, problem.viable
    needs, supplies, requirers, suppliers = problem.needs, problem.supplies, problem.requirers, problem.suppliers
    unseen = viable.copy()
    components = []
    for root in range(len(members)):
        if not unseen[root]:
            continue
        unseen[root] = False
        component = [root]
        for unit in component:  # grows while it is walked through
            for element in elements[unit]:
                for other in users[element]:
                    if unseen[other]:
                        unseen[other] = False
                        component.append(other)
            for number in needs[unit]:
                for other in suppliers[number]:
                    if unseen[other]:
                        unseen[other] = False
                        component.append(other)
            for number in supplies[unit]:
                for other in requirers[number]:
                    if unseen[other]:
                        unseen[other] = False
                        component.append(other)
        component.sort()
        components.append(component)
    return components


class _Component:
    """One connected component, solved in place of ``solution``."""

    def __init__(self, problem: Problem, units: list[int], served: Collection[str], solution: Solution) -> None:
        self._problem = problem
        self._units = units
        self._solution = solution
        members, names = problem.members, problem.names
        self._worth = {unit: len(members[unit]) for unit in units}
        if served:
            bonus = sum(self._worth.values())
            for unit in units:
                self._worth[unit] += bonus * sum(names[arm] in served for arm in members[unit])

    def solve(self, budget: int) -> None:
        solution = self._solution
        units = self._units
        budget_end = solution.nodes + budget
        if len(units) <= SMALL:
            exact = self._whole(WIDE, budget)
        else:
            for window in WINDOWS:
                self._windows(window, budget_end)
            exact = False
        if not exact:
            exact = self._whole(0, budget_end - solution.nodes)
        if exact:
            solution.upper_bound += sum(len(self._problem.members[unit]) for unit in units if solution.admitted[unit])
        else:
            solution.proven = False
            solution.upper_bound += sum(
                max(len(self._problem.members[unit]) for unit in block) for _, block in _cover(self._problem, units)
            )

    def _whole(self, beam: int, limit: int) -> bool:
        """Search the component as a whole; whether its set is now the optimum."""
        best, exact = self._search(self._units, (), (), beam, limit)
        for unit in self._units:
            self._solution.admitted[unit] = False
        for unit in best:
            self._solution.admitted[unit] = True
        return exact

    def _search(
        self, units: Sequence[int], covered: Collection[int], demanded: Collection[int], beam: int, limit: int
    ) -> tuple[list[int], bool]:
        """The best choice among ``units``, everything else held as it is.

        Args:
            units: units that are free, none in conflict with an admitted unit that is not.
            covered: needs that admitted units outside cover.
            demanded: needs that only ``units`` can cover and that admitted units outside have.
            beam: nodes kept in a layer at most, the most promising; 0 to keep all, and to give up where a layer grows
                hopelessly wide.
            limit: nodes expanded at most.

        Returns:
            The units of the best choice found, at worst the present one; whether it is the optimum, no node having
            been dropped.
        """
        layers = _layers(self._problem, units, covered, demanded, self._worth)
        admitted = self._solution.admitted
        arms = layers.arms
        known = sum(layers.value[unit] for unit in units if admitted[unit])
        nodes = {layers.start: 0}
        exact = True
        expanded = 0
        for (unit, occupied, supplied, needed, kill, keep, rest), spoilt, (burden, asset) in zip(
            layers.steps, layers.spoilt, layers.open_bits, strict=True
        ):
            value = layers.value[unit]
            floor = known - rest
            following: dict[int, int] = {}
            get = following.get
            expanded += len(nodes)
            if expanded > limit:
                self._solution.nodes += expanded - len(nodes)
                return [unit for unit in units if admitted[unit]], False
            if needed or supplied or kill:
                cleared = ~(supplied << 1)
                for state, worth in nodes.items():
                    if worth >= floor and not state & kill:
                        out = state & keep
                        if get(out, -1) < worth:
                            following[out] = worth
                    worth += value
                    if worth >= floor and not state & occupied:
                        out = (state | occupied | supplied) & cleared
                        out |= (needed & ~out) << 1
                        if not out & kill:
                            out &= keep
                            if get(out, -1) < worth:
                                following[out] = worth
            else:
                for state, worth in nodes.items():
                    if worth >= floor:
                        out = state & keep
                        if get(out, -1) < worth:
                            following[out] = worth
                    if not state & occupied:
                        worth += value
                        if worth >= floor:
                            out = (state | occupied) & keep
                            if get(out, -1) < worth:
                                following[out] = worth
            if spoilt and len(following) > MANY:
                following = {
                    state: worth
                    for state, worth in following.items()
                    if worth - ((state & spoilt).bit_count() << arms) >= floor
                }
            if not beam:
                if len(following) > HOPELESS:
                    limit = 0
            elif len(following) > beam:
                exact = False
                # An open element that is taken costs a later unit about every other time.
                ranked = [
                    ((worth >> arms) * 2 - (state & burden).bit_count() + (state & asset).bit_count(), worth, state)
                    for state, worth in following.items()
                ]
                ranked.sort(reverse=True)
                following = {state: worth for _, worth, state in ranked[:beam]}
            nodes = following
        self._solution.nodes += expanded
        # All bits are retired: one node is left, or none if those that lead to the present choice were dropped.
        mask = max(nodes.values(), default=known)
        return [unit for unit in units if mask >> (arms - 1 - layers.place[unit]) & 1], exact

    def _windows(self, window: int, budget_end: int) -> None:
        """Improve the set window by window until none helps where something changed, or the budget is spent."""
        problem, solution = self._problem, self._solution
        admitted, elements = solution.admitted, problem.elements
        owner: dict[str, int] = {}  # the admitted unit that occupies an element
        cover = dict.fromkeys((number for unit in self._units for number in problem.needs[unit]), 0)
        wanted = cover.copy()
        for unit in self._units:
            if admitted[unit]:
                owner.update(dict.fromkeys(elements[unit], unit))
                _count(problem.supplies[unit], cover, 1)
                _count(problem.needs[unit], wanted, 1)
        waiting = dict.fromkeys(self._units)  # not in a window since something changed near it
        while waiting and solution.nodes < budget_end:
            centre = next(iter(waiting))
            del waiting[centre]
            units = self._around(centre, window, owner)
            before = [unit for unit in units if admitted[unit]]
            for unit in before:
                _count(problem.supplies[unit], cover, -1)
                _count(problem.needs[unit], wanted, -1)
            touched = {number for unit in units for number in (*problem.needs[unit], *problem.supplies[unit])}
            covered = {number for number in touched if cover.get(number, 0)}
            demanded = [number for number in sorted(touched - covered) if wanted.get(number, 0)]
            best, _ = self._search(units, covered, demanded, NARROW, budget_end - solution.nodes)
            for unit in units:
                waiting.pop(unit, None)
            if best != before:
                waiting.update(dict.fromkeys(units))
                for unit in before:
                    admitted[unit] = False
                    for element in elements[unit]:
                        del owner[element]
                for unit in best:
                    admitted[unit] = True
                    owner.update(dict.fromkeys(elements[unit], unit))
            for unit in best:
                _count(problem.supplies[unit], cover, 1)
                _count(problem.needs[unit], wanted, 1)

    def _around(self, centre: int, window: int, owner: dict[str, int]) -> list[int]:
        """The window of ``centre``: up to ``window`` admitted units near it, and the units that only they keep out."""
        problem, admitted = self._problem, self._solution.admitted
        elements, users, viable = problem.elements, problem.users, problem.viable
        near = [centre]
        seen = {centre}
        released: set[int] = set()
        for unit in near:
            held_by = {owner[element] for element in elements[unit] if element in owner}
            if admitted[unit]:
                held_by.add(unit)
            if len(released | held_by) > window:
                break
            links = [problem.suppliers[number] for number in problem.needs[unit]]
            links += [problem.requirers[number] for number in problem.supplies[unit]]
            links = [others for others in links if len(others) <= HUB]
            for other in sorted(held_by - released):
                released.add(other)
                links += [users[element] for element in sorted(elements[other])]
            for others in links:
                for other in others:
                    if other not in seen and viable[other]:
                        seen.add(other)
                        near.append(other)
        free = (
            unit
            for unit in near
            if not admitted[unit]
            and all(element not in owner or owner[element] in released for element in elements[unit])
        )
        return sorted(released.union(free))


def _count(numbers: Iterable[int], table: dict[int, int], step: int) -> None:
    for number in numbers:
        if number in table:
            table[number] += step


class _Layers:
    """The order in which units are branched on, with the bit masks of each step.

    Attributes:
        start: mask of the first node.
        steps: per layer: unit; bits of the elements it occupies; bits of the needs it covers; bits of the needs it has;
            bits that no node may have after it (needs that no unit to come covers); bits that matter further on; and
            bound on what the layers after it can add to the value.
        value: by unit: ``worth << arms | mask``.
        place: by unit: position of its first arm in the mask.
        arms: number of arms.
        spoilt: per layer: bits of the elements whose units, as far as they come after it, the bound counts one for; a
            node that has such a bit cannot admit any of them.
        open_bits: per layer: bits that matter after it, those that cost later units (elements taken, needs still to be
            covered) and those that help them (needs covered).
    """

    __slots__ = ("arms", "open_bits", "place", "spoilt", "start", "steps", "value")

    start: int
    steps: list[tuple[int, int, int, int, int, int, int]]
    value: dict[int, int]
    place: dict[int, int]
    arms: int
    spoilt: list[int]
    open_bits: list[tuple[int, int]]


def _layers(
    problem: Problem,
    units: Sequence[int],
    covered: Collection[int],
    demanded: Iterable[int],
    worth: dict[int, int],
) -> _Layers:
    layers = _Layers()
    _number_arms(problem, units, worth, layers)
    # An item is an exclusive element (a string) or a need (an integer).
    holders: dict[str | int, list[int]] = {}
    has_needs = False
    for unit in units:
        for element in problem.elements[unit]:
            if element in holders:
                holders[element].append(unit)
            else:
                holders[element] = [unit]
        for numbers in (problem.needs[unit], problem.supplies[unit]):
            for number in numbers:
                if number not in covered:
                    has_needs = True
                    holders.setdefault(number, []).append(unit)
    offers = {item: 0 for item in holders if isinstance(item, int)} if has_needs else {}
    items_of: dict[int, list[str | int]] = {unit: [] for unit in units}
    left: dict[str | int, int] = {}
    for item, users in holders.items():
        if len(users) > 1 or item in offers:
            left[item] = len(users)
            for unit in users:
                items_of[unit].append(item)
    for number in offers:
        offers[number] = sum(number in problem.supplies[unit] for unit in holders[number])

    # The next unit is the one after which fewest items are open; among equals the one that touches most open items.
    score = {unit: SCORE * len(items) for unit, items in items_of.items()}
    bit: dict[str | int, int] = {}  # an element has one bit; a need two: covered, and above it wanted
    free: list[int] = []
    top = 0
    layers.start = 0
    for number in demanded:
        bit[number] = 1 << top
        layers.start |= 2 << top
        top += 2
        for unit in holders[number]:
            score[unit] -= SCORE * (2 if left[number] == 1 else 1) + 1

    steps: list[_Step] = []
    layer_of: dict[int, int] = {}
    open_bits: list[tuple[int, int]] = []
    open_elements = open_needs = 0
    bit_of: dict[str | int, int] = {}
    opened: dict[str | int, int] = {}  # layer in which an item is first touched
    queue = [(value, unit) for unit, value in score.items()]  # with outdated entries: scores only fall
    heapq.heapify(queue)
    while queue:
        value, unit = heapq.heappop(queue)
        if score.get(unit) != value:
            continue
        del score[unit]
        occupied = supplied = needed = kill = gone = 0
        freed: list[int] = []
        for item in items_of[unit]:
            mask = bit.get(item, 0)
            count = left[item] = left[item] - 1
            if not mask:
                if isinstance(item, int):
                    mask = 1 << top
                    top += 2
                elif free:
                    mask = free.pop()
                else:
                    mask = 1 << top
                    top += 1
                bit[item] = bit_of[item] = mask
                opened[item] = len(steps)
                for other in holders[item]:
                    if other in score:
                        score[other] -= SCORE + 1
                        heapq.heappush(queue, (score[other], other))
            if count == 1:
                for other in holders[item]:
                    if other in score:
                        score[other] -= SCORE
                        heapq.heappush(queue, (score[other], other))
            if isinstance(item, int):
                open_needs |= mask
                if item in problem.supplies[unit]:
                    supplied |= mask
                    offers[item] -= 1
                else:
                    needed |= mask
                if not offers[item]:
                    kill |= mask << 1
            else:
                open_elements |= mask
                occupied |= mask
            if not count:
                gone |= mask
                if isinstance(item, str):
                    freed.append(mask)
        free += freed  # not before: a bit that dies in this layer must not be born in it again
        open_elements &= ~gone
        open_needs &= ~gone
        open_bits.append((open_elements | open_needs << 1, open_needs))
        layer_of[unit] = len(steps)
        steps.append((unit, occupied, supplied, needed, kill, ~gone))
    layers.open_bits = open_bits
    _bound(problem, units, steps, layer_of, opened, bit_of, worth, layers)
    return layers


def _number_arms(problem: Problem, units: Sequence[int], worth: dict[int, int], layers: _Layers) -> None:
    members = problem.members
    if len(units) and all(len(members[unit]) == 1 for unit in units):
        arms = len(units)
        layers.place = {unit: position for position, unit in enumerate(units)}
        layers.value = {unit: worth[unit] << arms | 1 << (arms - 1 - place) for unit, place in layers.place.items()}
    else:
        order = sorted(arm for unit in units for arm in members[unit])
        arms = len(order)
        place_of = {arm: position for position, arm in enumerate(order)}
        layers.place = {unit: place_of[members[unit][0]] for unit in units}
        layers.value = {
            unit: worth[unit] << arms | sum(1 << (arms - 1 - place_of[arm]) for arm in members[unit]) for unit in units
        }
    layers.arms = arms


def _bound(
    problem: Problem,
    units: Sequence[int],
    steps: list[_Step],
    layer_of: dict[int, int],
    opened: dict[str | int, int],
    bit_of: dict[str | int, int],
    worth: dict[int, int],
    layers: _Layers,
) -> None:
    """Bounds on what the layers after each can add: of the units that one element covers, at most one is admitted."""
    heaviest = [0] * len(steps)  # by layer: what its unit adds to the bound of the layers before it
    spoilt = [0] * len(steps)
    for element, block in _cover(problem, units):
        if element is None or len(block) == 1:
            for unit in block:
                heaviest[layer_of[unit]] = worth[unit]
            continue
        places = sorted((layer_of[unit] for unit in block), reverse=True)
        most = 0
        for layer in places:
            mine = worth[steps[layer][0]]
            if mine > most:
                heaviest[layer] = mine - most
                most = mine
        mask = bit_of[element]
        for layer in range(opened[element], places[0]):
            spoilt[layer] |= mask
    arms = layers.arms
    low = (1 << arms) - 1
    rest = mask = 0
    bounded: list[tuple[int, int, int, int, int, int, int]] = []
    for layer in range(len(steps) - 1, -1, -1):
        step = steps[layer]
        bounded.append((*step, rest << arms | mask))
        rest += heaviest[layer]
        mask |= layers.value[step[0]] & low
    bounded.reverse()
    layers.steps = bounded
    layers.spoilt = spoilt


def _cover(problem: Problem, units: Sequence[int]) -> list[tuple[str | None, list[int]]]:
    """Partition of the units into few sets that share an element; a unit without any is alone, with None.

    Greedy: a unit that is alone with one of its elements goes with its most used other element; where there is no such
    unit, the most used element is taken.
    """
    elements = problem.elements
    left: dict[str, set[int]] = {}
    for unit in units:
        for element in elements[unit]:
            if element in left:
                left[element].add(unit)
            else:
                left[element] = {unit}
    waiting = dict.fromkeys(units)
    leaves = [unit for unit in units if any(len(left[element]) == 1 for element in elements[unit])]
    heap = [(-len(users), element) for element, users in left.items()]
    heapq.heapify(heap)
    blocks: list[tuple[str | None, list[int]]] = []
    while waiting:
        chosen: str | None = None
        if leaves:
            unit = leaves.pop()
            if unit not in waiting:
                continue
            chosen = max((len(left[element]), element) for element in elements[unit])[1]
        elif heap:
            count, chosen = heapq.heappop(heap)
            users = left[chosen]
            if -count != len(users):
                if users:
                    heapq.heappush(heap, (-len(users), chosen))
                continue
        block = sorted(left[chosen]) if chosen is not None else [next(iter(waiting))]
        for unit in block:
            del waiting[unit]
            for element in sorted(elements[unit]):
                users = left[element]
                users.discard(unit)
                if len(users) == 1:
                    leaves.extend(users)
        blocks.append((chosen, block))
    return blocks
