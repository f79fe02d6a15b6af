"""The slot protocol of the digital twin: open, collect, arbitrate, grant, wait for the motions, open again.

A pure state machine. Reports, world states and results are events, time is an argument (seconds of a steady clock),
what the twin has to send comes back as a list of effects. Every wait has a deadline that this machine owns.
"""

from __future__ import annotations

import enum
import time as _time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyarm_core.constraints import (
    MOVE_VERB,
    Action,
    Declaration,
    Intent,
    entity_element,
    placement_element,
    zone_element,
)
from polyarm_core.declaration import complete, declare
from polyarm_core.errors import InvalidValue
from polyarm_core.leases import Grant, LeaseTable
from polyarm_core.liveness import RelayGraph
from polyarm_core.orchestrator import Arbitration, Decision, OrchestratorOptions, Rule, arbitrate
from polyarm_core.scenario import Scenario
from polyarm_core.world import World, WorldView, distance_to_goal


class ArmStatus(enum.Enum):
    """What the plant says of an arm."""

    IDLE = "idle"
    MOVING = "moving"
    HOLDING = "holding"
    PROTECTIVE_STOP = "protective_stop"


class TwinRule(str, enum.Enum):
    """Rules by which the twin vetoes beside the orchestrator's four."""

    OCCUPIED = "occupied"
    DEAD_END = "dead_end"
    ILLEGAL = "illegal"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Report:
    """One arm's intent as it arrived: which slot of which twin it answers, and who sent it."""

    arm: str
    episode: int
    slot: int
    twin_epoch: int
    epoch: int
    sequence: int
    action: Action
    declaration: Declaration


@dataclass(frozen=True, slots=True)
class ArmSnapshot:
    """An arm in a snapshot: status, the token under which it moves (0 = none), the zones in which its links are."""

    status: ArmStatus
    token: int = 0
    zones: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A world state of the plant.

    Attributes:
        episode: boot-unique number, larger after every reset; 0 = the plant has not started one.
        slot: newest slot of which the plant carried out an action in this episode.
        epoch, sequence: of the plant.
        time: s, plant time since the episode began; results carry the same clock.
    """

    episode: int
    slot: int
    epoch: int
    sequence: int
    time: float
    world: World
    arms: Mapping[str, ArmSnapshot]
    success: bool = False


@dataclass(frozen=True, slots=True)
class ArmVerdict:
    """The twin's answer to one arm; ``rule`` is empty when admitted."""

    arm: str
    action: Action
    decision: Decision
    rule: Rule | TwinRule | None = None
    element: str = ""
    rival: str = ""
    grant: Grant | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """Effect: publish a slot opening."""

    episode: int
    slot: int
    expected: tuple[str, ...]
    world_sequence: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Answered:
    """Effect: publish a slot's verdicts."""

    episode: int
    slot: int
    verdicts: tuple[ArmVerdict, ...]
    arbitration: Arbitration
    seconds: float  # of computation; says nothing about the outcome


@dataclass(frozen=True, slots=True)
class Revoked:
    """Effect: a lease outlived its limit and is renewed no more."""

    grant: Grant


Effect = Opened | Answered | Revoked


class Phase(enum.Enum):
    """Where the twin stands."""

    WAITING = "waiting"  # for an episode, or for the plant to be ready for the next slot
    COLLECTING = "collecting"
    EXECUTING = "executing"


@dataclass(frozen=True, slots=True)
class SlotOptions:
    """Parameters of the protocol.

    Attributes:
        deadline: s that a slot waits for reports.
        absent_after: slots without a report after which an arm is no longer waited for (until it is heard again).
        absent_grace: s that a slot waits when only absent arms are missing.
        settle: s for which the world must have looked the same before a slot opens: entities come to rest, and every
            agent has the world that the slot is based on.
        idle_slots: slots in which nothing is admitted that may pass without a new world state, or a team would burn all
            its slots in no time while the plant hangs; 0 = any number.
        complete_declarations: add what the scene's rules say an action must at least declare (ldt_coord.md 7.3).
        guard_dead_ends: veto actions after which the goal could no longer be reached.
        orchestrator: strategy and its options.
    """

    deadline: float = 20.0
    absent_after: int = 2
    absent_grace: float = 0.5
    settle: float = 0.0
    idle_slots: int = 0
    complete_declarations: bool = True
    guard_dead_ends: bool = True
    orchestrator: OrchestratorOptions = field(default_factory=OrchestratorOptions)

    def __post_init__(self) -> None:
        if not self.deadline > 0.0:
            raise InvalidValue("deadline", self.deadline, "seconds above 0")
        if self.absent_after < 1:
            raise InvalidValue("absent_after", self.absent_after, "1 or more slots")
        if self.absent_grace < 0.0:
            raise InvalidValue("absent_grace", self.absent_grace, "seconds, 0 or more")
        if self.settle < 0.0:
            raise InvalidValue("settle", self.settle, "seconds, 0 or more")
        if self.idle_slots < 0:
            raise InvalidValue("idle_slots", self.idle_slots, "slots, 0 or more")


class SlotProtocol:
    """The twin's state machine.

    Args:
        scenario: the task.
        epoch: boot-unique number of this twin (ns since the Unix epoch).
        options: parameters.
        lease_limit: s after which a lease is given up.
    """

    def __init__(
        self, scenario: Scenario, epoch: int, options: SlotOptions | None = None, lease_limit: float = 300.0
    ) -> None:
        self.scenario = scenario
        self.epoch = epoch
        self.options = options or SlotOptions()
        self.leases = LeaseTable(epoch, lease_limit)
        self.phase = Phase.WAITING
        self.slot = 0
        self.episode = 0
        self.completed_entries: dict[str, int] = dict.fromkeys(scenario.arms, 0)
        self._graph = RelayGraph(scenario)
        self._snapshot: Snapshot | None = None
        self._plant_epoch = 0
        self._plant_ended: set[int] = set()
        self._ready_after = -1.0
        self._opened_at = 0.0
        self._view: WorldView | None = None
        self._view_sequence = 0  # of the first world state that looked like the newest
        self._still_since = 0.0
        self._idle = 0  # slots in which nothing was admitted, since the newest world state
        self._reports: dict[str, Report] = {}
        self._senders: dict[str, tuple[int, int]] = {}
        self._silent: dict[str, int] = dict.fromkeys(scenario.arms, 0)
        self._waited: dict[str, int] = dict.fromkeys(scenario.arms, 0)

    # -- events ---------------------------------------------------------------------------------------------------

    def on_world(self, snapshot: Snapshot, now: float) -> list[Effect]:
        """A world state arrived; older ones of the same plant are ignored."""
        last = self._snapshot
        if last is not None:
            if snapshot.epoch < self._plant_epoch:
                return []
            if snapshot.epoch == self._plant_epoch and snapshot.sequence <= last.sequence:
                return []
        if snapshot.epoch != self._plant_epoch or snapshot.episode != self.episode:
            self._begin_episode(snapshot)
            self._view = None
        self._snapshot, self._idle = snapshot, 0
        view = WorldView(self.scenario, snapshot.world)
        if self._view is None or view != self._view:
            self._view = view
            self._view_sequence, self._still_since = snapshot.sequence, now
        return self._advance(now)

    def on_report(self, report: Report, now: float) -> tuple[str, list[Effect]]:
        """A report arrived.

        Returns:
            why it was refused (``""`` if it was taken) and the effects.
        """
        refusal = self._refusal(report)
        if refusal:
            return refusal, []
        self._senders[report.arm] = (report.epoch, report.sequence)
        self._silent[report.arm] = 0
        self._reports[report.arm] = report
        return "", self._close_if_complete(now)

    def on_result(self, arm: str, token: int, time: float, now: float) -> list[Effect]:
        """The plant says that the action of a lease is over.

        Args:
            time: s, plant time of the end (the clock of ``Snapshot.time``).
        """
        if self.leases.release(arm, token):
            self._ready_after = max(self._ready_after, time)
        return self._advance(now)

    def tick(self, now: float) -> list[Effect]:
        """Time passed: deadlines of the slot and of leases."""
        effects: list[Effect] = [Revoked(grant) for grant in self.leases.overdue(now)]
        if self.phase is Phase.COLLECTING:
            effects += self._close_if_complete(now)
        return effects + self._advance(now)

    @property
    def misses_plant(self) -> bool:
        """Whether no slot is opened until a world state comes."""
        return 0 < self.options.idle_slots <= self._idle

    # -- inside ---------------------------------------------------------------------------------------------------

    def _begin_episode(self, snapshot: Snapshot) -> None:
        self._plant_epoch = snapshot.epoch
        self.episode = snapshot.episode
        self.slot = snapshot.slot
        self.phase = Phase.WAITING
        self.leases.clear()
        self._reports.clear()
        self._ready_after = -1.0
        self._silent = dict.fromkeys(self._silent, 0)
        self._waited = dict.fromkeys(self._waited, 0)

    def _refusal(self, report: Report) -> str:
        if report.arm not in self.scenario.arms:
            return f"unknown arm {report.arm!r}; valid: {', '.join(self.scenario.arms)}"
        epoch, sequence = self._senders.get(report.arm, (0, 0))
        if report.epoch < epoch:
            return f"sender epoch {report.epoch} of {report.arm} is older than {epoch}"
        if report.epoch == epoch and report.sequence <= sequence:
            return f"sequence {report.sequence} of {report.arm} was seen already (newest {sequence})"
        if report.twin_epoch != self.epoch:
            return f"answers the twin of epoch {report.twin_epoch}, this one is {self.epoch}"
        if report.episode != self.episode or report.slot != self.slot:
            self._silent[report.arm] = 0  # late, but alive
            return f"answers slot {report.slot} of episode {report.episode}, open is {self.slot} of {self.episode}"
        if self.phase is not Phase.COLLECTING:
            self._silent[report.arm] = 0
            return f"slot {self.slot} is closed"
        if report.arm in self._reports and report.epoch == self._reports[report.arm].epoch:
            return f"{report.arm} has answered slot {self.slot} already"
        return ""

    def _advance(self, now: float) -> list[Effect]:
        snapshot = self._snapshot
        if snapshot is None or snapshot.episode == 0:
            return []
        if self.phase is Phase.EXECUTING:
            for grant in self.leases.grants:  # a result that was lost: the plant moves under no or a newer token
                arm = snapshot.arms.get(grant.arm)
                if arm is not None and arm.token > grant.token:
                    self.leases.release(grant.arm, grant.token)
            if self.leases.grants:
                return []
            self.phase = Phase.WAITING
        if self.phase is not Phase.WAITING or snapshot.success or self.slot >= self.scenario.slots.limit:
            return []
        # Only a world seen after the last motion ended may be arbitrated, and no arm may still be under way.
        if snapshot.time < self._ready_after or self.leases.grants:
            return []
        if any(arm.status is ArmStatus.MOVING for arm in snapshot.arms.values()):
            self._still_since = now
            return []
        if now - self._still_since < self.options.settle or self.misses_plant:
            return []
        self.slot = max(self.slot, snapshot.slot) + 1
        self.phase = Phase.COLLECTING
        self._reports.clear()
        self._opened_at = now
        expected = tuple(self.scenario.arms)
        return [Opened(self.episode, self.slot, expected, self._view_sequence, self.options.deadline)]

    def _close_if_complete(self, now: float) -> list[Effect]:
        missing = [arm for arm in self.scenario.arms if arm not in self._reports]
        waited = now - self._opened_at
        present = [arm for arm in missing if self._silent[arm] < self.options.absent_after]
        if missing and waited < (self.options.deadline if present else self.options.absent_grace):
            return []
        for arm in missing:
            self._silent[arm] += 1
        answer = self._arbitrate(missing, now)
        self._idle += not self.leases.grants
        self.phase = Phase.EXECUTING
        return [answer, *self._advance(now)]

    def _arbitrate(self, missing: list[str], now: float) -> Answered:
        assert self._snapshot is not None and self._view is not None
        began = _time.perf_counter()
        snapshot = self._snapshot
        view, where = self._view, self._view.where
        verdicts: dict[str, ArmVerdict] = {
            arm: ArmVerdict(arm, Action("stay"), Decision.WAIT, TwinRule.SILENT, arm) for arm in missing
        }
        intents: dict[str, Intent] = {}
        for arm, report in sorted(self._reports.items()):
            veto = self._veto_before(report, snapshot, view)
            if veto is not None:
                verdicts[arm] = veto
                continue
            intents[arm] = self._intent(report, where)
        graph = self._graph if self.options.guard_dead_ends else None
        arbitration, unsafe = arbitrate_safely(intents, view.world.conditions, where, graph, self.options.orchestrator)
        for intent in unsafe:
            verdicts[intent.arm] = ArmVerdict(
                intent.arm, intent.action, Decision.YIELD, TwinRule.DEAD_END, entity_element(intent.action.entity)
            )
        for verdict in arbitration.verdicts:
            action = intents[verdict.arm].action
            grant = None
            if verdict.decision is Decision.ADMIT and not action.is_stay:
                grant = self.leases.grant(verdict.arm, self.slot, action, now)
            verdicts[verdict.arm] = ArmVerdict(
                verdict.arm, action, verdict.decision, verdict.rule, verdict.element, verdict.rival, grant
            )
        for arm, answer in verdicts.items():
            wanted = not answer.action.is_stay
            self._waited[arm] = self._waited[arm] + 1 if wanted and answer.decision is not Decision.ADMIT else 0
        ordered = tuple(verdicts[arm] for arm in sorted(verdicts))
        return Answered(self.episode, self.slot, ordered, arbitration, _time.perf_counter() - began)

    def _veto_before(self, report: Report, snapshot: Snapshot, view: WorldView) -> ArmVerdict | None:
        """A veto that needs no rival: the plant's state alone decides."""
        arm, action, scenario = report.arm, report.action, self.scenario
        if action.is_stay:
            return None
        status = snapshot.arms[arm].status if arm in snapshot.arms else ArmStatus.IDLE
        if status is ArmStatus.PROTECTIVE_STOP:
            return ArmVerdict(arm, action, Decision.WAIT, TwinRule.ILLEGAL, "protective_stop")
        veto = veto_by_world(view, arm, action)
        if veto is not None:
            return veto
        where = view.where
        least = declare(scenario, arm, action, where)
        for rival, state in sorted(snapshot.arms.items()):  # an arm that failed on the way still stands there
            if rival != arm and state.status in (ArmStatus.HOLDING, ArmStatus.PROTECTIVE_STOP):
                blocked = {zone_element(zone) for zone in state.zones} & least.exclusive
                if blocked:
                    return ArmVerdict(arm, action, Decision.YIELD, TwinRule.OCCUPIED, min(blocked), rival)
        return None

    def _intent(self, report: Report, where: Mapping[str, str]) -> Intent:
        scenario, action = self.scenario, report.action
        declaration = report.declaration
        if self.options.complete_declarations:
            declaration, missing = complete(declaration, declare(scenario, report.arm, action, where))
            self.completed_entries[report.arm] += missing
        return make_intent(scenario, report.arm, action, declaration, self._waited[report.arm])


def veto_by_world(view: WorldView, arm: str, action: Action) -> ArmVerdict | None:
    """The veto of an action that needs no rival and no arm's state: its destination is taken, or it is not legal."""
    occupant = view.occupant(action.placement, besides=action.entity)
    if occupant and action.placement in view.scenario.arm(arm).reach:
        element = placement_element(action.placement)
        return ArmVerdict(arm, action, Decision.YIELD, TwinRule.OCCUPIED, element, occupant)
    if action not in view.legal(arm):
        element = entity_element(action.entity) if action.entity in view.where else action.entity or action.verb
        return ArmVerdict(arm, action, Decision.YIELD, TwinRule.ILLEGAL, element)
    return None


def make_intent(scenario: Scenario, arm: str, action: Action, declaration: Declaration, waited: int) -> Intent:
    """An intent with what ranks it (eq. 19): whether it ends at the goal, and how far from it."""
    intent = Intent(arm, scenario.arm_index[arm], action, declaration, waited=waited)
    if action.verb != MOVE_VERB:
        return intent
    return replace(
        intent,
        terminal=action.placement == scenario.entity(action.entity).goal,
        distance=distance_to_goal(scenario, action.entity, action.placement),
    )


def arbitrate_safely(
    intents: Mapping[str, Intent],
    conditions: frozenset[str],
    where: Mapping[str, str],
    graph: RelayGraph | None,
    options: OrchestratorOptions | None = None,
) -> tuple[Arbitration, list[Intent]]:
    """Arbitrate; intents after which the goal could no longer be reached are taken out, and the rest is asked again.

    Args:
        intents: arm -> intent, all legal.
        conditions: W_t.
        where: entity -> placement.
        graph: sees dead ends ahead; None = nobody looks.
        options: of the orchestrator.

    Returns:
        the arbitration of the intents that are left, and those that were taken out.
    """
    left = dict(intents)
    out: list[Intent] = []
    while True:
        arbitration = arbitrate(list(left.values()), conditions, options or OrchestratorOptions())
        unsafe = _dead_ends(graph, [left[arm] for arm in arbitration.admitted], where) if graph is not None else []
        if not unsafe:
            return arbitration, out
        for intent in unsafe:
            del left[intent.arm]
        out += unsafe


def _dead_ends(graph: RelayGraph, admitted: list[Intent], where: Mapping[str, str]) -> list[Intent]:
    """Those of the admitted that must go so that every part of the rest leaves the goal in reach."""
    if not graph.covers(where):
        return []
    if graph.reaches_goal(where) is False:
        return []  # already lost: the guard has nothing left to protect
    if not graph.dead_end_after(where, [intent.action for intent in admitted]):
        return []
    kept: list[Action] = []
    unsafe: list[Intent] = []
    for intent in sorted(admitted, key=lambda i: (not i.terminal, i.distance, -i.waited, i.index)):
        if graph.dead_end_after(where, [*kept, intent.action]):
            unsafe.append(intent)
        else:
            kept.append(intent.action)
    return unsafe
