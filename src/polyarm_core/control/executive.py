"""The one executor of a cell: holds the plan of an episode, follows it, and has it mended or replaced.

A pure state machine, made of follower, planner and wait-for graph. What is heard are events, time is an argument
(seconds of any steady clock), and what is to be done comes back as effects, in order. A slot::

    effects = executive.on_opening(slot, now, view, arms)   # trouble is mended, or the coordinator is asked
    effects = executive.on_answer(number, answer, now)      # if one comes while the slot is held open
    plan = executive.release()                              # what every arm is told
    effects = executive.on_verdicts(verdicts)
    executive.on_result(...)                                # of every action that was admitted

An answer that comes after the release is judged at the next opening: nobody may be told two things in one slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyarm_core.chains.executor import Detection
from polyarm_core.chains.terms import Action as ChainAction
from polyarm_core.chains.terms import Plan
from polyarm_core.chains.validation import validate
from polyarm_core.constraints import Action
from polyarm_core.control.follower import PlanFollower
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.control.modes import UNPLANNED, Control, Head, Standing
from polyarm_core.control.planner import Ask, Follow, Planner, PlannerOptions
from polyarm_core.control.planner import Effect as PlannerEffect
from polyarm_core.control.waits import TeamWaits, chain_claims, veto_claims
from polyarm_core.coordinator.episode import PlanRecord
from polyarm_core.coordinator.interface import REASONS, PlanAnswer
from polyarm_core.coordinator.repair import Repair
from polyarm_core.domains.arms import ArmsState
from polyarm_core.domains.arms.search import chain_action
from polyarm_core.errors import UnknownName
from polyarm_core.slots import ArmSnapshot, ArmVerdict
from polyarm_core.world import WorldView

LONGEST_CHAIN = 64
"""Steps of a chain that is followed, at most."""

Watch = Callable[[ArmsState, Plan], bool]
"""(state, what is left of the plan) -> whether a detector holds it for stale; asked once per opening.

It is heeded where there is a plan, but it must have seen the state in which that was made."""


@dataclass(frozen=True)
class Called:
    """Effect: a plan was asked for, and this came of it; ``number`` is that of the plan, 0 = none."""

    record: PlanRecord
    number: int


@dataclass(frozen=True)
class Detected:
    """Effect: the team does not get on by itself; ``number`` is that of the plan."""

    detection: Detection
    number: int


Effect = Ask[ArmsState] | Follow | Called | Detected
"""``Ask``: the answer goes to `PlanExecutive.on_answer`. ``Follow``: its ``epoch`` is the number of the plan."""


@dataclass(frozen=True)
class SlotPlan:
    """What every arm is told in one slot.

    Attributes:
        slot: its number.
        number: of the plan, from 1 in each episode; 0 = none yet.
        sound: it is followed; False while it is being replaced.
        heads: arm -> what the plan says of it.
        remaining: what is left of the plan, whether it is followed or not.
        missing: arm that waits -> the wait, and what of it is not satisfied, in words.
    """

    slot: int
    number: int
    sound: bool
    heads: Mapping[str, Head]
    remaining: Plan
    missing: Mapping[str, str]


def names_used(plan: Plan) -> frozenset[str]:
    """Entities and placements of which a plan makes use."""
    steps = (step for chain in plan.values() for step in chain)
    return frozenset(name for step in steps if isinstance(step, ChainAction) for name in step.arguments)


def nobody_watches(state: ArmsState, remaining: Plan) -> bool:
    """A detector that trusts every plan."""
    return False


class PlanExecutive:
    """Planning and execution of plans, of one cell.

    Args:
        domain: of the scenario; its last slot is written by the follower.
        control: who picks the actions; under ``reactive`` nothing is planned.
        repair: mends plans; None = always ask.
        options: of the planner.

    Attributes:
        follower, planner: of the episode.
        number: of the plan that is followed, 0 = none yet; strictly increasing in an episode.
        slot: that was opened last.
        heads: what every arm was told in the last slot.
        alarm: reason of the correction that the last opening called for; empty = none.
        detections: of the episode, in order; ``frame`` is the slot.
        replans: reason -> corrections of the episode that it caused, mended ones included.
    """

    def __init__(
        self,
        domain: MirroredArms,
        control: Control,
        repair: Repair[ArmsState] | None = None,
        options: PlannerOptions | None = None,
    ) -> None:
        self.domain = domain
        self.control = control
        self._repair = repair
        self._options = options or PlannerOptions()
        self._calls_before = 0
        self.planner: Planner[ArmsState] = Planner(domain, repair, self._options)
        self._begin()

    def on_reset(self) -> None:
        """An episode begins; answers to questions of the last one are dropped."""
        self._calls_before += self.planner.calls
        self.planner = Planner(self.domain, self._repair, self._options)
        self._begin()

    def _begin(self) -> None:
        self.follower = PlanFollower(self.domain)
        self.number = 0
        self.slot = 0
        self.heads: Mapping[str, Head] = dict.fromkeys(self.domain.agents, UNPLANNED)
        self.alarm = ""
        self.detections: list[Detection] = []
        self.replans: Counter[str] = Counter()
        self._waits = TeamWaits(self.domain.agents)
        self._started = False
        self._open = False
        self._state: ArmsState | None = None
        self._asked: Ask[ArmsState] | None = None
        self._answer: PlanAnswer | None = None  # to what is asked, until the next opening
        self._done: dict[str, list[ChainAction]] = {}  # since what is asked
        self._found: list[Detection] = []
        self._requested: tuple[str, str, tuple[str, ...]] | None = None
        self._told = 0  # records
        self._elsewhere = 0  # highest number of another coordinator's plan

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def sound(self) -> bool:
        """Whether there is a plan that is followed."""
        return self.planner.sound

    @property
    def open_request(self) -> int:
        """Number of the request that waits for an answer; 0 = none. The answer to any other is dropped."""
        if self._asked is None or not self.planner.thinking or self._answer is not None:
            return 0
        return self._asked.number

    @property
    def is_open(self) -> bool:
        """A slot was opened and not released yet."""
        return self._open

    @property
    def heeds_alarms(self) -> bool:
        """Whether alarms still count: they may use up half of the episode's calls, whoever cries wolf.

        The other half is for what the executor itself finds: without a plan that can be replaced the arms would hold.
        """
        return 2 * self.planner.calls < self._options.calls

    @property
    def worth_holding(self) -> bool:
        """The slot is open, no arm has anything to do without a plan, and one may still come."""
        return (
            self._open
            and self.control is Control.PLANNED
            and not self.sound
            and (self.planner.thinking or self.planner.calls < self._options.calls)
        )

    # -- a slot -------------------------------------------------------------------------------------------------------

    def on_opening(
        self,
        slot: int,
        now: float,
        view: WorldView,
        arms: Mapping[str, ArmSnapshot],
        watch: Watch = nobody_watches,
    ) -> list[Effect]:
        """A slot opens, and what was admitted in the last one has been heard of.

        Args:
            slot: its number, from 1.
            now: s.
            view: the world.
            arms: what the plant says of each arm.
            watch: the staleness detector.
        """
        self.slot, self.alarm = slot, ""
        if self.control is Control.REACTIVE:
            return []
        planner, follower = self.planner, self.follower
        state = self.domain.mirrored(view, slot, arms, follower.waited)
        state = self._state = state._replace(refused=follower.refused(state))
        self._open = True
        found = follower.open(state)
        effects = self._detected(found)
        if not self._started:
            self._started = True
            watch(state, follower.remaining())
            return effects + self._carried_out(planner.start(state, now))
        reason, cause, agents = self._trouble(found, state, watch)
        if self.sound and reason:
            self.alarm = reason
            self.replans[reason] += 1
            remaining = follower.remaining()
            effects += self._carried_out(planner.on_trouble(state, reason, cause, agents, remaining, slot - 1, now))
        return effects + self._judged(now) + self.tick(now)

    def on_answer(self, number: int, answer: PlanAnswer, now: float) -> list[Effect]:
        """The coordinator has answered; only the answer to the request that is open counts."""
        if number == 0 or number != self.open_request:
            return []
        self._answer = answer
        return self._judged(now) if self._open else []

    def tick(self, now: float) -> list[Effect]:
        """Time has passed while a slot is held open: requests are given up, and new ones made after a rest."""
        if not self._open or not self._started:
            return []
        assert self._state is not None
        return self._carried_out(self.planner.tick(self._state, self.follower.remaining(), self.slot - 1, now))

    def release(self) -> SlotPlan:
        """End the opening: what every arm is told."""
        sound, follower = self.sound, self.follower
        self.heads = follower.heads() if sound else dict.fromkeys(self.domain.agents, UNPLANNED)
        self._open = False
        return SlotPlan(
            self.slot,
            self.number,
            sound,
            self.heads,
            follower.remaining(),
            self._missing() if sound else {},
        )

    def untold(self, slot: int) -> SlotPlan:
        """What is said of a slot that was decided before anybody was told anything: that the plan is not followed."""
        nobody = dict.fromkeys(self.domain.agents, UNPLANNED)
        return SlotPlan(slot, self.number, False, nobody, self.follower.remaining(), {})

    def on_verdicts(self, verdicts: Sequence[ArmVerdict]) -> list[Effect]:
        """The twin's answers of the slot; one that was not released before has told nobody anything."""
        if self._open:
            self._open = False
            self.heads = dict.fromkeys(self.domain.agents, UNPLANNED)
        self.follower.on_verdicts(verdicts)
        heads = self.heads
        if self.control is Control.HYBRID:  # an arm whose chain has ended acts by its own model
            heads = {a: UNPLANNED if h.standing is Standing.ENDED else h for a, h in heads.items()}
        planned = any(head.standing is not Standing.UNPLANNED for head in heads.values())
        remaining = self.follower.remaining() if planned else None
        claims = chain_claims(self.follower, heads) if planned else {}
        claims |= veto_claims(self.domain.scenario, verdicts, heads, remaining)
        found = self._waits.update(claims, self.slot)
        self._found += found
        return self._detected(found)

    def on_result(self, arm: str, action: Action, outcome: str, reason: str) -> None:
        """An action of the slot has ended: ``succeeded``, ``failed`` or ``stopped``, with the plant's reason."""
        if outcome == "succeeded":
            self._done.setdefault(arm, []).append(chain_action(action))
        self.follower.on_result(arm, action, outcome, reason)

    def on_request(self, number: int, reason: str, cause: str, agents: Sequence[str] = ()) -> bool:
        """Somebody asks for another plan than that of a number: it is trouble at the next opening.

        Returns:
            False where the request is ignored, because that plan is not followed any more, or too much was asked for.

        Raises:
            UnknownName: no such reason or agent.
        """
        if reason not in REASONS:
            raise UnknownName("reason", reason, REASONS)
        for agent in agents:
            if agent not in self.domain.agents:
                raise UnknownName("agent", agent, self.domain.agents)
        if number == 0 or number != self.number or not self.sound or not self.heeds_alarms:
            return False
        self._requested = reason, cause, tuple(agents)
        return True

    def on_plan_elsewhere(self, number: int) -> None:
        """Another coordinator has followed a plan of this number in the episode: the next one of this has a higher."""
        self._elsewhere = max(self._elsewhere, number)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _trouble(self, found: Sequence[Detection], state: ArmsState, watch: Watch) -> tuple[str, str, tuple[str, ...]]:
        """(reason, cause, agents) of a correction; an empty reason = none. A cycle says most, so it comes first."""
        everything = sorted((*self._found, *found), key=lambda d: d.kind != "deadlock")
        self._found = []
        requested, self._requested = self._requested, None
        stale = watch(state, self.follower.remaining()) and self.planner.epoch > 0
        if everything:
            return everything[0].kind, everything[0].reason, everything[0].agents
        if not self.heeds_alarms:
            return "", "", ()
        if requested is not None:
            return requested
        return ("stale", "the world has changed", ()) if stale else ("", "", ())

    def _judged(self, now: float) -> list[Effect]:
        """What is done with the answer that has come, if any."""
        answer, asked, self._answer = self._answer, self._asked, None
        if answer is None or asked is None or not self.planner.thinking:
            return []
        assert self._state is not None
        if answer.plan is not None:
            problems = validate(answer.plan, self.domain.simulation, asked.request.state, LONGEST_CHAIN)
            if problems:
                error = f"the plan is not valid: {'; '.join(map(str, problems))}"
                answer = replace(answer, plan=None, error=error)
        number = asked.number - self._calls_before
        remaining = self.follower.remaining()
        done, frame = self._done, self.slot - 1
        return self._carried_out(self.planner.on_answer(number, answer, self._state, remaining, frame, now, done))

    def _carried_out(self, effects: Sequence[PlannerEffect[ArmsState]]) -> list[Effect]:
        """Effects of the planner as those of the executive, once it has done its own part."""
        out: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Ask):
                self._done = {}
                # Numbers go on from episode to episode, or an answer of the last one could be taken for one of this.
                self._asked = Ask(self._calls_before + effect.number, effect.request)
                out.append(self._asked)
            else:
                self.number = max(self.number, self._elsewhere) + 1
                self.follower.adopt(effect.plan, self.number)
                self._waits.forget()
                self._found, self._requested = [], None
                out.append(replace(effect, epoch=self.number))
        records, self._told = self.planner.records[self._told :], len(self.planner.records)
        out += [Called(record, self.number if record.plan is not None else 0) for record in records]
        return out

    def _detected(self, found: Sequence[Detection]) -> list[Effect]:
        self.detections += found
        return [Detected(detection, self.number) for detection in found]

    def _missing(self) -> dict[str, str]:
        words = {}
        for wait in self.follower.waiting():
            atoms = zip(wait.wait.atoms, self.follower.reached(wait), strict=True)
            missing = [str(atom) for atom, reached in atoms if not reached]
            words[wait.agent] = f"step {wait.step}, {wait.wait}"
            if len(wait.wait.atoms) > len(missing):
                words[wait.agent] += f"; missing: {', '.join(missing)}"
        return words
