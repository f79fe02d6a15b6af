"""Whole episodes under the three ways of control: success, calls, determinism, what arms do while a model thinks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from polyarm_core.agents import DecidedBy
from polyarm_core.chains import terms
from polyarm_core.chains.terms import Plan, Wait, WaitEntity
from polyarm_core.constraints import STAY, Action
from polyarm_core.control.chain_agent import ChainAgent
from polyarm_core.control.episode import ControlledSummary, run_controlled_episode
from polyarm_core.control.follower import TRIES, PlanFollower
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.control.modes import UNPLANNED, Control, Head, Standing
from polyarm_core.control.team import Audit
from polyarm_core.coordinator.interface import PlanAnswer, PlanRequest
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.errors import UnknownName
from polyarm_core.orchestrator import Decision
from polyarm_core.scenario import load_scenario
from polyarm_core.slots import ArmSnapshot, ArmStatus, ArmVerdict
from polyarm_core.world import WorldView

TASKS = ("sort", "cabinet", "rope", "grocery")


@cache
def domain(task: str) -> ArmsDomain:
    return ArmsDomain(load_scenario(task))


def episode(task: str, seed: int, control: str, disturb: str = "none", **options: object) -> ControlledSummary:
    scenario = domain(task).scenario
    return run_controlled_episode(scenario, seed, control, disturb, domain=domain(task), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("control", Control)
@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_done_by_every_control_whatever_happens(task: str, control: Control) -> None:
    for level in ("none", "severe"):
        found = episode(task, 1, control, level)
        assert found.summary.success, found
        assert (found.calls == 0) is (control is Control.REACTIVE)
        assert (found.decisions == 0) is (control is Control.PLANNED)
        assert not found.summary.failed_actions or any(h.kind in ("dropped", "slipped") for h in found.happened)


def test_the_same_seed_gives_the_same_episode_and_every_method_meets_the_same_schedule() -> None:
    first, again = (episode("sort", 3, "hybrid", "severe") for _ in range(2))
    assert (first.summary, first.happened, first.detections) == (again.summary, again.happened, again.detections)
    assert [(p.frame, p.plan) for p in first.plans] == [(p.frame, p.plan) for p in again.plans]
    early = [[h for h in episode("grocery", 4, c, "severe").happened if h.slot == 2] for c in Control]
    kinds = [{h.kind for h in some if h.kind != "dropped"} for some in early]  # a drop waits for somebody who carries
    assert kinds[0] and kinds.count(kinds[0]) == 3


class Silent:
    """A coordinator that never has a plan."""

    name = "silent"

    def plan(self, request: PlanRequest[ArmsState]) -> PlanAnswer:
        return PlanAnswer(None, "", 0.0, error="no model")


def test_without_an_answer_planned_arms_hold_and_hybrid_arms_go_on() -> None:
    held = episode("sort", 0, "planned", coordinator=Silent())
    assert not held.summary.success and held.summary.admitted == 0
    assert set(held.summary.decided_by) == {"fallback"} and 1 < held.calls <= 40
    assert all(record.error == "no model" for record in held.plans)
    assert episode("sort", 0, "hybrid", coordinator=Silent()).summary.success


def test_a_slow_model_costs_planned_slots_and_hybrid_none() -> None:
    undisturbed = episode("grocery", 0, "reactive").summary.slots
    slow = episode("grocery", 0, "planned", latency=5.0)
    assert slow.summary.success and slow.summary.slots >= undisturbed + 4
    assert episode("grocery", 0, "hybrid", latency=5.0).summary.slots <= undisturbed + 2


def test_a_plan_that_can_be_followed_costs_one_call() -> None:
    found = episode("grocery", 2, "planned")
    assert found.calls == 1 and found.replans == {} and found.audit.alarms == 0
    assert found.model_calls * 5 <= episode("grocery", 2, "reactive").model_calls


def test_the_oracle_is_never_late_and_the_executor_alone_finds_less() -> None:
    for seed in range(4):
        watched, alone = (episode("sort", seed, "planned", "severe", detector=d) for d in ("oracle", "never"))
        assert watched.audit.missed == 0 and sum(watched.audit.delays) <= sum(alone.audit.delays) + alone.audit.missed
        assert "stale" not in alone.replans


def test_wrong_names() -> None:
    with pytest.raises(UnknownName, match="unknown control 'mixed'; valid: hybrid, planned, reactive"):
        episode("sort", 0, "mixed")
    with pytest.raises(UnknownName, match="unknown disturb 'mild'"):
        episode("sort", 0, "planned", "mild")
    with pytest.raises(UnknownName, match="unknown detector 'psychic'"):
        episode("sort", 0, "planned", detector="psychic")


# -- one arm ----------------------------------------------------------------------------------------------------------

SORT = domain("sort").scenario
# seed 0 of sort: blue on panel5, pink on pad2, yellow on panel7
VIEW = domain("sort").world.view(domain("sort").start(0))
BLUE = Action("move", "blue_square", "panel3")


@pytest.mark.parametrize(
    ("control", "standing", "expected"),
    [
        ("planned", Standing.ACT, DecidedBy.CHAIN),
        ("planned", Standing.WAIT, DecidedBy.CHAIN),
        ("planned", Standing.ENDED, DecidedBy.CHAIN),
        ("planned", Standing.UNPLANNED, DecidedBy.FALLBACK),
        ("hybrid", Standing.ACT, DecidedBy.CHAIN),
        ("hybrid", Standing.WAIT, DecidedBy.CHAIN),
        ("hybrid", Standing.ENDED, None),
        ("hybrid", Standing.UNPLANNED, None),
        ("reactive", Standing.ACT, None),
    ],
)
def test_who_decides(control: str, standing: Standing, expected: DecidedBy | None) -> None:
    agent = ChainAgent(SORT, "bob", Control(control))
    decision = agent.decide(VIEW, Head(standing, BLUE if standing is Standing.ACT else None))
    assert getattr(decision, "decided_by", None) is expected
    if expected is not None:
        action = decision.action  # type: ignore[union-attr]
        assert action == (BLUE if standing is Standing.ACT else STAY)


def test_an_arm_beside_the_plan_leaves_alone_what_the_plan_uses() -> None:
    agent = ChainAgent(SORT, "bob", Control.HYBRID)
    free = agent.decide(VIEW, Head(Standing.ENDED))
    assert BLUE in free.candidates  # type: ignore[union-attr]
    for reserved in ({"blue_square"}, {"panel3"}):
        bound = agent.decide(VIEW, Head(Standing.ENDED), reserved)
        assert BLUE not in bound.candidates  # type: ignore[union-attr]
    assert BLUE in agent.decide(VIEW, UNPLANNED, {"blue_square"}).candidates  # type: ignore[union-attr]


def test_a_vetoed_head_is_tried_again_and_an_own_choice_is_not() -> None:
    agent = ChainAgent(SORT, "bob", Control.HYBRID)
    agent.decide(VIEW, Head(Standing.ACT, BLUE))
    agent.on_verdict(BLUE, "yield")
    assert agent.decide(VIEW, Head(Standing.ACT, BLUE)).action == BLUE  # type: ignore[union-attr]
    assert "refused" not in agent.decide(VIEW, UNPLANNED).prompt.dynamic  # type: ignore[union-attr]
    agent.on_verdict(BLUE, "yield")
    assert "refused" in agent.decide(VIEW, UNPLANNED).prompt.dynamic  # type: ignore[union-attr]


# -- the follower -----------------------------------------------------------------------------------------------------


def follower() -> tuple[PlanFollower, MirroredArms, ArmsState]:
    mirrored = MirroredArms(domain("sort"))
    found = PlanFollower(mirrored)
    state = mirrored.mirrored(VIEW, 1, {arm: ArmSnapshot(ArmStatus.IDLE) for arm in SORT.arms})
    assert found.heads() == dict.fromkeys(SORT.arms, UNPLANNED)
    wait = Wait((WaitEntity("blue_square", "place", "==", "panel3"),))
    plan = Plan.of(
        {
            "alice": (wait, terms.Action("move", ("blue_square", "pad2"))),
            "bob": (terms.Action("move", ("blue_square", "panel3")),),
            "chad": (),
        }
    )
    assert found.open(state) == ()
    assert found.adopt(plan, 1) and not found.adopt(plan, 1)
    return found, mirrored, state


def test_a_chain_advances_with_what_the_plant_says_and_not_with_what_was_to_be_expected() -> None:
    found, mirrored, state = follower()
    heads = found.heads()
    assert heads["bob"] == Head(Standing.ACT, BLUE)
    assert (heads["alice"].standing, heads["chad"].standing) == (Standing.WAIT, Standing.ENDED)
    found.on_verdicts([ArmVerdict("bob", BLUE, Decision.ADMIT)])
    found.on_result("bob", BLUE, "stopped", "vetoed")
    found.open(state._replace(slot=1))
    assert found.heads()["bob"].action == BLUE  # nothing has come of it
    found.on_verdicts([ArmVerdict("bob", BLUE, Decision.ADMIT)])
    found.on_result("bob", BLUE, "succeeded", "")
    after = mirrored.world.apply(state, {"bob": BLUE})._replace(slot=2)
    found.open(after)
    assert found.heads()["bob"].standing is Standing.ENDED
    assert found.heads()["alice"].action == Action("move", "blue_square", "pad2")


def test_an_action_that_fails_again_and_again_is_a_stall_with_the_plant_s_reason() -> None:
    found, _, state = follower()
    for slot in range(1, TRIES + 1):
        assert found.heads()["bob"].action == BLUE
        found.on_verdicts([ArmVerdict("bob", BLUE, Decision.ADMIT)])
        found.on_result("bob", BLUE, "failed", "slip")
        detections = found.open(state._replace(slot=slot))
        assert bool(detections) is (slot == TRIES)
    assert detections[0].kind == "stall" and detections[0].agents == ("bob",) and "slip" in detections[0].reason


def test_vetoes_are_counted_as_the_twin_counts_them() -> None:
    found, _, state = follower()
    for slot in range(1, 4):
        found.on_verdicts([ArmVerdict("bob", BLUE, Decision.WAIT)])
        found.open(state._replace(slot=slot))
        assert found.waited["bob"] == slot and found.heads()["bob"].action == BLUE
    found.on_verdicts([ArmVerdict("bob", BLUE, Decision.ADMIT)])
    assert found.waited["bob"] == 0


def test_a_grasp_that_no_sensor_confirms_is_read_as_an_empty_gripper() -> None:
    """One end of the rope is held but does not hang high: both may lift, so the plan must not ask to set it down."""
    rope = domain("rope")
    mirrored = MirroredArms(rope)
    held = rope.start(0)._replace(holders=("alice", ""))
    hanging = rope.world.view(held)
    low = WorldView(rope.scenario, replace(hanging.world, conditions=hanging.world.conditions - {"rope_hangs"}))
    idle = {arm: ArmSnapshot(ArmStatus.IDLE) for arm in rope.agents}
    assert mirrored.mirrored(hanging, 1, idle).holders == ("alice", "")
    assert mirrored.mirrored(low, 1, idle).holders == ("", "")


# -- the audit --------------------------------------------------------------------------------------------------------


def test_alarms_are_held_against_the_oracle() -> None:
    audit = Audit()
    for slot, (stale, alarm) in enumerate([(0, 0), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1), (1, 0), (0, 0), (1, 0)]):
        audit.look(slot, bool(stale), bool(alarm))
    audit.end()
    assert (audit.looks, audit.stale_slots, audit.alarms, audit.false_alarms) == (9, 6, 3, 1)
    assert audit.delays == [2, 0] and audit.missed == 1
