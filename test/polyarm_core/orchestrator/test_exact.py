"""The default strategy equals brute force, in worth and in identity, and a library's optimiser on larger slots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orchestrator_mixes import best_set, consistent_sets, intent, mixes, served_arms

from polyarm_core.bench.orchestrator import DENSITIES, library_optimum, random_mix
from polyarm_core.orchestrator import OrchestratorOptions, Strategy, arbitrate, exact, is_consistent, violations

MAXIMAL = OrchestratorOptions(strategy=Strategy.MAXIMAL)


@settings(max_examples=300)
@given(mixes(most=9))
def test_equals_brute_force(mix):
    intents, conditions = mix
    result = arbitrate(intents, conditions)
    assert list(result.admitted) == best_set(intents, conditions)
    assert result.proven
    assert result.upper_bound == len(result.admitted)


@given(mixes(most=9, overdue=False))
def test_without_overdue_arms_it_is_a_largest_set(mix):
    intents, conditions = mix
    largest = max(len(members) for members in consistent_sets(intents, conditions))
    assert len(arbitrate(intents, conditions).admitted) == largest


@pytest.mark.parametrize("arms", [8, 30, 64, 100])
@pytest.mark.parametrize("density", DENSITIES)
def test_equals_the_library_optimiser(arms, density):
    pytest.importorskip("ortools")
    for seed in range(3):
        intents, conditions = random_mix(arms, DENSITIES[density], seed)
        result = arbitrate(intents, conditions)
        optimum, bound = library_optimum(intents, conditions, time_limit=20.0)
        assert optimum == bound
        assert len(result.admitted) <= optimum <= result.upper_bound
        if result.proven:
            assert len(result.admitted) == optimum
        if arms <= 30:
            assert result.proven


@pytest.mark.parametrize("density", DENSITIES)
def test_comes_close_to_the_library_optimiser_on_large_slots(density):
    pytest.importorskip("ortools")
    intents, conditions = random_mix(300, DENSITIES[density], seed=5)
    result = arbitrate(intents, conditions)
    optimum, _ = library_optimum(intents, conditions, time_limit=20.0)
    assert 0.98 * optimum <= len(result.admitted) <= result.upper_bound


@given(mixes())
def test_tiny_budget_is_never_worse_than_maximal(mix):
    intents, conditions = mix
    maximal = arbitrate(intents, conditions, MAXIMAL)
    result = arbitrate(intents, conditions, OrchestratorOptions(node_budget=1))
    assert is_consistent([item for item in intents if item.arm in result.admitted], conditions)
    served, _ = served_arms(intents, conditions)
    assert served <= set(result.admitted)
    assert len(maximal.admitted) <= len(result.admitted) <= result.upper_bound
    assert len(best_set(intents, conditions)) <= result.upper_bound


@pytest.mark.parametrize("budget", [1, 100, 1_000, 10_000])
@pytest.mark.parametrize("density", DENSITIES)
def test_budget_bounds_the_search_of_a_large_slot(density, budget):
    intents, conditions = random_mix(400, DENSITIES[density], seed=6)
    result = arbitrate(intents, conditions, OrchestratorOptions(node_budget=budget))
    maximal = arbitrate(intents, conditions, MAXIMAL).admitted
    assert len(maximal) <= len(result.admitted) <= result.upper_bound
    assert result.nodes <= budget


def test_two_beat_the_one_that_excludes_both():
    slot = [
        intent("wide", 0, ["entity:a", "entity:b"], terminal=True),
        intent("x", 1, ["entity:a"]),
        intent("y", 2, ["entity:b"]),
    ]
    assert arbitrate(slot, options=MAXIMAL).admitted == ("wide",)
    assert arbitrate(slot).admitted == ("x", "y")


def test_tie_goes_to_the_set_with_the_arm_of_highest_priority():
    square = [
        intent("a", 0, ["entity:1", "entity:2"], distance=1),
        intent("b", 1, ["entity:2", "entity:3"]),
        intent("c", 2, ["entity:3", "entity:4"], distance=2),
        intent("d", 3, ["entity:4", "entity:1"], distance=3),
    ]
    assert arbitrate(square).admitted == ("b", "d")


def test_supplier_is_kept_for_what_depends_on_it():
    # `rival` outranks the holder, but two arms need the holder.
    slot = [
        intent("rival", 0, ["entity:door"], terminal=True),
        intent("holder", 1, ["entity:door"], holds=["open"]),
        intent("user1", 2, ["entity:a"], held=["open"]),
        intent("user2", 3, ["entity:b"], produced=["open"]),
    ]
    assert arbitrate(slot, options=MAXIMAL).admitted == ("rival",)
    assert arbitrate(slot).admitted == ("holder", "user1", "user2")


# Large slots are searched in windows, with few nodes in a layer and without a proof; here every slot is large.
NARROW_WINDOWS = {"SMALL": 0, "HOPELESS": 0, "WINDOWS": (2,), "NARROW": 3}
NARROWEST_WINDOWS = {"SMALL": 0, "HOPELESS": 0, "WINDOWS": (3, 6), "NARROW": 1}
NARROWEST_WHOLE = {"HOPELESS": 0, "WIDE": 1}


@given(mixes(most=9), st.sampled_from([NARROW_WINDOWS, NARROWEST_WINDOWS, NARROWEST_WHOLE]))
def test_search_that_drops_nodes_is_never_worse_than_maximal(mix, limits):
    intents, conditions = mix
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(exact, name, value)
        result = arbitrate(intents, conditions)
    assert is_consistent([item for item in intents if item.arm in result.admitted], conditions)
    served, _ = served_arms(intents, conditions)
    assert served <= set(result.admitted)
    members = arbitrate(intents, conditions, MAXIMAL).admitted
    assert len(members) <= len(result.admitted) <= len(best_set(intents, conditions)) <= result.upper_bound
    assert not any(
        set(result.admitted) < {item.arm for item in larger} for larger in consistent_sets(intents, conditions)
    )


@pytest.mark.parametrize("density", DENSITIES)
def test_nothing_can_be_added_to_what_a_narrow_search_of_a_large_slot_finds(density, monkeypatch):
    monkeypatch.setattr(exact, "NARROW", 1)
    monkeypatch.setattr(exact, "HOPELESS", 0)
    intents, conditions = random_mix(400, DENSITIES[density], seed=7)
    admitted = set(arbitrate(intents, conditions).admitted)
    members = {item.arm: item for item in intents if item.arm in admitted}
    alone = [item for item in intents if item.arm not in admitted and not item.declaration.group]
    assert alone
    assert all(violations(item, members, conditions) for item in alone)
