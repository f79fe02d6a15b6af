"""Training of the staleness detector by one seeded command: ``python -m polyarm_core.psd.training`` (SyncPlan A.6).

It makes the data, trains every configuration (detector, size, loss) on every split, selects each threshold on
validation episodes, measures on test episodes, and writes weights with a model card. Run again, it continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyarm_core.bench.statistics import wilson_interval
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.card import model_card
from polyarm_core.psd.data import CLEAN, CONSTRUCTED, LABELS, Samples, generate, join, noise, split_by_episode
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
from polyarm_core.psd.tensors import Relevance, Shape

Loss = Literal["bce", "focal"]
LOSSES: tuple[Loss, ...] = ("bce", "focal")
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
WANTED_F1 = 0.84  # on validation episodes: a little above the paper's best, .838
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


def recall(predicted: NDArray[np.bool_], labels: NDArray[Any]) -> float:
    """Share of the positives that were predicted; 1 where there is none."""
    positives = labels == 1
    return float(predicted[positives].mean()) if positives.any() else 1.0


def best_threshold(scores: NDArray[np.float64], labels: NDArray[Any]) -> float:
    """The lowest threshold (highest recall) with the wanted F1; the one with the best F1 where none has it."""
    values = {threshold: f1(scores > threshold, labels) for threshold in THRESHOLDS}
    enough = [threshold for threshold, value in values.items() if value >= WANTED_F1]
    return min(enough) if enough else max(values, key=lambda threshold: values[threshold])


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
        ``false_alarms`` per clean frame whose plan is good; ``delay``: share of events that are noticed while they show
        in ``D`` and the mean delay in frames of those; ``intact``: share of events that leave the plan intact.
    """
    fired = scores > threshold
    at_once = samples.delay == 0
    happened = at_once & (samples.event != CLEAN)
    clean = at_once & (samples.event == CLEAN) & (samples.stale == 0)
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


Split = Literal["paper", "events_only", "without_O1", "without_O2", "without_O3"]
SPLITS: dict[Split, str] = {
    "paper": "O1, O2, O3 and constructed changes",
    "events_only": "O1, O2, O3",
    "without_O1": "O2, O3 and constructed changes",
    "without_O2": "O1, O3 and constructed changes",
    "without_O3": "O1, O2 and constructed changes",
}
"""What the training samples of a split have. All configurations are trained on the first, wide focal ones on all.

Test samples always have O1, O2, O3; the held-out ones O4, O5.
"""


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
        positive_weight: see ``train``.
        noise: constructed changes of features, for each clean frame.
    """

    layouts: tuple[str, ...] = ("coordination_ring", "counter_circuit_o_1order", "asymmetric_advantages")
    episodes: int = 2000
    held_out_episodes: int = 600
    seed: int = 0
    epochs: int = 24
    rate: float = 1e-3
    decay: float = 0.01
    positive_weight: float = 4.0
    noise: float = 0.3


@dataclass(frozen=True)
class Configuration:
    """A network to train. Its files are called ``detector_size_loss``."""

    detector: Detector
    size: Size
    loss: Loss

    @property
    def name(self) -> str:
        """As its files are called."""
        return f"{self.detector}_{self.size}_{self.loss}"


CONFIGURATIONS = tuple(
    Configuration(detector, size, loss) for detector in DETECTORS for size in SIZES for loss in LOSSES
)


@dataclass(frozen=True)
class Parts:
    """Samples and pooled inputs of one relevance rule.

    Attributes:
        training, validation, test: of the episodes with O1 to O3; the first has constructed changes as well.
        held_out: of the episodes with the held-out events.
        inputs: pooled inputs of the four, in this order.
        novel: which test samples the network sees nowhere in the training samples. The kitchen is deterministic, so
            different episodes have frames in common.
    """

    training: Samples
    validation: Samples
    test: Samples
    held_out: Samples
    inputs: tuple[Pooled, Pooled, Pooled, Pooled]
    novel: NDArray[np.bool_]


def make_parts(samples: Samples, held_out: Samples, relevance: Relevance, settings: Settings) -> Parts:
    """Split by episode (8:2, and of the 8 one for validation), add noise, pool."""
    training, validation, test = split_by_episode(samples, SHARES, settings.seed)
    clean = training.where(training.event == CLEAN)
    extra = noise(clean, int(settings.noise * len(clean)), np.random.default_rng([settings.seed, 1]))
    training = join([training, extra])
    validation, test, held_out = (part.where(part.event != CONSTRUCTED) for part in (validation, test, held_out))
    parts = (training, validation, test, held_out)
    known = set(_keys(training, relevance))
    novel = np.array([key not in known for key in _keys(test, relevance)], dtype=np.bool_)
    inputs = tuple(pool_samples(part, relevance) for part in parts)
    return Parts(*parts, inputs, novel)  # type: ignore[arg-type]


def _keys(samples: Samples, relevance: str) -> Iterator[bytes]:
    """Everything that the network sees of each sample."""
    for arrays in zip(*samples.inputs(relevance), strict=True):
        yield b"".join(array.tobytes() for array in arrays)


def training_rows(samples: Samples, split: Split, detector: Detector, events: Sequence[str]) -> NDArray[np.bool_]:
    """Which training samples a split has.

    The frames after an event, while it shows in ``D``, count as positive as well: noticed late is better than never.
    ``bilinear`` gets no constructed change that it cannot see.

    Raises:
        UnknownName: no such split.
    """
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    rows = np.ones(len(samples), dtype=np.bool_)
    if split == "events_only":
        rows &= samples.event != CONSTRUCTED
    if split.startswith("without_"):
        rows &= samples.event != events.index(split.removeprefix("without_"))
    if detector == "bilinear":
        rows &= ~((samples.event == CONSTRUCTED) & (samples.unmarked == 1))
    return rows


def train_configuration(
    configuration: Configuration, split: Split, parts: Parts, settings: Settings, events: Sequence[str]
) -> tuple[Weights, dict[str, Any]]:
    """Train one network on one split; its weights and figures."""
    rows = training_rows(parts.training, split, configuration.detector, events)
    inputs = Pooled(parts.inputs[0].marked[rows], parts.inputs[0].unmarked[rows])
    labels = (parts.training.event[rows] != CLEAN).astype(np.uint8)
    agents, entities, steps = parts.training.refers.shape[1:]
    shape = Shape(agents, entities, steps, parts.training.state.shape[2])
    weights = train(
        initial_weights(configuration.detector, configuration.size, shape, settings.seed),
        inputs,
        labels,
        loss=configuration.loss,
        epochs=settings.epochs,
        rate=settings.rate,
        decay=settings.decay,
        positive_weight=settings.positive_weight,
        seed=settings.seed,
    )
    return weights, evaluate(weights, split, parts, events) | {"samples": len(labels)}


def evaluate(weights: Weights, split: Split, parts: Parts, events: Sequence[str]) -> dict[str, Any]:
    """Threshold and figures of a trained network."""
    known = training_rows(parts.validation, split, weights.detector, events) & (parts.validation.delay == 0)
    scores = probabilities(weights, parts.inputs[1])[known]
    threshold = best_threshold(scores, parts.validation.labels("event")[known])
    figures: dict[str, Any] = {"trained_on": SPLITS[split], "threshold": threshold}
    for name, samples, pooled in (
        ("test", parts.test, parts.inputs[2]),
        ("held_out", parts.held_out, parts.inputs[3]),
    ):
        scores = probabilities(weights, pooled)
        figures[name] = measure(samples, scores, threshold, events)
        figures[name]["by_threshold"] = {
            str(value): _summary(measure(samples, scores, value, events)) for value in THRESHOLDS
        }
    scores = probabilities(weights, parts.inputs[2])[parts.novel]
    figures["test_novel"] = measure(parts.test.where(parts.novel), scores, threshold, events)
    return figures


def make_data(settings: Settings, folder: Path, say: Callable[[str], None]) -> tuple[Samples, Samples]:
    """Samples with the events of training, and those with the held-out events; kept in ``folder``.

    Raises:
        InvalidValue: the folder has the data of other settings.
    """
    from polyarm_core.coordinator.search import SearchCoordinator
    from polyarm_core.domains.overcooked.disturbances import HELD_OUT, NAMES, STANDARD
    from polyarm_core.domains.overcooked.domain import OvercookedDomain
    from polyarm_core.training.teacher import Teacher

    coordinators = (SearchCoordinator, Teacher)  # the longest and the shortest way to say the same
    folder.mkdir(parents=True, exist_ok=True)
    result = []
    for name, inject, episodes, seed in (
        ("training", STANDARD, settings.episodes, settings.seed),
        ("held_out", HELD_OUT, settings.held_out_episodes, settings.seed + 1),
    ):
        path, note = folder / f"{name}.npz", folder / f"{name}.json"
        made_with = {
            "layouts": list(settings.layouts),
            "episodes": episodes,
            "seed": seed,
            "inject": list(inject),
            "coordinators": [coordinator.__name__ for coordinator in coordinators],
        }
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
            coordinators,
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


def _summary(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures by which one would choose another threshold."""
    shares = {
        "recall": figures["event"]["recall"],
        "recall_oracle": figures["oracle"]["recall"],
        "noticed": figures["delay"]["noticed"],
        "false_alarms": figures["false_alarms"],
    }
    return {"f1": figures["event"]["f1"], **{name: rate["share"] for name, rate in shares.items()}}


def splits_of(configuration: Configuration) -> tuple[Split, ...]:
    """Every split for the wide networks with focal loss, the paper's choice; the first for the others."""
    return tuple(SPLITS) if (configuration.size, configuration.loss) == ("wide", "focal") else ("paper",)


def run(settings: Settings, out: Path, work: Path, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Make the data, train what is missing, write weights, figures and the model card.

    Args:
        settings: of everything.
        out: folder of ``NAME.npz``, ``NAME.json`` and ``README.md``.
        work: folder of the data.
        names: of the configurations to train.
        say: is told the progress.

    Raises:
        UnknownName: no such configuration.
        InvalidValue: ``work`` has the data of other settings.
    """
    from polyarm_core.domains.overcooked.disturbances import NAMES

    known = {configuration.name: configuration for configuration in CONFIGURATIONS}
    for name in names:
        if name not in known:
            raise UnknownName("configuration", name, known)
    wanted = json.loads(json.dumps(asdict(settings)))
    out.mkdir(parents=True, exist_ok=True)
    parts: dict[Relevance, Parts] = {}
    data: tuple[Samples, Samples] | None = None
    for configuration in (known[name] for name in names):
        note = out / f"{configuration.name}.json"
        record: dict[str, Any] = json.loads(note.read_text()) if note.exists() else {}
        if record.get("settings") != wanted:
            record = {"settings": wanted, "splits": {}}
        for split in splits_of(configuration):
            if split in record["splits"]:
                say(f"{configuration.name} {split}: trained already")
                continue
            data = data or make_data(settings, work, say)
            relevance = DETECTORS[configuration.detector]
            if relevance not in parts:
                parts = {relevance: make_parts(*data, relevance, settings)}
            weights, figures = train_configuration(configuration, split, parts[relevance], settings, NAMES)
            if split == "paper":
                weights.save(out / f"{configuration.name}.npz")
                record |= {"threshold": figures["threshold"], "parameters": weights.count}
                record["data"] = count_data(*data, NAMES)
            record["splits"][split] = figures
            note.write_text(json.dumps(record, indent=1) + "\n")
            test, unseen = figures["test"]["event"], figures["held_out"]["oracle"]
            say(
                f"{configuration.name} {split}: F1 {test['f1']:.3f}, recall {test['recall']['share']:.3f}, "
                f"recall on held-out events {unseen['recall']['share']:.3f}"
            )
    (out / "README.md").write_text(model_card(out))


def count_data(samples: Samples, held_out: Samples, events: Sequence[str]) -> dict[str, Any]:
    """Episodes, clean frames, constructed changes, and of each event how many, and how many break the plan."""
    result: dict[str, Any] = {}
    for name, part in (("training", samples), ("held_out", held_out)):
        at_once = part.where(part.delay == 0)
        result[name] = {
            "episodes": len(np.unique(part.episode)),
            "clean": int((at_once.event == CLEAN).sum()),
            "constructed": int((at_once.event == CONSTRUCTED).sum()),
            "events": {
                event: {
                    "count": int((at_once.event == number).sum()),
                    "stale": int(at_once.stale[at_once.event == number].sum()),
                    "unmarked": int(at_once.unmarked[at_once.event == number].sum()),
                }
                for number, event in enumerate(events)
                if (at_once.event == number).any()
            },
        }
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of ``python -m polyarm_core.psd.training``."""
    import argparse

    defaults = Settings()
    parser = argparse.ArgumentParser(prog="python -m polyarm_core.psd.training", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("models/psd_overcooked"), help="folder of the weights")
    parser.add_argument("--work", type=Path, default=Path("runs/psd"), help="folder of the data, which is kept")
    parser.add_argument(
        "--configuration",
        action="append",
        metavar="NAME",
        help=f"train only this one; may be repeated: {', '.join(c.name for c in CONFIGURATIONS)}",
    )
    parser.add_argument("--layouts", default=",".join(defaults.layouts), help="maps, separated by commas")
    for key in ("episodes", "held_out_episodes", "seed", "epochs"):
        parser.add_argument(f"--{key.replace('_', '-')}", type=int, default=getattr(defaults, key))
    for key in ("rate", "decay", "positive_weight", "noise"):
        parser.add_argument(f"--{key.replace('_', '-')}", type=float, default=getattr(defaults, key))
    given = vars(parser.parse_args(arguments))
    out, work, names = given.pop("out"), given.pop("work"), given.pop("configuration")
    settings = Settings(**{**given, "layouts": tuple(given["layouts"].split(","))})
    run(settings, out, work, names or [c.name for c in CONFIGURATIONS], lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
