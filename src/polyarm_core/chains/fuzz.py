"""Generated and mutated model outputs through parser, validator and executor: nothing may break, nothing may slip by.

``python -m polyarm_core.chains.fuzz --count 100000 --seed 0 --layout coordination_ring`` prints the report and fails if
an output caused anything but a typed error, or a step was executed that had not been validated.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from polyarm_core.chains.parser import MAX_CHARACTERS, ChainSyntaxError, parse_lenient, parse_plan
from polyarm_core.chains.printer import format_plan, format_value
from polyarm_core.chains.terms import COMPARISONS, Action, Plan, Step, Value, Wait, WaitAgents, WaitEntity
from polyarm_core.chains.validation import comparisons, validate
from polyarm_core.domains.interface import Attribute, Control, Domain, State

FRAMES = 24  # for which a valid plan is executed
KEPT = 10  # examples of what must not happen

Item = TypeVar("Item")

# What models write around, instead of and inside of a plan.
_CHATTER = (
    "Sure! Here is the plan:\n",
    "Let me think, step by step.\n\n",
    "<think>agent_1 is closer</think>\n",
    "\n\nThis plan delivers the soup as fast as possible.",
    "```\n",
    "\n```",
    "```python\n",
    "{",
    "}",
    "[System] You are a planner",
    "<|im_end|>",
)
_JUNK = (
    *("(", ")", ",", ":", '"', "'", "&", "|", "&&", "=", "==", "<=", "!", "\\", "\\u12", "\n", "\r\n", "\t", " "),
    *(
        "\x00",
        "\x0b",
        "\u00a0",
        "\ufeff",
        "\u2028",
        "é",
        "汉",
        "🍲",
        "`",
        "```",
        "{",
        "}",
        "[",
        "]",
        "#",
        "//",
        "-",
        ".",
        "_",
    ),
    *("0", "-1", "1.5", "1e999", "9" * 40, "NaN", "Infinity", "None", "null", "true", "false", "start", "done"),
    *(
        "Wait_agents(",
        "Wait_entity(",
        "Wait_agents",
        "wait_agents(agent_1, done, 1)",
        "Pick_up(onion)",
        "agent_0",
        "pot_99",
    ),
    *("Wait_agents(agent_1, done, 99)", "Interact(Interact(pot_1))", "Interact()", "status", "__class__", "%s", "{0}"),
)


class Executor(Protocol):
    """What is needed of :class:`polyarm_core.chains.executor.ChainExecutor`."""

    def intents(self, state: Any) -> tuple[Action | None, ...]:
        """What each agent is to do now."""
        ...

    def advance(self, before: Any, controls: Sequence[Control], after: Any) -> Sequence[Any]:
        """Take in a frame."""
        ...


@dataclass(frozen=True)
class FuzzReport:
    """What became of the outputs.

    Attributes:
        count: outputs.
        outcomes: ``syntax error``, ``not valid``, ``executed``; every output is in one of them, or in ``failures``.
        problems: kinds of problems of those that are not valid.
        detections: kinds of what the executor found in those that were executed.
        frames: that were executed, all together.
        steps: actions of agents in these frames.
        unvalidated: those of them that are no steps of a plan that had passed validation.
        failures: text and error of outputs that caused something other than a typed error; at most ``KEPT``.
        failed: how many there were.
        seconds: for all of it.
    """

    count: int
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    detections: Counter[str] = field(default_factory=Counter)
    frames: int = 0
    steps: int = 0
    unvalidated: int = 0
    failures: tuple[tuple[str, str], ...] = ()
    failed: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Nothing happened that must not happen."""
        return not self.failed and not self.unvalidated

    def __str__(self) -> str:
        def row(name: str, counter: Counter[str]) -> str:
            return f"{name}: " + (", ".join(f"{key} {number}" for key, number in counter.most_common()) or "none")

        lines = [
            f"{self.count} outputs in {self.seconds:.0f} s",
            row("outcomes", self.outcomes),
            row("problems", self.problems),
            row("detections", self.detections),
            f"executed: {self.frames} frames, {self.steps} actions, of which not validated {self.unvalidated}",
            f"untyped errors and broken laws: {self.failed}",
        ]
        return "\n".join([*lines, *(f"  {error}\n    {text[:400]!r}" for text, error in self.failures)])


def fuzz(
    domain: Domain[State],
    states: Sequence[State],
    make_executor: Callable[[Domain[State], Plan], Executor],
    count: int,
    seed: int,
    frames: int = FRAMES,
) -> FuzzReport:
    """Push outputs through parser and validator, and what is valid through the executor.

    Checked for every output: parsing raises nothing but ``ChainSyntaxError``; reading it instruction by instruction
    finds something malformed exactly if it raises; validation and execution raise nothing; printing and parsing a
    valid plan gives the same plan; each action that the executor wants is an action of the validated plan; and it finds
    no deadlock in a valid plan without ``|`` (with it, a condition that cannot come true may close a circle later).

    Args:
        domain: of the scene.
        states: in which plans are made; each output is for one of them.
        make_executor: usually ``ChainExecutor``.
        count: outputs.
        seed: same seed, same outputs.
        frames: for which a valid plan is executed.
    """
    started = time.perf_counter()
    rng = np.random.default_rng(seed)
    writers = [_Writer(domain, state, rng) for state in states]
    outcomes: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    detections: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    failures: list[tuple[str, str]] = []
    for _ in range(count):
        at = int(rng.integers(len(writers)))
        text = writers[at].output()
        try:
            outcome = _push(text, domain, states[at], make_executor, frames, problems, detections, totals)
        except Exception as error:  # exactly what must not happen, so it is kept and told
            totals["failed"] += 1
            if len(failures) < KEPT:
                failures.append((text, f"{type(error).__name__}: {error}"))
            continue
        outcomes[outcome] += 1
    return FuzzReport(
        count,
        outcomes,
        problems,
        detections,
        frames=totals["frames"],
        steps=totals["steps"],
        unvalidated=totals["unvalidated"],
        failures=tuple(failures),
        failed=totals["failed"],
        seconds=time.perf_counter() - started,
    )


def _push(
    text: str,
    domain: Domain[State],
    state: State,
    make_executor: Callable[[Domain[State], Plan], Executor],
    frames: int,
    problems: Counter[str],
    detections: Counter[str],
    totals: Counter[str],
) -> str:
    """One output through everything; what became of it."""
    malformed = any(isinstance(instruction.outcome, ChainSyntaxError) for instruction in parse_lenient(text))
    try:
        plan = parse_plan(text, domain.agents)
    except ChainSyntaxError:
        if not malformed:
            raise AssertionError("instruction by instruction nothing is malformed, but the whole is") from None
        return "syntax error"
    if malformed:
        raise AssertionError("instruction by instruction something is malformed, but the whole is not")
    found = validate(plan, domain, state)
    problems.update({problem.kind for problem in found})
    if found:
        return "not valid"
    if parse_plan(format_plan(plan)) != plan:
        raise AssertionError("the plan is another one after printing and parsing")
    allowed = [{step for step in plan[agent] if isinstance(step, Action)} for agent in domain.agents]
    executor = make_executor(domain, plan)
    for _ in range(frames):
        intents = executor.intents(state)
        for intent, actions in zip(intents, allowed, strict=True):
            if intent is not None:
                totals["steps"] += 1
                totals["unvalidated"] += intent not in actions
        controls = domain.control(state, intents)
        after = domain.step(state, controls)
        for detection in executor.advance(state, controls, after):
            detections[detection.kind] += 1
            if detection.kind == "deadlock" and "|" not in text:
                raise AssertionError(f"a deadlock in a valid plan: {detection.reason}")
        totals["frames"] += 1
        state = after
        if domain.succeeded(state):
            break
    return "executed"


# -- outputs ----------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes outputs for one state, as a model might that has seen the language and does not always heed it."""

    def __init__(self, domain: Domain[Any], state: Any, rng: np.random.Generator) -> None:
        self.domain, self.rng = domain, rng
        self.actions = {
            agent: [
                Action(template.name, arguments)
                for template in domain.vocabulary
                for arguments in domain.arguments(state, agent, template)
            ]
            for agent in domain.agents
        }
        self.entities = domain.entities(state)
        names = [*domain.agents, *(entity.name for entity in self.entities), *(t.name for t in domain.vocabulary)]
        names += [attribute.name for attributes in domain.attributes.values() for attribute in attributes]
        self.words = list(dict.fromkeys((*names, *COMPARISONS, *_JUNK)))
        self.good = [format_plan(plan) for plan, _ in zip(domain.candidates(state), range(20), strict=False)]

    def output(self) -> str:
        """One output: a plan of the search, a random plan, or junk; then usually some mutations."""
        draw = self.rng.random()
        if draw < 0.02:
            return self.junk()
        text = self.pick(self.good) if self.good and draw < 0.15 else self.styled(self.plan())
        for _ in range(int(self.pick((0, 0, 0, 1, 1, 2, 4, 8)))):
            text = self.mutated(text)
        return text

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self.rng.integers(len(items)))]

    def junk(self) -> str:
        """Nothing like a plan, sometimes longer than the parser takes."""
        length = int(self.pick((0, 1, 5, 50, 500)))
        text = "".join(self.pick(self.words) for _ in range(length))
        return text * (MAX_CHARACTERS // max(1, len(text)) + 1) if self.rng.random() < 0.02 else text

    # A plan, mostly right: references exist more often than not.

    def plan(self) -> Plan:
        lengths = {agent: int(self.pick((0, 1, 2, 3, 4, 5, 6, 8, 16, 17))) for agent in self.domain.agents}
        wrong = float(self.pick((0.0, 0.0, 0.02, 0.1)))
        return Plan.of(
            {agent: tuple(self.step(agent, lengths, wrong) for _ in range(n)) for agent, n in lengths.items()}
        )

    def step(self, agent: str, lengths: dict[str, int], wrong: float) -> Step:
        draw = self.rng.random()
        if self.rng.random() < wrong:
            return Action(
                *self.pick((("Pick_up", ("onion",)), ("Interact", ("pot_99",)), ("Clear", ()), ("Face", ("up", "1"))))
            )
        if draw < 0.75 and self.actions[agent]:
            return self.pick(self.actions[agent])
        atoms = tuple(self.atom(agent, lengths, wrong) for _ in range(1 + (self.rng.random() < 0.3)))
        return Wait(atoms, None if len(atoms) == 1 else self.pick(("&", "|")))

    def atom(self, agent: str, lengths: dict[str, int], wrong: float) -> WaitAgents | WaitEntity:
        others = [other for other in self.domain.agents if other != agent] or [agent]
        if self.rng.random() < 0.4:
            other = agent if self.rng.random() < wrong else self.pick(others)
            step = int(self.rng.integers(1, max(2, lengths[other] + 1)))
            return WaitAgents(other, self.pick(("start", "done")), step + 5 * int(self.rng.random() < wrong))
        entity = self.pick(self.entities)
        attribute = self.pick(self.domain.attributes[entity.kind])
        anything = self.rng.random() < wrong
        comparison = self.pick(COMPARISONS if anything else comparisons(attribute))
        return WaitEntity(entity.name, attribute.name, comparison, self.value(attribute, anything))

    def value(self, attribute: Attribute, anything: bool) -> Value:
        if anything:
            odd: tuple[Value, ...] = (True, -7, 3.25, 10**9, "nothing at all", "ready")
            return self.pick(odd)
        if attribute.kind == "bool":
            return bool(self.rng.random() < 0.5)
        if attribute.kind == "choice":
            return self.pick(attribute.choices)
        number = attribute.low + self.rng.random() * (attribute.high - attribute.low)
        return round(number) if attribute.kind == "int" else round(float(number), 3)

    def styled(self, plan: Plan) -> str:
        """Text of a plan in one of the spellings that mean the same, or nearly so."""
        style = self.rng.random()
        if style < 0.6:
            return format_plan(plan)
        join = self.pick((", ", ",", ",\n  ", " , ", "; ", "\n"))
        tag = self.pick(('"{}": ', '"{}":', "{}: ", "{} :\n", "- {}: ", "[{}] "))
        end = self.pick(("\n", ",\n", "\n\n", " ", ""))
        return end.join(tag.format(agent) + join.join(_plain(step) for step in plan[agent]) for agent in plan)

    # Mutations.

    def mutated(self, text: str) -> str:
        """The text with one thing changed."""
        a, b = sorted(int(x) for x in self.rng.integers(0, len(text) + 1, size=2))
        kind = int(self.rng.integers(11))
        if kind == 0:  # a character is missing
            return text[:a] + text[a + 1 :]
        if kind == 1:
            return text[:a] + self.pick(_JUNK) + text[a:]
        if kind == 2:  # cut off, as by the limit of tokens
            return text[:b]
        if kind == 3:  # a piece again
            return text[:b] + text[a:b][:200] + text[b:]
        if kind == 4:  # a piece missing
            return text[:a] + text[min(b, a + 20) :]
        if kind == 5:  # a word instead of another
            words = text.split(" ")
            words[int(self.rng.integers(len(words)))] = self.pick(self.words)
            return " ".join(words)
        if kind == 6:
            lines = text.split("\n")
            self.rng.shuffle(lines)
            return "\n".join(lines)
        if kind == 7:  # a block twice
            lines = text.split("\n")
            return "\n".join([*lines, self.pick(lines)])
        if kind == 8:
            return self.pick(_CHATTER) + text
        if kind == 9:
            return text + self.pick(_CHATTER)
        old, new = self.pick(self.words), self.pick(self.words)
        return text.replace(old, new)[: 2 * MAX_CHARACTERS]


def _plain(step: Step) -> str:
    """A step with its terms' own spelling, which need not be the printer's."""
    if isinstance(step, Action):
        return f"{step.name}({','.join(step.arguments)})"
    atoms = []
    for atom in step.atoms:
        if isinstance(atom, WaitAgents):
            atoms.append(f"Wait_agents( {atom.agent},{atom.milestone}, {atom.step} )")
        else:
            atoms.append(f'Wait_entity("{atom.entity}", {atom.attribute},{atom.comparison},{format_value(atom.value)})')
    return (step.connective or "").join(atoms)


# -- command ----------------------------------------------------------------------------------------------------------


def episode_states(domain: Domain[State], count: int, seed: int) -> list[State]:
    """States from disturbed episodes: plans of the search are executed for a while, with events in between."""
    from polyarm_core.chains.executor import ChainExecutor

    rng = np.random.default_rng(seed)
    states: list[State] = []
    while len(states) < count:
        state = domain.start(int(rng.integers(1000)))
        states.append(state)
        for _ in range(3):
            plans = [plan for plan, _ in zip(domain.candidates(state), range(8), strict=False)]
            if not plans or domain.succeeded(state):
                break
            executor = ChainExecutor(domain, plans[int(rng.integers(len(plans)))])
            for _ in range(int(rng.integers(1, 25))):
                controls = domain.control(state, executor.intents(state))
                after = domain.step(state, controls)
                executor.advance(state, controls, after)
                state = after
            event = domain.disturbances[int(rng.integers(len(domain.disturbances)))]
            disturbed = domain.disturb(state, event.name, float(rng.random()))
            state = state if disturbed is None else disturbed
            states.append(state)
    return states[:count]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of the module; 0 = passed."""
    parser = argparse.ArgumentParser(description="Fuzz the chain language on Overcooked.")
    parser.add_argument("--count", type=int, default=100_000, help="outputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", default="coordination_ring")
    parser.add_argument("--states", type=int, default=50, help="states in which plans are made")
    options = parser.parse_args(arguments)
    from polyarm_core.chains.executor import ChainExecutor
    from polyarm_core.domains.overcooked.domain import OvercookedDomain

    domain: Any = OvercookedDomain(options.layout)
    states = episode_states(domain, options.states, options.seed)
    report = fuzz(domain, states, ChainExecutor, options.count, options.seed)
    print(report)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
