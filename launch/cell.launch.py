"""A cell: plant, digital twin, one agent an arm, model servers, monitor and, on demand, coordinator and recorder.

ros2 launch polyarm cell.launch.py scenario:=sort record:=true seeds:=0-4

The list of processes is that of `polyarm run`: polyarm_nodes.graph.build_graph makes it for both.
"""

import time
from pathlib import Path

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction, Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import ExecutableInPackage

from polyarm_core.errors import InvalidValue
from polyarm_core.seeds import format_seeds, parse_seeds
from polyarm_nodes.graph import CONTROLS, DISTURBANCES, ENVIRONMENT, PLANTS, GraphOptions, NodeSpec, build_graph

DEFAULTS = GraphOptions()
RESPAWN_DELAY = 1.0  # s

# name, default, meaning, choices
ARGUMENTS = [
    ("scenario", DEFAULTS.scenario, "packaged scenario name or path of a scenario file", None),
    ("arms", "", "comma-separated arms that get an agent; empty = all of the scenario", None),
    ("use_sim_time", str(DEFAULTS.use_sim_time).lower(), "nodes follow the plant's /clock", ("true", "false")),
    ("record", str(DEFAULTS.record).lower(), "record a rosbag2 directory in out", ("true", "false")),
    ("namespace", DEFAULTS.namespace, "namespace of the whole cell", None),
    ("log_level", "info", "of every node", ("debug", "info", "warn", "error", "fatal")),
    ("plant", DEFAULTS.plant, "what moves the arms", tuple(PLANTS)),
    (
        "execution",
        DEFAULTS.execution,
        "move under a lease only, or before the verdict",
        ("granted", "optimistic"),
    ),
    ("strategy", DEFAULTS.strategy, "how the orchestrator resolves", ("optimal", "maximal", "fixed_point")),
    ("seeds", format_seeds(list(DEFAULTS.seeds)), "episodes to run, one a seed: 0-19 or 0,3,5", None),
    ("real_time_factor", str(DEFAULTS.real_time_factor), "1 = real time, 0 = as fast as it can", None),
    ("model", DEFAULTS.model, "BACKEND:NAME for every arm instead of the scenario's models", None),
    ("model_url", DEFAULTS.model_url, "OpenAI-compatible server of that model", None),
    (
        "control",
        DEFAULTS.control,
        "each arm's model, the coordinator's chains, or chains where there are any",
        CONTROLS,
    ),
    ("disturb", DEFAULTS.disturb, "what happens beside what the arms do; simulation only", DISTURBANCES),
    ("coordinator", DEFAULTS.coordinator, "search, or BACKEND:NAME of a model, for control planned or hybrid", None),
    ("detector", DEFAULTS.detector, "never, closed, bilinear or a path of weights; empty = closed where it can", None),
    ("cell", DEFAULTS.cell, "cell name or path of a cell file, for plant:=drivers", None),
    ("velocity_scaling", str(DEFAULTS.velocity_scaling), "share of the cell's speeds, for plant:=drivers", None),
    ("out", "", "folder for results and the bag; empty = runs/SCENARIO-TIME", None),
]


def number(name: str, text: str) -> float:
    """The value of a launch argument that is a number.

    Raises:
        InvalidValue: it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(name, text, "a number, 0 or above") from None


def options(context: LaunchContext) -> GraphOptions:
    """The launch arguments as options of the graph."""
    given = {name: LaunchConfiguration(name).perform(context) for name, *_ in ARGUMENTS}
    stem = Path(given["scenario"]).stem
    numbers = {name: number(name, given[name]) for name in ("real_time_factor", "velocity_scaling")}
    return GraphOptions(
        scenario=given["scenario"],
        arms=[name.strip() for name in given["arms"].split(",") if name.strip()],
        namespace=given["namespace"],
        use_sim_time=given["use_sim_time"] == "true",
        record=given["record"] == "true",
        plant=given["plant"],
        execution=given["execution"],
        strategy=given["strategy"],
        real_time_factor=numbers["real_time_factor"],
        seeds=parse_seeds(given["seeds"]),
        out=given["out"] or f"runs/{stem}-{time.strftime('%Y%m%d-%H%M%S')}",
        model=given["model"],
        model_url=given["model_url"],
        control=given["control"],
        disturb=given["disturb"],
        coordinator=given["coordinator"],
        detector=given["detector"],
        cell=given["cell"],
        velocity_scaling=numbers["velocity_scaling"],
    )


def process(spec: NodeSpec, log_level: str) -> LaunchDescriptionEntity:
    """One process of the graph as a launch action."""
    life = {"respawn": spec.respawn, "respawn_delay": RESPAWN_DELAY, "output": "both", "additional_env": ENVIRONMENT}
    if spec.ends_run:
        life["on_exit"] = Shutdown(reason=f"{spec.name} has finished")
    elif not spec.respawn:
        life["on_exit"] = Shutdown(reason=f"{spec.name} ended, and the cell cannot go on without it")
    if not spec.is_ros_node:
        program = ExecutableInPackage(package=spec.package, executable=spec.executable)
        return ExecuteProcess(cmd=[program, *spec.arguments], name=spec.name, **life)
    # Launch would read the string "1" as a number; a parameter keeps the type that the graph gave it.
    parameters = {name: ParameterValue(value, value_type=type(value)) for name, value in spec.parameters.items()}
    return Node(
        package=spec.package,
        executable=spec.executable,
        name=spec.name,
        namespace=spec.namespace,
        parameters=[parameters],
        remappings=list(spec.remappings),
        ros_arguments=["--log-level", log_level],
        **life,
    )


def processes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """All processes of the graph."""
    chosen = options(context)
    Path(chosen.out).mkdir(parents=True, exist_ok=True)
    log_level = LaunchConfiguration("log_level").perform(context)
    return [process(spec, log_level) for spec in build_graph(chosen)]


def generate_launch_description() -> LaunchDescription:
    """Arguments and processes."""
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=meaning, choices=choices)
        for name, default, meaning, choices in ARGUMENTS
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=processes)])
