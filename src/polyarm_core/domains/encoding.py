"""States of a domain as nested lists of plain values, as JSON has them, and back.

States are named tuples of plain values, tuples and further named tuples; their type hints say what is what, so that a
text from elsewhere becomes a state of the right shape or is refused.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from polyarm_core.domains.interface import Domain
from polyarm_core.errors import InvalidValue

State = TypeVar("State", bound=Hashable)


def encode_state(state: Any) -> Any:
    """A state of named tuples and plain values as nested lists.

    Raises:
        InvalidValue: it has something else in it.
    """
    if isinstance(state, tuple):
        return [encode_state(value) for value in state]
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    raise InvalidValue("state", state, "a named tuple of tuples and plain values")


def decode_state(domain: Domain[State], data: Any) -> State:
    """The inverse of :func:`encode_state`. A field with a default may be missing at the end.

    Raises:
        InvalidValue: these are not the fields of the domain's states, or a value has another type.
    """
    state: State = _decode(state_type(domain), data)
    return state


def state_to_text(state: Any) -> str:
    """A state as JSON without spaces. Raises as :func:`encode_state`."""
    return json.dumps(encode_state(state), separators=(",", ":"), allow_nan=False)


def state_from_text(domain: Domain[State], text: str) -> State:
    """The inverse of :func:`state_to_text`.

    Raises:
        InvalidValue: no JSON, or as :func:`decode_state`.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValue("state", text[:60], f"JSON ({error})") from None
    return decode_state(domain, data)


def state_type(domain: Domain[Any]) -> type:
    """Type of the domain's states, a named tuple.

    Raises:
        InvalidValue: they are something else, which has no text.
    """
    kind = _state_type(cast(Hashable, domain))
    if not _is_record(kind):
        raise InvalidValue(f"states of {domain.name}", kind.__name__, "named tuples")
    return kind


@cache
def _state_type(domain: Any) -> type:
    return type(domain.start(0))


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


_hints = cache(get_type_hints)


def _decode(kind: Any, data: Any) -> Any:
    if _is_record(kind):
        low = len(kind._fields) - len(kind._field_defaults)
        if not isinstance(data, list) or not low <= len(data) <= len(kind._fields):
            raise InvalidValue(kind.__name__, _short(data), f"a list of its fields {', '.join(kind._fields)}")
        hints = _hints(kind)
        return kind(*(_decode(hints[name], value) for name, value in zip(kind._fields, data, strict=False)))
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        if not isinstance(data, list):
            raise InvalidValue("state", _short(data), "a list in this place")
        if len(parts) == 2 and parts[1] is Ellipsis:
            return tuple([_decode(parts[0], value) for value in data])
        if len(data) != len(parts):
            raise InvalidValue("state", _short(data), f"a list of {len(parts)} values in this place")
        return tuple([_decode(part, value) for part, value in zip(parts, data, strict=True)])
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or isinstance(data, bool) != (kind is bool):
        raise InvalidValue("state", _short(data), f"a value of type {kind.__name__} in this place")
    return data


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."
