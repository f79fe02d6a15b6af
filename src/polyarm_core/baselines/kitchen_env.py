"""The game as a vectorised environment of stable-baselines3. Import it only where that library is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from polyarm_core.baselines.game import TeamGame


class KitchenEnv(VecEnv):
    """Every learner of a game is an environment of its own, so that one shared policy learns from both seats.

    Args:
        game: that is played. Running out of frames ends an episode like any other end: nothing is worth waiting for.
    """

    render_mode = None

    def __init__(self, game: TeamGame) -> None:
        self.game = game
        self._infos: list[dict[str, Any]] = [{} for _ in range(game.learners)]
        view = spaces.Box(-np.inf, np.inf, (game.inputs,), np.float32)
        super().__init__(game.learners, view, spaces.Discrete(6))

    def reset(self) -> VecEnvObs:
        """All episodes anew."""
        return self.game.reset()

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the controls for ``step_wait``."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """One frame of every kitchen."""
        observations, rewards, dones = self.game.step(self._actions)
        return observations, rewards, dones, self._infos

    def close(self) -> None:
        """Nothing to release."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of this object, once per environment."""
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of this object."""
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of this object, once for all."""
        return [getattr(self, method_name)(*method_args, **kwargs)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        """No environment is wrapped."""
        return [False] * self.num_envs

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Ignored: the game has its seed."""
        return [None] * self.num_envs
