"""Make the picture of a scenario for the documentation: play one episode without ROS and draw one moment of it.

python tools/picture.py rope --at 0.55 --out docs/rope.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from polyarm_core.bench.in_process import InProcessEpisode
from polyarm_core.plant.render import render_frames, save_png
from polyarm_core.plant.scene import CAMERAS
from polyarm_core.plant.simulation import TICK, Simulation
from polyarm_core.scenario import load_scenario

EVERY = 0.2
"""Time between two frames that are kept, simulated s."""


class Filmed(Simulation):
    """A simulation that remembers where everything was."""

    def reset(self, *arguments: Any, **options: Any) -> None:
        """As the simulation's, with an empty film."""
        super().reset(*arguments, **options)
        self.film = [self.qpos()]

    def step(self, ticks: int = 1) -> None:
        """As the simulation's; keeps a frame every `EVERY` s."""
        for _ in range(ticks):
            super().step()
            if self.time >= len(self.film) * EVERY - TICK / 2:
                self.film.append(self.qpos())


def main() -> None:
    """Play, pick a frame, draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", type=float, default=0.5, help="share of the episode's time, 0 to 1")
    parser.add_argument("--camera", choices=CAMERAS, default="overview")
    parser.add_argument("--size", type=int, nargs=2, default=(900, 600), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--out", type=Path, help="default docs/SCENARIO.png")
    options = parser.parse_args()
    scenario = load_scenario(options.scenario)
    simulation = Filmed(scenario, options.seed)
    summary = InProcessEpisode(simulation).run(options.seed)
    film = simulation.film
    frame = film[round(float(np.clip(options.at, 0.0, 1.0)) * (len(film) - 1))]
    out = options.out or Path("docs") / f"{scenario.name}.png"
    save_png(out, render_frames(scenario, [frame], options.camera, tuple(options.size), shadows=True)[0])
    print(f"{out}  success: {summary.success}, {summary.slots} slots, {simulation.time:.1f} s simulated")


if __name__ == "__main__":
    main()
