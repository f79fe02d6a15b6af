"""Why each vetoed arm is out: the rule that it violates beside the admitted set, the element and the rival.

Whatever the strategy, an arm outside a set that nothing can be added to violates one of eqs. 11-13 beside it, so that
the explanation can be checked. Where an arm violates several, the one that the paper's order would name is given: first
held, produced and synchronisation if no choice among rivals could have satisfied them, then exclusion, then the three
again. The procedure of the paper removes arms that violate nothing in the end (ldt_coord.md 7.1); these are told the
element and the arm of higher priority that T_xi removed them for, although that arm is out as well.

A group whose own members share an element can never act. All but the first of those members are told EXCLUSION, with a
member as the rival.
"""

from __future__ import annotations

from collections.abc import Mapping

from polyarm_core.orchestrator.fixed_point import Removal
from polyarm_core.orchestrator.problem import Problem
from polyarm_core.orchestrator.types import Decision, Rule, Verdict

DECISION_OF = {
    Rule.EXCLUSION: Decision.YIELD,
    Rule.SYNCHRONISATION: Decision.WAIT,
    Rule.PRODUCED: Decision.WAIT,
    Rule.HELD: Decision.WAIT,
}
WAIT_RULES = (Rule.HELD, Rule.PRODUCED, Rule.SYNCHRONISATION)


def explain(problem: Problem, admitted: list[bool], removed: Mapping[int, Removal] | None = None) -> list[Verdict]:
    """One verdict per arm, sorted by name.

    Args:
        problem: the arms.
        admitted: by arm number.
        removed: by arm number the rule that removed it, where that rule is to be named (the paper's procedure).
    """
    names = problem.names
    admit = Decision.ADMIT
    verdicts = []
    explainer: _Explainer | None = None
    for arm, inside in enumerate(admitted):
        if inside:
            verdicts.append(Verdict(names[arm], admit))
            continue
        if explainer is None:
            explainer = _Explainer(problem, admitted)
        verdicts.append(explainer.veto(arm, removed[arm] if removed is not None else None))
    verdicts.sort(key=lambda verdict: verdict.arm)
    return verdicts


class _Explainer:
    def __init__(self, problem: Problem, admitted: list[bool]) -> None:
        self._problem = problem
        self._admitted = admitted
        self._owner: dict[str, int] = {}
        for arm, inside in enumerate(admitted):
            if inside:
                for element in problem.declarations[arm].exclusive:
                    self._owner[element] = arm
        self._held: set[str] | None = None  # by the admitted arms or in W; made when first asked for
        self._produced: set[str] = set()
        self._offers: dict[tuple[str, str], int] = {}

    def veto(self, arm: int, removal: Removal | None) -> Verdict:
        if removal is not None:
            rule, element, rival = removal
            if rule is Rule.EXCLUSION:
                shared = self._shared(arm)
                if shared is None:
                    shared = (rival, element)
                return self._verdict(arm, rule, shared[1], shared[0])
            found = self._violated(arm, rule)
            assert found is not None, "what the paper's procedure finds uncovered stays uncovered"
            return self._verdict(arm, rule, *found)
        unit = self._problem.unit_of[arm]
        hopeless = unit < 0 or not self._problem.viable[unit]
        order = (*WAIT_RULES, Rule.EXCLUSION) if hopeless else (Rule.EXCLUSION, *WAIT_RULES)
        if hopeless and unit >= 0 and (own := self._within_group(arm)) is not None:
            return self._verdict(arm, Rule.EXCLUSION, *own)
        for rule in order:
            found = self._violated(arm, rule)
            if found is not None:
                return self._verdict(arm, rule, *found)
        # A unit without open needs is admitted as soon as no element stands against it, whatever the strategy.
        raise AssertionError(f"arm {self._problem.names[arm]!r} is out although it violates nothing")

    def _verdict(self, arm: int, rule: Rule, element: str, rival: int | str) -> Verdict:
        names = self._problem.names
        other = rival if isinstance(rival, str) else names[rival] if rival >= 0 else ""
        return Verdict(names[arm], DECISION_OF[rule], rule, element, other)

    def _violated(self, arm: int, rule: Rule) -> tuple[str, int | str] | None:
        """Element and rival if the arm violates the rule beside the admitted set."""
        declaration = self._problem.declarations[arm]
        if rule is Rule.EXCLUSION:
            shared = self._shared(arm)
            return None if shared is None else (shared[1], shared[0])
        if rule is Rule.SYNCHRONISATION:
            return self._missing(arm) if declaration.group else None
        required = declaration.requires_held if rule is Rule.HELD else declaration.requires_produced
        if not required:
            return None
        if self._held is None:
            self._index_conditions()
        assert self._held is not None
        if rule is Rule.HELD:
            missing = required - self._held - declaration.holds
        else:
            missing = required - self._produced - declaration.holds - declaration.produces
        if not missing:
            return None
        condition = min(missing)
        return condition, self._offers.get((rule.value, condition), -1)

    def _shared(self, arm: int) -> tuple[int, str] | None:
        """The admitted arm of highest priority that shares an element, and the first such element by name."""
        owner = self._owner
        exclusive = self._problem.declarations[arm].exclusive
        return min(((owner[element], element) for element in exclusive if element in owner), default=None)

    def _missing(self, arm: int) -> tuple[str, int | str] | None:
        """The group's member that is not admitted (or names another group), and the element that keeps it out."""
        problem = self._problem
        mates = problem.mates[arm]
        if mates is None:
            group = problem.declarations[arm].group
            intents = {intent.arm: intent for intent in problem.intents}
            others = sorted(name for name in group if name not in intents or intents[name].declaration.group != group)
            return "", others[0] if others else problem.names[arm]
        if self._admitted[mates[0]]:
            return None
        for mate in mates:
            if mate != arm and (shared := self._shared(mate)) is not None:
                return shared[1], mate
        others_in_group = [mate for mate in mates if mate != arm]
        if not others_in_group:
            return None  # a group of one is the arm itself
        # No member is excluded by an admitted arm: one lacks a condition, or two share an element.
        lacking = [mate for mate in others_in_group if self._lacks(mate)]
        return "", (lacking or others_in_group)[0]

    def _lacks(self, arm: int) -> bool:
        return any(self._violated(arm, rule) for rule in (Rule.HELD, Rule.PRODUCED))

    def _within_group(self, arm: int) -> tuple[str, int] | None:
        """A member of the arm's own group with higher priority that shares an element with it."""
        declarations = self._problem.declarations
        for mate in self._problem.mates[arm] or ():
            if mate >= arm:
                break
            shared = declarations[arm].exclusive & declarations[mate].exclusive
            if shared:
                return min(shared), mate
        return None

    def _index_conditions(self) -> None:
        problem = self._problem
        self._held = set(problem.conditions)
        self._produced = set(problem.conditions)
        for arm, inside in enumerate(self._admitted):
            declaration = problem.declarations[arm]
            if inside:
                self._held |= declaration.holds
                self._produced |= declaration.holds
                self._produced |= declaration.produces
            else:  # the offer of the arm with the highest priority is the one that is named
                for condition in declaration.holds:
                    self._offers.setdefault((Rule.HELD.value, condition), arm)
                    self._offers.setdefault((Rule.PRODUCED.value, condition), arm)
                for condition in declaration.produces:
                    self._offers.setdefault((Rule.PRODUCED.value, condition), arm)
