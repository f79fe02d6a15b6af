"""What the arms' detectors do on test episodes and in execution: ``python -m polyarm_core.psd.arms_figures``.

In execution every detector, and none, and the oracle, watches the same episodes of ``polyarm bench control``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from polyarm_core.bench import control
from polyarm_core.bench.figures import Figures
from polyarm_core.psd.detector import ARMS_NETWORK, find_weights
from polyarm_core.psd.network import DETECTORS
from polyarm_core.seeds import format_seeds, parse_seeds

EXECUTED = (
    "success_rate", "slots", "calls", "repairs", "false_alarms", "false_alarm_rate", "stale_plans", "missed",
    "delay.mean", "delay.max",
)  # fmt: skip
"""Of ``polyarm bench control``."""


def add_test_figures(figures: Figures, models: Path) -> None:
    """Add ``psd_arms.NETWORK.*``: figures on test episodes, from the files beside the weights."""
    for path in sorted(models.glob("*.json")):
        record: dict[str, Any] = json.loads(path.read_text())
        name, test = f"psd_arms.{path.stem}", record["test"]
        figures.add(f"{name}.threshold", record["threshold"])
        figures.add(f"{name}.f1", test["slots"]["f1"])
        shares = {key: test["slots"][key] for key in ("precision", "recall", "false_alarms")}
        shares["event_recall"] = test["oracle"]["recall"]
        shares["noticed"] = test["delay"]["noticed"]
        shares["unnamed.recall"] = test["oracle"]["blind_spot"]
        inside = test["within"]
        shares |= {f"within.{key}": inside[key] for key in ("precision", "recall", "false_alarms")}
        shares["within.unnamed.recall"] = inside["oracle"]["blind_spot"]
        shares |= {f"recall.{kind}": rate for kind, rate in test["oracle"]["recall_by_event"].items()}
        if record.get("held_out"):
            unseen = record["held_out"]["test"]["slots"]
            shares |= {f"unknown_scenarios.{key}": unseen[key] for key in ("precision", "recall", "false_alarms")}
        for key, rate in shares.items():
            if rate["trials"]:
                figures.rate(f"{name}.{key}", rate["hits"], rate["trials"])
        if test["delay"]["frames"] is not None:
            figures.add(f"{name}.delay", test["delay"]["frames"])


def run(
    models: Path,
    tasks: Sequence[str],
    controls: Sequence[str],
    disturbances: Sequence[str],
    seeds: Sequence[int],
    plant: Literal["kinematic", "mujoco"],
    logs: Path | None = None,
    figures: Figures | None = None,
) -> Figures:
    """Figures in execution, ``psd_arms.PLANT.DETECTOR.TASK.CONTROL.LEVEL.*``, added to those that there are.

    Args:
        models: folder of the weights.
        tasks, controls, disturbances, seeds, plant: see `bench.control.run`.
        logs: folder of one log for each detector; what they hold already is not run again.
        figures: to add to; default a new table that begins with those on test episodes.
    """
    if figures is None:
        command = (
            f"python -m polyarm_core.psd.arms_figures --tasks {','.join(tasks)} --controls {','.join(controls)} "
            f"--disturbances {','.join(disturbances)} --seeds {format_seeds(list(seeds))}"
        )
        figures = Figures(command, seeds)
        add_test_figures(figures, models)
    weights = {str(name): find_weights(str(models / f"{name}_{ARMS_NETWORK}.npz")) for name in DETECTORS}
    detectors = {"never": "never"} | {name: str(path) for name, path in weights.items()} | {"oracle": "oracle"}
    for name, detector in detectors.items():
        log = None if logs is None else logs / f"{plant}_{name}.jsonl"
        found = control.run(tasks, controls, disturbances, seeds, plant, log=log, detector=detector)
        for task in tasks:
            for way in controls:
                for level in disturbances:
                    for key in EXECUTED:
                        figure = f"control.{task}.{way}.{level}.{key}"
                        if figure in found:
                            figures.add(f"psd_arms.{plant}.{name}.{task}.{way}.{level}.{key}", found[figure])
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of ``python -m polyarm_core.psd.arms_figures``."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m polyarm_core.psd.arms_figures", description=__doc__)
    parser.add_argument("--models", type=Path, default=Path("models/psd_arms"), help="folder of the weights")
    parser.add_argument("--out", type=Path, default=Path("results/psd_arms.json"), help="table of the figures")
    parser.add_argument("--logs", type=Path, help="folder of the logs, for a second run that goes on")
    parser.add_argument("--tasks", default=",".join(control.TASKS), help="separated by commas")
    parser.add_argument("--controls", default="planned,hybrid", help="separated by commas")
    parser.add_argument("--disturbances", default="none,standard,severe", help="separated by commas")
    parser.add_argument("--seeds", default="0-19", help="on the plant without physics")
    parser.add_argument("--mujoco-seeds", default="", help="with physics, planned and severe; empty = none")
    parser.add_argument("--mujoco-tasks", default="sort,cabinet", help="with physics")
    given = parser.parse_args(arguments)
    tasks, ways, levels = (getattr(given, key).split(",") for key in ("tasks", "controls", "disturbances"))
    if given.logs is not None:
        given.logs.mkdir(parents=True, exist_ok=True)
    figures = run(given.models, tasks, ways, levels, parse_seeds(given.seeds), "kinematic", given.logs)
    if given.mujoco_seeds:
        seeds, tasks = parse_seeds(given.mujoco_seeds), given.mujoco_tasks.split(",")
        run(given.models, tasks, ["planned"], ["severe"], seeds, "mujoco", given.logs, figures)
    figures.write(given.out)
    print(f"figures  {given.out}")


if __name__ == "__main__":
    main()
