"""One episode in one process: plant, twin and agents as in the graph, without messages between them.

The state machines are the graph's own (`SlotProtocol`, `ArmAgent`, `ConditionTracker`, `EpisodeTally`), the plant is
a `Simulation` or a `KinematicPlant`. Simulated time stands still while somebody decides, and it is the only clock, so
the same scenario, seed and options give the same episode. For tuning scenes, for tests, and for ablations that a
graph of processes would make slow: ``checked=False`` switches the twin off, and every intent is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from polyarm_core.agents import ArmAgent, Choice, DecidedBy, Deliberation
from polyarm_core.conditions import ConditionTracker
from polyarm_core.episode import Answer, EpisodeSummary, EpisodeTally, Limits, Opening, Plant, Result, Verdict
from polyarm_core.episode import Report as Heard
from polyarm_core.errors import PolyarmError
from polyarm_core.leases import Grant
from polyarm_core.llm.heuristic_backend import HeuristicModel
from polyarm_core.llm.interface import LanguageModel
from polyarm_core.orchestrator import Decision
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.plant.simulation import TICK, Simulation
from polyarm_core.plant.skills import ActionResult, ArmBusy
from polyarm_core.scenario import Scenario
from polyarm_core.slots import (
    Answered,
    ArmSnapshot,
    ArmStatus,
    ArmVerdict,
    Effect,
    Opened,
    Phase,
    Report,
    SlotOptions,
    SlotProtocol,
)
from polyarm_core.slots import Snapshot as PlantSnapshot
from polyarm_core.world import World, WorldView, succeeded

EPOCH = 1_000_000
PERIOD = 5
"""Ticks between two looks at the plant; skills advance every fifth tick."""


class EpisodeStalled(PolyarmError):
    """Simulated time ran out while an action was still under way."""


@dataclass(frozen=True)
class EpisodeOptions:
    """How an episode is driven.

    Attributes:
        slots: of the protocol: strategy, completion, dead-end guard.
        checked: false = no twin: whatever an agent wants is executed.
        clear_stops: clear protective stops between slots, as a person would who has looked at the cell.
        stay_patience: of the agents.
        stuck: slots in a row without an admitted action after which the team is stuck.
        action_limit: simulated s that the actions of one slot may take.
        idle_slot: simulated s that pass in a slot in which no arm acts.
    """

    slots: SlotOptions = field(default_factory=SlotOptions)
    checked: bool = True
    clear_stops: bool = False
    stay_patience: int = 1
    stuck: int = 10
    action_limit: float = 300.0
    idle_slot: float = 0.0


@dataclass(frozen=True)
class Decided:
    """One arm's decision: the choice, and the length of the prompt where a model was asked."""

    choice: Choice
    prompt_tokens: int = 0


class Team(Protocol):
    """Who decides for the arms."""

    def decide(self, slot: int, now: float, view: WorldView, arms: Mapping[str, ArmSnapshot]) -> Mapping[str, Decided]:
        """The decision of every arm in a slot, on the world as the twin mirrors it; ``now`` in simulated s."""
        ...

    def on_verdicts(self, verdicts: Sequence[ArmVerdict]) -> None:
        """The twin's answers of the slot."""
        ...

    def on_result(self, result: ActionResult) -> None:
        """An action has ended."""
        ...


class Happenings(Protocol):
    """What happens to the plant beside what the arms do."""

    def before_slot(self, slot: int) -> None:
        """No arm moves, and this slot is about to open."""
        ...

    def in_slot(self, slot: int) -> None:
        """Arms move; called every few ticks."""
        ...


class ReactiveTeam:
    """Every arm's model picks every action.

    Args:
        scenario: the task.
        model: scores the candidates of every arm.
        decided_by: how its choices are called.
        stay_patience: of the agents.
    """

    def __init__(self, scenario: Scenario, model: LanguageModel, decided_by: DecidedBy, stay_patience: int = 1) -> None:
        self.agents = {arm: ArmAgent(scenario, arm, stay_patience) for arm in scenario.arms}
        self._model = model
        self._by = decided_by

    def decide(self, slot: int, now: float, view: WorldView, arms: Mapping[str, ArmSnapshot]) -> Mapping[str, Decided]:
        """Each agent by itself."""
        return {
            arm: decide_alone(agent, agent.deliberate(view), self._model, self._by)
            for arm, agent in self.agents.items()
        }

    def on_verdicts(self, verdicts: Sequence[ArmVerdict]) -> None:
        """To each agent its own."""
        for verdict in verdicts:
            self.agents[verdict.arm].on_verdict(verdict.action, verdict.decision.value)

    def on_result(self, result: ActionResult) -> None:
        """What failed is not proposed again at once."""
        if result.outcome == "failed":
            self.agents[result.arm].on_failure(result.action)


def decide_alone(agent: ArmAgent, deliberation: Deliberation, model: LanguageModel, by: DecidedBy) -> Decided:
    """What an agent decides by its own model, which is asked only where there is something to choose."""
    only = agent.only_choice(deliberation)
    if only is not None:
        return Decided(only)
    scores = model.score(deliberation.prompt, deliberation.texts)
    return Decided(agent.settle(deliberation, scores.mean_logprobs, by), scores.prompt_tokens)


class InProcessEpisode:
    """Drives one plant through episodes.

    Args:
        plant: the simulated cell; the caller closes it.
        options: see there.
        model: scores the candidates of every arm; default the heuristic, which shows nothing about language models.
        on_result: called with every action's result, for logs.
        team: makes who decides, for each episode; default a `ReactiveTeam` of the model.
        happenings: makes what happens beside that, for each episode; default nothing.
    """

    def __init__(
        self,
        plant: Simulation | KinematicPlant,
        options: EpisodeOptions | None = None,
        model: LanguageModel | None = None,
        on_result: Callable[[ActionResult], None] | None = None,
        team: Callable[[], Team] | None = None,
        happenings: Callable[[], Happenings] | None = None,
    ) -> None:
        self.plant = plant
        self.scenario: Scenario = plant.scenario
        self.options = options or EpisodeOptions()
        by = DecidedBy.HEURISTIC if model is None else DecidedBy.MODEL
        scores: LanguageModel = model or HeuristicModel()
        self._make_team: Callable[[], Team] = team or (
            lambda: ReactiveTeam(self.scenario, scores, by, self.options.stay_patience)
        )
        self._make_happenings = happenings
        self._on_result = on_result
        self._sequence = 0

    def run(self, seed: int) -> EpisodeSummary:
        """One episode from the start that the seed draws.

        ``wall_time`` and the latencies of the summary are simulated seconds: there is no other clock here.

        Raises:
            EpisodeStalled: an action did not end within ``action_limit`` simulated s.
        """
        plant, scenario, options = self.plant, self.scenario, self.options
        plant.reset(seed)
        plant.results()
        self._protocol = SlotProtocol(scenario, EPOCH, options.slots)
        self._team = self._make_team()
        self._happenings = None if self._make_happenings is None else self._make_happenings()
        self._conditions = ConditionTracker(scenario)
        self._running: dict[str, Grant] = {}
        self._slot = self._happened = 0
        limits = Limits(slots=scenario.slots.limit, stuck=options.stuck, time=1e9)
        self._tally = EpisodeTally(scenario.name, plant.episode, seed, limits, 0.0)
        effects = self._look()
        while True:
            while effects:
                effects = self._carry_out(effects)
            if self._running or not plant.idle:
                effects = self._advance()
                continue
            reason = self._tally.stop_reason(plant.time)
            if reason is not None:
                return self._tally.summary(plant.time, reason)
            self._let_happen()
            if options.checked:
                effects = self._look()
            else:
                self._execute_all()

    # -- twin ---------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> list[Effect]:
        after: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Opened):
                if self._tally.stop_reason(self.plant.time) is None:
                    after += self._collect(effect)
            elif isinstance(effect, Answered):
                after += self._answer(effect)
        return after

    def _choose(self, slot: int) -> dict[str, Choice]:
        """Every agent decides on the world as it is now."""
        self._tally.add(Opening(slot, self.plant.time))
        decisions = self._team.decide(slot, self.plant.time, WorldView(self.scenario, self._world()), self._arms())
        for arm, decided in decisions.items():
            self._sequence += 1
            by = decided.choice.decided_by.value
            self._tally.add(
                Heard(arm, EPOCH, self._sequence, slot, self.plant.time, 0, by, prompt_tokens=decided.prompt_tokens)
            )
        return {arm: decided.choice for arm, decided in decisions.items()}

    def _collect(self, opened: Opened) -> list[Effect]:
        effects: list[Effect] = []
        for arm, choice in self._choose(opened.slot).items():
            self._sequence += 1
            report = Report(
                arm, opened.episode, opened.slot, EPOCH, EPOCH, self._sequence, choice.action, choice.declaration
            )
            refusal, answered = self._protocol.on_report(report, self.plant.time)
            if refusal:
                raise PolyarmError(f"the twin refused a report of {arm}: {refusal}")
            effects += answered
        return effects

    def _execute_all(self) -> None:
        """A slot without a twin: every intent is carried out at once."""
        slot = self._slot + 1
        choices = self._choose(slot)
        self._slot = slot
        answers = tuple(Answer(arm, "admit", acts=not choice.action.is_stay) for arm, choice in choices.items())
        self._tally.add(Verdict(EPOCH, slot, self.plant.time, answers))
        acting = {arm: choice.action for arm, choice in choices.items() if not choice.action.is_stay}
        self._team.on_verdicts([ArmVerdict(arm, action, Decision.ADMIT) for arm, action in acting.items()])
        for arm, action in acting.items():
            self._start(Grant(arm, slot, slot, action))
        if not acting:
            self.plant.step(round(self.options.idle_slot / TICK))

    def _answer(self, answered: Answered) -> list[Effect]:
        self._tally.add(
            Verdict(
                EPOCH,
                answered.slot,
                self.plant.time,
                tuple(
                    Answer(v.arm, v.decision.value, v.rule.value if v.rule is not None else "", not v.action.is_stay)
                    for v in answered.verdicts
                ),
            )
        )
        self._team.on_verdicts(answered.verdicts)
        for verdict in answered.verdicts:
            if verdict.grant is not None:
                self._start(verdict.grant)
        if self._running or not (self.options.idle_slot or self._happenings):
            return []
        self.plant.step(round(self.options.idle_slot / TICK))
        self._let_happen()
        return self._look()

    # -- plant --------------------------------------------------------------------------------------------------------

    def _start(self, grant: Grant) -> None:
        self._slot = max(self._slot, grant.slot)
        self._running[grant.arm] = grant
        try:
            self.plant.start_action(grant.arm, grant.action, tag=grant)
        except ArmBusy:  # in protective stop, which only a person ends
            del self._running[grant.arm]
            if self.options.checked:
                self._protocol.on_result(grant.arm, grant.token, self.plant.time, self.plant.time)

    def _advance(self) -> list[Effect]:
        """Let time pass until an action has ended."""
        plant = self.plant
        limit = plant.time + self.options.action_limit
        while not (results := plant.results()):
            if not self._running and plant.idle:
                break
            if plant.time > limit:
                stuck = ", ".join(f"{arm}: {grant.action}" for arm, grant in sorted(self._running.items()))
                raise EpisodeStalled(f"no result within {self.options.action_limit} simulated s of {stuck}")
            plant.step(PERIOD)
            if self._happenings is not None:
                self._happenings.in_slot(self._slot)
        effects: list[Effect] = []
        for result in results:
            if self._on_result is not None:
                self._on_result(result)
            grant = result.tag
            if not isinstance(grant, Grant):
                continue
            self._running.pop(result.arm, None)
            if result.outcome == "succeeded":
                self._conditions.on_success(result.arm, result.action)
            self._team.on_result(result)
            self._sequence += 1
            self._tally.add(Result(EPOCH, self._sequence, result.outcome == "failed", plant.time))
            if self.options.checked:
                effects += self._protocol.on_result(result.arm, grant.token, plant.time, plant.time)
        if self.options.clear_stops and not self._running:
            for arm in self.scenario.arms:
                plant.clear(arm)
        if not self._running and plant.idle:
            self._let_happen()
        return effects + self._look()

    def _let_happen(self) -> None:
        """Nothing moves: what happens between two slots, once for each."""
        slot = self._slot + 1
        if self.options.checked:  # a slot in which nobody acts is followed by the next one at once
            slot = self._protocol.slot + (self._protocol.phase is not Phase.COLLECTING)
        if self._happenings is not None and slot > self._happened:
            self._happened = slot
            self._happenings.before_slot(slot)

    def _world(self) -> World:
        bare = self.plant.world()
        return replace(
            bare,
            conditions=self._conditions.true_now(bare, self.plant.readings(), self.plant.held_conditions()),
        )

    def _arms(self) -> dict[str, ArmSnapshot]:
        plant = self.plant
        return {
            arm: ArmSnapshot(
                ArmStatus(plant.arm(arm).status),
                self._running[arm].token if arm in self._running else 0,
                plant.zones_entered(arm),
            )
            for arm in self.scenario.arms
        }

    def _look(self) -> list[Effect]:
        """Show the plant's state to the twin and to the tally."""
        plant, world = self.plant, self._world()
        success = succeeded(self.scenario, world)
        self._sequence += 1
        busy = bool(self._running) or not plant.idle
        self._tally.add(Plant(EPOCH, plant.seed, plant.time, plant.time, success, busy, plant.arm_contacts))
        snapshot = PlantSnapshot(
            plant.episode, self._slot, EPOCH, self._sequence, plant.time, world, self._arms(), success and not busy
        )
        return self._protocol.on_world(snapshot, plant.time) if self.options.checked else []


def run_episode(
    scenario: Scenario, seed: int, options: EpisodeOptions | None = None, kinematic: bool = False
) -> EpisodeSummary:
    """Build a plant, drive one episode of it with the heuristic, close it; see `InProcessEpisode`."""
    plant = KinematicPlant(scenario, seed) if kinematic else Simulation(scenario, seed)
    try:
        return InProcessEpisode(plant, options).run(seed)
    finally:
        plant.close()
