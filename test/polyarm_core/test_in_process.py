"""Episodes in one process: the graph's own state machines, repeatable, with and without a twin."""

from __future__ import annotations

import pytest

from polyarm_core.bench.in_process import EpisodeOptions, EpisodeStalled, InProcessEpisode, run_episode
from polyarm_core.orchestrator import OrchestratorOptions, Strategy
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.plant.simulation import Simulation
from polyarm_core.scenario import load_scenario
from polyarm_core.slots import SlotOptions

SORT = load_scenario("sort")


@pytest.mark.parametrize("strategy", Strategy)
def test_every_strategy_brings_every_start_to_its_goal(strategy: Strategy) -> None:
    options = EpisodeOptions(slots=SlotOptions(orchestrator=OrchestratorOptions(strategy=strategy)))
    plant = KinematicPlant(SORT)
    for seed in range(20):
        summary = InProcessEpisode(plant, options).run(seed)
        assert summary.success and summary.seed == seed, summary
        assert summary.slots >= summary.sim_time > 0  # a simulated second an action, and no slot takes longer


def test_the_same_seed_gives_the_same_episode() -> None:
    first, again = (run_episode(SORT, 2) for _ in range(2))
    assert first == again
    assert first.success and first.arm_contacts == 0


def test_without_a_twin_arms_collide() -> None:
    """The start of this seed makes two arms want the same panel at once."""
    simulation = Simulation(SORT, 0)
    try:
        unchecked = InProcessEpisode(simulation, EpisodeOptions(checked=False, clear_stops=True)).run(0)
        assert unchecked.arm_contacts > 0 and unchecked.vetoes == 0
        checked = InProcessEpisode(simulation).run(0)
        assert checked.success and checked.arm_contacts == 0 and checked.vetoes > 0
    finally:
        simulation.close()


def test_without_a_twin_an_occupied_place_costs_an_attempt() -> None:
    plant = KinematicPlant(SORT)
    summaries = [InProcessEpisode(plant, EpisodeOptions(checked=False)).run(seed) for seed in range(20)]
    assert any(summary.failed_actions for summary in summaries)
    assert not all(summary.success for summary in summaries)  # nobody looks ahead


def test_an_action_that_does_not_end_is_named() -> None:
    plant = KinematicPlant(SORT, duration=1e6)
    with pytest.raises(EpisodeStalled, match="move"):
        InProcessEpisode(plant, EpisodeOptions(action_limit=5.0)).run(0)
