"""Ways to drive a team of arms, and what a plan says of one arm in one slot."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from polyarm_core.constraints import Action


class Control(str, enum.Enum):
    """Who picks the actions of the arms."""

    REACTIVE = "reactive"  # each arm's own model
    PLANNED = "planned"  # the chains of the coordinator; an arm without a step stays
    HYBRID = "hybrid"  # the chains where there are any, else the arm's own model


class Standing(enum.Enum):
    """Where an arm stands in the plan."""

    ACT = "act"
    WAIT = "wait"
    ENDED = "ended"  # its chain is done, or was empty
    UNPLANNED = "unplanned"  # there is no plan, or the one there is shall not be followed any more


@dataclass(frozen=True, slots=True)
class Head:
    """What the plan says of one arm in one slot; ``action`` is None unless it is to act."""

    standing: Standing
    action: Action | None = None


UNPLANNED = Head(Standing.UNPLANNED)
