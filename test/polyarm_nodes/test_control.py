"""Control by plans: an agent opposite a coordinator that the test plays, and whole graphs with the real one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("polyarm.msg", reason="needs the built messages")

from diagnostic_msgs.msg import DiagnosticArray
from harness import Probe, probe, running, specs, with_parameters
from polyarm.msg import (
    Action,
    ActionChain,
    ArmHead,
    ArmState,
    EntityState,
    IntentReport,
    PlanState,
    SlotOpening,
    WorldState,
)

from polyarm_core.scenario import load_scenario
from polyarm_nodes import qos, topics

pytestmark = pytest.mark.ros
SORT = load_scenario("sort")
ARMS = tuple(SORT.arms)
START = {"blue_square": "panel5", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"}
PINK = Action(verb="move", entity="pink_polygon", placement="pad4")


class PlayedCell:
    """Plant, twin and coordinator around one agent."""

    def __init__(self, node: Probe) -> None:
        self.node = node
        self.reports = node.record(IntentReport, topics.INTENTS, qos.REPORTS)
        self.diagnostics = node.record(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self._worlds = node.node.create_publisher(WorldState, topics.WORLD, qos.WORLD)
        self._openings = node.node.create_publisher(SlotOpening, topics.SLOT_OPENING, qos.OPENINGS)
        self._states = node.node.create_publisher(PlanState, topics.PLAN_STATE, qos.PLAN_STATE)
        self._sequence = 0
        publishers = (self._worlds, self._openings, self._states)
        node.wait(lambda: all(p.get_subscription_count() for p in publishers), "the agent listens")
        node.wait(lambda: node.node.count_publishers(topics.INTENTS) > 0, "the agent has joined")
        node.spin(0.3)
        world = WorldState(episode=1, epoch=5, sequence=1)
        for name, placement in START.items():
            entity = EntityState(name=name, placement=placement)
            x, y, z = SORT.placements[placement].xyz
            entity.pose.position.x, entity.pose.position.y, entity.pose.position.z = x, y, z + 0.035
            entity.pose.orientation.w = 1.0
            world.entities.append(entity)
        world.arms = [ArmState(name=arm, status=ArmState.STATUS_IDLE) for arm in ARMS]
        self._worlds.publish(world)

    def open(self, slot: int, epoch: int = 5) -> None:
        self._openings.publish(
            SlotOpening(
                episode=1,
                slot=slot,
                epoch=epoch,
                sequence=slot,
                execution=SlotOpening.EXECUTION_GRANTED,
                deadline=20.0,
                world_sequence=1,
                expected=list(ARMS),
            )
        )

    def tell(self, slot: int, head: ArmHead, **changes: Any) -> None:
        """Publish a plan state in which the other arms wait."""
        self._sequence += 1
        heads = [ArmHead(agent=arm, standing=ArmHead.STANDING_WAIT) for arm in ARMS]
        heads[ARMS.index("bob")] = head
        state = PlanState(episode=1, slot=slot, twin_epoch=5, epoch=7, sequence=self._sequence, plan=3, sound=True)
        state.heads = heads
        state.remaining = [ActionChain(agent=arm) for arm in ARMS]
        for field, value in changes.items():
            setattr(state, field, value)
        self._states.publish(state)

    def report(self, slot: int, epoch: int = 5) -> IntentReport:
        def found() -> list[IntentReport]:
            return [report for report in self.reports if (report.slot, report.twin_epoch) == (slot, epoch)]

        self.node.wait(lambda: bool(found()), f"report of slot {slot}")
        (report,) = found()
        return report

    def refused(self, kind: str) -> int:
        counts = [0]
        for array in self.diagnostics:
            for status in array.status:
                counts += [int(item.value) for item in status.values if item.key == f"refused_{kind}"]
        return counts[-1]


def head(standing: int, action: Action | None = None) -> ArmHead:
    return ArmHead(agent="bob", standing=standing, action=action or Action())


OWN = {IntentReport.DECIDED_BY_HEURISTIC, IntentReport.DECIDED_BY_ONLY_CHOICE}
ACT, WAIT = ArmHead.STANDING_ACT, ArmHead.STANDING_WAIT
ENDED, UNPLANNED = ArmHead.STANDING_ENDED, ArmHead.STANDING_UNPLANNED


@contextmanager
def agent(out: Path, control: str, **parameters: Any) -> Iterator[PlayedCell]:
    """Bob alone, in a cell that the test plays."""
    graph = [spec for spec in specs(out, control=control) if spec.parameters.get("arm") == "bob"]
    with running(with_parameters(graph, "arm_agent", use_sim_time=False, **parameters), out), probe() as node:
        yield PlayedCell(node)


def test_a_planned_arm_does_what_the_plan_says_and_holds_without_one(tmp_path: Path) -> None:
    with agent(tmp_path, "planned", plan_timeout=0.5) as cell:
        cell.open(1)
        cell.tell(1, head(ACT, PINK))
        report = cell.report(1)
        assert (report.action, report.decided_by, report.plan) == (PINK, IntentReport.DECIDED_BY_CHAIN, 3)
        assert {"entity:pink_polygon", "placement:pad4"} <= set(report.declaration.exclusive)

        cell.tell(2, head(WAIT))  # it may come before the opening
        cell.open(2)
        report = cell.report(2)
        assert (report.action.verb, report.decided_by, report.plan) == ("stay", IntentReport.DECIDED_BY_CHAIN, 3)

        beyond = Action(verb="move", entity="blue_square", placement="panel7")  # out of reach: the twin decides
        cell.tell(3, head(ACT, beyond))
        cell.open(3)
        report = cell.report(3)
        assert (report.action, report.decided_by) == (beyond, IntentReport.DECIDED_BY_CHAIN)

        ball = Action(verb="move", entity="green_ball", placement="pad4")
        wrong = [
            ("malformed", {"heads": [head(ACT, PINK)]}),
            ("malformed", {"heads": [*_nobody()[:1], head(ACT, ball), *_nobody()[2:]]}),
            ("malformed", {"heads": [*_nobody()[:1], head(9), *_nobody()[2:]]}),
            ("stale", {"epoch": 6}),  # of an older coordinator
        ]
        for slot, (kind, changes) in enumerate(wrong, 4):
            before = cell.refused(kind)
            cell.tell(slot, head(ACT, PINK), **changes)
            cell.node.wait(lambda kind=kind, before=before: cell.refused(kind) > before, f"refusal of {changes}")
            cell.tell(slot, head(WAIT))
            cell.open(slot)
            assert cell.report(slot).decided_by == IntentReport.DECIDED_BY_CHAIN

        cell.tell(8, head(ACT, PINK), twin_epoch=4)  # no answer to slot 8 of this twin
        cell.open(8)
        report = cell.report(8)
        assert (report.action.verb, report.decided_by, report.plan) == ("stay", IntentReport.DECIDED_BY_FALLBACK, 0)

        # A coordinator that was started again counts anew; so does a twin.
        cell.tell(9, head(ACT, PINK), epoch=8, sequence=1, twin_epoch=6, plan=4)
        cell.open(9, epoch=6)
        report = cell.report(9, epoch=6)
        assert (report.action, report.plan) == (PINK, 4)

        cell.tell(10, head(UNPLANNED), epoch=8, sequence=2, sound=False, heads=_nobody())
        cell.open(10)
        assert cell.report(10).decided_by == IntentReport.DECIDED_BY_FALLBACK


def _nobody() -> list[ArmHead]:
    return [ArmHead(agent=arm, standing=UNPLANNED) for arm in ARMS]


def test_a_hybrid_arm_decides_by_itself_where_the_plan_does_not(tmp_path: Path) -> None:
    with agent(tmp_path, "hybrid") as cell:
        cell.tell(1, head(UNPLANNED), sound=False, heads=_nobody())
        cell.open(1)
        report = cell.report(1)
        assert report.action == PINK and report.decided_by in OWN and report.plan == 0

        cell.tell(2, head(WAIT))
        cell.open(2)
        assert cell.report(2).decided_by == IntentReport.DECIDED_BY_CHAIN

        # Its chain has ended: what the others still need is left alone.
        rest = [ActionChain(agent=arm) for arm in ARMS]
        rest[0].steps = ["move(pink_polygon, pad2)"]
        cell.tell(3, head(ENDED), remaining=rest)
        cell.open(3)
        report = cell.report(3)
        assert report.action.entity != "pink_polygon" and report.decided_by in OWN

        cell.open(4)  # nobody says anything of it
        report = cell.report(4)
        assert report.action == PINK and report.decided_by in OWN

        cell.open(5)  # it was waited for once, not again in every slot
        report = cell.report(5)
        assert report.decided_by in OWN and report.decision_time < 2.0

        # A coordinator is heard again, also one whose clock was set back; from then on it is waited for.
        cell.tell(5, head(WAIT), epoch=6)
        cell.node.spin(0.3)
        cell.open(6)
        cell.node.spin(0.3)
        cell.tell(6, head(WAIT), epoch=6)
        assert cell.report(6).decided_by == IntentReport.DECIDED_BY_CHAIN


# -- the whole graph -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("control", ["planned", "hybrid"])
def test_a_team_with_a_plan_sorts_although_its_coordinator_is_killed(tmp_path: Path, control: str) -> None:
    """Killed in the middle of the episode: the planned arms hold until it is back, the hybrid ones go on."""
    graph = specs(tmp_path, control=control, seeds=(1,), detector="never", real_time_factor=4.0)
    with running(graph, tmp_path) as runner, probe() as node:
        states = node.record(PlanState, topics.PLAN_STATE, qos.PLAN_STATE)
        reports = node.record(IntentReport, topics.INTENTS, qos.REPORTS)

        def in_the_middle() -> bool:
            assert not runner._supervise(), "the run is over"
            return bool(states) and states[-1].slot >= 2 and states[-1].sound

        node.wait(in_the_middle, "the second slot", 60.0)
        os.kill(runner.pid("coordinator"), signal.SIGKILL)
        killed = len(reports)
        node.wait(runner._supervise, "the end of the run", 60.0)
    (ended,) = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert (ended["seed"], ended["success"], ended["arm_contacts"], ended["control"]) == (1, True, 0, control)
    assert ended["plan_calls"] >= 1 and ended["plan_bytes"] > 0
    by_chain = [r for r in reports if r.decided_by == IntentReport.DECIDED_BY_CHAIN]
    assert by_chain and all(r.plan > 0 for r in by_chain)
    if control == "planned":
        assert set(ended["decided_by"]) <= {"chain", "fallback"}
        assert ended["plan_calls"] == 2
        plans = [r.plan if r.decided_by == IntentReport.DECIDED_BY_CHAIN else 0 for r in reports]
        assert max(plans[killed:]) > max(plans[:killed])  # nobody but the second coordinator could have ended the hold
    else:
        assert any(r.decided_by in OWN for r in reports[killed:])
