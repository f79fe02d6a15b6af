from __future__ import annotations

from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from polyarm_core.domains.overcooked.kitchen import STAY, Kitchen, KitchenState
from polyarm_core.domains.overcooked.layouts import FLOOR, LAYOUT_NAMES, Layout, load_layout
from polyarm_core.domains.overcooked.navigation import NO_GOAL, Goal, Navigation, firm, tentative

# In the corridors of forced_coordination two cooks cannot pass each other at all.
OPEN = tuple(name for name in LAYOUT_NAMES if name != "forced_coordination")


@cache
def navigation(name: str) -> Navigation:
    return Navigation(load_layout(name))


def tiles(layout: Layout) -> list[int]:
    return [cell for cell, terrain in enumerate(layout.terrain) if terrain != FLOOR and layout.access[cell]]


@st.composite
def scenes(draw: st.DrawFn, names: tuple[str, ...] = OPEN) -> tuple[str, KitchenState, list[int]]:
    """(layout, state, target of each cook, in its reach)."""
    name = draw(st.sampled_from(names))
    layout, way = load_layout(name), navigation(name)
    positions = draw(st.permutations(layout.floor))[:2]
    facings = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    state = Kitchen(layout).start()._replace(positions=tuple(positions), facings=facings)
    targets = [draw(st.sampled_from([t for t in tiles(layout) if way.reachable(p, t)])) for p in positions]
    return name, state, targets


def walk(name: str, state: KitchenState, goals: list[Goal], frames: int = 60) -> tuple[list[int], KitchenState]:
    """Frame in which each cook was in front of its target, and the last state. Who arrives uses it and is then idle."""
    layout, kitchen = load_layout(name), Kitchen(load_layout(name))
    arrived = [-1, -1]
    for frame in range(frames):
        moves = navigation(name).moves(state.positions, state.facings, (goals[0], goals[1]))
        for cook in (0, 1):
            ahead = layout.front[state.positions[cook]][state.facings[cook]]
            if goals[cook] >= 0 and ahead == goals[cook] >> 1:
                assert moves[cook] == STAY
                goals[cook], arrived[cook] = NO_GOAL, frame
        after = kitchen.step(state, moves)
        for cook in (0, 1):
            if moves[cook] != STAY:
                assert after.positions[cook] == layout.move[state.positions[cook]][moves[cook]], "a collision"
        state = after
        if goals == [NO_GOAL, NO_GOAL]:
            break
    return arrived, state


@settings(max_examples=60, deadline=None)
@given(scenes())
def test_both_arrive_whatever_is_between_them(scene: tuple[str, KitchenState, list[int]]) -> None:
    name, state, targets = scene
    arrived, _ = walk(name, state, [firm(target) for target in targets])
    assert min(arrived) >= 0
    alone = [
        min(navigation(name).arrivals(p, f, t).values())
        for p, f, t in zip(state.positions, state.facings, targets, strict=True)
    ]
    assert all(frames >= least for frames, least in zip(arrived, alone, strict=True))
    assert min(a - b for a, b in zip(arrived, alone, strict=True)) <= 4, "one of them hardly has to give way"


@settings(max_examples=60, deadline=None)
@given(scenes())
def test_who_has_no_goal_gives_way_and_nothing_more(scene: tuple[str, KitchenState, list[int]]) -> None:
    name, state, (target, _) = scene
    least = min(navigation(name).arrivals(state.positions[0], state.facings[0], target).values())
    arrived, after = walk(name, state, [firm(target), NO_GOAL])
    assert arrived[0] >= least
    layout = load_layout(name)
    between = {state.positions[0], *layout.access[target]}
    if state.positions[1] not in layout.region(state.positions[0]):
        assert arrived[0] == least
        assert after.positions[1] == state.positions[1]
    # Far from every way, it does not move at all.
    distances = layout.distances
    on_a_way = any(
        distances[state.positions[0]][state.positions[1]] + distances[state.positions[1]][end] <= least + 1
        for end in layout.access[target]
        if distances[state.positions[0]][end] >= 0
    )
    if not on_a_way and state.positions[1] not in between:
        assert after.positions[1] == state.positions[1]


@given(scenes(LAYOUT_NAMES))
def test_without_goals_nobody_moves(scene: tuple[str, KitchenState, list[int]]) -> None:
    name, state, _ = scene
    assert navigation(name).moves(state.positions, state.facings, (NO_GOAL, NO_GOAL)) == (STAY, STAY)


@settings(max_examples=40, deadline=None)
@given(scenes(LAYOUT_NAMES))
def test_arrivals_are_exact_for_a_lone_cook(scene: tuple[str, KitchenState, list[int]]) -> None:
    name, state, (target, _) = scene
    layout = load_layout(name)
    here = (state.positions[0], state.facings[0])
    frames, seen, front = {}, {here}, [here]  # an independent search, forwards
    for frame in range(80):
        for cell, facing in front:
            if layout.front[cell][facing] == target:
                frames[cell, facing] = frame
        following = {(layout.move[cell][move], move) for cell, _ in front for move in range(4)} - seen
        seen |= following
        front = sorted(following)
    assert navigation(name).arrivals(*here, target) == frames


def test_a_tentative_goal_leaves_the_place_to_a_firm_one() -> None:
    """Both need the only place at a pot: who cannot use it yet lets the other one in, though it was there first."""
    layout = load_layout("coordination_ring")
    pot = layout.pots[0]
    (place,) = layout.access[pot]
    state = Kitchen(layout).start()._replace(positions=(place, layout.cell(1, 3)), facings=(0, 0))
    kitchen, way = Kitchen(layout), navigation("coordination_ring")
    for _ in range(12):
        if layout.front[state.positions[1]][state.facings[1]] == pot:
            break
        state = kitchen.step(state, way.moves(state.positions, state.facings, (tentative(pot), firm(pot))))
    else:
        pytest.fail("it never got to the pot")


@settings(max_examples=30, deadline=None)
@given(scenes(LAYOUT_NAMES), st.data())
def test_a_cell_as_a_goal(scene: tuple[str, KitchenState, list[int]], data: st.DataObject) -> None:
    name, state, _ = scene
    layout = load_layout(name)
    region = layout.region(state.positions[0])
    assume(state.positions[1] not in region or name != "forced_coordination")
    cell = data.draw(st.sampled_from(region))
    kitchen = Kitchen(layout)
    for _ in range(20):
        if state.positions[0] == cell:
            break
        state = kitchen.step(state, navigation(name).moves(state.positions, state.facings, (firm(cell), NO_GOAL)))
    assert state.positions[0] == cell
