"""Leases: who may move, until when. Two pure state machines, the twin's table and the plant's guard.

A grant carries a fencing token. Tokens increase strictly over all grants of all twins that ever ran, so a plant that
has seen a newer one refuses every older one, whatever was delayed on the way. A lease is valid for a duration after
its last renewal; a silent twin renews nothing, so its leases expire and the arms hold. Time is an argument, in
seconds of a steady clock; the two sides never compare their clocks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from polyarm_core.constraints import Action
from polyarm_core.errors import InvalidValue, PolyarmError

TOKEN_BITS_PER_EPOCH = 20


class LeaseHeld(PolyarmError):
    """An arm was to be granted a lease while it still has one."""

    def __init__(self, arm: str, token: int) -> None:
        super().__init__(f"arm {arm!r} still has lease {token}; release it before granting another")


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission for one arm to carry out one action of one slot, fenced by its token."""

    arm: str
    slot: int
    token: int
    action: Action


class LeaseTable:
    """The twin's side: hands out leases, one per arm at a time.

    Args:
        epoch: boot-unique number of this twin in nanoseconds, larger than that of any twin before it.
        limit: seconds after which a lease is given up, however often it was renewed; owner: the twin.
    """

    def __init__(self, epoch: int, limit: float) -> None:
        if epoch <= 0:
            raise InvalidValue("epoch", epoch, "a positive boot-unique number")
        # Milliseconds leave room for a million grants per millisecond-epoch in 64 bits until the year 2500.
        self._next = (epoch // 1_000_000 << TOKEN_BITS_PER_EPOCH) + 1
        self._limit = limit
        self._grants: dict[str, tuple[Grant, float]] = {}

    def grant(self, arm: str, slot: int, action: Action, now: float) -> Grant:
        """A new lease with a token above all before. Raises LeaseHeld when the arm still has one."""
        if arm in self._grants:
            raise LeaseHeld(arm, self._grants[arm][0].token)
        grant = Grant(arm, slot, self._next, action)
        self._next += 1
        self._grants[arm] = (grant, now)
        return grant

    def release(self, arm: str, token: int) -> bool:
        """End a lease whose action is over; False when the arm has no lease of that token."""
        held = self._grants.get(arm)
        if held is None or held[0].token != token:
            return False
        del self._grants[arm]
        return True

    def clear(self) -> None:
        """End every lease (the world was reset)."""
        self._grants.clear()

    def overdue(self, now: float) -> list[Grant]:
        """Give up leases older than the limit and return them; they are renewed no more."""
        old = [grant for grant, since in self._grants.values() if now - since > self._limit]
        for grant in old:
            del self._grants[grant.arm]
        return old

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Leases in force, by arm."""
        return tuple(grant for grant, _ in sorted(self._grants.values(), key=lambda held: held[0].arm))


class LeaseGuard:
    """The plant's side: says whether an arm may move now."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._expiry: dict[str, tuple[Grant, float]] = {}

    def offer(self, grant: Grant, duration: float, now: float) -> str:
        """A grant arrived, for the first time or as a renewal.

        Returns:
            ``"new"`` (start the action), ``"renewed"``, or why it is refused: ``"stale_token"`` (a newer one was
            seen, or this one has ended) or ``"no_lease"`` (token or duration is not positive).
        """
        if grant.token <= 0 or not duration > 0.0:
            return "no_lease"
        newest = self._newest.get(grant.arm, 0)
        if grant.token > newest:
            self._newest[grant.arm] = grant.token
            self._expiry[grant.arm] = (grant, now + duration)
            return "new"
        held = self._expiry.get(grant.arm)
        if held is not None and held[0] == grant and now <= held[1]:
            self._expiry[grant.arm] = (grant, now + duration)
            return "renewed"
        return "stale_token"

    def valid(self, arm: str, now: float) -> Grant | None:
        """The lease under which the arm may move now, or None."""
        held = self._expiry.get(arm)
        return held[0] if held is not None and now <= held[1] else None

    def expired(self, now: float) -> list[Grant]:
        """Leases that ran out since the last call; each is reported once. The arm has to hold."""
        out = [grant for grant, until in self._expiry.values() if now > until]
        for grant in out:
            del self._expiry[grant.arm]
        return out

    def end(self, arm: str, token: int | None = None) -> None:
        """The action under the arm's lease is over; its token is spent. With ``token``: only if it is that lease."""
        held = self._expiry.get(arm)
        if held is not None and token in (None, held[0].token):
            del self._expiry[arm]

    def end_all(self, arms: Collection[str]) -> None:
        """End the leases of these arms (reset, protective stop)."""
        for arm in arms:
            self.end(arm)
