"""Re-admission: from a consistent set to one that nothing can be added to, in near-linear time (ldt_coord.md 7.1).

Units are tried in order of priority, each with one choice of suppliers (and theirs) found by backtracking. One pass is
enough: suppose a unit u fails and could join later, after more units B were admitted. Then B with u was a consistent
addition when u was tried, and a complete search would have found it. For the same reason a unit that failed once can be
struck out as a supplier. So the result has no consistent proper superset at all, as long as no search spends its limit
on backtracking (``BACKTRACKS`` per unit); deciding this in general is NP-complete, hence the limit.

Striking out is propagated: an admitted unit strikes out those it shares an element with, and a unit whose need no
longer has a supplier goes too. Each link between units is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from polyarm_core.orchestrator.problem import Problem

BACKTRACKS = 256


class Admission:
    """A consistent set of units that only grows.

    Attributes:
        admitted: by unit, whether it is in the set.
        open: by unit, whether it is outside and not known to be impossible to add.
    """

    def __init__(self, problem: Problem, start: Iterable[int] = ()) -> None:
        """Start from the consistent set ``start`` of units."""
        self._problem = problem
        self.admitted = [False] * len(problem.members)
        self.open = problem.viable.copy()
        self._covered = [False] * len(problem.requirers)
        self._left = [0] * len(problem.requirers)
        for unit, numbers in enumerate(problem.supplies):
            if numbers and problem.viable[unit]:
                for number in numbers:
                    self._left[number] += 1
        self._admit(list(start))

    def grow(self) -> None:
        """Try every open unit in order of priority."""
        needs, is_open = self._problem.needs, self.open
        for unit in range(len(is_open)):
            if is_open[unit]:
                if needs[unit]:
                    self.add(unit)
                else:
                    self._admit((unit,))

    def add(self, unit: int) -> bool:
        """Admit a unit with a choice of suppliers, or find that it cannot be; whether it is in the set now."""
        if self.admitted[unit]:
            return True
        if not self.open[unit]:
            return False
        closure = self._closure(unit)
        if closure:
            self._admit(closure)
            return True
        if closure is not None:
            self._strike_out([unit])
        return False

    def _admit(self, units: Iterable[int]) -> None:
        problem, is_open = self._problem, self.open
        rivals: list[int] = []
        for unit in units:
            self.admitted[unit] = True
            is_open[unit] = False
            for number in problem.supplies[unit]:
                self._covered[number] = True
            for element in problem.elements[unit]:
                users = problem.users[element]
                if len(users) > 1:
                    for rival in users:
                        if is_open[rival]:
                            is_open[rival] = False
                            rivals.append(rival)
        if rivals and self._left:
            self._strike_out(rivals)

    def _strike_out(self, units: list[int]) -> None:
        problem, is_open = self._problem, self.open
        for unit in units:
            is_open[unit] = False
        while units:
            for number in problem.supplies[units.pop()]:
                self._left[number] -= 1
                if not self._left[number] and not self._covered[number]:
                    for unit in problem.requirers[number]:
                        if is_open[unit]:
                            is_open[unit] = False
                            units.append(unit)

    def _closure(self, seed: int) -> list[int] | None:
        """The unit with suppliers for all that it and they need, free of conflicts.

        Returns:
            [] if there is no such choice, None if the limit was spent before that was known.
        """
        problem, covered, is_open = self._problem, self._covered, self.open
        needs, supplies, elements, suppliers = problem.needs, problem.supplies, problem.elements, problem.suppliers
        chosen = [seed]
        taken = set(elements[seed])
        supplied = set(supplies[seed])
        todo = list(needs[seed])
        position = 0
        # A choice point: where in `todo` it was made, how long `todo` was, and the suppliers that were not tried yet.
        choices: list[tuple[int, int, Iterator[int]]] = []
        backtracks = 0
        while position < len(todo):
            number = todo[position]
            if covered[number] or number in supplied:
                position += 1
                continue
            candidates = iter(suppliers[number])
            length = len(todo)
            while True:
                supplier = next(
                    (unit for unit in candidates if is_open[unit] and taken.isdisjoint(elements[unit])), None
                )
                if supplier is not None:
                    break
                backtracks += 1
                if not choices:
                    return []
                if backtracks > BACKTRACKS:
                    return None
                position, length, candidates = choices.pop()
                chosen.pop()
                taken = set().union(*(elements[unit] for unit in chosen))
                supplied = set().union(*(supplies[unit] for unit in chosen))
                del todo[length:]
            choices.append((position, length, candidates))
            chosen.append(supplier)
            taken |= elements[supplier]
            supplied.update(supplies[supplier])
            todo.extend(needs[supplier])
            position += 1
        return chosen


def maximal(problem: Problem, stays: list[bool]) -> list[bool]:
    """The set of the fixed point (``stays``, by arm number) and all that re-admission adds; by unit number."""
    unit_of = problem.unit_of
    admission = Admission(problem, [unit_of[members[0]] for members in problem.members if stays[members[0]]])
    admission.grow()
    return admission.admitted


def served_by_age(problem: Problem, patience: int) -> tuple[set[str], set[str]]:
    """Arms that are overdue and served, and all arms that come first because of them (``aging.py``).

    Returns:
        (served, first): names of the overdue arms that fit beside those before them; these with the members of their
        groups and their suppliers, a consistent set.
    """
    admission = Admission(problem)
    served: set[str] = set()
    for arm, intent in enumerate(problem.intents):
        if intent.waited <= patience:
            break  # the overdue arms come first in the order of priority
        unit = problem.unit_of[arm]
        if unit >= 0 and admission.add(unit):
            served.add(intent.arm)
    first = {
        problem.names[arm]
        for unit, members in enumerate(problem.members)
        if admission.admitted[unit]
        for arm in members
    }
    return served, first
