"""Episode monitor node: drives the seeds of a run through the graph and publishes what each episode came to.

It only translates: what an episode comes to and when the next one begins is decided by ``polyarm_core.episode``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import (
    ActionResult,
    ArmState,
    Detection,
    Disturbance,
    EpisodeResult,
    IntentReport,
    Plan,
    PlanCall,
    PlanState,
    ReplanRequest,
    SlotOpening,
    SlotVerdict,
    WorldState,
)
from polyarm.srv import ResetWorld
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.serialization import deserialize_message
from rclpy.task import Future

from polyarm_core import episode, episode_log
from polyarm_core.constraints import STAY_VERB
from polyarm_core.episode import (
    Answer,
    Done,
    EpisodeSeries,
    EpisodeSummary,
    Event,
    Finished,
    Limits,
    Opening,
    Plant,
    Report,
    Reset,
    Result,
    Verdict,
)
from polyarm_core.errors import InvalidValue
from polyarm_core.scenario import load_scenario
from polyarm_core.seeds import parse_seeds
from polyarm_nodes import qos, topics
from polyarm_nodes.convert import DECIDED_BY, DECISIONS, RULES
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import CONTROL, DISTURB, SCENARIO, Parameter, declare_parameters
from polyarm_nodes.validation import Malformed, check_message

PARAMETERS = {
    "scenario": SCENARIO,
    "seeds": Parameter("0", "seeds of the episodes, one after another, such as 0-19 or 0,3,5"),
    "agents": Parameter(0, "agents that must be there before a reset; 0 = one for each arm of the scenario", 0, 128),
    "listeners": Parameter(0, "subscribers of the results, such as a recorder, to wait for before a reset", 0, 100),
    "control": CONTROL,
    "disturb": DISTURB,
    "detector": Parameter(False, "wait for a detector of stale plans before a reset"),
    "out": Parameter(".", "folder in which episodes.jsonl is written; seeds that it holds already are skipped"),
    "slot_limit": Parameter(0, "slots that an episode may take; 0 = the scenario's", 0, 100_000),
    "stuck_after": Parameter(10, "slots without an admitted action while no arm moves, that end it", 1, 100_000),
    "time_limit": Parameter(900.0, "s (steady clock) that an episode may take", 1.0, 86_400.0),
    "settle_limit": Parameter(20.0, "s (steady clock) that the arms may take to come to rest", 0.1, 600.0),
    "start_limit": Parameter(180.0, "s (steady clock) that the graph may take to be complete", 1.0, 3600.0),
    "reset_deadline": Parameter(30.0, "s (steady clock) within which a reset must be answered", 0.1, 600.0),
    "reset_attempts": Parameter(3, "how often a reset is tried for one seed", 1, 100),
}
PERIOD = 0.05  # s between two looks at the state of the series
CONNECTION_GRACE = 0.5  # s that the graph must have been complete before the first reset
MAX_AGE = 1.0  # s that a message may have waited for the executor
HANDOVER = 1.0  # s that the last result may take to reach its subscribers

MessageInfo = Mapping[str, Any]  # what rclpy hands to a callback of two arguments

_DECISION_NAMES = {number: key.value for key, number in DECISIONS.items()}
_RULE_NAMES = {number: key.value for key, number in RULES.items()}
_DECIDED_NAMES = {number: key.value for key, number in DECIDED_BY.items()}


def result_message(summary: EpisodeSummary) -> EpisodeResult:
    """Core summary -> message, without the time stamp."""
    message = EpisodeResult()
    for name in message.get_fields_and_field_types():
        if name != "header":
            setattr(message, name, getattr(summary, name))
    return message


class EpisodeMonitor(PolyarmNode):
    """Resets the world for each seed, watches the episode, publishes its result and ends after the last."""

    def __init__(self) -> None:
        super().__init__("episode_monitor")
        self.finished = False
        self._series: EpisodeSeries | None = None
        self._log: Path | None = None

    def configure(self) -> None:
        """Read the seeds that are left and connect to the cell."""
        # A launch argument such as seeds:=3 arrives as an integer, seeds:=[0, 3] as an array.
        given = self.declare_parameter("seeds", PARAMETERS["seeds"].default, _dynamic(PARAMETERS["seeds"])).value
        seeds = _seeds(given)
        values = declare_parameters(self, {name: item for name, item in PARAMETERS.items() if name != "seeds"})
        scenario = load_scenario(values["scenario"])
        self._scenario = scenario.name
        self._log = Path(values["out"]) / episode_log.FILE_NAME
        before = [summary.seed for summary in episode_log.read(self._log)]
        self._seeds = [seed for seed in seeds if seed not in before]
        if before:
            self.get_logger().info(f"{len(before)} episodes are in {self._log} already")
        self._limits = replace(
            Limits(),
            slots=values["slot_limit"] or scenario.slots.limit,
            stuck=values["stuck_after"],
            time=values["time_limit"],
            settle=values["settle_limit"],
            start=values["start_limit"],
            reset=values["reset_deadline"],
            resets=values["reset_attempts"],
        )
        self._listeners = values["listeners"]
        self._results = self.create_publisher(EpisodeResult, topics.EPISODE_RESULT, qos.EPISODE)
        self._reset = self.create_client(ResetWorld, topics.RESET_WORLD)
        self._sources = [  # with the number of publishers that make the graph complete
            (self.create_subscription(WorldState, topics.WORLD, self._on_world, qos.every_sample(qos.WORLD)), 1),
            (
                self.create_subscription(
                    SlotOpening, topics.SLOT_OPENING, self._on_opening, qos.every_sample(qos.OPENINGS)
                ),
                1,
            ),
            # Raw, because the length on the wire is one of the figures.
            (
                self.create_subscription(IntentReport, topics.INTENTS, self._on_report, qos.REPORTS, raw=True),
                values["agents"] or len(scenario.arms),
            ),
            (
                self.create_subscription(
                    SlotVerdict, topics.VERDICTS, self._on_verdict, qos.every_sample(qos.kept(qos.VERDICTS))
                ),
                1,
            ),
            (self.create_subscription(ActionResult, topics.ACTION_RESULTS, self._on_result, qos.RESULTS), 1),
        ]
        if values["disturb"] != "none":
            self.create_subscription(Disturbance, topics.DISTURBANCES, self._on_disturbance, qos.DISTURBANCES)
        self._awaited: list[str] = []  # topics of which one makes the graph complete, beside the sources
        if values["control"] != "reactive":
            self._watch_plans(values["detector"])
        self._complete_since: float | None = None
        # Steady time: deadlines hold when the simulated clock stands still or jumps back.
        self.create_timer(PERIOD, self._step, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._control, self._disturb = values["control"], values["disturb"]

    def _watch_plans(self, detector: bool) -> None:
        """Subscribe to what the control by plans says; lengths on the wire are figures here, too."""
        self._awaited = [topics.PLAN_STATE, *([topics.STALENESS] if detector else [])]
        for kind, topic, profile in (
            (Plan, topics.PLAN, qos.PLAN),
            (PlanState, topics.PLAN_STATE, qos.PLAN_STATE),
            (ReplanRequest, topics.REPLAN_REQUESTS, qos.REPLAN_REQUESTS),
        ):
            self.create_subscription(kind, topic, self._on_traffic(kind, topic), qos.every_sample(profile), raw=True)
        self.create_subscription(PlanCall, topics.PLAN_CALLS, self._on_call, qos.PLAN_CALLS)
        self.create_subscription(Detection, topics.DETECTIONS, self._on_detection, qos.DETECTIONS)

    def activate(self) -> None:
        """Begin with the first seed."""
        if self._series is None:
            self._series = EpisodeSeries(
                self._scenario, self._seeds, self._limits, time.monotonic(), self._control, self._disturb
            )

    def close(self) -> None:
        """An episode that still runs is written down as aborted."""
        if self._series is not None and (summary := self._series.abort(time.monotonic())) is not None:
            self._finish(summary)
        if self.context is not None and self.context.ok() and hasattr(self, "_results"):
            self._results.wait_for_all_acked(Duration(seconds=HANDOVER))

    # -- events ---------------------------------------------------------------------------------------------------

    def _event(self, episode: int, event: Event) -> None:
        if self._series is not None and self.active:
            self._series.event(episode, event)

    def _valid(self, kind: str, message: Any) -> bool:
        try:
            check_message(message)
        except Malformed as why:
            self.refuse("malformed", f"{kind}: {why}")
            return False
        return True

    def _on_world(self, message: WorldState, info: MessageInfo) -> None:
        if self._valid("world state", message):
            busy = any(arm.status == ArmState.STATUS_MOVING for arm in message.arms)
            self._event(
                message.episode,
                Plant(
                    message.epoch,
                    message.seed,
                    _received(info),
                    message.sim_time,
                    message.success,
                    busy,
                    message.arm_contacts,
                ),
            )

    def _on_opening(self, message: SlotOpening, info: MessageInfo) -> None:
        if self._valid("slot opening", message):
            self._event(message.episode, Opening(message.slot, _received(info)))

    def _on_report(self, data: bytes, info: MessageInfo) -> None:
        try:
            message = deserialize_message(data, IntentReport)
        except Exception as why:  # rclpy raises RuntimeError and UnicodeDecodeError, by what is wrong with the bytes
            self.refuse("malformed", f"intent report: {why}")
            return
        if self._valid("intent report", message):
            self._event(
                message.episode,
                Report(
                    arm=message.arm,
                    epoch=message.epoch,
                    sequence=message.sequence,
                    slot=message.slot,
                    at=_received(info),
                    size=len(data),
                    decided_by=_DECIDED_NAMES.get(message.decided_by, ""),
                    decision_time=message.decision_time,
                    model_time=message.model_time,
                    prompt_tokens=message.prompt_tokens,
                ),
            )

    def _on_verdict(self, message: SlotVerdict, info: MessageInfo) -> None:
        if self._valid("slot verdict", message):
            answers = tuple(
                Answer(
                    item.arm,
                    _DECISION_NAMES.get(item.decision, ""),
                    _RULE_NAMES.get(item.rule, ""),
                    item.action.verb != STAY_VERB,
                )
                for item in message.verdicts
            )
            self._event(message.episode, Verdict(message.epoch, message.slot, _received(info), answers))

    def _on_result(self, message: ActionResult) -> None:
        if self._valid("action result", message):
            failed = message.outcome == ActionResult.OUTCOME_FAILED
            self._event(message.episode, Result(message.epoch, message.sequence, failed, message.sim_time))

    def _on_traffic(self, kind: type, topic: str) -> Callable[[bytes, MessageInfo], None]:
        def heard(data: bytes, info: MessageInfo) -> None:
            del info
            try:
                message = deserialize_message(data, kind)
            except Exception as why:  # see _on_report
                self.refuse("malformed", f"{topic}: {why}")
                return
            if self._valid(topic, message):
                self._event(message.episode, episode.PlanTraffic(topic, message.epoch, message.sequence, len(data)))

        return heard

    def _on_call(self, message: PlanCall) -> None:
        if self._valid("plan call", message):
            repair = message.source == PlanCall.SOURCE_REPAIR
            tokens = message.prompt_tokens + message.tokens
            self._event(
                message.episode,
                episode.PlanCall(message.epoch, message.sequence, repair, message.number > 0, tokens),
            )

    def _on_detection(self, message: Detection) -> None:
        if self._valid("detection", message):
            self._event(message.episode, episode.Detection(message.epoch, message.sequence))

    def _on_disturbance(self, message: Disturbance) -> None:
        if self._valid("disturbance", message):
            self._event(message.episode, episode.Disturbance(message.epoch, message.sequence))

    # -- commands -------------------------------------------------------------------------------------------------

    def _ready(self, at: float) -> bool:
        """Whether everybody has been connected for a moment: their end of a connection is ready a little after ours."""
        complete = (
            self._reset.service_is_ready()
            and self._results.get_subscription_count() >= self._listeners
            and all(source.get_publisher_count() >= count for source, count in self._sources)
            and all(self.count_publishers(topic) for topic in self._awaited)
        )
        if not complete:
            self._complete_since = None
        elif self._complete_since is None:
            self._complete_since = at
        return self._complete_since is not None and at - self._complete_since >= CONNECTION_GRACE

    def _step(self) -> None:
        if self._series is None or not self.active:
            return
        at = time.monotonic()
        for command in self._series.step(at, self._ready(at)):
            if isinstance(command, Reset):
                self.report(DiagnosticStatus.OK, f"resetting the world to seed {command.seed}")
                self._call_reset(command)
            elif isinstance(command, Finished):
                self._finish(command.summary)
            elif isinstance(command, Done):
                self.finished = True

    def _call_reset(self, command: Reset) -> None:
        future = self._reset.call_async(ResetWorld.Request(seed=command.seed))

        def answered(done: Future) -> None:
            if self._series is None or done.cancelled():
                return
            if (error := done.exception()) is not None:
                self._series.reset_answered(command.request, False, 0, str(error), time.monotonic())
                return
            answer = done.result()
            self._series.reset_answered(
                command.request, answer.success, answer.episode, answer.message, time.monotonic()
            )

        future.add_done_callback(answered)

    def _finish(self, summary: EpisodeSummary) -> None:
        assert self._log is not None
        episode_log.append(self._log, summary)
        if self.context is None or not self.context.ok():
            return  # told to stop: nobody listens any more, but the line is written
        message = result_message(summary)
        message.header.stamp = self.get_clock().now().to_msg()
        self._results.publish(message)
        end = "success" if summary.success else f"{summary.reason} {summary.text}".strip()
        self.get_logger().info(
            f"seed {summary.seed}: {end} after {summary.slots} slots, {summary.vetoes} vetoes, "
            f"{summary.arm_contacts} contacts between arms"
        )
        level = DiagnosticStatus.OK if summary.success else DiagnosticStatus.WARN
        self.report(level, f"seed {summary.seed}: {end}", last_seed=summary.seed)


def _received(info: MessageInfo) -> float:
    """Steady time at which a message came in, s.

    The middleware stamps the reception, which the executor may get to some milliseconds later; the stamp is in system
    time, so its age is taken, and bounded lest a jump of that clock makes a latency of it.
    """
    age = (time.time_ns() - info["received_timestamp"]) * 1e-9
    return time.monotonic() - min(max(age, 0.0), MAX_AGE)


def _dynamic(parameter: Parameter) -> Any:
    from rcl_interfaces.msg import ParameterDescriptor

    return ParameterDescriptor(description=parameter.meaning, dynamic_typing=True)


def _seeds(value: Any) -> list[int]:
    if isinstance(value, str):
        return parse_seeds(value)
    try:
        return parse_seeds(",".join(str(int(seed)) for seed in ([value] if isinstance(value, int) else value)))
    except (TypeError, ValueError):
        raise InvalidValue("seeds", value, "seeds such as 0-19 or 0,3,5 or a list of integers") from None


def main() -> None:
    """Run the node."""
    run_node(EpisodeMonitor, niceness=5)
