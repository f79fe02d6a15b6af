"""From a bag to poses of the plant's model, and from these to a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mujoco", reason="MuJoCo is not installed")

import numpy as np

from polyarm_core.bags.reader import Bag, BagError
from polyarm_core.bags.render import poses, render_bag, scenario_of_bag
from polyarm_core.errors import InvalidValue
from polyarm_core.plant.scene import build_scene
from polyarm_core.plant.simulation import Simulation
from polyarm_core.scenario import Scenario, load_scenario


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("sort")


@pytest.fixture(scope="module")
def simulated(maker: Any, scenario: Scenario, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A bag of what a real simulation would publish, and the poses that it really had."""
    simulation = Simulation(scenario, seed=3)
    messages: list[tuple[float, str, Any]] = []
    truth = []
    for number in range(4):
        at = float(number)
        for arm in scenario.arms:
            view = simulation.arm(arm)
            joints = maker.make(
                "sensor_msgs/msg/JointState",
                name=list(view.joints),
                position=np.array(view.positions, dtype=float),
                velocity=np.zeros(0),
                effort=np.zeros(0),
            )
            messages.append((at, f"/cell/{arm}/joint_states", joints))
        entities = []
        for name, (position, turn) in simulation.poses().items():
            entity = maker.make("EntityState", name=name)
            entity.pose.position.x, entity.pose.position.y, entity.pose.position.z = map(float, position)
            entity.pose.orientation.w, entity.pose.orientation.x = float(turn[0]), float(turn[1])
            entity.pose.orientation.y, entity.pose.orientation.z = float(turn[2]), float(turn[3])
            entities.append(entity)
        arms = [maker.make("ArmState", name=arm, opening=simulation.arm(arm).opening) for arm in scenario.arms]
        messages.append((at + 0.1, "/cell/world", maker.make("WorldState", episode=1, entities=entities, arms=arms)))
        truth.append(simulation.qpos())
        simulation.run(0.3)
        if number == 0:
            simulation.place_entity("blue_square", (0.0, 0.5, 0.4))  # something that moves: it falls
    path = tmp_path_factory.mktemp("simulated") / "bag"
    maker.write(path, messages, {"scenario": "sort", "scenario_definition": scenario.model_dump_json()})
    return path, truth


def test_recorded_poses_are_those_of_the_simulation(simulated: tuple[Path, list[Any]], scenario: Scenario) -> None:
    path, truth = simulated
    scene = build_scene(scenario, visuals=False)
    with Bag(path) as bag:
        drawn = poses(bag, scene, None, 100)
        assert scenario_of_bag(bag) == scenario
        two = poses(bag, scene, 1, 2)
        with pytest.raises(BagError, match="no episode 9; it holds 1"):
            poses(bag, scene, 9, 5)
    assert len(drawn) == 4
    np.testing.assert_array_equal(two, [drawn[0], drawn[-1]])
    where = [address for arm in scene.arms.values() for address in arm.qpos]
    where += [entity.qpos + k for entity in scene.entities.values() for k in range(7)]
    fingers = scene.arms["bob"].finger_qpos
    for shown, real in zip(drawn, truth, strict=True):
        np.testing.assert_allclose(shown[where], real[where], atol=1e-9)
        # The message has one opening for two fingers, in single precision.
        np.testing.assert_allclose(shown[fingers].sum(), real[fingers].sum(), atol=1e-3)
    assert not np.allclose(drawn[0], drawn[-1])


@pytest.mark.parametrize("name", ["scene.png", "deep/scene.gif"])
def test_a_bag_becomes_a_picture(simulated: tuple[Path, list[Any]], tmp_path: Path, name: str) -> None:
    from PIL import Image

    seen: list[tuple[int, int]] = []
    frames = render_bag(simulated[0], tmp_path / name, frames=2, progress=lambda done, of: seen.append((done, of)))
    assert frames == (1 if name.endswith("png") else 2) and seen[-1] == (frames, frames)
    with Image.open(tmp_path / name) as picture:
        assert getattr(picture, "n_frames", 1) == frames
        colours = np.asarray(picture.convert("RGB"))
    assert colours.std() > 10, "the picture is one colour"


def test_what_cannot_be_drawn_is_refused(simulated: tuple[Path, list[Any]], maker: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"\.png or \.gif"):
        render_bag(simulated[0], tmp_path / "scene.bmp")
    maker.write(tmp_path / "nameless", [], {})
    with pytest.raises(BagError, match="does not say which scenario"):
        render_bag(tmp_path / "nameless", tmp_path / "scene.png")
