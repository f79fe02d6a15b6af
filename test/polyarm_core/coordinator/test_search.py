from __future__ import annotations

import pytest

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.parser import parse_plan
from polyarm_core.coordinator.interface import Coordinator, PlanRequest
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.domains.overcooked.kitchen import KitchenState
from polyarm_core.errors import InvalidValue

# Physical minimum of each layout, and 10 % more (forced_coordination, cramped_room: the minimum of the exact search).
TARGETS = {
    "coordination_ring": 44,
    "counter_circuit": 45,
    "asymmetric_advantages": 34,
    "cramped_room": 37,
    "forced_coordination": 44,
}


@pytest.mark.parametrize(("layout", "frames"), TARGETS.items())
def test_the_standard_start_is_near_the_physical_minimum(layout: str, frames: int) -> None:
    domain = OvercookedDomain(layout)
    coordinator: Coordinator[KitchenState] = SearchCoordinator(domain)
    state = domain.start(0)
    answer = coordinator.plan(PlanRequest(state))
    assert answer.plan is not None and not answer.error
    assert parse_plan(answer.text) == answer.plan
    result = roll_out(ChainExecutor(domain, answer.plan), state, domain.horizon)
    assert result.success and result.frames <= frames
    again = SearchCoordinator(OvercookedDomain(layout)).plan(PlanRequest(state))
    assert again.plan == answer.plan, "deterministic"


def test_more_budget_is_never_worse_and_known_states_cost_nothing() -> None:
    domain = OvercookedDomain("coordination_ring")
    state = domain.start(0)._replace(held=(2, 1), facings=(2, 3))
    times = []
    for budget in (1, 8, 40):
        coordinator = SearchCoordinator(domain, budget, patience=budget)
        plan = coordinator.best(state)
        assert plan is not None
        times.append(roll_out(ChainExecutor(domain, plan), state, domain.horizon).frames)
    assert times == sorted(times, reverse=True)
    coordinator.plan(PlanRequest(state))
    before = coordinator.roll_outs
    assert coordinator.plan(PlanRequest(state._replace(frame=7))).plan is not None, "the clock does not matter"
    assert coordinator.roll_outs == before


def test_no_plan_has_a_reason() -> None:
    domain = OvercookedDomain("cramped_room")
    state = domain.start(0)._replace(blocked=domain.layout.dish_dispensers)
    answer = SearchCoordinator(domain).plan(PlanRequest(state))
    assert answer.plan is None and answer.error


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"patience": 0}])
def test_limits(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidValue):
        SearchCoordinator(OvercookedDomain("cramped_room"), **wrong)
