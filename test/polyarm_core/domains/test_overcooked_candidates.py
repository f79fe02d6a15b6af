from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kitchen_play import play

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.terms import Action, Plan, Wait, WaitAgents
from polyarm_core.chains.validation import validate
from polyarm_core.domains.overcooked.disturbances import disturb
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.domains.overcooked.kitchen import DISH, FULL, IDLE, NOTHING, ONION, SOUP, KitchenState
from polyarm_core.domains.overcooked.layouts import LAYOUT_NAMES

DOMAINS = {name: OvercookedDomain(name) for name in LAYOUT_NAMES}


def frames_of(domain: OvercookedDomain, state: KitchenState, plan: Plan) -> int | None:
    """Frames to the delivery; None where the plan does not get there."""
    result = roll_out(ChainExecutor(domain, plan), state, domain.horizon)
    return result.frames if result.success else None


@st.composite
def scenes(draw: st.DrawFn) -> tuple[OvercookedDomain, KitchenState]:
    """A kitchen in the middle of something, perhaps disturbed; no soup is spoiled."""
    domain = DOMAINS[draw(st.sampled_from(LAYOUT_NAMES))]
    frames = list(play(domain.kitchen, draw(st.integers(0, 60)), 40))
    state = draw(st.sampled_from(frames))[0]
    pots = tuple((onions, IDLE if onions < FULL else tick) for onions, tick in state.pots)
    state = state._replace(pots=pots, held=tuple(min(item, SOUP) for item in state.held), delivered=0)
    event = draw(st.sampled_from(["", "O1", "O2", "O3", "O4", "O5"]))
    return domain, (event and disturb(domain.kitchen, state, event, draw(st.floats(0, 0.999)))) or state


@settings(max_examples=25, deadline=None)
@given(scenes())
def test_from_any_state_there_are_valid_plans_and_one_that_works(scene: tuple[OvercookedDomain, KitchenState]) -> None:
    domain, state = scene
    plans = list(islice(domain.bounded_candidates(state), 40))
    bounds = [bound for bound, _ in plans]
    assert bounds == sorted(bounds)
    assert len({plan for _, plan in plans}) == len(plans)
    for _, plan in plans:
        assert not validate(plan, domain, state)
    frames = next(filter(None, (frames_of(domain, state, plan) for _, plan in plans)))
    assert frames >= bounds[0]


@settings(max_examples=25, deadline=None)
@given(scenes(), st.sampled_from((0, 1)))
def test_a_patch_changes_one_chain_only(scene: tuple[OvercookedDomain, KitchenState], player: int) -> None:
    domain, state = scene
    plan = next(domain.candidates(state))
    agent, other = domain.agents[player], domain.agents[1 - player]
    for patch in islice(domain.patches(state, agent, plan), 4):
        assert patch[other] == plan[other]
        assert not validate(patch, domain, state)


def test_a_patch_mends_what_an_event_has_broken() -> None:
    domain = DOMAINS["counter_circuit_o_1order"]
    state = domain.start(0)
    executor: ChainExecutor[KitchenState] = ChainExecutor(domain, next(domain.candidates(state)))
    while not state.held[0]:
        controls = domain.control(state, executor.intents(state))
        after = domain.step(state, controls)
        executor.advance(state, controls, after)
        state = after
    dropped = disturb(domain.kitchen, state, "O1", 0.0)
    assert dropped is not None
    left = executor.remaining()
    assert frames_of(domain, dropped, left) is None
    times = [frames_of(domain, dropped, patch) for patch in islice(domain.patches(dropped, "agent_1", left), 4)]
    assert any(frames is not None for frames in times)


def test_no_patch_where_the_other_chain_counts_steps_of_the_broken_one() -> None:
    domain = DOMAINS["coordination_ring"]
    left = Plan.of({"agent_1": (), "agent_2": (Wait((WaitAgents("agent_1", "done", 1),)),)})
    assert not list(domain.patches(domain.start(0), "agent_1", left))


@pytest.mark.parametrize("name", LAYOUT_NAMES)
@pytest.mark.parametrize("held", [(DISH, DISH), (ONION, DISH), (SOUP, NOTHING), (NOTHING, SOUP)])
def test_full_hands(name: str, held: tuple[int, int]) -> None:
    """Useless items are put away, useful ones are used."""
    domain = DOMAINS[name]
    state = domain.start(0)._replace(held=held)
    times = [frames_of(domain, state, plan) for plan in islice(domain.candidates(state), 12)]
    assert any(frames is not None for frames in times)
    if SOUP in held and name != "forced_coordination":
        assert min(frames for frames in times if frames is not None) < 20


def test_no_plan_where_soup_is_impossible() -> None:
    domain = DOMAINS["cramped_room"]
    state = domain.start(0)._replace(blocked=domain.layout.onion_dispensers)
    assert not list(domain.candidates(state))


def test_a_wait_stands_where_something_has_to_come_first() -> None:
    domain = DOMAINS["forced_coordination"]
    plan = next(domain.candidates(domain.start(0)))
    chain = plan["agent_1"]
    first = next(i for i, step in enumerate(chain) if isinstance(step, Action) and step.name == "Interact")
    assert isinstance(chain[first - 1], Wait), "the first onion is handed over"
    assert any(isinstance(step, Wait) and "ready" in str(step) for step in chain)
