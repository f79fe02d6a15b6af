"""Skills: what an arm does to carry out an action, as a pure state machine over a small port.

``SkillExecutor`` plans a pick and place as a whole, then walks through planning -> pick -> close -> place -> open ->
retreat. It knows an arm only through `ArmPort` (joint positions, a trajectory to follow, a gripper), the world through
the `PlanningScene` that it is handed, and time as an argument, so that the same executor drives a simulated arm and
a real driver. Whatever goes wrong ends in a hold where the arm is, with a result that says why; a later action or
``go_home`` starts from there, also with something in the gripper. Nothing is ever put back by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from polyarm_core.constraints import MOVE_VERB, Action
from polyarm_core.errors import InvalidValue, PolyarmError
from polyarm_core.plant.motion import MotionPlanner, MovePlan, PlanFailure, PlanningScene, Trajectory
from polyarm_core.plant.scene import Array
from polyarm_core.scenario import Scenario

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
PLAN_TIME = 10.0
"""A plan that takes longer than this (simulated s) is given up."""


class ArmBusy(PolyarmError):
    """The arm plans or moves, or is in protective stop, and takes no new action before that ends."""

    def __init__(self, arm: str, status: str) -> None:
        self.arm = arm
        self.status = status
        super().__init__(f"{arm} is {status}; it takes an action when it is idle or holding")


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


class SkillExecutor:
    """Carries out the actions of one arm.

    Args:
        arm: its name.
        scenario: placements and entities.
        port: the arm.
        planner: used through ``submit`` only, so never by two threads at once when ``submit`` has one worker.
        submit: runs a planning job, at once or in a worker; returns its future.
    """

    def __init__(self, arm: str, scenario: Scenario, port: ArmPort, planner: MotionPlanner, submit: Submit) -> None:
        self.arm = arm
        self.status: Status = "idle"
        self.phase = ""
        self._scenario = scenario
        self._port = port
        self._planner = planner
        self._submit = submit
        self._robot = planner.scene.arms[arm].robot
        self._action = Action("")
        self._tag: Any = None
        self._started = 0.0
        self._before: Status = "idle"
        self._entered = 0.0
        self._job: Future[Any] | None = None
        self._plan: MovePlan | None = None
        self._duration = 0.0
        self._sensed_at = 0.0
        self._unsensed_since: float | None = None

    @property
    def active(self) -> bool:
        """Whether an action is being planned or carried out."""
        return self.phase != ""

    @property
    def action(self) -> Action:
        """The action in progress, or the last one."""
        return self._action

    # -- commands ---------------------------------------------------------------------------------------------------

    def start(
        self,
        action: Action,
        now: float,
        snapshot: Snapshot,
        zones: Collection[str] | None = None,
        seed: int = 0,
        tag: Any = None,
    ) -> ActionResult | None:
        """Begin ``move entity placement``. Returns a result at once when it cannot even begin.

        Raises:
            ArmBusy: it is neither idle nor holding.
            InvalidValue: another verb.
            UnknownName: an entity or a placement that the scenario does not have.
        """
        self._accept(action, now, tag)
        if action.verb != MOVE_VERB:
            raise InvalidValue("action.verb", action.verb, f"{MOVE_VERB!r}")
        self._scenario.entity(action.entity)
        self._scenario.placement(action.placement)
        scene = snapshot()
        held = [entity for entity, holder in scene.held.items() if holder == self.arm]
        if held and held != [action.entity]:
            return self._finish("failed", "no_plan", f"the gripper holds {', '.join(held)}", now)
        holder = scene.held.get(action.entity, self.arm)
        if holder != self.arm:
            return self._finish("failed", "unreachable", f"{holder} holds {action.entity}", now)
        occupant = self._occupant(scene)
        if occupant:
            return self._finish("failed", "occupied", f"{occupant} is on {action.placement}", now)
        self._enter("plan", now)
        self._job = self._submit(
            lambda: self._planner.plan_move(self.arm, action.entity, action.placement, scene, zones, seed)
        )
        return None

    def go_home(
        self, now: float, snapshot: Snapshot, zones: Collection[str] = (), seed: int = 0, tag: Any = None
    ) -> None:
        """Begin the way home from wherever the arm is, with what it holds. Raises ArmBusy."""
        self._accept(Action(HOME_VERB), now, tag)
        scene = snapshot()
        self._enter("plan", now)
        self._job = self._submit(lambda: self._planner.plan_home(self.arm, scene, zones, seed))

    def stop(self, reason: str, now: float, text: str = "") -> ActionResult | None:
        """Stop smoothly and hold; the gripper stays as it is. Returns the result of the action that was stopped."""
        if self.status == "protective_stop" or not self.active:
            return None
        return self._finish("stopped", reason, text or f"stopped while in phase {self.phase}", now)

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
        self.status, self.phase, self._job, self._plan = "idle", "", None, None

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        """Advance; returns the result when the action has ended. Call it at 20 Hz or more."""
        if not self.active:
            return None
        return getattr(self, f"_in_{self.phase}")(now, snapshot)  # type: ignore[no-any-return]

    def _in_plan(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        assert self._job is not None
        if not self._job.done():
            if now - self._entered > PLAN_TIME:
                return self._finish("failed", "no_plan", f"no plan within {PLAN_TIME:.0f} s", now)
            return None
        try:
            plan = self._job.result()
        except PlanFailure as error:
            return self._finish("failed", error.reason, str(error), now)
        if isinstance(plan, Trajectory):
            self._follow("home", plan, now)
            return None
        self._plan = plan
        if plan.pick is None:
            return self._carry(now, snapshot)
        self._port.command_gripper(self._robot.opening)
        self._follow("pick", plan.pick, now)
        return None

    def _in_pick(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        if not self._arrived(now):
            return self._overdue(now)
        self._port.command_gripper(0.0)
        self._sensed_at = -1.0
        self._enter("close", now)
        return None

    def _in_close(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        assert self._plan is not None
        state = self._port.gripper()
        if not state.detected:
            self._sensed_at = -1.0
        elif self._sensed_at < 0.0:
            self._sensed_at = now
        waited = now - self._entered
        firm = self._sensed_at >= 0.0 and now - self._sensed_at >= FIRM_TIME
        fits = self._robot.gripper == "suction" or abs(state.opening - self._plan.width) <= WIDTH_TOLERANCE
        if waited >= CLOSE_TIME[0] and firm and fits:
            return self._carry(now, snapshot)
        if waited < CLOSE_TIME[1]:
            return None
        what = "nothing" if not state.detected else f"something {state.opening * 1000:.0f} mm wide"
        self._port.command_gripper(self._robot.opening)
        return self._finish("failed", "slip", f"the gripper closed on {what} instead of {self._action.entity}", now)

    def _carry(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        assert self._plan is not None
        occupant = self._occupant(snapshot())
        if occupant:
            return self._finish("failed", "occupied", f"{occupant} is on {self._action.placement}", now)
        self._unsensed_since = None
        self._follow("place", self._plan.place, now)
        return None

    def _in_place(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        assert self._plan is not None
        if self._port.gripper().detected:
            self._unsensed_since = None
        elif self._unsensed_since is None:
            self._unsensed_since = now
        elif now - self._unsensed_since > LOST_TIME:
            return self._finish("failed", "slip", f"{self._action.entity} slipped out of the gripper", now)
        if self._arrived(now):
            self._port.command_gripper(self._robot.opening)
            self._enter("open", now)
            return None
        if now - self._entered > self._plan.lift:
            occupant = self._occupant(snapshot())
            if occupant:
                return self._finish("failed", "occupied", f"{occupant} is on {self._action.placement}", now)
        return self._overdue(now)

    def _in_open(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        assert self._plan is not None
        if now - self._entered < OPEN_TIME:
            return None
        if self._port.gripper().detected:
            if now - self._entered > LATE_TIME:
                return self._finish("failed", "timeout", f"the gripper does not let go of {self._action.entity}", now)
            return None
        self._follow("retreat", self._plan.retreat, now)
        return None

    def _in_retreat(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        if not self._arrived(now):
            return self._overdue(now)
        position = snapshot().entities[self._action.entity][0]
        x, y, _ = self._scenario.placement(self._action.placement).xyz
        away = float(((position[0] - x) ** 2 + (position[1] - y) ** 2) ** 0.5)
        if away > self._scenario.success.tolerance:
            text = f"{self._action.entity} lies {away:.2f} m from {self._action.placement}"
            return self._finish("failed", "slip", text, now)
        return self._finish("succeeded", "", "", now)

    def _in_home(self, now: float, snapshot: Snapshot) -> ActionResult | None:
        if not self._arrived(now):
            return self._overdue(now)
        return self._finish("succeeded", "", "", now)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _accept(self, action: Action, now: float, tag: Any) -> None:
        if self.active or self.status == "protective_stop":
            raise ArmBusy(self.arm, self.status)
        self._action, self._tag, self._started, self._before = action, tag, now, self.status

    def _enter(self, phase: str, now: float) -> None:
        self.phase, self._entered, self.status = phase, now, "moving"

    def _follow(self, phase: str, trajectory: Trajectory, now: float) -> None:
        self._port.send_trajectory(trajectory)
        self._duration = trajectory.duration
        self._enter(phase, now)

    def _arrived(self, now: float) -> bool:
        return now - self._entered >= self._duration and self._port.motion() == "done"

    def _overdue(self, now: float) -> ActionResult | None:
        if self._port.motion() == "failed":
            return self._finish("failed", "timeout", f"blocked: left the path in phase {self.phase}", now)
        if now - self._entered > self._duration + LATE_TIME:
            return self._finish("failed", "timeout", f"phase {self.phase} did not end in time", now)
        return None

    def _occupant(self, scene: PlanningScene) -> str:
        """An entity other than the action's that stands on the destination, or ""."""
        placement = self._scenario.placement(self._action.placement)
        margin = 0.02
        for name, (position, _) in scene.entities.items():
            if name == self._action.entity or name in scene.held:
                continue
            if all(abs(position[k] - placement.xyz[k]) < placement.size[k] / 2 + margin for k in (0, 1)):
                return name
        return ""

    def _finish(self, outcome: Outcome, reason: str, text: str, now: float) -> ActionResult:
        moved = self.phase not in ("", "plan")
        if outcome == "succeeded":
            self.status = "idle"
        else:
            if moved:
                self._port.hold()
            self.status = "holding" if moved else self._before
        self.phase, self._job, self._plan = "", None, None
        duration = now - self._started
        return ActionResult(self.arm, self._action, outcome, reason, text, self._started, duration, self._tag)
