"""Inputs of the plan staleness detector: incidence ``C``, state ``X`` and difference ``D`` (SyncPlan A.6)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyarm_core.chains.terms import Plan
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue, UnknownName

Relevance = Literal["refers", "depends"]
RELEVANCES: tuple[Relevance, ...] = ("refers", "depends")

REFERENCE_FRAMES = 3  # k_ref (Table 7)


@dataclass(frozen=True, slots=True)
class Shape:
    """Padded sizes of the tensors; the network has one set of weights for every map that fits in.

    Attributes:
        agents: ``N``.
        entities: ``M``, rows.
        steps: ``L``; later steps of a longer chain share the last column.
        features: ``F``, columns.
    """

    agents: int = 2
    entities: int = 16
    steps: int = 16
    features: int = 16

    def check(self, domain: Domain[Any]) -> None:
        """Complain where a domain does not fit.

        Raises:
            InvalidValue: more agents, watched entities or features than the shape has room for.
        """
        for name, size, room in (
            ("agents", len(domain.agents), self.agents),
            ("entity_rows", len(domain.entity_rows), self.entities),
            ("feature_count", domain.feature_count, self.features),
        ):
            if size > room:
                raise InvalidValue(f"{name} of {domain.name}", size, f"at most {room}")


class Inputs(NamedTuple):
    """What the detector sees of one frame.

    Attributes:
        incidence: ``C``, 0 or 1, shape (agents, entities, steps).
        state: ``X``, in [0, 1], shape (entities, features).
        difference: ``D``, in [-1, 1], shape (entities, features).
    """

    incidence: NDArray[np.uint8]
    state: NDArray[np.float32]
    difference: NDArray[np.float32]


def incidence(
    domain: Domain[Any], state: Any, remaining: Plan, relevance: Relevance, shape: Shape
) -> NDArray[np.uint8]:
    """``C``: which watched entity each remaining step is about. Finished steps are no part of the remaining plan.

    Raises:
        UnknownName: no such relevance rule.
        InvalidValue: the domain does not fit into the shape.
    """
    if relevance not in RELEVANCES:
        raise UnknownName("relevance", relevance, RELEVANCES)
    shape.check(domain)
    rule = domain.refers if relevance == "refers" else domain.depends
    rows = {name: row for row, name in enumerate(domain.entity_rows)}
    result = np.zeros((shape.agents, shape.entities, shape.steps), dtype=np.uint8)
    for index, agent in enumerate(domain.agents):
        for number, step in enumerate(remaining[agent]):
            column = min(number, shape.steps - 1)
            for name in rule(state, agent, step):
                result[index, rows[name], column] = 1
    return result


class FrameHistory:
    """States of the last frames; gives ``X`` and ``D`` of the newest, shape (entities, features) each.

    ``D`` is the difference against ``k_ref`` frames earlier, or against the oldest frame while there are fewer.
    """

    def __init__(self, domain: Domain[Any], shape: Shape, reference_frames: int = REFERENCE_FRAMES) -> None:
        shape.check(domain)
        self._domain = domain
        self._shape = shape
        self._frames: deque[NDArray[np.float32]] = deque(maxlen=reference_frames + 1)

    def restart(self) -> None:
        """Forget all but the newest frame: a new plan has taken into account what happened before it."""
        newest = list(self._frames)[-1:]
        self._frames.clear()
        self._frames.extend(newest)

    def push(self, state: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Add a frame and compare it."""
        padded = self._padded(state)
        self._frames.append(padded)
        return padded, padded - self._frames[0]

    def between(self, before: Any, after: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """``X`` of a state and its difference from another one; the frames play no part."""
        padded = self._padded(after)
        return padded, padded - self._padded(before)

    def _padded(self, state: Any) -> NDArray[np.float32]:
        features = self._domain.features(state)
        padded = np.zeros((self._shape.entities, self._shape.features), dtype=np.float32)
        padded[: features.shape[0], : features.shape[1]] = features
        return padded
