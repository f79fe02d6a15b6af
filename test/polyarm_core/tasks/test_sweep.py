"""The sweep task: dustpan and broom on two grippers, cubes pushed in together, the full pan emptied by one arm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from polyarm_core.bench.in_process import InProcessEpisode
from polyarm_core.conditions import ConditionTracker
from polyarm_core.constraints import Action
from polyarm_core.plant.simulation import Simulation
from polyarm_core.plant.skills import ActionResult
from polyarm_core.scenario import Scenario, load_scenario
from polyarm_core.world import legal_actions, observe

BOTH = ("alice", "bob")


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("sweep")


@pytest.fixture(scope="module")
def shared(scenario: Scenario) -> Simulation:
    return Simulation(scenario)


@pytest.fixture
def sim(shared: Simulation) -> Iterator[Simulation]:
    shared.reset(0, {"red_cube": "zone1", "green_cube": "zone2", "blue_cube": "zone4"})
    shared.results()
    yield shared
    shared.reset(0)


def sweep(sim: Simulation, area: str, arms: tuple[str, ...] = BOTH) -> None:
    for arm in arms:
        sim.start_action(arm, Action("sweep", area))


def finish(sim: Simulation) -> dict[str, ActionResult]:
    assert sim.run_until_idle(60.0)
    return {result.arm: result for result in sim.results()}


def until_phase(sim: Simulation, arm: str, phase: str) -> None:
    for _ in range(3000):
        if sim.phase(arm) == phase:
            return
        sim.step()
    raise AssertionError(f"{arm} did not get to {phase}, but to {sim.phase(arm)}")


def test_tools_move_with_the_arm_and_touch_nothing_at_rest(sim: Simulation) -> None:
    model, data = sim.scene.model, sim.data
    sim.run(1.0)
    for arm in BOTH:
        tool = model.body(f"{arm}/tool").id
        assert np.linalg.norm(data.xpos[tool] - data.site_xpos[sim.scene.arms[arm].tool]) < 1e-6
        touched = [pair for pair in data.contact.geom if tool in model.geom_bodyid[pair]]
        assert touched == []
    assert sim.arm_contacts == 0 and sim.held_by() == {}


def test_the_broom_pushes_a_cube_into_the_pan(sim: Simulation) -> None:
    before = sim.poses()
    assert sim.readings()["zone1.count"] == 1.0
    sweep(sim, "zone1")
    assert {result.outcome for result in finish(sim).values()} == {"succeeded"}
    readings = sim.readings()
    assert readings["alice.pan"] == 1.0 and readings["zone1.count"] == 0.0
    assert sim.poses()["red_cube"][0][2] > before["red_cube"][0][2] + 0.08  # raised with the pan
    for cube in ("green_cube", "blue_cube"):
        assert np.abs(sim.poses()[cube][0] - before[cube][0]).max() < 0.005
    assert sim.arm_contacts == 0


def test_without_the_partner_nobody_moves(sim: Simulation) -> None:
    joints = sim.arm("alice").positions
    sweep(sim, "zone1", ("alice",))
    result = finish(sim)["alice"]
    assert (result.outcome, result.reason) == ("failed", "partner")
    assert np.abs(sim.arm("alice").positions - joints).max() < 0.01
    assert sim.readings()["zone1.count"] == 1.0


def test_a_broom_stopped_while_it_pushes(sim: Simulation) -> None:
    sweep(sim, "zone2")
    until_phase(sim, "bob", "push")
    sim.run(0.3)
    sim.stop("bob", "lease_expired")
    results = finish(sim)
    assert (results["bob"].outcome, results["bob"].reason) == ("stopped", "lease_expired")
    assert (results["alice"].outcome, results["alice"].reason) == ("stopped", "partner")
    assert sim.readings()["zone2.count"] == 1.0
    sweep(sim, "zone2")
    assert {result.outcome for result in finish(sim).values()} == {"succeeded"}
    assert sim.readings()["alice.pan"] == 1.0 and sim.arm_contacts == 0


def test_one_area_at_a_time_and_dump_when_full(sim: Simulation, scenario: Scenario) -> None:
    tracker = ConditionTracker(scenario)

    def legal(arm: str, **readings: float) -> set[str]:
        world = sim.world(tracker.true_now(sim.world(), {**sim.readings(), **readings}))
        return {str(action) for action in legal_actions(scenario, observe(scenario, world, arm)) if not action.is_stay}

    for arm in BOTH:  # the group must not split over two areas
        assert legal(arm) == {"sweep zone1"}
        assert legal(arm, **{"zone1.count": 0.0}) == {"sweep zone2"}
    swept = {f"zone{k}.count": 0.0 for k in range(1, 5)}
    assert legal("alice", **swept, **{"alice.pan": 2.0}) == set()
    assert legal("alice", **swept, **{"alice.pan": 3.0}) == {"dump bin"}
    assert legal("bob", **swept, **{"alice.pan": 3.0}) == set()


def test_an_episode_succeeds(shared: Simulation, scenario: Scenario) -> None:
    summary = InProcessEpisode(shared).run(5)
    assert summary.success and summary.slots == 4 and shared.arm_contacts == 0
    floor = scenario.fixtures["bin"].xyz  # type: ignore[union-attr]
    for position, _ in shared.poses().values():
        assert np.linalg.norm(position - floor) < 0.2
