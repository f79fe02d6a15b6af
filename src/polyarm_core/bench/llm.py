"""``polyarm bench llm``: time per decision of a language model, and what it costs not to share what can be shared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from polyarm_core.bench.figures import Figures
from polyarm_core.errors import InvalidValue
from polyarm_core.llm.interface import Prompt
from polyarm_core.llm.weights import PACKAGED, prepare

if TYPE_CHECKING:
    from rich.progress import Progress

DEFAULT_MODEL = next(iter(PACKAGED))
Record = Callable[[str, int, Callable[[int], object]], None]  # way, how many, what a slot does
STATISTICS = ("p10", "median", "p90")

REACH = {"alice": "panel1, pad2, panel3", "bob": "panel3, pad4, panel5", "chad": "panel5, pad6, panel7"}
# Six candidates of 13 to 18 tokens after a prompt of about 216 (default model, chat template included).
CANDIDATES = (
    "move blue_square from panel5 to panel3 and release it",
    "move blue_square from panel5 to pad4 and release it now",
    "move pink_polygon from panel3 to pad4 and release it",
    "move pink_polygon from panel3 to panel5 and release it there",
    "move yellow_trapezoid from panel3 to panel5 and release it there gently",
    "stay at the present place and wait there for the next slot again",
)


def decision(arm: str, slot: int) -> Prompt:
    """An arm's prompt in one slot of ``sort``; the static part depends on the arm only."""
    static = (
        f"You are robot arm {arm} in a team of three. Task: three arms relay cubes over panels that hold one cube each "
        "until each cube lies on its pad.\n"
        "Placements in order: panel1, pad2, panel3, pad4, panel5, pad6, panel7.\n"
        "Goals: blue_square to pad2, pink_polygon to pad4, yellow_trapezoid to pad6.\n"
        f"You reach only {REACH[arm]}. Bring each object to its goal, or hand it over on a shared placement that is "
        "nearer to its goal, so that an arm which reaches the goal can go on. Answer with one action.\n"
    )
    dynamic = (
        f"Slot {slot}. You see: blue_square is on panel5 (3 from its goal); pink_polygon is on panel3 "
        "(1 from its goal); yellow_trapezoid is on panel3.\n"
        "Before: move pink_polygon to pad4: refused, choose another.\nAction:"
    )
    return Prompt(static, dynamic)


def run(
    model: str = DEFAULT_MODEL,
    decisions: int = 20,
    threads: Sequence[int] = (1, 2),
    dtypes: Sequence[str] = ("bfloat16", "float32"),
    progress: bool = True,
) -> Figures:
    """Measure decisions in this process and, three arms at once, through a model server.

    For each number type and number of threads (``llm.<dtype>.threads<n>``): ``shared`` is the backend as it is, static
    part kept, candidates in one pass; ``first`` the same with nothing kept, as in an arm's first slot; ``one_by_one``
    asks for each candidate by itself, static part kept; ``unshared`` is one whole pass for each candidate.
    ``slot.together`` is the time until three arms that ask the server at once all have their answers, ``slot.in_turn``
    until three that ask one after the other have. ``deviation`` is the largest difference between a shared score and
    an unshared one in float32, nats.

    Args:
        model: ``NAME`` or ``transformers:NAME``; packaged name, folder or hub id.
        decisions: how many of each are timed; of the slow ones a quarter, but at least three.
        threads: numbers of CPU threads.
        dtypes: of ``bfloat16`` and ``float32``.
        progress: show a bar.

    Raises:
        InvalidValue: another backend, or no decisions.
        ModelError, MissingExtra: the model cannot be loaded.
    """
    backend, _, name = model.rpartition(":") if not model.startswith((".", "/", "~")) else ("", "", model)
    if backend not in ("", "transformers"):
        raise InvalidValue("model", model, "transformers:NAME; this measures the model inside this process")
    if decisions < 1:
        raise InvalidValue("decisions", decisions, "1 or more")
    name = name or DEFAULT_MODEL
    prepare(name)
    figures = Figures(f"polyarm bench llm --model {name} --decisions {decisions}", seeds=())
    with _bar(progress) as bar:
        task = bar.add_task("loading", total=len(threads) * len(dtypes) * 6)

        def step(title: str) -> None:
            bar.update(task, advance=1, description=title)

        for dtype in dtypes:
            for count in threads:
                _measure(figures, name, dtype, count, decisions, step)
    return figures


def _measure(
    figures: Figures, name: str, dtype: str, threads: int, decisions: int, step: Callable[[str], None]
) -> None:
    row = f"llm.{dtype}.threads{threads}"
    few = max(3, decisions // 4)

    def record(way: str, count: int, call: Callable[[int], object]) -> None:
        samples = [_time(call, k) for k in range(count)]
        figures.distribution(f"{row}.{way}", samples, STATISTICS)
        figures.add(f"{row}.{way}.decisions", count)
        step(f"{row}.{way}")

    _measure_model(figures, name, dtype, threads, row, record, decisions, few)
    _measure_server(name, dtype, threads, record, few)


def _measure_model(
    figures: Figures, name: str, dtype: str, threads: int, row: str, record: Record, decisions: int, few: int
) -> None:
    from polyarm_core.llm.transformers_backend import TransformersModel

    exact = TransformersModel(name, threads=threads, dtype="float32").score_unshared(decision("bob", 0), CANDIDATES)
    model = TransformersModel(name, threads=threads, dtype=dtype)
    shared = model.score(decision("bob", 0), CANDIDATES)
    if "llm.prompt_tokens" not in figures:
        figures.add("llm.prompt_tokens", shared.prompt_tokens)
        figures.add("llm.candidates", len(CANDIDATES))
        figures.add("llm.candidate_tokens", shared.candidate_tokens)
    differences = [abs(a - b) for a, b in zip(shared.mean_logprobs, exact.mean_logprobs, strict=True)]
    figures.add(f"{row}.deviation", max(differences))

    def first(slot: int) -> None:
        model.forget_prefixes()
        model.score(decision("bob", slot), CANDIDATES)

    record("shared", decisions, lambda slot: model.score(decision("bob", slot), CANDIDATES))
    record("first", decisions, first)
    record("one_by_one", few, lambda slot: [model.score(decision("bob", slot), [text]) for text in CANDIDATES])
    record("unshared", few, lambda slot: model.score_unshared(decision("bob", slot), CANDIDATES))


def _measure_server(name: str, dtype: str, threads: int, record: Record, few: int) -> None:
    from polyarm_core.llm.process import ServerProcess

    def slot_of(slot: int) -> list[tuple[Prompt, Sequence[str]]]:
        return [(decision(arm, slot), CANDIDATES) for arm in REACH]

    with ServerProcess(name, more=["--threads", str(threads), "--dtype", dtype], timeout=120.0) as server:
        server.client.score_batch(slot_of(0))  # the static parts are kept from here on
        record("slot.together", few, lambda slot: server.client.score_batch(slot_of(slot)))
        record("slot.in_turn", few, lambda slot: [server.client.score(*item) for item in slot_of(slot)])


def _time(call: Callable[[int], object], slot: int) -> float:
    started = time.perf_counter()
    call(slot)
    return time.perf_counter() - started


def _bar(visible: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not visible)
