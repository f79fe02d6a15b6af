"""Supervised fine-tuning of the coordinator's model with LoRA (SyncPlan A.2, Table 9).

``python -m polyarm_core.training.sft DATA.jsonl OUT --preset paper`` is the paper's recipe for Qwen2.5-7B on GPUs;
``--preset small`` tunes the default model on a CPU. The same command goes on where a stopped run left its last
checkpoint. The loss counts the answer alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from polyarm_core.coordinator.prompts import VARIANTS, Variant, coordinator_prompt
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue, PolyarmError
from polyarm_core.training.lora import (
    LoraSettings,
    last_checkpoint,
    load_base,
    load_tokenizer,
    lora_config,
    prompt_text,
    require_training,
    save_adapter,
    time_limit,
    write_curve,
)
from polyarm_core.training.sft_data import Sample, open_domain, read_samples

PAPER_LORA = LoraSettings()


@dataclass(frozen=True)
class SftSettings:
    """Hyper-parameters; the defaults are the paper's (Table 9).

    Attributes:
        base: model name, folder or hub id.
        variant: of the prompt.
        lora: adapter.
        learning_rate, scheduler, warmup: of the optimizer; warm-up as a share of all steps.
        batch, accumulation: samples of a pass, and passes of a step.
        epochs: passes over the data.
        max_length: tokens of a sample; longer ones are left out.
        validation: share of the data that is not trained on.
        save_every, validate_every, log_every: steps.
        dtype: of the frozen weights.
        cpu: train on the CPU even where there is a GPU.
        flash_attention: FA2, on GPUs that have it.
        seed: of split, order and adapter.
    """

    base: str = "Qwen/Qwen2.5-7B-Instruct"
    variant: Variant = "sft"
    lora: LoraSettings = PAPER_LORA
    learning_rate: float = 2e-5
    scheduler: str = "cosine"
    warmup: float = 0.1
    batch: int = 1
    accumulation: int = 8
    epochs: float = 4.0
    max_length: int = 4096
    validation: float = 0.05
    save_every: int = 200
    validate_every: int = 200
    log_every: int = 10
    dtype: str = "bfloat16"
    cpu: bool = False
    flash_attention: bool = True
    seed: int = 42


PRESETS: dict[str, SftSettings] = {
    "paper": SftSettings(),
    # A model 50 times smaller learns little at the paper's rate in the few steps that a CPU carries.
    "small": SftSettings(
        base="smollm2-135m-instruct",
        variant="compact",
        lora=LoraSettings(rank=16, alpha=32, dropout=0.0),
        learning_rate=1e-3,
        batch=1,  # nothing is padded, and answers of all lengths share a step
        accumulation=4,
        epochs=1.0,
        max_length=320,
        validation=0.03,
        save_every=20,
        validate_every=1000,
        log_every=4,
        cpu=True,
        flash_attention=False,
    ),
}


def tokens_of(tokenizer: Any, domain: Domain[Any], sample: Sample, variant: Variant) -> dict[str, list[int]]:
    """Token ids of question and answer, and labels that count the answer alone.

    Returns:
        ``input_ids`` and ``labels`` of equal length; the model's end token closes the answer.
    """
    prompt = prompt_text(tokenizer, coordinator_prompt(domain, sample.request(domain), variant))
    question = tokenizer(prompt, add_special_tokens=False).input_ids
    answer = [*tokenizer(sample.answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    return {"input_ids": question + answer, "labels": [-100] * len(question) + answer}


def build_rows(tokenizer: Any, samples: Sequence[Sample], settings: SftSettings) -> list[dict[str, list[int]]]:
    """Rows of the samples that are short enough.

    Raises:
        InvalidValue: none is.
    """
    domains = {name: open_domain(name) for name in {sample.domain for sample in samples}}
    rows = [tokens_of(tokenizer, domains[sample.domain], sample, settings.variant) for sample in samples]
    kept = [row for row in rows if len(row["input_ids"]) <= settings.max_length]
    if not kept:
        raise InvalidValue("max_length", settings.max_length, "long enough for at least one sample")
    return kept


def train(
    data: Path,
    out: Path,
    settings: SftSettings,
    *,
    minutes: float | None = None,
    limit: int | None = None,
    max_steps: int = -1,
    model: Any = None,
    tokenizer: Any = None,
) -> dict[str, Any]:
    """Train, or go on training, and write adapter, card and curve to ``out``.

    Args:
        data: file of :mod:`polyarm_core.training.sft_data`.
        out: folder; ``out/run`` has the checkpoints.
        settings: hyper-parameters.
        minutes: stop at a checkpoint after this time; the same call goes on from there.
        limit: use only the first samples.
        max_steps: of the optimizer, instead of the epochs.
        model, tokenizer: instead of those that ``settings.base`` names.

    Returns:
        The card: base, data, settings, steps, losses.

    Raises:
        MissingExtra, ModelUnavailable, InvalidValue: libraries, weights or data are not there.
    """
    require_training()
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    tokenizer = tokenizer or load_tokenizer(settings.base)
    model = model or load_base(settings.base, settings.dtype)
    rows = build_rows(tokenizer, read_samples(data)[:limit], settings)
    dataset = Dataset.from_list(rows)
    parts = dataset.train_test_split(test_size=max(1, round(settings.validation * len(rows))), seed=settings.seed)
    if settings.flash_attention:
        model.set_attn_implementation("flash_attention_2")
    run = out / "run"
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        peft_config=lora_config(settings.lora),
        callbacks=time_limit(minutes),
        args=SFTConfig(
            output_dir=str(run),
            learning_rate=settings.learning_rate,
            lr_scheduler_type=settings.scheduler,
            warmup_steps=settings.warmup,  # below 1: a share of all steps
            per_device_train_batch_size=settings.batch,
            per_device_eval_batch_size=settings.batch,
            gradient_accumulation_steps=settings.accumulation,
            num_train_epochs=settings.epochs,
            max_steps=max_steps,
            max_length=settings.max_length,
            packing=False,
            eval_strategy="steps",
            eval_steps=settings.validate_every,
            save_steps=settings.save_every,
            save_total_limit=2,
            logging_steps=settings.log_every,
            logging_first_step=True,
            gradient_checkpointing=not settings.cpu,
            bf16=not settings.cpu,
            use_cpu=settings.cpu,
            dataloader_pin_memory=not settings.cpu,
            seed=settings.seed,
            report_to="none",
            disable_tqdm=not sys.stderr.isatty(),
        ),
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(run))
    losses = trainer.evaluate()
    card = {
        "base": settings.base,
        "stage": "sft",
        "variant": settings.variant,
        "data": data.name,
        "samples": len(parts["train"]),
        "validation_samples": len(parts["test"]),
        "longest": max(len(row["input_ids"]) for row in rows),
        "steps": trainer.state.global_step,
        "planned_steps": trainer.state.max_steps,
        "validation_loss": losses["eval_loss"],
        "settings": asdict(settings),
    }
    save_adapter(trainer.model, out, card)
    write_curve(out, trainer.state.log_history)
    return card


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m polyarm_core.training.sft", description=__doc__)
    parser.add_argument("data", type=Path, help="file of polyarm_core.training.sft_data")
    parser.add_argument("out", type=Path, help="folder for adapter, card and curve")
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--base", help="model name, folder or hub id")
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--accumulation", type=int)
    parser.add_argument("--limit", type=int, help="use only the first samples")
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--minutes", type=float, help="stop at a checkpoint after this time")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    options = parser.parse_args(arguments)
    settings = override(PRESETS[options.preset], options)
    try:
        set_threads(options.threads)
        card = train(
            options.data,
            options.out,
            settings,
            minutes=options.minutes,
            limit=options.limit,
            max_steps=options.max_steps,
        )
    except PolyarmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(card, indent=2))
    return 0


def override(settings: Any, options: argparse.Namespace) -> Any:
    """Settings with the options of the command line that were given."""
    given = {name: value for name in vars(settings) if (value := getattr(options, name, None)) is not None}
    return replace(settings, **given)


def set_threads(threads: int) -> None:
    """Threads of torch in this process; waiting ones sleep, for other processes' sake."""
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("GOMP_SPINCOUNT", "0")
    import torch

    torch.set_num_threads(threads)


if __name__ == "__main__":
    sys.exit(main())
