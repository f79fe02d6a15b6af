"""What the plant refuses is planned around while everything lies as it did, and no longer."""

from __future__ import annotations

from polyarm_core.constraints import Action
from polyarm_core.control.follower import REFUSED_FOR, TRIES, PlanFollower
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.domains.arms.search import chain_action
from polyarm_core.scenario import load_scenario

GROCERY = ArmsDomain(load_scenario("grocery"))


def first_move(state: ArmsState) -> tuple[str, Action]:
    """An arm and a move that is legal for it, with which a plan begins."""
    plan = SearchCoordinator(GROCERY).plan(PlanRequest(state, "start", None, (), 0)).plan
    assert plan is not None
    arm, chain = next((arm, chain) for arm, chain in plan.chains if chain)
    return arm, next(a for a in GROCERY.world.legal(state, arm) if not a.is_stay and chain_action(a) == chain[0])


def failing(arm: str, action: Action, times: int) -> tuple[PlanFollower, ArmsState]:
    follower, state = PlanFollower(MirroredArms(GROCERY)), GROCERY.start(0)
    follower.open(state)
    for _ in range(times):
        follower.on_result(arm, action, "failed", "no_plan")
    return follower, state


def test_an_action_is_refused_once_it_has_failed_too_often_in_the_same_arrangement() -> None:
    arm, action = first_move(GROCERY.start(0))
    follower, state = failing(arm, action, TRIES - 1)
    assert follower.refused(state) == ()
    follower, state = failing(arm, action, TRIES)
    assert follower.refused(state) == ((arm, action.verb, action.entity, action.placement),)


def test_what_is_refused_is_not_planned_first_and_may_come_later() -> None:
    arm, action = first_move(GROCERY.start(0))
    follower, state = failing(arm, action, TRIES)
    told = state._replace(refused=follower.refused(state))
    assert action in GROCERY.world.legal(state, arm) and action not in GROCERY.world.legal(told, arm)
    assert f"{arm} {chain_action(action)}" in GROCERY.describe(told)
    plan = SearchCoordinator(GROCERY).plan(PlanRequest(told, "stall", None, (), 0)).plan
    assert plan is not None
    assert not plan[arm] or plan[arm][0] != chain_action(action)
    # Once anything has moved it is open again, for this arm as well.
    other = next((a, b) for a in GROCERY.agents for b in GROCERY.world.legal(told, a) if not b.is_stay)
    moved = GROCERY.world.apply(told, dict([other]))
    assert moved.places != told.places and moved.refused == ()


def test_a_refusal_ends_with_a_move_and_with_time() -> None:
    arm, action = first_move(GROCERY.start(0))
    follower, state = failing(arm, action, TRIES)
    assert follower.refused(state._replace(slot=REFUSED_FOR)) != ()
    assert follower.refused(state._replace(slot=REFUSED_FOR + 1)) == ()
    follower, state = failing(arm, action, TRIES)
    assert follower.refused(GROCERY.world.apply(state, {arm: action})) == ()
    assert follower.refused(state) == ()  # it is forgotten, not put aside
