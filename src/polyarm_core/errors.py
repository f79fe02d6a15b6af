"""Typed errors of the core: each names the offending value and lists what would have been valid."""

from __future__ import annotations

from collections.abc import Iterable


class PolyarmError(Exception):
    """Base of every error that Polyarm raises on purpose."""


class UnknownName(PolyarmError):
    """A name that the scenario, a registry or a table does not know.

    Args:
        kind: what the name should have been, e.g. ``"placement"``.
        name: the offending value.
        valid: the names that exist; they are listed in the message.
    """

    def __init__(self, kind: str, name: object, valid: Iterable[object]) -> None:
        self.kind = kind
        self.name = name
        self.valid = sorted(str(item) for item in valid)
        super().__init__(f"unknown {kind} {name!r}; valid: {', '.join(self.valid) or '(none)'}")


class InvalidValue(PolyarmError):
    """A value outside its range or of the wrong form; ``expected`` says what is accepted."""

    def __init__(self, key: str, value: object, expected: str) -> None:
        self.key = key
        self.value = value
        self.expected = expected
        super().__init__(f"{key} = {value!r} is not valid; expected {expected}")


class MissingExtra(PolyarmError):
    """An optional library is not installed; names the pip extra that brings it."""

    def __init__(self, library: str, extra: str) -> None:
        self.library = library
        self.extra = extra
        super().__init__(f"{library} is not installed; install it with: pip install 'polyarm[{extra}]'")
