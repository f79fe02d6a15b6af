"""Coordinator node: holds the plan of the cell, and says in every slot what it means for each arm.

It feeds the `PlanExecutive` with what it hears and publishes what comes of it: plans, plan states, calls, detections.
The coordinator itself, a search or a language model, thinks in a worker thread; an answer that comes too late for its
request is dropped. While a model is still at a request that was given up, the search plans in a thread of its own.
Whatever fails, the arms are told that there is no plan, and hold or act by themselves.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import (
    ActionResult,
    PlanCall,
    PlanState,
    ReplanRequest,
    SlotOpening,
    SlotVerdict,
    Staleness,
    WorldState,
)
from polyarm.msg import Detection as DetectionMessage
from polyarm.msg import Plan as PlanMessage
from rclpy.publisher import Publisher

from polyarm_core.chains.terms import Plan
from polyarm_core.control.executive import Called, Detected, Effect, PlanExecutive, SlotPlan
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.control.modes import Control
from polyarm_core.control.planner import Ask, Follow, PlannerOptions
from polyarm_core.coordinator.interface import Coordinator, PlanAnswer, PlanRequest
from polyarm_core.coordinator.model import ModelCoordinator
from polyarm_core.coordinator.prompts import coordinator_prompt
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.errors import InvalidValue
from polyarm_core.llm.interface import LanguageModel, ModelError, ModelUnavailable
from polyarm_core.llm.registry import open_model
from polyarm_core.scenario import Scenario, load_scenario, parse_model
from polyarm_core.slots import TwinRule
from polyarm_core.world import WorldView
from polyarm_nodes import qos, topics
from polyarm_nodes.graph import PLAIN, SEARCH
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import COORDINATOR, declare_parameters
from polyarm_nodes.plan_convert import (
    Vocabulary,
    call_to_message,
    detection_to_message,
    plan_from_message,
    plan_to_message,
    prepare,
    request_from_message,
    state_to_message,
)
from polyarm_nodes.slot_following import Announced, Begun, Ended, Event, Judged, Message, Refused, Slot, SlotFollowing
from polyarm_nodes.validation import Malformed, check_message

TICK = 0.05  # s; waits and holds are kept to this
HIGHEST = 1 << 24  # number of a plan that anybody may claim to have heard
RETRY = 0.25  # s between two attempts to reach a model that is not there
STOOD_IN = "the model gave no plan, the search stood in for it"
HANGS = "the model is still at an earlier request, the search stood in for it"


class CoordinatorNode(PolyarmNode):
    """Feeds the executive, lets the coordinator think, publishes plans and what they mean."""

    def __init__(self) -> None:
        super().__init__("coordinator")
        self._sequences: Counter[type] = Counter()  # message type -> sent so far
        self._released = False  # the arms were told of the current slot, or the twin has not waited for it
        self._complete: float | None = None  # s, steady; since when it waits for nothing but the detector
        self._staleness: Staleness | None = None
        self._unwatched = False  # the detector's last word was overdue, and none has come since: it is not waited for
        self._elsewhere = (0, 0)  # episode and highest number of a plan that another coordinator has made in it
        self._states: Publisher | None = None  # made when the coordinator joins
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="coordinator")
        self._thinking: dict[int, Future[PlanAnswer]] = {}  # request -> its answer to come
        self._at_model: list[Future[PlanAnswer]] = []  # what the worker has not finished
        self._rival = 0  # epoch of a newer coordinator
        self._warming: Future[str] | None = None
        self._closing = threading.Event()
        self._trouble = ""  # why there is no plan
        self._counts: Counter[str] = Counter()  # for the diagnostics
        self._trace: IO[str] | None = None

    def configure(self) -> None:
        self._chosen = values = declare_parameters(self, COORDINATOR)
        self._scenario = load_scenario(values["scenario"])
        self._control = Control(values["control"])
        self._slots = SlotFollowing(self._scenario, values["result_wait"])
        domain = ArmsDomain(self._scenario)
        self._vocabulary = Vocabulary.of(domain)
        prepare()
        self._executive = PlanExecutive(
            MirroredArms(domain),
            self._control,
            Repair(domain) if values["repair"] else None,
            PlannerOptions(values["timeout"], values["attempts"], values["rest"], values["calls"]),
        )
        # The worker thinks in a domain of its own: tables that two threads fill would be torn.
        self._coordinator, self._model = _make_coordinator(ArmsDomain(self._scenario), self._scenario, values)
        self._stand_in: SearchCoordinator[ArmsState] | None = None
        if self._model is not None and values["fallback"]:
            self._stand_in = SearchCoordinator(ArmsDomain(self._scenario))
            self._second = ThreadPoolExecutor(1, thread_name_prefix="stand_in")
        if values["trace_file"]:
            self._trace = Path(values["trace_file"]).open("a", buffering=1, encoding="utf-8")
        self._plans = self.create_publisher(PlanMessage, topics.PLAN, qos.PLAN)
        self._calls = self.create_publisher(PlanCall, topics.PLAN_CALLS, qos.PLAN_CALLS)
        self._detections = self.create_publisher(DetectionMessage, topics.DETECTIONS, qos.DETECTIONS)
        for kind, name, callback, profile in (
            (SlotVerdict, topics.VERDICTS, self._on_slots, qos.VERDICTS),
            (ActionResult, topics.ACTION_RESULTS, self._on_slots, qos.RESULTS),
            (WorldState, topics.WORLD, self._on_slots, qos.WORLD),
            (Staleness, topics.STALENESS, self._on_staleness, qos.STALENESS),
            (ReplanRequest, topics.REPLAN_REQUESTS, self._on_request, qos.REPLAN_REQUESTS),
            (PlanMessage, topics.PLAN, self._on_plan, qos.PLAN),
            (SlotOpening, topics.SLOT_OPENING, self._on_slots, qos.OPENINGS),
        ):
            self.create_subscription(kind, name, callback, profile)
        self._answered = self.create_guard_condition(self._on_answered)
        self.create_steady_timer(TICK, self._on_tick)

    def activate(self) -> None:
        if self._model is None:
            self._join()
            return
        # A model that is still loading would cost the first plan: the coordinator joins once it can write.
        self._warming = self._worker.submit(self._warm_up, self._model, self._chosen["warm_up"])
        self._warming.add_done_callback(lambda _: self._answered.trigger())
        self.report(DiagnosticStatus.OK, "waiting for the model")

    def _join(self) -> None:
        self._states = self.create_publisher(PlanState, topics.PLAN_STATE, qos.PLAN_STATE)
        self._advance()

    def close(self) -> None:
        self._closing.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
        if getattr(self, "_stand_in", None) is not None:
            self._second.shutdown(wait=False, cancel_futures=True)
        if self._trace is not None:
            self._trace.close()

    # -- what arrives -------------------------------------------------------------------------------------------------

    def _on_slots(self, message: Message) -> None:
        if isinstance(message, SlotOpening) and not self.active:
            return
        try:
            events = self._slots.hear(message, time.monotonic())
        except Refused as why:
            self.refuse(why.kind, str(why))
            return
        self._hear(events)
        self._advance()

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Begun):
                self._begin(event.episode)
            elif isinstance(event, Announced):
                self._released, self._complete = False, None
                opening = event.slot.opening
                if event.last is None and opening.slot > 1:
                    # Another was here before, whose plans nobody may tell of; it has made one in a slot at most.
                    self._hear_number(opening.episode, opening.slot)
            elif isinstance(event, Judged):
                self._judge(event.slot)
            elif isinstance(event, Ended):
                result = event.result
                self._executive.on_result(result.arm, result.action, result.outcome, result.reason)
            else:
                self._count("late_results")

    def _begin(self, episode: int) -> None:
        """Another episode: nothing of the last one counts."""
        self._executive.on_reset()
        self._staleness, self._unwatched = None, False
        if self._elsewhere[0] == episode:
            self._executive.on_plan_elsewhere(self._elsewhere[1])
        self._trouble = ""
        self._drop_requests()

    def _judge(self, slot: Slot) -> None:
        """The twin has judged a slot, which waits for nothing from here any more."""
        verdicts = slot.verdicts or ()
        self._values["silent"] = ", ".join(v.arm for v in verdicts if v.rule is TwinRule.SILENT)
        late = slot is self._slots.current and not self._released
        if slot.opened:
            self._released |= late
            self._carry_out(self._executive.on_verdicts(verdicts))
        if late:
            self._say_untold(slot)

    def _on_staleness(self, message: Staleness) -> None:
        try:
            check_message(message)
        except Malformed as why:
            self.refuse("malformed", f"staleness: {why}")
            return
        self._hear_number(message.episode, message.plan)
        self._unwatched = False
        if message.episode == self._slots.episode:
            self._staleness = message
            self._advance()

    def _on_request(self, message: ReplanRequest) -> None:
        try:
            request = request_from_message(message, self._vocabulary.agents)
        except Malformed as why:
            self.refuse("malformed", f"request for another plan: {why}")
            return
        taken = request.episode == self._slots.episode and self._executive.on_request(
            request.number, request.reason, request.cause, request.agents
        )
        self._count("requests" if taken else "requests_ignored")
        self._values["heeds_alarms"] = str(self._executive.heeds_alarms)

    def _on_plan(self, message: PlanMessage) -> None:
        if message.epoch == self.epoch:
            return
        try:
            heard = plan_from_message(message, self._vocabulary)
        except Malformed as why:
            self.refuse("malformed", f"plan of another coordinator: {why}")
            return
        self._hear_number(heard.episode, heard.number)
        if heard.epoch > self.epoch:
            self.refuse("rival", f"there is a newer coordinator: {heard.epoch}")
            self._rival = heard.epoch
            self._executive.on_reset()  # should it go, this one begins with a new plan
            self._executive.on_plan_elsewhere(heard.number)
            self._drop_requests()

    def _stands_back(self) -> bool:
        """Whether a newer coordinator holds the plan of this cell, e.g. of a second launch."""
        if self._rival and self.count_publishers(topics.PLAN_STATE) < 2:
            self._rival = 0
        return self._rival != 0

    def _hear_number(self, episode: int, number: int) -> None:
        """Somebody knows a plan of this number: one that a coordinator has made before this one came up."""
        if episode == self._slots.episode and number <= self._executive.number:
            return
        if number > HIGHEST:
            self.refuse("malformed", f"number of the plan = {number}; valid: at most {HIGHEST}")
        elif (episode, number) > self._elsewhere:
            self._elsewhere = episode, number
            if episode == self._slots.episode:
                self._executive.on_plan_elsewhere(number)

    # -- a slot -------------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        slot = self._slots.current
        if not self.active or slot is None or self._released:
            return
        if slot.opened:
            self._carry_out(self._executive.tick(time.monotonic()))
        self._advance()

    def _advance(self) -> None:
        """Open the slot here once all is known that its plan depends on; tell the arms once that is worth the while."""
        slot = self._slots.current
        if slot is None or self._released or slot.verdicts is not None or self._states is None or not self.active:
            return
        if self._stands_back():
            self.report(DiagnosticStatus.WARN, f"a newer coordinator holds the plan: {self._rival}")
            return
        now = time.monotonic()
        if not slot.opened:
            if not self._is_known(slot, now):
                return
            self._open(slot, now)
        hold = self._chosen["plan_hold"] * slot.opening.deadline
        if self._executive.worth_holding and now - slot.received < hold:
            return
        self._release(slot)

    def _is_known(self, slot: Slot, now: float) -> bool:
        """Whether the world of the slot, the outcome of the last one and the detector's word are here, or overdue."""
        if not self._slots.is_known(now):
            return False
        if self._complete is None:
            self._complete = now
        watched = self._chosen["detector"] and self._executive.sound
        if not watched or self._unwatched or self._has_watched(slot) or self.count_publishers(topics.STALENESS) == 0:
            return True
        if now - self._complete < self._chosen["detector_wait"]:
            return False
        self._count("unwatched")
        self._unwatched = True
        return True

    def _has_watched(self, slot: Slot) -> bool:
        """Whether the detector has looked at the plan in the world of the slot."""
        seen = self._staleness
        return (
            seen is not None
            and seen.slot == slot.opening.slot  # not while arms were still moving in the last one
            and seen.plan == self._executive.number
            and seen.world_sequence >= slot.opening.world_sequence
        )

    def _open(self, slot: Slot, now: float) -> None:
        snapshot, before = self._slots.snapshot, self._slots.before
        assert snapshot is not None
        if before is not None:
            self._count("unknown_results", len(before.acting))
        early = self._slots.open(slot)
        self._note(slot.opening, "opened")
        view = WorldView(self._scenario, snapshot.world)

        def watch(state: ArmsState, remaining: Plan) -> bool:
            return self._staleness is not None and self._has_watched(slot) and bool(self._staleness.stale)

        self._carry_out(self._executive.on_opening(slot.opening.slot, now, view, snapshot.arms, watch))
        self._hear(early)

    def _say_untold(self, slot: Slot) -> None:
        """The slot was decided without a word from here: arms that go on by themselves must hear that somebody is."""
        if self._states is None or slot.opening.episode != self._slots.episode or self._stands_back():
            return
        self._count("slots_untold")
        self._tell(slot, self._executive.untold(slot.opening.slot))

    def _tell(self, slot: Slot, told: SlotPlan) -> None:
        message = state_to_message(told)
        message.twin_epoch = slot.opening.epoch
        assert self._states is not None
        self._publish(self._states, message, slot.opening.slot)

    def _release(self, slot: Slot) -> None:
        self._released = True
        told = self._executive.release()
        self._tell(slot, told)
        self._note(slot.opening, "released")
        if told.sound:
            self._trouble = ""
            self._say(DiagnosticStatus.OK, f"slot {told.slot}: plan {told.number}")
            return
        self._count("slots_without_plan")
        what = "the arms hold" if self._control is Control.PLANNED else "the arms act by themselves"
        if self._trouble:
            self._say(DiagnosticStatus.WARN, f"no plan, {what}: {self._trouble}")
        elif self._executive.planner.thinking:
            self._say(DiagnosticStatus.OK, f"a plan is being made, {what}")
        else:
            self._say(DiagnosticStatus.WARN, f"no plan, {what}: no call is left in this episode")

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            slot = self._executive.slot
            if isinstance(effect, Ask):
                self._ask(effect)
            elif isinstance(effect, Follow):
                self._publish(self._plans, plan_to_message(effect.epoch, effect.plan, effect.reason), slot)
            elif isinstance(effect, Called):
                record = effect.record
                if effect.number == 0 and record.source != "repair":
                    self._trouble = record.error
                self._count("repairs", int(record.source == "repair" and effect.number > 0))
                self._publish(self._calls, call_to_message(record, effect.number), slot)
            elif isinstance(effect, Detected):
                found = effect.detection
                self._publish(self._detections, detection_to_message(found, effect.number), slot)
                self.get_logger().info(f"{found.kind}: {found.reason}")

    def _publish(self, publisher: Publisher, message: Any, slot: int) -> None:
        self._sequences[type(message)] += 1
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = self._scenario.frame
        message.episode, message.slot = self._slots.episode, slot
        message.epoch, message.sequence = self.epoch, self._sequences[type(message)]
        publisher.publish(message)

    # -- the coordinator ----------------------------------------------------------------------------------------------

    def _ask(self, ask: Ask[ArmsState]) -> None:
        self._drop_requests()
        self._count("calls")
        self._at_model = [future for future in self._at_model if not future.done()]
        # The first call of an episode waits for the model: what keeps it busy is of the last one.
        if self._at_model and self._stand_in is not None and self._executive.planner.records:
            future = self._second.submit(self._plan_instead, self._stand_in, ask.request)
        else:
            future = self._worker.submit(self._think, ask.request)
            self._at_model.append(future)
        self._thinking[ask.number] = future
        future.add_done_callback(lambda _: self._answered.trigger())
        self.get_logger().info(f"call {ask.number}: {ask.request.reason}")

    def _drop_requests(self) -> None:
        """Nobody waits any more for what has not been begun; what has is dropped when it comes."""
        for number, future in list(self._thinking.items()):
            if future.cancel():
                del self._thinking[number]

    def _think(self, request: PlanRequest[ArmsState]) -> PlanAnswer:
        """In the worker."""
        began, coordinator = time.monotonic(), self._coordinator
        before = coordinator.use.fallbacks if isinstance(coordinator, ModelCoordinator) else 0
        try:
            answer = coordinator.plan(request)
            if isinstance(coordinator, ModelCoordinator) and coordinator.use.fallbacks > before and answer.plan:
                return replace(answer, error=STOOD_IN)
            return answer
        except Exception as error:  # whatever it is, the arms must hear that there is no plan
            self.get_logger().error(f"the coordinator failed: {error!r}")
            return PlanAnswer(None, "", time.monotonic() - began, error=f"{type(error).__name__}: {error}")

    def _plan_instead(self, search: SearchCoordinator[ArmsState], request: PlanRequest[ArmsState]) -> PlanAnswer:
        """In the second worker."""
        began = time.monotonic()
        try:
            answer = search.plan(request)
            return replace(answer, error=HANGS if answer.plan else answer.error)
        except Exception as error:  # as in _think
            self.get_logger().error(f"the search failed: {error!r}")
            return PlanAnswer(None, "", time.monotonic() - began, error=f"{type(error).__name__}: {error}")

    def _warm_up(self, model: LanguageModel, limit: float) -> str:
        """In the worker: wait until the model can write. Returns why it cannot."""
        domain = ArmsDomain(self._scenario)
        prompt = coordinator_prompt(domain, PlanRequest(domain.start(0)), self._chosen["variant"])
        until = time.monotonic() + limit
        while True:
            try:
                model.generate(prompt, max_tokens=1)
                return ""
            except ModelUnavailable as error:
                if time.monotonic() + RETRY > until or self._closing.wait(RETRY):
                    return str(error)
            except ModelError as error:
                return str(error)

    def _on_answered(self) -> None:
        if self._warming is not None and self._warming.done():
            failure = self._warming.result()
            self._warming = None
            if failure:
                self._say(DiagnosticStatus.WARN, f"no model yet: {failure}")
            self._join()
        for number, future in [(n, f) for n, f in self._thinking.items() if f.done()]:
            del self._thinking[number]
            if future.cancelled():
                continue
            if number != self._executive.open_request:
                self.refuse("late_answer", f"answer to request {number}, which nobody waits for any more")
                continue
            answer = future.result()
            self.get_logger().info(f"answer {number} after {answer.seconds:.2f} s: {answer.error or 'a plan'}")
            self._carry_out(self._executive.on_answer(number, answer, time.monotonic()))
        self._advance()

    # -- words --------------------------------------------------------------------------------------------------------

    def _count(self, what: str, more: int = 1) -> None:
        self._counts[what] += more
        self._values[what] = str(self._counts[what])

    def _say(self, level: bytes, text: str) -> None:
        use = {}
        if isinstance(self._coordinator, ModelCoordinator):
            counts = self._coordinator.use
            use = {"fallbacks": counts.fallbacks, "model_errors": counts.model_errors, "invalid": counts.invalid_share}
            if level == DiagnosticStatus.OK and counts.fallbacks:
                text += f"; the search has stood in for the model in {counts.fallbacks} of {counts.calls} calls"
        self.report(level, text, plan=self._executive.number, **use)

    def _note(self, opening: SlotOpening, what: str) -> None:
        if self._trace is not None:
            self._trace.write(f"{opening.episode} {opening.slot} {what} {time.monotonic_ns()}\n")


def _make_coordinator(
    domain: ArmsDomain, scenario: Scenario, values: dict[str, Any]
) -> tuple[Coordinator[ArmsState], LanguageModel | None]:
    """The coordinator that the parameters name, and its model if it has one."""
    name = values["coordinator"]
    search: SearchCoordinator[ArmsState] = SearchCoordinator(domain)
    if name == SEARCH:
        return search, None
    spec = scenario.models[name] if name in scenario.models else parse_model(name, PLAIN)
    if spec.backend == "heuristic":
        raise InvalidValue("coordinator", name, f"{SEARCH!r}, or BACKEND:NAME of a model that can write")
    if spec.backend == "transformers" and not (values["model_url"] or values["model_port_file"]):
        raise InvalidValue(
            "model_port_file", "", "the port file or model_url of a model server (ros2 run polyarm model_server)"
        )
    spec = spec.model_copy(update={"timeout": values["model_timeout"] or spec.timeout})
    model = open_model(spec, url=values["model_url"] or None, port_file=values["model_port_file"] or None)
    coordinator: ModelCoordinator[ArmsState] = ModelCoordinator(
        domain,
        model,
        variant=values["variant"],
        decoding=values["decoding"],
        fallback=search if values["fallback"] else None,
        name=spec.name or spec.backend,
    )
    return coordinator, model


def main() -> None:
    """Run the node."""
    run_node(CoordinatorNode)
