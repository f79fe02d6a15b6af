"""Samples of a toy domain, shared by the tests of this folder."""

from __future__ import annotations

from typing import Any

from toy_domain import ToyDomain, ToyState

from polyarm_core.coordinator.interface import PlanAnswer, PlanRequest
from polyarm_core.psd.data import Samples, generate, start_plans
from polyarm_core.psd.tensors import Shape

EVENTS = ("T1", "T2", "T3")
SHAPE = Shape(2, 6, 5, 4)


class SlowDomain(ToyDomain):
    """Agents walk every third frame only, so that episodes last until events fall due."""

    def control(self, state: ToyState, intents: Any) -> tuple[int, ...]:
        controls = super().control(state, intents)
        return tuple(0 if state.frame % 3 and control in (1, 2) else control for control in controls)


class FirstThatSucceeds:
    """The first candidate that succeeds."""

    name = "first"

    def __init__(self, domain: Any) -> None:
        self.domain = domain

    def plan(self, request: PlanRequest[Any]) -> PlanAnswer:
        plans = start_plans(self.domain, request.state, 1)
        return PlanAnswer(plans[0] if plans else None, "", 0.0)


def toy_samples(seed: int, inject: tuple[str, ...] = EVENTS, episodes: int = 25) -> Samples:
    """Samples of a few episodes on two maps."""
    domains = [SlowDomain(), SlowDomain()]
    return generate(
        domains, [FirstThatSucceeds], events=EVENTS, inject=inject, episodes=episodes, seed=seed, shape=SHAPE
    )
