"""One controlled episode in one process: plant, twin, team and what happens to them, with its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyarm_core.agents import DecidedBy
from polyarm_core.bench.in_process import EpisodeOptions, InProcessEpisode
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
from polyarm_core.psd.detector import LearnedDetector, NeverStale, OracleDetector, StalenessDetector
from polyarm_core.scenario import Scenario
from polyarm_core.slots import SlotOptions

DETECTORS = ("never", "oracle")
"""Staleness detectors that need no weights; any other name is the ``.npz`` of a trained one."""
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

    @property
    def model_calls(self) -> int:
        """Decisions of the arms' own models and calls of the coordinator together."""
        return self.decisions + self.calls


def make_detector(name: str, domain: ArmsDomain) -> StalenessDetector:
    """A staleness detector: of ``DETECTORS``, or the path of trained weights (``.npz``, the threshold beside it).

    Raises:
        UnknownName: neither.
        OSError, InvalidValue: see `LearnedDetector.load`.
    """
    if name == "oracle":
        return OracleDetector(domain)
    if name == "never":
        return NeverStale()
    if not name.endswith(".npz"):
        raise UnknownName("detector", name, [*DETECTORS, "PATH.npz"])
    return LearnedDetector.load(domain, Path(name))


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
    episode = InProcessEpisode(plant, options, team=lambda: team, happenings=lambda: disturber)
    summary = episode.run(seed)
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
    )
