"""Reach, observation, legal actions and success (LDT-Coord eqs. 1-5)."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from polyarm_core.conditions import ConditionTracker
from polyarm_core.constraints import STAY, Action
from polyarm_core.scenario import load_scenario, parse_scenario
from polyarm_core.world import (
    World,
    distance_to_goal,
    legal_actions,
    locate,
    nearest_placement,
    observe,
    satisfied,
    succeeded,
    swept_zones,
)

SORT = load_scenario("sort")
PLACEMENTS = sorted(SORT.placements)
LAYERS = ("layer0", "layer1", "layer2")
ENTITIES = sorted(SORT.entities)


def world_at(where: dict[str, str], offset: tuple[float, float] = (0.0, 0.0), **held: str) -> World:
    positions = {}
    for entity, placement in where.items():
        x, y, z = SORT.placements[placement].xyz
        positions[entity] = (x + offset[0], y + offset[1], z + 0.04)
    return World(positions, held_by=held)


layouts = st.permutations(PLACEMENTS).map(lambda order: dict(zip(ENTITIES, order, strict=False)))


@given(layouts, st.sampled_from(sorted(SORT.arms)))
def test_legal_actions_are_exactly_equation_5(where: dict[str, str], arm: str) -> None:
    band = SORT.arms[arm].reach
    expected = {STAY}
    for e in ENTITIES:
        goal = SORT.entities[e].goal
        assert goal is not None
        if where[e] not in band or where[e] == goal:
            continue
        for p in band:
            closer = abs(SORT.order(p) - SORT.order(goal)) < abs(SORT.order(where[e]) - SORT.order(goal))
            if (p == goal or (p in SORT.shared_placements and closer)) and p not in where.values():
                expected.add(Action("move", e, p))
    legal = legal_actions(SORT, observe(SORT, world_at(where), arm))
    assert set(legal) == expected
    assert len(set(legal)) == len(legal) and list(legal) == sorted(legal)


@given(layouts, st.sampled_from(sorted(SORT.arms)))
def test_nothing_outside_the_reach_band_is_observed(where: dict[str, str], arm: str) -> None:
    observation = observe(SORT, world_at(where), arm)
    assert set(observation.entities.values()) <= set(SORT.arms[arm].reach)
    assert observation.occupied <= set(SORT.arms[arm].reach)
    for other in ENTITIES:  # moving what is out of reach changes nothing
        if where[other] not in SORT.arms[arm].reach:
            free = [p for p in PLACEMENTS if p not in where.values() and p not in SORT.arms[arm].reach]
            for p in free:
                assert observe(SORT, world_at({**where, other: p}), arm) == observation


@given(st.floats(-2, 2), st.floats(-1, 2), st.floats(0, 1), st.floats(0, 0.2))
def test_nearest_placement_is_nearest_to_the_underside(x: float, y: float, z: float, half: float) -> None:
    found = nearest_placement(SORT, (x, y, z), half)
    best = min(math.dist((x, y, z - half), p.xyz) for p in SORT.placements.values())
    assert math.isclose(math.dist((x, y, z - half), SORT.placements[found].xyz), best)


STACK = parse_scenario(
    {
        "name": "stack",
        "description": "Two arms stack plates.",
        "arms": {
            name: {"robot": "none", "base": {"xyz": [x, 0.0, 0.0]}, "reach": [cell, *LAYERS], "model": "none"}
            for name, x, cell in (("left", -0.5, "cell0"), ("right", 0.5, "cell1"))
        },
        "models": {"none": {"backend": "heuristic"}},
        "placements": {
            "cell0": {"order": 0, "xyz": [-0.3, 0.0, 0.1], "size": [0.1, 0.1]},
            "cell1": {"order": 1, "xyz": [0.3, 0.0, 0.1], "size": [0.1, 0.1]},
        }
        | {
            layer: {
                "order": 2 + k,
                "xyz": [0.0, 0.0, 0.1 + 0.03 * k],
                "size": [0.1, 0.1],
                "relay": False,
                "legal_when": [f"{LAYERS[k - 1]}_filled"] if k else [],
            }
            for k, layer in enumerate(LAYERS)
        },
        "entities": {
            f"plate{k}": {"goal": layer, "mass": 0.1, "shape": {"kind": "box", "size": [0.1, 0.1, 0.03]}}
            for k, layer in enumerate(LAYERS)
        },
        "conditions": {f"{layer}_filled": {"kind": "occupied", "placement": layer} for layer in LAYERS},
        "start": {"at": {"plate0": "cell0", "plate1": "cell1", "plate2": "cell0"}},
        "success": {"tolerance": 0.05},
    }
)


@given(st.permutations(LAYERS), st.floats(-0.01, 0.01), st.floats(-0.01, 0.01))
def test_layers_of_a_stack_are_told_apart_by_height(order: list[str], dx: float, dz: float) -> None:
    where = {f"plate{k}": layer for k, layer in enumerate(order)}
    positions = {e: (dx, 0.0, STACK.placements[p].xyz[2] + 0.015 + dz) for e, p in where.items()}
    world = World(positions)
    assert locate(STACK, world) == where
    assert satisfied(STACK, world) == {e for e, p in where.items() if STACK.entities[e].goal == p}


def test_a_stack_grows_in_order_and_its_layers_are_no_relays() -> None:
    cells = {"plate0": (0.3, 0.0, 0.115), "plate1": (-0.3, 0.0, 0.115), "plate2": (0.3, 0.1, 0.115)}
    empty = World(cells)
    assert [str(a) for a in legal_actions(STACK, observe(STACK, empty, "left"))] == ["stay"]
    assert Action("move", "plate0", "layer0") in legal_actions(STACK, observe(STACK, empty, "right"))
    assert Action("move", "plate2", "layer0") not in legal_actions(STACK, observe(STACK, empty, "right"))
    begun = World({**cells, "plate0": (0.0, 0.0, 0.115)})
    filled = frozenset({"layer0_filled"})
    assert ConditionTracker(STACK).true_now(begun, {}) == filled
    begun = World(begun.positions, filled)
    assert Action("move", "plate1", "layer1") in legal_actions(STACK, observe(STACK, begun, "left"))
    assert [str(a) for a in legal_actions(STACK, observe(STACK, begun, "right"))] == ["stay"]


@given(layouts)
def test_every_legal_move_brings_its_entity_closer(where: dict[str, str]) -> None:
    for arm in SORT.arms:
        for action in legal_actions(SORT, observe(SORT, world_at(where), arm)):
            if not action.is_stay:
                before = distance_to_goal(SORT, action.entity, where[action.entity])
                assert distance_to_goal(SORT, action.entity, action.placement) < before


def test_success_needs_every_entity_at_its_goal_and_released() -> None:
    done = {e: str(SORT.entities[e].goal) for e in ENTITIES}
    assert succeeded(SORT, world_at(done))
    assert not succeeded(SORT, world_at(done, blue_square="alice"))
    assert not succeeded(SORT, world_at(done, offset=(0.101, 0.0)))
    assert succeeded(SORT, world_at(done, offset=(0.06, 0.06)))
    assert satisfied(SORT, world_at({**done, "blue_square": "panel3"})) == {"pink_polygon", "yellow_trapezoid"}


def test_an_entity_beside_its_goal_can_be_put_right() -> None:
    where = {e: str(SORT.entities[e].goal) for e in ENTITIES}
    legal = legal_actions(SORT, observe(SORT, world_at(where, offset=(0.0, 0.12)), "alice"))
    assert Action("move", "blue_square", "pad2") in legal


def test_an_entity_in_another_gripper_is_not_offered() -> None:
    where = {"blue_square": "panel3", "pink_polygon": "panel1", "yellow_trapezoid": "panel7"}
    assert "blue_square" in observe(SORT, world_at(where), "alice").entities
    assert "blue_square" not in observe(SORT, world_at(where, blue_square="bob"), "alice").entities
    holder = observe(SORT, world_at({**where, "blue_square": "panel5"}, blue_square="bob"), "bob")
    assert holder.holding == "blue_square" and "panel5" not in holder.occupied


def test_arm_with_something_in_hand_can_only_act_on_it() -> None:
    where = {"blue_square": "panel1", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"}
    legal = legal_actions(SORT, observe(SORT, world_at(where, pink_polygon="bob"), "bob"))
    assert {a.entity for a in legal if not a.is_stay} == {"pink_polygon"}


def test_what_an_arm_still_holds_can_be_put_down_where_it_is() -> None:
    where = {"blue_square": "pad4", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"}
    held = observe(SORT, world_at(where, pink_polygon="bob"), "bob")
    assert {str(a) for a in legal_actions(SORT, held)} == {"stay", "move pink_polygon to panel3"}
    lying = observe(SORT, world_at(where), "bob")
    assert all(a.entity != "pink_polygon" for a in legal_actions(SORT, lying))


def test_zones_of_moves_that_meet_are_shared() -> None:
    assert swept_zones(SORT, "alice", ["panel1", "pad2"]) == frozenset()
    assert swept_zones(SORT, "alice", ["pad2", "panel3"]) == {"around_panel3"}
    assert swept_zones(SORT, "bob", ["panel3", "panel5"]) == {"around_panel3", "around_panel5"}
    assert swept_zones(SORT, "chad", ["panel7", "pad6"]) == frozenset()


def test_locate_names_every_entity() -> None:
    where = {"blue_square": "panel1", "pink_polygon": "panel3", "yellow_trapezoid": "panel7"}
    assert locate(SORT, world_at(where, offset=(0.05, -0.05))) == where
