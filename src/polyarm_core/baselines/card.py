"""Model card of the trained teams, written from the facts in their files."""

from __future__ import annotations

from pathlib import Path

from polyarm_core.baselines.network import load_network

_HEAD = """# Teams for Overcooked, trained with PPO, PBT and FCP

Baselines that SyncPlan is compared with. Each file holds one policy network, a multi-layer perceptron with two hidden
layers of 128 tanh units, in half precision, with the facts about its training. Input: a player's view of the kitchen
(`Encoder` in `polyarm_core/domains/overcooked/batch.py`); output: the probability of each of the six controls. Both
players of an evaluated team have the same network and sample their controls from it, with a generator drawn from the
trial's seed. Inference needs numpy only: `polyarm_core.baselines.network.load_team("ppo", "coordination_ring")`.

* **ppo**: self-play, one network in both seats.
* **pbt**: a population of four in rounds; in each every member trains with all members as partners, then the worst may
  take over the best one's network and, perturbed, its learning rate, entropy bonus and clipping range. Evaluated: the
  best member with itself.
* **fcp**: four partners in self-play with seeds of their own; a best response trained with each of them untrained, half
  trained and trained. Evaluated: the best response with itself (the paper does not say whom it evaluates).

The learner is PPO of stable-baselines3 on one thread; one order of three onions, cook time 20, episodes of 100 frames
that end at the first delivery. Reward: 1 at the delivery, and the package's shaped rewards divided by 20, which fade
out over the training; no penalty per frame. No disturbance is injected in training, but half of the episodes begin in a
random state (players, hands and pots), as the middle of an episode may look like. That makes these baselines stronger
under disturbances than training from the standard start alone.

TAR: share of episodes with a delivery within 100 frames; AED: mean frame of the delivery over those. Dynamic: O1, O2
and O3 once each, at three distinct frames of 5 to 59. Seeds 0 to {last} each. Steps are transitions of all learners
together, two for each frame of a kitchen in self-play.

| file | standard TAR % (AED) | dynamic TAR % (AED) | seed | steps | minutes | command |
| --- | --- | --- | --- | --- | --- | --- |
"""


def write_card(folder: Path, episodes: int) -> None:
    """Write ``README.md`` beside the networks of a folder.

    Args:
        folder: of the networks.
        episodes: on which the results in the facts rest.
    """
    rows = []
    for path in sorted(folder.glob("*.npz")):
        _, facts = load_network(path)
        arguments = " ".join(f"--{key} {facts[key]}" for key in ("method", "layout", "seed", "steps"))
        standard, dynamic = (_cell(facts[key]) for key in ("standard", "dynamic"))
        rows.append(
            f"| {path.name} | {standard} | {dynamic} | {facts['seed']} | {facts['steps'] / 1e6:.1f} M "
            f"| {facts['seconds'] / 60:.0f} | `python -m polyarm_core.baselines.train {arguments}` |\n"
        )
    (folder / "README.md").write_text(_HEAD.format(last=episodes - 1) + "".join(rows), encoding="utf-8")


def _cell(outcome: dict[str, float | None]) -> str:
    """TAR in percent and AED of a measured setting."""
    frames, success = outcome["frames"], outcome["success"]
    assert success is not None
    return f"{100 * success:.1f}" + ("" if frames is None else f" ({frames:.1f})")
