"""Re-admission contains the fixed point, and nothing can be added to it: it has no consistent proper superset."""

from __future__ import annotations

import pytest
from hypothesis import given
from orchestrator_mixes import consistent_sets, intent, mixes

from polyarm_core.bench.orchestrator import DENSITIES, random_mix
from polyarm_core.orchestrator import OrchestratorOptions, Strategy, arbitrate

MAXIMAL = OrchestratorOptions(strategy=Strategy.MAXIMAL)
FIXED_POINT = OrchestratorOptions(strategy=Strategy.FIXED_POINT)


@given(mixes())
def test_contains_the_fixed_point_and_nothing_can_be_added(mix):
    intents, conditions = mix
    result = set(arbitrate(intents, conditions, MAXIMAL).admitted)
    assert result >= set(arbitrate(intents, conditions, FIXED_POINT).admitted)
    assert not any(result < {item.arm for item in members} for members in consistent_sets(intents, conditions))


@pytest.mark.parametrize("density", DENSITIES)
def test_contains_the_fixed_point_in_a_large_mix(density):
    intents, conditions = random_mix(500, DENSITIES[density], seed=4)
    maximal = arbitrate(intents, conditions, MAXIMAL).admitted
    assert set(maximal) >= set(arbitrate(intents, conditions, FIXED_POINT).admitted)
    again = [item for item in intents if item.arm in maximal]
    assert arbitrate(again, conditions, MAXIMAL).admitted == maximal


def blocked_at_first(*arms):
    """The arms behind one that wins "entity:z" from them and is then removed itself."""
    return [
        intent("top", 0, ["entity:y"], distance=0),
        intent("thief", 1, ["entity:y", "entity:z"], distance=0),
        *arms,
    ]


def test_mutual_suppliers_are_readmitted_together():
    slot = blocked_at_first(
        intent("i", 2, ["entity:z"], produced=["open"], holds=["rope"], distance=2),
        intent("j", 3, ["entity:b"], held=["rope"], produces=["open"], distance=2),
    )
    assert arbitrate(slot, options=FIXED_POINT).admitted == ("top",)
    assert arbitrate(slot, options=MAXIMAL).admitted == ("i", "j", "top")


def test_group_with_its_supplier_is_readmitted_together():
    slot = blocked_at_first(
        intent("left", 2, ["entity:z"], ["left", "right"], distance=2),
        intent("right", 3, [], ["left", "right"], held=["open"], distance=2),
        intent("holder", 4, ["entity:z2"], holds=["open"], produced=["lit"], distance=2),
        intent("lamp", 5, produces=["lit"], held=["grip"], distance=2),
        intent("grip", 6, ["entity:y2"], holds=["grip"], distance=2),
    )
    assert arbitrate(slot, options=MAXIMAL).admitted == ("grip", "holder", "lamp", "left", "right", "top")


def test_second_choice_of_supplier_is_taken_where_the_first_leads_nowhere():
    slot = blocked_at_first(
        intent("user", 2, ["entity:z"], held=["open"], distance=2),
        intent("first", 3, ["entity:c"], holds=["open"], produced=["lit"], distance=2),
        # excludes the user, so that `first` is of no use to it
        intent("lamp", 4, ["entity:z"], produces=["lit"], distance=3),
        intent("second", 5, ["entity:c"], holds=["open"], distance=3),
    )
    assert arbitrate(slot, options=FIXED_POINT).admitted == ("top",)
    assert arbitrate(slot, options=MAXIMAL).admitted == ("second", "top", "user")


def test_long_chain_of_suppliers_is_found():
    length = 400
    chain = [
        intent(f"a{n}", n + 2, ["entity:z"] if n == 0 else [], held=[f"c{n}"], holds=[f"c{n - 1}"], distance=2)
        for n in range(length)
    ]
    end = intent("end", length + 2, holds=[f"c{length - 1}"], distance=2)
    result = arbitrate(blocked_at_first(*chain, end), options=MAXIMAL)
    assert len(result.admitted) == length + 2
