"""Priority of eq. 19 with waiting time, and the arms served by age (ldt_coord.md 7.2).

The priority is compared in the order: overdue, terminal, distance, waited, index, where ``overdue = max(0, waited -
patience)``. Up to ``patience`` slots of waiting only decides between arms that eq. 19 would separate by index alone,
so a terminal action wins; beyond it the longest wait goes first.

Ranking alone does not end starvation: a dependent arm loses when its supplier does, and counting heads keeps out an
arm that excludes two others. So the overdue arms are walked through in order of priority and each is *served* that
fits, with its group and one choice of suppliers, beside those served before it. The whole of it inherits the top
priority, so no rule of the fixed point removes it, and in the objective of ``optimal`` each served arm weighs one
more than all arms together. The three strategies therefore admit every served arm.

Bound: an arm whose intent stays, and for which some consistent set exists in every slot, waits ``patience + n`` slots
at most, n being the number of arms: it is admitted in its ``patience + n + 1``-th slot at the latest. Proof: in every
slot the first overdue arm that is feasible at all is served, as nothing was served before it. While our arm is
overdue and not served, that is an arm with at least as long a wait; once served, its wait starts again from 0, below
that of our arm, so it is never ahead again. So at most n - 1 slots pass after the first slot in which our arm is
overdue. (Feasible means that the search of ``maximal.py`` finds the set within its limit on backtracking.)
"""

from __future__ import annotations

from typing import Any

from polyarm_core.constraints import Intent


def priority_key(intent: Intent, patience: int) -> tuple[Any, ...]:
    """Sort key of the priority: smaller is higher. The arm's name is last, should two arms share an index."""
    waited = intent.waited
    overdue = patience - waited if waited > patience else 0
    return (overdue, not intent.terminal, intent.distance, -waited, intent.index, intent.arm)
