from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.baselines.episodes import measure, play
from polyarm_core.baselines.greedy import CollisionAwareGreedy, Greedy, Routes
from polyarm_core.domains.overcooked.disturbances import STANDARD, EventSchedule
from polyarm_core.domains.overcooked.kitchen import DISH, INTERACT, ONION, SOUP, STAY, Kitchen
from polyarm_core.domains.overcooked.layouts import LAYOUT_NAMES, load_layout
from polyarm_core.errors import MissingExtra

KITCHENS = {name: Kitchen(load_layout(name)) for name in LAYOUT_NAMES}


@st.composite
def situations(draw, layouts=LAYOUT_NAMES):
    """A kitchen in any state: players anywhere in their regions, anything in their hands, pots in any stage."""
    kitchen = KITCHENS[draw(st.sampled_from(layouts))]
    layout = kitchen.layout
    cells = st.tuples(*(st.sampled_from(layout.region(start)) for start in layout.starts))
    idle = st.tuples(st.integers(0, 3), st.just(-1))
    lit = st.tuples(st.integers(1, 3), st.integers(0, kitchen.cook_time))
    state = kitchen.start()._replace(
        positions=draw(cells.filter(lambda pair: pair[0] != pair[1])),
        facings=draw(st.tuples(st.integers(0, 3), st.integers(0, 3))),
        held=draw(st.tuples(st.integers(0, 4), st.integers(0, 4))),
        pots=draw(st.tuples(*[idle | lit] * len(layout.pots))),
    )
    return kitchen, state


@pytest.mark.parametrize(
    ("layout", "greedy", "aware"),
    [
        # shares of delivered soups without disturbances as overcooked.md measured them with the package, and AED
        ("coordination_ring", (0.0, 0.0), 44),
        ("counter_circuit", (0.05, 0.6), 69),
        ("asymmetric_advantages", (1.0, 1.0), 35),
        ("cramped_room", (1.0, 1.0), 35),
        ("forced_coordination", (0.0, 0.0), None),
    ],
)
def test_the_standard_fingerprint(layout, greedy, aware):
    kitchen = KITCHENS[load_layout(layout).name]
    low, high = greedy
    assert low <= measure(Greedy(kitchen.layout), kitchen, range(20)).success <= high
    # Nothing in it is random.
    assert play(CollisionAwareGreedy(kitchen.layout), kitchen, 0, EventSchedule()) == aware


@pytest.mark.parametrize(
    ("layout", "greedy", "aware"),
    [("coordination_ring", (0.3, 0.8), 0.75), ("counter_circuit", (0, 0.4), 0.9), ("Symmetric", (0.9, 1), 0.9)],
)
def test_the_dynamic_fingerprint(layout, greedy, aware):
    kitchen = KITCHENS[load_layout(layout).name]
    low, high = greedy
    assert low <= measure(Greedy(kitchen.layout), kitchen, range(30), STANDARD).success <= high
    assert measure(CollisionAwareGreedy(kitchen.layout), kitchen, range(30), STANDARD).success >= aware


@pytest.mark.parametrize("name", LAYOUT_NAMES)
def test_it_decides_as_the_package_does(name):
    """Without the random step out of a jam, on states of a play that is now and then random."""
    try:
        from polyarm_core.domains.overcooked.package import PackageKitchen

        package = PackageKitchen(load_layout(name))
        from overcooked_ai_py.agents.agent import GreedyHumanModel
        from overcooked_ai_py.mdp.actions import Action
        from overcooked_ai_py.planning.planners import MediumLevelActionManager, MotionPlanner
    except MissingExtra as missing:
        pytest.skip(str(missing))
    # The manager's constructor computes joint plans, which takes minutes and which this agent does not use.
    manager = object.__new__(MediumLevelActionManager)
    manager.mdp = package.mdp
    manager.motion_planner = MotionPlanner(package.mdp, package.mdp.get_counter_locations())
    manager.joint_motion_planner = SimpleNamespace(motion_planner=manager.motion_planner)
    agents = [GreedyHumanModel(manager, auto_unstuck=False) for _ in range(2)]
    for index, agent in enumerate(agents):
        agent.set_agent_index(index)
        agent.set_mdp(package.mdp)

    kitchen, random = KITCHENS[name], np.random.default_rng(0)
    state, compared = kitchen.start(), 0
    for _ in range(250):
        controls = []
        theirs = package.to_package(state)
        # With several started pots of equal cost the package goes by the order of a Python set.
        several = sum(0 < onions < 3 and tick < 0 for onions, tick in state.pots) > 1
        for player, agent in enumerate(agents):
            controls.append(Action.ACTION_TO_INDEX[agent.action(theirs)[0]])
            if not (several and state.held[player] == ONION):
                alone = Greedy(kitchen.layout)  # no last frame: never stuck
                assert alone.act(state)[player] == controls[player]
                compared += 1
        jump = random.random() < 0.3
        state = kitchen.step(state, random.integers(6, size=2).tolist() if jump else controls)
    assert compared > 250


@settings(max_examples=50, deadline=None)
@given(situations(), st.integers(0, 1))
def test_a_route_is_as_long_as_it_says(situation, player):
    kitchen, state = situation
    routes = Routes(kitchen.layout)
    start = (state.positions[player], state.facings[player])
    goals = [goal for tile in kitchen.layout.pots for goal in routes.stands[tile]]
    for goal in goals:
        if start not in routes.distances(goal):
            assert goal[0] not in kitchen.layout.region(start[0])
            continue
        stand, moves = start, 0
        while (control := routes.control(stand, goal)) != INTERACT:
            stand, moves = routes.turn(stand, control), moves + 1
        assert stand == goal
        assert moves == routes.distances(goal)[start]
        walk = kitchen.layout.distances[start[0]][goal[0]]
        assert walk <= moves <= walk + 1  # steps, and at most one turn


@settings(max_examples=50, deadline=None)
@given(situations(("coordination_ring", "counter_circuit_o_1order", "asymmetric_advantages", "cramped_room")))
def test_players_who_look_out_never_run_into_each_other(situation):
    kitchen, state = situation
    controls = CollisionAwareGreedy(kitchen.layout).act(state)
    moves = [
        cell if control >= STAY else kitchen.layout.move[cell][control]
        for cell, control in zip(state.positions, controls, strict=True)
    ]
    pushed = [player for player in (0, 1) if moves[player] == state.positions[1 - player]]
    assert len(pushed) < 2  # no swap
    if moves[0] == moves[1]:
        # Only where the one in the way has nowhere to go.
        (player,) = pushed
        cell, other = state.positions[1 - player], state.positions[player]
        assert set(kitchen.layout.access[cell]) <= {other}


@settings(max_examples=25, deadline=None)
@given(situations(), st.integers(0, 99))
def test_same_seed_same_controls(situation, seed):
    kitchen, state = situation
    for policy in (Greedy(kitchen.layout), CollisionAwareGreedy(kitchen.layout)):
        runs = []
        for _ in range(2):
            policy.reset(seed)
            here, controls = state, []
            for _ in range(15):
                controls.append(policy.act(here))
                here = kitchen.step(here, controls[-1])
            runs.append(controls)
        assert runs[0] == runs[1]


def test_the_seed_decides_how_a_jam_ends():
    kitchen = KITCHENS["counter_circuit_o_1order"]
    ends = {play(Greedy(kitchen.layout), kitchen, seed, EventSchedule()) for seed in range(12)}
    assert len(ends) > 1


@settings(max_examples=50, deadline=None)
@given(situations())
def test_what_is_out_of_use_is_left_alone(situation):
    kitchen, state = situation
    layout = kitchen.layout
    closed = (layout.onion_dispensers[0], *layout.dish_dispensers[:1])
    policy = Greedy(layout)
    forbidden = {stand for tile in closed for stand in policy.routes.stands[tile]}
    for player in (0, 1):
        assert not forbidden & set(policy.goals(state._replace(blocked=closed), player))


def test_what_is_most_urgent():
    kitchen = KITCHENS["cramped_room"]
    layout = kitchen.layout
    policy = Greedy(layout)

    def tiles(held, pot):
        state = kitchen.start()._replace(held=held, pots=(pot,))
        return {layout.front[cell][facing] for cell, facing in policy.goals(state, 0)}

    assert tiles((0, 0), (0, -1)) == set(layout.onion_dispensers)
    assert tiles((0, 0), (3, -1)) == set(layout.pots)  # to start it
    assert tiles((0, 0), (3, 4)) == set(layout.dish_dispensers)
    assert tiles((0, DISH), (3, 4)) == set(layout.onion_dispensers)  # the partner has the dish
    assert tiles((ONION, 0), (2, -1)) == set(layout.pots)
    assert tiles((DISH, 0), (3, 20)) == set(layout.pots)
    assert tiles((SOUP, 0), (0, -1)) == set(layout.servings)
    counter = next(cell for cell in layout.counters if layout.access[cell])
    lying = tuple(ONION if cell == counter else 0 for cell in layout.counters)
    goals = policy.goals(kitchen.start()._replace(counters=lying), 0)
    assert {layout.front[cell][facing] for cell, facing in goals} == {*layout.onion_dispensers, counter}
