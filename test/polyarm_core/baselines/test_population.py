import numpy as np
import pytest

from polyarm_core.baselines.network import load_network
from polyarm_core.baselines.population import (
    PopulationSettings,
    _exploit,
    _members,
    train_fcp,
    train_pbt,
    uniform_network,
)
from polyarm_core.baselines.selfplay import Settings
from polyarm_core.domains.overcooked.batch import KitchenBatch
from polyarm_core.domains.overcooked.layouts import load_layout

pytest.importorskip("stable_baselines3")

ROOM = load_layout("cramped_room")
SMALL = Settings(learners=8, rollout=10, minibatch=40, epochs=1, hidden=(16, 16), value_hidden=(16,))
TWO = PopulationSettings(members=2, updates=1)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.weights, other.weights, strict=True))


def test_the_stand_in_is_uniform():
    batch = KitchenBatch(ROOM, 4)
    network = uniform_network(batch.encoder.size, (16, 16))
    assert np.allclose(network.probabilities(batch.observe()), 1 / 6)


def test_the_worst_takes_over_the_best_perturbed():
    best, worst = _members(ROOM, 0, SMALL, TWO)
    assert not same(best.network(), worst.network())
    assert best.learning_rate != worst.learning_rate
    best.update(0.0)
    scores = [50.0, 80.0]
    _exploit([best, worst], scores, TWO, np.random.default_rng(0))
    assert same(best.network(), worst.network())
    assert worst.learning_rate / best.learning_rate == pytest.approx(0.8) or worst.learning_rate > best.learning_rate
    assert {round(worst.entropy / best.entropy, 6), round(worst.clip / best.clip, 6)} <= {0.8, 1.25}
    assert scores == [50.0, 50.0]
    # The optimiser went along: from here on both learn on their own.
    worst.update(0.0)
    assert not same(best.network(), worst.network())


def test_a_small_difference_changes_nothing():
    members = _members(ROOM, 0, SMALL, TWO)
    before = [member.network() for member in members]
    _exploit(members, [50.0, 52.0], TWO, np.random.default_rng(0))
    assert all(same(old, member.network()) for old, member in zip(before, members, strict=True))


def test_pbt_is_deterministic_and_done_is_done(tmp_path):
    lines = []
    one, _ = train_pbt(ROOM, 0, 640, tmp_path / "one", lines.append, SMALL, TWO)
    two, _ = train_pbt(ROOM, 0, 640, tmp_path / "two", lines.append, SMALL, TWO)
    assert same(one, two)
    assert lines[-1].startswith("round 4/4")
    count = len(lines)
    again, _ = train_pbt(ROOM, 0, 640, tmp_path / "one", lines.append, SMALL, TWO)
    assert same(one, again)
    assert len(lines) == count
    longer, _ = train_pbt(ROOM, 0, 800, tmp_path / "one", lines.append, SMALL, TWO)
    assert not same(longer, one)
    assert [line.split(",")[0] for line in lines[count:]] == ["round 5/5"]


def test_fcp_meets_every_stage_of_every_partner(tmp_path):
    lines = []
    network, _ = train_fcp(ROOM, 0, 800, tmp_path, lines.append, SMALL, TWO)
    stages = [tmp_path / f"partner{i}_{stage}.npz" for i in (0, 1) for stage in ("untrained", "half", "trained")]
    kept = [load_network(path)[0] for path in stages]
    assert not same(kept[0], kept[2])
    assert not same(kept[2], kept[5])
    count = len(lines)
    again, _ = train_fcp(ROOM, 0, 800, tmp_path, lines.append, SMALL, TWO)
    assert same(network, again)
    assert len(lines) == count
