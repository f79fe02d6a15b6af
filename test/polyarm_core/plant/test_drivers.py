"""The plant over drivers, in one process: ideal controllers and a camera with faults, on a clock of the test's own."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mujoco")

from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.cell import Cell, SuctionGripper, load_cell
from polyarm_core.constraints import Action
from polyarm_core.errors import InvalidValue, PolyarmError
from polyarm_core.plant.drivers import (
    PERIOD,
    STOP_TIME,
    Commands,
    DriverArm,
    DriverPlant,
    JointSample,
    Seen,
)
from polyarm_core.plant.motion import Trajectory
from polyarm_core.plant.scene import build_scene
from polyarm_core.plant.skills import ActionResult, ArmBusy
from polyarm_core.scenario import Scenario

UPRIGHT = np.array([1.0, 0.0, 0.0, 0.0])
CELL, SCENARIO = load_cell("sort_demo")
START = {"blue_square": "panel5", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"}


class Lab:
    """A cell whose arms follow exactly and whose camera sees everything, ``latency`` s late."""

    def __init__(self, cell: Cell = CELL, scenario: Scenario = SCENARIO, latency: float = 0.0, **options: Any) -> None:
        self.now = 100.0
        self.latency = latency
        self.cell = cell
        self.sent: dict[str, list[Trajectory]] = {name: [] for name in cell.arms}
        self.begun = dict.fromkeys(cell.arms, 0.0)
        self.openings: dict[str, float] = {}
        self.hidden: set[str] = set()
        self.sticks = True
        commands = {
            name: Commands(
                lambda t, name=name: self.take(name, t), lambda o, name=name: self.openings.update({name: o})
            )
            for name in cell.arms
        }
        self.plant = DriverPlant(cell, scenario, commands, steady=lambda: self.now, **options)
        self.joints = {name: np.array(arm.index.robot.home) for name, arm in self.plant.arms.items()}
        self.width = {name: arm.index.robot.opening for name, arm in self.plant.arms.items()}
        self.things = {
            entity: np.add(scenario.placements[START[entity]].xyz, (0.0, 0.0, 0.035)) for entity in scenario.entities
        }
        self.carried: dict[str, tuple[str, np.ndarray]] = {}  # arm -> thing, offset from the tool
        self.film: list[tuple[float, dict[str, np.ndarray]]] = []

    def take(self, name: str, trajectory: Trajectory) -> None:
        """A controller begins a trajectory at its own state."""
        here = self.joints[name]
        self.sent[name].append(
            Trajectory(
                np.concatenate([[0.0], trajectory.times]),
                np.concatenate([[here], trajectory.positions]),
                np.concatenate([[np.zeros_like(here)], trajectory.velocities]),
            )
        )
        self.begun[name] = self.plant.arms[name].time

    def tool(self, name: str) -> np.ndarray:
        return self.plant._tools[name][-1][1][:3, 3]

    def step(self) -> None:
        self.now += PERIOD
        for name, arm in self.plant.arms.items():
            if self.sent[name]:
                # The controller's time runs as the arm's: slower when its speed is scaled.
                self.joints[name] = self.sent[name][-1].sample(arm.time - self.begun[name])[0]
            positions = dict(zip(self.cell.arms[name].joints, self.joints[name], strict=True))
            target = self.openings.get(name, self.width[name])
            held = self.carried.get(name)
            if held is not None and target > 0.5 * arm.index.robot.opening:
                del self.carried[name]
            elif held is None and target < 0.01 and self.plant._tools[name] and self.sticks:
                for thing, at in self.things.items():
                    offset = at - self.tool(name)
                    if np.hypot(*offset[:2]) < 0.02 and abs(offset[2]) < 0.045:
                        self.carried[name] = (thing, offset)
            self.width[name] = 0.07 if name in self.carried else target
            if name == "bob":
                arm.take_fingers(dict.fromkeys(("fr3_finger_joint1", "fr3_finger_joint2"), self.width[name] / 2))
            elif arm.index.robot.gripper == "parallel":
                arm.opening_sample = self.width[name]
            else:
                arm.detected = name in self.carried
            arm.joint_sample = JointSample(positions, {}, self.now)
            arm.safety_mode = 1 if arm.safety_mode is None else arm.safety_mode
        self.look()
        self.plant.step()
        for name, (thing, offset) in self.carried.items():
            self.things[thing] = self.tool(name) + offset

    def look(self) -> None:
        self.film.append((self.now, {name: at.copy() for name, at in self.things.items()}))
        while len(self.film) > 1 and self.film[1][0] <= self.now - self.latency:
            self.film.pop(0)
        for name, at in self.film[0][1].items():
            if name not in self.hidden:
                self.plant.seen[name] = Seen((at, UPRIGHT), self.now)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / PERIOD)):
            self.step()

    def until(self, arm: str, phase: str, limit: float = 40.0) -> None:
        end = self.now + limit
        while self.plant.phase(arm) != phase:
            assert self.now < end and self.plant.phase(arm), f"{arm} is in {self.plant.phase(arm)!r}"
            if self.plant.phase(arm) == "plan":
                time.sleep(0.01)  # a plan takes real time, of which this clock knows nothing
                self.now -= PERIOD * 0.9
            self.step()

    def end(self, arm: str, limit: float = 60.0) -> ActionResult:
        end = self.now + limit
        while self.plant.phase(arm):
            assert self.now < end, f"{arm} is in {self.plant.phase(arm)!r}"
            if self.plant.phase(arm) == "plan":
                time.sleep(0.01)
                self.now -= PERIOD * 0.9
            self.step()
        (result,) = (r for r in self.plant.results() if r.arm == arm)
        return result


def ready(**options: Any) -> Lab:
    lab = Lab(**options)
    lab.run(1.2)
    lab.plant.reset(3)
    return lab


PINK = Action("move", "pink_polygon", "pad4")
YELLOW = Action("move", "yellow_trapezoid", "pad6")


@pytest.mark.parametrize("latency", [0.0, 0.3])
def test_a_move_succeeds_also_with_a_camera_that_is_late(latency: float) -> None:
    lab = ready(latency=latency)
    lab.plant.start_action("bob", PINK, tag=7)
    lab.until("bob", "place")
    assert lab.plant.held_by() == {"pink_polygon": "bob"} and lab.plant.arm("bob").holding == "pink_polygon"
    result = lab.end("bob")
    assert (result.outcome, result.reason, result.tag) == ("succeeded", "", 7), result.text
    assert lab.plant.held_by() == {} and lab.plant.arm("bob").status == "idle"
    assert lab.things["pink_polygon"] == pytest.approx([-0.002, 0.502, 0.225], abs=0.004)


def test_reset_moves_nothing_and_needs_every_input() -> None:
    lab = Lab()
    with pytest.raises(
        PolyarmError, match=r"nothing has come on: alice/joint_states, alice/safety_mode, .*perception/"
    ):
        lab.plant.reset(0)
    assert "bob/joint_states" in lab.plant.missing()
    lab.run(1.2)
    assert lab.plant.missing() == []
    things = {name: at.copy() for name, at in lab.things.items()}
    lab.plant.reset(5)
    lab.run(0.5)
    assert lab.plant.seed == 5 and lab.plant.time == pytest.approx(0.5)
    assert not any(lab.sent.values()) and not lab.openings
    assert all(np.array_equal(lab.things[name], at) for name, at in things.items())
    with pytest.raises(InvalidValue, match="nothing but the arms moves entities"):
        lab.plant.reset(5, start=START)


def test_a_controller_that_stretches_time_is_waited_for() -> None:
    lab = ready()
    lab.plant.start_action("bob", PINK)
    lab.until("bob", "pick")
    lab.plant.arms["bob"].scaling = 0.0  # somebody has pressed pause on the pendant
    phase, joints = lab.plant.phase("bob"), lab.joints["bob"].copy()
    lab.run(10.0)
    assert (lab.plant.phase("bob"), lab.joints["bob"].tolist()) == (phase, joints.tolist())
    lab.plant.arms["bob"].scaling = 0.4
    began = lab.now
    result = lab.end("bob", 90.0)
    assert result.outcome == "succeeded", result.text
    assert result.duration < 0.6 * (lab.now - began)


def test_a_cup_without_a_sensor_loses_what_the_camera_sees_elsewhere() -> None:
    chad = CELL.arms["chad"].model_copy(update={"gripper": SuctionGripper(kind="suction")})
    lab = ready(cell=CELL.model_copy(update={"arms": {**CELL.arms, "chad": chad}}))
    lab.sticks = False  # the cup does not seal: the arm goes, the cube stays
    lab.plant.start_action("chad", YELLOW)
    result = lab.end("chad")
    assert (result.outcome, result.reason) == ("failed", "slip")
    lab.run(0.5)
    assert lab.plant.arm("chad").status == "holding" and lab.plant.held_by() == {}
    assert lab.plant.poses()["yellow_trapezoid"][0] == pytest.approx(lab.things["yellow_trapezoid"], abs=1e-6)


def test_what_was_not_seen_for_long_is_not_reached_for_and_the_rest_is() -> None:
    lab = ready()
    lab.hidden.add("pink_polygon")
    lab.run(1.5)
    lab.plant.start_action("bob", PINK, tag=1)
    (result,) = lab.plant.results()
    assert (result.outcome, result.reason, result.tag) == ("failed", "unreachable", 1)
    assert "last perceived 1.5 s ago" in result.text and not lab.sent["bob"]
    lab.plant.start_action("chad", YELLOW)
    assert lab.end("chad").outcome == "succeeded"


def test_a_restarted_bridge_knows_what_is_in_a_gripper_and_puts_it_down() -> None:
    before = ready()
    before.plant.start_action("bob", PINK)
    before.until("bob", "place")
    before.run(0.6)
    before.plant.close()
    after = Lab()
    after.joints, after.things, after.width = before.joints, before.things, before.width
    after.carried, after.openings = before.carried, dict(before.openings)
    after.run(1.2)
    after.plant.reset(0)
    assert after.plant.held_by() == {"pink_polygon": "bob"}
    after.plant.start_action("bob", PINK)
    assert after.end("bob").outcome == "succeeded"
    assert after.things["pink_polygon"] == pytest.approx([-0.002, 0.502, 0.225], abs=0.004)


def test_silence_holds_and_takes_nothing_until_inputs_are_back_for_a_while() -> None:
    lab = ready()
    lab.plant.start_action("bob", PINK)
    lab.until("bob", "pick")
    lab.run(0.3)
    lab.hidden.update(lab.things)
    lab.run(1.1)
    (result,) = lab.plant.results()
    assert (result.outcome, result.reason) == ("stopped", "protective_stop")
    assert "nothing from the perception" in result.text
    assert set(lab.plant.faults()) == set(CELL.arms)
    with pytest.raises(ArmBusy, match="nothing from the perception"):
        lab.plant.start_action("chad", YELLOW)
    lab.hidden.clear()
    lab.run(0.8)
    assert lab.plant.faults()
    lab.run(0.8)
    assert not lab.plant.faults() and lab.plant.arm("bob").status == "holding"
    lab.plant.start_action("bob", PINK)
    assert lab.end("bob").outcome == "succeeded"


def test_a_cell_that_does_not_fit_its_robots_is_refused_at_once() -> None:
    commands = {name: Commands(lambda _: None, lambda _: None) for name in CELL.arms}

    def with_arm(name: str, **update: Any) -> Cell:
        return CELL.model_copy(update={"arms": {**CELL.arms, name: CELL.arms[name].model_copy(update=update)}})

    with pytest.raises(InvalidValue, match=r"arms.bob.joints .* expected 7 joints in the order"):
        DriverPlant(with_arm("bob", joints=("a", "b")), SCENARIO, commands)
    with pytest.raises(InvalidValue, match=r"arms.bob.gripper.kind = 'suction' is not valid; expected 'parallel'"):
        DriverPlant(with_arm("bob", gripper=SuctionGripper(kind="suction")), SCENARIO, commands)
    far = SCENARIO.model_copy(
        update={
            "placements": {
                **SCENARIO.placements,
                "pad6": SCENARIO.placements["pad6"].model_copy(update={"xyz": (0.8, -0.4, 0.19)}),
            }
        }
    )
    with pytest.raises(
        PolyarmError, match=r"chad cannot reach pad6 at .*: measure its base again, teach the placement"
    ):
        DriverPlant(CELL, far, commands)


INDEX = build_scene(SCENARIO, visuals=False).arms["bob"]


@settings(max_examples=40, deadline=None)
@given(st.floats(0.0, 1.0), st.lists(st.floats(-1.5, 1.5), min_size=7, max_size=7), st.floats(0.5, 5.0))
def test_a_hold_stays_on_the_path_and_slows_down(share: float, way: list[float], duration: float) -> None:
    """For every moment: the stop's positions lie on the path, no joint gets faster, and it ends at rest within it."""
    s = np.linspace(0.0, 1.0, 60)
    blend, slope = 3 * s**2 - 2 * s**3, (6 * s - 6 * s**2) / duration
    home = np.array(INDEX.robot.home)
    path = Trajectory(s * duration, home + blend[:, None] * way, slope[:, None] * way)
    sent: list[Trajectory] = []
    arm = DriverArm(INDEX, CELL.arms["bob"], Commands(sent.append, lambda _: None))
    arm.send_trajectory(path)
    arm._elapsed = share * duration
    arm.hold()
    if share * duration >= duration:
        assert len(sent) == 1  # it has arrived: there is nothing to stop
        return
    stop = sent[1]
    fine = np.array([path.sample(t)[0] for t in np.linspace(0.0, duration, 2000)])
    for position in stop.positions:
        assert np.abs(fine - position).max(axis=1).min() < 0.004
    fastest = np.abs(np.array([path.sample(t)[1] for t in np.linspace(0.0, duration, 500)])).max()
    assert np.abs(stop.velocities).max() <= fastest + 1e-6
    assert np.abs(stop.velocities[-1]).max() == 0.0
    assert stop.times[0] > 0.0 and np.all(np.diff(stop.times) > 0.0) and stop.duration == pytest.approx(STOP_TIME)


def test_planned_speeds_scale() -> None:
    commands = {name: Commands(lambda _: None, lambda _: None) for name in CELL.arms}
    plant = DriverPlant(CELL, SCENARIO, commands, velocity_scaling=0.25)
    slow, full = plant.scene.arms["bob"].robot, INDEX.robot
    assert slow.velocity == pytest.approx([v * 0.25 for v in full.velocity])
    assert slow.acceleration == pytest.approx([a * 0.0625 for a in full.acceleration])
    assert replace(slow, velocity=full.velocity, acceleration=full.acceleration) == full
