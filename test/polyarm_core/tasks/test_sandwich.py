"""The sandwich: order by construction, one arm over the board at a time, a stack that stands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyarm_core.bench.in_process import InProcessEpisode, run_episode
from polyarm_core.conditions import ConditionTracker
from polyarm_core.constraints import STAY, Action
from polyarm_core.declaration import declare
from polyarm_core.episode import EpisodeSummary
from polyarm_core.liveness import draw_start
from polyarm_core.plant.simulation import Simulation
from polyarm_core.scenario import Scenario, load_scenario
from polyarm_core.world import World, legal_actions, locate, observe

RECIPES = {
    "sandwich": ["bread_bottom", "bacon", "cheese", "tomato", "bread_top"],
    "sandwich_vegetarian": ["bread_bottom", "cheese", "tomato", "cucumber", "bread_top"],
    "sandwich_beef": ["bread_bottom", "beef", "tomato", "cheese", "bread_top"],
    "sandwich_ham": ["bread_bottom", "ham", "cheese", "cucumber", "bread_top"],
}
LAYERS = [f"layer{k}" for k in range(1, 6)]


def _world(scenario: Scenario, where: dict[str, str]) -> World:
    positions = {}
    for entity, placement in where.items():
        x, y, z = scenario.placements[placement].xyz
        positions[entity] = (x, y, z + scenario.entities[entity].shape.height / 2)
    bare = World(positions)
    return World(positions, ConditionTracker(scenario).true_now(bare, {}))


@pytest.mark.parametrize("name", RECIPES)
def test_the_goals_are_the_recipe(name: str) -> None:
    scenario = load_scenario(name)
    goals = {entity.goal: slice_ for slice_, entity in scenario.entities.items() if entity.goal}
    assert [goals[layer] for layer in LAYERS] == RECIPES[name]
    assert len(scenario.entities) == 8


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("seed", range(5))
def test_the_only_legal_action_is_the_next_layer(name: str, seed: int) -> None:
    """No wrong slice can be proposed, let alone put down, at any point of the recipe."""
    scenario = load_scenario(name)
    where = dict(draw_start(scenario, seed))
    sides = [place[:5] for place in where.values()]
    assert sides.count("south") == sides.count("north") == 4
    for layer, slice_ in zip(LAYERS, RECIPES[name], strict=True):
        world = _world(scenario, where)
        legal = {a for arm in scenario.arms for a in legal_actions(scenario, observe(scenario, world, arm))}
        assert legal == {STAY, Action("move", slice_, layer)}
        where[slice_] = layer


def test_one_arm_at_a_time_over_the_board() -> None:
    scenario = load_scenario("sandwich")
    for arm, spec in scenario.arms.items():
        for cell in spec.reach:
            if not cell.startswith("layer"):
                declared = declare(scenario, arm, Action("move", "bacon", "layer2"), {"bacon": cell})
                assert "zone:board" in declared.exclusive


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_takes_five_moves(name: str, coordinate: Callable[..., EpisodeSummary]) -> None:
    scenario = load_scenario(name)
    for seed in range(20):
        summary = coordinate(scenario, seed)
        assert summary.success and summary.admitted == 5, summary


def test_every_placement_is_reached(plan_every_placement: Callable[[Scenario], None]) -> None:
    plan_every_placement(load_scenario("sandwich"))


def test_the_stack_stands() -> None:
    scenario = load_scenario("sandwich")
    simulation = Simulation(scenario, 0)
    try:
        summary = InProcessEpisode(simulation).run(0)
        assert summary.success and summary.arm_contacts == 0, summary
        built = simulation.poses()
        for layer, slice_ in zip(LAYERS, RECIPES["sandwich"], strict=True):
            x, y, z = scenario.placements[layer].xyz
            position = built[slice_][0]
            assert abs(position[2] - 0.015 - z) < 0.004
            assert abs(position[0] - x) < 0.02 and abs(position[1] - y) < 0.02
        simulation.run(2.0)
        for slice_ in RECIPES["sandwich"]:
            assert abs(simulation.poses()[slice_][0] - built[slice_][0]).max() < 0.002
        where = locate(scenario, simulation.world())
        assert [where[slice_] for slice_ in RECIPES["sandwich"]] == LAYERS
        # A layer that is filled takes nothing more, whoever asks.
        simulation.start_action("chad", Action("move", "ham" if where["ham"].startswith("south") else "beef", "layer3"))
        assert [(r.outcome, r.reason) for r in simulation.results()] == [("failed", "occupied")]
    finally:
        simulation.close()


def test_a_slice_put_on_a_layer_that_nothing_carries_has_failed() -> None:
    """The twin never grants this; asked all the same, the plant does not call it a success."""
    simulation = Simulation(load_scenario("sandwich"), 1)
    try:
        slice_ = next(e for e, p in locate(simulation.scenario, simulation.world()).items() if p == "south2")
        simulation.start_action("chad", Action("move", slice_, "layer3"))
        assert simulation.run_until_idle(30.0)
        assert [(r.outcome, r.reason) for r in simulation.results()] == [("failed", "slip")]
        assert locate(simulation.scenario, simulation.world())[slice_] == "layer1"
    finally:
        simulation.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("seed", range(3))
def test_an_episode_with_physics(name: str, seed: int) -> None:
    summary = run_episode(load_scenario(name), seed)
    assert summary.success and summary.arm_contacts == 0, summary
