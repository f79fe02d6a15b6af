"""What a trial in any domain is made of: the world, what happens to it, who plans, and what came of it.

Methods are named as in the kitchen's benchmark (``COORDINATOR+TRIGGER[+repair]``, see docs/overcooked.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import imagined
from polyarm_core.domains.interface import Domain
from polyarm_core.domains.overcooked.disturbances import Event, EventSchedule
from polyarm_core.domains.registry import make_domain
from polyarm_core.errors import InvalidValue, UnknownName

if TYPE_CHECKING:
    from polyarm_core.bench.figures import Figures
    from polyarm_core.bench.overcooked.methods import Method
    from polyarm_core.coordinator.episode import PlanningRun
    from polyarm_core.psd.detector import StalenessDetector

KITCHEN = "overcooked:"
PLANTS = ("package", "own")
FILE_NAME = "episodes.jsonl"


@dataclass(frozen=True)
class TrialRow:
    """What one trial through the graph came to; a line of ``episodes.jsonl``.

    Attributes:
        domain, plant, setting, method, seed: which one.
        success: the task was done within the horizon.
        frames: until then; the horizon otherwise.
        events: frame and name of what happened.
        silent: controls that did not come in time; their agents stayed.
        calls, repairs, tokens, detections: of the coordinator; None where it did not say.
        frame_p50, frame_p99: s of wall clock time from a state to the last of its controls.
        wall_time: s of wall clock time.
    """

    domain: str
    plant: str
    setting: str
    method: str
    seed: int
    success: bool
    frames: int
    events: tuple[tuple[int, str], ...] = ()
    silent: int = 0
    calls: int | None = None
    repairs: int | None = None
    tokens: int | None = None
    detections: int | None = None
    frame_p50: float = 0.0
    frame_p99: float = 0.0
    wall_time: float = 0.0


def append_row(path: Path, row: TrialRow) -> None:
    """Append a line and flush it to the disk, so that it survives the end of the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[TrialRow]:
    """The complete lines of a file; none for a file that does not exist.

    Raises:
        InvalidValue: a line that is no row.
    """
    if not path.exists():
        return []
    rows = []
    for line in path.read_text("utf-8").split("\n")[:-1]:
        try:
            data = json.loads(line)
            rows.append(TrialRow(**{**data, "events": tuple((frame, name) for frame, name in data["events"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidValue(path.name, line[:60], f"a row of a trial ({error})") from None
    return rows


def add_figures(figures: Figures, rows: Sequence[TrialRow]) -> None:
    """Add what the trials of one domain came to: success, frames, calls, and the time of a frame."""
    name = rows[0].domain.lower().replace(":", ".")
    figures.rate(f"{name}.success_rate", sum(row.success for row in rows), len(rows))
    figures.distribution(f"{name}.frames", [row.frames for row in rows], ("mean", "min", "max"), suffix="")
    figures.add(f"{name}.disturbances", sum(len(row.events) for row in rows))
    figures.add(f"{name}.silent", sum(row.silent for row in rows))
    for key in ("calls", "repairs", "tokens", "detections"):
        figures.add(f"{name}.{key}", sum(getattr(row, key) or 0 for row in rows))
    figures.distribution(f"{name}.frame_p50", [row.frame_p50 for row in rows], ("median", "max"))
    figures.distribution(f"{name}.frame_p99", [row.frame_p99 for row in rows], ("median", "max"))


def open_world(name: str, plant: str = "own") -> Domain[Any]:
    """A domain with what carries its steps out.

    Args:
        name: as in ``domain_names``.
        plant: ``package``: overcooked_ai, for kitchens; ``own``: the domain itself.

    Raises:
        UnknownName: no such domain or plant.
        InvalidValue: the package for another domain than a kitchen.
        MissingExtra: overcooked_ai is not installed.
    """
    if plant not in PLANTS:
        raise UnknownName("plant", plant, PLANTS)
    if plant == "own":
        return make_domain(name)
    if not name.startswith(KITCHEN):
        raise InvalidValue("plant", plant, f"'own' in {name}: the package knows only kitchens")
    from polyarm_core.domains.overcooked.layouts import load_layout
    from polyarm_core.domains.overcooked.package import PackageKitchen

    return make_domain(name, plant=PackageKitchen(load_layout(name.removeprefix(KITCHEN))))


def schedule_of(domain: Domain[Any], setting: str, seed: int) -> tuple[Event, ...]:
    """The events of a trial; they depend on domain, setting and seed alone.

    ``standard`` has none, ``dynamic`` each of the domain's once, a name of one just that; a kitchen also takes the
    other settings of its benchmark.

    Raises:
        UnknownName: no such setting.
    """
    if domain.name.startswith(KITCHEN):
        from polyarm_core.bench.overcooked.trial import schedule_of as kitchen_schedule

        return kitchen_schedule(setting, seed).events
    names = [item.name for item in domain.disturbances]
    if setting == "standard":
        return ()
    if setting != "dynamic" and setting not in names:
        raise UnknownName("setting", setting, ("standard", "dynamic", *names))
    return EventSchedule.once_each(seed, names if setting == "dynamic" else (setting,), known=names).events


def chosen_method(text: str) -> Method:
    """A method with chains, by name.

    Raises:
        UnknownName: no such method.
        InvalidValue: one without chains.
    """
    from polyarm_core.bench.overcooked.methods import parse_method

    method = parse_method(text)
    if method.policy:
        raise InvalidValue("method", text, "one with chains, COORDINATOR+TRIGGER[+repair]")
    return method


def uses_detector(method: Method) -> bool:
    """Whether something watches the plan beside the executor."""
    return method.replan_policy == "detector"


def open_trial_detector(method: Method, domain: Domain[Any]) -> StalenessDetector:
    """The method's detector of stale plans, fresh.

    Raises:
        InvalidValue: the method has none, or it is a learned one and none was trained for this domain.
    """
    from polyarm_core.bench.overcooked.methods import open_detector
    from polyarm_core.psd.detector import OracleDetector

    if method.trigger == "oracle":
        return OracleDetector(imagined(domain))
    if not domain.name.startswith(KITCHEN):
        raise InvalidValue("method", method.name, f"never, stall, everyN or oracle in {domain.name}")
    detector = open_detector(method, domain)  # type: ignore[arg-type]  # a kitchen, by its name
    if detector is None:
        raise InvalidValue("method", method.name, "one with a detector")
    return detector


def planning_runs(method: Method, domain: Domain[Any]) -> Callable[[StalenessDetector | None, int], PlanningRun[Any]]:
    """A function that makes the planning part of an episode, with a coordinator that remembers no other episode.

    It takes the detector and the frame in which it begins.

    Raises:
        ModelError, MissingExtra: the language model is not there.
    """
    from polyarm_core.bench.overcooked.methods import open_coordinator
    from polyarm_core.coordinator.episode import PlanningRun

    def make(detector: StalenessDetector | None, frame: int) -> PlanningRun[Any]:
        return PlanningRun(
            domain,
            open_coordinator(method, domain),  # type: ignore[arg-type]  # nothing in it is the kitchen's
            detector,
            repair=Repair(domain) if method.repair else None,
            policy=method.replan_policy,
            interval=method.interval,
            max_calls=method.max_calls,
            frame=frame,
        )

    make(None, 0)  # what is missing shows now
    return make


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies (nearest rank); 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
