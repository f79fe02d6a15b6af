"""From terms to text: the canonical form of a plan, one line per agent. Parsing it gives the same terms back."""

from __future__ import annotations

import json
import math
import re

from polyarm_core.chains.parser import MAX_NUMBER
from polyarm_core.chains.terms import Action, Chain, Plan, Step, Value, WaitAgents, WaitEntity
from polyarm_core.errors import InvalidValue

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_RESERVED = ("Wait_agents", "Wait_entity")


def format_plan(plan: Plan) -> str:
    """Text of a plan: a line ``"agent": step, step`` for each agent, in the plan's order.

    Raises:
        InvalidValue: something in it cannot be written, e.g. a name that is no identifier, or an infinite number.
    """
    lines = []
    for agent, chain in plan.chains:
        steps = format_chain(chain)
        lines.append(f'"{_name("agent", agent)}": {steps}' if steps else f'"{_name("agent", agent)}":')
    return "\n".join(lines)


def format_chain(chain: Chain) -> str:
    """Text of a chain; empty for an empty chain. Raises as :func:`format_plan`."""
    return ", ".join(format_step(step) for step in chain)


def format_step(step: Step) -> str:
    """Text of a step. Raises as :func:`format_plan`."""
    if isinstance(step, Action):
        if step.name in _RESERVED:
            raise InvalidValue("action", step.name, "a name other than that of a wait")
        return f"{_name('action', step.name)}({', '.join(_argument(text) for text in step.arguments)})"
    return f" {step.connective} ".join(_atom(atom) for atom in step.atoms)


def _atom(atom: WaitAgents | WaitEntity) -> str:
    if isinstance(atom, WaitAgents):
        if atom.step < 0:
            raise InvalidValue("step", atom.step, "a number of a step")
        return f"Wait_agents({_name('agent', atom.agent)}, {atom.milestone}, {atom.step})"
    entity, attribute = _name("entity", atom.entity), _name("attribute", atom.attribute)
    return f"Wait_entity({entity}, {attribute}, {atom.comparison}, {format_value(atom.value)})"


def format_value(value: Value) -> str:
    """Text of a value: bare where it can be read back as what it is, else in quotes. Raises as :func:`format_plan`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _NAME.fullmatch(value) and value not in ("true", "false") else json.dumps(value)
    if not math.isfinite(value) or len(repr(value)) > MAX_NUMBER:
        raise InvalidValue("value", value, f"a finite number of at most {MAX_NUMBER} characters")
    return repr(value)


def _name(kind: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidValue(kind, name, "a letter or _, then letters, digits or _")
    return name


def _argument(text: str) -> str:
    return text if _NAME.fullmatch(text) or _NUMBER.fullmatch(text) else json.dumps(text)
