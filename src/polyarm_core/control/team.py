"""A team under any way of control in one process: agents, executive, coordinator and staleness detector.

The nodes of the graph hold the same parts; here they talk by calls, and the coordinator's answer comes after a
simulated latency. The order in a slot: answers whose time has come; the executive takes in the last slot, looks for
trouble and mends or asks; then every arm decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from polyarm_core.agents import DecidedBy, Deliberation
from polyarm_core.bench.in_process import Decided, decide_alone
from polyarm_core.chains.executor import ChainExecutor, Detection
from polyarm_core.chains.terms import Plan
from polyarm_core.control.chain_agent import ChainAgent
from polyarm_core.control.executive import Effect, PlanExecutive, SlotPlan, names_used
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.control.modes import Control
from polyarm_core.control.planner import Ask, Follow, Planner, PlannerOptions
from polyarm_core.coordinator.interface import Coordinator, PlanAnswer
from polyarm_core.coordinator.repair import Repair
from polyarm_core.domains.arms import ArmsState
from polyarm_core.llm.interface import LanguageModel
from polyarm_core.plant.skills import ActionResult
from polyarm_core.psd.detector import NeverStale, StalenessDetector
from polyarm_core.psd.oracle import RollOutOracle
from polyarm_core.slots import ArmSnapshot, ArmVerdict
from polyarm_core.world import WorldView

Truth = Callable[[int], tuple[Mapping[str, int], Mapping[str, int]]]
"""Slot -> how long stops and blocks really last: what only the oracle is told."""


@dataclass
class Audit:
    """The plan held against the oracle, slot by slot.

    Attributes:
        looks: slots in which a plan was looked at.
        stale_slots: of these, slots in which it could no longer succeed.
        alarms: slots in which something asked for a correction.
        false_alarms: of these, slots in which the plan would have succeeded.
        delays: slots from the first in which a plan was stale to the alarm, for each plan that went stale.
        missed: plans that went stale and never raised an alarm.
    """

    looks: int = 0
    stale_slots: int = 0
    alarms: int = 0
    false_alarms: int = 0
    delays: list[int] = field(default_factory=list)
    missed: int = 0
    _since: int | None = None

    def look(self, slot: int, stale: bool, alarm: bool) -> None:
        """One slot."""
        self.looks += 1
        self.stale_slots += stale
        self.alarms += alarm
        self.false_alarms += alarm and not stale
        if stale and self._since is None:
            self._since = slot
        if self._since is not None and (alarm or not stale):
            if alarm:
                self.delays.append(slot - self._since)
            self._since = None  # it was noticed, or time has healed it

    def end(self) -> None:
        """The episode is over."""
        self.missed += self._since is not None
        self._since = None


class ControlledTeam:
    """Decides for the arms of one episode (a `bench.in_process.Team`).

    Args:
        domain: of the scenario; its last slot is written by the follower.
        control: who picks the actions.
        model: scores candidates where an arm decides by itself.
        coordinator: makes plans; not asked under ``reactive``.
        repair: mends plans; None = always ask.
        detector: of staleness; default none.
        latency: simulated s from a request to its answer.
        decided_by: how choices of the model are called.
        options: of the planner.
        truth: how long stops and blocks really last, for the audit.

    Attributes:
        executive: holds the plan.
        told: what every arm was told in the last slot.
        audit: against the roll-out oracle.
    """

    def __init__(
        self,
        domain: MirroredArms,
        control: Control,
        model: LanguageModel,
        coordinator: Coordinator[ArmsState],
        repair: Repair[ArmsState] | None = None,
        detector: StalenessDetector | None = None,
        latency: float = 0.0,
        decided_by: DecidedBy = DecidedBy.HEURISTIC,
        options: PlannerOptions | None = None,
        truth: Truth | None = None,
    ) -> None:
        self.domain = domain
        self.control = control
        self.agents = {arm: ChainAgent(domain.scenario, arm, control) for arm in domain.agents}
        self.executive = PlanExecutive(domain, control, repair, options)
        self.audit = Audit()
        self._model, self._by = model, decided_by
        self._coordinator = coordinator
        self._detector: StalenessDetector = detector or NeverStale()
        self._latency = latency
        self._truth = truth
        self._oracle: RollOutOracle[ArmsState] = RollOutOracle(domain.simulation)
        self._answers: list[tuple[float, int, PlanAnswer]] = []
        self.told: SlotPlan | None = None
        self._looked_at: Plan | None = None  # what was left of a sound plan when this slot opened

    @property
    def planner(self) -> Planner[ArmsState]:
        """Of the episode."""
        return self.executive.planner

    @property
    def detections(self) -> Sequence[Detection]:
        """Of executor and joint graph, in order; ``frame`` is the slot."""
        return self.executive.detections

    @property
    def replans(self) -> Counter[str]:
        """Reason -> corrections that it caused, mended ones included."""
        return self.executive.replans

    # -- a slot -----------------------------------------------------------------------------------------------------

    def decide(self, slot: int, now: float, view: WorldView, arms: Mapping[str, ArmSnapshot]) -> Mapping[str, Decided]:
        """See `bench.in_process.Team`."""
        self._hear(now)
        self._looked_at = None
        effects = self.executive.on_opening(slot, now, view, arms, self._watch)
        if self._looked_at is not None:
            self._look(slot, view, arms, self._looked_at, bool(self.executive.alarm))
        self._carry_out(effects, now)
        self._hear(now)
        plan = self.told = self.executive.release()
        reserved = names_used(plan.remaining) if plan.sound else frozenset()
        decisions = {}
        for arm, agent in self.agents.items():
            decision = agent.decide(view, plan.heads[arm], reserved)
            if isinstance(decision, Deliberation):
                decisions[arm] = decide_alone(agent.own, decision, self._model, self._by)
            else:
                decisions[arm] = Decided(decision)
        return decisions

    def on_verdicts(self, verdicts: Sequence[ArmVerdict]) -> None:
        """See `bench.in_process.Team`."""
        for verdict in verdicts:
            self.agents[verdict.arm].on_verdict(verdict.action, verdict.decision.value)
        self.executive.on_verdicts(verdicts)

    def on_result(self, result: ActionResult) -> None:
        """See `bench.in_process.Team`."""
        if result.outcome == "failed":
            self.agents[result.arm].on_failure(result.action)
        self.executive.on_result(result.arm, result.action, result.outcome, result.reason)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _watch(self, state: ArmsState, remaining: Plan) -> bool:
        if self.executive.sound:
            self._looked_at = remaining
        return self._detector.observe(state, remaining) > self._detector.threshold

    def _carry_out(self, effects: Sequence[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                answer = self._coordinator.plan(effect.request)
                self._answers.append((now + self._latency, effect.number, answer))
            elif isinstance(effect, Follow):
                self._detector.reset(effect.plan)
                self._oracle.forget()

    def _hear(self, now: float) -> None:
        """Answers whose time has come, and those to the questions that they raise."""
        while due := [answer for answer in self._answers if answer[0] <= now]:
            self._answers.remove(due[0])
            _, number, answer = due[0]
            self._carry_out(self.executive.on_answer(number, answer, now), now)

    def _look(self, slot: int, view: WorldView, arms: Mapping[str, ArmSnapshot], remaining: Plan, alarm: bool) -> None:
        stopped, blocked = self._truth(slot) if self._truth is not None else ({}, {})
        state = self.domain.mirrored(view, slot, arms, self.executive.follower.waited, stopped, blocked)
        executor = ChainExecutor(self.domain.simulation, remaining)
        left = self.domain.horizon - state.slot
        self.audit.look(slot, self._oracle.stale(executor, state, left), alarm)
