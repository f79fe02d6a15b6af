"""What may happen to a simulated cell in the middle of an episode: each ends in a hold, and the episode goes on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("mujoco")

from polyarm_core.bench.in_process import EpisodeOptions, InProcessEpisode
from polyarm_core.plant.simulation import Simulation
from polyarm_core.plant.skills import ActionResult
from polyarm_core.scenario import load_scenario

# seed 0 of sort: blue on panel5, pink on pad2, yellow on panel7; five moves, the first are alice's and chad's
Event = Callable[[Simulation], bool]


class Disturbed(Simulation):
    """A simulation to which something happens once: ``event`` is asked at every step until it says that it has."""

    event: Event | None = None

    def step(self, ticks: int = 1) -> None:
        super().step(ticks)
        if self.event is not None and self.event(self):
            self.event = None


@pytest.fixture(scope="module")
def simulation() -> Disturbed:
    return Disturbed(load_scenario("sort"))


def held(simulation: Simulation, arm: str) -> str:
    return next((entity for entity, holder in simulation.held_by().items() if holder == arm), "")


def episode(simulation: Disturbed, event: Event) -> list[ActionResult]:
    """The results of an episode in which the event takes place; it succeeds, and nobody touches anybody."""
    results: list[ActionResult] = []
    resting: list[bool] = []

    def on_result(result: ActionResult) -> None:
        results.append(result)
        if result.outcome != "succeeded":
            assert simulation.arm(result.arm).status in ("moving", "holding", "protective_stop")  # not idle: not home
            before = simulation.arm(result.arm).positions
            simulation.run(1.0)
            rest = simulation.arm(result.arm).positions
            simulation.run(0.3)
            resting.append(bool(np.abs(simulation.arm(result.arm).positions - rest).max() < 0.005))
            assert np.abs(rest - before).max() < 0.4  # it has slowed down, not gone on

    simulation.event = event
    summary = InProcessEpisode(simulation, EpisodeOptions(clear_stops=True), on_result=on_result).run(0)
    assert simulation.event is None, "the event did not take place"
    assert all(resting)
    assert summary.success and summary.arm_contacts == 0, summary
    return results


def ends(results: list[ActionResult]) -> list[tuple[str, str, str]]:
    return [(r.arm, r.outcome, r.reason) for r in results if r.outcome != "succeeded"]


def test_slip(simulation: Disturbed) -> None:
    def event(sim: Simulation) -> bool:
        if sim.phase("alice") != "place" or held(sim, "alice") != "pink_polygon":
            return False
        if sim.poses()["pink_polygon"][0][2] < 0.26:
            return False
        sim.place_entity("pink_polygon", (-0.72, 0.57, 0.226))  # out of the fingers, back onto the pad
        return True

    assert ends(episode(simulation, event)) == [("alice", "failed", "slip")]


def test_blocked_path(simulation: Disturbed) -> None:
    index = simulation.scene.arms["chad"]
    damping = simulation.scene.model.dof_damping
    free = damping[index.dof].copy()

    def event(sim: Simulation) -> bool:
        if sim.phase("chad") == "pick" and damping[index.dof[0]] == free[0]:
            damping[index.dof] = 1e5  # as if somebody leant against it
        elif damping[index.dof[0]] != free[0] and sim.phase("chad") == "":
            damping[index.dof] = free
            return True
        return False

    results = episode(simulation, event)
    assert ends(results) == [("chad", "failed", "timeout")]
    assert any("blocked" in result.text for result in results)


def test_protective_stop(simulation: Disturbed) -> None:
    def event(sim: Simulation) -> bool:
        if sim.phase("alice") != "pick":
            return False
        sim._note(sim._skills["alice"].protective_stop("pressed", sim.time))  # as a contact does
        return True

    assert ends(episode(simulation, event)) == [("alice", "stopped", "protective_stop")]


def test_lost_lease(simulation: Disturbed) -> None:
    def event(sim: Simulation) -> bool:
        if sim.phase("alice") != "place" or not held(sim, "alice"):
            return False
        sim.stop("alice", "lease_expired")
        assert held(sim, "alice") == "pink_polygon"  # a stop does not open the gripper
        return True

    assert ends(episode(simulation, event)) == [("alice", "stopped", "lease_expired")]


def test_a_person_moves_an_entity_between_slots(simulation: Disturbed) -> None:
    """Yellow lies on its pad; somebody puts it back to where it came from, and it is fetched again."""

    def event(sim: Simulation) -> bool:
        if abs(sim.poses()["yellow_trapezoid"][0][0] - 0.8) > 0.05 or sim.phase("chad"):
            return False
        sim.place_entity("yellow_trapezoid", (1.2, 0.5, 0.196))
        return True

    results = episode(simulation, event)
    assert ends(results) == []
    assert [r.action.entity for r in results].count("yellow_trapezoid") == 2


def test_a_person_puts_an_entity_onto_the_placement_that_another_is_carried_to(simulation: Disturbed) -> None:
    """Nothing is set down on what stands there: the arm holds, with what it carries, until the placement is free."""

    def event(sim: Simulation) -> bool:
        if sim.phase("bob") == "place" and sim.poses()["pink_polygon"][0][2] > 0.26:
            sim.place_entity("yellow_trapezoid", (0.0, 0.5, 0.226))
        elif sim.phase("bob") == "" and held(sim, "bob") == "pink_polygon":
            sim.place_entity("yellow_trapezoid", (0.8, 0.5, 0.226))  # takes it away again
            return True
        return False

    results = episode(simulation, event)
    assert ends(results) == [("bob", "failed", "occupied")]
    assert any(result.text == "yellow_trapezoid is on pad4" for result in results)
