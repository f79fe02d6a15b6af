"""Figures and episodes as tables on the screen (rich)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyarm_core.bench.figures import Figures

if TYPE_CHECKING:
    from rich.table import Table

    from polyarm_core.episode import EpisodeSummary

WIDEST = 8
"""Columns of a table of figures; a screen takes no more."""

SHARES = ("rate", "rate_low", "rate_high", "share", "share_low", "share_high")


def format_value(name: str, value: float | int) -> str:
    """One figure for a human: times in ns to s by size, shares in per cent, counts with separators."""
    last = name.rsplit(".", 1)[-1]
    if last.endswith(SHARES):
        return f"{100 * value:.1f} %"
    if last.endswith("_s"):
        return format_time(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def format_time(seconds: float) -> str:
    """Seconds in the unit that keeps the number between 1 and 1000; from two minutes on in minutes."""
    size = abs(seconds)
    if size >= 120:
        return f"{seconds / 60:.1f} min"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if size >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if size else "0 s"


def figure_tables(figures: Figures) -> list[Table]:
    """Tables that show every figure exactly once.

    Names that share all but their last part make one row, rows with the same columns one table (``slot.n8.p50_s`` and
    ``slot.n8.p99_s`` are the row ``slot.n8``); what stands alone goes into a list of names and values.
    """
    from rich.table import Table

    rows: dict[str, dict[str, float | int]] = {}
    for name, value in figures.items():
        prefix, _, last = name.rpartition(".")
        rows.setdefault(prefix, {})[last] = value
    groups: dict[tuple[str, ...], list[str]] = {}
    for prefix, row in rows.items():
        groups.setdefault(tuple(row), []).append(prefix)

    single = Table("figure", "value", box=None, pad_edge=False, header_style="bold")
    single.columns[1].justify = "right"
    tables: list[Table] = []
    for columns, prefixes in groups.items():
        if len(prefixes) == 1 or len(columns) == 1:
            for prefix in prefixes:
                for last, value in rows[prefix].items():
                    name = f"{prefix}.{last}" if prefix else last
                    single.add_row(name, format_value(name, value))
            continue
        for first in range(0, len(columns), WIDEST):
            part = columns[first : first + WIDEST]
            table = Table("", *part, box=None, pad_edge=False, header_style="bold")
            for column in table.columns[1:]:
                column.justify = "right"
            for prefix in prefixes:
                table.add_row(prefix, *(format_value(last, rows[prefix][last]) for last in part))
            tables.append(table)
    return [single, *tables] if single.row_count else tables


def episode_table(episodes: Sequence[EpisodeSummary]) -> Table:
    """One row per episode: how it ended and what it took."""
    from rich.table import Table

    from polyarm_core.episode import PLAN_FIGURES, VETO_RULES

    # Columns of the control by plans only where there is something in them.
    more = [name for name in PLAN_FIGURES if any(getattr(episode, name) for episode in episodes)]
    table = Table(
        "seed",
        "end",
        *(
            "slots|admitted|vetoes|reports|uplink bytes|decision p50 / p99|verdict p50 / p99"
            "|sim time|wall time|failed|contacts".split("|")
        ),
        *(name.replace("_", " ") for name in more),
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for episode in episodes:
        by_rule = {rule: getattr(episode, f"vetoes_{rule}") for rule in VETO_RULES}
        vetoes = ", ".join(f"{count} {rule.replace('_', ' ')}" for rule, count in by_rule.items() if count)
        if episode.silent:
            vetoes = ", ".join(filter(None, [vetoes, f"{episode.silent} silent"]))
        table.add_row(
            str(episode.seed),
            "[green]success[/]" if episode.success else f"[red]{episode.reason}[/]",
            str(episode.slots),
            str(episode.admitted),
            vetoes or "0",
            str(episode.reports),
            f"{episode.uplink_bytes:,}",
            f"{format_time(episode.decision_p50)} / {format_time(episode.decision_p99)}",
            f"{format_time(episode.verdict_p50)} / {format_time(episode.verdict_p99)}",
            format_time(episode.sim_time),
            format_time(episode.wall_time),
            str(episode.failed_actions),
            str(episode.arm_contacts),
            *(f"{getattr(episode, name):,}" for name in more),
        )
    return table
