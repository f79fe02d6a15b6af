"""Roll-out oracle: can the remaining plan still succeed, executed from this state without another disturbance?

Execution is deterministic, so a roll-out predicts every state to come. While the states follow the prediction its
verdict stays valid, whatever it was; only a state that deviates, or another plan, asks for another roll-out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.domains.interface import Domain

State = TypeVar("State", bound=Hashable)

HOPELESS = ("deadlock", "chain_end")  # detections after which this plan alone cannot succeed any more


class RollOutOracle(Generic[State]):
    """True staleness, frame by frame, of the plan in an executor.

    Attributes:
        roll_outs: how many were carried out so far.
    """

    def __init__(self, domain: Domain[State]) -> None:
        self._domain = domain
        self._ahead: deque[State] = deque()
        self._stale = False
        self._known = False
        self.roll_outs = 0

    def forget(self) -> None:
        """The plan has changed: what was predicted for the old one is void."""
        self._known = False

    def stale(self, executor: ChainExecutor[State], state: State, frames_left: int) -> bool:
        """Whether the executor's plan fails from this state on. Call it once for every frame.

        Args:
            executor: is left as it is.
            state: of this frame.
            frames_left: until the horizon; each call has one less than the one before, or call ``forget``.
        """
        if self._known and (not self._ahead or self._ahead.popleft() == state):
            return self._stale
        self._stale, self._ahead = _roll_out(self._domain, executor, state, frames_left)
        self._known = True
        self.roll_outs += 1
        return self._stale


def _roll_out(
    domain: Domain[State], executor: ChainExecutor[State], state: State, frames_left: int
) -> tuple[bool, deque[State]]:
    """Verdict and predicted states."""
    copy = executor.copy()
    ahead: deque[State] = deque()
    for _ in range(frames_left):
        if domain.succeeded(state):
            return False, ahead
        controls = domain.control(state, copy.intents(state))
        after = domain.step(state, controls)
        detections = copy.advance(state, controls, after)
        state = after
        ahead.append(state)
        if any(detection.kind in HOPELESS for detection in detections):
            break
    return not domain.succeeded(state), ahead
