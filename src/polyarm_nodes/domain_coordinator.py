"""Coordinator of a domain that moves in frames: plans, corrects, and says in every frame where the plan stands.

What is decided is `coordinator.episode.PlanningRun`'s, as without ROS. A worker thread takes one frame after another,
so that the node answers while a model thinks. Where the method has a detector, a frame begins with a plan state
without heads, for it to judge; then comes the one with heads, which the agents follow.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import ArmHead, Detection, EpisodeResult, FrameState, Plan, PlanCall, PlanState, Staleness
from rclpy.publisher import Publisher
from rclpy.serialization import serialize_message

from polyarm_core.chains import terms
from polyarm_core.coordinator.episode import PlanningRun
from polyarm_core.coordinator.trial import chosen_method, open_world, percentile, planning_runs, uses_detector
from polyarm_nodes import qos, topics
from polyarm_nodes.domain_frames import Frame, Readers, frame_from_message, heads
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import DOMAIN, LISTENERS, METHOD, Parameter, declare_parameters
from polyarm_nodes.plan_convert import call_to_message, chains_to_messages, detection_to_message, plan_to_message
from polyarm_nodes.validation import Malformed, check_message

PARAMETERS = {
    "domain": DOMAIN,
    "method": METHOD,
    "listeners": LISTENERS,
    "detector_timeout": Parameter(2.0, "s that a frame waits for the detector of stale plans", 0.0, 600.0),
}
RETRY = 0.1  # s


@dataclass
class _Play:
    """The episode that is being planned."""

    run: PlanningRun[Any]
    frame: Frame
    number: int = 0  # of the plan that is followed, 0 = none yet
    calls: int = 0  # of which has been told
    detections: int = 0
    disturbances: int = 0
    plan_bytes: int = 0
    durations: list[float] = field(default_factory=list)  # s, from a state to what everybody does in it
    begun: float = field(default_factory=time.monotonic)


class DomainCoordinator(PolyarmNode):
    """The one executor of the team's plan, and `StalenessDetector` for it: what it observes, another node judges."""

    threshold = 0.5

    def __init__(self) -> None:
        super().__init__("coordinator")
        self.crashed = False
        self.finished = False
        self._play: _Play | None = None
        self._heard: tuple[int, int, int] = (0, 0, -1)  # key of the newest frame
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._judged: queue.SimpleQueue[Staleness] = queue.SimpleQueue()
        self._detector_is_silent = False
        self._sequences: dict[type, int] = {}
        self._worker = threading.Thread(target=self._work, name="coordinator", daemon=True)

    def configure(self) -> None:
        """Open the domain, whatever plans, and the topics."""
        values = declare_parameters(self, PARAMETERS)
        self._domain = open_world(values["domain"])
        method = chosen_method(values["method"])
        self._make_run = planning_runs(method, self._domain)
        self._uses_detector = uses_detector(method)
        self._timeout = values["detector_timeout"]
        self._topics: dict[type, Publisher] = {
            kind: self.create_publisher(kind, topic, profile)
            for kind, topic, profile in (
                (Plan, topics.PLAN, qos.PLAN),
                (PlanState, topics.PLAN_STATE, qos.PLAN_STATE),
                (PlanCall, topics.PLAN_CALLS, qos.PLAN_CALLS),
                (Detection, topics.DETECTIONS, qos.DETECTIONS),
                (EpisodeResult, topics.EPISODE_RESULT, qos.EPISODE),
            )
        }
        # The team reads plan states only, and the newest of these waits for whoever comes late.
        self._readers = Readers(dict.fromkeys(self._topics.values(), values["listeners"]))
        if self._uses_detector:
            self.create_subscription(Staleness, topics.STALENESS, self._on_staleness, qos.STALENESS)
        self.create_subscription(FrameState, topics.FRAME_STATE, self._on_frame, qos.every_sample(qos.FRAME_STATE))

    def activate(self) -> None:
        """Begin to take frames."""
        if not self._worker.is_alive():
            self._worker.start()

    def close(self) -> None:
        """End the worker; one that waits for a model is not waited for."""
        self._frames.put(None)
        if self._worker.is_alive():
            self._worker.join(timeout=1.0)

    # -- what arrives ---------------------------------------------------------------------------------------------

    def _on_frame(self, message: FrameState) -> None:
        try:
            frame = frame_from_message(message, self._domain)
        except Malformed as why:
            self.refuse("malformed", f"frame state: {why}")
            return
        if frame.key <= self._heard:
            self.refuse("stale", f"frame {frame.frame} of episode {frame.episode} is not newer than the last")
            return
        self._heard = frame.key
        self._frames.put(frame)

    def _on_staleness(self, message: Staleness) -> None:
        try:
            check_message(message)
        except Malformed as why:
            self.refuse("malformed", f"staleness: {why}")
            return
        self._judged.put(message)

    # -- a frame, in the worker -----------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (frame := self._frames.get()) is not None:
                while not self._readers.there():
                    time.sleep(RETRY)
                self._take(frame)
        except Exception:
            self.get_logger().error(traceback.format_exc())
            self.crashed = self.finished = True  # a fresh process goes on with the newest frame

    def _take(self, frame: Frame) -> None:
        begin = time.monotonic()
        play = self._play
        if play is not None and play.frame.key == (*frame.key[:2], frame.frame - 1):
            play.run.learn(play.frame.state, frame.controls, frame.outcome)
            play.frame = frame
        else:
            detector = self if self._uses_detector else None
            play = self._play = _Play(self._make_run(detector, frame.frame), frame)
        play.disturbances += len(frame.happened)
        if frame.ended:
            self._tell_news(play)
            self._tell_end(play)
            self._play = None
            return
        play.run.decide(frame.state, bool(frame.happened))
        self._tell_news(play)
        intents = play.run.executor.intents(frame.state)
        self._tell_state(play, heads(play.run.executor, intents, play.number > 0), play.run.executor.remaining())
        play.durations.append(time.monotonic() - begin)
        text = f"frame {frame.frame} of episode {frame.episode}, plan {play.number}"
        if self._detector_is_silent:
            self.report(DiagnosticStatus.WARN, f"{text}; nothing of the detector in {self._timeout} s")
        else:
            self.report(DiagnosticStatus.OK, text)

    def reset(self, plan: terms.Plan) -> None:
        """A new plan: its number tells the detector so."""

    def observe(self, state: Any, remaining: terms.Plan) -> float:
        """What the detector says of this frame: 1 = stale. 0 also where it says nothing in time."""
        play = self._play
        assert play is not None
        self._tell_state(play, (), remaining)
        if self._detector_is_silent and self._judged.empty():
            return 0.0  # it is waited for again once it is heard again
        until = time.monotonic() + self._timeout
        frame = play.frame
        while True:
            try:
                message = self._judged.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                self._detector_is_silent = True
                return 0.0
            self._detector_is_silent = False
            about = (message.episode, message.slot, message.world_sequence, message.plan)
            if about == (frame.episode, frame.frame, frame.sequence, play.number):
                return float(message.stale)
            self.refusals.add("stale", f"staleness of frame {message.slot} of episode {message.episode}")

    # -- what is said ---------------------------------------------------------------------------------------------

    def _tell(self, message: Any, frame: Frame) -> None:
        kind = type(message)
        message.episode, message.epoch = frame.episode, self.epoch
        message.sequence = self._sequences[kind] = self._sequences.get(kind, 0) + 1
        message.slot = frame.frame
        message.header.stamp = self.get_clock().now().to_msg()
        if kind in (Plan, PlanState):
            assert self._play is not None
            self._play.plan_bytes += len(serialize_message(message))
        self._topics[kind].publish(message)

    def _tell_news(self, play: _Play) -> None:
        """What has been found and what has been asked for since the last time, and the plan that came of it."""
        run, frame = play.run, play.frame
        for detection in run.detections[play.detections :]:
            self._tell(detection_to_message(detection, play.number), frame)
        play.detections = len(run.detections)
        for record in run.plans[play.calls :]:
            number = 0 if record.plan is None else play.number + 1
            self._tell(call_to_message(record, number), frame)
            if record.plan is not None:
                play.number = number
                self._tell(plan_to_message(number, record.plan, record.reason), frame)
        play.calls = len(run.plans)

    def _tell_state(self, play: _Play, told: Sequence[ArmHead], remaining: terms.Plan) -> None:
        message = PlanState(
            twin_epoch=play.frame.epoch,  # nothing but the plant opens frames
            plan=play.number,
            sound=bool(told) and play.number > 0,
            heads=list(told),
            remaining=chains_to_messages(remaining),
        )
        self._tell(message, play.frame)

    def _tell_end(self, play: _Play) -> None:
        run, frame = play.run, play.frame
        message = EpisodeResult(
            scenario=self._domain.name,
            episode=frame.episode,
            seed=frame.seed,
            success=frame.success,
            reason="" if frame.success else "slots",
            slots=frame.frame,
            prompt_tokens=sum(record.prompt_tokens for record in run.plans),
            control="planned",
            plan_calls=sum(record.source == "coordinator" for record in run.plans),
            plan_repairs=sum(record.source == "repair" and record.plan is not None for record in run.plans),
            plan_tokens=sum(record.prompt_tokens + record.tokens for record in run.plans),
            plan_bytes=play.plan_bytes,
            detections=len(run.detections),
            disturbances=play.disturbances,
            decision_p50=percentile(play.durations, 0.5),
            decision_p99=percentile(play.durations, 0.99),
            wall_time=time.monotonic() - play.begun,
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._topics[EpisodeResult].publish(message)


def main() -> None:
    """Run the node."""
    run_node(DomainCoordinator, lambda node: int(getattr(node, "crashed", False)))
