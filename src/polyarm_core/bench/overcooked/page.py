"""The page of results: our tables beside the paper's, with intervals, and the plots (matplotlib)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyarm_core.bench.figures import machine
from polyarm_core.bench.overcooked.methods import MAX_CALLS
from polyarm_core.bench.overcooked.sweep import group
from polyarm_core.bench.overcooked.trial import Trial
from polyarm_core.bench.statistics import wilson_interval
from polyarm_core.domains.overcooked.disturbances import NAMES
from polyarm_core.domains.overcooked.minimum import CLASSIC_MINIMA

FILE = "overcooked.md"

PAPER_NAMES = {
    "coordination_ring": "Coordination",
    "counter_circuit_o_1order": "Ring",
    "asymmetric_advantages": "Symmetric",
}

PAPER: dict[tuple[str, str], dict[str, tuple[float, float, str]]] = {
    ("coordination_ring", "standard"): {
        "Greedy": (40.6, 70.5, ".34 s"),
        "PBT": (92.0, 50.9, ".23 s"),
        "FCP": (91.0, 72.8, "1.15 s"),
        "ProAgent": (88.0, 75.9, "12.7 min"),
        "DPT-Agent": (91.3, 67.5, "38.2 min"),
        "SyncPlan w/o SFT": (92.2, 49.9, "11.2 s"),
        "SyncPlan full": (96.1, 43.1, "4.9 s"),
    },
    ("coordination_ring", "dynamic"): {
        "Greedy": (58.5, 76.3, ".40 s"),
        "PBT": (88.7, 53.1, ".27 s"),
        "FCP": (74.0, 75.6, "1.27 s"),
        "ProAgent": (65.0, 77.9, "23.3 min"),
        "DPT-Agent": (71.5, 63.1, "53.3 min"),
        "SyncPlan w/o SFT": (88.4, 53.9, "11.0 s"),
        "SyncPlan full": (93.0, 53.6, "8.2 s"),
    },
    ("counter_circuit_o_1order", "dynamic"): {
        "Greedy": (22.6, 74.1, ".30 s"),
        "PBT": (96.2, 52.8, ".26 s"),
        "FCP": (91.0, 62.9, "1.27 s"),
        "ProAgent": (59.0, 65.5, "23.4 min"),
        "DPT-Agent": (69.3, 54.7, "42.4 min"),
        "SyncPlan w/o SFT": (76.5, 58.8, "25.3 s"),
        "SyncPlan full": (88.3, 52.2, "8.8 s"),
    },
    ("asymmetric_advantages", "dynamic"): {
        "Greedy": (96.2, 51.2, ".26 s"),
        "PBT": (98.1, 44.9, ".22 s"),
        "FCP": (94.3, 47.6, ".24 s"),
        "ProAgent": (94.0, 45.6, "13.9 min"),
        "DPT-Agent": (96.3, 57.2, "69 min"),
        "SyncPlan w/o SFT": (100.0, 49.2, "17.5 s"),
        "SyncPlan full": (100.0, 40.2, "4.3 s"),
    },
}
"""Table 1 of SyncPlan: TAR in %, AED in frames, RT; without intervals, since the paper gives none."""

REFERENCE = "search+closed+repair"
"""The method with which the others are compared, trial by trial."""

MAIN = ("standard", "dynamic", "held_out")
"""Settings with a table of their own for each layout."""

RESAMPLES = 9999
SEED = 0

PLANT_NAMES = {"package": "overcooked-ai 1.1.0", "own": "our kitchen"}

HEAD = f"""# Overcooked: one onion soup, two cooks, 100 frames

Made by `polyarm bench overcooked --page results`; do not edit. Trial i has seed i; every method sees the same events,
drawn beforehand. TAR: share of trials with a delivery, with the 95 % Wilson interval. AED: frames until then, mean and
standard deviation of the successes. All: the same with 100 for a failure. AAS: movement primitives of both cooks. RT:
wall clock time of a trial, median; planning in brackets. Calls: of the coordinator; repairs: plans mended without it.
p: paired two-sided permutation test against `{REFERENCE}` on frames (failure = 100), {RESAMPLES} resamples, not
corrected for many comparisons.

Settings: `standard` has no events; `dynamic` has O1, O2 and O3 once each; `held_out` has O4 and O5, which no detector
was trained on; `O1` and so on have that one event.

Methods: COORDINATOR+TRIGGER[+repair], see docs/overcooked.md; `sft*4`: of up to four plans of the model the first that
succeeds in the imagination. A language model is called {MAX_CALLS} times in a trial at most.

Steps are carried out by {{plants}}; cook time 20. Machine: {{cpu}}, {{cores}} cores, Python {{python}}; RT was taken
with other work on the machine, and that of trials that ask a model with up to sixteen of them sharing one core: it says
how long a trial took beside the others, not how long it takes alone. A question that comes up again, in whichever
trial, is answered from memory; it counts as another output, with the time that the first answer took."""


def write_page(trials: Sequence[Trial], folder: Path) -> None:
    """Write ``overcooked.md`` and a plot per setting into a folder."""
    groups = group(trials)
    settings = list(dict.fromkeys((layout, setting) for layout, setting, _ in groups))
    settings.sort(key=lambda pair: (_rank(pair[1]), list(CLASSIC_MINIMA).index(pair[0])))
    lines = HEAD.format(
        plants=", ".join(sorted({PLANT_NAMES[trial.plant] for trial in trials})), **machine()
    ).splitlines()
    full = [pair for pair in settings if pair[1] in MAIN]
    for layout, setting in full:
        rows = {method: trials for (a, b, method), trials in groups.items() if (a, b) == (layout, setting)}
        alias = f" ({PAPER_NAMES[layout]} in the paper)" if layout in PAPER_NAMES else ""
        lines += [
            "",
            f"## {layout}{alias}, {setting}",
            "",
            f"Physical minimum without events: {CLASSIC_MINIMA[layout]} frames.",
            "",
        ]
        lines += _table(rows, layout, setting)
    folder.mkdir(parents=True, exist_ok=True)
    if full:
        _plot(groups, full, folder)
        lines += ["", "![TAR of every method](overcooked.png)", ""]
    single = {key: trials for key, trials in groups.items() if key[1] in NAMES}
    if single:
        lines += ["", "## One event", "", "TAR and, in brackets, frames with 100 for a failure.", ""]
        lines += _matrix(single)
    rates = {key: trials for key, trials in groups.items() if key[1].startswith("rate")}
    if rates:
        lines += ["", "## Events at a rate", "", "Events per frame, drawn from O1 to O3; as above.", ""]
        lines += [*_matrix(rates), "", "![TAR and frames by the rate of events](overcooked_rates.png)", ""]
        _plot_rates(rates, folder)
    (folder / FILE).write_text("\n".join(lines), encoding="utf-8")


def _rank(setting: str) -> tuple[int, str]:
    order = ("standard", "dynamic", "held_out")
    return (order.index(setting) if setting in order else len(order), setting)


def _table(rows: dict[str, list[Trial]], layout: str, setting: str) -> list[str]:
    lines = [
        "| method | trials | TAR | AED | all | AAS | RT | calls | repairs | deadlocks / action | p |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for method, trials in sorted(rows.items(), key=lambda item: statistics.fmean(row.frames for row in item[1])):
        ends = [row.frames for row in trials if row.success]
        low, high = wilson_interval(len(ends), len(trials))
        spread = f" ± {statistics.stdev(ends):.1f}" if len(ends) > 1 else ""
        actions = sum(sum(row.actions) for row in trials)
        cells = [
            f"`{method}`",
            str(len(trials)),
            f"{100 * len(ends) / len(trials):.1f} % ({100 * low:.1f} to {100 * high:.1f})",
            f"{statistics.fmean(ends):.1f}{spread}" if ends else "-",
            f"{statistics.fmean(row.frames for row in trials):.1f}",
            f"{statistics.fmean(sum(row.moves) for row in trials):.1f}",
            f"{_time(trials, 'total')} ({_time(trials, 'planning')})",
            f"{statistics.fmean(row.calls for row in trials):.2f}",
            f"{statistics.fmean(row.repairs for row in trials):.2f}",
            f"{sum(row.deadlocks for row in trials) / max(actions, 1):.4f}",
            _p_value(trials, rows.get(REFERENCE, [])) if method != REFERENCE else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for name, (tar, aed, seconds) in PAPER.get((layout, setting), {}).items():
        lines.append(f"| *paper: {name}* | | {tar} % | {aed} | | | {seconds} | | | | |")
    return lines


def _matrix(groups: dict[tuple[str, str, str], list[Trial]]) -> list[str]:
    """One line a layout and method, one column a setting."""
    settings = sorted({setting for _, setting, _ in groups}, key=_by_number)
    lines = [f"| layout | method | trials | {' | '.join(settings)} |", "| --- " * (3 + len(settings)) + "|"]
    for layout, method in sorted({(layout, method) for layout, _, method in groups}):
        cells = []
        for setting in settings:
            trials = groups.get((layout, setting, method), [])
            rate = 100 * statistics.fmean(row.success for row in trials) if trials else 0.0
            cells.append(f"{rate:.0f} % ({statistics.fmean(map(_frames, trials)):.1f})" if trials else "")
        counts = sorted({len(trials) for key, trials in groups.items() if (key[0], key[2]) == (layout, method)})
        lines.append(f"| {layout} | `{method}` | {', '.join(map(str, counts))} | {' | '.join(cells)} |")
    return lines


def _by_number(setting: str) -> tuple[float, str]:
    return (float(setting.removeprefix("rate")) if setting.startswith("rate") else 0.0, setting)


def _time(trials: Sequence[Trial], which: str) -> str:
    if which == "planning":
        seconds = statistics.median(row.planning_s for row in trials)
    else:
        seconds = statistics.median(row.planning_s + row.detecting_s + row.execution_s for row in trials)
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _p_value(trials: Sequence[Trial], reference: Sequence[Trial]) -> str:
    """Paired two-sided permutation test on the seeds that both have."""
    other = {row.seed: row for row in reference}
    pairs = [(row, other[row.seed]) for row in trials if row.seed in other]
    differences = [_frames(a) - _frames(b) for a, b in pairs]
    if not any(differences):
        return "1" if pairs else ""
    p = permutation_p(differences)
    return f"{p:.3f}" if p >= 0.001 else "< .001"


def _frames(row: Trial) -> float:
    return float(row.frames if row.success else 100)


def permutation_p(differences: Sequence[float], resamples: int = RESAMPLES, seed: int = SEED) -> float:
    """Two-sided p-value of the mean of paired differences when the signs are exchangeable (scipy).

    Args:
        differences: one per trial; at least one.
        resamples: random assignments of signs, where all of them are more.
        seed: of these.
    """
    import numpy as np
    from scipy.stats import permutation_test

    def mean(x: Any, axis: int) -> Any:
        return np.mean(x, axis=axis)

    result = permutation_test(
        (np.asarray(differences, dtype=float),),
        mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def _plot(groups: dict[tuple[str, str, str], list[Trial]], settings: Sequence[tuple[str, str]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    columns = min(3, len(settings))
    count = -(-len(settings) // columns)
    most = max(sum(1 for key in groups if key[:2] == pair) for pair in settings)
    figure, axes = pyplot.subplots(count, columns, figsize=(6.2 * columns, (0.24 * most + 1.3) * count), squeeze=False)
    for axis in axes.flat[len(settings) :]:
        axis.axis("off")
    for axis, (layout, setting) in zip(axes.flat, settings, strict=False):
        rows = {method: trials for (a, b, method), trials in groups.items() if (a, b) == (layout, setting)}
        ordered = sorted(rows.items(), key=lambda item: -statistics.fmean(row.frames for row in item[1]))
        for y, (method, trials) in enumerate(ordered):
            wins = sum(row.success for row in trials)
            low, high = wilson_interval(wins, len(trials))
            rate = wins / len(trials)
            colour = "tab:orange" if method == REFERENCE else "tab:blue"
            axis.barh(y, 100 * rate, color=colour, alpha=0.75)
            axis.errorbar(
                100 * rate, y, xerr=[[100 * (rate - low)], [100 * (high - rate)]], color="black", capsize=2, linewidth=1
            )
        axis.set_yticks(range(len(ordered)), [method for method, _ in ordered], fontsize=8)
        axis.set_xlim(0, 103)
        axis.set_xlabel("TAR, %, with 95 % interval; best (fewest frames) on top", fontsize=8)
        axis.set_title(f"{layout}, {setting}", fontsize=10)
    figure.tight_layout()
    figure.savefig(folder / "overcooked.png", dpi=90)
    pyplot.close(figure)


def _plot_rates(groups: dict[tuple[str, str, str], list[Trial]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    layouts = sorted({layout for layout, _, _ in groups})
    methods = sorted({method for _, _, method in groups})
    figure, axes = pyplot.subplots(2, len(layouts), figsize=(4.2 * len(layouts), 6.0), squeeze=False, sharey="row")
    for column, layout in enumerate(layouts):
        for method in methods:
            found = sorted(
                (_by_number(setting)[0], trials)
                for (a, setting, b), trials in groups.items()
                if (a, b) == (layout, method)
            )
            x = [rate for rate, _ in found]
            shares = [100 * statistics.fmean(row.success for row in trials) for _, trials in found]
            bounds = [wilson_interval(sum(row.success for row in trials), len(trials)) for _, trials in found]
            (line,) = axes[0][column].plot(x, shares, marker="o", markersize=3, label=method)
            axes[0][column].fill_between(
                x,
                [100 * low for low, _ in bounds],
                [100 * high for _, high in bounds],
                alpha=0.15,
                color=line.get_color(),
            )
            axes[1][column].plot(
                x, [statistics.fmean(map(_frames, trials)) for _, trials in found], marker="o", markersize=3
            )
        axes[0][column].set_title(layout, fontsize=10)
        axes[1][column].set_xlabel("events per frame")
    axes[0][0].set_ylabel("TAR, %, with 95 % interval")
    axes[1][0].set_ylabel("frames (failure = 100)")
    axes[0][0].legend(frameon=False, fontsize=7)
    figure.tight_layout()
    figure.savefig(folder / "overcooked_rates.png", dpi=90)
    pyplot.close(figure)
