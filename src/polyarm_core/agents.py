"""One arm's agent: prompt from the local context, choice among the legal actions (LDT-Coord eqs. 2, 5, 6).

A pure state machine: worlds, verdicts and scores go in, deliberations and choices come out. Who computes the scores,
in which process and how long it may take is the node's concern.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from polyarm_core.constraints import MOVE_VERB, STAY, Action, Declaration
from polyarm_core.declaration import declare
from polyarm_core.errors import InvalidValue
from polyarm_core.llm.interface import Prompt, choose
from polyarm_core.scenario import Scenario
from polyarm_core.world import Observation, World, WorldView, distance_to_goal


class DecidedBy(enum.Enum):
    """What settled a choice."""

    MODEL = "model"
    ONLY_CHOICE = "only_choice"
    HEURISTIC = "heuristic"
    FALLBACK = "fallback"
    CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class Deliberation:
    """What an agent has to decide in one slot.

    Attributes:
        observation: the local observation.
        candidates: the actions to choose from, a subset of the legal set in its order; never empty.
        prompt: what the model reads.
        texts: the candidates in words, in the same order; the model scores these.
        avoided: legal actions left out because they were vetoed or failed in this very situation.
    """

    observation: Observation
    candidates: tuple[Action, ...]
    prompt: Prompt
    texts: tuple[str, ...]
    avoided: frozenset[Action]


@dataclass(frozen=True, slots=True)
class Choice:
    """The action of one slot with its declaration, and how it came about."""

    action: Action
    declaration: Declaration
    decided_by: DecidedBy
    score: float = 0.0


@dataclass(slots=True)
class ArmAgent:
    """Picks one arm's actions.

    Args:
        scenario: the task.
        arm: the arm's name.
        stay_patience: how many slots in a row the arm may stay although it could act; after that a0 is left out of
            the candidates, so that a weak model which always prefers to stay cannot stop the team.
    """

    scenario: Scenario
    arm: str
    stay_patience: int = 1
    _static: str = field(init=False)
    _stayed: int = field(init=False, default=0)
    _situation: Observation | None = field(init=False, default=None)
    _avoid: set[Action] = field(init=False, default_factory=set)
    _keep: Action | None = field(init=False, default=None)
    _history: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if self.stay_patience < 0:
            raise InvalidValue("stay_patience", self.stay_patience, "0 or more slots")
        self._static = static_prompt(self.scenario, self.arm)

    def reset(self) -> None:
        """Forget everything: a new episode begins."""
        self._stayed, self._situation, self._keep, self._history = 0, None, None, ""
        self._avoid = set()

    def prompt_for_warming_up(self) -> Prompt:
        """A prompt with the static part of every later one, for a model that is to read it ahead of time."""
        return Prompt(static=self._static, dynamic="Action:")

    def deliberate(self, world: World | WorldView, reserved: Collection[str] = ()) -> Deliberation:
        """Observe and enumerate. An intention that the twin told to wait is kept while it is legal.

        Args:
            world: as it is now.
            reserved: entities and placements that are left to others: no candidate names one of them.
        """
        view = world if isinstance(world, WorldView) else WorldView(self.scenario, world)
        observation = view.observe(self.arm)
        if observation != self._situation:  # what was refused elsewhere may be right here
            self._situation = observation
            self._avoid.clear()
        legal = tuple(a for a in view.legal(self.arm) if a.entity not in reserved and a.placement not in reserved)
        keep, self._keep = self._keep, None
        if keep is not None and keep in legal:
            candidates: tuple[Action, ...] = (keep,)
        else:
            moves = tuple(action for action in legal if not action.is_stay)
            fresh = tuple(action for action in moves if action not in self._avoid)
            if moves and not fresh:  # every alternative was tried: begin again rather than give up
                self._avoid.clear()
                fresh = moves
            may_stay = not fresh or self._stayed < self.stay_patience
            candidates = ((STAY,) if may_stay else ()) + fresh
        return Deliberation(
            observation=observation,
            candidates=candidates,
            prompt=Prompt(static=self._static, dynamic=dynamic_prompt(self.scenario, observation, self._history)),
            texts=tuple(action_text(action, observation) for action in candidates),
            avoided=frozenset(self._avoid),
        )

    def settle(
        self, deliberation: Deliberation, mean_logprobs: Sequence[float], decided_by: DecidedBy = DecidedBy.MODEL
    ) -> Choice:
        """The candidate with the highest mean token log-probability (eq. 6); the first of equals.

        Raises:
            InvalidValue: not one number for each candidate.
        """
        if len(mean_logprobs) != len(deliberation.candidates):
            raise InvalidValue("mean_logprobs", len(mean_logprobs), f"{len(deliberation.candidates)} numbers")
        best = choose(mean_logprobs)
        return self._choose(deliberation, deliberation.candidates[best], decided_by, float(mean_logprobs[best]))

    def only_choice(self, deliberation: Deliberation) -> Choice | None:
        """The choice when there is nothing to choose, so that no model is asked; None otherwise."""
        if len(deliberation.candidates) > 1:
            return None
        return self._choose(deliberation, deliberation.candidates[0], DecidedBy.ONLY_CHOICE, 0.0)

    def fall_back(self, deliberation: Deliberation) -> Choice:
        """Stay, because no model answered in time. Does not count as the model's wish to stay."""
        return Choice(STAY, Declaration(), DecidedBy.FALLBACK)

    def on_verdict(self, action: Action, decision: str) -> None:
        """The twin's answer: ``admit``, ``yield`` (drop the action, choose again) or ``wait`` (keep it)."""
        if decision == "yield":
            self._avoid.add(action)
            self._history = f"{action}: refused, choose another"
        elif decision == "wait":
            self._keep = action
        elif not action.is_stay:
            self._history = f"{action}: done"

    def on_failure(self, action: Action) -> None:
        """The plant could not carry the action out: do not propose the same again in the same situation."""
        self._avoid.add(action)
        self._history = f"{action}: failed"

    def _choose(self, deliberation: Deliberation, action: Action, decided_by: DecidedBy, score: float) -> Choice:
        could_act = any(not candidate.is_stay for candidate in deliberation.candidates)
        self._stayed = self._stayed + 1 if action.is_stay and could_act else 0
        return Choice(
            action, declare(self.scenario, self.arm, action, deliberation.observation.entities), decided_by, score
        )


def action_text(action: Action, observation: Observation) -> str:
    """A candidate answer: what the model scores token by token."""
    if action.verb != MOVE_VERB:
        return str(action)
    return f"{action.verb} {action.entity} from {observation.entities[action.entity]} to {action.placement}"


def static_prompt(scenario: Scenario, arm: str) -> str:
    """The part of the prompt that never changes in an episode; its keys and values stay in the model's cache."""
    line = sorted(scenario.placements, key=scenario.order)
    goals = ", ".join(f"{name} to {e.goal}" for name, e in scenario.entities.items() if e.goal is not None)
    return (
        f"You are robot arm {arm} in a team. Task: {scenario.description}\n"
        f"Placements in order: {', '.join(line)}.\n"
        f"Goals: {goals}.\n"
        f"You reach only {', '.join(scenario.arm(arm).reach)}. "
        "Bring each object to its goal, or hand it over on a shared placement nearer to its goal. "
        f"{_operators_in_words(scenario, arm)}Answer with one action.\n"
    )


def _operators_in_words(scenario: Scenario, arm: str) -> str:
    phrases = []
    for operator in scenario.operators:
        if arm in operator.arms:
            together = [name for name in operator.group if name != arm]
            words = str(Action(operator.verb, operator.entity or "", operator.placement or ""))
            phrases.append(words + (f" together with {', '.join(together)}" if together else ""))
    return f"You can also: {'; '.join(phrases)}. " if phrases else ""


def dynamic_prompt(scenario: Scenario, observation: Observation, history: str) -> str:
    """The part of the prompt that states what the arm perceives in this slot."""
    seen = [
        f"{entity} is {'in your gripper near' if entity == observation.holding else 'on'} {placement} "
        f"({distance_to_goal(scenario, entity, placement)} from its goal)"
        for entity, placement in observation.entities.items()
    ]
    lines = ["You see: " + ("; ".join(seen) if seen else "nothing to move") + "."]
    if observation.occupied:
        lines.append("Occupied: " + ", ".join(sorted(observation.occupied)) + ".")
    if observation.conditions:
        lines.append("True now: " + ", ".join(sorted(observation.conditions)) + ".")
    if history:
        lines.append(f"Before: {history}.")
    return "\n".join(lines) + "\nAction:"
