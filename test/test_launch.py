"""The launch files: their arguments everywhere, and with the real launch and launch_ros where these are installed."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyarm_core.errors import PolyarmError, UnknownName
from polyarm_nodes.graph import GraphOptions, build_graph

LAUNCH = Path(__file__).resolve().parents[1] / "launch"
FILES = sorted(LAUNCH.glob("*.launch.py"))
# The checkout has a folder of that name, which Python would take for a namespace package: the class tells them apart.
_spec = importlib.util.find_spec("launch")
NO_LAUNCH = _spec is None or _spec.origin is None or importlib.util.find_spec("launch_ros") is None
needs_launch = pytest.mark.skipif(NO_LAUNCH, reason="launch and launch_ros are not installed (no wheels of them exist)")


def table() -> list[tuple[str, ast.expr]]:
    """Rows of ARGUMENTS in cell.launch.py: names and expressions of their defaults, read without importing launch."""
    tree = ast.parse((LAUNCH / "cell.launch.py").read_text(encoding="utf-8"))
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ARGUMENTS"
    ]
    assert isinstance(value, ast.List)
    rows = []
    for row in value.elts:
        assert isinstance(row, ast.Tuple) and isinstance(row.elts[0], ast.Constant)
        rows.append((str(row.elts[0].value), row.elts[1]))
    return rows


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_launch_file_compiles_and_has_the_entry_point(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    compile(tree, str(path), "exec")
    assert "generate_launch_description" in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_arguments_are_the_usual_ones_and_reach_the_graph() -> None:
    names = [name for name, _ in table()]
    assert {"scenario", "arms", "use_sim_time", "record", "namespace", "log_level"} <= set(names)
    assert len(names) == len(set(names))
    options = {field.name for field in dataclasses.fields(GraphOptions)}
    assert set(names) - {"log_level"} <= options
    source = (LAUNCH / "cell.launch.py").read_text(encoding="utf-8")
    (call,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "GraphOptions" and node.keywords
    ]
    assert {keyword.arg for keyword in call.keywords} == set(names) - {"log_level"}


def test_every_thin_launch_file_has_its_scenario() -> None:
    scenarios = {path.stem for path in (LAUNCH.parent / "config" / "scenarios").glob("*.yaml")}
    thin = {path.name.removesuffix(".launch.py") for path in FILES} - {"cell", "overcooked"}
    assert "sort" in thin and thin <= scenarios
    for name in thin:
        assert f'"scenario": "{name}"' in (LAUNCH / f"{name}.launch.py").read_text(encoding="utf-8")


def load(arguments: dict[str, str], name: str = "cell") -> list[Any]:
    """Load a launch file with the real launch and visit it as `ros2 launch` does, without starting its processes."""
    from launch import LaunchContext
    from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
    from launch.launch_description_sources import PythonLaunchDescriptionSource

    context = LaunchContext()
    found: list[Any] = []

    def visit(entity: Any) -> None:
        if isinstance(entity, (DeclareLaunchArgument, OpaqueFunction, IncludeLaunchDescription)) or hasattr(
            entity, "entities"
        ):
            for part in entity.visit(context) or []:
                visit(part)
        elif hasattr(entity, "cmd"):
            found.append(entity)
        else:
            entity.visit(context)

    visit(
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(str(LAUNCH / f"{name}.launch.py")), launch_arguments=arguments.items()
        )
    )
    return found


@needs_launch
@pytest.mark.ros
def test_launch_and_runner_start_the_same_list(tmp_path: Path) -> None:
    arguments = {"scenario": "sort", "record": "true", "namespace": "cell_a", "seeds": "3-5", "out": str(tmp_path)}
    actions = load(arguments)
    specs = build_graph(
        GraphOptions(scenario="sort", record=True, namespace="cell_a", seeds=[3, 4, 5], out=str(tmp_path))
    )
    assert len(actions) == len(specs)
    from launch_ros.actions import Node

    for action, spec in zip(actions, specs, strict=True):
        assert isinstance(action, Node) == spec.is_ros_node
        if spec.is_ros_node:
            assert (action.node_package, action.node_executable) == (spec.package, spec.executable)


@needs_launch
@pytest.mark.ros
def test_wrong_arguments_are_refused_with_the_alternatives(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"alice.*bob.*chad"):
        load({"arms": "alice,zoe", "out": str(tmp_path)})
    for wrong in ({"seeds": "three"}, {"real_time_factor": "fast"}, {"scenario": "sortt"}):
        with pytest.raises(PolyarmError):
            load({**wrong, "out": str(tmp_path)})
    with pytest.raises(RuntimeError, match="granted"):
        load({"execution": "hopeful", "out": str(tmp_path)})


RUN = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
service = LaunchService()
arguments = [argument.split(":=", 1) for argument in sys.argv[2:]]
service.include_launch_description(
    LaunchDescription(
        [IncludeLaunchDescription(PythonLaunchDescriptionSource(sys.argv[1]), launch_arguments=arguments)]
    )
)
sys.exit(service.run())
"""


def start(tmp_path: Path, *arguments: str, name: str = "sort") -> subprocess.Popen[str]:
    """`ros2 launch polyarm NAME.launch.py ...` without the command line of ROS 2, which has no wheel either."""
    command = [sys.executable, "-c", RUN, str(LAUNCH / f"{name}.launch.py"), f"out:={tmp_path}", *arguments]
    environment = {**os.environ, "ROS_LOG_DIR": str(tmp_path / "log")}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, env=environment
    )


@needs_launch
@pytest.mark.ros
def test_launched_cell_sorts_and_ends_by_itself(tmp_path: Path) -> None:
    """The whole graph on the plant that needs no physics; with MuJoCo and a language model it is `make demo`."""
    arguments = ("plant:=kinematic", "model:=heuristic:", "real_time_factor:=0", "record:=true", "seeds:=0,1")
    with start(tmp_path, *arguments) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count(": success after") == 2
    assert (tmp_path / "bag" / "metadata.yaml").is_file()
    assert "Traceback" not in output


@needs_launch
@pytest.mark.ros
def test_interrupt_ends_everything(tmp_path: Path) -> None:
    arguments = ("plant:=kinematic", "model:=heuristic:", "real_time_factor:=1", "seeds:=0-9")
    with start(tmp_path, *arguments) as process:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if "episode_monitor" in line and "started" in line:
                break
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    assert "Traceback" not in output + rest, output + rest
    assert process.returncode in (0, 1, 130)
    assert "SIGKILL" not in rest


@needs_launch
@pytest.mark.ros
def test_launch_testing(tmp_path: Path) -> None:
    """What `launch_test test/sort_launch_testing.py` does."""
    if importlib.util.find_spec("launch_testing") is None:
        pytest.skip("launch_testing is not installed (no wheel of it exists)")
    script = Path(__file__).with_name("sort_launch_testing.py")
    command = [sys.executable, "-m", "launch_testing.launch_test", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
