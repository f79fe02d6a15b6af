"""What a plan must not say, and how it is told."""

from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_domain import ToyDomain

from polyarm_core.chains.parser import parse_plan, parse_step
from polyarm_core.chains.terms import Action, Plan, Wait, WaitAgents
from polyarm_core.chains.validation import (
    KINDS,
    InvalidPlan,
    require_valid,
    stuck_agents,
    validate,
    value_problem,
)
from polyarm_core.domains.interface import Attribute

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
DOMAIN = ToyDomain()
STATE = DOMAIN.start(0)
GOOD = """\
"agent_1": Press(button), Wait_agents(agent_2, start, 3) & Wait_entity(door, travel, <=, 0.5)
"agent_2": Take(crate), Wait_entity(door, open, ==, true) | Wait_agents(agent_1, done, 1), Go(cell_6), Drop()"""


def problems(text: str, domain: ToyDomain = DOMAIN) -> list[tuple[str, int, str]]:
    return [(p.agent, p.step, p.kind) for p in validate(parse_plan(text), domain, domain.start(0))]


def test_a_valid_plan_has_no_problems():
    plan = parse_plan(GOOD)
    assert validate(plan, DOMAIN, STATE) == ()
    assert require_valid(plan, DOMAIN, STATE) is plan


@pytest.mark.parametrize(
    ("step", "kind", "told"),
    [
        ("Fly(cell_1)", "unknown_action", "valid: Go, Press, Take, Drop"),
        ("Go()", "argument_count", "the form is Go(cell)"),
        ("Drop(crate)", "argument_count", "the form is Drop()"),
        ("Go(cell_7)", "argument", "valid: Go(cell_0), Go(cell_1)"),
        ("Press(crate)", "argument", "valid: Press(button)"),
        ("Wait_entity(window, open, ==, true)", "unknown_entity", "valid: agent_1, agent_2, cell_0"),
        ("Wait_entity(door, colour, ==, red)", "unknown_attribute", "valid: status, open, travel"),
        ("Wait_entity(door, status, <, open)", "comparison", "== !="),
        ("Wait_entity(door, open, >=, true)", "comparison", "== !="),
        ("Wait_entity(door, status, ==, ajar)", "value", "closed, opening, open"),
        ("Wait_entity(door, status, ==, 1)", "value", "closed, opening, open"),
        ("Wait_entity(door, open, ==, 1)", "value", "true or false"),
        ("Wait_entity(door, travel, ==, 1.5)", "value", "0.0 .. 1.0"),
        ("Wait_entity(door, travel, ==, open)", "value", "a number"),
        ("Wait_entity(crate, cell, ==, 2.0)", "value", "whole number"),
        ("Wait_entity(crate, cell, ==, true)", "value", "whole number"),
        ("Wait_entity(crate, cell, ==, 7)", "value", "0 .. 6"),
        ("Wait_entity(crate, cell, <, 0)", "value", "can never hold"),
        ("Wait_entity(crate, cell, >, 6)", "value", "can never hold"),
        ("Wait_agents(agent_1, done, 1)", "wait_self", "agent_1 would wait for itself"),
        ("Wait_agents(agent_3, done, 1)", "wait_agent", "valid: agent_2"),
        ("Wait_agents(agent_2, done, 3)", "wait_step", "agent_2 has 2 steps"),
        ("Wait_agents(agent_2, start, 0)", "wait_step", "agent_2 has 2 steps"),
    ],
)
def test_a_problem_is_told_with_its_place_and_what_would_be_valid(step, kind, told):
    plan = parse_plan(f'"agent_1": Press(button), {step}\n"agent_2": Take(crate), Drop()')
    (problem,) = validate(plan, DOMAIN, STATE)
    assert (problem.agent, problem.step, problem.kind) == ("agent_1", 2, kind)
    assert told in problem.message
    assert str(problem).startswith("agent_1, step 2: ")


@pytest.mark.parametrize("step", ["Wait_entity(crate, cell, <=, 0)", "Wait_entity(door, travel, >=, 1)"])
def test_a_bound_itself_can_be_waited_for(step):
    assert problems(f'"agent_1": {step}\n"agent_2":') == []


def test_chains_and_agents_as_a_whole():
    assert problems('"agent_1": Drop()') == [("agent_2", 0, "missing_agent")]
    assert problems('"agent_1":\n"agent_2":\n"agent_3": Drop()') == [("agent_3", 0, "unknown_agent")]
    assert problems('"agent_1":\n"agent_2":\n"agent_1": Fly()') == [("agent_1", 0, "duplicate_agent")]
    long = ", ".join(["Drop()"] * 17)
    assert problems(f'"agent_1": {long}\n"agent_2":') == [("agent_1", 0, "chain_too_long")]
    assert validate(parse_plan(f'"agent_1": {long}\n"agent_2":'), DOMAIN, STATE, max_steps=17) == ()


def test_what_the_domain_calls_impossible():
    walled = ToyDomain(walls=(5,))
    assert problems('"agent_1": Go(cell_6)\n"agent_2":', walled) == [("agent_1", 1, "impossible")]
    assert problems('"agent_1": Go(cell_4)\n"agent_2":', walled) == []


def test_both_atoms_of_a_wait_are_checked():
    step = "Wait_agents(agent_1, done, 1) | Wait_entity(door, open, ==, ajar)"
    assert problems(f'"agent_1": {step}\n"agent_2":') == [("agent_1", 1, "wait_self"), ("agent_1", 1, "value")]


def test_all_problems_are_told_at_once():
    plan = parse_plan('"agent_1": Fly(), Go()\n"agent_2": Wait_agents(agent_1, done, 9)')
    with pytest.raises(InvalidPlan) as caught:
        require_valid(plan, DOMAIN, STATE)
    assert [problem.kind for problem in caught.value.problems] == ["unknown_action", "argument_count", "wait_step"]
    for problem in caught.value.problems:
        assert str(problem) in str(caught.value)


@pytest.mark.parametrize(
    "step", [Action("Go to", ()), Wait((WaitAgents("agent 2", "done", 1),)), Wait((WaitAgents("agent_2", "begun", 1),))]
)
def test_a_plan_that_was_never_text_is_checked_as_well(step):
    found = validate(Plan.of({"agent_1": (step,), "agent_2": (Action("Drop"),)}), DOMAIN, STATE)
    assert [problem.kind for problem in found] == ["unwritable"]


def test_a_circle_of_two():
    text = '"agent_1": Wait_agents(agent_2, done, 2), Drop()\n"agent_2": Wait_agents(agent_1, done, 2), Drop()'
    assert problems(text) == [("agent_1", 1, "wait_cycle"), ("agent_2", 1, "wait_cycle")]


def test_a_circle_of_three_and_who_hangs_on_it():
    chains = {"a": "b, done, 1", "b": "c, done, 1", "c": "a, start, 2", "d": "a, done, 1", "e": "d, start, 1"}
    plan = {agent: (parse_step(f"Wait_agents({wait})"), Action("Drop")) for agent, wait in chains.items()}
    assert stuck_agents(plan) == {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        # a rendezvous: each waits until the other has come to the wait
        ("Drop(), Wait_agents(agent_2, start, 2)", "Drop(), Wait_agents(agent_1, start, 2)"),
        # hand over and hand back
        (
            "Drop(), Wait_agents(agent_2, done, 2), Drop()",
            "Wait_agents(agent_1, done, 1), Drop(), Wait_agents(agent_1, done, 3)",
        ),
        # the door may let the first one go on
        ("Wait_agents(agent_2, done, 1) | Wait_entity(door, open, ==, true)", "Wait_agents(agent_1, done, 1)"),
    ],
)
def test_mutual_waits_that_resolve(one, two):
    assert problems(f'"agent_1": {one}\n"agent_2": {two}') == []


@st.composite
def waiting_chains(draw):
    """Two or three chains whose waits name steps that exist."""
    lengths = {agent: draw(st.integers(1, 4)) for agent in ("a", "b", "c")[: draw(st.integers(2, 3))]}
    atoms = {
        agent: st.sampled_from([other for other in lengths if other != agent]).flatmap(
            lambda other: st.builds(
                WaitAgents, st.just(other), st.sampled_from(["start", "done"]), st.integers(1, lengths[other])
            )
        )
        for agent in lengths
    }
    steps = {
        agent: st.just(Action("Drop"))
        | st.builds(lambda atom: Wait((atom,)), atom)
        | st.builds(lambda x, y, c: Wait((x, y), c), atom, atom, st.sampled_from(["&", "|"]))
        for agent, atom in atoms.items()
    }
    return {agent: tuple(draw(steps[agent]) for _ in range(n)) for agent, n in lengths.items()}


def can_all_finish(chains) -> bool:
    """Search over every order of execution, one step of one agent at a time."""
    agents = list(chains)
    seen = {(0,) * len(agents)}
    queue = deque(seen)
    while queue:
        at = queue.popleft()
        done = dict(zip(agents, at, strict=True))

        def holds(atom, done=done):
            return done[atom.agent] >= atom.step - (atom.milestone == "start")

        for i, agent in enumerate(agents):
            if at[i] == len(chains[agent]):
                continue
            step = chains[agent][at[i]]
            if isinstance(step, Wait) and not (any if step.connective == "|" else all)(map(holds, step.atoms)):
                continue
            after = (*at[:i], at[i] + 1, *at[i + 1 :])
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return tuple(len(chains[agent]) for agent in agents) in seen


@CALM
@given(waiting_chains())
def test_somebody_is_stuck_exactly_if_no_order_of_execution_ends(chains):
    assert (not stuck_agents(chains)) == can_all_finish(chains)


@CALM
@given(st.integers(-3, 3), st.integers(0, 4), st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.integers(-4, 8))
def test_a_number_is_refused_exactly_if_it_is_out_of_range_or_never_holds(low, size, comparison, value):
    attribute = Attribute("level", "int", low, low + size)
    compare = {"==": int.__eq__, "!=": int.__ne__, "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}
    holds = any(compare[comparison](x, value) for x in range(low, low + size + 1))
    assert (value_problem(attribute, comparison, value) == "") == (holds and low <= value <= low + size)


def test_every_kind_of_problem_is_tested_here():
    source = open(__file__, encoding="utf-8").read()
    assert [kind for kind in KINDS if f'"{kind}"' not in source] == []


def test_long_lists_of_valid_names_are_cut():
    wide = ToyDomain(width=40)
    plan = parse_plan('"agent_1": Go(cell_99)\n"agent_2":')
    (problem,) = validate(plan, wide, wide.start(0))
    assert problem.message.endswith("Go(cell_23) and 16 more")
    (problem,) = validate(plan, wide, wide.start(0), listed=2)
    assert problem.message.endswith("Go(cell_0), Go(cell_1) and 38 more")


def test_the_entities_are_asked_only_where_a_wait_needs_them():
    class Blind(ToyDomain):
        def entities(self, state):
            raise AssertionError("not needed")

    assert problems('"agent_1": Drop()\n"agent_2": Wait_agents(agent_1, done, 1)', Blind()) == []
