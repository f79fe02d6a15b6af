"""The choice among candidates, and that the package stays light until a model is opened."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_core.llm.heuristic_backend import HeuristicModel
from polyarm_core.llm.interface import (
    ModelError,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    Prompt,
    choose,
    is_lark,
)
from polyarm_core.llm.registry import open_model
from polyarm_core.scenario import ModelSpec

values = st.lists(st.floats(-50, 0), min_size=1, max_size=12)


@given(values)
def test_the_highest_mean_logprob_wins_and_the_first_of_equals(numbers) -> None:
    chosen = choose(numbers)
    assert numbers[chosen] == max(numbers)
    assert max(numbers) not in numbers[:chosen]


@given(values, st.floats(0, 5))
def test_what_lies_within_the_noise_is_a_tie_that_the_callers_order_breaks(numbers, noise) -> None:
    chosen = choose(numbers, noise)
    assert numbers[chosen] >= max(numbers) - noise
    assert all(number < max(numbers) - noise for number in numbers[:chosen])


def test_bfloat16_noise_does_not_change_a_choice_between_near_equals() -> None:
    assert choose([-2.00, -1.95], noise=0.07) == choose([-1.95, -2.00], noise=0.07) == 0
    assert choose([-2.00, -1.90], noise=0.07) == 1


@pytest.mark.parametrize(
    ("numbers", "noise"),
    [([], 0.0), ([-1.0], -0.1), ([-1.0], float("nan"))],
)
def test_a_choice_without_sense_is_refused(numbers, noise) -> None:
    with pytest.raises(InvalidValue):
        choose(numbers, noise)


def test_an_agent_catches_everything_a_model_can_do_with_one_class() -> None:
    for kind in (ModelUnavailable, ModelTimeout, ModelRefused):
        assert issubclass(kind, ModelError) and issubclass(kind, PolyarmError)


def test_lark_and_regular_expressions_are_told_apart() -> None:
    assert is_lark('start: "a" | "b"') and is_lark('A: "a"\nstart : A+')
    assert not is_lark("move (a|b) to c") and not is_lark("restart: (a|b)")


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = (
        "import polyarm_core.llm, polyarm_core.llm.registry, polyarm_core.llm.client, polyarm_core.llm.server, "
        "polyarm_core.llm.openai_backend, polyarm_core.llm.heuristic_backend, polyarm_core.llm.transformers_backend, "
        "polyarm_core.llm.weights, polyarm_core.llm.process, sys; "
        "print([m for m in ('torch', 'transformers', 'numpy', 'llguidance', 'requests') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


def test_the_heuristic_acts_before_it_stays_and_keeps_the_order_otherwise() -> None:
    model = HeuristicModel()
    texts = [" stay", " move a from p to q", " move b from p to q"]
    found = model.score(Prompt("rules", "state"), texts)
    assert choose(found.mean_logprobs) == 1
    assert sorted(range(3), key=lambda k: -found.mean_logprobs[k]) == [1, 2, 0]
    assert model.score_batch([(Prompt("rules", "state"), texts)] * 2)[1].mean_logprobs == found.mean_logprobs
    with pytest.raises(ModelRefused):
        model.score(Prompt("rules", "state"), [])
    with pytest.raises(ModelRefused):
        model.generate(Prompt("rules", "state"))


def test_the_registry_opens_what_the_scenario_names() -> None:
    from polyarm_core.llm.client import ServerModel
    from polyarm_core.llm.openai_backend import OpenAIModel

    assert isinstance(open_model(ModelSpec(backend="heuristic")), HeuristicModel)
    local = ModelSpec(backend="transformers", name="smollm2-135m-instruct", timeout=3.0)
    shared = open_model(local, url="http://127.0.0.1:1")
    assert isinstance(shared, ServerModel) and shared.timeout == 3.0
    assert isinstance(open_model(local, port_file="/nonexistent/url"), ServerModel)
    remote = ModelSpec(backend="openai", name="m", url="http://127.0.0.1:1/v1")
    assert isinstance(open_model(remote), OpenAIModel)
    for backend in ("openai", "server"):
        with pytest.raises(InvalidValue, match="address"):
            open_model(ModelSpec(backend=backend, name="m"))
    with pytest.raises(UnknownName, match="valid: heuristic, openai, server, transformers"):
        open_model(ModelSpec.model_construct(backend="oracle", name="m", url=None))
    with pytest.raises(UnknownName, match="smollm2-135m-instruct"):
        open_model(ModelSpec(backend="transformers", name="no-such-model"))
