"""Agent of a domain that moves in frames: does in every frame what the team's plan says of it.

How agents get out of each other's way is the domain's `control`, a function of the state and of what all of them are
about to do; every agent computes it for the team and says its own part.
"""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import FrameControl, FrameState, PlanState

from polyarm_core.coordinator.trial import open_world
from polyarm_core.errors import UnknownName
from polyarm_nodes import qos, topics
from polyarm_nodes.domain_frames import Frame, HeardHeads, Readers, frame_from_message, heads_from_message
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import DOMAIN, LISTENERS, Parameter, declare_parameters
from polyarm_nodes.plan_convert import Vocabulary
from polyarm_nodes.validation import Malformed

PARAMETERS = {
    "domain": DOMAIN,
    "listeners": LISTENERS,
    "agent": Parameter("", "which of the domain's agents; empty = the last name of the namespace"),
}
RETRY = 0.1  # s


class DomainAgent(PolyarmNode):
    """Waits for state and plan of a frame, whichever comes first, and answers once."""

    def __init__(self) -> None:
        super().__init__("agent")
        self._frame: Frame | None = None
        self._told: HeardHeads | None = None
        self._answered: tuple[int, int, int] = (0, 0, -1)  # key of the last frame
        self._sequence = 0

    def configure(self) -> None:
        """Open the domain and the topics."""
        values = declare_parameters(self, PARAMETERS)
        self._domain = open_world(values["domain"])
        self._vocabulary = Vocabulary.of(self._domain)
        self._agent = values["agent"] or self.get_namespace().rsplit("/", 1)[-1]
        if self._agent not in self._domain.agents:
            raise UnknownName("agent", self._agent, self._domain.agents)
        self._index = self._domain.agents.index(self._agent)
        cell = topics.parent_namespace(self.get_namespace())

        def name(topic: str) -> str:
            return topics.cell_topic(cell, topic)

        self._controls = self.create_publisher(FrameControl, name(topics.FRAME_CONTROLS), qos.FRAME_CONTROLS)
        self._readers = Readers({self._controls: 1 + values["listeners"]})
        self.create_steady_timer(RETRY, self._answer)
        frames, states = qos.every_sample(qos.FRAME_STATE), qos.every_sample(qos.PLAN_STATE)
        self.create_subscription(FrameState, name(topics.FRAME_STATE), self._on_frame, frames)
        self.create_subscription(PlanState, name(topics.PLAN_STATE), self._on_plan, states)

    def activate(self) -> None:
        """Answer what has come already."""
        self._answer()

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
        self._answer()

    def _on_plan(self, message: PlanState) -> None:
        if not message.heads:
            return  # it is still being looked at
        try:
            self._told = heads_from_message(message, self._vocabulary)
        except Malformed as why:
            self.refuse("malformed", f"plan state: {why}")
            return
        self._answer()

    def _answer(self) -> None:
        frame, told = self._frame, self._told
        if not self.active or frame is None or told is None or frame.ended or frame.key <= self._answered:
            return
        if told.key != frame.key:
            return
        if not self._readers.there():
            return  # the timer comes back to it
        self._answered = frame.key
        self._sequence += 1
        message = FrameControl(
            agent=self._agent,
            episode=frame.episode,
            frame=frame.frame,
            epoch=self.epoch,
            sequence=self._sequence,
            control=self._domain.control(frame.state, told.intents)[self._index],
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._controls.publish(message)
        intent = told.intents[self._index]
        self.report(DiagnosticStatus.OK, f"frame {frame.frame}: {intent or 'nothing to do'}")


def main() -> None:
    """Run the node."""
    run_node(DomainAgent)
