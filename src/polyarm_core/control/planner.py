"""Holds the plan: when it is mended, when the coordinator is asked, and what is done with the answer.

A pure state machine. Trouble and answers are events, time is an argument (seconds of any steady clock), and what is
to be done comes back as effects: `Ask` the coordinator (in a worker: the answer is an event of its own), `Follow` a
plan. A plan has an epoch that grows by one; an answer is taken only for the request that is open. What failed is not
tried again in the same situation, and after a few fruitless calls the planner rests before it asks again. After a rest
what failed may be tried once more: nothing else was found, and what was in its way may be gone, e.g. a stopped arm.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from polyarm_core.chains.executor import DETECTION_KINDS, ChainExecutor, roll_out
from polyarm_core.chains.printer import format_plan
from polyarm_core.chains.terms import Action, Plan
from polyarm_core.coordinator.episode import PlanRecord
from polyarm_core.coordinator.interface import PlanAnswer, PlanRequest
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import Situated, imagined
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue

State = TypeVar("State", bound=Hashable)

MENDABLE = ("deadlock", "stall", "no_progress", "stale")


@dataclass(frozen=True)
class Ask(Generic[State]):
    """Effect: ask the coordinator; its answer goes to `Planner.on_answer` under this number."""

    number: int
    request: PlanRequest[State]


@dataclass(frozen=True)
class Follow:
    """Effect: a plan to be followed from now on."""

    epoch: int
    plan: Plan
    reason: str


Effect = Ask[State] | Follow


@dataclass(frozen=True)
class PlannerOptions:
    """Bounds of planning.

    Attributes:
        timeout: s after which an open request is given up; its answer is then dropped.
        attempts: calls in a row that gave no plan, after which the planner rests.
        rest: s of that rest.
        calls: of the coordinator in an episode, at most.
    """

    timeout: float = 60.0
    attempts: int = 3
    rest: float = 8.0
    calls: int = 40

    def __post_init__(self) -> None:
        for name in ("timeout", "rest"):
            if not getattr(self, name) > 0.0:
                raise InvalidValue(name, getattr(self, name), "seconds above 0")
        for name in ("attempts", "calls"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, getattr(self, name), "at least 1 call")


class Planner(Generic[State]):
    """The plan of an episode.

    Args:
        domain: its ``simulation`` is used to imagine.
        repair: mends plans; None = always ask.
        options: bounds.

    Attributes:
        plan: that is followed; None before the first.
        epoch: of the plan.
        sound: the plan is to be followed; False from the moment in which trouble could not be mended at once.
        records: every plan that was asked for, in order.
        corrections: of the episode, in words, for the coordinator.
    """

    def __init__(
        self, domain: Domain[State], repair: Repair[State] | None = None, options: PlannerOptions | None = None
    ) -> None:
        self._domain: Domain[State] = domain
        self._imagined = imagined(domain)
        self._repair = repair
        self.options = options or PlannerOptions()
        self.plan: Plan | None = None
        self.epoch = 0
        self.sound = False
        self.records: list[PlanRecord] = []
        self.corrections: list[str] = []
        self._made_in: Hashable = None  # situation in which the plan was made
        self._failed: set[tuple[Plan | None, Hashable]] = set()
        self._open: Ask[State] | None = None
        self._cause = ""
        self._asked_at = 0.0
        self._number = 0
        self._fruitless = 0
        self._rest_until = 0.0

    @property
    def thinking(self) -> bool:
        """Whether a request is open."""
        return self._open is not None

    @property
    def calls(self) -> int:
        """Requests so far."""
        return self._number

    # -- events -----------------------------------------------------------------------------------------------------

    def start(self, state: State, now: float) -> list[Effect[State]]:
        """An episode begins: the first plan is asked for."""
        return self._ask(state, "start", "", None, 0, now)

    def on_trouble(
        self,
        state: State,
        reason: str,
        cause: str,
        agents: Sequence[str],
        remaining: Plan,
        frame: int,
        now: float,
    ) -> list[Effect[State]]:
        """Something keeps the plan from going on: it is mended, or a new one is asked for.

        Args:
            state: now.
            reason: one of ``coordinator.interface.REASONS``.
            cause: in words.
            agents: who is hit, if that is known.
            remaining: what is left of the plan.
            frame: slots that have passed.
            now: s.

        Nothing new is asked while an answer is on its way: that one is judged by the state in which it comes.
        """
        if reason in DETECTION_KINDS and self.plan is not None:
            self._failed.add((self.plan, self._made_in))
        if self._open is not None:
            return []
        if self.sound and self._repair is not None and reason in MENDABLE:
            mended = self._mended(state, reason, cause, agents, remaining, frame)
            if mended:
                return mended
        self.sound = False
        return self._ask(state, reason, cause, remaining, frame, now)

    def on_answer(
        self,
        number: int,
        answer: PlanAnswer,
        state: State,
        remaining: Plan,
        frame: int,
        now: float,
        done: Mapping[str, Sequence[Action]] | None = None,
    ) -> list[Effect[State]]:
        """The coordinator has answered.

        Args:
            number: of the request; the answer to any but the open one is dropped.
            answer: its plan is tried in imagination from the state as it is now, which may not be that of the request.
            state, remaining, frame, now: see `on_trouble`.
            done: what agents have done since the request; where the plan begins with that, it goes on from there.
        """
        asked = self._open
        if asked is None or asked.number != number:
            return []
        self._open = None
        request, plan, error = asked.request, answer.plan, answer.error
        if plan is not None and done:
            executor = ChainExecutor(self._imagined, plan)
            executor.skip(done)
            plan = executor.remaining()
            answer = replace(answer, plan=plan)
        if plan is not None and (plan, self._situation(state)) in self._failed:
            plan, error = None, "the same plan from the same state has failed before"
        if plan is not None and self._situation(state) != self._situation(request.state):
            if not self._works(plan, state, frame):
                plan, error = None, "the world has changed since the plan was asked for"
        self._note(request.reason, "coordinator", plan, frame, answer, error)
        if plan is not None:
            return [self._follow(plan, state, request.reason)]
        self.corrections.append(f"frame {frame}: {error}")
        if answer.plan is not None and self._repair is not None:
            mended = self._mended(state, request.reason, error, (), answer.plan, frame)
            if mended:
                return mended
        self._fruitless += 1
        if self._fruitless >= self.options.attempts:
            self._rest_until, self._fruitless = now + self.options.rest, 0
            self._failed.clear()
            return []
        return self._ask(state, request.reason, error, remaining, frame, now)

    def tick(self, state: State, remaining: Plan, frame: int, now: float) -> list[Effect[State]]:
        """Time has passed: a request that is open for too long is given up, and after a rest a new one is made."""
        if self._open is not None:
            if now - self._asked_at < self.options.timeout:
                return []
            lost = self._open
            failure = PlanAnswer(None, "", now - self._asked_at, error="no answer in time")
            return self.on_answer(lost.number, failure, state, remaining, frame, now)
        if self.sound or now < self._rest_until:
            return []
        reason = self.records[-1].reason if self.records else "start"
        return self._ask(state, reason, "there is no plan", remaining, frame, now)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _ask(
        self, state: State, reason: str, cause: str, remaining: Plan | None, frame: int, now: float
    ) -> list[Effect[State]]:
        if now < self._rest_until or self._number >= self.options.calls:
            return []
        if cause:
            self.corrections.append(f"frame {frame}: {cause}")
        self._number += 1
        self._cause = cause
        self._asked_at = now
        self._open = Ask(self._number, PlanRequest(state, reason, remaining, tuple(self.corrections), frame))
        return [self._open]

    def _mended(
        self, state: State, reason: str, cause: str, agents: Sequence[str], remaining: Plan, frame: int
    ) -> list[Effect[State]]:
        assert self._repair is not None
        plan = self._repair.patch(remaining, state, agents)
        if plan is not None and (plan, self._situation(state)) in self._failed:
            plan = None
        error = "" if plan is not None else "no patch is good enough"
        text = "" if plan is None else format_plan(plan)
        self._cause = cause
        self._note(reason, "repair", plan, frame, PlanAnswer(plan, text, 0.0), error)
        return [] if plan is None else [self._follow(plan, state, reason)]

    def _follow(self, plan: Plan, state: State, reason: str) -> Follow:
        self.plan, self._made_in = plan, self._situation(state)
        self.epoch += 1
        self.sound, self._fruitless = True, 0
        return Follow(self.epoch, plan, reason)

    def _works(self, plan: Plan, state: State, frame: int) -> bool:
        """Whether the plan succeeds from this state, if nothing else happens."""
        left = max(1, self._imagined.horizon - frame)
        return roll_out(ChainExecutor(self._imagined, plan), state, left).success

    def _situation(self, state: State) -> Hashable:
        return self._domain.situation(state) if isinstance(self._domain, Situated) else state

    def _note(self, reason: str, source: str, plan: Plan | None, frame: int, answer: PlanAnswer, error: str) -> None:
        self.records.append(
            PlanRecord(
                frame,
                reason,
                "repair" if source == "repair" else "coordinator",
                plan,
                answer.text,
                answer.seconds,
                answer.prompt_tokens,
                answer.tokens,
                error,
                self._cause,
            )
        )
