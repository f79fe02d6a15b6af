from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kitchen_play import play

from polyarm_core.domains.overcooked.disturbances import (
    HELD_OUT,
    NAMES,
    STANDARD,
    Event,
    EventSchedule,
    disturb,
    happen,
    workable,
)
from polyarm_core.domains.overcooked.kitchen import (
    DISH,
    EMPTY_POT,
    FULL,
    IDLE,
    NOTHING,
    ONION,
    SOUP,
    Kitchen,
    KitchenState,
)
from polyarm_core.domains.overcooked.layouts import LAYOUT_NAMES, load_layout
from polyarm_core.domains.overcooked.minimum import minimum
from polyarm_core.errors import InvalidValue, UnknownName

layouts = pytest.mark.parametrize("name", LAYOUT_NAMES)
draws = st.floats(0, 1, exclude_max=True)


def outcomes(kitchen: Kitchen, state: KitchenState, name: str) -> set[KitchenState]:
    """Everything that the event can lead to."""
    found = {disturb(kitchen, state, name, draw) for draw in np.linspace(0, 1, 400, endpoint=False).tolist()}
    assert None not in found or found == {None}, "whether an event applies must not depend on the draw"
    return {after for after in found if after is not None}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LAYOUT_NAMES), st.integers(0, 10**6), st.integers(1, 120), st.sampled_from(NAMES), draws)
def test_an_event_leads_to_a_state_that_can_be_played_on(
    name: str, seed: int, frames: int, event: str, draw: float
) -> None:
    kitchen = Kitchen(load_layout(name))
    *_, (_, _, before) = play(kitchen, seed, frames)
    after = disturb(kitchen, before, event, draw)
    if after is None:
        return
    assert after != before and disturb(kitchen, before, event, draw) == after
    assert (after.frame, after.delivered, after.facings) == (before.frame, before.delivered, before.facings)
    assert len(set(after.positions)) == 2
    for one, other in zip(before.positions, after.positions, strict=True):
        assert kitchen.layout.distances[one][other] >= 0
    for onions, tick in after.pots:
        assert 0 <= onions <= FULL and (onions or tick == IDLE)
    assert kitchen.step(after, (4, 4)).frame == before.frame + 1


def test_the_dropped_item_lies_on_the_nearest_free_counter() -> None:
    kitchen = Kitchen(load_layout("coordination_ring"))
    layout = kitchen.layout
    state = kitchen.start()._replace(positions=(layout.cell(1, 2), layout.cell(3, 1)), held=(SOUP, NOTHING))
    (after,) = outcomes(kitchen, state, "O1")
    centre = kitchen.counter_index[layout.cell(2, 2)]
    assert after.held == (NOTHING, NOTHING) and after.counters[centre] == SOUP
    assert after.positions == state.positions and after.pots == state.pots
    # Its only counter at one step is taken, or out of use: the item goes on to one of those at two.
    taken = state._replace(counters=tuple(ONION if i == centre else NOTHING for i in range(len(layout.counters))))
    out_of_use = state._replace(blocked=(layout.cell(2, 2),))
    for other in (taken, out_of_use):
        places = {tuple(np.flatnonzero(np.array(o.counters) == SOUP).tolist()) for o in outcomes(kitchen, other, "O1")}
        cells = {layout.xy(layout.counters[index]) for (index,) in places}
        assert cells == {(0, 1), (1, 0)}


def test_nothing_drops_without_an_item_or_a_free_counter() -> None:
    kitchen = Kitchen(load_layout("cramped_room"))
    state = kitchen.start()
    assert outcomes(kitchen, state, "O1") == set()
    covered = state._replace(held=(DISH, NOTHING), counters=(ONION,) * len(state.counters))
    assert outcomes(kitchen, covered, "O1") == set()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, IDLE), EMPTY_POT),
        ((3, IDLE), (2, IDLE)),
        ((3, 7), (2, IDLE)),
        ((3, 20), (2, IDLE)),
        ((1, 20), EMPTY_POT),
    ],
)
def test_a_pot_loses_one_onion_and_its_timer(before: tuple[int, int], after: tuple[int, int]) -> None:
    kitchen = Kitchen(load_layout("coordination_ring"))
    state = kitchen.start()
    assert outcomes(kitchen, state, "O2") == set()
    state = state._replace(pots=(EMPTY_POT, before))
    assert outcomes(kitchen, state, "O2") == {state._replace(pots=(EMPTY_POT, after))}


@layouts
def test_an_agent_is_displaced_far_away_in_its_own_region(name: str) -> None:
    kitchen = Kitchen(load_layout(name))
    layout, start = kitchen.layout, kitchen.start()
    moved = Counter()
    for after in outcomes(kitchen, start, "O3"):
        (player,) = [i for i in (0, 1) if after.positions[i] != start.positions[i]]
        moved[player] += 1
        steps = layout.distances[start.positions[player]]
        free = [cell for cell in layout.region(start.positions[player]) if cell != start.positions[1 - player]]
        assert after.positions[player] in free
        assert 2 * steps[after.positions[player]] >= max(steps[cell] for cell in free)
        assert after == start._replace(positions=after.positions)
    assert set(moved) == {0, 1}


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(LAYOUT_NAMES), st.integers(0, 10**6), draws)
def test_tiles_go_out_of_use_only_while_soup_can_still_be_served(name: str, seed: int, draw: float) -> None:
    kitchen = Kitchen(load_layout(name))
    *_, (_, _, state) = play(kitchen, seed, 60)
    for _ in range(30):
        after = disturb(kitchen, state, "O4", draw)
        if after is None:
            break
        (tile,) = set(after.blocked) - set(state.blocked)
        assert kitchen.layout.terrain[tile] in "ODX" and after == state._replace(blocked=after.blocked)
        assert workable(kitchen.layout, after.positions, set(after.blocked))
        state = after
    assert disturb(kitchen, state, "O4", draw) is None, "at last nothing may be blocked any more"


def test_what_must_not_be_blocked_is_known() -> None:
    def tiles(name: str) -> set[tuple[int, int]]:
        kitchen = Kitchen(load_layout(name))
        start = kitchen.start()
        return {kitchen.layout.xy(after.blocked[0]) for after in outcomes(kitchen, start, "O4")}

    # The only dish dispenser is never blocked; one of two onion dispensers may be, and counters between cells.
    assert tiles("coordination_ring") == {(0, 3), (1, 4), (2, 2)}
    assert tiles("forced_coordination") == {(0, 1), (0, 2), (2, 1), (2, 2), (2, 3)}
    # Each side has its own onions, and the pots between them carry the others' on.
    assert {(0, 1), (5, 1)} & tiles("asymmetric_advantages")


def test_workable_agrees_with_the_exact_search() -> None:
    layout = load_layout("forced_coordination")
    passes = {layout.cell(2, y) for y in (1, 2, 3)}
    assert workable(layout, layout.starts, set()) and minimum(layout) is not None
    assert minimum(layout, team="no_hand_over") is None and not workable(layout, layout.starts, passes)
    assert workable(layout, layout.starts, passes - {layout.cell(2, 3)})
    assert not workable(layout, layout.starts, set(layout.onion_dispensers))
    assert not workable(layout, layout.starts, set(layout.servings))
    assert not workable(layout, layout.starts, set(layout.pots))


@pytest.mark.parametrize(("before", "after"), [((1, IDLE), (2, IDLE)), ((2, IDLE), (3, IDLE)), ((3, IDLE), (3, 0))])
def test_a_stray_hand_does_the_next_step_at_a_pot(before: tuple[int, int], after: tuple[int, int]) -> None:
    kitchen = Kitchen(load_layout("coordination_ring"))
    state = kitchen.start()._replace(pots=((3, 4), before))
    assert outcomes(kitchen, state, "O5") == {state._replace(pots=((3, 4), after))}
    assert outcomes(kitchen, kitchen.start()._replace(pots=((3, 4), EMPTY_POT)), "O5") == set()


def test_unknown_events_and_draws_out_of_range_are_refused() -> None:
    kitchen = Kitchen(load_layout("cramped_room"))
    with pytest.raises(UnknownName, match=r"O9.*O1, O2, O3, O4, O5"):
        disturb(kitchen, kitchen.start(), "O9", 0.5)
    with pytest.raises(InvalidValue, match="draw"):
        disturb(kitchen, kitchen.start(), "O1", 1.0)
    with pytest.raises(UnknownName):
        EventSchedule.once_each(0, ("O1", "O7"))
    with pytest.raises(UnknownName):
        EventSchedule.at_rate(0, 0.1, ("O7",))
    with pytest.raises(InvalidValue, match="rate"):
        EventSchedule.at_rate(0, 1.5)
    with pytest.raises(InvalidValue, match="names"):
        EventSchedule.at_rate(0, 0.5, ())
    with pytest.raises(InvalidValue, match="names"):
        EventSchedule.once_each(0, ("O1",) * 56)


# --- schedules ---


@settings(deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(NAMES), max_size=6))
def test_a_schedule_has_each_event_once_at_distinct_frames(seed: int, names: list[str]) -> None:
    events = EventSchedule.once_each(seed, names).events
    assert sorted(event.name for event in events) == sorted(names)
    frames = [event.frame for event in events]
    assert frames == sorted(set(frames)) and all(5 <= frame <= 59 for frame in frames)
    assert all(0 <= event.draw < 1 and event.deferred for event in events)
    assert EventSchedule.once_each(seed, names).events == events


def test_over_many_seeds_every_order_and_frame_comes_up() -> None:
    schedules = [EventSchedule.once_each(seed) for seed in range(600)]
    orders = Counter(tuple(event.name for event in schedule.events) for schedule in schedules)
    assert len(orders) == 6 and min(orders.values()) > 60
    assert {event.frame for schedule in schedules for event in schedule.events} == set(range(5, 60))


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1))
def test_events_of_a_lower_rate_are_among_those_of_a_higher(seed: int, one: float, other: float) -> None:
    low, high = (EventSchedule.at_rate(seed, rate, HELD_OUT).events for rate in sorted((one, other)))
    assert set(low) <= set(high)
    assert {event.name for event in high} <= set(HELD_OUT)
    assert all(5 <= event.frame <= 99 and not event.deferred for event in high)


def test_a_rate_is_met_on_average() -> None:
    count = sum(len(EventSchedule.at_rate(seed, 0.05).events) for seed in range(400))
    assert count / (400 * 95) == pytest.approx(0.05, abs=0.005)


def test_a_deferred_event_waits_for_its_frame_and_until_it_applies() -> None:
    kitchen = Kitchen(load_layout("cramped_room"))
    state = kitchen.start()
    waits, passes = Event("O1", 3, 0.2), Event("O1", 3, 0.2, deferred=False)
    moves = Event("O3", 4, 0.2)
    pending: tuple[Event, ...] = (waits, passes, moves)
    assert happen(kitchen, state, pending) == (state, (), pending), "not yet"
    due = state._replace(frame=3)
    assert happen(kitchen, due, pending) == (due, (), (waits, moves)), "does not apply: one waits, one is dropped"
    later, happened, pending = happen(kitchen, state._replace(frame=4), (waits, moves))
    assert happened == (moves,) and pending == (waits,) and later.positions != state.positions
    holding = state._replace(frame=9, held=(NOTHING, ONION))
    later, happened, pending = happen(kitchen, holding, pending)
    assert happened == (waits,) and pending == () and later.held == (NOTHING, NOTHING)


@layouts
def test_all_three_events_of_a_trial_happen(name: str) -> None:
    kitchen = Kitchen(load_layout(name))
    for seed in range(5):
        pending, state, happened = EventSchedule.once_each(seed).events, kitchen.start(), []
        while state.frame < 150 and pending:
            due = pending
            state, now, pending = happen(kitchen, state, pending)
            happened += now
            assert set(now) | set(pending) == set(due)
            for _, _, after in play(kitchen, seed * 1000 + state.frame, 1, state):
                state = after
        assert sorted(event.name for event in happened) == sorted(STANDARD)
