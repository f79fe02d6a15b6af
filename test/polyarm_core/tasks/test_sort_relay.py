"""Five arms in a row: structure, starts, reach, and whole episodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyarm_core.bench.in_process import run_episode
from polyarm_core.episode import EpisodeSummary
from polyarm_core.liveness import draw_start
from polyarm_core.scenario import Scenario, load_scenario

RELAY = load_scenario("sort_relay")


def test_a_row_in_which_neighbours_share_one_panel() -> None:
    assert len(RELAY.arms) == 5 and len(RELAY.placements) >= 9
    bands = [set(arm.reach) for arm in RELAY.arms.values()]
    for i, band in enumerate(bands):
        for j in range(i + 1, len(bands)):
            assert len(band & bands[j]) == (1 if j == i + 1 else 0)
    assert {e.goal for e in RELAY.entities.values()}.isdisjoint(RELAY.shared_placements)


def test_starts_differ_and_some_entity_needs_four_hand_overs() -> None:
    starts = [draw_start(RELAY, seed) for seed in range(40)]
    assert len({tuple(sorted(start.items())) for start in starts}) == 40
    arms_of = {p: [i for i, arm in enumerate(RELAY.arms.values()) if p in arm.reach] for p in RELAY.placements}

    def handovers(entity: str, place: str) -> int:
        goal = str(RELAY.entities[entity].goal)
        return min(abs(a - b) for a in arms_of[place] for b in arms_of[goal])

    assert max(handovers(e, p) for start in starts for e, p in start.items()) == 4


@pytest.mark.parametrize("seed", range(20))
def test_the_twin_leads_every_start_to_its_goal(seed: int, coordinate: Callable[..., EpisodeSummary]) -> None:
    summary = coordinate(RELAY, seed)
    assert summary.success and summary.failed_actions == 0, summary


def test_every_placement_is_reached(plan_every_placement: Callable[[Scenario], None]) -> None:
    plan_every_placement(RELAY)


@pytest.mark.parametrize("seed", [13, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5))])
def test_an_episode_with_physics(seed: int) -> None:
    summary = run_episode(RELAY, seed)
    assert summary.success and summary.arm_contacts == 0, summary
