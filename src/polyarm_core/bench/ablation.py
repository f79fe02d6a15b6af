"""``polyarm bench ablation``: what the digital twin is worth, on the same seeds with and without it.

Four teams drive each task with real physics in one process (`in_process.py`), with the same agents and starts: with
the twin switched off (every intent is executed at once, what breaks is caught only physically), and with the paper's
``fixed_point``, ``maximal`` and ``optimal``. Agents use the backend ``heuristic``, so that the figures are about
coordination and not about a model. Protective stops are cleared between slots, as a person would.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from polyarm_core.bench.figures import Figures
from polyarm_core.errors import UnknownName

if TYPE_CHECKING:
    from polyarm_core.episode import EpisodeSummary

TWINS = ("off", "fixed_point", "maximal", "optimal")
Key = tuple[str, str, int]


def run(
    tasks: Sequence[str] = ("sort",),
    seeds: Sequence[int] = tuple(range(20)),
    twins: Sequence[str] = TWINS,
    jobs: int = 1,
    log: Path | None = None,
) -> Figures:
    """Run every task with every twin on every seed.

    Args:
        tasks: scenario names or files.
        seeds: of the episodes; the same for every twin.
        twins: of TWINS.
        jobs: processes.
        log: file of one JSON line per episode; what it holds already is not run again.

    Returns:
        for each task T and twin W: ``ablation.T.W.success_rate`` with its 95 % interval, ``.episodes``, and means per
        episode of ``.arm_contacts``, ``.failed_actions``, ``.slots`` and ``.sim_time_s``.

    Raises:
        UnknownName: a twin or a scenario that does not exist.
    """
    from rich.progress import Progress

    from polyarm_core.scenario import load_scenario
    from polyarm_core.seeds import format_seeds

    for twin in twins:
        if twin not in TWINS:
            raise UnknownName("twin", twin, TWINS)
    names = {task: load_scenario(task).name for task in tasks}
    command = f"polyarm bench ablation --tasks {','.join(names.values())} --seeds {format_seeds(list(seeds))}"
    figures = Figures(command, seeds)
    keys: list[Key] = [(task, twin, seed) for task in tasks for twin in twins for seed in seeds]
    done = dict(_read(log, keys))
    with Progress(transient=True) as progress:
        bar = progress.add_task("episodes", total=len(keys), completed=len(done))
        for key, episode in _episodes([key for key in keys if key not in done], jobs):
            done[key] = episode
            progress.update(bar, advance=1, description=f"{key[0]}, twin {key[1]}, seed {key[2]}")
            if log is not None:
                with log.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps([*key, episode]) + "\n")
    for task in tasks:
        for twin in twins:
            _add(figures, f"ablation.{names[task]}.{twin}", [done[task, twin, seed] for seed in seeds])
    return figures


def _add(figures: Figures, name: str, episodes: Sequence[dict[str, float]]) -> None:
    figures.rate(f"{name}.success_rate", sum(bool(e["success"]) for e in episodes), len(episodes))
    figures.add(f"{name}.episodes", len(episodes))
    for column, figure in (
        ("arm_contacts", "arm_contacts"),
        ("failed_actions", "failed_actions"),
        ("slots", "slots"),
        ("sim_time", "sim_time_s"),
    ):
        figures.add(f"{name}.{figure}", sum(float(e[column]) for e in episodes) / len(episodes))


def _episodes(keys: Sequence[Key], jobs: int) -> Iterator[tuple[Key, dict[str, float]]]:
    if jobs == 1:
        for key in keys:
            yield key, _episode(key)
        return
    # One thread a process, or the processes take the cores from each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(keys, pool.map(_episode, keys), strict=True)


def _episode(key: Key) -> dict[str, float]:
    from polyarm_core.bench.in_process import EpisodeOptions, run_episode
    from polyarm_core.orchestrator import OrchestratorOptions, Strategy
    from polyarm_core.scenario import load_scenario
    from polyarm_core.slots import SlotOptions

    task, twin, seed = key
    checked = twin != "off"
    strategy = Strategy(twin) if checked else Strategy.OPTIMAL
    options = EpisodeOptions(
        slots=SlotOptions(orchestrator=OrchestratorOptions(strategy=strategy)), checked=checked, clear_stops=True
    )
    episode: EpisodeSummary = run_episode(load_scenario(task), seed, options)
    return {
        "success": float(episode.success),
        "arm_contacts": float(episode.arm_contacts),
        "failed_actions": float(episode.failed_actions),
        "slots": float(episode.slots),
        "sim_time": float(episode.sim_time),
    }


def _read(log: Path | None, keys: Sequence[Key]) -> Iterator[tuple[Key, dict[str, float]]]:
    if log is None or not log.exists():
        return
    wanted = set(keys)
    for line in log.read_text(encoding="utf-8").splitlines():
        task, twin, seed, episode = json.loads(line)
        if (task, twin, seed) in wanted:
            yield (task, twin, seed), episode
