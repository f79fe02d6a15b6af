"""The crowded start: every relay panel is contended, and looking ahead decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyarm_core.bench.in_process import EpisodeOptions, run_episode
from polyarm_core.episode import EpisodeSummary
from polyarm_core.liveness import draw_start
from polyarm_core.scenario import load_scenario
from polyarm_core.slots import SlotOptions

CROWDED = load_scenario("sort_crowded")
SEEDS = range(20)


def test_it_is_the_cell_of_sort() -> None:
    sort = load_scenario("sort")
    assert CROWDED.arms == sort.arms and CROWDED.placements == sort.placements and CROWDED.zones == sort.zones
    assert set(CROWDED.entities) > set(sort.entities)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_panel_is_crossed_by_entities_that_must_pass_each_other(seed: int) -> None:
    start = draw_start(CROWDED, seed)
    for panel in CROWDED.shared_placements:
        here = CROWDED.order(panel)
        ways = set()
        for entity, place in start.items():
            a, b = CROWDED.order(place), CROWDED.order(str(CROWDED.entities[entity].goal))
            if min(a, b) <= here <= max(a, b):
                ways.add(b > a)
        assert ways == {True, False}


def test_looking_ahead_is_what_makes_it_succeed(coordinate: Callable[..., EpisodeSummary]) -> None:
    assert all(coordinate(CROWDED, seed).success for seed in SEEDS)
    blind = EpisodeOptions(slots=SlotOptions(guard_dead_ends=False))
    assert sum(coordinate(CROWDED, seed, blind).success for seed in SEEDS) < len(SEEDS)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_an_episode_with_physics(seed: int) -> None:
    summary = run_episode(CROWDED, seed)
    assert summary.success and summary.arm_contacts == 0, summary
