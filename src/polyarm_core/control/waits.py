"""One wait-for graph of a team: waits of the chains, groups that are not complete, and vetoes of the twin.

A chain's wait and a veto may hold each other up where neither sees it: an arm is not admitted because an object stands
on its destination, and who is to take that object away waits for the arm's step. So every reason for which an arm did
not act becomes claims in one graph (`chains.wait_graph`): of each claim one alternative must go on, and an arm goes on
when all its claims are met. Alternatives are drawn wide (everybody who could end the wait, as far as is known), so that
what is reported is a deadlock for sure; what time, a person or the arm itself can end makes no claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyarm_core.chains import terms
from polyarm_core.chains.executor import Detection
from polyarm_core.chains.terms import Plan, WaitAgents
from polyarm_core.chains.wait_graph import Deadlock, WaitGraph
from polyarm_core.constraints import Action
from polyarm_core.control.follower import PlanFollower
from polyarm_core.control.modes import Head, Standing
from polyarm_core.domains.arms.search import chain_action
from polyarm_core.orchestrator import Decision, Rule
from polyarm_core.scenario import Scenario
from polyarm_core.slots import ArmVerdict, TwinRule
from polyarm_core.world import OBSTACLE


@dataclass(frozen=True)
class Claim:
    """Why an arm cannot go on by itself.

    Attributes:
        others: one of them must go on; empty = nobody can end it, which is a stall and no deadlock.
        why: in words.
    """

    others: tuple[str, ...]
    why: str


Claims = Mapping[str, tuple[Claim, ...]]


class TeamWaits:
    """The graph of one team, slot by slot. An update costs O(claims that have changed and what they depend on)."""

    def __init__(self, arms: Sequence[str]) -> None:
        self._arms = tuple(arms)
        self._graph: WaitGraph[str] = WaitGraph()
        self._claims: dict[str, tuple[Claim, ...]] = {}
        self._told: set[object] = set()

    def forget(self) -> None:
        """Another plan, or another episode: what was reported before may be reported again."""
        self._graph.clear()
        self._claims.clear()
        self._told.clear()

    def update(self, claims: Claims, slot: int) -> tuple[Detection, ...]:
        """Put the claims of a slot in place of those of the last one.

        Args:
            claims: by arm; an arm that is missing can go on.
            slot: number for the detections.

        Returns:
            deadlocks, and stalls of arms whose wait nobody can end, each once.
        """
        found: list[Detection] = []
        added: list[tuple[str, Claim]] = []
        for arm in self._arms:
            new, old = claims.get(arm, ()), self._claims.get(arm, ())
            if new == old:
                continue
            for claim in old:
                if claim not in new:
                    self._graph.discard(arm, claim)
            added += [(arm, claim) for claim in new if claim not in old]
            self._claims[arm] = new
        # Claims that are gone must be out before the new ones are tested, or they would close cycles of yesterday.
        for arm, claim in added:
            if not claim.others:
                if self._first(("stall", arm, claim)):
                    found.append(Detection("stall", (arm,), f"{arm} {claim.why}: nobody can end that", slot))
                continue
            deadlock = self._graph.add(arm, claim, claim.others)
            if deadlock is not None:
                found += self._deadlock(deadlock, slot)
        return tuple(found)

    def _first(self, key: object) -> bool:
        known = key in self._told
        self._told.add(key)
        return not known

    def _deadlock(self, deadlock: Deadlock[str], slot: int) -> list[Detection]:
        cycle = deadlock.cycle
        words = []
        for arm, other in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            claims = [claim for claim in self._claims[arm] if other in claim.others]
            words.append(f"{arm} waits for {other} ({claims[0].why})" if claims else f"{arm} waits for {other}")
        if not self._first(("deadlock", frozenset(words))):
            return []
        others = tuple(node for node in deadlock.nodes if node not in cycle)
        reason = f"{', '.join(words)}: none of them can go on"
        if others:
            reason += f"; {', '.join(others)} cannot go on either"
        return [Detection("deadlock", cycle + others, reason, slot, cycle)]


def chain_claims(follower: PlanFollower, heads: Mapping[str, Head]) -> dict[str, tuple[Claim, ...]]:
    """Claims of the arms that a wait of their chain holds.

    Only milestones of other arms make claims here: whether an attribute of the world can still come about, the
    executor finds out. An alternative (``|``) that is no milestone is a way out.
    """
    claims: dict[str, tuple[Claim, ...]] = {}
    for wait in follower.waiting():
        if heads[wait.agent].standing is not Standing.WAIT:
            continue
        why = f"step {wait.step}, {wait.wait}"
        open_atoms = [a for a, done in zip(wait.wait.atoms, follower.reached(wait), strict=True) if not done]
        agents = [atom.agent for atom in open_atoms if isinstance(atom, WaitAgents)]
        if wait.wait.connective == "|":
            found = [Claim(tuple(dict.fromkeys(agents)), why)] if len(agents) == len(wait.wait.atoms) else []
        else:
            found = [Claim((agent,), why) for agent in dict.fromkeys(agents)]
        if found:
            claims[wait.agent] = tuple(found)
    return claims


def veto_claims(
    scenario: Scenario, verdicts: Sequence[ArmVerdict], heads: Mapping[str, Head], remaining: Plan | None
) -> dict[str, tuple[Claim, ...]]:
    """Claims of the arms that the twin has not admitted.

    Args:
        scenario: the task.
        verdicts: of the slot.
        heads: what the plan said of each arm; ``UNPLANNED`` for every arm that acts by its own model. Such an arm makes
            no claim when it is told to yield, since it chooses again; told to wait, it keeps its intention and does.
        remaining: what is left of the plan; None where there is none.
    """
    answers = {verdict.arm: verdict for verdict in verdicts}
    claims: dict[str, tuple[Claim, ...]] = {}
    for verdict in verdicts:
        planned = heads[verdict.arm].standing is Standing.ACT
        if verdict.decision is Decision.ADMIT or verdict.action.is_stay:
            continue
        if verdict.decision is Decision.YIELD and not planned:
            continue
        found = _claims_of(scenario, verdict, answers, _Helpers(scenario, heads, remaining))
        if found:
            claims[verdict.arm] = tuple(found)
    return claims


@dataclass(frozen=True)
class _Helpers:
    """Who could do something: an arm in the plan only what its remaining chain says, any other what it can."""

    scenario: Scenario
    heads: Mapping[str, Head]
    remaining: Plan | None

    def acts(self, arm: str) -> bool:
        """Whether the arm has anything left to do."""
        return self.heads[arm].standing is not Standing.ENDED

    def who(self, arm: str, verbs: Mapping[str, set[Action]], moves: str = "") -> tuple[str, ...]:
        """Other arms that can do one of these actions (by arm), or move this entity."""
        found = []
        for other in self.scenario.arms:
            if other == arm:
                continue
            if self.remaining is None or self.heads[other].standing is Standing.UNPLANNED:
                found += [other] if verbs.get(other) or moves else []
                continue
            for step in self.remaining[other]:
                if not isinstance(step, terms.Action):
                    continue
                if moves and moves in step.arguments:
                    found.append(other)
                    break
                if any(chain_action(action) == step for action in verbs.get(other, ())):
                    found.append(other)
                    break
        return tuple(found)


def _claims_of(
    scenario: Scenario, verdict: ArmVerdict, answers: Mapping[str, ArmVerdict], helpers: _Helpers
) -> list[Claim]:
    arm, action, rule = verdict.arm, verdict.action, verdict.rule
    told = f"the twin on {action}: {rule.value if rule is not None else 'veto'}"
    everybody = tuple(name for name in scenario.arms if name != arm)
    if rule is Rule.SYNCHRONISATION:
        operator = scenario.operator(arm, action.verb, action.entity, action.placement)
        group = [name for name in (operator.group if operator is not None else ()) if name != arm]
        missing = [name for name in group if not _came(scenario, answers.get(name), (*group, arm))]
        names = missing or ([verdict.rival] if verdict.rival in group else [])
        why = f"{told}, {{}} has not come"
        return [Claim((name,) if helpers.acts(name) else (), why.format(name)) for name in names]
    if rule in (Rule.HELD, Rule.PRODUCED):
        able: dict[str, set[Action]] = {}
        for operator in scenario.operators:
            supplies = (*operator.holds, *(operator.produces if rule is Rule.PRODUCED else ()))
            for name in operator.arms if verdict.element in supplies else ():
                able.setdefault(name, set()).add(Action(operator.verb, operator.entity or "", operator.placement or ""))
        return [Claim(helpers.who(arm, able), f"{told} {verdict.element}")]
    if rule is Rule.EXCLUSION:
        rival = answers.get(verdict.rival)
        if rival is None or rival.decision is Decision.ADMIT or verdict.rival == arm:
            return []
        return [Claim((verdict.rival,), f"{told} of {verdict.element}")]
    if rule is TwinRule.OCCUPIED:
        if verdict.rival == OBSTACLE:
            return []  # a person will take it away
        if verdict.rival in scenario.arms:
            return [Claim((verdict.rival,), f"{told}, it stands in {verdict.element}")]
        why = f"{told}, {verdict.rival} is on {action.placement}"
        return [Claim(helpers.who(arm, {}, moves=verdict.rival), why)]
    if rule is TwinRule.DEAD_END or (rule is TwinRule.ILLEGAL and verdict.element != "protective_stop"):
        return [Claim(everybody, told)] if everybody else []
    return []


def _came(scenario: Scenario, answer: ArmVerdict | None, group: Sequence[str]) -> bool:
    """Whether an arm proposed an action of the same group in this slot."""
    if answer is None or answer.action.is_stay:
        return False
    action = answer.action
    operator = scenario.operator(answer.arm, action.verb, action.entity, action.placement)
    return operator is not None and set(operator.group) == set(group)
