"""Whole episodes as processes, with faults injected on purpose: killed agents, a model server that dies or hangs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")
pytest.importorskip("polyarm.msg", reason="needs the built messages")

from harness import probe, running, specs, with_parameters
from polyarm.msg import IntentReport, SlotVerdict, WorldState

from polyarm_nodes import qos, topics
from polyarm_nodes.runner import Runner

pytestmark = pytest.mark.ros


def episodes(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]


def pid_of(runner: Runner, executable: str) -> int:
    return next(p.popen.pid for p in runner._processes if p.spec.executable == executable)


def supervised(runner: Runner, node: Any, condition: Any, what: str, deadline: float) -> None:
    """Wait like a probe does, while the runner starts dead processes again."""
    until = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < until, f"not within {deadline} s: {what}"
        runner._supervise()
        node.spin(0.1)


@pytest.mark.parametrize("execution", ["granted", "optimistic"])
@pytest.mark.parametrize("strategy", ["optimal", "maximal", "fixed_point"])
def test_a_team_without_model_and_physics_sorts(tmp_path: Path, execution: str, strategy: str) -> None:
    # Optimistic motions must outlast their verdict, so they take real time: a second, as a busy machine may take half
    # of that for the first verdict. One that ended before its veto can leave the cubes where nobody can go on.
    factor = 0.0 if execution == "granted" else 1.0
    graph = specs(tmp_path, execution=execution, strategy=strategy, seeds=(0, 1), real_time_factor=factor)
    with running(graph, tmp_path) as runner:
        assert runner.wait(deadline=90.0)
    ended = episodes(tmp_path)
    assert [(e["seed"], e["success"], e["arm_contacts"]) for e in ended] == [(0, True, 0), (1, True, 0)]
    assert all(e["reports"] == 3 * e["slots"] and e["uplink_bytes"] > 0 for e in ended)


def test_agents_killed_in_the_middle_come_back_and_the_episode_succeeds(tmp_path: Path) -> None:
    graph = specs(tmp_path, real_time_factor=1.0, seeds=(1,))
    graph = with_parameters(graph, "digital_twin", deadline=2.0)
    with running(graph, tmp_path) as runner, probe() as node:
        verdicts = node.record(SlotVerdict, topics.VERDICTS, qos.VERDICTS)
        supervised(runner, node, lambda: len(verdicts) >= 1, "first verdict", 60.0)
        for arm in ("alice", "chad"):
            os.kill(runner.pid("arm_agent", f"/{arm}"), signal.SIGKILL)
        assert runner.wait(deadline=90.0)
    assert episodes(tmp_path)[0]["success"]


def test_a_twin_killed_again_and_again_never_lets_two_entities_on_one_placement(tmp_path: Path) -> None:
    graph = specs(tmp_path, real_time_factor=1.0, seeds=(0,))
    graph = with_parameters(graph, "digital_twin", lease_duration=0.5)
    graph = with_parameters(graph, "kinematic_bridge", lease_duration=0.5)
    with running(graph, tmp_path) as runner, probe() as node:
        worlds = node.record(WorldState, topics.WORLD, qos.WORLD)
        verdicts = node.record(SlotVerdict, topics.VERDICTS, qos.VERDICTS)
        for _ in range(2):
            count = len(verdicts)
            supervised(runner, node, lambda count=count: len(verdicts) > count, "a verdict", 60.0)
            os.kill(runner.pid("digital_twin"), signal.SIGKILL)
            node.spin(0.3)
        assert runner.wait(deadline=90.0)
        node.spin(0.5)
    assert episodes(tmp_path)[0]["success"]
    for world in worlds:
        placements = [entity.placement for entity in world.entities]
        assert len(set(placements)) == len(placements)
    tokens = [v.lease.token for message in verdicts for v in message.verdicts if v.lease.token]
    assert tokens == sorted(set(tokens))


@pytest.mark.timeout(400)
def test_a_model_server_that_dies_and_one_that_hangs_take_no_arm_along(tmp_path: Path) -> None:
    """The real model. Killed: it is started again and asked again. Stopped: the arms stay after their time-out."""
    graph = specs(tmp_path, model="", seeds=(0, 1, 2, 3))
    graph = with_parameters(graph, "arm_agent", model_timeout=3.0)
    with running(graph, tmp_path) as runner, probe() as node:
        reports = node.record(IntentReport, topics.INTENTS, qos.REPORTS)

        def by(kind: int) -> int:
            return sum(report.decided_by == kind for report in reports)

        supervised(runner, node, lambda: by(IntentReport.DECIDED_BY_MODEL) >= 2, "decisions of the model", 150.0)
        agents = {arm: runner.pid("arm_agent", f"/{arm}") for arm in ("alice", "bob", "chad")}
        os.kill(pid_of(runner, "model_server"), signal.SIGKILL)
        node.spin(0.5)
        count = by(IntentReport.DECIDED_BY_MODEL)
        supervised(
            runner, node, lambda: by(IntentReport.DECIDED_BY_MODEL) > count + 1, "decisions of the second server", 120.0
        )
        hung = pid_of(runner, "model_server")
        os.kill(hung, signal.SIGSTOP)
        fallbacks = by(IntentReport.DECIDED_BY_FALLBACK)
        try:
            supervised(runner, node, lambda: by(IntentReport.DECIDED_BY_FALLBACK) > fallbacks, "arms that stay", 60.0)
        finally:
            os.kill(hung, signal.SIGCONT)
        late = [r for r in reports if r.decided_by == IntentReport.DECIDED_BY_FALLBACK]
        assert all(report.action.verb == "stay" and report.decision_time < 8.0 for report in late)
        assert agents == {arm: runner.pid("arm_agent", f"/{arm}") for arm in agents}  # none was started again
        assert runner.wait(deadline=150.0)
    assert [e["success"] for e in episodes(tmp_path)].count(True) >= 3
