"""Labelled slots for the staleness detector of the arms: controlled episodes in imagined slots, judged by the oracle.

The episodes are the real ones (`control.team`: mirror, follower, planner, repair, disturbances) on a plant without
physics, so what the network sees in training is what it sees in execution: the state that the twin mirrors when a slot
opens, with stops and blocks of unknown length, and what the follower says is left of the plan. The detector of the
graph also looks while a slot is open, so from slots without an event other samples are made, in which one happens just
then. The label is the verdict of the roll-out oracle, which alone knows how long stops and blocks will last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyarm_core.bench.in_process import EpisodeOptions, InProcessEpisode
from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.chains.terms import Plan
from polyarm_core.control.disturbance import KINDS, Disturber, ScheduledEvent, kinds_of
from polyarm_core.control.episode import IDLE_SLOT, STUCK
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.control.modes import Control
from polyarm_core.control.team import ControlledTeam
from polyarm_core.coordinator.interface import PlanAnswer, PlanRequest
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.errors import InvalidValue
from polyarm_core.llm.heuristic_backend import HeuristicModel
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.psd.data import CLEAN, Samples, join, start_plans
from polyarm_core.psd.oracle import RollOutOracle
from polyarm_core.psd.tensors import REFERENCE_FRAMES, FrameHistory, Shape, incidence
from polyarm_core.world import WorldView

SHAPE = Shape(agents=6, entities=32, steps=16, features=16)
"""Room for every packaged scenario; no weight depends on the number of entities."""
EVENTS: tuple[str, ...] = KINDS
MOST_EVENTS = 5  # of an episode
LAST_SLOT = 6  # in which an event falls due: undisturbed, a task takes two to seven
OTHER_PLANS = 4  # that succeed as well, beside the fastest
OTHER_PLAN = 0.3  # share of answers of the coordinator that are one of these
SPURIOUS = 0.04  # chance of an alarm without reason in a slot
NEVER = 99
WITHIN = 2  # events tried within each slot whose plan is good, one at a time
WITHIN_KINDS = ("A1", "A1", "A1", "A2", "A2", "A3", "A4")  # drawn from; a slip leaves nothing behind
KIND_OF = {"A1": "moved", "A2": "dropped", "A3": "stopped", "A4": "blocked"}
AHEAD = 40
"""Slots of a roll-out at most: several times what a task takes with all that may happen in it."""


class Moody:
    """The search coordinator, which sometimes answers with another plan that succeeds: teams meet more than one."""

    name = "search"

    def __init__(self, domain: ArmsDomain) -> None:
        self._domain = domain
        self._search: SearchCoordinator[ArmsState] = SearchCoordinator(domain)
        self._others: dict[ArmsState, tuple[Plan, ...]] = {}
        self.rng = np.random.default_rng(0)

    def plan(self, request: PlanRequest[ArmsState]) -> PlanAnswer:
        """See `Coordinator`."""
        answer = self._search.plan(request)
        if answer.plan is None or self.rng.random() >= OTHER_PLAN:
            return answer
        key = self._domain.situation(request.state)
        if key not in self._others:
            self._others[key] = start_plans(self._domain, request.state, OTHER_PLANS)
        others = self._others[key]
        return PlanAnswer(others[int(self.rng.integers(len(others)))], "", 0.0) if others else answer


class WatchedDisturber:
    """A disturber of which is known what each event has changed.

    Args:
        plant: of the episode.
        domain: of the plant's scenario.
        schedule: what happens.

    Attributes:
        disturber: whom it watches.
        news: kinds and changed entities since they were last taken.
    """

    def __init__(self, plant: KinematicPlant, domain: MirroredArms, schedule: Sequence[ScheduledEvent]) -> None:
        self.disturber = Disturber(plant, domain, schedule)
        self.news: list[tuple[str, frozenset[str]]] = []
        self._plant, self._domain = plant, domain
        self._last = max((event.slot for event in schedule), default=0)
        self._pending = len(schedule)

    def before_slot(self, slot: int) -> None:
        """See `bench.in_process.Happenings`."""
        self._watch(lambda: self.disturber.before_slot(slot), slot)

    def in_slot(self, slot: int) -> None:
        """See `bench.in_process.Happenings`."""
        self._watch(lambda: self.disturber.in_slot(slot), slot)

    def _watch(self, happen: Callable[[], None], slot: int) -> None:
        if not self._pending:
            happen()
            return
        before, known = self._attributes(slot), len(self.disturber.happened)
        held = self._plant.held_conditions()
        happen()
        new = self.disturber.happened[known:]
        if not new:
            return
        self._pending -= len(new)
        after = self._attributes(slot)
        changed = {name for name, values in after.items() if values != before[name]}
        changed |= held - self._plant.held_conditions() if any(event.kind == "slipped" for event in new) else set()
        self.news += [(event.kind, frozenset(changed)) for event in new]

    def _attributes(self, slot: int) -> dict[str, Mapping[str, Any]]:
        view = WorldView(self._domain.scenario, self._plant.world())
        state = self._domain.world.observe(
            view, slot, self.disturber.stopped(slot), dict.fromkeys(view.world.blocked, 1)
        )
        return {entity.name: dict(entity.values) for entity in self._domain.entities(state)}


@dataclass(frozen=True)
class Mood:
    """When a recorder asks for another plan: drawn for each episode, so that stale plans are seen to go on for a while.

    Attributes:
        patience: slots for which a stale plan is followed all the same; ``NEVER`` = the executor has to find out.
        spurious: chance of an alarm without reason in a slot.
    """

    patience: int
    spurious: float


class SlotRecorder:
    """A staleness detector that knows the truth and writes down what a network would have seen.

    Args:
        domain: in which roll-outs are made.
        watched: tells what has happened, and how long stops and blocks last.
        mood: when it asks for another plan.
        rng: draws alarms without reason.
        number, episode: of scenario and episode, written into the samples.
        shape: of the tensors.
    """

    threshold = 0.5

    def __init__(
        self,
        domain: ArmsDomain,
        watched: WatchedDisturber,
        mood: Mood,
        rng: np.random.Generator,
        number: int,
        episode: int,
        shape: Shape,
    ) -> None:
        self._domain, self._watched, self._mood, self._rng = domain, watched, mood, rng
        self._number, self._episode, self._shape = number, episode, shape
        self._rows = {name: row for row, name in enumerate(domain.entity_rows)}
        self._oracle: RollOutOracle[ArmsState] = RollOutOracle(domain)
        self._history = FrameHistory(domain, shape)
        self._slots: list[list[Any]] = [[] for _ in fields(Samples)]
        self._within: list[list[Any]] = [[] for _ in fields(Samples)]
        self._event, self._delay, self._changed = CLEAN, 0, frozenset[str]()
        self._stale_for = 0
        self._planned = False

    def reset(self, plan: Plan) -> None:
        """See `StalenessDetector`; what the coordinator has taken into account is no news."""
        self._planned = True
        self._history.restart()
        self._oracle.forget()
        self._event, self._stale_for = CLEAN, 0
        self._watched.news.clear()

    def observe(self, state: ArmsState, remaining: Plan) -> float:
        """Write the slot down; 1 where another plan is asked for."""
        x, d = self._history.push(state)
        if not self._planned:
            return 0.0
        stale = self._stale(state, remaining)
        self._stale_for = self._stale_for + 1 if stale else 0
        self._note_event(stale)
        asks = self._stale_for > self._mood.patience or self._rng.random() < self._mood.spurious
        if self._delay >= REFERENCE_FRAMES:  # nothing of the event can be seen any more: no network could tell
            return float(asks)
        self._write(self._slots, state, remaining, (x, d), self._event, self._delay, stale, self._changed)
        if self._event == CLEAN and not stale:
            self._happen_within(state, remaining)
        return float(asks)

    def _happen_within(self, state: ArmsState, remaining: Plan) -> None:
        """Samples of the same slot in which something happens while it is open."""
        before = {entity.name: dict(entity.values) for entity in self._domain.entities(state)}
        for _ in range(WITHIN):
            name = WITHIN_KINDS[int(self._rng.integers(len(WITHIN_KINDS)))]
            after = self._domain.disturb(state, name, self._rng.random())
            if after is None:
                continue
            oracle: RollOutOracle[ArmsState] = RollOutOracle(self._domain)
            stale = oracle.stale(ChainExecutor(self._domain, remaining), after, self._left(state))
            entities = self._domain.entities(after)
            changed = frozenset(entity.name for entity in entities if dict(entity.values) != before[entity.name])
            event, seen = EVENTS.index(KIND_OF[name]), self._history.between(state, after)
            self._write(self._within, after, remaining, seen, event, 0, stale, changed)

    def _write(
        self,
        columns: list[list[Any]],
        state: ArmsState,
        remaining: Plan,
        seen: tuple[NDArray[np.float32], NDArray[np.float32]],
        event: int,
        delay: int,
        stale: bool,
        changed: frozenset[str],
    ) -> None:
        refers = incidence(self._domain, state, remaining, "refers", self._shape)
        depends = incidence(self._domain, state, remaining, "depends", self._shape)
        rows = [self._rows[name] for name in changed if name in self._rows]
        unmarked = event != CLEAN and not refers[:, rows].any()
        kept = (self._number, self._episode, state.slot, event, delay, stale, unmarked)
        for column, value in zip(columns, (refers, depends, *seen, *kept), strict=True):
            column.append(value)

    def _left(self, state: ArmsState) -> int:
        return min(AHEAD, self._domain.horizon - state.slot)

    def samples(self) -> tuple[Samples | None, Samples | None]:
        """Slots as they opened, and those in which something happened within; None where there are none."""
        return _table(self._slots), _table(self._within)

    def _stale(self, state: ArmsState, remaining: Plan) -> bool:
        slot = state.slot + 1
        stopped, blocked = self._watched.disturber.stopped(slot), self._watched.disturber.blocked(slot)
        real = state._replace(
            stopped=tuple(stopped.get(a, left) for a, left in zip(self._domain.agents, state.stopped, strict=True)),
            blocked=tuple(sorted((name, blocked.get(name, left)) for name, left in state.blocked)),
        )
        executor: ChainExecutor[ArmsState] = ChainExecutor(self._domain, remaining)
        return self._oracle.stale(executor, real, self._left(state))

    def _note_event(self, stale: bool) -> None:
        """An event goes on while it shows in ``D``, and as long as the plan that it has broken is followed."""
        news, self._watched.news = self._watched.news, []
        if news:
            self._event, self._delay = EVENTS.index(news[-1][0]), 0
            self._changed = frozenset().union(*(changed for _, changed in news))
        elif self._event != CLEAN:
            self._delay += 1
            if self._delay >= REFERENCE_FRAMES and not stale:
                self._event = CLEAN
        if self._event == CLEAN:
            self._delay = 0


def _table(columns: Sequence[Sequence[Any]]) -> Samples | None:
    if not columns[0]:
        return None
    types: tuple[Any, ...] = (np.uint8, np.uint8, np.float32, np.float32, *[np.int32] * 5, np.uint8, np.uint8)
    return Samples(*(np.array(column, dtype=kind) for column, kind in zip(columns, types, strict=True)))


def draw_mood(rng: np.random.Generator) -> Mood:
    """Half of the recorders ask at once, others late, or only for no reason."""
    return Mood(int(rng.choice([0, 0, 0, 1, 2, NEVER])), SPURIOUS * float(rng.random() < 0.5))


def draw_events(kinds: Sequence[str], rng: np.random.Generator) -> tuple[ScheduledEvent, ...]:
    """None to a few events of an episode."""
    count = int(rng.integers(MOST_EVENTS + 1))
    slots = rng.integers(2, LAST_SLOT + 1, size=count)
    chosen = rng.integers(len(kinds), size=count)
    draws = rng.random(count)
    return tuple(
        sorted(ScheduledEvent(int(s), kinds[k], float(d)) for s, k, d in zip(slots, chosen, draws, strict=True))
    )


class SlotSampler:
    """Plays controlled episodes of one scenario and turns their slots into samples; see `Samples`.

    Args:
        scenario: name or path.
        number: of the scenario, written into the samples.
        shape: of the tensors.
    """

    def __init__(self, scenario: str, number: int, shape: Shape = SHAPE) -> None:
        self.domain = ArmsDomain(scenario)
        shape.check(self.domain)
        self._number, self._shape = number, shape
        self._coordinator = Moody(self.domain)
        self._model = HeuristicModel()
        self._kinds = kinds_of(self.domain.scenario)

    def episode(self, number: int, rng: np.random.Generator) -> tuple[Samples | None, Samples | None]:
        """The slots of one episode in which there was a plan, and what might have happened within them."""
        domain, scenario = self.domain, self.domain.scenario
        seed = int(rng.integers(2**31))
        control = Control.PLANNED if rng.random() < 0.5 else Control.HYBRID
        schedule, mood = draw_events(self._kinds, rng), draw_mood(rng)
        self._coordinator.rng = rng
        plant = KinematicPlant(scenario, seed)
        watched = WatchedDisturber(plant, MirroredArms(domain), schedule)
        recorder = SlotRecorder(domain, watched, mood, rng, self._number, number, self._shape)
        mender: Repair[ArmsState] | None = Repair(domain) if rng.random() < 0.5 else None
        latency = float(rng.choice([0.0, 1.0, 2.5]))
        mirror = MirroredArms(domain)
        team = ControlledTeam(mirror, control, self._model, self._coordinator, mender, recorder, latency)
        options = EpisodeOptions(stuck=STUCK, idle_slot=IDLE_SLOT)
        InProcessEpisode(plant, options, team=lambda: team, happenings=lambda: watched).run(seed)
        return recorder.samples()


def generate_slots(
    scenarios: Sequence[str],
    episodes: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Samples, Samples]:
    """Samples of controlled episodes of several scenarios.

    Args:
        scenarios: names or paths; their places in this list are the numbers in the samples.
        episodes: of each.
        seed: the episode ``e`` of scenario ``m`` draws from ``default_rng([seed, m, e])``.
        progress: is told episodes done and all.

    Returns:
        slots as they opened, and those in which something happened within.

    Raises:
        InvalidValue: a scenario does not fit into ``SHAPE``, or nothing was sampled.
    """
    parts: tuple[list[Samples], list[Samples]] = ([], [])
    for number, name in enumerate(scenarios):
        sampler = SlotSampler(name, number)
        for index in range(episodes):
            episode = number * episodes + index
            found = sampler.episode(episode, np.random.default_rng([seed, number, index]))
            for part, samples in zip(parts, found, strict=True):
                if samples is not None:
                    part.append(samples)
            progress(episode + 1, len(scenarios) * episodes)
    if not parts[0] or not parts[1]:
        raise InvalidValue("episodes", episodes, "enough of them for slots with a plan")
    return join(parts[0]), join(parts[1])
