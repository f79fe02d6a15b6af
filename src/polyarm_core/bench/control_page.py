"""The page of ``polyarm bench control``: one table a task, with intervals, and a plot (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyarm_core.bench.figures import Figures, machine

FILE = "control.md"
COLUMNS = (
    "control", "disturb", "success", "slots", "decisions", "calls", "model calls", "share of reactive", "tokens",
    "bytes", "repairs", "corrections by reason", "false alarms", "stale plans (missed)", "delay",
)  # fmt: skip


def write_page(figures: Figures, folder: Path, plant: str, detector: str) -> None:
    """Write ``control.md`` and ``control.png``.

    Args:
        figures: of `bench.control.run`.
        folder: created where it is missing.
        plant, detector: with which they were made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cells = _cells(figures)
    tasks = list(dict.fromkeys(task for task, _, _ in cells))
    lines = [_head(figures, plant, detector)]
    for task in tasks:
        lines += [f"## {task}", "", "| " + " | ".join(COLUMNS) + " |", "| " + " | ".join("---" for _ in COLUMNS) + " |"]
        lines += [_line(figures, *cell) for cell in cells if cell[0] == task]
        lines.append("")
    lines += ["![success and model calls](control.png)", ""]
    (folder / FILE).write_text("\n".join(lines), encoding="utf-8")
    _plot(figures, cells, tasks, folder / "control.png")


def _head(figures: Figures, plant: str, detector: str) -> str:
    here = machine()
    return f"""# Control: three ways to drive a team of arms

Made by `{figures.command}`; do not edit.

Every way of control meets the same starts and the same events, drawn beforehand from the seed. Plant: {plant}, all in
one process; the arms' own choices are the heuristic's and plans are the search's, so the figures are about control and
not about models. Detector of staleness: {detector}. Machine: {here["cpu"]}, {here["cores"]} cores,
Python {here["python"]}.

Success with its 95 % Wilson interval. All other figures are means per episode: slots; decisions for which an arm's own
model is asked; calls of the coordinator; both together; their share of the reactive team's at the same level; tokens
that SmolLM2's tokenizer counts in what a model would read and write; bytes on the wire; plans that were mended without
a call; corrections by what caused them. False alarms: corrections of a plan that a roll-out would have brought to its
end, and their share of the slots in which the plan was good. Stale plans: in all episodes, with those that no alarm
noticed. Delay: slots from the first in which the roll-out oracle finds the plan stale to the alarm, mean and largest.
"""


def _cells(figures: Figures) -> list[tuple[str, str, str]]:
    cells = []
    for name in figures:
        parts = name.split(".")
        if len(parts) == 5 and parts[-1] == "success_rate":
            cells.append((parts[1], parts[2], parts[3]))
    return cells


def _line(figures: Figures, task: str, control: str, level: str) -> str:
    prefix = f"control.{task}.{control}.{level}."

    def number(name: str, form: str = ".1f", scale: float = 1.0, missing: str = "") -> str:
        return format(figures[prefix + name] * scale, form) if prefix + name in figures else missing

    low, high = number("success_rate_low", ".0f", 100), number("success_rate_high", ".0f", 100)
    reasons = [
        f"{name.removeprefix(prefix + 'replans.')} {figures[name]:.2f}"
        for name in figures
        if name.startswith(prefix + "replans.")
    ]
    alarms = number("false_alarms", ".2f") + (f" ({number('false_alarm_rate', '.1f', 100)} %)" if reasons else "")
    stale = f"{number('stale_plans', '.0f')} ({number('missed', '.0f')})"
    delay = f"{number('delay.mean', '.2f')} ({number('delay.max', '.0f')})" if prefix + "delay.mean" in figures else ""
    planned = control != "reactive"
    values = [
        control, level, f"{number('success_rate', '.0f', 100)} % ({low} to {high})", number("slots"),
        number("decisions"), number("calls"), number("model_calls"), number("calls_share", ".2f"),
        number("tokens", ".0f"), number("bytes", ".0f"), number("repairs", ".2f") if planned else "",
        ", ".join(reasons), alarms if planned else "", stale if planned else "", delay,
    ]  # fmt: skip
    return "| " + " | ".join(values) + " |"


def _plot(figures: Figures, cells: Sequence[tuple[str, str, str]], tasks: Sequence[str], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    controls = list(dict.fromkeys(control for _, control, _ in cells))
    levels = list(dict.fromkeys(level for _, _, level in cells))
    figure, axes = pyplot.subplots(2, len(tasks), figsize=(3.2 * len(tasks), 5.2), squeeze=False, sharey="row")
    width = 0.8 / max(1, len(controls))
    for column, task in enumerate(tasks):
        for place, control in enumerate(controls):
            known = [(k, level) for k, level in enumerate(levels) if (task, control, level) in cells]
            x = [k + (place - (len(controls) - 1) / 2) * width for k, _ in known]
            prefixes = [f"control.{task}.{control}.{level}." for _, level in known]
            rates = [100 * figures[p + "success_rate"] for p in prefixes]
            below = [rate - 100 * figures[p + "success_rate_low"] for p, rate in zip(prefixes, rates, strict=True)]
            above = [100 * figures[p + "success_rate_high"] - rate for p, rate in zip(prefixes, rates, strict=True)]
            bars: Any = axes[0][column]
            bars.bar(x, rates, width, yerr=[below, above], capsize=2, label=control)
            axes[1][column].bar(x, [figures[p + "model_calls"] for p in prefixes], width, label=control)
        axes[0][column].set_title(task)
        for row in range(2):
            axes[row][column].set_xticks(range(len(levels)), levels)
            axes[row][column].spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("success, %")
    axes[1][0].set_ylabel("model calls an episode")
    axes[1][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
