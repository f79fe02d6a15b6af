"""Counting what a model would read and write, where none is asked."""

from __future__ import annotations

import pytest

from polyarm_core.bench.tokens import CountingCoordinator, CountingModel, TokenCounter
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain
from polyarm_core.llm.heuristic_backend import HeuristicModel
from polyarm_core.llm.interface import Prompt
from polyarm_core.scenario import load_scenario

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return TokenCounter()


def test_counts_are_those_of_the_models_own_tokenizer(counter: TokenCounter) -> None:
    transformers = pytest.importorskip("transformers")
    from polyarm_core.llm.weights import prepare

    tokenizer = transformers.AutoTokenizer.from_pretrained(prepare("smollm2-135m-instruct"), local_files_only=True)
    for text in ("move(red, pad_1)", "Wait_entity(pot_1, status, ==, ready)", "", "für Alice\n  zwei"):
        assert counter.count(text) == len(tokenizer(text, add_special_tokens=False).input_ids)


def test_counting_changes_no_choice(counter: TokenCounter) -> None:
    prompt, texts = (
        Prompt("rules of the cell", "red lies on tray_1"),
        ("stay", "move red to pad_1", "move red to pad_2"),
    )
    bare, counted = HeuristicModel().score(prompt, texts), CountingModel(HeuristicModel(), counter).score(prompt, texts)
    assert counted.mean_logprobs == bare.mean_logprobs
    assert counted.prompt_tokens == counter.count(prompt.static) + counter.count(prompt.dynamic)


def test_a_plan_of_the_search_carries_the_tokens_of_the_same_plan_by_a_model(counter: TokenCounter) -> None:
    domain = ArmsDomain(load_scenario("sort"))
    request = PlanRequest(domain.start(0), "start", None, (), 0)
    bare = SearchCoordinator(domain).plan(request)
    counted = CountingCoordinator(SearchCoordinator(domain), domain, counter).plan(request)
    assert counted.plan == bare.plan
    assert bare.tokens == bare.prompt_tokens == 0
    assert counted.tokens == counter.count(bare.text)
    assert counted.prompt_tokens > 100  # rules and state of the cell
