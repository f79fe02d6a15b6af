"""A cabinet with self-closing doors: walls, a hinge with spring and damper for each door, and a post as its handle.

A handle is an upright post that stands off from its door, so that a gripper that comes down on it has one finger on
either side of it along the door's arc: what pulls the door is a finger, not friction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from polyarm_core.scenario import CabinetFixture, Scenario

GAP = 0.002
"""Between door and frame, and between two doors, m."""
PANEL = 0.014
"""Thickness of a door, m."""
POST_RADIUS = 0.012
STANDOFF = 0.13
"""Distance of the post's axis from the door's face, m."""
GRIP_LENGTH = 0.1
"""Length of the post above the strut that carries it, m."""
SPRING_PRELOAD = 0.25
"""The spring's rest angle lies this far behind the closed position, so that the door really shuts, rad."""
DENSITY = 350.0
"""Of the doors: chipboard over a hollow core, kg/m^3."""
FRICTION = (0.9, 0.005, 0.0001)


@dataclass(frozen=True)
class DoorIndex:
    """Where a door lives in the model and in space.

    Attributes:
        name: of the door, as operators and sensors (``NAME.angle``, rad) call it.
        fixture: the cabinet's name, ``qpos`` and ``dof`` the hinge's addresses, ``body`` its id.
        handle: geoms of post and strut; ``geoms``: those and the panel.
        hinge: position of the hinge in the scenario frame (3,), m; its z is that of the top of the post.
        closed: position of the post relative to the hinge in the plane when the door is closed (2,), m.
        turn: +1 if the door opens counter-clockwise seen from above, else -1.
        limit: largest angle, rad.
    """

    name: str
    fixture: str
    qpos: int
    dof: int
    body: int
    handle: frozenset[int]
    geoms: frozenset[int]
    hinge: Any
    closed: Any
    turn: float
    limit: float

    def post(self, angle: float) -> tuple[Any, float]:
        """(top of the post (3,) m, heading of the arc there in the opening direction, rad) at a door angle."""
        c, s = math.cos(self.turn * angle), math.sin(self.turn * angle)
        x, y = float(c * self.closed[0] - s * self.closed[1]), float(s * self.closed[0] + c * self.closed[1])
        heading = math.atan2(self.turn * x, -self.turn * y)
        return self.hinge + np.array([x, y, 0.0]), heading


def _box(body: Any, name: str, low: Any, high: Any, **options: Any) -> None:
    low, high = np.asarray(low, float), np.asarray(high, float)
    body.add_geom(name=name, type=mujoco.mjtGeom.mjGEOM_BOX, pos=(low + high) / 2, size=(high - low) / 2, **options)


def _post_top(cabinet: CabinetFixture) -> float:
    """Height of the top of the posts above the cabinet's bottom, m."""
    return cabinet.size[2] * 0.55


def add_cabinet(spec: Any, name: str, cabinet: CabinetFixture) -> None:
    """Add body ``fixture/NAME`` with its walls, and a body ``fixture/NAME/DOOR`` with a hinge for each door."""
    yaw = math.radians(cabinet.yaw_deg)
    prefix = f"fixture/{name}"
    body = spec.worldbody.add_body(name=prefix, pos=cabinet.xyz, quat=[math.cos(yaw / 2), 0, 0, math.sin(yaw / 2)])
    a, b, c, t = cabinet.size[0] / 2, cabinet.size[1] / 2, cabinet.size[2], cabinet.wall
    for part, (low, high) in {
        "left": ([-a, -b, 0], [-a + t, b, c]),
        "right": ([a - t, -b, 0], [a, b, c]),
        "back": ([-a, b - t, 0], [a, b, c]),
        "roof": ([-a, -b, c - t], [a, b, c]),
        "floor": ([-a, -b, 0], [a, b, t / 2]),
    }.items():
        _box(body, f"{prefix}/{part}", low, high, rgba=cabinet.rgba)
    top = _post_top(cabinet)
    width = 2 * a if len(cabinet.doors) == 1 else a
    unit = math.degrees(1.0) if spec.compiler.degree else 1.0
    shade = [*(0.82 * np.array(cabinet.rgba[:3])), 1.0]
    for door, side in cabinet.doors.items():
        sign = 1.0 if side == "left" else -1.0  # from the hinge to the free edge
        leaf = body.add_body(name=f"{prefix}/{door}", pos=[-sign * a, -b, 0.0])
        leaf.add_joint(
            name=f"{prefix}/{door}", type=mujoco.mjtJoint.mjJNT_HINGE, axis=[0.0, 0.0, -sign], limited=True,
            range=[0.0, cabinet.limit * unit], stiffness=cabinet.stiffness, damping=cabinet.damping, armature=0.01,
            springref=-SPRING_PRELOAD * unit,
        )  # fmt: skip
        near, far = sorted((0.0, sign * (width - GAP / 2)))
        _box(
            leaf, f"{prefix}/{door}/panel", [near, -GAP - PANEL, GAP], [far, -GAP, c - GAP], rgba=shade,
            density=DENSITY,
        )  # fmt: skip
        x, y = sign * cabinet.handle, -GAP - PANEL - STANDOFF
        steel = {"rgba": [0.75, 0.76, 0.78, 1.0], "friction": FRICTION, "condim": 4, "density": 1000.0}
        middle = top - GRIP_LENGTH
        _box(leaf, f"{prefix}/{door}/strut", [x - 0.01, y, middle - 0.02], [x + 0.01, -GAP - PANEL, middle], **steel)
        leaf.add_geom(
            name=f"{prefix}/{door}/post", type=mujoco.mjtGeom.mjGEOM_CYLINDER, pos=[x, y, (top + middle - 0.02) / 2],
            size=[POST_RADIUS, (GRIP_LENGTH + 0.02) / 2, 0.0], **steel,
        )  # fmt: skip


def index_doors(scenario: Scenario, model: Any) -> dict[str, DoorIndex]:
    """The doors of all cabinets of a compiled scene."""
    doors: dict[str, DoorIndex] = {}
    for name, cabinet in scenario.fixtures.items():
        if not isinstance(cabinet, CabinetFixture):
            continue
        yaw = math.radians(cabinet.yaw_deg)
        turn = np.array([[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]])
        for door, side in cabinet.doors.items():
            sign = 1.0 if side == "left" else -1.0
            joint, body = model.joint(f"fixture/{name}/{door}"), model.body(f"fixture/{name}/{door}").id
            geoms = frozenset(g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == body)
            hinge = np.array([0.0, 0.0, cabinet.xyz[2] + _post_top(cabinet)])
            hinge[:2] = np.array(cabinet.xyz[:2]) + turn @ [-sign * cabinet.size[0] / 2, -cabinet.size[1] / 2]
            doors[door] = DoorIndex(
                name=door,
                fixture=name,
                qpos=int(joint.qposadr[0]),
                dof=int(joint.dofadr[0]),
                body=body,
                handle=geoms - {model.geom(f"fixture/{name}/{door}/panel").id},
                geoms=geoms,
                hinge=hinge,
                closed=turn @ [sign * cabinet.handle, -GAP - PANEL - STANDOFF],
                turn=-sign,
                limit=cabinet.limit,
            )
    return doors
