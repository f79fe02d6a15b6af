"""Reinforcement learning of the coordinator's model with the executor in the loop (SyncPlan A.2, A.8, Table 10).

``python -m polyarm_core.training.grpo DATA.jsonl OUT --preset paper --base SFT_ADAPTER`` is the paper's recipe on GPUs
with vLLM; ``--preset small`` is for the default model on a CPU. The base is the model after SFT: an adapter's folder is
merged first. Training starts from an adapter that changes nothing. Responses answer to the states of the data and are
executed without disturbances. The same command goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyarm_core.coordinator.prompts import VARIANTS, Variant, coordinator_prompt
from polyarm_core.domains.encoding import decode_state
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue, PolyarmError
from polyarm_core.training.lora import (
    LoraSettings,
    base_for_card,
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
from polyarm_core.training.reward import OUTCOMES, PAPER, Reward, RewardWeights, reward
from polyarm_core.training.sft import override, set_threads
from polyarm_core.training.sft_data import Sample, open_domain, read_samples

PAPER_LORA = LoraSettings(dropout=0.0)


@dataclass(frozen=True)
class GrpoSettings:
    """Hyper-parameters; the defaults are the paper's (Table 10).

    Attributes:
        base: model after SFT: name, folder, hub id or adapter's folder.
        variant: of the prompt.
        lora: adapter.
        prompts, responses: of a batch of generations: so many prompts, so many responses to each.
        clip, kl, entropy: of the loss.
        learning_rate, scheduler, warmup, grad_norm: of the optimizer.
        batch, accumulation: responses of a pass, and passes of a step.
        epochs: passes over the prompts.
        temperature: of the responses.
        max_response: tokens.
        save_every, log_every: steps.
        dtype: of the frozen weights.
        cpu: train on the CPU even where there is a GPU.
        vllm: generate with a vLLM server (``trl vllm-serve --model BASE``).
        seed: of order and responses.
    """

    base: str = "Qwen/Qwen2.5-7B-Instruct"
    variant: Variant = "sft"
    lora: LoraSettings = PAPER_LORA
    prompts: int = 10
    responses: int = 10
    clip: float = 0.2
    kl: float = 0.02
    entropy: float = 0.001
    learning_rate: float = 5e-5
    scheduler: str = "cosine"
    warmup: float = 0.03
    grad_norm: float = 1.0
    batch: int = 2
    accumulation: int = 4
    epochs: float = 1.0
    temperature: float = 1.0
    max_response: int = 1024
    save_every: int = 50
    log_every: int = 1
    dtype: str = "bfloat16"
    cpu: bool = False
    vllm: bool = True
    seed: int = 42

    def __post_init__(self) -> None:
        if self.responses < 2:
            raise InvalidValue("responses", self.responses, "at least 2: a response is compared with its group")
        if self.prompts * self.responses % self.batch:
            raise InvalidValue("batch", self.batch, f"a divisor of {self.prompts * self.responses} responses")


PRESETS: dict[str, GrpoSettings] = {
    "paper": GrpoSettings(),
    "small": GrpoSettings(
        base="smollm2-135m-instruct",
        variant="compact",
        lora=LoraSettings(rank=8, alpha=16, dropout=0.0),
        prompts=1,
        responses=6,
        learning_rate=1e-4,
        batch=6,
        accumulation=1,
        max_response=224,
        save_every=5,
        cpu=True,
        vllm=False,
    ),
}


class RewardFunctions:
    """The reward, and the share of each outcome, as functions of the trainer; a batch is executed once.

    Args:
        domains: by name.
        weights: of the reward.
    """

    def __init__(self, domains: dict[str, Domain[Any]], weights: RewardWeights = PAPER) -> None:
        self.domains = domains
        self.weights = weights
        self._key: tuple[Any, ...] = ()
        self._rewards: list[Reward] = []

    def functions(self) -> list[Callable[..., list[float]]]:
        """First the reward, then one function per outcome that the trainer only has to log."""

        def value(**batch: Any) -> list[float]:
            return [result.value for result in self._results(batch)]

        value.__name__ = "reward"
        return [value, *map(self._share, OUTCOMES)]

    def _share(self, outcome: str) -> Callable[..., list[float]]:
        def share(**batch: Any) -> list[float]:
            return [float(result.outcome == outcome) for result in self._results(batch)]

        share.__name__ = outcome
        return share

    def _results(self, batch: dict[str, Any]) -> list[Reward]:
        key = (tuple(batch["completions"]), tuple(batch["state"]))
        if key != self._key:
            self._rewards = [
                self._reward(*row)
                for row in zip(
                    batch["completions"],
                    batch["completion_ids"],
                    batch["domain"],
                    batch["state"],
                    batch["frame"],
                    strict=True,
                )
            ]
            self._key = key
        return self._rewards

    def _reward(self, text: str, tokens: Sequence[int], domain_name: str, state: str, frame: int) -> Reward:
        domain = self.domains[domain_name]
        return reward(
            domain,
            decode_state(domain, json.loads(state)),
            text,
            len(tokens),
            frame=frame,
            weights=self.weights,
        )


def build_rows(tokenizer: Any, samples: Sequence[Sample], settings: GrpoSettings) -> list[dict[str, Any]]:
    """Prompt, domain, state (JSON) and frame of each sample."""
    domains = {name: open_domain(name) for name in {sample.domain for sample in samples}}
    return [
        {
            "prompt": prompt_text(
                tokenizer,
                coordinator_prompt(domains[sample.domain], sample.request(domains[sample.domain]), settings.variant),
            ),
            "domain": sample.domain,
            "state": json.dumps(sample.state),
            "frame": sample.frame,
        }
        for sample in samples
    ]


def train(
    data: Path,
    out: Path,
    settings: GrpoSettings,
    *,
    minutes: float | None = None,
    limit: int | None = None,
    max_steps: int = -1,
    model: Any = None,
    tokenizer: Any = None,
) -> dict[str, Any]:
    """Train, or go on training, and write adapter, card and curve to ``out``.

    Args:
        data: file of :mod:`polyarm_core.training.sft_data`; only its questions are used.
        out: folder; ``out/run`` has the checkpoints.
        settings: hyper-parameters.
        minutes: stop at a checkpoint after this time; the same call goes on from there.
        limit: use only the last so many samples.
        max_steps: of the optimizer, instead of the epochs.
        model, tokenizer: instead of those that ``settings.base`` names.

    Returns:
        The card: base, data, settings, steps, mean reward at both ends.

    Raises:
        MissingExtra, ModelUnavailable, InvalidValue: libraries, weights or data are not there.
    """
    require_training()
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = tokenizer or load_tokenizer(settings.base)
    model = model or load_base(settings.base, settings.dtype)
    samples = read_samples(data)
    rows = build_rows(tokenizer, samples[-limit:] if limit else samples, settings)
    rewards = RewardFunctions({name: open_domain(name) for name in {row["domain"] for row in rows}})
    run = out / "run"
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=rewards.functions(),
        train_dataset=Dataset.from_list(rows),
        peft_config=lora_config(settings.lora),
        callbacks=time_limit(minutes),
        args=GRPOConfig(
            output_dir=str(run),
            reward_weights=[1.0] + [0.0] * len(OUTCOMES),
            num_generations=settings.responses,
            generation_batch_size=settings.prompts * settings.responses,
            epsilon=settings.clip,
            beta=settings.kl,
            entropy_coef=settings.entropy,
            loss_type="grpo",
            temperature=settings.temperature,
            max_completion_length=settings.max_response,
            use_vllm=settings.vllm,
            learning_rate=settings.learning_rate,
            lr_scheduler_type=settings.scheduler,
            warmup_steps=settings.warmup,  # below 1: a share of all steps
            max_grad_norm=settings.grad_norm,
            per_device_train_batch_size=settings.batch,
            gradient_accumulation_steps=settings.accumulation,
            num_train_epochs=settings.epochs,
            max_steps=max_steps,
            save_steps=settings.save_every,
            save_total_limit=2,
            logging_steps=settings.log_every,
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
    log = trainer.state.log_history
    means = [row["reward"] for row in log if "reward" in row]
    edge = max(1, len(means) // 5)
    card = {
        "base": base_for_card(settings.base, out),
        "stage": "grpo",
        "variant": settings.variant,
        "data": data.name,
        "samples": len(rows),
        "steps": trainer.state.global_step,
        "planned_steps": trainer.state.max_steps,
        "reward_first_fifth": sum(means[:edge]) / edge if means else None,
        "reward_last_fifth": sum(means[-edge:]) / edge if means else None,
        "settings": asdict(settings),
    }
    save_adapter(trainer.model, out, card)
    write_curve(out, log)
    return card


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m polyarm_core.training.grpo", description=__doc__)
    parser.add_argument("data", type=Path, help="file of polyarm_core.training.sft_data")
    parser.add_argument("out", type=Path, help="folder for adapter, card and curve")
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--base", help="model after SFT: adapter's folder, model name, folder or hub id")
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--responses", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--limit", type=int, help="use only the last samples")
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--minutes", type=float, help="stop at a checkpoint after this time")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    options = parser.parse_args(arguments)
    try:
        settings = override(PRESETS[options.preset], options)
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


if __name__ == "__main__":
    sys.exit(main())
