"""Detector of stale plans in a domain that moves in frames: whether the rest of the plan still holds in this frame.

It judges the plan state with which the coordinator opens a frame, the one without heads, on the state of that frame.
"""

from __future__ import annotations

import time

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import FrameState, PlanState, Staleness

from polyarm_core.chains.terms import Plan
from polyarm_core.coordinator.trial import chosen_method, open_trial_detector, open_world
from polyarm_nodes import qos, topics
from polyarm_nodes.domain_frames import Frame, Readers, frame_from_message
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import DOMAIN, LISTENERS, METHOD, declare_parameters
from polyarm_nodes.plan_convert import Vocabulary, plan_from_chains
from polyarm_nodes.validation import Malformed, check_message

PARAMETERS = {"domain": DOMAIN, "method": METHOD, "listeners": LISTENERS}
RETRY = 0.1  # s


class DomainPsd(PolyarmNode):
    """One detector an episode."""

    def __init__(self) -> None:
        super().__init__("psd")
        self._frame: Frame | None = None
        self._asked: tuple[PlanState, Plan] | None = None
        self._episode: tuple[int, int] = (0, 0)  # of which the detector has seen states
        self._plan: tuple[int, int] = (0, 0)  # epoch of the coordinator and number of the plan that was judged last
        self._sequence = 0

    def configure(self) -> None:
        """Open domain, detector and topics."""
        values = declare_parameters(self, PARAMETERS)
        self._domain = open_world(values["domain"])
        self._vocabulary = Vocabulary.of(self._domain)
        self._method = chosen_method(values["method"])
        self._detector = open_trial_detector(self._method, self._domain)
        self._published = self.create_publisher(Staleness, topics.STALENESS, qos.STALENESS)
        self._readers = Readers({self._published: 1 + values["listeners"]})
        self.create_steady_timer(RETRY, self._judge)
        self.create_subscription(FrameState, topics.FRAME_STATE, self._on_frame, qos.every_sample(qos.FRAME_STATE))
        self.create_subscription(PlanState, topics.PLAN_STATE, self._on_plan, qos.every_sample(qos.PLAN_STATE))

    def activate(self) -> None:
        """Judge what has come already."""
        self._judge()

    def _on_frame(self, message: FrameState) -> None:
        try:
            frame = frame_from_message(message, self._domain)
        except Malformed as why:
            self.refuse("malformed", f"frame state: {why}")
            return
        if self._frame is not None and frame.key <= self._frame.key:
            self.refuse("stale", f"frame {frame.frame} of episode {frame.episode} is not newer than the last")
            return
        self._frame = frame
        self._judge()

    def _on_plan(self, message: PlanState) -> None:
        if message.heads:
            return  # it has been decided upon
        try:
            check_message(message)
            remaining = plan_from_chains(message.remaining, self._vocabulary, "remaining")
        except Malformed as why:
            self.refuse("malformed", f"plan state: {why}")
            return
        self._asked = message, remaining
        self._judge()

    def _judge(self) -> None:
        frame, asked = self._frame, self._asked
        if not self.active or frame is None or asked is None:
            return
        message, remaining = asked
        if (message.twin_epoch, message.episode, message.slot) != frame.key:
            return
        if not self._readers.there():
            return  # the timer comes back to it
        self._asked = None
        begin = time.perf_counter()
        if (frame.epoch, frame.episode) != self._episode:
            self._episode = frame.epoch, frame.episode
            self._detector = open_trial_detector(self._method, self._domain)
        if (message.epoch, message.plan) != self._plan:
            self._plan = message.epoch, message.plan
            self._detector.reset(remaining)
        probability = self._detector.observe(frame.state, remaining)
        self._sequence += 1
        stale = probability > self._detector.threshold
        answer = Staleness(
            episode=frame.episode,
            slot=frame.frame,
            epoch=self.epoch,
            sequence=self._sequence,
            world_sequence=frame.sequence,
            plan=message.plan,
            probability=float(probability),
            threshold=float(self._detector.threshold),
            stale=bool(stale),
            seconds=time.perf_counter() - begin,
        )
        answer.header.stamp = self.get_clock().now().to_msg()
        self._published.publish(answer)
        self.report(DiagnosticStatus.OK, f"frame {frame.frame}: {'stale' if stale else 'holds'}, {probability:.2f}")


def main() -> None:
    """Run the node."""
    run_node(DomainPsd)
