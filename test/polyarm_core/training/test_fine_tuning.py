"""SFT and GRPO with the real trainers, on a random model of two layers: a few steps, a stop, and on from there."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_language_model import save_tiny_model

from polyarm_core.errors import InvalidValue
from polyarm_core.training import grpo, sft
from polyarm_core.training.lora import CARD, load_tokenizer, merged_folder, model_folder, trained_variant
from polyarm_core.training.sft_data import read_samples, stream, write_samples

pytest.importorskip("trl")
pytest.importorskip("peft")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "samples.jsonl"
    write_samples(path, stream([sft.open_domain("overcooked:asymmetric_advantages")], 11), 12)
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, data, base) -> Path:
    """An adapter after two and two steps of SFT."""
    out = tmp_path_factory.mktemp("adapters") / "sft"
    settings = replace(sft.PRESETS["small"], base=str(base), max_length=1024, save_every=2, log_every=1)
    first = sft.train(data, out, settings, max_steps=2)
    assert first["steps"] == 2
    card = sft.train(data, out, settings, max_steps=4)
    assert card["steps"] == 4
    return out


def test_sft_goes_on_from_its_checkpoint_and_writes_a_curve(tuned):
    with (tuned / "curve.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row["loss"]]
    assert steps == [1, 2, 3, 4]  # the first two are of the run before
    card = json.loads((tuned / CARD).read_text())
    assert card["stage"] == "sft" and card["variant"] == "compact" and card["validation_loss"] > 0


def test_loss_counts_the_answer_alone(data, base):
    tokenizer = load_tokenizer(str(base))
    domain = sft.open_domain("overcooked:asymmetric_advantages")
    for sample in read_samples(data):
        row = sft.tokens_of(tokenizer, domain, sample, "compact")
        counted = [token for token in row["labels"] if token != -100]
        assert tokenizer.decode(counted) == sample.answer + tokenizer.eos_token
        assert row["input_ids"][-len(counted) :] == counted
        assert tokenizer.decode(row["input_ids"][: -len(counted)]).endswith("<|im_start|>assistant\n")


def test_prompts_of_training_are_those_of_inference(data, base):
    """The backend must see the very tokens that the model was tuned on."""
    from polyarm_core.coordinator.prompts import coordinator_prompt
    from polyarm_core.llm.transformers_backend import TransformersModel

    model = TransformersModel(str(base), dtype="float32")
    tokenizer = load_tokenizer(str(base))
    domain = sft.open_domain("overcooked:asymmetric_advantages")
    for sample in read_samples(data):
        for variant in ("sft", "compact"):
            row = sft.tokens_of(tokenizer, domain, sample, variant)
            head, tail = model.prompt_tokens(coordinator_prompt(domain, sample.request(domain), variant))
            assert row["input_ids"][: row["labels"].count(-100)] == head + tail


def test_grpo_starts_from_the_merged_adapter_and_logs_outcomes(tuned, data, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "grpo"
    settings = replace(
        grpo.PRESETS["small"],
        base=str(tuned),
        responses=2,
        batch=2,
        max_response=12,
        save_every=1,
    )
    assert grpo.train(data, out, settings, max_steps=1)["steps"] == 1
    card = grpo.train(data, out, settings, max_steps=2)
    assert card["steps"] == 2
    rows = [row for row in json.loads((out / "curve.json").read_text()) if "reward" in row]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        shares = [row[f"rewards/{outcome}/mean"] for outcome in grpo.OUTCOMES]
        assert sum(shares) == pytest.approx(1.0)
        assert -1.0 <= row["reward"] <= 1.0
    way = os.path.relpath(tuned, out)
    assert json.loads((out / CARD).read_text())["base"] == way
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == way  # no cache folder
    assert merged_folder(out).is_dir()  # base, SFT and GRPO in one
    assert trained_variant(out) == "compact"


def test_a_merged_adapter_is_a_model_like_any_other(tuned, tmp_path, monkeypatch):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("POLYARM_CACHE", str(tmp_path / "cache"))
    folder = merged_folder(tuned)
    assert merged_folder(tuned) == folder == Path(model_folder(str(tuned)))
    tokens = torch.tensor([[5, 6, 7, 8]])
    original = AutoModelForCausalLM.from_pretrained(json.loads((tuned / CARD).read_text())["base"])
    untouched = original(tokens).logits
    with_adapter = PeftModel.from_pretrained(original, str(tuned))(tokens).logits
    merged = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
    assert torch.allclose(merged, with_adapter, atol=1e-5)
    assert not torch.allclose(merged, untouched, atol=1e-5)


def test_a_folder_without_a_card_is_no_adapter(tmp_path):
    with pytest.raises(InvalidValue, match=CARD):
        merged_folder(tmp_path)


def test_presets_have_the_papers_numbers():
    paper = sft.PRESETS["paper"]
    assert (paper.lora.rank, paper.lora.alpha, paper.lora.dropout) == (32, 64, 0.05)
    assert (paper.learning_rate, paper.scheduler, paper.warmup, paper.epochs) == (2e-5, "cosine", 0.1, 4)
    assert (paper.batch, paper.accumulation, paper.max_length, paper.validation) == (1, 8, 4096, 0.05)
    rl = grpo.PRESETS["paper"]
    assert (rl.prompts, rl.responses, rl.clip, rl.kl, rl.entropy) == (10, 10, 0.2, 0.02, 0.001)
    assert (rl.learning_rate, rl.warmup, rl.batch, rl.accumulation, rl.grad_norm) == (5e-5, 0.03, 2, 4, 1.0)
    assert (rl.epochs, rl.seed, rl.vllm, rl.base) == (1, 42, True, "Qwen/Qwen2.5-7B-Instruct")
    with pytest.raises(InvalidValue):
        grpo.GrpoSettings(responses=1)


@pytest.mark.parametrize("module", [sft, grpo])
def test_command_line_explains_itself(module, capsys):
    with pytest.raises(SystemExit) as end:
        module.main(["--help"])
    assert end.value.code == 0
    assert "--preset" in capsys.readouterr().out
