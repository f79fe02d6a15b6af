"""Fixtures: where they stand, that they carry and stop entities, that the planner keeps clear of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyarm_core.plant.motion import PlanFailure
from polyarm_core.plant.scene import build_scene
from polyarm_core.plant.simulation import Simulation
from polyarm_core.scenario import Scenario, load_scenario, parse_scenario


def _sort_with(**fixtures: dict[str, Any]) -> Scenario:
    return parse_scenario({**load_scenario("sort").model_dump(mode="json", exclude_none=True), "fixtures": fixtures})


def test_geoms_of_boxes_and_bins() -> None:
    scenario = _sort_with(
        shelf={"kind": "box", "xyz": [0.0, 0.9, 0.3], "size": [0.4, 0.2, 0.1], "yaw_deg": 90.0},
        crate={"kind": "bin", "xyz": [0.0, 1.3, 0.2], "size": [0.3, 0.2, 0.08], "wall": 0.01},
    )
    model = build_scene(scenario, visuals=False).model
    shelf = model.geom("fixture/shelf")
    assert np.allclose(shelf.size, [0.2, 0.1, 0.05])
    body = model.body("fixture/shelf")
    assert np.allclose(body.pos, [0.0, 0.9, 0.3]) and np.allclose(body.quat, [np.sqrt(0.5), 0, 0, np.sqrt(0.5)])
    walls = [model.geom(f"fixture/crate/{side}") for side in ("west", "east", "south", "north")]
    assert all(np.isclose(wall.pos[2] + wall.size[2], 0.08) for wall in walls)
    assert np.isclose(walls[1].pos[0] - walls[1].size[0], 0.15) and np.isclose(walls[3].pos[1] - walls[3].size[1], 0.1)


def test_a_bin_keeps_what_falls_into_it() -> None:
    sim = Simulation(_sort_with(crate={"kind": "bin", "xyz": [1.6, 0.5, 0.2], "size": [0.3, 0.2, 0.08]}))
    try:
        sim.place_entity("blue_square", (1.6, 0.5, 0.35))
        sim.data.qvel[sim.scene.entities["blue_square"].dof] = 0.6
        sim.run(1.5)
        x, y, z = sim.poses()["blue_square"][0]
        assert abs(x - 1.6) < 0.15 and abs(y - 0.5) < 0.1 and abs(z - 0.235) < 0.003
    finally:
        sim.close()


def test_the_planner_goes_round_a_wall_and_refuses_what_is_walled_in() -> None:
    def plan(fixtures: dict[str, dict[str, Any]]) -> float:
        sim = Simulation(_sort_with(**fixtures))
        try:
            start = {"blue_square": "panel1", "pink_polygon": "panel5", "yellow_trapezoid": "panel7"}
            sim.reset(0, start)
            wall = sim.scene.model.geom("fixture/wall").id if "wall" in fixtures else -1
            carried = sim.planner.plan_move("alice", "blue_square", "pad2", sim.snapshot(), ())
            lowest = np.inf
            for joints in carried.place.positions:
                position = sim.planner.kinematics["alice"].forward(joints)[:3, 3]
                if abs(position[0] + 0.98) < 0.02:  # over the wall
                    lowest = min(lowest, position[2])
            assert np.isfinite(lowest) and (wall < 0 or lowest > 0.42), "the tool passes above the wall"
            return float(lowest)
        finally:
            sim.close()

    assert plan({}) < 0.42
    plan({"wall": {"kind": "box", "xyz": [-0.98, 0.5, 0.26], "size": [0.02, 0.3, 0.22]}})
    with pytest.raises(PlanFailure):
        plan({"lid": {"kind": "box", "xyz": [-0.8, 0.5, 0.32], "size": [0.3, 0.3, 0.02]}})
