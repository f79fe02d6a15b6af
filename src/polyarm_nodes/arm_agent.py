"""Agent node of one arm: answers every slot opening with one intent report; the model thinks in a worker thread.

Under ``control`` planned or hybrid the head of the arm's chain answers where there is one. The coordinator says so in
the plan state of the slot, for which the agent waits a bounded time; without one the arm holds (planned) or its own
model decides (hybrid).
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import ActionResult, IntentReport, PlanState, SlotOpening, SlotVerdict, WorldState
from rclpy.publisher import Publisher

from polyarm_core.agents import Choice, DecidedBy, Deliberation
from polyarm_core.chains.terms import Action as ChainAction
from polyarm_core.constraints import STAY
from polyarm_core.control.chain_agent import ChainAgent
from polyarm_core.control.modes import UNPLANNED, Control
from polyarm_core.errors import InvalidValue, PolyarmError
from polyarm_core.llm.interface import LanguageModel, ModelUnavailable, Prompt, Scores
from polyarm_core.llm.registry import open_model
from polyarm_core.scenario import load_scenario, parse_model
from polyarm_core.slots import Snapshot
from polyarm_core.world import WorldView
from polyarm_nodes import qos, topics
from polyarm_nodes.convert import (
    DECIDED_BY,
    action_from_message,
    action_to_message,
    decision_from_message,
    declaration_to_message,
    snapshot_from_message,
)
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import ARM_AGENT, declare_parameters
from polyarm_nodes.plan_convert import HeardState, Vocabulary, prepare, state_from_message
from polyarm_nodes.validation import Malformed, check_message

DEADLINE_SHARE = 0.8  # of the slot's deadline, so that a fallback report still arrives in time
PLAN_SHARE = 0.7  # of the slot's deadline that its plan state may take
HYBRID_WAIT = 2.0  # s that it may take where the arm's own model is to decide without it
RETRY = 0.25  # s between two attempts to reach a model that is not there
WITHOUT_PLAN = {Control.PLANNED: "the arm stays", Control.HYBRID: "its own model decides"}
WARM_UP = 120.0  # s that a model may take to load before the arm joins without it
REMEMBERED = 8  # reports whose verdict may still come


@dataclass
class _Pending:
    """The slot that is being decided."""

    opening: SlotOpening
    received: float  # s, steady
    deliberation: Deliberation | None = None
    asked: float = 0.0  # s, steady; when the model was asked
    plan: int = 0  # number of the plan whose chain decides


class ArmAgentNode(PolyarmNode):
    """Observes, lets the arm's model score the legal actions, declares constraints, reports."""

    def __init__(self) -> None:
        super().__init__("arm_agent")
        self._pending: _Pending | None = None
        self._snapshot: Snapshot | None = None
        self._view: WorldView | None = None
        self._reported: dict[tuple[int, int, int], IntentReport] = {}  # by twin epoch, episode, slot; the newest few
        self._episode = 0
        self._sequence = 0
        self._plan: HeardState | None = None  # newest that was heard
        self._missed = False  # the last plan state that was waited for has not come, and none since
        self._asked: Future[Scores] | None = None
        self._warming: Future[Scores] | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._trace: IO[str] | None = None
        self._model: LanguageModel | None = None

    def configure(self) -> None:
        values = declare_parameters(self, ARM_AGENT)
        self._scenario = load_scenario(values["scenario"])
        arm = values["arm"] or self.get_namespace().rsplit("/", 1)[-1]
        self._control = Control(values["control"])
        self._plan_timeout = values["plan_timeout"]
        self._agent = ChainAgent(self._scenario, arm, self._control, values["stay_patience"])
        spec = self._scenario.models[self._scenario.arm(arm).model]
        if values["model"]:
            spec = parse_model(values["model"], spec)
        self._timeout = values["model_timeout"] or spec.timeout
        spec = spec.model_copy(update={"timeout": self._timeout})
        self._by = DecidedBy.HEURISTIC if spec.backend == "heuristic" else DecidedBy.MODEL
        if self._control is not Control.PLANNED:  # there the arm never decides by itself
            if spec.backend == "transformers" and not (values["model_url"] or values["model_port_file"]):
                raise InvalidValue(
                    "model_port_file",
                    "",
                    "the port file or model_url of a model server (ros2 run polyarm model_server)",
                )
            self._model = open_model(spec, url=values["model_url"] or None, port_file=values["model_port_file"] or None)
        if values["trace_file"]:
            self._trace = Path(values["trace_file"]).open("a", buffering=1, encoding="utf-8")
        cell = topics.parent_namespace(self.get_namespace())
        self._intents_topic = topics.cell_topic(cell, topics.INTENTS)
        self._reports: Publisher | None = None
        for kind, name, callback, profile in (
            (SlotOpening, topics.SLOT_OPENING, self._on_opening, qos.OPENINGS),
            (WorldState, topics.WORLD, self._on_world, qos.WORLD),
            (SlotVerdict, topics.VERDICTS, self._on_verdict, qos.VERDICTS),
            (ActionResult, topics.ACTION_RESULTS, self._on_result, qos.RESULTS),
        ):
            self.create_subscription(kind, topics.cell_topic(cell, name), callback, profile)
        if self._control is not Control.REACTIVE:
            self._vocabulary = Vocabulary(tuple(self._scenario.arms), {})
            prepare()
            self.create_subscription(
                PlanState, topics.cell_topic(cell, topics.PLAN_STATE), self._on_plan_state, qos.PLAN_STATE
            )
        self._scored = self.create_guard_condition(self._on_scored)
        self.create_steady_timer(0.1, self._on_tick)

    def activate(self) -> None:
        # A model that is still loading would cost the first slots; the arm joins the team once its model has read the
        # static part of the prompt, or when it has failed to for so long that the team must go on without it.
        if self._model is None or self._by is DecidedBy.HEURISTIC:
            self._join()
            return
        prompt = self._agent.own.prompt_for_warming_up()
        self._warming = self._worker.submit(self._ask, prompt, (str(STAY),), time.monotonic() + WARM_UP)
        self._warming.add_done_callback(lambda _: self._scored.trigger())

    def _join(self) -> None:
        self._reports = self.create_publisher(IntentReport, self._intents_topic, qos.REPORTS)
        self._deliberate()

    def close(self) -> None:
        self._worker.shutdown(wait=False, cancel_futures=True)
        if self._trace is not None:
            self._trace.close()

    # -- what arrives ---------------------------------------------------------------------------------------------

    def _on_world(self, message: WorldState) -> None:
        try:
            snapshot = snapshot_from_message(message, self._scenario)
        except Malformed as why:
            self.refuse("malformed", f"world state: {why}")
            return
        if snapshot.episode != self._episode:
            self._episode = snapshot.episode
            self._agent.reset()
        # Look before the slot opens: whoever waits for the slowest agent waits for all this.
        view = WorldView(self._scenario, snapshot.world)
        if self._view is None or view != self._view:
            view.legal(self._agent.arm)
            self._view = view
        self._snapshot = snapshot
        self._deliberate()

    def _on_opening(self, message: SlotOpening) -> None:
        if not self.active:
            return
        try:
            check_message(message)
        except Malformed as why:
            self.refuse("malformed", f"slot opening: {why}")
            return
        if self._agent.arm not in message.expected:
            return
        if (message.epoch, message.episode, message.slot) in self._reported:
            self.refuse("stale", f"slot {message.slot} of twin {message.epoch} was answered already")
            return
        self._pending = _Pending(message, time.monotonic())
        self._deliberate()

    def _on_verdict(self, message: SlotVerdict) -> None:
        received = time.monotonic_ns()
        # Topics are not ordered among each other: the next slot may have been answered before this verdict arrives.
        reported = self._reported.get((message.epoch, message.episode, message.slot))
        if reported is None:
            return
        try:
            check_message(message)
            for verdict in message.verdicts:
                if verdict.arm == self._agent.arm and verdict.action == reported.action:
                    decision = decision_from_message(verdict)
                    if reported.decided_by != IntentReport.DECIDED_BY_CHAIN:  # a vetoed head is simply tried again
                        self._agent.own.on_verdict(action_from_message(verdict.action), decision.value)
        except Malformed as why:
            self.refuse("malformed", f"slot verdict: {why}")
            return
        if self._trace is not None:
            self._trace.write(f"{message.episode} {message.slot} verdict {received}\n")

    def _on_result(self, message: ActionResult) -> None:
        if message.arm != self._agent.arm or message.episode != self._episode:
            return
        if message.outcome == ActionResult.OUTCOME_FAILED:
            try:
                check_message(message)
                action = action_from_message(message.action)
                if not self._was_head(message):  # of a head, the coordinator keeps count
                    self._agent.own.on_failure(action)
            except Malformed as why:
                self.refuse("malformed", f"action result: {why}")
                return
            self.report(DiagnosticStatus.WARN, f"action failed: {message.reason}: {message.text}")

    def _was_head(self, message: ActionResult) -> bool:
        return any(
            (episode, slot) == (message.episode, message.slot) and report.decided_by == IntentReport.DECIDED_BY_CHAIN
            for (_, episode, slot), report in self._reported.items()
        )

    def _on_plan_state(self, message: PlanState) -> None:
        try:
            heard = state_from_message(message, self._vocabulary, self._scenario)
        except Malformed as why:
            self.refuse("malformed", f"plan state: {why}")
            return
        known = self._plan
        if known is not None and (heard.epoch, heard.sequence) <= (known.epoch, known.sequence):
            self.refuse("stale", f"plan state {heard.sequence} of coordinator {heard.epoch}: a newer one is here")
            return
        self._plan, self._missed = heard, False
        self._deliberate()

    # -- deciding -------------------------------------------------------------------------------------------------

    def _deliberate(self) -> None:
        """Start to decide the open slot as soon as the world that it is based on is here, and its plan state."""
        pending = self._pending
        if pending is None or pending.deliberation is not None or not self.active or self._reports is None:
            return
        snapshot = self._snapshot
        if snapshot is None:
            return
        opening = pending.opening
        if snapshot.episode != opening.episode or snapshot.sequence < opening.world_sequence:
            return
        decision = self._decide(pending)
        if decision is None:
            return
        if isinstance(decision, Choice):
            self._send(decision, None)
            return
        deliberation = pending.deliberation = decision
        choice = self._agent.own.only_choice(deliberation)
        if choice is not None:
            self._send(choice, None)
            return
        pending.asked = time.monotonic()
        if self._by is DecidedBy.HEURISTIC:  # answers at once: a worker would only add two thread switches
            scores = self._ask(deliberation.prompt, deliberation.texts)
            self._send(self._agent.own.settle(deliberation, scores.mean_logprobs, self._by), scores)
            return
        # A worker that is stuck in an earlier question takes this one next, or the deadline passes: falling back at
        # once would let a hanging model burn slot after slot.
        if self._asked is not None:
            self._asked.cancel()
        until = pending.received + self._limit(opening)
        self._asked = self._worker.submit(self._ask, deliberation.prompt, deliberation.texts, until)
        self._asked.add_done_callback(lambda _: self._scored.trigger())

    def _decide(self, pending: _Pending) -> Choice | Deliberation | None:
        """What the slot's plan state makes of the slot; None while that is waited for."""
        assert self._view is not None
        opening, plan = pending.opening, self._plan
        if self._control is Control.REACTIVE:
            return self._agent.decide(self._view, UNPLANNED)
        if plan is None or (plan.episode, plan.slot, plan.twin_epoch) != (opening.episode, opening.slot, opening.epoch):
            limit = self._plan_limit(opening)
            if time.monotonic() - pending.received < limit:
                return None  # the next plan state or tick looks again
            waited = f"within {limit:.1f} s" if limit else "since an earlier slot"
            self.report(DiagnosticStatus.WARN, f"no plan state {waited}: {WITHOUT_PLAN[self._control]}")
            # Who has missed a slot has no precedence any more: a coordinator of an older epoch (a clock that was set
            # back, or one that is left when a newer has died) is heard again.
            self._plan, self._missed = None, True
            return self._agent.decide(self._view, UNPLANNED)
        try:
            decision = self._agent.decide(self._view, plan.heads[self._agent.arm], _named(plan))
        except PolyarmError as why:  # an action that the arm does not have at all
            self.refuse("malformed", f"plan state: {why}")
            return self._agent.decide(self._view, UNPLANNED)
        if isinstance(decision, Choice):
            if decision.decided_by is DecidedBy.CHAIN:
                pending.plan = plan.number
            else:
                self.report(DiagnosticStatus.WARN, f"no plan is followed: {WITHOUT_PLAN[self._control]}")
        return decision

    def _plan_limit(self, opening: SlotOpening) -> float:
        """How long the slot waits for its plan state, s.

        Where the arm's own model can decide, a coordinator that is gone costs one wait, not one in each slot.
        """
        if self._missed and self._control is Control.HYBRID:
            return 0.0
        bound = self._plan_timeout or (HYBRID_WAIT if self._control is Control.HYBRID else opening.deadline)
        return float(min(bound, PLAN_SHARE * opening.deadline))

    def _ask(self, prompt: Prompt, texts: tuple[str, ...], until: float = 0.0) -> Scores:
        """Ask the model; one that is not there (starting, restarting) is asked again until then (s, steady)."""
        assert self._model is not None
        while True:
            try:
                return self._model.score(prompt, texts)
            except ModelUnavailable:
                if time.monotonic() + RETRY > until:
                    raise
                time.sleep(RETRY)

    def _on_scored(self) -> None:
        if self._reports is None:
            if self._warming is not None and self._warming.done():
                failure = self._warming.exception()
                if failure is not None:
                    self.report(DiagnosticStatus.WARN, f"no model yet: {failure}")
                self._warming = None
                self._join()
            return
        pending, asked = self._pending, self._asked
        if pending is None or pending.deliberation is None or asked is None or not asked.done() or not pending.asked:
            return
        self._asked = None
        if asked.cancelled():
            return
        try:
            scores = asked.result()
            choice = self._agent.own.settle(pending.deliberation, scores.mean_logprobs, self._by)
        except PolyarmError as why:
            self.report(DiagnosticStatus.WARN, f"model failed, the arm stays: {why}")
            self._send(self._agent.own.fall_back(pending.deliberation), None)
            return
        self._send(choice, scores)

    def _on_tick(self) -> None:
        pending = self._pending
        if pending is None:
            return
        if pending.deliberation is None:
            if self._control is not Control.REACTIVE:
                self._deliberate()  # it may wait for a plan state that does not come
            return
        limit = self._limit(pending.opening)
        if time.monotonic() - pending.received > limit:
            self.report(DiagnosticStatus.WARN, f"no answer of the model within {limit:.1f} s, the arm stays")
            self._send(self._agent.own.fall_back(pending.deliberation), None)

    def _limit(self, opening: SlotOpening) -> float:
        return float(min(self._timeout, DEADLINE_SHARE * opening.deadline))

    def _send(self, choice: Choice, scores: Scores | None) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        now = time.monotonic()
        self._sequence += 1
        opening = pending.opening
        message = IntentReport(
            arm=self._agent.arm,
            episode=opening.episode,
            slot=opening.slot,
            twin_epoch=opening.epoch,
            epoch=self.epoch,
            sequence=self._sequence,
            action=action_to_message(choice.action),
            declaration=declaration_to_message(choice.declaration),
            decided_by=DECIDED_BY[choice.decided_by],
            decision_time=now - pending.received,
            model_time=now - pending.asked if pending.asked else 0.0,
            prompt_tokens=scores.prompt_tokens if scores is not None else 0,
            score=float(choice.score),
            plan=pending.plan,
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._reported[opening.epoch, opening.episode, opening.slot] = message
        while len(self._reported) > REMEMBERED:
            del self._reported[next(iter(self._reported))]
        assert self._reports is not None
        self._reports.publish(message)
        if self._trace is not None:
            model_ns = int(message.model_time * 1e9)
            self._trace.write(f"{opening.episode} {opening.slot} reported {time.monotonic_ns()} {model_ns}\n")
        if choice.decided_by is not DecidedBy.FALLBACK:
            self.report(DiagnosticStatus.OK, f"slot {opening.slot}: {choice.action}")


def _named(plan: HeardState) -> frozenset[str]:
    """Entities and placements of which the rest of a plan that is followed makes use."""
    if not plan.sound:
        return frozenset()
    steps = (step for chain in plan.remaining.values() for step in chain)
    return frozenset(name for step in steps if isinstance(step, ChainAction) for name in step.arguments)


def main() -> None:
    """Run the node."""
    run_node(ArmAgentNode, niceness=5)
