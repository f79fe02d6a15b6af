"""The boundary of every node: what is malformed is refused, counted and explained, and changes nothing.

DDS and rclpy deliver strings and arrays beyond their declared bounds and numbers that are not finite (the check is
off by default), so each message is walked once along its own type description before anything else sees it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

_STRING = re.compile(r"^w?string(?:<(\d+)>)?$")
_SEQUENCE = re.compile(r"^sequence<(.+?)(?:,\s*(\d+))?>$")
_ARRAY = re.compile(r"^(.+)\[(\d+)\]$")
_FLOATS = frozenset({"float", "double", "long double"})

Check = Callable[[Any, str], None]


class Malformed(Exception):
    """A message that a node refuses; the text says which field and why."""


def check_message(message: Any) -> None:
    """Check bounds of strings and arrays and that every number is finite, recursively.

    Raises:
        Malformed: the first field that does not hold what its type says.
    """
    _check_fields(message, "")


_CHECKS: dict[type, list[tuple[str, Check]]] = {}


def _check_fields(message: Any, path: str) -> None:
    # The walk is compiled once a type: it runs for every message that enters a node.
    checks = _CHECKS.get(type(message))
    if checks is None:
        found = [(name, _check_of(kind)) for name, kind in message.get_fields_and_field_types().items()]
        checks = _CHECKS[type(message)] = [(name, check) for name, check in found if check is not None]
    for name, check in checks:
        check(getattr(message, name), f"{path}.{name}" if path else name)


def _check_of(kind: str) -> Check | None:
    """The check of a field type, None where any value will do."""
    if match := _STRING.match(kind):
        return _bounded_string(int(match[1])) if match[1] else None
    if match := _SEQUENCE.match(kind):
        return _sequence(_check_of(match[1]), int(match[2]) if match[2] else None)
    if match := _ARRAY.match(kind):
        return _sequence(_check_of(match[1]), None)
    if kind in _FLOATS:
        return _finite
    return _check_fields if "/" in kind else None


def _bounded_string(bound: int) -> Check:
    def check(value: Any, path: str) -> None:
        # A character has at most four bytes, so most strings need not be encoded to know that they fit.
        if len(value) * 4 > bound and len(value.encode()) > bound:
            raise Malformed(f"{path} has {len(value.encode())} bytes, at most {bound} are allowed")

    return check


def _sequence(item_check: Check | None, bound: int | None) -> Check | None:
    if item_check is None and bound is None:
        return None

    def check(value: Any, path: str) -> None:
        if bound is not None and len(value) > bound:
            raise Malformed(f"{path} has {len(value)} entries, at most {bound} are allowed")
        if item_check is not None:
            for index, item in enumerate(value):
                item_check(item, f"{path}[{index}]")

    return check


def _finite(value: Any, path: str) -> None:
    if not math.isfinite(value):
        raise Malformed(f"{path} = {value} is not finite")


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
