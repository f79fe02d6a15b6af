"""The simulated plant: physics, servos, skills of all arms, contact counting; and the loop that runs it in a thread.

A `Simulation` is owned by one thread. Every `TICK` the servos write their commands, the physics takes two steps, and
contacts are counted; every fifth tick the skills advance. With ``planning="inline"`` simulated time waits for plans,
so the same seed and the same (action, start time) sequence give the same episode bit for bit on one machine and one
set of library versions. With ``planning="thread"`` time goes on while a worker plans; when a plan takes effect then
depends on the machine, and so does the episode.
"""

from __future__ import annotations

import queue
import threading
import time as clock
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import mujoco
import numpy as np

from polyarm_core.constraints import MOVE_VERB, Action
from polyarm_core.declaration import declare
from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_core.liveness import draw_start
from polyarm_core.plant.motion import MotionPlanner, PlanningScene, Pose, Trajectory
from polyarm_core.plant.registry import SKILLS
from polyarm_core.plant.rope import lay_rope, rope_readings
from polyarm_core.plant.scene import TIMESTEP, ArmIndex, Array, Scene, build_scene
from polyarm_core.plant.skills import ActionResult, ArmBusy, GripperState, MotionState, SkillExecutor, Status
from polyarm_core.plant.sweep import count_readings
from polyarm_core.scenario import Measured, Scenario
from polyarm_core.world import World, locate

T = TypeVar("T")

STEPS = 2
TICK = STEPS * TIMESTEP
"""Control period, s."""
SKILL_TICKS = 5
STOP_TIME = 0.2
"""A smooth stop slows down along the trajectory within this time, s."""
PATH_TOLERANCE = 0.25
"""A servo that lags its command by more than this is blocked, rad."""
GOAL_TOLERANCE, REST_SPEED = 0.006, 0.02
"""An arm has arrived when every joint is this close (rad) and this slow (rad/s)."""
LOADED_TOLERANCE, LOADED_TIME = 0.05, 0.4
"""... or, against the pull of a spring, this close (rad) once the trajectory has been over for that long (s)."""
JITTER = (0.004, 0.08)
"""Entities start up to this far (m) and turned (rad) from the exact placement, by seed."""
SETTLE_TIME = 0.1
CONTACT_TICKS = 125
"""Two arms must have been apart for longer than this (0.5 s) for the next touch to count as another contact."""


@dataclass(frozen=True)
class ArmView:
    """One arm now: positions (n,) rad and velocities (n,) rad/s of ``joints``, opening m (suction 0 on, 1 off)."""

    name: str
    joints: tuple[str, ...]
    positions: Array
    velocities: Array
    opening: float
    holding: str
    status: Status


class _SimArm:
    """Servos and gripper of one simulated arm: the port that its skills drive."""

    def __init__(self, scene: Scene, index: ArmIndex, data: Any) -> None:
        self._scene, self._index, self._data = scene, index, data
        model = scene.model
        self._low, self._high = model.actuator_ctrlrange[index.ctrl].T
        self._trajectory: Trajectory | None = None
        self._time = 0.0
        self._rate = 1.0
        self._stopping = False
        self._failed = False
        self._target = np.array(index.robot.home)
        self.grip_command = index.robot.opening
        sides: dict[str, set[int]] = {"left": set(), "right": set()}
        for body in index.bodies:
            for side, members in sides.items():
                if f"{side}_" in model.body(body).name:
                    members.add(body)
        self._sides = sides
        cup = model.body(f"{index.name}/gripper/cup").id if index.robot.gripper == "suction" else -1
        self._cup = cup
        self._welded = ""

    def reset(self) -> None:
        self._trajectory, self._failed, self._stopping = None, False, False
        self._welded = ""
        self._target = np.array(self._index.robot.home)
        self._data.qpos[self._index.qpos] = self._target
        self.grip_command = self._index.robot.opening
        if self._index.robot.name == "panda":
            self._data.qpos[self._index.finger_qpos] = self._index.robot.opening / 2
        self.control()

    # -- ArmPort ----------------------------------------------------------------------------------------------------

    def joints(self) -> Array:
        return np.array(self._data.qpos[self._index.qpos])

    def velocities(self) -> Array:
        return np.array(self._data.qvel[self._index.dof])

    def send_trajectory(self, trajectory: Trajectory) -> None:
        self._trajectory, self._time, self._rate = trajectory, 0.0, 1.0
        self._stopping = self._failed = False

    def motion(self) -> MotionState:
        if self._failed:
            return "failed"
        if self._trajectory is None:
            return "idle"
        if self._time < self._trajectory.duration:
            return "moving"
        off = np.abs(self.joints() - self._trajectory.positions[-1]).max()
        late = self._time - self._trajectory.duration > LOADED_TIME
        near = off < GOAL_TOLERANCE or (late and off < LOADED_TOLERANCE)
        return "done" if near and np.abs(self.velocities()).max() < REST_SPEED else "moving"

    def hold(self) -> None:
        if self._trajectory is not None and self._time < self._trajectory.duration:
            self._stopping = True
        elif self.motion() == "moving":  # pressed against something at the end of its way: let go of the pressure
            self.freeze()

    def freeze(self) -> None:
        """Stop at once, where the arm is."""
        self._trajectory, self._target = None, self.joints()

    def command_gripper(self, opening: float) -> None:
        self.grip_command = float(np.clip(opening, 0.0, self._index.robot.opening))
        if self._welded and self.grip_command > 0.5 * self._index.robot.opening:
            self._data.eq_active[self._scene.welds[self._index.name, self._welded]] = 0
            self._welded = ""

    def assist(self) -> None:
        """Where the scenario asks for it: weld what both fingers touch to the flange, until they open.

        A suction cup needs no help, and its lip and a weld would fight over the same distance.
        """
        if self._welded or self._cup >= 0:
            return
        entity = self.held()
        if not entity:
            return
        model, data, body = self._scene.model, self._data, self._scene.entities[entity].body
        flange = model.body(f"{self._index.name}/{self._index.robot.flange}").id
        inverse, offset, turn = np.empty(4), np.empty(3), np.empty(4)
        mujoco.mju_negQuat(inverse, data.xquat[flange])
        mujoco.mju_rotVecQuat(offset, data.xpos[body] - data.xpos[flange], inverse)
        mujoco.mju_mulQuat(turn, inverse, data.xquat[body])
        weld = self._scene.welds[self._index.name, entity]
        model.eq_data[weld, :10] = [0.0, 0.0, 0.0, *offset, *turn]
        data.eq_active[weld] = 1
        self._welded = entity

    def gripper(self) -> GripperState:
        return GripperState(self.opening(), bool(self.held()) or self._on_handle())

    def _on_handle(self) -> bool:
        """Whether both fingers touch the handle of a door while they are told to close."""
        if not self._scene.doors or self._cup >= 0 or self.grip_command > 0.5 * self._index.robot.opening:
            return False
        pairs = self._data.contact.geom
        bodies = self._scene.model.geom_bodyid[pairs[(pairs >= 0).all(axis=1)]]
        for door in self._scene.doors.values():
            touching = set(bodies[(bodies == door.body).any(axis=1)].ravel().tolist())
            if touching & self._sides["left"] and touching & self._sides["right"]:
                return True
        return False

    # -- servo ------------------------------------------------------------------------------------------------------

    def control(self) -> None:
        """Write the commands of the next tick."""
        index, data = self._index, self._data
        command = self._target
        if self._trajectory is not None:
            if self._stopping:
                self._rate = max(self._rate - TICK / STOP_TIME, 0.0)
            self._time += self._rate * TICK
            position, velocity = self._trajectory.sample(self._time)
            self._target = position
            command = position + index.lag * velocity * self._rate
            if self._stopping and self._rate == 0.0:
                self._trajectory, self._stopping = None, False
            elif np.abs(data.qpos[index.qpos] - position).max() > PATH_TOLERANCE:
                self._failed = True
                self.freeze()
                command = self._target
        data.ctrl[index.ctrl] = np.minimum(np.maximum(command, self._low), self._high)
        if index.robot.gripper == "suction":
            data.ctrl[index.finger_ctrl] = 1.0 if self.grip_command < 0.5 else 0.0
        elif index.robot.name == "panda":
            data.ctrl[index.finger_ctrl] = 255.0 * self.grip_command / index.robot.opening
        else:
            data.ctrl[index.finger_ctrl] = 255.0 * (1.0 - self.grip_command / index.robot.opening)

    # -- gripper ----------------------------------------------------------------------------------------------------

    def opening(self) -> float:
        """Opening, m: from the finger joints; suction: 0 on, 1 off."""
        robot = self._index.robot
        if robot.gripper == "suction":
            return 0.0 if self.grip_command < 0.5 else 1.0
        fingers = self._data.qpos[self._index.finger_qpos]
        if robot.name == "panda":
            return float(fingers.sum())
        # 2F-85: the pads' distance is nearly linear in the driver angle, 85 mm at 0 and 0 at 0.8 rad.
        return float(np.clip(robot.opening * (1.0 - fingers.mean() / 0.8), 0.0, robot.opening))

    def held(self) -> str:
        """The entity between both fingers while they are told to close, or on the cup while it sucks; or ""."""
        robot, data, scene = self._index.robot, self._data, self._scene
        if self._welded:
            return self._welded
        if data.ncon == 0 or self.grip_command > 0.5 * robot.opening:
            return ""
        pairs = data.contact.geom
        pairs = pairs[(pairs >= 0).all(axis=1)]  # a flex is no geom
        bodies = scene.model.geom_bodyid[pairs]
        entity = scene.entity_of_geom[pairs]
        for number, name in enumerate(scene.entities):
            rows = (entity == number).any(axis=1)
            if not rows.any():
                continue
            touching = set(bodies[rows].ravel().tolist())
            if robot.gripper == "suction":
                if int((bodies[rows] == self._cup).any(axis=1).sum()) >= 3:
                    return name
            elif touching & self._sides["left"] and touching & self._sides["right"]:
                return name
        return ""


def _at_once(job: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(job())
    except PolyarmError as error:
        future.set_exception(error)
    return future


class Simulation:
    """The physics of a scenario with its arms' skills; see the module's text on threads and determinism.

    Args:
        scenario: what stands where.
        seed: of the start and of the planner.
        planning: ``inline`` (simulated time waits) or ``thread``.

    Raises:
        UnknownName, RobotFilesMissing: from building the scene.
    """

    def __init__(self, scenario: Scenario, seed: int = 0, planning: Literal["inline", "thread"] = "inline") -> None:
        if planning not in ("inline", "thread"):
            raise InvalidValue("planning", planning, "'inline' or 'thread'")
        self.scenario = scenario
        self.scene = build_scene(scenario, visuals=False)
        self.planner = MotionPlanner(self.scene)
        self.data = mujoco.MjData(self.scene.model)
        self._pool = ThreadPoolExecutor(1, "planner") if planning == "thread" else None
        submit = self._pool.submit if self._pool is not None else _at_once
        self._ports = {name: _SimArm(self.scene, index, self.data) for name, index in self.scene.arms.items()}
        self._skills = {
            name: SkillExecutor(name, scenario, port, self.planner, submit, self, SKILLS)
            for name, port in self._ports.items()
        }
        self.episode = 0
        self.seed = seed
        self.reset(seed)

    def close(self) -> None:
        """End the planning thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # -- episode ----------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, start: Mapping[str, str] | None = None) -> None:
        """A new episode: arms at home, entities at the start drawn by ``seed`` (or at ``start``), time 0.

        Actions in progress end with outcome ``stopped``, reason ``reset``. Raises UnknownName for names in ``start``.
        """
        for name in self._skills if self.episode else ():
            self.stop(name, "reset")
        ended = self.results() if self.episode else []
        self.seed = self.seed if seed is None else seed
        where = dict(draw_start(self.scenario, self.seed)) if start is None else dict(start)
        model, data = self.scene.model, self.data
        mujoco.mj_resetData(model, data)
        self._random = np.random.default_rng([self.seed, 0x9E37])
        for name, item in self.scene.entities.items():
            x, y, z = self.scenario.placement(where[name]).xyz
            dx, dy = self._random.uniform(-JITTER[0], JITTER[0], 2)
            yaw = self._random.uniform(-JITTER[1], JITTER[1])
            data.qpos[item.qpos : item.qpos + 7] = [
                x + dx, y + dy, z + item.half_height, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)
            ]  # fmt: skip
        for rope in self.scene.ropes.values():
            lay_rope(model, data, rope, self._random)
        for name, port in self._ports.items():
            port.reset()
            self._skills[name].reset()
        for _ in range(int(SETTLE_TIME / TICK)):
            mujoco.mj_step(model, data, nstep=STEPS)
        self._ticks = 0
        self._actions = 0
        self.episode += 1
        self.arm_contacts = 0
        self.contact_ticks = 0
        self.contact_pairs: dict[tuple[str, str], int] = {}
        self._touched: dict[tuple[int, int], int] = {}
        self._blocked: frozenset[str] = frozenset()
        self._results = ended

    @property
    def time(self) -> float:
        """Simulated time since the episode began, s."""
        return self._ticks * TICK

    def step(self, ticks: int = 1) -> None:
        """Advance by ``ticks`` control periods of `TICK` s."""
        model, data = self.scene.model, self.data
        for _ in range(ticks):
            for port in self._ports.values():
                port.control()
            mujoco.mj_step(model, data, nstep=STEPS)
            self._ticks += 1
            self._count_contacts()
            if self._ticks % SKILL_TICKS == 0:
                now = self.time
                if self.scene.welds:
                    for port in self._ports.values():
                        port.assist()
                for skill in self._skills.values():
                    if skill.active:
                        self._note(skill.tick(now, self.snapshot))

    def run(self, seconds: float) -> None:
        """Advance by simulated seconds."""
        self.step(round(seconds / TICK))

    @property
    def idle(self) -> bool:
        """No arm plans, moves, or follows a trajectory."""
        return not any(skill.active for skill in self._skills.values()) and not any(
            port.motion() == "moving" for port in self._ports.values()
        )

    def run_until_idle(self, limit: float = 60.0) -> bool:
        """Advance until every arm has ended its action, at most ``limit`` simulated s; whether they have."""
        end = self.time + limit
        while not self.idle:
            if self.time >= end:
                return False
            self.step(SKILL_TICKS)
        return True

    def _count_contacts(self) -> None:
        data = self.data
        if data.ncon == 0:
            return
        owner = self.scene.arm_of_geom[data.contact.geom]
        mask = (owner[:, 0] >= 0) & (owner[:, 1] >= 0) & (owner[:, 0] != owner[:, 1]) & (data.contact.dist < 0.0)
        if not mask.any():
            return
        pairs = {(int(min(pair)), int(max(pair))) for pair in owner[mask]}
        self.contact_ticks += 1
        names = self.scene.arm_names
        for pair in sorted(pairs):
            apart = self._ticks - self._touched.get(pair, -CONTACT_TICKS - 1)
            self._touched[pair] = self._ticks
            if apart <= CONTACT_TICKS:
                continue  # still the same contact, bouncing
            self.arm_contacts += 1
            a, b = names[pair[0]], names[pair[1]]
            self.contact_pairs[(a, b)] = self.contact_pairs.get((a, b), 0) + 1
            for name, other in ((a, b), (b, a)):
                self._ports[name].freeze()
                self._note(self._skills[name].protective_stop(f"contact with {other}", self.time))

    def _note(self, result: ActionResult | None) -> None:
        if result is None:
            return
        self._results.append(result)
        if result.outcome == "succeeded":
            return
        # What an arm held, it holds no more; and whoever acts together with it must not go on alone.
        operator = self.scenario.operator(result.arm, result.action.verb, result.action.entity, result.action.placement)
        if operator is None:
            return
        for name, skill in self._skills.items():
            if name == result.arm:
                continue
            self._note(skill.lose(operator.holds, self.time, f"{result.arm} does not hold {operator.entity} any more"))
            if result.arm in skill.group and skill.action.verb == result.action.verb:
                self._note(skill.stop("partner", self.time, f"{result.arm} ended: {result.reason}"))

    # -- what arms must know of each other (`skills.Team`) -------------------------------------------------------------

    def unheld(self, arm: str, conditions: Collection[str]) -> str:
        """The first of ``conditions`` that no sensor shows, or that a running action is still about to hold; or ""."""
        readings = self.readings()
        for name in sorted(conditions):
            condition = self.scenario.conditions[name]
            if isinstance(condition, Measured) and not condition.within(readings):
                return name
            holders = [skill for other, skill in self._skills.items() if other != arm and name in skill.holds]
            if holders and not any(skill.holding for skill in holders):
                return name
        # Who still moves a door would move it into the arm.
        others = [skill for other, skill in self._skills.items() if other != arm and skill.holds]
        moving = [name for skill in others if not skill.holding for name in skill.holds]
        return min(moving, default="")

    def needed(self, arm: str) -> bool:
        """Whether some other arm's running action requires conditions to be held."""
        return any(skill.requires for name, skill in self._skills.items() if name != arm)

    def together(self, arm: str) -> bool:
        """Whether the whole group of an arm's action stands at its barrier or is past it."""
        mine = self._skills[arm]
        return bool(mine.group) and all(
            other.group == mine.group and other.action.verb == mine.action.verb and other.barrier >= mine.barrier
            for other in (self._skills[name] for name in mine.group)
        )

    # -- what there is to see -----------------------------------------------------------------------------------------

    def poses(self) -> dict[str, Pose]:
        """Pose of every entity in the scenario frame."""
        states = {name: self.data.qpos[item.qpos : item.qpos + 7].copy() for name, item in self.scene.entities.items()}
        return {name: (state[:3], state[3:]) for name, state in states.items()}

    def held_by(self) -> dict[str, str]:
        """Entity -> arm that holds it."""
        return {entity: name for name, port in self._ports.items() if (entity := port.held())}

    def snapshot(self) -> PlanningScene:
        """What a plan is made against."""
        joints = {name: port.joints() for name, port in self._ports.items()}
        return PlanningScene(joints, self.poses(), self.held_by(), self._doors())

    def world(self, conditions: frozenset[str] = frozenset()) -> World:
        """The world as the core sees it."""
        positions = {n: (float(p[0]), float(p[1]), float(p[2])) for n, (p, _) in self.poses().items()}
        return World(positions, conditions, self.held_by(), self._blocked)

    def arm(self, name: str) -> ArmView:
        """One arm now. Raises UnknownName."""
        port, index = self._port(name), self.scene.arms[name]
        return ArmView(
            name, index.robot.joints, port.joints(), port.velocities(), port.opening(), port.held(), self._status(name)
        )

    def readings(self) -> dict[str, float]:
        """What the sensors of the scene measure now: sensor -> value, for the scenario's measured conditions."""
        readings: dict[str, float] = {}
        for rope in self.scene.ropes.values():
            readings.update(rope_readings(self.scenario, self.scene.model, self.data, rope, self.held_by()))
        readings.update(count_readings(self.scene, self.data))
        readings.update({f"{name}.angle": angle for name, angle in self._doors().items()})
        return readings

    def _doors(self) -> dict[str, float]:
        return {name: float(self.data.qpos[door.qpos]) for name, door in self.scene.doors.items()}

    def held_conditions(self) -> frozenset[str]:
        """Conditions that hold without a sensor: none, physics is measured."""
        return frozenset()

    def zones_entered(self, name: str) -> frozenset[str]:
        """Zones of the scenario in which some link of an arm is now (its body origins, in the plane)."""
        self._port(name)
        points = self.data.xpos[sorted(self.scene.arms[name].bodies)]
        return frozenset(
            zone_name
            for zone_name, zone in self.scenario.zones.items()
            if ((points[:, :2] >= zone.min) & (points[:, :2] <= zone.max)).all(axis=1).any()
        )

    def _status(self, name: str) -> Status:
        status = self._skills[name].status
        return "moving" if status != "protective_stop" and self._ports[name].motion() == "moving" else status

    def phase(self, name: str) -> str:
        """Phase of an arm's action: plan, pick, close, place, open, retreat, home; "" when it has none."""
        return self._skill(name).phase

    def qpos(self) -> Array:
        """All joint positions, for pictures."""
        return np.array(self.data.qpos)

    # -- commands -----------------------------------------------------------------------------------------------------

    def start_action(self, arm: str, action: Action, zones: Collection[str] | None = None, tag: Any = None) -> None:
        """Begin an action; its result comes from ``results``.

        Args:
            arm: who acts.
            action: a move, or an action of the scenario's operators.
            zones: zones that the arm may enter; None = those that the action declares (`declare`).
            tag: comes back in the result.

        Raises:
            ArmBusy: the arm plans, moves or is in protective stop.
            UnknownName, InvalidValue: from the action.
        """
        skill = self._skill(arm)
        if action.entity and action.entity not in self.scenario.things:
            raise UnknownName("entity", action.entity, self.scenario.things)
        operator = self.scenario.operator(arm, action.verb, action.entity, action.placement)
        if operator is None and action.verb != MOVE_VERB:
            raise InvalidValue("action", str(action), f"{MOVE_VERB!r} or an operator of {arm}")
        declared = declare(self.scenario, arm, action, locate(self.scenario, self.world()))
        if zones is None:
            zones = {name.removeprefix("zone:") for name in declared.exclusive if name.startswith("zone:")}
        for zone in zones:
            if zone not in self.scenario.zones:
                raise UnknownName("zone", zone, self.scenario.zones)
        self._actions += 1
        seed, requires = self._plan_seed(), declared.requires_held
        self._note(skill.start(action, self.time, self.snapshot, zones, seed, tag, requires))

    def go_home(self, arm: str, zones: Collection[str] = (), tag: Any = None) -> None:
        """Bring an arm home from wherever it stands, with what it holds. Raises ArmBusy, UnknownName."""
        skill = self._skill(arm)
        self._actions += 1
        self._note(skill.go_home(self.time, self.snapshot, zones, self._plan_seed(), tag))

    def _plan_seed(self) -> int:
        return (self.seed * 10007 + self._actions * 31) % (2**30)

    def stop(self, arm: str, reason: str) -> None:
        """Stop an arm's action smoothly; it holds. ``reason`` is a word of ActionResult.msg."""
        skill, port = self._skill(arm), self._ports[arm]
        if skill.active:
            self._note(skill.stop(reason, self.time))
        else:
            port.hold()

    def clear(self, arm: str) -> None:
        """Clear an arm's protective stop; it holds and takes actions again."""
        self._skill(arm).clear()

    def results(self) -> list[ActionResult]:
        """Results since the last call, in the order in which they came about."""
        results, self._results = self._results, []
        return results

    def send_trajectory(self, arm: str, trajectory: Trajectory) -> None:
        """Follow a joint trajectory from outside; an action in progress is stopped (reason ``vetoed``).

        Raises:
            UnknownName: no such arm.
            InvalidValue: wrong width, times not increasing from >= 0, or not finite.
            ArmBusy: the arm is in protective stop.
        """
        skill, port = self._skill(arm), self._ports[arm]
        n = self.scene.arms[arm].robot.dof
        shape = (len(trajectory.times), n)
        if trajectory.positions.shape != shape or trajectory.velocities.shape != shape or not shape[0]:
            raise InvalidValue("trajectory", trajectory.positions.shape, f"positions and velocities of shape {shape}")
        finite = all(np.isfinite(a).all() for a in (trajectory.times, trajectory.positions, trajectory.velocities))
        if not finite or trajectory.times[0] < 0 or np.any(np.diff(trajectory.times) <= 0):
            raise InvalidValue("trajectory.times", trajectory.times[:3], "finite and increasing from 0 s")
        if skill.status == "protective_stop":
            raise ArmBusy(arm, skill.status)
        self.stop(arm, "vetoed")
        if trajectory.times[0] > 0:  # begin where the arm is, as a joint_trajectory_controller does
            trajectory = Trajectory(
                np.concatenate([[0.0], trajectory.times]),
                np.concatenate([[port.joints()], trajectory.positions]),
                np.concatenate([[port.velocities()], trajectory.velocities]),
            )
        skill.status = "holding"
        port.send_trajectory(trajectory)

    def trajectory_state(self, arm: str) -> MotionState:
        """Of the last trajectory of an arm: ``idle``, ``moving``, ``done`` or ``failed``."""
        return self._port(arm).motion()

    def hold(self, arm: str) -> None:
        """Stop an arm smoothly where it is; an action in progress ends as stopped (reason ``vetoed``)."""
        self.stop(arm, "vetoed")

    def command_gripper(self, arm: str, opening: float) -> None:
        """Opening to go to, m; suction: below 0.5 = on. Raises InvalidValue when it is not a finite number >= 0."""
        if not (np.isfinite(opening) and opening >= 0.0):
            raise InvalidValue("opening", opening, "a finite number >= 0 (m)")
        self._port(arm).command_gripper(opening)

    def place_entity(self, entity: str, xyz: tuple[float, float, float], quat: Any = (1.0, 0.0, 0.0, 0.0)) -> None:
        """Put an entity somewhere at rest, as a person would. Raises UnknownName."""
        if entity not in self.scene.entities:
            raise UnknownName("entity", entity, self.scene.entities)
        item = self.scene.entities[entity]
        self.data.qpos[item.qpos : item.qpos + 7] = [*xyz, *quat]
        self.data.qvel[item.dof : item.dof + 6] = 0.0

    def protective_stop(self, arm: str, text: str) -> None:
        """Stop an arm until `clear`, as its own safety would. Raises UnknownName."""
        self._note(self._skill(arm).protective_stop(text, self.time))

    def release(self, arm: str) -> None:
        """Open an arm's gripper whatever it does; what it holds falls, and its action fails. Raises UnknownName."""
        self._port(arm).command_gripper(self.scene.arms[arm].robot.opening)

    def relied_on(self) -> dict[str, str]:
        """Arm -> what it holds open at the moment, where another arm has reached for what is behind it."""
        needed = [skill.relies_on(self.time) for skill in self._skills.values()]
        return {
            name: skill.action.entity
            for name, skill in self._skills.items()
            if skill.holding and any(skill.holds & conditions for conditions in needed)
        }

    def slip(self, arm: str) -> None:
        """What an arm holds open slips from its gripper: the action fails, and those that require it are stopped.

        The arm goes home, since a handle would lean on its open finger: so the door falls shut. Raises UnknownName.
        """
        skill = self._skill(arm)
        if not skill.holding:
            return
        self._note(skill.slip(f"{skill.action.entity} slipped out of the gripper", self.time))
        self.go_home(arm)

    def block(self, placement: str, blocked: bool = True) -> None:
        """Put something on a placement that is no entity of the task, or take it away. Raises UnknownName.

        It has no body: the world shows the placement as blocked, so that no action to it is granted.
        """
        self.scenario.placement(placement)
        self._blocked = self._blocked | {placement} if blocked else self._blocked - {placement}

    def _port(self, arm: str) -> _SimArm:
        if arm not in self._ports:
            raise UnknownName("arm", arm, self._ports)
        return self._ports[arm]

    def _skill(self, arm: str) -> SkillExecutor:
        self._port(arm)
        return self._skills[arm]


class SimulationLoop:
    """Runs a simulation in a thread of its own; other threads talk to it through `call` and `post`.

    Args:
        simulation: owned by the loop's thread from `start` on.
        real_time_factor: simulated seconds per second; 0 = as fast as possible.
        on_period: called in the loop's thread every ``period`` simulated seconds, and after every executed call.
        period: s.
        idle: for factor 0, what time does while no arm is active: ``run`` on as fast as possible, ``real_time``, or
            ``pause`` (simulated time stands still, so that episodes do not depend on how long decisions take).
    """

    def __init__(
        self,
        simulation: Simulation,
        real_time_factor: float = 1.0,
        on_period: Callable[[Simulation], None] | None = None,
        period: float = 0.01,
        idle: Literal["run", "real_time", "pause"] = "real_time",
    ) -> None:
        if not (np.isfinite(real_time_factor) and real_time_factor >= 0.0):
            raise InvalidValue("real_time_factor", real_time_factor, "0 (as fast as possible) or a positive number")
        if idle not in ("run", "real_time", "pause"):
            raise InvalidValue("idle", idle, "'run', 'real_time' or 'pause'")
        self._simulation = simulation
        self._factor = real_time_factor
        self._on_period = on_period
        self._period_ticks = max(round(period / TICK), 1)
        self._idle = idle
        self._calls: queue.SimpleQueue[tuple[Callable[[Simulation], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._running = False
        self._paused = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="physics", daemon=True)
        self.error: BaseException | None = None
        self.achieved_factor = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._running = True
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread and the planner's, within ``timeout`` s."""
        self._running = False
        self._calls.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        self._simulation.close()

    @property
    def paused(self) -> bool:
        """Whether simulated time stands still by request."""
        return self._paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._paused = value
        self._calls.put(None)

    def step(self, ticks: int) -> None:
        """While paused: let ``ticks`` control periods pass."""
        self.post(lambda simulation: simulation.step(ticks))

    def post(self, function: Callable[[Simulation], T]) -> Future[T]:
        """Run a function between ticks in the loop's thread; a future of what it returns."""
        future: Future[T] = Future()
        self._calls.put((function, future))
        if self._ended:
            self._refuse_calls()
        return future

    def _refuse_calls(self) -> None:
        while True:
            try:
                entry = self._calls.get_nowait()
            except queue.Empty:
                return
            if entry is not None and entry[1].set_running_or_notify_cancel():
                cause = f": {self.error!r}" if self.error is not None else ""
                entry[1].set_exception(PolyarmError(f"the simulation loop has ended{cause}"))

    def call(self, function: Callable[[Simulation], T], timeout: float = 5.0) -> T:
        """As `post`, waiting for the value; re-raises what the function raises, TimeoutError after ``timeout`` s."""
        return self.post(function).result(timeout)

    def _execute(self, entry: tuple[Callable[[Simulation], Any], Future[Any]] | None) -> None:
        if entry is None:
            return
        function, future = entry
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function(self._simulation))
        except BaseException as error:  # the caller's to handle, whatever it is
            future.set_exception(error)
        if self._on_period is not None:
            self._on_period(self._simulation)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # told to whoever calls next, and to whoever looks at ``error``
            self.error = error
        finally:
            self._ended = True
            self._refuse_calls()

    def _loop(self) -> None:
        simulation, calls = self._simulation, self._calls
        origin_wall, origin_time, origin_factor = clock.monotonic(), 0.0, -1.0
        since_period = 0
        while self._running:
            idle = simulation.idle
            still = self._paused or (self._factor == 0.0 and self._idle == "pause" and idle)
            try:
                # While time stands still there is nothing to do but to wait for a call.
                self._execute(calls.get(timeout=0.05) if still else calls.get_nowait())
                continue
            except queue.Empty:
                pass
            if still:
                origin_factor = -1.0
                continue
            factor = self._factor
            if factor == 0.0 and self._idle == "real_time" and idle:
                factor = 1.0
            if factor != origin_factor or simulation.time < origin_time:
                origin_wall, origin_time, origin_factor = clock.monotonic(), simulation.time, factor
            simulation.step(1)
            since_period += 1
            elapsed = clock.monotonic() - origin_wall
            ahead = (simulation.time - origin_time) / factor - elapsed if factor > 0.0 else 0.0
            if elapsed > 0.2:
                self.achieved_factor = (simulation.time - origin_time) / elapsed
            if since_period >= self._period_ticks:
                since_period = 0
                if self._on_period is not None:
                    self._on_period(simulation)
            if ahead > 0.001:
                try:
                    self._execute(calls.get(timeout=ahead))
                except queue.Empty:
                    pass
            elif ahead < -0.5:
                # Too slow for the factor: do not hoard the delay and then rush.
                origin_wall, origin_time = clock.monotonic(), simulation.time
