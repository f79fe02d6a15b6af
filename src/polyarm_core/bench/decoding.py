"""``polyarm bench decoding``: what a grammar of the live state is worth, with the same model with and without it.

States are drawn from disturbed episodes on several layouts. In each the model writes one plan, without retry; it is
valid if it parses and means something in that state. Constrained outputs can be cut off by the token limit: these
count as invalid too, and are listed. The first plans of each kind are written alone, for their time; the others many at
once (:mod:`polyarm_core.llm.batched`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyarm_core.bench.figures import Figures
from polyarm_core.errors import InvalidValue

if TYPE_CHECKING:
    from polyarm_core.coordinator.model import ModelCoordinator

LAYOUTS = ("coordination_ring", "counter_circuit_o_1order", "asymmetric_advantages")
DECODINGS = ("constrained", "free")
TIMED = 10
"""Plans of each kind that are written alone."""
TOGETHER = 16
"""Plans that are written at once."""

Key = tuple[str, int]
Row = dict[str, Any]


def run(
    model: str = "sft",
    constrained: int = 1000,
    free: int = 200,
    layouts: Sequence[str] = LAYOUTS,
    seed: int = 0,
    log: Path | None = None,
) -> Figures:
    """Let a model write plans with and without the grammar.

    Args:
        model: ``base``, ``sft`` or ``grpo``.
        constrained, free: plans of each kind; the free ones are in the first states of the constrained ones.
        layouts: names or aliases; states are dealt out among them.
        seed: of the states.
        log: file of one JSON line per plan; what it holds already is not written again.

    Returns:
        for each kind K: ``decoding.M.K.invalid_share`` with its 95 % interval, ``.outputs``, ``.syntax``,
        ``.semantic``, ``.cut_off``, ``.tokens.median``, and quantiles of ``.plan`` (s, grammar included), of those that
        were written alone.

    Raises:
        InvalidValue: fewer than one plan of a kind.
        UnknownName: no such layout.
        ModelError, MissingExtra: the model is not there.
    """
    from rich.progress import Progress

    for name, count in (("constrained", constrained), ("free", free)):
        if count < 1:
            raise InvalidValue(name, count, "at least 1")
    figures = Figures(
        f"polyarm bench decoding --model {model} --constrained {constrained} --free {free} --seed {seed}", [seed]
    )
    done = _read(log)
    states = _states(layouts, max(constrained, free), seed)
    keys = [(kind, i) for kind, count in zip(DECODINGS, (constrained, free), strict=True) for i in range(count)]
    left = [key for key in keys if (model, *key) not in done]
    with Progress(transient=True) as progress:
        bar = progress.add_task("plans", total=len(keys), completed=len(keys) - len(left))
        for (kind, i), row in _write(model, left, states):
            done[model, kind, i] = row
            if log is not None:
                with log.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps([model, kind, i, row]) + "\n")
            progress.update(bar, advance=1, description=kind)
    for kind, count in zip(DECODINGS, (constrained, free), strict=True):
        _add(figures, f"decoding.{model}.{kind}", [done[model, kind, i] for i in range(count)])
    return figures


def _write(model: str, keys: Sequence[Key], states: Sequence[tuple[str, Any]]) -> Iterator[tuple[Key, Row]]:
    """Kind and number of each plan, and what came of it, in the order in which they are ready."""

    def write(key: Key) -> tuple[Key, Row]:
        layout, state = states[key[1]]
        return key, _plan(_open(model, layout, key[0]), state)

    yield from (write(key) for key in keys if key[1] < TIMED)
    with ThreadPoolExecutor(TOGETHER) as pool:
        for future in as_completed([pool.submit(write, key) for key in keys if key[1] >= TIMED]):
            key, row = future.result()
            yield key, {**row, "seconds": None}


def _open(model: str, layout: str, kind: str) -> ModelCoordinator[Any]:
    from polyarm_core.bench.overcooked.methods import open_model_coordinator, parse_method
    from polyarm_core.bench.overcooked.trial import open_domain

    return open_model_coordinator(parse_method(f"{model}/{kind}+never"), open_domain(layout, "own"), retries=0)


def _states(layouts: Sequence[str], count: int, seed: int) -> list[tuple[str, Any]]:
    from polyarm_core.bench.overcooked.trial import open_domain
    from polyarm_core.chains.fuzz import episode_states

    drawn = {
        layout: episode_states(open_domain(layout, "own"), -(-count // len(layouts)), seed + number)
        for number, layout in enumerate(layouts)
    }
    return [(layout, drawn[layout][i]) for i in range(-(-count // len(layouts))) for layout in layouts][:count]


def _plan(coordinator: ModelCoordinator[Any], state: Any) -> Row:
    from polyarm_core.coordinator.interface import PlanRequest

    answer = coordinator.plan(PlanRequest(state))
    return {
        "syntax": coordinator.use.syntax,
        "semantic": coordinator.use.semantic,
        "cut_off": int("cut off" in answer.error),
        "seconds": round(answer.seconds, 4),
        "tokens": answer.tokens,
        "error": answer.error[:200],
    }


def _add(figures: Figures, name: str, rows: Sequence[Row]) -> None:
    figures.rate(f"{name}.invalid_share", sum(bool(row["syntax"] or row["semantic"]) for row in rows), len(rows))
    figures.add(f"{name}.outputs", len(rows))
    for column in ("syntax", "semantic", "cut_off"):
        figures.add(f"{name}.{column}", sum(row[column] for row in rows))
    figures.distribution(f"{name}.tokens", [row["tokens"] for row in rows], ["median"], suffix="")
    figures.distribution(
        f"{name}.plan", [row["seconds"] for row in rows if row["seconds"] is not None], ["p10", "median", "p90"]
    )


def _read(log: Path | None) -> dict[tuple[str, str, int], Row]:
    if log is None or not log.exists():
        return {}
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}]")]
    return {(model, kind, i): row for model, kind, i, row in rows}
