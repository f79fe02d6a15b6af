import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.baselines.episodes import measure
from polyarm_core.baselines.game import Partners, TeamGame
from polyarm_core.baselines.network import (
    NetworkTeam,
    PolicyNetwork,
    load_network,
    load_team,
    network_file,
    sample,
    save_network,
)
from polyarm_core.baselines.selfplay import Settings, train_selfplay
from polyarm_core.domains.overcooked.batch import KitchenBatch
from polyarm_core.domains.overcooked.kitchen import HORIZON, INTERACT, SOUP, STAY, Kitchen
from polyarm_core.domains.overcooked.layouts import LAYOUT_NAMES, load_layout
from polyarm_core.errors import InvalidValue, UnknownName

ROOM = load_layout("cramped_room")
SMALL = Settings(learners=8, rollout=10, minibatch=40, epochs=1, hidden=(16, 16), value_hidden=(16,))
TRAINED = sorted((Path(__file__).parents[3] / "models/overcooked_rl").glob("*.npz"))


def random_network(layout, seed, hidden=(16, 16)):
    random, sizes = np.random.default_rng(seed), (KitchenBatch(layout, 1).encoder.size, *hidden, 6)
    pairs = list(itertools.pairwise(sizes))
    return PolicyNetwork(
        tuple(random.normal(0, 0.5, pair).astype(np.float32) for pair in pairs),
        tuple(random.normal(0, 0.5, pair[1]).astype(np.float32) for pair in pairs),
    )


def constant_network(layout, control):
    """Always the same control."""
    inputs = KitchenBatch(layout, 1).encoder.size
    return PolicyNetwork((np.zeros((inputs, 6), np.float32),), (1e3 * np.eye(6, dtype=np.float32)[control],))


# --- networks ---


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=6, max_size=6).filter(lambda p: sum(p) > 0.1), st.floats(0, 1, exclude_max=True)
)
def test_sampling_inverts_the_distribution(weights, draw):
    probabilities = np.array(weights, np.float32) / np.float32(sum(weights))
    chosen = int(sample(probabilities[None], np.array([draw]))[0])
    assert probabilities[:chosen].sum() <= draw + 1e-5
    assert draw - 1e-5 <= probabilities[: chosen + 1].sum()


def test_a_network_survives_its_file(tmp_path):
    network, path = random_network(ROOM, 1), tmp_path / "deep" / "team.npz"
    save_network(path, network, {"seed": 3, "success": 0.5})
    loaded, facts = load_network(path)
    assert facts == {"seed": 3, "success": 0.5}
    assert [w.shape for w in loaded.weights] == [w.shape for w in network.weights]
    views = KitchenBatch(ROOM, 3).observe()
    assert np.allclose(loaded.probabilities(views), network.probabilities(views), atol=5e-3)
    save_network(tmp_path / "again.npz", loaded, facts)
    again, _ = load_network(tmp_path / "again.npz")
    pairs = zip(again.weights + again.biases, loaded.weights + loaded.biases, strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


def test_what_is_no_network_is_refused(tmp_path):
    (tmp_path / "ppo_cramped_room.npz").write_text("no weights")
    np.savez(tmp_path / "other.npz", weight0=np.zeros(3))
    for path in (tmp_path / "missing.npz", tmp_path / "ppo_cramped_room.npz", tmp_path / "other.npz"):
        with pytest.raises(InvalidValue):
            load_network(path)
    with pytest.raises(InvalidValue):
        load_team("ppo", "cramped_room", tmp_path)
    with pytest.raises(UnknownName, match="fcp, pbt, ppo"):
        network_file("dqn", ROOM)
    with pytest.raises(InvalidValue, match="coordination_ring"):
        NetworkTeam(load_layout("coordination_ring"), (random_network(ROOM, 0),) * 2, "ppo")


def test_a_team_is_deterministic_given_the_seed():
    team, kitchen = NetworkTeam(ROOM, (random_network(ROOM, 1), random_network(ROOM, 2)), "test"), Kitchen(ROOM)

    def controls(seed):
        team.reset(seed)
        state, drawn = kitchen.start(), []
        for _ in range(40):
            drawn.append(team.act(state))
            state = kitchen.step(state, drawn[-1])
        return drawn

    assert controls(5) == controls(5)
    assert len({tuple(controls(seed)) for seed in range(4)}) == 4


def test_each_player_has_its_own_network():
    team = NetworkTeam(ROOM, (constant_network(ROOM, 2), constant_network(ROOM, STAY)), "test")
    assert team.act(Kitchen(ROOM).start()) == (2, STAY)


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: path.stem)
def test_the_trained_teams_do_what_their_card_says(path):
    assert path.stat().st_size < 200_000
    network, facts = load_network(path)
    layout = load_layout(facts["layout"])
    team = NetworkTeam(layout, (network, network), facts["method"])
    told = facts["standard"]["success"]
    assert abs(measure(team, Kitchen(layout), range(30)).success - told) <= 0.02 + 3 * (told * (1 - told) / 30) ** 0.5
    assert f"| {path.name} |" in (path.parent / "README.md").read_text(encoding="utf-8")


# --- the game ---


@pytest.mark.parametrize("name", LAYOUT_NAMES)
def test_every_random_start_is_a_state_that_may_occur(name):
    layout = load_layout(name)
    game = TeamGame(layout, 64, seed=0, diverse=1.0)
    game.reset()
    states = [game.batch.state(row) for row in range(64)]
    assert len(set(states)) > 50
    for state in states:
        assert state.positions[0] != state.positions[1]
        for cell, start in zip(state.positions, layout.starts, strict=True):
            assert cell in layout.region(start)
        assert state.delivered == 0
        assert all(tick < 0 or onions == 3 for onions, tick in state.pots)


def test_a_delivery_pays_both_players_and_ends_the_episode():
    game = TeamGame(ROOM, 2, seed=0, diverse=0.0)
    game.reset()
    game.batch.reset()
    serving = ROOM.servings[0]
    state = Kitchen(ROOM).start()
    game.batch.put(
        1, state._replace(positions=(ROOM.access[serving][0], state.positions[1]), facings=(1, 0), held=(SOUP, 0))
    )
    _, rewards, ended = game.step(np.array([STAY, STAY, INTERACT, STAY]))
    assert rewards.tolist() == [0, 0, 1, 1]
    assert ended.tolist() == [False, False, True, True]
    assert game.batch.state(1) == Kitchen(ROOM).start()  # the next episode


def test_shaped_rewards_are_each_players_own_and_fade():
    for shaping, expected in ((1.0, 3 / 20), (0.5, 1.5 / 20), (0.0, 0.0)):
        game = TeamGame(ROOM, 1, seed=0, diverse=0.0)
        game.reset()
        game.batch.reset()
        game.shaping = shaping
        pot = ROOM.pots[0]
        state = Kitchen(ROOM).start()
        game.batch.put(0, state._replace(positions=(state.positions[0], ROOM.access[pot][0]), held=(0, 1)))
        _, rewards, _ = game.step(np.array([STAY, INTERACT]))
        assert rewards.tolist() == pytest.approx([0, expected])


def test_an_episode_without_delivery_ends_at_the_horizon():
    game = TeamGame(ROOM, 3, seed=0, diverse=0.0)
    game.reset()
    game.batch.reset()
    game._standard[:] = True
    for frame in range(1, HORIZON + 1):
        _, _, ended = game.step(np.full(6, STAY))
        assert ended.all() == (frame == HORIZON)
        assert ended.any() == (frame == HORIZON)
    assert game.tally() == (3, 0, 3 * HORIZON)
    assert game.tally() == (0, 0, 0)


def test_partners_play_the_seats_that_the_learner_leaves_free():
    partners = Partners([constant_network(ROOM, 0), constant_network(ROOM, 2)])
    game = TeamGame(ROOM, 8, seed=0, partners=partners, diverse=0.0)
    game.reset()
    assert game.learners == 8
    game.step(np.full(8, 1))
    # Kitchens 0 to 3 have the first partner; the learner looks south from seat 0 of the even kitchens, 1 of the odd.
    assert game.batch.facings.T.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1], [1, 2], [2, 1], [1, 2], [2, 1]]


def test_partners_together_are_as_each_alone():
    networks = [random_network(ROOM, seed) for seed in range(3)]
    game = TeamGame(ROOM, 12, seed=0, diverse=1.0)
    views = game.reset()[:12]
    together = Partners(networks).probabilities(views)
    alone = [network.probabilities(views[4 * i : 4 * i + 4]) for i, network in enumerate(networks)]
    assert np.allclose(together, np.concatenate(alone), atol=1e-6)


# --- training ---


def test_the_network_that_is_kept_is_the_one_that_learnt():
    pytest.importorskip("stable_baselines3")
    import torch

    from polyarm_core.baselines.selfplay import Learner

    learner = Learner(ROOM, SMALL, seed=0)
    learner.update(0.0)
    views = TeamGame(ROOM, 5, seed=1, diverse=1.0).reset()
    expected = learner.model.policy.get_distribution(torch.as_tensor(views)).distribution.probs.detach().numpy()
    assert np.allclose(learner.network().probabilities(views), expected, atol=1e-5)


def test_training_is_deterministic_and_goes_on_where_it_stopped(tmp_path):
    pytest.importorskip("stable_baselines3")
    lines = []
    one, _ = train_selfplay(ROOM, 3, 400, tmp_path / "one", lines.append, SMALL)
    two, _ = train_selfplay(ROOM, 3, 400, tmp_path / "two", lines.append, SMALL)
    other, _ = train_selfplay(ROOM, 4, 400, tmp_path / "three", lines.append, SMALL)
    assert all(np.array_equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))
    assert not np.array_equal(one.weights[0], other.weights[0])
    # Done is done; with more steps it goes on from the checkpoint.
    count = len(lines)
    again, _ = train_selfplay(ROOM, 3, 400, tmp_path / "one", lines.append, SMALL)
    assert len(lines) == count
    assert all(np.array_equal(a, b) for a, b in zip(one.weights, again.weights, strict=True))
    train_selfplay(ROOM, 3, 480, tmp_path / "one", lines.append, SMALL)
    assert "480/480 steps" in lines[count]
    assert len(lines) == count + 1


def test_a_trained_network_is_written_with_its_card(tmp_path):
    pytest.importorskip("stable_baselines3")
    from polyarm_core.baselines.train import train

    train("ppo", "cramped_room", 1, 6400, tmp_path / "out", tmp_path / "work", episodes=2)
    team = load_team("ppo", "cramped_room", tmp_path / "out")
    assert measure(team, Kitchen(ROOM), range(1)).success in (0.0, 1.0)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "--method ppo --layout cramped_room --seed 1 --steps 6400" in card
    with pytest.raises(UnknownName):
        train("ppo", "kitchenette", 1, 100, tmp_path, tmp_path)
