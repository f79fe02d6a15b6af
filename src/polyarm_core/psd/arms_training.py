"""Training of the arms' staleness detectors by one seeded command: ``python -m polyarm_core.psd.arms_training``.

One network serves every task: its weights know neither entities nor scenarios, and what differs between tasks is in the
incidence. It learns the oracle's verdict (in the kitchen the paper's label is used, the frame of an event): of the
arms' events most leave the plan intact, and a call of the coordinator for each of them would be for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.arms import EVENTS, SHAPE, generate_slots
from polyarm_core.psd.arms_card import arms_card
from polyarm_core.psd.card import percent
from polyarm_core.psd.data import CLEAN, Samples, join, split_by_episode
from polyarm_core.psd.network import DETECTORS, Detector, Pooled, Weights, initial_weights
from polyarm_core.psd.training import SHARES, Loss, f1, measure, pool_samples, probabilities, train

SCENARIOS = ("sort", "sort_crowded", "sort_relay", "cabinet", "rope", "grocery", "sandwich", "sweep")
HELD_OUT = ("sort_crowded", "sandwich")
"""Unknown to a second network, which is trained on the others only to see what it makes of them."""
LOSSES: tuple[Loss, ...] = ("focal", "bce")
THRESHOLDS = tuple(round(0.05 * k, 2) for k in range(1, 20))


@dataclass(frozen=True)
class Settings:
    """Everything that the result depends on.

    Attributes:
        scenarios: of the episodes.
        held_out: of these, unknown to the second network.
        episodes: of each scenario.
        seed: of data, split, initial weights and order of samples.
        epochs: passes over the training samples.
        rate: initial learning rate.
        decay: of the weights.
        positive_weight: of a slot whose plan is stale; any other weighs 1.
    """

    scenarios: tuple[str, ...] = SCENARIOS
    held_out: tuple[str, ...] = HELD_OUT
    episodes: int = 350
    seed: int = 0
    epochs: int = 24
    rate: float = 1e-3
    decay: float = 0.01
    positive_weight: float = 2.0


@dataclass(frozen=True)
class Part:
    """Samples and what the network sees of them."""

    samples: Samples
    inputs: Pooled

    def where(self, rows: NDArray[np.bool_]) -> Part:
        """Those of a mask."""
        return Part(self.samples.where(rows), Pooled(self.inputs.marked[rows], self.inputs.unmarked[rows]))


def make_data(settings: Settings, folder: Path, say: Callable[[str], None]) -> tuple[Samples, Samples]:
    """The samples, see `generate_slots`; kept in ``folder``.

    Raises:
        InvalidValue: the folder has the data of other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, note = (folder / "slots.npz", folder / "within.npz"), folder / "slots.json"
    made_with = {"scenarios": list(settings.scenarios), "episodes": settings.episodes, "seed": settings.seed}
    if note.exists():
        if json.loads(note.read_text()) != made_with:
            raise InvalidValue("work", str(folder), "an empty folder, or the data of the same settings")
        say("data is there")
        return Samples.load(paths[0]), Samples.load(paths[1])

    def tell(done: int, total: int) -> None:
        if done % max(1, total // 20) == 0:
            say(f"{done} of {total} episodes")

    slots, within = generate_slots(settings.scenarios, settings.episodes, settings.seed, tell)
    slots.save(paths[0])
    within.save(paths[1])
    note.write_text(json.dumps(made_with))
    return slots, within


@dataclass(frozen=True)
class Parts:
    """Parts by episode.

    Attributes:
        training: slots as they opened, and those in which something happened within.
        validation, validation_within: the one and the other, of the validation episodes.
        test, test_within: of the test episodes.
    """

    training: Part
    validation: Part
    validation_within: Part
    test: Part
    test_within: Part

    def where(self, among: NDArray[Any]) -> Parts:
        """Only those of some scenarios, by number."""
        parts = (getattr(self, part.name) for part in fields(self))
        return Parts(*(part.where(np.isin(part.samples.domain, among)) for part in parts))


def split(slots: Samples, within: Samples, relevance: str, seed: int) -> Parts:
    """The samples by episode, as one relevance rule shows them to the network."""
    made: list[Part] = []
    for number, samples in enumerate(split_by_episode(slots, SHARES, seed)):
        inside = within.where(np.isin(within.episode, samples.episode))
        tables = [join([samples, inside])] if number == 0 else [samples, inside]
        made += [_part(table, relevance) for table in tables]
    return Parts(*made)


def _part(samples: Samples, relevance: str) -> Part:
    return Part(samples, pool_samples(samples, relevance))


def best_threshold(parts: Sequence[tuple[NDArray[np.float64], NDArray[Any]]]) -> float:
    """The threshold with the best mean of F1 over parts, each (scores, labels)."""
    return max(THRESHOLDS, key=lambda threshold: sum(f1(scores > threshold, labels) for scores, labels in parts))


def fit(detector: Detector, loss: Loss, parts: Parts, settings: Settings) -> tuple[Weights, float]:
    """A trained network and its threshold, chosen on validation episodes."""
    weights = train(
        initial_weights(detector, "wide", SHAPE, settings.seed),
        parts.training.inputs,
        parts.training.samples.stale,
        loss=loss,
        epochs=settings.epochs,
        rate=settings.rate,
        decay=settings.decay,
        positive_weight=settings.positive_weight,
        seed=settings.seed,
    )
    known = (parts.validation, parts.validation_within)
    return weights, best_threshold([(probabilities(weights, p.inputs), p.samples.stale) for p in known])


def figures(weights: Weights, threshold: float, parts: Parts, settings: Settings) -> dict[str, Any]:
    """What a network does on episodes that it has not seen; see `training.measure`.

    ``slots``: of every slot as it opened: ``f1``, ``precision``, ``recall`` by the oracle's label, and
    ``false_alarms`` in slots whose plan is good. ``within``: the same, and more, of slots in which something happened.
    """
    test, inside = parts.test.samples, parts.test_within.samples
    scores, scores_inside = probabilities(weights, parts.test.inputs), probabilities(weights, parts.test_within.inputs)
    result = measure(test, scores, threshold, EVENTS)
    result["slots"] = _slots(test, scores > threshold)
    result["within"] = measure(inside, scores_inside, threshold, EVENTS) | _slots(inside, scores_inside > threshold)
    result["by_threshold"] = {
        str(value): _slots(test, scores > value)
        | {"blind_spot": _blind_spot(test, scores > value), "within": _slots(inside, scores_inside > value)}
        for value in THRESHOLDS[1::2]
    }
    result["by_scenario"] = {}
    for number, name in enumerate(settings.scenarios):
        rows, rows_inside = test.domain == number, inside.domain == number
        if rows.any():
            result["by_scenario"][name] = _slots(test.where(rows), scores[rows] > threshold)
            found = _slots(inside.where(rows_inside), scores_inside[rows_inside] > threshold)
            result["by_scenario"][name]["within"] = found
    return result


def _slots(samples: Samples, fired: NDArray[np.bool_]) -> dict[str, Any]:
    stale = samples.stale == 1
    return {
        "f1": f1(fired, samples.stale),
        "precision": _rate(fired & stale, fired),
        "recall": _rate(fired & stale, stale),
        "false_alarms": _rate(fired & ~stale, ~stale),
    }


def _blind_spot(samples: Samples, fired: NDArray[np.bool_]) -> dict[str, Any]:
    rows = (samples.event != CLEAN) & (samples.delay == 0) & (samples.stale == 1) & (samples.unmarked == 1)
    return _rate(fired & rows, rows)


def _rate(hits: NDArray[np.bool_], trials: NDArray[np.bool_]) -> dict[str, Any]:
    from polyarm_core.psd.training import Rate

    return asdict(Rate.of(int(hits.sum()), int(trials.sum())))


def count_data(slots: Samples, within: Samples, settings: Settings) -> dict[str, Any]:
    """Episodes and slots, and of each event how many, how many broke the plan, how many no step named."""
    result: dict[str, Any] = {
        "episodes": len(np.unique(slots.episode)),
        "slots": len(slots),
        "stale": int(slots.stale.sum()),
        "within": len(within),
        "within_stale": int(within.stale.sum()),
        "slots_by_scenario": {
            name: int((slots.domain == number).sum()) for number, name in enumerate(settings.scenarios)
        },
    }
    for key, samples in (("events", slots), ("events_within", within)):
        first = samples.where((samples.delay == 0) & (samples.event != CLEAN))
        result[key] = {
            event: {
                "count": int((first.event == number).sum()),
                "stale": int(first.stale[first.event == number].sum()),
                "unmarked": int(first.unmarked[first.event == number].sum()),
                "unmarked_stale": int((first.unmarked & first.stale)[first.event == number].sum()),
            }
            for number, event in enumerate(EVENTS)
        }
    return result


def run(settings: Settings, out: Path, work: Path, losses: Sequence[Loss], say: Callable[[str], None]) -> None:
    """Make the data, train what is missing, write weights, figures and the model card.

    Args:
        settings: of everything.
        out: folder of ``DETECTOR_wide_LOSS.npz``, ``.json`` and ``README.md``.
        work: folder of the data.
        losses: with which the wide networks of both detectors are trained.
        say: is told the progress.

    Raises:
        UnknownName: a held-out scenario is not among the scenarios.
        InvalidValue: ``work`` has the data of other settings.
    """
    for name in settings.held_out:
        if name not in settings.scenarios:
            raise UnknownName("held-out scenario", name, settings.scenarios)
    wanted = json.loads(json.dumps(asdict(settings)))
    out.mkdir(parents=True, exist_ok=True)
    slots, within = make_data(settings, work, say)
    numbers = np.arange(len(settings.scenarios))
    unknown = np.array([settings.scenarios.index(name) for name in settings.held_out], dtype=int)
    for detector, relevance in DETECTORS.items():
        parts: Parts | None = None
        for loss in losses:
            name = f"{detector}_wide_{loss}"
            note = out / f"{name}.json"
            if note.exists() and json.loads(note.read_text()).get("settings") == wanted:
                say(f"{name}: trained already")
                continue
            parts = parts or split(slots, within, relevance, settings.seed)
            weights, threshold = fit(detector, loss, parts, settings)
            record: dict[str, Any] = {"settings": wanted, "threshold": threshold, "parameters": weights.count}
            record |= {"data": count_data(slots, within, settings)}
            record |= {"test": figures(weights, threshold, parts, settings)}
            if len(unknown) and loss == losses[0]:
                other, its = fit(detector, loss, parts.where(np.setdiff1d(numbers, unknown)), settings)
                unseen = parts.where(unknown)
                record["held_out"] = {
                    "trained_without": list(settings.held_out),
                    "threshold": its,
                    "test": figures(other, its, unseen, settings),
                    "with_them": figures(weights, threshold, unseen, settings),
                }
            weights.save(out / f"{name}.npz")
            note.write_text(json.dumps(record, indent=1) + "\n")
            found = record["test"]["slots"]
            say(
                f"{name}: threshold {threshold}, F1 {found['f1']:.3f}, recall {percent(found['recall'])}, "
                f"false alarms {percent(found['false_alarms'])}"
            )
    (out / "README.md").write_text(arms_card(out))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of ``python -m polyarm_core.psd.arms_training``."""
    import argparse

    defaults = Settings()
    parser = argparse.ArgumentParser(prog="python -m polyarm_core.psd.arms_training", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("models/psd_arms"), help="folder of the weights")
    parser.add_argument("--work", type=Path, default=Path("runs/psd_arms"), help="folder of the data, which is kept")
    parser.add_argument("--losses", default="focal", help=f"separated by commas: {', '.join(LOSSES)}")
    for key in ("scenarios", "held_out"):
        parser.add_argument(f"--{key.replace('_', '-')}", default=",".join(getattr(defaults, key)))
    for key in ("episodes", "seed", "epochs"):
        parser.add_argument(f"--{key}", type=int, default=getattr(defaults, key))
    for key in ("rate", "decay", "positive_weight"):
        parser.add_argument(f"--{key.replace('_', '-')}", type=float, default=getattr(defaults, key))
    given = vars(parser.parse_args(arguments))
    out, work, losses = given.pop("out"), given.pop("work"), tuple(given.pop("losses").split(","))
    for loss in losses:
        if loss not in LOSSES:
            raise UnknownName("loss", loss, LOSSES)
    for key in ("scenarios", "held_out"):
        given[key] = tuple(name for name in given[key].split(",") if name)
    run(Settings(**given), out, work, losses, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
