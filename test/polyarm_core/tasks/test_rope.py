"""The rope task: a deformable body between two arms, and the synchronisation rule in the plant and at the twin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from polyarm_core.bench.in_process import InProcessEpisode
from polyarm_core.conditions import ConditionTracker
from polyarm_core.constraints import STAY, Action, Declaration, Intent
from polyarm_core.declaration import declare
from polyarm_core.orchestrator import Decision, Rule, arbitrate
from polyarm_core.plant.lockstep import timed_path
from polyarm_core.plant.simulation import Simulation
from polyarm_core.plant.skills import ActionResult
from polyarm_core.scenario import Scenario, ScenarioError, load_scenario
from polyarm_core.world import legal_actions, observe

ENDS = {"alice": "end_a", "bob": "end_b"}


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("rope")


@pytest.fixture(scope="module")
def shared(scenario: Scenario) -> Simulation:
    return Simulation(scenario)


@pytest.fixture
def sim(shared: Simulation) -> Iterator[Simulation]:
    shared.reset(3)
    shared.results()
    yield shared
    shared.reset(3)


def act(sim: Simulation, verb: str, arms: tuple[str, ...] = ("alice", "bob"), groove: bool = False) -> None:
    for arm in arms:
        end = ENDS[arm]
        sim.start_action(arm, Action(verb, end, f"groove_{end[-1]}" if groove else ""))


def finish(sim: Simulation, limit: float = 60.0) -> dict[str, ActionResult]:
    assert sim.run_until_idle(limit)
    return {result.arm: result for result in sim.results()}


def until_phase(sim: Simulation, arm: str, phase: str) -> None:
    for _ in range(3000):
        if sim.phase(arm) == phase:
            return
        sim.step()
    raise AssertionError(f"{arm} did not get to {phase}, but to {sim.phase(arm)}")


def edges(sim: Simulation) -> np.ndarray:
    return np.linalg.norm(np.diff(sim.data.flexvert_xpos, axis=0), axis=1)


def test_the_rope_lies_still_and_keeps_its_length(sim: Simulation, scenario: Scenario) -> None:
    rope = scenario.fixtures["rope"]
    before = sim.data.flexvert_xpos.copy()
    sim.run(3.0)
    assert np.abs(sim.data.flexvert_xpos - before).max() < 0.002
    assert edges(sim).sum() == pytest.approx(rope.length, abs=0.01)  # type: ignore[union-attr]
    table = min(placement.xyz[2] for placement in scenario.placements.values()) - 0.01
    assert sim.data.flexvert_xpos[:, 2].min() > table
    assert sim.held_by() == {} and sim.arm_contacts == 0


def test_lift_carry_lower(sim: Simulation, scenario: Scenario) -> None:
    act(sim, "lift")
    assert all(result.outcome == "succeeded" for result in finish(sim).values())
    assert sim.held_by() == {"end_a": "alice", "end_b": "bob"}
    assert sim.readings()["rope.lowest_end"] > 0.3
    sim.go_home("alice")  # would tear the rope out of bob's gripper
    assert finish(sim)["alice"].reason == "partner"
    hanging = sim.data.flexvert_xpos[:, 2]
    assert hanging[12] < hanging[0] - 0.03 and hanging[12] < hanging[-1] - 0.03  # a rope, not a stick
    act(sim, "carry", groove=True)
    lowest, stretch = np.inf, 0.0
    while not sim.idle:
        sim.step(5)
        over = np.abs(sim.data.flexvert_xpos[:, 0]) < 0.03
        if over.any():
            lowest = min(lowest, float(sim.data.flexvert_xpos[over, 2].min()))
        stretch = max(stretch, float(edges(sim).max()))
    wall = scenario.fixtures["wall"]
    assert lowest > wall.xyz[2] + wall.size[2] / 2  # type: ignore[union-attr]
    assert stretch < 1.1 * 0.64 / 24
    act(sim, "lower", groove=True)
    results = finish(sim)
    assert {result.outcome for result in results.values()} == {"succeeded"}, results
    readings = sim.readings()
    assert readings["rope.end_offset"] < 0.05 and readings["rope.in_bed"] > 15
    assert sim.held_by() == {} and sim.arm_contacts == 0


def test_without_the_partner_nobody_lifts(sim: Simulation) -> None:
    before = sim.poses()
    act(sim, "lift", ("alice",))
    result = finish(sim)["alice"]
    assert (result.outcome, result.reason) == ("failed", "partner")
    assert np.abs(sim.poses()["end_a"][0] - before["end_a"][0]).max() < 0.002


def test_a_late_partner_is_waited_for(sim: Simulation) -> None:
    act(sim, "lift", ("alice",))
    sim.run(5.0)
    assert sim.readings()["rope.highest_end"] < 0.05
    act(sim, "lift", ("bob",))
    assert {result.outcome for result in finish(sim).values()} == {"succeeded"}


def test_a_partner_whose_grip_fails_stops_the_lift(sim: Simulation) -> None:
    act(sim, "lift")
    until_phase(sim, "bob", "close")
    sim.command_gripper("bob", 0.08)  # the fingers do not close
    results = finish(sim)
    assert (results["bob"].outcome, results["bob"].reason) == ("failed", "slip")
    assert (results["alice"].outcome, results["alice"].reason) == ("stopped", "partner")
    assert sim.readings()["rope.highest_end"] < 0.06  # nobody lifted
    act(sim, "lift")  # alice still has her end, and sets it down before both lift
    assert {result.outcome for result in finish(sim).values()} == {"succeeded"}


@pytest.mark.parametrize(("verb", "after"), [("lift", 0.9), ("carry", 1.5)])
def test_a_partner_stopped_on_the_way_both_hold_and_go_on(sim: Simulation, verb: str, after: float) -> None:
    if verb == "carry":
        act(sim, "lift")
        finish(sim)
    act(sim, verb, groove=verb == "carry")
    until_phase(sim, "bob", verb)
    sim.run(after)
    sim.stop("bob", "lease_expired")
    results = finish(sim)
    assert (results["bob"].outcome, results["bob"].reason) == ("stopped", "lease_expired")
    assert (results["alice"].outcome, results["alice"].reason) == ("stopped", "partner")
    where = sim.poses()
    sim.run(3.0)
    assert sim.held_by() == {"end_a": "alice", "end_b": "bob"}
    for end, (position, _) in sim.poses().items():
        assert np.abs(position - where[end][0]).max() < 0.01
    act(sim, verb, groove=verb == "carry")
    assert {result.outcome for result in finish(sim).values()} == {"succeeded"}
    readings = sim.readings()
    assert readings["rope.lowest_end"] > 0.3 and (verb == "lift" or readings["rope.end_offset"] < 0.05)
    assert sim.arm_contacts == 0


def test_an_end_is_lost_the_other_is_set_down_and_both_begin_again(sim: Simulation, scenario: Scenario) -> None:
    def legal(arm: str) -> set[str]:
        world = sim.world(ConditionTracker(scenario).true_now(sim.world(), sim.readings()))
        return {action.verb for action in legal_actions(scenario, observe(scenario, world, arm)) if not action.is_stay}

    assert legal("alice") == legal("bob") == {"lift"}
    act(sim, "lift")
    until_phase(sim, "bob", "lift")
    sim.run(0.9)
    sim.command_gripper("bob", 0.08)
    results = finish(sim)
    assert (results["bob"].outcome, results["bob"].reason) == ("failed", "slip")
    assert (results["alice"].outcome, results["alice"].reason) == ("stopped", "partner")
    sim.run(1.0)
    assert sim.held_by() == {"end_a": "alice"}
    assert legal("alice") == {"set_down"} and legal("bob") == set()
    act(sim, "set_down", ("alice",))
    assert finish(sim)["alice"].outcome == "succeeded"
    assert sim.held_by() == {} and sim.readings()["rope.highest_end"] < 0.06
    assert legal("alice") == legal("bob") == {"lift"}
    act(sim, "lift")
    assert {result.outcome for result in finish(sim).values()} == {"succeeded"}
    assert sim.arm_contacts == 0


@pytest.mark.parametrize(("arm", "tilt_deg", "rests"), [("bob", 90.0, 0.0), ("bob", 45.0, 0.84), ("alice", -90.0, 0.0)])
def test_an_end_that_lies_on_its_side_or_leans_is_lifted_carried_and_laid(
    sim: Simulation, arm: str, tilt_deg: float, rests: float
) -> None:
    """As it may come to rest when a gripper has let it fall."""
    sim.reset(1)
    position, _ = sim.poses()[ENDS[arm]]
    half = np.radians(tilt_deg) / 2
    sim.place_entity(ENDS[arm], (position[0], position[1], position[2] + 0.03), (np.cos(half), 0.0, np.sin(half), 0.0))
    sim.run(1.5)
    _, (_, x, y, _) = sim.poses()[ENDS[arm]]
    assert 1 - 2 * (x * x + y * y) == pytest.approx(rests, abs=0.03)  # cosine of its lean
    for verb in ("lift", "carry", "lower"):
        act(sim, verb, groove=verb != "lift")
        results = finish(sim)
        assert {result.outcome for result in results.values()} == {"succeeded"}, results
    readings = sim.readings()
    assert readings["rope.end_offset"] < 0.05 and readings["rope.highest_end"] < 0.06 and readings["rope.in_bed"] > 15
    assert sim.held_by() == {} and sim.arm_contacts == 0


def test_the_twin_vetoes_a_lift_alone(scenario: Scenario) -> None:
    where = {"end_a": "start_a1", "end_b": "start_b1"}
    lifts = {arm: Action("lift", end) for arm, end in ENDS.items()}

    def intent(arm: str, action: Action) -> Intent:
        declared = declare(scenario, arm, action, where) if action != STAY else Declaration()
        return Intent(arm, scenario.arm_index[arm], action, declared)

    both = arbitrate([intent(arm, action) for arm, action in lifts.items()])
    assert [verdict.decision for verdict in both.verdicts] == [Decision.ADMIT] * 2
    for rest in ([], [intent("bob", STAY)]):
        alone = arbitrate([intent("alice", lifts["alice"]), *rest]).verdicts[0]
        assert (alone.decision, alone.rule) == (Decision.WAIT, Rule.SYNCHRONISATION)
    torn = intent("bob", lifts["bob"])
    other = replace(torn, declaration=replace(torn.declaration, group=frozenset({"bob"})))
    assert arbitrate([intent("alice", lifts["alice"]), other]).verdicts[0].decision is Decision.WAIT


def test_an_episode_succeeds(shared: Simulation) -> None:
    summary = InProcessEpisode(shared).run(7)
    assert summary.success and summary.slots == 3 and shared.arm_contacts == 0


def test_members_of_a_group_are_at_the_same_share_of_their_ways() -> None:
    ways = [
        timed_path(list(np.linspace([0.0] * 2, [scale, -scale], 9)), np.full(2, 2.0), np.full(2, 4.0))
        for scale in (0.5, 1.0)
    ]
    duration = max(way.shortest for way in ways)
    one, two = (way.trajectory(duration) for way in ways)
    assert np.allclose(2 * one.positions, two.positions) and np.allclose(2 * one.velocities, two.velocities)
    assert np.abs(two.velocities).max() <= 2.0 + 1e-6
    assert np.abs(np.diff(two.velocities, axis=0) / np.diff(two.times)[:, None]).max() <= 4.0 * 1.01
    assert np.allclose(two.positions[-1], [1.0, -1.0]) and np.allclose(two.velocities[[0, -1]], 0.0)


def test_rope_fixture_is_checked(scenario: Scenario) -> None:
    fixtures = {name: fixture.model_dump() for name, fixture in scenario.fixtures.items()}
    for key, value, text in (
        ("ends", ("end_a", "end_c"), "end_c"),
        ("goals", ("a", "b"), "'a'"),
        ("bed", "wall", "wall"),
    ):
        broken = {**fixtures, "rope": {**fixtures["rope"], key: value}}
        with pytest.raises((ScenarioError, ValueError), match=text):
            Scenario.model_validate({**scenario.model_dump(), "fixtures": broken})
