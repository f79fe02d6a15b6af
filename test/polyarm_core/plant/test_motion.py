"""Inverse kinematics, time parametrisation and planning keep their promises."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.plant.motion import (
    MotionPlanner,
    PlanFailure,
    PlanningScene,
    Trajectory,
    matrix_of,
    parametrise,
    tool_down,
)
from polyarm_core.plant.scene import Scene, build_scene
from polyarm_core.scenario import Scenario, load_scenario


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("sort")


@pytest.fixture(scope="module")
def scene(scenario: Scenario) -> Scene:
    return build_scene(scenario, visuals=False)


@pytest.fixture(scope="module")
def planner(scene: Scene) -> MotionPlanner:
    return MotionPlanner(scene)


def snapshot_of(scene: Scene, **where: tuple[float, float, float]) -> PlanningScene:
    homes = {name: np.array(arm.robot.home) for name, arm in scene.arms.items()}
    spots = {
        "blue_square": (-1.12, 0.5, 0.195),
        "pink_polygon": (0.0, 0.5, 0.225),
        "yellow_trapezoid": (1.2, 0.5, 0.195),
    }
    spots.update(where)
    return PlanningScene(homes, {e: (np.array(xyz), np.array([1.0, 0.0, 0.0, 0.0])) for e, xyz in spots.items()})


@pytest.mark.parametrize("arm", ["alice", "bob", "chad"])
def test_inverse_reaches_what_forward_says(planner: MotionPlanner, scene: Scene, arm: str) -> None:
    rng = np.random.default_rng(1)
    kinematics = planner.kinematics[arm]
    home = np.array(scene.arms[arm].robot.home)
    for _ in range(10):
        target = kinematics.forward(home + rng.uniform(-0.25, 0.25, len(home)))
        joints = kinematics.inverse(target, home)
        assert joints is not None
        reached = kinematics.forward(joints)
        np.testing.assert_allclose(reached[:3, 3], target[:3, 3], atol=6e-4)
        np.testing.assert_allclose(reached[:3, :3], target[:3, :3], atol=5e-3)
        assert np.all(joints >= kinematics.lower) and np.all(joints <= kinematics.upper)
    assert kinematics.inverse(tool_down((5.0, 5.0, 0.2), 0.0), home) is None


@settings(max_examples=20, deadline=None)
@given(
    corners=st.lists(st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=3), min_size=1, max_size=4),
    v=st.floats(0.3, 3.0),
    a=st.floats(0.5, 8.0),
)
def test_trajectories_keep_their_limits(corners: list[list[float]], v: float, a: float) -> None:
    path: list[np.ndarray] = [np.zeros(3)]
    for corner in corners:
        path.extend(MotionPlanner._straight(path[-1], np.array(corner))[1:])
    trajectory = parametrise(path, [v] * 3, [a] * 3)
    assert np.all(np.diff(trajectory.times) > 0) and trajectory.times[0] == 0.0
    np.testing.assert_allclose(trajectory.positions[0], path[0], atol=1e-9)
    np.testing.assert_allclose(trajectory.positions[-1], path[-1], atol=1e-4)
    np.testing.assert_allclose(trajectory.velocities[[0, -1]], 0.0, atol=0.05 * v)
    assert np.abs(trajectory.velocities).max() <= v * (1 + 1e-9)
    # A cubic spline through 0.05 rad steps stays on the corners.
    dense = np.array(path)
    for position in trajectory.positions:
        assert np.abs(dense - position).max(axis=1).min() < 0.06


def test_sampling_meets_the_samples_and_their_slopes() -> None:
    t = np.linspace(0.0, 2.0, 21)
    wave = Trajectory(t, np.sin(t)[:, None], np.cos(t)[:, None])
    for time in np.linspace(0.0, 1.99, 100):
        position, velocity = wave.sample(float(time))
        assert position[0] == pytest.approx(np.sin(time), abs=1e-5)
        assert velocity[0] == pytest.approx(np.cos(time), abs=1e-3)
    position, velocity = wave.sample(99.0)
    assert (position[0], velocity[0]) == (wave.positions[-1, 0], 0.0)


def test_plans_are_clear_of_everything_and_repeatable(planner: MotionPlanner, scene: Scene, scenario: Scenario) -> None:
    snapshot = snapshot_of(scene)
    plan = planner.plan_move("bob", "pink_polygon", "panel5", snapshot, ["around_panel5"], seed=4)
    assert plan.pick is not None
    free = planner._checker("bob", snapshot, ["around_panel5"], ignored=["pink_polygon"])
    for trajectory in (plan.pick, plan.retreat):
        assert all(free(q) for q in trajectory.positions)
    tool = planner.kinematics["bob"].forward(plan.place.positions[-1])
    np.testing.assert_allclose(tool[:2, 3], scenario.placements["panel5"].xyz[:2], atol=2e-3)
    again = planner.plan_move("bob", "pink_polygon", "panel5", snapshot, ["around_panel5"], seed=4)
    for first, second in ((plan.pick, again.pick), (plan.place, again.place), (plan.retreat, again.retreat)):
        assert second is not None and first.positions.tobytes() == second.positions.tobytes()


def test_rrt_goes_around_and_repeats_by_seed(planner: MotionPlanner, scene: Scene) -> None:
    # A wall of entities in mid-air between home and the grasp forces a detour.
    lower = planner.kinematics["bob"].forward(np.array(scene.arms["bob"].robot.home))[:3, 3]
    snapshot = snapshot_of(scene, blue_square=(0.0, lower[1] + 0.05, 0.42), yellow_trapezoid=(0.1, 0.5, 0.4))
    home = np.array(scene.arms["bob"].robot.home)
    goal = planner.kinematics["bob"].inverse(tool_down((0.0, 0.5, 0.36), np.pi / 2), home)
    if goal is None:
        goal = planner.kinematics["bob"].inverse(tool_down((0.0, 0.5, 0.36), -np.pi / 2), home)
    assert goal is not None
    valid = planner._checker("bob", snapshot, list(scene.zone_geoms))
    goal = goal + np.array([-0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    start = goal + np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert valid(start) and valid(goal)
    assert not all(valid(q) for q in planner._straight(start, goal))  # so the straight way is no answer
    paths = [planner._connect("bob", start, goal, valid, seed) for seed in (1, 1, 2)]
    for path in paths:
        assert all(valid(q) for q in path)
        assert max(np.abs(b - a).max() for a, b in itertools.pairwise(path)) < 0.06
    assert np.array(paths[0]).tobytes() == np.array(paths[1]).tobytes()


def test_failures_say_why(planner: MotionPlanner, scene: Scene) -> None:
    with pytest.raises(PlanFailure) as caught:
        planner.plan_move("alice", "yellow_trapezoid", "pad2", snapshot_of(scene))
    assert caught.value.reason == "unreachable"
    tilted = snapshot_of(scene)
    lying = dict(tilted.entities)
    lying["blue_square"] = (lying["blue_square"][0], np.array([np.cos(0.4), np.sin(0.4), 0.0, 0.0]))
    with pytest.raises(PlanFailure, match="upright"):
        planner.plan_move("alice", "blue_square", "pad2", PlanningScene(tilted.joints, lying))
    with pytest.raises(PlanFailure) as caught:
        planner.plan_move("alice", "blue_square", "panel3", snapshot_of(scene), zones=[])
    assert caught.value.reason == "no_plan"


def test_held_entities_are_carried_along(planner: MotionPlanner, scene: Scene) -> None:
    snapshot = snapshot_of(scene)
    plan = planner.plan_move("alice", "blue_square", "pad2", snapshot)
    assert plan.pick is not None
    # Half way: the entity hangs from the tool; going on from there needs no grasp.
    joints = plan.place.positions[len(plan.place.times) // 2]
    tool = planner.kinematics["alice"].forward(joints)
    grasp = np.linalg.inv(planner.kinematics["alice"].forward(plan.pick.positions[-1])) @ matrix_of(
        snapshot.entities["blue_square"]
    )
    held = tool @ grasp
    entities = dict(snapshot.entities) | {"blue_square": (held[:3, 3], np.array([1.0, 0.0, 0.0, 0.0]))}
    middle = PlanningScene({**snapshot.joints, "alice": joints}, entities, {"blue_square": "alice"})
    rest = planner.plan_move("alice", "blue_square", "panel3", middle)
    assert rest.pick is None
    np.testing.assert_allclose(rest.place.positions[0], joints, atol=1e-9)
