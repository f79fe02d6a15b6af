"""Driver bridge: a real cell behind the interface of every other plant.

It carries out granted actions with the same skills, but over the drivers that a cell file names: trajectories and
gripper commands out, joint states, safety modes and the perception's poses in. It says on /diagnostics what is missing
and why an arm holds. There is no optimistic execution, no pause and no clock of its own here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticStatus
from geometry_msgs.msg import PoseStamped
from polyarm.msg import GrantTable, SlotVerdict
from polyarm.srv import ResetWorld
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64, UInt8
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from polyarm_core.cell import CellArm, ParallelGripper, load_cell
from polyarm_core.errors import PolyarmError
from polyarm_core.plant.drivers import Commands, DriverLoop, DriverPlant, JointSample, Seen
from polyarm_core.plant.motion import Trajectory
from polyarm_nodes import qos, topics
from polyarm_nodes.lifecycle import run_node
from polyarm_nodes.parameters import DRIVER_BRIDGE, Parameter
from polyarm_nodes.plant_bridge import CALL_TIMEOUT, PlantBridge
from polyarm_nodes.validation import Malformed, check_message

READY_PERIOD = 0.25  # s between two looks whether the cell is complete
MIN_SAMPLE_PERIOD = 0.005  # s between two joint states that are looked at: some drivers send 1000 a second
HANDOVER = 0.2  # s that the last commands may take to reach the controllers


def trajectory_message(joints: tuple[str, ...], trajectory: Trajectory) -> JointTrajectory:
    """A trajectory that a joint_trajectory_controller begins at once (stamp 0)."""
    message = JointTrajectory(joint_names=list(joints))
    for at, positions, velocities in zip(trajectory.times, trajectory.positions, trajectory.velocities, strict=True):
        nanoseconds = round(float(at) * 1e9)
        message.points.append(
            JointTrajectoryPoint(
                positions=positions.tolist(),
                velocities=velocities.tolist(),
                time_from_start=Duration(sec=nanoseconds // 1_000_000_000, nanosec=nanoseconds % 1_000_000_000),
            )
        )
    return message


def _positions(message: JointState) -> dict[str, float]:
    """Joint -> position. Raises Malformed."""
    check_message(message)
    if len(message.position) != len(message.name):
        raise Malformed(f"{len(message.name)} names and {len(message.position)} positions")
    return dict(zip(message.name, message.position, strict=True))


class DriverBridge(PlantBridge):
    """Skills over drivers, beliefs from sensors."""

    plant: DriverPlant

    def __init__(self) -> None:
        super().__init__(topics.PLANT)
        self._started = False

    def parameter_table(self) -> Mapping[str, Parameter]:
        return DRIVER_BRIDGE

    def make_plant(self) -> Any:
        self._cell, self.scenario = load_cell(self.values["scenario"])
        self._frame = self._cell.frame or self.scenario.frame
        self._stamps: dict[str, int] = {}
        commands = {name: self._commands(name, arm) for name, arm in self._cell.arms.items()}
        self.plant = DriverPlant(self._cell, self.scenario, commands, self.values["velocity_scaling"])
        for name, arm in self._cell.arms.items():
            self._listen(name, arm)
        for entity in self.scenario.entities:
            self.create_subscription(
                PoseStamped, self._cell.entity_topic(entity), partial(self._on_pose, entity), qos.JOINT_STATES
            )
        return self.plant

    def make_loop(self, plant: Any) -> DriverLoop:
        return DriverLoop(plant, self._on_period)

    def offer_services(self) -> None:
        """Reset is offered once the cell is complete; before that an episode would begin with half a world."""
        for name, arm in self._cell.arms.items():
            self.create_service(Trigger, arm.topic("clear_protective_stop"), partial(self._on_clear, name))
        self._complete = False
        self.create_steady_timer(READY_PERIOD, self._look_complete)

    def _look_complete(self) -> None:
        if not self._complete and self.active and not self.plant.missing() and not self.plant.faults():
            self._complete = True
            self.create_service(ResetWorld, "~/reset_world", self._on_reset)

    # -- lifecycle: whatever ends, arms hold ---------------------------------------------------------------------------

    def activate(self) -> None:
        if not self._started:
            self._started = True
            self.loop.start()

    def deactivate(self) -> None:
        self.loop.call(self._hold_all, timeout=CALL_TIMEOUT)

    def _hold_all(self, plant: Any) -> None:
        self._guard.end_all(list(self.scenario.arms))
        for name in self.scenario.arms:
            plant.stop(name, "reset")

    def close(self) -> None:
        super().close()
        time.sleep(HANDOVER)  # the holds are on their way; a publisher that is gone delivers nothing

    def _on_verdict(self, message: SlotVerdict) -> None:
        if self.active:
            super()._on_verdict(message)

    def _on_grants(self, message: GrantTable) -> None:
        if self.active:
            super()._on_grants(message)

    # -- drivers ----------------------------------------------------------------------------------------------------

    def _commands(self, name: str, arm: CellArm) -> Commands:
        gripper = arm.gripper
        action = gripper.action if isinstance(gripper, ParallelGripper) else None
        if arm.motion == "action" or action is not None:
            try:
                from polyarm_nodes.trajectory_action import GripperClient, TrajectoryClient
            except ImportError:
                raise PolyarmError(
                    f"arms.{name} is to be commanded by actions, but control_msgs is not installed: install that ROS "
                    "package, or choose motion: topic and no gripper.action"
                ) from None
        if isinstance(gripper, ParallelGripper) and action is not None:
            fingers = GripperClient(self, arm.topic(action), gripper.max_effort)
            grip = lambda opening: fingers.send(gripper.position(opening))  # noqa: E731
        else:
            publisher = self.create_publisher(Float64, arm.topic(gripper.command), qos.COMMANDS)
            grip = lambda opening: publisher.publish(Float64(data=float(opening)))  # noqa: E731
        if arm.motion == "action":
            send = TrajectoryClient(
                self, arm.topic(f"{arm.controller}/follow_joint_trajectory"), partial(self._on_aborted, name)
            ).send
        else:
            send = self.create_publisher(
                JointTrajectory, arm.topic(f"{arm.controller}/joint_trajectory"), qos.COMMANDS
            ).publish
        return Commands(trajectory=lambda trajectory: send(trajectory_message(arm.joints, trajectory)), gripper=grip)

    def _listen(self, name: str, arm: CellArm) -> None:
        listen = self.create_subscription
        listen(JointState, arm.topic(arm.joint_states), partial(self._on_joints, name), qos.JOINT_STATES)
        if arm.safety_mode is not None:
            listen(UInt8, arm.topic(arm.safety_mode), partial(self._on_safety, name), qos.STATUS)
        if arm.speed_scaling is not None:
            listen(Float64, arm.topic(arm.speed_scaling), partial(self._on_scaling, name), qos.JOINT_STATES)
        gripper = arm.gripper
        if isinstance(gripper, ParallelGripper):
            state = gripper.state
            if isinstance(state, str):
                listen(Float64, arm.topic(state), partial(self._on_opening, name), qos.JOINT_STATES)
            elif state.topic is not None:
                listen(JointState, arm.topic(state.topic), partial(self._on_fingers, name), qos.JOINT_STATES)
        elif gripper.detected is not None:
            listen(Bool, arm.topic(gripper.detected), partial(self._on_detected, name), qos.JOINT_STATES)

    def _fresh(self, source: str, stamp: Time) -> bool:
        """Whether a stamp is newer than the last: what is sent again and again with an old one is not news."""
        nanoseconds = stamp.sec * 1_000_000_000 + stamp.nanosec
        before, self._stamps[source] = self._stamps.get(source, -1), nanoseconds
        return nanoseconds == 0 or nanoseconds != before

    # Samples are assigned whole; the loop's thread takes the newest at its next step.

    def _on_joints(self, name: str, message: JointState) -> None:
        arm, now = self.plant.arms[name], time.monotonic()
        wanted = self._cell.arms[name].joints
        if arm.joint_sample is not None and now - arm.joint_sample.at < MIN_SAMPLE_PERIOD and wanted[0] in message.name:
            return
        try:
            positions = _positions(message)
            arm.take_fingers(positions)
            if not set(wanted) & set(positions):
                return  # of something else that publishes on the same topic: a gripper, a rail
            if missing := [joint for joint in wanted if joint not in positions]:
                raise Malformed(f"no position of {', '.join(missing)}; got {', '.join(message.name)}")
        except Malformed as why:
            self.refuse("malformed", f"joint states of {name}: {why}")
            return
        if not self._fresh(f"joints of {name}", message.header.stamp):
            return
        velocities = {}
        if len(message.velocity) == len(message.name):
            velocities = dict(zip(message.name, message.velocity, strict=True))
        arm.joint_sample = JointSample(positions, velocities, now)

    def _on_fingers(self, name: str, message: JointState) -> None:
        try:
            self.plant.arms[name].take_fingers(_positions(message))
        except Malformed as why:
            self.refuse("malformed", f"finger joints of {name}: {why}")

    def _on_safety(self, name: str, message: UInt8) -> None:
        self.plant.arms[name].safety_mode = message.data

    def _on_scaling(self, name: str, message: Float64) -> None:
        if not np.isfinite(message.data):
            self.refuse("malformed", f"speed scaling of {name}: {message.data}")
            return
        self.plant.arms[name].scaling = float(np.clip(message.data / 100.0, 0.0, 1.0))

    def _on_opening(self, name: str, message: Float64) -> None:
        if not np.isfinite(message.data):
            self.refuse("malformed", f"opening of {name}: {message.data}")
            return
        self.plant.arms[name].opening_sample = message.data

    def _on_detected(self, name: str, message: Bool) -> None:
        self.plant.arms[name].detected = message.data

    def _on_aborted(self, name: str, why: str) -> None:
        self.plant.arms[name].aborted = why

    def _on_pose(self, entity: str, message: PoseStamped) -> None:
        p, q = message.pose.position, message.pose.orientation
        quaternion = np.array([q.w, q.x, q.y, q.z])
        try:
            check_message(message)
            if message.header.frame_id != self._frame:
                raise Malformed(f"frame_id {message.header.frame_id!r}, expected {self._frame!r}")
            if abs(float(np.linalg.norm(quaternion)) - 1.0) > 0.01:
                raise Malformed(f"orientation {quaternion.tolist()} is no unit quaternion")
        except Malformed as why:
            self.refuse("malformed", f"pose of {entity}: {why}")
            return
        if self._fresh(f"pose of {entity}", message.header.stamp):
            self.plant.seen[entity] = Seen((np.array([p.x, p.y, p.z]), quaternion), time.monotonic())

    def _on_clear(self, name: str, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        try:
            self.loop.call(lambda plant: plant.clear(name), timeout=CALL_TIMEOUT)
            response.success = True
        except PolyarmError as error:
            response.message = str(error)
        return response

    # -- what is told -----------------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        if not self.active:
            return
        if self.loop.error is not None:
            self.report(DiagnosticStatus.ERROR, f"the plant stopped: {self.loop.error!r}")
            raise self.loop.error
        self.loop.post(self._publish_world)
        missing, faults = self.plant.missing(), self.plant.faults()
        values = {f"fault_{name}": faults.get(name, "") for name in self.scenario.arms}
        if missing:
            self.report(DiagnosticStatus.WARN, "waiting for " + ", ".join(missing), **values)
        elif faults:
            self.report(DiagnosticStatus.ERROR, "; ".join(dict.fromkeys(faults.values())), **values)
        else:
            self.report(DiagnosticStatus.OK, "active", **values)

    def _publish_world(self, plant: Any) -> None:
        if len(plant.poses()) == len(self.scenario.entities):  # half a world would be refused by everybody
            super()._publish_world(plant)


def main() -> None:
    """Run the node."""
    run_node(DriverBridge)
