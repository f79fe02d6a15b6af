"""Every veto names a rule that the arm really violates beside the admitted set, the element and the rival."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from orchestrator_mixes import intent, mixes

from polyarm_core.orchestrator import OrchestratorOptions, Rule, Strategy, Verdict, arbitrate, violations
from polyarm_core.orchestrator.types import Decision

RESOLVING = st.sampled_from([Strategy.MAXIMAL, Strategy.OPTIMAL])
BUDGETS = st.sampled_from([None, 1, 20])


def offers(item, verdict):
    declared = item.declaration
    return verdict.element in (declared.holds if verdict.rule is Rule.HELD else declared.holds | declared.produces)


def check(verdict, by_arm, members, conditions):
    """Rule, element and rival of one veto against the definition."""
    mine = by_arm[verdict.arm].declaration
    others = {arm: item for arm, item in members.items() if arm != verdict.arm}
    if verdict.rule is Rule.EXCLUSION:
        assert verdict.decision is Decision.YIELD
        assert verdict.element in mine.exclusive & by_arm[verdict.rival].declaration.exclusive
        assert verdict.rival in members or verdict.rival in mine.group
        return
    assert verdict.decision is Decision.WAIT
    assert verdict.rule in violations(by_arm[verdict.arm], members, conditions)
    if verdict.rule is Rule.SYNCHRONISATION:
        rival = by_arm.get(verdict.rival)
        assert verdict.rival in mine.group or verdict.arm not in mine.group
        assert verdict.rival not in members or rival.declaration.group != mine.group
        if verdict.element:
            assert verdict.element in rival.declaration.exclusive
            assert any(verdict.element in other.declaration.exclusive for other in others.values())
    else:
        required = mine.requires_held if verdict.rule is Rule.HELD else mine.requires_produced
        assert verdict.element in required - conditions
        assert not any(offers(other, verdict) for other in others.values())
        suppliers = {arm for arm, item in by_arm.items() if arm != verdict.arm and offers(item, verdict)}
        assert verdict.rival in suppliers if suppliers else verdict.rival == ""


@settings(max_examples=300)
@given(mixes(), RESOLVING, BUDGETS)
def test_veto_holds_up_against_the_admitted_set(mix, strategy, budget):
    intents, conditions = mix
    by_arm = {item.arm: item for item in intents}
    result = arbitrate(intents, conditions, OrchestratorOptions(strategy=strategy, node_budget=budget))
    members = {arm: by_arm[arm] for arm in result.admitted}
    for verdict in result.verdicts:
        if verdict.arm in members:
            assert verdict == Verdict(verdict.arm, Decision.ADMIT)
        else:
            check(verdict, by_arm, members, conditions)


@given(mixes())
def test_veto_of_the_paper_holds_up_but_for_its_flaw(mix):
    intents, conditions = mix
    by_arm = {item.arm: item for item in intents}
    result = arbitrate(intents, conditions, OrchestratorOptions(strategy=Strategy.FIXED_POINT))
    members = {arm: by_arm[arm] for arm in result.admitted}
    for verdict in result.verdicts:
        if verdict.rule is Rule.EXCLUSION:  # the rival may have been removed itself
            shared = by_arm[verdict.arm].declaration.exclusive & by_arm[verdict.rival].declaration.exclusive
            assert verdict.decision is Decision.YIELD
            assert verdict.element in shared
        elif verdict.rule is not None:
            check(verdict, by_arm, members, conditions)


def verdict_of(arm, *intents, conditions=()):
    return next(verdict for verdict in arbitrate(intents, conditions).verdicts if verdict.arm == arm)


def test_exclusion_names_the_arm_that_has_the_element():
    strong, weak = intent("strong", 0, ["entity:a"], terminal=True), intent("weak", 1, ["entity:a", "entity:b"])
    assert verdict_of("weak", weak, strong) == Verdict("weak", Decision.YIELD, Rule.EXCLUSION, "entity:a", "strong")


def test_condition_that_nobody_offers_has_no_rival():
    assert verdict_of("user", intent("user", 0, held=["open"])) == Verdict("user", Decision.WAIT, Rule.HELD, "open", "")
    assert verdict_of("user", intent("user", 0, produced=["lit"])).rule is Rule.PRODUCED
    assert verdict_of("user", intent("user", 0, held=["open"]), conditions=["open"]).decision is Decision.ADMIT


def test_condition_whose_supplier_lost_names_the_supplier():
    slot = [
        intent("one", 0, ["entity:a"], terminal=True),
        intent("two", 1, ["entity:b"], terminal=True),
        intent("holder", 2, ["entity:a", "entity:b"], holds=["open"]),
        intent("user", 3, held=["open"]),
    ]
    assert verdict_of("user", *slot) == Verdict("user", Decision.WAIT, Rule.HELD, "open", "holder")


def test_group_waits_for_the_member_that_did_not_report_or_names_another_group():
    left = intent("left", 0, ["entity:a"], ["left", "right"])
    assert verdict_of("left", left) == Verdict("left", Decision.WAIT, Rule.SYNCHRONISATION, "", "right")
    alone = intent("right", 1, ["entity:b"], ["right"])
    assert verdict_of("left", left, alone) == Verdict("left", Decision.WAIT, Rule.SYNCHRONISATION, "", "right")
    assert verdict_of("right", left, alone).decision is Decision.ADMIT


def test_group_without_the_arm_that_names_it_is_never_admitted():
    stranger = intent("stranger", 0, [], ["left"])
    left = intent("left", 1, [], ["left"])
    verdict = verdict_of("stranger", stranger, left)
    assert (verdict.decision, verdict.rule) == (Decision.WAIT, Rule.SYNCHRONISATION)


def test_group_names_what_keeps_the_other_member_out():
    slot = [
        intent("one", 0, ["entity:a"], terminal=True),
        intent("two", 1, ["entity:b"], terminal=True),
        intent("three", 2, ["entity:c"], terminal=True),
        intent("left", 3, ["entity:d"], ["left", "right"]),
        intent("right", 4, ["entity:a", "entity:b", "entity:c"], ["left", "right"]),
    ]
    assert verdict_of("left", *slot) == Verdict("left", Decision.WAIT, Rule.SYNCHRONISATION, "entity:a", "right")
    assert verdict_of("right", *slot) == Verdict("right", Decision.YIELD, Rule.EXCLUSION, "entity:a", "one")


def test_group_that_gets_in_its_own_way_yields():
    left, right = (intent(arm, index, ["entity:a"], ["left", "right"]) for index, arm in enumerate(["left", "right"]))
    assert verdict_of("left", left, right) == Verdict("left", Decision.WAIT, Rule.SYNCHRONISATION, "", "right")
    assert verdict_of("right", left, right) == Verdict("right", Decision.YIELD, Rule.EXCLUSION, "entity:a", "left")
