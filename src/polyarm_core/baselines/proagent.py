"""Per-step prompting in the way of ProAgent (Zhang et al., AAAI 2024): no chains, one model call for every skill.

Whenever an agent has finished its skill, a planner (the language model) is shown the state and what the partner is
doing, and writes what it thinks of the partner's intention, and its own next skill. A verifier checks the skill's
preconditions; if they do not hold the planner is asked again and told why, at most ``RETRIES`` times, then the agent
waits. Skills are walked out by the same controller that executes chains, so a comparison is about planning alone.

The text is free, and read leniently: the last skill with its brackets that it names counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from polyarm_core.chains.terms import Action
from polyarm_core.domains.interface import ActionStatus
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.domains.overcooked.kitchen import DISH, FULL, IDLE, ITEM_NAMES, NOTHING, ONION, SOUP, KitchenState
from polyarm_core.llm.interface import LanguageModel, ModelError, Prompt

RETRIES = 3  # further attempts after a skill that cannot be done
WAIT = 3  # frames that an agent waits when nothing else is left
LIMIT = 20  # frames after which a skill is given up: the world has changed, or somebody is in the way
MAX_TOKENS = 64

SKILLS = (
    "pickup(onion)",
    "pickup(dish)",
    "put_onion_in_pot()",
    "start_cooking()",
    "fill_dish_with_soup()",
    "deliver_soup()",
    "place_obj_on_counter()",
    "wait(frames)",
)
_CALL = re.compile(r"([a-z_]+)\s*\(\s*([a-z0-9_]*)\s*\)")
_ITEMS = {"onion": ONION, "dish": DISH, "soup": SOUP}


@dataclass(frozen=True)
class Skill:
    """A medium-level action.

    Attributes:
        name: of the skill.
        argument: item of ``pickup``, frames of ``wait``; else empty.
    """

    name: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.name}({self.argument})"


@dataclass
class _Running:
    """What an agent is doing: an action, or nothing (it waits), since and until which frame."""

    skill: Skill
    action: Action | None
    until: int


@dataclass
class PlannerUse:
    """Counts over the life of a team.

    Attributes:
        calls: planner calls, retries included.
        unreadable: texts without a skill.
        rejected: skills whose preconditions did not hold.
        waits: decisions that ended in waiting because every attempt failed.
        model_errors: attempts in which the model gave no text.
        seconds, prompt_tokens, tokens: of the model.
    """

    calls: int = 0
    unreadable: int = 0
    rejected: int = 0
    waits: int = 0
    model_errors: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0

    @property
    def invalid_share(self) -> float:
        """Share of texts that named no skill, or one that could not be done."""
        return (self.unreadable + self.rejected) / self.calls if self.calls else 0.0


class ProAgent:
    """A team of two planners that share one model; implements ``baselines.interface.Policy``.

    ``start_cooking`` is not among ProAgent's skills because its kitchen cooks by itself.

    Args:
        domain: the kitchen.
        model: writes the skills.
        retries: further attempts of one decision.

    Attributes:
        use: counts.
        reasons: why the last decision was made as it was, by agent; for people.
    """

    name = "proagent"

    def __init__(self, domain: OvercookedDomain, model: LanguageModel, retries: int = RETRIES) -> None:
        self.domain = domain
        self.model = model
        self.retries = retries
        self.use = PlannerUse()
        self.reasons: dict[str, str] = {}
        self._running: dict[str, _Running] = {}
        self._done: dict[str, str] = {}
        self._before: tuple[KitchenState, tuple[int, int]] | None = None

    def reset(self, seed: int) -> None:
        """Begin an episode. Nothing is random here."""
        self._running.clear()
        self._done = dict.fromkeys(self.domain.agents, "nothing yet")
        self.reasons = {}
        self._before = None

    def act(self, state: KitchenState) -> tuple[int, int]:
        """Controls for one frame; asks the planner for every agent whose skill has ended."""
        self._take_in(state)
        for agent in self.domain.agents:
            if agent not in self._running:
                self._running[agent] = self._decide(state, agent)
        intents = [self._running[agent].action for agent in self.domain.agents]
        controls = self.domain.control(state, intents)
        self._before = state, controls
        return controls

    def _take_in(self, state: KitchenState) -> None:
        """End what has ended."""
        for agent in self.domain.agents:
            running = self._running.get(agent)
            if running is None:
                continue
            ended = "given up" if state.frame >= running.until else ""
            if running.action is None:
                ended = ended and "done"
            elif self._before is not None:
                before, controls = self._before
                after = state._replace(frame=before.frame + 1)
                status = self.domain.progress(before, controls, after, agent, running.action).status
                if status is ActionStatus.DONE:
                    ended = "done"
                elif status is ActionStatus.FAILED:
                    ended = "failed"
            if ended:
                self._done[agent] = f"{running.skill} {ended}"
                del self._running[agent]

    def _decide(self, state: KitchenState, agent: str) -> _Running:
        """Ask the planner until a skill passes the verifier."""
        feedback: list[str] = []
        for _ in range(1 + self.retries):
            try:
                answer = self.model.generate(self.prompt(state, agent, feedback), max_tokens=MAX_TOKENS)
            except ModelError as error:
                self.use.model_errors += 1
                feedback.append(str(error))
                break
            self.use.calls += 1
            self.use.seconds += answer.seconds
            self.use.prompt_tokens += answer.prompt_tokens
            self.use.tokens += answer.tokens
            skill = read_skill(answer.text)
            if skill is None:
                self.use.unreadable += 1
                feedback.append("No skill was named.")
                continue
            action, problem = self.verify(state, agent, skill)
            if not problem:
                self.reasons[agent] = answer.text.strip()
                frames = int(skill.argument) if action is None else LIMIT
                return _Running(skill, action, state.frame + frames)
            self.use.rejected += 1
            feedback.append(f"{skill} is not possible: {problem}.")
        self.use.waits += 1
        self.reasons[agent] = " ".join(feedback)
        return _Running(Skill("wait", str(WAIT)), None, state.frame + WAIT)

    def prompt(self, state: KitchenState, agent: str, feedback: list[str]) -> Prompt:
        """What the planner reads; ``static`` is the same for both agents and all frames."""
        partner = next(name for name in self.domain.agents if name != agent)
        doing = self._running.get(partner)
        lines = [
            f"Kitchen: {self.domain.describe(state)}",
            f"You are {agent}. You hold {ITEM_NAMES[state.held[self.domain.agents.index(agent)]]}. "
            f"Your last skill: {self._done.get(agent, 'nothing yet')}.",
            f"{partner} is at: {doing.skill if doing else 'nothing'}.",
            *feedback,
            f"What does {partner} intend, and what is your next skill?",
        ]
        static = (
            f"You are a cook in {self.domain.background}. The team's goal is {self.domain.target}.\n"
            f"Skills: {', '.join(SKILLS)}.\n"
            "Answer in two lines. First line: Intention: what your partner will do. "
            "Second line: Skill: your next skill, for example Skill: pickup(onion)"
        )
        return Prompt(static, "\n".join(lines))

    def verify(self, state: KitchenState, agent: str, skill: Skill) -> tuple[Action | None, str]:
        """The action of a skill, or why it cannot be done now, in words. ``wait`` has no action and no problem."""
        domain = self.domain
        held = state.held[domain.agents.index(agent)]
        if skill.name == "wait":
            frames = int(skill.argument) if skill.argument.isdigit() else 0
            return None, "" if 1 <= frames <= LIMIT else f"wait for 1 to {LIMIT} frames"
        pots = dict(zip(domain.layout.pots, state.pots, strict=True))
        counters = dict(zip(domain.layout.counters, state.counters, strict=True))
        layout = domain.layout
        if skill.name == "pickup":
            item = _ITEMS.get(skill.argument)
            if item is None:
                return None, f"there is no item {skill.argument!r}; pick up onion, dish or soup"
            if held != NOTHING:
                return None, f"your hands are full, you hold {ITEM_NAMES[held]}"
            sources = {ONION: layout.onion_dispensers, DISH: layout.dish_dispensers}.get(item, ())
            tiles = [*sources, *(cell for cell, there in counters.items() if there == item)]
            missing = f"no {skill.argument} is within reach"
        elif skill.name == "place_obj_on_counter":
            if held == NOTHING:
                return None, "you hold nothing"
            tiles = [cell for cell, there in counters.items() if there == NOTHING]
            missing = "no free counter is within reach"
        elif skill.name == "put_onion_in_pot":
            if held != ONION:
                return None, "you do not hold an onion"
            tiles = [pot for pot, (onions, tick) in pots.items() if onions < FULL and tick == IDLE]
            tiles = [pot for pot in tiles if pots[pot][0] == max(pots[other][0] for other in tiles)]
            missing = "every pot is full"
        elif skill.name == "start_cooking":
            if held != NOTHING:
                return None, f"it needs empty hands, you hold {ITEM_NAMES[held]}"
            tiles = [pot for pot, (onions, tick) in pots.items() if onions == FULL and tick == IDLE]
            missing = "no pot has three onions and waits for its start"
        elif skill.name == "fill_dish_with_soup":
            if held != DISH:
                return None, "you do not hold a dish"
            tiles = [pot for pot, (onions, tick) in pots.items() if onions == FULL and tick != IDLE]
            missing = "no soup is cooking or ready"
        elif skill.name == "deliver_soup":
            if held != SOUP:
                return None, "you do not hold a soup"
            tiles, missing = list(layout.servings), "no serving tile is within reach"
        else:
            return None, f"there is no such skill; skills: {', '.join(SKILLS)}"
        return self._nearest(state, agent, tiles, missing)

    def _nearest(self, state: KitchenState, agent: str, tiles: list[int], missing: str) -> tuple[Action | None, str]:
        player = self.domain.agents.index(agent)
        near = []
        for tile in tiles:
            name = self.domain.names.get(tile)
            arrivals = self.domain.navigation.arrivals(state.positions[player], state.facings[player], tile)
            if name is not None and arrivals and tile not in state.blocked:
                near.append((min(arrivals.values()), tile, name))
        return (Action("Interact", (min(near)[2],)), "") if near else (None, missing)


def read_skill(text: str) -> Skill | None:
    """The last skill that a text names with its brackets; None where there is none."""
    known = {skill.partition("(")[0] for skill in SKILLS}
    calls = [Skill(name, argument) for name, argument in _CALL.findall(text.lower()) if name in known]
    return calls[-1] if calls else None
