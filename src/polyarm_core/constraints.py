"""Actions, intents and the six typed constraint fields of a declaration (LDT-Coord eqs. 6-7)."""

from __future__ import annotations

from dataclasses import dataclass, field

NOTHING: frozenset[str] = frozenset()

STAY_VERB = "stay"
MOVE_VERB = "move"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """What one arm does in one slot: a verb with at most an entity and a placement.

    ``Action("stay")`` is the paper's a0; ``Action("move", e, p)`` is its (e, p): grasp ``e``, place it on ``p``.
    Names are those of the scenario file; an unused field is the empty string.
    """

    verb: str
    entity: str = ""
    placement: str = ""

    @property
    def is_stay(self) -> bool:
        """Whether the arm does nothing (a0)."""
        return self.verb == STAY_VERB

    def __str__(self) -> str:
        words = [self.verb, self.entity, f"to {self.placement}" if self.placement else ""]
        return " ".join(word for word in words if word)


STAY = Action(STAY_VERB)


def entity_element(name: str) -> str:
    """Exclusive element that stands for an entity."""
    return f"entity:{name}"


def placement_element(name: str) -> str:
    """Exclusive element that stands for a placement."""
    return f"placement:{name}"


def zone_element(name: str) -> str:
    """Exclusive element that stands for a zone of the shared space."""
    return f"zone:{name}"


@dataclass(frozen=True, slots=True)
class Declaration:
    """The constraint declaration C = {xi, zeta, alpha, omega, psi, chi} of one action (eq. 7).

    Attributes:
        exclusive: xi, elements (``entity:..``, ``placement:..``, ``zone:..``) that the action occupies alone.
        group: zeta, names of the arms that must act together, self included; empty = no group.
        requires_produced: alpha, conditions that must be produced or held in this slot, or be true already.
        requires_held: omega, conditions that must be held in this slot, or be true already.
        produces: psi, conditions that the action makes true in this slot.
        holds: chi, conditions that the action keeps true during this slot.
    """

    exclusive: frozenset[str] = NOTHING
    group: frozenset[str] = NOTHING
    requires_produced: frozenset[str] = NOTHING
    requires_held: frozenset[str] = NOTHING
    produces: frozenset[str] = NOTHING
    holds: frozenset[str] = NOTHING

    def union(self, other: Declaration) -> Declaration:
        """Field-wise union; the declaration that satisfies both."""
        return Declaration(
            self.exclusive | other.exclusive,
            self.group | other.group,
            self.requires_produced | other.requires_produced,
            self.requires_held | other.requires_held,
            self.produces | other.produces,
            self.holds | other.holds,
        )


@dataclass(frozen=True, slots=True)
class Intent:
    """One arm's proposed action with what the orchestrator needs to rank and check it.

    Attributes:
        arm: name of the arm.
        index: kappa(i), the arm's fixed index in the scenario (0-based); the last tie-break.
        action: the action tuple.
        declaration: its (completed) constraint declaration.
        terminal: p == p*_e, the action brings its entity to its goal placement (eq. 19, first key).
        distance: |pos(p) - pos(p*_e)| >= 0 in steps along the transport flow (eq. 19, second key).
        waited: slots since this arm was last admitted while it wanted to act; >= 0 (aging, ldt_coord.md 7.2).
    """

    arm: str
    index: int
    action: Action
    declaration: Declaration = field(default_factory=Declaration)
    terminal: bool = False
    distance: int = 0
    waited: int = 0
