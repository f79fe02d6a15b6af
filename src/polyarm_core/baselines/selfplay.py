"""PPO in self-play (Schulman et al., 2017): one network learns in both seats. The learner is stable-baselines3's.

What differs from a textbook run: the package's shaped rewards fade out over the training, half of the episodes begin in
a random state in the middle of things (:class:`~.game.TeamGame`), and learning rate and entropy bonus fall along the
way. No disturbance is injected in training. Many small updates (6,400 transitions) need about half of the transitions
that few large ones (25,600) do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyarm_core.baselines.game import Partners, TeamGame
from polyarm_core.baselines.network import PolicyNetwork
from polyarm_core.domains.overcooked.layouts import Layout
from polyarm_core.errors import MissingExtra

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one learner.

    Attributes:
        learners: rows per frame; in self-play two of them share a kitchen.
        rollout: frames between two updates.
        minibatch, epochs: of an update.
        learning_rate, entropy: at the beginning; both fall linearly to a tenth.
        discount, trace, clip: gamma, lambda and epsilon of PPO.
        hidden, value_hidden: units of each hidden layer of the policy and of the value network.
        shaped: share of training over which shaped rewards fade out.
        diverse: share of episodes that begin in a random state.
    """

    learners: int = 128
    rollout: int = 50
    minibatch: int = 800
    epochs: int = 4
    learning_rate: float = 1e-3
    entropy: float = 0.02
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    hidden: tuple[int, ...] = (128, 128)
    value_hidden: tuple[int, ...] = (64, 64)
    shaped: float = 1.0
    diverse: float = 0.5


@dataclass(frozen=True, slots=True)
class Score:
    """Of the standard starts in a stretch of training.

    Attributes:
        episodes: that ended.
        success: share with a delivery.
        frames: mean length, a failure counting its full length.
    """

    episodes: int
    success: float
    frames: float


class Learner:
    """One network in training. A step is one transition of one learning player.

    Args:
        layout: on which it plays.
        settings: of the learner.
        seed: of everything random.
        partners: None = self-play.

    Attributes:
        steps: taken so far.
        learning_rate, entropy, clip: used by the next update; free to be changed between updates.

    Raises:
        MissingExtra: stable-baselines3 is not installed.
    """

    def __init__(self, layout: Layout, settings: Settings, seed: int, partners: Partners | None = None) -> None:
        try:
            import torch
            from stable_baselines3 import PPO

            from polyarm_core.baselines.kitchen_env import KitchenEnv
        except ImportError as error:
            raise MissingExtra("stable-baselines3", "rl") from error
        if partners is None:
            kitchens = settings.learners // 2
        else:
            kitchens = max(1, settings.learners // (2 * partners.count)) * 2 * partners.count
        self.settings = settings
        self.game = TeamGame(layout, kitchens, seed, partners, settings.diverse)
        self.learning_rate, self.entropy, self.clip = settings.learning_rate, settings.entropy, settings.clip
        self.env = KitchenEnv(self.game)
        self.model: Any = PPO(
            "MlpPolicy",
            self.env,
            learning_rate=settings.learning_rate,
            n_steps=settings.rollout,
            batch_size=min(settings.minibatch, self.game.learners * settings.rollout),
            n_epochs=settings.epochs,
            gamma=settings.discount,
            gae_lambda=settings.trace,
            clip_range=settings.clip,
            ent_coef=settings.entropy,
            policy_kwargs={
                "net_arch": {"pi": list(settings.hidden), "vf": list(settings.value_hidden)},
                "activation_fn": torch.nn.Tanh,
            },
            seed=seed,
            device="cpu",
        )

    @property
    def steps(self) -> int:
        """Transitions taken so far."""
        return int(self.model.num_timesteps)

    def update(self, progress: float) -> None:
        """One roll-out and one update.

        Args:
            progress: share of the training that is done; it sets the weight of the shaped rewards.
        """
        rate, clip = self.learning_rate, self.clip
        self.game.shaping = max(0.0, 1.0 - progress / self.settings.shaped)
        self.model.lr_schedule = lambda _: rate
        self.model.clip_range = lambda _: clip
        self.model.ent_coef = self.entropy
        steps = self.game.learners * self.settings.rollout
        self.model.learn(steps, log_interval=None, reset_num_timesteps=False)

    def anneal(self, progress: float) -> None:
        """Lower learning rate and entropy bonus linearly, to a tenth at the end."""
        factor = 1.0 - 0.9 * min(1.0, progress)
        self.learning_rate, self.entropy = self.settings.learning_rate * factor, self.settings.entropy * factor

    def score(self) -> Score:
        """Of the episodes since the last call."""
        episodes, succeeded, frames = self.game.tally()
        return Score(episodes, succeeded / max(1, episodes), frames / max(1, episodes))

    def network(self) -> PolicyNetwork:
        """The policy as it is now, as numpy."""
        state = self.model.policy.state_dict()
        names = [f"mlp_extractor.policy_net.{2 * layer}" for layer in range(len(self.settings.hidden))] + ["action_net"]
        return PolicyNetwork(
            tuple(np.ascontiguousarray(state[f"{name}.weight"].numpy().T).copy() for name in names),
            tuple(state[f"{name}.bias"].numpy().copy() for name in names),
        )

    def copy_from(self, other: Learner) -> None:
        """Take over another learner's weights and state of the optimiser."""
        self.model.set_parameters(other.model.get_parameters())

    def save(self, path: Path, facts: dict[str, Any]) -> None:
        """Write a checkpoint: ``path`` with .zip (weights, optimiser) and with .json (steps, facts)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part.zip")
        self.model.save(partial, exclude=["lr_schedule", "clip_range"])
        partial.replace(path.with_name(path.name + ".zip"))
        values = [self.learning_rate, self.entropy, self.clip]
        note = json.dumps({"steps": self.steps, "values": values, "facts": facts})
        path.with_name(path.name + ".json").write_text(note, encoding="utf-8")

    def restore(self, path: Path) -> dict[str, Any] | None:
        """Continue from a checkpoint, if there is one; its facts. Episodes begin anew, with other random numbers."""
        archive, note = path.with_name(path.name + ".zip"), path.with_name(path.name + ".json")
        if not archive.exists() or not note.exists():
            return None
        kept = json.loads(note.read_text(encoding="utf-8"))
        self.model.set_parameters(str(archive), device="cpu")
        self.model.num_timesteps = kept["steps"]
        self.learning_rate, self.entropy, self.clip = kept["values"]
        facts: dict[str, Any] = kept["facts"]
        return facts


def learn(
    learner: Learner,
    steps: int,
    checkpoint: Path,
    report: Report,
    each: Callable[[Learner, Score], None] | None = None,
) -> float:
    """Train a learner with annealing, from its checkpoint where there is one.

    Args:
        learner: new, as constructed.
        steps: of the whole training.
        checkpoint: path without suffix, written about every fortieth part.
        report: gets a line at each checkpoint.
        each: called at each checkpoint.

    Returns:
        Seconds of training, those before an interruption included.
    """
    facts = learner.restore(checkpoint) or {"seconds": 0.0}
    seconds = float(facts["seconds"])
    begun = time.monotonic()
    mark = learner.steps + steps / 40
    while learner.steps < steps:
        progress = learner.steps / steps
        learner.anneal(progress)
        learner.update(progress)
        if learner.steps >= mark or learner.steps >= steps:
            mark += steps / 40
            score = learner.score()
            spent = seconds + time.monotonic() - begun
            learner.save(checkpoint, {"seconds": spent})
            report(
                f"{checkpoint.name} {learner.steps}/{steps} steps, success {score.success:.3f}, "
                f"frames {score.frames:.1f}, {spent:.0f} s"
            )
            if each is not None:
                each(learner, score)
    return seconds + time.monotonic() - begun


def train_selfplay(
    layout: Layout, seed: int, steps: int, work: Path, report: Report, settings: Settings | None = None
) -> tuple[PolicyNetwork, float]:
    """PPO in self-play.

    Args:
        layout: on which it plays.
        seed: of everything random.
        steps: transitions, two for each frame of a kitchen.
        work: folder of checkpoints.
        report: gets lines of progress.
        settings: of the learner.

    Returns:
        The trained network and the seconds it took.
    """
    learner = Learner(layout, settings or Settings(), seed)
    seconds = learn(learner, steps, work / "selfplay", report)
    return learner.network(), seconds
