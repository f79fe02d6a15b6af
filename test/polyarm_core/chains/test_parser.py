"""Plans as models write them: what is tolerated, what is refused, and how it is told."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyarm_core.chains.parser import (
    MAX_CHARACTERS,
    ChainSyntaxError,
    malformed_share,
    parse_lenient,
    parse_plan,
    parse_step,
)
from polyarm_core.chains.terms import Action, Plan, Wait, WaitAgents, WaitEntity

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
PLAN = Plan.of(
    {
        "agent_1": (Action("Interact", ("pot_1",)), Action("Move_to", ("1", "2"))),
        "agent_2": (
            Wait((WaitAgents("agent_1", "done", 2), WaitEntity("pot_1", "onions", ">=", 3)), "|"),
            Action("Clear"),
        ),
    }
)
CANONICAL = """\
"agent_1": Interact(pot_1), Move_to(1, 2)
"agent_2": Wait_agents(agent_1, done, 2) | Wait_entity(pot_1, onions, >=, 3), Clear()"""


@pytest.mark.parametrize(
    "text",
    [
        CANONICAL,
        CANONICAL.replace('"', ""),
        CANONICAL.replace(" ", ""),
        CANONICAL.replace("\n", ",\n"),  # as in the paper's template
        CANONICAL.replace("\n", ", "),
        CANONICAL.replace("\n", "\r\n\r\n") + "\n\n",
        CANONICAL.replace(", ", ",\n\t").replace("(", "( ").replace(")", " )"),
        CANONICAL.replace('":', '" :'),
        CANONICAL.replace(")", ",)").replace("Clear(,)", "Clear()"),
        f"```\n{CANONICAL}\n```\n",
        f"```text\n{CANONICAL}```",
        re.sub(r"\((pot_1|agent_1)", r'("\1"', CANONICAL),
    ],
)
def test_spellings_of_the_same_plan(text):
    assert parse_plan(text) == PLAN
    assert malformed_share(text) == 0


@pytest.mark.parametrize(
    ("text", "line", "column", "found", "expected"),
    [
        ("", 1, 1, "the end", 'an agent\'s tag such as "agent_1":'),
        ("Sure, here is the plan", 1, 1, "'Sure'", 'an agent\'s tag such as "agent_1":'),
        ('"a": F(', 1, 8, "the end", "a name"),
        ('"a": F() G()', 1, 10, "'G'", "','"),
        ('"a": F(),\n"b": G(?)', 2, 8, "'?)'", "a number"),
        ('"a": Wait_agents(b, finished, 2)', 1, 21, "'finished'", "start or done"),
        ('"a": Wait_agents(b, startled, 2)', 1, 21, "'startled'", "start or done"),
        ('"a": Wait_agents(b, done, two)', 1, 27, "'two'", "a number"),
        ('"a": Wait_agents(b, done, 2.5)', 1, 27, "'2.5'", "the number of a step (1, 2, ...)"),
        ('"a": Wait_agents(b, done, -2)', 1, 27, "'-2'", "the number of a step (1, 2, ...)"),
        ('"a": Wait_entity(b, c, =, 2)', 1, 24, "'=,'", "one of == != < <= > >="),
        ('"a": Wait_entity(b, c, ==, 1e999)', 1, 28, "'1e999'", "a finite number"),
        ('"a": Wait_entity("b c", d, ==, 1)', 1, 18, '"b c"', "a name"),
        ('"a": Wait_agents(b, done, 1) & F()', 1, 32, "'F'", "Wait_entity"),
        ('"a": F() & G()', 1, 10, "'&'", "','"),
        ('"a": ,', 1, 6, "','", "an action or a wait"),
        ('"a": F(),,', 1, 10, "','", "an action or a wait"),
        ('"a": F; G', 1, 7, "';'", "'('"),
        ('"a": F("x\n")', 1, 8, "'\"x'", "a text in quotes"),
        ('"a": Wait_entity(b, c, ==, ' + "9" * 33 + ")", 1, 28, repr("9" * 33), "a number of at most 32 characters"),
    ],
)
def test_errors_say_where_and_what(text, line, column, found, expected):
    with pytest.raises(ChainSyntaxError) as caught:
        parse_plan(text)
    error = caught.value
    assert (error.line, error.column) == (line, column)
    assert error.found == found
    assert expected in error.expected
    assert f"line {line}, column {column}" in str(error)
    excerpt, caret = error.excerpt.split("\n")
    assert caret.index("^") == len(excerpt) or excerpt[caret.index("^")] == text[error.position]


def test_at_most_two_atoms():
    atom = "Wait_agents(b, done, 1)"
    assert len(parse_step(f"{atom} & {atom}").atoms) == 2
    with pytest.raises(ChainSyntaxError) as caught:
        parse_step(f"{atom} & {atom} & {atom}")
    assert caught.value.found == "'&'"


def test_an_error_far_to_the_right_has_a_short_excerpt():
    with pytest.raises(ChainSyntaxError) as caught:
        parse_plan('"a": ' + "F(), " * 100 + "? " + "G(), " * 100)
    assert max(map(len, caught.value.excerpt.split("\n"))) <= 4 + 100
    assert caught.value.column == 506


def test_words_of_the_language_can_be_names():
    assert parse_step("start(done, true)") == Action("start", ("done", "true"))
    assert parse_step("Wait_entity(done, start, ==, done)") == Wait((WaitEntity("done", "start", "==", "done"),))
    assert parse_step("Wait_agentsx()") == Action("Wait_agentsx")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("3", 3), ("3.0", 3.0), ("-1e2", -100.0), ('"3"', "3")])
def test_values_have_the_type_of_their_spelling(text, value):
    atom = parse_step(f"Wait_entity(a, b, ==, {text})").atoms[0]
    assert atom.value == value
    assert type(atom.value) is type(value)


def test_known_agents_bring_order_and_empty_chains():
    plan = parse_plan('"c": F()\n"x": F()\n"a": G()\n"c": H()', agents=("a", "b", "c"))
    assert plan == Plan(
        (("a", (Action("G"),)), ("b", ()), ("c", (Action("F"),)), ("x", (Action("F"),)), ("c", (Action("H"),)))
    )


def test_each_instruction_by_itself():
    text = '"a": F(1), G(2, H(3), Wait_agents(b, soon, 1),\n "b": K("x, y: z(", 4), , L()'
    instructions = parse_lenient(text)
    assert [(i.agent, i.text) for i in instructions] == [
        ("a", "F(1)"),
        ("a", "G(2"),
        ("a", "H(3)"),
        ("a", "Wait_agents(b, soon, 1)"),
        ("b", 'K("x, y: z(", 4)'),
        ("b", ""),
        ("b", "L()"),
    ]
    good = [not isinstance(i.outcome, ChainSyntaxError) for i in instructions]
    assert good == [True, False, True, False, True, False, True]
    assert malformed_share(text) == pytest.approx(3 / 7)
    soon = instructions[3].outcome
    assert text[soon.position :].startswith("soon")  # told by its place in the whole text


@pytest.mark.parametrize("text", ["", "no plan, at all", "{}", "a, b, c", "F(), G()", "x" * (MAX_CHARACTERS + 1)])
def test_what_has_no_block_is_wholly_malformed(text):
    assert malformed_share(text) == 1
    assert len(parse_lenient(text)) == 1


def test_a_plan_without_instructions_has_none_malformed():
    assert parse_lenient('"a":\n"b":') == ()
    assert malformed_share('"a":\n"b":') == 0


PIECES = st.sampled_from(
    [
        *("\n", " ", "\u00a0", "x", "==", "Wait_entity(p, q, ==, 1)", "Wait_entity(", "\\", "-", "é"),
        '"a": ',
        "b:",
        "F(",
        ")",
        ",",
        ", ",
        "G()",
        "Wait_agents(a, done, 1)",
        " & ",
        "|",
        '"',
        '"x, y"',
        "1",
        "```",
        "```\n",
    ]
)


@CALM
@given(st.lists(PIECES, max_size=12).map("".join))
def test_something_is_malformed_exactly_if_the_whole_is_refused(text):
    instructions = parse_lenient(text)
    bad = [i for i in instructions if isinstance(i.outcome, ChainSyntaxError)]
    try:
        plan = parse_plan(text)
    except ChainSyntaxError:
        assert bad
    else:
        assert not bad
        assert [i.outcome for i in instructions] == [step for _, chain in plan.chains for step in chain]


@CALM
@given(st.text(max_size=200))
def test_any_text_gives_a_plan_or_the_typed_error(text):
    try:
        parse_plan(text)
    except ChainSyntaxError as error:
        assert 1 <= error.line <= text.count("\n") + 1
        assert 0 <= error.position <= len(text)
    parse_lenient(text)


@pytest.mark.parametrize("piece", ["a", "(", "a,", '"', "a: F(", "\n", "F(x", "a: ", ",", "a: F(),", "F(x) & ", "\\"])
def test_long_junk_is_refused_at_once_and_what_just_fits_is_read(piece):
    long = piece * (1_000_000 // len(piece))
    with pytest.raises(ChainSyntaxError, match="at most"):
        parse_plan(long)
    assert malformed_share(long) == 1
    fits = f'"a": {piece * ((MAX_CHARACTERS - 5) // len(piece))}'
    assert 0 <= malformed_share(fits) <= 1
