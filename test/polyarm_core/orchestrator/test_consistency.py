"""Every result is consistent by eqs. 11-14, and does not depend on the order or repetition of the reports."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orchestrator_mixes import intent, mixes, stay

from polyarm_core.bench.orchestrator import DENSITIES, random_mix
from polyarm_core.orchestrator import OrchestratorOptions, Rule, Strategy, arbitrate, is_consistent, violations

STRATEGIES = st.sampled_from(list(Strategy))


@given(mixes(), STRATEGIES)
def test_admitted_set_is_consistent(mix, strategy):
    intents, conditions = mix
    result = arbitrate(intents, conditions, OrchestratorOptions(strategy=strategy))
    assert is_consistent([item for item in intents if item.arm in result.admitted], conditions)
    assert [verdict.arm for verdict in result.verdicts] == sorted(item.arm for item in intents)
    assert len(result.admitted) <= result.upper_bound


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("strategy", list(Strategy))
def test_large_mix_is_consistent(density, strategy):
    intents, conditions = random_mix(300, DENSITIES[density], seed=1)
    result = arbitrate(intents, conditions, OrchestratorOptions(strategy=strategy, node_budget=20_000))
    assert is_consistent([item for item in intents if item.arm in result.admitted], conditions)
    assert len(result.admitted) <= result.upper_bound


@given(mixes(), STRATEGIES, st.randoms(use_true_random=False))
def test_order_and_duplicates_do_not_matter(mix, strategy, draw):
    intents, conditions = mix
    options = OrchestratorOptions(strategy=strategy)
    shuffled = intents + [item for item in intents if draw.random() < 0.5]
    draw.shuffle(shuffled)
    assert arbitrate(shuffled, sorted(conditions), options) == arbitrate(intents, conditions, options)


def test_order_does_not_matter_in_a_large_mix():
    intents, conditions = random_mix(200, DENSITIES["medium"], seed=2)
    options = OrchestratorOptions(node_budget=5_000)
    shuffled = random.Random(3).sample(intents, len(intents))
    assert arbitrate(shuffled, conditions, options) == arbitrate(intents, conditions, options)


SCRIPT = """
from polyarm_core.bench.orchestrator import DENSITIES, random_mix
from polyarm_core.orchestrator import arbitrate
print([arbitrate(*random_mix(arms, DENSITIES[density], 8)) for arms in (60, 200) for density in DENSITIES])
"""


def test_answer_does_not_depend_on_the_hash_seed_of_the_process():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("strategy", list(Strategy))
def test_stay_with_empty_declaration_is_always_admitted(strategy):
    mover = intent("mover", 0, ["entity:a"])
    result = arbitrate([stay("idle", 1), mover], options=OrchestratorOptions(strategy=strategy))
    assert result.admitted == ("idle", "mover")


@pytest.mark.parametrize("strategy", list(Strategy))
def test_nothing_reported(strategy):
    result = arbitrate([], options=OrchestratorOptions(strategy=strategy))
    assert (result.admitted, result.verdicts, result.upper_bound, result.proven) == ((), (), 0, True)


def test_each_condition_is_found_violated():
    opener = intent("opener", 0, ["entity:door"], holds=["open"])
    fetcher = intent("fetcher", 1, ["entity:cup"], held=["open"], produced=["lit"])
    assert violations(fetcher, {}, ()) == (Rule.HELD, Rule.PRODUCED)
    assert violations(fetcher, {"opener": opener}, {"lit"}) == ()
    assert violations(intent("x", 2, ["entity:door"]), {"opener": opener}, ()) == (Rule.EXCLUSION,)
    left, right = intent("left", 0, [], ["left", "right"]), intent("right", 1, [], ["right"])
    assert violations(left, {"right": right}, ()) == (Rule.SYNCHRONISATION,)
    assert violations(left, {"right": intent("right", 1, [], ["left", "right"])}, ()) == ()


def test_held_is_not_covered_by_what_is_only_produced():
    maker = intent("maker", 0, produces=["open"])
    assert violations(intent("user", 1, held=["open"]), {"maker": maker}, ()) == (Rule.HELD,)
    assert violations(intent("user", 1, produced=["open"]), {"maker": maker}, ()) == ()
