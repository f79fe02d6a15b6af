"""Sweep and dump: one arm's pan beside an object, another's broom that pushes it in; the pan emptied over a bin.

``sweep AREA`` is a group action of an arm with a dustpan and one with a broom. Both get a plan and get ready; when
both are in place the broom pushes; when the broom is away the pan is raised. The pan stays level from then on, until
``dump BIN``, an action of its arm alone, tilts it over the bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyarm_core.plant.lockstep import timed_path
from polyarm_core.plant.motion import MotionPlanner, PlanFailure, PlanningScene, tool_down
from polyarm_core.plant.scene import Array, Scene, outline
from polyarm_core.plant.skills import Follow, Run, SkillFailure, Step, Task, Until, Verify
from polyarm_core.plant.tools import (
    BROOM_DEPTH,
    BROOM_HALF_THICKNESS,
    PAN_BACK,
    PAN_DEPTH,
    PAN_FLAT,
    PAN_HALF_WIDTH,
    PAN_HEIGHT,
    PAN_LIP,
)
from polyarm_core.scenario import BinFixture
from polyarm_core.world import nearest_placement

GAP = 0.015
"""From the lip of the pan, and from the face of the broom, to the object before it is pushed, m."""
PAN_OVER, BROOM_OVER = 0.001, 0.012
"""Height of the pan's underside and of the broom's lower edge over the table, m; the broom clears the pan's floor."""
BEYOND = 0.015
"""An object is pushed this far onto the pan's flat floor, m."""
RAISED = 0.1
"""Tools travel this far above where they work, m."""
GENTLE = 0.8
"""Largest acceleration of a tool, m/s^2: well below what the friction in the pan holds."""
PUSH_SPEED = 0.12
"""Mean speed of the broom, m/s."""
TILT = math.radians(58.0)
OVER_RIM, DRAG = 0.1, 0.06
"""While the pan is emptied: height of its lip over the bin's rim, and how far from the bin's middle the lip begins on
the one side and ends on the other, so that things fall beside each other, m."""
NEAR_FLOOR = 0.2
"""What is within the walls of a bin and this close to its floor counts as in it, m."""


def in_pan(scene: Scene, data: Any, arm: str) -> tuple[str, ...]:
    """Entities whose middle is within the pan of an arm, between its walls and not far above its floor."""
    site = scene.arms[arm].tool
    rotation, origin = data.site_xmat[site].reshape(3, 3), data.site_xpos[site]
    return tuple(name for name, item in scene.entities.items() if _inside((data.xpos[item.body] - origin) @ rotation))


def _inside(local: Array) -> bool:
    return bool(
        PAN_BACK < local[0] < PAN_LIP
        and abs(local[1]) < PAN_HALF_WIDTH
        and PAN_DEPTH - 3 * PAN_HEIGHT < local[2] < PAN_DEPTH
    )


def count_readings(scene: Scene, data: Any) -> dict[str, float]:
    """How many entities lie where, for scenes with a dustpan.

    ``ARM.pan``: in the pan of an arm; ``BIN.count``: within a bin; ``PLACEMENT.count``: nearest to a placement and
    neither in a pan nor in a bin.
    """
    scenario = scene.scenario
    pans = {name: in_pan(scene, data, name) for name, arm in scenario.arms.items() if arm.tool == "dustpan"}
    if not pans:
        return {}
    readings = {f"{name}.pan": float(len(inside)) for name, inside in pans.items()}
    away = {entity for inside in pans.values() for entity in inside}
    where = {name: data.xpos[item.body] for name, item in scene.entities.items()}
    for name, fixture in scenario.fixtures.items():
        if isinstance(fixture, BinFixture):
            inside = {
                entity
                for entity, position in where.items()
                if np.all(np.abs(position[:2] - fixture.xyz[:2]) < np.array(fixture.size[:2]) / 2)
                and 0.0 < position[2] - fixture.xyz[2] < NEAR_FLOOR
            }
            readings[f"{name}.count"] = float(len(inside))
            away |= inside
    names, places = scenario.placement_grid
    nearest = [
        names[int(np.linalg.norm(places[:, :2] - where[e][:2], axis=1).argmin())] for e in where if e not in away
    ]
    readings.update({f"{name}.count": float(nearest.count(name)) for name in names})
    return readings


def _pan_contents(planner: MotionPlanner, snapshot: PlanningScene, arm: str) -> tuple[str, ...]:
    """As `in_pan`, from a snapshot."""
    tool = planner.kinematics[arm].forward(snapshot.joints[arm])
    return tuple(
        name for name, (position, _) in snapshot.entities.items() if _inside((position - tool[:3, 3]) @ tool[:3, :3])
    )


def _heading(direction: Array) -> float:
    """Yaw of a tool that points down with its x axis along a horizontal unit vector."""
    return math.atan2(-direction[0], direction[1])


class _Ways:
    """Straight ways of one arm's tool, each with the time that it needs, from posture to posture."""

    def __init__(self, task: Task, ignored: Sequence[str] = ()) -> None:
        planner, arm, snapshot = task.planner, task.arm, task.snapshot
        self._task = task
        self._kinematics = planner.kinematics[arm]
        zones = planner._open_zones(arm, snapshot, planner.scene.zone_geoms if task.zones is None else task.zones)
        self._valid = planner._checker(arm, snapshot, zones, ignored=ignored)
        self._leaving = planner._checker(arm, snapshot, zones, ignored=snapshot.entities)
        self.joints: Array = np.asarray(snapshot.joints[arm], float)

    @property
    def pose(self) -> Array:
        """Tool pose (4x4) where the ways have come to."""
        return self._kinematics.forward(self.joints)

    def to(
        self,
        name: str,
        target: Array,
        speed: float = math.inf,
        free: int = 0,
        leaving: bool = False,
        barrier: bool = False,
    ) -> Follow:
        """Straight to a tool pose. Raises PlanFailure.

        The last ``free`` postures may touch something; ``leaving``: the first few, and objects all the way.
        """
        distance = float(np.linalg.norm(target[:3, 3] - self.pose[:3, 3]))
        path = self._kinematics.line(self.joints, target)
        if path is None:
            raise PlanFailure("unreachable", f"{self._task.arm} has no straight way for phase {name}")
        valid = self._leaving if leaving else self._valid
        if not all(valid(q) for q in path[4 if leaving else 1 : len(path) - free]):
            raise PlanFailure("no_plan", f"{self._task.arm}: the way of phase {name} is blocked")
        if len(path) < 4:
            path = [path[0] + (path[-1] - path[0]) * (k / 4) for k in range(5)]
        robot = self._task.robot
        way = timed_path(path, np.array(robot.velocity) * 0.7, np.array(robot.acceleration) * 0.4)
        self.joints = path[-1]
        # The minimum-jerk law accelerates with at most 5.78 d / T^2.
        duration = max(way.shortest, math.sqrt(5.78 * distance / GENTLE), distance / speed)
        return Follow(name, way.trajectory(duration), barrier=barrier)

    def across(self, name: str, target: Array, height: float, free: int = 0) -> list[Follow]:
        """Up to ``height`` (of the tool, m), level across, and down to a pose."""
        steps = []
        if self.pose[2, 3] < height - 0.002:
            up = self.pose
            up[2, 3] = height
            steps.append(self.to(name, up, leaving=True))
        above = target.copy()
        above[2, 3] = max(height, self.pose[2, 3])
        steps.append(self.to(name, above))
        steps.append(self.to(name, target, free=free))
        return steps


class Sweep:
    """``sweep AREA``: what lies nearest to a placement is pushed into the pan; see the module's text."""

    def refuse(self, task: Task) -> None:
        """Raises SkillFailure when the arm has no tool."""
        if task.scenario.arms[task.arm].tool is None:
            raise SkillFailure("no_plan", f"{task.arm} has neither dustpan nor broom")

    def plan(self, task: Task) -> Sequence[Step]:
        """Get ready; push or keep still; get away."""
        scenario, snapshot, planner = task.scenario, task.snapshot, task.planner
        assert task.operator is not None
        tools = {str(scenario.arms[name].tool): name for name in task.operator.group}
        if set(tools) != {"dustpan", "broom"}:
            raise PlanFailure("no_plan", "a group that sweeps has one dustpan and one broom")
        contents = _pan_contents(planner, snapshot, tools["dustpan"])
        lying = [
            name
            for name, (position, _) in snapshot.entities.items()
            if name not in contents
            and nearest_placement(scenario, (float(position[0]), float(position[1]), float(position[2])))
            == task.action.entity
        ]
        if not lying:
            raise PlanFailure("unreachable", f"nothing lies on {task.action.entity}")
        position, quaternion = snapshot.entities[lying[0]]
        towards = np.array(scenario.arms[tools["broom"]].base.xyz) - scenario.arms[tools["dustpan"]].base.xyz
        mouth = np.array([towards[0], towards[1], 0.0]) / math.hypot(towards[0], towards[1])
        yaw = 2 * math.atan2(quaternion[3], quaternion[0])
        turn = np.array([[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]])
        extent = float((outline(scenario.entities[lying[0]].shape) @ turn.T @ mouth[:2]).max())
        floor = np.array([position[0], position[1], scenario.placement(task.action.entity).xyz[2]])
        lip = floor - mouth * (extent + GAP)
        if task.arm == tools["dustpan"]:
            return self._hold_pan(task, lip - mouth * PAN_LIP, mouth, contents)
        begin = floor + mouth * (extent + GAP + BROOM_HALF_THICKNESS)
        end = lip - mouth * (PAN_LIP - PAN_FLAT + BEYOND - BROOM_HALF_THICKNESS)
        return self._push(task, begin, end, mouth)

    @staticmethod
    def _hold_pan(task: Task, grip: Array, mouth: Array, contents: Sequence[str]) -> Sequence[Step]:
        ways = _Ways(task, contents)
        down = tool_down(grip + np.array([0.0, 0.0, PAN_DEPTH + PAN_OVER]), _heading(mouth))
        up = down.copy()
        up[2, 3] += RAISED
        approach = ways.across("approach", down, float(up[2, 3]), free=3)
        raise_pan = ways.to("raise", up, leaving=True, barrier=True)
        before, sensor = len(contents), f"{task.arm}.pan"

        def check(run: Run) -> None:
            if run.team.readings()[sensor] <= before:
                raise SkillFailure("slip", f"what lay on {run.action.entity} is not in the pan")

        return [
            Step("ready", barrier=True), *approach, Step("keep", barrier=True), raise_pan, Verify("raise", check),
        ]  # fmt: skip

    @staticmethod
    def _push(task: Task, begin: Array, end: Array, mouth: Array) -> Sequence[Step]:
        ways = _Ways(task)
        over = np.array([0.0, 0.0, BROOM_DEPTH + BROOM_OVER])
        # Either face will do: the one for which the wrist turns less.
        heading = _heading(mouth)
        _, natural = task.planner._natural(task.arm, begin)
        if math.cos(heading - natural) < 0.0:
            heading += math.pi
        down, inside = tool_down(begin + over, heading), tool_down(end + over, heading)
        up = down.copy()
        up[2, 3] += RAISED
        return [
            Step("ready", barrier=True),
            *ways.across("approach", down, float(up[2, 3]), free=1),
            ways.to("push", inside, speed=PUSH_SPEED, free=100, barrier=True),
            ways.to("withdraw", down, free=100),
            ways.to("withdraw", up),
            Step("away", barrier=True),
        ]


class Dump:
    """``dump BIN``: the pan level to the bin, tilted until it is empty, and level again."""

    def refuse(self, task: Task) -> None:
        """Raises SkillFailure when the arm has no dustpan."""
        if task.scenario.arms[task.arm].tool != "dustpan":
            raise SkillFailure("no_plan", f"{task.arm} has no dustpan")

    def plan(self, task: Task) -> Sequence[Step]:
        """The first heading of the mouth, nearest to the present one, for which there is a way."""
        bin_ = task.scenario.fixtures[task.action.entity]
        assert isinstance(bin_, BinFixture)
        contents = _pan_contents(task.planner, task.snapshot, task.arm)
        pose = task.planner.kinematics[task.arm].forward(task.snapshot.joints[task.arm])
        now = math.atan2(pose[1, 0], pose[0, 0])
        failure = PlanFailure("unreachable", f"{task.arm} cannot empty its pan over {task.action.entity}")
        for quarter in (0, 1, -1, 2, -2, 3, -3, 4):
            try:
                return self._with_heading(task, bin_, now + quarter * math.pi / 4, contents)
            except PlanFailure as error:
                failure = error
        raise failure

    @staticmethod
    def _with_heading(task: Task, bin_: BinFixture, heading: float, contents: Sequence[str]) -> Sequence[Step]:
        ways = _Ways(task, contents)
        mouth = np.array([math.cos(heading), math.sin(heading), 0.0])
        rim = np.array([bin_.xyz[0], bin_.xyz[1], bin_.xyz[2] + bin_.size[2] + OVER_RIM])
        level = tool_down(rim + mouth * (DRAG - PAN_LIP) + [0.0, 0.0, PAN_DEPTH], _heading(mouth))
        tilted = np.eye(4)
        down = np.array([0.0, 0.0, -1.0])
        tilted[:3, 0] = mouth * math.cos(TILT) + down * math.sin(TILT)
        tilted[:3, 2] = down * math.cos(TILT) - mouth * math.sin(TILT)
        tilted[:3, 1] = np.cross(tilted[:3, 2], tilted[:3, 0])
        tilted[:3, 3] = rim - mouth * DRAG - tilted[:3, :3] @ [PAN_LIP, 0.0, PAN_DEPTH]
        sensor = f"{task.arm}.pan"
        return [
            *ways.across("approach", level, float(level[2, 3])),
            ways.to("tilt", tilted),
            Until("empty", lambda run: run.since > 0.5 and run.team.readings()[sensor] == 0.0, 4.0, "slip"),
            ways.to("level", level),
        ]
