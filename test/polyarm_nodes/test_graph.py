"""The list of processes: one function for launch files and runner, and it refuses what does not exist."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from polyarm_core.control import episode
from polyarm_core.control.disturbance import LEVELS
from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_nodes.graph import DISTURBANCES, STUCK, GraphOptions, build_graph
from polyarm_nodes.parameters import DISTURB
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


@pytest.mark.parametrize("control", ["planned", "hybrid"])
def test_a_plan_takes_a_coordinator_and_only_arms_that_decide_a_model(control: str) -> None:
    specs = {spec.name: spec for spec in build_graph(GraphOptions(control=control, detector="never"))}
    assert ("model_server_smollm2" in specs) == (control == "hybrid")
    assert specs["coordinator"].respawn and "psd" not in specs
    for name in ("coordinator", "arm_agent", "episode_monitor"):
        assert specs[name].parameters["control"] == control
    assert specs["coordinator"].parameters["coordinator"] == "search"
    assert not specs["coordinator"].parameters["detector"] and not specs["episode_monitor"].parameters["detector"]
    # A team that follows a plan, or is disturbed, may rest for longer than one that does as it likes.
    assert specs["episode_monitor"].parameters["stuck_after"] == STUCK == episode.STUCK
    assert "stuck_after" not in build_graph(GraphOptions())[-1].parameters
    assert build_graph(GraphOptions(disturb="severe"))[-1].parameters["stuck_after"] == STUCK


def test_a_coordinator_with_a_model_has_a_server_of_its_own() -> None:
    """While it writes a plan, the arms' own model must answer, be it the same."""
    chosen = GraphOptions(control="hybrid", coordinator="transformers:smollm2-135m-instruct", detector="never")
    specs = build_graph(chosen)
    servers = [spec.name for spec in specs if spec.executable == "model_server"]
    assert servers == ["model_server_smollm2", "model_server_coordinator"]
    ports = {str(spec.parameters.get("model_port_file")) for spec in specs if spec.is_ros_node} - {"None"}
    assert {Path(port).stem for port in ports} == {"smollm2", "coordinator"}
    named = build_graph(replace(chosen, coordinator="smollm2"))  # a model of the scenario
    assert [spec.name for spec in named] == [spec.name for spec in specs]
    elsewhere = build_graph(replace(chosen, coordinator="openai:a-model", model_url="http://127.0.0.1:8000"))
    assert all(spec.executable != "model_server" for spec in elsewhere)
    (node,) = [spec for spec in elsewhere if spec.name == "coordinator"]
    assert node.parameters["model_url"] == "http://127.0.0.1:8000"


def test_weights_of_a_detector_bring_its_node(tmp_path: Path) -> None:
    for name in ("mine.npz", "mine.json"):
        (tmp_path / name).touch()
    chosen = GraphOptions(control="planned", detector=str(tmp_path / "mine.npz"))
    specs = {spec.name: spec for spec in build_graph(chosen)}
    assert specs["psd"].parameters["detector"] == str(tmp_path / "mine.npz") and specs["psd"].respawn
    assert specs["coordinator"].parameters["detector"] and specs["episode_monitor"].parameters["detector"]
    assert "psd" not in {spec.name for spec in build_graph(replace(chosen, control="reactive"))}


def test_disturbances_are_the_plants_affair() -> None:
    specs = build_graph(GraphOptions(disturb="standard"))
    assert {spec.name for spec in specs if spec.parameters.get("disturb") == "standard"} == {"plant", "episode_monitor"}
    assert tuple(LEVELS) == DISTURBANCES == DISTURB.choices


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"control": "planed"}, UnknownName, "unknown control 'planed'; valid: hybrid, planned, reactive"),
        ({"disturb": "mild"}, UnknownName, "unknown disturb 'mild'; valid: none, severe, standard"),
        ({"control": "planned", "coordinator": "heuristic"}, InvalidValue, "a model that can write"),
        ({"control": "planned", "coordinator": "gpt:4"}, UnknownName, "unknown model backend 'gpt'"),
        ({"control": "planned", "detector": "nose"}, UnknownName, "unknown detector 'nose'"),
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
    planned = build_graph(replace(options, control="hybrid", detector="never"))
    assert {s.name for s in planned} - {s.name for s in real} == {"coordinator"}
    for spec in [*real, *planned]:
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
        ({"disturb": "severe"}, "disturb = 'severe' is not valid; expected 'none' in a real cell"),
        ({"velocity_scaling": 0.0}, "velocity_scaling = 0.0 is not valid; expected a share from 0.05 to 1"),
    ],
)
def test_what_a_real_cell_cannot_do_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(PolyarmError, match=message):
        build_graph(GraphOptions(**{"plant": "drivers", "cell": "sort_demo", **options}))  # type: ignore[arg-type]
