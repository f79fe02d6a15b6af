"""The bench: mixes that repeat, figures under their published names, rows left out where OR-tools is missing."""

from __future__ import annotations

import sys

import pytest

from polyarm_core.bench.orchestrator import DENSITIES, random_mix, run
from polyarm_core.errors import InvalidValue, UnknownName


def test_mix_is_a_function_of_its_arguments():
    assert random_mix(50, DENSITIES["dense"], 3) == random_mix(50, DENSITIES["dense"], 3)
    assert random_mix(50, DENSITIES["dense"], 3) != random_mix(50, DENSITIES["dense"], 4)


def test_contention_per_arm_does_not_depend_on_the_size():
    def contention(arms):
        intents, _ = random_mix(arms, DENSITIES["medium"], 0)
        users = {}
        for intent in intents:
            for element in intent.declaration.exclusive:
                users[element] = users.get(element, 0) + 1
        return sum(count * (count - 1) for count in users.values()) / arms

    assert contention(500) == pytest.approx(contention(4000), rel=0.15)


def test_figures_and_order_of_the_strategies():
    pytest.importorskip("ortools")
    figures = run(sizes=(6, 20), densities=("medium", "dense"), seeds=range(20))
    for prefix in ("n6", "n6.dense", "n20", "n20.dense"):
        share = {
            name: figures[f"orchestrator.{name}.{prefix}.share"]
            for name in ("fixed_point", "maximal", "optimal", "library")
        }
        assert share["fixed_point"] < share["maximal"] <= share["optimal"] == share["library"] == 1.0
        assert figures[f"orchestrator.optimal.{prefix}.proven_share"] == 1.0
        assert 0 < figures[f"orchestrator.optimal.{prefix}.median_s"] <= figures[f"orchestrator.optimal.{prefix}.p99_s"]


def test_rows_of_the_library_are_left_out_where_it_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    figures = run(sizes=(6,), densities=("medium",), seeds=range(3))
    assert "orchestrator.optimal.n6.median_s" in figures
    assert not any("library" in name for name in figures)
    assert "ortools" in capsys.readouterr().out


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UnknownName, match="crowded"):
        run(densities=("crowded",))
    with pytest.raises(InvalidValue, match="sizes"):
        run(sizes=(0,))
    with pytest.raises(InvalidValue, match="seeds"):
        run(seeds=())
