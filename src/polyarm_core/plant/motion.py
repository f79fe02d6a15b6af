"""Motion of one arm: inverse kinematics (mink), planning (OMPL RRT-Connect), time parametrisation (toppra).

Everything is planned against a snapshot (`PlanningScene`) in a private copy of the model, so the physics may go on in
its own thread. One `MotionPlanner` must be used by one thread at a time. A plan depends on the snapshot and the seed
alone: searches are bounded by iterations, never by the clock.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import mink
import mujoco
import numpy as np
import numpy.typing as npt

from polyarm_core.errors import PolyarmError
from polyarm_core.plant.robots import TOOL_SITE, kinematic_model
from polyarm_core.plant.scene import ZONE_BIT, ArmIndex, Array, EntityIndex, Scene
from polyarm_core.world import nearest_placement

SAMPLE = 0.02
"""Spacing of the samples of a trajectory, s."""
CLEARANCE = 0.005
"""Least distance between a moving arm and anything else along a planned path, m."""
STEP = 0.05
"""Largest joint step between two collision checks, rad."""
LINE_STEP = 0.015
"""Spacing of the poses along a straight tool path, m."""
PLACE_GAP = 0.002
"""An entity is let go this far above the surface, m."""
TRAVEL_GAP = 0.03
"""Carried entities pass this far above entities that stand on the highest placement, m."""
CARRY_SCALE = (0.7, 0.4)
"""Velocity and acceleration limits with an entity in the gripper, as shares of the robot's: less creep in the grasp."""
FRONT_GRIP, FRONT_LIFT = 0.04, 0.03
"""From the front an entity is gripped this far below its top and lifted this much before it is drawn out, m."""
RRT_ITERATIONS = 4000

Pose = tuple[Array, Array]
"""Position (3,) in m and unit quaternion (4,), w first, in the scenario frame."""


class PlanFailure(PolyarmError):
    """No motion exists or none was found; ``reason`` is a word of ActionResult.msg."""

    def __init__(self, reason: Literal["unreachable", "no_plan", "occupied"], text: str) -> None:
        self.reason: Literal["unreachable", "no_plan", "occupied"] = reason
        super().__init__(text)


@dataclass(frozen=True)
class Trajectory:
    """Joint motion over time: times (T,) s from 0 and increasing, positions (T, n) rad, velocities (T, n) rad/s."""

    times: Array
    positions: Array
    velocities: Array

    @property
    def duration(self) -> float:
        """Time of the last sample, s."""
        return float(self.times[-1])

    def sample(self, time: float) -> tuple[Array, Array]:
        """Position and velocity (n,) at a time, cubic Hermite between samples, held at the ends."""
        if time >= self.times[-1]:
            return self.positions[-1], np.zeros_like(self.velocities[-1])
        k = max(int(np.searchsorted(self.times, time, side="right")) - 1, 0)
        h = self.times[k + 1] - self.times[k]
        s = (time - self.times[k]) / h
        p0, p1, m0, m1 = self.positions[k], self.positions[k + 1], h * self.velocities[k], h * self.velocities[k + 1]
        d = p1 - p0
        a, b = 3 * d - 2 * m0 - m1, m0 + m1 - 2 * d
        return p0 + s * (m0 + s * (a + s * b)), (m0 + s * (2 * a + 3 * s * b)) / h


@dataclass(frozen=True)
class PlanningScene:
    """What a plan is made against.

    Attributes:
        joints: joint positions (n,) of every arm, rad.
        entities: pose of every entity.
        held: entity -> arm that holds it.
        doors: angle of every door, rad.
    """

    joints: Mapping[str, Array]
    entities: Mapping[str, Pose]
    held: Mapping[str, str] = field(default_factory=dict)
    doors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MovePlan:
    """A complete pick and place: three motions with the gripper acting in between.

    Attributes:
        pick: to the grasp; None when the arm holds the entity already.
        place: lift, carry, set down.
        retreat: up and home.
        width: width over the gripped faces, m (0 for suction).
        lift: time within ``place`` after which the entity hangs free, s.
    """

    pick: Trajectory | None
    place: Trajectory
    retreat: Trajectory
    width: float
    lift: float


def matrix_of(pose: Pose) -> Array:
    """4x4 matrix of a pose."""
    rotation = np.empty(9)
    mujoco.mju_quat2Mat(rotation, np.asarray(pose[1], float))
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation.reshape(3, 3), pose[0]
    return matrix


def pose_of(matrix: Array) -> Pose:
    """Position and unit quaternion of a 4x4 matrix."""
    quaternion = np.empty(4)
    mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(matrix[:3, :3]).flatten())
    return matrix[:3, 3].copy(), quaternion


def tool_down(position: Sequence[float] | Array, yaw: float) -> Array:
    """4x4 pose of a tool that points down and closes along heading ``yaw`` (rad)."""
    c, s = math.cos(yaw), math.sin(yaw)
    pose = np.eye(4)
    pose[:3, :3] = np.array([[-s, c, 0.0], [c, s, 0.0], [0.0, 0.0, -1.0]])
    pose[:3, 3] = position
    return pose


def _points_down(tool: Array) -> bool:
    return bool(tool[2, 2] < -0.7)


def _wrap(angle: float) -> float:
    return math.remainder(angle, 2 * math.pi)


class ArmKinematics:
    """Forward and inverse kinematics of one arm in the scenario frame."""

    def __init__(self, arm: ArmIndex) -> None:
        self.robot = arm.robot
        self._base = arm.base
        self._base_inverse = np.linalg.inv(arm.base)
        model = kinematic_model(arm.robot.name)
        self._configuration = mink.Configuration(model)
        self._task = mink.FrameTask(TOOL_SITE, "site", position_cost=1.0, orientation_cost=0.3)
        # A weak pull to the seed picks one elbow for an arm with a joint to spare.
        self._posture = mink.PostureTask(model, cost=1e-3)
        self._limits = [mink.ConfigurationLimit(model)]
        order = [int(model.joint(name).qposadr[0]) for name in arm.robot.joints]
        if order != list(range(arm.robot.dof)):
            raise PolyarmError(f"joints of {arm.robot.name} are not in the order of its file: {order}")
        self.lower, self.upper = model.jnt_range[:, 0].copy(), model.jnt_range[:, 1].copy()

    def forward(self, joints: Array) -> Array:
        """Tool pose, 4x4, in the scenario frame."""
        self._configuration.update(np.asarray(joints, float))
        local = self._configuration.get_transform_frame_to_world(TOOL_SITE, "site").as_matrix()
        return np.asarray(self._base @ local)

    def inverse(
        self, target: Array, seed: Array, position_tolerance: float = 5e-4, angle_tolerance: float = 3e-3
    ) -> Array | None:
        """Joints that bring the tool to ``target`` (4x4, scenario frame), found from ``seed``; None if there are none.

        Gauss-Newton on the pose error with joint limits as constraints of each step's quadratic program.
        """
        configuration, task = self._configuration, self._task
        configuration.update(np.clip(np.asarray(seed, float), self.lower, self.upper))
        task.set_target(mink.SE3.from_matrix(self._base_inverse @ target))
        self._posture.set_target(configuration.q)
        for _ in range(40):
            error = task.compute_error(configuration)
            if np.linalg.norm(error[:3]) < position_tolerance and np.linalg.norm(error[3:]) < angle_tolerance:
                return np.array(configuration.q)
            try:
                velocity = mink.solve_ik(
                    configuration, [task, self._posture], 1.0, "daqp", damping=1e-6, limits=self._limits
                )
            except mink.MinkError:
                return None
            step = np.abs(velocity).max()
            configuration.integrate_inplace(velocity * min(1.0, 0.5 / max(step, 1e-9)), 1.0)
        return None

    def line(self, start: Array, target: Array) -> list[Array] | None:
        """Joints along the straight tool path from joints ``start`` to pose ``target``; None if there are none."""
        begin = self.forward(start)
        distance = float(np.linalg.norm(target[:3, 3] - begin[:3, 3]))
        count = max(math.ceil(distance / LINE_STEP), 1)
        a, b = mink.SE3.from_matrix(begin), mink.SE3.from_matrix(target)
        path = [np.asarray(start, float)]
        for k in range(1, count + 1):
            joints = self.inverse(a.interpolate(b, k / count).as_matrix(), path[-1])
            if joints is None or np.abs(joints - path[-1]).max() > 0.4:
                return None
            path.append(joints)
        return path


def parametrise(path: Sequence[Array], velocity: npt.ArrayLike, acceleration: npt.ArrayLike) -> Trajectory:
    """Time-optimal trajectory along a dense joint path under velocity and acceleration limits (TOPP-RA).

    Args:
        path: joint positions (n,), rad, dense enough that a cubic spline through them stays on them.
        velocity: limits (n,), rad/s.
        acceleration: limits (n,), rad/s^2.

    Raises:
        PlanFailure: ``no_plan`` when no parametrisation exists.
    """
    import toppra
    from toppra import algorithm, constraint

    logging.getLogger("toppra").setLevel(logging.ERROR)
    points = [np.asarray(path[0], float)]
    for point in path[1:]:
        if np.abs(point - points[-1]).max() > 1e-5:
            points.append(np.asarray(point, float))
    n = len(points[0])
    if len(points) == 1:
        return Trajectory(np.array([0.0, SAMPLE]), np.array([points[0]] * 2), np.zeros((2, n)))
    q = np.array(points)
    lengths = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(q, axis=0), axis=1))])
    spline = toppra.SplineInterpolator(lengths, q, bc_type="natural" if len(points) > 2 else "clamped")
    limits_v, limits_a = np.asarray(velocity, float), np.asarray(acceleration, float)
    instance = algorithm.TOPPRA(
        [
            constraint.JointVelocityConstraint(np.stack([-limits_v, limits_v], axis=1)),
            constraint.JointAccelerationConstraint(np.stack([-limits_a, limits_a], axis=1)),
        ],
        spline,
        gridpoints=np.linspace(0.0, lengths[-1], max(40, 2 * len(points))),
        parametrizer="ParametrizeConstAccel",
    )
    motion = instance.compute_trajectory(0.0, 0.0)
    if motion is None:
        raise PlanFailure("no_plan", "the path has no time parametrisation within the joint limits")
    count = max(math.ceil(motion.duration / SAMPLE), 1)
    times = np.linspace(0.0, motion.duration, count + 1)
    positions, velocities = motion(times), motion(times, 1)
    # The limits hold at the grid points only; at a sharp corner the spline may be faster in between.
    excess = max(1.0, float((np.abs(velocities) / limits_v).max()))
    return Trajectory(times * excess, positions, velocities / excess)


class MotionPlanner:
    """Plans for all arms of a scene in a private copy of its model."""

    def __init__(self, scene: Scene) -> None:
        # Loaded now rather than with the first plan, which would then take a second.
        import ompl.geometric  # noqa: F401
        import toppra  # noqa: F401

        self.scene = scene
        self._model = copy.copy(scene.model)
        for arm in scene.arms.values():
            for geom in arm.geoms:
                if self._model.geom_contype[geom] or self._model.geom_conaffinity[geom]:
                    self._model.geom_contype[geom] |= ZONE_BIT
                    self._model.geom_margin[geom] = max(self._model.geom_margin[geom], CLEARANCE)
            for body in arm.bodies:
                self._model.body_contype[body] |= ZONE_BIT
        # A rope gives way and is no obstacle.
        self._model.flex_contype[:] = self._model.flex_conaffinity[:] = 0
        self._data = mujoco.MjData(self._model)
        self._open_posture = self._data.qpos.copy()
        for arm in scene.arms.values():
            if arm.robot.name == "panda":
                self._open_posture[arm.finger_qpos] = arm.robot.opening / 2
        self.kinematics = {name: ArmKinematics(arm) for name, arm in scene.arms.items()}
        top = max(p.xyz[2] for p in scene.scenario.placements.values())
        tallest = max((2 * e.half_height for e in scene.entities.values()), default=0.0)
        self.travel_height = top + 2 * tallest + TRAVEL_GAP
        """Height of the tool above everything, also with an entity hanging from it, m."""

    # -- collision --------------------------------------------------------------------------------------------------

    def _checker(
        self,
        arm: str,
        snapshot: PlanningScene,
        zones: Collection[str],
        carried: str = "",
        grasp: Array | None = None,
        ignored: Iterable[str] = (),
        zones_only: bool = False,
    ) -> Callable[[Array], bool]:
        """A function that says whether the arm may stand at given joints.

        ``zones`` are open to the arm, all others are obstacles; ``carried`` hangs from the tool with pose ``grasp``
        (4x4, in the tool frame); entities and handles of doors in ``ignored`` may be touched; ``zones_only`` looks at
        nothing but zones.
        """
        scene, model, data = self.scene, self._model, self._data
        index = scene.arms[arm]
        data.qpos[:] = self._open_posture
        for name, joints in snapshot.joints.items():
            data.qpos[scene.arms[name].qpos] = joints
        for name, (position, quaternion) in snapshot.entities.items():
            adr = scene.entities[name].qpos
            data.qpos[adr : adr + 3], data.qpos[adr + 3 : adr + 7] = position, quaternion
        for name, angle in snapshot.doors.items():
            data.qpos[scene.doors[name].qpos] = angle
        for name, geom in scene.zone_geoms.items():
            model.geom_conaffinity[geom] = 0 if name in zones else ZONE_BIT
        own = np.zeros(model.ngeom, bool)
        own[list(index.geoms)] = True
        load = np.zeros(model.ngeom, bool)
        free = np.zeros(model.ngeom, bool)
        for name in ignored:
            free[list(scene.entities[name].geoms if name in scene.entities else scene.doors[name].handle)] = True
        adr = -1
        if carried:
            load[list(scene.entities[carried].geoms)] = True
            adr = scene.entities[carried].qpos
        kinematics = self.kinematics[arm]
        zone = np.zeros(model.ngeom, bool)
        zone[list(scene.zone_geoms.values())] = True

        def valid(joints: Array) -> bool:
            data.qpos[index.qpos] = joints
            if adr >= 0 and grasp is not None:
                position, quaternion = pose_of(kinematics.forward(joints) @ grasp)
                data.qpos[adr : adr + 3], data.qpos[adr + 3 : adr + 7] = position, quaternion
            mujoco.mj_kinematics(model, data)
            mujoco.mj_collision(model, data)
            if data.ncon == 0:
                return True
            pairs, distance = data.contact.geom, data.contact.dist
            a, b = pairs[:, 0], pairs[:, 1]
            if zones_only:
                return not bool(np.any((own[a] & zone[b]) | (own[b] & zone[a])))
            own_a, own_b, load_a, load_b = own[a], own[b], load[a], load[b]
            inner = own_a & own_b
            held = (own_a & load_b) | (load_a & own_b)
            touched = (own_a & free[b]) | (own_b & free[a])
            outer = (own_a | own_b | load_a | load_b) & ~inner & ~held & ~touched
            return not bool(np.any(outer & (distance < CLEARANCE)) or np.any(inner & (distance < 0.0)))

        return valid

    # -- paths ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _straight(a: Array, b: Array) -> list[Array]:
        count = max(math.ceil(float(np.abs(b - a).max()) / STEP), 1)
        return [a + (b - a) * (k / count) for k in range(count + 1)]

    def _connect(self, arm: str, start: Array, goal: Array, valid: Callable[[Array], bool], seed: int) -> list[Array]:
        """Collision-free dense joint path: straight if possible, else RRT-Connect. Raises PlanFailure."""
        straight = self._straight(start, goal)
        if all(valid(q) for q in straight[1:]):
            return straight
        if not valid(goal):
            raise PlanFailure("no_plan", f"{arm}: the goal posture is in collision")
        import ompl.base as ob
        import ompl.geometric as og
        import ompl.util as ou

        # It calls it an error that the generator is seeded again, which is what makes a plan repeatable.
        ou.setLogLevel(ou.LOG_NONE)
        ou.RNG.setSeed(seed % (2**31 - 1) + 1)
        kinematics = self.kinematics[arm]
        n = len(start)
        space = ob.RealVectorStateSpace(n)
        bounds = ob.RealVectorBounds(n)
        # Sampling the whole +-2 pi of a UR joint only yields detours.
        low = np.maximum(kinematics.lower, np.minimum(start, goal) - 1.5)
        high = np.minimum(kinematics.upper, np.maximum(start, goal) + 1.5)
        for k in range(n):
            bounds.setLow(k, float(low[k]))
            bounds.setHigh(k, float(high[k]))
        space.setBounds(bounds)
        setup = og.SimpleSetup(space)
        setup.setStateValidityChecker(lambda state: valid(np.array([state[k] for k in range(n)])))
        information = setup.getSpaceInformation()
        information.setStateValidityCheckingResolution(STEP / max(space.getMaximumExtent(), 1e-6))
        first, last = space.allocState(), space.allocState()
        for k in range(n):
            first[k], last[k] = float(start[k]), float(goal[k])
        setup.setStartAndGoalStates(first, last)
        setup.setPlanner(og.RRTConnect(information))
        left = itertools.count()
        solved = setup.solve(ob.PlannerTerminationCondition(lambda: next(left) > RRT_ITERATIONS))
        if not solved or not setup.haveExactSolutionPath():
            raise PlanFailure("no_plan", f"{arm}: RRT-Connect found no path in {RRT_ITERATIONS} iterations")
        path = setup.getSolutionPath()
        simplifier = og.PathSimplifier(information)
        simplifier.reduceVertices(path)
        simplifier.partialShortcutPath(path)
        simplifier.reduceVertices(path)
        states = [path.getState(k) for k in range(path.getStateCount())]
        corners = [np.array([state[k] for k in range(n)]) for state in states]
        corners[0], corners[-1] = np.asarray(start, float), np.asarray(goal, float)
        dense = [corners[0]]
        for a, b in itertools.pairwise(corners):
            dense.extend(self._straight(a, b)[1:])
        return dense

    def _leave(self, arm: str, start: Array, valid: Callable[[Array], bool] | None = None) -> list[Array]:
        """Path out of a posture that touches something, as far as it goes.

        Straight up to the travel height; or back along a tool that does not point down, to a posture that is ``valid``
        if there is one.
        """
        kinematics = self.kinematics[arm]
        pose = kinematics.forward(start)
        if not _points_down(pose):
            axis, tip = pose[:3, 2].copy(), pose[:3, 3].copy()
            out = [start]
            for back in (0.4, 0.3, 0.2, 0.1, 0.05):
                pose[:3, 3] = tip - back * axis
                path = kinematics.line(start, pose)
                if path is not None and (valid is None or valid(path[-1])):
                    return path
                out = path if path is not None and len(out) == 1 else out
            return out
        low = float(pose[2, 3])
        for rise in (self.travel_height - low, 0.1, 0.05, 0.02):
            if rise > 0.0:
                pose[2, 3] = low + rise
                path = kinematics.line(start, pose)
                if path is not None:
                    return path
        return [start]

    def _stands_in(self, arm: str, zone: str, snapshot: PlanningScene) -> bool:
        """Whether any part of the arm is within the zone."""
        others = set(self.scene.zone_geoms) - {zone}
        valid = self._checker(arm, snapshot, others, ignored=snapshot.entities, zones_only=True)
        return not valid(snapshot.joints[arm])

    def _open_zones(self, arm: str, snapshot: PlanningScene, zones: Collection[str]) -> frozenset[str]:
        """The zones given, and those that the arm stands in already: it must be able to leave them."""
        return frozenset(zones) | {name for name in self.scene.zone_geoms if self._stands_in(arm, name, snapshot)}

    def _natural(self, arm: str, position: Array) -> tuple[Array, float]:
        """Home posture turned towards a position about the base, and the tool's yaw there."""
        index = self.scene.arms[arm]
        home = np.array(index.robot.home)
        tool = self.kinematics[arm].forward(home)
        base = index.base[:2, 3]
        turn = _wrap(math.atan2(*(position[:2] - base)[::-1]) - math.atan2(*(tool[:2, 3] - base)[::-1]))
        home[0] += turn
        return home, math.atan2(tool[1, 1], tool[0, 1]) + turn

    # -- what the executor asks for ---------------------------------------------------------------------------------

    def _trajectory(self, arm: str, path: Sequence[Array], carrying: bool = False) -> Trajectory:
        robot = self.scene.arms[arm].robot
        slower = CARRY_SCALE if carrying else (1.0, 1.0)
        velocity, acceleration = np.array(robot.velocity) * slower[0], np.array(robot.acceleration) * slower[1]
        return parametrise(path, velocity, acceleration)

    def grasp_in_tool(self, arm: str, snapshot: PlanningScene, entity: str) -> Array:
        """Pose (4x4) of an entity in the tool frame, from where both are now."""
        tool = self.kinematics[arm].forward(snapshot.joints[arm])
        return np.asarray(np.linalg.inv(tool) @ matrix_of(snapshot.entities[entity]))

    def plan_home(self, arm: str, snapshot: PlanningScene, zones: Collection[str] = (), seed: int = 0) -> Trajectory:
        """From wherever the arm is to its home posture, with what it holds. Raises PlanFailure."""
        zones = self._open_zones(arm, snapshot, zones)
        carried = next((entity for entity, holder in snapshot.held.items() if holder == arm), "")
        grasp = self.grasp_in_tool(arm, snapshot, carried) if carried else None
        start, home = np.asarray(snapshot.joints[arm], float), np.array(self.scene.arms[arm].robot.home)
        valid = self._checker(arm, snapshot, zones, carried, grasp)
        free = valid(start) and _points_down(self.kinematics[arm].forward(start))
        path = [start] if free else self._leave(arm, start, valid)
        path = [*path[:-1], *self._connect(arm, path[-1], home, valid, seed)]
        return self._trajectory(arm, path, carrying=bool(carried))

    def plan_move(
        self,
        arm: str,
        entity: str,
        placement: str,
        snapshot: PlanningScene,
        zones: Collection[str] | None = None,
        seed: int = 0,
    ) -> MovePlan:
        """The whole pick and place, planned before anything moves.

        Args:
            arm: who moves.
            entity: what; grasped where the snapshot says it is, or already in the arm's gripper.
            placement: where it goes; it is set down along the placement's axes.
            snapshot: the world to plan against.
            zones: zones that the arm may enter; None = all.
            seed: of the search.

        Raises:
            PlanFailure: ``unreachable`` when no posture reaches the entity or the placement, ``no_plan`` when no
                collision-free motion was found.
        """
        scene, item = self.scene, self.scene.entities[entity]
        zones = self._open_zones(arm, snapshot, scene.zone_geoms if zones is None else zones)
        for zone in sorted(zones):
            for other in scene.arms:
                if other != arm and self._stands_in(other, zone, snapshot):
                    raise PlanFailure("occupied", f"{other} stands in {zone}")
        destination = np.array(scene.scenario.placement(placement).xyz)
        start = np.asarray(snapshot.joints[arm], float)
        holding = snapshot.held.get(entity) == arm
        failure = PlanFailure("unreachable", f"{arm} cannot reach {entity}")
        for width, grasp in self._grasps(arm, snapshot, entity, holding):
            try:
                return self._plan_with(arm, item, destination, snapshot, zones, seed, start, holding, width, grasp)
            except PlanFailure as error:
                # "no_plan" says more than "unreachable": some posture existed.
                if error.reason == "no_plan" or failure.reason == "unreachable":
                    failure = error
        raise failure

    def _grasps(
        self, arm: str, snapshot: PlanningScene, entity: str, holding: bool, upright: float = 0.97
    ) -> list[tuple[float, Array]]:
        """Candidate (width, pose of the entity in the tool frame), the least turned wrist first.

        Of an entity that leans so far that the cosine is below ``upright`` there is no grasp.
        """
        item, robot = self.scene.entities[entity], self.scene.arms[arm].robot
        if holding:
            grasp = self.grasp_in_tool(arm, snapshot, entity)
            return [(0.0, grasp)]
        matrix = matrix_of(snapshot.entities[entity])
        if matrix[2, 2] < upright:
            raise PlanFailure("unreachable", f"{entity} does not stand upright")
        approach = self._approach(snapshot, entity)
        if approach is not None:
            return self._front_grasps(arm, item, matrix, approach)
        position, heading = matrix[:3, 3], math.atan2(matrix[1, 0], matrix[0, 0])
        _, natural = self._natural(arm, position)
        candidates: list[tuple[float, float, Array]] = []
        if robot.gripper == "suction":
            options = [(natural + k * math.pi / 2, 0.0) for k in range(4)]
            offset = np.array([0.0, 0.0, item.half_height + 0.001])
        else:
            options = [
                (heading + yaw + flip, width)
                for yaw, width in item.grips
                if width < robot.opening - 0.004
                for flip in (0.0, math.pi)
            ]
            if not options:
                raise PlanFailure("unreachable", f"{entity} is too wide for the gripper of {arm}")
            offset = np.array([0.0, 0.0, robot.grip_depth])
        for yaw, width in options:
            tool = tool_down(position + offset, yaw)
            candidates.append((abs(_wrap(yaw - natural)), width, np.asarray(np.linalg.inv(tool) @ matrix)))
        candidates.sort(key=lambda candidate: round(candidate[0], 3))
        return [(width, grasp) for _, width, grasp in candidates]

    def _approach(self, snapshot: PlanningScene, entity: str) -> Array | None:
        """How the placement on which an entity stands is entered: horizontal vector (3,), m; None = from above."""
        x, y, z = (float(value) for value in snapshot.entities[entity][0])
        scenario = self.scene.scenario
        place = nearest_placement(scenario, (x, y, z), self.scene.entities[entity].half_height)
        approach = scenario.placement(place).approach
        return None if approach is None else np.array([*approach, 0.0])

    def _front_grasps(self, arm: str, item: EntityIndex, matrix: Array, approach: Array) -> list[tuple[float, Array]]:
        """As `_grasps`, with the tool level and along ``approach``: suction on the face, fingers on both sides."""
        robot = self.scene.arms[arm].robot
        inward = approach / np.linalg.norm(approach)
        candidates: list[tuple[float, Array]] = []
        for yaw, width in item.grips:
            heading = math.atan2(matrix[1, 0], matrix[0, 0]) + yaw
            normal = np.array([math.cos(heading), math.sin(heading), 0.0])
            across = np.array([-normal[1], normal[0], 0.0])
            axis = normal if robot.gripper == "suction" else across
            axis = axis if axis @ inward > 0.0 else -axis
            if axis @ inward < 0.9 or (robot.gripper == "parallel" and width >= robot.opening - 0.004):
                continue
            tip = matrix[:3, 3] + [0.0, 0.0, max(item.half_height - FRONT_GRIP, 0.0)]
            if robot.gripper == "suction":
                tip = tip - axis * (width / 2 + 0.001)
            for sign in (1.0, -1.0):
                tool = np.eye(4)
                tool[:3, 2], tool[:3, 1], tool[:3, 3] = axis, sign * np.array([-axis[1], axis[0], 0.0]), tip
                tool[:3, 0] = np.cross(tool[:3, 1], tool[:3, 2])
                candidates.append((width, np.asarray(np.linalg.inv(tool) @ matrix)))
        if not candidates:
            raise PlanFailure("unreachable", f"{arm} cannot reach {item.name} from the front")
        return candidates

    def _postures(self, arm: str, tool: Array, like: Array | None = None) -> list[Array]:
        """Joints for a level tool, the least bent first; near ``like``, turned towards the tool, if that is given."""
        seed, _ = self._natural(arm, tool[:3, 3])
        inverse, n = self.kinematics[arm].inverse, len(seed)
        found: list[Array] = []
        if like is not None:
            near = like.copy()
            here = self.kinematics[arm].forward(like)[:3, 3]
            near[0] += seed[0] - self._natural(arm, here)[0][0]
            for bend in (0.0, 1.0, -1.0):
                joints = inverse(tool, near + bend * (np.arange(n) == n - 2))
                if joints is not None:
                    found.append(joints)
            return sorted(found, key=lambda joints: round(float(np.abs(joints - like).max()), 4))
        # The last three joints turn the tool: every way round that they can take to the same pose.
        for raised in (-math.pi / 2, math.pi / 2, math.pi, 0.0):
            for flip in (1.0, -1.0):
                for last in (0.0, math.pi / 2, -math.pi / 2, math.pi):
                    guess = seed.copy()
                    guess[n - 3] += raised
                    guess[n - 2] *= flip
                    guess[n - 1] += last
                    joints = inverse(tool, guess)
                    if joints is not None:
                        if not any(np.abs(joints - other).max() < 0.05 for other in found):
                            found.append(joints)
                        break
        return sorted(found, key=lambda joints: round(float(np.abs(joints - seed).max()), 4))

    def _plan_with(
        self,
        arm: str,
        item: EntityIndex,
        destination: Array,
        snapshot: PlanningScene,
        zones: Collection[str],
        seed: int,
        start: Array,
        holding: bool,
        width: float,
        grasp: Array,
    ) -> MovePlan:
        entity, home = item.name, np.array(self.scene.arms[arm].robot.home)
        clear = self._checker(arm, snapshot, zones, entity if holding else "", grasp if holding else None)
        free = clear(start) and _points_down(self.kinematics[arm].forward(start))
        prefix = [start] if free else self._leave(arm, start, clear)
        pick: Trajectory | None = None
        if holding:
            lift = prefix
            tool = self.kinematics[arm].forward(lift[-1])
            if _points_down(tool) and tool[2, 3] < self.travel_height - 0.02:
                lift = self._leave(arm, start)
        else:
            tool = matrix_of(snapshot.entities[entity]) @ np.linalg.inv(grasp)
            approach = self._approach(snapshot, entity)
            near = self._checker(arm, snapshot, zones, ignored=(entity,))
            if approach is None:
                above, down = self._descend(arm, tool, f"{arm} cannot reach {entity}")
                lift = down[::-1]
            else:
                above, down, lift = self._enter(arm, tool, approach, prefix[-1], near, f"{arm} cannot reach {entity}")
            if not all(near(q) for q in down):
                raise PlanFailure("no_plan", f"{arm}: the way down to {entity} is blocked")
            clear = self._checker(arm, snapshot, zones)
            path = [*prefix[:-1], *self._connect(arm, prefix[-1], above, clear, seed), *down[1:]]
            pick = self._trajectory(arm, path)
        loaded = self._checker(arm, snapshot, zones, entity, grasp)
        if _points_down(self.kinematics[arm].forward(lift[-1])):
            above, down = self._set_down(arm, item, destination, snapshot, zones, grasp)
            across = self._connect(arm, lift[-1], above, loaded, seed + 1)
        else:
            near = self._checker(arm, snapshot, zones, ignored=(entity,))
            across, down = self._swing(arm, item, destination, lift[-1], grasp, loaded, near)
        carry = [*lift[:-1], *across, *down[1:]]
        place = self._trajectory(arm, carry, carrying=True)
        # The way home must respect the entity where it stands afterwards.
        placed = dict(snapshot.entities)
        placed[entity] = pose_of(self.kinematics[arm].forward(down[-1]) @ grasp)
        away = self._checker(arm, replace(snapshot, entities=placed, held={}), zones)
        back = down[::-1]
        if not _points_down(self.kinematics[arm].forward(down[-1])):
            back = self._leave(arm, down[-1], away)
        retreat = self._trajectory(arm, [*back[:-1], *self._connect(arm, back[-1], home, away, seed + 2)])
        lifted = np.abs(place.positions - lift[-1]).max(axis=1)
        return MovePlan(pick, place, retreat, width, float(place.times[int(np.argmin(lifted))]))

    def _set_down(
        self,
        arm: str,
        item: EntityIndex,
        destination: Array,
        snapshot: PlanningScene,
        zones: Collection[str],
        grasp: Array,
    ) -> tuple[Array, list[Array]]:
        """As `_descend`, to where the entity stands on the destination, turned so that the wrist turns least."""
        _, natural = self._natural(arm, destination)
        target = np.eye(4)
        target[:3, 3] = destination + np.array([0.0, 0.0, item.half_height + PLACE_GAP])
        options: list[tuple[float, Array]] = []
        for c, s in ((1, 0), (0, 1), (-1, 0), (0, -1)):
            target[:2, :2] = [[c, -s], [s, c]]
            tool = target @ np.linalg.inv(grasp)
            options.append((abs(_wrap(math.atan2(tool[1, 1], tool[0, 1]) - natural)), tool))
        options.sort(key=lambda option: round(option[0], 3))
        failure = PlanFailure("unreachable", f"{arm} cannot reach the destination")
        near = self._checker(arm, snapshot, zones, ignored=(item.name,))
        for _, tool in options:
            try:
                above, down = self._descend(arm, tool, str(failure))
            except PlanFailure:
                continue
            if all(near(q) for q in down):
                return above, down
            failure = PlanFailure("no_plan", f"{arm}: the way down to the destination is blocked")
        raise failure

    def _swing(
        self,
        arm: str,
        item: EntityIndex,
        destination: Array,
        start: Array,
        grasp: Array,
        loaded: Callable[[Array], bool],
        near: Callable[[Array], bool],
    ) -> tuple[list[Array], list[Array]]:
        """With a level tool: (joints around the base to above the destination, joints straight down to it).

        The tool goes in cylindrical coordinates about the arm's base, so that what it carries stays upright.
        """
        kinematics, base = self.kinematics[arm], self.scene.arms[arm].base[:2, 3]
        first = kinematics.forward(start)

        def cylindrical(tool: Array) -> tuple[float, float, float, float]:
            out = tool[:2, 3] - base
            around = math.atan2(out[1], out[0])
            return float(np.hypot(*out)), around, float(tool[2, 3]), _wrap(math.atan2(tool[1, 2], tool[0, 2]) - around)

        r0, a0, z0, w0 = cylindrical(first)
        target = np.eye(4)
        target[:3, 3] = destination + np.array([0.0, 0.0, item.half_height + PLACE_GAP])
        options: list[tuple[float, Array, float, float]] = []
        for c, s in ((1, 0), (0, 1), (-1, 0), (0, -1)):
            target[:2, :2] = [[c, -s], [s, c]]
            tool = target @ np.linalg.inv(grasp)
            _, a1, _, w1 = cylindrical(tool)
            short = _wrap(a1 - a0)
            for turn in (short, short - math.copysign(2 * math.pi, short)):
                options.append((abs(turn) + abs(_wrap(w1 - w0)), tool, turn, _wrap(w1 - w0)))
        options.sort(key=lambda option: round(option[0], 3))
        failure = PlanFailure("unreachable", f"{arm} cannot bring {item.name} upright to the destination")
        for _, tool, turn, twist in options:
            above = tool.copy()
            above[2, 3] = max(self.travel_height, tool[2, 3] + 0.05)
            r1, _, z1, _ = cylindrical(above)
            count = max(math.ceil(max(abs(turn), abs(twist)) / 0.06), math.ceil(abs(r1 - r0) / LINE_STEP), 2)
            path = [start]
            for k in range(1, count + 1):
                u = k / count
                # Up before it goes round, lest it sweeps over the table.
                r, a, z = r0 + u * (r1 - r0), a0 + u * turn, z0 + min(2 * u, 1.0) * (z1 - z0)
                heading = a + w0 + u * twist - math.atan2(first[1, 2], first[0, 2])
                pose = np.eye(4)
                pose[:2, :2] = [
                    [math.cos(heading), -math.sin(heading)],
                    [math.sin(heading), math.cos(heading)],
                ]
                pose[:3, :3] = pose[:3, :3] @ first[:3, :3]
                pose[:3, 3] = [base[0] + r * math.cos(a), base[1] + r * math.sin(a), z]
                joints = kinematics.inverse(pose, path[-1])
                if joints is None or np.abs(joints - path[-1]).max() > 0.4:
                    break
                path.append(joints)
            down = kinematics.line(path[-1], tool) if len(path) == count + 1 else None
            if down is None:
                continue
            if all(loaded(q) for q in path[1:]) and all(near(q) for q in down):
                return path, down
            failure = PlanFailure("no_plan", f"{arm}: the way of {item.name} around is blocked")
        raise failure

    def _descend(self, arm: str, tool: Array, text: str) -> tuple[Array, list[Array]]:
        """(joints above the pose, joints on the straight way down); raises PlanFailure ``unreachable``."""
        kinematics = self.kinematics[arm]
        above = tool.copy()
        above[2, 3] = max(self.travel_height, tool[2, 3] + 0.05)
        seed, _ = self._natural(arm, tool[:3, 3])
        high = kinematics.inverse(above, seed)
        if high is None:
            raise PlanFailure("unreachable", text)
        down = kinematics.line(high, tool)
        if down is None:
            raise PlanFailure("unreachable", text)
        return high, down

    def _enter(
        self, arm: str, tool: Array, approach: Array, start: Array, valid: Callable[[Array], bool], text: str
    ) -> tuple[Array, list[Array], list[Array]]:
        """(joints before the pose, joints on the straight way in, joints on the way back out with a load)."""
        line = self.kinematics[arm].line
        before, raised, out = tool.copy(), tool.copy(), tool.copy()
        before[:3, 3] -= approach
        raised[2, 3] += FRONT_LIFT
        out[:3, 3] += [0.0, 0.0, FRONT_LIFT] - approach
        failure = PlanFailure("unreachable", text)
        # An arm that has its tool level already need not bend the other way.
        like = None if _points_down(self.kinematics[arm].forward(start)) else start
        for inside in [*(self._postures(arm, tool, like) if like is not None else ()), *self._postures(arm, tool)]:
            enter, lift = line(inside, before), line(inside, raised)
            leave = line(lift[-1], out) if lift is not None else None
            if enter is None or lift is None or leave is None:
                continue
            if all(valid(q) for q in (*enter, *lift, *leave)):
                return enter[-1], enter[::-1], [*lift, *leave[1:]]
            failure = PlanFailure("no_plan", f"{arm}: the way in is blocked")
        raise failure

    def reachable(self, arm: str, position: npt.ArrayLike) -> bool:
        """Whether the arm's tool can come down on a point (m, scenario frame) at some wrist angle."""
        point = np.asarray(position, float)
        _, natural = self._natural(arm, point)
        for k in range(4):
            try:
                self._descend(arm, tool_down(point, natural + k * math.pi / 2), "")
            except PlanFailure:
                continue
            return True
        return False
