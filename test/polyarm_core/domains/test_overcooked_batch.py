from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kitchen_play import play

from polyarm_core.domains.overcooked.batch import DISH_PICKUP, PLACEMENT_IN_POT, SOUP_PICKUP, KitchenBatch
from polyarm_core.domains.overcooked.kitchen import (
    CONTROLS,
    DISH,
    EMPTY_POT,
    IDLE,
    INTERACT,
    NOTHING,
    ONION,
    SOUP,
    STAY,
    Kitchen,
    KitchenState,
)
from polyarm_core.domains.overcooked.layouts import LAYOUT_NAMES, NORTH, load_layout
from polyarm_core.errors import InvalidValue

layouts = pytest.mark.parametrize("name", LAYOUT_NAMES)


def states_of(batch: KitchenBatch) -> list[KitchenState]:
    return [batch.state(row) for row in range(batch.size)]


def some_states(kitchen: Kitchen, count: int, seed: int = 0) -> list[KitchenState]:
    """States from all over a busy game."""
    states = [after for _, _, after in play(kitchen, seed, 8 * count)]
    return states[::8]


@layouts
def test_games_are_those_of_the_single_kitchen(name: str) -> None:
    kitchen = Kitchen(load_layout(name))
    batch = KitchenBatch(kitchen.layout, 3)
    games = [play(kitchen, seed, 500) for seed in range(3)]
    delivered = 0
    for frames in zip(*games, strict=True):
        assert states_of(batch) == [before for before, _, _ in frames]
        frame = batch.step(np.array([controls for _, controls, _ in frames]).T)
        assert states_of(batch) == [after for _, _, after in frames]
        per_kitchen = [after.delivered - before.delivered for before, _, after in frames]
        assert frame.delivered.sum(axis=0).tolist() == per_kitchen
        delivered += sum(per_kitchen)
    assert delivered > 0


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(LAYOUT_NAMES), st.integers(0, 10**6), st.integers(1, 25), st.booleans())
def test_one_frame_from_any_state(name: str, seed: int, cook_time: int, blocked: bool) -> None:
    kitchen = Kitchen(load_layout(name), cook_time)
    rng = np.random.default_rng(seed)
    states = some_states(kitchen, 12, seed)
    if blocked:
        tiles = [cell for cell in range(len(kitchen.layout.terrain)) if cell not in kitchen.layout.floor]
        states = [
            state._replace(blocked=tuple(sorted(rng.choice(tiles, 3, replace=False).tolist()))) for state in states
        ]
    batch = KitchenBatch.of(kitchen, states)
    assert states_of(batch) == states
    controls = rng.integers(0, 6, (2, batch.size))
    controls[:, ::2] = INTERACT
    batch.step(controls)
    assert states_of(batch) == [
        kitchen.step(state, pair) for state, pair in zip(states, controls.T.tolist(), strict=True)
    ]


@layouts
def test_effective_controls_are_those_that_change_something(name: str) -> None:
    kitchen = Kitchen(load_layout(name))
    states = some_states(kitchen, 40)
    states[3] = states[3]._replace(blocked=(kitchen.layout.pots[0], *kitchen.layout.onion_dispensers))
    mask = KitchenBatch.of(kitchen, states).effective()
    for row, state in enumerate(states):
        idle = kitchen.step(state, (STAY, STAY))
        for player in (0, 1):
            for control in CONTROLS:
                pair = (control, STAY) if player == 0 else (STAY, control)
                changes = control == STAY or kitchen.step(state, pair) != idle
                assert mask[player, row, control] == changes, (state, player, control)


def test_reset_puts_some_kitchens_back_and_leaves_the_others() -> None:
    kitchen = Kitchen(load_layout("cramped_room"))
    states = some_states(kitchen, 6)
    states[1] = states[1]._replace(blocked=(0,))
    batch = KitchenBatch.of(kitchen, states)
    batch.reset(np.array([False, True, False, False, True, False]))
    assert batch.state(1) == batch.state(4) == kitchen.start()
    assert [batch.state(row) for row in (0, 2, 3, 5)] == [states[row] for row in (0, 2, 3, 5)]
    batch.reset()
    assert set(states_of(batch)) == {kitchen.start()}


def test_take_and_copy_are_batches_of_their_own() -> None:
    kitchen = Kitchen(load_layout("coordination_ring"))
    states = some_states(kitchen, 5)
    batch = KitchenBatch.of(kitchen, states)
    twice, some = batch.take([4, 0, 4]), batch.take(np.array([True, False, False, True, False]))
    copy = batch.copy()
    batch.step(np.full((2, 5), INTERACT))
    batch.reset()
    assert states_of(twice) == [states[4], states[0], states[4]]
    assert states_of(some) == [states[0], states[3]]
    assert states_of(copy) == states
    for controls in ((INTERACT, INTERACT), (NORTH, INTERACT)):  # copies step as well
        copy.step(np.tile(np.array(controls)[:, None], 5))
        states = [kitchen.step(state, controls) for state in states]
        assert states_of(copy) == states


def test_put_spreads_one_state_over_several_kitchens() -> None:
    kitchen = Kitchen(load_layout("cramped_room"))
    state = some_states(kitchen, 9)[-1]
    batch = KitchenBatch(kitchen.layout, 4)
    batch.put([1, 3], state)
    assert states_of(batch) == [kitchen.start(), state, kitchen.start(), state]


def test_wrong_shapes_are_refused() -> None:
    batch = KitchenBatch(load_layout("cramped_room"), 3)
    with pytest.raises(InvalidValue, match=r"\(3, 2\).*\(2, 3\)"):
        batch.step(np.zeros((3, 2), int))
    with pytest.raises(InvalidValue, match="size"):
        KitchenBatch(load_layout("cramped_room"), 0)


# --- shaped rewards ---


@pytest.mark.parametrize(
    ("pots", "other", "counter", "reward"),
    [
        ((1, IDLE), NOTHING, NOTHING, DISH_PICKUP),
        ((3, 5), NOTHING, NOTHING, DISH_PICKUP),
        ((3, 20), NOTHING, NOTHING, DISH_PICKUP),
        ((3, IDLE), NOTHING, NOTHING, 0.0),  # the package does not count a full pot that nobody has started
        (EMPTY_POT, NOTHING, NOTHING, 0.0),
        ((1, IDLE), DISH, NOTHING, 0.0),
        ((1, IDLE), NOTHING, DISH, 0.0),
    ],
)
def test_a_dish_is_rewarded_only_while_it_is_useful(
    pots: tuple[int, int], other: int, counter: int, reward: float
) -> None:
    kitchen = Kitchen(load_layout("cramped_room"))
    layout = kitchen.layout
    state = kitchen.start()._replace(
        positions=(layout.cell(1, 2), layout.cell(3, 1)),
        facings=(1, 0),
        held=(NOTHING, other),
        pots=(pots,),
        counters=(counter, *(NOTHING,) * (len(layout.counters) - 1)),
    )
    frame = KitchenBatch.of(kitchen, [state]).step([[INTERACT], [STAY]])
    assert frame.shaped.tolist() == [[reward], [0.0]]


def test_potting_and_soup_are_rewarded_and_the_delivery_is_counted() -> None:
    kitchen = Kitchen(load_layout("cramped_room"))
    layout = kitchen.layout
    state = kitchen.start()._replace(positions=(layout.cell(2, 1), layout.cell(3, 2)), facings=(0, 1))
    states = [
        state._replace(held=(ONION, SOUP), pots=((2, IDLE),)),
        state._replace(held=(DISH, NOTHING), pots=((3, 20),)),
        state._replace(held=(ONION, NOTHING), pots=((3, IDLE),)),
    ]
    frame = KitchenBatch.of(kitchen, states).step(np.full((2, 3), INTERACT))
    assert frame.shaped.tolist() == [[PLACEMENT_IN_POT, SOUP_PICKUP, 0.0], [0.0, 0.0, 0.0]]
    assert frame.delivered.tolist() == [[0, 0, 0], [1, 0, 0]]


# --- observations ---


@layouts
def test_observations_have_the_stated_form(name: str) -> None:
    kitchen = Kitchen(load_layout(name))
    batch = KitchenBatch.of(kitchen, some_states(kitchen, 30))
    seen = batch.observe()
    assert seen.shape == (30, 2, batch.encoder.size) and seen.dtype == np.float32
    assert np.abs(seen).max() <= 1.0 and np.isfinite(seen).all()


def test_both_players_see_with_themselves_first() -> None:
    kitchen = Kitchen(load_layout("coordination_ring"))
    states = some_states(kitchen, 30)
    swapped = [
        state._replace(positions=state.positions[::-1], facings=state.facings[::-1], held=state.held[::-1])
        for state in states
    ]
    one, other = KitchenBatch.of(kitchen, states).observe(), KitchenBatch.of(kitchen, swapped).observe()
    assert (one[:, ::-1] == other).all()


@layouts
def test_different_states_look_different(name: str) -> None:
    kitchen = Kitchen(load_layout(name))
    states = {state._replace(frame=0, delivered=0): state for state in some_states(kitchen, 150)}
    seen = KitchenBatch.of(kitchen, list(states.values())).observe()
    assert len(np.unique(seen[:, 0], axis=0)) == len(np.unique(seen[:, 1], axis=0)) == len(states) > 20
