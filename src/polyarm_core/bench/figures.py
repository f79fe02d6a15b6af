"""One flat table of measured figures: what every ``polyarm run`` and ``polyarm bench`` prints and writes as JSON."""

from __future__ import annotations

import contextlib
import json
import math
import numbers
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyarm_core.bench.statistics import summary, wilson_interval
from polyarm_core.errors import InvalidValue, UnknownName

NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
DEFAULT_STATISTICS = ("p10", "median", "p90", "p99")


class Figures:
    """Ordered flat table from stable dotted names to finite numbers.

    Names are lower case, e.g. ``sort.success_rate`` or ``slot.n8.p99_s``. Times are in seconds and end in ``_s``,
    shares lie in [0, 1]; no other unit is written into a name. A name that has been published keeps its meaning.

    Args:
        command: the command line that produced the figures, e.g. ``"polyarm run sort --seeds 0-19"``.
        seeds: the seeds that were run, in order; empty where none was used.
    """

    def __init__(self, command: str, seeds: Sequence[int]) -> None:
        self.command = command
        self.seeds = [int(seed) for seed in seeds]
        self._table: dict[str, float | int] = {}

    def add(self, name: str, value: float | int) -> None:
        """Append one figure.

        Raises:
            InvalidValue: the name is not dotted lower case or already taken, or the value is no finite number.
        """
        if not NAME.fullmatch(name):
            raise InvalidValue("figure name", name, f"a name that matches {NAME.pattern}")
        if name in self._table:
            raise InvalidValue("figure name", name, "a name that is not in the table yet")
        if isinstance(value, numbers.Integral):  # bool and numpy integers included
            self._table[name] = int(value)
        elif isinstance(value, numbers.Real) and math.isfinite(value):
            self._table[name] = float(value)
        else:
            raise InvalidValue(name, value, "a finite number")

    def rate(self, name: str, successes: int, trials: int) -> None:
        """Add the share ``name`` with its 95 % Wilson interval as ``<name>_low`` and ``<name>_high``.

        Raises:
            InvalidValue: not ``0 <= successes <= trials`` with at least one trial.
        """
        low, high = wilson_interval(successes, trials)
        self.add(name, successes / trials)
        self.add(f"{name}_low", low)
        self.add(f"{name}_high", high)

    def distribution(
        self,
        name: str,
        samples: Sequence[float],
        statistics: Sequence[str] = DEFAULT_STATISTICS,
        suffix: str = "_s",
    ) -> None:
        """Add ``<name>.<statistic><suffix>`` for each statistic of the samples.

        Args:
            name: dotted prefix.
            samples: at least one finite number; seconds where the suffix is ``_s``.
            statistics: of ``median``, ``mean``, ``min``, ``max`` and ``pNN`` (percentile NN).
            suffix: ``"_s"`` for times, ``""`` for anything else.

        Raises:
            InvalidValue: no samples, or a statistic that does not exist.
        """
        for statistic in statistics:
            self.add(f"{name}.{statistic}{suffix}", summary(samples, statistic))

    def __getitem__(self, name: str) -> float | int:
        try:
            return self._table[name]
        except KeyError:
            raise UnknownName("figure", name, self._table) from None

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def items(self) -> list[tuple[str, float | int]]:
        """Names and values in the order in which they were added."""
        return list(self._table.items())

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` writes: command, version, seeds, machine and the flat table of figures."""
        return {
            "command": self.command,
            "version": version(),
            "seeds": list(self.seeds),
            "machine": machine(),
            "figures": dict(self._table),
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON object to ``path``; the file is complete or untouched, never half written.

        Raises:
            InvalidValue: the file cannot be written there.
        """
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
            os.replace(temporary, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise InvalidValue("--json", str(path), f"a file that can be written ({error.strerror})") from error


def version() -> str:
    """Version of the installed package, ``"unknown"`` when it runs from a folder that was never installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("polyarm")
    except PackageNotFoundError:
        return "unknown"


def machine() -> Mapping[str, str | int | float]:
    """What the figures were measured on; nothing that identifies the machine (no host name, user or path).

    ``cores`` is what this process may use, ``memory_gib`` the physical memory in GiB.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
