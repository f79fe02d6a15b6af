"""A rope: a one-dimensional flex between two rigid end handles, laid out at the start, measured by sensors.

The rope is deformable: a chain of point masses whose edges keep their length (a flex with an equality constraint on
its edges and no elasticity), which bends freely, rests on things and is dragged over them. Its first and last point
are fixed to the handles, which are ordinary entities, so the world and the agents see a rope as its two ends.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from polyarm_core.scenario import BinFixture, Box, RopeFixture, Scenario

EDGE_TIME = 0.01
"""Time constant of the constraint that keeps the edges' lengths, s."""
DRAG = 0.03
"""Damping of each point of the rope, N s/m: air and fibres, which keep a hanging rope from swinging for ever."""
TOUCH = 0.004
"""A point of the rope whose surface is this close above the groove's floor rests on it, m."""


@dataclass(frozen=True)
class RopeIndex:
    """Where a rope lives in the model.

    Attributes:
        flex: id of the flex; its vertices come in order from the first end to the second.
        qpos: addresses (vertices - 2, 3) of the inner points' coordinates.
        origins: (3,) their common zero in the scenario frame, m.
        offsets: (2, 3) where the rope begins and ends in the frames of its two handles, m.
    """

    name: str
    fixture: RopeFixture
    flex: int
    qpos: Any
    origins: Any
    offsets: Any


def _offsets(scenario: Scenario, rope: RopeFixture) -> Any:
    """Middle of each handle's inner face, low enough for the rope to lie on what the handle stands on."""
    offsets = []
    for end, side in zip(rope.ends, (1.0, -1.0), strict=True):
        shape = scenario.entities[end].shape
        assert isinstance(shape, Box)  # the scenario has checked
        offsets.append([0.0, side * shape.size[1] / 2, rope.radius - shape.size[2] / 2])
    return np.array(offsets)


def add_rope(spec: Any, scenario: Scenario, name: str, rope: RopeFixture) -> None:
    """Add the rope to a scene that has its ends already; in the model's zero pose it is straight, along y."""
    offsets = _offsets(scenario, rope)
    points = np.zeros((rope.vertices, 3))
    points[:, 1] = np.linspace(-rope.length / 2, rope.length / 2, rope.vertices)
    points[:, 2] = 1.0
    local = np.zeros((rope.vertices, 3))
    local[0], local[-1] = offsets
    bodies = []
    mass = rope.mass / (rope.vertices - 2)
    for k, point in enumerate(points):
        if k in (0, rope.vertices - 1):
            body = spec.body(f"entity/{rope.ends[min(k, 1)]}")
            body.pos = point - local[k]
        else:
            body = spec.worldbody.add_body(name=f"fixture/{name}/{k}", pos=[0.0, 0.0, 0.0])
            body.explicitinertial = True
            body.mass, body.inertia = mass, [0.4 * mass * rope.radius**2] * 3
            for axis, direction in zip("xyz", np.eye(3), strict=True):
                body.add_joint(
                    name=f"fixture/{name}/{k}/{axis}", type=mujoco.mjtJoint.mjJNT_SLIDE, axis=direction, damping=DRAG,
                    ref=0.0,
                )  # fmt: skip
            body.pos = point
        bodies.append(body.name)
    flex = spec.add_flex(name=f"fixture/{name}")
    flex.dim, flex.radius, flex.rgba = 1, rope.radius, rope.rgba
    flex.vertbody, flex.vert = bodies, local.flatten()
    flex.elem = [index for k in range(rope.vertices - 1) for index in (k, k + 1)]
    flex.selfcollide = mujoco.mjtFlexSelf.mjFLEXSELF_NONE
    flex.condim, flex.friction = 3, [0.6, 0.005, 0.0001]
    equality = spec.add_equality(name=f"fixture/{name}", type=mujoco.mjtEq.mjEQ_FLEX)
    equality.objtype, equality.name1 = mujoco.mjtObj.mjOBJ_FLEX, f"fixture/{name}"
    equality.solref = [EDGE_TIME, 1.0]


def index_rope(scenario: Scenario, model: Any, name: str, rope: RopeFixture) -> RopeIndex:
    """Addresses of a rope in a compiled scene."""
    qpos = np.array(
        [[model.joint(f"fixture/{name}/{k}/{axis}").qposadr[0] for axis in "xyz"] for k in range(1, rope.vertices - 1)]
    )
    origins = np.array([model.body(f"fixture/{name}/{k}").pos for k in range(1, rope.vertices - 1)])
    return RopeIndex(
        name,
        rope,
        int(mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_FLEX, f"fixture/{name}")),
        qpos,
        origins,
        _offsets(scenario, rope),
    )


def _wave(span: float, length: float, count: int) -> Any:
    """Points (count, 2) of one period of a sine over ``span``, evenly spaced along it, its arc ``length`` long."""
    along = np.linspace(0.0, span, 400)
    low, high = 0.0, length

    def arc(amplitude: float) -> tuple[Any, Any]:
        across = amplitude * np.sin(2 * math.pi * along / span)
        return across, np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(along), np.diff(across)))])

    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if arc(middle)[1][-1] < length else (low, middle)
    across, travelled = arc(low)
    at = np.linspace(0.0, travelled[-1], count)
    return np.stack([np.interp(at, travelled, along), np.interp(at, travelled, across)], axis=1)


def lay_rope(model: Any, data: Any, rope: RopeIndex, random: np.random.Generator) -> None:
    """Lay the rope flat between its ends, where they stand now, in a wave that takes up its slack.

    Args:
        model, data: of the scene; the ends' poses are read from ``data.qpos``, the inner points' written there.
        rope: its addresses.
        random: tells which way the wave goes first.
    """
    mujoco.mj_kinematics(model, data)
    ends = []
    for end, offset in zip(rope.fixture.ends, rope.offsets, strict=True):
        body = model.body(f"entity/{end}").id
        ends.append(data.xpos[body] + data.xmat[body].reshape(3, 3) @ offset)
    begin, finish = ends
    span = float(np.hypot(*(finish - begin)[:2]))
    wave = _wave(span, max(rope.fixture.length, span), rope.fixture.vertices)
    forward = (finish - begin)[:2] / span
    side = np.array([-forward[1], forward[0]]) * float(random.choice([-1.0, 1.0]))
    points = np.empty((len(wave), 3))
    points[:, :2] = begin[:2] + wave[:, :1] * forward + wave[:, 1:] * side
    points[:, 2] = (begin[2] + finish[2]) / 2
    data.qpos[rope.qpos] = points[1:-1] - rope.origins


def rope_readings(
    scenario: Scenario, model: Any, data: Any, rope: RopeIndex, held: Collection[str]
) -> Mapping[str, float]:
    """What the rope's sensors measure, m: see below; ``ROPE`` is the fixture's name, ``held`` what is in a gripper.

    * ``ROPE.lowest_end``, ``ROPE.highest_end``: height of an end's middle above the placement of its goal;
    * ``ROPE.end_offset``: the larger of the two ends' distances from their goals in the plane;
    * ``ROPE.hanging``: height of the one end that is held above its goal's surface when the other is not held, else 0;
    * ``END.held``: 1 for an end in a gripper, else 0;
    * ``ROPE.in_bed``: how many points of the rope rest on the floor of its bed.
    """
    goals = np.array([scenario.placements[name].xyz for name in rope.fixture.goals])
    ends = np.array([data.xpos[model.body(f"entity/{end}").id] for end in rope.fixture.ends])
    heights = ends[:, 2] - goals[:, 2]
    bed = scenario.fixtures[rope.fixture.bed]
    assert isinstance(bed, BinFixture)  # the scenario has checked
    first = int(model.flex_vertadr[rope.flex])
    points = data.flexvert_xpos[first : first + rope.fixture.vertices]
    yaw = math.radians(bed.yaw_deg)
    turn = np.array([[math.cos(yaw), math.sin(yaw)], [-math.sin(yaw), math.cos(yaw)]])
    local = (points[:, :2] - np.array(bed.xyz[:2])) @ turn.T
    inside = (np.abs(local) <= np.array(bed.size[:2]) / 2).all(axis=1)
    resting = points[:, 2] - rope.fixture.radius - bed.xyz[2] <= TOUCH
    lonely = [float(height) for end, height in zip(rope.fixture.ends, heights, strict=True) if end in held]
    return {
        **{f"{end}.held": float(end in held) for end in rope.fixture.ends},
        f"{rope.name}.hanging": lonely[0] if len(lonely) == 1 else 0.0,
        f"{rope.name}.lowest_end": float(heights.min()),
        f"{rope.name}.highest_end": float(heights.max()),
        f"{rope.name}.end_offset": float(np.linalg.norm((ends - goals)[:, :2], axis=1).max()),
        f"{rope.name}.in_bed": float((inside & resting).sum()),
    }
