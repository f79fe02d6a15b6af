"""Worlds that move in frames through the graph: the same as in one process, whatever dies on the way."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_launch import load, needs_launch, start

from polyarm_core.bench.overcooked.methods import open_coordinator
from polyarm_core.chains.printer import format_step
from polyarm_core.chains.terms import Plan
from polyarm_core.coordinator.episode import Episode, run_episode
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.trial import (
    FILE_NAME,
    chosen_method,
    open_trial_detector,
    open_world,
    read_rows,
    schedule_of,
)
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_nodes.domain_graph import DomainOptions, build_domain_graph
from polyarm_nodes.graph import NodeSpec

KITCHEN, METHOD = "overcooked:coordination_ring", "search+closed+repair"
PLANT = "package" if importlib.util.find_spec("overcooked_ai_py") else "own"
LAUNCH = Path(__file__).resolve().parents[2] / "launch" / "overcooked.launch.py"


def graph(out: Path, **options: Any) -> list[NodeSpec]:
    """The processes of a domain."""
    return build_domain_graph(DomainOptions(out=str(out), **options))


class Carried:
    """A plant that remembers what it carried out."""

    def __init__(self, domain: Domain[Any]) -> None:
        self.domain = domain
        self.controls: list[tuple[int, ...]] = []

    def step(self, state: Any, controls: Sequence[int]) -> Any:
        self.controls.append(tuple(controls))
        return self.domain.step(state, controls)


def in_process(seed: int) -> tuple[Episode[Any], list[tuple[int, ...]]]:
    """The episode without ROS, and its controls."""
    domain, method = open_world(KITCHEN, PLANT), chosen_method(METHOD)
    plant = Carried(domain)
    episode = run_episode(
        domain,
        open_coordinator(method, domain),  # type: ignore[arg-type]
        open_trial_detector(method, domain),
        schedule_of(domain, "dynamic", seed),
        repair=Repair(domain),
        plant=plant,
        seed=seed,
        trace=True,
    )
    return episode, plant.controls


def chains(plan: Plan) -> list[tuple[str, list[str]]]:
    """A plan as a message has it."""
    return [(agent, [format_step(step) for step in chain]) for agent, chain in plan.chains]


@pytest.mark.ros
def test_frame_by_frame_what_the_episode_in_one_process_gives(tmp_path: Path) -> None:
    from harness import probe, running, with_parameters
    from polyarm.msg import (
        Detection,
        Disturbance,
        EpisodeResult,
        FrameControl,
        FrameState,
        PlanCall,
        PlanState,
        Staleness,
    )
    from polyarm.msg import Plan as PlanMessage

    from polyarm_nodes import qos, topics
    from polyarm_nodes.domain_frames import frame_from_message
    from polyarm_nodes.plan_convert import KINDS, SOURCES

    seeds = (1, 2)
    specs = graph(tmp_path, domain=KITCHEN, method=METHOD, setting="dynamic", plant=PLANT, seeds=seeds)
    for executable in ("domain_bridge", "domain_coordinator", "domain_psd", "domain_agent"):
        specs = with_parameters(specs, executable, listeners=1)
    # A verdict that is late on a busy machine would make another episode of it.
    specs = with_parameters(specs, "domain_coordinator", detector_timeout=60.0)
    with probe() as listener:

        def record(kind: type, topic: str, profile: Any) -> list[Any]:
            return listener.record(kind, topics.cell_topic("/", topic), qos.every_sample(profile))

        states = record(FrameState, topics.FRAME_STATE, qos.FRAME_STATE)
        controls = record(FrameControl, topics.FRAME_CONTROLS, qos.FRAME_CONTROLS)
        plan_states = record(PlanState, topics.PLAN_STATE, qos.PLAN_STATE)
        plans = record(PlanMessage, topics.PLAN, qos.PLAN)
        calls = record(PlanCall, topics.PLAN_CALLS, qos.PLAN_CALLS)
        detections = record(Detection, topics.DETECTIONS, qos.DETECTIONS)
        judged = record(Staleness, topics.STALENESS, qos.STALENESS)
        events = record(Disturbance, topics.DISTURBANCES, qos.DISTURBANCES)
        results = record(EpisodeResult, topics.EPISODE_RESULT, qos.EPISODE)
        with running(specs, tmp_path) as runner:

            def everything() -> bool:
                ends = [state.frame for state in states if state.ended]
                return len(ends) == len(results) == len(seeds) and len(controls) == 2 * sum(ends)

            listener.wait(everything, "the last result", 120.0)
            assert runner.wait(deadline=20.0)
            listener.spin(0.3)  # what has arrived is heard

    domain = open_world(KITCHEN)
    rows = read_rows(tmp_path / FILE_NAME)
    for number, seed in enumerate(seeds, 1):
        expected, carried = in_process(seed)
        assert expected.events and expected.stale and expected.repairs, "a dull episode proves nothing"
        frames = [frame_from_message(message, domain) for message in states if message.episode == number]

        def of(messages: list[Any], episode: int = number) -> list[Any]:
            return [message for message in messages if message.episode == episode]

        assert [frame.frame for frame in frames] == list(range(expected.frames + 1))
        assert tuple(frame.outcome for frame in frames) == expected.states
        assert tuple((frame.frame, name) for frame in frames for name in frame.happened) == expected.events
        assert tuple((message.slot, message.kind) for message in of(events)) == expected.events
        assert [frame.controls for frame in frames[1:]] == carried
        said = {(message.frame, message.agent): message.control for message in of(controls)}
        assert [tuple(said[k, agent] for agent in domain.agents) for k in range(expected.frames)] == carried
        assert len(of(controls)) == len(said)

        made = [record for record in expected.plans if record.plan is not None]
        assert [(m.slot, m.reason, [(c.agent, list(c.steps)) for c in m.chains]) for m in of(plans)] == [
            (record.frame, record.reason, chains(record.plan)) for record in made if record.plan is not None
        ]
        assert [message.number for message in of(plans)] == list(range(1, len(made) + 1))
        assert [(m.slot, m.source, m.reason, m.cause, m.number > 0, m.error) for m in of(calls)] == [
            (r.frame, SOURCES[r.source], r.reason, r.cause, r.plan is not None, r.error) for r in expected.plans
        ]
        assert [(m.slot, m.kind, tuple(m.agents), m.reason) for m in of(detections)] == [
            (
                min(found.frame + (found.kind == "chain_end"), expected.frames),
                KINDS[found.kind],
                found.agents,
                found.reason,
            )
            for found in expected.detections
        ]
        assert tuple(message.slot for message in of(judged) if message.stale) == expected.stale
        assert [message.slot for message in of(judged)] == list(range(1, expected.frames))

        # What is left of the plan before the frame is decided, and what the agents follow.
        fresh = {record.frame for record in made}
        told = {message.slot: message for message in of(plan_states) if message.heads}
        assert sorted(told) == list(range(expected.frames)) and all(message.sound for message in told.values())
        for k in set(told) - fresh:
            assert [(c.agent, list(c.steps)) for c in told[k].remaining] == chains(expected.remaining[k])

        row = rows[number - 1]
        assert (row.seed, row.success, row.frames, row.events) == (
            seed,
            expected.success,
            expected.frames,
            expected.events,
        )
        assert (row.calls, row.repairs, row.detections, row.silent) == (
            expected.calls,
            expected.repairs,
            len(expected.detections),
            0,
        )


@pytest.mark.ros
def test_whoever_dies_is_waited_for_a_while_and_comes_back(tmp_path: Path) -> None:
    """Agent 2 is the test itself, which says nothing, or nonsense; coordinator and detector are killed."""
    from diagnostic_msgs.msg import DiagnosticArray
    from harness import probe, running, with_parameters
    from polyarm.msg import FrameControl, FrameState, Plan, Staleness

    from polyarm_nodes import qos

    specs = graph(
        tmp_path, domain="overcooked:forced_coordination", method="search+oracle", plant="own", seeds=range(50)
    )
    specs = [spec for spec in specs if spec.namespace != "/agent_2"]
    specs = with_parameters(specs, "domain_bridge", control_deadline=0.2)
    specs = with_parameters(specs, "domain_coordinator", detector_timeout=0.1)
    with probe() as listener:
        states = listener.record(FrameState, "/frame_state", qos.every_sample(qos.FRAME_STATE))
        plans = listener.record(Plan, "/plan", qos.every_sample(qos.PLAN))
        judged = listener.record(Staleness, "/staleness", qos.STALENESS)
        statuses = listener.record(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        heard = listener.record(FrameControl, "/frame_controls", qos.FRAME_CONTROLS)
        controls = listener.node.create_publisher(FrameControl, "/frame_controls", qos.FRAME_CONTROLS)
        said = {"agent": "agent_2", "episode": 1, "epoch": 7, "sequence": 1, "control": 4}

        def refused() -> dict[str, str]:
            found = [s for array in statuses for s in array.status if s.name.endswith("/plant")]
            return {item.key: item.value for item in found[-1].values} if found else {}

        with running(specs, tmp_path) as runner:
            listener.wait(lambda: len(states) > 0, "the first frame", 60.0)
            for wrong in ({"control": 6}, {"agent": "agent_3"}, {"sequence": 0}, {"frame": 90}, {"episode": 2}):
                controls.publish(FrameControl(**{**said, **wrong}))
            listener.wait(lambda: refused().get("refused_malformed") == "3", "malformed controls refused")
            listener.wait(lambda: refused().get("refused_stale") == "2", "controls for other frames refused")
            listener.wait(lambda: len(states) > 2, "frames without agent 2")
            assert states[1].frame == 1 and states[1].controls[1] == 4, "agent 2 has not stayed"

            def wait(condition: Callable[[], bool], what: str) -> None:
                listener.wait(lambda: bool(runner._supervise()) or condition(), what, 60.0)

            os.kill(runner.pid("psd"), signal.SIGKILL)
            begun = states[-1].frame
            wait(lambda: states[-1].frame > begun + 1, "frames without a detector")
            before = len(judged)
            wait(lambda: len(judged) > before, "the detector's return")

            first = plans[-1]
            os.kill(runner.pid("coordinator"), signal.SIGKILL)
            wait(lambda: plans[-1].epoch != first.epoch, "a plan of the next coordinator")
            begun = len(heard)
            wait(lambda: len(heard) > begun + 1, "an agent that follows it")
            assert {message.agent for message in heard[begun:]} == {"agent_1"}


@pytest.mark.ros
def test_another_world_from_the_command_line_with_a_bag(tmp_path: Path) -> None:
    pytest.importorskip("rosbags", reason="rosbags is not installed")
    from polyarm_core.bags.reader import Bag

    command = ["play", "moba", "--seeds", "3", "--setting", "M1", "--out", str(tmp_path / "run")]
    command += ["--json", str(tmp_path / "figures.json")]
    done = subprocess.run(
        [sys.executable, "-m", "polyarm_core", *command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = read_rows(tmp_path / "run" / FILE_NAME)
    assert row.success and row.silent == 0 and row.calls
    assert "seed 3: success" in done.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert figures["moba.enemy_3.success_rate"] == 1.0
    with Bag(tmp_path / "run" / "bag") as bag:
        counts = {topic.name: topic.count for topic in bag.topics}
        assert bag.custom["domain"] == "moba:enemy_3"
    assert counts["/frame_state"] == row.frames + 1
    assert counts["/frame_controls"] == 5 * row.frames
    assert counts["/plan_calls"] >= row.calls and counts["/episode_result"] == 1


def test_a_world_that_does_not_exist_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polyarm_core", "play", "chess", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert done.stderr.startswith("error: unknown domain 'chess'; valid: ") and done.stderr.count("\n") == 1


# -- the list of processes --------------------------------------------------------------------------------------------


def test_one_agent_each_and_a_detector_where_the_method_has_one(tmp_path: Path) -> None:
    specs = graph(tmp_path, domain="overcooked:cramped_room", plant="own", namespace="kitchen", record=True)
    assert [(spec.executable, spec.namespace) for spec in specs] == [
        ("domain_bridge", "/kitchen"),
        ("domain_coordinator", "/kitchen"),
        ("domain_recorder", "/kitchen"),
        ("domain_psd", "/kitchen"),
        ("domain_agent", "/kitchen/agent_1"),
        ("domain_agent", "/kitchen/agent_2"),
    ]
    assert [spec.executable for spec in specs if spec.ends_run] == ["domain_bridge"]
    other = graph(tmp_path, domain="moba")
    assert [spec.executable for spec in other].count("domain_agent") == 5
    assert "domain_psd" not in {spec.executable for spec in other}
    assert {spec.parameters["domain"] for spec in other} == {"moba"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"domain": "overcooked:hall"}, UnknownName, "unknown layout 'hall'; valid: .*cramped_room"),
        ({"domain": "chess"}, UnknownName, "unknown domain 'chess'; valid: .*moba"),
        ({"method": "magic+never"}, UnknownName, "unknown method 'magic"),
        ({"method": "greedy"}, InvalidValue, "one with chains"),
        ({"setting": "wild"}, UnknownName, "unknown setting 'wild'; valid: .*dynamic"),
        ({"plant": "real"}, UnknownName, "unknown plant 'real'; valid: own, package"),
        ({"domain": "moba", "plant": "package"}, InvalidValue, "the package knows only kitchens"),
        ({"domain": "moba", "plant": "", "method": "search+closed"}, InvalidValue, "oracle in moba"),
        ({"seeds": ()}, InvalidValue, "at least one"),
    ],
)
def test_what_does_not_exist_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_domain_graph(DomainOptions(**{"plant": "own", **options}))


def test_the_list_needs_no_ros() -> None:
    code = (
        "import sys; from polyarm_nodes.domain_graph import DomainOptions, build_domain_graph\n"
        "build_domain_graph(DomainOptions(plant='own')); assert 'rclpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_launch_arguments_reach_the_graph() -> None:
    tree = ast.parse(LAUNCH.read_text(encoding="utf-8"))
    (table,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ARGUMENTS"
    ]
    assert isinstance(table, ast.List)
    names = [
        row.elts[0].value for row in table.elts if isinstance(row, ast.Tuple) and isinstance(row.elts[0], ast.Constant)
    ]
    assert set(names) >= {"layout", "record", "namespace", "log_level"} and len(set(names)) == len(names)
    (call,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "DomainOptions" and node.keywords
    ]
    chosen = {keyword.arg for keyword in call.keywords}
    assert chosen == {field.name for field in dataclasses.fields(DomainOptions)}
    assert chosen == set(names) - {"layout", "log_level"}


@needs_launch
@pytest.mark.ros
def test_launch_and_runner_start_the_same_list(tmp_path: Path) -> None:
    from launch_ros.actions import Node

    arguments = {"layout": "cramped_room", "plant": "own", "namespace": "a", "seeds": "3-5", "record": "true"}
    actions = load({**arguments, "out": str(tmp_path)}, "overcooked")
    specs = graph(tmp_path, domain="overcooked:cramped_room", plant="own", namespace="a", seeds=(3, 4, 5), record=True)
    assert [(a.node_package, a.node_executable) for a in actions if isinstance(a, Node)] == [
        (spec.package, spec.executable) for spec in specs
    ]
    with pytest.raises(UnknownName, match="cramped_room"):
        load({"layout": "hall", "out": str(tmp_path)}, "overcooked")


@needs_launch
@pytest.mark.ros
def test_launched_kitchen_ends_by_itself(tmp_path: Path) -> None:
    arguments = ("layout:=cramped_room", "plant:=own", "seeds:=0,1", "record:=true")
    with start(tmp_path, *arguments, name="overcooked") as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert [row.seed for row in read_rows(tmp_path / FILE_NAME)] == [0, 1]
    assert (tmp_path / "bag" / "metadata.yaml").is_file()
    assert "Traceback" not in output
