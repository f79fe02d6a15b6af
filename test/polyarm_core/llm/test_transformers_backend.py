"""Scores of the real default model against a plain computation, and constrained text against its grammar."""

from __future__ import annotations

import re

import pytest
from model_samples import CANDIDATES, NAME, PROMPT

from polyarm_core.errors import InvalidValue
from polyarm_core.llm import transformers_backend
from polyarm_core.llm.interface import ModelRefused, ModelTimeout, Prompt, choose
from polyarm_core.llm.transformers_backend import TransformersModel

FLOAT32 = 2e-4  # how far two orders of float32 arithmetic may be apart, nats


def plain_scores(model: TransformersModel, prompt: Prompt, candidates) -> list[float]:
    """Eq. 6 as it is written: one candidate, one pass over everything, no cache, no tree."""
    import torch

    head, tail = model.prompt_tokens(prompt)
    result = []
    for text in candidates:
        answer = model.answer_tokens(prompt, text.strip())
        ids = head + tail + answer
        with torch.inference_mode():
            table = model._model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        start = len(head) + len(tail)
        result.append(sum(table[start + k - 1, token].item() for k, token in enumerate(answer)) / len(answer))
    return result


@pytest.mark.parametrize(
    ("prompt", "candidates"),
    [
        (PROMPT, CANDIDATES),
        (Prompt("", PROMPT.dynamic), CANDIDATES),
        (Prompt(PROMPT.static, ""), ("move", "move it", "move it to pad4", "stay", "stay")),
        (Prompt("  Rules with white space around.\n\n", " State. "), ("wait", " wait", "go on")),
    ],
)
def test_shared_prefixes_give_the_scores_of_separate_passes(model, prompt, candidates) -> None:
    expected = plain_scores(model, prompt, candidates)
    cold = model.score(prompt, candidates)
    warm = model.score(prompt, candidates)
    assert cold.mean_logprobs == pytest.approx(expected, abs=FLOAT32)
    assert warm.mean_logprobs == pytest.approx(expected, abs=FLOAT32)
    assert model.score_unshared(prompt, candidates).mean_logprobs == pytest.approx(expected, abs=FLOAT32)
    assert choose(warm.mean_logprobs) == expected.index(max(expected))
    assert warm.candidate_tokens == sum(len(model.answer_tokens(prompt, text.strip())) for text in candidates)


def test_the_prompt_is_what_the_chat_template_makes_of_it(model) -> None:
    head, tail = model.prompt_tokens(PROMPT)
    whole = model._tokenizer.apply_chat_template(
        [{"role": "system", "content": PROMPT.static}, {"role": "user", "content": PROMPT.dynamic}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert model._tokenizer.decode(head + tail) == whole
    assert model._tokenizer.decode(head).endswith(PROMPT.static)
    assert head == model.prompt_tokens(Prompt(PROMPT.static, "another state"))[0]


def test_a_model_without_chat_template_reads_plain_text(model, monkeypatch) -> None:
    monkeypatch.setattr(model._tokenizer, "chat_template", None)
    head, tail = model.prompt_tokens(PROMPT)
    assert model._tokenizer.decode(head + tail) == PROMPT.static + PROMPT.dynamic
    assert model._tokenizer.decode(model.answer_tokens(PROMPT, "stay")) == " stay"
    assert model.score(PROMPT, CANDIDATES).mean_logprobs == pytest.approx(
        plain_scores(model, PROMPT, CANDIDATES), abs=FLOAT32
    )


def test_scores_do_not_depend_on_the_other_candidates_or_decisions(model) -> None:
    alone = [model.score(PROMPT, [text]).mean_logprobs[0] for text in CANDIDATES]
    other = Prompt(PROMPT.static, "You see: nothing to move.\nAction:")
    together, _, backwards = model.score_batch(
        [(PROMPT, CANDIDATES), (other, CANDIDATES[:2]), (PROMPT, CANDIDATES[::-1])]
    )
    assert together.mean_logprobs == pytest.approx(alone, abs=FLOAT32)
    assert backwards.mean_logprobs[::-1] == pytest.approx(alone, abs=FLOAT32)
    assert together.mean_logprobs == model.score(PROMPT, CANDIDATES).mean_logprobs


def test_a_tree_that_is_too_large_is_computed_in_parts(model, monkeypatch) -> None:
    whole = model.score(PROMPT, CANDIDATES).mean_logprobs
    monkeypatch.setattr(transformers_backend, "PACKED_TOKENS", 40)
    assert model.score(PROMPT, CANDIDATES).mean_logprobs == pytest.approx(whole, abs=FLOAT32)


def test_only_the_latest_prefixes_are_kept(model, monkeypatch) -> None:
    monkeypatch.setattr(model, "_kept", 2)
    model.forget_prefixes()
    prompts = [Prompt(f"You are arm {k}.\n", "Act.") for k in range(3)]
    for prompt in [prompts[0], prompts[1], prompts[0], prompts[2]]:
        model.score(prompt, ["stay"])
    assert list(model._prefixes) == [tuple(model.prompt_tokens(prompts[k])[0]) for k in (0, 2)]


def test_log_probabilities_of_whole_sequences(model) -> None:
    import torch

    first, second = model.tokenize("move the cube to the left"), model.tokenize("move the cube away")
    with torch.inference_mode():
        table = model._model(torch.tensor([second])).logits[0].float().log_softmax(-1)
    expected = [table[k, token].item() for k, token in enumerate(second[1:])]
    rows = model.token_logprobs([first, second, second[:1]])
    assert rows[1] == pytest.approx(expected, abs=10 * FLOAT32)
    assert [len(row) for row in rows] == [len(first) - 1, len(second) - 1, 0]


def test_bfloat16_stays_near_float32(model) -> None:
    rough = TransformersModel(NAME, dtype="bfloat16")
    assert rough.score(PROMPT, CANDIDATES).mean_logprobs == pytest.approx(
        model.score(PROMPT, CANDIDATES).mean_logprobs, abs=0.15
    )


@pytest.mark.parametrize(
    ("prompt", "candidates", "message"),
    [
        (PROMPT, [], "at least one"),
        (PROMPT, ["stay", "  "], "blank"),
        (Prompt(" ", "\n"), ["stay"], "prompt is blank"),
        (PROMPT, ["stay " * 9000], "reads at most 8192"),
    ],
)
def test_what_cannot_be_scored_is_refused(model, prompt, candidates, message) -> None:
    with pytest.raises(ModelRefused, match=message):
        model.score(prompt, candidates)


@pytest.mark.parametrize("architecture", ["full", "sliding"])
def test_other_architectures_agree_with_a_plain_computation(model, architecture, tmp_path) -> None:
    """A sliding window does not take the tree's mask; such models are scored by separate passes."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=49152,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=16 if architecture == "sliding" else None,
        initializer_range=0.5,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    model._tokenizer.save_pretrained(tmp_path)
    other = TransformersModel(str(tmp_path), dtype="float32")
    assert other._shares == (architecture == "full")
    assert other.score(PROMPT, CANDIDATES).mean_logprobs == pytest.approx(
        plain_scores(other, PROMPT, CANDIDATES), abs=1e-3
    )


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ("move (red|blue) to pad[0-9]", r"move (red|blue) to pad[0-9]"),
        ('start: "stay" | "lift " NUMBER " cm"\nNUMBER: /[1-9][0-9]?/', r"stay|lift [1-9][0-9]? cm"),
        ('start: step ("; " step)*\nstep: ARM ": " ("open" | "close")\nARM: "alice" | "bob"',
         r"(alice|bob): (open|close)(; (alice|bob): (open|close))*"),
        (r'\{"answer": (true|false)\}', r'\{"answer": (true|false)\}'),
    ],
)  # fmt: skip
def test_constrained_text_is_a_sentence_of_the_grammar(model, grammar, pattern) -> None:
    text = model.generate(PROMPT, grammar, max_tokens=40)
    if text.finished:
        assert re.fullmatch(pattern, text.text)
    else:  # cut off inside an endless list: then it is the beginning of a sentence
        assert text.tokens == 40 and "; " in text.text


def test_text_that_is_cut_off_says_so(model) -> None:
    text = model.generate(PROMPT, "[a-z]{200}", max_tokens=5)
    assert not text.finished and text.tokens == 5 and re.fullmatch("[a-z]+", text.text)


def test_free_text_is_what_the_library_generates(model) -> None:
    import torch

    head, tail = model.prompt_tokens(PROMPT)
    with torch.inference_mode():
        ids = model._model.generate(torch.tensor([head + tail]), max_new_tokens=12, do_sample=False)[0]
    expected = model.detokenize(ids[len(head) + len(tail) :].tolist())
    assert model.generate(PROMPT, max_tokens=12).text == expected


@pytest.mark.parametrize("grammar", ["(((", "start: missing_rule"])
def test_a_malformed_grammar_is_refused(model, grammar) -> None:
    with pytest.raises(ModelRefused, match="not well formed"):
        model.generate(PROMPT, grammar)


def test_generation_ends_at_its_deadline(model) -> None:
    with pytest.raises(ModelTimeout):
        model.generate(PROMPT, "a{500}", max_tokens=500, deadline=0.0)


@pytest.mark.parametrize(("key", "value"), [("dtype", "int8"), ("threads", 0)])
def test_settings_are_checked_before_anything_is_loaded(key, value) -> None:
    with pytest.raises(InvalidValue, match=key):
        TransformersModel(NAME, **{key: value})
