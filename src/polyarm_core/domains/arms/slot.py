"""One slot of the twin as a pure function: vetoes before arbitration, arbitration, the guard against dead ends.

Made of the same parts as `polyarm_core.slots.SlotProtocol`, with complete declarations, on a state instead of
messages; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyarm_core.constraints import Action, Declaration, Intent
from polyarm_core.declaration import declare
from polyarm_core.domains.arms.world import AbstractWorld, ArmsState
from polyarm_core.liveness import RelayGraph
from polyarm_core.orchestrator import Decision
from polyarm_core.slots import TwinRule, arbitrate_safely, make_intent, veto_by_world


@dataclass(frozen=True)
class SlotOutcome:
    """What the twin answers.

    Attributes:
        admitted: arm -> action that is carried out; without those that stay.
        vetoes: arm -> why its action is not, in words.
        needed: conditions that an admitted action requires held or produced.
    """

    admitted: Mapping[str, Action]
    vetoes: Mapping[str, str]
    needed: frozenset[str]


def arbitrate_slot(
    world: AbstractWorld, graph: RelayGraph, state: ArmsState, actions: Mapping[str, Action]
) -> SlotOutcome:
    """Which of the proposed actions are carried out in this slot.

    Args:
        world: of the scenario.
        graph: sees dead ends ahead.
        state: before the slot.
        actions: arm -> what it proposes; arms that are left out stay.
    """
    scenario, view, where = world.scenario, world.view(state), world.where(state)
    vetoes: dict[str, str] = {}
    intents: dict[str, Intent] = {}
    for arm, action in sorted(actions.items()):
        if action.is_stay:
            continue
        reason = _veto(world, state, arm, action)
        if reason:
            vetoes[arm] = reason
            continue
        waited = state.waited[scenario.arm_index[arm]]
        intents[arm] = make_intent(scenario, arm, action, declare(scenario, arm, action, where), waited)
    arbitration, unsafe = arbitrate_safely(intents, view.world.conditions, where, graph)
    vetoes.update({intent.arm: f"{TwinRule.DEAD_END.value}: {intent.action}" for intent in unsafe})
    for verdict in arbitration.verdicts:
        if verdict.decision is not Decision.ADMIT and verdict.rule is not None:
            vetoes[verdict.arm] = " ".join(filter(None, (verdict.rule.value, verdict.element, verdict.rival)))
    declared: Sequence[Declaration] = [intents[arm].declaration for arm in arbitration.admitted]
    needed = frozenset().union(*(d.requires_held | d.requires_produced for d in declared))
    return SlotOutcome({arm: intents[arm].action for arm in arbitration.admitted}, vetoes, needed)


def _veto(world: AbstractWorld, state: ArmsState, arm: str, action: Action) -> str:
    scenario, view = world.scenario, world.view(state)
    if state.stopped[scenario.arm_index[arm]]:
        return f"{TwinRule.ILLEGAL.value}: {arm} is stopped"
    if action.placement and any(name == action.placement for name, _ in state.blocked):
        return f"{TwinRule.OCCUPIED.value}: {action.placement} is blocked"
    veto = veto_by_world(view, arm, action)
    if veto is None or veto.rule is None:
        return ""
    if veto.rule is TwinRule.OCCUPIED:
        return f"{veto.rule.value}: {veto.rival} is on {action.placement}"
    return f"{veto.rule.value}: {action}"
