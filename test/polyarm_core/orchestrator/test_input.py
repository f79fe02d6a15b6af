"""What is malformed is refused with a typed error that names the arm or the option."""

from __future__ import annotations

import dataclasses

import pytest
from orchestrator_mixes import intent

from polyarm_core.errors import InvalidValue
from polyarm_core.orchestrator import OrchestratorOptions, arbitrate


def test_two_different_intents_of_one_arm():
    one, other = intent("alice", 0, ["entity:a"]), intent("alice", 0, ["entity:b"])
    with pytest.raises(InvalidValue, match="alice"):
        arbitrate([one, other])
    assert arbitrate([one, dataclasses.replace(one)]).admitted == ("alice",)


@pytest.mark.parametrize("field", ["waited", "distance"])
def test_negative_numbers(field):
    with pytest.raises(InvalidValue, match="alice"):
        arbitrate([dataclasses.replace(intent("alice"), **{field: -1})])


def test_conditions_given_as_one_string():
    with pytest.raises(InvalidValue, match="conditions"):
        arbitrate([], "open")


@pytest.mark.parametrize(
    ("option", "value"), [("strategy", "optimal"), ("strategy", "best"), ("node_budget", 0), ("patience", -1)]
)
def test_options_out_of_range(option, value):
    with pytest.raises(InvalidValue, match=option):
        OrchestratorOptions(**{option: value})
