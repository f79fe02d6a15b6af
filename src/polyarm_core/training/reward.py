"""Reward of a response of the coordinator's model, with the executor in the loop (SyncPlan A.8 and Table 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.chains.parser import ChainSyntaxError, malformed_share, parse_plan
from polyarm_core.chains.terms import Plan
from polyarm_core.chains.validation import validate
from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue

Outcome = Literal["success", "syntax", "semantic", "deadlock", "timeout"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """The constants of Table 7.

    Attributes:
        success: bonus alpha.
        syntax, semantic, deadlock, timeout: penalties lambda.
        fraction, efficiency, length: weights of the three progress terms.
        shortest, longest: ideal length of a response, tokens.
        reduction: what the length term loses at most.
    """

    success: float = 0.45
    syntax: float = 0.1
    semantic: float = 0.3
    deadlock: float = 1.0
    timeout: float = 0.0
    fraction: float = 0.15
    efficiency: float = 0.15
    length: float = 0.25
    shortest: int = 100
    longest: int = 500
    reduction: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.shortest <= self.longest:
            raise InvalidValue("shortest, longest", (self.shortest, self.longest), "0 < shortest <= longest")


PAPER = RewardWeights()


@dataclass(frozen=True, slots=True)
class Reward:
    """Reward of one response, and what it is made of.

    Attributes:
        value: clamped to [-1, 1].
        outcome: exactly one.
        completed, total: steps of the chains that were done, and all (waits are steps).
        finish: frame of the episode in which the task was done; None without success.
        malformed: share of malformed instructions; 0 unless the outcome is ``syntax``.
        reason: why there was no success, in words.
    """

    value: float
    outcome: Outcome
    completed: int = 0
    total: int = 0
    finish: int | None = None
    malformed: float = 0.0
    reason: str = field(default="", compare=False)


def length_term(tokens: int, weights: RewardWeights = PAPER) -> float:
    """``R_len``: 1 within the ideal range; outside it falls linearly with the relative distance, by at most a half.

    The paper gives range and maximum; the line is ours: all of the reduction is reached at no token at all and at
    twice the longest ideal length.
    """
    if tokens < weights.shortest:
        away = 1.0 - max(tokens, 0) / weights.shortest
    else:
        away = max(0, tokens - weights.longest) / weights.longest
    return 1.0 - weights.reduction * min(away, 1.0)


def compose(
    outcome: Outcome,
    tokens: int,
    *,
    completed: int = 0,
    total: int = 0,
    finish: int | None = None,
    horizon: int = 100,
    malformed: float = 0.0,
    weights: RewardWeights = PAPER,
) -> float:
    """``R(A) = R_prog + alpha [success] - penalty of the outcome``, clamped to [-1, 1].

    Args:
        outcome: of the response.
        tokens: its length.
        completed, total: steps done and all steps; an empty plan has no fraction.
        finish: frame of success; None for any other outcome.
        horizon: T, frames.
        malformed: severity of a syntax error, in [0, 1].
        weights: constants.
    """
    fraction = completed / total if total else 0.0
    efficiency = 0.0 if finish is None else min(max(1.0 - finish / horizon, 0.0), 1.0)
    progress = (
        weights.fraction * fraction + weights.efficiency * efficiency + weights.length * length_term(tokens, weights)
    )
    penalty = {
        "success": -weights.success,
        "syntax": weights.syntax * malformed,
        "semantic": weights.semantic,
        "deadlock": weights.deadlock,
        "timeout": weights.timeout,
    }[outcome]
    return min(max(progress - penalty, -1.0), 1.0)


def reward(
    domain: Domain[Any],
    state: Any,
    text: str,
    tokens: int,
    *,
    frame: int = 0,
    weights: RewardWeights = PAPER,
) -> Reward:
    """Read, check and execute a response, without disturbances, and reward it.

    A response that cannot be read is a syntax error, of severity 1 where no instruction can be made out. One that
    names what is not there is a semantic error. Waits that close a cycle are executed and end in the deadlock that
    they are. Everything else that is no success by the horizon is a time-out: stalls, livelocks, chains that end too
    early.

    Args:
        domain: steps the world; its ``step`` is called up to ``domain.horizon`` times.
        state: that the response answers to.
        text: the response.
        tokens: its length in the model's tokens.
        frame: of the episode in that state; success by ``domain.horizon`` counts.
        weights: constants.
    """

    def rewarded(outcome: Outcome, reason: str = "", **parts: Any) -> Reward:
        value = compose(outcome, tokens, horizon=domain.horizon, weights=weights, **parts)
        return Reward(value, outcome, reason=reason, **parts)

    try:
        plan = parse_plan(text, domain.agents)
    except ChainSyntaxError as error:
        return rewarded("syntax", str(error), malformed=malformed_share(text) or 1.0)
    total = sum(len(chain) for _, chain in plan.chains)
    problems = [problem for problem in validate(plan, domain, state) if problem.kind != "wait_cycle"]
    if problems:
        return rewarded("semantic", "; ".join(map(str, problems)), total=total)
    outcome, completed, finish, reason = _execute(domain, state, plan, frame)
    return rewarded(outcome, reason, completed=completed, total=total, finish=finish)


def _execute(domain: Domain[Any], state: Any, plan: Plan, frame: int) -> tuple[Outcome, int, int | None, str]:
    """Outcome, steps done, frame of success and reason of failure of a valid plan."""
    executor: ChainExecutor[Any] = ChainExecutor(domain, plan, frame=frame)
    reason = ""
    while not domain.succeeded(state):
        if executor.frame >= domain.horizon:
            return "timeout", sum(executor.pointers()), None, reason or "the horizon is reached"
        intents = executor.intents(state)
        found = executor.check(state)
        if not found:
            controls = domain.control(state, intents)
            after = domain.step(state, controls)
            found = executor.advance(state, controls, after)
            state = after
        for detection in found:
            reason = reason or detection.reason
            if detection.kind == "deadlock":
                return "deadlock", sum(executor.pointers()), None, detection.reason
            if detection.kind == "chain_end" and not domain.succeeded(state):
                return "timeout", sum(executor.pointers()), None, detection.reason
    return "success", sum(executor.pointers()), executor.frame, ""
