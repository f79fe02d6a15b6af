"""Bridge of a domain that moves in frames: owns the world and its events, and waits for one control of every agent.

A frame: the events that are due happen; the state goes out; every agent says what it does; the plant carries it out.
Nobody is hurried by a clock, so an episode is the same as without ROS. An agent from which nothing is heard until the
deadline stays where it is in that frame.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import Disturbance, EpisodeResult, FrameControl, FrameState
from rclpy.duration import Duration

from polyarm_core.coordinator.episode import ScheduledEvent, disturbed
from polyarm_core.coordinator.trial import (
    FILE_NAME,
    PLANTS,
    TrialRow,
    append_row,
    chosen_method,
    open_world,
    percentile,
    schedule_of,
    uses_detector,
)
from polyarm_core.seeds import parse_seeds
from polyarm_nodes import qos, topics
from polyarm_nodes.domain_frames import Frame, Readers, check_control, frame_to_message
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import DOMAIN, LISTENERS, METHOD, Parameter, declare_parameters
from polyarm_nodes.validation import Malformed, check_message

PARAMETERS = {
    "domain": DOMAIN,
    "method": METHOD,
    "plant": Parameter(
        "own", "what carries steps out: overcooked_ai, in kitchens, or the domain itself", choices=PLANTS
    ),
    "setting": Parameter("standard", "events: standard (none), dynamic, or another of docs/overcooked.md"),
    "seeds": Parameter("0", "seeds of the episodes, one after another, such as 0-19 or 0,3,5"),
    "out": Parameter(".", "folder in which episodes.jsonl is written"),
    "listeners": LISTENERS,
    "control_deadline": Parameter(120.0, "s that a frame waits for controls, plans being made included", 0.05, 3600.0),
    "start_limit": Parameter(120.0, "s that the team may take to be there; then it begins as it is", 1.0, 3600.0),
    "result_deadline": Parameter(5.0, "s that the end of an episode waits for the coordinator's result", 0.1, 600.0),
}
TICK = 0.05  # s between two looks at deadlines
HANDOVER = 2.0  # s that the last messages may take to reach their readers


@dataclass
class _Episode:
    """An episode that runs."""

    number: int
    seed: int
    begun: float  # s, steady
    state: Any
    pending: list[ScheduledEvent]
    frame: int = 0
    events: list[tuple[int, str]] = field(default_factory=list)
    silent: int = 0
    durations: list[float] = field(default_factory=list)  # s, of every frame
    controls: dict[str, int] = field(default_factory=dict)  # of this frame, as far as they came
    published: float = 0.0  # s, steady; when this frame's state went out
    ended: bool = False


class DomainBridge(PolyarmNode):
    """Plays one episode a seed, one after another."""

    def __init__(self) -> None:
        super().__init__("plant")
        self.finished = False
        self._episode: _Episode | None = None
        self._number = self._sequence = self._disturbances = 0
        self._senders: dict[str, tuple[int, int]] = {}  # epoch and sequence of the last control of every agent

    def configure(self) -> None:
        """Open the world and the topics."""
        values = declare_parameters(self, PARAMETERS)
        self._given = values
        self._domain = open_world(values["domain"], values["plant"])
        self._seeds = parse_seeds(values["seeds"])
        schedule_of(self._domain, values["setting"], self._seeds[0])  # a wrong setting shows now
        self._queue = list(self._seeds)
        team = len(self._domain.agents) + 1 + uses_detector(chosen_method(values["method"]))
        self._log = Path(values["out"]) / FILE_NAME
        self._states = self.create_publisher(FrameState, topics.FRAME_STATE, qos.FRAME_STATE)
        self._happened = self.create_publisher(Disturbance, topics.DISTURBANCES, qos.DISTURBANCES)
        listeners = values["listeners"]
        self._readers = Readers({self._states: team + listeners, self._happened: listeners}, values["start_limit"])
        self.create_subscription(FrameControl, topics.FRAME_CONTROLS, self._on_control, qos.FRAME_CONTROLS)
        self.create_subscription(EpisodeResult, topics.EPISODE_RESULT, self._on_result, qos.EPISODE)
        self.create_steady_timer(TICK, self._on_tick)

    def close(self) -> None:
        """Let the last state arrive."""
        if self.context is not None and self.context.ok() and hasattr(self, "_states"):
            self._states.wait_for_all_acked(Duration(seconds=HANDOVER))

    # -- episodes -------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        if not self.active or self.finished:
            return
        now = time.monotonic()
        episode = self._episode
        if episode is None:
            if self._readers.there():
                missing = self._readers.missing()
                self._begin(now)
                if missing:
                    self.report(DiagnosticStatus.WARN, f"not everybody reads {', '.join(missing)}")
        elif episode.ended:
            if now - episode.published > self._given["result_deadline"]:
                self.report(DiagnosticStatus.WARN, f"seed {episode.seed}: no result of the coordinator")
                self._finish(episode, None)
        elif now - episode.published > self._given["control_deadline"]:
            self._go_on_without(episode)

    def _begin(self, now: float) -> None:
        self._number += 1
        seed = self._queue.pop(0)
        events = schedule_of(self._domain, self._given["setting"], seed)
        self._episode = _Episode(self._number, seed, now, self._domain.start(seed), list(events))
        self.report(DiagnosticStatus.OK, f"seed {seed}")
        self._open((), self._episode)

    def _open(self, controls: tuple[int, ...], episode: _Episode) -> None:
        """Begin a frame: events, then the state for everybody.

        Args:
            controls: that were carried out in the frame before.
            episode: whose state is what they led to.
        """
        outcome = episode.state
        success = self._domain.succeeded(outcome)
        episode.ended = success or episode.frame >= self._domain.horizon
        happened: list[str] = []
        if not episode.ended:
            episode.state, happened, episode.pending = disturbed(self._domain, outcome, episode.pending, episode.frame)
        descriptions = {item.name: item.description for item in self._domain.disturbances}
        for name in happened:
            episode.events.append((episode.frame, name))
            self._disturbances += 1
            message = Disturbance(
                episode=episode.number,
                slot=episode.frame,
                epoch=self.epoch,
                sequence=self._disturbances,
                kind=name,
                what=descriptions[name],
            )
            message.header.stamp = self.get_clock().now().to_msg()
            self._happened.publish(message)
        self._sequence += 1
        frame = Frame(
            episode.number,
            episode.frame,
            episode.seed,
            self.epoch,
            self._sequence,
            controls,
            outcome,
            tuple(happened),
            episode.state,
            success,
            episode.ended,
        )
        state = frame_to_message(frame, self._domain)
        state.header.stamp = self.get_clock().now().to_msg()
        episode.controls = {}
        episode.published = time.monotonic()
        self._states.publish(state)

    def _on_control(self, message: FrameControl) -> None:
        episode = self._episode
        try:
            check_message(message)
            if message.agent not in self._domain.agents:
                raise Malformed(f"agent {message.agent!r} is unknown; valid: {', '.join(self._domain.agents)}")
            if message.epoch == 0 or message.sequence == 0:
                raise Malformed("epoch and sequence of the sender must be above 0")
            check_control(message.control, self._domain)
        except Malformed as why:
            self.refuse("malformed", f"control: {why}")
            return
        sender = (message.epoch, message.sequence)
        if sender <= self._senders.get(message.agent, (0, 0)):
            self.refuse("stale", f"control {message.sequence} of {message.agent} is not newer than its last")
            return
        if episode is None or episode.ended or (message.episode, message.frame) != (episode.number, episode.frame):
            self.refuse("stale", f"control of {message.agent} for frame {message.frame} of episode {message.episode}")
            return
        if message.agent in episode.controls:
            self.refuse("stale", f"{message.agent} has said already what it does in frame {message.frame}")
            return
        self._senders[message.agent] = sender
        episode.controls[message.agent] = message.control
        if len(episode.controls) == len(self._domain.agents):
            self._step(tuple(episode.controls[agent] for agent in self._domain.agents), episode)

    def _go_on_without(self, episode: _Episode) -> None:
        """The deadline has passed: whoever has said nothing stays."""
        silent = [agent for agent in self._domain.agents if agent not in episode.controls]
        episode.silent += len(silent)
        self.report(
            DiagnosticStatus.WARN,
            f"frame {episode.frame}: nothing of {', '.join(silent)}, who stay",
            silent=episode.silent,
        )
        idle = self._domain.control(episode.state, (None,) * len(self._domain.agents))
        pairs = zip(self._domain.agents, idle, strict=True)
        self._step(tuple(episode.controls.get(agent, control) for agent, control in pairs), episode)

    def _step(self, controls: tuple[int, ...], episode: _Episode) -> None:
        episode.durations.append(time.monotonic() - episode.published)
        episode.state = self._domain.step(episode.state, controls)
        episode.frame += 1
        self._open(controls, episode)

    # -- ends -----------------------------------------------------------------------------------------------------

    def _on_result(self, message: EpisodeResult) -> None:
        episode = self._episode
        try:
            check_message(message)
        except Malformed as why:
            self.refuse("malformed", f"episode result: {why}")
            return
        if episode is None or not episode.ended or message.episode != episode.number or message.seed != episode.seed:
            self.refuse("stale", f"result of episode {message.episode}")
            return
        self._finish(episode, message)

    def _finish(self, episode: _Episode, result: EpisodeResult | None) -> None:
        now = time.monotonic()
        values = self._given
        row = TrialRow(
            domain=self._domain.name,
            plant=values["plant"],
            setting=values["setting"],
            method=values["method"],
            seed=episode.seed,
            success=self._domain.succeeded(episode.state),
            frames=episode.frame,
            events=tuple(episode.events),
            silent=episode.silent,
            calls=None if result is None else result.plan_calls,
            repairs=None if result is None else result.plan_repairs,
            tokens=None if result is None else result.plan_tokens,
            detections=None if result is None else result.detections,
            frame_p50=percentile(episode.durations, 0.5),
            frame_p99=percentile(episode.durations, 0.99),
            wall_time=now - episode.begun,
        )
        append_row(self._log, row)
        end = "success" if row.success else "no success"
        self.get_logger().info(f"seed {row.seed}: {end} after {row.frames} frames, {row.frame_p50 * 1e3:.1f} ms each")
        if result is not None:
            self.report(DiagnosticStatus.OK, f"seed {row.seed}: {end}", last_seed=row.seed)
        self._episode = None
        if self._queue:
            self._begin(now)
        else:
            self.finished = True


def main() -> None:
    """Run the node."""
    run_node(DomainBridge)
