"""From the text of a plan to its terms, by the grammar in ``chains.lark``; errors in human words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from polyarm_core.chains.terms import (
    COMPARISONS,
    Action,
    Atom,
    Connective,
    Milestone,
    Plan,
    Step,
    Value,
    Wait,
    WaitAgents,
    WaitEntity,
)
from polyarm_core.errors import PolyarmError

MAX_CHARACTERS = 32_768  # eight agents with sixteen two-atom waits each; anything longer is refused unread
MAX_NUMBER = 32  # characters; the longest float that Python prints has 24
SPACE = " \t\r\n"  # what the grammar ignores

# The grammar's terminals in words. A fence is not offered to anybody: it is only tolerated.
_WORDS = {
    "TAG": 'an agent\'s tag such as "agent_1":',
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a text in quotes",
    "MILESTONE": "start or done",
    "COMPARISON": "one of == != < <= > >=",
    "CONNECTIVE": "& or |",
    "COMMA": "','",
    "LPAR": "'('",
    "RPAR": "')'",
    "WAIT_AGENTS": "Wait_agents",
    "WAIT_ENTITY": "Wait_entity",
    "TRUE": "true",
    "FALSE": "false",
    "$END": "the end",
}
Node = Any  # a tree of lark; its children are trees and tokens
_STEP = {"NAME", "WAIT_AGENTS", "WAIT_ENTITY"}


class ChainSyntaxError(PolyarmError):
    """A text that is not in the chain language.

    Args:
        text: what was read.
        position: of the error in the text; ``len(text)`` = its end.
        found: what stands there, in words.
        expected: what could have stood there, in words.

    Attributes:
        position: as given.
        line, column: of the error, counted from 1.
        excerpt: the line in question, shortened, and a caret under the place.
    """

    def __init__(self, text: str, position: int, found: str, expected: Sequence[str]) -> None:
        begin = text.rfind("\n", 0, position) + 1
        end = text.find("\n", position)
        self.position = position
        self.line = text.count("\n", 0, position) + 1
        self.column = position - begin + 1
        self.found = found
        self.expected = tuple(expected)
        left = max(begin, position - 60)
        shown = text[left : min(len(text) if end < 0 else end, position + 40)]
        shown = "".join(character if character.isprintable() else " " for character in shown)
        self.excerpt = f"    {shown}\n    {' ' * (position - left)}^"
        super().__init__(
            f"line {self.line}, column {self.column}: found {found}, "
            f"expected {' or '.join(self.expected)}\n{self.excerpt}"
        )


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a text that may be malformed in places.

    Attributes:
        agent: whose block it stands in; empty for what stands outside of every block.
        text: as it was written.
        outcome: the step, or why there is none.
    """

    agent: str
    text: str
    outcome: Step | ChainSyntaxError


def parse_plan(text: str, agents: Iterable[str] | None = None) -> Plan:
    """Read a joint plan.

    The plan is as it was written: whether its agents, entities and steps exist is
    :func:`polyarm_core.chains.validation.validate`'s question.

    Args:
        text: one block per agent.
        agents: the domain's agents; then the chains come in this order, an agent without block has an empty chain, and
            blocks of unknown agents or second blocks of the same agent come last.

    Raises:
        ChainSyntaxError: the text is not in the language, or longer than ``MAX_CHARACTERS``.
    """
    tree = _parse(text, "plan")
    blocks = [_block(text, child) for child in tree.children if not isinstance(child, Token)]
    if agents is None:
        return Plan(tuple(blocks))
    ordered = []
    for agent in agents:
        index = next((index for index, (name, _) in enumerate(blocks) if name == agent), None)
        ordered.append((agent, ()) if index is None else blocks.pop(index))
    return Plan((*ordered, *blocks))


def parse_step(text: str) -> Step:
    """Read one instruction. Raises as :func:`parse_plan`."""
    return _step(text, _parse(text, "instruction").children[0])


def parse_lenient(text: str) -> tuple[Instruction, ...]:
    """Read every instruction by itself: what a text has of steps, whatever else is wrong with it.

    Nothing is malformed exactly if :func:`parse_plan` accepts the text. Instructions are split where a block begins, at
    a comma outside of parentheses, and at a comma before something that looks like a call, so that a missing
    parenthesis spoils one instruction only. A text that is too long, or has no block, is one malformed instruction.
    """
    try:
        _check_length(text)
    except ChainSyntaxError as error:
        return (Instruction("", text[:MAX_NUMBER], error),)
    return tuple(_read_pieces(text))


def malformed_share(text: str) -> float:
    """Share of malformed instructions, 0 to 1: the severity of a syntax error in the reward of A.8.

    1 for a text without any block; 0 for a plan without instructions, since nothing is wrong with its syntax.
    """
    instructions = parse_lenient(text)
    bad = sum(isinstance(instruction.outcome, ChainSyntaxError) for instruction in instructions)
    return bad / len(instructions) if instructions else 0.0


# -- grammar ----------------------------------------------------------------------------------------------------------


@cache
def _lark() -> Lark:
    """The parser for whole plans and single instructions; made once, in about 20 ms."""
    grammar = files("polyarm_core.chains").joinpath("chains.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", start=["plan", "instruction"], maybe_placeholders=False)


def _terminal(name: str) -> str:
    """Regular expression of a terminal of the grammar."""
    return _lark().get_terminal(name).pattern.to_regexp()


def _check_length(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        found = f"a text of {len(text)} characters"
        raise ChainSyntaxError(text[:MAX_CHARACTERS], MAX_CHARACTERS, found, [f"at most {MAX_CHARACTERS}"])


def _parse(text: str, start: str) -> Node:
    """Parse tree of a text. Raises as :func:`parse_plan`."""
    _check_length(text)
    try:
        return _lark().parse(text, start=start)
    except UnexpectedInput as caught:
        error: Any = caught
        if isinstance(caught, UnexpectedToken) and error.token.type != "$END":
            position, found = error.token.start_pos, repr(_short(str(error.token)))
            expected = error.accepts or error.expected
        elif isinstance(error, UnexpectedCharacters):
            position = error.pos_in_stream or 0
            found, expected = repr(_short(re.split(f"[{SPACE}]", text[position:], maxsplit=1)[0])), error.allowed
        else:
            position, found = len(text.rstrip(SPACE)), "the end"
            expected = error.accepts or error.expected if isinstance(error, UnexpectedToken) else set()
        raise ChainSyntaxError(text, position, found, _in_words(set(expected or ()))) from None


def _short(text: str) -> str:
    return str(text) if len(text) <= 40 else text[:37] + "..."


def _in_words(terminals: set[str]) -> list[str]:
    """What could have stood here, in words, in the order of ``_WORDS``."""
    words = []
    if terminals >= _STEP:
        words.append("an action or a wait")
        terminals = terminals - _STEP
    return words + [word for terminal, word in _WORDS.items() if terminal in terminals]


# -- tree to terms ----------------------------------------------------------------------------------------------------


def _block(text: str, tree: Node) -> tuple[str, tuple[Step, ...]]:
    tag, *steps = tree.children
    return _agent(tag), tuple(_step(text, step) for step in steps)


def _agent(tag: str) -> str:
    return tag[:-1].rstrip().strip('"')


def _step(text: str, tree: Node) -> Step:
    if tree.data == "action":
        name, *arguments = tree.children
        return Action(str(name), tuple(_argument(child.children[0]) for child in arguments))
    atoms: list[Atom] = []
    connective: Connective | None = None
    for child in tree.children:
        if isinstance(child, Token):
            connective = "&" if child == "&" else "|"
        else:
            atoms.append(_atom(text, child))
    return Wait(tuple(atoms), connective)


def _atom(text: str, tree: Node) -> Atom:
    if tree.data == "wait_agents":
        agent, milestone, step = tree.children
        reached: Milestone = "start" if milestone == "start" else "done"
        return WaitAgents(_name(text, agent), reached, _step_number(text, step))
    entity, attribute, comparison, value = tree.children
    return WaitEntity(
        _name(text, entity),
        _name(text, attribute),
        COMPARISONS[[*COMPARISONS].index(comparison)],  # its type says that it is one of the six
        _value(text, value.children[0]),
    )


def _argument(token: Token) -> str:
    return str(json.loads(token)) if token.type == "STRING" else str(token)


def _name(text: str, tree: Node) -> str:
    token = tree.children[0]
    if token.type == "NAME":
        return str(token)
    if not re.fullmatch(_terminal("NAME"), token[1:-1]):
        raise ChainSyntaxError(text, token.start_pos, _short(token), [_WORDS["NAME"]])
    return str(token[1:-1])


def _step_number(text: str, token: Token) -> int:
    if not token.isdigit() or len(token) > MAX_NUMBER:
        expected = ["the number of a step (1, 2, ...)"]
        raise ChainSyntaxError(text, token.start_pos, repr(_short(token)), expected)
    return int(token)


def _value(text: str, token: Token) -> Value:
    if token.type in ("TRUE", "FALSE"):
        return token.type == "TRUE"
    if token.type != "NUMBER":
        return _argument(token)
    if len(token) > MAX_NUMBER:
        expected = [f"a number of at most {MAX_NUMBER} characters"]
        raise ChainSyntaxError(text, token.start_pos, repr(_short(token)), expected)
    number = int(token) if token.lstrip("-").isdigit() else float(token)
    if not math.isfinite(number):
        raise ChainSyntaxError(text, token.start_pos, repr(str(token)), ["a finite number"])
    return number


# -- instruction by instruction ---------------------------------------------------------------------------------------


@cache
def _boundaries() -> re.Pattern[str]:
    """What matters when a text is split: tags, quoted texts, parentheses, commas (with a call after them or not)."""
    call = rf"(?=[{SPACE}]*{_terminal('NAME')}[{SPACE}]*\()"
    # No plan has a tag in the middle of a word; looking for one at each letter would make a long word quadratic.
    tag = rf"(?<![A-Za-z0-9_]){_terminal('TAG')}"
    parts = {"tag": tag, "string": _terminal("STRING"), "call": f",{call}", "other": "[(),]"}
    return re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in parts.items()))


def _pieces(text: str) -> Iterator[tuple[str, int, int, bool]]:
    """Agent, begin and end of each instruction in the text, and whether a block or the text ends with it."""
    begin, depth, agent = 0, 0, ""
    for match in _boundaries().finditer(text):
        if match["tag"]:
            yield agent, begin, match.start(), True
            begin, depth, agent = match.end(), 0, _agent(match[0])
        elif agent and (match["call"] or (match[0] == "," and depth == 0)):
            yield agent, begin, match.start(), False
            begin, depth = match.end(), 0
        elif match[0] == "(":
            depth += 1
        elif match[0] == ")":
            depth = max(0, depth - 1)
    yield agent, begin, len(text), True


def _read_pieces(text: str) -> Iterator[Instruction]:
    begin, end = 0, len(text)
    if fence := re.match(f"[{SPACE}]*{_terminal('FENCE_START')}", text):
        begin = fence.end()
    if fence := re.search(f"{_terminal('FENCE_END')}[{SPACE}]*\\Z", text[begin:]):
        end = begin + fence.start()
    outcomes: dict[str, Step | ChainSyntaxError] = {}  # junk repeats itself
    for agent, start, stop, last in _pieces(text[begin:end]):
        piece = text[begin + start : begin + stop]
        if last and not piece.strip(SPACE) and (agent or stop < end - begin):
            continue  # nothing before the first tag, an empty chain, or a comma after the last step
        if not agent:
            outcome: Step | ChainSyntaxError = _outside_error(text)
        else:
            if piece not in outcomes:
                outcomes[piece] = _outcome(piece)
            outcome = outcomes[piece]
            if isinstance(outcome, ChainSyntaxError):  # told by its place in the whole text
                outcome = ChainSyntaxError(text, begin + start + outcome.position, outcome.found, outcome.expected)
        yield Instruction(agent, piece.strip(SPACE), outcome)


def _outcome(piece: str) -> Step | ChainSyntaxError:
    try:
        return parse_step(piece)
    except ChainSyntaxError as error:
        return error


def _outside_error(text: str) -> ChainSyntaxError:
    """What is wrong with a text that does not begin with a block."""
    try:
        parse_plan(text)
    except ChainSyntaxError as error:
        return error
    raise AssertionError("a plan begins with a block")
