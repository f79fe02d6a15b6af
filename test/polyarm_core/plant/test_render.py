"""Pictures come out of a process of their own, with and without OpenGL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.plant import render
from polyarm_core.plant.simulation import Simulation
from polyarm_core.scenario import Scenario, load_scenario


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("sort")


@pytest.fixture(scope="module")
def frames(scenario: Scenario) -> list[np.ndarray]:
    simulation = Simulation(scenario)
    first = simulation.qpos()
    simulation.place_entity("blue_square", (0.0, 0.5, 0.6))
    return [first, simulation.qpos()]


def test_rays_alone_make_a_picture(scenario: Scenario, frames: list[np.ndarray], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    images = render.render_frames(
        scenario, frames, size=(240, 160), backend="raycast", progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 2), (2, 2)]
    assert [(image.shape, image.dtype) for image in images] == [((160, 240, 3), np.uint8)] * 2
    for image in images:
        red, green, blue = (image[..., k].astype(int) for k in range(3))
        assert ((red > 150) & (green > 120) & (blue < 100)).sum() > 10  # yellow
        assert ((blue > 120) & (blue > red + 60)).sum() > 10  # blue
        assert image.std() > 20
    assert (images[0] != images[1]).any(axis=2).sum() > 20  # the blue square moved
    png = render.save_png(tmp_path / "scene.png", images[0])
    assert np.array_equal(np.asarray(Pillow.open(png)), images[0])
    gif = render.save_gif(tmp_path / "scene.gif", images)
    with Pillow.open(gif) as animation:
        assert animation.n_frames == 2


def test_a_missing_backend_is_named_with_its_packages(
    scenario: Scenario, frames: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "_render_in_process", lambda folder, name, total, progress: "library not found")
    with pytest.raises(render.RenderFailed, match="libegl1 libegl-mesa0 libgl1-mesa-dri") as caught:
        render.render_frames(scenario, frames, backend="egl")
    assert caught.value.tried == {"egl": "library not found"}
    with pytest.raises(render.RenderFailed) as caught:
        render.render_frames(scenario, frames)
    assert list(caught.value.tried) == ["egl", "osmesa", "raycast"]


def test_a_process_that_dies_is_reported(scenario: Scenario, tmp_path: Path) -> None:
    reason = render._render_in_process(str(tmp_path), "raycast", 1, None)  # no job file there
    assert "job.npz" in reason


def test_arguments_are_checked(scenario: Scenario, frames: list[np.ndarray]) -> None:
    with pytest.raises(UnknownName, match="overview"):
        render.render_frames(scenario, frames, camera="selfie")
    with pytest.raises(UnknownName, match="raycast"):
        render.render_frames(scenario, frames, backend="crayon")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        render.render_frames(scenario, frames, size=(5, 5))
    assert render.render_frames(scenario, []) == []
