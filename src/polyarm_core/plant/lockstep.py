"""Lift, carry and lower in step: what several arms do with something between them that must not be torn.

Each verb is a group action (synchronisation rule): every member names the same group and acts on its own end. Nobody
begins before all have a plan, nobody lifts before all have a grip, nobody lets go before all are down; when one
stops, all hold where they are. The operator's ``skill`` gives ``height`` (m, of the end above its destination's
surface) and ``duration`` (s): the members go ways of their own, in the same time and by the same law.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.spatial.transform import Rotation

from polyarm_core.plant.motion import (
    CARRY_SCALE,
    PLACE_GAP,
    SAMPLE,
    MotionPlanner,
    PlanFailure,
    PlanningScene,
    Trajectory,
    matrix_of,
    pose_of,
    tool_down,
)
from polyarm_core.plant.scene import Array
from polyarm_core.plant.skills import FALLEN, Carried, Close, Follow, Open, Run, SkillFailure, Step, Task, Verify
from polyarm_core.scenario import Box, Scenario
from polyarm_core.world import nearest_placement

HEIGHT, DURATION = 0.3, 2.5
"""Defaults of the operator's parameters, m and s."""
LEANING = 0.7
"""Cosine. An end on its own rope leans so far at most, and closing fingers set it upright; what leans further lies."""
LYING = 0.95
"""An end that was dropped lies on a side, which is level to this cosine; it is gripped, carried and laid as it lies."""
DOWN = 0.05
"""An end that is at most this far above the surface is down, m."""


@dataclass(frozen=True)
class TimedPath:
    """A tool path that several arms go at the same pace.

    The share s of the way that is done follows the minimum-jerk law s(u) = 10 u^3 - 15 u^4 + 6 u^5 of the share u of
    the time. Arms that take the same time are therefore at the same share at any moment, whatever their joints do,
    and what they hold between them is stretched at most as much as at the ends of their ways.

    Attributes:
        joints: (K + 1, n) rad, evenly spaced along the tool's way.
        shortest: least duration within the joints' limits, s.
    """

    joints: Array
    shortest: float

    def trajectory(self, duration: float) -> Trajectory:
        """The joint trajectory that takes ``duration`` s, at least ``shortest``."""
        count = max(math.ceil(duration / SAMPLE), 2)
        share, speed, _ = _minimum_jerk(np.linspace(0.0, 1.0, count + 1))
        spline = CubicSpline(np.linspace(0.0, 1.0, len(self.joints)), self.joints)
        velocities = spline(share, 1) * speed[:, None] / duration
        return Trajectory(np.linspace(0.0, duration, count + 1), spline(share), velocities)


def _minimum_jerk(u: Array) -> tuple[Array, Array, Array]:
    return 10 * u**3 - 15 * u**4 + 6 * u**5, 30 * u**2 - 60 * u**3 + 30 * u**4, 60 * u - 180 * u**2 + 120 * u**3


def timed_path(joints: Sequence[Array], velocity: Array, acceleration: Array) -> TimedPath:
    """Time a path of at least two postures (n,) that are evenly spaced along the tool's way.

    Args:
        joints: postures, rad.
        velocity: limits (n,), rad/s.
        acceleration: limits (n,), rad/s^2.
    """
    path = np.array(joints)
    u = np.linspace(0.0, 1.0, 101)
    share, speed, rate = _minimum_jerk(u)
    spline = CubicSpline(np.linspace(0.0, 1.0, len(path)), path)
    first, second = spline(share, 1), spline(share, 2)
    # Velocities go with 1 / T, accelerations with 1 / T^2.
    fast = float((np.abs(first * speed[:, None]) / velocity).max())
    hard = float((np.abs(second * speed[:, None] ** 2 + first * rate[:, None]) / acceleration).max())
    return TimedPath(path, max(fast, math.sqrt(hard), 2 * SAMPLE))


def plan_grasp(
    planner: MotionPlanner, arm: str, entity: str, snapshot: PlanningScene, zones: Collection[str] | None, seed: int
) -> tuple[Trajectory, float]:
    """The way to a grasp of an entity where it stands: (trajectory, width over the gripped faces in m).

    Raises:
        PlanFailure: ``unreachable`` or ``no_plan``.
    """
    zones = planner._open_zones(arm, snapshot, planner.scene.zone_geoms if zones is None else zones)
    start = np.asarray(snapshot.joints[arm], float)
    failure = PlanFailure("unreachable", f"{arm} cannot reach {entity}")
    for width, grasp in _grasps(planner, arm, entity, snapshot):
        tool = matrix_of(snapshot.entities[entity]) @ np.linalg.inv(grasp)
        try:
            above, down = planner._descend(arm, tool, str(failure))
            near = planner._checker(arm, snapshot, zones, ignored=(entity,))
            if not all(near(q) for q in down):
                raise PlanFailure("no_plan", f"{arm}: the way down to {entity} is blocked")
            clear = planner._checker(arm, snapshot, zones)
            prefix = [start] if clear(start) else planner._leave(arm, start)
            path = [*prefix[:-1], *planner._connect(arm, prefix[-1], above, clear, seed), *down[1:]]
            return planner._trajectory(arm, path), width
        except PlanFailure as error:
            if error.reason == "no_plan" or failure.reason == "unreachable":
                failure = error
    raise failure


def _grasps(planner: MotionPlanner, arm: str, entity: str, snapshot: PlanningScene) -> Sequence[tuple[float, Array]]:
    """As `MotionPlanner._grasps`, also of an entity that lies: from above, on two of the faces that are upright now."""
    item, robot = planner.scene.entities[entity], planner.scene.arms[arm].robot
    matrix = matrix_of(snapshot.entities[entity])
    shape = planner.scene.scenario.entities[entity].shape
    if matrix[2, 2] >= LEANING or not isinstance(shape, Box) or robot.gripper == "suction":
        return planner._grasps(arm, snapshot, entity, holding=False, upright=LEANING)
    if np.abs(matrix[2, :3]).max() < LYING:
        raise PlanFailure("unreachable", f"{entity} neither stands nor lies")
    _, natural = planner._natural(arm, matrix[:3, 3])
    upright = int(np.abs(matrix[2, :3]).argmax())
    found = []
    for axis, width in enumerate(shape.size):
        if axis != upright and width < robot.opening - 0.004:
            for sign in (1.0, -1.0):
                yaw = math.atan2(sign * matrix[1, axis], sign * matrix[0, axis])
                tool = tool_down(matrix[:3, 3] + [0.0, 0.0, robot.grip_depth], yaw)
                turn = abs(math.remainder(yaw - natural, 2 * math.pi))
                found.append((turn, float(width), np.asarray(np.linalg.inv(tool) @ matrix)))
    if not found:
        raise PlanFailure("unreachable", f"{item.name} is too wide for the gripper of {arm} as it lies")
    return [(width, grasp) for _, width, grasp in sorted(found, key=lambda candidate: round(candidate[0], 3))]


def plan_straight(
    planner: MotionPlanner,
    arm: str,
    entity: str,
    start: Array,
    grasp: Array,
    target: Array,
    snapshot: PlanningScene,
    zones: Collection[str] | None,
) -> TimedPath:
    """The straight way on which an entity in the gripper comes to ``target`` (4x4, its pose in the scenario frame).

    Args:
        planner: of the scene.
        arm: who carries.
        entity: what.
        start: joints at the beginning.
        grasp: pose (4x4) of the entity in the tool frame.
        target: where it goes.
        snapshot: the world to plan against; what the other arms do meanwhile is theirs.
        zones: zones that the arm may enter; None = all.

    Raises:
        PlanFailure: ``unreachable`` or ``no_plan``.
    """
    way = planner.kinematics[arm].line(start, target @ np.linalg.inv(grasp))
    if way is None:
        raise PlanFailure("unreachable", f"{arm} cannot bring {entity} straight to where it goes")
    zones = planner._open_zones(arm, snapshot, planner.scene.zone_geoms if zones is None else zones)
    # At both ends the entity stands on something; in between nothing may be touched.
    loaded = planner._checker(arm, snapshot, zones, entity, grasp)
    if not all(loaded(q) for q in way[2:-2]):
        raise PlanFailure("no_plan", f"{arm}: the straight way of {entity} is blocked")
    robot = planner.scene.arms[arm].robot
    if len(way) < 4:  # too short a way for a spline of its own
        way = [way[0] + (way[-1] - way[0]) * (k / 4) for k in range(5)]
    velocity, acceleration = np.array(robot.velocity) * CARRY_SCALE[0], np.array(robot.acceleration) * CARRY_SCALE[1]
    return timed_path(way, velocity, acceleration)


def _grasp(task: Task, snapshot: PlanningScene) -> Array:
    return task.planner.grasp_in_tool(task.arm, snapshot, task.action.entity)


def _in_step(task: Task, way: TimedPath) -> Trajectory:
    """The way in the group's time. Raises PlanFailure when that is too short for this arm."""
    duration = task.parameter("duration", DURATION)
    if way.shortest > duration:
        raise PlanFailure("no_plan", f"{task.arm} needs {way.shortest:.2f} s, the group takes {duration:.2f} s")
    return way.trajectory(duration)


def _straightened(rotation: Array) -> Array:
    """The rotation (3, 3) along the axes of the scene that is nearest to another one: upright, or lying on a side."""
    turns = Rotation.create_group("O").as_matrix()
    return np.asarray(turns[int(np.einsum("kij,ij->k", turns, rotation).argmax())])


def _half(scenario: Scenario, entity: str, rotation: Array) -> float:
    """Half the height (m) of an entity when it is turned like that (3, 3)."""
    shape = scenario.entity(entity).shape
    return float(np.abs(rotation[2]) @ np.array(shape.size)) / 2 if isinstance(shape, Box) else shape.height / 2


def _target(task: Task, height: float) -> Array:
    """Pose (4x4) of the entity over the action's placement, turned along its axes, its middle ``height`` above it."""
    target = np.eye(4)
    target[:3, :3] = _straightened(matrix_of(task.snapshot.entities[task.action.entity])[:3, :3])
    target[:3, 3] = np.array(task.scenario.placement(task.action.placement).xyz) + np.array([0.0, 0.0, height])
    return target


def _laid(task: Task) -> Array:
    """Pose (4x4) of the entity on the action's placement."""
    target = _target(task, PLACE_GAP)
    target[2, 3] += _half(task.scenario, task.action.entity, target[:3, :3])
    return target


def _check_laid(run: Run) -> None:
    """As `check_placed`, of an entity that may lie on a side. Raises SkillFailure ``slip``."""
    entity, placement = run.action.entity, run.action.placement
    pose, goal = matrix_of(run.snapshot().entities[entity]), np.array(run.scenario.placement(placement).xyz)
    away = float(np.linalg.norm((pose[:3, 3] - goal)[:2]))
    fallen = float(goal[2] - pose[2, 3]) + _half(run.scenario, entity, pose[:3, :3])
    if away > run.scenario.success.tolerance or fallen > FALLEN:
        raise SkillFailure("slip", f"{entity} lies {away:.2f} m from {placement}, {fallen:.2f} m below it")


def _partners_hold(task: Task) -> bool:
    """Whether every other member of the group has its own end in the gripper."""
    assert task.operator is not None
    held = task.snapshot.held
    return all(
        held.get(operator.entity or "") == member
        for operator in task.scenario.operators
        for member in operator.arms
        if operator.verb == task.action.verb and member != task.arm and member in task.operator.group
    )


def _surface(task: Task) -> float:
    """Height of the placement at or over which the entity is, m."""
    x, y, z = (float(value) for value in task.snapshot.entities[task.action.entity][0])
    return task.scenario.placement(nearest_placement(task.scenario, (x, y, z))).xyz[2]


def _settle(task: Task) -> tuple[list[Step], Task]:
    """Let go over a placement of the arm's reach, and up; and the task as it is afterwards.

    An end that is down already is let go where it is; another one goes to the nearest placement, since what is under
    it may be anything.
    """
    entity, planner, arm, snapshot = task.action.entity, task.planner, task.arm, task.snapshot
    half = _half(task.scenario, entity, matrix_of(snapshot.entities[entity])[:3, :3])
    start, target = np.asarray(snapshot.joints[arm], float), matrix_of(snapshot.entities[entity])
    steps: list[Step] = []
    if target[2, 3] - half - _surface(task) > DOWN:
        reach = [np.array(task.scenario.placement(name).xyz) for name in task.scenario.arm(arm).reach]
        nearest = min(reach, key=lambda xyz: float(np.hypot(*(xyz - target[:3, 3])[:2])))
        target[:2, 3] = nearest[:2]
        for height in (target[2, 3], nearest[2] + half + PLACE_GAP):
            target[2, 3] = height
            way = plan_straight(planner, arm, entity, start, _grasp(task, snapshot), target, snapshot, task.zones)
            steps.append(Follow("settle", way.trajectory(way.shortest), check=Carried(entity)))
            start = way.joints[-1]
    up = planner._leave(arm, start)
    after = PlanningScene(
        {**snapshot.joints, arm: up[-1]},
        {**snapshot.entities, entity: pose_of(target)},
        {name: holder for name, holder in snapshot.held.items() if name != entity},
    )
    steps += [Open("open", entity), Follow("up", planner._trajectory(arm, up))]
    return steps, replace(task, snapshot=after)


class Lift:
    """``lift entity``: grip it where it stands, then raise it with the group.

    An arm that has it in the gripper already goes on from where it is when the others have theirs, too; otherwise it
    sets its end down first, so that the others find theirs on the table and nothing hangs from one gripper.
    """

    def refuse(self, task: Task) -> None:
        """Raises SkillFailure when the gripper holds something else, or somebody else holds the entity."""
        mine = [entity for entity, holder in task.snapshot.held.items() if holder == task.arm]
        if mine and mine != [task.action.entity]:
            raise SkillFailure("no_plan", f"the gripper holds {', '.join(mine)}")
        holder = task.snapshot.held.get(task.action.entity, task.arm)
        if holder != task.arm:
            raise SkillFailure("unreachable", f"{holder} holds {task.action.entity}")

    def plan(self, task: Task) -> Sequence[Step]:
        """Settle if need be, pick, close; raise."""
        entity, planner, arm = task.action.entity, task.planner, task.arm
        steps: list[Step] = [Step("ready", barrier=True)]
        holding = task.snapshot.held.get(entity) == arm
        if holding and not _partners_hold(task):
            settle, task = _settle(task)
            steps += settle
            holding = False
        start = np.asarray(task.snapshot.joints[arm], float)
        if not holding:
            pick, width = plan_grasp(planner, arm, entity, task.snapshot, task.zones, task.seed)
            steps += [Follow("pick", pick, task.robot.opening), Close("close", entity, width)]
            start = pick.positions[-1]
        target = matrix_of(task.snapshot.entities[entity])
        grasp = np.linalg.inv(planner.kinematics[arm].forward(start)) @ target
        target[2, 3] = _surface(task) + task.parameter("height", HEIGHT) + planner.scene.entities[entity].half_height
        way = plan_straight(planner, arm, entity, start, grasp, target, task.snapshot, task.zones)
        return [*steps, Follow("lift", _in_step(task, way), check=Carried(entity), barrier=True)]


class _WithEntity:
    """A skill that begins with the entity in the gripper."""

    def refuse(self, task: Task) -> None:
        """Raises SkillFailure ``slip`` when the entity is not in the arm's gripper."""
        if task.snapshot.held.get(task.action.entity) != task.arm:
            raise SkillFailure("slip", f"{task.action.entity} is not in the gripper of {task.arm}")

    def way(self, task: Task, target: Array) -> TimedPath:
        """The straight way on which the entity comes to a pose (4x4)."""
        snapshot = task.snapshot
        return plan_straight(
            task.planner, task.arm, task.action.entity, np.asarray(snapshot.joints[task.arm], float),
            _grasp(task, snapshot), target, snapshot, task.zones,
        )  # fmt: skip


class Carry(_WithEntity):
    """``carry entity placement``: over to above the placement, with the group."""

    def plan(self, task: Task) -> Sequence[Step]:
        """One motion."""
        half = task.planner.scene.entities[task.action.entity].half_height
        way = self.way(task, _target(task, task.parameter("height", HEIGHT) + half))
        return [Follow("carry", _in_step(task, way), check=Carried(task.action.entity), barrier=True)]


class Lower(_WithEntity):
    """``lower entity placement``: down onto the placement with the group, let go together, go home."""

    def plan(self, task: Task) -> Sequence[Step]:
        """Lower, open, retreat."""
        entity, planner, arm, snapshot = task.action.entity, task.planner, task.arm, task.snapshot
        laid = _laid(task)
        way = self.way(task, laid)
        placed = {**snapshot.entities, entity: pose_of(laid)}
        zones = planner._open_zones(arm, snapshot, planner.scene.zone_geoms if task.zones is None else task.zones)
        away = planner._checker(arm, PlanningScene(snapshot.joints, placed), zones)
        home = np.array(task.robot.home)
        back = list(way.joints[::-1])
        retreat = planner._trajectory(arm, [*back[:-1], *planner._connect(arm, back[-1], home, away, task.seed)])
        return [
            Follow("lower", _in_step(task, way), check=Carried(entity), barrier=True),
            Open("open", entity, barrier=True),
            Follow("retreat", retreat),
            Verify("retreat", _check_laid),
        ]


class SetDown(_WithEntity):
    """``set_down entity``: down and let go, alone; what is left to do when the partner has lost its end."""

    def plan(self, task: Task) -> Sequence[Step]:
        """Down, open, up."""
        return _settle(task)[0]
