"""The list of processes that make up a cell, from its scenario. ``launch/*.launch.py`` and the runner both start it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyarm_core.cell import cell_path, load_cell
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.scenario import ModelSpec, Scenario, load_scenario, parse_model

# Several processes share few cores: one spinning OpenMP thread too many stalls them all.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
}


@dataclass(frozen=True)
class NodeSpec:
    """One process of the graph.

    Attributes:
        executable: name for ``ros2 run polyarm``; a node of polyarm_nodes, or ``model_server``.
        name: node name.
        namespace: absolute namespace.
        parameters: ROS parameters.
        arguments: command line of an executable that is no ROS node.
        respawn: start it again when it dies.
        ends_run: its regular end is the end of the run.
    """

    executable: str
    name: str
    namespace: str = "/"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    respawn: bool = False
    ends_run: bool = False
    package: str = "polyarm"
    remappings: Sequence[tuple[str, str]] = ()

    @property
    def is_ros_node(self) -> bool:
        """Whether it takes ``--ros-args``."""
        return not self.arguments


@dataclass(frozen=True)
class GraphOptions:
    """What a user chooses beside the scenario; the launch arguments."""

    scenario: str = "sort"
    arms: Sequence[str] = ()  # only these get an agent node; empty = all
    namespace: str = ""
    use_sim_time: bool = True
    record: bool = False
    plant: str = "mujoco"
    execution: str = "granted"
    strategy: str = "optimal"
    real_time_factor: float = 1.0
    seeds: Sequence[int] = (0,)
    out: str = "runs/latest"
    model: str = ""  # BACKEND:NAME for every arm instead of the scenario's
    model_url: str = ""
    stay_patience: int = 1
    guard_dead_ends: bool = True
    cell: str = ""  # for plant "drivers": packaged cell name or path of a cell file
    velocity_scaling: float = 1.0  # for plant "drivers": share of the speeds that the cell file allows


PLANTS = {"mujoco": "mujoco_bridge", "kinematic": "kinematic_bridge", "drivers": "driver_bridge"}


def build_graph(options: GraphOptions) -> list[NodeSpec]:
    """The processes of a cell.

    Raises:
        UnknownName: a scenario, an arm or a plant that does not exist.
        InvalidValue, ScenarioError: anything else that is wrong.
    """
    scenario = load_scenario(options.scenario)
    for arm in options.arms:
        scenario.arm(arm)
    if options.plant not in PLANTS:
        raise UnknownName("plant", options.plant, PLANTS)
    if (options.plant == "drivers") != bool(options.cell):
        raise InvalidValue("cell", options.cell, "a cell with plant 'drivers', and none with any other")
    if options.cell:
        options, scenario = _in_cell(options, scenario)
    if options.execution not in ("granted", "optimistic"):
        raise UnknownName("execution", options.execution, ("granted", "optimistic"))
    if options.real_time_factor < 0.0:
        raise InvalidValue("real_time_factor", options.real_time_factor, "0 (as fast as it can) or above")
    if options.execution == "optimistic" and options.real_time_factor == 0.0:
        raise InvalidValue("real_time_factor", 0.0, "a factor above 0 in optimistic execution")
    cell = "/" + options.namespace.strip("/")
    out = Path(options.out)
    common = {"scenario": str(options.scenario), "use_sim_time": options.use_sim_time}
    execution = {"execution": options.execution}

    specs: list[NodeSpec] = []
    arms = list(options.arms) or list(scenario.arms)
    chosen = {arm: _model_of(scenario, arm, options) for arm in arms}
    servers = {key: spec for key, spec in chosen.values() if spec.backend == "transformers" and not options.model_url}
    for key, spec in servers.items():
        specs.append(
            NodeSpec(
                "model_server",
                f"model_server_{key}",
                arguments=[
                    "--model",
                    spec.name,
                    "--threads",
                    str(spec.threads),
                    "--dtype",
                    spec.dtype,
                    "--port",
                    "0",
                    "--port-file",
                    str(_port_file(out, key)),
                    "--exit-with-parent",
                ],
                respawn=True,
            )
        )
    specs.append(
        NodeSpec(
            PLANTS[options.plant],
            "plant",
            cell,
            # The plant is the source of /clock, so it runs on the system's.
            {
                **common,
                **execution,
                "use_sim_time": False,
                **(
                    {"velocity_scaling": float(options.velocity_scaling)}
                    if options.cell
                    else {"real_time_factor": float(options.real_time_factor)}
                ),
            },
        )
    )
    if options.record:
        specs.append(NodeSpec("recorder", "recorder", cell, {**common, "out": str(out / "bag")}))
    specs.append(
        NodeSpec(
            "digital_twin",
            "digital_twin",
            cell,
            {
                **common,
                **execution,
                "strategy": options.strategy,
                "guard_dead_ends": options.guard_dead_ends,
            },
            respawn=True,
        )
    )
    for arm in arms:
        key, spec = chosen[arm]
        parameters: dict[str, Any] = {**common, "arm": arm, "stay_patience": options.stay_patience}
        if options.model:
            parameters["model"] = options.model
        if options.model_url:
            parameters["model_url"] = options.model_url
        elif key in servers:
            parameters["model_port_file"] = str(_port_file(out, key))
        specs.append(NodeSpec("arm_agent", "arm_agent", f"{cell.rstrip('/')}/{arm}", parameters, respawn=True))
    specs.append(
        NodeSpec(
            "episode_monitor",
            "episode_monitor",
            cell,
            {
                **common,
                "use_sim_time": False,
                "seeds": ",".join(str(seed) for seed in options.seeds),
                "out": str(out),
                "agents": len(arms),
                "listeners": int(options.record),
            },
            ends_run=True,
        )
    )
    return specs


def _in_cell(options: GraphOptions, scenario: Scenario) -> tuple[GraphOptions, Scenario]:
    """Options and scenario of a real cell: its file is every node's scenario, and time is the clock's on the wall."""
    path = cell_path(options.cell)
    cell, measured = load_cell(path)
    if measured.name != scenario.name:
        raise InvalidValue("scenario", scenario.name, f"{measured.name!r}, for which cell {cell.cell!r} was measured")
    if options.execution != "granted":
        raise InvalidValue("execution", options.execution, "'granted' in a real cell")
    if options.real_time_factor != 1.0:
        raise InvalidValue("real_time_factor", options.real_time_factor, "1 in a real cell")
    if len(options.seeds) > 1:
        raise InvalidValue("seeds", list(options.seeds), "one in a real cell: nothing puts the entities back")
    if not 0.05 <= options.velocity_scaling <= 1.0:
        raise InvalidValue("velocity_scaling", options.velocity_scaling, "a share from 0.05 to 1")
    return replace(options, scenario=str(path.absolute()), use_sim_time=False), measured


def _model_of(scenario: Scenario, arm: str, options: GraphOptions) -> tuple[str, ModelSpec]:
    key = scenario.arm(arm).model
    spec = scenario.models[key]
    if options.model:
        return "chosen", parse_model(options.model, spec)
    return key, spec


def _port_file(out: Path, key: str) -> Path:
    return out / "models" / f"{key}.port"
