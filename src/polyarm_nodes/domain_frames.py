"""Frames of a domain <-> messages. What is read is checked first: Malformed, and nothing is half-read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyarm.msg import Action as ActionMessage
from polyarm.msg import ArmHead, EntityAttribute, FrameState, PlanState
from rclpy.publisher import Publisher

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.chains.printer import format_value
from polyarm_core.chains.terms import Action
from polyarm_core.domains.encoding import state_from_text, state_to_text
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue
from polyarm_nodes.plan_convert import Vocabulary, clip, plan_from_chains
from polyarm_nodes.validation import Malformed, check_message

_NAME, _WHY = 32, 512  # bytes, see msg/
START_LIMIT = 10.0  # s that a node keeps quiet for readers that are not there


class Readers:
    """Keeps a node quiet until whoever is to read its first words has been connected.

    What is published before that is lost for good, and in lock-step everybody would wait for it.

    Args:
        wanted: publisher -> number of readers.
        limit: s of steady time after the first question, after which they are not waited for any longer.
    """

    def __init__(self, wanted: Mapping[Publisher, int], limit: float = START_LIMIT) -> None:
        self._wanted = wanted
        self._limit = limit
        self._until: float | None = None
        self._there = False

    def missing(self) -> list[str]:
        """Topics with too few readers."""
        return [p.topic_name for p, number in self._wanted.items() if p.get_subscription_count() < number]

    def there(self) -> bool:
        """Whether it may speak; once it may it always may."""
        if not self._there:
            now = time.monotonic()
            self._until = self._until if self._until is not None else now + self._limit
            self._there = not self.missing() or now > self._until
        return self._there


@dataclass(frozen=True)
class Frame:
    """The world of a domain at the beginning of a frame.

    Attributes:
        episode, frame, seed: which one.
        epoch, sequence: of the plant.
        controls: carried out in the frame before; none in frame 0.
        outcome: state that they led to; the very object ``state`` where nothing happened to it since.
        happened: names of the events of this frame.
        state: after these events.
        success: the task is done.
        ended: no frame follows.
    """

    episode: int
    frame: int
    seed: int
    epoch: int
    sequence: int
    controls: tuple[int, ...]
    outcome: Any
    happened: tuple[str, ...]
    state: Any
    success: bool
    ended: bool

    @property
    def key(self) -> tuple[int, int, int]:
        """Tells frames of any plant from each other; later ones are greater."""
        return self.epoch, self.episode, self.frame


def frame_to_message(frame: Frame, domain: Domain[Any]) -> FrameState:
    """Frame -> message, with all attributes of the state for those who cannot read the state itself."""
    return FrameState(
        episode=frame.episode,
        frame=frame.frame,
        seed=frame.seed,
        epoch=frame.epoch,
        sequence=frame.sequence,
        domain=domain.name,
        controls=list(frame.controls),
        outcome="" if frame.outcome is frame.state else state_to_text(frame.outcome),
        happened=list(frame.happened),
        attributes=attributes(domain, frame.state),
        state=state_to_text(frame.state),
        success=frame.success,
        ended=frame.ended,
    )


def frame_from_message(message: FrameState, domain: Domain[Any]) -> Frame:
    """A frame that arrived. Raises Malformed when a field is not valid, or it is a frame of another domain."""
    check_message(message)
    if message.domain != domain.name:
        raise Malformed(f"domain = {message.domain!r}; this node's is {domain.name!r}")
    if message.epoch == 0 or message.sequence == 0:
        raise Malformed("epoch and sequence of the plant must be above 0")
    controls = checked_controls(message.controls, domain) if message.frame else ()
    try:
        state = state_from_text(domain, message.state)
        outcome = state_from_text(domain, message.outcome) if message.outcome else state
    except InvalidValue as why:
        raise Malformed(str(why)) from None
    return Frame(
        message.episode,
        message.frame,
        message.seed,
        message.epoch,
        message.sequence,
        controls,
        outcome,
        tuple(message.happened),
        state,
        message.success,
        message.ended,
    )


def checked_controls(controls: Sequence[int], domain: Domain[Any]) -> tuple[int, ...]:
    """One control per agent. Raises Malformed when there are more or fewer, or a number is none of the domain's."""
    if len(controls) != len(domain.agents):
        raise Malformed(f"{len(controls)} controls; valid: {len(domain.agents)}, one for each agent")
    for control in controls:
        check_control(control, domain)
    return tuple(int(control) for control in controls)


def check_control(control: int, domain: Domain[Any]) -> None:
    """Raises Malformed when the number is none of the domain's."""
    if not 0 <= control < domain.control_count:
        raise Malformed(f"control = {control}; valid: 0 to {domain.control_count - 1}")


def attributes(domain: Domain[Any], state: Any) -> list[EntityAttribute]:
    """Every attribute of every entity, as text."""
    return [
        EntityAttribute(
            entity=entity.name, attribute=name, value=value if isinstance(value, str) else format_value(value)
        )
        for entity in domain.entities(state)
        for name, value in entity.values.items()
    ]


# -- heads ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeardHeads:
    """What the plan says of every agent in one frame, as it arrived.

    Attributes:
        key: of the frame, as `Frame.key`.
        intents: by agent; None = it waits, or has nothing to do.
    """

    key: tuple[int, int, int]
    intents: tuple[Action | None, ...]


def heads(executor: ChainExecutor[Any], intents: Sequence[Action | None], planned: bool) -> list[ArmHead]:
    """What every agent is told.

    The action of a head is for readers, cut to what fits; agents read the first step of their remaining chain.

    Args:
        executor: of the plan.
        intents: its own of this frame.
        planned: there is a plan.
    """
    waiting = {wait.agent: wait for wait in executor.waiting()}
    found = []
    for agent, intent in zip(executor.domain.agents, intents, strict=True):
        head = ArmHead(agent=agent, standing=ArmHead.STANDING_ENDED if planned else ArmHead.STANDING_UNPLANNED)
        if intent is not None:
            entity, placement = (*intent.arguments, "", "")[:2]
            head.standing = ArmHead.STANDING_ACT
            head.action = ActionMessage(
                verb=clip(intent.name, _NAME), entity=clip(entity, 64), placement=clip(placement, 64)
            )
        elif agent in waiting:
            head.standing = ArmHead.STANDING_WAIT
            head.why = clip(f"step {waiting[agent].step}, {waiting[agent].wait}", _WHY)
        found.append(head)
    return found


def heads_from_message(message: PlanState, vocabulary: Vocabulary) -> HeardHeads:
    """What agents are told, as it arrived. Raises Malformed when a field, a name, a step or an agent is not valid."""
    check_message(message)
    if message.epoch == 0 or message.sequence == 0:
        raise Malformed("epoch and sequence of the sender must be above 0")
    agents = tuple(head.agent for head in message.heads)
    if agents != vocabulary.agents:
        raise Malformed(f"heads are of {', '.join(agents) or 'nobody'}; valid: {', '.join(vocabulary.agents)}")
    remaining = plan_from_chains(message.remaining, vocabulary, "remaining")
    intents: list[Action | None] = []
    for head in message.heads:
        intent = None
        if head.standing == ArmHead.STANDING_ACT:
            step = remaining[head.agent][0] if remaining[head.agent] else None
            if not isinstance(step, Action):
                raise Malformed(f"{head.agent} is to act, but the next step of its chain is {step}")
            intent = step
        intents.append(intent)
    return HeardHeads((message.twin_epoch, message.episode, message.slot), tuple(intents))
