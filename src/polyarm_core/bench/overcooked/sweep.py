"""Every trial of a sweep: in several processes, resumable, and as a flat table of figures."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path

from polyarm_core.bench.figures import Figures
from polyarm_core.bench.overcooked.methods import ASKED, AskedModel, parse_method
from polyarm_core.bench.overcooked.trial import Trial, run_trial, schedule_of
from polyarm_core.errors import InvalidValue

METHODS = ("greedy", "greedy_aware", "search+closed+repair")
LAYOUTS = ("coordination_ring", "counter_circuit_o_1order", "asymmetric_advantages")
CHUNK = 10
"""Trials that a process is given at once: enough to use its tables, few enough to lose little."""

Key = tuple[str, str, str, int]


def run(
    methods: Sequence[str] = METHODS,
    layouts: Sequence[str] = LAYOUTS,
    settings: Sequence[str] = ("standard", "dynamic"),
    seeds: Sequence[int] = tuple(range(200)),
    plant: str = "package",
    jobs: int = 1,
    log: Path | None = None,
    page: Path | None = None,
    model: AskedModel | None = None,
) -> Figures:
    """Play every method on every layout and setting with every seed.

    Args:
        methods: see ``methods.py``.
        layouts: names or aliases.
        settings: see ``trial.py``.
        seeds: of the trials; a method that asks a language model gets the first quarter of them.
        plant: ``package`` (overcooked_ai carries the steps out) or ``own``.
        jobs: trials at the same time, in as many processes; those that ask a model in threads that share it, so that
            it writes several texts in one pass (:mod:`polyarm_core.llm.batched`).
        log: file of one JSON line per trial; what it holds already is not played again.
        page: folder for the page with tables and plots, of everything in the log.
        model: that the methods ``model+TRIGGER`` ask, and ``proagent`` instead of the packaged one. The log does not
            know which it was: keep one for each.

    Returns:
        for each method M, layout L and setting S: ``overcooked.L.S.M.tar`` with its 95 % interval, ``.trials``,
        ``.aed`` (mean frames of the successes; absent without any), ``.frames`` (failures count the horizon), ``.aas``,
        ``.rt.median_s``, ``.calls``, ``.repairs``, ``.deadlock_share``.

    Raises:
        UnknownName, InvalidValue: a method, layout, setting or plant that does not exist, or no seeds.
        MissingExtra, ModelError: something that a method needs is not there.
    """
    from rich.progress import Progress

    from polyarm_core.domains.overcooked.layouts import load_layout
    from polyarm_core.seeds import format_seeds

    if not seeds:
        raise InvalidValue("seeds", seeds, "at least one")
    if model is None and any(parse_method(method).coordinator == ASKED for method in methods):
        raise InvalidValue("model", None, "BACKEND:NAME of the language model that is asked")
    names = [load_layout(layout).name for layout in layouts]
    keys = [
        (method, layout, setting, seed)
        for method in methods
        for layout in names
        for setting in settings
        for seed in seeds_of(method, seeds)
    ]
    for _, _, setting, _ in keys[:: max(1, len(seeds) // 8)]:
        schedule_of(setting, 0)
    command = (
        f"polyarm bench overcooked --methods {','.join(methods)} --layouts {','.join(names)} "
        f"--settings {','.join(settings)} --seeds {format_seeds(list(seeds))} --plant {plant}"
    )
    if model is not None:
        command += f" --model {model.name} --variant {model.variant}"
    figures = Figures(command, seeds)
    done = {trial.key: trial for trial in read_trials(log)} if log is not None else {}
    with Progress(transient=True) as progress:
        bar = progress.add_task("trials", total=len(keys), completed=sum(key in done for key in keys))
        for trials in _play([key for key in keys if key not in done], plant, jobs, model):
            done.update((trial.key, trial) for trial in trials)
            first = trials[0]
            progress.update(bar, advance=len(trials), description=f"{first.layout}, {first.setting}, {first.method}")
            if log is not None:
                _append(log, trials)
    add_figures(figures, [done[key] for key in keys])
    if page is not None:
        from polyarm_core.bench.overcooked.page import write_page

        write_page(list(done.values()), page)
    return figures


def seeds_of(method: str, seeds: Sequence[int]) -> Sequence[int]:
    """The seeds that a method is played with: a language model takes seconds a plan, so a quarter of them."""
    return seeds[: max(1, len(seeds) // 4)] if parse_method(method).uses_model else seeds


def read_trials(log: Path) -> list[Trial]:
    """The trials in a log, the last one of each key; none where there is no file."""
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    trials = [Trial.from_json(json.loads(line)) for line in lines if line.endswith("\n")]
    return list({trial.key: trial for trial in trials}.values())


def _append(log: Path, trials: Sequence[Trial]) -> None:
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:  # a run that was killed tore its last line
        log.write_text(whole, encoding="utf-8")
    with log.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(trial.to_json()) + "\n" for trial in trials)


def group(trials: Iterable[Trial]) -> dict[tuple[str, str, str], list[Trial]]:
    """Trials by (layout, setting, method), each in the order of its seeds."""
    groups: dict[tuple[str, str, str], list[Trial]] = defaultdict(list)
    for trial in sorted(trials, key=lambda trial: trial.seed):
        groups[trial.layout, trial.setting, trial.method].append(trial)
    return dict(groups)


def add_figures(figures: Figures, trials: Sequence[Trial]) -> None:
    """Append the figures of :func:`run`."""
    for (layout, setting, method), rows in group(trials).items():
        name = f"overcooked.{layout}.{_name(setting)}.{_name(method)}"
        ends = [row.frames for row in rows if row.success]
        actions = sum(sum(row.actions) for row in rows)
        figures.rate(f"{name}.tar", len(ends), len(rows))
        figures.add(f"{name}.trials", len(rows))
        if ends:
            figures.add(f"{name}.aed", sum(ends) / len(ends))
        figures.add(f"{name}.frames", sum(row.frames for row in rows) / len(rows))
        figures.add(f"{name}.aas", sum(sum(row.moves) for row in rows) / len(rows))
        figures.distribution(
            f"{name}.rt", [row.planning_s + row.detecting_s + row.execution_s for row in rows], ["median"]
        )
        figures.add(f"{name}.calls", sum(row.calls for row in rows) / len(rows))
        figures.add(f"{name}.repairs", sum(row.repairs for row in rows) / len(rows))
        figures.add(f"{name}.deadlock_share", sum(row.deadlocks for row in rows) / max(actions, 1))


def _name(text: str) -> str:
    return text.lower().translate(str.maketrans("+/.-*", "_____"))


def _play(keys: Sequence[Key], plant: str, jobs: int, model: AskedModel | None) -> Iterator[list[Trial]]:
    """Trials that ask a model run in threads, which share it; all others in processes."""
    asking = [key for key in keys if parse_method(key[0]).uses_model]
    others = _chunks([key for key in keys if not parse_method(key[0]).uses_model])
    if jobs == 1:
        for chunk in [*others, *_chunks(asking)]:
            yield _chunk(chunk, plant, model)
        return
    # One thread a process, or the processes take the cores from each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for kind, chunks in ((ProcessPoolExecutor, others), (ThreadPoolExecutor, [[key] for key in asking])):
        if chunks:
            with kind(jobs) as pool:
                for future in as_completed([pool.submit(_chunk, chunk, plant, model) for chunk in chunks]):
                    yield future.result()


def _chunks(keys: Sequence[Key]) -> list[list[Key]]:
    by_group: dict[tuple[str, str, str], list[Key]] = defaultdict(list)
    for key in keys:
        by_group[key[:3]].append(key)
    return [rows[i : i + CHUNK] for rows in by_group.values() for i in range(0, len(rows), CHUNK)]


def _chunk(keys: Sequence[Key], plant: str, model: AskedModel | None) -> list[Trial]:
    return [run_trial(*key, plant=plant, model=model) for key in keys]
