"""The table of figures, its statistics and its screen form."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from polyarm_core.bench.figures import Figures, machine
from polyarm_core.bench.statistics import percentile, summary, wilson_interval
from polyarm_core.bench.tables import figure_tables, format_time, format_value
from polyarm_core.errors import InvalidValue, UnknownName

samples = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


def test_the_object_has_the_documented_keys(tmp_path: Path) -> None:
    figures = Figures("polyarm bench x", range(3))
    figures.add("sort.success_rate", 1)
    figures.add("orchestrator.maximal.n8.median_s", np.float64(1.5e-5))
    figures.write(tmp_path / "deep" / "figures.json")
    data = json.loads((tmp_path / "deep" / "figures.json").read_text())
    assert list(data) == ["command", "version", "seeds", "machine", "figures"]
    assert data["command"] == "polyarm bench x" and data["seeds"] == [0, 1, 2]
    assert data["figures"] == {"sort.success_rate": 1, "orchestrator.maximal.n8.median_s": 1.5e-5}
    assert isinstance(data["version"], str)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["figures.json"]


def test_the_machine_is_described_without_naming_it() -> None:
    import socket

    described = machine()
    assert set(described) == {"cpu", "cores", "memory_gib", "os", "architecture", "python"}
    assert int(described["cores"]) >= 1 and float(described["memory_gib"]) > 0
    assert socket.gethostname() not in {str(value) for value in described.values()}


@pytest.mark.parametrize("name", ["", "Sort", "sort.", ".sort", "sort..x", "sort-x", "sort.näme", "a\n", "a b"])
def test_names_are_dotted_lower_case(name: str) -> None:
    with pytest.raises(InvalidValue, match="figure name"):
        Figures("x", []).add(name, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None])
def test_values_are_finite_numbers(value: object) -> None:
    with pytest.raises(InvalidValue, match="finite number"):
        Figures("x", []).add("a", value)  # type: ignore[arg-type]


def test_a_name_is_taken_once() -> None:
    figures = Figures("x", [])
    figures.add("a.b", 1)
    with pytest.raises(InvalidValue, match="not in the table yet"):
        figures.add("a.b", 2)
    with pytest.raises(UnknownName, match="a\\.b"):
        figures["a.c"]


def test_an_unwritable_file_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match="--json"):
        Figures("x", []).write(tmp_path / "file" / "figures.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidValue, match="--json"):
        Figures("x", []).write(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_wilson_interval_inverts_the_score_test(counts: tuple[int, int]) -> None:
    """Its ends are the proportions at which the score statistic equals the quantile (Wilson 1927)."""
    successes, trials = counts
    low, high = wilson_interval(successes, trials)
    share = successes / trials
    assert 0.0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1.0
    quantile = norm.ppf(0.975)
    for end in (low, high):
        if 1e-9 < end < 1 - 1e-9:
            score = abs(share - end) / math.sqrt(end * (1 - end) / trials)
            assert score == pytest.approx(quantile, rel=1e-6)


def test_the_wilson_interval_covers_about_its_confidence() -> None:
    trials = 20
    for true in (0.1, 0.5, 0.9):
        covered = sum(
            binom.pmf(k, trials, true)
            for k in range(trials + 1)
            if wilson_interval(k, trials)[0] <= true <= wilson_interval(k, trials)[1]
        )
        assert 0.92 < covered < 0.99


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 3), (4, 3)])
def test_impossible_counts_are_refused(successes: int, trials: int) -> None:
    with pytest.raises(InvalidValue):
        wilson_interval(successes, trials)


def test_a_rate_brings_its_interval() -> None:
    figures = Figures("x", [])
    figures.rate("sort.success_rate", 20, 20)
    assert dict(figures.items()) == {
        "sort.success_rate": 1.0,
        "sort.success_rate_low": pytest.approx(0.8389, abs=1e-4),
        "sort.success_rate_high": 1.0,
    }


@given(samples, st.floats(0, 100))
def test_a_percentile_lies_within_the_samples_and_ignores_their_order(values: list[float], q: float) -> None:
    result = percentile(values, q)
    assert min(values) <= result <= max(values)
    assert percentile(sorted(values), q) == result
    assert percentile(values, 0) == min(values) and percentile(values, 100) == max(values)


@given(samples)
def test_statistics_of_a_distribution(values: list[float]) -> None:
    figures = Figures("x", [])
    figures.distribution("d", values, ("p10", "median", "mean", "p99", "p99_9", "min", "max"))
    assert figures["d.min_s"] <= figures["d.p10_s"] <= figures["d.median_s"] <= figures["d.p99_s"] <= figures["d.max_s"]
    assert figures["d.median_s"] == pytest.approx(np.median(values))
    assert figures["d.mean_s"] == pytest.approx(np.mean(values), abs=1e-6)


def test_statistics_that_do_not_exist_are_refused() -> None:
    for statistic in ("p", "p100", "mode", "P99"):
        with pytest.raises(InvalidValue, match="statistic"):
            summary([1.0], statistic)
    with pytest.raises(InvalidValue, match="at least one"):
        summary([], "median")


@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "b", "n8", "p50_s", "rate"]), min_size=1, max_size=4).map(".".join),
        st.integers(0, 10**9),
        max_size=20,
    )
)
def test_the_tables_show_every_figure_once(table: dict[str, int]) -> None:
    from rich.console import Console

    figures = Figures("x", [])
    for name, value in table.items():
        figures.add(name, value)
    cells = 0
    for shown in figure_tables(figures):
        single = shown.columns[0].header == "figure"
        for column in shown.columns[1:]:
            cells += sum(1 for cell in column.cells)
        assert single or len(shown.columns) > 2
    assert cells == len(table)
    console = Console(width=200, file=io.StringIO())
    for shown in figure_tables(figures):
        console.print(shown)


def test_values_are_shown_in_readable_units() -> None:
    assert format_value("sort.success_rate_low", 0.8389) == "83.9 %"
    assert format_value("slot.n8.p50_s", 0.0038) == "3.8 ms"
    assert format_value("sort.uplink_bytes", 12345) == "12,345"
    assert format_value("x.median", 3.25) == "3.25"
    shown = [format_time(seconds) for seconds in (0, 2.5e-8, 4e-6, 0.5, 90, 600)]
    assert shown == ["0 s", "25 ns", "4 µs", "500 ms", "90 s", "10.0 min"]
