"""Declaring the constraints of an action, and completing what an agent left out (LDT-Coord eq. 7, ldt_coord.md 7.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from polyarm_core.constraints import (
    MOVE_VERB,
    Action,
    Declaration,
    entity_element,
    placement_element,
    zone_element,
)
from polyarm_core.errors import UnknownName
from polyarm_core.scenario import Scenario
from polyarm_core.world import swept_zones


def declare(scenario: Scenario, arm: str, action: Action, where: Mapping[str, str]) -> Declaration:
    """The least that an action must declare by the scene's rules.

    Of a move, the entity, the placements between which it goes and the zones that the arm sweeps on the way are
    exclusive, and what the placements require held is required. Of an operator, what the task file says.

    Args:
        scenario: names, reach and zones.
        arm: who acts.
        action: what it does.
        where: entity -> placement as far as known; the entity of the action must be in it.

    Raises:
        UnknownName: a name that the scenario does not have.
    """
    scenario.arm(arm)
    if action.is_stay:
        return Declaration()
    operator = scenario.operator(arm, action.verb, action.entity, action.placement)
    if operator is not None:
        exclusive = set(operator.exclusive)
        if action.entity and not operator.group:
            exclusive.add(entity_element(action.entity))
        if action.placement and not operator.group:
            exclusive.add(placement_element(action.placement))
        return Declaration(
            frozenset(exclusive),
            frozenset(operator.group),
            frozenset(operator.requires_produced),
            frozenset(operator.requires_held),
            frozenset(operator.produces),
            frozenset(operator.holds),
        )
    if action.verb != MOVE_VERB:
        verbs = {op.verb for op in scenario.operators if arm in op.arms}
        raise UnknownName(f"action of {arm}", str(action), {"stay", MOVE_VERB, *verbs})
    scenario.entity(action.entity)
    placements = {where[action.entity], action.placement}
    return Declaration(
        exclusive=frozenset(
            [entity_element(action.entity)]
            + [placement_element(name) for name in placements]
            + [zone_element(name) for name in swept_zones(scenario, arm, placements)]
        ),
        requires_held=frozenset(name for place in placements for name in scenario.placement(place).requires_held),
    )


def complete(declared: Declaration, least: Declaration) -> tuple[Declaration, int]:
    """Add to a declaration what it must at least say.

    Returns:
        the completed declaration and the number of entries that were missing.
    """
    missing = sum(len(getattr(least, f.name) - getattr(declared, f.name)) for f in fields(Declaration))
    return declared.union(least), missing
