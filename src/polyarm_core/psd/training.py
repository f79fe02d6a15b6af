"""Training of the staleness detector by one seeded command: ``python -m polyarm_core.psd.training`` (SyncPlan A.6).

It makes the data, trains every configuration (detector, size, loss) on every split, selects each threshold on
validation episodes, measures on test episodes, and writes weights with a model card. Run again, it continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from polyarm_core.bench.statistics import wilson_interval
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.data import CLEAN, CONSTRUCTED, LABELS, Label, Samples, generate, join, split_by_episode
from polyarm_core.psd.network import (
    DETECTORS,
    SIZES,
    Detector,
    Pooled,
    Size,
    Weights,
    initial_weights,
    logits,
    pool,
    torch_tensors,
)
from polyarm_core.psd.tensors import Shape

Loss = Literal["bce", "focal"]
LOSSES: tuple[Loss, ...] = ("bce", "focal")
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
FOCUS = 2.0  # gamma of the focal loss (Lin et al. 2017)
BATCH = 256
POOL_BATCH = 1024  # samples pooled at once, for memory
SHARES = (0.7, 0.1, 0.2)  # of the episodes: training and validation are the 8, test the 2 of the paper's 8:2


def pool_samples(samples: Samples, relevance: str) -> Pooled:
    """Pooled inputs of many samples; they hold no weights, so once is enough."""
    firsts = range(0, len(samples), POOL_BATCH)
    parts = [pool(samples.where(slice(first, first + POOL_BATCH)).inputs(relevance)) for first in firsts]
    return Pooled(np.concatenate([part.marked for part in parts]), np.concatenate([part.unmarked for part in parts]))


def train(
    weights: Weights,
    inputs: Pooled,
    labels: NDArray[np.uint8],
    *,
    loss: Loss,
    epochs: int,
    rate: float,
    decay: float,
    positive_weight: float,
    seed: int,
    progress: Callable[[int, float], None] = lambda epoch, value: None,
) -> Weights:
    """Trained weights; the same on one machine for the same arguments.

    Adam with decoupled weight decay and a cosine schedule, on one thread.

    Args:
        weights: to begin with.
        inputs: of the samples.
        labels: 0 or 1, shape (n,).
        loss: binary cross-entropy, or focal loss with ``gamma = 2``.
        epochs: passes over the samples.
        rate: initial learning rate.
        decay: of the weights.
        positive_weight: of a positive sample; a negative one weighs 1. Above 1 for a high recall.
        seed: of the order of the samples.
        progress: is told each epoch and its mean loss.

    Raises:
        UnknownName: no such loss.
        InvalidValue: no samples.
    """
    import torch

    if loss not in LOSSES:
        raise UnknownName("loss", loss, LOSSES)
    if len(labels) == 0:
        raise InvalidValue("labels", labels, "at least one sample")
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    tensors = torch_tensors(weights)
    marked, unmarked = torch.from_numpy(inputs.marked), torch.from_numpy(inputs.unmarked)
    targets = torch.from_numpy(labels.astype(np.float32))
    optimizer = torch.optim.AdamW(tensors.values(), lr=rate, weight_decay=decay)
    batches = -(-len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    for epoch in range(epochs):
        total = 0.0
        for rows in np.array_split(rng.permutation(len(labels)), batches):
            index = torch.from_numpy(rows)
            logit = logits(tensors, marked[index], unmarked[index])
            target = targets[index]
            terms = torch.nn.functional.binary_cross_entropy_with_logits(logit, target, reduction="none")
            if loss == "focal":
                terms = terms * (1 - torch.exp(-terms)) ** FOCUS  # exp(-terms) = probability of the true class
            value = (terms * (1 + (positive_weight - 1) * target)).mean()
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += value.item() * len(rows)
        progress(epoch, total / len(labels))
    trained = {name: tensor.detach().numpy().astype(np.float16).astype(np.float32) for name, tensor in tensors.items()}
    return Weights(weights.detector, weights.shape, trained)  # in the precision in which they are stored


def probabilities(weights: Weights, inputs: Pooled) -> NDArray[np.float64]:
    """``P_replan`` of many samples, shape (n,)."""
    values = [
        logits(weights.tensors, inputs.marked[first : first + POOL_BATCH], inputs.unmarked[first : first + POOL_BATCH])
        for first in range(0, len(inputs.unmarked), POOL_BATCH)
    ]
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(np.concatenate([*values, []]), -60.0, 60.0))))


@dataclass(frozen=True)
class Rate:
    """A share with its counts and its 95 % Wilson interval (0 to 1 where there is no trial)."""

    hits: int
    trials: int
    share: float | None
    low: float
    high: float

    @staticmethod
    def of(hits: int, trials: int) -> Rate:
        """The share of ``hits`` in ``trials``."""
        if trials == 0:
            return Rate(0, 0, None, 0.0, 1.0)
        low, high = wilson_interval(hits, trials)
        return Rate(int(hits), int(trials), hits / trials, low, high)


def f1(predicted: NDArray[np.bool_], labels: NDArray[Any]) -> float:
    """F1 score; 0 without a true positive."""
    hits = int((predicted & (labels == 1)).sum())
    return 2.0 * hits / (int(predicted.sum()) + int((labels == 1).sum())) if hits else 0.0


def best_threshold(scores: NDArray[np.float64], labels: NDArray[Any]) -> float:
    """The threshold of ``THRESHOLDS`` with the highest F1; of equals the lowest."""
    return max(THRESHOLDS, key=lambda threshold: (f1(scores > threshold, labels), -threshold))


def measure(samples: Samples, scores: NDArray[np.float64], threshold: float, events: Sequence[str]) -> dict[str, Any]:
    """Figures of a detector on samples, by both label definitions; every rate with counts and interval.

    Args:
        samples: one row per score.
        scores: ``P_replan``.
        threshold: above it the detector fires.
        events: names of the events in the order of their numbers.

    Returns:
        For each label ``f1``, ``accuracy``, ``precision``, ``recall`` over events' and clean frames;
        ``recall_by_event``; ``blind_spot``: recall on events none of whose entities ``refers`` marks;
        ``false_alarms`` per clean frame; ``delay``: share of events that are noticed while they show in ``D`` and the
        mean delay in frames of those; ``intact``: share of events that leave the plan intact.
    """
    fired = scores > threshold
    at_once = samples.delay == 0
    happened = at_once & (samples.event != CLEAN)
    clean = at_once & (samples.event == CLEAN)
    result: dict[str, Any] = {"threshold": threshold}
    for label in LABELS:
        labels = samples.labels(label)[at_once] == 1
        predicted = fired[at_once]
        wanted = happened & (samples.labels(label) == 1)
        result[label] = {
            "f1": f1(predicted, labels),
            "accuracy": asdict(Rate.of(int((predicted == labels).sum()), len(labels))),
            "precision": asdict(Rate.of(int((predicted & labels).sum()), int(predicted.sum()))),
            "recall": asdict(Rate.of(int((predicted & labels).sum()), int(labels.sum()))),
            "recall_by_event": {
                name: asdict(_share(fired, wanted & (samples.event == number))) for number, name in enumerate(events)
            },
            "blind_spot": asdict(_share(fired, wanted & (samples.unmarked == 1))),
        }
    result["false_alarms"] = asdict(_share(fired, clean))
    result["intact"] = asdict(_share(samples.stale == 0, happened))
    delays = _delays(samples, fired)
    noticed = [delay for delay in delays if delay is not None]
    result["delay"] = {
        "noticed": asdict(Rate.of(len(noticed), len(delays))),
        "frames": float(np.mean(noticed)) if noticed else None,
    }
    return result


def _share(fired: NDArray[np.bool_], rows: NDArray[np.bool_]) -> Rate:
    return Rate.of(int((fired & rows).sum()), int(rows.sum()))


def _delays(samples: Samples, fired: NDArray[np.bool_]) -> list[int | None]:
    """For each event that broke the plan, frames until the detector fires, None if it misses it while it shows."""
    result: list[int | None] = []
    for row in np.flatnonzero((samples.event != CLEAN) & (samples.delay == 0) & (samples.stale == 1)):
        end = row + 1  # the frames after an event follow it
        while end < len(samples) and samples.delay[end] == end - row and samples.episode[end] == samples.episode[row]:
            end += 1
        seen = np.flatnonzero(fired[row:end])
        result.append(int(seen[0]) if len(seen) else None)
    return result


# --- the command ---


@dataclass(frozen=True)
class Settings:
    """Everything that the result depends on.

    Attributes:
        layouts: maps of the episodes.
        episodes: for each map, with each of the events O1 to O3 once.
        held_out_episodes: for each map, with each of the held-out events once; only for tests.
        seed: of data, split, initial weights and order of samples.
        epochs: passes over the training samples.
        rate: initial learning rate.
        decay: of the weights.
        label: that the network is trained on and whose F1 on validation episodes selects the threshold.
        constructed: whether constructed changes are among the training samples.
    """

    layouts: tuple[str, ...] = ("coordination_ring", "counter_circuit_o_1order", "asymmetric_advantages")
    episodes: int = 1500
    held_out_episodes: int = 600
    seed: int = 0
    epochs: int = 20
    rate: float = 3e-3
    decay: float = 0.01
    label: Label = "event"
    constructed: bool = True


def make_data(settings: Settings, folder: Path, say: Callable[[str], None]) -> tuple[Samples, Samples]:
    """Samples with the events of training, and those with the held-out events; kept in ``folder``.

    Raises:
        InvalidValue: the folder has the data of other settings.
    """
    from polyarm_core.coordinator.search import SearchCoordinator
    from polyarm_core.domains.overcooked.disturbances import HELD_OUT, NAMES, STANDARD
    from polyarm_core.domains.overcooked.domain import OvercookedDomain

    folder.mkdir(parents=True, exist_ok=True)
    result = []
    for name, inject, episodes, seed in (
        ("training", STANDARD, settings.episodes, settings.seed),
        ("held_out", HELD_OUT, settings.held_out_episodes, settings.seed + 1),
    ):
        path, note = folder / f"{name}.npz", folder / f"{name}.json"
        made_with = {"layouts": list(settings.layouts), "episodes": episodes, "seed": seed, "inject": list(inject)}
        if note.exists():
            if json.loads(note.read_text()) != made_with:
                raise InvalidValue("work", str(folder), "an empty folder, or the data of the same settings")
            say(f"{name}: data is there")
            result.append(Samples.load(path))
            continue

        def tell(done: int, total: int, name: str = name) -> None:
            if done % max(1, total // 20) == 0:
                say(f"{name}: {done} of {total} episodes")

        samples = generate(
            [OvercookedDomain(layout) for layout in settings.layouts],
            SearchCoordinator,
            events=NAMES,
            inject=inject,
            episodes=episodes,
            seed=seed,
            progress=tell,
        )
        samples.save(path)
        note.write_text(json.dumps(made_with))
        result.append(samples)
    return result[0], result[1]
