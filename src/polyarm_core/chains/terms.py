"""The terms of the chain language: action, wait, step, chain, plan (SyncPlan A.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from polyarm_core.errors import InvalidValue, UnknownName

Milestone = Literal["start", "done"]
Comparison = Literal["==", "!=", "<", "<=", ">", ">="]
Connective = Literal["&", "|"]
Value = int | float | bool | str

MILESTONES: tuple[Milestone, ...] = ("start", "done")
COMPARISONS: tuple[Comparison, ...] = ("==", "!=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Action:
    """An operation of the domain that the environment can verify, e.g. ``Interact(pot_1)``.

    Attributes:
        name: of an action template of the domain.
        arguments: texts of its arguments, one for each parameter of the template.
    """

    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.arguments)})"


@dataclass(frozen=True, slots=True)
class WaitAgents:
    """Satisfied once another agent has reached a milestone of a step of its current chain; sticky.

    Attributes:
        agent: whose step it is.
        milestone: ``start`` or ``done``.
        step: number of the step in that agent's chain; the first step is 1.
    """

    agent: str
    milestone: Milestone
    step: int

    def __str__(self) -> str:
        return f"Wait_agents({self.agent}, {self.milestone}, {self.step})"


@dataclass(frozen=True, slots=True)
class WaitEntity:
    """Satisfied while an attribute of an entity compares to a value."""

    entity: str
    attribute: str
    comparison: Comparison
    value: Value

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else str(self.value)
        return f"Wait_entity({self.entity}, {self.attribute}, {self.comparison}, {value})"


Atom = WaitAgents | WaitEntity


@dataclass(frozen=True, slots=True)
class Wait:
    """Its agent stays idle until one atom (``|``) or every atom (``&``) is satisfied; one or two atoms.

    Raises:
        InvalidValue: not one atom without, or two atoms with a connective.
    """

    atoms: tuple[Atom, ...]
    connective: Connective | None = None

    def __post_init__(self) -> None:
        if (len(self.atoms), self.connective is None) not in ((1, True), (2, False)):
            raise InvalidValue("wait", str(self), "one atom, or two joined by & or |")

    def __str__(self) -> str:
        return f" {self.connective or '?'} ".join(str(atom) for atom in self.atoms)


Step = Action | Wait
Chain = tuple[Step, ...]


class UnknownAgent(UnknownName, KeyError):
    """An agent that a plan does not have; a ``KeyError``, as a mapping must raise."""

    __str__ = Exception.__str__  # a KeyError would put the message into quotes


@dataclass(frozen=True, slots=True)
class Plan(Mapping[str, Chain]):
    """One chain per agent, in the order of the domain's agents; hashable. An agent may have an empty chain."""

    chains: tuple[tuple[str, Chain], ...]

    @staticmethod
    def of(chains: Mapping[str, Chain]) -> Plan:
        """The plan with these chains."""
        return Plan(tuple((agent, tuple(chain)) for agent, chain in chains.items()))

    def __getitem__(self, agent: str) -> Chain:
        """Chain of an agent.

        Raises:
            UnknownAgent: the plan has no such agent.
        """
        for name, chain in self.chains:
            if name == agent:
                return chain
        raise UnknownAgent("agent", agent, [name for name, _ in self.chains])

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.chains)

    def __len__(self) -> int:
        return len(self.chains)
