"""``polyarm bench control``: three ways to drive a team, on the same seeds and under the same disturbances.

Each task is run with every way of control (`control.modes.Control`) at every level of disturbance, in one process, on
the kinematic plant or with real physics. By default the arms' own choices are the heuristic's and plans are the
search's, so that the figures are about control and not about models.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from polyarm_core.bench.figures import Figures
from polyarm_core.errors import UnknownName

if TYPE_CHECKING:
    from polyarm_core.control.episode import ControlledSummary

TASKS = ("sort", "cabinet", "rope", "grocery")
CONTROLS = ("reactive", "planned", "hybrid")
DISTURBANCES = ("none", "standard", "severe")
PLANTS = ("kinematic", "mujoco")
MEANS = (
    "slots", "decisions", "calls", "model_calls", "tokens", "repairs", "failed_actions", "arm_contacts", "events",
    "sim_time_s", "bytes", "uplink_bytes", "plan_bytes",
)  # fmt: skip
"""Figures that are means per episode. ``bytes``: of the arms' reports (``uplink_bytes``) and of plans and what they say
in each slot (``plan_bytes``), as messages of the graph."""

Plant = Literal["kinematic", "mujoco"]
Key = tuple[str, str, str, int]
Row = dict[str, Any]


def run(
    tasks: Sequence[str] = TASKS,
    controls: Sequence[str] = CONTROLS,
    disturbances: Sequence[str] = DISTURBANCES,
    seeds: Sequence[int] = tuple(range(20)),
    plant: Plant = "kinematic",
    jobs: int = 1,
    log: Path | None = None,
    detector: str = "oracle",
    latency: float = 1.0,
) -> Figures:
    """Run every task with every way of control at every level on every seed.

    Args:
        tasks: scenario names or files.
        controls: of ``CONTROLS``.
        disturbances: of ``DISTURBANCES``.
        seeds: of starts and disturbances; the same for every way of control.
        plant: of ``PLANTS``.
        jobs: processes.
        log: file of one JSON line per episode; what it holds already is not run again. One file for one plant,
            detector and latency.
        detector: of staleness, see `control.episode.make_detector`.
        latency: simulated s that a call of the coordinator takes.

    Returns:
        for each task T, control C and level D, with prefix ``control.T.C.D``: ``.success_rate`` with its 95 %
        interval, ``.episodes``, means per episode (``MEANS``) and of replans by reason (``.replans.R``); of the plan
        held against the oracle ``.false_alarms`` per episode, ``.false_alarm_rate`` per slot in which the plan was
        good, ``.stale_plans`` and ``.missed`` in all episodes, and where there was a detection ``.delay.mean`` and
        ``.delay.max`` in slots. For each T and C the success at each level over that at ``none``
        (``control.T.C.D.kept``), and for each T, C, D the model calls over those of ``reactive`` (``.calls_share``),
        where both were run.

    Raises:
        UnknownName: a control, level, plant, detector or scenario that does not exist.
    """
    from rich.progress import Progress

    from polyarm_core.control.episode import make_detector
    from polyarm_core.domains.arms import ArmsDomain
    from polyarm_core.scenario import load_scenario
    from polyarm_core.seeds import format_seeds

    for kind, given, known in (
        ("control", controls, CONTROLS),
        ("disturb", disturbances, DISTURBANCES),
        ("plant", (plant,), PLANTS),
    ):
        for name in given:
            if name not in known:
                raise UnknownName(kind, name, known)
    names = {task: load_scenario(task).name for task in tasks}
    for task in tasks:
        make_detector(detector, ArmsDomain(load_scenario(task)))  # so that what does not fit is known now
    command = (
        f"polyarm bench control --tasks {','.join(names.values())} --controls {','.join(controls)} "
        f"--disturbances {','.join(disturbances)} --seeds {format_seeds(list(seeds))} "
        f"--plant {plant} --detector {detector}"
    )
    figures = Figures(command, seeds)
    keys: list[Key] = [(t, c, d, seed) for t in tasks for c in controls for d in disturbances for seed in seeds]
    done = dict(_read(log, keys))
    jobs_left = [(key, plant, detector, latency) for key in keys if key not in done]
    with Progress(transient=True) as progress:
        bar = progress.add_task("episodes", total=len(keys), completed=len(done))
        for key, row in _episodes(jobs_left, jobs):
            done[key] = row
            progress.update(bar, advance=1, description=f"{key[0]}, {key[1]}, {key[2]}, seed {key[3]}")
            if log is not None:
                _append(log, [*key, row])
    for task in tasks:
        for control in controls:
            for level in disturbances:
                rows = [done[task, control, level, seed] for seed in seeds]
                _add(figures, f"control.{names[task]}.{control}.{level}", rows)
    for task in tasks:
        _compare(figures, f"control.{names[task]}", controls, disturbances)
    return figures


def _add(figures: Figures, name: str, rows: Sequence[Row]) -> None:
    count = len(rows)
    figures.rate(f"{name}.success_rate", sum(bool(row["success"]) for row in rows), count)
    figures.add(f"{name}.episodes", count)
    for mean in MEANS:
        if all(mean in row for row in rows):  # a log of an older version does not have them all
            figures.add(f"{name}.{mean}", sum(row[mean] for row in rows) / count)
    replans: Counter[str] = Counter()
    for row in rows:
        replans.update(row["replans"])
    for reason, number in sorted(replans.items()):
        figures.add(f"{name}.replans.{reason}", number / count)
    good = sum(row["looks"] - row["stale_slots"] for row in rows)
    false_alarms = sum(row["false_alarms"] for row in rows)
    delays = [delay for row in rows for delay in row["delays"]]
    missed = sum(row["missed"] for row in rows)
    figures.add(f"{name}.false_alarms", false_alarms / count)
    if good:
        figures.add(f"{name}.false_alarm_rate", false_alarms / good)
    figures.add(f"{name}.stale_plans", len(delays) + missed)
    figures.add(f"{name}.missed", missed)
    if delays:
        figures.distribution(f"{name}.delay", delays, ("mean", "max"), suffix="")


def _compare(figures: Figures, name: str, controls: Sequence[str], levels: Sequence[str]) -> None:
    for control in controls:
        for level in levels:
            calm, here = f"{name}.{control}.none.success_rate", f"{name}.{control}.{level}"
            if level != "none" and calm in figures and figures[calm]:
                figures.add(f"{here}.kept", figures[f"{here}.success_rate"] / figures[calm])
            reactive = f"{name}.reactive.{level}.model_calls"
            if control != "reactive" and reactive in figures and figures[reactive]:
                figures.add(f"{here}.calls_share", figures[f"{here}.model_calls"] / figures[reactive])


def _episodes(keys: Sequence[tuple[Key, Plant, str, float]], jobs: int) -> Iterator[tuple[Key, Row]]:
    if jobs == 1:
        for job in keys:
            yield job[0], _episode(job)
        return
    # One thread a process, or the processes take the cores from each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(jobs) as pool:
        for job, row in zip(keys, pool.map(_episode, keys), strict=True):
            yield job[0], row


def _episode(job: tuple[Key, Plant, str, float]) -> Row:
    from polyarm_core.bench.tokens import CountingCoordinator, CountingModel, TokenCounter
    from polyarm_core.control.episode import run_controlled_episode
    from polyarm_core.coordinator.search import SearchCoordinator
    from polyarm_core.domains.arms import ArmsDomain
    from polyarm_core.llm.heuristic_backend import HeuristicModel
    from polyarm_core.plant.kinematic import KinematicPlant
    from polyarm_core.plant.simulation import Simulation
    from polyarm_core.scenario import load_scenario

    (task, control, level, seed), kind, detector, latency = job
    scenario = load_scenario(task)
    plant = KinematicPlant(scenario, seed) if kind == "kinematic" else Simulation(scenario, seed)
    domain, counter = ArmsDomain(scenario), TokenCounter()
    try:
        episode = run_controlled_episode(
            scenario,
            seed,
            control,
            level,
            plant=plant,
            domain=domain,
            model=CountingModel(HeuristicModel(), counter),
            coordinator=CountingCoordinator(SearchCoordinator(domain), domain, counter),
            detector=detector,
            latency=latency,
        )
    finally:
        plant.close()
    return row(episode)


def row(episode: ControlledSummary) -> Row:
    """What the log keeps of an episode."""
    summary, audit = episode.summary, episode.audit
    return {
        "success": summary.success,
        "reason": summary.reason,
        "slots": summary.slots,
        "decisions": episode.decisions,
        "calls": episode.calls,
        "model_calls": episode.model_calls,
        "tokens": episode.tokens,
        "repairs": episode.repairs,
        "failed_actions": summary.failed_actions,
        "arm_contacts": summary.arm_contacts,
        "events": len(episode.happened),
        "sim_time_s": summary.sim_time,
        "bytes": episode.uplink_bytes + episode.plan_bytes,
        "uplink_bytes": episode.uplink_bytes,
        "plan_bytes": episode.plan_bytes,
        "replans": dict(episode.replans),
        "deadlocks": sum(detection.kind == "deadlock" for detection in episode.detections),
        "looks": audit.looks,
        "stale_slots": audit.stale_slots,
        "alarms": audit.alarms,
        "false_alarms": audit.false_alarms,
        "delays": list(audit.delays),
        "missed": audit.missed,
    }


def _append(log: Path, entry: list[Any]) -> None:
    """One line more; a line that a killed run has left torn is closed first, so that it spoils nothing else."""
    torn = log.exists() and (text := log.read_bytes()) and not text.endswith(b"\n")
    with log.open("a", encoding="utf-8") as stream:
        stream.write(("\n" if torn else "") + json.dumps(entry) + "\n")


def _read(log: Path | None, keys: Sequence[Key]) -> Iterator[tuple[Key, Row]]:
    if log is None or not log.exists():
        return
    wanted = set(keys)
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            task, control, level, seed, found = json.loads(line)
        except ValueError:  # torn: the episode is run again
            continue
        if (task, control, level, seed) in wanted:
            yield (task, control, level, seed), found
