"""The boundary of every node: what is malformed is refused, counted and explained, and changes nothing.

DDS and rclpy deliver strings and arrays beyond their declared bounds and numbers that are not finite (the check is
off by default), so each message is walked once along its own type description before anything else sees it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

_STRING = re.compile(r"^w?string(?:<(\d+)>)?$")
_SEQUENCE = re.compile(r"^sequence<(.+?)(?:,\s*(\d+))?>$")
_ARRAY = re.compile(r"^(.+)\[(\d+)\]$")
_FLOATS = frozenset({"float", "double", "long double"})


class Malformed(Exception):
    """A message that a node refuses; the text says which field and why."""


def check_message(message: Any) -> None:
    """Check bounds of strings and arrays and that every number is finite, recursively.

    Raises:
        Malformed: the first field that does not hold what its type says.
    """
    _check_fields(message, "")


def _check_fields(message: Any, path: str) -> None:
    for name, kind in message.get_fields_and_field_types().items():
        _check_value(getattr(message, name), kind, f"{path}.{name}" if path else name)


def _check_value(value: Any, kind: str, path: str) -> None:
    if match := _STRING.match(kind):
        if match[1] and len(value.encode()) > int(match[1]):
            raise Malformed(f"{path} has {len(value.encode())} bytes, at most {match[1]} are allowed")
    elif match := _SEQUENCE.match(kind):
        if match[2] and len(value) > int(match[2]):
            raise Malformed(f"{path} has {len(value)} entries, at most {match[2]} are allowed")
        for index, item in enumerate(value):
            _check_value(item, match[1], f"{path}[{index}]")
    elif match := _ARRAY.match(kind):
        for index, item in enumerate(value):
            _check_value(item, match[1], f"{path}[{index}]")
    elif kind in _FLOATS:
        if not math.isfinite(value):
            raise Malformed(f"{path} = {value} is not finite")
    elif "/" in kind:
        _check_fields(value, path)


class Refusals:
    """Counts what a node refused, by reason class, and keeps the last explanation for diagnostics."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.last = ""

    def add(self, kind: str, why: str) -> None:
        """Count one refusal of a kind (``malformed``, ``stale``, ...) with its explanation."""
        self.counts[kind] += 1
        self.last = why

    @property
    def total(self) -> int:
        """All refusals so far."""
        return sum(self.counts.values())
