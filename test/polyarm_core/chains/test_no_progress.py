"""The detector of livelocks: head-on agents are found, whoever waits, works or walks is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_domain import ToyDomain

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.no_progress import RepeatCounter, joint_state
from polyarm_core.chains.terms import Action, Plan, Wait, WaitEntity

DOOR_OPEN = Wait((WaitEntity("door", "open", "==", True),))


def go(cell: int) -> Action:
    return Action("Go", (f"cell_{cell}",))


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(2, 5))
def test_the_counter_fires_at_the_nth_visit(visits: list[int], repeats: int) -> None:
    counter = RepeatCounter(repeats)
    for n, visit in enumerate(visits):
        assert counter.observe(visit) == (visits[: n + 1].count(visit) >= repeats)
    copy = counter.copy()
    counter.reset()
    assert not counter.observe(0)
    assert copy.observe(0) == (visits.count(0) + 1 >= repeats)


def test_head_on_agents_are_found_and_named() -> None:
    domain = ToyDomain(solid=True)
    plan = Plan.of({"agent_1": (go(3),), "agent_2": (go(0),)})
    result = roll_out(ChainExecutor(domain, plan), domain.start(0), domain.horizon)
    (found,) = result.detections
    assert (found.kind, found.agents) == ("no_progress", ("agent_1", "agent_2"))
    assert found.reason == (
        "busy without getting anywhere: agent_1 at step 1, Go(cell_3) and agent_2 at step 1, Go(cell_0)"
    )
    assert result.frames < 15


def test_a_blocked_agent_beside_an_idle_one_is_found() -> None:
    domain = ToyDomain(solid=True)
    result = roll_out(ChainExecutor(domain, Plan.of({"agent_1": (go(3),)})), domain.start(0), domain.horizon)
    assert [(d.kind, d.agents) for d in result.detections] == [("no_progress", ("agent_1",))]


@pytest.mark.parametrize("opening", [4, 50])
def test_a_long_wait_is_no_livelock(opening: int) -> None:
    domain = ToyDomain(opening=opening)
    chain = (Action("Take", ("crate",)), DOOR_OPEN, go(6), Action("Drop"))
    plan = Plan.of({"agent_1": (Action("Press", ("button",)),), "agent_2": chain})
    result = roll_out(ChainExecutor(domain, plan), domain.start(0), 100)
    assert result.success and not result.detections


@pytest.mark.parametrize("width", [12, 40])
def test_a_long_walk_is_no_livelock(width: int) -> None:
    domain = ToyDomain(width=width)
    state = domain.start(0)._replace(door=domain.opening)
    executor = ChainExecutor(domain, Plan.of({"agent_1": (go(width - 1),)}), patience=60)
    result = roll_out(executor, state, 100)
    assert [d.kind for d in result.detections] == ["chain_end"] and result.frames == width - 1


def test_work_that_shows_is_no_livelock_until_patience_ends() -> None:
    """Two agents stand still, and what their actions refer to goes on changing."""

    class Working(ToyDomain):
        def refers(self, state, agent, step):  # type: ignore[no-untyped-def]
            return frozenset({"door"})

    domain = Working(solid=True, opening=1000)
    state = domain.start(0)._replace(door=0)
    executor = ChainExecutor(domain, Plan.of({"agent_1": (go(3),), "agent_2": (go(0),)}), patience=24)
    result = roll_out(executor, state, 100)
    (found,) = result.detections
    assert (found.kind, found.agents, found.frame) == ("no_progress", ("agent_1", "agent_2"), 24)


def test_the_joint_state_leaves_out_clocks_and_strangers() -> None:
    domain = ToyDomain()
    state = domain.start(0)
    walk = (go(3), None)
    assert joint_state(domain, state, walk) == joint_state(domain, state._replace(frame=9, door=2), walk)
    assert joint_state(domain, state, walk) != joint_state(domain, state._replace(positions=(1, 2)), walk)
    press = (Action("Press", ("button",)), None)
    assert joint_state(domain, state, press) != joint_state(domain, state._replace(door=2), press)
    assert joint_state(domain, state, press) != joint_state(domain, state, walk)
