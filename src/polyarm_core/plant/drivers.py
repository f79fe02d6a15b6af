"""A plant whose physics is the real world: skills over the drivers of a cell, beliefs from its sensors.

The simulator's scene serves as planning model and for forward kinematics only; nothing is stepped. Measurements come
in from any thread as whole samples; one thread calls `DriverPlant.step`, which is where everything is decided.

An arm holds, and takes nothing, while its joint states or the perception are silent for longer than the cell's
deadlines, or while its safety mode is not normal. Silence ends by itself; a protective stop only by `clear`.
"""

from __future__ import annotations

import queue
import time as clock
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import mujoco
import numpy as np

from polyarm_core.cell import Cell, CellArm, FingerJoints, ParallelGripper
from polyarm_core.constraints import Action
from polyarm_core.declaration import declare
from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_core.plant.motion import MotionPlanner, PlanningScene, Pose, Trajectory, matrix_of
from polyarm_core.plant.scene import ArmIndex, Array, Scene, build_scene
from polyarm_core.plant.simulation import ArmView, SimulationLoop
from polyarm_core.plant.skills import (
    WIDTH_TOLERANCE,
    ActionResult,
    ArmBusy,
    GripperState,
    MotionState,
    SkillExecutor,
    Status,
)
from polyarm_core.scenario import Scenario
from polyarm_core.world import World, locate

PERIOD = 0.02
"""Time between two looks at the arms, s."""
STOP_TIME = 0.25
"""A smooth stop slows down along the trajectory within this time, s."""
PATH_TOLERANCE = 0.2
"""An arm that is further than this from where its trajectory was within `LAG` is blocked, rad."""
LAG = 0.5
"""How late an arm may be behind its trajectory, s: latency, tracking, age of the measurement."""
GOAL_TOLERANCE, REST_SPEED = 0.01, 0.05
"""An arm has arrived when every joint is this close (rad) and this slow (rad/s)."""
GRASP_RADIUS = 0.03
"""An entity is in the gripper when its centre is this close to the tool's axis and to the height of the grasp, m."""
EMPTY = 0.003
"""Fingers closer than this to fully closed hold nothing, m."""
LOST_DISTANCE = 0.06
"""A held entity that is perceived further than this from wherever the tool carried it within `LAG` has slipped, m."""
MOVED_DISTANCE = 0.03
"""An entity that is perceived this far from where its pick was planned to has been moved, m."""
RECOVERY = 1.0
"""Inputs must have been there again for this long before an arm takes anything, s."""
NORMAL_MODES = (1, 2)
"""Safety modes in which an arm may move: normal, reduced (UR's numbers)."""


@dataclass(frozen=True)
class JointSample:
    """Joint states of an arm: positions by joint name (rad or m), velocities likewise or empty, steady time ``at``."""

    positions: Mapping[str, float]
    velocities: Mapping[str, float]
    at: float


@dataclass(frozen=True)
class Seen:
    """Where the perception saw an entity, and when (steady clock, s)."""

    pose: Pose
    at: float


@dataclass
class Commands:
    """How one arm is commanded: what the bridge publishes."""

    trajectory: Callable[[Trajectory], None]
    gripper: Callable[[float], None]


class DriverArm:
    """One arm behind its drivers: the port that its skills drive.

    Inputs (``joint_sample``, ``opening_sample``, ``detected``, ``safety_mode``, ``scaling``) may be assigned by any
    thread. ``time`` is the arm's own: it passes as fast as its controller lets trajectories advance.
    """

    def __init__(self, index: ArmIndex, cell: CellArm, commands: Commands) -> None:
        self.index = index
        self.cell = cell
        self.joint_sample: JointSample | None = None
        self.opening_sample: float | None = None
        self.detected: bool | None = None
        self.safety_mode: int | None = None
        self.scaling = 1.0
        self.aborted = ""  # what the controller said when it gave up the newest trajectory; any thread may assign it
        self.complaint = ""  # the same, kept until a result has passed it on
        self.time = 0.0
        self.holding = ""
        self._commands = commands
        self._trajectory: Trajectory | None = None
        self._elapsed = 0.0
        self._failed = False
        self._closed: bool | None = None  # as commanded; None = never commanded
        self._positions = np.array(index.robot.home)
        self._velocities = np.zeros(index.robot.dof)
        self._measured_at = 0.0

    # -- ArmPort ------------------------------------------------------------------------------------------------------

    def joints(self) -> Array:
        """Measured joint positions (n,), rad."""
        return self._positions

    def velocities(self) -> Array:
        """Measured joint velocities (n,), rad/s."""
        return self._velocities

    def send_trajectory(self, trajectory: Trajectory) -> None:
        """Follow a trajectory from now on.

        What is sent has no sample at time 0: a controller begins at its own state, which is never quite ours.
        """
        self._trajectory, self._elapsed, self._failed, self.aborted = trajectory, 0.0, False, ""
        later = trajectory.times > 1e-6
        if later.any():
            self._commands.trajectory(
                Trajectory(trajectory.times[later], trajectory.positions[later], trajectory.velocities[later])
            )

    def motion(self) -> MotionState:
        """Of the last trajectory."""
        if self._failed:
            return "failed"
        if self._trajectory is None:
            return "idle"
        if self._elapsed < self._trajectory.duration:
            return "moving"
        off = np.abs(self._positions - self._trajectory.positions[-1]).max()
        return "done" if off < GOAL_TOLERANCE and np.abs(self._velocities).max() < REST_SPEED else "moving"

    @property
    def in_motion(self) -> bool:
        """Whether it is under way, wherever to; an arm that came to rest somewhere else is not."""
        under_way = self._trajectory is not None and self._elapsed < self._trajectory.duration and not self._failed
        return under_way or bool(np.abs(self._velocities).max() > REST_SPEED)

    def hold(self) -> None:
        """Slow down along the trajectory, so that the arm stays on the planned path; if it has left that, where it is.

        The stop begins where the controller is, not where the last joint states were: those may be missing.
        """
        trajectory, begin = self._trajectory, self._elapsed
        if self._failed or self.aborted:
            self.hold_here()
            return
        if trajectory is None or begin >= trajectory.duration:
            return
        steps = np.linspace(0.0, 1.0, 9)
        # Rate 1 -> 0: elapsed time advances by s - s^2/2 (in units of STOP_TIME), velocities scale with 1 - s.
        samples = [trajectory.sample(begin + STOP_TIME * (s - s * s / 2)) for s in steps]
        stop = Trajectory(
            STOP_TIME * steps,
            np.array([position for position, _ in samples]),
            np.array([velocity * (1.0 - s) for (_, velocity), s in zip(samples, steps, strict=True)]),
        )
        self.send_trajectory(stop)

    def hold_here(self) -> None:
        """Stop at the measured position."""
        here = np.array([self._positions, self._positions])
        self.send_trajectory(Trajectory(np.array([0.0, STOP_TIME]), here, np.zeros_like(here)))

    def command_gripper(self, opening: float) -> None:
        """Opening to go to, m, within what the gripper has; suction: 0 on, 1 off."""
        self._closed = opening < 0.5 * self.index.robot.opening
        gripper = self.cell.gripper
        if isinstance(gripper, ParallelGripper):
            opening = float(np.clip(opening, gripper.closed, gripper.open))
        self._commands.gripper(opening)

    def gripper(self) -> GripperState:
        """What the gripper reports; an entity counts as in it until the fingers are measurably off it."""
        return GripperState(self.opening(), bool(self.holding))

    # -- measurements -------------------------------------------------------------------------------------------------

    def opening(self) -> float:
        """Measured opening, m; suction: as commanded, 0 on, 1 off."""
        gripper = self.cell.gripper
        if not isinstance(gripper, ParallelGripper):
            return 0.0 if self._closed else 1.0
        return gripper.open if self.opening_sample is None else self.opening_sample

    def missing(self) -> list[str]:
        """Inputs that have never come."""
        gripper, cell = self.cell.gripper, self.cell
        found = {
            cell.joint_states: self.joint_sample is not None,
            cell.safety_mode or "": cell.safety_mode is None or self.safety_mode is not None,
        }
        if isinstance(gripper, ParallelGripper):
            state = gripper.state
            name = state if isinstance(state, str) else state.topic or cell.joint_states
            found[name] = found.get(name, True) and self.opening_sample is not None
        elif gripper.detected is not None:
            found[gripper.detected] = self.detected is not None
        return [cell.topic(name) for name, there in found.items() if not there]

    def silent_for(self, now: float) -> float:
        """Age of the newest joint states, s."""
        return now - self.joint_sample.at if self.joint_sample is not None else float("inf")

    def update(self, passed: float) -> None:
        """Take in the newest joint states; ``passed`` s since the last call. Notices when the arm leaves its path."""
        sample = self.joint_sample
        if sample is not None and sample.at != self._measured_at:
            names = self.cell.joints
            positions = np.array([sample.positions[name] for name in names])
            if sample.velocities:
                self._velocities = np.array([sample.velocities[name] for name in names])
            elif self._measured_at:
                self._velocities = (positions - self._positions) / max(sample.at - self._measured_at, 1e-3)
            self._positions, self._measured_at = positions, sample.at
        passed *= self.scaling
        self.time += passed
        trajectory = self._trajectory
        if trajectory is None or self._failed:
            return
        self._elapsed += passed
        recent = np.linspace(max(self._elapsed - LAG, 0.0), self._elapsed, 11)
        off = min(float(np.abs(self._positions - trajectory.sample(t)[0]).max()) for t in recent)
        if self.aborted or off > PATH_TOLERANCE:
            self._failed, self.complaint = True, self.aborted

    def take_fingers(self, positions: Mapping[str, float]) -> None:
        """Joint positions among which the finger joints may be; any thread may call it."""
        gripper = self.cell.gripper
        if isinstance(gripper, ParallelGripper) and isinstance(gripper.state, FingerJoints):
            state = gripper.state
            if all(name in positions for name in state.joints):
                self.opening_sample = state.offset + state.scale * sum(positions[name] for name in state.joints)

    def senses(self) -> bool:
        """Whether the gripper itself, without the perception, may be holding something."""
        gripper = self.cell.gripper
        if isinstance(gripper, ParallelGripper):
            opening = self.opening()
            if opening <= gripper.closed + EMPTY:
                return False
            # Told to open: it lets go once the fingers are apart. Never told: not wide open = closed on something.
            return bool(self._closed) or opening < gripper.open - WIDTH_TOLERANCE / 2
        if gripper.detected is not None:
            return bool(self.detected)
        return bool(self._closed)

    @property
    def may_grasp(self) -> bool:
        """Whether the gripper was told to close, or was never told anything."""
        return self._closed is not False


class DriverPlant:
    """The cell as a plant; the part of `Simulation`'s interface that a bridge needs. See the module's text on threads.

    Args:
        cell: what the drivers offer.
        scenario: as measured in the cell (`load_cell`).
        commands: arm -> how it is commanded; called in the thread that calls `step`.
        velocity_scaling: share of the cell's speeds, on top of each arm's own; for the first runs in a new cell.
        steady: clock of all deadlines, s.

    Raises:
        InvalidValue: joints or gripper that the robot model does not have, or operators, which have no skills here.
        PolyarmError: a placement in an arm's reach that it cannot reach.
    """

    def __init__(
        self,
        cell: Cell,
        scenario: Scenario,
        commands: Mapping[str, Commands],
        velocity_scaling: float = 1.0,
        steady: Callable[[], float] = clock.monotonic,
    ) -> None:
        if scenario.operators:
            verbs = ", ".join(sorted({operator.verb for operator in scenario.operators}))
            raise InvalidValue("scenario", scenario.name, f"one of 'move' alone; drivers have no skill for {verbs}")
        self.cell = cell
        self.scenario = scenario
        self.scene = _with_speeds(build_scene(scenario, visuals=False), cell, velocity_scaling)
        self.planner = MotionPlanner(self.scene)
        self._check()
        self._data = mujoco.MjData(self.scene.model)
        self._pool = ThreadPoolExecutor(1, "planner")
        self.arms = {name: DriverArm(index, cell.arms[name], commands[name]) for name, index in self.scene.arms.items()}
        self._skills = {
            name: SkillExecutor(name, scenario, arm, self.planner, self._pool.submit) for name, arm in self.arms.items()
        }
        self._steady = steady
        self._stepped_at = steady()
        self._began = self._stepped_at
        self.seen: dict[str, Seen] = {}  # may be assigned to by any thread
        self._belief: dict[str, Pose] = {}
        self._looked_at: dict[str, float] = {}
        self._grasps: dict[str, tuple[str, Array]] = {}  # entity -> (arm, pose of the entity in the tool frame)
        self._tools: dict[str, deque[tuple[float, Array]]] = {name: deque() for name in self.arms}
        self._planned_at: dict[str, Array] = {}  # arm -> where the entity of its action was when it was started
        self._faults: dict[str, str] = {}
        self._good_since: dict[str, float] = {}
        self._latched: set[str] = set()  # arms in protective stop until somebody clears it
        self._results: list[ActionResult] = []
        self._actions = 0
        self.seed = 0
        self.arm_contacts = 0  # there is no sensor for them; a contact shows as a protective stop

    def _check(self) -> None:
        for name, arm in self.cell.arms.items():
            robot = self.scene.arms[name].robot
            if len(arm.joints) != robot.dof:
                raise InvalidValue(f"arms.{name}.joints", arm.joints, f"{robot.dof} joints in the order {robot.joints}")
            if arm.gripper.kind != robot.gripper:
                raise InvalidValue(f"arms.{name}.gripper.kind", arm.gripper.kind, f"{robot.gripper!r} ({robot.name})")
            for placement in self.scenario.arm(name).reach:
                if not self.planner.reachable(name, self.scenario.placement(placement).xyz):
                    raise PolyarmError(
                        f"{name} cannot reach {placement} at {self.scenario.placement(placement).xyz}: measure its "
                        f"base again, teach the placement again, or leave it out of arms.{name}.reach"
                    )

    def close(self) -> None:
        """Hold every arm and end the planning thread."""
        for arm in self.arms.values():
            arm.hold()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- episode ------------------------------------------------------------------------------------------------------

    def missing(self) -> list[str]:
        """Inputs that have never come, as topics; with any of them missing the cell cannot be run."""
        topics = [topic for arm in self.arms.values() for topic in arm.missing()]
        return topics + [self.cell.entity_topic(entity) for entity in self.scenario.entities if entity not in self.seen]

    def reset(self, seed: int | None = None, start: Mapping[str, str] | None = None) -> None:
        """A new episode with the world as it is: actions end (reason ``reset``), arms hold, nothing is put anywhere.

        ``seed`` is only noted, ``start`` is not possible. Raises PolyarmError while inputs are missing.
        """
        if start is not None:
            raise InvalidValue("start", start, "None: nothing but the arms moves entities in a real cell")
        if missing := self.missing():
            raise PolyarmError("the cell is not complete, nothing has come on: " + ", ".join(missing))
        for name in self._skills:
            self.stop(name, "reset")
        self.seed = self.seed if seed is None else seed
        self._began = self._steady()

    @property
    def time(self) -> float:
        """Time since the episode began, s."""
        return self._steady() - self._began

    def step(self, ticks: int = 1) -> None:
        """Take in what was measured and advance the skills; call it every `PERIOD`."""
        now = self._steady()
        passed, self._stepped_at = now - self._stepped_at, now
        for arm in self.arms.values():
            arm.update(passed)
            self._data.qpos[arm.index.qpos] = arm.joints()
        mujoco.mj_kinematics(self.scene.model, self._data)
        for name, arm in self.arms.items():
            tools = self._tools[name]
            tools.append((now, self._tool(arm.index)))
            while now - tools[0][0] > LAG:
                tools.popleft()
        self._look()
        for name in self.arms:
            self._watch(name, now)
        for name, skill in self._skills.items():
            if skill.active:
                self._notice_moved(name, skill)
                self._note(skill.tick(self.arms[name].time, self.snapshot))

    def _tool(self, index: ArmIndex) -> Array:
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = self._data.site_xmat[index.tool].reshape(3, 3), self._data.site_xpos[index.tool]
        return pose

    # -- beliefs ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Where every entity is, and which arm holds it: from grippers, kinematics and the perception together."""
        # A copy, because other threads add to it.
        fresh = {name: seen for name, seen in dict(self.seen).items() if self._looked_at.get(name) != seen.at}
        for entity, (name, grasp) in list(self._grasps.items()):
            arm, seen = self.arms[name], fresh.get(entity)
            carried = [tool @ grasp for _, tool in self._tools[name]]
            lost = not arm.senses()
            if seen is not None and not lost:
                lost = min(float(np.linalg.norm(pose[:3, 3] - seen.pose[0])) for pose in carried) > LOST_DISTANCE
            if lost:
                del self._grasps[entity]
                arm.holding = ""
            self._belief[entity] = _pose(carried[-1])
        for entity, seen in fresh.items():
            self._looked_at[entity] = seen.at
            if entity not in self._grasps:
                self._belief[entity] = seen.pose
        for name, arm in self.arms.items():
            if not arm.holding and arm.may_grasp and arm.senses():
                entity = self._in_gripper(arm.index, self._tools[name][-1][1])
                if entity:
                    arm.holding = entity
                    inverse = np.linalg.inv(self._tools[name][-1][1])
                    self._grasps[entity] = (name, inverse @ matrix_of(self._belief[entity]))

    def _in_gripper(self, index: ArmIndex, tool: Array) -> str:
        best, nearest = "", GRASP_RADIUS
        inverse = np.linalg.inv(tool)
        for entity, pose in self._belief.items():
            if entity in self._grasps:
                continue
            x, y, z = (inverse @ [*pose[0], 1.0])[:3]
            suction = index.robot.gripper == "suction"
            depth = self.scene.entities[entity].half_height if suction else index.robot.grip_depth
            off = max(float(np.hypot(x, y)), abs(z - depth))
            if off < nearest:
                best, nearest = entity, off
        return best

    def _notice_moved(self, name: str, skill: SkillExecutor) -> None:
        """Stop an arm on its way to an entity that somebody has moved: it would close on nothing, or worse."""
        planned, entity = self._planned_at.get(name), skill.action.entity
        if planned is None or skill.phase not in ("plan", "pick") or entity in self._grasps:
            return
        away = float(np.linalg.norm(self._belief[entity][0] - planned))
        if away > MOVED_DISTANCE:
            text = f"{entity} was moved by {away:.2f} m on the way to it"
            self._note(skill.stop("moved", self.arms[name].time, text))

    # -- what must be there before an arm moves -----------------------------------------------------------------------

    def _fault(self, name: str, now: float) -> str:
        arm, deadlines = self.arms[name], self.cell.deadlines
        if arm.safety_mode is not None and arm.safety_mode not in NORMAL_MODES:
            self._latched.add(name)
            return f"safety mode {arm.safety_mode} of {name}"
        if arm.silent_for(now) > deadlines.joint_states:
            return f"no joint states of {name} for more than {deadlines.joint_states:g} s"
        newest = max((seen.at for seen in dict(self.seen).values()), default=-np.inf)
        if self.scenario.entities and now - newest > deadlines.perception:
            return f"nothing from the perception for more than {deadlines.perception:g} s"
        return f"{name} is in protective stop until it is cleared" if name in self._latched else ""

    def _watch(self, name: str, now: float) -> None:
        fault, skill = self._fault(name, now), self._skills[name]
        if fault:
            self._good_since.pop(name, None)
            if skill.status != "protective_stop":
                self._note(skill.protective_stop(fault, self.arms[name].time))
            self._faults[name] = fault
        elif name in self._faults and now - self._good_since.setdefault(name, now) >= RECOVERY:
            del self._faults[name]
            if self.arms[name].motion() != "idle":
                self.arms[name].hold_here()  # whatever the controller still had in mind before the stop
            skill.clear()

    def faults(self) -> dict[str, str]:
        """Why arms hold and take nothing: arm -> words."""
        return dict(self._faults)

    def clear(self, arm: str) -> None:
        """End an arm's protective stop. Raises PolyarmError while its safety mode is not normal, UnknownName."""
        mode = self._arm(arm).safety_mode
        if mode is not None and mode not in NORMAL_MODES:
            raise PolyarmError(f"safety mode of {arm} is {mode}: release the stop at the robot first")
        self._latched.discard(arm)

    def _note(self, result: ActionResult | None) -> None:
        if result is not None:
            arm = self.arms[result.arm]
            if result.outcome == "failed" and arm.complaint:
                result = replace(result, text=f"{result.text}; its controller: {arm.complaint}")
            arm.complaint = ""
            self._planned_at.pop(result.arm, None)
            self._results.append(result)

    # -- what there is to see -----------------------------------------------------------------------------------------

    def poses(self) -> dict[str, Pose]:
        """Pose of every entity in the scenario frame: of the gripper's if it is held, else as last perceived."""
        return {name: self._belief[name] for name in self.scenario.entities if name in self._belief}

    def held_by(self) -> dict[str, str]:
        """Entity -> arm that holds it."""
        return {entity: arm for entity, (arm, _) in self._grasps.items()}

    def snapshot(self) -> PlanningScene:
        """What a plan is made against."""
        return PlanningScene({name: arm.joints() for name, arm in self.arms.items()}, self.poses(), self.held_by())

    def world(self, conditions: frozenset[str] = frozenset()) -> World:
        """The world as the core sees it."""
        positions = {n: (float(p[0]), float(p[1]), float(p[2])) for n, (p, _) in self.poses().items()}
        return World(positions, conditions, self.held_by())

    def arm(self, name: str) -> ArmView:
        """One arm now; joints by the robot model's names. Raises UnknownName."""
        arm, skill = self._arm(name), self._skills[name]
        moving = skill.status != "protective_stop" and arm.in_motion
        status: Status = "moving" if moving else skill.status
        names = arm.index.robot.joints
        return ArmView(name, names, arm.joints(), arm.velocities(), arm.opening(), arm.holding, status)

    def readings(self) -> dict[str, float]:
        """Sensors of fixtures: none are connected."""
        return {}

    def held_conditions(self) -> frozenset[str]:
        """Conditions that hold without a sensor: none."""
        return frozenset()

    def zones_entered(self, name: str) -> frozenset[str]:
        """Zones of the scenario in which some link of an arm is now (its body origins, in the plane)."""
        points = self._data.xpos[sorted(self._arm(name).index.bodies)]
        return frozenset(
            zone_name
            for zone_name, zone in self.scenario.zones.items()
            if ((points[:, :2] >= zone.min) & (points[:, :2] <= zone.max)).all(axis=1).any()
        )

    def phase(self, name: str) -> str:
        """Phase of an arm's action; "" when it has none."""
        return self._skills[name].phase

    @property
    def idle(self) -> bool:
        """No arm plans or moves."""
        return not any(skill.active for skill in self._skills.values())

    # -- commands -----------------------------------------------------------------------------------------------------

    def start_action(self, arm: str, action: Action, zones: Collection[str] | None = None, tag: Any = None) -> None:
        """Begin an action; arguments and errors as `Simulation.start_action`.

        An entity that was not perceived within the cell's deadline and is in no gripper is not reached for.
        """
        skill, name = self._skills[self._arm(arm).index.name], action.entity
        if arm in self._faults:
            raise ArmBusy(arm, f"held ({self._faults[arm]})")
        if name not in self._belief:
            raise UnknownName("entity", name, self.scenario.entities)
        age = self._steady() - self.seen[name].at
        if name not in self._grasps and age > self.cell.deadlines.perception:
            text = f"{name} was last perceived {age:.1f} s ago"
            started = self.arms[arm].time
            self._note(ActionResult(arm, action, "failed", "unreachable", text, started, 0.0, tag))
            return
        declared = declare(self.scenario, arm, action, locate(self.scenario, self.world()))
        if zones is None:
            zones = {element.removeprefix("zone:") for element in declared.exclusive if element.startswith("zone:")}
        for zone in zones:
            if zone not in self.scenario.zones:
                raise UnknownName("zone", zone, self.scenario.zones)
        self._actions += 1
        now, requires = self.arms[arm].time, declared.requires_held
        self._note(skill.start(action, now, self.snapshot, zones, self._actions, tag, requires))
        if skill.active:
            self._planned_at[arm] = self._belief[name][0]

    def go_home(self, arm: str, zones: Collection[str] = (), tag: Any = None) -> None:
        """Bring an arm home from wherever it stands, with what it holds. Raises ArmBusy, UnknownName."""
        self._arm(arm)
        self._actions += 1
        self._skills[arm].go_home(self.arms[arm].time, self.snapshot, zones, self._actions, tag)

    def stop(self, arm: str, reason: str) -> None:
        """Stop an arm's action smoothly; it holds. ``reason`` is a word of ActionResult.msg."""
        port, skill = self._arm(arm), self._skills[arm]
        if skill.active:
            self._note(skill.stop(reason, port.time))
        else:
            port.hold()

    def results(self) -> list[ActionResult]:
        """Results since the last call, in the order in which they came about."""
        results, self._results = self._results, []
        return results

    def _arm(self, name: str) -> DriverArm:
        if name not in self.arms:
            raise UnknownName("arm", name, self.arms)
        return self.arms[name]


def _pose(matrix: Array) -> Pose:
    quaternion = np.empty(4)
    mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(matrix[:3, :3]).flatten())
    return matrix[:3, 3].copy(), quaternion


def _with_speeds(scene: Scene, cell: Cell, scaling: float) -> Scene:
    """The scene with every arm planned at a share of its speeds: velocities scale with s, accelerations with s^2."""
    arms = {}
    for name, index in scene.arms.items():
        s = scaling * cell.arms[name].velocity_scaling
        robot = replace(
            index.robot,
            velocity=tuple(v * s for v in index.robot.velocity),
            acceleration=tuple(a * s * s for a in index.robot.acceleration),
        )
        arms[name] = replace(index, robot=robot)
    return replace(scene, arms=arms)


class DriverLoop(SimulationLoop):
    """Steps a `DriverPlant` in a thread of its own, in real time; calls are executed between steps.

    Args:
        plant: owned by the loop's thread from `start` on.
        on_period: called in that thread after every step and every executed call.
    """

    def __init__(self, plant: DriverPlant, on_period: Callable[[Any], None] | None = None) -> None:
        super().__init__(plant, 1.0, on_period)  # type: ignore[arg-type]  # it has all that calls and posts need
        self.achieved_factor = 1.0

    def _loop(self) -> None:
        due = clock.monotonic()
        while self._running:
            now = clock.monotonic()
            if now >= due:
                self._simulation.step()
                if self._on_period is not None:
                    self._on_period(self._simulation)
                due = max(due + PERIOD, now)
            try:
                self._execute(self._calls.get(timeout=max(due - clock.monotonic(), 0.0)))
            except queue.Empty:
                pass
