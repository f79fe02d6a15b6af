"""One episode with a coordinator: plan, execute, disturb, notice, correct (SyncPlan, Algorithm 1).

A frame: events that are due change the state; the executor and the staleness detector look at it; where the policy asks
for it the plan is repaired or replaced, once at most; then every agent acts.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, get_args

from polyarm_core.chains.executor import DETECTION_KINDS, ChainExecutor, Detection
from polyarm_core.chains.terms import Action, Plan
from polyarm_core.coordinator.interface import Coordinator, PlanRequest
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import Situated
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue, UnknownName

if TYPE_CHECKING:
    from polyarm_core.psd.detector import StalenessDetector

State = TypeVar("State", bound=Hashable)

Policy = Literal["never", "stall", "interval", "detector"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
RETRY = 4  # frames after which a coordinator without an answer, or with the same failed one, is asked again


class ScheduledEvent(Protocol):
    """A disturbance that was drawn beforehand."""

    @property
    def name(self) -> str:
        """Of the disturbance."""
        ...

    @property
    def frame(self) -> int:
        """First frame in which it may happen."""
        ...

    @property
    def draw(self) -> float:
        """Chooses victim and place."""
        ...

    @property
    def deferred(self) -> bool:
        """Where it does not apply in that frame, it waits for the first one where it does; else it is dropped."""
        ...


class Steps(Protocol):
    """What carries out steps instead of the domain, e.g. a package or a robot."""

    def step(self, state: Any, controls: Sequence[int]) -> Any:
        """The next state."""
        ...


@dataclass(frozen=True)
class PlanRecord:
    """A plan that was asked for.

    Attributes:
        frame: in which.
        reason: as in a request.
        source: ``coordinator`` or ``repair``.
        plan: None where there was none, or one that had failed before from the same state.
        text: of the answer.
        seconds: wall clock time.
        prompt_tokens, tokens: of a model.
        error: why there is no plan.
        cause: what was found, in words.
    """

    frame: int
    reason: str
    source: Literal["coordinator", "repair"]
    plan: Plan | None
    text: str = ""
    seconds: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    error: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Episode(Generic[State]):
    """What happened.

    Attributes:
        success: the task was done within the horizon.
        frames: until then; the horizon otherwise.
        plans: every plan that was asked for, in order; the first is the one of the start.
        detections: of the executor, in order; their frames are those of the episode.
        stale: frames in which the detector was above its threshold.
        events: (frame, name) of the disturbances that happened.
        moves: movement primitives (steps and turns) by agent.
        actions: finished actions by agent.
        planning_seconds: of coordinator and repair, as long as they say it took.
        detecting_seconds: of the staleness detector.
        execution_seconds: everything else.
        states: of every frame, the last one included, before the events of that frame; empty unless asked for.
        remaining: plan that was left at the beginning of every frame; empty unless asked for.
    """

    success: bool
    frames: int
    plans: tuple[PlanRecord, ...]
    detections: tuple[Detection, ...]
    stale: tuple[int, ...]
    events: tuple[tuple[int, str], ...]
    moves: tuple[int, ...]
    actions: tuple[int, ...]
    planning_seconds: float
    detecting_seconds: float
    execution_seconds: float
    states: tuple[State, ...] = ()
    remaining: tuple[Plan, ...] = ()

    @property
    def calls(self) -> int:
        """Calls of the coordinator."""
        return sum(record.source == "coordinator" for record in self.plans)

    @property
    def repairs(self) -> int:
        """Repairs that gave a plan: calls of the coordinator that were saved."""
        return sum(record.source == "repair" and record.plan is not None for record in self.plans)

    @property
    def deadlocks(self) -> int:
        """Cycles of waits."""
        return sum(detection.kind == "deadlock" for detection in self.detections)


def run_episode(
    domain: Domain[State],
    coordinator: Coordinator[State],
    detector: StalenessDetector | None = None,
    schedule: Sequence[ScheduledEvent] = (),
    *,
    repair: Repair[State] | None = None,
    policy: Policy = "detector",
    interval: int = 8,
    max_calls: int | None = None,
    plant: Steps | None = None,
    horizon: int | None = None,
    start: State | None = None,
    seed: int = 0,
    trace: bool = False,
) -> Episode[State]:
    """Run one episode.

    Args:
        domain: world and rules.
        coordinator: makes plans.
        detector: says when the rest of a plan is stale; only used with the policy ``detector``.
        schedule: events, drawn beforehand.
        repair: tried before the coordinator.
        policy: when the plan is corrected: ``never``; on what the executor finds (``stall``: deadlock, stall, no
            progress, end of all chains); on that and every ``interval`` frames; on that and on the ``detector``.
        interval: frames between two plans of the policy ``interval``.
        max_calls: of the coordinator, the first plan included; afterwards the last plan is carried out as it is, or
            repaired, whatever is found. Unlimited by default: a coordinator that is wrong every time is asked every few
            frames, and where that is a language model an episode takes minutes.
        plant: carries out the steps; the domain by default.
        horizon: frames; the domain's by default.
        start: first state; the domain's own by default.
        seed: of the domain's first state.
        trace: keep states and remaining plans.

    Raises:
        UnknownName: no such policy.
        InvalidValue: interval or calls below 1.
    """
    run = PlanningRun(
        domain, coordinator, detector, repair=repair, policy=policy, interval=interval, max_calls=max_calls
    )
    begin = time.perf_counter()
    state = domain.start(seed) if start is None else start
    limit = domain.horizon if horizon is None else horizon
    carrier: Steps = domain if plant is None else plant
    pending = list(schedule)
    events: list[tuple[int, str]] = []
    moves, actions = [0] * len(domain.agents), [0] * len(domain.agents)
    states: list[State] = []
    lefts: list[Plan] = []
    frame = 0
    while not domain.succeeded(state) and frame < limit:
        if trace:
            states.append(state)
        state, happened, pending = disturbed(domain, state, pending, frame)
        events += [(frame, name) for name in happened]
        run.decide(state, bool(happened))
        executor = run.executor
        if trace:
            lefts.append(executor.remaining())
        intents = executor.intents(state)
        pointers = executor.pointers()
        controls = domain.control(state, intents)
        after: State = carrier.step(state, controls)
        run.learn(state, controls, after)
        for i, passed in enumerate(executor.pointers()):
            actions[i] += passed > pointers[i] and isinstance(intents[i], Action)
            moves[i] += _moved(domain, controls[i])
        state = after
        frame += 1
    seconds = time.perf_counter() - begin
    if trace:
        states.append(state)
    return Episode(
        success=domain.succeeded(state),
        frames=frame,
        plans=tuple(run.plans),
        detections=tuple(run.detections),
        stale=tuple(run.stale),
        events=tuple(events),
        moves=tuple(moves),
        actions=tuple(actions),
        planning_seconds=run.planning,
        detecting_seconds=run.detecting,
        execution_seconds=seconds - run.waited - run.detecting,
        states=tuple(states),
        remaining=tuple(lefts),
    )


def disturbed(
    domain: Domain[State], state: State, pending: Sequence[ScheduledEvent], frame: int
) -> tuple[State, list[str], list[ScheduledEvent]]:
    """State after the events that are due, their names, and what is still pending."""
    happened, still = [], []
    for event in pending:
        after = domain.disturb(state, event.name, event.draw) if event.frame <= frame else None
        if after is not None:
            state = after
            happened.append(event.name)
        elif event.frame > frame or event.deferred:
            still.append(event)
    return state, happened, still


def _moved(domain: Domain[Any], control: int) -> bool:
    """Whether a control is a movement; a domain that does not say has none to count."""
    return control in getattr(domain, "movements", ())


class PlanningRun(Generic[State]):
    """The part of an episode that plans, notices and corrects; the world is elsewhere.

    A frame is::

        run.decide(state, happened)
        controls = domain.control(state, run.executor.intents(state))
        run.learn(state, controls, after)

    Args:
        domain, coordinator, detector, repair, policy, interval, max_calls: as in :func:`run_episode`.
        frame: in which it begins; the first plan is asked for in it.

    Attributes:
        executor: of the plan that is followed.
        frame: that comes next, or is being decided.
        plans, detections, stale: as in :class:`Episode`.
        planning, detecting: s of wall clock time; planning as the coordinator says, where that is more: an answer from
            memory costs what it took to write.
        waited: s of wall clock time that coordinator and repair took here.

    Raises:
        UnknownName: no such policy.
        InvalidValue: interval or calls below 1.
    """

    def __init__(
        self,
        domain: Domain[State],
        coordinator: Coordinator[State],
        detector: StalenessDetector | None = None,
        *,
        repair: Repair[State] | None = None,
        policy: Policy = "detector",
        interval: int = 8,
        max_calls: int | None = None,
        frame: int = 0,
    ) -> None:
        if policy not in POLICIES:
            raise UnknownName("policy", policy, POLICIES)
        if interval < 1:
            raise InvalidValue("interval", interval, "at least 1 frame")
        if max_calls is not None and max_calls < 1:
            raise InvalidValue("max_calls", max_calls, "at least 1 call")
        self._domain, self._coordinator, self._repair = domain, coordinator, repair
        self._detector = detector if policy == "detector" else None
        self._policy, self._interval = policy, interval
        self._calls_left = max_calls  # None: as many as it takes
        self.executor: ChainExecutor[State] = ChainExecutor(domain, Plan(()), frame=frame)
        self.frame = self._first = frame
        self.plans: list[PlanRecord] = []
        self.detections: list[Detection] = []
        self.stale: list[int] = []
        self.planning = self.detecting = self.waited = 0.0
        self._found: list[Detection] = []  # not acted upon yet
        self._is_stale = False
        self._history: list[str] = []
        self._running: tuple[Plan | None, Hashable] = (None, None)  # the plan, and the situation in which it was made
        self._failed: set[tuple[Plan | None, Hashable]] = set()  # such pairs that came to nothing
        self._retry = -1  # frame in which a coordinator that gave nothing is asked again

    def decide(self, state: State, happened: bool) -> None:
        """Look at the state of this frame and correct the plan where the policy asks for it, once at most.

        Args:
            state: of this frame, after the events.
            happened: there were events, so that it is not what the frame before led to.
        """
        if happened:
            self.changed()
        if self.frame == self._first:
            self.ask(state, "start", "")
            return
        self.look(state)
        due = self._policy == "interval" and self.frame % self._interval == 0
        reason, cause, agents = self.trouble(due)
        if reason and self._policy != "never":
            self.correct(state, reason, cause, agents)

    def learn(self, before: State, controls: Sequence[int], after: State) -> None:
        """Take in what this frame's controls led to, before the events of the next one."""
        self.take(self.executor.advance(before, controls, after))
        self.frame += 1

    def changed(self) -> None:
        """Something happened: an old failure says nothing about what works now."""
        self._failed.clear()
        self._retry = self.frame if self._retry >= 0 else -1

    def look(self, state: State) -> None:
        """What executor and detector find in the state of this frame."""
        self.take(self.executor.check(state))
        if self._detector is not None:
            begin = time.perf_counter()
            probability = self._detector.observe(state, self.executor.remaining())
            self.detecting += time.perf_counter() - begin
            self._is_stale = probability > self._detector.threshold
            if self._is_stale:
                self.stale.append(self.frame)

    def take(self, detections: Sequence[Detection]) -> None:
        """Remember what was found."""
        self.detections += detections
        self._found += detections

    def trouble(self, due: bool) -> tuple[str, str, tuple[str, ...]]:
        """(reason, cause in words, agents) for a correction; an empty reason = none."""
        if self._found:
            first, self._found = self._found[0], []
            return first.kind, first.reason, first.agents
        if self._is_stale:
            return "stale", "the world has changed", ()
        if self._retry >= 0 and self.frame >= self._retry:
            return self.plans[-1].reason, "there was no new plan", ()
        return ("interval", "", ()) if due else ("", "", ())

    def correct(self, state: State, reason: str, cause: str, agents: Sequence[str]) -> None:
        """Mend the plan or replace it."""
        remaining = self.executor.remaining()
        if self._repair is not None and reason not in ("interval", "chain_end") and self._retry < 0:
            begin = time.perf_counter()
            plan = self._repair.patch(remaining, state, agents)
            seconds = time.perf_counter() - begin
            self.planning += seconds
            self.waited += seconds
            error = "" if plan is not None else "no patch is good enough"
            self.plans.append(PlanRecord(self.frame, reason, "repair", plan, "", seconds, error=error, cause=cause))
            if plan is not None:
                self._execute(plan, state)
                return
        self.ask(state, reason, cause)

    def ask(self, state: State, reason: str, cause: str) -> None:
        """Ask the coordinator, and execute what it answers unless that has just failed here."""
        if self._calls_left is not None:
            if self._calls_left == 0:
                self._retry = -1  # there is nobody to ask again; a repair is tried whenever something is found
                return
            self._calls_left -= 1
        previous = None if reason == "start" else self.executor.remaining()
        if reason in DETECTION_KINDS:
            self._failed.add(self._running)
        if cause:
            self._history.append(f"frame {self.frame}: {cause}")
        begin = time.perf_counter()
        request = PlanRequest(state, reason, previous, tuple(self._history), self.frame)
        answer = self._coordinator.plan(request)
        waited = time.perf_counter() - begin
        seconds = max(answer.seconds, waited)
        self.planning += seconds
        self.waited += waited
        plan, error = answer.plan, answer.error
        if plan is not None and (plan, self._situation(state)) in self._failed:
            plan, error = None, "the same plan from the same state has failed before"
            self._history.append(f"frame {self.frame}: {error}")
        self.plans.append(
            PlanRecord(
                self.frame,
                reason,
                "coordinator",
                plan,
                answer.text,
                seconds,
                answer.prompt_tokens,
                answer.tokens,
                error,
                cause,
            )
        )
        if plan is None:
            self._retry = self.frame + RETRY
            return
        self._execute(plan, state)

    def _situation(self, state: State) -> Hashable:
        return self._domain.situation(state) if isinstance(self._domain, Situated) else state

    def _execute(self, plan: Plan, state: State) -> None:
        self._running = (plan, self._situation(state))
        self._retry = -1
        self._is_stale = False
        self._found = []
        self.executor.replace(plan)
        if self._detector is not None:
            self._detector.reset(plan)
