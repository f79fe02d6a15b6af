"""Slots of controlled episodes as samples, and the arms' networks from them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from polyarm_core.chains.terms import Action
from polyarm_core.control.disturbance import ScheduledEvent
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.domains.arms import ArmsDomain
from polyarm_core.domains.arms.domain import FEATURES
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.psd.arms import EVENTS, SHAPE, WatchedDisturber, draw_events, generate_slots
from polyarm_core.psd.arms_figures import main as figures_main
from polyarm_core.psd.arms_training import Settings, best_threshold, main, run
from polyarm_core.psd.data import CLEAN, Samples
from polyarm_core.psd.detector import LearnedDetector, find_weights
from polyarm_core.psd.tensors import REFERENCE_FRAMES
from polyarm_core.scenario import scenario_names

SMALL = Settings(scenarios=("sort", "grocery"), held_out=("grocery",), episodes=6, seed=3, epochs=1)


@pytest.fixture(scope="module")
def tables() -> tuple[Samples, Samples]:
    return generate_slots(("sort", "cabinet"), 12, 0)


@pytest.fixture(scope="module")
def samples(tables: tuple[Samples, Samples]) -> Samples:
    return tables[0]


def test_the_same_seed_gives_the_same_samples(tables: tuple[Samples, Samples]) -> None:
    for table, again in zip(tables, generate_slots(("sort",), 12, 0), strict=True):
        first = table.where(table.domain == 0)
        for column in fields(Samples):
            assert np.array_equal(getattr(first, column.name), getattr(again, column.name)), column.name


def test_what_happens_within_a_slot_is_seen_there(tables: tuple[Samples, Samples]) -> None:
    slots, within = tables
    assert (within.event != CLEAN).all() and not within.delay.any()
    assert 0.1 < within.stale.mean() < 0.9 and within.unmarked.any()
    opened = {(slots.episode[row], slots.frame[row]): slots.state[row] for row in range(len(slots))}
    for row in range(len(within)):
        change = within.state[row] - opened[within.episode[row], within.frame[row]]
        assert change.any() and np.array_equal(within.difference[row], change)  # against the opening of its slot


def test_samples_are_what_they_say(samples: Samples) -> None:
    assert np.array_equal(samples.refers & samples.depends, samples.refers)  # what is named is depended on
    assert samples.state.min() >= 0 and samples.state.max() <= 1 and abs(samples.difference).max() <= 1
    assert set(samples.event) - {CLEAN} <= set(range(len(EVENTS))) and (samples.event != CLEAN).any()
    assert not samples.delay[samples.event == CLEAN].any()
    assert 0 < samples.stale.mean() < 0.5
    assert samples.delay.max() < REFERENCE_FRAMES  # later nothing of it can be seen
    rows = np.flatnonzero((samples.event != CLEAN) & (samples.delay > 0))
    assert np.array_equal(samples.event[rows - 1], samples.event[rows])
    assert np.array_equal(samples.delay[rows - 1], samples.delay[rows] - 1)
    slipped = samples.event == EVENTS.index("slipped")
    assert not (slipped & (samples.domain == 0)).any()


@pytest.mark.parametrize("name", scenario_names())
def test_every_packaged_scenario_fits_into_the_network(name: str) -> None:
    SHAPE.check(ArmsDomain(name))


def test_what_an_event_has_changed_is_known() -> None:
    domain = ArmsDomain("sort")
    for kind, expected in (("stopped", 1), ("blocked", 1), ("moved", 3)):  # an object, and the placements of both ends
        plant = KinematicPlant(domain.scenario, 0)
        watched = WatchedDisturber(plant, MirroredArms(domain), [ScheduledEvent(2, kind, 0.3)])  # type: ignore[arg-type]
        watched.before_slot(1)
        assert watched.news == []
        watched.before_slot(2)
        ((found, changed),) = watched.news
        assert found == kind and len(changed) == expected
        assert all(name in watched.disturber.happened[0].what for name in changed)


@pytest.mark.parametrize("name", ["sort", "cabinet", "rope", "sweep"])
def test_a_change_shows_beside_a_one_whichever_way_it_went(name: str) -> None:
    """The network multiplies state and difference, so what has become false must be seen as something that is true."""
    domain = ArmsDomain(name)
    state = domain.start(0)
    before = domain.features(state)
    assert before.shape == (len(domain.entity_rows), len(FEATURES)) and before.min() >= 0 and before.max() <= 1
    column = {feature: k for k, feature in enumerate(FEATURES)}
    for k in range(12):
        for event in domain.disturbances:
            after = domain.disturb(state, event.name, k / 12)
            if after is None:
                continue
            x, d = domain.features(after), domain.features(after) - before
            changed = [row for row in range(len(d)) if d[row].any()]
            assert changed
            for yes, no in (("holding", "empty"), ("at_goal", "astray"), ("held", "free"), ("occupied", "clear")):
                pair = [column[yes], column[no]]
                for row in changed:
                    assert (x[row, pair] * d[row, pair]).any() == d[row, pair].any()


def test_a_slip_does_nothing_between_two_slots_and_is_known_only_where_a_door_is_held() -> None:
    cabinet, sort = ArmsDomain("cabinet"), ArmsDomain("sort")
    assert [event.name for event in cabinet.disturbances] == ["A1", "A2", "A3", "A4", "A5"]
    assert [event.name for event in sort.disturbances] == ["A1", "A2", "A3", "A4"]
    assert cabinet.disturb(cabinet.start(0), "A5", 0.5) is None


def test_a_step_depends_on_where_its_object_is_only_if_the_arm_can_take_it_there() -> None:
    domain = ArmsDomain("sort")
    step = Action("move", ("blue_square", "panel3"))
    places = {"pink_polygon": "panel7", "yellow_trapezoid": "pad6"}
    near = domain.world.state({"blue_square": "panel5", **places})
    far = domain.world.state({"blue_square": "pad2", **places})
    assert "panel5" in domain.scenario.arms["bob"].reach and "pad2" not in domain.scenario.arms["bob"].reach
    assert "panel5" in domain.depends(near, "bob", step)
    assert "pad2" not in domain.depends(far, "bob", step)
    assert "blue_square" in domain.depends(near, "bob", step) & domain.depends(far, "bob", step)


def test_events_are_drawn_from_the_kinds_of_the_scenario() -> None:
    for seed in range(20):
        drawn = draw_events(("moved", "stopped"), np.random.default_rng(seed))
        assert list(drawn) == sorted(drawn) and {event.kind for event in drawn} <= {"moved", "stopped"}


def test_the_threshold_has_the_best_f1() -> None:
    labels = np.array([1] * 10 + [0] * 90)
    scores = np.concatenate([np.full(10, 0.8), np.linspace(0.0, 0.62, 90)])
    assert 0.6 <= best_threshold([(scores, labels)]) < 0.8
    higher = np.concatenate([np.full(10, 0.9), np.full(30, 0.7)]), np.array([1] * 10 + [0] * 30)
    assert best_threshold([(scores, labels), higher]) == 0.7  # the lowest that serves both


def test_from_episodes_to_weights_and_card(tmp_path: Path) -> None:
    out, work, said = tmp_path / "out", tmp_path / "work", []
    run(SMALL, out, work, ("focal",), said.append)
    assert len(list(out.glob("*.npz"))) == 2
    record = json.loads((out / "closed_wide_focal.json").read_text())
    held_out = record["held_out"]
    assert held_out["trained_without"] == ["grocery"] and set(held_out["test"]["by_scenario"]) == {"grocery"}
    assert set(record["test"]["by_scenario"]) == {"sort", "grocery"}
    detector = LearnedDetector.load(ArmsDomain("cabinet"), find_weights(str(out / "closed_wide_focal.npz")))
    assert detector.threshold == record["threshold"]
    card = (out / "README.md").read_text()
    assert "Unknown scenarios" in card and f"{record['data']['slots']:,} slots" in card
    run(SMALL, out, work, ("focal",), said.append)
    assert said[-2:] == ["bilinear_wide_focal: trained already", "closed_wide_focal: trained already"]
    where = ["--models", str(out), "--out", str(tmp_path / "figures.json"), "--tasks", "sort", "--controls", "planned"]
    figures_main([*where, "--disturbances", "severe", "--seeds", "0-1"])
    found = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert found["psd_arms.closed_wide_focal.f1"] == record["test"]["slots"]["f1"]
    for name in ("never", "bilinear", "closed", "oracle"):
        assert found[f"psd_arms.kinematic.{name}.sort.planned.severe.success_rate"] == 1.0
    assert found["psd_arms.kinematic.oracle.sort.planned.severe.missed"] == 0
    with pytest.raises(InvalidValue, match="the data of the same settings"):
        run(Settings(scenarios=("sort",), held_out=(), episodes=1), out, work, ("focal",), said.append)


def test_wrong_names_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown held-out scenario 'rope'; valid: sort"):
        run(Settings(scenarios=("sort",), held_out=("rope",)), tmp_path, tmp_path, ("focal",), print)
    with pytest.raises(UnknownName, match="unknown loss 'hinge'; valid: bce, focal"):
        main(["--losses", "hinge"])
    for name in ("never", "/nowhere/x.npz", "closed.json"):
        with pytest.raises(UnknownName, match=r"unknown detector .*PATH\.npz"):
            find_weights(name)
