"""One controlled episode in one process: plant, twin, team and what happens to them, with its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyarm_core.agents import DecidedBy
from polyarm_core.bench.in_process import Decided, EpisodeOptions, InProcessEpisode
from polyarm_core.bench.wire import plan_size, plan_state_size, report_size
from polyarm_core.chains.executor import Detection
from polyarm_core.control.disturbance import Disturber, Happened, draw_schedule
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.control.modes import Control
from polyarm_core.control.planner import PlannerOptions
from polyarm_core.control.team import Audit, ControlledTeam
from polyarm_core.coordinator.episode import PlanRecord
from polyarm_core.coordinator.interface import Coordinator
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.episode import EpisodeSummary
from polyarm_core.errors import UnknownName
from polyarm_core.llm.heuristic_backend import HeuristicModel
from polyarm_core.llm.interface import LanguageModel
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.plant.simulation import Simulation
from polyarm_core.plant.skills import ActionResult
from polyarm_core.psd.detector import LearnedDetector, NeverStale, OracleDetector, StalenessDetector, find_weights
from polyarm_core.scenario import Scenario
from polyarm_core.slots import ArmSnapshot, ArmVerdict, SlotOptions
from polyarm_core.world import WorldView

DETECTORS = ("never", "oracle")
"""Staleness detectors that need no weights; any other name is that of a trained one."""
STUCK = 24
"""Slots in a row without an admitted action after which a team is stuck: longer than two stops in a row."""
IDLE_SLOT = 1.0
"""Simulated s that pass in a slot in which no arm acts."""


@dataclass(frozen=True)
class ControlledSummary:
    """What a controlled episode came to.

    Attributes:
        summary: the figures of every episode: success, slots, vetoes, decisions.
        decisions: choices for which an arm's own model was asked.
        calls: of the coordinator.
        tokens: read and written by the coordinator's model, and read by the arms' own.
        plans: every plan that was asked for.
        replans: reason -> corrections that it caused, mended ones included.
        repairs: corrections without a call.
        detections: of executor and joint graph.
        happened: events that came to pass.
        audit: the plan against the roll-out oracle.
        uplink_bytes: of the arms' reports, as messages of the graph.
        plan_bytes: of the plans and of what they say in each slot, as messages of the graph.
    """

    summary: EpisodeSummary
    decisions: int
    calls: int
    tokens: int
    plans: tuple[PlanRecord, ...]
    replans: Mapping[str, int]
    repairs: int
    detections: tuple[Detection, ...]
    happened: tuple[Happened, ...]
    audit: Audit
    uplink_bytes: int = 0
    plan_bytes: int = 0

    @property
    def model_calls(self) -> int:
        """Decisions of the arms' own models and calls of the coordinator together."""
        return self.decisions + self.calls


class _Traffic:
    """A team (see `bench.in_process.Team`) of which is counted what it would say as nodes of the graph, in bytes."""

    def __init__(self, team: ControlledTeam) -> None:
        self._team = team
        self._frame = team.domain.scenario.frame
        self.uplink = self._states = 0

    @property
    def plans(self) -> int:
        """Plans and plan states."""
        records = self._team.planner.records
        return self._states + sum(plan_size(r.plan, r.reason, self._frame) for r in records if r.plan is not None)

    def decide(self, slot: int, now: float, view: WorldView, arms: Mapping[str, ArmSnapshot]) -> Mapping[str, Decided]:
        decisions = self._team.decide(slot, now, view, arms)
        for arm, decided in decisions.items():
            self.uplink += report_size(arm, decided.choice.action, decided.choice.declaration)
        told = self._team.told
        if told is not None and self._team.control is not Control.REACTIVE:
            self._states += plan_state_size(told.heads, told.missing, told.remaining, self._frame)
        return decisions

    def on_verdicts(self, verdicts: Sequence[ArmVerdict]) -> None:
        self._team.on_verdicts(verdicts)

    def on_result(self, result: ActionResult) -> None:
        self._team.on_result(result)


def make_detector(name: str, domain: ArmsDomain) -> StalenessDetector:
    """A staleness detector: of ``DETECTORS``, or a trained one, see `psd.detector.find_weights`.

    Raises:
        UnknownName: neither.
        OSError, InvalidValue: see `LearnedDetector.load`.
    """
    if name == "oracle":
        return OracleDetector(domain)
    if name == "never":
        return NeverStale()
    try:
        return LearnedDetector.load(domain, find_weights(name))
    except UnknownName as error:
        raise UnknownName("detector", name, [*DETECTORS, *error.valid]) from None


def run_controlled_episode(
    scenario: Scenario,
    seed: int,
    control: Control | str = Control.REACTIVE,
    disturb: str = "none",
    *,
    plant: Simulation | KinematicPlant | None = None,
    domain: ArmsDomain | None = None,
    model: LanguageModel | None = None,
    coordinator: Coordinator[ArmsState] | None = None,
    detector: StalenessDetector | str = "oracle",
    repair: bool = True,
    latency: float = 1.0,
    slots: SlotOptions | None = None,
    planner: PlannerOptions | None = None,
) -> ControlledSummary:
    """Run one episode.

    Args:
        scenario: the task.
        seed: of the start and of the disturbances.
        control: who picks the actions.
        disturb: level of disturbances, of `disturbance.LEVELS`.
        plant: of the scenario, it is reset; default a `KinematicPlant`. The caller closes it.
        domain: of the scenario, to share its tables between episodes.
        model: of the arms; default the heuristic, which shows nothing about language models.
        coordinator: default the search.
        detector: of staleness, or its name, see `make_detector`.
        repair: mend plans before the coordinator is asked.
        latency: simulated s from a request to the coordinator to its answer.
        slots, planner: options of the twin and of the planner.

    Raises:
        UnknownName: no such way of control, level or detector.
    """
    try:
        control = Control(control)
    except ValueError:
        raise UnknownName("control", str(control), [item.value for item in Control]) from None
    schedule = draw_schedule(scenario, disturb, seed)
    simulation = domain or ArmsDomain(scenario)
    if isinstance(detector, str):
        detector = make_detector(detector, simulation)
    plant = plant or KinematicPlant(scenario, seed)
    disturber = Disturber(plant, MirroredArms(simulation), schedule)
    team = ControlledTeam(
        MirroredArms(simulation),
        control,
        model or HeuristicModel(),
        coordinator or SearchCoordinator(simulation),
        Repair(simulation) if repair else None,
        detector,
        latency,
        DecidedBy.HEURISTIC if model is None else DecidedBy.MODEL,
        planner,
        lambda slot: (disturber.stopped(slot), disturber.blocked(slot)),
    )
    options = EpisodeOptions(slots=slots or SlotOptions(), stuck=STUCK, idle_slot=IDLE_SLOT)
    traffic = _Traffic(team)
    episode = InProcessEpisode(plant, options, team=lambda: traffic, happenings=lambda: disturber)
    summary = replace(episode.run(seed), control=control.value, disturb=disturb)
    team.audit.end()
    plans = tuple(team.planner.records)
    return ControlledSummary(
        summary=summary,
        decisions=sum(summary.decided_by.get(by.value, 0) for by in (DecidedBy.MODEL, DecidedBy.HEURISTIC)),
        calls=team.planner.calls,
        tokens=summary.prompt_tokens + sum(plan.prompt_tokens + plan.tokens for plan in plans),
        plans=plans,
        replans=dict(sorted(team.replans.items())),
        repairs=sum(plan.source == "repair" and plan.plan is not None for plan in plans),
        detections=tuple(team.detections),
        happened=tuple(disturber.happened),
        audit=team.audit,
        uplink_bytes=traffic.uplink,
        plan_bytes=traffic.plans,
    )
