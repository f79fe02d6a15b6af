import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import ToyDomain

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.terms import Action, Plan, Wait, WaitAgents
from polyarm_core.psd.oracle import RollOutOracle

DOMAIN = ToyDomain()
PLANS = tuple(DOMAIN.candidates(DOMAIN.start(0)))


def brute_force(executor, state, frames_left):
    """Whether the plan fails, rolled out to the horizon whatever happens on the way."""
    executor = executor.copy()
    for _ in range(frames_left):
        if DOMAIN.succeeded(state):
            return False
        controls = DOMAIN.control(state, executor.intents(state))
        after = DOMAIN.step(state, controls)
        executor.advance(state, controls, after)
        state = after
    return not DOMAIN.succeeded(state)


def frames(plan, events):
    """Executor, state and frames left in each frame of an episode that is disturbed at some frames."""
    executor, state = ChainExecutor(DOMAIN, plan), DOMAIN.start(0)
    for frame in range(DOMAIN.horizon):
        for name, draw in events.get(frame, ()):
            state = DOMAIN.disturb(state, name, draw) or state
        yield executor, state, DOMAIN.horizon - frame
        controls = DOMAIN.control(state, executor.intents(state))
        after = DOMAIN.step(state, controls)
        executor.advance(state, controls, after)
        state = after


event = st.tuples(st.sampled_from(["T1", "T2", "T3"]), st.floats(0, 0.99))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(PLANS), st.dictionaries(st.integers(0, 30), st.lists(event, max_size=2), max_size=4))
def test_incremental_verdicts_are_those_of_brute_force(plan, events):
    oracle = RollOutOracle(DOMAIN)
    for executor, state, left in frames(plan, events):
        assert oracle.stale(executor, state, left) == brute_force(executor, state, left)
    assert oracle.roll_outs <= 1 + len(events)


def test_a_plan_without_disturbance_is_rolled_out_once():
    oracle = RollOutOracle(DOMAIN)
    verdicts = [oracle.stale(*frame) for frame in frames(PLANS[0], {})]
    assert not any(verdicts)
    assert oracle.roll_outs == 1


def test_a_door_that_falls_shut_makes_the_plan_stale_from_that_frame_on():
    oracle = RollOutOracle(DOMAIN)
    verdicts = [oracle.stale(*frame) for frame in frames(PLANS[0], {3: [("T1", 0.0)]})]
    assert verdicts.index(True) == 3
    assert all(verdicts[3:])


def test_the_horizon_counts():
    state = DOMAIN.start(0)
    needed = roll_out(ChainExecutor(DOMAIN, PLANS[0]), state, DOMAIN.horizon).frames
    for left, stale in ((needed, False), (needed - 1, True)):
        assert RollOutOracle(DOMAIN).stale(ChainExecutor(DOMAIN, PLANS[0]), state, left) is stale


@pytest.mark.parametrize(
    "chains",
    [
        {"agent_1": (Action("Press", ("button",)),), "agent_2": ()},  # ends without success
        {
            "agent_1": (Wait((WaitAgents("agent_2", "done", 1),)),),
            "agent_2": (Wait((WaitAgents("agent_1", "done", 1),)),),
        },  # deadlock
    ],
)
def test_plans_that_cannot_succeed_are_stale_from_the_start(chains):
    executor = ChainExecutor(DOMAIN, Plan.of(chains))
    before = executor.pointers()
    assert RollOutOracle(DOMAIN).stale(executor, DOMAIN.start(0), DOMAIN.horizon)
    assert executor.pointers() == before  # the executor itself has not moved


def test_another_plan_is_judged_anew():
    oracle, state = RollOutOracle(DOMAIN), DOMAIN.start(0)
    assert oracle.stale(ChainExecutor(DOMAIN, Plan.of({"agent_1": (), "agent_2": ()})), state, DOMAIN.horizon)
    oracle.forget()
    assert not oracle.stale(ChainExecutor(DOMAIN, PLANS[0]), state, DOMAIN.horizon)
