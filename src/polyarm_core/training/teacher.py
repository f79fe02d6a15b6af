"""The teacher for SFT: plans of the search, chosen and shortened so that a small model can learn them."""

from __future__ import annotations

import itertools
import time
from typing import Generic

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.printer import format_plan
from polyarm_core.chains.terms import Action, Chain, Plan, Step, WaitAgents
from polyarm_core.coordinator.interface import PlanAnswer, PlanRequest, State
from polyarm_core.domains.interface import Domain

CANDIDATES = 24  # plans that are rolled out
SHORTENED = 4  # of them, the shortest ones that are fast enough
SLACK = 4  # frames that a shorter plan may take longer than the fastest


class Teacher(Generic[State]):
    """Implements ``Coordinator``: the shortest text among the plans that are nearly as fast as the fastest.

    The search knows where to stand while waiting for a soup, to the frame. Every such step costs a small model tokens
    to write and a rule to learn, and gains a frame or two; the teacher leaves out whatever the roll-out does not need.

    Args:
        domain: gives the candidates.
        candidates: how many of them are rolled out.
        slack: frames.
    """

    name = "teacher"

    def __init__(self, domain: Domain[State], candidates: int = CANDIDATES, slack: int = SLACK) -> None:
        self.domain = domain
        self.candidates = candidates
        self.slack = slack

    def plan(self, request: PlanRequest[State]) -> PlanAnswer:
        """The plan; none where no candidate reaches the target by the horizon."""
        started = time.perf_counter()
        finishes: list[tuple[int, Plan]] = []
        for plan in itertools.islice(self.domain.candidates(request.state), self.candidates):
            frames = self._frames(request, plan)
            if frames is not None:
                finishes.append((frames, plan))
        if not finishes:
            return PlanAnswer(None, "", time.perf_counter() - started, error="no candidate reaches the target in time")
        limit = min(frames for frames, _ in finishes) + self.slack
        fast = sorted((plan for frames, plan in finishes if frames <= limit), key=_length)
        chosen = min((self.shorten(request, plan, limit) for plan in fast[:SHORTENED]), key=_length)
        return PlanAnswer(chosen, format_plan(chosen), time.perf_counter() - started)

    def variants(self, request: PlanRequest[State], limit: int) -> tuple[Plan, ...]:
        """Short forms of the first plans that succeed, fast or not, at most ``limit``: others might write these."""
        plans: dict[Plan, None] = {}
        for plan in itertools.islice(self.domain.candidates(request.state), self.candidates):
            frames = self._frames(request, plan)
            if frames is not None:
                plans[self.shorten(request, plan, frames + self.slack)] = None
                if len(plans) == limit:
                    break
        return tuple(plans)

    def shorten(self, request: PlanRequest[State], plan: Plan, limit: int) -> Plan:
        """Leave out actions, last ones first, as long as the plan succeeds within ``limit`` frames.

        A plan that counts steps of other chains stays as it is.
        """
        if any(isinstance(atom, WaitAgents) for _, chain in plan.chains for step in chain for atom in _atoms(step)):
            return plan
        for agent, chain in plan.chains:
            for place in reversed(range(len(chain))):
                if not isinstance(chain[place], Action):
                    continue
                shorter = _without(plan, agent, place)
                frames = self._frames(request, shorter)
                if frames is not None and frames <= limit:
                    plan = shorter
        return plan

    def _frames(self, request: PlanRequest[State], plan: Plan) -> int | None:
        """Frames to success, or None."""
        executor: ChainExecutor[State] = ChainExecutor(self.domain, plan, frame=request.frame)
        result = roll_out(executor, request.state, self.domain.horizon)
        return result.frames if result.success else None


def _length(plan: Plan) -> int:
    return len(format_plan(plan))


def _atoms(step: Step) -> tuple[object, ...]:
    return () if isinstance(step, Action) else step.atoms


def _without(plan: Plan, agent: str, place: int) -> Plan:
    chains: list[tuple[str, Chain]] = [
        (name, chain[:place] + chain[place + 1 :] if name == agent else chain) for name, chain in plan.chains
    ]
    return Plan(tuple(chains))
