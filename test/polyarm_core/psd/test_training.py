import json
from dataclasses import replace

import numpy as np
import pytest
from psd_samples import EVENTS, SHAPE, toy_samples

from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.card import model_card
from polyarm_core.psd.data import CLEAN, CONSTRUCTED
from polyarm_core.psd.network import DETECTORS, Weights, initial_weights
from polyarm_core.psd.training import (
    CONFIGURATIONS,
    THRESHOLDS,
    Settings,
    best_threshold,
    f1,
    main,
    make_parts,
    measure,
    pool_samples,
    probabilities,
    train,
    train_configuration,
    training_rows,
)

OPTIONS = {"loss": "bce", "epochs": 4, "rate": 3e-3, "decay": 0.01, "positive_weight": 1.0, "seed": 0}


@pytest.fixture(scope="module")
def samples():
    return toy_samples(0, episodes=60)


@pytest.mark.parametrize("loss", ["bce", "focal"])
def test_training_is_deterministic_and_learns(samples, loss):
    jumps = samples.where((samples.event == CLEAN) | ((samples.event == 2) & (samples.delay == 0)))
    inputs, labels = pool_samples(jumps, "depends"), jumps.labels("event")
    start = initial_weights("closed", "small", SHAPE, 0)
    history = []
    options = OPTIONS | {"loss": loss, "epochs": 12}
    trained = train(start, inputs, labels, **options, progress=lambda epoch, value: history.append(value))
    again = train(start, inputs, labels, **options)
    for name, tensor in trained.tensors.items():
        assert np.array_equal(tensor, again.tensors[name])
        assert np.array_equal(tensor, tensor.astype(np.float16).astype(np.float32))  # as it will be stored
    assert history[-1] < history[0] / 2
    assert f1(probabilities(trained, inputs) > 0.5, labels) > f1(probabilities(start, inputs) > 0.5, labels)


def test_focal_loss_is_the_definition(samples):
    """After one epoch without learning rate the reported loss is that of the initial weights."""
    inputs, labels = pool_samples(samples, "depends"), samples.labels("event")
    start = initial_weights("closed", "small", SHAPE, 0)
    p = probabilities(start, inputs)
    of_truth = np.where(labels == 1, p, 1 - p)
    for loss, expected in (("bce", -np.log(of_truth)), ("focal", -((1 - of_truth) ** 2) * np.log(of_truth))):
        history = []
        options = OPTIONS | {"loss": loss, "epochs": 1, "rate": 0.0}
        train(start, inputs, labels, **options, progress=lambda _, value, h=history: h.append(value))
        assert history == pytest.approx([expected.mean()], rel=1e-3)


def test_wrong_arguments_of_training(samples):
    start = initial_weights("closed", "small", SHAPE, 0)
    inputs = pool_samples(samples.where(slice(4)), "depends")
    labels = samples.labels("event")[:4]
    with pytest.raises(UnknownName, match="bce, focal"):
        train(start, inputs, labels, **(OPTIONS | {"loss": "hinge"}))
    with pytest.raises(InvalidValue, match="at least one sample"):
        train(start, inputs, labels[:0], **OPTIONS)


def test_threshold_is_the_lowest_with_the_wanted_f1_or_has_the_best():
    labels = np.array([1] * 100 + [0] * 100)
    scores = np.concatenate([np.full(100, 0.8), np.full(100, 0.4)])
    assert best_threshold(scores, labels) == 0.5  # at 0.3 everything fires: F1 .67; 0.7 is as good, but higher
    scores[100:] = np.where(np.arange(100) < 30, 0.6, 0.1)  # 30 false alarms at 0.5: F1 .87 is enough
    assert best_threshold(scores, labels) == 0.3
    scores[:60] = 0.0  # F1 at most .57: the best of all
    assert best_threshold(scores, labels) == 0.7


def test_measure_counts_what_it_says(samples):
    real = samples.where(samples.event != CONSTRUCTED)
    everything = measure(real, np.ones(len(real)), 0.5, EVENTS)
    happened = (real.event >= 0) & (real.delay == 0)
    clean = int((real.event == CLEAN).sum())
    assert everything["event"]["recall"]["hits"] == everything["event"]["recall"]["trials"] == happened.sum()
    assert everything["oracle"]["recall"]["trials"] == (happened & (real.stale == 1)).sum()
    assert everything["event"]["precision"]["share"] == pytest.approx(happened.sum() / (happened.sum() + clean))
    assert everything["false_alarms"]["hits"] == everything["false_alarms"]["trials"] == clean
    assert everything["delay"]["frames"] == 0
    assert everything["intact"]["share"] == pytest.approx((real.stale[happened] == 0).mean())
    by_event = everything["event"]["recall_by_event"]
    assert sum(by_event[name]["trials"] for name in EVENTS) == happened.sum()
    assert everything["event"]["blind_spot"]["trials"] == real.unmarked[happened].sum()

    late = np.where(real.delay == 1, 1.0, 0.0)  # fires one frame after each event
    figures = measure(real, late, 0.5, EVENTS)
    assert figures["event"]["f1"] == 0 and figures["event"]["recall"]["hits"] == 0
    assert figures["delay"]["frames"] == 1
    followed = sum(
        real.stale[row] == 1 and happened[row] and row + 1 < len(real) and real.delay[row + 1] == 1
        for row in range(len(real))
    )
    assert figures["delay"]["noticed"]["hits"] == followed


def test_splits_leave_out_what_they_say(samples):
    paper = training_rows(samples, "paper", "closed", ("O1", "O2", "O3"))
    assert paper.all()
    for number, name in enumerate(("O1", "O2", "O3")):
        rows = training_rows(samples, f"without_{name}", "closed", ("O1", "O2", "O3"))
        assert np.array_equal(rows, samples.event != number)
    assert not (samples.event[training_rows(samples, "events_only", "closed", EVENTS)] == CONSTRUCTED).any()
    unseen = (samples.event == CONSTRUCTED) & (samples.unmarked == 1)
    assert np.array_equal(training_rows(samples, "paper", "bilinear", EVENTS), ~unseen)
    with pytest.raises(UnknownName, match="paper, without_O1"):
        training_rows(samples, "all", "closed", EVENTS)


def test_a_configuration_from_samples_to_card(samples, tmp_path):
    settings = Settings(layouts=("toy",), epochs=2)
    names = tuple(f"O{i}" for i in range(1, 6))
    configuration = next(c for c in CONFIGURATIONS if c.name == "closed_small_focal")
    held_out = replace(samples, event=np.where(samples.event > 0, samples.event + 2, samples.event).astype(np.int32))
    parts = make_parts(samples, held_out, DETECTORS["closed"], settings)
    assert not set(parts.training.episode) & set(parts.test.episode)
    for row, novel in enumerate(parts.novel):
        same = (parts.training.depends == parts.test.depends[row]).all(axis=(1, 2, 3))
        for ours, theirs in (
            (parts.training.state, parts.test.state),
            (parts.training.difference, parts.test.difference),
        ):
            same &= (ours == theirs[row]).all(axis=(1, 2))
        assert novel == (not same.any())
    assert parts.novel.any() and not parts.novel.all()
    weights, figures = train_configuration(configuration, "paper", parts, settings, names)
    assert figures["threshold"] in THRESHOLDS
    weights.save(tmp_path / "closed_small_focal.npz")
    assert Weights.load(tmp_path / "closed_small_focal.npz").count == weights.count
    event = {"count": 3, "stale": 1, "unmarked": 2}
    part = {"episodes": 1, "clean": 2, "constructed": 3, "events": {"O1": event}}
    record = {"settings": settings.__dict__, "splits": {"paper": figures}, "parameters": weights.count}
    record |= {"threshold": figures["threshold"], "data": {"training": part, "held_out": part}}
    (tmp_path / "closed_small_focal.json").write_text(json.dumps(record))
    card = model_card(tmp_path)
    test = figures["test"]["event"]
    assert f"| closed_small_focal | {figures['threshold']} | {test['f1']:.3f} |" in card
    assert f"{test['recall']['hits']:,}/{test['recall']['trials']:,}" in card


def test_command_line_names_unknown_configurations(tmp_path):
    with pytest.raises(UnknownName, match="closed_wide_focal"):
        main(["--configuration", "huge", "--out", str(tmp_path), "--work", str(tmp_path)])
