"""What is printed is read back as what it was."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyarm_core.chains.parser import parse_plan, parse_step
from polyarm_core.chains.printer import format_chain, format_plan, format_step, format_value
from polyarm_core.chains.terms import COMPARISONS, MILESTONES, Action, Plan, Wait, WaitAgents, WaitEntity
from polyarm_core.errors import InvalidValue

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)
NUMBERS = st.from_regex(r"-?[0-9]{1,4}(\.[0-9]{1,3})?([eE]-?[0-9]{1,2})?", fullmatch=True)
ARGUMENTS = NAMES | NUMBERS | st.text(max_size=12)
VALUES = (
    st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES
    | st.sampled_from(["true", "false", "12", "-1.5", "", "start"])
    | st.text(max_size=12)
)
ACTIONS = st.builds(
    Action,
    NAMES.filter(lambda name: name not in ("Wait_agents", "Wait_entity")),
    st.lists(ARGUMENTS, max_size=3).map(tuple),
)
ATOMS = st.builds(WaitAgents, NAMES, st.sampled_from(MILESTONES), st.integers(0, 99)) | st.builds(
    WaitEntity, NAMES, NAMES, st.sampled_from(COMPARISONS), VALUES
)
WAITS = st.builds(lambda atom: Wait((atom,)), ATOMS) | st.builds(
    lambda first, second, connective: Wait((first, second), connective), ATOMS, ATOMS, st.sampled_from(["&", "|"])
)
CHAINS = st.lists(ACTIONS | WAITS, max_size=5).map(tuple)
PLANS = st.lists(st.tuples(NAMES, CHAINS), min_size=1, max_size=4).map(lambda chains: Plan(tuple(chains)))


def kinds(plan: Plan) -> list[type]:
    """Types of all values: True == 1 == 1.0 must not hide a change."""
    steps = [step for _, chain in plan.chains for step in chain if isinstance(step, Wait)]
    return [type(atom.value) for step in steps for atom in step.atoms if isinstance(atom, WaitEntity)]


@CALM
@given(PLANS)
def test_parsing_what_was_printed_is_the_identity(plan):
    again = parse_plan(format_plan(plan))
    assert again == plan
    assert kinds(again) == kinds(plan)


@CALM
@given(PLANS)
def test_a_plan_has_one_line_for_each_agent(plan):
    assert len(format_plan(plan).splitlines()) >= len(plan.chains)  # quoted texts may hold exotic line ends
    assert len(format_plan(plan).split("\n")) == len(plan.chains)


@CALM
@given(ACTIONS | WAITS)
def test_a_step_by_itself(step):
    assert parse_step(format_step(step)) == step


def test_the_form_of_the_prompt():
    plan = Plan.of(
        {
            "agent_1": (
                Action("Interact", ("onion_dispenser_1",)),
                Action("Move_to", ("1", "-2")),
                Wait((WaitAgents("agent_2", "done", 2), WaitEntity("pot_1", "status", "==", "ready")), "&"),
            ),
            "agent_2": (),
        }
    )
    assert format_plan(plan) == (
        '"agent_1": Interact(onion_dispenser_1), Move_to(1, -2), '
        "Wait_agents(agent_2, done, 2) & Wait_entity(pot_1, status, ==, ready)\n"
        '"agent_2":'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        ("true", '"true"'),
        (3, "3"),
        ("3", '"3"'),
        (-0.5, "-0.5"),
        ("ready", "ready"),
        ("not yet", '"not yet"'),
    ],
)
def test_a_value_in_quotes_only_where_it_would_be_read_as_something_else(value, text):
    assert format_value(value) == text


@pytest.mark.parametrize(
    "step",
    [
        Action("Interact with", ()),
        Action("Wait_agents", ("agent_1",)),
        Action("", ()),
        Wait((WaitAgents("agent 1", "done", 1),)),
        Wait((WaitAgents("agent_1", "done", -1),)),
        Wait((WaitEntity("pot_1", "on fire", "==", True),)),
        Wait((WaitEntity("pot_1", "level", "==", float("nan")),)),
        Wait((WaitEntity("pot_1", "level", "==", float("inf")),)),
        Wait((WaitEntity("pot_1", "level", "==", 10**40),)),
    ],
)
def test_what_the_language_cannot_say_is_refused(step):
    with pytest.raises(InvalidValue):
        format_chain((step,))


def test_an_agent_that_is_no_name_is_refused():
    with pytest.raises(InvalidValue, match="agent"):
        format_plan(Plan((("agent\n1", ()),)))
