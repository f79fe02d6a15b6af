"""MuJoCo bridge: the simulated plant behind the ROS interface of a real cell.

Per arm, in the arm's namespace, it offers what the drivers of a real cell offer (joint states, trajectory controller,
gripper command, safety mode), so that drivers can take its place; and it carries out granted actions with the skills
of polyarm_core. In ``granted`` execution nothing moves without a valid lease, commands from outside included.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64, UInt8
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from polyarm_core.errors import PolyarmError
from polyarm_core.plant.motion import Trajectory
from polyarm_core.plant.simulation import Simulation
from polyarm_nodes import qos, topics
from polyarm_nodes.lifecycle import run_node
from polyarm_nodes.parameters import MUJOCO_BRIDGE, Parameter
from polyarm_nodes.plant_bridge import CALL_TIMEOUT, PlantBridge
from polyarm_nodes.validation import Malformed, check_message

SAFETY_NORMAL, SAFETY_PROTECTIVE_STOP = 1, 3  # numbers of UR's safety modes
# s of wall time between samples of a stream, however fast the simulation runs; every node hears the clock
MIN_STREAM_PERIOD, MIN_CLOCK_PERIOD = 0.004, 0.01


class MujocoBridge(PlantBridge):
    """Physics in a worker thread, skills for granted actions, and the topics of a real cell."""

    def __init__(self) -> None:
        super().__init__(topics.PLANT)

    def parameter_table(self) -> Mapping[str, Parameter]:
        return MUJOCO_BRIDGE

    def make_plant(self) -> Simulation:
        planning = "inline" if self.values["real_time_factor"] == 0.0 else "thread"
        return Simulation(self.scenario, planning=planning)

    def configure(self) -> None:
        super().configure()
        self._next_clock = self._next_joints = 0.0
        self._last_stream = self._last_joints = 0.0
        self._safety: dict[str, int] = {}
        self._clock_out = self.create_publisher(ClockMessage, "/clock", qos.CLOCK)
        self._joint_states: dict[str, Any] = {}
        self._safety_modes: dict[str, Any] = {}
        for arm in self.scenario.arms:
            controller = f"{arm}/{self.values['controller']}"
            self._joint_states[arm] = self.create_publisher(
                JointState, f"{arm}/{topics.JOINT_STATES}", qos.JOINT_STATES
            )
            self._safety_modes[arm] = self.create_publisher(UInt8, f"{arm}/{topics.SAFETY_MODE}", qos.STATUS)
            scaling = self.create_publisher(Float64, f"{arm}/{topics.SPEED_SCALING}", qos.STATUS)
            scaling.publish(Float64(data=100.0))
            self.create_subscription(
                JointTrajectory, f"{controller}/joint_trajectory", partial(self._on_trajectory, arm), qos.COMMANDS
            )
            self.create_subscription(
                Float64, f"{arm}/{topics.GRIPPER_COMMAND}", partial(self._on_gripper, arm), qos.COMMANDS
            )
            self.create_service(Trigger, f"{arm}/clear_protective_stop", partial(self._on_clear, arm))
            self._offer_action(arm, controller)

    def _offer_action(self, arm: str, controller: str) -> None:
        try:
            from polyarm_nodes.trajectory_action import TrajectoryAction
        except ImportError:  # control_msgs is not installed: the topic is there all the same
            return
        TrajectoryAction(self, arm, f"{controller}/follow_joint_trajectory")

    # -- commands from outside ------------------------------------------------------------------------------------

    def may_move(self, arm: str) -> bool:
        """Whether a command from outside may move an arm now: in granted execution only under a valid lease."""
        return self._optimistic or self._guard.valid(arm, time.monotonic()) is not None

    def read_trajectory(self, arm: str, message: JointTrajectory) -> Trajectory:
        """A joint trajectory in the arm's own joint order. Raises Malformed."""
        check_message(message)
        names = self.loop.call(lambda plant: plant.arm(arm).joints, timeout=CALL_TIMEOUT)
        if sorted(message.joint_names) != sorted(names):
            raise Malformed(f"joint_names = {list(message.joint_names)}; expected {list(names)} in any order")
        if not message.points:
            raise Malformed("points is empty")
        order = [list(message.joint_names).index(name) for name in names]
        times = [p.time_from_start.sec + p.time_from_start.nanosec * 1e-9 for p in message.points]
        if any(len(p.positions) != len(names) for p in message.points):
            raise Malformed(f"every point needs {len(names)} positions")
        positions = np.array([p.positions for p in message.points])[:, order]
        if all(len(p.velocities) == len(names) for p in message.points):
            velocities = np.array([p.velocities for p in message.points])[:, order]
        elif len(times) > 1:
            velocities = np.gradient(positions, times, axis=0)
        else:
            velocities = np.zeros_like(positions)
        return Trajectory(np.array(times), positions, velocities)

    def _on_trajectory(self, arm: str, message: JointTrajectory) -> None:
        try:
            trajectory = self.read_trajectory(arm, message)
        except Malformed as why:
            self.refuse("malformed", f"trajectory of {arm}: {why}")
            return
        self.loop.post(lambda plant: self._follow(plant, arm, trajectory))

    def _follow(self, plant: Simulation, arm: str, trajectory: Trajectory) -> None:
        if not self.may_move(arm):
            self.refuse("no_lease", f"trajectory for {arm}, which has no valid lease")
            return
        try:
            self.commanded.add(arm)
            plant.send_trajectory(arm, trajectory)
        except PolyarmError as error:
            self.refuse("trajectory", str(error))

    def _on_gripper(self, arm: str, message: Float64) -> None:
        def command(plant: Simulation) -> None:
            if not self.may_move(arm):
                self.refuse("no_lease", f"gripper command for {arm}, which has no valid lease")
                return
            try:
                plant.command_gripper(arm, message.data)
            except PolyarmError as error:
                self.refuse("gripper", str(error))

        self.loop.post(command)

    def _on_clear(self, arm: str, _request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.loop.call(lambda plant: plant.clear(arm), timeout=CALL_TIMEOUT)
        response.success = True
        return response

    # -- streams, from the loop's thread --------------------------------------------------------------------------

    def on_period(self, plant: Simulation) -> None:
        wall, now = time.monotonic(), self._elapsed + plant.time
        if now >= self._next_clock and wall - self._last_stream >= MIN_CLOCK_PERIOD:
            self._next_clock, self._last_stream = now + 1.0 / self.values["clock_rate"], wall
            self._clock_out.publish(ClockMessage(clock=self.stamp(plant)))
        if now >= self._next_joints and wall - self._last_joints >= MIN_STREAM_PERIOD:
            self._next_joints, self._last_joints = now + 1.0 / self.values["joint_state_rate"], wall
            self._publish_joints(plant)

    def _publish_joints(self, plant: Simulation) -> None:
        for arm, publisher in self._joint_states.items():
            view = plant.arm(arm)
            message = JointState(
                name=list(view.joints), position=view.positions.tolist(), velocity=view.velocities.tolist()
            )
            message.header.stamp = self.stamp(plant)
            publisher.publish(message)
            mode = SAFETY_PROTECTIVE_STOP if view.status == "protective_stop" else SAFETY_NORMAL
            if self._safety.get(arm) != mode:
                self._safety[arm] = mode
                self._safety_modes[arm].publish(UInt8(data=mode))


def main() -> None:
    """Run the node."""
    run_node(MujocoBridge)
