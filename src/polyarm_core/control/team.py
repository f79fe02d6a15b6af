"""A team under any way of control in one process: agents, follower, planner, wait-for graph and staleness detector.

The nodes of the graph hold the same parts; here they talk by calls, and the coordinator's answer comes after a
simulated latency. The order in a slot: take in the last one; hear the answer that has come; look for trouble (waits and
actions, the joint graph, the detector) and mend or ask; then every arm decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from polyarm_core.agents import DecidedBy, Deliberation
from polyarm_core.bench.in_process import Decided, decide_alone
from polyarm_core.chains.executor import ChainExecutor, Detection
from polyarm_core.chains.terms import Action as ChainAction
from polyarm_core.chains.terms import Plan
from polyarm_core.control.chain_agent import ChainAgent
from polyarm_core.control.follower import PlanFollower
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.control.modes import UNPLANNED, Control, Head, Standing
from polyarm_core.control.planner import Ask, Effect, Planner, PlannerOptions
from polyarm_core.control.waits import TeamWaits, chain_claims, veto_claims
from polyarm_core.coordinator.interface import Coordinator, PlanAnswer
from polyarm_core.coordinator.repair import Repair
from polyarm_core.domains.arms import ArmsState
from polyarm_core.domains.arms.search import chain_action
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
        detections: of executor and joint graph, in order; ``frame`` is the slot.
        replans: reason -> corrections that it caused, mended ones included.
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
        self.follower = PlanFollower(domain)
        self.planner: Planner[ArmsState] = Planner(domain, repair, options)
        self.waits = TeamWaits(domain.agents)
        self.detections: list[Detection] = []
        self.replans: Counter[str] = Counter()
        self.audit = Audit()
        self._model, self._by = model, decided_by
        self._coordinator = coordinator
        self._detector: StalenessDetector = detector or NeverStale()
        self._latency = latency
        self._truth = truth
        self._oracle: RollOutOracle[ArmsState] = RollOutOracle(domain.simulation)
        self._answers: list[tuple[float, int, PlanAnswer]] = []
        self._done: dict[str, list[ChainAction]] = {}  # since the request that is open
        self._found: list[Detection] = []
        self._heads: dict[str, Head] = dict.fromkeys(domain.agents, UNPLANNED)
        self._slot = 0

    # -- a slot -----------------------------------------------------------------------------------------------------

    def decide(self, slot: int, now: float, view: WorldView, arms: Mapping[str, ArmSnapshot]) -> Mapping[str, Decided]:
        """See `bench.in_process.Team`."""
        self._slot = slot
        if self.control is not Control.REACTIVE:
            self._plan(slot, now, view, arms)
        reserved = self._reserved()
        decisions = {}
        for arm, agent in self.agents.items():
            decision = agent.decide(view, self._heads[arm], reserved)
            if isinstance(decision, Deliberation):
                decisions[arm] = decide_alone(agent.own, decision, self._model, self._by)
            else:
                decisions[arm] = Decided(decision)
        return decisions

    def on_verdicts(self, verdicts: Sequence[ArmVerdict]) -> None:
        """See `bench.in_process.Team`."""
        for verdict in verdicts:
            self.agents[verdict.arm].on_verdict(verdict.action, verdict.decision.value)
        self.follower.on_verdicts(verdicts)
        heads = self._heads
        if self.control is Control.HYBRID:  # an arm whose chain has ended acts by its own model
            heads = {a: UNPLANNED if h.standing is Standing.ENDED else h for a, h in heads.items()}
        planned = any(head.standing is not Standing.UNPLANNED for head in heads.values())
        remaining = self.follower.remaining() if planned else None
        claims = chain_claims(self.follower, heads) if planned else {}
        claims |= veto_claims(self.domain.scenario, verdicts, heads, remaining)
        found = self.waits.update(claims, self._slot)
        self.detections += found
        self._found += found

    def on_result(self, result: ActionResult) -> None:
        """See `bench.in_process.Team`."""
        if result.outcome == "failed":
            self.agents[result.arm].on_failure(result.action)
        elif result.outcome == "succeeded":
            self._done.setdefault(result.arm, []).append(chain_action(result.action))
        self.follower.on_result(result.arm, result.action, result.outcome, result.reason)

    # -- the plan ---------------------------------------------------------------------------------------------------

    def _plan(self, slot: int, now: float, view: WorldView, arms: Mapping[str, ArmSnapshot]) -> None:
        domain, planner, follower = self.domain, self.planner, self.follower
        state = domain.mirrored(view, slot, arms, follower.waited)
        found = follower.open(state)
        self.detections += found
        if slot == 1:
            self._carry_out(planner.start(state, now), state, now)
        else:
            sound = planner.sound
            reason, cause, agents = self._trouble(found, state)
            if sound:
                self._look(slot, view, arms, bool(reason))
            if sound and reason:
                self.replans[reason] += 1
                effects = planner.on_trouble(state, reason, cause, agents, follower.remaining(), slot - 1, now)
                self._carry_out(effects, state, now)
        self._hear(state, now)
        self._carry_out(planner.tick(state, follower.remaining(), slot - 1, now), state, now)
        self._hear(state, now)
        self._heads = follower.heads() if planner.sound else dict.fromkeys(domain.agents, UNPLANNED)

    def _trouble(self, found: Sequence[Detection], state: ArmsState) -> tuple[str, str, tuple[str, ...]]:
        """(reason, cause, agents) of a correction; an empty reason = none. A cycle says most, so it comes first."""
        everything = sorted((*self._found, *found), key=lambda d: d.kind != "deadlock")
        self._found = []
        probability = self._detector.observe(state, self.follower.remaining()) if self.planner.epoch else 0.0
        if everything:
            return everything[0].kind, everything[0].reason, everything[0].agents
        if probability > self._detector.threshold:
            return "stale", "the world has changed", ()
        return "", "", ()

    def _carry_out(self, effects: Sequence[Effect[ArmsState]], state: ArmsState, now: float) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                self._done = {}
                answer = self._coordinator.plan(effect.request)
                self._answers.append((now + self._latency, effect.number, answer))
            else:
                self.follower.adopt(effect.plan, effect.epoch)
                self._detector.reset(effect.plan)
                self._oracle.forget()
                self.waits.forget()
                self._found = []

    def _hear(self, state: ArmsState, now: float) -> None:
        """Answers whose time has come, and those to the questions that they raise."""
        while due := [answer for answer in self._answers if answer[0] <= now]:
            self._answers.remove(due[0])
            _, number, answer = due[0]
            frame = self._slot - 1
            remaining = self.follower.remaining()
            effects = self.planner.on_answer(number, answer, state, remaining, frame, now, self._done)
            self._carry_out(effects, state, now)

    def _look(self, slot: int, view: WorldView, arms: Mapping[str, ArmSnapshot], alarm: bool) -> None:
        stopped, blocked = self._truth(slot) if self._truth is not None else ({}, {})
        state = self.domain.mirrored(view, slot, arms, self.follower.waited, stopped, blocked)
        executor = ChainExecutor(self.domain.simulation, self.follower.remaining())
        left = self.domain.horizon - state.slot
        self.audit.look(slot, self._oracle.stale(executor, state, left), alarm)

    def _reserved(self) -> frozenset[str]:
        """Entities and placements of which the rest of a plan makes use."""
        if not self.planner.sound:
            return frozenset()
        remaining: Plan = self.follower.remaining()
        steps = (step for chain in remaining.values() for step in chain)
        return frozenset(name for step in steps if isinstance(step, ChainAction) for name in step.arguments)
