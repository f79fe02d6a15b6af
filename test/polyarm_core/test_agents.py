"""One arm's agent: local prompt, choice by score, bounded staying, what it does with verdicts and failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyarm_core.agents import ArmAgent, DecidedBy
from polyarm_core.constraints import STAY, Action
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.liveness import draw_start
from polyarm_core.scenario import load_scenario
from polyarm_core.world import World, legal_actions, observe

SORT = load_scenario("sort")
# alice sees two entities that she can hand over
BUSY = {"blue_square": "panel7", "pink_polygon": "panel1", "yellow_trapezoid": "pad2"}


def world_at(where: dict[str, str]) -> World:
    return World({e: (*SORT.placements[p].xyz[:2], 0.2) for e, p in where.items()})


def test_prompt_says_nothing_about_what_is_out_of_reach() -> None:
    agent = ArmAgent(SORT, "alice")
    text = agent.deliberate(world_at(BUSY)).prompt.dynamic
    assert "pink_polygon" in text and "yellow_trapezoid" in text
    assert "blue_square" not in text and "panel7" not in text


def test_static_prompt_is_the_same_in_every_slot() -> None:
    agent = ArmAgent(SORT, "alice")
    prompts = {agent.deliberate(world_at(draw_start(SORT, seed))).prompt.static for seed in range(10)}
    assert len(prompts) == 1


@given(st.integers(0, 500), st.sampled_from(sorted(SORT.arms)), st.data())
def test_whatever_the_model_says_the_action_is_legal(seed: int, arm: str, data: st.DataObject) -> None:
    agent = ArmAgent(SORT, arm)
    world = world_at(draw_start(SORT, seed))
    for _ in range(4):
        deliberation = agent.deliberate(world)
        legal = legal_actions(SORT, observe(SORT, world, arm))
        assert set(deliberation.candidates) <= set(legal)
        assert len(set(deliberation.texts)) == len(deliberation.candidates)
        n = len(deliberation.candidates)
        scores = data.draw(st.lists(st.floats(-9, 0), min_size=n, max_size=n))
        choice = agent.only_choice(deliberation) or agent.settle(deliberation, scores)
        assert choice.action in legal
        if not choice.action.is_stay:
            assert f"entity:{choice.action.entity}" in choice.declaration.exclusive
            assert f"placement:{choice.action.placement}" in choice.declaration.exclusive
        agent.on_verdict(choice.action, data.draw(st.sampled_from(["admit", "yield", "wait"])))


def test_highest_score_wins_and_the_first_of_equals() -> None:
    agent = ArmAgent(SORT, "alice", stay_patience=5)
    deliberation = agent.deliberate(world_at(BUSY))
    assert len(deliberation.candidates) == 3
    assert agent.settle(deliberation, [-3.0, -1.0, -2.0]).action == deliberation.candidates[1]
    assert agent.settle(deliberation, [-3.0, -2.0, -2.0]).action == deliberation.candidates[1]
    with pytest.raises(InvalidValue, match="3 numbers"):
        agent.settle(deliberation, [-1.0])


def test_a_model_that_always_prefers_to_stay_stays_only_so_long() -> None:
    agent = ArmAgent(SORT, "alice", stay_patience=2)
    stays = []
    for _ in range(6):
        deliberation = agent.deliberate(world_at(BUSY))
        scores = [0.0 if a.is_stay else -5.0 for a in deliberation.candidates]
        stays.append(agent.settle(deliberation, scores).action.is_stay)
    assert stays == [True, True, False, True, True, False]


def test_yield_drops_the_action_until_the_situation_changes() -> None:
    agent = ArmAgent(SORT, "alice", stay_patience=0)
    first = agent.settle(agent.deliberate(world_at(BUSY)), [-1.0, -2.0]).action
    agent.on_verdict(first, "yield")
    again = agent.deliberate(world_at(BUSY))
    assert first not in again.candidates and again.avoided == {first}
    out_of_sight = {**BUSY, "blue_square": "panel5"}  # nothing changes for alice
    assert first not in agent.deliberate(world_at(out_of_sight)).candidates
    agent.deliberate(world_at({**BUSY, "blue_square": "panel3"}))
    assert first in agent.deliberate(world_at(BUSY)).candidates


def test_when_everything_was_refused_it_begins_again() -> None:
    agent = ArmAgent(SORT, "alice", stay_patience=0)
    seen = []
    for _ in range(4):
        deliberation = agent.deliberate(world_at(BUSY))
        choice = agent.only_choice(deliberation) or agent.settle(deliberation, [-1.0] * len(deliberation.candidates))
        seen.append(choice.action)
        agent.on_verdict(choice.action, "yield")
    assert seen[0] != seen[1] and seen[:2] == seen[2:] and STAY not in seen


def test_wait_keeps_the_intention_without_asking_again() -> None:
    agent = ArmAgent(SORT, "alice")
    deliberation = agent.deliberate(world_at(BUSY))
    choice = agent.settle(deliberation, [-9.0, -9.0, -1.0])
    agent.on_verdict(choice.action, "wait")
    again = agent.deliberate(world_at(BUSY))
    kept = agent.only_choice(again)
    assert kept is not None and kept.action == choice.action and kept.decided_by is DecidedBy.ONLY_CHOICE
    assert len(agent.deliberate(world_at(BUSY)).candidates) > 1  # only for one slot at a time


def test_a_failed_action_is_not_proposed_again_at_once() -> None:
    agent = ArmAgent(SORT, "alice", stay_patience=0)
    choice = agent.settle(agent.deliberate(world_at(BUSY)), [-1.0, -2.0])
    agent.on_failure(choice.action)
    assert choice.action not in agent.deliberate(world_at(BUSY)).candidates


def test_reset_forgets() -> None:
    agent = ArmAgent(SORT, "alice")
    choice = agent.settle(agent.deliberate(world_at(BUSY)), [-9.0, -1.0, -9.0])
    agent.on_failure(choice.action)
    agent.reset()
    assert agent.deliberate(world_at(BUSY)).avoided == frozenset()


def test_fallback_is_to_stay_and_says_so() -> None:
    agent = ArmAgent(SORT, "alice")
    choice = agent.fall_back(agent.deliberate(world_at(BUSY)))
    assert choice.action == STAY and choice.decided_by is DecidedBy.FALLBACK


def test_unknown_arm() -> None:
    with pytest.raises(UnknownName, match="unknown arm 'dave'; valid: alice, bob, chad"):
        ArmAgent(SORT, "dave")


def test_only_one_legal_action_needs_no_model() -> None:
    agent = ArmAgent(SORT, "bob")
    deliberation = agent.deliberate(world_at(BUSY))
    assert deliberation.candidates == (Action("stay"),)
    assert agent.only_choice(deliberation) is not None
