"""Packing the bin: who reaches what, half of the bin to each arm at a time, walls that hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from polyarm_core.bench.in_process import InProcessEpisode, run_episode
from polyarm_core.constraints import Action
from polyarm_core.declaration import declare
from polyarm_core.episode import EpisodeSummary
from polyarm_core.liveness import draw_start
from polyarm_core.plant.simulation import Simulation
from polyarm_core.scenario import BinFixture, Scenario, load_scenario
from polyarm_core.world import locate, observe

GROCERY = load_scenario("grocery")
CELLS = sorted(p for p in GROCERY.placements if p.startswith("cell"))


def _inside(position: np.ndarray) -> bool:
    bin_ = GROCERY.fixtures["bin"]
    assert isinstance(bin_, BinFixture)
    off = np.abs(position[:2] - np.array(bin_.xyz[:2]))
    return bool((off < np.array(bin_.size[:2]) / 2).all() and position[2] < bin_.xyz[2] + 0.1)


def test_some_cells_are_of_one_arm_and_some_of_both() -> None:
    alice, bob = (set(GROCERY.arms[name].reach) & set(CELLS) for name in ("alice", "bob"))
    assert alice | bob == set(CELLS) and alice & bob and alice - bob and bob - alice
    assert not GROCERY.shared_placements, "nothing is handed over"


@pytest.mark.parametrize("seed", range(20))
def test_each_item_goes_straight_into_its_slot(seed: int, coordinate: Callable[..., EpisodeSummary]) -> None:
    start = draw_start(GROCERY, seed)
    assert set(start.values()) <= set(CELLS)
    summary = coordinate(GROCERY, seed)
    assert summary.success and summary.admitted == len(GROCERY.entities), summary


def test_arms_share_the_bin_by_halves() -> None:
    def zones(arm: str, cell: str, slot: str) -> set[str]:
        action = Action("move", "apple", slot)
        return {e for e in declare(GROCERY, arm, action, {"apple": cell}).exclusive if e.startswith("zone:")}

    assert zones("alice", "cell1", "slot1") == {"zone:west"}
    assert zones("bob", "cell8", "slot6") == {"zone:east"}
    assert zones("bob", "cell8", "slot5") == {"zone:west", "zone:east"}
    for arm in GROCERY.arms.values():  # nobody enters the bin without declaring a part of it
        for cell in set(arm.reach) & set(CELLS):
            for slot in set(arm.reach) - set(CELLS):
                assert zones("alice" if arm is GROCERY.arms["alice"] else "bob", cell, slot)


def test_every_placement_is_reached(plan_every_placement: Callable[[Scenario], None]) -> None:
    plan_every_placement(GROCERY)


def test_the_bin_fills_and_its_walls_hold() -> None:
    simulation = Simulation(GROCERY, 8)
    try:
        summary = InProcessEpisode(simulation).run(8)
        assert summary.success and summary.arm_contacts == 0, summary
        world = simulation.world()
        assert locate(GROCERY, world) == {name: entity.goal for name, entity in GROCERY.entities.items()}
        assert all(_inside(np.array(position)) for position in world.positions.values())
        assert not observe(GROCERY, world, "alice").entities
        # Kicked towards the near wall, an item stays in the bin.
        apple = simulation.scene.entities["apple"]
        simulation.data.qvel[apple.dof : apple.dof + 2] = [0.0, -1.0]
        simulation.run(1.0)
        assert _inside(simulation.poses()["apple"][0])
    finally:
        simulation.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_an_episode_with_physics(seed: int) -> None:
    summary = run_episode(GROCERY, seed)
    assert summary.success and summary.arm_contacts == 0, summary
