"""Lists of seeds as they are written on command lines and in launch files."""

from __future__ import annotations

from polyarm_core.errors import InvalidValue

EXPECTED = "seeds such as 0-19 or 0,3,5 or 0-3,7 (none twice, at most 10000)"
LIMIT = 10_000
HIGHEST = 2**63 - 1  # int64 in ResetWorld.srv


def parse_seeds(text: str) -> list[int]:
    """Seeds from ``"0-19"``, ``"0,3,5"`` or a mixture, in the order in which they are written.

    Raises:
        InvalidValue: anything else, a seed twice, or more than 10000 of them.
    """
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not _is_number(low) or (dash and not _is_number(high)):
            raise InvalidValue("seeds", text, EXPECTED)
        first, last = int(low), int(high) if dash else int(low)
        if last < first or last > HIGHEST or len(seeds) + last - first >= LIMIT:
            raise InvalidValue("seeds", text, EXPECTED)
        seeds += range(first, last + 1)
    if len(set(seeds)) != len(seeds):
        raise InvalidValue("seeds", text, EXPECTED)
    return seeds


def format_seeds(seeds: list[int]) -> str:
    """The shortest text that :func:`parse_seeds` reads as ``seeds``."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
