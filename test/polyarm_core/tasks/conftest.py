"""What the tests of pick-and-place tasks share."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from polyarm_core.bench.in_process import EpisodeOptions, InProcessEpisode
from polyarm_core.episode import EpisodeSummary
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.plant.motion import MotionPlanner, PlanningScene
from polyarm_core.plant.scene import build_scene
from polyarm_core.scenario import Scenario
from polyarm_core.world import is_progress, swept_zones

AWAY = (np.array([0.0, 0.0, -9.0]), np.array([1.0, 0.0, 0.0, 0.0]))


def _plan_every_placement(scenario: Scenario) -> None:
    scene = build_scene(scenario, visuals=False)
    planner = MotionPlanner(scene)
    joints = {name: np.array(arm.robot.home) for name, arm in scene.arms.items()}
    for name, arm in scenario.arms.items():
        moves = [
            (entity, source, destination)
            for entity, source, destination in itertools.product(sorted(scenario.entities), arm.reach, arm.reach)
            if is_progress(scenario, entity, source, destination) and source != scenario.entities[entity].goal
        ]
        sources, destinations = set[str](), set[str]()
        for entity, source, destination in moves:
            if source in sources and destination in destinations:
                continue
            sources.add(source)
            destinations.add(destination)
            x, y, z = scenario.placements[source].xyz
            poses = dict.fromkeys(scenario.entities, AWAY)
            poses[entity] = (np.array([x, y, z + scene.entities[entity].half_height]), AWAY[1])
            zones = swept_zones(scenario, name, {source, destination})
            plan = planner.plan_move(name, entity, destination, PlanningScene(joints, poses), zones)
            end = planner.kinematics[name].forward(plan.retreat.positions[0])[:2, 3]
            assert np.hypot(*(end - scenario.placements[destination].xyz[:2])) < 0.02
        assert sources | destinations == set(arm.reach)


@pytest.fixture
def plan_every_placement() -> Callable[[Scenario], None]:
    """Plans, for every arm, from and to each placement of its reach, entering no zone but those that it declares."""
    return _plan_every_placement


def _coordinate(scenario: Scenario, seed: int, options: EpisodeOptions | None = None) -> EpisodeSummary:
    return InProcessEpisode(KinematicPlant(scenario, seed), options).run(seed)


@pytest.fixture
def coordinate() -> Callable[..., EpisodeSummary]:
    """One episode without physics: twin and agents alone."""
    return _coordinate
