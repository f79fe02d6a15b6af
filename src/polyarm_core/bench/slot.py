"""``polyarm bench slot``: slot opening to verdict received by all agents, over real processes on ROS 2.

Each size starts the graph that every scenario starts, with that many agent processes and the plant without physics,
so that what is measured is the protocol: opening, deliberation, report, arbitration, verdict. Every process writes
the time of its monotonic clock, which all processes of a machine share, to a trace file; the figures come from these.
Agents use the backend ``heuristic``, whose answer takes microseconds; its time is subtracted all the same and shown.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from polyarm_core.bench.figures import Figures
from polyarm_core.errors import PolyarmError

ENTITIES_PER_ARM = 2
ACTION_DURATION = 0.05  # s; in real time, so that the plant sleeps while verdicts travel
WARM_UP = 5
# Fast DDS looks for at most 32 participants on localhost unless it is told otherwise, which takes a profile: loopback
# only, no multicast, up to 120 participants.
MANY = 24
PROFILE = """<?xml version="1.0" encoding="UTF-8"?>
<profiles xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles">
  <transport_descriptors>
    <transport_descriptor>
      <transport_id>loopback</transport_id>
      <type>UDPv4</type>
      <interfaceWhiteList><address>127.0.0.1</address></interfaceWhiteList>
      <maxInitialPeersRange>120</maxInitialPeersRange>
    </transport_descriptor>
  </transport_descriptors>
  <participant profile_name="many" is_default_profile="true">
    <rtps>
      <userTransports><transport_id>loopback</transport_id></userTransports>
      <useBuiltinTransports>false</useBuiltinTransports>
      <builtin>
        <initialPeersList><locator><udpv4><address>127.0.0.1</address></udpv4></locator></initialPeersList>
      </builtin>
    </rtps>
  </participant>
</profiles>
"""
STATISTICS = ("p10", "p50", "p90", "p99", "max")


class SlotsLost(PolyarmError):
    """A graph did not come to an end, or traces are missing."""


def slot_scenario(arms: int) -> dict[str, Any]:
    """A row of arms, each with entities left and right of it; neighbours contend for the zone between them.

    Returns:
        the content of a scenario file with ``arms`` arms and ENTITIES_PER_ARM entities for each.
    """
    placements: dict[str, Any] = {}
    entities: dict[str, Any] = {}
    start: dict[str, str] = {}
    reach: dict[str, list[str]] = {}
    for i in range(arms):
        band = reach.setdefault(f"arm{i}", [])
        for j in range(ENTITIES_PER_ARM):
            x = 4.0 * i + (1.0 if j % 2 else -1.0)
            for k, kind in enumerate(("from", "to")):
                name = f"{kind}_{i}_{j}"
                order = 2 * (ENTITIES_PER_ARM * i + j) + k
                placements[name] = {"order": order, "xyz": [x, 0.5 + 0.2 * j + 0.1 * k, 0.1], "size": [0.08, 0.08]}
                band.append(name)
            entities[f"cube_{i}_{j}"] = {
                "goal": f"to_{i}_{j}",
                "mass": 0.1,
                "shape": {"kind": "box", "size": [0.04, 0.04, 0.04]},
            }
            start[f"cube_{i}_{j}"] = f"from_{i}_{j}"
    zones = {
        f"between_{i}_{i + 1}": {"min": [4.0 * i + 0.5, 0.3], "max": [4.0 * i + 3.5, 2.0]} for i in range(arms - 1)
    }
    return {
        "name": f"slot_bench_{arms}",
        "description": "Each arm puts its entities one place further.",
        "arms": {
            f"arm{i}": {
                "robot": "none",
                "base": {"xyz": [4.0 * i, 0.0, 0.0]},
                "reach": reach[f"arm{i}"],
                "model": "none",
            }
            for i in range(arms)
        },
        "models": {"none": {"backend": "heuristic"}},
        "placements": placements,
        "entities": entities,
        "zones": zones,
        "start": {"at": start},
        "success": {"tolerance": 0.02},
        "slots": {"limit": 80, "deadline": 10.0},
    }


def run(sizes: Sequence[int] = (1, 3, 8, 16, 32), slots: int = 200) -> Figures:
    """Measure each size.

    Args:
        sizes: numbers of agent processes.
        slots: slots that are measured for each.

    Returns:
        for each size N: ``slot.nN.p50_s`` and other percentiles from the opening sent to the verdict received by the
        last agent, model time excluded; ``.report_p50_s`` (until the last report was sent), ``.model_p50_s``,
        ``.slots``, ``.lost`` (verdicts that some agent never received), ``.processes``.

    Raises:
        SlotsLost: a graph did not end in time.
    """
    from rich.progress import Progress

    figures = Figures(f"polyarm bench slot --sizes {','.join(map(str, sizes))} --slots {slots}", range(1))
    with Progress(transient=True) as progress, tempfile.TemporaryDirectory(prefix="polyarm-slot-") as folder:
        task = progress.add_task("slots", total=len(sizes))
        for size in sizes:
            progress.update(task, description=f"{size} agents")
            _measure(figures, size, slots, Path(folder) / f"n{size}")
            progress.advance(task)
    return figures


def _measure(figures: Figures, size: int, slots: int, out: Path) -> None:
    from polyarm_nodes.graph import GraphOptions, build_graph
    from polyarm_nodes.runner import Runner

    out.mkdir(parents=True)
    path = out / "scenario.yaml"
    path.write_text(yaml.safe_dump(slot_scenario(size)), encoding="utf-8")
    # An episode takes at least ENTITIES_PER_ARM slots (more where neighbours contend).
    episodes = -(-(slots + WARM_UP) // ENTITIES_PER_ARM)
    specs = build_graph(
        GraphOptions(
            scenario=str(path),
            plant="kinematic",
            real_time_factor=1.0,
            seeds=range(episodes),
            out=str(out),
            guard_dead_ends=False,  # every state of this scenario reaches the goal
        )
    )
    # Worlds between the slots are not what is measured, and 32 agents that unpack ten of them a second fill a core.
    extra: dict[str, dict[str, Any]] = {"kinematic_bridge": {"action_duration": ACTION_DURATION, "world_period": 1.0}}
    for index, spec in enumerate(specs):
        if spec.executable in ("arm_agent", "digital_twin"):
            extra[f"{spec.name}{index}"] = {"trace_file": str(out / f"{spec.name}{index}.trace")}
    traced = [
        replace(
            spec,
            parameters={
                **spec.parameters,
                **extra.get(spec.executable, {}),
                **extra.get(f"{spec.name}{index}", {}),
            },
        )
        for index, spec in enumerate(specs)
    ]
    domain = {} if "ROS_DOMAIN_ID" in os.environ else {"ROS_DOMAIN_ID": str(1 + os.getpid() % 100)}
    environment = {**domain, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    if size > MANY:
        profile = out / "fastdds.xml"
        profile.write_text(PROFILE, encoding="utf-8")
        environment["FASTRTPS_DEFAULT_PROFILES_FILE"] = str(profile)
        environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "SYSTEM_DEFAULT"
    with Runner(traced, out, "warn", environment) as runner:
        if not runner.wait(deadline=120.0 + 5.0 * size + 0.5 * slots):
            raise SlotsLost(f"{size} agents: {episodes} episodes did not end in time")
    _add(figures, size, slots, out)


def _add(figures: Figures, size: int, slots: int, out: Path) -> None:
    opened: dict[tuple[int, int], int] = {}
    for line in (_only(out, "digital_twin*.trace")).read_text().splitlines():
        episode, slot, at = map(int, line.split())
        opened[episode, slot] = at
    reported: dict[tuple[int, int], list[tuple[int, int]]] = {key: [] for key in opened}
    received: dict[tuple[int, int], list[int]] = {key: [] for key in opened}
    for path in out.glob("arm_agent*.trace"):
        for line in path.read_text().splitlines():
            words = line.split()
            key = (int(words[0]), int(words[1]))
            if words[2] == "reported":
                reported[key].append((int(words[3]), int(words[4])))
            else:
                received[key].append(int(words[3]))
    # The last slot is cut off by the end of the run.
    keys = sorted(opened)[WARM_UP:-1][:slots]
    complete = [key for key in keys if len(received[key]) == size and len(reported[key]) == size]
    if not complete:
        raise SlotsLost(f"{size} agents: of {len(keys)} slots none was traced by all agents")
    totals, reports, models = [], [], []
    for key in complete:
        last_report, model = max(reported[key])
        models.append(model * 1e-9)
        reports.append((last_report - opened[key]) * 1e-9)
        totals.append((max(received[key]) - opened[key] - model) * 1e-9)
    name = f"slot.n{size}"
    figures.distribution(name, totals, STATISTICS)
    figures.distribution(f"{name}.report", reports, ("p50", "p99"))
    figures.distribution(f"{name}.model", models, ("p50", "p99"))
    figures.add(f"{name}.slots", len(keys))
    figures.add(f"{name}.lost", sum(size - len(received[key]) for key in keys))


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise SlotsLost(f"expected one {pattern}, found {len(found)}")
    return found[0]
