"""Intervals and percentiles for measured samples (scipy and numpy do the arithmetic)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from polyarm_core.errors import InvalidValue

PERCENTILE = re.compile(r"p(\d{1,2}(?:_\d+)?)")


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion; both ends in [0, 1].

    Raises:
        InvalidValue: not ``0 <= successes <= trials`` with ``trials >= 1``, or a confidence outside (0, 1).
    """
    if trials < 1:
        raise InvalidValue("trials", trials, "at least one")
    if not 0 <= successes <= trials:
        raise InvalidValue("successes", successes, f"an integer from 0 to {trials}")
    if not 0.0 < confidence < 1.0:
        raise InvalidValue("confidence", confidence, "a share between 0 and 1")
    from scipy.stats import binomtest

    interval = binomtest(int(successes), int(trials)).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def percentile(samples: Sequence[float], q: float) -> float:
    """Percentile ``q`` (0 to 100) with linear interpolation between order statistics (Hyndman and Fan type 7).

    Raises:
        InvalidValue: no samples.
    """
    import numpy as np

    if len(samples) == 0:
        raise InvalidValue("samples", list(samples), "at least one sample")
    return float(np.percentile(np.asarray(samples, dtype=float), q))


def summary(samples: Sequence[float], statistic: str) -> float:
    """One statistic of the samples: ``median``, ``mean``, ``min``, ``max`` or ``pNN`` (``p99_9`` = 99.9th percentile).

    Raises:
        InvalidValue: no samples, or a statistic that does not exist.
    """
    if len(samples) == 0:
        raise InvalidValue("samples", list(samples), "at least one sample")
    if statistic == "median":
        return percentile(samples, 50)
    if statistic == "mean":
        return float(sum(samples) / len(samples))
    if statistic == "min":
        return float(min(samples))
    if statistic == "max":
        return float(max(samples))
    if match := PERCENTILE.fullmatch(statistic):
        return percentile(samples, float(match.group(1).replace("_", ".")))
    raise InvalidValue("statistic", statistic, "median, mean, min, max or pNN")
