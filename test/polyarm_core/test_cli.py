"""The command line as a user meets it: help, errors, exit codes; and which libraries it loads."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarm_core import cli
from polyarm_core.bench.figures import Figures
from polyarm_core.episode import EpisodeSummary
from polyarm_core.errors import InvalidValue, PolyarmError
from polyarm_core.scenario import scenario_names
from polyarm_core.seeds import format_seeds, parse_seeds

Run = Callable[..., "Outcome"]


class Outcome:
    """Exit code and text of one call of ``main``."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def polyarm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls ``main`` in this process with the given arguments."""

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["polyarm", *arguments])
        monkeypatch.setattr(cli, "_end_in_order", lambda: None)  # pytest keeps its own handlers
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        return Outcome(int(end.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> list[cli.RunOptions]:
    """Stands in for the ROS graph, which has tests of its own: every seed above 1 fails. Returns what was asked."""
    asked: list[cli.RunOptions] = []

    def run_graph(options: cli.RunOptions, on_episode: Any, on_state: Any) -> None:
        asked.append(options)
        for number, seed in enumerate(options.seeds, start=1):
            on_state(f"seed {seed}")
            on_episode(EpisodeSummary("sort", number, seed, seed <= 1, "" if seed <= 1 else "stuck", slots=4))

    monkeypatch.setattr(cli, "_run_graph", run_graph)
    return asked


def test_help_says_how_to_begin(polyarm: Run) -> None:
    assert "polyarm run sort" in polyarm("--help").out
    for command in ("run", "bench orchestrator", "bench slot", "bench llm", "bag explain", "bag render", "scenarios"):
        outcome = polyarm(*command.split(), "--help")
        assert outcome.code == 0 and "Usage: polyarm" in outcome.out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['polyarm', '--help']\n"
        "from polyarm_core import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'mujoco', 'rclpy', 'numpy', 'scipy', 'pydantic', 'rosbags', 'ortools'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


def test_scenarios_are_listed_with_arms_and_entities(polyarm: Run) -> None:
    outcome = polyarm("scenarios")
    assert outcome.code == 0
    for word in (*scenario_names(), "alice", "panda", "blue_square", "pad2"):
        assert word in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "sorting"], ["'sorting'", "valid: ", "sort"]),
        (["run", "nowhere.yaml"], ["nowhere.yaml", "existing YAML file"]),
        (["run", "sort", "--seeds", "5-2"], ["'5-2'", "0-19"]),
        (["run", "sort", "--seed", "1", "--seeds", "2"], ["--seed", "not both"]),
        (["run", "sort", "--json", "/proc/version/x.json"], ["--json", "/proc/version/x.json"]),
        (["bag", "info", "nowhere"], ["nowhere", "rosbag2 directory"]),
        (["bag", "render", "nowhere", "--out", "x.bmp"], ["x.bmp", ".png or .gif"]),
        (["bench", "orchestrator", "--sizes", "8,none"], ["--sizes", "8,none"]),
    ],
)
def test_errors_name_the_value_and_the_alternatives_in_one_line(
    polyarm: Run, graph: list[cli.RunOptions], arguments: list[str], words: list[str]
) -> None:
    outcome = polyarm(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    for word in words:
        assert word in outcome.err
    assert not graph


def test_the_way_of_control_reaches_graph_and_figures(
    polyarm: Run, graph: list[cli.RunOptions], tmp_path: Path
) -> None:
    chosen = ["--control", "hybrid", "--disturb", "severe", "--coordinator", "openai:x", "--detector", "never"]
    target = tmp_path / "sort.json"
    outcome = polyarm("run", "sort", *chosen, "--no-record", "--out", str(tmp_path / "run"), "--json", str(target))
    assert outcome.code == 0, outcome.err
    (options,) = graph
    assert (options.control, options.disturb, options.coordinator, options.detector) == (
        "hybrid",
        "severe",
        "openai:x",
        "never",
    )
    assert all(word in json.loads(target.read_text())["command"] for word in chosen)
    assert "control: hybrid   disturbances: severe" in outcome.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "sort", "--control", "best"],
        ["run", "sort", "--strategy", "best"],
        ["nothing"],
        ["run", "sort", "--seed", "-1"],
    ],
)
def test_wrong_usage_ends_with_code_2(polyarm: Run, arguments: list[str]) -> None:
    assert polyarm(*arguments).code == 2


def test_a_run_is_summed_up_and_written(polyarm: Run, graph: list[cli.RunOptions], tmp_path: Path) -> None:
    target = tmp_path / "sort.json"
    outcome = polyarm("run", "sort", "--seeds", "0,1", "--out", str(tmp_path / "run"), "--json", str(target))
    assert outcome.code == 0, outcome.err
    (options,) = graph
    assert options.seeds == (0, 1) and options.record and options.real_time_factor == 0.0
    assert (options.control, options.disturb, options.coordinator, options.detector) == (
        "reactive",
        "none",
        "search",
        "",
    )
    assert (options.execution, options.strategy, options.out) == ("granted", "optimal", tmp_path / "run")
    data = json.loads(target.read_text())
    assert data["command"].startswith("polyarm run sort --seeds 0-1 ") and str(tmp_path) not in data["command"]
    assert data["seeds"] == [0, 1]
    figures = data["figures"]
    assert figures["sort.success_rate"] == 1.0 and figures["sort.episodes"] == 2
    assert figures["sort.distinct_starts"] == 2
    for name, value in figures.items():  # what is on the screen is what is in the file
        assert name in outcome.out or name.rpartition(".")[0] in outcome.out, name
        if name.endswith("success_rate"):
            assert f"{100 * value:.1f} %" in outcome.out
    assert "seed 0: success in 4 slots, vetoes 0, contacts 0" in outcome.out
    assert "grasp: friction" in outcome.out


def test_a_failed_episode_ends_the_run_with_code_1(polyarm: Run, graph: list[cli.RunOptions], tmp_path: Path) -> None:
    outcome = polyarm("run", "sort", "--seeds", "1-2", "--out", str(tmp_path / "run"), "--no-record", "--no-headless")
    assert outcome.code == 1
    assert "stuck" in outcome.out
    assert graph[0].real_time_factor == 1.0 and not graph[0].record


def test_a_folder_that_holds_a_run_is_not_mixed_with_another(
    polyarm: Run, graph: list[cli.RunOptions], tmp_path: Path
) -> None:
    (tmp_path / "episodes.jsonl").write_text("")
    outcome = polyarm("run", "sort", "--out", str(tmp_path))
    assert outcome.code == 2 and "--out" in outcome.err and not graph


def test_an_interruption_ends_with_130_and_no_traceback(polyarm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run_graph", interrupted)
    outcome = polyarm("run", "sort", "--out", "unused")
    assert outcome.code == 130 and "Traceback" not in outcome.out + outcome.err


def test_without_ros_a_run_says_what_is_missing(polyarm: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "rclpy" else real(name, *rest))
    outcome = polyarm("run", "sort", "--out", str(tmp_path / "run"))
    assert outcome.code == 2
    assert "rclpy" in outcome.err and "make env" in outcome.err


def test_a_bench_prints_and_writes_its_figures(polyarm: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import types

    def run(**options: Any) -> Figures:
        figures = Figures("polyarm bench slot", [])
        figures.distribution("slot.n3", [0.002, 0.004], ("p50", "p99"))
        figures.distribution("slot.n8", [0.004, 0.006], ("p50", "p99"))
        figures.add("slot.sizes", len(options["sizes"]))
        return figures

    monkeypatch.setitem(sys.modules, "polyarm_core.bench.slot", types.SimpleNamespace(run=run))
    monkeypatch.setattr(cli, "_need_ros", lambda: None)
    outcome = polyarm("bench", "slot", "--sizes", "3,8", "--json", str(tmp_path / "slot.json"))
    assert outcome.code == 0, outcome.err
    assert "slot.n3" in outcome.out and "3 ms" in outcome.out and "5 ms" in outcome.out
    assert json.loads((tmp_path / "slot.json").read_text())["figures"]["slot.n8.p50_s"] == pytest.approx(0.005)


@pytest.mark.parametrize("name", ["orchestrator", "slot", "llm"])
def test_every_bench_is_called_with_what_it_takes(polyarm: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = importlib.import_module(f"polyarm_core.bench.{name}")
    signature = inspect.signature(module.run)
    called: list[inspect.BoundArguments] = []

    def run(**options: Any) -> Figures:
        called.append(signature.bind(**options))
        figures = Figures(f"polyarm bench {name}", [])
        figures.add(f"{name}.x", 1)
        return figures

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(cli, "_need_ros", lambda: None)
    assert polyarm("bench", name).code == 0
    for key, value in called[0].arguments.items():  # the command line's defaults are the bench's own
        default = signature.parameters[key].default
        assert (tuple(value) if isinstance(value, (list, tuple)) else value) == default


def test_every_error_of_the_core_is_shown_as_one(polyarm: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise PolyarmError("the plant died")

    monkeypatch.setattr(cli, "_run_graph", broken)
    outcome = polyarm("run", "sort", "--out", "unused")
    assert (outcome.code, outcome.err) == (2, "error: the plant died\n")


@given(st.lists(st.integers(0, 40), unique=True, min_size=1, max_size=20))
def test_seeds_survive_being_written(seeds: list[int]) -> None:
    assert parse_seeds(format_seeds(seeds)) == seeds


@given(st.text(alphabet="0123456789,- x", max_size=12))
def test_seeds_are_read_or_refused(text: str) -> None:
    try:
        seeds = parse_seeds(text)
    except InvalidValue as error:
        assert repr(text) in str(error)
    else:
        assert seeds and len(set(seeds)) == len(seeds) and min(seeds) >= 0
        assert parse_seeds(format_seeds(seeds)) == seeds


@pytest.mark.parametrize("text", ["", "-1", "1-", "1,,2", "1,1", "0-3,2", "a", "0-99999", "²", "9223372036854775808"])
def test_what_is_no_list_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="seeds"):
        parse_seeds(text)
