"""The bench of the wait-for graph: it measures the same question as the full search that it is compared with."""

from __future__ import annotations

import pytest

from polyarm_core.bench import waits
from polyarm_core.errors import InvalidValue


def test_every_check_agrees_with_the_full_search() -> None:
    figures = waits.run(sizes=(4, 12), seeds=(3,))
    for size in (4, 12):
        assert figures[f"waits.n{size}.agree"] == 1.0
        assert figures[f"waits.n{size}.deadlocks"] > 0.0  # else it would have compared nothing
        assert figures[f"waits.n{size}.check.median_s"] > 0.0


def test_the_full_search_knows_alternatives() -> None:
    free = {"a": [("b", "c")], "b": [("a",)], "c": []}
    assert waits.deadlocked(free) == set()
    assert waits.deadlocked(free | {"c": [("a",)]}) == {"a", "b", "c"}


def test_too_few_arms() -> None:
    with pytest.raises(InvalidValue, match="4 arms or more"):
        waits.run(sizes=(2,))
