"""How many bytes the messages of a cell take, from core types: what ROS 2's serialisation would make of them.

Sizes are those of ``rclpy.serialization.serialize_message``: plain CDR, little endian (OMG DDS-XTypes 1.3, 7.4.1)
behind four bytes of encapsulation. A number is aligned to its own size, counted from the end of the encapsulation; a
text is its length (4 bytes), its UTF-8 bytes and a zero; a sequence is its length (4 bytes) and its items; a message in
a message is its fields. Fields of fixed size do not depend on their values, so they are not asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from polyarm_core.chains.printer import format_step
from polyarm_core.chains.terms import Plan
from polyarm_core.constraints import Action, Declaration
from polyarm_core.control.modes import Head

ENCAPSULATION = 4
WHY = 512
"""Bytes of the longest wait that a message takes; the rest is cut off."""
NOTHING = Action("")


class _Size:
    """Adds up a message, field by field; ``at``: bytes behind the encapsulation."""

    def __init__(self) -> None:
        self.at = 0

    @property
    def total(self) -> int:
        return ENCAPSULATION + self.at

    def numbers(self, *sizes: int) -> None:
        """Numbers of 1, 2, 4 or 8 bytes."""
        for size in sizes:
            self.at += -self.at % size + size

    def text(self, *texts: str) -> None:
        for text in texts:
            self.numbers(4)
            self.at += len(text.encode()) + 1

    def texts(self, texts: Collection[str]) -> None:
        """A sequence of texts; their order counts, as alignment depends on it."""
        self.numbers(4)
        self.text(*texts)

    def header(self, frame: str) -> None:
        self.numbers(4, 4)  # stamp
        self.text(frame)

    def action(self, action: Action) -> None:
        self.text(action.verb, action.entity, action.placement)

    def chains(self, plan: Plan) -> None:
        self.numbers(4)
        for agent, chain in plan.chains:
            self.text(agent)
            self.texts([format_step(step) for step in chain])


def clipped(text: str, limit: int) -> str:
    """The beginning of a text that fits into so many bytes."""
    return text.encode()[:limit].decode(errors="ignore")


def report_size(arm: str, action: Action, declaration: Declaration) -> int:
    """Bytes of an ``IntentReport``: one arm's uplink of a slot."""
    size = _Size()
    size.header("")
    size.text(arm)
    size.numbers(8, 4, 8, 8, 4)  # episode, slot, epoch of the twin, epoch, sequence
    size.action(action)
    for entries in (
        declaration.exclusive,
        declaration.group,
        declaration.requires_produced,
        declaration.requires_held,
        declaration.produces,
        declaration.holds,
    ):
        size.texts(sorted(entries))
    size.numbers(1, 4, 4, 4, 4, 4)  # decided by, times of decision and model, prompt tokens, score, plan
    return size.total


def plan_size(plan: Plan, reason: str, frame: str) -> int:
    """Bytes of a ``Plan``: what everybody is told when it is followed from now on.

    Raises:
        InvalidValue: a step that cannot be written, see `format_step`.
    """
    size = _Size()
    size.header(frame)
    size.numbers(8, 4, 8, 4, 4)  # episode, slot, epoch, sequence, number
    size.text(reason)
    size.chains(plan)
    return size.total


def plan_state_size(heads: Mapping[str, Head], missing: Mapping[str, str], remaining: Plan, frame: str) -> int:
    """Bytes of a ``PlanState``: what everybody is told in a slot.

    Args:
        heads: arm -> what the plan says of it.
        missing: arm that waits -> the wait, and what of it is not satisfied, in words.
        remaining: what is left of the plan.
        frame: of the scenario.

    Raises:
        InvalidValue: a step that cannot be written, see `format_step`.
    """
    size = _Size()
    size.header(frame)
    size.numbers(8, 4, 8, 8, 4, 4, 1)  # episode, slot, epoch of the twin, epoch, sequence, plan, sound
    size.numbers(4)
    for arm, head in heads.items():
        size.text(arm)
        size.numbers(1)  # standing
        size.action(head.action or NOTHING)
        size.text(clipped(missing.get(arm, ""), WHY))
    size.chains(remaining)
    return size.total
