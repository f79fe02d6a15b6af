"""The laws that every domain keeps, whatever its world: what chains, planners and the staleness detector rely on."""

from __future__ import annotations

import random
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import ToyDomain

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.parser import parse_plan
from polyarm_core.chains.printer import format_plan
from polyarm_core.chains.terms import Action, Plan, Wait, WaitEntity
from polyarm_core.chains.validation import require_valid, validate, value_problem
from polyarm_core.domains.arms.events import SLIP
from polyarm_core.domains.interface import ActionStatus, Domain
from polyarm_core.domains.registry import KINDS, domain_names, make_domain
from polyarm_core.errors import UnknownName

NAMES = ("toy", "overcooked:coordination_ring", "moba", "arms:sort", "arms:cabinet")
FRAMES = 40
"""Frames of a walk."""
laws = settings(deadline=None, max_examples=20)
seeds = st.integers(0, 2**31)


@cache
def make(name: str) -> Domain[Any]:
    return ToyDomain() if name == "toy" else make_domain(name)  # type: ignore[return-value]


@pytest.fixture(params=NAMES)
def domain(request: pytest.FixtureRequest) -> Domain[Any]:
    return make(request.param)


def actions(domain: Domain[Any], state: Any, agent: str) -> list[Action]:
    return [
        Action(template.name, arguments)
        for template in domain.vocabulary
        for arguments in domain.arguments(state, agent, template)
    ]


def walk(domain: Domain[Any], seed: int, frames: int = FRAMES) -> list[tuple[Any, tuple[int, ...], Any]]:
    """Frames (before, controls, after) of agents that change their minds, with events in between."""
    draw = random.Random(seed)
    state = domain.start(seed)
    intents: list[Action | None] = [None] * len(domain.agents)
    found = []
    for _ in range(frames):
        for i, agent in enumerate(domain.agents):
            if draw.random() < 0.3:
                intents[i] = draw.choice([None, *actions(domain, state, agent)])
        if draw.random() < 0.1:
            event = draw.choice(domain.disturbances)
            state = domain.disturb(state, event.name, draw.random()) or state
        controls = domain.control(state, intents)
        after = domain.step(state, controls)
        found.append((state, controls, after))
        state = after
    return found


def carried_out(domain: Domain[Any], seed: int) -> tuple[Plan, list[Any]]:
    """The first candidate that succeeds, and the states through which it goes."""
    state = domain.start(seed)
    plan = next(
        plan
        for plan in domain.candidates(state)
        if roll_out(ChainExecutor(domain, plan), state, domain.horizon).success
    )
    executor: ChainExecutor[Any] = ChainExecutor(domain, plan)
    states = [state]
    while not domain.succeeded(state):
        controls = domain.control(state, executor.intents(state))
        after = domain.step(state, controls)
        executor.advance(state, controls, after)
        states.append(state := after)
    return plan, states


def values(domain: Domain[Any], state: Any) -> set[WaitEntity]:
    """Everything that is the case, as conditions."""
    return {WaitEntity(e.name, name, "==", value) for e in domain.entities(state) for name, value in e.values.items()}


def some_state(domain: Domain[Any], seed: int) -> Any:
    return walk(domain, seed, seed % FRAMES)[-1][-1] if seed % FRAMES else domain.start(seed)


@laws
@given(seed=seeds, name=st.sampled_from(NAMES))
def test_steps_are_deterministic_and_states_are_values(name: str, seed: int) -> None:
    domain = make(name)
    first, second = walk(domain, seed), walk(domain, seed)
    assert first == second
    assert [hash(frame[0]) for frame in first] == [hash(frame[0]) for frame in second]
    for before, controls, after in first:
        kept = hash(before), repr(before)
        assert domain.step(before, controls) == after
        assert (hash(before), repr(before)) == kept
        assert type(before) is type(after)


@laws
@given(seed=seeds, name=st.sampled_from(NAMES))
def test_features_are_normalised(name: str, seed: int) -> None:
    domain = make(name)
    state = some_state(domain, seed)
    features = domain.features(state)
    assert features.shape == (len(domain.entity_rows), domain.feature_count)
    assert features.dtype == np.float32
    assert (features >= 0.0).all() and (features <= 1.0).all()
    assert len(set(domain.entity_rows)) == len(domain.entity_rows)


def test_features_tell_apart_what_an_event_changes(domain: Domain[Any]) -> None:
    """What the detector must see is in its input: every kind of event changes it, wherever it applies."""
    states = [frame[0] for seed in range(3) for frame in walk(domain, seed)]
    states += [state for seed in range(3) for state in carried_out(domain, seed)[1]]
    for event in domain.disturbances:
        if event.name == SLIP:  # strikes while arms move, in a plant: no state of a slot has a door that is held
            assert all(domain.disturb(state, SLIP, 0.5) is None for state in states)
            continue
        pairs = [(state, domain.disturb(state, event.name, k % 7 / 7)) for k, state in enumerate(states)]
        pairs = [(before, after) for before, after in pairs if after is not None and after != before]
        assert pairs, f"{event.name} never changes anything"
        for before, after in pairs:
            assert not np.array_equal(domain.features(before), domain.features(after)), event.name


@laws
@given(seed=seeds, name=st.sampled_from(NAMES))
def test_entities_have_their_attributes_in_range(name: str, seed: int) -> None:
    domain = make(name)
    entities = domain.entities(some_state(domain, seed))
    names = [entity.name for entity in entities]
    assert len(set(names)) == len(names)
    assert set(domain.agents) <= set(names)
    for entity in entities:
        attributes = domain.attributes[entity.kind]
        assert [attribute.name for attribute in attributes] == list(entity.values)
        for attribute in attributes:
            value = entity.values[attribute.name]
            assert not value_problem(attribute, "==", value), (entity.name, attribute.name, value)


@laws
@given(seed=seeds, name=st.sampled_from(NAMES))
def test_relevance_is_nested_and_watched(name: str, seed: int) -> None:
    domain = make(name)
    state = some_state(domain, seed)
    draw = random.Random(seed)
    entities = domain.entities(state)
    for agent in domain.agents:
        steps: list[Any] = actions(domain, state, agent)
        steps = draw.sample(steps, min(6, len(steps)))
        for entity in draw.sample(entities, min(6, len(entities))):
            attribute, value = draw.choice(list(entity.values.items()))
            steps.append(Wait((WaitEntity(entity.name, attribute, "==", value),)))
        for step in steps:
            refers, depends = domain.refers(state, agent, step), domain.depends(state, agent, step)
            assert refers <= depends <= set(domain.entity_rows)


@laws
@given(seed=seeds, name=st.sampled_from(NAMES))
def test_what_the_vocabulary_offers_is_accepted(name: str, seed: int) -> None:
    domain = make(name)
    state = some_state(domain, seed)
    draw = random.Random(seed)
    for agent in domain.agents:
        options = actions(domain, state, agent)
        assert len(set(options)) == len(options)
        for action in draw.sample(options, min(12, len(options))):
            plan = Plan.of({name: (action,) if name == agent else () for name in domain.agents})
            problems = validate(plan, domain, state)
            assert {problem.kind for problem in problems} <= {"impossible"}, problems
            assert bool(problems) == (domain.impossible(state, agent, action) is not None)
            intents = [action if name == agent else None for name in domain.agents]
            controls = domain.control(state, intents)
            progress = domain.progress(state, controls, domain.step(state, controls), agent, action)
            assert progress.status is not ActionStatus.FAILED or progress.reason


def test_candidates_are_valid_and_one_of_them_succeeds(domain: Domain[Any]) -> None:
    for seed in range(3):
        state = domain.start(seed)
        solved = 0
        plans = list(islice(domain.candidates(state), 40))
        assert len(set(plans)) == len(plans)
        for plan in plans:
            assert tuple(plan) == domain.agents
            require_valid(plan, domain, state)
            assert parse_plan(format_plan(plan), domain.agents) == plan
            if not solved:
                solved = roll_out(ChainExecutor(domain, plan), state, domain.horizon).success
        assert solved, f"seed {seed}"


def test_patches_change_one_chain_and_are_valid(domain: Domain[Any]) -> None:
    count = 0
    for seed in range(3):
        state = domain.start(seed)
        executor: ChainExecutor[Any] = ChainExecutor(domain, next(iter(domain.candidates(state))))
        controls = domain.control(state, executor.intents(state))
        after = domain.step(state, controls)
        executor.advance(state, controls, after)
        state, remaining = after, executor.remaining()
        for agent in domain.agents:
            for patch in domain.patches(state, agent, remaining):
                count += 1
                assert tuple(patch) == domain.agents
                assert all(patch[other] == remaining[other] for other in domain.agents if other != agent)
                mine = [p for p in validate(patch, domain, state) if p.agent == agent and p.kind != "chain_too_long"]
                assert not mine, mine
    assert count


def test_what_comes_true_was_not_called_hopeless(domain: Domain[Any]) -> None:
    """``can_become`` is False only when it is sure: whatever a plan brings about, it must not have denied before."""
    for seed in range(3):
        plan, (first, *others) = carried_out(domain, seed)
        now, seen = values(domain, first), set().union(*(values(domain, state) for state in others))
        for wait in seen - now:
            assert domain.can_become(first, wait, plan), wait


@laws
@given(seed=seeds, draw=st.floats(0.0, 1.0, exclude_max=True), name=st.sampled_from(NAMES))
def test_disturbances_give_states_or_none(name: str, seed: int, draw: float) -> None:
    domain = make(name)
    state = some_state(domain, seed)
    kept = hash(state), repr(state)
    for event in domain.disturbances:
        after = domain.disturb(state, event.name, draw)
        assert after == domain.disturb(state, event.name, draw)
        assert (hash(state), repr(state)) == kept
        if after is not None:
            assert type(after) is type(state)
            domain.step(after, domain.control(after, [None] * len(domain.agents)))
    with pytest.raises(UnknownName):
        domain.disturb(state, "nothing of the kind", draw)


@laws
@given(seed=seeds, name=st.sampled_from(NAMES))
def test_the_description_is_short_text(name: str, seed: int) -> None:
    domain = make(name)
    text = domain.describe(some_state(domain, seed))
    assert 20 < len(text) < 4000
    assert all(character.isprintable() or character == "\n" for character in text)


def test_what_the_prompt_says_of_a_domain(domain: Domain[Any]) -> None:
    assert domain.background and domain.target and domain.horizon > 0
    names = [template.name for template in domain.vocabulary]
    assert len(set(names)) == len(names)
    state = domain.start(0)
    for template in domain.vocabulary:
        assert template.usage.startswith(f"{template.name}(")
        known = {text for agent in domain.agents for text in domain.arguments(state, agent, template)}
        assert all(len(arguments) == len(template.parameters) for arguments in known)


@pytest.mark.parametrize("name", ["", "chess", "chess:e4", "moba:", "moba:enemy_9", "overcooked", "arms", "arms:dance"])
def test_unknown_domains_are_refused_with_what_exists(name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        make_domain(name)
    assert caught.value.valid
    assert str(caught.value.valid[0]) in str(caught.value)


def test_every_listed_domain_can_be_made() -> None:
    names = domain_names()
    assert {name.partition(":")[0] for name in names} == set(KINDS)
    for name in names:
        domain = make_domain(name)
        assert hash(domain.start(0)) == hash(domain.start(0))
