"""The skill executor against an arm that is not MuJoCo's: only the port, the snapshot and the clock."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import numpy as np
import pytest

from polyarm_core.constraints import Action
from polyarm_core.plant.motion import MotionPlanner, MovePlan, PlanFailure, PlanningScene, Trajectory
from polyarm_core.plant.robots import ROBOTS
from polyarm_core.plant.skills import (
    HOLDER_TIME,
    PARTNER_TIME,
    ActionResult,
    ArmBusy,
    Follow,
    GripperState,
    SkillExecutor,
    Step,
    Task,
)
from polyarm_core.scenario import Scenario, load_scenario

MOVE = Action("move", "blue_square", "pad2")


def line(a: float, b: float, seconds: float = 1.0) -> Trajectory:
    return Trajectory(np.array([0.0, seconds]), np.array([[a] * 6, [b] * 6]), np.zeros((2, 6)))


class Planner:
    """Answers every request with the same plan, or fails."""

    def __init__(self) -> None:
        self.scene = type("Scene", (), {"arms": {"alice": type("Arm", (), {"robot": ROBOTS["ur5e_2f85"]})}})
        self.failure: PlanFailure | None = None

    def plan_move(self, arm: str, entity: str, placement: str, scene: PlanningScene, *rest: Any) -> MovePlan:
        if self.failure is not None:
            raise self.failure
        holding = entity in scene.held
        return MovePlan(None if holding else line(0.0, 1.0), line(1.0, 2.0), line(2.0, 0.0), 0.07, 0.2)

    def plan_home(self, arm: str, scene: PlanningScene, *rest: Any) -> Trajectory:
        return line(float(scene.joints[arm][0]), 0.0)


class Driver:
    """An ideal controller: follows any trajectory exactly; a gripper that finds or does not find something."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.trajectory: Trajectory | None = None
        self.since = 0.0
        self.stopped: np.ndarray | None = np.zeros(6)
        self.width = 0.07
        self.opening = 0.085
        self.stuck = False
        self.holds = 0

    def joints(self) -> np.ndarray:
        if self.stopped is not None or self.trajectory is None:
            return np.zeros(6) if self.stopped is None else self.stopped
        share = min((self.clock.now - self.since) / self.trajectory.duration, 1.0)
        first, last = self.trajectory.positions[[0, -1]]
        return np.asarray(first + share * (last - first))

    def send_trajectory(self, trajectory: Trajectory) -> None:
        self.trajectory, self.since, self.stopped = trajectory, self.clock.now, None

    def motion(self) -> Any:
        if self.stuck or self.trajectory is None:
            return "moving"
        return "done" if self.clock.now - self.since >= self.trajectory.duration else "moving"

    def hold(self) -> None:
        self.stopped = self.joints()
        self.holds += 1

    def command_gripper(self, opening: float) -> None:
        self.opening = max(opening, self.width)

    def gripper(self) -> GripperState:
        return GripperState(self.opening, self.width > 0.0 and self.opening <= self.width + 1e-9)


class Clock:
    now = 0.0


class Bench:
    """One executor with its driver, and the world as a camera would tell it."""

    def __init__(self, scenario: Scenario) -> None:
        self.clock = Clock()
        self.driver = Driver(self.clock)
        self.planner = Planner()
        self.jobs: list[Future[Any]] = []
        planner: Any = self.planner
        assert isinstance(planner, Planner) and not isinstance(planner, MotionPlanner)
        self.executor = SkillExecutor("alice", scenario, self.driver, planner, self.submit)
        self.entities = {"blue_square": (-1.12, 0.5, 0.195), "pink_polygon": (0.0, 0.5, 0.225)}
        self.held: dict[str, str] = {}

    def submit(self, job: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(job())
        except PlanFailure as error:
            future.set_exception(error)
        return future

    def snapshot(self) -> PlanningScene:
        quaternion = np.array([1.0, 0.0, 0.0, 0.0])
        entities = {name: (np.array(xyz), quaternion) for name, xyz in self.entities.items()}
        return PlanningScene({"alice": self.driver.joints()}, entities, self.held)

    def start(self, action: Action = MOVE) -> ActionResult | None:
        return self.executor.start(action, self.clock.now, self.snapshot, tag="tag")

    def run(self, seconds: float = 30.0, until: str = "") -> ActionResult | None:
        for _ in range(int(seconds / 0.02)):
            self.clock.now += 0.02
            result = self.executor.tick(self.clock.now, self.snapshot)
            if result is not None:
                return result
            if until and self.executor.phase == until:
                return None
        return None


@pytest.fixture
def bench() -> Bench:
    return Bench(load_scenario("sort"))


def test_all_phases_in_order(bench: Bench) -> None:
    assert bench.start() is None
    phases = []
    result = None
    while result is None:
        if bench.executor.phase not in phases:
            phases.append(bench.executor.phase)
        if bench.executor.phase == "retreat":
            bench.entities["blue_square"] = (-0.8, 0.5, 0.225)
        result = bench.run(0.02)
    assert phases == ["plan", "pick", "close", "place", "open", "retreat"]
    assert (result.outcome, result.reason, result.tag) == ("succeeded", "", "tag")
    assert bench.executor.status == "idle"
    bench.start()
    with pytest.raises(ArmBusy):
        bench.start()


def test_holding_already_goes_straight_to_place(bench: Bench) -> None:
    bench.held = {"blue_square": "alice"}
    bench.driver.command_gripper(0.0)
    bench.start()
    bench.run(0.02)
    assert bench.executor.phase == "place"


@pytest.mark.parametrize(("width", "words"), [(0.0, "nothing"), (0.03, "30 mm")])
def test_closing_on_nothing_or_on_something_else_is_a_slip(bench: Bench, width: float, words: str) -> None:
    bench.driver.width = width
    bench.start()
    result = bench.run()
    assert result is not None and (result.outcome, result.reason) == ("failed", "slip")
    assert words in result.text
    assert bench.executor.status == "holding"


def test_losing_it_on_the_way_is_a_slip_and_holds(bench: Bench) -> None:
    bench.start()
    bench.run(until="place")
    bench.run(0.3)
    bench.driver.width = 0.0
    holds = bench.driver.holds
    result = bench.run()
    assert result is not None and (result.outcome, result.reason) == ("failed", "slip")
    assert bench.driver.holds == holds + 1
    stood = bench.driver.joints()
    bench.run(1.0)
    assert np.array_equal(bench.driver.joints(), stood) and not np.array_equal(stood, np.zeros(6))
    bench.executor.go_home(bench.clock.now, bench.snapshot)
    result = bench.run()
    assert result is not None and result.outcome == "succeeded"
    assert np.array_equal(bench.driver.joints(), np.zeros(6))


def test_a_motion_that_never_ends_times_out(bench: Bench) -> None:
    bench.driver.stuck = True
    bench.start()
    result = bench.run()
    assert result is not None and (result.outcome, result.reason) == ("failed", "timeout")
    assert result.duration < 5.0


def test_no_plan_moves_nothing(bench: Bench) -> None:
    bench.planner.failure = PlanFailure("no_plan", "a wall")
    bench.start()
    result = bench.run()
    assert result is not None and (result.outcome, result.reason, result.text) == ("failed", "no_plan", "a wall")
    assert bench.driver.trajectory is None and bench.driver.holds == 0
    assert bench.executor.status == "idle"


def test_occupied_at_once_and_before_the_entity_comes_down(bench: Bench) -> None:
    bench.entities["pink_polygon"] = (-0.75, 0.5, 0.225)
    result = bench.start()
    assert result is not None and (result.outcome, result.reason) == ("failed", "occupied")
    assert "pink_polygon" in result.text
    bench.entities["pink_polygon"] = (0.0, 0.5, 0.225)
    bench.start()
    bench.run(until="place")
    bench.entities["pink_polygon"] = (-0.75, 0.5, 0.225)
    result = bench.run()
    assert result is not None and (result.outcome, result.reason) == ("failed", "occupied")
    assert bench.driver.gripper().detected  # still in the gripper, not dropped


def test_stop_and_protective_stop(bench: Bench) -> None:
    bench.start()
    bench.run(until="pick")
    result = bench.executor.stop("lease_expired", bench.clock.now)
    assert result is not None and (result.outcome, result.reason) == ("stopped", "lease_expired")
    assert bench.executor.stop("vetoed", bench.clock.now) is None
    bench.start()
    result = bench.executor.protective_stop("contact with bob", bench.clock.now)
    assert result is not None and (result.outcome, result.reason) == ("stopped", "protective_stop")
    with pytest.raises(ArmBusy):
        bench.start()
    bench.executor.clear()
    assert bench.start() is None


def test_another_entity_in_the_gripper_or_another_holder(bench: Bench) -> None:
    bench.held = {"pink_polygon": "alice"}
    result = bench.start()
    assert result is not None and result.outcome == "failed" and "pink_polygon" in result.text
    bench.held = {"blue_square": "bob"}
    result = bench.start()
    assert result is not None and (result.reason, "bob" in result.text) == ("unreachable", True)


class Others:
    """What the rest of the team does, as a test wants it."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.complete = False

    def readings(self) -> dict[str, float]:
        return {}

    def unheld(self, arm: str, conditions: Any) -> str:
        return min(set(conditions) - self.held, default="")

    def needed(self, arm: str) -> bool:
        return False

    def together(self, arm: str) -> bool:
        return self.complete


def with_team(bench: Bench, skills: dict[str, Any] | None = None) -> Others:
    others, planner = Others(), cast(Any, bench.planner)
    scenario = load_scenario("sort")
    bench.executor = SkillExecutor("alice", scenario, bench.driver, planner, bench.submit, others, skills)
    return others


def test_what_is_required_is_waited_for_before_anything_is_planned(bench: Bench) -> None:
    others = with_team(bench)
    bench.planner.failure = PlanFailure("no_plan", "a closed door")
    bench.executor.start(MOVE, 0.0, bench.snapshot, requires=["door_open"])
    assert bench.run(5.0) is None
    assert bench.executor.phase == "wait" and bench.driver.trajectory is None
    bench.planner.failure = None
    others.held = {"door_open"}
    bench.run(until="pick")
    assert bench.executor.phase == "pick"


def test_nobody_holds_in_time(bench: Bench) -> None:
    with_team(bench)
    bench.executor.start(MOVE, 0.0, bench.snapshot, requires=["door_open"])
    result = bench.run(HOLDER_TIME + 1.0)
    assert result is not None and (result.outcome, result.reason) == ("failed", "not_held")
    assert bench.driver.trajectory is None and bench.executor.status == "idle"


@pytest.mark.parametrize(("seconds", "stops"), [(0.1, True), (0.5, False)])
def test_what_is_required_is_required_until_the_entity_is_out(bench: Bench, seconds: float, stops: bool) -> None:
    others = with_team(bench)  # the plan's lift takes 0.2 s
    others.held = {"door_open"}
    bench.executor.start(MOVE, 0.0, bench.snapshot, requires=["door_open"])
    bench.run(until="place")
    bench.run(seconds)
    others.held = set()
    bench.entities["blue_square"] = (-0.8, 0.5, 0.225)
    result = bench.run()
    assert result is not None
    assert (result.outcome, result.reason) == (("stopped", "not_held") if stops else ("succeeded", ""))


def test_nobody_passes_a_barrier_alone(bench: Bench) -> None:
    class Lift:
        def refuse(self, task: Task) -> None:
            pass

        def plan(self, task: Task) -> list[Step]:
            return [Follow("up", line(0.0, 1.0), barrier=True), Follow("down", line(1.0, 0.0), barrier=True)]

    others = with_team(bench, {"move": Lift()})
    bench.start()
    result = bench.run(PARTNER_TIME + 1.0)
    assert result is not None and (result.outcome, result.reason) == ("failed", "partner")
    assert bench.driver.trajectory is None and bench.executor.status == "idle"
    bench.start()
    bench.run(1.0)
    assert bench.executor.phase == "barrier" and bench.executor.barrier == 1
    others.complete = True
    bench.run(until="up")
    others.complete = False
    assert bench.run(5.0) is None
    assert bench.executor.phase == "barrier" and bench.executor.barrier == 2
    others.complete = True
    result = bench.run()
    assert result is not None and result.outcome == "succeeded"
