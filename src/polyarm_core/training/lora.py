"""What both training stages share: base model with LoRA, tokens of a prompt, curves, merging an adapter.

``python -m polyarm_core.training.lora merge ADAPTER`` merges an adapter into its base and prints the folder, which is a
model like any other: backend ``transformers`` and this folder as name.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyarm_core.coordinator.prompts import Variant
from polyarm_core.errors import InvalidValue, MissingExtra
from polyarm_core.llm.interface import Prompt
from polyarm_core.llm.weights import build_once, cache_folder, prepare

CARD = "polyarm.json"  # what an adapter was trained on and how; lies beside its weights


@dataclass(frozen=True)
class LoraSettings:
    """Adapter of both stages (Tables 9 and 10): all linear layers."""

    rank: int = 32
    alpha: int = 64
    dropout: float = 0.05


def require_training() -> None:
    """Check that the libraries of the extra are there.

    Raises:
        MissingExtra: one is not.
    """
    import importlib.util

    for library in ("trl", "peft", "datasets"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtra(library, "training")


def load_tokenizer(name: str) -> Any:
    """Tokenizer of a model, packaged, local or of the hub. Raises as :func:`polyarm_core.llm.weights.prepare`."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder(name))


def load_base(name: str, dtype: str = "bfloat16") -> Any:
    """Causal language model with frozen weights in ``dtype``. Raises as :func:`load_tokenizer`."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_folder(name), dtype=getattr(torch, dtype))


def lora_config(settings: LoraSettings) -> Any:
    """PEFT configuration for all linear layers but the output layer."""
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def prompt_text(tokenizer: Any, prompt: Prompt) -> str:
    """The prompt as the ``transformers`` backend renders it, up to where the answer begins.

    Raises:
        InvalidValue: the model has no chat template.
    """
    if not tokenizer.chat_template:
        raise InvalidValue("model", tokenizer.name_or_path, "a model with a chat template")
    messages = [{"role": "system", "content": prompt.static}, {"role": "user", "content": prompt.dynamic}]
    return str(
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    )


def model_folder(name: str) -> str:
    """Where a model loads from: as :func:`polyarm_core.llm.weights.prepare`; an adapter's folder is merged first."""
    folder = Path(name).expanduser()
    return str(merged_folder(folder)) if (folder / "adapter_config.json").is_file() else prepare(name)


def merged_folder(adapter: Path) -> Path:
    """An adapter merged into its base, in the cache, built once; its base may be another adapter's folder.

    Args:
        adapter: folder with ``adapter_config.json``, weights and card.

    Returns:
        A folder with weights and tokenizer, to be named as model of the ``transformers`` backend.

    Raises:
        InvalidValue: the folder has no card.
        ModelUnavailable: the base is not there, or the cache cannot be written.
    """
    card_path = adapter / CARD
    if not card_path.is_file():
        raise InvalidValue("adapter", str(adapter), f"a folder with {CARD}")
    base = str(json.loads(card_path.read_text("utf-8"))["base"])
    if (adapter / base / "adapter_config.json").is_file():  # relative to this adapter, e.g. ../sft
        base = str((adapter / base).resolve())
    source = model_folder(base)
    digest = hashlib.sha256(source.encode())
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        digest.update((adapter / file).read_bytes())
    target = cache_folder() / "models" / f"{adapter.name}-{digest.hexdigest()[:12]}"
    if not target.is_dir():
        build_once(target, lambda folder: _merge(source, adapter, folder))
    return target


def _merge(source: str, adapter: Path, folder: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    merged: Any = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    merged.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)


def save_adapter(model: Any, folder: Path, card: Mapping[str, Any]) -> None:
    """Write an adapter's weights in bfloat16 with its card; nothing else is needed to use it."""
    import torch

    state = {
        name.replace(".default", ""): tensor.detach().to(torch.bfloat16)
        for name, tensor in model.state_dict().items()
        if "lora_" in name
    }
    for config in model.peft_config.values():
        config.base_model_name_or_path = str(card["base"])  # not the folder of this machine's cache
    model.save_pretrained(folder, state_dict=state)
    for surplus in ("README.md", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / surplus).unlink(missing_ok=True)
    (folder / CARD).write_text(json.dumps(dict(card), indent=2) + "\n", "utf-8")


def trained_variant(adapter: Path) -> Variant:
    """The prompt's variant that an adapter was trained with: it understands no other."""
    variant: Variant = json.loads((adapter / CARD).read_text("utf-8"))["variant"]
    return variant


def base_for_card(base: str, out: Path) -> str:
    """A base as an adapter's card names it: another adapter's folder by the way from this one to it."""
    if (Path(base) / "adapter_config.json").is_file():
        return os.path.relpath(base, out)
    return base


def write_curve(folder: Path, log: Sequence[Mapping[str, Any]]) -> None:
    """The trainer's log as ``curve.json`` and ``curve.csv``; columns are all keys with a number in any row."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{key: value for key, value in row.items() if isinstance(value, (int, float))} for row in log]
    columns = ["step", *dict.fromkeys(key for row in rows for key in row if key != "step")]
    (folder / "curve.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    with (folder / "curve.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def last_checkpoint(folder: Path) -> str | None:
    """The newest complete checkpoint of a trainer in this folder."""
    found = [
        path
        for path in folder.glob("checkpoint-*")
        if path.name.partition("-")[2].isdigit() and (path / "trainer_state.json").is_file()
    ]
    return str(max(found, key=lambda path: int(path.name.partition("-")[2]))) if found else None


def time_limit(minutes: float | None) -> list[Any]:
    """Callbacks that stop a trainer at a checkpoint when the time is up."""
    from transformers import TrainerCallback

    end = time.monotonic() + 60.0 * minutes if minutes is not None else float("inf")

    class TimeLimit(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            if time.monotonic() > end:
                control.should_save = True
                control.should_training_stop = True
            return control

    return [TimeLimit()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m polyarm_core.training.lora", description=__doc__)
    parser.add_argument("command", choices=["merge"])
    parser.add_argument("adapter", type=Path)
    options = parser.parse_args(arguments)
    print(merged_folder(options.adapter))
    return 0


if __name__ == "__main__":
    sys.exit(main())
