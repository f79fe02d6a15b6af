"""Labelled frames for the staleness detector: disturbed episodes of a coordinator, labelled both ways.

* ``event``: the frame at which an event is injected is positive, every clean frame negative (the paper's label, A.6).
* ``oracle``: a frame is positive where the roll-out oracle finds that the remaining plan can no longer succeed.

The two disagree where an event leaves the plan intact. Frames in whose difference ``D`` an earlier event can still be
seen are neither event nor clean; they are kept apart to measure the delay of a detection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.chains.terms import Plan
from polyarm_core.coordinator.interface import Coordinator, PlanRequest
from polyarm_core.coordinator.repair import Repair
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.oracle import RollOutOracle
from polyarm_core.psd.tensors import REFERENCE_FRAMES, FrameHistory, Inputs, Shape, incidence

Label = Literal["event", "oracle"]
LABELS: tuple[Label, ...] = ("event", "oracle")

NEGATIVES = 5  # clean frames for each event (1:5)
FIRST_EVENT, LAST_EVENT = 5, 59  # frames in which an event may fall due
START_PLANS = 8  # different plans with which episodes on one map start
REPLAN_ANYWAY = 0.5  # share of events after which an intact plan is replaced as well, as by a detector that fires
REPAIR = 0.5  # share of replacements that are tried by repair first

CLEAN = -1  # number of the event in a frame without one
CONSTRUCTED = -2  # number of the event in a frame that was changed by ``exchange`` or ``noise``
CONSTRUCT = 2  # constructed changes tried for each event
TRIES = 4  # donors asked for one of them
NOISE_VALUES = (0.5, 0.75, 1.0)  # of a redrawn feature; 0 stands for an attribute that the entity does not have
NOISE_COLUMNS = 3  # redrawn at most
NOISE_MARGIN = 0.2  # least change that counts as one

State = TypeVar("State")


@dataclass(frozen=True)
class Samples:
    """Frames as a table, one array per column, all of the same length.

    Attributes:
        refers, depends: ``C`` by either relevance rule, shape (n, agents, entities, steps).
        state, difference: ``X`` and ``D``, shape (n, entities, features).
        domain: number of the map.
        episode: number of the episode over all maps.
        frame: of the episode.
        event: number of the event that this frame or, with a delay, an earlier one had; ``CLEAN`` without;
            ``CONSTRUCTED`` for a constructed change, only meant for training.
        delay: frames since that event.
        stale: verdict of the oracle for the plan in this frame, 0 or 1.
        unmarked: for events, whether no entity that the event changed is marked by ``refers``: the blind spot.
    """

    refers: NDArray[np.uint8]
    depends: NDArray[np.uint8]
    state: NDArray[np.float32]
    difference: NDArray[np.float32]
    domain: NDArray[np.int32]
    episode: NDArray[np.int32]
    frame: NDArray[np.int32]
    event: NDArray[np.int32]
    delay: NDArray[np.int32]
    stale: NDArray[np.uint8]
    unmarked: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.event)

    def where(self, rows: NDArray[Any] | slice) -> Samples:
        """The rows of a mask, an index or a slice."""
        return Samples(*(getattr(self, column.name)[rows] for column in fields(self)))

    def inputs(self, relevance: str) -> Inputs:
        """What the network sees, by one relevance rule."""
        return Inputs(self.refers if relevance == "refers" else self.depends, self.state, self.difference)

    def labels(self, label: Label) -> NDArray[np.uint8]:
        """Targets, 0 or 1, by one definition.

        Raises:
            UnknownName: no such label.
        """
        if label not in LABELS:
            raise UnknownName("label", label, LABELS)
        if label == "oracle":
            return self.stale
        return np.asarray((self.event != CLEAN) & (self.delay == 0), dtype=np.uint8)

    def save(self, path: Path) -> None:
        """Write as compressed ``.npz``."""
        np.savez_compressed(path, **{column.name: getattr(self, column.name) for column in fields(self)})

    @staticmethod
    def load(path: Path) -> Samples:
        """Read what ``save`` has written."""
        with np.load(path, allow_pickle=False) as file:
            return Samples(*(file[column.name] for column in fields(Samples)))


def join(parts: Sequence[Samples]) -> Samples:
    """One table of several; at least one."""
    return Samples(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Samples)))


@dataclass(frozen=True)
class EventDraw:
    """An event of an episode, drawn before it starts.

    Attributes:
        name: of the disturbance.
        due: first frame at which it may happen; it waits for the first frame where it applies.
        draw: uniform in [0, 1), selects victim and place.
    """

    name: str
    due: int
    draw: float


def draw_events(names: Sequence[str], rng: np.random.Generator) -> tuple[EventDraw, ...]:
    """Each event once, in random order, at distinct frames; earliest first."""
    order = rng.permutation(len(names))
    frames = np.sort(rng.choice(np.arange(FIRST_EVENT, LAST_EVENT + 1), size=len(names), replace=False))
    draws = rng.random(len(names))
    return tuple(
        EventDraw(names[kind], int(frame), float(draw)) for kind, frame, draw in zip(order, frames, draws, strict=True)
    )


def exchange(state: Any, donor: Any, rng: np.random.Generator) -> Any | None:
    """A constructed change: one element of one tuple of the state becomes what it is in another state of the same map.

    It knows no event and no rule of the domain, except that entries that differ from each other go on to do so (no two
    agents in one place). The paper makes its second training set in this way.

    Args:
        state: a named tuple, of which the fields that hold tuples take part.
        donor: another state.
        rng: draws field and element.

    Returns:
        The changed state; None where the two do not differ in a field of equal length, or entries would coincide.
    """
    options = [
        (name, index)
        for name, ours, theirs in zip(state._fields, state, donor, strict=True)
        if isinstance(ours, tuple) and len(ours) == len(theirs)
        for index in range(len(ours))
        if ours[index] != theirs[index]
    ]
    if not options:
        return None
    name, index = options[int(rng.integers(len(options)))]
    ours, theirs = getattr(state, name), getattr(donor, name)
    changed = (*ours[:index], theirs[index], *ours[index + 1 :])
    if len(set(ours)) == len(ours) > len(set(changed)):
        return None
    return state._replace(**{name: changed})


def start_plans(domain: Domain[Any], state: Any, limit: int) -> tuple[Plan, ...]:
    """Different plans that succeed from here undisturbed, in the order of the domain's candidates."""
    oracle: RollOutOracle[Any] = RollOutOracle(domain)
    plans: dict[Plan, None] = {}
    for plan in domain.candidates(state):
        oracle.forget()
        if not oracle.stale(ChainExecutor(domain, plan), state, domain.horizon):
            plans[plan] = None
            if len(plans) == limit:
                break
    return tuple(plans)


@runtime_checkable
class Varied(Protocol):
    """A coordinator that has several plans of its own kind for one request."""

    def variants(self, request: PlanRequest[Any], limit: int) -> tuple[Plan, ...]:
        """Different plans that succeed undisturbed, at most ``limit``."""
        ...


@dataclass(frozen=True)
class _Moment(Generic[State]):
    """A frame before its tensors are made: only a share of the clean frames is needed."""

    seen: tuple[State, ...]  # oldest first, the state of this frame last
    remaining: Plan
    frame: int
    event: int = CLEAN
    delay: int = 0
    stale: bool = False
    changed: frozenset[str] = frozenset()


class EpisodeSampler:
    """Plays disturbed episodes on one map and turns their frames into samples.

    Args:
        domain: the map.
        coordinators: make the plans, one of them those of an episode, in turn: a detector has to know the manner of
            whoever plans. One plan in two at the start is another one that succeeds as well.
        number: of the map, written into the samples.
        events: names of all disturbances that samples may carry; they are numbered in this order.
        shape: of the tensors.
    """

    def __init__(
        self,
        domain: Domain[Any],
        coordinators: Sequence[Coordinator[Any]],
        number: int,
        events: Sequence[str],
        shape: Shape,
    ) -> None:
        self._domain = domain
        self._coordinators = tuple(coordinators)
        self._repair: Repair[Any] = Repair(domain)
        self._number = number
        self._events = tuple(events)
        self._shape = shape
        self._first: dict[tuple[Any, int], tuple[Plan, ...]] = {}
        self._donors: list[Any] = []
        self._rows = domain.entity_rows

    def episode(self, number: int, names: Sequence[str], rng: np.random.Generator) -> Samples | None:
        """One episode with these events, once each; None where no event came to pass.

        Raises:
            InvalidValue: there is no plan from the start.
        """
        domain, oracle = self._domain, RollOutOracle(self._domain)
        turn = number % len(self._coordinators)
        due = deque(draw_events(names, rng))
        choice, start_seed = rng.random(), int(rng.integers(2**31))
        anyway, mend = rng.random(len(names)) < REPLAN_ANYWAY, rng.random(len(names)) < REPAIR
        state = domain.start(start_seed)
        plans = self._start_plans(state, turn)
        executor = ChainExecutor(domain, plans[int(max(0.0, 2 * choice - 1) * len(plans))])
        seen: deque[Any] = deque(maxlen=REFERENCE_FRAMES + 1)  # the first frame that is looked at is the second
        oracle.stale(executor, state, domain.horizon)
        clean: list[tuple[_Moment[Any], ChainExecutor[Any]]] = []
        marked: list[_Moment[Any]] = []
        visible = 0  # frames for which the last event still shows in D
        events = 0
        for frame in range(1, domain.horizon):
            controls = domain.control(state, executor.intents(state))
            after = domain.step(state, controls)
            executor.advance(state, controls, after)
            state, event, changed = self._disturbed(after, frame, due)
            if domain.succeeded(state) or executor.finished:
                break
            seen.append(state)
            stale = oracle.stale(executor, state, domain.horizon - frame)
            if event == CLEAN:
                if not visible and not stale:
                    clean.append((_Moment(tuple(seen), executor.remaining(), frame), executor.copy()))
                visible = max(0, visible - 1)
                continue
            moment = _Moment(tuple(seen), executor.remaining(), frame, event, 0, stale, changed)
            marked += [moment, *self._followed(moment, executor)]
            visible = REFERENCE_FRAMES - 1
            events += 1
            if stale or anyway[events - 1]:
                plan = self._repair.patch(moment.remaining, state) if mend[events - 1] else None
                if plan is None:
                    request = PlanRequest(state, "stale", moment.remaining, (), frame)
                    plan = self._coordinators[turn].plan(request).plan
                if plan is not None:
                    executor.replace(plan)
                    visible = 0
                    seen = deque([state], maxlen=REFERENCE_FRAMES + 1)
                    oracle.forget()
                    stale = oracle.stale(executor, state, domain.horizon - frame)
                if stale:
                    break
        if not events:
            return None
        order = rng.permutation(len(clean))
        chosen = [clean[index][0] for index in sorted(order[: NEGATIVES * events])]
        constructed: list[_Moment[Any]] = []
        for index in order[::-1][: CONSTRUCT * events]:
            original, then = clean[int(index)]
            made = self._constructed(original, then, rng)
            if made is not None:
                constructed.append(made)
        self._donors += [kept.seen[-1] for kept, _ in clean[:: len(clean) // 4 + 1]]
        return self._samples(number, [*marked, *chosen, *constructed])

    def _constructed(
        self, moment: _Moment[Any], executor: ChainExecutor[Any], rng: np.random.Generator
    ) -> _Moment[Any] | None:
        """The frame with a constructed change that shows in some attribute of an entity."""
        state = moment.seen[-1]
        for _ in range(TRIES if self._donors and len(moment.seen) > 1 else 0):
            after = exchange(state, self._donors[int(rng.integers(len(self._donors)))], rng)
            changed: frozenset[str] = frozenset() if after is None else self._changed(state, after)
            if changed and after is not None and not self._domain.succeeded(after):
                stale = RollOutOracle(self._domain).stale(executor, after, self._domain.horizon - moment.frame)
                seen = (*moment.seen[:-1], after)
                return _Moment(seen, moment.remaining, moment.frame, CONSTRUCTED, 0, stale, changed)
        return None

    def _start_plans(self, state: Any, turn: int) -> tuple[Plan, ...]:
        """The coordinator's plan first, then others."""
        if (state, turn) not in self._first:
            coordinator, request = self._coordinators[turn], PlanRequest(state)
            best = coordinator.plan(request).plan
            if best is None:
                raise InvalidValue("domain", self._domain.name, "a domain whose start the coordinator can plan from")
            if isinstance(coordinator, Varied):
                others = coordinator.variants(request, START_PLANS)
            else:
                others = start_plans(self._domain, state, START_PLANS)
            self._first[state, turn] = tuple(dict.fromkeys((best, *others)))
        return self._first[state, turn]

    def _disturbed(self, state: Any, frame: int, due: deque[EventDraw]) -> tuple[Any, int, frozenset[str]]:
        """The state after the first event that is due and applies, its number, and the entities that it changed."""
        for event in list(due):
            if event.due > frame:
                break
            after = self._domain.disturb(state, event.name, event.draw)
            if after is not None:
                due.remove(event)
                return after, self._events.index(event.name), self._changed(state, after)
        return state, CLEAN, frozenset()

    def _changed(self, before: Any, after: Any) -> frozenset[str]:
        """Entities whose attributes differ."""
        old = {entity.name: dict(entity.values) for entity in self._domain.entities(before)}
        return frozenset(e.name for e in self._domain.entities(after) if dict(e.values) != old.get(e.name))

    def _followed(self, moment: _Moment[Any], executor: ChainExecutor[Any]) -> list[_Moment[Any]]:
        """The frames after an event while it shows in ``D``, had nobody noticed it."""
        domain, copy, oracle = self._domain, executor.copy(), RollOutOracle(self._domain)
        seen = deque(moment.seen, maxlen=REFERENCE_FRAMES + 1)
        state, result = moment.seen[-1], []
        for delay in range(1, REFERENCE_FRAMES):
            controls = domain.control(state, copy.intents(state))
            after = domain.step(state, controls)
            copy.advance(state, controls, after)
            state, frame = after, moment.frame + delay
            if domain.succeeded(state) or copy.finished or frame >= domain.horizon:
                break
            seen.append(state)
            stale = oracle.stale(copy, state, domain.horizon - frame)
            result.append(_Moment(tuple(seen), copy.remaining(), frame, moment.event, delay, stale, moment.changed))
        return result

    def _samples(self, episode: int, moments: Sequence[_Moment[Any]]) -> Samples:
        columns: list[list[Any]] = [[] for _ in fields(Samples)]
        rows = {name: row for row, name in enumerate(self._rows)}
        for moment in moments:
            history = FrameHistory(self._domain, self._shape)
            for state in (moment.seen[0], moment.seen[-1]):
                x, d = history.push(state)
            refers = incidence(self._domain, moment.seen[-1], moment.remaining, "refers", self._shape)
            depends = incidence(self._domain, moment.seen[-1], moment.remaining, "depends", self._shape)
            unmarked = moment.event != CLEAN and not any(
                refers[:, rows[name]].any() for name in moment.changed if name in rows
            )
            kept = (self._number, episode, moment.frame, moment.event, moment.delay, moment.stale, unmarked)
            row = (refers, depends, x, d, *kept)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        types: tuple[Any, ...] = (np.uint8, np.uint8, np.float32, np.float32, *[np.int32] * 5, np.uint8, np.uint8)
        return Samples(*(np.array(column, dtype=kind) for column, kind in zip(columns, types, strict=True)))


def generate(
    domains: Sequence[Domain[Any]],
    coordinators: Sequence[Callable[[Domain[Any]], Coordinator[Any]]],
    *,
    events: Sequence[str],
    inject: Sequence[str],
    episodes: int,
    seed: int,
    shape: Shape | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Samples:
    """Samples of disturbed episodes on several maps.

    Args:
        domains: the maps.
        coordinators: each makes one for a map; they plan the episodes in turn.
        events: names of all disturbances in the order of their numbers.
        inject: those that an episode has, once each.
        episodes: for each map.
        seed: the episode ``e`` on map ``m`` draws from ``default_rng([seed, m, e])``.
        shape: of the tensors; the default has room for Overcooked.
        progress: is told episodes done and all.

    Raises:
        InvalidValue: a map does not fit into the shape, has no plan from its start, or nothing was sampled.
    """
    parts = []
    for number, domain in enumerate(domains):
        sampler = EpisodeSampler(domain, [make(domain) for make in coordinators], number, events, shape or Shape())
        for index in range(episodes):
            episode = number * episodes + index
            samples = sampler.episode(episode, inject, np.random.default_rng([seed, number, index]))
            if samples is not None:
                parts.append(samples)
            progress(episode + 1, len(domains) * episodes)
    if not parts:
        raise InvalidValue("inject", list(inject), "events that apply within the episodes")
    return join(parts)


def split_by_episode(samples: Samples, shares: Sequence[float], seed: int) -> tuple[Samples, ...]:
    """Parts with these shares of the episodes; all frames of one episode are in one part."""
    episodes = np.random.default_rng(seed).permutation(np.unique(samples.episode))
    ends = np.round(np.cumsum(shares) / np.sum(shares) * len(episodes)).astype(int)
    return tuple(
        samples.where(np.isin(samples.episode, episodes[low:high]))
        for low, high in zip([0, *ends[:-1]], ends, strict=True)
    )


def noise(clean: Samples, count: int, rng: np.random.Generator) -> Samples:
    """Constructed changes of the other kind: some features of an entity on which the plan depends are redrawn.

    Like ``exchange`` it knows no event: any attribute of any entity may have changed. There is no state behind the
    features that the oracle could judge, so ``stale`` is 1 for all of them.

    Args:
        clean: frames without an event; each must depend on some entity.
        count: how many to make.
        rng: draws everything.

    Raises:
        InvalidValue: no clean frames.
    """
    clean = clean.where(np.flatnonzero(clean.depends.any(axis=(1, 2, 3))))
    if len(clean) == 0:
        raise InvalidValue("clean", 0, "at least one frame whose plan depends on something")
    base = clean.where(rng.integers(len(clean), size=count))
    state, difference = base.state.copy(), base.difference.copy()
    unmarked = np.zeros(count, dtype=np.uint8)
    for index in range(count):
        rows = np.flatnonzero(base.depends[index].any(axis=(0, 2)) & state[index].any(axis=1))
        row = int(rng.choice(rows))
        columns = np.flatnonzero(state[index, row])
        change = np.zeros_like(state[index, row])
        while abs(change).max() < NOISE_MARGIN:
            chosen = rng.choice(columns, size=min(len(columns), int(rng.integers(1, NOISE_COLUMNS + 1))), replace=False)
            change[:] = 0
            change[chosen] = rng.choice(NOISE_VALUES, size=len(chosen)) - state[index, row, chosen]
        state[index, row] += change
        difference[index, row] += change
        unmarked[index] = not base.refers[index, :, row].any()
    return replace(
        base,
        state=state,
        difference=difference,
        event=np.full(count, CONSTRUCTED, dtype=np.int32),
        stale=np.ones(count, dtype=np.uint8),
        unmarked=unmarked,
    )
