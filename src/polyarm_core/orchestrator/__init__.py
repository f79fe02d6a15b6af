"""The orchestrator: which of the reported actions may be executed together in this slot (eqs. 11-24, ldt_coord.md 7).

A pure function of the set of intents and the conditions that are true: neither the order nor repetitions matter.

- ``types``: strategies, rules, decisions, verdicts, options
- ``rules``: the consistency conditions, straight from the definition
- ``aging``: priority of eq. 19 with waiting time; who is served by age, and the bound on waiting
- ``problem``: the slot's intents indexed by what couples them
- ``fixed_point``, ``maximal``, ``exact``: the three strategies
- ``explain``: rule, element and rival for each veto
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from polyarm_core.constraints import Intent
from polyarm_core.errors import InvalidValue
from polyarm_core.orchestrator.exact import optimal
from polyarm_core.orchestrator.explain import explain
from polyarm_core.orchestrator.fixed_point import fixed_point
from polyarm_core.orchestrator.maximal import maximal, served_by_age
from polyarm_core.orchestrator.problem import Problem, distinct
from polyarm_core.orchestrator.rules import is_consistent, violations
from polyarm_core.orchestrator.types import (
    NODES_PER_ARM,
    Arbitration,
    Decision,
    OrchestratorOptions,
    Rule,
    Strategy,
    Verdict,
)

__all__ = [
    "Arbitration",
    "Decision",
    "OrchestratorOptions",
    "Rule",
    "Strategy",
    "Verdict",
    "arbitrate",
    "is_consistent",
    "violations",
]

DEFAULT_OPTIONS = OrchestratorOptions()


def arbitrate(
    intents: Iterable[Intent],
    conditions: Collection[str] = frozenset(),
    options: OrchestratorOptions = DEFAULT_OPTIONS,
) -> Arbitration:
    """Admit a consistent set of arms and explain every veto.

    A stay action is treated by its declaration like any other; with an empty one it is always admitted.

    Args:
        intents: what the arms want, one per arm; identical repetitions collapse.
        conditions: W, the conditions that are true already.
        options: strategy, node budget, patience.

    Raises:
        InvalidValue: two different intents of one arm, or a negative distance or waiting time.
    """
    if isinstance(conditions, str):
        raise InvalidValue("conditions", conditions, "a collection of names")
    by_arm = distinct(intents)
    patience = options.patience
    problem = Problem(by_arm, frozenset(conditions), patience)
    served: set[str] = set()
    if problem.intents and problem.intents[0].waited > patience:
        served, first = served_by_age(problem, patience)
        if first:
            problem = Problem(by_arm, problem.conditions, patience, first)
    stays, removed = fixed_point(problem)
    bound = sum(len(members) for members, viable in zip(problem.members, problem.viable, strict=True) if viable)
    nodes = 0
    if options.strategy is Strategy.FIXED_POINT:
        verdicts = explain(problem, stays, removed)
        proven = sum(stays) == bound
    else:
        units = maximal(problem, stays)
        if options.strategy is Strategy.OPTIMAL:
            budget = options.node_budget or NODES_PER_ARM * len(by_arm)
            solution = optimal(problem, units, served, budget)
            units, bound, proven, nodes = solution.admitted, solution.upper_bound, solution.proven, solution.nodes
        admitted = [unit >= 0 and units[unit] for unit in problem.unit_of]
        if options.strategy is Strategy.MAXIMAL:
            proven = sum(admitted) == bound
        verdicts = explain(problem, admitted)
    return Arbitration(
        strategy=options.strategy,
        admitted=tuple(verdict.arm for verdict in verdicts if verdict.decision is Decision.ADMIT),
        verdicts=tuple(verdicts),
        upper_bound=bound,
        proven=proven,
        nodes=nodes,
    )
