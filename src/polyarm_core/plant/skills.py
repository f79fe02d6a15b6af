"""Skills: what an arm does to carry out an action, as programs of steps that one state machine executes.

A skill turns an action into a program: steps such as following a trajectory, closing on an entity, letting go or
waiting (`registry.SKILLS` names the skill of each verb). ``SkillExecutor`` plans the program in the planner's worker
and then walks through it. It knows an arm only through `ArmPort` (joint positions, a trajectory to follow, a
gripper), the world through the `PlanningScene` that it is handed, the other arms through `Team`, and time as an
argument, so that the same executor drives a simulated arm and a real driver. Whatever goes wrong ends in a hold where
the arm is, with a result that says why; a later action or ``go_home`` starts from there, also with something in the
gripper. Nothing is ever put back by itself.

Two rules between arms are kept here. Conditions that an action requires to be held must be true, and whoever holds
them must have got there, before its program is planned and while a guarded step of it runs. A step with a ``barrier``
begins only when the whole group stands at the same barrier; without one of them nobody goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from polyarm_core.constraints import MOVE_VERB, Action
from polyarm_core.errors import InvalidValue, PolyarmError
from polyarm_core.plant.motion import MotionPlanner, PlanFailure, PlanningScene, Trajectory
from polyarm_core.plant.robots import RobotModel
from polyarm_core.plant.scene import Array
from polyarm_core.scenario import Operator, RopeFixture, Scenario

Status = Literal["idle", "moving", "holding", "protective_stop"]
Outcome = Literal["succeeded", "failed", "stopped"]
MotionState = Literal["idle", "moving", "done", "failed"]

HOME_VERB = "home"
CLOSE_TIME = (0.3, 1.5)
"""A grasp is judged no earlier and no later than this after the gripper was told to close, s."""
FIRM_TIME = 0.12
"""... and only after the gripper has reported an object for this long, s."""
OPEN_TIME = 0.35
"""Time to let go, s."""
LOST_TIME = 0.1
"""An object that is not sensed for this long while it is carried has slipped, s."""
LATE_TIME = 2.0
"""A motion that ends later than planned by more than this has timed out, s."""
WIDTH_TOLERANCE = 0.012
"""Largest difference between the gripper's opening and the grasped width, m."""
FALLEN = 0.015
"""An entity that ends up lower than this below the surface it was put on has fallen off, m."""
PLAN_TIME = 10.0
"""A plan that takes longer than this (simulated s) is given up."""
HOLDER_TIME = 30.0
"""An action whose required conditions nobody holds after this long is given up, s."""
PARTNER_TIME = 20.0
"""A group that is not complete at a barrier after this long gives up, s."""


class ArmBusy(PolyarmError):
    """The arm plans or moves, or is in protective stop, and takes no new action before that ends."""

    def __init__(self, arm: str, status: str) -> None:
        self.arm = arm
        self.status = status
        super().__init__(f"{arm} is {status}; it takes an action when it is idle or holding")


class SkillFailure(PolyarmError):
    """A step went wrong; ``reason`` is a word of ActionResult.msg. The executor makes a result of it."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(text)


@dataclass(frozen=True)
class GripperState:
    """What a gripper reports: opening (m; suction 0 on, 1 off) and whether it senses an object between its fingers."""

    opening: float
    detected: bool


class ArmPort(Protocol):
    """One arm as its controllers offer it."""

    def joints(self) -> Array:
        """Measured joint positions (n,), rad."""

    def send_trajectory(self, trajectory: Trajectory) -> None:
        """Follow a trajectory from now on; replaces the one before."""

    def motion(self) -> MotionState:
        """Of the last trajectory: ``done`` = arrived and at rest, ``failed`` = left its tolerance."""

    def hold(self) -> None:
        """Stop smoothly and stay."""

    def command_gripper(self, opening: float) -> None:
        """Opening to go to, m; suction: 0 on, 1 off."""

    def gripper(self) -> GripperState:
        """What the gripper reports now."""


class Team(Protocol):
    """What an arm's steps must know of the other arms and of the sensors; the plant answers."""

    def readings(self) -> dict[str, float]:
        """Sensor -> value, now."""

    def unheld(self, arm: str, conditions: Collection[str]) -> str:
        """The first of ``conditions`` that is not true now, or that a running action is still about to hold; or ""."""

    def needed(self, arm: str) -> bool:
        """Whether some other arm's running action requires conditions to be held."""

    def together(self, arm: str) -> bool:
        """Whether every arm of the group of this arm's action stands at the same barrier or is past it."""


class Alone:
    """No other arms and no sensors: conditions are false, a group is never complete."""

    def readings(self) -> dict[str, float]:
        """None."""
        return {}

    def unheld(self, arm: str, conditions: Collection[str]) -> str:
        """The first condition: nothing is known to be true."""
        return min(conditions, default="")

    def needed(self, arm: str) -> bool:
        """Nobody needs anything."""
        return False

    def together(self, arm: str) -> bool:
        """Never."""
        return False


@dataclass(frozen=True)
class ActionResult:
    """How an action ended (ActionResult.msg): reason is one of its words, duration is in simulated seconds."""

    arm: str
    action: Action
    outcome: Outcome
    reason: str
    text: str
    started: float
    duration: float
    tag: Any = None


Submit = Callable[[Callable[[], Any]], "Future[Any]"]
Snapshot = Callable[[], PlanningScene]


# -- programs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What a skill plans for: an action of an arm in the world of a snapshot. ``operator`` is None for a move."""

    arm: str
    action: Action
    scenario: Scenario
    planner: MotionPlanner
    snapshot: PlanningScene
    zones: Collection[str] | None = None
    seed: int = 0
    operator: Operator | None = None
    requires: frozenset[str] = frozenset()

    @property
    def robot(self) -> RobotModel:
        """Model of the arm."""
        return self.planner.scene.arms[self.arm].robot

    def parameter(self, name: str, default: float) -> float:
        """A number among the operator's ``skill`` parameters."""
        value = self.operator.skill.get(name, default) if self.operator is not None else default
        return float(value)  # type: ignore[arg-type]


@dataclass
class Run:
    """An action under way, as its steps see it; ``entered`` and ``now`` are in simulated s."""

    arm: str
    action: Action
    scenario: Scenario
    robot: RobotModel
    port: ArmPort
    team: Team
    now: float
    entered: float
    snapshot: Snapshot

    @property
    def since(self) -> float:
        """Time in the current step, s."""
        return self.now - self.entered


Check = Callable[[Run], None]
"""Raises SkillFailure when something is wrong."""


@dataclass
class Step:
    """One part of a program.

    Attributes:
        name: the executor's phase while it runs.
        barrier: begin only when the whole group of the action has come to this barrier.
        guard: for how long (s) what the action requires to be held must stay true while this step runs; 0 = not.
        holding: while this step runs, what the action ``holds`` counts as held.
    """

    name: str
    barrier: bool = field(default=False, kw_only=True)
    guard: float = field(default=math.inf, kw_only=True)
    holding: bool = field(default=False, kw_only=True)

    def enter(self, run: Run) -> None:
        """Begin."""

    def tick(self, run: Run) -> bool:
        """Whether it is done. Raises SkillFailure."""
        return True


@dataclass
class Follow(Step):
    """Follow a trajectory. ``opening``: told to the gripper at the start; ``check``: at every tick."""

    trajectory: Trajectory
    opening: float | None = None
    check: Check | None = None

    def enter(self, run: Run) -> None:
        """Send the trajectory."""
        if self.opening is not None:
            run.port.command_gripper(self.opening)
        run.port.send_trajectory(self.trajectory)

    def tick(self, run: Run) -> bool:
        """Whether the arm has arrived. Raises SkillFailure when it is blocked or late."""
        if self.check is not None:
            self.check(run)
        if run.since >= self.trajectory.duration and run.port.motion() == "done":
            return True
        if run.port.motion() == "failed":
            raise SkillFailure("timeout", f"blocked: left the path in phase {self.name}")
        if run.since > self.trajectory.duration + LATE_TIME:
            raise SkillFailure("timeout", f"phase {self.name} did not end in time")
        return False


@dataclass
class Close(Step):
    """Close on ``what`` of the given width (m; not judged by suction) and feel it; else open again and fail."""

    what: str
    width: float
    _sensed: float = field(default=-1.0, init=False)

    def enter(self, run: Run) -> None:
        """Tell the gripper to close."""
        run.port.command_gripper(0.0)

    def tick(self, run: Run) -> bool:
        """Whether it has a firm grip. Raises SkillFailure ``slip``."""
        state = run.port.gripper()
        if not state.detected:
            self._sensed = -1.0
        elif self._sensed < 0.0:
            self._sensed = run.now
        firm = self._sensed >= 0.0 and run.now - self._sensed >= FIRM_TIME
        fits = run.robot.gripper == "suction" or abs(state.opening - self.width) <= WIDTH_TOLERANCE
        if run.since >= CLOSE_TIME[0] and firm and fits:
            return True
        if run.since < CLOSE_TIME[1]:
            return False
        found = "nothing" if not state.detected else f"something {state.opening * 1000:.0f} mm wide"
        run.port.command_gripper(run.robot.opening)
        raise SkillFailure("slip", f"the gripper closed on {found} instead of {self.what}")


@dataclass
class Open(Step):
    """Open the gripper and wait until nothing is felt any more."""

    what: str

    def enter(self, run: Run) -> None:
        """Tell the gripper to open."""
        run.port.command_gripper(run.robot.opening)

    def tick(self, run: Run) -> bool:
        """Whether it has let go. Raises SkillFailure ``timeout``."""
        if run.since < OPEN_TIME:
            return False
        if run.port.gripper().detected:
            if run.since > LATE_TIME:
                raise SkillFailure("timeout", f"the gripper does not let go of {self.what}")
            return False
        return True


@dataclass
class Until(Step):
    """Wait, at rest, until a predicate is true; past ``limit`` s fail with ``reason``, or go on if that is ""."""

    predicate: Callable[[Run], bool]
    limit: float
    reason: str = "timeout"
    check: Check | None = None

    def tick(self, run: Run) -> bool:
        """Whether the wait is over. Raises SkillFailure."""
        if self.check is not None:
            self.check(run)
        if self.predicate(run):
            return True
        if run.since > self.limit:
            if self.reason:
                raise SkillFailure(self.reason, f"phase {self.name} did not end within {self.limit:g} s")
            return True
        return False


@dataclass
class Verify(Step):
    """A check at one moment."""

    check: Check

    def tick(self, run: Run) -> bool:
        """Done at once. Raises SkillFailure."""
        self.check(run)
        return True


class Carried:
    """A check for `Follow`: what is carried has not been felt for too long, so it has slipped."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lost: float | None = None

    def __call__(self, run: Run) -> None:
        """Raises SkillFailure ``slip``."""
        if run.port.gripper().detected:
            self._lost = None
        elif self._lost is None:
            self._lost = run.now
        elif run.now - self._lost > LOST_TIME:
            raise SkillFailure("slip", f"{self._what} slipped out of the gripper")


# -- skills ----------------------------------------------------------------------------------------------------------


class Skill(Protocol):
    """Makes the program of an action."""

    def refuse(self, task: Task) -> None:
        """Raise SkillFailure when the action cannot even begin; called at once, before anything is planned."""

    def plan(self, task: Task) -> Sequence[Step]:
        """The program; called in the planner's worker. Raises PlanFailure."""


def occupant(scenario: Scenario, action: Action, scene: PlanningScene) -> str:
    """An entity other than the action's that stands on the destination, or "".

    What ends below the destination's surface, as the lower layers of a stack do, is not on it.
    """
    placement = scenario.placement(action.placement)
    margin, step = 0.02, 0.008
    for name, (position, _) in scene.entities.items():
        if name == action.entity or name in scene.held:
            continue
        over = position[2] + scenario.entity(name).shape.height / 2 > placement.xyz[2] + step
        if over and all(abs(position[k] - placement.xyz[k]) < placement.size[k] / 2 + margin for k in (0, 1)):
            return name
    return ""


def check_free(run: Run) -> None:
    """Raises SkillFailure ``occupied`` when another entity stands on the destination."""
    other = occupant(run.scenario, run.action, run.snapshot())
    if other:
        raise SkillFailure("occupied", f"{other} is on {run.action.placement}")


def check_placed(run: Run) -> None:
    """Raises SkillFailure ``slip`` when the entity does not stand where it was put."""
    entity, placement = run.action.entity, run.action.placement
    position = run.snapshot().entities[entity][0]
    x, y, z = run.scenario.placement(placement).xyz
    away = float(((position[0] - x) ** 2 + (position[1] - y) ** 2) ** 0.5)
    fallen = z - position[2] + run.scenario.entity(entity).shape.height / 2
    if away > run.scenario.success.tolerance or fallen > FALLEN:
        raise SkillFailure("slip", f"{entity} lies {away:.2f} m from {placement}, {fallen:.2f} m below it")


class _Place(Follow):
    """Carry and set down: the entity must stay in the gripper and, once it hangs free, its destination empty."""

    def __init__(self, what: str, trajectory: Trajectory, lift: float, **options: Any) -> None:
        super().__init__("place", trajectory, **options)
        self._carried = Carried(what)
        self._lift = lift

    def enter(self, run: Run) -> None:
        check_free(run)
        super().enter(run)

    def tick(self, run: Run) -> bool:
        self._carried(run)
        done = super().tick(run)
        if not done and run.since > self._lift:
            check_free(run)
        return done


class Move:
    """``move entity placement``: pick, close, place, open, retreat."""

    def refuse(self, task: Task) -> None:
        """Raises SkillFailure when another entity is in the gripper, or somebody has the entity or the destination."""
        action, held = task.action, task.snapshot.held
        task.scenario.entity(action.entity)
        task.scenario.placement(action.placement)
        mine = [entity for entity, holder in held.items() if holder == task.arm]
        if mine and mine != [action.entity]:
            raise SkillFailure("no_plan", f"the gripper holds {', '.join(mine)}")
        holder = held.get(action.entity, task.arm)
        if holder != task.arm:
            raise SkillFailure("unreachable", f"{holder} holds {action.entity}")
        other = occupant(task.scenario, action, task.snapshot)
        if other:
            raise SkillFailure("occupied", f"{other} is on {action.placement}")

    def plan(self, task: Task) -> Sequence[Step]:
        """The whole pick and place, planned before anything moves."""
        action = task.action
        plan = task.planner.plan_move(task.arm, action.entity, action.placement, task.snapshot, task.zones, task.seed)
        # What the destination requires is required to the end; what only the source does, until the entity is out.
        after = math.inf if task.scenario.placement(action.placement).requires_held else 0.0
        steps: list[Step] = []
        if plan.pick is not None:
            steps += [Follow("pick", plan.pick, task.robot.opening), Close("close", action.entity, plan.width)]
        return [
            *steps,
            _Place(action.entity, plan.place, plan.lift, guard=max(plan.lift, after)),
            Open("open", action.entity, guard=after),
            Follow("retreat", plan.retreat, guard=after),
            Verify("retreat", check_placed, guard=after),
        ]


class Home:
    """The way home from wherever the arm is, with what it holds."""

    def refuse(self, task: Task) -> None:
        """Raises SkillFailure ``partner`` when it would pull at a rope that another arm holds."""
        held = task.snapshot.held
        for rope in task.scenario.fixtures.values():
            holders = {held[end] for end in rope.ends if end in held} if isinstance(rope, RopeFixture) else set()
            if task.arm in holders and len(holders) > 1:
                raise SkillFailure(
                    "partner", f"{', '.join(sorted(holders - {task.arm}))} holds the other end of a rope"
                )

    def plan(self, task: Task) -> Sequence[Step]:
        """One motion."""
        return [Follow("home", task.planner.plan_home(task.arm, task.snapshot, task.zones or (), task.seed))]


BUILT_IN: dict[str, Skill] = {MOVE_VERB: Move(), HOME_VERB: Home()}
"""Skills that need no operator."""


class SkillExecutor:
    """Carries out the actions of one arm.

    Args:
        arm: its name.
        scenario: placements, entities and operators.
        port: the arm.
        planner: used through ``submit`` only, so never by two threads at once when ``submit`` has one worker.
        submit: runs a planning job, at once or in a worker; returns its future.
        team: the other arms and the sensors.
        skills: verb -> skill.
    """

    def __init__(
        self,
        arm: str,
        scenario: Scenario,
        port: ArmPort,
        planner: MotionPlanner,
        submit: Submit,
        team: Team | None = None,
        skills: Mapping[str, Skill] | None = None,
    ) -> None:
        self.arm = arm
        self.status: Status = "idle"
        self.phase = ""
        self.barrier = 0
        self._scenario = scenario
        self._port = port
        self._planner = planner
        self._submit = submit
        self._team: Team = team or Alone()
        self._skills = BUILT_IN if skills is None else skills
        self._robot = planner.scene.arms[arm].robot
        self._action = Action("")
        self._operator: Operator | None = None
        self._requires: frozenset[str] = frozenset()
        self._request: tuple[Skill, Collection[str] | None, int] = (Move(), None, 0)
        self._tag: Any = None
        self._started = 0.0
        self._before: Status = "idle"
        self._entered = 0.0
        self._moved = False
        self._job: Future[Sequence[Step]] | None = None
        self._steps: Sequence[Step] = ()
        self._index = -1

    @property
    def active(self) -> bool:
        """Whether an action is being planned or carried out."""
        return self.phase != ""

    @property
    def action(self) -> Action:
        """The action in progress, or the last one."""
        return self._action

    @property
    def requires(self) -> frozenset[str]:
        """Conditions that the action in progress requires to be held."""
        return self._requires if self.active else frozenset()

    @property
    def holds(self) -> frozenset[str]:
        """Conditions that the action in progress is to hold, whether it has got there or not."""
        return frozenset(self._operator.holds) if self.active and self._operator is not None else frozenset()

    @property
    def holding(self) -> bool:
        """Whether the action in progress has got to where it holds them."""
        step = self._step
        return step is not None and step.holding

    @property
    def group(self) -> frozenset[str]:
        """The arms with which the action in progress is carried out together."""
        return frozenset(self._operator.group) if self.active and self._operator is not None else frozenset()

    @property
    def _step(self) -> Step | None:
        return self._steps[self._index] if self.active and self._index >= 0 else None

    def relies_on(self, now: float) -> frozenset[str]:
        """Conditions without which the arm would be stopped where it is; none before it has got to its object."""
        return self._requires if self._index > 0 and self._guarded(now) else frozenset()

    # -- commands ---------------------------------------------------------------------------------------------------

    def start(
        self,
        action: Action,
        now: float,
        snapshot: Snapshot,
        zones: Collection[str] | None = None,
        seed: int = 0,
        tag: Any = None,
        requires: Collection[str] = (),
    ) -> ActionResult | None:
        """Begin an action. Returns a result at once when it cannot even begin.

        Args:
            action: a move, or an action of the scenario's operators.
            now: simulated s.
            snapshot: gives the world at the moment of the call.
            zones: zones that the arm may enter; None = all.
            seed: of the planner.
            tag: comes back in the result.
            requires: conditions that must be held while the arm works.

        Raises:
            ArmBusy: it is neither idle nor holding.
            InvalidValue: no skill of that verb, or no such operator.
            UnknownName: an entity or a placement that the scenario does not have.
        """
        operator = self._scenario.operator(self.arm, action.verb, action.entity, action.placement)
        if action.verb not in self._skills or (operator is None and action.verb not in BUILT_IN):
            raise InvalidValue("action", str(action), f"{MOVE_VERB!r} or an operator of {self.arm} with a skill")
        if self.active or self.status == "protective_stop":
            raise ArmBusy(self.arm, self.status)
        self._action, self._operator, self._tag, self._requires = action, operator, tag, frozenset(requires)
        self._started, self._before, self._moved, self._steps, self._index = now, self.status, False, (), -1
        self.barrier = 0
        self._request = (self._skills[action.verb], zones, seed)
        try:
            self._request[0].refuse(self._task(snapshot()))
        except SkillFailure as failure:
            return self._finish("failed", failure.reason, str(failure), now)
        if self._requires:
            self._enter("wait", now)
        else:
            self._begin_plan(now, snapshot)
        return None

    def go_home(
        self, now: float, snapshot: Snapshot, zones: Collection[str] = (), seed: int = 0, tag: Any = None
    ) -> ActionResult | None:
        """Begin the way home from wherever the arm is, with what it holds; see `start`. Raises ArmBusy."""
        return self.start(Action(HOME_VERB), now, snapshot, zones, seed, tag)

    def stop(self, reason: str, now: float, text: str = "") -> ActionResult | None:
        """Stop smoothly and hold; the gripper stays as it is. Returns the result of the action that was stopped."""
        if self.status == "protective_stop" or not self.active:
            return None
        return self._finish("stopped", reason, text or f"stopped while in phase {self.phase}", now)

    def slip(self, text: str, now: float) -> ActionResult:
        """End an action that holds something: it has slipped out of the gripper."""
        return self._finish("failed", "slip", text, now)

    def lose(self, conditions: Collection[str], now: float, text: str) -> ActionResult | None:
        """Some conditions are held no more: stop if the action depends on one of them where it is."""
        if not self._requires & set(conditions) or not self._guarded(now):
            return None
        return self.stop("not_held", now, text)

    def protective_stop(self, text: str, now: float) -> ActionResult | None:
        """Stop and take nothing until ``clear``; the result of the action in progress, if any."""
        result = None
        if self.active:
            result = self._finish("stopped", "protective_stop", text, now)
        else:
            self._port.hold()
        self.status = "protective_stop"
        return result

    def clear(self) -> None:
        """Leave protective stop; the arm holds and takes actions again."""
        if self.status == "protective_stop":
            self.status = "holding"

    def reset(self) -> None:
        """Forget everything; the arm stands at home with an open gripper."""
        self.status, self.phase, self._job, self._steps, self._index = "idle", "", None, (), -1

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        """Advance; returns the result when the action has ended. Call it at 20 Hz or more."""
        if not self.active:
            return None
        try:
            return self._advance(now, snapshot)
        except (SkillFailure, PlanFailure) as failure:
            return self._finish("failed", failure.reason, str(failure), now)

    def _advance(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        if self.phase == "wait":
            missing = self._team.unheld(self.arm, self._requires)
            if missing and now - self._entered > HOLDER_TIME:
                raise SkillFailure("not_held", f"nobody held {missing} within {HOLDER_TIME:.0f} s")
            if not missing:
                self._begin_plan(now, snapshot)
            return None
        if self.phase == "plan":
            assert self._job is not None
            if not self._job.done():
                if now - self._entered > PLAN_TIME:
                    raise PlanFailure("no_plan", f"no plan within {PLAN_TIME:.0f} s")
                return None
            self._steps, self._index = self._job.result(), 0
            return self._next(now, snapshot)
        if self.phase == "barrier":
            if self._team.together(self.arm):
                return self._begin_step(now, snapshot)
            if now - self._entered > PARTNER_TIME:
                raise SkillFailure("partner", f"the group was not complete within {PARTNER_TIME:.0f} s")
            return None
        if self._guarded(now) and (missing := self._team.unheld(self.arm, self._requires)):
            return self._finish("stopped", "not_held", f"{missing} is not held any more in phase {self.phase}", now)
        return self._work(now, snapshot)

    def _next(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        """Go on to the step of the index, which has just been reached."""
        if self._index == len(self._steps):
            return self._finish("succeeded", "", "", now)
        if self._steps[self._index].barrier:
            self.barrier += 1
            self._enter("barrier", now)
            return None
        return self._begin_step(now, snapshot)

    def _begin_step(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        step = self._steps[self._index]
        self._moved = True
        self._enter(step.name, now)
        step.enter(self._run(now, snapshot))
        # A step that takes no time must not cost a tick.
        return self._work(now, snapshot) if isinstance(step, Verify) else None

    def _work(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        if not self._steps[self._index].tick(self._run(now, snapshot)):
            return None
        self._index += 1
        return self._next(now, snapshot)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _task(self, snapshot: PlanningScene) -> Task:
        _, zones, seed = self._request
        return Task(self.arm, self._action, self._scenario, self._planner, snapshot, zones, seed, self._operator)

    def _begin_plan(self, now: float, snapshot: Snapshot) -> None:
        skill, task = self._request[0], self._task(snapshot())
        self._enter("plan", now)
        self._job = self._submit(lambda: skill.plan(task))

    def _run(self, now: float, snapshot: Snapshot) -> Run:
        return Run(
            self.arm, self._action, self._scenario, self._robot, self._port, self._team, now, self._entered, snapshot
        )

    def _guarded(self, now: float) -> bool:
        """Whether what the action requires must be held where it is now."""
        if not self.active or not self._requires or self.phase == "barrier":
            return False
        step = self._step
        return step is None or now - self._entered <= step.guard

    def _enter(self, phase: str, now: float) -> None:
        self.phase, self._entered, self.status = phase, now, "moving"

    def _finish(self, outcome: Outcome, reason: str, text: str, now: float) -> ActionResult:
        if outcome == "succeeded":
            self.status = "idle"
        else:
            if self._moved:
                self._port.hold()
            self.status = "holding" if self._moved else self._before
        self.phase, self._job, self._steps, self._index = "", None, (), -1
        duration = now - self._started
        return ActionResult(self.arm, self._action, outcome, reason, text, self._started, duration, self._tag)
