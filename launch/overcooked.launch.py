"""A kitchen, or another world that moves in frames: plant, coordinator, detector of stale plans, one agent a cook.

ros2 launch polyarm overcooked.launch.py layout:=coordination_ring setting:=dynamic record:=true seeds:=0-4

The list of processes is that of `polyarm play`: polyarm_nodes.domain_graph.build_domain_graph makes it for both.
"""

import runpy
import time
from pathlib import Path

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration

from polyarm_core.seeds import format_seeds, parse_seeds
from polyarm_nodes.domain_graph import DomainOptions, build_domain_graph

DEFAULTS = DomainOptions()
CELL = Path(__file__).with_name("cell.launch.py")

# name, default, meaning, choices
ARGUMENTS = [
    ("layout", DEFAULTS.domain.removeprefix("overcooked:"), "of the kitchen", None),
    ("domain", "", "another world than a kitchen, e.g. moba", None),
    (
        "method",
        DEFAULTS.method,
        "COORDINATOR+TRIGGER[+repair] (docs/overcooked.md); empty = the domain's default",
        None,
    ),
    ("setting", DEFAULTS.setting, "events: standard (none), dynamic, held_out, the name of one, rateP", None),
    ("plant", DEFAULTS.plant, "package (overcooked_ai) or own; empty = package in kitchens", None),
    ("seeds", format_seeds(list(DEFAULTS.seeds)), "episodes to run, one a seed: 0-19 or 0,3,5", None),
    ("record", str(DEFAULTS.record).lower(), "record a rosbag2 directory in out", ("true", "false")),
    ("namespace", DEFAULTS.namespace, "namespace of everything", None),
    ("log_level", "info", "of every node", ("debug", "info", "warn", "error", "fatal")),
    ("out", "", "folder for results and the bag; empty = runs/DOMAIN-TIME", None),
]


def options(context: LaunchContext) -> DomainOptions:
    """The launch arguments as options of the graph."""
    given = {name: LaunchConfiguration(name).perform(context) for name, *_ in ARGUMENTS}
    domain = given["domain"] or f"overcooked:{given['layout']}"
    return DomainOptions(
        domain=domain,
        method=given["method"],
        setting=given["setting"],
        plant=given["plant"],
        seeds=parse_seeds(given["seeds"]),
        namespace=given["namespace"],
        record=given["record"] == "true",
        out=given["out"] or f"runs/{domain.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}",
    )


def processes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """All processes of the graph."""
    chosen = options(context)
    Path(chosen.out).mkdir(parents=True, exist_ok=True)
    log_level = LaunchConfiguration("log_level").perform(context)
    process = runpy.run_path(str(CELL))["process"]
    return [process(spec, log_level) for spec in build_domain_graph(chosen)]


def generate_launch_description() -> LaunchDescription:
    """Arguments and processes."""
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=meaning, choices=choices)
        for name, default, meaning, choices in ARGUMENTS
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=processes)])
