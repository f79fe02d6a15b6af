"""Tools that are fixed to a gripper: dustpan and broom.

A tool is a rigid body on the gripper's palm, as if it had been screwed on; the fingers neither hold nor touch it. Its
geometry is given in the frame of the arm's tool site, whose z axis points out of the gripper, down while it works; the
pan's mouth and the broom's face look along its x axis.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from polyarm_core.plant.robots import TOOL_SITE

PAN_BACK, PAN_FLAT, PAN_LIP = 0.06, 0.25, 0.28
"""Along x from the grip: the pan's back wall, the end of its flat floor, where the ramp begins, and its lip, m."""
PAN_HALF_WIDTH, PAN_WALL, PAN_HEIGHT = 0.075, 0.004, 0.045
PAN_DEPTH, PAN_FLOOR = 0.125, 0.004
"""Height of the grip over the pan's underside and thickness of its floor, m."""
BROOM_HALF_WIDTH, BROOM_HALF_THICKNESS = 0.05, 0.01
BROOM_TOP, BROOM_DEPTH = 0.04, 0.14
"""Height of the grip over the paddle's upper and lower edge, m."""
GRIP = 0.7
"""Friction of the tools, whatever touches them: holds what is in a level pan, lets it slide at 35 degrees."""


def add_tool(spec: Any, tool: str) -> Any:
    """Fix a tool to the robot of an ``MjSpec`` before it is attached to a scene. Returns the spec."""
    site = next(site for site in spec.sites if site.name == TOOL_SITE)
    palm = site.parent
    body = palm.add_body(name="tool", pos=site.pos, quat=site.quat)
    body.gravcomp = 1.0  # the controller knows its payload
    options: dict[str, Any] = {
        "rgba": [0.25, 0.45, 0.6, 1.0], "mass": 0.05, "condim": 4, "friction": [GRIP, 0.01, 0.001], "priority": 1,
    }  # fmt: skip
    box = mujoco.mjtGeom.mjGEOM_BOX

    def add_box(low: Any, high: Any, **more: Any) -> None:
        low, high = np.array(low), np.array(high)
        body.add_geom(type=box, pos=(low + high) / 2, size=(high - low) / 2, **{**options, **more})

    if tool == "dustpan":
        w, t, bottom = PAN_HALF_WIDTH, PAN_WALL, PAN_DEPTH
        add_box([-0.012, -0.02, -0.01], [0.012, 0.02, bottom - 0.03])  # grip
        add_box([-0.012, -0.02, bottom - 0.04], [PAN_BACK, 0.02, bottom - 0.028])  # arm to the back wall
        add_box([PAN_BACK - t, -w, bottom - PAN_HEIGHT], [PAN_BACK, w, bottom])
        for side in (-1.0, 1.0):
            low, high = sorted((side * w, side * (w - t)))
            add_box([PAN_BACK, low, bottom - PAN_HEIGHT], [PAN_FLAT, high, bottom])
        add_box([PAN_BACK, -w, bottom - PAN_FLOOR], [PAN_FLAT, w, bottom])
        # The lip: a rubber wedge that lies flush on whatever is under it, so it collides with nothing that is fixed.
        lip = body.add_body(name="lip")
        lip.gravcomp = 1.0
        edges = [
            (PAN_FLAT, bottom - PAN_FLOOR),
            (PAN_FLAT, bottom),
            (PAN_LIP, bottom + 0.0015),
            (PAN_LIP, bottom + 0.001),
        ]
        vertices = [[x, y, z] for x, z in edges for y in (-w, w)]
        spec.add_mesh(name="lip", uservert=np.array(vertices).flatten())
        lip.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="lip", **{**options, "mass": 0.01})
        bodies = [body, lip]
        spec.add_exclude(bodyname1="lip", bodyname2="world")
    else:
        w, t = BROOM_HALF_WIDTH, BROOM_HALF_THICKNESS
        add_box([-0.012, -0.015, -0.01], [0.012, 0.015, BROOM_TOP])
        add_box([-t, -w, BROOM_TOP], [t, w, BROOM_DEPTH], rgba=[0.8, 0.6, 0.25, 1.0])
        bodies = [body]
    for tool_body in bodies:  # the fingers stand around the grip
        for other in spec.bodies:
            if other.name not in ("world", *(b.name for b in bodies)):
                spec.add_exclude(bodyname1=tool_body.name, bodyname2=other.name)
    return spec
