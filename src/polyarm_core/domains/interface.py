"""What a domain gives to chains, coordinator and staleness detector.

A state is an immutable, hashable value: a roll-out is a sequence of values and leaves nothing behind. A domain holds
what does not change in an episode (map, vocabulary, tables), never the episode. Nothing here draws random numbers,
except where a generator is an argument.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from polyarm_core.chains.terms import Action, Plan, Step, Value, WaitEntity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Attribute:
    """One exposed attribute of a kind of entity.

    Attributes:
        name: as it is written in ``Wait_entity``.
        kind: how its values are written and compared; only ``int`` and ``float`` have an order.
        low, high: range of a number, both included; they also normalise it for the staleness detector.
        choices: every value of a ``choice``.
        description: one clause for the prompt.
    """

    name: str
    kind: Literal["int", "float", "bool", "choice"]
    low: float = 0.0
    high: float = 1.0
    choices: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class Entity:
    """Something a plan can refer to, as it is now.

    Attributes:
        name: unique in the scene, an identifier.
        kind: key of the domain's ``attributes``.
        values: value of every attribute of the kind.
    """

    name: str
    kind: str
    values: Mapping[str, Value] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ActionTemplate:
    """One action of the vocabulary.

    Attributes:
        name: as it is written in a chain.
        parameters: name of each parameter; what may stand there, a domain's ``arguments`` tells.
        description: what it does, one sentence for the prompt.
        usage: an example call for the prompt.
    """

    name: str
    parameters: tuple[str, ...]
    description: str
    usage: str


class ActionStatus(Enum):
    """What became of an action in one frame."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # it was tried and cannot have its effect now, e.g. a full pot


@dataclass(frozen=True, slots=True)
class Progress:
    """Status of an action after a frame, with the reason of a failure in words."""

    status: ActionStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A kind of event that a domain can inject.

    Attributes:
        name: short, as in tables, e.g. ``O1``.
        description: one sentence.
    """

    name: str
    description: str


Control = int  # a primitive of the environment for one agent and one frame; the domain numbers them


class Domain(Protocol, Generic[State]):
    """A world in which agents execute chains, and everything that is particular to it.

    Attributes:
        name: short, e.g. ``overcooked:coordination_ring``.
        agents: controlled agents, in a fixed order.
        vocabulary: templates of all actions.
        attributes: kind of entity -> its attributes. Agents are entities as well.
        background, target: what the prompt says of the world and of the team's task.
        horizon: frames after which an episode has failed.
        disturbances: events that can be injected.
        entity_rows: entities that the staleness detector watches, one row of its tensors each; fixed for the map.
        feature_count: columns of the detector's state matrix.
        control_count: controls are numbered from 0 to below it.
    """

    name: str
    agents: tuple[str, ...]
    vocabulary: tuple[ActionTemplate, ...]
    attributes: Mapping[str, tuple[Attribute, ...]]
    background: str
    target: str
    horizon: int
    disturbances: tuple[Disturbance, ...]
    entity_rows: tuple[str, ...]
    feature_count: int
    control_count: int

    # --- episode ---

    def start(self, seed: int) -> State:
        """First state of an episode."""
        ...

    def step(self, state: State, controls: Sequence[Control]) -> State:
        """The next state. One control per agent, in their order."""
        ...

    def succeeded(self, state: State) -> bool:
        """The team task is done (sticky)."""
        ...

    # --- what a plan can say ---

    def entities(self, state: State) -> tuple[Entity, ...]:
        """Everything that a plan can refer to now, agents included."""
        ...

    def arguments(self, state: State, agent: str, template: ActionTemplate) -> tuple[tuple[str, ...], ...]:
        """Every tuple of arguments with which this agent may use the template in a plan made now."""
        ...

    def describe(self, state: State) -> str:
        """The state as text for the prompt: what the coordinator observes."""
        ...

    # --- execution ---

    def control(self, state: State, intents: Sequence[Action | None]) -> tuple[Control, ...]:
        """Controls for one frame: moves every agent towards its action without collisions.

        An agent without intent (idle or waiting) stays, but yields when it stands in another's way.
        """
        ...

    def progress(
        self, before: State, controls: Sequence[Control], after: State, agent: str, action: Action
    ) -> Progress:
        """What one frame did to the action that the agent was executing in it."""
        ...

    def impossible(self, state: State, agent: str, action: Action) -> str | None:
        """Why this agent can never finish this action, whatever it waits for (e.g. out of reach); None = it may."""
        ...

    def can_become(self, state: State, wait: WaitEntity, remaining: Plan) -> bool:
        """Whether time alone or some remaining action can bring the condition about; False only when sure."""
        ...

    # --- staleness ---

    def features(self, state: State) -> NDArray[np.float32]:
        """Normalised state of the watched entities, shape (len(entity_rows), feature_count), in [0, 1]."""
        ...

    def refers(self, state: State, agent: str, step: Step) -> frozenset[str]:
        """Watched entities that the step names: the paper's relevance rule (``bilinear``)."""
        ...

    def depends(self, state: State, agent: str, step: Step) -> frozenset[str]:
        """Watched entities on which the step depends by the scene's rules; includes ``refers`` (``closed``)."""
        ...

    def disturb(self, state: State, name: str, draw: float) -> State | None:
        """The state after an event; None where it does not apply now.

        Args:
            state: before the event.
            name: of a disturbance.
            draw: uniform in [0, 1), drawn beforehand: selects among the possible victims and places.

        Raises:
            UnknownName: no such disturbance.
        """
        ...

    # --- search ---

    def candidates(self, state: State) -> Iterator[Plan]:
        """Joint plans worth trying from here, most promising first; finite."""
        ...

    def patches(self, state: State, agent: str, remaining: Plan) -> Iterator[Plan]:
        """Plans that change only this agent's remaining chain (local repair), most promising first; finite."""
        ...
