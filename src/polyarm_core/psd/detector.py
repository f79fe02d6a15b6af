"""Staleness detectors for the episode runner: learned, oracle, never."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.chains.terms import Plan
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import UnknownName
from polyarm_core.psd.network import DETECTORS, Weights, probability
from polyarm_core.psd.oracle import RollOutOracle
from polyarm_core.psd.tensors import FrameHistory, Inputs, incidence
from polyarm_core.scenario import config_directory

ARMS_NETWORK = "wide_focal"
"""The network that is meant where only the detector is named."""


class StalenessDetector(Protocol):
    """Watches the remaining plan frame by frame. ``threshold``: a probability above it asks for a new plan."""

    threshold: float

    def reset(self, plan: Plan) -> None:
        """A new plan starts from the state that was observed last."""
        ...

    def observe(self, state: Any, remaining: Plan) -> float:
        """Probability that the remaining plan is stale in this state; call it once for every frame."""
        ...


class NeverStale:
    """Trusts every plan: the ablation without a detector."""

    threshold = 1.0

    def reset(self, plan: Plan) -> None:
        """Nothing to forget."""

    def observe(self, state: Any, remaining: Plan) -> float:
        """Always 0."""
        return 0.0


class LearnedDetector:
    """A trained network, with hysteresis.

    A network that stays above its threshold whatever the plan is would ask for plan after plan. So once an alarm has
    led to a plan, the next one must be news: until the probability has been below the network's threshold again, the
    threshold in force lies half of the way from the last probability to 1.

    Args:
        domain: its watched entities become the rows.
        weights: of the network.
        threshold: of the network; above it a plan counts as stale.

    Attributes:
        threshold: that is in force.
    """

    def __init__(self, domain: Domain[Any], weights: Weights, threshold: float) -> None:
        self.threshold = self._own_threshold = threshold
        self._domain = domain
        self._weights = weights
        self._relevance = DETECTORS[weights.detector]
        self._history = FrameHistory(domain, weights.shape)
        self._last = 0.0

    @staticmethod
    def load(domain: Domain[Any], path: Path) -> LearnedDetector:
        """Weights from ``NAME.npz`` and the threshold from ``NAME.json`` beside it.

        Raises:
            OSError: a file is missing.
            InvalidValue: the domain does not fit into the shape of the network.
        """
        threshold = float(json.loads(path.with_suffix(".json").read_text())["threshold"])
        return LearnedDetector(domain, Weights.load(path), threshold)

    def reset(self, plan: Plan) -> None:
        """Compare from the newest frame on: what happened before it, the new plan has taken into account."""
        self._history.restart()
        if self._last > self.threshold:
            self.threshold = (1.0 + self._last) / 2.0

    def observe(self, state: Any, remaining: Plan) -> float:
        """``P_replan``."""
        return self._noted(self._probability(state, remaining, *self._history.push(state)))

    def glance(self, state: Any, remaining: Plan, expected: Any) -> float:
        """``P_replan`` of a state by what is not as expected, without a frame that passes."""
        return self._noted(self._probability(state, remaining, *self._history.between(expected, state)))

    def _noted(self, value: float) -> float:
        self._last = value
        if value <= self._own_threshold:
            self.threshold = self._own_threshold
        elif value <= self.threshold:
            self.threshold = min(self.threshold, (1.0 + value) / 2.0)
        return value

    def _probability(self, state: Any, remaining: Plan, x: NDArray[np.float32], d: NDArray[np.float32]) -> float:
        c = incidence(self._domain, state, remaining, self._relevance, self._weights.shape)
        return probability(self._weights, Inputs(c, x, d))


def find_weights(name: str) -> Path:
    """Weights of a detector of the arms.

    Args:
        name: ``closed`` or ``bilinear`` for what comes with the package (``models/psd_arms``), or the path of a
            ``.npz`` with its ``.json`` beside it.

    Raises:
        UnknownName: neither, or there are no such files.
    """
    folder = config_directory().parent / "models" / "psd_arms"
    path = folder / f"{name}_{ARMS_NETWORK}.npz" if name in DETECTORS else Path(name)
    if path.suffix != ".npz" or not path.is_file() or not path.with_suffix(".json").is_file():
        known = [detector for detector in DETECTORS if (folder / f"{detector}_{ARMS_NETWORK}.npz").is_file()]
        raise UnknownName("detector", name, [*known, "PATH.npz of trained weights with PATH.json beside it"])
    return path


class OracleDetector:
    """Rolls the remaining plan out in a copy of the world: 1 where it can no longer succeed, else 0.

    It starts from the remaining plan alone, as if no milestone had been reached and nobody had waited before.
    """

    threshold = 0.5

    def __init__(self, domain: Domain[Any]) -> None:
        self._domain = domain
        self._oracle: RollOutOracle[Any] = RollOutOracle(domain)
        self._frames = 0

    def reset(self, plan: Plan) -> None:
        """Void what was predicted for the old plan."""
        self._oracle.forget()

    def observe(self, state: Any, remaining: Plan) -> float:
        """Verdict of the roll-out oracle."""
        frame = getattr(state, "frame", self._frames)
        self._frames += 1
        return float(self._oracle.stale(ChainExecutor(self._domain, remaining), state, self._domain.horizon - frame))

    def glance(self, state: Any, remaining: Plan, expected: Any) -> float:
        """The verdict on a state, without a frame that passes."""
        frame = getattr(state, "frame", self._frames - 1)
        left = self._domain.horizon - frame
        return float(RollOutOracle(self._domain).stale(ChainExecutor(self._domain, remaining), state, left))
