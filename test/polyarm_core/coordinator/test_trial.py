"""Trials in any domain: worlds, events and methods by name, and the log of what came of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyarm_core.bench.figures import Figures
from polyarm_core.bench.overcooked.trial import schedule_of as kitchen_schedule
from polyarm_core.coordinator.trial import (
    FILE_NAME,
    TrialRow,
    add_figures,
    append_row,
    chosen_method,
    open_trial_detector,
    open_world,
    planning_runs,
    read_rows,
    schedule_of,
    uses_detector,
)
from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName


def test_events_are_those_of_the_benchmark_or_the_domains_own() -> None:
    kitchen, moba = open_world("overcooked:coordination_ring"), open_world("moba")
    for setting in ("standard", "dynamic", "held_out", "O2", "rate0.1"):
        assert schedule_of(kitchen, setting, 4) == kitchen_schedule(setting, 4).events
    drawn = schedule_of(moba, "dynamic", 4)
    assert sorted(event.name for event in drawn) == ["M1", "M2", "M3"] and drawn == schedule_of(moba, "dynamic", 4)
    assert drawn != schedule_of(moba, "dynamic", 5)
    assert [event.name for event in schedule_of(moba, "M2", 4)] == ["M2"]
    assert schedule_of(moba, "standard", 4) == ()
    with pytest.raises(UnknownName, match="unknown setting 'O1'; valid: M1, M2, M3, dynamic, standard"):
        schedule_of(moba, "O1", 0)


@pytest.mark.parametrize(
    ("domain", "method", "message"),
    [
        ("moba", "search+closed", "never, stall, everyN or oracle in moba:enemy_3"),
        ("overcooked:cramped_room", "search+stall", "one with a detector"),
        ("overcooked:cramped_room", "search+closed/tiny_focal", "one that was trained"),
    ],
)
def test_detectors_that_there_are_not_are_refused(domain: str, method: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        open_trial_detector(chosen_method(method), open_world(domain))


def test_methods_and_worlds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidValue, match="one with chains"):
        chosen_method("greedy")
    with pytest.raises(InvalidValue, match="the package knows only kitchens"):
        open_world("moba", "package")
    for name, plant in (("chess", "own"), ("overcooked:hall", "own"), ("moba", "real")):
        with pytest.raises(PolyarmError, match="unknown"):
            open_world(name, plant)
    assert uses_detector(chosen_method("search+oracle")) and not uses_detector(chosen_method("search+every4"))


def test_a_run_that_begins_late_plans_from_there() -> None:
    """As after a restart of the coordinator in the middle of an episode."""
    domain = open_world("overcooked:cramped_room")
    make = planning_runs(chosen_method("search+stall+repair"), domain)
    state, run = domain.start(0), make(None, 0)
    while not domain.succeeded(state):
        if run.frame == 9:
            run = make(None, 9)
        run.decide(state, False)
        controls = domain.control(state, run.executor.intents(state))
        after = domain.step(state, controls)
        run.learn(state, controls, after)
        state = after
    assert [(record.frame, record.reason) for record in run.plans] == [(9, "start")]
    assert run.frame == run.executor.frame > 9


def test_rows_come_back_and_add_up(tmp_path: Path) -> None:
    rows = [
        TrialRow("overcooked:cramped_room", "own", "dynamic", "search+stall", 3, True, 40, ((7, "O1"),), 2, 5, 1, 0, 4),
        TrialRow("overcooked:cramped_room", "own", "dynamic", "search+stall", 4, False, 100),
    ]
    assert read_rows(tmp_path / FILE_NAME) == []
    for row in rows:
        append_row(tmp_path / FILE_NAME, row)
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"domain": "cut')  # the writer is in the middle of a line
    assert read_rows(tmp_path / FILE_NAME) == rows
    figures = Figures("test", [3, 4])
    add_figures(figures, rows)
    table = figures.to_json()["figures"]
    assert table["overcooked.cramped_room.success_rate"] == 0.5
    assert table["overcooked.cramped_room.calls"] == 5 and table["overcooked.cramped_room.silent"] == 2
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('"}\n')
    with pytest.raises(InvalidValue, match="a row of a trial"):
        read_rows(tmp_path / FILE_NAME)
