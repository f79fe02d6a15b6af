"""The paper's procedure, against a literal transcription of eqs. 18-24, and the failing cases of ldt_coord.md 7.1."""

from __future__ import annotations

import pytest
from hypothesis import given
from orchestrator_mixes import PATIENCE, intent, mixes, served_arms

from polyarm_core.orchestrator import OrchestratorOptions, Rule, Strategy, Verdict, arbitrate
from polyarm_core.orchestrator.aging import priority_key
from polyarm_core.orchestrator.types import Decision

FIXED_POINT = OrchestratorOptions(strategy=Strategy.FIXED_POINT)


def admitted(intents, strategy, conditions=frozenset()):
    return arbitrate(intents, conditions, OrchestratorOptions(strategy=strategy)).admitted


def transcription(intents, conditions):
    """T_xi . T_zeta . T_alpha . T_omega on sets, as printed; the rule that removed each arm."""
    by_arm = {item.arm: item for item in intents}
    _, first = served_arms(intents, conditions)
    order = sorted(intents, key=lambda item: (item.arm not in first, priority_key(item, PATIENCE)))
    rank = {item.arm: number for number, item in enumerate(order)}
    declared = {arm: item.declaration for arm, item in by_arm.items()}

    def held(arms):
        covered = conditions.union(*(declared[arm].holds for arm in arms))
        return {arm for arm in arms if declared[arm].requires_held <= covered}

    def produced(arms):
        covered = conditions.union(*(declared[arm].holds | declared[arm].produces for arm in arms))
        return {arm for arm in arms if declared[arm].requires_produced <= covered}

    def synchronised(arms):
        return {
            arm
            for arm in arms
            if not declared[arm].group
            or (
                arm in declared[arm].group <= arms
                and all(declared[mate].group == declared[arm].group for mate in declared[arm].group)
            )
        }

    def exclusive(arms):
        return {
            arm
            for arm in arms
            if not any(
                rank[other] < rank[arm] and declared[arm].exclusive & declared[other].exclusive for other in arms
            )
        }

    arms, removed_by = set(by_arm), {}
    while True:
        before = set(arms)
        for rule, step in (
            (Rule.HELD, held),
            (Rule.PRODUCED, produced),
            (Rule.SYNCHRONISATION, synchronised),
            (Rule.EXCLUSION, exclusive),
        ):
            after = step(arms)
            removed_by.update(dict.fromkeys(arms - after, rule))
            arms = after
        if arms == before:
            return arms, removed_by


@given(mixes())
def test_equals_the_transcription_of_the_paper(mix):
    intents, conditions = mix
    arms, removed_by = transcription(intents, conditions)
    result = arbitrate(intents, conditions, FIXED_POINT)
    assert set(result.admitted) == arms
    assert {verdict.arm: verdict.rule for verdict in result.verdicts if verdict.rule} == removed_by


def test_flaw_chain_removes_the_arm_whose_rival_is_gone_too():
    # i > j on one element, j > k on another: T_xi removes j and k at once.
    chain = [intent("i", 0, ["entity:a"]), intent("j", 1, ["entity:a", "entity:b"]), intent("k", 2, ["entity:b"])]
    assert admitted(chain, Strategy.FIXED_POINT) == ("i",)
    assert admitted(chain, Strategy.MAXIMAL) == ("i", "k")
    assert admitted(chain, Strategy.OPTIMAL) == ("i", "k")
    assert arbitrate(chain, options=FIXED_POINT).verdicts[2] == Verdict(
        "k", Decision.YIELD, Rule.EXCLUSION, "entity:b", "j"
    )


def test_flaw_arm_lost_an_element_to_one_that_another_rule_removes():
    # `first` wins the element, then goes because its supplier lost another element; `second` is never brought back.
    slot = [
        intent("winner", 0, ["entity:door"]),
        intent("holder", 1, ["entity:door"], holds=["open"]),
        intent("first", 2, ["entity:cup"], held=["open"]),
        intent("second", 3, ["entity:cup"]),
    ]
    assert admitted(slot, Strategy.FIXED_POINT) == ("winner",)
    assert admitted(slot, Strategy.MAXIMAL) == ("second", "winner")
    assert len(admitted(slot, Strategy.OPTIMAL)) == 2


@pytest.mark.parametrize("strategy", list(Strategy))
def test_priority_terminal_then_distance_then_wait_then_index(strategy):
    def winner(**keys):
        strong, weak = intent("strong", 5, ["entity:a"], **keys), intent("weak", 0, ["entity:a"], distance=1)
        return admitted([weak, strong], strategy)

    assert winner(terminal=True, distance=3) == ("strong",)
    assert winner(distance=0) == ("strong",)
    assert winner(distance=1, waited=1) == ("strong",)
    assert winner(distance=1) == ("weak",)
    assert winner(distance=2, waited=PATIENCE) == ("weak",)
    assert winner(distance=2, waited=PATIENCE + 1) == ("strong",)
