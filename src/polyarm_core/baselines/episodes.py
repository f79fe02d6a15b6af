"""Episodes of a team without a coordinator, one frame at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from polyarm_core.baselines.interface import Policy
from polyarm_core.domains.overcooked.disturbances import EventSchedule, happen
from polyarm_core.domains.overcooked.kitchen import HORIZON, Kitchen


class Outcome(NamedTuple):
    """Of some episodes.

    Attributes:
        success: share with a delivery in time (TAR).
        frames: mean frame of the first delivery over the successful ones (AED); NaN without any.
    """

    success: float
    frames: float


def play(policy: Policy, kitchen: Kitchen, seed: int, schedule: EventSchedule, horizon: int = HORIZON) -> int | None:
    """One episode from the standard start.

    Args:
        policy: of the team; reset with the seed.
        kitchen: the rules.
        seed: of the policy.
        schedule: events of the trial.
        horizon: frames after which it has failed.

    Returns:
        The frame of the first delivery, None = it failed.
    """
    policy.reset(seed)
    state, pending = kitchen.start(), schedule.events
    while state.frame < horizon:
        state, _, pending = happen(kitchen, state, pending)
        state = kitchen.step(state, policy.act(state))
        if state.delivered:
            return state.frame
    return None


def measure(policy: Policy, kitchen: Kitchen, seeds: Iterable[int], names: Sequence[str] = ()) -> Outcome:
    """Episodes with each named disturbance once, at frames and places that depend on the seed alone."""
    ends = [play(policy, kitchen, seed, EventSchedule.once_each(seed, names)) for seed in seeds]
    frames = [end for end in ends if end is not None]
    return Outcome(len(frames) / len(ends), sum(frames) / len(frames) if frames else float("nan"))
