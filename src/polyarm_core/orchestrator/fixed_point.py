"""The paper's procedure: T_xi . T_zeta . T_alpha . T_omega until nothing changes (eqs. 18-24).

Within a round each rule looks at one set and removes all that it finds at once, T_omega first. Only the first T_xi can
remove anything: what it leaves shares no element, and later rounds only shrink the set. So later rounds need to look
at nothing but what the removals before them uncovered, and the whole takes linear time, however many rounds it is.

The flaw of T_xi is kept (ldt_coord.md 7.1): an arm goes for sharing an element with *any* arm of higher priority in the
current set, also with one that goes in the same step.
"""

from __future__ import annotations

from polyarm_core.orchestrator.problem import Problem
from polyarm_core.orchestrator.types import Rule

Removal = tuple[Rule, str, int]  # the rule; for an exclusion also the element and the arm that was ranked higher


def fixed_point(problem: Problem) -> tuple[list[bool], dict[int, Removal]]:
    """Run the procedure.

    Returns:
        By arm number whether it stays; for each removed arm the rule that removed it.
    """
    declarations = problem.declarations
    stays = [True] * len(declarations)
    removed: dict[int, Removal] = {}
    dependent = [arm for arm, d in enumerate(declarations) if d.requires_held or d.requires_produced]
    coverage = _Coverage(problem, dependent) if dependent else None
    broken = [arm for arm, mates in enumerate(problem.mates) if mates is None]
    grouped = any(problem.mates)

    def remove(arms: list[int], rule: Rule) -> None:
        for arm in arms:
            if stays[arm]:
                stays[arm] = False
                removed[arm] = (rule, "", -1)
                if coverage:
                    coverage.withdraw(arm)
                if grouped:
                    broken.extend(problem.mates[arm] or ())

    exclusion_due = True
    while True:
        if coverage:
            remove(coverage.uncovered_held(), Rule.HELD)
            remove(coverage.uncovered_produced(), Rule.PRODUCED)
        if broken:
            arms = broken.copy()
            broken.clear()
            remove(arms, Rule.SYNCHRONISATION)
        if exclusion_due:
            exclusion_due = False
            holders: dict[str, int] = {}
            losers: list[int] = []
            for arm, declaration in enumerate(declarations):  # by priority: the first holder of an element wins it
                if stays[arm]:
                    rivals = [holders.setdefault(element, arm) for element in declaration.exclusive]
                    if rivals.count(arm) < len(rivals):
                        losers.append(arm)
            remove(losers, Rule.EXCLUSION)
            for arm in losers:
                rival, element = min(
                    (holders[element], element) for element in declarations[arm].exclusive if holders[element] != arm
                )
                removed[arm] = (Rule.EXCLUSION, element, rival)
        if not (broken or (coverage and coverage.pending)):
            return stays, removed


class _Coverage:
    """How many of the arms that stay hold, and produce or hold, each required condition."""

    def __init__(self, problem: Problem, dependent: list[int]) -> None:
        self._declarations = problem.declarations
        self._held_by: dict[str, int] = {}
        self._produced_by: dict[str, int] = {}
        self._held_requirers: dict[str, list[int]] = {}
        self._produced_requirers: dict[str, list[int]] = {}
        for arm in dependent:
            declaration = problem.declarations[arm]
            for condition in declaration.requires_held - problem.conditions:
                self._held_requirers.setdefault(condition, []).append(arm)
            for condition in declaration.requires_produced - problem.conditions:
                self._produced_requirers.setdefault(condition, []).append(arm)
        for declaration in problem.declarations:
            for condition in declaration.holds:
                self._held_by[condition] = self._held_by.get(condition, 0) + 1
            for condition in declaration.produces | declaration.holds:
                self._produced_by[condition] = self._produced_by.get(condition, 0) + 1
        self._held_lost = [name for name in self._held_requirers if name not in self._held_by]
        self._produced_lost = [name for name in self._produced_requirers if name not in self._produced_by]

    @property
    def pending(self) -> bool:
        return bool(self._held_lost or self._produced_lost)

    def withdraw(self, arm: int) -> None:
        declaration = self._declarations[arm]
        for condition in declaration.holds:
            self._held_by[condition] -= 1
            if not self._held_by[condition] and condition in self._held_requirers:
                self._held_lost.append(condition)
        for condition in declaration.produces | declaration.holds:
            self._produced_by[condition] -= 1
            if not self._produced_by[condition] and condition in self._produced_requirers:
                self._produced_lost.append(condition)

    def uncovered_held(self) -> list[int]:
        lost, self._held_lost = self._held_lost, []
        return [arm for condition in lost for arm in self._held_requirers[condition]]

    def uncovered_produced(self) -> list[int]:
        lost, self._produced_lost = self._produced_lost, []
        return [arm for condition in lost for arm in self._produced_requirers[condition]]
