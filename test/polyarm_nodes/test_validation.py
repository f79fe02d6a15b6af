"""The boundary check agrees with each message's own type description, for every message of the package."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("polyarm.msg", reason="needs the built messages")

import polyarm.msg
from hypothesis import given
from hypothesis import strategies as st
from polyarm.msg import Action, Declaration, IntentReport, SlotVerdict, WorldState

from polyarm_nodes.validation import Malformed, Refusals, check_message

MESSAGES = [
    getattr(polyarm.msg, name)
    for name in dir(polyarm.msg)
    if hasattr(getattr(polyarm.msg, name), "get_fields_and_field_types")
]


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_defaults_are_accepted(kind: Any) -> None:
    check_message(kind())


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_bounded_string_is_checked(kind: Any) -> None:
    for name, type_name in kind.get_fields_and_field_types().items():
        if type_name.startswith("string<"):
            bound = int(type_name[7:-1])
            for length, accepted in ((bound, True), (bound + 1, False)):
                message = kind()
                object.__setattr__(message, f"_{name}", "x" * length)
                if accepted:
                    check_message(message)
                else:
                    with pytest.raises(Malformed, match=f"{name} has {bound + 1} bytes, at most {bound}"):
                        check_message(message)


@given(st.text(max_size=40))
def test_strings_are_measured_in_bytes(text: str) -> None:
    message = Action()
    message._verb = text
    if len(text.encode()) > 32:
        with pytest.raises(Malformed):
            check_message(message)
    else:
        check_message(message)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite(value: float) -> None:
    report = IntentReport()
    report._score = value
    with pytest.raises(Malformed, match=r"score = .* is not finite"):
        check_message(report)
    world = WorldState()
    world._sim_time = value
    with pytest.raises(Malformed, match="sim_time"):
        check_message(world)


def test_the_place_in_a_nested_message_is_named() -> None:
    report = IntentReport(declaration=Declaration(exclusive=["a", "b"]))
    report.declaration._exclusive = ["a", "x" * 97]
    with pytest.raises(Malformed, match=r"declaration.exclusive\[1\] has 97 bytes, at most 96"):
        check_message(report)
    verdict = SlotVerdict()
    verdict._verdicts = [None] * 129
    with pytest.raises(Malformed, match="verdicts has 129 entries, at most 128"):
        check_message(verdict)


def test_refusals_are_counted_by_kind() -> None:
    refusals = Refusals()
    refusals.add("stale", "first")
    refusals.add("stale", "second")
    refusals.add("malformed", "third")
    assert refusals.total == 3 and refusals.counts == {"stale": 2, "malformed": 1} and refusals.last == "third"
