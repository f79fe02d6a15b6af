"""Sizes of messages from core types, against what rclpy makes of the same messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.bench import wire
from polyarm_core.bench.control import row
from polyarm_core.chains.terms import Action as ChainAction
from polyarm_core.chains.terms import Plan, Step, Wait, WaitAgents, WaitEntity
from polyarm_core.constraints import Action, Declaration
from polyarm_core.control.episode import run_controlled_episode
from polyarm_core.control.modes import Control, Head, Standing
from polyarm_core.scenario import load_scenario

names = st.text("abcxyz_", min_size=1, max_size=13)
words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
entries = st.frozensets(st.builds("{}:{}".format, names, names), max_size=3)
actions = st.builds(Action, names, names | st.just(""), names | st.just(""))
declarations = st.builds(Declaration, entries, entries, entries, entries, entries, entries)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(ChainAction, names, st.tuples(names, names)),
    st.builds(lambda agent, number: Wait((WaitAgents(agent, "done", number),)), names, st.integers(1, 99)),
    st.builds(lambda name, value: Wait((WaitEntity(name, "place", "==", value),)), names, words),
)
plans = st.dictionaries(names, st.lists(steps, max_size=3), max_size=3).map(
    lambda chains: Plan(tuple((agent, tuple(chain)) for agent, chain in chains.items()))
)
heads = st.dictionaries(
    names, st.builds(lambda action: Head(Standing.ACT, action), actions) | st.just(Head(Standing.WAIT)), max_size=4
)


@settings(max_examples=20)
@given(actions, declarations, names)
def test_a_report_that_says_more_is_longer(action: Action, declaration: Declaration, name: str) -> None:
    more = declaration.union(Declaration(exclusive=frozenset({f"{name}:but_not_yet"})))
    assert wire.report_size("arm", action, declaration) < wire.report_size("arm", action, more)


def test_a_report_by_hand() -> None:
    fields = [
        4,  # encapsulation
        8 + 4 + 1 + 3,  # stamp, frame "", padding
        4 + 2 + 2,  # arm "a", padding
        8 + 4 + 4 + 8 + 8 + 4,  # episode, slot, padding, two epochs, sequence
        4 + 5 + 3 + 4 + 1 + 3 + 4 + 1 + 3,  # "stay", "", "", with padding
        6 * 4,  # six empty sequences
        1 + 3 + 5 * 4,  # decided by, padding, five numbers
    ]
    assert wire.report_size("a", Action("stay"), Declaration()) == sum(fields)


@pytest.mark.parametrize("way", [Control.REACTIVE, Control.PLANNED])
def test_an_episode_counts_what_its_team_would_say(way: Control) -> None:
    episode = run_controlled_episode(load_scenario("sort"), 0, way)
    shortest = wire.report_size("bob", Action("stay"), Declaration())
    assert episode.uplink_bytes > episode.summary.reports * shortest
    if way is Control.REACTIVE:
        assert episode.plan_bytes == 0
    else:
        plans = sum(wire.plan_size(p.plan, p.reason, "world") for p in episode.plans if p.plan is not None)
        assert episode.plan_bytes > plans > 0
    figures = row(episode)
    assert figures["bytes"] == episode.uplink_bytes + episode.plan_bytes


@pytest.mark.ros
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_sizes_are_those_of_rclpy(data: Any) -> None:
    from polyarm.msg import IntentReport
    from rclpy.serialization import serialize_message

    from polyarm_core.control.executive import SlotPlan
    from polyarm_nodes.convert import action_to_message, declaration_to_message
    from polyarm_nodes.plan_convert import plan_to_message, state_to_message

    def size(message: Any, frame: str = "") -> int:
        message.header.frame_id = frame
        return len(serialize_message(message))

    arm, frame, action, declaration = (data.draw(s) for s in (names, names, actions, declarations))
    report = IntentReport(
        arm=arm, action=action_to_message(action), declaration=declaration_to_message(declaration), sequence=7
    )
    assert wire.report_size(arm, action, declaration) == size(report)

    plan, told, reason = data.draw(plans), data.draw(heads), data.draw(names)
    assert wire.plan_size(plan, reason, frame) == size(plan_to_message(3, plan, reason), frame)

    missing = {name: data.draw(words) * data.draw(st.sampled_from([1, 40])) for name in told}
    state = state_to_message(SlotPlan(2, 3, True, told, plan, missing))
    assert wire.plan_state_size(told, missing, plan, frame) == size(state, frame)
