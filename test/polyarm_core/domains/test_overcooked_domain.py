from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kitchen_play import play

from polyarm_core.chains.terms import Action, Plan, Wait, WaitAgents, WaitEntity
from polyarm_core.domains.interface import ActionStatus, Domain
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.domains.overcooked.kitchen import DISH, FULL, IDLE, INTERACT, ONION, SOUP, KitchenState
from polyarm_core.domains.overcooked.layouts import LAYOUT_NAMES
from polyarm_core.errors import InvalidValue, UnknownName

DOMAINS = {name: OvercookedDomain(name) for name in LAYOUT_NAMES}
RING = DOMAINS["coordination_ring"]
FORCED = DOMAINS["forced_coordination"]


def interact(target: str) -> Action:
    return Action("Interact", (target,))


def states_of(domain: OvercookedDomain, seed: int, frames: int = 60) -> list[KitchenState]:
    return [state for state, _, _ in play(domain.kitchen, seed, frames)][::7]


@pytest.mark.parametrize("name", LAYOUT_NAMES)
def test_what_is_said_of_a_state_fits_to_what_is_declared(name: str) -> None:
    domain: Domain[KitchenState] = DOMAINS[name]
    names = [entity.name for entity in domain.entities(domain.start(0))]
    assert len(set(names)) == len(names)
    assert names[:2] == ["agent_1", "agent_2"]
    for state in states_of(DOMAINS[name], 3):
        entities = domain.entities(state)
        assert [entity.name for entity in entities] == names
        for entity in entities:
            for attribute in domain.attributes[entity.kind]:
                value = entity.values[attribute.name]
                if attribute.kind == "int":
                    assert isinstance(value, int) and attribute.low <= value <= attribute.high
                elif attribute.kind == "choice":
                    assert value in (*attribute.choices, "spoiled")
                else:
                    assert isinstance(value, bool)
        features = domain.features(state)
        assert features.shape == (len(domain.entity_rows), domain.feature_count)
        assert features.min() >= 0 and features.max() <= 1
        text = domain.describe(state)
        assert len(re.findall(r"[A-Za-z]+|\d+|[^\sA-Za-z\d_]", text)) < 250
    assert set(domain.entity_rows) <= set(names) and len(domain.entity_rows) <= 16


@pytest.mark.parametrize("name", LAYOUT_NAMES)
def test_arguments_are_exactly_what_is_possible(name: str) -> None:
    domain = DOMAINS[name]
    state = domain.start(0)._replace(blocked=(domain.layout.onion_dispensers[0],))
    by_name = {template.name: template for template in domain.vocabulary}
    for agent in domain.agents:
        offered = {arguments[0] for arguments in domain.arguments(state, agent, by_name["Interact"])}
        for target in domain.tiles:
            assert (target in offered) == (domain.impossible(state, agent, interact(target)) is None)
        for cell in domain.arguments(state, agent, by_name["Move_to"]):
            assert domain.impossible(state, agent, Action("Move_to", cell)) is None
        assert len(domain.arguments(state, agent, by_name["Face"])) == 4


def test_out_of_reach_and_unknown_things_are_named() -> None:
    state = FORCED.start(0)
    reason = FORCED.impossible(state, "agent_1", interact("onion_dispenser_1"))
    assert reason is not None and "out of reach" in reason
    for action in (interact("pot_9"), Action("Move_to", ("0", "0")), Action("Face", ("up",)), Action("Fly")):
        assert FORCED.impossible(state, "agent_1", action)
        with pytest.raises((UnknownName, InvalidValue)):
            FORCED.control(state, (action, None))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(LAYOUT_NAMES), st.integers(0, 50), st.data())
def test_an_interact_that_can_be_done_is_done_and_had_an_effect(name: str, seed: int, data: st.DataObject) -> None:
    domain = DOMAINS[name]
    state = data.draw(st.sampled_from(states_of(domain, seed)))
    usable = [t for t, cell in domain.tiles.items() if domain.use(state, 0, cell)[0] == 0]
    usable = [t for t in usable if domain.impossible(state, "agent_1", interact(t)) is None]
    assume(usable)
    action = interact(data.draw(st.sampled_from(usable)))
    for _ in range(30):
        controls = domain.control(state, (action, None))
        after = domain.step(state, controls)
        progress = domain.progress(state, controls, after, "agent_1", action)
        started = any(a[1] == IDLE != b[1] for a, b in zip(state.pots, after.pots, strict=True))
        assert (progress.status is ActionStatus.DONE) == (state.held[0] != after.held[0] or started)
        state = after
        if progress.status is ActionStatus.DONE:
            break
    else:  # in a corridor of one cell's width the other may be where it cannot get out of the way
        assert name == "forced_coordination"


def at_pot(held: int, pot: tuple[int, int]) -> KitchenState:
    """The first cook of the ring in front of pot_1."""
    layout = RING.layout
    (place,) = layout.access[layout.pots[0]]
    state = RING.start(0)
    return state._replace(
        positions=(place, layout.cell(1, 3)), facings=(0, 0), held=(held, 0), pots=(pot, *state.pots[1:])
    )


@pytest.mark.parametrize(
    ("held", "pot", "control", "status"),
    [
        (ONION, (2, IDLE), INTERACT, ActionStatus.DONE),
        (ONION, (FULL, IDLE), 4, ActionStatus.FAILED),
        (0, (FULL, IDLE), INTERACT, ActionStatus.DONE),
        (0, (2, IDLE), 4, ActionStatus.RUNNING),  # it would only spoil the soup
        (0, (FULL, 5), 4, ActionStatus.FAILED),
        (DISH, (FULL, 5), 4, ActionStatus.RUNNING),
        (DISH, (FULL, 20), INTERACT, ActionStatus.DONE),
        (SOUP, (0, IDLE), 4, ActionStatus.FAILED),
    ],
)
def test_interacts_at_a_pot(held: int, pot: tuple[int, int], control: int, status: ActionStatus) -> None:
    state = at_pot(held, pot)
    controls = RING.control(state, (interact("pot_1"), None))
    assert controls[0] == control
    progress = RING.progress(state, controls, RING.step(state, controls), "agent_1", interact("pot_1"))
    assert progress.status is status
    assert bool(progress.reason) == (status is ActionStatus.FAILED)


def test_move_and_face() -> None:
    state = RING.start(0)
    for action, done in (
        (Action("Move_to", ("3", "3")), lambda s: RING.layout.xy(s.positions[0]) == (3, 3)),
        (Action("Face", ("east",)), lambda s: s.facings[0] == 2),
    ):
        for _ in range(12):
            controls = RING.control(state, (action, None))
            after = RING.step(state, controls)
            status = RING.progress(state, controls, after, "agent_1", action).status
            assert (status is ActionStatus.DONE) == done(after)
            state = after
            if status is ActionStatus.DONE:
                break
        else:
            pytest.fail(f"{action} never ends")


def plan(*chains: tuple[object, ...]) -> Plan:
    return Plan.of(dict(zip(RING.agents, chains, strict=True)))  # type: ignore[arg-type]


def test_can_become_knows_what_time_and_the_remaining_actions_bring() -> None:
    ready = WaitEntity("pot_1", "status", "==", "ready")
    full = WaitEntity("pot_1", "status", "==", "full")
    wait = Wait((ready,))
    cooking = at_pot(0, (FULL, 5))
    assert RING.can_become(cooking, ready, plan((), ()))
    two = at_pot(0, (2, IDLE))
    bring = (interact("onion_dispenser_1"), interact("pot_1"))
    assert not RING.can_become(two, ready, plan((wait, interact("pot_1")), ()))
    assert not RING.can_become(two, full, plan((interact("dish_dispenser_1"), interact("pot_1")), ()))
    assert RING.can_become(two, full, plan((), bring))
    assert not RING.can_become(at_pot(0, (1, IDLE)), full, plan((), bring)), "one onion is not enough"
    assert RING.can_become(at_pot(ONION, (1, IDLE)), full, plan((interact("pot_1"),), bring))
    lies = WaitEntity("counter_4", "item", "==", "onion")
    assert not RING.can_become(two, lies, plan((Wait((lies,)), interact("counter_4")), bring))
    assert RING.can_become(two, lies, plan((Wait((lies,)),), (interact("counter_4"),)))
    assert not RING.can_become(two, WaitEntity("counter_4", "blocked", "==", True), plan(bring, bring))
    assert not RING.can_become(two, WaitEntity("agent_2", "holding", "==", "dish"), plan(bring, ()))
    assert RING.can_become(two, WaitEntity("agent_2", "holding", "==", "onion"), plan((), bring))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(LAYOUT_NAMES), st.integers(0, 30), st.data())
def test_depends_includes_refers_and_the_agent(name: str, seed: int, data: st.DataObject) -> None:
    domain = DOMAINS[name]
    state = data.draw(st.sampled_from(states_of(domain, seed, 30)))
    agent = data.draw(st.sampled_from(domain.agents))
    step = data.draw(
        st.sampled_from(
            [
                *(interact(target) for target in domain.tiles),
                Wait((WaitEntity("pot_1", "status", "==", "ready"),)),
                Wait((WaitAgents("agent_2", "done", 1),)),
                Action("Face", ("north",)),
            ]
        )
    )
    refers, depends = domain.refers(state, agent, step), domain.depends(state, agent, step)
    assert refers <= depends <= set(domain.entity_rows)
    assert agent in depends


def test_depends_sees_what_the_name_does_not_say() -> None:
    layout = RING.layout
    state = at_pot(0, (FULL, 5))
    serve = interact("serving_1")
    assert RING.refers(state, "agent_2", serve) == {"serving_1"}
    assert "pot_1" in RING.depends(state, "agent_2", serve), "the soup comes from there"
    carrying = state._replace(held=(0, SOUP))
    assert "pot_1" not in RING.depends(carrying, "agent_2", serve)
    assert "agent_1" not in RING.depends(carrying, "agent_2", serve)
    in_the_way = carrying._replace(positions=(layout.cell(2, 3), layout.cell(1, 3)))
    assert "agent_1" in RING.depends(in_the_way, "agent_2", serve)
    assert "agent_1" in RING.depends(state, "agent_2", interact("counter_4")), "it has to put something there"


def test_another_plant_carries_out_the_steps_and_our_kitchen_imagines() -> None:
    class Recording:
        def __init__(self) -> None:
            self.steps = 0

        def start(self) -> KitchenState:
            return RING.kitchen.start()

        def step(self, state: KitchenState, controls: object) -> KitchenState:
            self.steps += 1
            return RING.kitchen.step(state, controls)  # type: ignore[arg-type]

    plant = Recording()
    domain = OvercookedDomain("Coordination", plant=plant)
    state = domain.step(domain.start(0), (4, 4))
    assert plant.steps == 1
    assert domain.simulation.step(state, (4, 4)) == RING.kitchen.step(state, (4, 4))
    assert plant.steps == 1
    assert RING.simulation is RING


def test_events_are_those_of_the_kitchen() -> None:
    state = at_pot(ONION, (2, IDLE))
    after = RING.disturb(state, "O2", 0.0)
    assert after is not None and after.pots[0] == (1, IDLE)
    with pytest.raises(UnknownName):
        RING.disturb(state, "O9", 0.0)
