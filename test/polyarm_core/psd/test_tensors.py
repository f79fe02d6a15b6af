import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import LEFT, RIGHT, STAY, ToyDomain

from polyarm_core.chains.terms import Action, Plan, Wait, WaitAgents, WaitEntity
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.tensors import REFERENCE_FRAMES, FrameHistory, Shape, incidence

SHAPE = Shape(agents=2, entities=7, steps=3, features=6)
DOMAIN = ToyDomain()
START = DOMAIN.start(0)


def plan(first=(), second=()):
    return Plan.of({"agent_1": tuple(first), "agent_2": tuple(second)})


def test_a_step_marks_the_entities_that_its_rule_names_and_nothing_else():
    remaining = plan([Action("Press", ("button",))], [Wait((WaitEntity("door", "open", "==", True),)), Action("Drop")])
    refers = incidence(DOMAIN, START, remaining, "refers", SHAPE)
    expected = np.zeros((2, 7, 3), dtype=np.uint8)
    expected[0, DOMAIN.entity_rows.index("button"), 0] = 1
    expected[1, DOMAIN.entity_rows.index("door"), 0] = 1
    assert np.array_equal(refers, expected)
    depends = incidence(DOMAIN, START, remaining, "depends", SHAPE)
    for name, step in (("agent_1", (0, 0)), ("agent_2", (1, 1)), ("crate", (1, 1))):
        expected[step[0], DOMAIN.entity_rows.index(name), step[1]] = 1
    assert np.array_equal(depends, expected)


def test_steps_beyond_the_last_column_share_it():
    remaining = plan([Action("Drop")] * 3 + [Action("Press", ("button",)), Wait((WaitAgents("agent_2", "done", 1),))])
    refers = incidence(DOMAIN, START, remaining, "refers", SHAPE)
    assert refers[0, :, 2].nonzero()[0].tolist() == [1, 3]
    assert refers.sum() == 2


def test_a_finished_chain_marks_nothing():
    assert not incidence(DOMAIN, START, plan(), "depends", SHAPE).any()


def test_wrong_rules_and_sizes_are_named():
    with pytest.raises(UnknownName, match="depends, refers"):
        incidence(DOMAIN, START, plan(), "near", SHAPE)
    with pytest.raises(InvalidValue, match=r"entity_rows of toy:2.*at most 4"):
        FrameHistory(DOMAIN, Shape(2, 4, 3, 6))
    with pytest.raises(InvalidValue, match=r"agents of toy:3.*at most 2"):
        incidence(ToyDomain(agents=3), START, plan(), "refers", SHAPE)


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.sampled_from([STAY, LEFT, RIGHT])] * 2), min_size=1, max_size=9))
def test_difference_is_against_k_ref_frames_earlier_or_the_oldest(controls):
    history, states = FrameHistory(DOMAIN, SHAPE), [START]
    for control in controls:
        states.append(DOMAIN.step(states[-1], control))
    for frame, state in enumerate(states):
        x, d = history.push(state)
        assert x.shape == d.shape == (7, 6)
        assert not x[5:].any() and not d[5:].any() and not d[:, 4:].any()  # padding
        assert (x >= 0).all() and (x <= 1).all() and (abs(d) <= 1).all()
        earlier = DOMAIN.features(states[max(0, frame - REFERENCE_FRAMES)])
        assert np.array_equal(d[:5, :4], DOMAIN.features(state) - earlier)


def test_after_a_restart_the_newest_frame_is_the_oldest():
    history, state = FrameHistory(DOMAIN, SHAPE), START
    for _ in range(2):
        state = DOMAIN.step(state, (RIGHT, RIGHT))
        history.push(state)
    history.restart()
    _, d = history.push(DOMAIN.step(state, (LEFT, STAY)))
    assert d[0, 0] == pytest.approx(-1 / 6)
    assert not d[1:].any()
