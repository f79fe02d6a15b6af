"""Detector of stale plans: compares the plan with the world at the plant's rate, and asks for another one.

It feeds the `PlanWatch` with what it hears. Every world state of an episode with a plan gives a `Staleness`; above the
threshold it also asks for another plan, once for each plan and situation.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import ActionResult, PlanState, ReplanRequest, SlotOpening, SlotVerdict, Staleness, WorldState

from polyarm_core.control.mirror import MirroredArms
from polyarm_core.domains.arms import ArmsDomain
from polyarm_core.orchestrator import Decision
from polyarm_core.psd.detector import LearnedDetector, find_weights
from polyarm_core.psd.watch import Look, PlanWatch
from polyarm_core.scenario import load_scenario
from polyarm_core.slots import Snapshot
from polyarm_core.world import WorldView
from polyarm_nodes import qos, topics
from polyarm_nodes.convert import action_of_arm, snapshot_from_message
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import PSD, declare_parameters
from polyarm_nodes.plan_convert import HeardState, Vocabulary, prepare, request_to_message, state_from_message
from polyarm_nodes.plan_convert import verdicts_from_message as read_verdicts
from polyarm_nodes.validation import Malformed, check_message

TICK = 0.05  # s; the wait for results is kept to this
MOST_AHEAD = 256  # messages that are kept for slots whose opening is still to come
OUTCOMES = {
    ActionResult.OUTCOME_SUCCEEDED: "succeeded",
    ActionResult.OUTCOME_FAILED: "failed",
    ActionResult.OUTCOME_STOPPED: "stopped",
    ActionResult.OUTCOME_REFUSED: "stopped",
}


@dataclass
class _Slot:
    """A slot of the twin.

    Attributes:
        opening: of the twin.
        received: s, steady.
        seen: the watch has opened it.
        judged: its verdicts have come.
        acting: arms whose action was admitted and has not ended, as far as is known.
        ended: arms whose result has come.
    """

    opening: SlotOpening
    received: float
    seen: bool = False
    judged: bool = False
    acting: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)

    @property
    def key(self) -> tuple[int, int, int]:
        """Episode, slot, epoch of the twin."""
        return self.opening.episode, self.opening.slot, self.opening.epoch


class PsdNode(PolyarmNode):
    """Feeds the watch and publishes what it sees."""

    def __init__(self) -> None:
        super().__init__("psd")
        self._episode = 0
        self._snapshot: Snapshot | None = None
        self._current: _Slot | None = None
        self._before: _Slot | None = None  # until the watch has opened the current one
        self._told: HeardState | None = None  # until the watch has opened its slot
        self._ahead: list[SlotVerdict | ActionResult] = []  # of slots whose opening is still to come
        self._looked = (0, 0)  # epoch and sequence of the world that was judged last
        self._sequence = self._requested = self._looks = 0
        self._seconds = self._slowest = 0.0

    def configure(self) -> None:
        values = declare_parameters(self, PSD)
        self._scenario = load_scenario(values["scenario"])
        self._result_wait = values["result_wait"]
        domain = ArmsDomain(self._scenario)
        path = find_weights(values["detector"])
        LearnedDetector.load(domain, path)  # so that what does not fit is known now
        self._watch = PlanWatch(MirroredArms(domain), lambda: LearnedDetector.load(domain, path))
        self._vocabulary = Vocabulary.of(domain)
        prepare()
        self._stalenesses = self.create_publisher(Staleness, topics.STALENESS, qos.STALENESS)
        self._requests = self.create_publisher(ReplanRequest, topics.REPLAN_REQUESTS, qos.REPLAN_REQUESTS)
        for kind, name, callback, profile in (
            (SlotVerdict, topics.VERDICTS, self._on_verdicts, qos.VERDICTS),
            (ActionResult, topics.ACTION_RESULTS, self._on_result, qos.RESULTS),
            (PlanState, topics.PLAN_STATE, self._on_plan_state, qos.PLAN_STATE),
            (SlotOpening, topics.SLOT_OPENING, self._on_opening, qos.OPENINGS),
            (WorldState, topics.WORLD, self._on_world, qos.WORLD),
        ):
            self.create_subscription(kind, name, callback, profile)
        self.create_steady_timer(TICK, self._on_tick)

    # -- what arrives -------------------------------------------------------------------------------------------------

    def _on_world(self, message: WorldState) -> None:
        try:
            snapshot = snapshot_from_message(message, self._scenario)
        except Malformed as why:
            self.refuse("malformed", f"world state: {why}")
            return
        known = self._snapshot
        if known is not None and (snapshot.epoch, snapshot.sequence) <= (known.epoch, known.sequence):
            return
        self._snapshot = snapshot
        if snapshot.episode != self._episode:
            self._begin(snapshot.episode)
        self._advance()
        self._look_within()

    def _begin(self, episode: int) -> None:
        """Another episode: nothing of the last one counts."""
        self._episode = episode
        self._watch.on_reset()
        self._before = None
        if self._current is not None and self._current.opening.episode != episode:
            self._current = None
        if self._told is not None and self._told.episode != episode:
            self._told = None

    def _on_opening(self, message: SlotOpening) -> None:
        try:
            check_message(message)
        except Malformed as why:
            self.refuse("malformed", f"slot opening: {why}")
            return
        last = self._current
        if last is not None:
            known = last.opening
            if (message.epoch, message.sequence) <= (known.epoch, known.sequence):
                self.refuse("stale", f"slot {message.slot} of twin {message.epoch} was opened already")
                return
            if known.episode == message.episode:
                if not last.seen:
                    self._open(last)
                self._before = last
        self._current = _Slot(message, time.monotonic())
        ahead, self._ahead = self._ahead, []
        for early in ahead:
            if isinstance(early, SlotVerdict):
                self._on_verdicts(early)
            else:
                self._on_result(early)
        self._advance()

    def _keep(self, message: SlotVerdict | ActionResult) -> None:
        """Topics are not ordered among each other: what comes before its slot's opening waits for it."""
        last = self._current
        known = (last.opening.episode, last.opening.slot) if last is not None else (0, 0)
        if (message.episode, message.slot) > known:
            self._ahead = [*self._ahead[1 - MOST_AHEAD :], message]

    def _on_plan_state(self, message: PlanState) -> None:
        try:
            told = state_from_message(message, self._vocabulary, self._scenario)
        except Malformed as why:
            self.refuse("malformed", f"plan state: {why}")
            return
        self._told = told
        current = self._current
        if current is not None and not current.seen and self._is_told(current):
            self._open(current)  # the coordinator has gone on without the results that are still missing
        self._hear_plan()

    def _on_verdicts(self, message: SlotVerdict) -> None:
        try:
            verdicts = read_verdicts(message, self._scenario)
        except Malformed as why:
            self.refuse("malformed", f"slot verdict: {why}")
            return
        slot = self._slot_of(message.episode, message.slot, message.epoch)
        if slot is None:
            self._keep(message)
            return
        if slot.judged:
            return
        slot.judged = True
        admitted = {v.arm for v in verdicts if v.decision is Decision.ADMIT and not v.action.is_stay}
        slot.acting = admitted - slot.ended
        if slot is self._current and not slot.seen:
            self._open(slot)
        if slot.seen:
            self._watch.on_verdicts(verdicts)
        self._advance()

    def _on_result(self, message: ActionResult) -> None:
        try:
            check_message(message)
            if message.outcome not in OUTCOMES:
                raise Malformed(f"outcome = {message.outcome}; valid: {sorted(OUTCOMES)}")
            if message.arm not in self._scenario.arms:
                raise Malformed(f"arm {message.arm!r} is unknown; valid: {', '.join(self._scenario.arms)}")
            action = action_of_arm(message.action, message.arm, self._scenario)
        except Malformed as why:
            self.refuse("malformed", f"action result: {why}")
            return
        slot = self._slot_of(message.episode, message.slot)
        if slot is None:
            self._keep(message)
            return
        slot.ended.add(message.arm)
        slot.acting.discard(message.arm)
        if slot.seen:
            self._watch.on_result(message.arm, action, OUTCOMES[message.outcome], message.reason)
        self._advance()

    def _slot_of(self, episode: int, number: int, epoch: int = 0) -> _Slot | None:
        """The slot that the watch still listens to, or that is to be opened next."""
        for slot in (self._current, self._before):
            if slot is not None and slot.key[:2] == (episode, number) and epoch in (0, slot.key[2]):
                return slot
        return None

    # -- a slot -------------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        self._advance()

    def _advance(self) -> None:
        """Open the slot here once its world and the outcome of the last one are known, or overdue."""
        slot, snapshot = self._current, self._snapshot
        if not self.active or slot is None or slot.seen or snapshot is None:
            return
        if snapshot.episode != slot.opening.episode or snapshot.sequence < slot.opening.world_sequence:
            return
        before = self._before
        overdue = time.monotonic() - slot.received > self._result_wait
        if before is None or overdue or (before.judged and not before.acting):
            self._open(slot)

    def _open(self, slot: _Slot) -> None:
        snapshot = self._snapshot
        if not self.active or snapshot is None or snapshot.episode != slot.opening.episode:
            return
        self._before, slot.seen = None, True
        begin = time.perf_counter()
        look = self._watch.on_opening(slot.opening.slot, WorldView(self._scenario, snapshot.world), snapshot.arms)
        self._publish(look, snapshot, time.perf_counter() - begin)
        self._hear_plan()

    def _is_told(self, slot: _Slot) -> bool:
        told = self._told
        return told is not None and (told.episode, told.slot) == slot.key[:2]

    def _hear_plan(self) -> None:
        """Tell the watch where the plan stands, once it has opened that slot."""
        slot, told = self._current, self._told
        if slot is None or told is None or not slot.seen or not self._is_told(slot):
            return
        self._told = None
        self._watch.on_plan(told.slot, told.number, told.sound, told.remaining)
        self._looked = (0, 0)
        self._look_within()

    def _look_within(self) -> None:
        slot, snapshot = self._current, self._snapshot
        if not self.active or slot is None or not slot.seen or snapshot is None:
            return
        if snapshot.episode != slot.opening.episode or (snapshot.epoch, snapshot.sequence) == self._looked:
            return
        begin = time.perf_counter()
        look = self._watch.on_world(WorldView(self._scenario, snapshot.world), snapshot.arms)
        self._publish(look, snapshot, time.perf_counter() - begin)

    # -- what it says -------------------------------------------------------------------------------------------------

    def _publish(self, look: Look | None, snapshot: Snapshot, seconds: float) -> None:
        self._looked = (snapshot.epoch, snapshot.sequence)
        if look is None:
            self.report(DiagnosticStatus.OK, "no plan is followed")
            return
        self._looks += 1
        self._seconds += seconds
        self._slowest = max(self._slowest, seconds)
        self._sequence += 1
        message = Staleness(
            episode=snapshot.episode,
            slot=look.slot,
            epoch=self.epoch,
            sequence=self._sequence,
            world_sequence=snapshot.sequence,
            plan=look.number,
            probability=look.probability,
            threshold=look.threshold,
            stale=look.stale,
            seconds=seconds,
        )
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = self._scenario.frame
        self._stalenesses.publish(message)
        if look.ask:
            self._ask(look, snapshot.episode)
        self.report(
            DiagnosticStatus.OK,
            f"slot {look.slot}: plan {look.number} is stale with probability {look.probability:.2f}",
            looks=self._looks,
            requests=self._requested,
            mean_ms=f"{1e3 * self._seconds / self._looks:.2f}",
            slowest_ms=f"{1e3 * self._slowest:.2f}",
        )

    def _ask(self, look: Look, episode: int) -> None:
        self._requested += 1
        request = request_to_message(look.number, "stale", "the world has changed", (), look.probability)
        request.episode, request.slot = episode, look.slot
        request.epoch, request.sequence = self.epoch, self._requested
        request.header.stamp = self.get_clock().now().to_msg()
        request.header.frame_id = self._scenario.frame
        self._requests.publish(request)


def main() -> None:
    """Run the node."""
    run_node(PsdNode, niceness=5)
