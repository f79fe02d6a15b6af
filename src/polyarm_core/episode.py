"""One episode's figures from the events of its graph, and the series of episodes that a run goes through.

Two pure state machines, fed with events and receive times (any steady clock, seconds). :class:`EpisodeTally` counts
what one episode came to and says when it is over; :class:`EpisodeSeries` resets the world for one seed after another.
The episode monitor feeds them live, the bag reader feeds the tally from a recording, so both give the same table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from polyarm_core.bench.figures import Figures
from polyarm_core.bench.statistics import percentile
from polyarm_core.errors import InvalidValue, PolyarmError

#: Rules by which the twin vetoes an action, named as in ``ArmVerdict.msg``; silence is counted apart.
VETO_RULES = ("exclusion", "synchronisation", "produced", "held", "occupied", "dead_end", "illegal")
SILENT = "silent"
FALLBACK = "fallback"
#: What decides in an arm's own model; the heuristic stands in for one.
MODELS = ("model", "heuristic")
#: Figures of the control by plans; they are shown where they are not zero.
PLAN_FIGURES = ("plan_calls", "plan_repairs", "plan_tokens", "plan_bytes", "detections", "disturbances")

SUCCESS = "success"
SLOT_LIMIT = "slots"
STUCK = "stuck"
TIME_LIMIT = "time"
ABORTED = "aborted"


@dataclass(frozen=True)
class Limits:
    """When an episode ends, and how patient its driver is. Times in seconds on the steady clock.

    Attributes:
        slots: slots that an episode may take.
        stuck: slots with reports but without an admitted action, in a row while no arm moves, after which the team is
            stuck.
        time: wall time that an episode may take.
        linger: how long the last messages may take to come in after the end, before the figures are taken.
        settle: how long the arms may take to come to rest after it.
        start: how long to wait for the graph before the first reset.
        reset: deadline of one reset of the world.
        resets: how often a reset is tried for one seed.
    """

    slots: int = 80
    stuck: int = 10
    time: float = 900.0
    linger: float = 0.3
    settle: float = 20.0
    start: float = 180.0
    reset: float = 30.0
    resets: int = 3

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not value > 0:
                raise InvalidValue(f"limits.{item.name}", value, "a number above 0")


@dataclass(frozen=True)
class Opening:
    """The twin opened a slot."""

    slot: int
    at: float


@dataclass(frozen=True)
class Report:
    """One intent report was heard. ``size`` is its serialised length in bytes, times are in seconds."""

    arm: str
    epoch: int
    sequence: int
    slot: int
    at: float
    size: int
    decided_by: str = ""
    decision_time: float = 0.0
    model_time: float = 0.0
    prompt_tokens: int = 0


@dataclass(frozen=True)
class Answer:
    """The twin's answer to one arm: ``decision`` admit, yield or wait; ``acts``: the action is not stay."""

    arm: str
    decision: str
    rule: str = ""
    acts: bool = True


@dataclass(frozen=True)
class Verdict:
    """The twin arbitrated a slot."""

    epoch: int
    slot: int
    at: float
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Result:
    """An action ended; ``failed`` when it was carried out in vain (not when it was stopped or refused).

    ``sim_time``: s since the episode began, of the end.
    """

    epoch: int
    sequence: int
    failed: bool
    sim_time: float = 0.0


@dataclass(frozen=True)
class Plant:
    """The world as the plant sees it, as far as an episode's end depends on it; ``busy``: some arm moves."""

    epoch: int
    seed: int
    at: float
    sim_time: float
    success: bool
    busy: bool
    arm_contacts: int


@dataclass(frozen=True)
class PlanCall:
    """A plan was asked for, or mended without asking (``repair``); ``planned``: one came of it.

    ``tokens``: read and written by the coordinator's model.
    """

    epoch: int
    sequence: int
    repair: bool
    planned: bool
    tokens: int = 0


@dataclass(frozen=True)
class PlanTraffic:
    """A message of the control by plans was heard: ``kind`` is its topic, ``size`` its serialised length in bytes."""

    kind: str
    epoch: int
    sequence: int
    size: int


@dataclass(frozen=True)
class Detection:
    """The team was found not to get on by itself."""

    epoch: int
    sequence: int


@dataclass(frozen=True)
class Disturbance:
    """Something happened to the plant beside what the arms did."""

    epoch: int
    sequence: int


Event = Opening | Report | Verdict | Result | Plant | PlanCall | PlanTraffic | Detection | Disturbance


@dataclass(frozen=True)
class EpisodeSummary:
    """What one episode came to: the fields of ``EpisodeResult.msg``, and the samples behind its percentiles.

    ``reason`` is empty for a success, else ``slots``, ``stuck``, ``time`` or ``aborted``, and ``text`` may say more.
    ``decision_times``: slot opening to each report (s); ``verdict_times``: slot opening to verdict (s);
    ``model_times``: wait for the model (s) where one was asked; ``decided_by``: reports by what decided.
    ``plan_calls``: of the coordinator; ``plan_repairs``: plans that were mended without one; ``plan_tokens``: read and
    written by its model; ``plan_bytes``: serialised plans, plan states and replan requests.
    """

    scenario: str
    episode: int
    seed: int
    success: bool
    reason: str = ""
    slots: int = 0
    reports: int = 0
    uplink_bytes: int = 0
    admitted: int = 0
    vetoes_exclusion: int = 0
    vetoes_synchronisation: int = 0
    vetoes_produced: int = 0
    vetoes_held: int = 0
    vetoes_occupied: int = 0
    vetoes_dead_end: int = 0
    vetoes_illegal: int = 0
    silent: int = 0
    failed_actions: int = 0
    arm_contacts: int = 0
    prompt_tokens: int = 0
    control: str = "reactive"
    disturb: str = "none"
    plan_calls: int = 0
    plan_repairs: int = 0
    plan_tokens: int = 0
    plan_bytes: int = 0
    detections: int = 0
    disturbances: int = 0
    decision_p50: float = 0.0
    decision_p99: float = 0.0
    verdict_p50: float = 0.0
    verdict_p99: float = 0.0
    sim_time: float = 0.0
    wall_time: float = 0.0
    text: str = ""
    decided_by: dict[str, int] = field(default_factory=dict)
    decision_times: tuple[float, ...] = ()
    verdict_times: tuple[float, ...] = ()
    model_times: tuple[float, ...] = ()

    @property
    def vetoes(self) -> int:
        """Vetoes by all rules together; silence is none."""
        return sum(getattr(self, f"vetoes_{rule}") for rule in VETO_RULES)

    @property
    def model_calls(self) -> int:
        """Decisions of the arms' own models and calls of the coordinator together."""
        return sum(self.decided_by.get(name, 0) for name in MODELS) + self.plan_calls

    def to_json(self) -> dict[str, Any]:
        """A flat object for one line of ``episodes.jsonl``."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EpisodeSummary:
        """The inverse of :meth:`to_json`.

        Raises:
            InvalidValue: a key is unknown or one without default is missing.
        """
        known = {item.name for item in fields(cls)}
        try:
            if unknown := set(data) - known:
                raise TypeError(f"unknown keys {', '.join(sorted(unknown))}")
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
            return cls(**values)
        except TypeError as error:
            raise InvalidValue("episode summary", data, f"the fields of EpisodeSummary ({error})") from None


class EpisodeTally:
    """Counts one episode. All events but world states may come in any order, and more than once.

    Args:
        scenario: its name.
        episode: number that the plant gave the episode.
        seed: seed of its start.
        limits: when it is over.
        at: receive time at which it began.
        control: who picks the actions: reactive, planned, hybrid.
        disturb: level of disturbances: none, standard, severe.
    """

    def __init__(
        self,
        scenario: str,
        episode: int,
        seed: int,
        limits: Limits,
        at: float,
        control: str = "reactive",
        disturb: str = "none",
    ) -> None:
        self.scenario = scenario
        self.control = control
        self.disturb = disturb
        self.episode = episode
        self.seed = seed
        self.limits = limits
        self.began = at
        self.plant: Plant | None = None
        self._succeeded: tuple[float, float] | None = None  # receive time, simulated time
        self._aborted = False
        self._idle_slots = 0
        self._contacts = 0
        self._openings: dict[int, float] = {}
        self._verdicts: dict[tuple[int, int], Verdict] = {}
        self._reports: dict[tuple[str, int, int], Report] = {}
        self._results: dict[tuple[int, int], Result] = {}
        self._calls: dict[tuple[bool, int, int], PlanCall] = {}
        self._traffic: dict[tuple[str, int, int], int] = {}
        self._detections: set[tuple[int, int]] = set()
        self._disturbances: set[tuple[int, int]] = set()

    def add(self, event: Event) -> None:
        """Take in one event of this episode. A repeated one changes nothing; the earliest of its kind counts."""
        if isinstance(event, Opening):
            self._openings[event.slot] = min(event.at, self._openings.get(event.slot, event.at))
        elif isinstance(event, Report):
            key = (event.arm, event.epoch, event.sequence)
            known = self._reports.get(key)
            if known is None or event.at < known.at:
                self._reports[key] = event
        elif isinstance(event, Verdict):
            self._add_verdict(event)
        elif isinstance(event, Result):
            self._results.setdefault((event.epoch, event.sequence), event)
        elif isinstance(event, PlanCall):
            self._calls.setdefault((event.repair, event.epoch, event.sequence), event)
        elif isinstance(event, PlanTraffic):
            self._traffic.setdefault((event.kind, event.epoch, event.sequence), event.size)
        elif isinstance(event, Detection):
            self._detections.add((event.epoch, event.sequence))
        elif isinstance(event, Disturbance):
            self._disturbances.add((event.epoch, event.sequence))
        else:
            self._add_plant(event)

    def _add_verdict(self, verdict: Verdict) -> None:
        key = (verdict.epoch, verdict.slot)
        known = self._verdicts.get(key)
        if known is None:
            acted = any(answer.decision == "admit" and answer.acts for answer in verdict.answers)
            # Nobody is stuck who has not decided: no report came, or a model did not answer.
            undecided = all(answer.rule == SILENT for answer in verdict.answers) or any(
                report.slot == verdict.slot and report.decided_by == FALLBACK for report in self._reports.values()
            )
            if acted or self.busy:
                self._idle_slots = 0
            elif not undecided:
                self._idle_slots += 1
        if known is None or verdict.at < known.at:
            self._verdicts[key] = verdict

    def _add_plant(self, plant: Plant) -> None:
        if self.plant is not None and plant.epoch != self.plant.epoch:
            self._aborted = True  # the plant was started anew: this episode's world is gone
            return
        self.plant = plant
        self._contacts = max(self._contacts, plant.arm_contacts)
        if not plant.success:
            self._succeeded = None
        elif self._succeeded is None:
            self._succeeded = (plant.at, plant.sim_time)

    @property
    def slots(self) -> int:
        """Slots that were arbitrated."""
        return len({slot for _, slot in self._verdicts})

    @property
    def busy(self) -> bool:
        """Whether some arm still moves, by the newest world state."""
        return self.plant is not None and self.plant.busy

    def stop_reason(self, at: float) -> str | None:
        """Why the episode is over, or None while it goes on.

        Success is what the newest world state says: an entity that is knocked off its goal before the arms have come
        to rest takes it back.
        """
        if self._aborted:
            return ABORTED
        if self._succeeded is not None:
            return SUCCESS
        if self.slots >= self.limits.slots:
            return SLOT_LIMIT
        if self._idle_slots >= self.limits.stuck:
            return STUCK
        if at - self.began >= self.limits.time:
            return TIME_LIMIT
        return None

    def summary(self, at: float, reason: str | None = None) -> EpisodeSummary:
        """The figures as they stand at ``at``.

        Args:
            at: receive time of the end; a success counts from the moment it was reached.
            reason: overrides :meth:`stop_reason`; an episode without either is ``aborted``.
        """
        reason = reason or self.stop_reason(at) or ABORTED
        success = reason == SUCCESS
        end, sim_time = (at, self.plant.sim_time if self.plant else 0.0)
        if success and self._succeeded is not None:
            end, sim_time = self._succeeded
        # Worlds are sampled in wall time, ends of motions are not: the same episode takes the same simulated time.
        sim_time = max((result.sim_time for result in self._results.values()), default=0.0) or sim_time
        reports = sorted(self._reports.values(), key=lambda r: (r.at, r.arm, r.epoch, r.sequence))
        verdicts = sorted(self._verdicts.values(), key=lambda v: (v.at, v.epoch, v.slot))
        answers = [answer for verdict in verdicts for answer in verdict.answers]
        vetoes = Counter(answer.rule for answer in answers)
        # The monitor may hear an answer before the opening that it answers: never a negative latency.
        decisions = tuple(max(0.0, r.at - self._openings[r.slot]) for r in reports if r.slot in self._openings)
        latencies = tuple(max(0.0, v.at - self._openings[v.slot]) for v in verdicts if v.slot in self._openings)
        decided_by = Counter(report.decided_by for report in reports if report.decided_by)
        return EpisodeSummary(
            scenario=self.scenario,
            episode=self.episode,
            seed=self.seed,
            success=success,
            reason="" if success else reason,
            slots=self.slots,
            reports=len(reports),
            uplink_bytes=sum(report.size for report in reports),
            admitted=sum(answer.decision == "admit" and answer.acts for answer in answers),
            silent=vetoes[SILENT],
            failed_actions=sum(result.failed for result in self._results.values()),
            arm_contacts=self._contacts,
            prompt_tokens=sum(report.prompt_tokens for report in reports),
            control=self.control,
            disturb=self.disturb,
            plan_calls=sum(not call.repair for call in self._calls.values()),
            plan_repairs=sum(call.repair and call.planned for call in self._calls.values()),
            plan_tokens=sum(call.tokens for call in self._calls.values()),
            plan_bytes=sum(self._traffic.values()),
            detections=len(self._detections),
            disturbances=len(self._disturbances),
            decision_p50=percentile(decisions, 50) if decisions else 0.0,
            decision_p99=percentile(decisions, 99) if decisions else 0.0,
            verdict_p50=percentile(latencies, 50) if latencies else 0.0,
            verdict_p99=percentile(latencies, 99) if latencies else 0.0,
            sim_time=sim_time,
            wall_time=max(0.0, end - self.began),
            decided_by=dict(sorted(decided_by.items())),
            decision_times=tuple(round(value, 6) for value in decisions),
            verdict_times=tuple(round(value, 6) for value in latencies),
            model_times=tuple(round(r.model_time, 6) for r in reports if r.model_time > 0.0),
            **{f"vetoes_{rule}": vetoes[rule] for rule in VETO_RULES},  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Reset:
    """Command: ask the plant for the start of ``seed``; its answer goes to :meth:`EpisodeSeries.reset_answered`."""

    seed: int
    request: int


@dataclass(frozen=True)
class Finished:
    """Command: publish and write down this summary."""

    summary: EpisodeSummary


@dataclass(frozen=True)
class Done:
    """Command: all seeds are through."""


Command = Reset | Finished | Done


class EpisodeSeries:
    """Drives one seed after another through reset, episode and settling.

    Args:
        scenario: its name.
        seeds: one episode each, in this order.
        limits: ends and deadlines.
        at: time of creation.
        control, disturb: of all episodes, see `EpisodeTally`.

    Call :meth:`step` often; it returns what is to be done. Nothing here waits.
    """

    def __init__(
        self,
        scenario: str,
        seeds: Sequence[int],
        limits: Limits,
        at: float,
        control: str = "reactive",
        disturb: str = "none",
    ) -> None:
        self._scenario = scenario
        self._control, self._disturb = control, disturb
        self._seeds = list(seeds)
        self._limits = limits
        self._created = at
        self._index = 0
        self._requests = 0
        self._attempts = 0
        self._asked_at: float | None = None  # a reset is under way since
        self._message = ""
        self._early: dict[int, EpisodeTally] = {}  # episodes heard of before the reset was answered
        self._last_episode = 0
        self._tally: EpisodeTally | None = None
        self._stopped_at: float | None = None
        self._done = False

    @property
    def tally(self) -> EpisodeTally | None:
        """The running episode."""
        return self._tally

    @property
    def seed(self) -> int | None:
        """Seed of the running or next episode; None after the last."""
        return self._seeds[self._index] if self._index < len(self._seeds) else None

    def event(self, episode: int, event: Event) -> None:
        """Take in an event of the episode with that number; those of other episodes change nothing."""
        seed = self.seed
        if seed is None:
            return
        if self._tally is not None:
            lost = isinstance(event, Plant) and self._tally.plant is not None and event.epoch != self._tally.plant.epoch
            if lost or episode == self._tally.episode:
                self._tally.add(event)
        elif self._asked_at is not None and episode > 0:
            # Graph and service are separate channels: the first slot can be heard before the answer to the reset.
            at = getattr(event, "at", self._asked_at)
            if episode not in self._early:
                self._early[episode] = self._tally_of(episode, seed, at)
            self._early[episode].add(event)

    def reset_answered(self, request: int, success: bool, episode: int, message: str, at: float) -> None:
        """The plant answered a reset; an answer to anything but the newest request changes nothing."""
        if request != self._requests or self._asked_at is None or self._tally is not None:
            return
        if success:
            self._begin(episode, at)
        else:
            self._asked_at = None
            self._message = message or "the plant refused the reset"

    def _begin(self, episode: int, at: float) -> None:
        assert self.seed is not None
        self._tally = self._early.pop(episode, None) or self._tally_of(episode, self.seed, at)
        self._early.clear()
        self._asked_at = None
        self._attempts = 0
        self._stopped_at = None

    def _tally_of(self, episode: int, seed: int, at: float) -> EpisodeTally:
        return EpisodeTally(self._scenario, episode, seed, self._limits, at, self._control, self._disturb)

    def step(self, at: float, ready: bool) -> list[Command]:
        """What is to be done now.

        Args:
            at: steady time.
            ready: the graph is complete (the reset service, the twin, all agents and what plans are there).
        """
        if self._done:
            return []
        seed = self.seed
        if seed is None:
            self._done = True
            return [Done()]
        if self._tally is not None:
            return self._step_running(self._tally, at)
        if self._asked_at is not None:
            if at - self._asked_at < self._limits.reset:
                return []
            # The answer may have been lost while the reset was carried out: then the world shows the seed.
            for episode, tally in sorted(self._early.items()):
                if episode != self._last_episode and tally.plant is not None and tally.plant.seed == seed:
                    self._begin(episode, at)
                    return []
            self._asked_at = None
            self._message = f"no answer to the reset within {self._limits.reset:g} s"
        if self._attempts >= self._limits.resets:
            return self._give_up(at)
        if not ready:
            if at - self._created < self._limits.start:
                return []
            self._message = f"the graph was not complete within {self._limits.start:g} s"
            return self._give_up(at)
        self._requests += 1
        self._attempts += 1
        self._asked_at = at
        self._early.clear()
        return [Reset(seed, self._requests)]

    def _step_running(self, tally: EpisodeTally, at: float) -> list[Command]:
        reason = tally.stop_reason(at)
        if reason is None:
            self._stopped_at = None
            return []
        if self._stopped_at is None:
            self._stopped_at = at
        resting = reason == ABORTED or not tally.busy
        if at - self._stopped_at < (self._limits.linger if resting else self._limits.settle):
            return []
        return [Finished(self._finish(tally.summary(self._stopped_at, reason)))]

    def _finish(self, summary: EpisodeSummary) -> EpisodeSummary:
        self._last_episode = summary.episode
        self._tally = None
        self._stopped_at = None
        self._attempts = 0
        self._index += 1
        return summary

    def _give_up(self, at: float) -> list[Command]:
        assert self.seed is not None
        del at
        summary = EpisodeSummary(
            self._scenario,
            0,
            self.seed,
            False,
            reason=ABORTED,
            text=self._message,
            control=self._control,
            disturb=self._disturb,
        )
        return [Finished(self._finish(summary))]

    def abort(self, at: float) -> EpisodeSummary | None:
        """The run is being stopped: the summary of the running episode as ``aborted``, None when none runs."""
        if self._tally is None:
            return None
        return self._finish(self._tally.summary(at, ABORTED))


def add_figures(figures: Figures, scenario: str, summaries: Iterable[EpisodeSummary]) -> None:
    """Add what a run came to, under ``<scenario>.``; percentiles are over all slots of all episodes.

    Raises:
        PolyarmError: there was no episode.
    """
    episodes = list(summaries)
    if not episodes:
        raise PolyarmError(f"no episode of {scenario!r} was finished, so there are no figures")
    add = figures.add
    add(f"{scenario}.episodes", len(episodes))
    figures.rate(f"{scenario}.success_rate", sum(e.success for e in episodes), len(episodes))
    add(f"{scenario}.aborted", sum(e.reason == ABORTED for e in episodes))
    add(f"{scenario}.arm_contacts", sum(e.arm_contacts for e in episodes))
    figures.distribution(f"{scenario}.slots", [e.slots for e in episodes], ("median", "max"), suffix="")
    for name in ("admitted", "silent", "failed_actions", "reports", "uplink_bytes", "prompt_tokens"):
        add(f"{scenario}.{name}", sum(getattr(e, name) for e in episodes))
    for rule in VETO_RULES:
        add(f"{scenario}.vetoes.{rule}", sum(getattr(e, f"vetoes_{rule}") for e in episodes))
    for name in sorted({name for e in episodes for name in e.decided_by}):
        add(f"{scenario}.decided_by.{name}", sum(e.decided_by.get(name, 0) for e in episodes))
    for name in PLAN_FIGURES:
        if total := sum(getattr(e, name) for e in episodes):
            add(f"{scenario}.{name}", total)
    if any(e.plan_calls for e in episodes):
        add(f"{scenario}.model_calls", sum(e.model_calls for e in episodes))
    for name in ("decision", "verdict", "model"):
        samples = [value for e in episodes for value in getattr(e, f"{name}_times")]
        if samples:
            figures.distribution(f"{scenario}.{name}", samples, ("p50", "p99"))
    for name in ("sim_time", "wall_time"):
        figures.distribution(f"{scenario}.{name}", [getattr(e, name) for e in episodes], ("median", "max"))
