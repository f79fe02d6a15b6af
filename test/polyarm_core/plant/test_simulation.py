"""Pick and place on real physics, and what happens when it goes wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from polyarm_core.constraints import Action
from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_core.plant.motion import Trajectory, tool_down
from polyarm_core.plant.simulation import ActionResult, Simulation, SimulationLoop
from polyarm_core.plant.skills import ArmBusy
from polyarm_core.scenario import Scenario, load_scenario
from polyarm_core.world import nearest_placement

START = {"blue_square": "panel1", "pink_polygon": "pad4", "yellow_trapezoid": "panel7"}


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("sort")


@pytest.fixture(scope="module")
def shared(scenario: Scenario) -> Simulation:
    return Simulation(scenario)


@pytest.fixture
def sim(shared: Simulation) -> Iterator[Simulation]:
    shared.reset(0, START)
    shared.results()
    yield shared


def move(entity: str, placement: str) -> Action:
    return Action("move", entity, placement)


def finish(sim: Simulation) -> list[ActionResult]:
    assert sim.run_until_idle(60.0)
    return sim.results()


def carry_out(sim: Simulation, arm: str, entity: str, placement: str) -> ActionResult:
    sim.start_action(arm, move(entity, placement))
    (result,) = finish(sim)
    return result


def until_phase(sim: Simulation, arm: str, phase: str) -> None:
    for _ in range(5000):
        if sim.phase(arm) == phase:
            return
        sim.step()
    raise AssertionError(f"{arm} never came to phase {phase}")


@pytest.mark.parametrize(
    ("arm", "entity", "placement"),
    [("alice", "blue_square", "panel3"), ("bob", "pink_polygon", "panel5"), ("chad", "yellow_trapezoid", "pad6")],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_pick_and_place(sim: Simulation, scenario: Scenario, arm: str, entity: str, placement: str, seed: int) -> None:
    sim.reset(seed, START)
    result = carry_out(sim, arm, entity, placement)
    assert (result.outcome, result.reason) == ("succeeded", "")
    assert 0.0 < result.duration <= 10.0
    position, surface = sim.world().positions[entity], scenario.placements[placement].xyz
    assert np.hypot(position[0] - surface[0], position[1] - surface[1]) < 0.015
    assert position[2] == pytest.approx(surface[2] + 0.035, abs=0.002)
    assert sim.arm_contacts == 0
    assert sim.arm(arm).status == "idle"
    np.testing.assert_allclose(sim.arm(arm).positions, sim.scene.arms[arm].robot.home, atol=0.02)


def test_every_entity_by_every_gripper(sim: Simulation, scenario: Scenario) -> None:
    for (arm, spec), entity in itertools.product(scenario.arms.items(), scenario.entities):
        source, destination = spec.reach[0], spec.reach[2]
        free = [name for name in scenario.placements if name not in (source, destination)]
        start = dict(zip((e for e in scenario.entities if e != entity), free, strict=False)) | {entity: source}
        sim.reset(5, start)
        result = carry_out(sim, arm, entity, destination)
        assert result.outcome == "succeeded", (arm, entity, result)


def test_three_arms_at_once(sim: Simulation) -> None:
    sim.reset(3, {"blue_square": "panel1", "pink_polygon": "pad4", "yellow_trapezoid": "panel7"})
    sim.start_action("alice", move("blue_square", "pad2"), tag=1)
    sim.start_action("bob", move("pink_polygon", "panel3"), tag=2)
    sim.start_action("chad", move("yellow_trapezoid", "pad6"), tag=3)
    results = finish(sim)
    assert {(r.outcome, r.tag) for r in results} == {("succeeded", 1), ("succeeded", 2), ("succeeded", 3)}
    assert (sim.arm_contacts, sim.contact_ticks) == (0, 0)


def test_same_seed_same_bits(scenario: Scenario) -> None:
    def episode(simulation: Simulation) -> bytes:
        simulation.reset(11)
        where = {e: nearest_placement(scenario, p) for e, p in simulation.world().positions.items()}
        entity, source = next((e, p) for e, p in where.items() if p in scenario.arms["bob"].reach)
        free = next(p for p in scenario.arms["bob"].reach if p not in where.values() and p != source)
        simulation.start_action("bob", move(entity, free))
        simulation.run(1.0)
        simulation.go_home("alice")
        simulation.run_until_idle()
        simulation.run(0.2)
        return simulation.qpos().tobytes() + simulation.data.qvel.tobytes()

    used, fresh = Simulation(scenario), Simulation(scenario)
    carry_out(used, "bob", *_any_move(used, scenario))  # what happened before a reset must not matter
    first = episode(used)
    assert episode(fresh) == first
    assert episode(used) == first


def _any_move(sim: Simulation, scenario: Scenario) -> tuple[str, str]:
    where = {e: nearest_placement(scenario, p) for e, p in sim.world().positions.items()}
    entity = next(e for e, p in where.items() if p in scenario.arms["bob"].reach)
    return entity, next(p for p in scenario.arms["bob"].reach if p not in where.values())


def test_starts_differ_by_seed(sim: Simulation) -> None:
    starts = set()
    for seed in range(6):
        sim.reset(seed)
        starts.add(sim.qpos().tobytes())
    assert len(starts) == 6


def test_reset_ends_actions_and_counts_episodes(sim: Simulation) -> None:
    before = sim.episode
    sim.start_action("alice", move("blue_square", "pad2"), tag="t")
    sim.run(1.0)
    sim.reset(0, START)
    (result,) = sim.results()
    assert (result.outcome, result.reason, result.tag) == ("stopped", "reset", "t")
    assert sim.episode == before + 1 and sim.time == 0.0 and sim.idle


# -- failures ----------------------------------------------------------------------------------------------------------


def test_unreachable_entity_moves_nothing_and_the_arm_goes_on(sim: Simulation) -> None:
    before = sim.arm("alice").positions
    others = {e: p for e, p in sim.world().positions.items() if e != "yellow_trapezoid"}
    result = carry_out(sim, "alice", "yellow_trapezoid", "pad2")  # stands on panel7, on the other side
    assert (result.outcome, result.reason) == ("failed", "unreachable")
    sim.run(0.5)
    np.testing.assert_allclose(sim.arm("alice").positions, before, atol=1e-3)
    for entity, position in others.items():
        np.testing.assert_allclose(sim.world().positions[entity], position, atol=1e-3)
    assert carry_out(sim, "alice", "blue_square", "pad2").outcome == "succeeded"


def test_entity_taken_away_on_approach_is_a_slip(sim: Simulation) -> None:
    sim.start_action("alice", move("blue_square", "pad2"))
    sim.run(0.5)
    sim.place_entity("blue_square", (-0.8, 0.5, 0.226))
    (result,) = finish(sim)
    assert (result.outcome, result.reason) == ("failed", "slip")
    assert sim.arm("alice").status == "holding"
    position = sim.world().positions["blue_square"]
    assert position[:2] == pytest.approx((-0.8, 0.5), abs=5e-3)  # nobody put it back
    low = sim.arm("alice").positions
    sim.run(1.0)
    np.testing.assert_allclose(sim.arm("alice").positions, low, atol=5e-3)
    assert carry_out(sim, "alice", "blue_square", "panel3").outcome == "succeeded"  # from where both are now


def test_entity_torn_from_the_gripper_is_a_slip(sim: Simulation) -> None:
    sim.start_action("bob", move("pink_polygon", "panel5"))
    until_phase(sim, "bob", "place")
    sim.run(1.0)
    assert sim.held_by() == {"pink_polygon": "bob"}
    sim.place_entity("pink_polygon", (0.0, 0.5, 0.226))
    (result,) = finish(sim)
    assert (result.outcome, result.reason) == ("failed", "slip")
    assert carry_out(sim, "bob", "pink_polygon", "panel3").outcome == "succeeded"


def test_destination_occupied_at_start_and_on_arrival(sim: Simulation) -> None:
    sim.place_entity("pink_polygon", (-0.8, 0.5, 0.226))
    result = carry_out(sim, "alice", "blue_square", "pad2")
    assert (result.outcome, result.reason, sim.arm("alice").status) == ("failed", "occupied", "idle")
    sim.reset(0, START)
    sim.start_action("alice", move("blue_square", "pad2"))
    until_phase(sim, "alice", "place")
    sim.run(0.8)
    sim.place_entity("pink_polygon", (-0.8, 0.5, 0.226))
    (result,) = finish(sim)
    assert (result.outcome, result.reason) == ("failed", "occupied")
    assert sim.held_by() == {"blue_square": "alice"}
    assert carry_out(sim, "alice", "blue_square", "panel3").outcome == "succeeded"  # straight from the gripper


@pytest.mark.parametrize("after", [0.6, 1.3, 2.2, 3.6])
def test_stop_in_motion_then_go_home(sim: Simulation, after: float) -> None:
    sim.start_action("chad", move("yellow_trapezoid", "panel5"))
    sim.run(after)
    sim.stop("chad", "lease_expired")
    (stopped,) = sim.results()
    assert (stopped.outcome, stopped.reason) == ("stopped", "lease_expired")
    sim.run(0.5)
    still = sim.arm("chad").positions
    held = sim.held_by()
    sim.run(1.0)
    np.testing.assert_allclose(sim.arm("chad").positions, still, atol=5e-3)
    assert sim.arm("chad").status == "holding"
    sim.go_home("chad")
    (home,) = finish(sim)
    assert (home.outcome, home.action.verb) == ("succeeded", "home")
    assert sim.held_by() == held
    result = carry_out(sim, "chad", "yellow_trapezoid", "pad6")
    assert result.outcome == "succeeded", result


def test_busy_and_malformed(sim: Simulation) -> None:
    sim.start_action("alice", move("blue_square", "pad2"))
    with pytest.raises(ArmBusy):
        sim.start_action("alice", move("blue_square", "pad2"))
    sim.stop("alice", "vetoed")
    with pytest.raises(UnknownName, match="nobody"):
        sim.start_action("nobody", move("blue_square", "pad2"))
    with pytest.raises(UnknownName, match="nothing"):
        sim.start_action("alice", move("nothing", "pad2"))
    with pytest.raises(UnknownName, match="nowhere"):
        sim.start_action("alice", move("blue_square", "nowhere"))
    with pytest.raises(InvalidValue):
        sim.start_action("alice", Action("juggle", "blue_square", "pad2"))
    with pytest.raises(InvalidValue):
        sim.command_gripper("alice", float("nan"))
    with pytest.raises(InvalidValue):
        sim.send_trajectory("alice", Trajectory(np.array([0.0, 1.0]), np.zeros((2, 3)), np.zeros((2, 3))))
    with pytest.raises(InvalidValue):
        sim.send_trajectory("alice", Trajectory(np.array([1.0, 1.0]), np.zeros((2, 6)), np.zeros((2, 6))))


def _ramp(start: np.ndarray, goal: np.ndarray, seconds: float) -> Trajectory:
    s = np.linspace(0.0, 1.0, 51)[:, None]
    blend, rate = 3 * s**2 - 2 * s**3, (6 * s - 6 * s**2) / seconds
    return Trajectory(s[:, 0] * seconds, start + blend * (goal - start), rate * (goal - start))


def test_external_trajectory_is_followed(sim: Simulation) -> None:
    start = sim.arm("bob").positions
    goal = start + np.array([0.5, 0.1, -0.2, 0.2, 0.0, 0.1, -0.3])
    sim.send_trajectory("bob", _ramp(start, goal, 1.5))
    worst = 0.0
    while sim.trajectory_state("bob") == "moving":
        sim.step()
        if sim.time <= 1.5:
            s = sim.time / 1.5
            wanted = start + (3 * s**2 - 2 * s**3) * (goal - start)
            worst = max(worst, float(np.abs(sim.arm("bob").positions - wanted).max()))
        assert sim.time < 4.0
    assert sim.trajectory_state("bob") == "done"
    assert worst < 0.02
    np.testing.assert_allclose(sim.arm("bob").positions, goal, atol=5e-3)
    sim.go_home("bob")
    assert finish(sim)[0].outcome == "succeeded"


def test_contact_between_arms_is_counted_and_stops_both(sim: Simulation) -> None:
    # Alice reaches over panel 3 and stays; bob swings into her on a path that nobody planned.
    kinematics = sim.planner.kinematics
    for arm, point in (("alice", (-0.3, 0.5, 0.35)), ("bob", (-0.3, 0.55, 0.35))):
        home = sim.arm(arm).positions
        solutions = (kinematics[arm].inverse(tool_down(point, k * np.pi / 4), home) for k in range(8))
        goal = next(joints for joints in solutions if joints is not None)
        sim.send_trajectory(arm, _ramp(home, goal, 2.0))
        sim.run(2.5)
    assert sim.arm_contacts == 1
    assert sim.contact_pairs == {("alice", "bob"): 1}
    assert sim.contact_ticks >= 1
    assert {sim.arm(arm).status for arm in ("alice", "bob")} == {"protective_stop"}
    with pytest.raises(ArmBusy):
        sim.go_home("bob")
    with pytest.raises(ArmBusy):
        sim.start_action("alice", move("blue_square", "pad2"))
    stood = sim.arm("bob").positions
    sim.run(1.0)
    np.testing.assert_allclose(sim.arm("bob").positions, stood, atol=0.02)
    for arm in ("bob", "alice"):
        sim.clear(arm)
        sim.go_home(arm)
        (result,) = finish(sim)
        assert result.outcome == "succeeded", result
    assert carry_out(sim, "alice", "blue_square", "pad2").outcome == "succeeded"


def test_collision_in_an_action_ends_it_as_protective_stop(sim: Simulation) -> None:
    sim.start_action("bob", move("pink_polygon", "panel3"))
    sim.run(0.2)
    # Alice is sent over panel 3 without a plan while bob carries on.
    home = sim.arm("alice").positions
    goal = sim.planner.kinematics["alice"].inverse(tool_down((-0.4, 0.45, 0.3), 0.0), home)
    assert goal is not None
    sim.send_trajectory("alice", _ramp(home, goal, 1.5))
    (result,) = finish(sim)
    assert (result.arm, result.outcome, result.reason) == ("bob", "stopped", "protective_stop")
    assert sim.arm_contacts == 1


def test_zones_keep_an_arm_out(sim: Simulation) -> None:
    assert carry_out(sim, "bob", "pink_polygon", "panel5").outcome == "succeeded"
    sim.start_action("bob", move("pink_polygon", "panel3"), zones=["around_panel5"])
    (result,) = finish(sim)
    assert (result.outcome, result.reason) == ("failed", "no_plan")


def test_a_zone_with_another_arm_in_it_is_occupied(sim: Simulation) -> None:
    sim.start_action("alice", move("blue_square", "panel3"))
    until_phase(sim, "alice", "open")
    sim.stop("alice", "vetoed")
    sim.results()
    result = carry_out(sim, "bob", "pink_polygon", "panel5")
    assert result.outcome == "succeeded"  # another zone
    sim.place_entity("blue_square", (-1.12, 0.5, 0.196))
    result = carry_out(sim, "bob", "pink_polygon", "panel3")
    assert (result.outcome, result.reason) == ("failed", "occupied")
    assert "alice" in result.text


# -- the loop ----------------------------------------------------------------------------------------------------------


def test_loop_runs_calls_and_pauses(scenario: Scenario) -> None:
    seen: list[float] = []
    simulation = Simulation(scenario, planning="thread")
    loop = SimulationLoop(simulation, real_time_factor=0.0, on_period=lambda s: seen.append(s.time), idle="pause")
    loop.start()
    try:
        assert loop.call(lambda s: s.time) == 0.0
        loop.call(lambda s: s.reset(0, START))
        loop.call(lambda s: s.start_action("alice", move("blue_square", "pad2")))
        results: list[ActionResult] = []
        deadline = time.monotonic() + 60.0
        while not results and time.monotonic() < deadline:
            time.sleep(0.02)
            results = loop.call(lambda s: s.results())
        assert results[0].outcome == "succeeded"
        with pytest.raises(UnknownName):
            loop.call(lambda s: s.arm("nobody"))
        stood = loop.call(lambda s: s.time)
        assert loop.call(lambda s: s.time) == stood  # nothing moves, so time stands still
        loop.paused = True
        loop.step(10)
        assert loop.call(lambda s: s.time) == pytest.approx(stood + 0.04)
        assert len(seen) > 100
    finally:
        loop.stop()
    assert loop.error is None
    with pytest.raises(PolyarmError, match="ended"):
        loop.call(lambda s: s.time)


def test_loop_keeps_real_time_and_reports_what_stops_it(scenario: Scenario) -> None:
    simulation = Simulation(scenario, planning="thread")

    def on_period(s: Simulation) -> None:
        if s.time > 0.3:
            raise RuntimeError("publisher broke")

    loop = SimulationLoop(simulation, real_time_factor=1.0, on_period=on_period)
    began = time.monotonic()
    loop.start()
    while loop.error is None and time.monotonic() < began + 20.0:
        time.sleep(0.01)
    assert time.monotonic() - began >= 0.29  # not faster than asked for
    assert isinstance(loop.error, RuntimeError)
    with pytest.raises(PolyarmError, match="publisher broke"):
        loop.call(lambda s: s.time)
    loop.stop()


@pytest.mark.parametrize("options", [{"real_time_factor": -1.0}, {"real_time_factor": float("nan")}, {"idle": "sleep"}])
def test_loop_options_are_checked(shared: Simulation, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        SimulationLoop(shared, **options)
