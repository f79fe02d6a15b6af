"""Bridges as processes: leases and tokens at the plant, optimistic starts, the ROS interface of a real cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("polyarm.msg", reason="needs the built messages")

from harness import Probe, probe, running, specs, with_parameters
from polyarm.msg import (
    Action,
    ActionResult,
    ArmVerdict,
    Grant,
    GrantTable,
    IntentReport,
    SlotVerdict,
    WorldState,
)
from polyarm.srv import ResetWorld, StepSimulation
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, UInt8
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from polyarm_nodes import qos, topics

pytestmark = pytest.mark.ros

ONLY_PLANT = ("arm_agent", "episode_monitor", "digital_twin", "model_server")
MOVING, HOLDING = 2, 3
# seed 0 of sort: blue on panel5, pink on pad2, yellow on panel7
BLUE = Action(verb="move", entity="blue_square", placement="panel3")


class Twin:
    """The twin's side of the wire, played by the test."""

    def __init__(self, node: Probe) -> None:
        self.probe = node
        self.worlds = node.record(WorldState, topics.WORLD, qos.WORLD)
        self.results = node.record(ActionResult, topics.ACTION_RESULTS, qos.RESULTS)
        self.verdicts = node.node.create_publisher(SlotVerdict, topics.VERDICTS, qos.VERDICTS)
        self.grants = node.node.create_publisher(GrantTable, topics.GRANTS, qos.GRANTS)
        self.intents = node.node.create_publisher(IntentReport, topics.INTENTS, qos.REPORTS)
        self.episode = 0

    def begin(self) -> None:
        node = self.probe
        node.wait(lambda: self.verdicts.get_subscription_count() and self.grants.get_subscription_count(), "plant")
        self.episode = node.call(ResetWorld, topics.RESET_WORLD, ResetWorld.Request(seed=0)).episode
        node.wait(lambda: bool(self.worlds) and self.worlds[-1].episode == self.episode, "world of the episode")

    def admit(self, arm: str, action: Action, token: int, slot: int = 1, duration: float = 0.5, **changes: Any) -> None:
        verdict = ArmVerdict(arm=arm, action=action, decision=ArmVerdict.DECISION_ADMIT)
        verdict.lease.token, verdict.lease.duration = token, duration
        message = SlotVerdict(episode=self.episode, slot=slot, epoch=5, sequence=1, verdicts=[verdict])
        for name, value in changes.items():
            setattr(message, name, value)
        self.verdicts.publish(message)

    def renew(self, arm: str, action: Action, token: int, slot: int = 1, duration: float = 0.5) -> None:
        grant = Grant(arm=arm, slot=slot, token=token, action=action)
        self.grants.publish(GrantTable(episode=self.episode, epoch=5, sequence=1, duration=duration, grants=[grant]))

    def status(self, arm: str) -> int:
        return next(a.status for a in self.worlds[-1].arms if a.name == arm)

    def placement(self, entity: str) -> str:
        return next(e.placement for e in self.worlds[-1].entities if e.name == entity)


@pytest.fixture()
def kinematic(tmp_path: Path) -> Any:
    graph = with_parameters(
        specs(tmp_path, leave_out=ONLY_PLANT, real_time_factor=1.0), "kinematic_bridge", action_duration=1.5
    )
    with running(graph, tmp_path), probe() as node:
        twin = Twin(node)
        twin.begin()
        yield twin


def test_a_lease_that_is_renewed_carries_its_action_to_the_end(kinematic: Twin) -> None:
    twin = kinematic
    twin.admit("bob", BLUE, token=9)
    for _ in range(10):
        twin.probe.spin(0.2)
        twin.renew("bob", BLUE, token=9)
    twin.probe.wait(lambda: bool(twin.results), "result")
    result = twin.results[0]
    assert (result.outcome, result.token, result.slot) == (ActionResult.OUTCOME_SUCCEEDED, 9, 1)
    twin.probe.wait(lambda: twin.placement("blue_square") == "panel3", "world after the move")
    twin.probe.spin(0.5)
    assert len(twin.results) == 1  # renewals of a finished lease start nothing


def test_a_lease_that_is_not_renewed_expires_and_the_arm_holds(kinematic: Twin) -> None:
    twin = kinematic
    twin.admit("bob", BLUE, token=9)
    twin.probe.wait(lambda: bool(twin.results), "result", 5.0)
    assert (twin.results[0].outcome, twin.results[0].reason) == (ActionResult.OUTCOME_STOPPED, "lease_expired")
    twin.probe.wait(lambda: twin.status("bob") == HOLDING, "arm holds")
    assert twin.placement("blue_square") == "panel5"
    twin.renew("bob", BLUE, token=9)  # the same lease does not come back
    twin.probe.spin(0.5)
    assert twin.status("bob") == HOLDING
    twin.admit("bob", BLUE, token=10, slot=2, duration=5.0)
    twin.probe.wait(lambda: twin.placement("blue_square") == "panel3", "a newer lease works")


def test_nothing_moves_on_a_token_that_is_old_or_of_another_episode(kinematic: Twin) -> None:
    twin = kinematic
    twin.admit("bob", BLUE, token=9, duration=5.0)
    twin.probe.wait(lambda: bool(twin.results), "result")
    moved = Action(verb="move", entity="blue_square", placement="panel5")
    twin.admit("bob", moved, token=8, duration=5.0)
    twin.admit("bob", moved, token=0, duration=5.0)
    twin.admit("bob", moved, token=20, duration=5.0, episode=twin.episode - 1)
    twin.admit("dave", moved, token=21, duration=5.0)
    twin.probe.spin(2.5)
    assert len(twin.results) == 1 and twin.placement("blue_square") == "panel3"


def test_a_lost_verdict_is_made_good_by_the_grant_table(kinematic: Twin) -> None:
    twin = kinematic
    for _ in range(12):
        twin.renew("bob", BLUE, token=9)
        twin.probe.spin(0.2)
    assert twin.placement("blue_square") == "panel3"


def test_in_granted_execution_a_report_alone_moves_nothing(kinematic: Twin) -> None:
    twin = kinematic
    report = IntentReport(arm="bob", episode=twin.episode, slot=1, twin_epoch=5, epoch=3, sequence=1, action=BLUE)
    report.decided_by = IntentReport.DECIDED_BY_HEURISTIC
    twin.intents.publish(report)
    twin.probe.spin(2.0)
    assert not twin.results and twin.placement("blue_square") == "panel5"


@pytest.mark.parametrize("admitted", [True, False])
def test_optimistic_starts_before_the_verdict_and_is_stopped_by_a_veto(tmp_path: Path, admitted: bool) -> None:
    graph = specs(tmp_path, leave_out=ONLY_PLANT, real_time_factor=1.0, execution="optimistic")
    graph = with_parameters(graph, "kinematic_bridge", action_duration=1.5)
    with running(graph, tmp_path), probe() as node:
        twin = Twin(node)
        twin.begin()
        node.wait(lambda: twin.intents.get_subscription_count() > 0, "plant hears reports")
        report = IntentReport(arm="bob", episode=twin.episode, slot=1, twin_epoch=5, epoch=3, sequence=1, action=BLUE)
        report.decided_by = IntentReport.DECIDED_BY_HEURISTIC
        twin.intents.publish(report)
        node.wait(lambda: twin.status("bob") == MOVING, "bob starts")
        if admitted:
            twin.admit("bob", BLUE, token=9, duration=5.0)
            node.wait(lambda: bool(twin.results), "result")
            assert (twin.results[0].outcome, twin.results[0].token) == (ActionResult.OUTCOME_SUCCEEDED, 9)
        else:
            veto = ArmVerdict(arm="bob", action=BLUE, decision=ArmVerdict.DECISION_YIELD, rule=1)
            twin.verdicts.publish(SlotVerdict(episode=twin.episode, slot=1, epoch=5, sequence=1, verdicts=[veto]))
            node.wait(lambda: bool(twin.results), "result")
            assert (twin.results[0].outcome, twin.results[0].reason) == (ActionResult.OUTCOME_STOPPED, "vetoed")
            node.wait(lambda: twin.status("bob") == 1, "bob goes home")


def joints(twin: Twin, states: list[JointState]) -> dict[str, float]:
    twin.probe.wait(lambda: bool(states), "joint states")
    return dict(zip(states[-1].name, states[-1].position, strict=True))


def test_the_mujoco_bridge_offers_what_a_real_cell_offers(tmp_path: Path) -> None:
    graph = specs(tmp_path, leave_out=ONLY_PLANT, plant="mujoco", real_time_factor=1.0)
    with running(graph, tmp_path), probe() as node:
        twin = Twin(node)
        states = node.record(JointState, "bob/joint_states", qos.JOINT_STATES)
        clock = node.record(Clock, "/clock", qos.CLOCK)
        safety = node.record(UInt8, "bob/safety_mode", qos.STATUS)
        scaling = node.record(Float64, "bob/speed_scaling", qos.STATUS)
        command = node.node.create_publisher(
            JointTrajectory, "bob/joint_trajectory_controller/joint_trajectory", qos.COMMANDS
        )
        gripper = node.node.create_publisher(Float64, "bob/gripper/command", qos.COMMANDS)
        twin.begin()
        before = joints(twin, states)
        assert len(before) == 7
        node.wait(lambda: len(clock) > 5 and bool(safety) and bool(scaling), "clock, safety mode, speed scaling")
        assert safety[-1].data == 1 and scaling[-1].data == 100.0

        name = sorted(before)[0]
        target = {**before, name: before[name] + 0.2}
        message = JointTrajectory(joint_names=list(reversed(before)))
        point = JointTrajectoryPoint(positions=[target[n] for n in message.joint_names])
        point.time_from_start.sec = 1
        message.points = [point]
        node.wait(lambda: command.get_subscription_count() > 0, "controller")

        # Without a lease nothing moves, from wherever the command comes.
        command.publish(message)
        gripper.publish(Float64(data=0.0))
        node.spin(1.5)
        assert abs(joints(twin, states)[name] - before[name]) < 0.01

        # Under a lease it does; the command replaces the action.
        twin.admit("bob", BLUE, token=9, duration=4.0)
        node.wait(lambda: twin.status("bob") == MOVING, "bob moves under the lease")
        command.publish(message)
        node.wait(lambda: abs(joints(twin, states)[name] - target[name]) < 0.02, "the trajectory's end", 10.0)
        # ... until the lease expires, which also stops a command that is under way.
        message.points = [JointTrajectoryPoint(positions=[before[n] for n in message.joint_names])]
        message.points[0].time_from_start.sec = 30
        command.publish(message)
        node.spin(5.0)
        stopped = joints(twin, states)[name]
        node.spin(1.0)
        assert abs(joints(twin, states)[name] - stopped) < 0.003 and abs(stopped - before[name]) > 0.05

        wrong = JointTrajectory(joint_names=["elbow"], points=[point])
        command.publish(wrong)  # refused, and the node lives on
        assert node.call(SetBool, topics.SET_PAUSE, SetBool.Request(data=True)).success
        node.spin(0.3)
        frozen = clock[-1].clock
        node.spin(0.5)
        assert clock[-1].clock == frozen
        stepped = node.call(StepSimulation, topics.STEP_SIMULATION, StepSimulation.Request(steps=100))
        assert stepped.success and stepped.period * 100 == pytest.approx(0.4)
        assert not node.call(StepSimulation, topics.STEP_SIMULATION, StepSimulation.Request(steps=0)).success
        node.call(SetBool, topics.SET_PAUSE, SetBool.Request(data=False))
        refused = node.call(StepSimulation, topics.STEP_SIMULATION, StepSimulation.Request(steps=1))
        assert not refused.success and "not paused" in refused.message
