from __future__ import annotations

import pytest

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.terms import Plan
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.domains.overcooked.kitchen import KitchenState


def under_way(domain: OvercookedDomain, frames: int) -> tuple[KitchenState, Plan]:
    """State and remaining plan after some frames of the best plan."""
    state = domain.start(0)
    plan = SearchCoordinator(domain).best(state)
    assert plan is not None
    executor: ChainExecutor[KitchenState] = ChainExecutor(domain, plan)
    for _ in range(frames):
        controls = domain.control(state, executor.intents(state))
        after = domain.step(state, controls)
        executor.advance(state, controls, after)
        state = after
    return state, executor.remaining()


@pytest.mark.parametrize("layout", ["coordination_ring", "counter_circuit", "asymmetric_advantages"])
@pytest.mark.parametrize("frame", [6, 12, 30])
def test_a_repaired_plan_keeps_all_chains_but_one_and_succeeds(layout: str, frame: int) -> None:
    domain = OvercookedDomain(layout)
    state, left = under_way(domain, frame)
    repair = Repair(domain)
    for event in ("O1", "O2"):
        disturbed = domain.disturb(state, event, 0.3)
        if disturbed is None or roll_out(ChainExecutor(domain, left), disturbed, domain.horizon).success:
            continue
        patched = repair.patch(left, disturbed)
        if patched is not None:
            assert sum(patched[agent] != left[agent] for agent in domain.agents) == 1
            assert roll_out(ChainExecutor(domain, patched), disturbed, domain.horizon).success
    assert repair.attempts >= repair.repaired


def test_a_dropped_item_is_picked_up_again_by_its_agent() -> None:
    domain = OvercookedDomain("asymmetric_advantages")
    state, left = under_way(domain, 4)
    dropped = domain.disturb(state, "O1", 0.0)
    assert dropped is not None
    victim = next(
        a for a, before, after in zip(domain.agents, state.held, dropped.held, strict=True) if before != after
    )
    patched = Repair(domain).patch(left, dropped, (victim,))
    assert patched is not None
    other = next(agent for agent in domain.agents if agent != victim)
    assert patched[other] == left[other] and patched[victim] != left[victim]


def test_what_cannot_be_mended_is_left_to_the_coordinator() -> None:
    domain = OvercookedDomain("forced_coordination")
    state = domain.start(0)
    nothing = Plan.of({"agent_1": (), "agent_2": ()})
    repair = Repair(domain)
    assert repair.patch(nothing, state) is None, "each cook needs the other"
    assert (repair.attempts, repair.repaired) == (1, 0)
