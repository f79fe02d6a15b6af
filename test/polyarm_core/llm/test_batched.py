"""Texts that are written together are those that would be written one by one."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from tiny_language_model import save_tiny_model

from polyarm_core.errors import InvalidValue
from polyarm_core.llm.batched import BatchedModel
from polyarm_core.llm.interface import ModelRefused, Prompt
from polyarm_core.llm.transformers_backend import TransformersModel


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return TransformersModel(str(save_tiny_model(tmp_path_factory.mktemp("tiny"))), dtype="float32")


ASKED = [
    (Prompt("Answer.", "Yes or no?"), None, 30),
    (Prompt("Answer.", "Which of all of the many counters is it?"), "counter_[0-9]{1,3}, and that is all", 60),
    (Prompt("Plan for overcooked with 2 agents.", "x 3 y 1 nothing"), "(yes|no), and nothing but the truth", 40),
    (Prompt("", "Only a question."), "[a-c]{1,25}", 12),
    (Prompt("Answer.", "Yes or no?"), "[ab]", 1),
    (Prompt("Answer.", "Nothing?"), None, 0),
]


@pytest.mark.parametrize("most", [1, 3, 16])
def test_texts_of_many_threads_are_those_of_one(plain, most):
    expected = [plain.generate(*asked) for asked in ASKED]
    batched = BatchedModel(plain, most)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda asked: batched.generate(*asked), ASKED * 4))
    for text, alone in zip(texts, expected * 4, strict=True):
        assert (text.text, text.tokens, text.prompt_tokens, text.finished) == (
            alone.text, alone.tokens, alone.prompt_tokens, alone.finished,
        )  # fmt: skip


def test_who_asks_for_nonsense_hears_of_it_and_the_others_go_on(plain):
    batched = BatchedModel(plain)
    with ThreadPoolExecutor(4) as pool:
        good = pool.submit(batched.generate, *ASKED[1])
        with pytest.raises(ModelRefused):
            batched.generate(Prompt("Answer.", "?"), "(unclosed")
        with pytest.raises(ModelRefused):
            batched.generate(Prompt("", " "))
        assert good.result().text == plain.generate(*ASKED[1]).text


def test_a_failure_of_the_model_reaches_everybody_and_passes(plain, monkeypatch):
    batched = BatchedModel(plain)
    with monkeypatch.context() as patch:
        patch.setattr(plain, "read_on", lambda *_: 1 / 0)
        with pytest.raises(Exception, match="division by zero"):
            batched.generate(*ASKED[0])
    assert batched.generate(*ASKED[0]).text == plain.generate(*ASKED[0]).text


def test_a_sampled_text_is_drawn_from_what_the_grammar_allows(plain):
    """Each letter comes as often as its probability says; next to no temperature leaves the most probable one."""
    batched = BatchedModel(plain)
    prompt, letters, draws = Prompt("Answer.", "Which?"), "abcd", 400
    head, tail = plain.prompt_tokens(prompt)
    scores = plain.token_logprobs([head + tail + plain.tokenize(letter) for letter in letters])
    weights = [math.exp(row[-1]) for row in scores]
    texts = [batched.sample(prompt, 1.0, seed, "[a-d]", max_tokens=1).text for seed in range(draws)]
    for letter, weight in zip(letters, weights, strict=True):
        share = weight / sum(weights)
        assert abs(texts.count(letter) - draws * share) < 4 * math.sqrt(draws * share * (1 - share)) + 1
    assert texts[7] == batched.sample(prompt, 1.0, 7, "[a-d]", max_tokens=1).text
    assert batched.sample(prompt, 1e-6, 0, max_tokens=8).text == plain.generate(prompt, max_tokens=8).text
    with pytest.raises(InvalidValue):
        batched.sample(prompt, 0.0, 0)


def test_a_batch_holds_at_least_one_text(plain):
    with pytest.raises(InvalidValue):
        BatchedModel(plain, 0)
