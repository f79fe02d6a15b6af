"""What a coordinator is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from polyarm_core.chains.terms import Plan

State = TypeVar("State", bound=Hashable, covariant=True)
Asked = TypeVar("Asked", bound=Hashable, contravariant=True)

REASONS = ("start", "deadlock", "stall", "no_progress", "chain_end", "stale", "interval")


@dataclass(frozen=True)
class PlanRequest(Generic[State]):
    """A call of the coordinator.

    Attributes:
        state: as it is now.
        reason: why a plan is needed, one of ``REASONS``.
        previous: what is left of the plan that is being replaced; None at the start.
        history: corrections of this episode so far, in words, oldest first.
        frame: of the episode, 0 at the start.
    """

    state: State
    reason: str = "start"
    previous: Plan | None = None
    history: tuple[str, ...] = ()
    frame: int = 0


@dataclass(frozen=True)
class PlanAnswer:
    """What came back.

    Attributes:
        plan: valid in the state of the request; None where there is none.
        text: of the plan in the chain language, or what a model wrote instead.
        seconds: wall clock time of the call.
        prompt_tokens, tokens: read and written by a model; 0 without one.
        error: why there is no plan.
    """

    plan: Plan | None
    text: str
    seconds: float
    prompt_tokens: int = 0
    tokens: int = 0
    error: str = ""


class Coordinator(Protocol[Asked]):
    """Makes joint plans. ``name`` is short, as in tables."""

    name: str

    def plan(self, request: PlanRequest[Asked]) -> PlanAnswer:
        """A joint plan from the state of the request; never raises for a state that has none."""
        ...
