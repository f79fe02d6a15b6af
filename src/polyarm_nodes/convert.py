"""Messages <-> core types. Every ``*_from_message`` validates first and raises Malformed; nothing is half-read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyarm.msg import Action as ActionMessage
from polyarm.msg import ArmState, EntityState, IntentReport, WorldState
from polyarm.msg import ArmVerdict as ArmVerdictMessage
from polyarm.msg import Declaration as DeclarationMessage
from polyarm.msg import Grant as GrantMessage

from polyarm_core.agents import DecidedBy
from polyarm_core.constraints import MOVE_VERB, Action, Declaration
from polyarm_core.errors import UnknownName
from polyarm_core.leases import Grant
from polyarm_core.orchestrator import Decision, Rule
from polyarm_core.scenario import Scenario
from polyarm_core.slots import ArmSnapshot, ArmStatus, ArmVerdict, Report, Snapshot, TwinRule
from polyarm_core.world import World
from polyarm_nodes.validation import Malformed, check_message

DECIDED_BY: Mapping[DecidedBy, int] = {
    DecidedBy.MODEL: IntentReport.DECIDED_BY_MODEL,
    DecidedBy.ONLY_CHOICE: IntentReport.DECIDED_BY_ONLY_CHOICE,
    DecidedBy.HEURISTIC: IntentReport.DECIDED_BY_HEURISTIC,
    DecidedBy.FALLBACK: IntentReport.DECIDED_BY_FALLBACK,
    DecidedBy.CHAIN: IntentReport.DECIDED_BY_CHAIN,
}
DECISIONS: Mapping[Decision, int] = {
    Decision.ADMIT: ArmVerdictMessage.DECISION_ADMIT,
    Decision.YIELD: ArmVerdictMessage.DECISION_YIELD,
    Decision.WAIT: ArmVerdictMessage.DECISION_WAIT,
}
RULES: Mapping[Rule | TwinRule, int] = {
    Rule.EXCLUSION: ArmVerdictMessage.RULE_EXCLUSION,
    Rule.SYNCHRONISATION: ArmVerdictMessage.RULE_SYNCHRONISATION,
    Rule.PRODUCED: ArmVerdictMessage.RULE_PRODUCED,
    Rule.HELD: ArmVerdictMessage.RULE_HELD,
    TwinRule.OCCUPIED: ArmVerdictMessage.RULE_OCCUPIED,
    TwinRule.DEAD_END: ArmVerdictMessage.RULE_DEAD_END,
    TwinRule.ILLEGAL: ArmVerdictMessage.RULE_ILLEGAL,
    TwinRule.SILENT: ArmVerdictMessage.RULE_SILENT,
}
STATUSES: Mapping[ArmStatus, int] = {
    ArmStatus.IDLE: ArmState.STATUS_IDLE,
    ArmStatus.MOVING: ArmState.STATUS_MOVING,
    ArmStatus.HOLDING: ArmState.STATUS_HOLDING,
    ArmStatus.PROTECTIVE_STOP: ArmState.STATUS_PROTECTIVE_STOP,
}
_DECISION_OF = {number: decision for decision, number in DECISIONS.items()}
_STATUS_OF = {number: status for status, number in STATUSES.items()}


def action_to_message(action: Action) -> ActionMessage:
    """Core action -> message."""
    return ActionMessage(verb=action.verb, entity=action.entity, placement=action.placement)


def action_from_message(message: ActionMessage) -> Action:
    """Message -> core action; names are checked against the scenario where it is used."""
    if not message.verb:
        raise Malformed("action.verb is empty")
    return Action(message.verb, message.entity, message.placement)


def action_of_arm(message: ActionMessage, arm: str, scenario: Scenario) -> Action:
    """Message -> an action that the arm has in the task. Raises Malformed where it is none, or a name is unknown."""
    action = action_from_message(message)
    try:
        scenario.arm(arm)
        if action.is_stay or scenario.operator(arm, action.verb, action.entity, action.placement) is not None:
            return action
        if action.verb == MOVE_VERB:
            scenario.entity(action.entity)
            scenario.placement(action.placement)
            return action
    except UnknownName as why:
        raise Malformed(str(why)) from None
    raise Malformed(f"{arm} has no action {str(action)!r}")


def declaration_to_message(declaration: Declaration) -> DeclarationMessage:
    """Core declaration -> message, entries sorted so that equal declarations are equal bytes."""
    return DeclarationMessage(
        exclusive=sorted(declaration.exclusive),
        group=sorted(declaration.group),
        requires_produced=sorted(declaration.requires_produced),
        requires_held=sorted(declaration.requires_held),
        produces=sorted(declaration.produces),
        holds=sorted(declaration.holds),
    )


def declaration_from_message(message: DeclarationMessage) -> Declaration:
    """Message -> core declaration."""
    return Declaration(
        frozenset(message.exclusive),
        frozenset(message.group),
        frozenset(message.requires_produced),
        frozenset(message.requires_held),
        frozenset(message.produces),
        frozenset(message.holds),
    )


def report_from_message(message: IntentReport, scenario: Scenario) -> Report:
    """An intent report that arrived. Raises Malformed when a field or a name is not valid."""
    check_message(message)
    if message.arm not in scenario.arms:
        raise Malformed(f"arm {message.arm!r} is unknown; valid: {', '.join(scenario.arms)}")
    action = action_from_message(message.action)
    if not action.is_stay:
        if action.entity and action.entity not in scenario.things:
            raise Malformed(f"action.entity {action.entity!r} is unknown; valid: {', '.join(sorted(scenario.things))}")
        if action.placement and action.placement not in scenario.placements:
            raise Malformed(
                f"action.placement {action.placement!r} is unknown; valid: {', '.join(scenario.placements)}"
            )
    if message.decided_by not in DECIDED_BY.values():
        raise Malformed(f"decided_by = {message.decided_by}; valid: {sorted(DECIDED_BY.values())}")
    if message.epoch == 0 or message.sequence == 0:
        raise Malformed("epoch and sequence of the sender must be above 0")
    return Report(
        message.arm,
        message.episode,
        message.slot,
        message.twin_epoch,
        message.epoch,
        message.sequence,
        action,
        declaration_from_message(message.declaration),
    )


def verdict_to_message(verdict: ArmVerdict, lease_duration: float) -> ArmVerdictMessage:
    """One arm's verdict -> message."""
    message = ArmVerdictMessage(
        arm=verdict.arm,
        action=action_to_message(verdict.action),
        decision=DECISIONS[verdict.decision],
        rule=RULES[verdict.rule] if verdict.rule is not None else ArmVerdictMessage.RULE_UNSET,
        element=verdict.element,
        rival=verdict.rival,
    )
    if verdict.grant is not None:
        message.lease.token = verdict.grant.token
        message.lease.duration = float(lease_duration)
    return message


def decision_from_message(message: ArmVerdictMessage) -> Decision:
    """The decision of a verdict. Raises Malformed for a number that is none."""
    try:
        return _DECISION_OF[message.decision]
    except KeyError:
        raise Malformed(f"decision = {message.decision}; valid: {sorted(_DECISION_OF)}") from None


def grant_to_message(grant: Grant) -> GrantMessage:
    """A lease in force -> message."""
    return GrantMessage(arm=grant.arm, slot=grant.slot, token=grant.token, action=action_to_message(grant.action))


def grant_from_message(message: GrantMessage) -> Grant:
    """Message -> lease."""
    return Grant(message.arm, message.slot, message.token, action_from_message(message.action))


def snapshot_from_message(message: WorldState, scenario: Scenario) -> Snapshot:
    """A world state that arrived. Raises Malformed when a field, a name or an enumeration is not valid."""
    check_message(message)
    positions: dict[str, tuple[float, float, float]] = {}
    held_by: dict[str, str] = {}
    for entity in message.entities:
        if entity.name not in scenario.entities:
            raise Malformed(f"entity {entity.name!r} is unknown; valid: {', '.join(scenario.entities)}")
        point = entity.pose.position
        positions[entity.name] = (point.x, point.y, point.z)
        if entity.held_by:
            held_by[entity.name] = entity.held_by
    missing = sorted(set(scenario.entities) - set(positions))
    if missing:
        raise Malformed(f"entities without a pose: {', '.join(missing)}")
    for name in message.blocked:
        if name not in scenario.placements:
            raise Malformed(f"blocked placement {name!r} is unknown; valid: {', '.join(scenario.placements)}")
    arms: dict[str, ArmSnapshot] = {}
    for arm in message.arms:
        if arm.name not in scenario.arms:
            raise Malformed(f"arm {arm.name!r} is unknown; valid: {', '.join(scenario.arms)}")
        if arm.status not in _STATUS_OF:
            raise Malformed(f"status of {arm.name} = {arm.status}; valid: {sorted(_STATUS_OF)}")
        arms[arm.name] = ArmSnapshot(_STATUS_OF[arm.status], arm.token, frozenset(arm.zones))
    return Snapshot(
        message.episode,
        message.slot,
        message.epoch,
        message.sequence,
        message.sim_time,
        World(positions, frozenset(message.conditions), held_by, frozenset(message.blocked)),
        arms,
        message.success,
    )


def pose_fields(state: EntityState, position: Any, quaternion: Any) -> None:
    """Write a position (3,) in m and a unit quaternion (w, x, y, z) into an entity's pose."""
    state.pose.position.x, state.pose.position.y, state.pose.position.z = (float(v) for v in position)
    orientation = state.pose.orientation
    orientation.w, orientation.x, orientation.y, orientation.z = (float(v) for v in quaternion)
