"""Whether a plan means something in the scene as it is now: everything that a grammar alone cannot know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from polyarm_core.chains.printer import format_step, format_value
from polyarm_core.chains.terms import (
    COMPARISONS,
    MILESTONES,
    Action,
    Chain,
    Comparison,
    Plan,
    Step,
    Value,
    Wait,
    WaitAgents,
    WaitEntity,
)
from polyarm_core.domains.interface import Attribute, Domain, Entity, State
from polyarm_core.errors import InvalidValue, PolyarmError

MAX_STEPS = 16  # L, steps of a chain
LISTED = 24  # valid values that a message lists at most

ProblemKind = Literal[
    "unknown_agent",
    "duplicate_agent",
    "missing_agent",  # the plan has no chain for an agent of the domain, not even an empty one
    "chain_too_long",
    "unknown_action",
    "argument_count",
    "argument",
    "impossible",
    "unknown_entity",
    "unknown_attribute",
    "comparison",  # an order where the attribute has none
    "value",  # of another kind, out of range, no choice, or such that the comparison can never hold
    "wait_self",
    "wait_agent",
    "wait_step",  # a step that the other chain does not have
    "wait_cycle",
    "unwritable",  # not expressible in the language, e.g. a name that is no identifier
]
KINDS: tuple[ProblemKind, ...] = get_args(ProblemKind)


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a plan must not be executed.

    Attributes:
        agent: whose chain it is in.
        step: number of the step, from 1; 0 = the chain as a whole.
        kind: for counting and for the reward.
        message: for people and for the model, with what would be valid.
    """

    agent: str
    step: int
    kind: ProblemKind
    message: str

    def __str__(self) -> str:
        return f"{self.agent}, step {self.step}: {self.message}" if self.step else f"{self.agent}: {self.message}"


class InvalidPlan(PolyarmError):
    """A plan that means nothing in its scene; ``problems`` has all the reasons."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("the plan is not valid: " + "; ".join(map(str, self.problems)))


def validate(
    plan: Plan, domain: Domain[State], state: State, max_steps: int = MAX_STEPS, listed: int = LISTED
) -> tuple[Problem, ...]:
    """Check a plan against the live state.

    Args:
        plan: as the parser gives it.
        domain: of the scene.
        state: in which the plan is made.
        max_steps: longest chain.
        listed: how many valid values a message lists at most.

    Returns:
        All problems in the order of the plan; none = the plan can be handed to the executor.
    """
    return tuple(_Validation(plan, domain, state, max_steps, listed).problems())


def require_valid(plan: Plan, domain: Domain[State], state: State, max_steps: int = MAX_STEPS) -> Plan:
    """The plan itself, if it is valid.

    Raises:
        InvalidPlan: it has problems.
    """
    problems = validate(plan, domain, state, max_steps)
    if problems:
        raise InvalidPlan(problems)
    return plan


def comparisons(attribute: Attribute) -> tuple[Comparison, ...]:
    """Comparisons that are defined for an attribute: only numbers have an order."""
    return COMPARISONS if attribute.kind in ("int", "float") else ("==", "!=")


def can_hold(attribute: Attribute, comparison: Comparison, value: float) -> bool:
    """Whether a comparison with a number in range holds for at least one value in the attribute's range."""
    low, high = attribute.low, attribute.high
    if comparison == "<":
        return value > low
    if comparison == ">":
        return value < high
    return comparison != "!=" or low < high


def stuck_agents(chains: Mapping[str, Chain]) -> dict[str, int]:
    """Agents that can never finish their chains because of ``Wait_agents`` alone, with the number of their last step.

    Every action is taken to succeed and every ``Wait_entity`` to be satisfied, in the best possible order. Milestones
    are sticky and steps are only ever passed, so going on wherever one can is optimal: who is stuck in the end is stuck
    in every execution. Costs O(steps) rounds of O(agents).
    """
    at = dict.fromkeys(chains, 0)  # steps passed

    def reached(atom: WaitAgents | WaitEntity) -> bool:
        if isinstance(atom, WaitEntity):
            return True
        return at.get(atom.agent, 0) >= (atom.step - 1 if atom.milestone == "start" else atom.step)

    moving = True
    while moving:
        moving = False
        for agent, chain in chains.items():
            while at[agent] < len(chain):
                step = chain[at[agent]]
                if isinstance(step, Wait):
                    check = any if step.connective == "|" else all
                    if not check(reached(atom) for atom in step.atoms):
                        break
                at[agent] += 1
                moving = True
    return {agent: at[agent] + 1 for agent, chain in chains.items() if at[agent] < len(chain)}


class _Validation:
    """One run of :func:`validate`: the tables that its rules share."""

    def __init__(self, plan: Plan, domain: Domain[Any], state: Any, max_steps: int, listed: int) -> None:
        self.plan, self.domain, self.state = plan, domain, state
        self.max_steps, self.listed = max_steps, listed
        self.templates = {template.name: template for template in domain.vocabulary}
        self.entities: dict[str, Entity] | None = None  # made when the first wait asks
        self.arguments: dict[tuple[str, str], dict[tuple[str, ...], None]] = {}
        self.chains: dict[str, Chain] = {}
        for agent, chain in plan.chains:
            self.chains.setdefault(agent, chain)

    def problems(self) -> Iterator[Problem]:
        seen: set[str] = set()
        sound = True  # of the waits for agents: else a cycle is no news
        for agent, chain in self.plan.chains:
            if agent in seen:
                yield Problem(agent, 0, "duplicate_agent", "the plan has another chain for this agent")
                continue
            seen.add(agent)
            if agent not in self.domain.agents:
                valid = self.list(self.domain.agents)
                yield Problem(agent, 0, "unknown_agent", f"no such agent; valid: {valid}")
                continue
            if len(chain) > self.max_steps:
                yield Problem(agent, 0, "chain_too_long", f"{len(chain)} steps; at most {self.max_steps}")
            for number, step in enumerate(chain, 1):
                for kind, message in self.step(agent, step):
                    sound = sound and kind not in ("wait_self", "wait_agent", "wait_step", "unwritable")
                    yield Problem(agent, number, kind, message)
        for agent in self.domain.agents:
            if agent not in seen:
                yield Problem(agent, 0, "missing_agent", "the plan has no chain for this agent (an empty one would do)")
        if sound:
            stuck = stuck_agents(self.chains)
            for agent, number in stuck.items():
                others = [other for other in stuck if other != agent]
                message = f"can never be satisfied, because of the waits of {self.list(others)}"
                yield Problem(agent, number, "wait_cycle", message)

    def step(self, agent: str, step: Step) -> Iterator[tuple[ProblemKind, str]]:
        """Problems of a step by itself."""
        try:
            format_step(step)
        except InvalidValue as error:
            yield "unwritable", str(error)
            return
        if isinstance(step, Action):
            yield from self.action(agent, step)
            return
        for atom in step.atoms:
            yield from self.wait_agents(agent, atom) if isinstance(atom, WaitAgents) else self.wait_entity(atom)

    def action(self, agent: str, action: Action) -> Iterator[tuple[ProblemKind, str]]:
        template = self.templates.get(action.name)
        if template is None:
            yield "unknown_action", f"no action {action.name}; valid: {self.list(self.templates)}"
            return
        if len(action.arguments) != len(template.parameters):
            form = f"{template.name}({', '.join(template.parameters)})"
            yield "argument_count", f"{action} has {len(action.arguments)} arguments; the form is {form}"
            return
        key = agent, action.name
        possible = self.arguments.get(key)
        if possible is None:
            possible = dict.fromkeys(self.domain.arguments(self.state, agent, template))
            self.arguments[key] = possible
        if action.arguments not in possible:
            valid = self.list(Action(action.name, arguments) for arguments in possible)
            yield "argument", f"{action} is not possible; valid: {valid}"
            return
        reason = self.domain.impossible(self.state, agent, action)
        if reason is not None:
            yield "impossible", f"{action} can never be finished: {reason}"

    def wait_agents(self, agent: str, atom: WaitAgents) -> Iterator[tuple[ProblemKind, str]]:
        if atom.milestone not in MILESTONES:
            yield "unwritable", f"{atom}: no milestone {atom.milestone!r}; valid: {self.list(MILESTONES)}"
        elif atom.agent == agent:
            yield "wait_self", f"{atom}: {agent} would wait for itself"
        elif atom.agent not in self.domain.agents or atom.agent not in self.chains:
            others = [other for other in self.chains if other in self.domain.agents and other != agent]
            yield "wait_agent", f"{atom}: the plan has no such agent; valid: {self.list(others)}"
        elif not 1 <= atom.step <= len(self.chains[atom.agent]):
            yield "wait_step", f"{atom}: the chain of {atom.agent} has {len(self.chains[atom.agent])} steps"

    def wait_entity(self, atom: WaitEntity) -> Iterator[tuple[ProblemKind, str]]:
        if self.entities is None:
            self.entities = {entity.name: entity for entity in self.domain.entities(self.state)}
        entity = self.entities.get(atom.entity)
        if entity is None:
            yield "unknown_entity", f"{atom}: no entity {atom.entity}; valid: {self.list(self.entities)}"
            return
        attributes = {attribute.name: attribute for attribute in self.domain.attributes[entity.kind]}
        attribute = attributes.get(atom.attribute)
        if attribute is None:
            valid = self.list(attributes)
            yield "unknown_attribute", f"{atom}: {atom.entity} has no {atom.attribute}; valid: {valid}"
            return
        if atom.comparison not in comparisons(attribute):
            valid = " ".join(comparisons(attribute))
            yield "comparison", f"{atom}: {atom.attribute} compares only with {valid}"
            return
        message = value_problem(attribute, atom.comparison, atom.value)
        if message:
            yield "value", f"{atom}: {message}"

    def list(self, items: Iterable[object]) -> str:
        texts = [str(item) for item in items]
        more = f" and {len(texts) - self.listed} more" if len(texts) > self.listed else ""
        return (", ".join(texts[: self.listed]) or "(none)") + more


def value_problem(attribute: Attribute, comparison: Comparison, value: Value) -> str:
    """Why a value cannot stand behind a comparison with this attribute, in words; empty where it can."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if attribute.kind == "bool":
        return "" if isinstance(value, bool) else f"{attribute.name} is true or false"
    if attribute.kind == "choice":
        return (
            ""
            if isinstance(value, str) and value in attribute.choices
            else f"{attribute.name} is one of {', '.join(attribute.choices)}"
        )
    if not number or (attribute.kind == "int" and isinstance(value, float)):
        return f"{attribute.name} is a {'whole ' if attribute.kind == 'int' else ''}number"
    assert isinstance(value, (int, float))
    if not (math.isfinite(value) and attribute.low <= value <= attribute.high):
        return f"{attribute.name} is in {_bound(attribute, attribute.low)} .. {_bound(attribute, attribute.high)}"
    if not can_hold(attribute, comparison, value):
        return f"{attribute.name} {comparison} {format_value(value)} can never hold"
    return ""


def _bound(attribute: Attribute, bound: float) -> str:
    return format_value(int(bound) if attribute.kind == "int" else bound)
