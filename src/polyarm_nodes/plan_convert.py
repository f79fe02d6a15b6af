"""Messages of plans <-> core types. Every ``*_from_message`` validates first and raises Malformed; see `convert`.

The chains of a message are one per agent of the team, in its order, each step in the chain language. What a step names
must exist (`Vocabulary`); whether it makes sense in the state of the world is `chains.validation`'s question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

from polyarm.msg import ActionChain, ArmHead, PlanCall, PlanState, ReplanRequest, SlotVerdict
from polyarm.msg import ArmVerdict as ArmVerdictMessage
from polyarm.msg import Detection as DetectionMessage
from polyarm.msg import Plan as PlanMessage

from polyarm_core.chains.executor import Detection, DetectionKind
from polyarm_core.chains.parser import ChainSyntaxError, parse_step
from polyarm_core.chains.printer import format_step
from polyarm_core.chains.terms import Action as ChainAction
from polyarm_core.chains.terms import Chain, Plan, Step, WaitAgents
from polyarm_core.control.executive import SlotPlan, names_used
from polyarm_core.control.modes import Head, Standing
from polyarm_core.coordinator.episode import PlanRecord
from polyarm_core.coordinator.interface import REASONS
from polyarm_core.domains.arms import ArmsDomain
from polyarm_core.domains.arms.search import chain_action
from polyarm_core.domains.interface import Domain
from polyarm_core.scenario import Scenario
from polyarm_core.slots import ArmVerdict
from polyarm_nodes.convert import (
    RULES,
    action_from_message,
    action_to_message,
    decision_from_message,
)
from polyarm_nodes.validation import Malformed, check_message

STANDINGS: Mapping[Standing, int] = {
    Standing.ACT: ArmHead.STANDING_ACT,
    Standing.WAIT: ArmHead.STANDING_WAIT,
    Standing.ENDED: ArmHead.STANDING_ENDED,
    Standing.UNPLANNED: ArmHead.STANDING_UNPLANNED,
}
KINDS: Mapping[DetectionKind, int] = {
    "deadlock": DetectionMessage.KIND_DEADLOCK,
    "stall": DetectionMessage.KIND_STALL,
    "no_progress": DetectionMessage.KIND_NO_PROGRESS,
    "chain_end": DetectionMessage.KIND_CHAIN_END,
}
SOURCES: Mapping[str, int] = {
    "coordinator": PlanCall.SOURCE_COORDINATOR,
    "repair": PlanCall.SOURCE_REPAIR,
}
assert set(KINDS) == set(get_args(DetectionKind))
_STANDING_OF = {number: standing for standing, number in STANDINGS.items()}
_RULE_OF = {number: rule for rule, number in RULES.items()}
_CAUSE, _ERROR, _TEXT, _REASON, _WHY = 512, 512, 8192, 1024, 512  # bytes, see msg/


@dataclass(frozen=True)
class Vocabulary:
    """What a chain may name.

    Attributes:
        agents: of the team, in its order.
        verbs: name of an action -> number of its arguments; empty = any action.
        names: what may stand as an argument, or as the entity of a wait; empty = anything.
    """

    agents: tuple[str, ...]
    verbs: Mapping[str, int]
    names: frozenset[str] = frozenset()

    @staticmethod
    def of(domain: Domain[Any]) -> Vocabulary:
        """That of a domain; names are known of the arms only."""
        verbs = {template.name: len(template.parameters) for template in domain.vocabulary}
        names: set[str] = set()
        if isinstance(domain, ArmsDomain):
            actions = (chain_action(domain.action_of(control)) for control in range(1, domain.control_count))
            names = {name for action in actions for name in action.arguments} | set(domain.entity_rows)
        return Vocabulary(tuple(domain.agents), verbs, frozenset(names))


@dataclass(frozen=True)
class HeardPlan:
    """A plan as it arrived; fields as in the message."""

    episode: int
    slot: int
    epoch: int
    sequence: int
    number: int
    reason: str
    plan: Plan


@dataclass(frozen=True)
class HeardState:
    """What arms are told in one slot, as it arrived; fields as in the message."""

    episode: int
    slot: int
    twin_epoch: int
    epoch: int
    sequence: int
    number: int
    sound: bool
    heads: Mapping[str, Head]
    remaining: Plan

    @property
    def reserved(self) -> frozenset[str]:
        """Entities and placements of which the rest of a plan that is followed makes use."""
        return names_used(self.remaining) if self.sound else frozenset()


@dataclass(frozen=True)
class HeardRequest:
    """A request for another plan, as it arrived; fields as in the message."""

    episode: int
    slot: int
    epoch: int
    sequence: int
    number: int
    reason: str
    cause: str
    agents: tuple[str, ...]
    probability: float


# -- chains -----------------------------------------------------------------------------------------------------------


def chains_to_messages(plan: Plan) -> list[ActionChain]:
    """A plan, chain by chain."""
    return [ActionChain(agent=agent, steps=[format_step(step) for step in chain]) for agent, chain in plan.chains]


def plan_from_chains(chains: Sequence[ActionChain], vocabulary: Vocabulary, field: str = "chains") -> Plan:
    """The plan of a message.

    Args:
        chains: of a message that `check_message` has let pass.
        vocabulary: what they may name.
        field: for the error.

    Raises:
        Malformed: other agents than the team's, in another order; a step that cannot be read, or names something that
            does not exist.
    """
    agents = tuple(chain.agent for chain in chains)
    if agents != vocabulary.agents:
        raise Malformed(f"{field} are of {', '.join(agents) or 'nobody'}; valid: {', '.join(vocabulary.agents)}")
    read: list[tuple[str, Chain]] = []
    for message in chains:
        steps = []
        for number, text in enumerate(message.steps, 1):
            try:
                steps.append(_step(text))
            except ChainSyntaxError as why:
                raise Malformed(f"{field}: step {number} of {message.agent}: {why}") from None
        read.append((message.agent, tuple(steps)))
    lengths = {agent: len(chain) for agent, chain in read}
    for agent, chain in read:
        for number, step in enumerate(chain, 1):
            problem = _problem(agent, step, vocabulary, lengths)
            if problem:
                raise Malformed(f"{field}: step {number} of {agent}: {problem}")
    return Plan(tuple(read))


def prepare() -> None:
    """Build the grammar of the chain language now: it takes a tenth of a second, and the first slot would wait."""
    _step("Wait_agents(other, done, 1)")


@lru_cache(maxsize=4096)
def _step(text: str) -> Step:
    """Remembered: the rest of a plan is published in every slot."""
    return parse_step(text)


def _problem(agent: str, step: Step, vocabulary: Vocabulary, lengths: Mapping[str, int]) -> str:
    """What is wrong with a step, in words; empty = nothing."""
    verbs, names = vocabulary.verbs, vocabulary.names
    if isinstance(step, ChainAction):
        if verbs and step.name not in verbs:
            return f"action {step.name!r} is unknown; valid: {', '.join(verbs)}"
        if verbs and len(step.arguments) != verbs[step.name]:
            return f"{step} has {len(step.arguments)} arguments; valid: {verbs[step.name]}"
        unknown = [name for name in step.arguments if names and name not in names]
        return f"{unknown[0]!r} is unknown; valid: {', '.join(sorted(names))}" if unknown else ""
    for atom in step.atoms:
        if isinstance(atom, WaitAgents):
            if atom.agent == agent or atom.agent not in lengths:
                others = [other for other in lengths if other != agent]
                return f"{atom}: valid agents: {', '.join(others)}"
            if not 1 <= atom.step <= lengths[atom.agent]:
                return f"{atom}: the chain of {atom.agent} has {lengths[atom.agent]} steps"
        elif names and atom.entity not in names:
            return f"entity {atom.entity!r} is unknown; valid: {', '.join(sorted(names))}"
    return ""


# -- plans ------------------------------------------------------------------------------------------------------------


def plan_to_message(number: int, plan: Plan, reason: str) -> PlanMessage:
    """A plan that is followed from now on; the sender adds episode, slot and its own numbers."""
    return PlanMessage(number=number, reason=reason, chains=chains_to_messages(plan))


def plan_from_message(message: PlanMessage, vocabulary: Vocabulary) -> HeardPlan:
    """A plan that arrived. Raises Malformed when a field, a name, a step or an agent is not valid."""
    check_message(message)
    _check_sender(message)
    _check_reason(message.reason)
    if message.number == 0:
        raise Malformed("number of the plan must be above 0")
    plan = plan_from_chains(message.chains, vocabulary)
    return HeardPlan(
        message.episode, message.slot, message.epoch, message.sequence, message.number, message.reason, plan
    )


def state_to_message(told: SlotPlan) -> PlanState:
    """What arms are told in one slot; the sender adds episode, epoch of the twin and its own numbers."""
    heads = [head_to_message(arm, head, told.missing.get(arm, "")) for arm, head in told.heads.items()]
    return PlanState(
        slot=told.slot, plan=told.number, sound=told.sound, heads=heads, remaining=chains_to_messages(told.remaining)
    )


def state_from_message(message: PlanState, vocabulary: Vocabulary, scenario: Scenario) -> HeardState:
    """What arms are told, as it arrived. Raises Malformed when a field, a name, a step or an agent is not valid."""
    check_message(message)
    _check_sender(message)
    if message.sound and message.plan == 0:
        raise Malformed("plan = 0 is sound")
    arms = tuple(head.agent for head in message.heads)
    if arms != vocabulary.agents:
        raise Malformed(f"heads are of {', '.join(arms) or 'nobody'}; valid: {', '.join(vocabulary.agents)}")
    heads = {head.agent: head_from_message(head, scenario) for head in message.heads}
    if not message.sound and any(head.standing is not Standing.UNPLANNED for head in heads.values()):
        raise Malformed("heads say what to do although the plan is not followed")
    remaining = plan_from_chains(message.remaining, vocabulary, "remaining")
    return HeardState(
        message.episode,
        message.slot,
        message.twin_epoch,
        message.epoch,
        message.sequence,
        message.plan,
        message.sound,
        heads,
        remaining,
    )


def head_to_message(arm: str, head: Head, why: str = "") -> ArmHead:
    """What the plan says of one arm."""
    message = ArmHead(agent=arm, standing=STANDINGS[head.standing], why=clip(why, _WHY))
    if head.action is not None:
        message.action = action_to_message(head.action)
    return message


def head_from_message(message: ArmHead, scenario: Scenario) -> Head:
    """What the plan says of one arm. Raises Malformed when a name or an enumeration is not valid."""
    if message.standing not in _STANDING_OF:
        raise Malformed(f"standing of {message.agent} = {message.standing}; valid: {sorted(_STANDING_OF)}")
    standing = _STANDING_OF[message.standing]
    if standing is not Standing.ACT:
        return Head(standing)
    action = action_from_message(message.action)
    if action.entity and action.entity not in scenario.things:
        raise Malformed(f"action.entity {action.entity!r} is unknown; valid: {', '.join(sorted(scenario.things))}")
    if action.placement and action.placement not in scenario.placements:
        raise Malformed(f"action.placement {action.placement!r} is unknown; valid: {', '.join(scenario.placements)}")
    return Head(standing, action)


# -- calls, detections, requests --------------------------------------------------------------------------------------


def call_to_message(record: PlanRecord, number: int) -> PlanCall:
    """A plan that was asked for; the sender adds episode, slot and its own numbers.

    Args:
        record: of the planner.
        number: of the plan that came of it, 0 = none.
    """
    return PlanCall(
        source=SOURCES[record.source],
        reason=record.reason,
        cause=clip(record.cause, _CAUSE),
        number=number,
        error=clip(record.error, _ERROR),
        text=clip(record.text, _TEXT),
        seconds=float(record.seconds),
        prompt_tokens=record.prompt_tokens,
        tokens=record.tokens,
    )


def detection_to_message(detection: Detection, number: int) -> DetectionMessage:
    """Something that was found; the sender adds episode, slot and its own numbers.

    Args:
        detection: of executor or wait-for graph.
        number: of the plan.
    """
    return DetectionMessage(
        plan=number,
        kind=KINDS[detection.kind],
        agents=list(detection.agents),
        cycle=list(detection.cycle),
        reason=clip(detection.reason, _REASON),
    )


def request_to_message(
    number: int, reason: str, cause: str, agents: Sequence[str] = (), probability: float = 0.0
) -> ReplanRequest:
    """A request for another plan than that of a number; the sender adds episode, slot and its own numbers."""
    return ReplanRequest(
        plan=number, reason=reason, cause=clip(cause, _CAUSE), agents=list(agents), probability=float(probability)
    )


def request_from_message(message: ReplanRequest, agents: Sequence[str]) -> HeardRequest:
    """A request that arrived. Raises Malformed when a field, the reason or an agent is not valid."""
    check_message(message)
    _check_sender(message)
    _check_reason(message.reason)
    _check_agents(message.agents, agents)
    if message.plan == 0:
        raise Malformed("plan must be above 0: there is none to replace")
    if not 0.0 <= message.probability <= 1.0:
        raise Malformed(f"probability = {message.probability}; valid: 0 to 1")
    return HeardRequest(
        message.episode,
        message.slot,
        message.epoch,
        message.sequence,
        message.plan,
        message.reason,
        message.cause,
        tuple(message.agents),
        float(message.probability),
    )


# -- verdicts ---------------------------------------------------------------------------------------------------------


def verdicts_from_message(message: SlotVerdict, scenario: Scenario) -> tuple[ArmVerdict, ...]:
    """The twin's answers of a slot. Raises Malformed when a field, an arm or an enumeration is not valid."""
    check_message(message)
    verdicts = []
    for verdict in message.verdicts:
        _check_agents([verdict.arm], tuple(scenario.arms))
        decision = decision_from_message(verdict)
        if verdict.rule != ArmVerdictMessage.RULE_UNSET and verdict.rule not in _RULE_OF:
            raise Malformed(f"rule = {verdict.rule}; valid: 0, {', '.join(map(str, sorted(_RULE_OF)))}")
        verdicts.append(
            ArmVerdict(
                verdict.arm,
                action_from_message(verdict.action),
                decision,
                _RULE_OF.get(verdict.rule),
                verdict.element,
                verdict.rival,
            )
        )
    return tuple(verdicts)


# -- inside -----------------------------------------------------------------------------------------------------------


def clip(text: str, size: int) -> str:
    """The beginning of a text that fits into so many bytes."""
    return text if len(text) * 4 <= size else text.encode()[:size].decode(errors="ignore")


def _check_sender(message: Any) -> None:
    if message.epoch == 0 or message.sequence == 0:
        raise Malformed("epoch and sequence of the sender must be above 0")


def _check_reason(reason: str) -> None:
    if reason not in REASONS:
        raise Malformed(f"reason {reason!r} is unknown; valid: {', '.join(REASONS)}")


def _check_agents(names: Sequence[str], valid: Sequence[str]) -> None:
    for name in names:
        if name not in valid:
            raise Malformed(f"agent {name!r} is unknown; valid: {', '.join(valid)}")
