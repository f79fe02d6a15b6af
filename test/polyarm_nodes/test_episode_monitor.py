"""The episode monitor as a process of its own, opposite a cell that the test plays over the wire."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")
pytest.importorskip("polyarm.msg", reason="the messages are not built")

import rclpy
from polyarm.msg import (
    Action,
    ActionResult,
    ArmState,
    ArmVerdict,
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
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.serialization import serialize_message

from polyarm_core.episode import VETO_RULES
from polyarm_core.orchestrator import Rule
from polyarm_core.slots import TwinRule
from polyarm_nodes import qos, topics

pytestmark = pytest.mark.ros
SLOTS = 3


class PlayedCell(Node):
    """Plant, twin and one agent of a cell, as seen from the monitor: each reset leads to three slots.

    ``solve``: the third slot brings success. ``refuse``: so many resets are refused before one is granted.
    """

    def __init__(self, context: Context, *, solve: bool = True, refuse: int = 0) -> None:
        super().__init__("played_cell", namespace="/cell", context=context)
        self.solve = solve
        self.refuse_left = refuse
        self.episode = 0
        self.seed = 0
        self.slot = 0
        self.requested: list[int] = []
        self.report_sizes: list[int] = []
        self.results: list[EpisodeResult] = []
        self._worlds = self.create_publisher(WorldState, topics.WORLD, qos.WORLD)
        self._openings = self.create_publisher(SlotOpening, topics.SLOT_OPENING, qos.OPENINGS)
        self._reports = self.create_publisher(IntentReport, topics.INTENTS, qos.REPORTS)
        self._verdicts = self.create_publisher(SlotVerdict, topics.VERDICTS, qos.kept(qos.VERDICTS))
        self._actions = self.create_publisher(ActionResult, topics.ACTION_RESULTS, qos.RESULTS)
        self.create_service(ResetWorld, topics.RESET_WORLD, self._on_reset)
        self.create_subscription(EpisodeResult, topics.EPISODE_RESULT, self.results.append, qos.EPISODE)
        self.create_timer(0.05, self._on_tick)

    def _on_reset(self, request: ResetWorld.Request, response: ResetWorld.Response) -> ResetWorld.Response:
        self.requested.append(request.seed)
        if self.refuse_left:
            self.refuse_left -= 1
            response.message = "busy"
            return response
        self.episode += 1
        self.seed = request.seed
        self.slot = 0
        response.success = True
        response.episode = self.episode
        return response

    def _on_tick(self) -> None:
        if not self.episode:
            return
        if self.slot < SLOTS:
            self.slot += 1
            self._openings.publish(
                SlotOpening(episode=self.episode, slot=self.slot, epoch=1, expected=["alice", "bob"])
            )
            report = IntentReport(
                arm="alice",
                episode=self.episode,
                slot=self.slot,
                epoch=2,
                sequence=self.episode * 100 + self.slot,
                action=Action(verb="move", entity="blue_square", placement="pad2"),
                decided_by=IntentReport.DECIDED_BY_MODEL,
                model_time=0.25,
                prompt_tokens=10,
            )
            self.report_sizes.append(len(serialize_message(report)))
            self._reports.publish(report)
            self._reports.publish(IntentReport(arm="bob", episode=999, slot=self.slot, epoch=3, sequence=self.slot))
            self._verdicts.publish(
                SlotVerdict(
                    episode=self.episode,
                    slot=self.slot,
                    epoch=1,
                    verdicts=[
                        ArmVerdict(arm="alice", action=report.action, decision=ArmVerdict.DECISION_ADMIT),
                        ArmVerdict(
                            arm="bob",
                            action=Action(verb="stay"),
                            decision=ArmVerdict.DECISION_WAIT,
                            rule=ArmVerdict.RULE_SILENT,
                        ),
                    ],
                )
            )
            failed = self.slot == 1
            self._actions.publish(
                ActionResult(
                    episode=self.episode,
                    arm="alice",
                    epoch=4,
                    sequence=self.episode * 100 + self.slot,
                    outcome=ActionResult.OUTCOME_FAILED if failed else ActionResult.OUTCOME_SUCCEEDED,
                )
            )
        self._worlds.publish(
            WorldState(
                episode=self.episode,
                seed=self.seed,
                epoch=4,
                sim_time=float(self.slot),
                success=self.solve and self.slot == SLOTS,
                arm_contacts=self.seed,
                arms=[ArmState(name="alice", status=ArmState.STATUS_IDLE)],
            )
        )


class PlannedCell(PlayedCell):
    """With a coordinator and a detector, once they have joined, and a plant that does not keep to the plan."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.plan_sizes: list[int] = []
        self._plans = self.create_publisher(Plan, topics.PLAN, qos.PLAN)
        self._calls = self.create_publisher(PlanCall, topics.PLAN_CALLS, qos.PLAN_CALLS)
        self._requests = self.create_publisher(ReplanRequest, topics.REPLAN_REQUESTS, qos.REPLAN_REQUESTS)
        self._detections = self.create_publisher(Detection, topics.DETECTIONS, qos.DETECTIONS)
        self._disturbances = self.create_publisher(Disturbance, topics.DISTURBANCES, qos.DISTURBANCES)

    def join(self) -> None:
        """From now on the coordinator is there."""
        self._states = self.create_publisher(PlanState, topics.PLAN_STATE, qos.PLAN_STATE)

    def _on_tick(self) -> None:
        if self.episode and self.slot < SLOTS:
            told = {"episode": self.episode, "slot": self.slot + 1, "epoch": 6, "sequence": self.slot + 1}
            for publisher, kind, more in (
                (self._plans, Plan, {"number": self.slot + 1, "reason": "start"}),
                (self._states, PlanState, {"plan": self.slot + 1, "sound": True}),
                (self._requests, ReplanRequest, {"plan": 1, "reason": "stale"}),
            ):
                message = kind(**told, **more)
                self.plan_sizes.append(len(serialize_message(message)))
                publisher.publish(message)
            source = PlanCall.SOURCE_REPAIR if self.slot else PlanCall.SOURCE_COORDINATOR
            self._calls.publish(PlanCall(**told, source=source, number=self.slot, prompt_tokens=30, tokens=4))
            self._detections.publish(Detection(**told, kind=Detection.KIND_STALL))
            self._disturbances.publish(Disturbance(**told, kind="moved"))
        super()._on_tick()


@pytest.fixture
def make_cell(ros_domain: int) -> Iterator[Callable[..., PlayedCell]]:
    """Makes cells; their nodes end with the test, since a service that nobody serves would swallow requests."""
    context = Context()
    rclpy.init(context=context, domain_id=ros_domain)
    cells: list[PlayedCell] = []

    def make(kind: type[PlayedCell] = PlayedCell, **options: Any) -> PlayedCell:
        cells.append(kind(context, **options))
        return cells[-1]

    yield make
    for cell in cells:
        cell.destroy_node()
    context.try_shutdown()


@pytest.fixture
def start(ros_domain: int, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def begin(*parameters: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "polyarm_nodes", "episode_monitor", "--ros-args", "-r", "__ns:=/cell"]
        for parameter in ("scenario:=sort", f"out:={tmp_path}", "agents:=1", "listeners:=1", *parameters):
            command += ["-p", parameter]
        environment = {
            **os.environ,
            "ROS_DOMAIN_ID": str(ros_domain),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(timeout=10)


def play(cell: Node, until: Callable[[], bool], seconds: float = 30.0) -> None:
    executor = SingleThreadedExecutor(context=cell.context)
    executor.add_node(cell)
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "timed out"
        executor.spin_once(timeout_sec=0.05)
    executor.remove_node(cell)
    executor.shutdown()


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def test_rules_are_named_as_in_the_core() -> None:
    assert {*VETO_RULES, "silent"} == {rule.value for rule in (*Rule, *TwinRule)}


def test_every_seed_becomes_an_episode_and_the_process_ends(
    make_cell: Callable[..., PlayedCell], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    cell = make_cell(refuse=1)
    process = start("seeds:=[3, 5]")
    play(cell, lambda: process.poll() is not None and len(cell.results) == 2)
    assert process.returncode == 0, process.stdout.read() if process.stdout else ""
    assert cell.requested == [3, 3, 5]  # the refused one was tried again

    written = lines(tmp_path)
    assert [line["seed"] for line in written] == [3, 5]
    for line, result, episode in zip(written, cell.results, (1, 2), strict=True):
        assert line["success"] and line["reason"] == ""
        assert line["episode"] == episode
        assert line["slots"] == SLOTS == line["reports"] == line["admitted"] == line["silent"]
        assert line["uplink_bytes"] == sum(cell.report_sizes[:SLOTS])
        assert line["failed_actions"] == 1
        assert line["arm_contacts"] == line["seed"]
        assert line["prompt_tokens"] == 10 * SLOTS
        assert line["decided_by"] == {"model": SLOTS}
        assert line["model_times"] == [0.25] * SLOTS
        assert len(line["decision_times"]) == len(line["verdict_times"]) == SLOTS
        assert line["sim_time"] == SLOTS
        for name in ("scenario", "episode", "seed", "success", "slots", "reports", "uplink_bytes", "silent"):
            assert getattr(result, name) == line[name]
        assert result.verdict_p99 == pytest.approx(line["verdict_p99"])


def test_what_plans_took_is_counted_and_no_episode_begins_without_the_coordinator(
    make_cell: Callable[..., PlayedCell], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    cell = make_cell(PlannedCell)
    assert isinstance(cell, PlannedCell)
    process = start("seeds:=3", "control:=hybrid", "disturb:=severe")
    watched = time.monotonic()
    play(cell, lambda: cell.count_subscribers("/cell/plan_state") > 0 and time.monotonic() - watched > 3.0)
    assert cell.requested == []  # everybody but the coordinator has been there for a while
    cell.join()
    play(cell, lambda: process.poll() is not None and len(cell.results) == 1)
    assert process.returncode == 0, process.stdout.read() if process.stdout else ""
    (line,) = lines(tmp_path)
    (result,) = cell.results
    assert (line["control"], line["disturb"], line["plan_calls"], line["plan_repairs"]) == ("hybrid", "severe", 1, 2)
    assert line["plan_tokens"] == 34 * SLOTS and line["plan_bytes"] == sum(cell.plan_sizes)
    assert line["detections"] == line["disturbances"] == SLOTS
    for name in ("control", "disturb", "plan_calls", "plan_repairs", "plan_tokens", "plan_bytes", "detections"):
        assert getattr(result, name) == line[name]


def test_an_interrupted_episode_is_written_down_and_a_restart_goes_on(
    make_cell: Callable[..., PlayedCell], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    cell = make_cell(solve=False)
    process = start("seeds:='3,5'")
    play(cell, lambda: cell.slot == SLOTS)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0 and "Traceback" not in output, output
    assert [(line["seed"], line["reason"]) for line in lines(tmp_path)] == [(3, "aborted")]

    cell.solve = True
    again = start("seeds:='3,5'")
    play(cell, lambda: again.poll() is not None)
    assert [(line["seed"], line["success"]) for line in lines(tmp_path)] == [(3, False), (5, True)]


def test_a_plant_that_never_grants_a_reset_ends_the_run_with_a_reason(
    make_cell: Callable[..., PlayedCell], start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    cell = make_cell(refuse=1000)
    process = start("seeds:=[3]", "reset_attempts:=2")
    play(cell, lambda: process.poll() is not None)
    assert process.returncode == 0
    assert cell.requested == [3, 3]
    (line,) = lines(tmp_path)
    assert (line["success"], line["reason"], line["text"]) == (False, "aborted", "busy")


@pytest.mark.parametrize(
    ("parameter", "named"),
    [("seeds:='4-2'", "seeds"), ("scenario:=sorting", "sort"), ("time_limit:=-1.0", "time_limit")],
)
def test_wrong_parameters_end_it_with_the_reason(
    start: Callable[..., subprocess.Popen[str]], parameter: str, named: str
) -> None:
    process = start(parameter)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 2
    assert named in output and "Traceback" not in output
