"""Local repair: mend the chain of the agent that was hit, keep the others', and ask nobody.

A patch is accepted if the team then succeeds in a roll-out and not much later than the domain's own bound for *any*
plan from here (or, where the domain knows no bound, than the old plan would have). Otherwise a full plan is due.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.terms import Plan
from polyarm_core.coordinator.search import candidates, imagined
from polyarm_core.domains.interface import Domain

State = TypeVar("State", bound=Hashable)

BUDGET = 4  # roll-outs per agent
ALLOWANCE = 3  # frames that a repaired plan may take longer than the bound
SHARE = 0.1  # or this share of the bound, if that is more


class Repair(Generic[State]):
    """Tries to patch one agent's remaining chain.

    Args:
        domain: in which the agents act; where it has a ``simulation``, that one is used to imagine.
        budget: roll-outs per agent at most.
        allowance: frames that a repaired plan may take longer than the bound.

    Attributes:
        attempts: calls so far.
        repaired: calls that gave a plan: calls of the coordinator that were saved.
        roll_outs: carried out so far.
    """

    def __init__(self, domain: Domain[State], budget: int = BUDGET, allowance: int = ALLOWANCE) -> None:
        self.domain: Domain[State] = imagined(domain)
        self.budget = budget
        self.allowance = allowance
        self.attempts = self.repaired = self.roll_outs = 0

    def patch(
        self, remaining: Plan, state: State, agents: Sequence[str] = (), expected: int | None = None
    ) -> Plan | None:
        """A plan in which the chain of one agent is new, or None where a full plan is due.

        Args:
            remaining: what is left of the plan.
            state: as it is now.
            agents: who was hit, if that is known: these are tried first.
            expected: frames after which the old plan would have been done; the bound where the domain knows none.
        """
        self.attempts += 1
        bound = next((bound for bound, _ in candidates(self.domain, state)), 0) or expected or self.domain.horizon
        limit = min(bound + max(self.allowance, int(SHARE * bound)), self.domain.horizon)
        order = [*agents, *(agent for agent in self.domain.agents if agent not in agents)]
        best: Plan | None = None
        for agent in order:
            for count, plan in enumerate(self.domain.patches(state, agent, remaining)):
                if count >= self.budget:
                    break
                self.roll_outs += 1
                result = roll_out(ChainExecutor(self.domain, plan), state, limit)
                if result.success:
                    best, limit = plan, result.frames - 1
                    if result.frames <= bound + 1:
                        self.repaired += 1
                        return best
        self.repaired += best is not None
        return best
