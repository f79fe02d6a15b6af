"""Words of the orchestrator's answer: strategies, rules, decisions, verdicts and options."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from polyarm_core.errors import InvalidValue

NODES_PER_ARM = 250


class Strategy(str, enum.Enum):
    """How the admitted set is found (ldt_coord.md 7.1)."""

    FIXED_POINT = "fixed_point"
    MAXIMAL = "maximal"
    OPTIMAL = "optimal"


class Rule(str, enum.Enum):
    """The consistency condition that keeps an arm out (eqs. 11-13; T_xi, T_zeta, T_alpha, T_omega)."""

    EXCLUSION = "exclusion"
    SYNCHRONISATION = "synchronisation"
    PRODUCED = "produced"
    HELD = "held"


class Decision(str, enum.Enum):
    """What an arm is told: go, drop the action and choose again, or keep the intention for a later slot."""

    ADMIT = "admit"
    YIELD = "yield"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one arm.

    Attributes:
        arm: name of the arm.
        decision: YIELD for an exclusion, WAIT for every other veto.
        rule: the condition that the arm would violate beside the admitted set; None when admitted.
        element: the shared element (exclusion), the uncovered condition (produced, held) or, for a group, the
            element that keeps ``rival`` out ("" where that is not an exclusion); "" when admitted.
        rival: the arm on the other side: who occupies the element, the supplier that was not admitted ("" if
            nobody offers the condition), the group member that is missing or names another group; "" when admitted.
    """

    arm: str
    decision: Decision
    rule: Rule | None = None
    element: str = ""
    rival: str = ""


@dataclass(frozen=True, slots=True)
class Arbitration:
    """The orchestrator's answer for one slot.

    Attributes:
        strategy: the one that was asked for.
        admitted: names of the admitted arms, sorted; consistent by eqs. 11-14.
        verdicts: one per arm that reported, sorted by arm.
        upper_bound: proven upper bound of the number of arms that any consistent set holds which admits the arms
            served by age (``aging.py``; with none of them: any consistent set at all).
        proven: the admitted set is the optimum of the objective (fixed_point and maximal: its size is).
        nodes: search nodes expanded by the exact solver.
    """

    strategy: Strategy
    admitted: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    upper_bound: int
    proven: bool
    nodes: int


@dataclass(frozen=True, slots=True)
class OrchestratorOptions:
    """Options of :func:`polyarm_core.orchestrator.arbitrate`.

    Attributes:
        strategy: see :class:`Strategy`.
        node_budget: search nodes that ``optimal`` may expand per call, >= 1; a node takes about half a microsecond.
            None: ``NODES_PER_ARM`` for each arm.
        patience: slots that an arm may wait before its age outranks everything else, >= 0 (``aging.py``).

    Raises:
        InvalidValue: an option outside its range.
    """

    strategy: Strategy = Strategy.OPTIMAL
    node_budget: int | None = None
    patience: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            raise InvalidValue("strategy", self.strategy, "one of " + ", ".join(item.value for item in Strategy))
        if self.node_budget is not None and self.node_budget < 1:
            raise InvalidValue("node_budget", self.node_budget, "an integer >= 1, or None")
        if self.patience < 0:
            raise InvalidValue("patience", self.patience, "an integer >= 0 (slots)")
