from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kitchen_play import play

from polyarm_core.domains.overcooked.kitchen import (
    DISH,
    EMPTY_POT,
    FULL,
    IDLE,
    INTERACT,
    NOTHING,
    ONION,
    SOUP,
    SPOILED,
    STAY,
    Kitchen,
    KitchenState,
)
from polyarm_core.domains.overcooked.layouts import EAST, LAYOUT_NAMES, NORTH, SOUTH, WEST, Layout, load_layout
from polyarm_core.errors import InvalidValue

# One player at each end of a corridor; both can reach the counter between them.
CORRIDOR = Layout.of("corridor", ("XPXDX", "O1 2S", "XXXXX"))


@pytest.fixture
def kitchen() -> Kitchen:
    return Kitchen(CORRIDOR, cook_time=4)


def run(kitchen: Kitchen, state: KitchenState, *controls: tuple[int, int]) -> KitchenState:
    for pair in controls:
        state = kitchen.step(state, pair)
    return state


def pot_of(state: KitchenState) -> tuple[int, int]:
    (pot,) = state.pots
    return pot


def test_one_soup_from_the_first_onion_to_the_delivery(kitchen: Kitchen) -> None:
    fetch = [(WEST, STAY), (INTERACT, STAY), (NORTH, STAY), (INTERACT, STAY)]
    state = run(kitchen, kitchen.start(), *fetch, *fetch)
    assert pot_of(state) == (2, IDLE) and state.held == (NOTHING, NOTHING)
    state = run(kitchen, state, *fetch)
    assert pot_of(state) == (FULL, IDLE)
    state = run(kitchen, state, (STAY, INTERACT), (STAY, STAY))
    assert pot_of(state) == (FULL, IDLE), "nothing cooks by itself"
    ticks = []
    for controls in [(INTERACT, STAY), (EAST, STAY), (EAST, STAY), (STAY, STAY), (STAY, STAY), (STAY, STAY)]:
        state = kitchen.step(state, controls)
        ticks.append(pot_of(state)[1])
    assert ticks == [1, 2, 3, 4, 4, 4], "the frame of the start is the first tick; ready at the cook time"
    # The first player has moved east, so the second cannot pass: hand the dish over on the counter between them.
    state = state._replace(positions=(CORRIDOR.cell(1, 1), CORRIDOR.cell(3, 1)), facings=(NORTH, NORTH))
    assert state.held == (NOTHING, DISH)
    state = run(kitchen, state, (STAY, WEST), (STAY, NORTH), (STAY, INTERACT), (STAY, EAST), (EAST, STAY))
    state = run(kitchen, state, (NORTH, STAY), (INTERACT, STAY), (WEST, STAY), (NORTH, STAY), (INTERACT, STAY))
    assert state.held == (SOUP, NOTHING) and pot_of(state) == EMPTY_POT
    state = state._replace(positions=(CORRIDOR.cell(3, 1), CORRIDOR.cell(1, 1)), facings=(EAST, NORTH))
    after = kitchen.step(state, (INTERACT, STAY))
    assert after.delivered == 1 and after.held == (NOTHING, NOTHING) and after.frame == state.frame + 1


@pytest.mark.parametrize("onions", [1, 2])
def test_a_pot_started_too_early_gives_a_soup_that_is_no_order(kitchen: Kitchen, onions: int) -> None:
    state = kitchen.start()._replace(pots=((onions, IDLE),))
    state = kitchen.step(state, (INTERACT, STAY))
    assert pot_of(state) == (onions, 1)
    more = kitchen.step(state._replace(held=(ONION, NOTHING)), (INTERACT, STAY))
    assert more.held[0] == ONION and pot_of(more) == (onions, 2), "nothing goes into a pot that cooks"
    state = state._replace(pots=((onions, 4),), held=(DISH, NOTHING))
    state = kitchen.step(state, (INTERACT, STAY))
    assert state.held[0] == SPOILED and pot_of(state) == EMPTY_POT
    state = state._replace(positions=(CORRIDOR.cell(3, 1), CORRIDOR.cell(1, 1)), facings=(EAST, NORTH))
    state = kitchen.step(state, (INTERACT, STAY))
    assert state.held[0] == NOTHING and state.delivered == 0


@pytest.mark.parametrize(
    ("tile", "held", "pot", "counter"),
    [
        ("pot", NOTHING, EMPTY_POT, NOTHING),
        ("pot", DISH, (3, IDLE), NOTHING),
        ("pot", DISH, (3, 2), NOTHING),
        ("pot", NOTHING, (3, 4), NOTHING),
        ("pot", ONION, (3, IDLE), NOTHING),
        ("pot", SOUP, (2, IDLE), NOTHING),
        ("counter", NOTHING, EMPTY_POT, NOTHING),
        ("counter", DISH, EMPTY_POT, ONION),
        ("onions", DISH, EMPTY_POT, NOTHING),
        ("dishes", ONION, EMPTY_POT, NOTHING),
        ("serving", ONION, EMPTY_POT, NOTHING),
        ("floor", SOUP, EMPTY_POT, NOTHING),
    ],
)
def test_interacts_without_effect(kitchen: Kitchen, tile: str, held: int, pot: tuple[int, int], counter: int) -> None:
    x, facing = {
        "pot": (1, NORTH),
        "counter": (2, NORTH),
        "onions": (1, WEST),
        "dishes": (3, NORTH),
        "serving": (3, EAST),
        "floor": (1, EAST),
    }[tile]
    between = kitchen.counter_index[CORRIDOR.cell(2, 0)]
    counters = tuple(counter if index == between else NOTHING for index in range(len(CORRIDOR.counters)))
    state = kitchen.start()._replace(
        positions=(CORRIDOR.cell(x, 1), CORRIDOR.cell(2 if x == 3 else 3, 1)),
        facings=(facing, SOUTH),
        held=(held, NOTHING),
        pots=(pot,),
        counters=counters,
    )
    assert kitchen.step(state, (INTERACT, STAY)) == kitchen.step(state, (STAY, STAY))


def test_the_first_players_interact_comes_first() -> None:
    kitchen = Kitchen(load_layout("forced_coordination"))
    layout = kitchen.layout
    counter = layout.cell(2, 2)
    index = kitchen.counter_index[counter]
    state = kitchen.start()._replace(positions=(layout.cell(3, 2), layout.cell(1, 2)), facings=(WEST, EAST))
    gives = state._replace(held=(ONION, NOTHING))
    assert kitchen.step(gives, (INTERACT, INTERACT)).held == (NOTHING, ONION), "handed over within one frame"
    takes = state._replace(held=(NOTHING, ONION))
    after = kitchen.step(takes, (INTERACT, INTERACT))
    assert after.held == (NOTHING, NOTHING) and after.counters[index] == ONION, "too late for the first player"


@pytest.mark.parametrize(
    ("controls", "positions", "facings"),
    [
        ((EAST, WEST), (6, 8), (EAST, WEST)),  # the same cell: both stay, turned
        ((EAST, STAY), (7, 8), (EAST, NORTH)),
        ((WEST, EAST), (6, 8), (WEST, EAST)),  # tiles ahead
        ((STAY, INTERACT), (6, 8), (NORTH, NORTH)),
    ],
)
def test_moves(
    kitchen: Kitchen, controls: tuple[int, int], positions: tuple[int, ...], facings: tuple[int, ...]
) -> None:
    after = kitchen.step(kitchen.start(), controls)
    assert (after.positions, after.facings) == (positions, facings)


def test_players_next_to_each_other_neither_swap_nor_push_but_follow(kitchen: Kitchen) -> None:
    state = kitchen.start()._replace(positions=(6, 7))
    assert kitchen.step(state, (EAST, WEST)).positions == (6, 7)
    assert kitchen.step(state, (EAST, STAY)).positions == (6, 7)
    assert kitchen.step(state, (EAST, EAST)).positions == (7, 8)


def test_a_blocked_tile_does_nothing(kitchen: Kitchen) -> None:
    state = kitchen.start()._replace(facings=(WEST, NORTH))
    blocked = state._replace(blocked=(CORRIDOR.cell(0, 1), CORRIDOR.cell(3, 0)))
    assert kitchen.step(state, (INTERACT, INTERACT)).held == (ONION, DISH)
    after = kitchen.step(blocked, (INTERACT, INTERACT))
    assert after.held == (NOTHING, NOTHING) and after.blocked == blocked.blocked


def test_a_cook_time_below_one_is_refused() -> None:
    with pytest.raises(InvalidValue, match="cook_time"):
        Kitchen(CORRIDOR, cook_time=0)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(LAYOUT_NAMES), st.integers(0, 10**6), st.integers(1, 25), st.floats(0, 1))
def test_laws_of_every_frame(name: str, seed: int, cook_time: int, noise: float) -> None:
    kitchen = Kitchen(load_layout(name), cook_time)
    layout = kitchen.layout
    regions = [set(layout.region(start)) for start in layout.starts]
    for before, controls, after in play(kitchen, seed, 120, noise=noise):
        assert after.frame == before.frame + 1 and after.delivered >= before.delivered
        assert after.positions[0] != after.positions[1]
        for player in (0, 1):
            assert after.positions[player] in regions[player]
            assert layout.distances[before.positions[player]][after.positions[player]] <= (controls[player] < STAY)
            if controls[player] >= STAY:
                assert after.facings[player] == before.facings[player]
            else:
                assert after.facings[player] == controls[player] and after.held[player] == before.held[player]
        for onions, tick in after.pots:
            assert 0 <= onions <= FULL and IDLE <= tick <= cook_time and (onions or tick == IDLE)
        assert all(
            item == NOTHING or layout.access[cell] for cell, item in zip(layout.counters, after.counters, strict=True)
        )
        assert hash(after) == hash(KitchenState(*after)) and kitchen.step(before, controls) == after
