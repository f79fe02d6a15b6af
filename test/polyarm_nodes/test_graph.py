"""The list of processes: one function for launch files and runner, and it refuses what does not exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_nodes.graph import GraphOptions, build_graph
from polyarm_nodes.runner import Runner


def names(**options: object) -> list[tuple[str, str]]:
    return [(spec.executable, spec.namespace) for spec in build_graph(GraphOptions(**options))]  # type: ignore[arg-type]


def test_one_agent_an_arm_in_its_namespace_and_one_server_a_model() -> None:
    assert names() == [
        ("model_server", "/"),
        ("mujoco_bridge", "/"),
        ("digital_twin", "/"),
        ("arm_agent", "/alice"),
        ("arm_agent", "/bob"),
        ("arm_agent", "/chad"),
        ("episode_monitor", "/"),
    ]


def test_options_reach_the_nodes() -> None:
    specs = build_graph(GraphOptions(namespace="cell", record=True, execution="optimistic", arms=["bob"], seeds=(3, 4)))
    by_name = {spec.executable: spec for spec in specs}
    assert by_name["digital_twin"].namespace == "/cell" and by_name["arm_agent"].namespace == "/cell/bob"
    assert by_name["digital_twin"].parameters["execution"] == "optimistic"
    assert by_name["mujoco_bridge"].parameters["execution"] == "optimistic"
    assert by_name["episode_monitor"].parameters["seeds"] == "3,4"
    assert "recorder" in by_name and not by_name["mujoco_bridge"].parameters["use_sim_time"]


def test_a_team_with_two_models_gets_two_servers(tmp_path: Path) -> None:
    import yaml

    from polyarm_core.scenario import config_directory

    data = yaml.safe_load((config_directory() / "scenarios" / "sort.yaml").read_text())
    data["models"]["other"] = {"backend": "transformers", "name": "a-local-folder", "dtype": "float32"}
    data["arms"]["bob"]["model"] = "other"
    path = tmp_path / "mixed.yaml"
    path.write_text(yaml.safe_dump(data))
    specs = build_graph(GraphOptions(scenario=str(path)))
    servers = [spec for spec in specs if spec.executable == "model_server"]
    assert sorted(spec.name for spec in servers) == ["model_server_other", "model_server_smollm2"]
    ports = {s.parameters["arm"]: s.parameters["model_port_file"] for s in specs if s.executable == "arm_agent"}
    assert ports["alice"] == ports["chad"] != ports["bob"]
    assert "float32" in next(s for s in servers if s.name.endswith("other")).arguments


def test_a_server_elsewhere_starts_none_here() -> None:
    specs = build_graph(GraphOptions(model="openai:some-model", model_url="http://127.0.0.1:8000"))
    assert all(spec.executable != "model_server" for spec in specs)
    agent = next(spec for spec in specs if spec.executable == "arm_agent")
    assert agent.parameters["model"] == "openai:some-model"
    assert agent.parameters["model_url"] == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scenario": "srot"}, UnknownName, "unknown scenario 'srot'; valid: .*sort"),
        ({"arms": ["dave"]}, UnknownName, "unknown arm 'dave'; valid: alice, bob, chad"),
        ({"plant": "gazebo"}, UnknownName, "unknown plant 'gazebo'; valid: .*mujoco"),
        ({"execution": "maybe"}, UnknownName, "unknown execution 'maybe'; valid: granted, optimistic"),
        ({"model": "gpt:4"}, UnknownName, "unknown model backend 'gpt'; valid: heuristic, openai"),
        ({"real_time_factor": 0.0, "execution": "optimistic"}, InvalidValue, "above 0 in optimistic execution"),
        ({"real_time_factor": -1.0}, InvalidValue, "real_time_factor = -1.0"),
    ],
)
def test_what_does_not_exist_is_refused(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_graph(GraphOptions(**options))  # type: ignore[arg-type]


def test_parameters_survive_the_command_line(tmp_path: Path) -> None:
    specs = build_graph(GraphOptions(seeds=(1, 2), out="a folder/it's"))
    monitor = next(spec for spec in specs if spec.executable == "episode_monitor")
    command = Runner(specs, tmp_path).command(monitor)
    assert "seeds:='1,2'" in command and "out:='a folder/it''s'" in command
    twin = next(spec for spec in specs if spec.executable == "digital_twin")
    assert "use_sim_time:=true" in Runner(specs, tmp_path).command(twin)


def test_graph_and_runner_need_no_ros() -> None:
    import polyarm_nodes

    for name in ("graph", "runner", "topics"):
        tree = ast.parse((Path(polyarm_nodes.__file__).parent / f"{name}.py").read_text())
        imported = {
            alias.name if isinstance(node, ast.Import) else node.module or ""
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        assert not any(module.split(".")[0] in {"rclpy", "polyarm", "std_msgs"} for module in imported), name


def test_a_real_cell_is_the_same_graph_over_its_cell_file() -> None:
    options = GraphOptions(plant="drivers", cell="sort_demo", velocity_scaling=0.2)
    simulated, real = build_graph(GraphOptions()), build_graph(options)
    assert [(s.name, s.namespace) for s in real] == [(s.name, s.namespace) for s in simulated]
    assert {s.executable for s in real} ^ {s.executable for s in simulated} == {"driver_bridge", "mujoco_bridge"}
    for spec in real:
        if spec.is_ros_node:
            assert Path(str(spec.parameters["scenario"])).name == "sort_demo.yaml"
            assert spec.parameters["use_sim_time"] is False
    plant = next(spec for spec in real if spec.name == "plant")
    assert (plant.parameters["execution"], plant.parameters["velocity_scaling"]) == ("granted", 0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": ""}, "cell = '' is not valid; expected a cell with plant 'drivers'"),
        ({"plant": "mujoco"}, "cell = 'sort_demo' is not valid; expected a cell with plant 'drivers', and none with"),
        ({"cell": "lab"}, "unknown cell 'lab'; valid: .*sort_demo"),
        ({"execution": "optimistic"}, "execution = 'optimistic' is not valid; expected 'granted' in a real cell"),
        ({"real_time_factor": 2.0}, "real_time_factor = 2.0 is not valid; expected 1 in a real cell"),
        ({"seeds": (0, 1)}, "nothing puts the entities back"),
        ({"velocity_scaling": 0.0}, "velocity_scaling = 0.0 is not valid; expected a share from 0.05 to 1"),
    ],
)
def test_what_a_real_cell_cannot_do_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(PolyarmError, match=message):
        build_graph(GraphOptions(**{"plant": "drivers", "cell": "sort_demo", **options}))  # type: ignore[arg-type]
