"""The search coordinator: plans without a model, by playing the domain's candidates out and keeping the fastest.

It is the teacher of the tuned models, the anchor for the quality of a plan, and what keeps agents at work when a model
is down. Candidates are executed with the real executor on the real rules, so a plan that it returns succeeds unless
something happens.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar, cast, runtime_checkable

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.printer import format_plan
from polyarm_core.chains.terms import Plan
from polyarm_core.coordinator.interface import PlanAnswer, PlanRequest
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue

State = TypeVar("State", bound=Hashable)
Seen = TypeVar("Seen", bound=Hashable, contravariant=True)

BUDGET = 40  # roll-outs per plan
PATIENCE = 16  # roll-outs without improvement after which the best one is good enough
CACHED_PLANS = 4096


@runtime_checkable
class Bounded(Protocol[Seen]):
    """A domain that knows how many frames a candidate needs at least; the search stops when none can be faster."""

    def bounded_candidates(self, state: Seen) -> Iterator[tuple[int, Plan]]:
        """(frames at least, plan); the bounds never fall."""
        ...


@runtime_checkable
class Situated(Protocol[Seen]):
    """A domain that knows what of a state does not matter for planning, e.g. the clock."""

    def situation(self, state: Seen) -> Hashable:
        """Equal for states that have the same plans."""
        ...


class SearchCoordinator(Generic[State]):
    """Rolls candidates out and keeps the fastest success; deterministic.

    Args:
        domain: in which it plans; where it has a ``simulation``, that one is used to imagine.
        budget: roll-outs per plan at most; twice as many while none has succeeded.
        patience: roll-outs without improvement after which it stops.

    Attributes:
        roll_outs: carried out so far.

    Raises:
        InvalidValue: budget or patience below 1.
    """

    name = "search"

    def __init__(self, domain: Domain[State], budget: int = BUDGET, patience: int = PATIENCE) -> None:
        for key, number in (("budget", budget), ("patience", patience)):
            if number < 1:
                raise InvalidValue(key, number, "at least 1 roll-out")
        self.domain: Domain[State] = imagined(domain)
        self.budget = budget
        self.patience = patience
        self.roll_outs = 0
        self._cache: OrderedDict[Hashable, tuple[Plan, str] | None] = OrderedDict()

    def plan(self, request: PlanRequest[State]) -> PlanAnswer:
        """The fastest of the candidates from this state; the reason and the previous plan do not matter."""
        begin = time.perf_counter()
        state = request.state
        key = self.domain.situation(state) if isinstance(self.domain, Situated) else state
        if key in self._cache:
            self._cache.move_to_end(key)
        else:
            plan = self.best(state)
            self._cache[key] = None if plan is None else (plan, format_plan(plan))
            if len(self._cache) > CACHED_PLANS:
                self._cache.popitem(last=False)
        found = self._cache[key]
        seconds = time.perf_counter() - begin
        if found is None:
            return PlanAnswer(None, "", seconds, error="no candidate reaches the target from this state")
        return PlanAnswer(*found, seconds)

    def best(self, state: State) -> Plan | None:
        """The fastest candidate within the budget; None where none succeeds."""
        best: Plan | None = None
        limit = self.domain.horizon
        tried = since = 0
        for bound, plan in candidates(self.domain, state):
            if bound >= limit or (best is not None and (tried >= self.budget or since >= self.patience)):
                break
            if tried >= 2 * self.budget:
                break
            tried += 1
            since += 1
            result = roll_out(ChainExecutor(self.domain, plan), state, limit)
            if result.success:
                best, since = plan, 0
                limit = result.frames - 1  # only a faster one is of interest
        self.roll_outs += tried
        return best


def imagined(domain: Domain[State]) -> Domain[State]:
    """The domain to imagine in: fast, and without anything real behind it."""
    return cast("Domain[State]", getattr(domain, "simulation", domain))


def candidates(domain: Domain[State], state: State) -> Iterator[tuple[int, Plan]]:
    """Candidates with a lower bound of their frames; 0 where the domain knows none."""
    if isinstance(domain, Bounded):
        yield from domain.bounded_candidates(state)
    else:
        for plan in domain.candidates(state):
            yield 0, plan
