"""Digital twin node: feeds the slot protocol with messages and publishes what it decides."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import IO

from diagnostic_msgs.msg import DiagnosticStatus
from polyarm.msg import ActionResult, GrantTable, IntentReport, SlotOpening, SlotVerdict, WorldState

from polyarm_core.orchestrator import OrchestratorOptions, Strategy
from polyarm_core.scenario import load_scenario
from polyarm_core.slots import Answered, Effect, Opened, Revoked, SlotOptions, SlotProtocol
from polyarm_nodes import qos, topics
from polyarm_nodes.convert import grant_to_message, report_from_message, snapshot_from_message, verdict_to_message
from polyarm_nodes.lifecycle import PolyarmNode, run_node
from polyarm_nodes.parameters import DIGITAL_TWIN, declare_parameters
from polyarm_nodes.validation import Malformed, check_message

TICK = 0.02  # s; deadlines are kept to this
SILENCE = 2.0  # s without a world state, while one is waited for, after which somebody should look at the plant


class DigitalTwin(PolyarmNode):
    """Opens slots, collects reports, arbitrates, grants leases and renews them."""

    def __init__(self) -> None:
        super().__init__("digital_twin")
        self._sequence = 0
        self._heard_at = 0.0  # s, steady; when the newest world state came
        self._trace: IO[str] | None = None

    def configure(self) -> None:
        values = declare_parameters(self, DIGITAL_TWIN)
        scenario = load_scenario(values["scenario"])
        self._scenario = scenario
        self._execution = {
            "optimistic": SlotOpening.EXECUTION_OPTIMISTIC,
            "granted": SlotOpening.EXECUTION_GRANTED,
        }[values["execution"]]
        self._lease_duration = values["lease_duration"]
        options = SlotOptions(
            deadline=values["deadline"] or scenario.slots.deadline,
            absent_after=values["absent_after"],
            absent_grace=values["absent_grace"],
            settle=values["settle"],
            idle_slots=values["idle_slots"],
            complete_declarations=values["complete_declarations"],
            guard_dead_ends=values["guard_dead_ends"],
            orchestrator=replace(OrchestratorOptions(), strategy=Strategy(values["strategy"])),
        )
        self._protocol = SlotProtocol(scenario, self.epoch, options, values["lease_limit"])
        if values["trace_file"]:
            self._trace = Path(values["trace_file"]).open("a", buffering=1, encoding="utf-8")
        self._openings = self.create_publisher(SlotOpening, topics.SLOT_OPENING, qos.OPENINGS)
        self._verdicts = self.create_publisher(SlotVerdict, topics.VERDICTS, qos.kept(qos.VERDICTS))
        self._grants = self.create_publisher(GrantTable, topics.GRANTS, qos.GRANTS)
        self.create_subscription(IntentReport, topics.INTENTS, self._on_report, qos.REPORTS)
        self.create_subscription(WorldState, topics.WORLD, self._on_world, qos.WORLD)
        self.create_subscription(ActionResult, topics.ACTION_RESULTS, self._on_result, qos.RESULTS)
        self.create_steady_timer(TICK, self._on_tick)
        self.create_steady_timer(self._lease_duration / 4.0, self._renew)

    def close(self) -> None:
        if self._trace is not None:
            self._trace.close()

    def _on_world(self, message: WorldState) -> None:
        if not self.active:
            return
        try:
            snapshot = snapshot_from_message(message, self._scenario)
        except Malformed as why:
            self.refuse("malformed", f"world state: {why}")
            return
        self._heard_at = time.monotonic()
        self._carry_out(self._protocol.on_world(snapshot, self._heard_at))

    def _on_report(self, message: IntentReport) -> None:
        if not self.active:
            return
        try:
            report = report_from_message(message, self._scenario)
        except Malformed as why:
            self.refuse("malformed", f"intent report: {why}")
            return
        refusal, effects = self._protocol.on_report(report, time.monotonic())
        if refusal:
            self.refuse("report", refusal)
        self._carry_out(effects)

    def _on_result(self, message: ActionResult) -> None:
        if not self.active:
            return
        try:
            check_message(message)
        except Malformed as why:
            self.refuse("malformed", f"action result: {why}")
            return
        if message.episode != self._protocol.episode:
            return
        self._carry_out(self._protocol.on_result(message.arm, message.token, message.sim_time, time.monotonic()))

    def _on_tick(self) -> None:
        if not self.active:
            return
        now = time.monotonic()
        self._carry_out(self._protocol.tick(now))
        if self._protocol.misses_plant and now - self._heard_at > SILENCE:
            self.report(DiagnosticStatus.ERROR, "nothing is heard of the plant, no slot is opened")

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Opened):
                self._publish_opening(effect)
            elif isinstance(effect, Answered):
                self._publish_verdict(effect)
            elif isinstance(effect, Revoked):
                grant = effect.grant
                self.report(DiagnosticStatus.ERROR, f"lease {grant.token} of {grant.arm} outlived its limit")

    def _publish_opening(self, opened: Opened) -> None:
        self._sequence += 1
        message = SlotOpening(
            episode=opened.episode,
            slot=opened.slot,
            epoch=self.epoch,
            sequence=self._sequence,
            execution=self._execution,
            deadline=float(opened.deadline),
            world_sequence=opened.world_sequence,
            expected=list(opened.expected),
        )
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = self._scenario.frame
        if self._trace is not None:
            self._trace.write(f"{opened.episode} {opened.slot} {time.monotonic_ns()}\n")
        self._openings.publish(message)

    def _publish_verdict(self, answered: Answered) -> None:
        self._sequence += 1
        arbitration = answered.arbitration
        message = SlotVerdict(
            episode=answered.episode,
            slot=answered.slot,
            epoch=self.epoch,
            sequence=self._sequence,
            strategy=arbitration.strategy.value,
            admitted=len(arbitration.admitted),
            upper_bound=arbitration.upper_bound,
            proven=arbitration.proven,
            arbitration_time=float(answered.seconds),
            verdicts=[verdict_to_message(verdict, self._lease_duration) for verdict in answered.verdicts],
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._verdicts.publish(message)
        completed = sum(self._protocol.completed_entries.values())
        self.report(DiagnosticStatus.OK, f"slot {answered.slot} arbitrated", completed_entries=completed)

    def _renew(self) -> None:
        grants = self._protocol.leases.grants if self.active else ()
        if not grants:
            return
        self._sequence += 1
        message = GrantTable(
            episode=self._protocol.episode,
            epoch=self.epoch,
            sequence=self._sequence,
            duration=float(self._lease_duration),
            grants=[grant_to_message(grant) for grant in grants],
        )
        message.header.stamp = self.get_clock().now().to_msg()
        self._grants.publish(message)


def main() -> None:
    """Run the node."""
    run_node(DigitalTwin)
