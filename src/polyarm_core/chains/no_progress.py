"""Livelock: agents that are busy without getting anywhere, which no wait graph shows.

Two agents that meet head-on may step aside for each other for ever: nobody waits, so there is no edge. What gives them
away is that their joint state comes back again and again while no step of theirs finishes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from polyarm_core.chains.terms import Action
from polyarm_core.domains.interface import Domain, State


class RepeatCounter:
    """Counts how often each joint state was seen since the last progress.

    Args:
        repeats: visits of one joint state that make a livelock.
    """

    __slots__ = ("_seen", "repeats")

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self._seen: dict[Hashable, int] = {}

    def observe(self, signature: Hashable) -> bool:
        """Whether this joint state has now been seen ``repeats`` times without progress between."""
        count = self._seen.get(signature, 0) + 1
        self._seen[signature] = count
        return count >= self.repeats

    def reset(self) -> None:
        """Something got done: what was seen before says nothing."""
        if self._seen:
            self._seen = {}

    def copy(self) -> RepeatCounter:
        """An independent counter with the same history."""
        twin = RepeatCounter(self.repeats)
        if self._seen:
            twin._seen = self._seen.copy()
        return twin


def joint_state(domain: Domain[State], state: State, intents: Sequence[Action | None]) -> Hashable:
    """What must change if the agents get anywhere: their own attributes and those of what their actions refer to.

    Clocks and everything that goes on without the agents are left out. What an action refers to is in, so that an
    agent that stands still at its work (a fight, a valve) is not taken for a blocked one as long as the work shows.
    """
    watched = set(domain.agents)
    for agent, action in zip(domain.agents, intents, strict=True):
        if action is not None:
            watched |= domain.refers(state, agent, action)
    entities = domain.entities(state)
    return (tuple(intents), tuple(tuple(e.values.values()) for e in entities if e.name in watched))
