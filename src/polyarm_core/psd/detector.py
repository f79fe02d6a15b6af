"""Staleness detectors for the episode runner: learned, oracle, never."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.chains.terms import Plan
from polyarm_core.domains.interface import Domain
from polyarm_core.psd.network import DETECTORS, Weights, probability
from polyarm_core.psd.oracle import RollOutOracle
from polyarm_core.psd.tensors import FrameHistory, Inputs, incidence


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
    """A trained network.

    Args:
        domain: its watched entities become the rows.
        weights: of the network.
        threshold: above it the plan counts as stale.
    """

    def __init__(self, domain: Domain[Any], weights: Weights, threshold: float) -> None:
        self.threshold = threshold
        self._domain = domain
        self._weights = weights
        self._relevance = DETECTORS[weights.detector]
        self._history = FrameHistory(domain, weights.shape)

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

    def observe(self, state: Any, remaining: Plan) -> float:
        """``P_replan``."""
        x, d = self._history.push(state)
        c = incidence(self._domain, state, remaining, self._relevance, self._weights.shape)
        return probability(self._weights, Inputs(c, x, d))


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
