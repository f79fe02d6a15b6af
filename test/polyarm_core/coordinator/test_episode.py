from __future__ import annotations

import pytest

from polyarm_core.chains.terms import Action, Plan
from polyarm_core.coordinator.episode import POLICIES, Policy, run_episode
from polyarm_core.coordinator.interface import PlanAnswer, PlanRequest
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.overcooked.disturbances import EventSchedule
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.domains.overcooked.kitchen import KitchenState
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.detector import OracleDetector

LAYOUTS = ("coordination_ring", "counter_circuit", "asymmetric_advantages")


class Fixed:
    """Always the same answer."""

    name = "fixed"

    def __init__(self, plan: Plan | None) -> None:
        self.answer = plan
        self.requests: list[PlanRequest[KitchenState]] = []

    def plan(self, request: PlanRequest[KitchenState]) -> PlanAnswer:
        self.requests.append(request)
        return PlanAnswer(self.answer, "", 0.0, error="" if self.answer else "no idea")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("repaired", [False, True])
def test_with_a_perfect_detector_every_disturbed_episode_succeeds(layout: str, repaired: bool) -> None:
    domain = OvercookedDomain(layout)
    coordinator = SearchCoordinator(domain)
    for seed in range(6):
        events = EventSchedule.once_each(seed).events
        episode = run_episode(
            domain, coordinator, OracleDetector(domain), events, repair=Repair(domain) if repaired else None, trace=True
        )
        assert episode.success and episode.frames < domain.horizon
        assert len(episode.states) == episode.frames + 1
        assert len(episode.remaining) == episode.frames
        assert len({record.frame for record in episode.plans if record.source == "coordinator"}) == episode.calls
        assert episode.plans[0].reason == "start"
        assert episode.repairs == 0 or repaired
        assert min(episode.actions) >= 0 and sum(episode.actions) >= 8 and sum(episode.moves) > 0
        applied = [frame for frame, _ in episode.events]
        assert applied == sorted(applied) and len(applied) <= len(events)


def test_policies_differ_as_they_should() -> None:
    domain = OvercookedDomain("coordination_ring")
    coordinator = SearchCoordinator(domain)
    events = EventSchedule.once_each(0).events

    def run(policy: Policy) -> tuple[int, bool]:
        episode = run_episode(domain, coordinator, OracleDetector(domain), events, policy=policy, interval=4)
        return episode.calls, episode.success

    calls = {policy: run(policy)[0] for policy in POLICIES}
    assert calls["never"] == 1
    assert calls["interval"] > calls["stall"] >= 1
    assert not run("never")[1] and run("detector")[1]


def test_an_episode_is_the_same_every_time() -> None:
    domain = OvercookedDomain("counter_circuit")
    events = EventSchedule.once_each(5).events
    runs = [
        run_episode(
            domain, SearchCoordinator(domain), OracleDetector(domain), events, repair=Repair(domain), trace=True
        )
        for _ in range(2)
    ]
    assert runs[0].states == runs[1].states
    assert [record.plan for record in runs[0].plans] == [record.plan for record in runs[1].plans]


def test_a_plan_that_failed_is_not_tried_again_from_the_same_state() -> None:
    domain = OvercookedDomain("forced_coordination")
    out_of_reach = Plan.of({"agent_1": (Action("Interact", ("onion_dispenser_1",)),), "agent_2": ()})
    coordinator = Fixed(out_of_reach)
    episode = run_episode(domain, coordinator, policy="stall", horizon=30)
    assert not episode.success and episode.frames == 30
    assert [record.plan for record in episode.plans[:2]] == [out_of_reach, None]
    assert all(record.plan is None and record.error for record in episode.plans[1:])
    assert episode.calls < 12, "it is not asked in every frame"
    assert any("out of reach" in line for line in coordinator.requests[-1].history)


def test_without_a_plan_the_agents_hold_and_ask_again() -> None:
    domain = OvercookedDomain("cramped_room")
    coordinator = Fixed(None)
    episode = run_episode(domain, coordinator, policy="stall", horizon=20, trace=True)
    assert not episode.success
    assert {state.positions for state in episode.states} == {domain.start(0).positions}
    assert 2 <= episode.calls <= 6


@pytest.mark.parametrize("most", [1, 3])
def test_after_the_last_call_the_episode_goes_on_without_the_coordinator(most: int) -> None:
    domain = OvercookedDomain("cramped_room")
    unbounded = run_episode(domain, Fixed(None), policy="stall", horizon=20)
    episode = run_episode(domain, Fixed(None), policy="stall", horizon=20, max_calls=most)
    assert unbounded.calls > most == episode.calls
    assert episode.frames == 20 and not episode.success
    assert [record.frame for record in episode.plans] == [record.frame for record in unbounded.plans][:most]


def test_a_plan_is_still_repaired_after_the_last_call() -> None:
    domain = OvercookedDomain("coordination_ring")
    events = EventSchedule.once_each(0).events
    episode = run_episode(
        domain, SearchCoordinator(domain), OracleDetector(domain), events, repair=Repair(domain), max_calls=1
    )
    assert episode.calls == 1 and episode.repairs > 0 and episode.success


def test_limits() -> None:
    domain = OvercookedDomain("cramped_room")
    with pytest.raises(UnknownName):
        run_episode(domain, Fixed(None), policy="often")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        run_episode(domain, Fixed(None), interval=0)
    with pytest.raises(InvalidValue):
        run_episode(domain, Fixed(None), max_calls=0)
