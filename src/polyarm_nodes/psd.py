"""Detector of stale plans: compares the plan with the world at the plant's rate, and asks for another one.

It feeds the `PlanWatch` with what it hears. Every world state of an episode with a plan gives a `Staleness`; above the
threshold it also asks for another plan, once for each plan and situation.
"""

from __future__ import annotations

import time

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import ActionResult, PlanState, ReplanRequest, SlotOpening, SlotVerdict, Staleness, WorldState

from polyarm_core.control.mirror import MirroredArms
from polyarm_core.domains.arms import ArmsDomain
from polyarm_core.psd.detector import LearnedDetector, find_weights
from polyarm_core.psd.watch import Look, PlanWatch
from polyarm_core.scenario import load_scenario
from polyarm_core.slots import Snapshot
from polyarm_core.world import WorldView
from polyarm_nodes import qos, topics
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import PSD, declare_parameters
from polyarm_nodes.plan_convert import HeardState, Vocabulary, prepare, request_to_message, state_from_message
from polyarm_nodes.slot_following import Announced, Begun, Ended, Event, Judged, Message, Refused, Slot, SlotFollowing
from polyarm_nodes.validation import Malformed

TICK = 0.05  # s; the wait for results is kept to this


class PsdNode(PolyarmNode):
    """Feeds the watch and publishes what it sees."""

    def __init__(self) -> None:
        super().__init__("psd")
        self._told: HeardState | None = None  # until the watch has opened its slot
        self._looked = (0, 0)  # epoch and sequence of the world that was judged last
        self._sequence = self._requested = self._looks = 0
        self._seconds = self._slowest = 0.0

    def configure(self) -> None:
        values = declare_parameters(self, PSD)
        self._scenario = load_scenario(values["scenario"])
        self._slots = SlotFollowing(self._scenario, values["result_wait"])
        domain = ArmsDomain(self._scenario)
        path = find_weights(values["detector"])
        LearnedDetector.load(domain, path)  # so that what does not fit is known now
        self._watch = PlanWatch(MirroredArms(domain), lambda: LearnedDetector.load(domain, path))
        self._vocabulary = Vocabulary.of(domain)
        prepare()
        self._stalenesses = self.create_publisher(Staleness, topics.STALENESS, qos.STALENESS)
        self._requests = self.create_publisher(ReplanRequest, topics.REPLAN_REQUESTS, qos.REPLAN_REQUESTS)
        for kind, name, callback, profile in (
            (SlotVerdict, topics.VERDICTS, self._on_slots, qos.VERDICTS),
            (ActionResult, topics.ACTION_RESULTS, self._on_slots, qos.RESULTS),
            (PlanState, topics.PLAN_STATE, self._on_plan_state, qos.PLAN_STATE),
            (SlotOpening, topics.SLOT_OPENING, self._on_slots, qos.OPENINGS),
            (WorldState, topics.WORLD, self._on_slots, qos.WORLD),
        ):
            self.create_subscription(kind, name, callback, profile)
        self.create_steady_timer(TICK, self._advance)

    # -- what arrives -------------------------------------------------------------------------------------------------

    def _on_slots(self, message: Message) -> None:
        try:
            events = self._slots.hear(message, time.monotonic())
        except Refused as why:
            self.refuse(why.kind, str(why))
            return
        for event in events:
            self._hear(event)
        self._advance()
        self._look_within()

    def _hear(self, event: Event) -> None:
        if isinstance(event, Begun):
            self._watch.on_reset()
            if self._told is not None and self._told.episode != event.episode:
                self._told = None
        elif isinstance(event, Announced):
            before = self._slots.before
            if before is not None and not before.opened:
                self._open(before)
        elif isinstance(event, Judged):
            if event.slot.opened:
                self._watch.on_verdicts(event.slot.verdicts or ())
            elif event.slot is self._slots.current:
                self._open(event.slot)
        elif isinstance(event, Ended) and event.slot.opened:
            result = event.result
            self._watch.on_result(result.arm, result.action, result.outcome, result.reason)

    def _on_plan_state(self, message: PlanState) -> None:
        try:
            told = state_from_message(message, self._vocabulary, self._scenario)
        except Malformed as why:
            self.refuse("malformed", f"plan state: {why}")
            return
        self._told = told
        self._advance()
        self._hear_plan()

    # -- a slot -------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Open the slot here once its world and the outcome of the last one are known, or overdue."""
        slot = self._slots.current
        if slot is None or slot.opened:
            return
        # Told what its plan is: the coordinator has gone on without the results that are still missing.
        if self._is_told(slot) or self._slots.is_known(time.monotonic()):
            self._open(slot)

    def _open(self, slot: Slot) -> None:
        snapshot = self._slots.snapshot
        if not self.active or snapshot is None or snapshot.episode != slot.opening.episode:
            return
        early = self._slots.open(slot)
        begin = time.perf_counter()
        look = self._watch.on_opening(slot.opening.slot, WorldView(self._scenario, snapshot.world), snapshot.arms)
        self._publish(look, snapshot, time.perf_counter() - begin)
        if slot.verdicts is not None:
            self._watch.on_verdicts(slot.verdicts)
        for event in early:
            self._hear(event)
        self._hear_plan()

    def _is_told(self, slot: Slot) -> bool:
        told = self._told
        return told is not None and (told.episode, told.slot) == (slot.opening.episode, slot.opening.slot)

    def _hear_plan(self) -> None:
        """Tell the watch where the plan stands, once it has opened that slot."""
        slot, told = self._slots.current, self._told
        if slot is None or told is None or not slot.opened or not self._is_told(slot):
            return
        self._told = None
        self._watch.on_plan(told.slot, told.number, told.sound, told.remaining)
        self._looked = (0, 0)
        self._look_within()

    def _look_within(self) -> None:
        slot, snapshot = self._slots.current, self._slots.snapshot
        if not self.active or slot is None or not slot.opened or snapshot is None:
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
