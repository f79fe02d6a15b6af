"""The task that docs/write_a_task.md walks through is written as the page says, and works."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyarm_core.bench.in_process import run_episode
from polyarm_core.constraints import Action
from polyarm_core.liveness import draw_start
from polyarm_core.scenario import load_scenario
from polyarm_core.world import World, legal_actions, observe

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOWER = load_scenario(DOCS / "examples" / "tower.yaml")


def world(where: dict[str, str], *conditions: str) -> World:
    half = {name: entity.shape.height / 2 for name, entity in TOWER.entities.items()}
    positions = {e: (*TOWER.placements[p].xyz[:2], TOWER.placements[p].xyz[2] + half[e]) for e, p in where.items()}
    return World(positions, frozenset(conditions))


def test_the_upper_block_waits_for_the_lower_one() -> None:
    before = observe(TOWER, world({"red": "south1", "green": "north1"}), "dave")
    after = observe(TOWER, world({"red": "plate", "green": "north1"}, "base_stands"), "dave")
    top = Action("move", "green", "on_top")
    assert top not in legal_actions(TOWER, before) and top in legal_actions(TOWER, after)


@pytest.mark.parametrize("seed", range(8))
def test_without_physics(seed: int) -> None:
    assert run_episode(TOWER, seed, kinematic=True).success


@pytest.mark.timeout(200)
def test_with_physics() -> None:
    episode = run_episode(TOWER, 0)
    assert episode.success and episode.arm_contacts == 0 and episode.failed_actions == 0


def test_starts_are_those_that_the_file_names() -> None:
    for seed in range(20):
        start = draw_start(TOWER, seed)
        assert set(start.values()) <= {"south1", "south2", "north1", "north2"} and len(set(start.values())) == 2


def test_the_page_shows_the_file(tmp_path: Path) -> None:
    page = (DOCS / "write_a_task.md").read_text()
    assert "base_stands: {kind: occupied, placement: plate, entity: red}" in page
    for verb in ("--plant kinematic", "docs/examples/tower.yaml"):
        assert verb in page
