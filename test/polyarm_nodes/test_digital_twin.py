"""The twin as a process over DDS: verdicts, refusals of what is malformed, silence, restarts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("polyarm.msg", reason="needs the built messages")

from diagnostic_msgs.msg import DiagnosticArray
from harness import Probe, probe, running, specs, with_parameters
from polyarm.msg import (
    Action,
    ArmVerdict,
    GrantTable,
    IntentReport,
    SlotOpening,
    SlotVerdict,
    WorldState,
)
from polyarm.srv import ResetWorld

from polyarm_core.liveness import draw_start
from polyarm_core.scenario import load_scenario
from polyarm_nodes import qos, topics

pytestmark = pytest.mark.ros

ARMS = ("alice", "bob", "chad")
SORT = load_scenario("sort")


class Team:
    """Three agents played by the test, against a real twin and a real plant process."""

    def __init__(self, node: Probe) -> None:
        self.probe = node
        self.openings = node.record(SlotOpening, topics.SLOT_OPENING, qos.OPENINGS)
        self.verdicts = node.record(SlotVerdict, topics.VERDICTS, qos.VERDICTS)
        self.worlds = node.record(WorldState, topics.WORLD, qos.WORLD)
        self.grants = node.record(GrantTable, topics.GRANTS, qos.GRANTS)
        self.diagnostics = node.record(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self.out = node.node.create_publisher(IntentReport, topics.INTENTS, qos.REPORTS)
        self.sequence = 0

    def begin(self, seed: int = 0) -> SlotOpening:
        node = self.probe
        node.wait(lambda: self.out.get_subscription_count() >= 1, "twin listens")
        episode = node.call(ResetWorld, topics.RESET_WORLD, ResetWorld.Request(seed=seed)).episode
        node.wait(lambda: bool(self.openings) and self.openings[-1].episode == episode, "slot opening")
        return self.openings[-1]

    def report(self, name: str, action: Action | None = None, **changes: Any) -> None:
        self.sequence += 1
        opening = self.openings[-1]
        message = IntentReport(
            arm=name,
            episode=opening.episode,
            slot=opening.slot,
            twin_epoch=opening.epoch,
            epoch=77,
            sequence=self.sequence,
            action=action or Action(verb="stay"),
            decided_by=IntentReport.DECIDED_BY_HEURISTIC,
        )
        for field, value in changes.items():
            setattr(message, field, value)
        self.out.publish(message)

    def verdict(self, slot: int, deadline: float = 20.0) -> dict[str, ArmVerdict]:
        key = (self.openings[-1].episode, slot)

        def found() -> list[SlotVerdict]:
            return [message for message in self.verdicts if (message.episode, message.slot) == key]

        self.probe.wait(lambda: bool(found()), f"verdict of slot {slot}", deadline)
        return {verdict.arm: verdict for verdict in found()[0].verdicts}

    def refused(self) -> str:
        for array in reversed(self.diagnostics):
            for status in array.status:
                if status.name.endswith("digital_twin"):
                    values = {item.key: item.value for item in status.values}
                    if values.get("refused", "0") != "0":
                        return values["last_refusal"]
        return ""


def a_legal_move(seed: int) -> tuple[str, Action]:
    from polyarm_core.world import World, WorldView

    where = draw_start(SORT, seed)
    view = WorldView(SORT, World({e: (*SORT.placements[p].xyz[:2], 0.2) for e, p in where.items()}))
    for arm in ARMS:
        for action in view.legal(arm):
            if not action.is_stay:
                return arm, Action(verb=action.verb, entity=action.entity, placement=action.placement)
    raise AssertionError("nobody can move")


def test_one_slot_from_opening_to_the_moved_entity(tmp_path: Path) -> None:
    graph = specs(tmp_path, leave_out=("arm_agent", "episode_monitor"))
    with running(graph, tmp_path), probe() as node:
        team = Team(node)
        opening = team.begin()
        assert (opening.slot, sorted(opening.expected)) == (1, list(ARMS))
        assert opening.execution == SlotOpening.EXECUTION_GRANTED
        arm, action = a_legal_move(0)
        for other in ARMS:
            team.report(other, action if other == arm else None)
        verdict = team.verdict(1)[arm]
        assert verdict.decision == ArmVerdict.DECISION_ADMIT and verdict.lease.token > 0
        # The plant moves it, and the next slot opens on the new world.
        node.wait(lambda: team.openings[-1].slot == 2, "second slot")
        moved = next(e for e in team.worlds[-1].entities if e.name == action.entity)
        assert moved.placement == action.placement


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"decision_time": float("nan")}, "decision_time = nan is not finite"),
        ({"decided_by": 99}, "decided_by = 99"),
        ({"sequence": 0}, "epoch and sequence"),
        ({"action": Action(verb="move", entity="teapot", placement="pad2")}, "action.entity 'teapot' is unknown"),
        ({"action": Action(verb="move", entity="blue_square", placement="roof")}, "action.placement 'roof'"),
        ({"action": Action()}, "action.verb is empty"),
        ({"arm": "dave"}, "arm 'dave' is unknown; valid: alice, bob, chad"),
        ({"slot": 5}, "answers slot 5"),
        ({"twin_epoch": 1}, "answers the twin of epoch 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_is_malformed_is_refused_with_a_reason_and_changes_nothing(
    twin: tuple[Team, Path], changes: dict[str, Any], why: str
) -> None:
    team, _ = twin
    slot = team.begin().slot
    team.diagnostics.clear()
    team.report("alice", **changes)
    team.probe.wait(lambda: why in team.refused(), f"refusal that says {why!r}", 10.0)
    for arm in ARMS:
        team.report(arm)
    verdicts = team.verdict(slot)
    assert {v.decision for v in verdicts.values()} == {ArmVerdict.DECISION_ADMIT}


# One twin and one plant serve all malformed cases: what is refused must leave no trace in them anyway.
@pytest.fixture(scope="module")
def twin(module_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("twin")
    graph = specs(out, leave_out=("arm_agent", "episode_monitor"))
    with running(graph, out, check_fields=False), probe() as node:
        yield Team(node), out


def test_a_string_beyond_its_bound_is_refused(twin: tuple[Team, Path]) -> None:
    team, _ = twin
    slot = team.begin().slot
    team.diagnostics.clear()
    message = IntentReport(arm="alice", epoch=77, sequence=10_000, decided_by=1)
    message.action._entity = "x" * 65  # rclpy's own check is off in a user's process; DDS delivers it
    message.action._verb = "move"
    team.out.publish(message)
    team.probe.wait(lambda: "action.entity has 65 bytes" in team.refused(), "refusal of a long string", 10.0)
    for arm in ARMS:
        team.report(arm, sequence=20_000 + slot)
    assert len(team.verdict(slot)) == 3


def test_silent_arm_is_waited_for_until_the_deadline_and_then_not(tmp_path: Path) -> None:
    graph = specs(tmp_path, leave_out=("arm_agent", "episode_monitor"))
    graph = with_parameters(graph, "digital_twin", deadline=1.0, absent_after=2, absent_grace=0.1)
    with running(graph, tmp_path), probe() as node:
        team = Team(node)
        team.begin()
        waited = []
        for slot in (1, 2, 3):
            began = time.monotonic()
            node.wait(lambda slot=slot: team.openings[-1].slot == slot, f"slot {slot}")
            team.report("alice")
            team.report("bob")
            verdict = team.verdict(slot)["chad"]
            waited.append(time.monotonic() - began)
            assert (verdict.decision, verdict.rule) == (ArmVerdict.DECISION_WAIT, ArmVerdict.RULE_SILENT)
        assert waited[0] >= 0.9 and waited[1] >= 0.9 and waited[2] < 0.9


def test_twin_killed_while_an_arm_moves_the_arm_holds_and_a_new_twin_goes_on(tmp_path: Path) -> None:
    graph = specs(tmp_path, leave_out=("arm_agent", "episode_monitor"), real_time_factor=1.0)
    graph = with_parameters(graph, "digital_twin", lease_duration=0.5)
    graph = with_parameters(graph, "kinematic_bridge", action_duration=4.0, lease_duration=0.5)
    with running(graph, tmp_path) as runner, probe() as node:
        team = Team(node)
        first = team.begin()
        arm, action = a_legal_move(0)
        for other in ARMS:
            team.report(other, action if other == arm else None)
        token = team.verdict(1)[arm].lease.token
        node.wait(lambda: any(a.token == token for w in team.worlds for a in w.arms), "arm moves under its lease")
        os.kill(runner.pid("digital_twin"), signal.SIGKILL)
        node.wait(
            lambda: any(a.name == arm and a.status == 3 for a in team.worlds[-1].arms), "arm holds without a twin", 5.0
        )
        assert next(e for e in team.worlds[-1].entities if e.name == action.entity).placement != action.placement
        # The runner starts a new twin: it opens the next slot, not the same one again, under a newer epoch.
        deadline = time.monotonic() + 30.0
        while team.openings[-1].epoch == first.epoch:
            assert time.monotonic() < deadline, "no new twin"
            runner.wait(lambda: True)
            runner._supervise()
            node.spin(0.1)
        assert team.openings[-1].slot == 2 and team.openings[-1].epoch > first.epoch
        for other in ARMS:
            team.report(other, action if other == arm else None)
        again = team.verdict(2)[arm]
        assert again.decision == ArmVerdict.DECISION_ADMIT and again.lease.token > token
        node.wait(
            lambda: next(e for e in team.worlds[-1].entities if e.name == action.entity).placement == action.placement,
            "the new twin's grant is carried out",
        )
