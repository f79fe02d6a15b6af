"""What the coordinator's model reads: the prompt templates of SyncPlan A.3, filled from a domain.

Three variants. ``base`` (A.3, variant 1) spells out vocabulary, usage and cases for a model that has never seen the
domain. ``sft`` (A.3, variant 2) leaves them out for a model that has been tuned on it. ``compact`` is our own, for
small tuned models on a CPU, where every token costs: the state as short lines of what is not at its default, and no
remaining chains, no corrections but those of the model's own answer.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from polyarm_core.chains.printer import format_plan
from polyarm_core.chains.terms import Value, WaitEntity
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.domains.interface import Attribute, Domain, Entity
from polyarm_core.errors import UnknownName
from polyarm_core.llm.interface import Prompt

Variant = Literal["base", "sft", "compact"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)

WAITS = (
    "Wait_agents(agent, start|done, step): be idle until that agent has started or done that step of its chain, "
    "the first step is 1; "
    "Wait_entity(entity, attribute, comparison, value): be idle until the condition holds, "
    "comparison is one of == != < <= > >=; "
    "two waits can be joined by & (both) or | (either)"
)
REJECTED = "your answer was not accepted"  # how a correction of the model itself begins
REASONS = {
    "start": "there is no plan yet",
    "deadlock": "the agents wait for each other",
    "stall": "a wait can never end",
    "no_progress": "the agents are in each other's way",
    "chain_end": "all chains have ended and the target is not reached",
    "stale": "the world has changed and the remaining chains no longer fit",
    "interval": "it is time to check the plan",
}


def coordinator_prompt(domain: Domain[Any], request: PlanRequest[Any], variant: Variant = "base") -> Prompt:
    """The prompt for one plan.

    Args:
        domain: gives background, target, vocabulary and the state's description.
        request: state, remaining chains, reason and corrections so far.
        variant: ``base``, ``sft`` or ``compact``.

    Returns:
        ``static`` (system message) depends on the domain and the variant alone, so a backend computes it once;
        ``dynamic`` (user message) holds everything that changes.

    Raises:
        UnknownName: no such variant.
    """
    if variant not in VARIANTS:
        raise UnknownName("prompt variant", variant, VARIANTS)
    return Prompt(static_part(domain, variant), dynamic_part(domain, request, variant))


def static_part(domain: Domain[Any], variant: Variant) -> str:
    """The system message."""
    if variant == "compact":
        return f"Plan for {domain.name} with {len(domain.agents)} agents."
    text = (
        f"You are a planner for {_clause(domain.background)}. Your target is {_clause(domain.target)} "
        f"while controlling {len(domain.agents)} agents."
    )
    if variant == "sft":
        return text
    described = "; ".join(
        f"{template.name}({', '.join(template.parameters)}): {_clause(template.description)}"
        for template in domain.vocabulary
    )
    usage = "; ".join(template.usage for template in domain.vocabulary)
    return (
        f"{text} You assign each agent an action chain: one line for each agent, steps separated by commas. "
        f"The action list is {described}; {WAITS}. The usage is {usage}. There are some cases:\n{cases(domain)}\n"
        "Answer with the chains only."
    )


def dynamic_part(domain: Domain[Any], request: PlanRequest[Any], variant: Variant) -> str:
    """The user message."""
    if variant == "compact":
        lines = compact_state(domain, request.state)
        return "\n".join([*lines, *(text for text in request.history if text.startswith(REJECTED))])
    parts = [f"Here is the current state: {domain.describe(request.state).strip()}"]
    if request.previous is not None and any(request.previous.values()):
        parts.append(f"The chains not yet executed are:\n{format_plan(request.previous)}")
    parts.append(f"You are asked because {REASONS.get(request.reason, request.reason)}.")
    if request.history:
        parts.append("Corrections so far:\n" + "\n".join(f"- {text}" for text in request.history))
    return "\n".join(parts)


def cases(domain: Domain[Any]) -> str:
    """Examples of chains, made of the usage of each action and of the waits; they teach the form, not the task."""
    state = domain.start(0)
    agents = domain.agents
    calls = [template.usage for template in domain.vocabulary]
    waits = [f"Wait_agents({agents[0]}, done, 1)"] if len(agents) > 1 else []
    wait = _example_wait(domain, domain.entities(state))
    lines = [f'"{agents[0]}": {", ".join([*calls[:2], *([str(wait)] if wait else [])])}']
    for place, agent in enumerate(agents[1:], start=1):
        joined = [f"{waits[0]} & {wait}"] if wait and place == 1 else waits
        lines.append(f'"{agent}": {", ".join([*joined, calls[place % len(calls)]])}')
    return "\n".join(lines)


def compact_state(domain: Domain[Any], state: Any) -> list[str]:
    """The scene in short lines, ``name value value``: agents in full, of everything else what is not at its default.

    A default is the first choice, ``false`` or the lower bound; an entity with nothing else to say is left out. Numbers
    and flags carry their attribute's name, choices speak for themselves.
    """
    lines = []
    for entity in domain.entities(state):
        attributes = domain.attributes[entity.kind]
        told = [
            _short(attribute, entity.values[attribute.name])
            for attribute in attributes
            if entity.name in domain.agents or entity.values[attribute.name] != _default(attribute)
        ]
        if told:
            lines.append(" ".join([entity.name, *told]))
    return lines


def _short(attribute: Attribute, value: Value) -> str:
    if attribute.kind == "choice":
        return str(value)
    if attribute.kind == "bool":
        return attribute.name if value else f"not {attribute.name}"
    return f"{attribute.name} {value}"


def _default(attribute: Attribute) -> Value:
    if attribute.kind == "choice":
        return attribute.choices[0]
    return False if attribute.kind == "bool" else attribute.low


def _example_wait(domain: Domain[Any], entities: tuple[Entity, ...]) -> WaitEntity | None:
    """A wait on the last value of the first choice that something other than an agent has."""
    for entity in entities:
        if entity.name in domain.agents:
            continue
        for attribute in domain.attributes[entity.kind]:
            if attribute.kind == "choice":
                return WaitEntity(entity.name, attribute.name, "==", attribute.choices[-1])
    return None


def _clause(text: str) -> str:
    """A sentence as part of another."""
    return text.strip().rstrip(".")
