"""One trial: a method, a layout, a setting and a seed, played to the end and summed up in one flat row."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from threading import local
from typing import TYPE_CHECKING, Any

from polyarm_core.bench.overcooked.methods import (
    AskedModel,
    Method,
    open_coordinator,
    open_detector,
    open_policy,
    parse_method,
)
from polyarm_core.domains.overcooked.disturbances import HELD_OUT, NAMES, STANDARD, EventSchedule
from polyarm_core.errors import UnknownName
from polyarm_core.llm.interface import ModelUnavailable

if TYPE_CHECKING:
    from polyarm_core.baselines.interface import Policy
    from polyarm_core.coordinator.episode import Episode
    from polyarm_core.domains.overcooked.domain import OvercookedDomain

PLANTS = ("package", "own")
SETTINGS = ("standard", "dynamic", "held_out", *NAMES, "rateP")


@dataclass(frozen=True)
class Trial:
    """What came of one trial.

    Attributes:
        method, layout, setting, seed: which one; ``setting`` is one of ``SETTINGS`` (``rate0.02``: events per frame).
        plant: what carried the steps out: ``package`` (overcooked_ai) or ``own``.
        success: a soup was delivered within the horizon.
        frames: until then; the horizon otherwise.
        moves: movement primitives of each agent (AAS is their sum).
        actions: finished actions of each agent; interacts of a team without chains.
        planning_s, detecting_s, execution_s: wall clock time (RT is their sum), s.
        calls: of the coordinator, the first plan included.
        repairs: plans that a local repair made instead.
        reasons: corrections by reason.
        deadlocks: cycles of waits.
        stale: frames with an alarm of the detector.
        no_plan: calls that gave no plan.
        outputs, invalid: texts that a model wrote, and those among them that were no valid plan.
        tokens: read and written by a model.
        events: disturbances that happened.
    """

    method: str
    layout: str
    setting: str
    seed: int
    plant: str
    success: bool
    frames: int
    moves: tuple[int, ...]
    actions: tuple[int, ...]
    planning_s: float = 0.0
    detecting_s: float = 0.0
    execution_s: float = 0.0
    calls: int = 0
    repairs: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    deadlocks: int = 0
    stale: int = 0
    no_plan: int = 0
    outputs: int = 0
    invalid: int = 0
    tokens: int = 0
    events: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Names the trial."""
        return self.method, self.layout, self.setting, self.seed

    def to_json(self) -> dict[str, Any]:
        """The row as JSON; times to a microsecond."""
        row = asdict(self)
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}

    @staticmethod
    def from_json(row: dict[str, Any]) -> Trial:
        """The row that :meth:`to_json` wrote."""
        lists = {name: tuple(row[name]) for name in ("moves", "actions", "events")}
        return Trial(**{**row, **lists})


def schedule_of(setting: str, seed: int) -> EventSchedule:
    """The events of a trial; they depend on setting and seed alone.

    Raises:
        UnknownName: no such setting.
        InvalidValue: the rate is no probability.
    """
    if setting == "standard":
        return EventSchedule()
    if setting == "dynamic":
        return EventSchedule.once_each(seed, STANDARD)
    if setting == "held_out":
        return EventSchedule.once_each(seed, HELD_OUT)
    if setting in NAMES:
        return EventSchedule.once_each(seed, (setting,))
    if setting.startswith("rate") and _is_number(setting[4:]):
        return EventSchedule.at_rate(seed, float(setting[4:]))
    raise UnknownName("setting", setting, SETTINGS)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


_DOMAINS = local()


def open_domain(layout: str, plant: str) -> OvercookedDomain:
    """The kitchen, one copy per thread: its tables of paths are the map's, not the episode's.

    Raises:
        UnknownName: no such layout or plant.
        MissingExtra: the plant ``package`` needs overcooked-ai.
    """
    from polyarm_core.domains.overcooked.domain import OvercookedDomain
    from polyarm_core.domains.overcooked.layouts import load_layout
    from polyarm_core.domains.overcooked.package import PackageKitchen

    if plant not in PLANTS:
        raise UnknownName("plant", plant, PLANTS)
    opened: dict[tuple[str, str], OvercookedDomain] = vars(_DOMAINS).setdefault("opened", {})
    if (layout, plant) not in opened:
        kitchen = PackageKitchen(load_layout(layout)) if plant == "package" else None
        opened[layout, plant] = OvercookedDomain(layout, plant=kitchen)
    return opened[layout, plant]


def run_trial(
    method: str, layout: str, setting: str, seed: int, plant: str = "package", model: AskedModel | None = None
) -> Trial:
    """Play one trial.

    Args:
        method, layout, setting, seed, plant: as in :class:`Trial`.
        model: that ``model+TRIGGER`` asks, and ``proagent``.

    Raises:
        UnknownName: no such method, layout, setting or plant.
        InvalidValue, MissingExtra, ModelError: something that the method needs is not there, or a language model failed
            to answer: such a trial says nothing about the method.
    """
    chosen, domain, schedule = parse_method(method), open_domain(layout, plant), schedule_of(setting, seed)
    where = (method, domain.layout.name, setting, seed, plant)
    if chosen.policy:
        policy = open_policy(chosen, domain, model)
        trial, use = _play(where, policy, domain, schedule), getattr(policy, "use", None)
    else:
        episode, coordinator = run_chains(chosen, domain, schedule, seed, model=model)
        trial, use = _summary(where, episode, coordinator), getattr(coordinator, "use", None)
    if use is not None and use.model_errors:
        raise ModelUnavailable(
            f"{method} on {trial.layout}, {setting}, seed {seed}: the language model gave no text {use.model_errors} "
            "times; the trial does not count"
        )
    return trial


def run_chains(
    method: Method,
    domain: OvercookedDomain,
    schedule: EventSchedule,
    seed: int,
    *,
    trace: bool = False,
    model: AskedModel | None = None,
) -> tuple[Episode[Any], Any]:
    """The episode of a method with chains, and the coordinator that planned it."""
    from polyarm_core.coordinator.episode import run_episode
    from polyarm_core.coordinator.repair import Repair

    coordinator = open_coordinator(method, domain, model)
    episode = run_episode(
        domain,
        coordinator,
        open_detector(method, domain),
        schedule.events,
        repair=Repair(domain) if method.repair else None,
        policy=method.replan_policy,
        interval=method.interval,
        max_calls=method.max_calls,
        seed=seed,
        trace=trace,
    )
    return episode, coordinator


def _summary(where: tuple[str, str, str, int, str], episode: Episode[Any], coordinator: Any) -> Trial:
    use = getattr(coordinator, "use", None)
    return Trial(
        *where,
        success=episode.success,
        frames=episode.frames,
        moves=episode.moves,
        actions=episode.actions,
        planning_s=episode.planning_seconds,
        detecting_s=episode.detecting_seconds,
        execution_s=episode.execution_seconds,
        calls=episode.calls,
        repairs=episode.repairs,
        reasons=dict(Counter(record.reason for record in episode.plans if record.reason != "start")),
        deadlocks=episode.deadlocks,
        stale=len(episode.stale),
        no_plan=sum(record.source == "coordinator" and record.plan is None for record in episode.plans),
        outputs=0 if use is None else use.outputs,
        invalid=0 if use is None else use.syntax + use.semantic,
        tokens=sum(record.prompt_tokens + record.tokens for record in episode.plans),
        events=tuple(name for _, name in episode.events),
    )


def _play(
    where: tuple[str, str, str, int, str],
    policy: Policy,
    domain: OvercookedDomain,
    schedule: EventSchedule,
) -> Trial:
    from polyarm_core.domains.overcooked.disturbances import happen
    from polyarm_core.domains.overcooked.kitchen import INTERACT, STAY

    policy.reset(where[3])
    begin, planning = time.perf_counter(), 0.0
    state, pending = domain.start(where[3]), schedule.events
    moves, interacts, events = [0, 0], [0, 0], []
    while not domain.succeeded(state) and state.frame < domain.horizon:
        state, happened, pending = happen(domain.kitchen, state, pending)
        events += [event.name for event in happened]
        asked = time.perf_counter()
        controls = policy.act(state)
        planning += time.perf_counter() - asked
        for player, control in enumerate(controls):
            moves[player] += control < STAY
            interacts[player] += control == INTERACT
        state = domain.step(state, controls)
    took = time.perf_counter() - begin
    use = getattr(policy, "use", None)
    return Trial(
        *where,
        success=domain.succeeded(state),
        frames=state.frame,
        moves=tuple(moves),
        actions=tuple(interacts),
        planning_s=planning if use is None else max(planning, use.seconds),  # more with answers from memory
        execution_s=took - planning,
        calls=0 if use is None else use.calls,
        outputs=0 if use is None else use.calls,
        invalid=0 if use is None else use.unreadable + use.rejected,
        tokens=0 if use is None else use.prompt_tokens + use.tokens,
        events=tuple(events),
    )
