"""``hold DOOR``: come down on a door's handle, pull it open, hold it while others need it, let go of it, go home.

The door is never led back: it closes by its spring alone, which does no harm to an arm that stands in its way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from polyarm_core.errors import UnknownName
from polyarm_core.plant.cabinet import POST_RADIUS, DoorIndex
from polyarm_core.plant.motion import PlanFailure, Trajectory, _wrap, tool_down
from polyarm_core.plant.scene import Array
from polyarm_core.plant.skills import Close, Follow, Home, Open, Run, SkillFailure, Step, Task, Verify

DEPTH = 0.03
"""The tool's point is this far below the top of the handle when the gripper closes, m."""
RISE = 0.14
"""The tool comes down from, and goes back up, this far above that, m."""
ARC_STEP = 0.05
"""Spacing of the postures along a door's arc, rad."""
ARC_SPEED = 0.6
"""A door is turned no faster than this, rad/s."""
STILL = (0.01, 0.3)
"""A door that turns by less than this (rad) in that time (s) is at rest."""
SWING_TIME = 8.0
"""No door swings for longer than this, s."""
LAG = 0.25
"""A door that is this far behind the gripper has slipped out of it, rad."""
PATIENCE = 4.0
"""Held for nobody for this long, a door is let go, s."""
HOLD_LIMIT = 120.0
"""No door is held for longer than this, s."""
GRASPED = 0.035
"""A tool that is no further than this from where it would grasp has the handle between its open fingers, m."""


@dataclass
class Held(Step):
    """Stay while a running action needs what is held; nobody coming within `PATIENCE`, go on."""

    door: str
    angle: float
    holding: bool = field(default=True, kw_only=True)
    _wanted: bool = field(default=False, init=False)

    def tick(self, run: Run) -> bool:
        """Whether nobody needs it any more. Raises SkillFailure when the door is lost, or held for too long."""
        check_angle(run, self.door, self.angle)
        if run.team.needed(run.arm):
            self._wanted = True
            if run.since > HOLD_LIMIT:
                raise SkillFailure("timeout", f"{self.door} was needed for longer than {HOLD_LIMIT:.0f} s")
            return False
        return self._wanted or run.since > PATIENCE


@dataclass
class AtRest(Step):
    """Wait until a door that was let go is at rest, closed or against something: none may reach for a swinging one."""

    door: str
    _angle: float = field(default=math.inf, init=False)
    _moved: float = field(default=0.0, init=False)

    def tick(self, run: Run) -> bool:
        """Whether it has not moved for a while."""
        angle = run.team.readings().get(f"{self.door}.angle", 0.0)
        if abs(angle - self._angle) > STILL[0]:
            self._angle, self._moved = angle, run.now
        return run.now - self._moved > STILL[1] or run.since > SWING_TIME


def check_angle(run: Run, door: str, angle: float) -> None:
    """Raises SkillFailure ``slip`` when a door is not where the gripper holds it."""
    measured = run.team.readings().get(f"{door}.angle", 0.0)
    if measured < angle - LAG:
        raise SkillFailure("slip", f"{door} stands at {measured:.2f} rad instead of {angle:.2f}: the handle slipped")


class Hold:
    """The skill of the verb ``hold``; parameter ``angle``: how far the door is opened, rad."""

    def refuse(self, task: Task) -> None:
        """Raises UnknownName for a door that the scene does not have, SkillFailure for a gripper that is not free."""
        doors = task.planner.scene.doors
        if task.action.entity not in doors:
            raise UnknownName("door", task.action.entity, doors)
        held = [entity for entity, holder in task.snapshot.held.items() if holder == task.arm]
        if held:
            raise SkillFailure("no_plan", f"the gripper holds {', '.join(held)}")
        if task.robot.gripper != "parallel":
            raise SkillFailure("unreachable", f"{task.arm} has no fingers to hold {task.action.entity} with")

    def plan(self, task: Task) -> Sequence[Step]:
        """Both ways round of the gripper are tried, the one that turns the wrist less first."""
        door = task.planner.scene.doors[task.action.entity]
        top, heading = door.post(task.snapshot.doors[door.name])
        _, natural = task.planner._natural(task.arm, top)
        failure = PlanFailure("unreachable", f"{task.arm} cannot reach the handle of {door.name}")
        for flip in sorted((0.0, math.pi), key=lambda turn: abs(_wrap(heading + turn - natural))):
            try:
                return self._plan(task, door, flip)
            except PlanFailure as error:
                if error.reason == "no_plan" or failure.reason == "unreachable":
                    failure = error
        raise failure

    def _plan(self, task: Task, door: DoorIndex, flip: float) -> Sequence[Step]:
        planner, arm, snapshot = task.planner, task.arm, task.snapshot
        kinematics = planner.kinematics[arm]
        zones = planner._open_zones(arm, snapshot, task.zones or ())
        first, last = snapshot.doors[door.name], min(task.parameter("angle", 1.75), door.limit)
        start, home = np.asarray(snapshot.joints[arm], float), np.array(task.robot.home)

        def tool(angle: float, up: float = 0.0) -> Array:
            top, heading = door.post(angle)
            return tool_down(top + np.array([0.0, 0.0, up - DEPTH]), heading + flip)

        steps: list[Step] = []
        grasp, now = tool(first), kinematics.forward(start)
        if np.linalg.norm(now[:3, 3] - grasp[:3, 3]) < GRASPED and now[:3, 1] @ grasp[:3, 1] > 0.9:
            # The handle may lean on one finger: it must be in the middle, or only one of them would touch it.
            line = kinematics.line(start, grasp)
            if line is None:
                raise PlanFailure("unreachable", f"{arm} cannot grasp the handle of {door.name} from where it stands")
            down = line
            steps.append(Follow("reach", planner._trajectory(arm, down), task.robot.opening))
        else:
            seed, _ = planner._natural(arm, grasp[:3, 3])
            above = kinematics.inverse(tool(first, RISE), seed)
            line = kinematics.line(above, grasp) if above is not None else None
            if above is None or line is None:
                raise PlanFailure("unreachable", f"{arm} cannot come down on the handle of {door.name}")
            down = line
            touching = planner._checker(arm, snapshot, zones, ignored=(door.name,))
            if not all(touching(q) for q in down):
                raise PlanFailure("no_plan", f"{arm}: the way down to the handle of {door.name} is blocked")
            clear = planner._checker(arm, snapshot, zones)
            leave = [start] if clear(start) else planner._leave(arm, start)
            reach = [*leave[:-1], *planner._connect(arm, leave[-1], above, clear, task.seed), *down[1:]]
            steps.append(Follow("reach", planner._trajectory(arm, reach), task.robot.opening))

        def arc(joints: Array, begin: float, end: float) -> list[Array]:
            path = [joints]
            for angle in np.linspace(begin, end, max(math.ceil(abs(end - begin) / ARC_STEP), 1) + 1)[1:]:
                q = kinematics.inverse(tool(float(angle)), path[-1])
                if q is None or np.abs(q - path[-1]).max() > 0.4:
                    raise PlanFailure("unreachable", f"{arm} cannot follow {door.name} to {angle:.2f} rad")
                turned = replace(snapshot, doors={**snapshot.doors, door.name: float(angle)})
                if not planner._checker(arm, turned, zones, ignored=(door.name,))(q):
                    raise PlanFailure("no_plan", f"{arm}: the way with {door.name} is blocked at {angle:.2f} rad")
                path.append(q)
            return path

        pull = arc(down[-1], first, last)
        up = kinematics.line(pull[-1], tool(last, RISE))
        if up is None:
            raise PlanFailure("unreachable", f"{arm} cannot rise from the handle of {door.name}")
        clear = planner._checker(arm, replace(snapshot, doors={**snapshot.doors, door.name: last}), zones)
        retreat = [*up[:-1], *planner._connect(arm, up[-1], home, clear, task.seed + 1)]
        return [
            *steps,
            Close("grip", f"the handle of {door.name}", 2 * POST_RADIUS),
            Follow("pull", _slowed(planner._trajectory(arm, pull, carrying=True), abs(last - first))),
            Verify("pull", lambda run: check_angle(run, door.name, last)),
            Held("hold", door.name, last),
            Open("release", f"the handle of {door.name}"),
            Follow("retreat", planner._trajectory(arm, retreat)),
            AtRest("shut", door.name),
        ]


class HomeFromHandle(Home):
    """The way home, which begins with letting go of a handle if the arm stands at one."""

    def plan(self, task: Task) -> Sequence[Step]:
        """Open, rise above the handle, go home; elsewhere as `Home`."""
        planner, arm = task.planner, task.arm
        start = np.asarray(task.snapshot.joints[arm], float)
        pose = planner.kinematics[arm].forward(start)
        for door in planner.scene.doors.values():
            top, _ = door.post(task.snapshot.doors[door.name])
            if np.linalg.norm(pose[:3, 3] - top) > DEPTH + GRASPED:
                continue
            pose[2, 3] += RISE
            up = planner.kinematics[arm].line(start, pose)
            if up is None:
                raise PlanFailure("unreachable", f"{arm} cannot rise from the handle of {door.name}")
            joints = {**task.snapshot.joints, arm: up[-1]}
            home = planner.plan_home(arm, replace(task.snapshot, joints=joints), task.zones or (), task.seed)
            return [
                Open("release", f"the handle of {door.name}"),
                Follow("rise", planner._trajectory(arm, up)),
                Follow("home", home),
            ]
        return super().plan(task)


def _slowed(trajectory: Trajectory, angle: float) -> Trajectory:
    """The same motion, slow enough that the door's mean speed is at most `ARC_SPEED`."""
    factor = max(1.0, angle / ARC_SPEED / trajectory.duration)
    return Trajectory(trajectory.times * factor, trajectory.positions, trajectory.velocities / factor)
