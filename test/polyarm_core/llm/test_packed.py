"""Packed weights compute what plain ones do, up to the rounding of bfloat16."""

from __future__ import annotations

import pytest
from tiny_language_model import save_tiny_model

from polyarm_core.llm.packed import pack_linears


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_a_packed_layer_computes_the_same(rows):
    import torch

    torch.manual_seed(rows)
    model = torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.Tanh(), torch.nn.Linear(96, 32, bias=False))
    model = model.to(torch.bfloat16).eval()
    inputs = torch.randn(1, rows, 48).to(torch.bfloat16)
    with torch.inference_mode():
        plain = model(inputs).float()
        count = pack_linears(model)
        packed = model(inputs).float()
    assert count in (0, 2)  # 0: this CPU has no such product, and nothing has changed
    assert packed.shape == plain.shape
    torch.testing.assert_close(packed, plain, atol=0.02, rtol=0.02)


def test_float32_is_left_alone():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    assert pack_linears(model) == 0 and type(model[0]) is torch.nn.Linear


def test_a_packed_model_scores_as_the_plain_one(tmp_path):
    from polyarm_core.llm.interface import Prompt
    from polyarm_core.llm.transformers_backend import TransformersModel

    folder, prompt = str(save_tiny_model(tmp_path)), Prompt("Answer.", "Yes or no?")
    plain, packed = TransformersModel(folder), TransformersModel(folder, packed=True)
    candidates = ("yes", "no", "neither of both")
    pairs = zip(
        plain.score(prompt, candidates).mean_logprobs, packed.score(prompt, candidates).mean_logprobs, strict=True
    )
    assert all(abs(a - b) < 0.07 for a, b in pairs)
    assert packed.generate(prompt, "(yes|no)").text in ("yes", "no")
