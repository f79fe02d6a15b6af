"""The prompt templates of A.3 and our compact one, made of the Overcooked domain."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.chains.parser import parse_plan
from polyarm_core.chains.terms import WaitAgents, WaitEntity
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.prompts import (
    REASONS,
    REJECTED,
    VARIANTS,
    cases,
    compact_state,
    coordinator_prompt,
    dynamic_part,
    static_part,
)
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.errors import UnknownName

DOMAIN = OvercookedDomain("coordination_ring")
START = DOMAIN.start(0)
PREVIOUS = parse_plan('"agent_1": Interact(pot_1)\n"agent_2": Interact(serving_1)', DOMAIN.agents)


def test_base_spells_the_language_out_and_sft_does_not():
    base, tuned = static_part(DOMAIN, "base"), static_part(DOMAIN, "sft")
    for template in DOMAIN.vocabulary:
        assert template.usage in base
        assert template.description.rstrip(".") in base
        assert template.name not in tuned
    assert "Wait_agents(" in base and "Wait_entity(" in base
    assert base.startswith(tuned.rstrip("."))
    for text in (base, tuned):
        assert DOMAIN.background in text and DOMAIN.target in text and "2 agents" in text


def test_cases_are_in_the_language_and_show_both_waits():
    plan = parse_plan(cases(DOMAIN), DOMAIN.agents)
    assert set(plan) == set(DOMAIN.agents)
    atoms = {type(atom) for chain in plan.values() for step in chain for atom in getattr(step, "atoms", ())}
    assert atoms == {WaitAgents, WaitEntity}


@pytest.mark.parametrize("variant", VARIANTS)
def test_static_part_does_not_change_within_an_episode(variant):
    first = coordinator_prompt(DOMAIN, PlanRequest(START), variant)
    later = START._replace(positions=(START.positions[1], START.positions[0]), held=(1, 2), frame=30)
    second = coordinator_prompt(DOMAIN, PlanRequest(later, "stale", PREVIOUS, ("it was late",), 30), variant)
    assert first.static == second.static
    assert first.dynamic != second.dynamic


def test_dynamic_part_has_state_chains_reason_and_corrections():
    request = PlanRequest(START, "deadlock", PREVIOUS, ("frame 3: a soup was spilt", "frame 9: they met"), 9)
    text = dynamic_part(DOMAIN, request, "sft")
    assert DOMAIN.describe(START) in text
    assert '"agent_1": Interact(pot_1)' in text and '"agent_2": Interact(serving_1)' in text
    assert REASONS["deadlock"] in text
    assert text.index("a soup was spilt") < text.index("they met")
    assert "not yet executed" not in dynamic_part(DOMAIN, PlanRequest(START), "sft")


def test_compact_shows_only_corrections_of_the_models_own_answer():
    request = PlanRequest(START, "stale", PREVIOUS, ("frame 3: a soup was spilt", f"{REJECTED}: no pot_9"), 3)
    text = dynamic_part(DOMAIN, request, "compact")
    assert "spilt" not in text and "Interact" not in text
    assert text.endswith("no pot_9")
    assert len(text) < len(dynamic_part(DOMAIN, request, "sft")) / 3


@settings(deadline=None)
@given(
    st.permutations(DOMAIN.layout.floor),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(0, 3), st.integers(-1, 20)),
    st.lists(st.sampled_from([0, 0, 1, 2, 3]), min_size=len(START.counters), max_size=len(START.counters)),
)
def test_compact_state_tells_entities_apart(cells, held, pot, counters):
    """Two states read the same only if every attribute of every entity is the same."""
    state = START._replace(positions=tuple(cells[:2]), held=held, pots=(pot, *START.pots[1:]), counters=tuple(counters))
    same = DOMAIN.entities(state) == DOMAIN.entities(START) and all(
        dict(one.values) == dict(other.values)
        for one, other in zip(DOMAIN.entities(state), DOMAIN.entities(START), strict=True)
    )
    assert (compact_state(DOMAIN, state) == compact_state(DOMAIN, START)) == same


def test_unknown_variant_is_named():
    with pytest.raises(UnknownName, match="base, compact, sft"):
        coordinator_prompt(DOMAIN, PlanRequest(START), "long")  # type: ignore[arg-type]
