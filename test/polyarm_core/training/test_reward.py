"""The reward of A.8: one outcome for each response, the numbers of Table 7, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.errors import InvalidValue
from polyarm_core.training.reward import OUTCOMES, RewardWeights, compose, length_term, reward

DOMAIN = OvercookedDomain("asymmetric_advantages")
START = DOMAIN.start(0)
ANSWER = SearchCoordinator(DOMAIN).plan(PlanRequest(START)).text
DEADLOCK = '"agent_1": Wait_agents(agent_2, done, 1)\n"agent_2": Wait_agents(agent_1, done, 1)'


def test_success_earns_bonus_speed_and_progress():
    result = reward(DOMAIN, START, ANSWER, 120)
    assert result.outcome == "success" and result.finish is not None
    assert 31 <= result.finish < 40  # 31 frames are the physical minimum
    fraction = result.completed / result.total
    expected = 0.15 * fraction + 0.15 * (1 - result.finish / 100) + 0.25 + 0.45
    assert result.value == pytest.approx(expected)


def test_success_counts_frames_of_the_episode():
    early, late = reward(DOMAIN, START, ANSWER, 120), reward(DOMAIN, START, ANSWER, 120, frame=20)
    assert late.finish == early.finish + 20
    assert early.value - late.value == pytest.approx(0.15 * 20 / 100)
    assert reward(DOMAIN, START, ANSWER, 120, frame=90).outcome == "timeout"


@pytest.mark.parametrize(
    ("text", "malformed"),
    [
        ("The agents cook a soup.", 1.0),
        ('{"agent_1": []', 1.0),
        ('"agent_1": Interact(pot_1), Interact(pot_1\n"agent_2": Interact(serving_2), Interact(pot_1)', 0.25),
    ],
)
def test_syntax_error_costs_a_tenth_of_its_share(text, malformed):
    result = reward(DOMAIN, START, text, 120)
    assert result.outcome == "syntax" and result.malformed == pytest.approx(malformed)
    assert result.value == pytest.approx(0.25 - 0.1 * malformed)
    assert "line" in result.reason


@pytest.mark.parametrize(
    "text",
    [
        '"agent_1": Interact(pot_7)\n"agent_2":',
        '"agent_1": Wait_entity(pot_1, colour, ==, red)\n"agent_2":',
        '"agent_1": Interact(serving_1)\n"agent_2":',  # out of this agent's reach
        '"agent_1": Wait_agents(agent_2, done, 4)\n"agent_2":',
    ],
)
def test_semantic_error_costs_three_tenths(text):
    result = reward(DOMAIN, START, text, 120)
    assert result.outcome == "semantic"
    assert result.value == pytest.approx(0.25 - 0.3)


def test_deadlock_costs_the_most():
    result = reward(DOMAIN, START, DEADLOCK, 120)
    assert result.outcome == "deadlock"
    assert result.value == pytest.approx(0.25 - 1.0)
    assert "waits for" in result.reason


@pytest.mark.parametrize(
    ("text", "completed", "total"),
    [
        ('"agent_1": Interact(onion_dispenser_2)\n"agent_2":', 1, 1),  # chains end
        ('"agent_1": Wait_entity(pot_1, status, ==, ready), Interact(pot_1)\n"agent_2":', 0, 2),  # stall
        ('"agent_1":\n"agent_2":', 0, 0),  # nothing at all
    ],
)
def test_timeout_costs_nothing_and_earns_progress_alone(text, completed, total):
    result = reward(DOMAIN, START, text, 120)
    assert (result.outcome, result.completed, result.total) == ("timeout", completed, total)
    assert result.value == pytest.approx(0.25 + (0.15 * completed / total if total else 0.0))
    assert result.finish is None


def test_length_term():
    assert [length_term(tokens) for tokens in (0, 50, 100, 300, 500, 750, 1000, 5000)] == pytest.approx(
        [0.5, 0.75, 1.0, 1.0, 1.0, 0.75, 0.5, 0.5]
    )
    with pytest.raises(InvalidValue):
        RewardWeights(shortest=0)


@given(
    st.sampled_from(OUTCOMES),
    st.integers(0, 10_000),
    st.integers(0, 32),
    st.integers(0, 32),
    st.integers(0, 200),
    st.floats(0, 1),
)
def test_reward_is_bounded_and_ordered(outcome, tokens, one, other, finish, malformed):
    parts = {"completed": min(one, other), "total": max(one, other)}
    ended = {"finish": finish} if outcome == "success" else {}
    value = compose(outcome, tokens, malformed=malformed, **parts, **ended)
    assert -1.0 <= value <= 1.0
    others = [compose(worse, tokens, malformed=1.0, **parts) for worse in ("timeout", "syntax", "semantic", "deadlock")]
    assert others == sorted(others, reverse=True)  # time-out is the mildest failure, deadlock the worst
    assert compose("success", tokens, finish=finish, **parts) > others[0]


STEPS = st.sampled_from(
    [
        "Interact(onion_dispenser_1)",
        "Interact(onion_dispenser_2)",
        "Interact(pot_1)",
        "Interact(pot_9)",
        "Wait_agents(agent_1, done, 1)",
        "Wait_agents(agent_2, start, 2)",
        "Wait_entity(pot_1, status, ==, full)",
        "Move_to(1, 1)",
        "Interact(",
        "fetch the dish",
    ]
)


@settings(deadline=None, max_examples=60)
@given(st.lists(STEPS, max_size=5), st.lists(STEPS, max_size=5), st.integers(0, 99))
def test_every_text_has_one_outcome(first, second, frame):
    text = f'"agent_1": {", ".join(first)}\n"agent_2": {", ".join(second)}'
    result = reward(DOMAIN, START, text, len(text) // 4, frame=frame)
    assert result.outcome in OUTCOMES and -1.0 <= result.value <= 1.0
    assert (result.outcome == "syntax") == (result.malformed > 0)
    assert (result.outcome == "success") == (result.finish is not None) == (not result.reason)
    assert 0 <= result.completed <= result.total
    broken = [step for step in (*first, *second) if step in ("Interact(", "fetch the dish")]
    assert (result.outcome == "syntax") == bool(broken)


def test_reward_does_not_depend_on_what_came_before():
    first = [reward(DOMAIN, START, text, 100) for text in (ANSWER, DEADLOCK)]
    assert first == [reward(DOMAIN, START, text, 100) for text in (ANSWER, DEADLOCK)]
