"""Leases and fencing tokens: laws of the table and the guard, alone and against each other over a lossy channel."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.constraints import Action
from polyarm_core.errors import InvalidValue
from polyarm_core.leases import Grant, LeaseGuard, LeaseHeld, LeaseTable

MOVE = Action("move", "cube", "pad")
EPOCH = 1_790_000_000_000_000_000


def test_one_lease_an_arm_at_a_time() -> None:
    table = LeaseTable(EPOCH, limit=10.0)
    grant = table.grant("alice", 1, MOVE, 0.0)
    with pytest.raises(LeaseHeld, match=f"'alice' still has lease {grant.token}"):
        table.grant("alice", 2, MOVE, 1.0)
    assert not table.release("alice", grant.token + 1)
    assert table.release("alice", grant.token)
    assert table.grants == ()
    assert table.grant("alice", 2, MOVE, 1.0).token > grant.token


def test_tokens_increase_over_restarts_of_the_twin() -> None:
    first = [LeaseTable(EPOCH, 1.0).grant("a", 1, MOVE, 0.0).token for _ in range(1)]
    later = LeaseTable(EPOCH + 1_000_000, 1.0).grant("a", 1, MOVE, 0.0).token
    assert later > max(first)
    assert later < 2**64


def test_overdue_leases_are_given_up_once() -> None:
    table = LeaseTable(EPOCH, limit=5.0)
    grant = table.grant("alice", 1, MOVE, 0.0)
    assert table.overdue(5.0) == []
    assert table.overdue(5.1) == [grant]
    assert table.overdue(9.0) == [] and table.grants == ()


def test_epoch_must_be_positive() -> None:
    with pytest.raises(InvalidValue, match="epoch = 0"):
        LeaseTable(0, 1.0)


def test_guard_life_of_a_lease() -> None:
    guard = LeaseGuard()
    grant = Grant("alice", 1, 7, MOVE)
    assert guard.valid("alice", 0.0) is None
    assert guard.offer(grant, 2.0, 0.0) == "new"
    assert guard.offer(grant, 2.0, 1.5) == "renewed"
    assert guard.valid("alice", 3.4) == grant
    assert guard.valid("alice", 3.6) is None
    assert guard.expired(3.6) == [grant] and guard.expired(4.0) == []
    assert guard.offer(grant, 2.0, 3.7) == "stale_token"  # an expired lease does not come back
    assert guard.offer(Grant("alice", 2, 6, MOVE), 2.0, 4.0) == "stale_token"
    assert guard.offer(Grant("alice", 2, 8, MOVE), 2.0, 4.0) == "new"
    guard.end("alice")
    assert guard.offer(Grant("alice", 2, 8, MOVE), 2.0, 4.1) == "stale_token"


@pytest.mark.parametrize(("token", "duration"), [(0, 1.0), (5, 0.0), (5, -1.0), (5, float("nan"))])
def test_guard_refuses_what_is_no_lease(token: int, duration: float) -> None:
    guard = LeaseGuard()
    assert guard.offer(Grant("a", 1, token, MOVE), duration, 0.0) == "no_lease"
    assert guard.valid("a", 0.0) is None


def test_a_token_is_not_accepted_for_another_action() -> None:
    guard = LeaseGuard()
    guard.offer(Grant("a", 1, 5, MOVE), 1.0, 0.0)
    assert guard.offer(Grant("a", 1, 5, Action("move", "cube", "elsewhere")), 1.0, 0.1) == "stale_token"


events = st.lists(
    st.tuples(
        st.sampled_from(["grant", "release", "deliver", "tick", "restart_twin"]),
        st.sampled_from(["alice", "bob"]),
        st.integers(0, 30),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(events)
def test_no_arm_moves_under_two_leases_or_an_old_one(script: list[tuple[str, str, int]]) -> None:
    """Messages delayed, duplicated and reordered at will: the guard's token per arm never decreases, and it only
    says "new" once for each token."""
    table, guard, now = LeaseTable(EPOCH, 100.0), LeaseGuard(), 0.0
    epoch = EPOCH
    sent: list[Grant] = []
    started: dict[str, list[int]] = {"alice": [], "bob": []}
    for kind, arm, number in script:
        now += 0.1
        if kind == "grant":
            try:
                sent.append(table.grant(arm, len(sent) + 1, MOVE, now))
            except LeaseHeld:
                pass
        elif kind == "release":
            for grant in table.grants:
                if grant.arm == arm:
                    table.release(arm, grant.token)
                    guard.end(arm)
        elif kind == "deliver" and sent:
            grant = sent[number % len(sent)]
            before = guard.valid(grant.arm, now)
            answer = guard.offer(grant, 0.5, now)
            if answer == "new":
                started[grant.arm].append(grant.token)
                assert guard.valid(grant.arm, now) == grant
            elif answer == "renewed":
                assert before == grant
        elif kind == "tick":
            now += number / 10
            for grant in guard.expired(now):
                assert guard.valid(grant.arm, now) is None
        elif kind == "restart_twin":
            epoch += 1_000_000 * (number + 1)
            table = LeaseTable(epoch, 100.0)
    for tokens in started.values():
        assert tokens == sorted(set(tokens))
