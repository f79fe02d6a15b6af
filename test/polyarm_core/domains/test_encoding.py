"""States as text: what was reachable comes back as it was, and anything else is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import ToyDomain

from polyarm_core.domains.encoding import decode_state, encode_state, state_from_text, state_to_text
from polyarm_core.domains.interface import Domain
from polyarm_core.domains.registry import make_domain
from polyarm_core.errors import InvalidValue

DOMAINS: dict[str, Domain[Any]] = {
    "toy": ToyDomain(),
    **{name: make_domain(name) for name in ("overcooked:forced_coordination", "moba", "arms:cabinet")},
}


@pytest.mark.parametrize("name", DOMAINS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_state_that_can_be_reached_comes_back(name: str, data: st.DataObject) -> None:
    domain = DOMAINS[name]
    state = domain.start(data.draw(st.integers(0, 5)))
    control = st.integers(0, domain.control_count - 1)
    for controls in data.draw(st.lists(st.tuples(*[control] * len(domain.agents)), max_size=6)):
        state = domain.step(state, controls)
    for disturbance in domain.disturbances:
        after = domain.disturb(state, disturbance.name, data.draw(st.floats(0, 1, exclude_max=True)))
        state = state if after is None else after
    read = state_from_text(domain, state_to_text(state))
    assert read == state and type(read) is type(state)
    assert domain.entities(read) == domain.entities(state)
    assert domain.succeeded(read) == domain.succeeded(state)


@settings(max_examples=60, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=20),
        st.recursive(
            st.none() | st.booleans() | st.integers(-3, 30) | st.floats(allow_nan=False) | st.text(max_size=3),
            lambda part: st.lists(part, max_size=8),
            max_leaves=20,
        ).map(json.dumps),
    )
)
def test_any_other_text_is_refused_or_is_a_state(text: str) -> None:
    domain = DOMAINS["overcooked:forced_coordination"]
    try:
        state = state_from_text(domain, text)
    except InvalidValue:
        return
    assert encode_state(state)[: len(json.loads(text))] == json.loads(text)


def test_refusals_name_what_is_wrong() -> None:
    domain = DOMAINS["moba"]
    good = encode_state(domain.start(1))
    assert decode_state(domain, good) == domain.start(1)
    with pytest.raises(InvalidValue, match="a list of its fields frame, seed, heroes"):
        decode_state(domain, good[:3])
    with pytest.raises(InvalidValue, match="expected a value of type int"):
        decode_state(domain, [True, *good[1:]])
    with pytest.raises(InvalidValue, match="expected JSON"):
        state_from_text(domain, "[" * 5000)
    with pytest.raises(InvalidValue, match="named tuple"):
        encode_state((1, object()))
