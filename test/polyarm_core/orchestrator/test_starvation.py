"""Every persistent contender is admitted within patience + n + 1 slots, whatever the strategy (``aging.py``)."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orchestrator_mixes import PATIENCE, consistent_sets, intent, mixes

from polyarm_core.orchestrator import OrchestratorOptions, Strategy, arbitrate


def longest_waits(intents, conditions, options, slots):
    """The longest wait of each arm when all of them want the same again in every slot."""
    waited = {item.arm: item.waited for item in intents}
    longest = waited.copy()
    for _ in range(slots):
        current = [dataclasses.replace(item, waited=waited[item.arm]) for item in intents]
        admitted = set(arbitrate(current, conditions, options).admitted)
        for arm in waited:
            waited[arm] = 0 if arm in admitted else waited[arm] + 1
            longest[arm] = max(longest[arm], waited[arm])
    return longest


@given(mixes(most=6, overdue=False), st.sampled_from(list(Strategy)), st.integers(0, 3))
def test_no_wait_exceeds_patience_plus_n(mix, strategy, patience):
    intents, conditions = mix
    intents = [dataclasses.replace(item, waited=0) for item in intents]
    feasible = {item.arm for members in consistent_sets(intents, conditions) for item in members}
    bound = patience + len(intents)
    longest = longest_waits(
        intents, conditions, OrchestratorOptions(strategy=strategy, patience=patience), slots=2 * bound + 2
    )
    assert all(longest[arm] <= bound for arm in feasible)


@given(mixes(), st.sampled_from(list(Strategy)))
def test_first_feasible_overdue_arm_is_admitted_whatever_the_others_want(mix, strategy):
    intents, conditions = mix
    feasible = {item.arm for members in consistent_sets(intents, conditions) for item in members}
    overdue = [item for item in intents if item.waited > PATIENCE and item.arm in feasible]
    if overdue:
        oldest = max(item.waited for item in overdue)
        admitted = arbitrate(intents, conditions, OrchestratorOptions(strategy=strategy)).admitted
        assert any(item.arm in admitted for item in overdue if item.waited == oldest)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_arm_that_excludes_two_others_is_admitted_in_the_end(strategy):
    slot = [
        intent("x", 0, ["entity:a"], terminal=True),
        intent("y", 1, ["entity:b"], terminal=True),
        intent("wide", 2, ["entity:a", "entity:b"], distance=3),
    ]
    options = OrchestratorOptions(strategy=strategy, patience=4)
    assert longest_waits(slot, frozenset(), options, slots=30)["wide"] == 5
    assert max(longest_waits(slot, frozenset(), options, slots=30).values()) <= 4 + 3


@pytest.mark.parametrize("strategy", list(Strategy))
def test_dependent_arm_is_admitted_although_its_supplier_is_weak(strategy):
    slot = [
        intent("rival", 0, ["entity:door"], terminal=True),
        intent("extra", 1, ["entity:hinge"], terminal=True),
        intent("more", 2, ["entity:knob"], terminal=True),
        intent("user", 3, ["entity:cup"], held=["open"], distance=3),
        intent("holder", 4, ["entity:door", "entity:hinge", "entity:knob"], holds=["open"], distance=3),
    ]
    longest = longest_waits(slot, frozenset(), OrchestratorOptions(strategy=strategy, patience=2), slots=30)
    assert max(longest.values()) <= 2 + 5


def test_terminal_action_wins_until_patience_is_exceeded():
    def admitted(waited):
        relay = intent("relay", 1, ["entity:a"], distance=2, waited=waited)
        return arbitrate([intent("terminal", 0, ["entity:a"], terminal=True), relay]).admitted

    assert admitted(PATIENCE) == ("terminal",)
    assert admitted(PATIENCE + 1) == ("relay",)


def test_infeasible_overdue_arm_blocks_nobody():
    slot = [
        intent("never", 0, ["entity:a"], held=["unheard_of"], waited=100),
        intent("clash", 1, ["entity:b"], held=["open"], waited=90),
        intent("holder", 2, ["entity:b"], holds=["open"]),
        intent("old", 3, ["entity:a", "entity:c", "entity:d"], waited=PATIENCE + 1, distance=3),
        intent("c", 4, ["entity:c"], terminal=True),
        intent("d", 5, ["entity:d"], terminal=True),
    ]
    assert arbitrate(slot).admitted == ("holder", "old")
