"""The control bench: the same seeds for every control, a log that is resumed even after a kill, wrong names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyarm_core.bench import control
from polyarm_core.bench.control_page import COLUMNS, FILE, write_page
from polyarm_core.errors import UnknownName


def test_figures_are_counted_and_a_torn_log_is_resumed(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    arguments = {"tasks": ("sort",), "controls": ("reactive", "planned"), "disturbances": ("none", "severe")}
    first = control.run(**arguments, seeds=(0, 1), log=log)  # type: ignore[arg-type]
    lines = log.read_text().splitlines()
    assert len(lines) == 8
    log.write_text("\n".join(lines[:5]) + "\n" + lines[5][:40])
    again = control.run(**arguments, seeds=(0, 1), log=log)  # type: ignore[arg-type]
    assert again.items() == first.items()
    assert len(log.read_text().splitlines()) == 9  # five, the torn one, three that were run again
    assert first["control.sort.reactive.none.success_rate"] == 1.0 and first["control.sort.planned.none.calls"] == 1
    assert first["control.sort.planned.none.calls_share"] < 0.5 and "control.sort.planned.severe.kept" in first


def test_a_complete_log_is_only_counted(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    row = dict.fromkeys(control.MEANS, 2.0) | {"success": True, "looks": 10, "stale_slots": 2, "false_alarms": 4}
    for seed, (delays, missed) in enumerate((([0, 3], 0), ([], 1))):
        full = row | {"replans": {"stale": 1 + seed}, "delays": delays, "missed": missed}
        with log.open("a") as stream:
            stream.write(json.dumps(["sort", "planned", "severe", seed, full]) + "\n")
    figures = control.run(("sort",), ("planned",), ("severe",), (0, 1), log=log)
    name = "control.sort.planned.severe"
    assert figures[f"{name}.replans.stale"] == 1.5 and figures[f"{name}.false_alarm_rate"] == 0.5
    assert figures[f"{name}.stale_plans"] == 3 and figures[f"{name}.missed"] == 1
    assert figures[f"{name}.delay.mean"] == 1.5 and figures[f"{name}.delay.max"] == 3


def test_the_page_says_what_the_figures_say(tmp_path: Path) -> None:
    figures = control.run(("sort",), ("reactive", "planned"), ("none", "severe"), (0, 1))
    write_page(figures, tmp_path, "kinematic", "oracle")
    rows = [line for line in (tmp_path / FILE).read_text().splitlines() if line.startswith(("| reactive", "| planned"))]
    assert len(rows) == 4
    cells = [cell.strip() for cell in rows[3].split("|")[1:-1]]
    values = dict(zip(COLUMNS, cells, strict=True))
    prefix = "control.sort.planned.severe."
    assert values["control"] == "planned" and values["disturb"] == "severe"
    assert float(values["slots"]) == pytest.approx(figures[prefix + "slots"], abs=0.05)
    assert float(values["share of reactive"]) == pytest.approx(figures[prefix + "calls_share"], abs=0.005)
    assert values["success"].startswith(f"{100 * figures[prefix + 'success_rate']:.0f} %")
    assert (tmp_path / "control.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"controls": ("mixed",)}, "unknown control 'mixed'"),
        ({"disturbances": ("mild",)}, "unknown disturb 'mild'"),
        ({"plant": "real"}, "unknown plant 'real'"),
        ({"detector": "psychic"}, "unknown detector 'psychic'"),
        ({"tasks": ("srot",)}, "unknown scenario 'srot'"),
    ],
)
def test_wrong_names(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        control.run(**wrong)  # type: ignore[arg-type]
