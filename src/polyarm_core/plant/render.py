"""Pictures and videos of a scene from recorded joint positions, made in a process of their own.

The process keeps graphics libraries out of the physics and can be tried with one backend after the other: ``egl`` and
``osmesa`` (OpenGL, fast), then ``raycast``, which needs no graphics library at all: it shoots MuJoCo's own rays and
shades what they hit (a few seconds a picture).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_core.scenario import Scenario

Image = npt.NDArray[np.uint8]
Backend = Literal["auto", "egl", "osmesa", "raycast"]

BACKENDS = ("egl", "osmesa", "raycast")
TIMEOUT = 600.0


class RenderFailed(PolyarmError):
    """No backend made a picture; names the Debian packages that OpenGL rendering needs."""

    def __init__(self, tried: dict[str, str]) -> None:
        self.tried = tried
        details = "; ".join(f"{backend}: {reason}" for backend, reason in tried.items())
        super().__init__(
            f"could not render ({details}). For OpenGL without a screen install libegl1 libegl-mesa0 libgl1-mesa-dri "
            "(Debian, Ubuntu), or use the backend 'raycast'"
        )


def render_frames(
    scenario: Scenario,
    frames: Sequence[npt.NDArray[np.float64]],
    camera: str = "overview",
    size: tuple[int, int] = (720, 480),
    shadows: bool = False,
    backend: Backend = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> list[Image]:
    """One picture for each vector of joint positions.

    Args:
        scenario: the scene.
        frames: qpos vectors as `Simulation.qpos` gives them.
        camera: ``overview``, ``front`` or ``top``.
        size: width and height in pixels.
        shadows: shadows and smoothed edges, several times slower; for single pictures.
        backend: ``auto`` tries ``$MUJOCO_GL`` if set, then egl, osmesa, raycast.
        progress: called with (pictures done, pictures in all).

    Returns:
        images (height, width, 3) uint8.

    Raises:
        UnknownName: camera or backend.
        InvalidValue: size out of range.
        RenderFailed: no backend worked.
    """
    from polyarm_core.plant.scene import CAMERAS

    if camera not in CAMERAS:
        raise UnknownName("camera", camera, CAMERAS)
    if backend != "auto" and backend not in BACKENDS:
        raise UnknownName("render backend", backend, ("auto", *BACKENDS))
    if not (16 <= size[0] <= 1920 and 16 <= size[1] <= 1440):
        raise InvalidValue("size", size, "width 16 to 1920, height 16 to 1440")
    if not frames:
        return []
    wanted = os.environ.get("MUJOCO_GL", "")
    order = [backend] if backend != "auto" else sorted(BACKENDS, key=lambda name: name != wanted)
    tried: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="polyarm_render_") as folder:
        np.savez(
            Path(folder) / "job.npz", qpos=np.stack(frames), camera=camera, size=np.array(size), shadows=shadows,
            scenario=scenario.model_dump_json(),
        )  # fmt: skip
        for name in order:
            reason = _render_in_process(folder, name, len(frames), progress)
            if not reason:
                return list(np.load(Path(folder) / "images.npy"))
            tried[name] = reason
    raise RenderFailed(tried)


def _render_in_process(folder: str, backend: str, total: int, progress: Callable[[int, int], None] | None) -> str:
    """Run this module as a program; "" when it worked, else why not."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment["MUJOCO_GL"] = "disable" if backend == "raycast" else backend
    environment["PYOPENGL_PLATFORM"] = environment["MUJOCO_GL"]
    if backend == "raycast":
        del environment["PYOPENGL_PLATFORM"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "polyarm_core.plant.render", folder, backend],
            stdout=subprocess.PIPE, stderr=errors, env=environment, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if progress is not None and line.startswith("done "):
                    progress(int(line.split()[1]), total)
            code = process.wait(TIMEOUT)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if code == 0:
            return ""
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {code}"


def save_png(path: str | Path, image: Image) -> Path:
    """Write one image; returns the path."""
    from PIL import Image as Pillow

    Pillow.fromarray(image).save(Path(path), optimize=True)
    return Path(path)


def save_gif(path: str | Path, images: Sequence[Image], fps: float = 12.0) -> Path:
    """Write an endless animation with one shared palette; returns the path."""
    from PIL import Image as Pillow

    if not images:
        raise InvalidValue("images", 0, "at least one image")
    first = Pillow.fromarray(images[0]).quantize(128)
    rest = [Pillow.fromarray(image).quantize(palette=first, dither=Pillow.Dither.NONE) for image in images[1:]]
    duration = max(round(1000 / fps), 20)
    first.save(Path(path), save_all=True, append_images=rest, duration=duration, loop=0, optimize=True)
    return Path(path)


# -- in the process of its own ---------------------------------------------------------------------------------------


def _opengl(model: Any, data: Any, camera: str, size: tuple[int, int], shadows: bool) -> Callable[[], Image]:
    import mujoco

    model.vis.quality.offsamples = 8 if shadows else 0
    renderer = mujoco.Renderer(model, size[1], size[0])

    def picture() -> Image:
        renderer.update_scene(data, camera)
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = shadows
        return np.array(renderer.render(), np.uint8)

    return picture


def _raycast(model: Any, data: Any, camera: str, size: tuple[int, int], shadows: bool) -> Callable[[], Image]:
    """Lambert shading of MuJoCo's ray hits; the first light throws shadows."""
    import mujoco

    width, height = size
    samples = 2 if shadows else 1
    w, h = width * samples, height * samples
    groups = np.array([1, 1, 1, 0, 0, 0], np.uint8)
    colours = np.where(
        (model.geom_matid >= 0)[:, None], model.mat_rgba[np.maximum(model.geom_matid, 0)], model.geom_rgba
    )[:, :3]
    floor = model.geom("floor").id
    number = model.camera(camera).id
    half = np.tan(np.radians(model.cam_fovy[number]) / 2)
    x = (np.arange(w) + 0.5 - w / 2) / (h / 2) * half
    y = -(np.arange(h) + 0.5 - h / 2) / (h / 2) * half
    grid = np.stack([*np.meshgrid(x, y), np.full((h, w), -1.0)], axis=-1).reshape(-1, 3)
    grid /= np.linalg.norm(grid, axis=1, keepdims=True)

    def shoot(origin: Any, rays: Any) -> tuple[Any, Any, Any]:
        count = len(rays)
        hit, distance, normal = np.full(count, -1, np.int32), np.zeros(count), np.zeros(3 * count)
        mujoco.mj_multiRay(
            model, data, origin, rays.flatten(), groups, 1, -1, hit, distance, normal, count, mujoco.mjMAXVAL
        )
        return hit, distance, normal.reshape(-1, 3)

    def picture() -> Image:
        origin = data.cam_xpos[number].copy()
        rays = grid @ data.cam_xmat[number].reshape(3, 3).T
        hit, distance, normal = shoot(origin, rays)
        # Sky: paler towards the horizon.
        rise = np.clip(rays[:, 2:3] * 1.5 + 0.3, 0.0, 1.0)
        image = (1 - rise) * np.array([0.86, 0.89, 0.92]) + rise * np.array([0.66, 0.72, 0.79])
        seen = hit >= 0
        points, normals = origin + rays[seen] * distance[seen, None], normal[seen]
        normals *= -np.sign((normals * rays[seen]).sum(axis=1, keepdims=True))
        base = colours[hit[seen]].copy()
        ground = hit[seen] == floor
        tiles = (np.floor(points[ground, 0]) + np.floor(points[ground, 1])) % 2
        base[ground] = np.where(tiles[:, None] > 0, [0.80, 0.81, 0.82], [0.76, 0.77, 0.78])
        light = np.full((len(points), 3), 0.42)
        for k in range(model.nlight):
            towards = -data.light_xdir[k]
            facing = np.clip(normals @ towards, 0.0, None)
            if model.light_castshadow[k]:
                far = points.mean(axis=0) + 30.0 * towards
                beams = points - far
                reach = np.linalg.norm(beams, axis=1)
                blocker, length, _ = shoot(far, beams / reach[:, None])
                facing = np.where((blocker >= 0) & (length < reach - 0.01), 0.0, facing)
            light += facing[:, None] * model.light_diffuse[k]
        image[seen] = base * light
        image = image.reshape(height, samples, width, samples, 3).mean(axis=(1, 3))
        return np.array(np.clip(image, 0.0, 1.0) * 255, np.uint8)

    return picture


def _main(folder: str, backend: str) -> None:
    import mujoco

    from polyarm_core.plant.scene import build_scene

    with np.load(Path(folder) / "job.npz") as job:
        scenario = Scenario.model_validate_json(str(job["scenario"]))
        frames, camera, size = job["qpos"], str(job["camera"]), (int(job["size"][0]), int(job["size"][1]))
        shadows = bool(job["shadows"])
    model = build_scene(scenario, visuals=True).model
    data = mujoco.MjData(model)
    picture = (_raycast if backend == "raycast" else _opengl)(model, data, camera, size, shadows)
    images = np.lib.format.open_memmap(
        str(Path(folder) / "images.npy"), mode="w+", dtype=np.uint8, shape=(len(frames), size[1], size[0], 3)
    )
    for k, qpos in enumerate(frames):
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        images[k] = picture()
        print("done", k + 1, flush=True)
    images.flush()


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
