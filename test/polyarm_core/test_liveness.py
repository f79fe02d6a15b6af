"""Dead ends: the look-ahead agrees with an exhaustive search, and drawn starts can always be solved."""

from __future__ import annotations

import itertools

import pytest

from polyarm_core.constraints import Action
from polyarm_core.liveness import NoStart, RelayGraph, draw_start
from polyarm_core.scenario import load_scenario, parse_scenario

SORT = load_scenario("sort")
ENTITIES = sorted(SORT.entities)


def moves_of(state: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Successors written out from eq. 5 alone, independent of the code under test."""
    out = []
    for i, entity in enumerate(ENTITIES):
        goal = str(SORT.entities[entity].goal)
        if state[i] == goal:
            continue
        for arm in SORT.arms.values():
            if state[i] in arm.reach:
                for p in arm.reach:
                    closer = abs(SORT.order(p) - SORT.order(goal)) < abs(SORT.order(state[i]) - SORT.order(goal))
                    if p not in state and (p == goal or (p in ("panel3", "panel5") and closer)):
                        out.append((*state[:i], p, *state[i + 1 :]))
    return out


def backward_reachable() -> set[tuple[str, ...]]:
    states = list(itertools.permutations(SORT.placements, len(ENTITIES)))
    good = {tuple(str(SORT.entities[e].goal) for e in ENTITIES)}
    while True:
        more = {s for s in states if s not in good and any(t in good for t in moves_of(s))}
        if not more:
            return good
        good |= more


def test_look_ahead_equals_backward_search_on_every_state() -> None:
    good = backward_reachable()
    graph = RelayGraph(SORT)
    for state in itertools.permutations(SORT.placements, len(ENTITIES)):
        assert graph.reaches_goal(dict(zip(ENTITIES, state, strict=True))) == (state in good), state
    assert 0 < len(good) < 210  # both kinds exist, or the test would show nothing


def test_two_entities_that_must_pass_each_other_are_a_dead_end() -> None:
    where = {"blue_square": "panel7", "pink_polygon": "pad4", "yellow_trapezoid": "panel1"}
    graph = RelayGraph(SORT)
    assert graph.reaches_goal(where)
    both = [Action("move", "blue_square", "panel5"), Action("move", "yellow_trapezoid", "panel3")]
    assert graph.dead_end_after(where, both)
    assert not graph.dead_end_after(where, both[1:])


def test_a_part_of_the_actions_may_fail() -> None:
    # All together are safe, but if only one succeeds the others are stuck: that counts as a dead end.
    graph = RelayGraph(SORT)
    for seed in range(30):
        where = draw_start(SORT, seed)
        state = tuple(where[e] for e in ENTITIES)
        for nxt in moves_of(state):
            i = next(k for k in range(3) if nxt[k] != state[k])
            action = Action("move", ENTITIES[i], nxt[i])
            assert graph.dead_end_after(where, [action]) == (nxt not in backward_reachable_cached())


_GOOD: set[tuple[str, ...]] = set()


def backward_reachable_cached() -> set[tuple[str, ...]]:
    if not _GOOD:
        _GOOD.update(backward_reachable())
    return _GOOD


def test_starts_are_solvable_distinct_and_off_goal() -> None:
    starts = [draw_start(SORT, seed) for seed in range(200)]
    for start in starts:
        assert len(set(start.values())) == len(ENTITIES)
        assert all(SORT.entities[e].goal != p for e, p in start.items())
        assert tuple(start[e] for e in ENTITIES) in backward_reachable_cached()
    distinct = {tuple(sorted(s.items())) for s in starts}
    assert len({tuple(sorted(s.items())) for s in starts[:20]}) >= 15
    assert len(distinct) > 50  # of the 78 that can be solved


def test_same_seed_same_start() -> None:
    assert [draw_start(SORT, s) for s in range(20)] == [draw_start(SORT, s) for s in range(20)]


def test_spent_budget_means_unknown_and_never_vetoes() -> None:
    graph = RelayGraph(SORT, budget=1)
    where = {"blue_square": "panel7", "pink_polygon": "pad2", "yellow_trapezoid": "panel1"}
    assert graph.reaches_goal(where) is None
    assert not graph.dead_end_after(where, [Action("move", "yellow_trapezoid", "panel3")])


def test_no_start_is_an_error() -> None:
    data = SORT.model_dump()
    for arm in data["arms"].values():
        arm["reach"] = ["panel1"]
    with pytest.raises(NoStart, match="3 entities over 1 placements"):
        draw_start(parse_scenario(data), 0)


def test_fixed_start() -> None:
    data = SORT.model_dump()
    data["start"] = {"at": {"blue_square": "panel1", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"}}
    assert draw_start(parse_scenario(data), 7)["pink_polygon"] == "panel3"
