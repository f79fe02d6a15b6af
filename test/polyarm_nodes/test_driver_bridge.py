"""A real cell's bridge against drivers in another process, which know nothing of Polyarm (``fake_driver.py``)."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("polyarm.msg", reason="needs the built messages")
pytest.importorskip("mujoco", reason="needs the plant")

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from harness import Probe, probe, running, specs, with_parameters
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from polyarm.msg import Action, ActionResult, ArmVerdict, SlotVerdict, WorldState
from polyarm.srv import ResetWorld
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from polyarm_core.scenario import config_directory
from polyarm_nodes import qos, topics
from polyarm_nodes.runner import Runner

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]

FAKE = Path(__file__).parents[1] / "fake_driver.py"
PAD2, PAD4, PAD6 = [-0.806, 0.505, 0.225], [-0.002, 0.502, 0.225], [0.8, 0.5, 0.225]
PANEL = {1: [-1.12, 0.502, 0.195], 3: [-0.398, 0.5, 0.195], 5: [0.4, 0.5, 0.195], 7: [1.2, 0.5, 0.195]}
IDLE, MOVING, HOLDING, PROTECTIVE_STOP = 1, 2, 3, 4
PLACES = {**{f"panel{k}": at for k, at in PANEL.items()}, "pad2": PAD2, "pad4": PAD4, "pad6": PAD6}
ARMS = ("alice", "bob", "chad")
ONLY_PLANT = ("arm_agent", "episode_monitor", "digital_twin", "model_server")


class Cell:
    """The graph of a cell beside its drivers, as a test sees it."""

    def __init__(self, node: Probe, runner: Runner, out: Path) -> None:
        self.probe, self.runner, self.out = node, runner, out
        self.worlds = node.record(WorldState, topics.WORLD, qos.every_sample(qos.WORLD))
        self.results = node.record(ActionResult, topics.ACTION_RESULTS, qos.RESULTS)
        self.verdicts = node.record(SlotVerdict, topics.VERDICTS, qos.VERDICTS)
        self.granted_occupied: list[str] = []  # grants of placements on which something really stood
        node.node.create_subscription(SlotVerdict, topics.VERDICTS, self._check_grants, qos.VERDICTS)
        self.diagnostics = node.record(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self._truth = node.record(String, "fake/truth", qos.STATUS)
        self._faults = node.node.create_publisher(String, "fake/fault", qos.COMMANDS)

    @property
    def truth(self) -> dict[str, Any]:
        return json.loads(self._truth[-1].data) if self._truth else {"arms": {}, "things": {}}

    def _check_grants(self, message: SlotVerdict) -> None:
        for verdict in message.verdicts:
            if not verdict.lease.token:
                continue
            x, y, _ = PLACES[verdict.action.placement]
            for name, at in self.truth["things"].items():
                if name != verdict.action.entity and max(abs(at[0] - x), abs(at[1] - y)) < 0.1:
                    self.granted_occupied.append(f"{verdict.arm} was granted {verdict.action.placement} under {name}")

    def fault(self, kind: str, **more: Any) -> None:
        self.probe.wait(lambda: self._faults.get_subscription_count() > 0, "the fake hears faults")
        self._faults.publish(String(data=json.dumps({"kind": kind, **more})))

    def wait(self, condition: Callable[[], bool], what: str, deadline: float = 60.0) -> None:
        def supervised() -> bool:
            self.runner._supervise()
            return condition()

        self.probe.wait(supervised, what, deadline)

    def state(self, arm: str) -> Any:
        return next(state for state in self.worlds[-1].arms if state.name == arm)

    def status(self, arm: str) -> int:
        return int(self.state(arm).status)

    def lease(self, arm: str) -> int:
        return int(self.state(arm).token)

    def holding(self, arm: str) -> str:
        return str(self.state(arm).holding)

    def where(self, entity: str) -> str:
        return next(str(state.placement) for state in self.worlds[-1].entities if state.name == entity)

    def arm(self, name: str) -> dict[str, Any]:
        return self.truth["arms"].get(name, {"held": "", "active": False, "speed": 0.0})

    def moving(self, arm: str) -> bool:
        return bool(self.arm(arm)["speed"] > 0.1)

    def at_rest(self, arm: str) -> bool:
        return bool(self.arm(arm)["speed"] < 0.01)

    def said(self, words: str) -> bool:
        """Whether the plant has said something on /diagnostics."""
        return any(
            words in status.message or any(words in value.value for value in status.values)
            for message in self.diagnostics
            for status in message.status
            if status.hardware_id == "plant"
        )

    def result(self, reason: str) -> ActionResult:
        self.wait(lambda: any(r.reason == reason for r in self.results), f"a result with reason {reason}")
        return next(r for r in self.results if r.reason == reason)

    def finished(self, deadline: float = 120.0) -> dict[str, Any]:
        """The episode's line, once it is written."""
        log = self.out / "episodes.jsonl"
        self.probe.wait(lambda: log.is_file() or self.runner._supervise(), "the end of the episode", deadline)
        self.probe.spin(0.5)
        return json.loads(log.read_text().splitlines()[0])


@contextmanager
def cell(
    out: Path, where: dict[str, list[float]], leave_out: tuple[str, ...] = (), file: str = "sort_demo"
) -> Iterator[Cell]:
    """The drivers as a process of their own, and the whole graph."""
    graph = specs(out, leave_out, plant="drivers", cell=file, real_time_factor=1.0)
    graph = with_parameters(graph, "digital_twin", deadline=5.0)
    with open(out / "fake.log", "wb") as log, probe() as node:
        fake = subprocess.Popen([sys.executable, str(FAKE), json.dumps(where)], stdout=log, stderr=log)
        try:
            with running(graph, out) as runner:
                made = Cell(node, runner, out)
                yield made
                assert fake.poll() is None, (out / "fake.log").read_text()[-2000:]
                assert made.truth["violations"] == made.granted_occupied == []
                assert made.truth["closest"] > 0.12
        finally:
            fake.send_signal(signal.SIGINT)
            fake.wait(10.0)


def test_the_fake_driver_is_independent() -> None:
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(ast.parse(FAKE.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    messages = {"rclpy", "std_msgs", "sensor_msgs", "geometry_msgs", "trajectory_msgs"}
    assert imported - set(sys.stdlib_module_names) - {"__future__"} == messages | {"mujoco", "numpy", "control_msgs"}


def test_sort_is_driven_to_completion_with_the_physics_in_another_process(tmp_path: Path) -> None:
    # Five moves of three arms: pink has to leave blue's pad over the panel that blue needs afterwards.
    where = {"blue_square": PANEL[5], "pink_polygon": PAD2, "yellow_trapezoid": PANEL[7]}
    with cell(tmp_path, where) as made:
        episode = made.finished(180.0)
        assert episode["success"], episode
        things = made.truth["things"]
        for name, goal in {"blue_square": PAD2, "pink_polygon": PAD4, "yellow_trapezoid": PAD6}.items():
            assert max(abs(a - b) for a, b in zip(things[name], goal, strict=True)) < 0.02
        assert all(
            arm["accepted"] >= 3 and arm["rejected"] == arm["aborted"] == 0 for arm in made.truth["arms"].values()
        )


def test_the_same_over_actions_where_control_msgs_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("control_msgs", reason="needs control_msgs")
    data = yaml.safe_load((config_directory() / "cells" / "sort_demo.yaml").read_text())
    for arm in data["arms"].values():
        arm["motion"] = "action"
        if arm["gripper"]["kind"] == "parallel":
            arm["gripper"]["action"] = "gripper/gripper_action"
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(data))
    with cell(tmp_path, WHERE, ONLY_PLANT, str(tmp_path / "cell.yaml")) as made:
        hand = Hand(made)
        hand.succeeds("bob", "pink_polygon", "pad4")
        token = hand.admit("chad", "yellow_trapezoid", "pad6")
        made.wait(lambda: made.moving("chad"), "chad moves")
        made.fault("blocked", arm="chad", on=True)
        hand.stopped(token, FAILED, "timeout", "its controller: tolerance of the path violated")
        made.fault("blocked", arm="chad", on=False)
        hand.succeeds("chad", "yellow_trapezoid", "pad6")
        assert made.truth["goals"] >= 8


def test_a_simulated_arm_takes_goals_under_a_lease_only(tmp_path: Path) -> None:
    pytest.importorskip("control_msgs", reason="needs control_msgs")
    from control_msgs.action import FollowJointTrajectory
    from rclpy.action import ActionClient

    graph = specs(tmp_path, ONLY_PLANT, plant="mujoco", real_time_factor=1.0)
    with running(graph, tmp_path) as runner, probe() as node:
        made = Cell(node, runner, tmp_path)
        states = node.record(JointState, "bob/joint_states", qos.JOINT_STATES)
        name = "bob/joint_trajectory_controller/follow_joint_trajectory"
        client = ActionClient(node.node, FollowJointTrajectory, name)
        hand = Hand(made)
        made.wait(lambda: bool(states) and client.server_is_ready(), "joint states and the action")
        before = dict(zip(states[-1].name, states[-1].position, strict=True))
        joint = next(iter(before))

        def goal(target: float, seconds: int) -> Any:
            point = JointTrajectoryPoint(positions=list({**before, joint: target}.values()))
            point.time_from_start.sec = seconds
            sent = client.send_goal_async(
                FollowJointTrajectory.Goal(trajectory=JointTrajectory(joint_names=list(before), points=[point]))
            )
            made.wait(sent.done, "the answer")
            return sent.result()

        def result(handle: Any) -> tuple[int, str]:
            future = handle.get_result_async()
            made.wait(future.done, "the result")
            return future.result().result.error_code, future.result().result.error_string

        assert not goal(before[joint] + 0.2, 1).accepted
        hand.admit("bob", "blue_square", "panel3")
        made.wait(lambda: made.status("bob") == MOVING, "bob has a lease")
        assert result(goal(before[joint] + 0.2, 1)) == (FollowJointTrajectory.Result.SUCCESSFUL, "")
        assert states[-1].position[states[-1].name.index(joint)] == pytest.approx(before[joint] + 0.2, abs=0.02)
        slow, fast = goal(before[joint], 20), goal(before[joint] + 0.1, 1)
        assert result(slow) == (FollowJointTrajectory.Result.INVALID_GOAL, "preempted")
        assert result(fast) == (FollowJointTrajectory.Result.SUCCESSFUL, "")


class Hand:
    """The twin's side of the wire, played by the test: leases that last as long as the test wants."""

    def __init__(self, made: Cell) -> None:
        self.cell = made
        self._verdicts = made.probe.node.create_publisher(SlotVerdict, topics.VERDICTS, qos.VERDICTS)
        self.token = 1 << 60
        self.slot = 0
        made.wait(lambda: self._verdicts.get_subscription_count() > 0, "the bridge hears verdicts")
        self.episode = made.probe.call(ResetWorld, topics.RESET_WORLD, ResetWorld.Request(seed=0)).episode
        made.wait(lambda: made.worlds[-1].episode == self.episode, "world of the episode")

    def admit(self, arm: str, entity: str, placement: str, lease: float = 60.0) -> int:
        """Grant an action; returns its token."""
        self.token += 1
        self.slot += 1
        verdict = ArmVerdict(arm=arm, decision=ArmVerdict.DECISION_ADMIT)
        verdict.action = Action(verb="move", entity=entity, placement=placement)
        verdict.lease.token, verdict.lease.duration = self.token, lease
        self._verdicts.publish(
            SlotVerdict(episode=self.episode, slot=self.slot, epoch=5, sequence=self.slot, verdicts=[verdict])
        )
        return self.token

    def result(self, token: int, deadline: float = 40.0) -> ActionResult:
        """The result of a grant."""
        self.cell.wait(lambda: any(r.token == token for r in self.cell.results), f"result of {token}", deadline)
        return next(r for r in self.cell.results if r.token == token)

    def succeeds(self, arm: str, entity: str, placement: str) -> None:
        result = self.result(self.admit(arm, entity, placement))
        assert result.outcome == ActionResult.OUTCOME_SUCCEEDED, (result.reason, result.text)
        assert self.cell.where(entity) == placement

    def stopped(self, token: int, outcome: int, reason: str, words: str = "") -> None:
        """The grant ended like this, and its arm has come to rest without a lease."""
        result = self.result(token)
        assert (result.outcome, result.reason) == (outcome, reason), result.text
        assert words in result.text
        self.cell.wait(lambda: self.cell.at_rest(result.arm), f"{result.arm} holds")
        self.cell.wait(lambda: self.cell.lease(result.arm) == 0, "the lease has ended")
        self.cell.wait(lambda: self.cell.status(result.arm) in (HOLDING, PROTECTIVE_STOP), "the world says so")


def change(made: Cell, transition: int) -> None:
    request = ChangeState.Request()
    request.transition.id = transition
    assert made.probe.call(ChangeState, "plant/change_state", request).success


STOPPED, FAILED, REFUSED = ActionResult.OUTCOME_STOPPED, ActionResult.OUTCOME_FAILED, ActionResult.OUTCOME_REFUSED
WHERE = {"blue_square": PANEL[1], "pink_polygon": PANEL[3], "yellow_trapezoid": PANEL[7]}


def test_stops_end_in_a_hold_and_nothing_moves_before_they_are_over(tmp_path: Path) -> None:
    with cell(tmp_path, WHERE, ONLY_PLANT) as made:
        hand = Hand(made)

        # A lease that nobody renews.
        token = hand.admit("alice", "blue_square", "pad2", lease=3.0)
        made.wait(lambda: made.moving("alice"), "alice moves")
        hand.stopped(token, STOPPED, "lease_expired")
        assert made.said("of alice expired, the arm holds")

        # A protective stop of the robot: its lease ends, and being released is not yet being cleared.
        token = hand.admit("bob", "pink_polygon", "pad4")
        made.wait(lambda: made.moving("bob"), "bob moves")
        made.fault("protective_stop", arm="bob")
        hand.stopped(token, STOPPED, "protective_stop", "safety mode 3 of bob")
        made.wait(lambda: made.said("safety mode 3 of bob"), "the diagnostic")
        assert made.status("bob") == PROTECTIVE_STOP
        accepted = made.arm("bob")["accepted"]
        clear = lambda: made.probe.call(Trigger, "bob/clear_protective_stop", Trigger.Request())  # noqa: E731
        refused = clear()
        assert not refused.success and "release the stop at the robot first" in refused.message
        made.fault("release", arm="bob")
        hand.stopped(hand.admit("bob", "pink_polygon", "pad4"), REFUSED, "busy")
        made.probe.spin(1.5)
        assert made.status("bob") == PROTECTIVE_STOP and made.arm("bob")["accepted"] == accepted
        assert clear().success
        made.wait(lambda: made.status("bob") == HOLDING, "bob is cleared")
        hand.succeeds("bob", "pink_polygon", "pad4")

        # Joint states that stop coming: the arm is not moved blindly; they come again, and it is there again.
        token = hand.admit("chad", "yellow_trapezoid", "pad6")
        made.wait(lambda: made.moving("chad"), "chad moves")
        made.fault("silent", arm="chad", on=True)
        hand.stopped(token, STOPPED, "protective_stop", "no joint states of chad")
        made.wait(lambda: made.said("no joint states of chad"), "the diagnostic")
        hand.stopped(hand.admit("chad", "yellow_trapezoid", "pad6"), REFUSED, "busy")
        made.fault("silent", arm="chad", on=False)
        made.wait(lambda: made.status("chad") == HOLDING, "chad is there again")
        hand.succeeds("chad", "yellow_trapezoid", "pad6")

        # A perception that falls silent holds everybody.
        token = hand.admit("alice", "blue_square", "panel3")
        made.wait(lambda: made.moving("alice"), "alice moves")
        made.fault("blind", on=True)
        hand.stopped(token, STOPPED, "protective_stop", "nothing from the perception")
        made.wait(lambda: [made.status(arm) for arm in ARMS] == [PROTECTIVE_STOP] * 3, "everybody holds")
        made.fault("blind", on=False)
        made.wait(lambda: PROTECTIVE_STOP not in [made.status(arm) for arm in ARMS], "everybody may go on")
        hand.succeeds("alice", "blue_square", "panel3")

        # A bridge that is deactivated holds and hears no grant until it is active again.
        token = hand.admit("bob", "blue_square", "panel5")
        made.wait(lambda: made.moving("bob"), "bob moves")
        change(made, Transition.TRANSITION_DEACTIVATE)
        made.wait(lambda: made.at_rest("bob"), "bob holds")
        accepted = made.arm("bob")["accepted"]
        hand.admit("bob", "blue_square", "panel5")
        made.probe.spin(1.5)
        assert made.at_rest("bob") and made.arm("bob")["accepted"] == accepted
        change(made, Transition.TRANSITION_ACTIVATE)
        hand.stopped(token, STOPPED, "reset")

        # A bridge that is told to end leaves nobody under way.
        hand.admit("bob", "blue_square", "panel5")
        made.wait(lambda: made.moving("bob"), "bob moves")
        accepted = made.arm("bob")["accepted"]
        os.kill(made.runner.pid("plant"), signal.SIGTERM)
        made.probe.wait(lambda: made.arm("bob")["accepted"] > accepted, "a last trajectory, which is the hold")
        made.probe.wait(lambda: made.at_rest("bob"), "bob holds")
        assert made.arm("bob")["held"] == ""  # it did not go on to the cube


def test_what_goes_wrong_with_the_entities_ends_in_a_hold_and_can_be_made_good(tmp_path: Path) -> None:
    with cell(tmp_path, WHERE, ONLY_PLANT) as made:
        hand = Hand(made)

        # It slips out of the gripper on the way, falls somewhere, and is taken from there.
        token = hand.admit("bob", "pink_polygon", "pad4")
        made.wait(
            lambda: made.arm("bob")["held"] == "pink_polygon" and made.arm("bob")["tool"][2] > 0.27, "bob carries"
        )
        made.wait(lambda: made.holding("bob") == "pink_polygon", "the bridge knows it")
        made.fault("slip", arm="bob")
        hand.stopped(token, FAILED, "slip", "slipped out of the gripper")
        assert made.holding("bob") == ""
        made.probe.spin(2.5)
        hand.succeeds("bob", "pink_polygon", "pad4")

        # Something is in the way of the arm.
        token = hand.admit("chad", "yellow_trapezoid", "pad6")
        made.wait(lambda: made.moving("chad"), "chad moves")
        made.fault("blocked", arm="chad", on=True)
        hand.stopped(token, FAILED, "timeout", "blocked")
        assert made.arm("chad")["aborted"] == 1  # the controller has noticed as well
        made.fault("blocked", arm="chad", on=False)
        hand.succeeds("chad", "yellow_trapezoid", "pad6")

        # A person moves it while the arm is on its way to it, and again before the next grant.
        token = hand.admit("alice", "blue_square", "panel3")
        made.wait(lambda: made.moving("alice"), "alice moves")
        made.fault("move", thing="blue_square", xyz=[-1.02, 0.42, 0.185])
        hand.stopped(token, STOPPED, "moved", "blue_square was moved by")
        made.fault("move", thing="blue_square", xyz=PAD2)
        made.wait(lambda: made.where("blue_square") == "pad2", "the world shows it")

        # A person puts something onto the destination of what is being carried there.
        token = hand.admit("alice", "blue_square", "panel3")
        made.wait(lambda: made.holding("alice") == "blue_square", "alice carries it")
        made.fault("move", thing="pink_polygon", xyz=PANEL[3])
        hand.stopped(token, FAILED, "occupied", "pink_polygon is on panel3")
        assert made.holding("alice") == made.arm("alice")["held"] == "blue_square"
        made.fault("move", thing="pink_polygon", xyz=PAD4)
        made.wait(lambda: made.where("pink_polygon") == "pad4", "the world shows it")
        hand.succeeds("alice", "blue_square", "panel3")


def test_a_cell_that_is_not_complete_says_what_is_missing_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    graph = specs(tmp_path, ONLY_PLANT, plant="drivers", cell="sort_demo", real_time_factor=1.0)
    with running(graph, tmp_path) as runner, probe() as node:
        made = Cell(node, runner, tmp_path)
        joints = node.node.create_publisher(JointState, "bob/joint_states", qos.JOINT_STATES)
        pose = node.node.create_publisher(PoseStamped, "perception/blue_square/pose", qos.JOINT_STATES)
        trajectories = node.record(JointTrajectory, "bob/joint_trajectory_controller/joint_trajectory", qos.COMMANDS)
        made.wait(lambda: made.said("waiting for alice/joint_states"), "what is missing")
        made.wait(lambda: joints.get_subscription_count() > 0 < pose.get_subscription_count(), "the bridge listens")
        names = [f"fr3_joint{k}" for k in range(1, 8)]
        wrong = PoseStamped()
        wrong.header.frame_id, wrong.pose.orientation.w = "camera", 1.0
        turned = PoseStamped()
        turned.header.frame_id = "world"
        turned.pose.orientation.w = 0.5
        nowhere = PoseStamped()
        nowhere.header.frame_id, nowhere.pose.orientation.w, nowhere.pose.position.x = "world", 1.0, float("nan")
        for publisher, message, words in (
            (joints, JointState(name=names[:6], position=[0.0] * 6), "joint states of bob: no position of fr3_joint7"),
            (joints, JointState(name=names, position=[0.0] * 3), "joint states of bob: 7 names and 3 positions"),
            (joints, JointState(name=names, position=[float("inf")] * 7), "joint states of bob: position[0] = inf"),
            (pose, wrong, "pose of blue_square: frame_id 'camera', expected 'world'"),
            (pose, turned, "pose of blue_square: orientation [0.5, 0.0, 0.0, 0.0] is no unit quaternion"),
            (pose, nowhere, "pose of blue_square: pose.position.x = nan is not finite"),
        ):
            publisher.publish(message)
            made.wait(lambda words=words: made.said(words), words)
        # What is well-formed counts, and is no longer missing; half a world is not published, nor is a reset offered.
        joints.publish(JointState(name=[*names, "fr3_finger_joint1", "fr3_finger_joint2"], position=[0.0] * 9))
        right = PoseStamped()
        right.header.frame_id, right.pose.orientation.w = "world", 1.0
        pose.publish(right)
        begun = len(made.diagnostics)
        made.wait(lambda: len(made.diagnostics) > begun + 1, "the next diagnostic")
        said = [s.message for m in made.diagnostics[begun:] for s in m.status if s.hardware_id == "plant"][-1]
        assert "bob/safety_mode" in said and "bob/joint_states" not in said and "blue_square" not in said
        assert not made.worlds and not trajectories
        assert topics.RESET_WORLD not in "".join(name for name, _ in node.node.get_service_names_and_types())


def test_an_episode_goes_on_after_everything_that_may_happen_to_it(tmp_path: Path) -> None:
    """Twin and an agent killed, a protective stop, an object moved by a person: the cubes are sorted all the same."""
    where = {"blue_square": PANEL[5], "pink_polygon": PAD2, "yellow_trapezoid": PANEL[7]}
    with cell(tmp_path, where) as made:
        # The twin dies: leases run out, whoever moves holds.
        made.wait(lambda: made.moving("bob") or made.moving("alice"), "somebody moves", 90.0)
        os.kill(made.runner.pid("digital_twin"), signal.SIGKILL)
        made.result("lease_expired")
        made.wait(lambda: all(made.at_rest(arm) for arm in ARMS), "everybody holds")
        # The next one begins with what the plant shows. Meanwhile an agent dies, and a robot stops.
        os.kill(made.runner.pid("arm_agent", "/chad"), signal.SIGKILL)
        made.wait(lambda: made.moving("alice"), "the new twin grants", 90.0)
        made.fault("protective_stop", arm="alice")
        made.result("protective_stop")
        made.fault("release", arm="alice")
        made.probe.spin(0.5)
        assert made.probe.call(Trigger, "alice/clear_protective_stop", Trigger.Request()).success
        # Between slots a person moves a cube that nobody holds to where an arm has to fetch it again.
        made.wait(lambda: made.where("yellow_trapezoid") == "pad6" and made.at_rest("chad"), "yellow is there", 90.0)
        made.fault("move", thing="yellow_trapezoid", xyz=PANEL[7])
        made.wait(lambda: made.where("yellow_trapezoid") == "panel7", "the world shows it")
        episode = made.finished(150.0)
        assert episode["success"], episode
    for world in made.worlds:  # no placement with two entities on it, whatever restarted
        standing = [entity.placement for entity in world.entities if not entity.held_by]
        assert len(set(standing)) == len(standing)
    tokens = [v.lease.token for message in made.verdicts for v in message.verdicts if v.lease.token]
    assert tokens == sorted(set(tokens))
