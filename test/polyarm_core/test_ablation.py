"""The ablation bench: every twin sees the same seeds, a log is resumed, wrong names are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyarm_core.bench import ablation
from polyarm_core.errors import UnknownName


def test_figures_are_counted_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = []
    for twin, success in (("off", [1, 0]), ("optimal", [1, 1])):
        for seed, good in enumerate(success):
            episode = {"success": good, "arm_contacts": 1 - good, "failed_actions": 2, "slots": 4, "sim_time": 10.0}
            lines.append(json.dumps(["sort", twin, seed, episode]))
    log.write_text("\n".join(lines) + "\n")
    figures = ablation.run(seeds=(0, 1), twins=("off", "optimal"), log=log)  # complete: nothing is run
    assert figures["ablation.sort.off.success_rate"] == 0.5
    assert figures["ablation.sort.optimal.success_rate"] == 1.0
    assert figures["ablation.sort.off.arm_contacts"] == 0.5 and figures["ablation.sort.off.episodes"] == 2
    assert figures["ablation.sort.optimal.success_rate_low"] < 1.0


@pytest.mark.timeout(200)
def test_two_twins_on_one_seed_with_physics(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    figures = ablation.run(seeds=(2,), twins=("off", "optimal"), log=log)
    assert figures["ablation.sort.optimal.success_rate"] == 1.0
    assert figures["ablation.sort.optimal.arm_contacts"] == 0
    assert len(log.read_text().splitlines()) == 2


def test_wrong_names() -> None:
    with pytest.raises(UnknownName, match="unknown twin 'none'; valid: fixed_point, maximal, off, optimal"):
        ablation.run(twins=("none",))
    with pytest.raises(UnknownName, match="unknown scenario 'srot'"):
        ablation.run(tasks=("srot",))
