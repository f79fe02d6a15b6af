"""The list of processes that make up a cell, from its scenario. ``launch/*.launch.py`` and the runner both start it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from polyarm_core.cell import cell_path, load_cell
from polyarm_core.control.modes import Control
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
    control: str = "reactive"
    disturb: str = "none"
    coordinator: str = "search"  # or BACKEND:NAME of a model, or the name of one of the scenario's
    detector: str = ""  # of stale plans: never, closed, bilinear, path of weights; empty = closed where weights are


CONTROLS = tuple(control.value for control in Control)
DISTURBANCES = ("none", "standard", "severe")
STUCK = 24  # slots without an admitted action that a team which follows a plan, or is disturbed, may take
SEARCH = "search"  # the coordinator that needs no model
# What coordinator:=BACKEND:NAME leaves open; a plan takes longer than a decision.
PLAIN = ModelSpec(backend="transformers", timeout=60.0)
NEVER = "never"  # no detector
DETECTOR = "closed"  # of those that come with the package
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
    if options.control not in CONTROLS:
        raise UnknownName("control", options.control, CONTROLS)
    if options.disturb not in DISTURBANCES:
        raise UnknownName("disturb", options.disturb, DISTURBANCES)
    if options.disturb != "none" and options.cell:
        raise InvalidValue("disturb", options.disturb, "'none' in a real cell")
    if options.execution == "optimistic" and options.real_time_factor == 0.0:
        raise InvalidValue("real_time_factor", 0.0, "a factor above 0 in optimistic execution")
    cell = "/" + options.namespace.strip("/")
    out = Path(options.out)
    common = {"scenario": str(options.scenario), "use_sim_time": options.use_sim_time}
    execution = {"execution": options.execution}
    planned = options.control != Control.REACTIVE.value
    detector = _detector_of(scenario, options) if planned else NEVER
    thinker = _coordinator_model(scenario, options) if planned else None

    specs: list[NodeSpec] = []
    arms = list(options.arms) or list(scenario.arms)
    chosen = {arm: _model_of(scenario, arm, options) for arm in arms}
    servers: dict[str, ModelSpec] = {}
    if options.control != Control.PLANNED.value and not options.model_url:  # where the arms decide by themselves
        servers = {key: spec for key, spec in chosen.values() if spec.backend == "transformers"}
    # The coordinator has a server of its own: while it writes a plan, the arms' own must answer.
    thinking_server = "coordinator" if "coordinator" not in servers else "coordinator_plans"
    if thinker is not None and thinker.backend == "transformers":
        servers[thinking_server] = thinker
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
                    else {"real_time_factor": float(options.real_time_factor), "disturb": options.disturb}
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
    if planned:
        parameters: dict[str, Any] = {**common, "control": options.control, "coordinator": options.coordinator}
        parameters["detector"] = detector != NEVER
        if thinking_server in servers:
            parameters["model_port_file"] = str(_port_file(out, thinking_server))
        elif thinker is not None and options.model_url:
            parameters["model_url"] = options.model_url
        specs.append(NodeSpec("coordinator", "coordinator", cell, parameters, respawn=True))
    if detector != NEVER:
        specs.append(NodeSpec("psd", "psd", cell, {**common, "detector": detector}, respawn=True))
    for arm in arms:
        key, spec = chosen[arm]
        parameters = {**common, "arm": arm, "stay_patience": options.stay_patience, "control": options.control}
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
                "control": options.control,
                "disturb": options.disturb,
                "detector": detector != NEVER,
                **({"stuck_after": STUCK} if planned or options.disturb != "none" else {}),
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


def _coordinator_model(scenario: Scenario, options: GraphOptions) -> ModelSpec | None:
    """The coordinator's model; None where it searches."""
    name = options.coordinator
    if name == SEARCH:
        return None
    spec = scenario.models[name] if name in scenario.models else parse_model(name, PLAIN)
    if spec.backend == "heuristic" or (not spec.name and spec.backend != "server"):
        raise InvalidValue("coordinator", name, f"{SEARCH!r}, or BACKEND:NAME of a model that can write")
    return spec


def _detector_of(scenario: Scenario, options: GraphOptions) -> str:
    """The detector of stale plans: never, a name of those that come with the package, or a path of weights.

    Raises:
        UnknownName: one was asked for of which there are no weights.
    """
    if options.detector == NEVER:
        return NEVER
    from polyarm_core.domains.arms import ArmsDomain
    from polyarm_core.psd.detector import LearnedDetector, find_weights

    try:
        path = find_weights(options.detector or DETECTOR)
        if not options.detector:
            LearnedDetector.load(ArmsDomain(scenario), path)
    except (UnknownName, InvalidValue):
        if options.detector:
            raise
        return NEVER  # there are no weights, or the scenario is too large for them
    return options.detector or DETECTOR


def _port_file(out: Path, key: str) -> Path:
    return out / "models" / f"{key}.port"
