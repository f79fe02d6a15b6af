"""Disturbances: drawn beforehand, the same for every method; what they do to the kinematic plant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarm_core.constraints import Action
from polyarm_core.control.disturbance import (
    FIRST_SLOT,
    KINDS,
    LEVELS,
    Disturber,
    ScheduledEvent,
    draw_schedule,
    kinds_of,
)
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.domains.arms import ArmsDomain
from polyarm_core.errors import UnknownName
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.plant.simulation import Simulation
from polyarm_core.plant.skills import ArmBusy
from polyarm_core.scenario import Scenario, load_scenario
from polyarm_core.world import OBSTACLE, WorldView, locate

SORT, ROPE, CABINET = (load_scenario(name) for name in ("sort", "rope", "cabinet"))
# seed 0 of sort: blue on panel5, pink on pad2, yellow on panel7
BLUE = Action("move", "blue_square", "panel3")


@given(seed=st.integers(0, 2**63), level=st.sampled_from(sorted(LEVELS)), task=st.sampled_from([SORT, ROPE, CABINET]))
def test_a_schedule_is_drawn_beforehand_and_kinds_take_turns(seed: int, level: str, task: Scenario) -> None:
    schedule = draw_schedule(task, level, seed)
    assert schedule == draw_schedule(task, level, seed) and list(schedule) == sorted(schedule)
    count, last = LEVELS[level]
    assert len(schedule) == count
    counts = [sum(event.kind == kind for event in schedule) for kind in kinds_of(task)]
    assert max(counts) - min(counts) <= 1 and sum(counts) == count  # a door slips only where one is held
    if schedule:
        assert schedule[0].slot == FIRST_SLOT and all(event.slot <= last for event in schedule)


def test_only_where_something_is_held_open_a_door_slips() -> None:
    assert kinds_of(CABINET) == KINDS
    assert kinds_of(SORT) == kinds_of(ROPE) == tuple(kind for kind in KINDS if kind != "slipped")
    known = (("dropped", 0.74), ("stopped", 0.0145))  # schedules without it are what they were before it was known
    assert tuple((event.kind, round(event.draw, 4)) for event in draw_schedule(SORT, "standard", 0)) == known


def test_seeds_tasks_and_levels_differ() -> None:
    schedules = [draw_schedule(task, level, seed) for task in (SORT, ROPE) for level in LEVELS for seed in (0, 1)]
    assert len({schedule for schedule in schedules if schedule}) == 8
    with pytest.raises(UnknownName, match="unknown disturb 'mild'; valid: none, severe, standard"):
        draw_schedule(SORT, "mild", 0)


def disturbed(kind: str, draw: float = 0.1) -> tuple[KinematicPlant, Disturber]:
    plant = KinematicPlant(SORT, 0)
    disturber = Disturber(plant, MirroredArms(ArmsDomain(SORT)), [ScheduledEvent(2, kind, draw)])  # type: ignore[arg-type]
    disturber.before_slot(1)
    assert disturber.happened == []
    return plant, disturber


def test_a_person_moves_an_object() -> None:
    plant, disturber = disturbed("moved")
    before = locate(SORT, plant.world())
    disturber.before_slot(2)
    after = locate(SORT, plant.world())
    (changed,) = [name for name in before if before[name] != after[name]]
    assert disturber.happened[0].what == f"{changed} moved from {before[changed]} to {after[changed]}"
    disturber.before_slot(3)
    assert len(disturber.happened) == 1


def test_an_arm_stops_for_some_slots() -> None:
    plant, disturber = disturbed("stopped", 0.0)
    disturber.before_slot(2)
    (arm,) = disturber.stopped(2)
    slots = disturber.stopped(2)[arm]
    assert plant.arm(arm).status == "protective_stop"
    with pytest.raises(ArmBusy):
        plant.start_action(arm, Action("move", "pink_polygon", "panel3"))
    for slot in range(3, 2 + slots):
        disturber.before_slot(slot)
        assert plant.arm(arm).status == "protective_stop"
    disturber.before_slot(2 + slots)
    assert plant.arm(arm).status == "idle" and not disturber.stopped(2 + slots)  # cleared, and sent home


def test_a_blocked_placement_is_seen_and_no_place_to_go() -> None:
    plant, disturber = disturbed("blocked")
    disturber.before_slot(2)
    ((name, slots),) = disturber.blocked(2).items()
    view = WorldView(SORT, plant.world())
    assert view.world.blocked == {name} and view.occupant(name) == OBSTACLE
    for arm in SORT.arms:
        assert all(action.placement != name for action in view.legal(arm))
    assert view != WorldView(SORT, replace(view.world, blocked=frozenset()))
    disturber.before_slot(2 + slots)
    assert plant.world().blocked == frozenset()


def test_an_object_is_dropped_on_the_way() -> None:
    plant, disturber = disturbed("dropped")
    disturber.before_slot(2)
    disturber.in_slot(2)
    assert disturber.happened == []  # nobody carries anything: it waits
    plant.start_action("bob", BLUE)
    plant.step(200)  # 0.8 s of 1 s
    disturber.in_slot(2)
    (result,) = plant.results()
    assert (result.outcome, result.reason) == ("failed", "slip")
    assert disturber.happened[0].what.startswith("bob dropped blue_square")
    assert locate(SORT, plant.world())["blue_square"] != "panel3"
    plant.step(200)
    assert plant.results() == []


def test_a_door_slips_while_somebody_reaches_in() -> None:
    plant = KinematicPlant(CABINET, 0)
    mug = locate(CABINET, plant.world())["mug"]
    holder, door = ("alice", "left_door") if mug.startswith("left") else ("bob", "right_door")
    disturber = Disturber(plant, MirroredArms(ArmsDomain(CABINET)), [ScheduledEvent(2, "slipped", 0.4)])
    plant.start_action(holder, Action("hold", door))
    plant.step(200)
    disturber.in_slot(2)
    assert disturber.happened == []  # nobody relies on it: it waits
    plant.start_action("chad", Action("move", "mug", "coaster_mug"))
    plant.step(10)
    disturber.in_slot(2)
    assert disturber.happened == [] and plant.held_conditions()
    plant.stop(holder, "test")  # and would not be stopped by a slip of somebody who does not hold it any more
    plant.results()
    for arm, action in ((holder, Action("hold", door)), ("chad", Action("move", "mug", "coaster_mug"))):
        plant.start_action(arm, action)
    plant.step(150)
    disturber.in_slot(2)
    assert [(r.arm, r.outcome, r.reason) for r in plant.results()] == [
        (holder, "failed", "slip"),
        ("chad", "stopped", "not_held"),
    ]
    assert disturber.happened[0].what == f"{door} slipped from {holder} and fell shut"
    assert not plant.held_conditions() and locate(CABINET, plant.world())["mug"] == mug


def test_a_door_slips_in_physics_and_falls_shut() -> None:
    plant = Simulation(CABINET, 1)
    try:
        mug = locate(CABINET, plant.world())["mug"]
        holder, door = ("alice", "left_door") if mug.startswith("left") else ("bob", "right_door")
        plant.start_action(holder, Action("hold", door))
        plant.start_action("chad", Action("move", "mug", "coaster_mug"))
        end = plant.time + 120.0
        while not plant.relied_on() and plant.time < end:
            plant.step(5)
        assert plant.relied_on() == {holder: door}
        plant.slip(holder)
        assert [(r.arm, r.outcome, r.reason) for r in plant.results()] == [
            (holder, "failed", "slip"),
            ("chad", "stopped", "not_held"),
        ]
        plant.go_home("chad")
        assert plant.run_until_idle(60.0)
        assert {result.outcome for result in plant.results()} == {"succeeded"}
        assert plant.readings()[f"{door}.angle"] < 0.1
    finally:
        plant.close()


# -- what the kinematic plant learned for it ---------------------------------------------------------------------------


def test_a_rope_is_lifted_carried_and_lowered_without_physics() -> None:
    plant = KinematicPlant(ROPE, 0)
    for verb, where in (("lift", ("", "")), ("carry", ("groove_a", "groove_b")), ("lower", ("groove_a", "groove_b"))):
        plant.start_action("alice", Action(verb, "end_a", where[0]))
        plant.start_action("bob", Action(verb, "end_b", where[1]))
        plant.step(250)
        assert [result.outcome for result in plant.results()] == ["succeeded", "succeeded"]
        assert set(plant.held_by().values()) == (set() if verb == "lower" else {"alice", "bob"})
    assert plant.readings()["rope.in_bed"] > 0.5


def test_who_lets_go_stops_the_others_of_the_group_and_who_relies_on_it() -> None:
    plant = KinematicPlant(ROPE, 0)
    plant.start_action("alice", Action("lift", "end_a"))
    plant.start_action("bob", Action("lift", "end_b"))
    plant.release("alice")
    assert [(r.arm, r.outcome, r.reason) for r in plant.results()] == [
        ("alice", "failed", "slip"),
        ("bob", "stopped", "partner"),
    ]
    plant = KinematicPlant(CABINET, 0)
    mug = locate(CABINET, plant.world())["mug"]
    holder, door = ("alice", "left_door") if mug.startswith("left") else ("bob", "right_door")
    plant.start_action(holder, Action("hold", door))
    plant.start_action("chad", Action("move", "mug", "coaster_mug"))
    plant.protective_stop(holder, "stopped")
    assert [(r.arm, r.outcome, r.reason) for r in plant.results()] == [
        (holder, "stopped", "protective_stop"),
        ("chad", "stopped", "not_held"),
    ]
    assert locate(CABINET, plant.world())["mug"] == mug
