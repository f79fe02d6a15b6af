"""The detector of stale plans as a process over DDS; plant, twin and coordinator are played with real messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("polyarm.msg", reason="needs the built messages")

from diagnostic_msgs.msg import DiagnosticArray
from harness import Probe, probe, running
from polyarm.msg import (
    ActionResult,
    ArmState,
    EntityState,
    PlanState,
    ReplanRequest,
    SlotOpening,
    SlotVerdict,
    Staleness,
    WorldState,
)

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.constraints import Action
from polyarm_core.control.executive import SlotPlan
from polyarm_core.control.modes import Head, Standing
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.orchestrator import Decision
from polyarm_core.psd.oracle import RollOutOracle
from polyarm_core.slots import ArmVerdict
from polyarm_nodes import qos, topics
from polyarm_nodes.convert import action_to_message, pose_fields, verdict_to_message
from polyarm_nodes.graph import NodeSpec
from polyarm_nodes.plan_convert import request_from_message, state_to_message

pytestmark = pytest.mark.ros

DOMAIN = ArmsDomain("sort")
SORT = DOMAIN.scenario
TWIN, PLANT, COORDINATOR = 77, 88, 99  # epochs


class Cell:
    """Plant, twin and coordinator of the abstract task, as far as the detector hears them."""

    episodes = 1000

    def __init__(self, node: Probe) -> None:
        self.probe = node
        self.values = node.record(Staleness, topics.STALENESS, qos.STALENESS)
        self.requests = node.record(ReplanRequest, topics.REPLAN_REQUESTS, qos.REPLAN_REQUESTS)
        self.diagnostics = node.record(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self.out = {
            kind: node.node.create_publisher(kind, name, profile)
            for kind, name, profile in (
                (WorldState, topics.WORLD, qos.WORLD),
                (SlotOpening, topics.SLOT_OPENING, qos.OPENINGS),
                (SlotVerdict, topics.VERDICTS, qos.VERDICTS),
                (ActionResult, topics.ACTION_RESULTS, qos.RESULTS),
                (PlanState, topics.PLAN_STATE, qos.PLAN_STATE),
            )
        }
        self.sequences = dict.fromkeys(self.out, 0)
        self.episode = self.slot = self.number = 0

    def send(self, message: Any, epoch: int) -> None:
        kind = type(message)
        self.sequences[kind] += 1
        message.episode, message.epoch, message.sequence = self.episode, epoch, self.sequences[kind]
        self.out[kind].publish(message)

    def begin(self, seed: int = 0) -> None:
        node = self.probe
        node.wait(lambda: all(p.get_subscription_count() for p in self.out.values()), "the detector listens")
        Cell.episodes += 1
        self.episode, self.slot, self.number, self.state = Cell.episodes, 0, 0, DOMAIN.start(seed)
        self.plan()
        self.show(self.state)

    def plan(self) -> None:
        answer = SearchCoordinator(DOMAIN).plan(PlanRequest(self.state))
        assert answer.plan is not None
        self.executor = ChainExecutor(DOMAIN, answer.plan)
        self.number += 1

    def show(self, state: ArmsState) -> None:
        """Publish a world."""
        view = DOMAIN.world.view(state)
        message = WorldState(slot=self.slot, conditions=sorted(view.world.conditions))
        for name, position in view.world.positions.items():
            entity = EntityState(name=name, held_by=view.world.held_by.get(name, ""))
            pose_fields(entity, position, (1.0, 0.0, 0.0, 0.0))
            message.entities.append(entity)
        message.arms = [ArmState(name=arm, status=ArmState.STATUS_IDLE) for arm in SORT.arms]
        self.send(message, PLANT)

    def open(self) -> None:
        """Open the next slot on the world that was shown last, and say where the plan stands in it."""
        self.slot += 1
        opening = SlotOpening(slot=self.slot, execution=SlotOpening.EXECUTION_GRANTED, deadline=20.0)
        opening.world_sequence = self.sequences[WorldState]
        self.send(opening, TWIN)
        if self.slot > 1:
            self.value()  # the coordinator waits for it
        self.tell()
        self.value()  # nobody acts before the plan state is there

    def tell(self) -> None:
        heads = dict.fromkeys(DOMAIN.agents, Head(Standing.ENDED))
        message = state_to_message(SlotPlan(self.slot, self.number, True, heads, self.executor.remaining(), {}))
        message.twin_epoch = TWIN
        self.send(message, COORDINATOR)

    def act(self) -> Mapping[str, Action]:
        """The heads are admitted."""
        self.controls = DOMAIN.control(self.state, self.executor.intents(self.state))
        admitted = dict(DOMAIN.outcome(self.state, self.controls).admitted)
        verdicts = [ArmVerdict(arm, action, Decision.ADMIT) for arm, action in admitted.items()]
        self.send(SlotVerdict(slot=self.slot, verdicts=[verdict_to_message(v, 2.0) for v in verdicts]), TWIN)
        return admitted

    def finish(self, admitted: Mapping[str, Action]) -> None:
        for arm, action in admitted.items():
            message = ActionResult(arm=arm, slot=self.slot, outcome=ActionResult.OUTCOME_SUCCEEDED)
            message.action = action_to_message(action)
            self.send(message, PLANT)
        after = DOMAIN.step(self.state, self.controls)
        self.executor.advance(self.state, self.controls, after)
        self.executor.check(after)  # waits that are over are no part of the rest, as in the coordinator
        self.state = after
        self.show(after)

    def value(self) -> Staleness:
        """What the detector says of the plan in the world that was shown last."""
        key = self.episode, self.sequences[WorldState], self.number

        def found() -> list[Staleness]:
            return [m for m in self.values if (m.episode, m.world_sequence, m.plan) == key]

        self.probe.wait(lambda: bool(found()), f"staleness of world {key}", 10.0)
        return found()[-1]

    def asked(self) -> list[ReplanRequest]:
        return [message for message in self.requests if message.episode == self.episode]

    def refused(self) -> str:
        for array in reversed(self.diagnostics):
            for status in array.status:
                if status.name.endswith("psd"):
                    return {item.key: item.value for item in status.values}.get("last_refusal", "")
        return ""


@pytest.fixture(scope="module")
def cell(module_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    out = tmp_path_factory.mktemp("psd")
    spec = NodeSpec("psd", "psd", "/", {"scenario": "sort", "detector": "closed"})
    with running([spec], out, check_fields=False), probe() as node:
        yield Cell(node)


def broken(cell: Cell) -> list[ArmsState]:
    """Worlds in which a person has moved an object so that the rest of the plan can no longer succeed."""
    states = dict.fromkeys(DOMAIN.disturb(cell.state, "A1", k / 60) for k in range(60))
    return [
        state
        for state in states
        if state is not None and RollOutOracle(DOMAIN).stale(cell.executor.copy(), state, DOMAIN.horizon)
    ]


def test_nobody_asks_while_the_world_goes_as_planned(cell: Cell) -> None:
    cell.begin()
    while not DOMAIN.succeeded(cell.state):
        cell.open()
        admitted = cell.act()
        cell.show(cell.state)
        value = cell.value()
        assert (value.slot, value.stale) == (cell.slot, False) and 0.0 <= value.probability <= value.threshold
        assert value.seconds > 0.0
        cell.finish(admitted)
    cell.probe.spin(0.2)
    assert not cell.asked()
    assert [m.sequence for m in cell.values] == sorted({m.sequence for m in cell.values})


def test_a_moved_object_is_asked_about_once_for_each_plan_and_situation(cell: Cell) -> None:
    cell.begin()
    cell.open()
    cell.finish(cell.act())
    cell.open()
    moved = broken(cell)[0]
    for _ in range(3):
        cell.show(moved)
        assert cell.value().stale
    cell.probe.wait(lambda: bool(cell.asked()), "a request")
    cell.probe.spin(0.2)
    (message,) = cell.asked()
    request = request_from_message(message, DOMAIN.agents)
    assert (request.slot, request.number, request.reason) == (2, 1, "stale") and request.probability > 0.5
    # It is met with a plan that takes the world as it is: nothing is asked any more.
    cell.state = moved
    cell.plan()
    cell.tell()
    assert not cell.value().stale
    cell.finish(cell.act())
    cell.open()
    assert not cell.value().stale and len(cell.asked()) == 1


def test_what_an_admitted_action_moves_is_no_news_until_it_fails(cell: Cell) -> None:
    cell.begin()
    cell.open()
    admitted = cell.act()
    lost, arm = next(
        (state, arm)
        for state in broken(cell)
        for arm, action in admitted.items()
        if state.places[DOMAIN.world.index[action.entity]] != cell.state.places[DOMAIN.world.index[action.entity]]
    )
    cell.show(lost)
    assert not cell.value().stale
    failure = ActionResult(arm=arm, slot=1, outcome=ActionResult.OUTCOME_FAILED, reason="slip")
    failure.action = action_to_message(admitted[arm])
    cell.send(failure, PLANT)
    cell.show(lost)
    assert cell.value().stale
    cell.probe.wait(lambda: len(cell.asked()) == 1, "a request")


def test_what_is_malformed_is_refused_and_changes_nothing(cell: Cell) -> None:
    cell.begin()
    cell.open()
    cell.show(cell.state)
    before = cell.value()
    for message, epoch, why in (
        (WorldState(), PLANT, "world state: entities without a pose"),
        (SlotOpening(deadline=float("nan")), TWIN, "slot opening: deadline"),
        (PlanState(plan=1, sound=True), COORDINATOR, "plan state: heads are of nobody"),
        (ActionResult(arm="eve", outcome=ActionResult.OUTCOME_FAILED), PLANT, "action result: arm 'eve' is unknown"),
        (
            SlotVerdict(verdicts=[verdict_to_message(ArmVerdict("eve", Action("stay"), Decision.ADMIT), 1.0)]),
            TWIN,
            "eve",
        ),
    ):
        cell.send(message, epoch)
        cell.probe.wait(lambda why=why: why in cell.refused(), f"refusal that says {why!r}", 10.0)
    cell.show(cell.state)
    after = cell.value()
    assert (after.slot, after.plan, after.probability) == (before.slot, before.plan, before.probability)
    assert not cell.asked()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("never", "valid: PATH.npz of trained weights.*, bilinear, closed"),
        ("/nowhere/weights.npz", "unknown detector '/nowhere"),
    ],
)
def test_a_detector_that_is_none_ends_the_node(name: str, why: str, tmp_path: Path) -> None:
    import os
    import re
    import subprocess
    import sys

    command = [sys.executable, "-m", "polyarm_nodes", "psd", "--ros-args", "-p", f"detector:={name}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ), check=False)
    assert ended.returncode == 2 and re.search(why, ended.stderr), ended.stderr
