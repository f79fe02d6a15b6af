"""The consistency conditions of eqs. 11-14, straight from the definition: the yardstick of every strategy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from polyarm_core.constraints import Intent
from polyarm_core.orchestrator.types import Rule


def violations(intent: Intent, admitted: Mapping[str, Intent], conditions: Collection[str]) -> tuple[Rule, ...]:
    """Conditions that the arm of ``intent`` violates in the set ``admitted`` plus itself (eqs. 11-13).

    Args:
        intent: the arm in question; it counts as a member of the set, so it may supply its own requirements.
        admitted: arm to intent, the other members (the arm itself may be among them).
        conditions: W, the conditions that are true already.

    Returns:
        The violated rules in the order in which the paper applies them: held, produced, synchronisation, exclusion.
    """
    members = {**admitted, intent.arm: intent}
    mine = intent.declaration
    held = set(conditions)
    produced = set(conditions)
    for member in members.values():
        held |= member.declaration.holds
        produced |= member.declaration.produces | member.declaration.holds
    found = []
    if not mine.requires_held <= held:
        found.append(Rule.HELD)
    if not mine.requires_produced <= produced:
        found.append(Rule.PRODUCED)
    if mine.group and not (
        intent.arm in mine.group
        and all(arm in members and members[arm].declaration.group == mine.group for arm in mine.group)
    ):
        found.append(Rule.SYNCHRONISATION)
    others = [member.declaration for arm, member in members.items() if arm != intent.arm]
    if not all(mine.exclusive.isdisjoint(other.exclusive) for other in others):
        found.append(Rule.EXCLUSION)
    return tuple(found)


def is_consistent(admitted: Iterable[Intent], conditions: Collection[str] = frozenset()) -> bool:
    """Whether every member is consistent within the set (eqs. 14 and 16).

    Args:
        admitted: intents of the set, one per arm.
        conditions: W, the conditions that are true already.
    """
    members = {intent.arm: intent for intent in admitted}
    return not any(violations(intent, members, conditions) for intent in members.values())
