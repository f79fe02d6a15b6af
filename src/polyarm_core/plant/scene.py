"""The MuJoCo scene of a scenario: table, placements, entities, arms; who owns which joint, geom and actuator.

Placements that are too small for two entities become trays with a rim, so that a second cube physically does not fit;
larger ones become flat pads. Zones become invisible boxes that touch nothing in the physics; the planner's private
copy of the model turns them on as obstacles for arms that have no business there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from polyarm_core.plant.cabinet import DoorIndex, add_cabinet, index_doors
from polyarm_core.plant.robots import TOOL_SITE, RobotModel, robot_model, robot_spec
from polyarm_core.plant.rope import RopeIndex, add_rope, index_rope
from polyarm_core.plant.tools import add_tool
from polyarm_core.scenario import (
    BinFixture,
    Box,
    BoxFixture,
    CabinetFixture,
    Entity,
    Placement,
    Prism,
    RopeFixture,
    Scenario,
    Shape,
)

Array = npt.NDArray[np.float64]

TIMESTEP = 0.002
"""Physics step, s."""
TABLE_TOP_BELOW = 0.01
"""Lowest placement surface above the table's top, m."""
RIM_HEIGHT, RIM_WIDTH = 0.012, 0.006
TABLE_MARGIN = (0.3, 0.3)
"""Table beyond the outermost placement centres in x and y, m."""
ARM_MARGIN = 0.3
"""What pictures show beyond the bases, m."""
ZONE_BIT = 2
"""Collision bit of zones. Nothing in the physics seeks it; the planner gives it to the arms of its private copy."""
CAMERAS = ("overview", "front", "top")


@dataclass(frozen=True)
class ArmIndex:
    """Where one arm lives in the model: addresses into qpos, qvel and ctrl, ids of geoms, bodies and sites."""

    name: str
    robot: RobotModel
    qpos: npt.NDArray[np.intp]
    dof: npt.NDArray[np.intp]
    ctrl: npt.NDArray[np.intp]
    finger_qpos: npt.NDArray[np.intp]
    finger_ctrl: int
    geoms: frozenset[int]
    bodies: frozenset[int]
    tool: int
    base: Array
    """Pose of the base in the scenario frame, 4x4."""
    lag: Array
    """kd/kp of each servo, s: the command q + lag * qdot cancels the servo's velocity lag."""


@dataclass(frozen=True)
class EntityIndex:
    """Where one entity lives in the model, its extent above the centre and its possible grips."""

    name: str
    qpos: int
    dof: int
    body: int
    geoms: frozenset[int]
    half_height: float
    grips: tuple[tuple[float, float], ...]
    """(yaw of the closing direction in the entity's frame, width in m) of each pair of parallel faces."""


@dataclass(frozen=True)
class Scene:
    """A compiled scene and its indices; the model is shared, never changed."""

    scenario: Scenario
    model: Any
    arms: dict[str, ArmIndex]
    entities: dict[str, EntityIndex]
    arm_of_geom: npt.NDArray[np.intp]
    """(ngeom + 1,) index of the arm that owns the geom, -1 for none; the last entry answers for what is no geom (-1 in
    a contact: a flex)."""
    entity_of_geom: npt.NDArray[np.intp]
    zone_geoms: dict[str, int]
    welds: dict[tuple[str, str], int]
    """(arm, entity) -> equality that holds it, only where the scenario says ``grasp: assisted``."""
    ropes: dict[str, RopeIndex] = field(default_factory=dict)
    doors: dict[str, DoorIndex] = field(default_factory=dict)

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Arms in the order of the scenario file."""
        return tuple(self.arms)


def outline(shape: Shape) -> Array:
    """Corners (k, 2) of the shape's footprint in its own frame, m, counter-clockwise, centroid at the origin."""
    if isinstance(shape, Prism):
        angles = 2 * np.pi * (np.arange(shape.sides) + 0.5) / shape.sides
        return np.stack([shape.radius * np.cos(angles), shape.radius * np.sin(angles)], axis=1)
    depth, width = shape.size[0] / 2, shape.size[1] / 2
    top = 1.0 if isinstance(shape, Box) else shape.top
    corners = np.array([[-depth, -width], [depth, -width * top], [depth, width * top], [-depth, width]])
    # Centroid of a trapezoid with parallel sides a, b and height h: h (a + 2b) / (3 (a + b)) from side a.
    shift = 2 * depth * (1 + 2 * top) / (3 * (1 + top)) - depth
    return np.asarray(corners - np.array([shift, 0.0]))


def grips(shape: Shape) -> tuple[tuple[float, float], ...]:
    """Pairs of parallel faces: (yaw of their normal in the shape's frame, rad; distance, m)."""
    corners = outline(shape)
    edges = np.roll(corners, -1, axis=0) - corners
    found: list[tuple[float, float]] = []
    for i, edge in enumerate(edges):
        normal = np.array([edge[1], -edge[0]]) / np.hypot(*edge)
        if any(abs(edge[0] * other[1] - edge[1] * other[0]) < 1e-9 and edge @ other < 0 for other in edges[i + 1 :]):
            extent = corners @ normal
            found.append((math.atan2(normal[1], normal[0]), float(extent.max() - extent.min())))
    return tuple(found)


def needs_rim(placement: Placement, scenario: Scenario) -> bool:
    """True when two of the scenario's smallest entities do not fit side by side on the placement."""
    narrowest = min((2 * np.abs(outline(e.shape)).max(axis=0).min() for e in scenario.entities.values()), default=0.0)
    return max(placement.size) < 2 * narrowest


def _add_box(parent: Any, name: str, low: Any, high: Any, **options: Any) -> Any:
    low, high = np.asarray(low, float), np.asarray(high, float)
    return parent.add_geom(
        name=name, type=mujoco.mjtGeom.mjGEOM_BOX, pos=(low + high) / 2, size=(high - low) / 2, **options
    )


def _add_placement(
    spec: Any, name: str, placement: Placement, rim: bool, table_top: float, tint: tuple[float, ...] | None
) -> None:
    x, y, z = placement.xyz
    a, b = placement.size[0] / 2, placement.size[1] / 2
    if not placement.pad and z > table_top + TABLE_TOP_BELOW:  # in the air: what stands below it carries
        return
    if not placement.pad:  # as thick as paint
        low, high = [x - a, y - b, z - 0.001], [x + a, y + b, z + 0.0004]
        _add_box(spec.worldbody, f"placement/{name}", low, high, material="pad", contype=0, conaffinity=0)
        return
    material = "tray" if rim else "pad"
    if tint is not None:  # a goal shows the colour of what belongs there
        material = f"placement/{name}"
        spec.add_material(name=material, rgba=[*(0.55 * np.array(tint[:3]) + 0.4), 1.0], specular=0.1, shininess=0.3)
    _add_box(spec.worldbody, f"placement/{name}", [x - a, y - b, table_top], [x + a, y + b, z], material=material)
    if not rim:
        return
    outer_a, outer_b, top = a + RIM_WIDTH, b + RIM_WIDTH, z + RIM_HEIGHT
    walls = {
        "west": ([x - outer_a, y - outer_b], [x - a, y + outer_b]),
        "east": ([x + a, y - outer_b], [x + outer_a, y + outer_b]),
        "south": ([x - a, y - outer_b], [x + a, y - b]),
        "north": ([x - a, y + b], [x + a, y + outer_b]),
    }
    for side, (low, high) in walls.items():
        _add_box(spec.worldbody, f"placement/{name}/{side}", [*low, table_top], [*high, top], material="rim")


def _add_fixture(spec: Any, name: str, fixture: BoxFixture | BinFixture) -> None:
    """A static body ``fixture/NAME`` at the fixture's pose; the planner avoids its geoms like everything else."""
    yaw = math.radians(fixture.yaw_deg)
    body = spec.worldbody.add_body(
        name=f"fixture/{name}", pos=fixture.xyz, quat=[math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)]
    )
    a, b, c = fixture.size[0] / 2, fixture.size[1] / 2, fixture.size[2]
    if fixture.kind == "box":
        _add_box(body, f"fixture/{name}", [-a, -b, -c / 2], [a, b, c / 2], rgba=fixture.rgba)
    elif fixture.kind == "bin":
        t = fixture.wall
        parts = {
            "floor": ([-a, -b, -t], [a, b, 0.0]),
            "west": ([-a - t, -b - t, -t], [-a, b + t, c]),
            "east": ([a, -b - t, -t], [a + t, b + t, c]),
            "south": ([-a, -b - t, -t], [a, -b, c]),
            "north": ([-a, b, -t], [a, b + t, c]),
        }
        for part, (low, high) in parts.items():
            _add_box(body, f"fixture/{name}/{part}", low, high, rgba=fixture.rgba)


def _add_entity(spec: Any, name: str, entity: Entity) -> None:
    body = spec.worldbody.add_body(name=f"entity/{name}", pos=[0, 0, 1])
    body.add_freejoint(name=f"entity/{name}")
    options: dict[str, Any] = {
        "name": f"entity/{name}", "mass": entity.mass, "rgba": entity.rgba, "condim": 4, "friction": [1.0, 0.02, 0.001],
    }  # fmt: skip
    if isinstance(entity.shape, Box):
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=np.array(entity.shape.size) / 2, **options)
        return
    half = entity.shape.height / 2
    corners = outline(entity.shape)
    vertices = np.concatenate([np.c_[corners, np.full(len(corners), z)] for z in (-half, half)])
    spec.add_mesh(name=f"entity/{name}", uservert=vertices.flatten())
    body.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname=f"entity/{name}", **options)


def _pose(xyz: tuple[float, float, float], yaw: float) -> Array:
    pose = np.eye(4)
    pose[:2, :2] = [[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]]
    pose[:3, 3] = xyz
    return pose


def _add_surroundings(spec: Any, scenario: Scenario, table_top: float) -> None:
    spec.visual.headlight.ambient = [0.28, 0.28, 0.3]
    spec.visual.headlight.diffuse = [0.28, 0.28, 0.28]
    spec.visual.headlight.specular = [0.05, 0.05, 0.05]
    # "global" is a Python keyword.
    view = getattr(spec.visual, "global_", None) or getattr(spec.visual, "global")
    view.offwidth, view.offheight = 1920, 1440
    spec.visual.quality.shadowsize = 4096
    spec.add_texture(
        name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.93, 0.95, 0.97], rgb2=[0.62, 0.68, 0.75], width=256, height=256,
    )  # fmt: skip
    spec.add_texture(
        name="floor", type=mujoco.mjtTexture.mjTEXTURE_2D, builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=[0.80, 0.81, 0.82], rgb2=[0.76, 0.77, 0.78], width=256, height=256,
    )  # fmt: skip
    floor = spec.add_material(name="floor", texrepeat=[6, 6], reflectance=0.0, specular=0.1)
    floor.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "floor"
    for name, rgba, specular in (
        ("table", [0.86, 0.84, 0.80, 1], 0.1), ("pad", [0.55, 0.72, 0.60, 1], 0.1),
        ("tray", [0.42, 0.47, 0.53, 1], 0.1),
        ("rim", [0.30, 0.34, 0.40, 1], 0.2), ("pedestal", [0.34, 0.36, 0.40, 1], 0.2),
    ):  # fmt: skip
        spec.add_material(name=name, rgba=rgba, specular=specular, shininess=0.3)
    world = spec.worldbody
    centres = np.array([p.xyz[:2] for p in scenario.placements.values()])
    low, high = centres.min(axis=0) - TABLE_MARGIN, centres.max(axis=0) + TABLE_MARGIN
    middle = (low + high) / 2
    world.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[6, 6, 0.1], material="floor", pos=[*middle, 0])
    _add_box(world, "table", [*low, 0.0], [*high, table_top], material="table")
    for x, y, diffuse, shadow in ((-1.5, -1.5, 0.5, True), (2.0, 2.5, 0.25, False)):
        light = world.add_light(
            pos=[middle[0] + x, middle[1] + y, 3.5], dir=[-0.3 * x, -0.3 * y, -1.0], castshadow=shadow,
            diffuse=[diffuse] * 3, specular=[0.2] * 3,
        )  # fmt: skip
        light.type = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    # Arms stand at the edge of the table or beyond it, and lean over it.
    bases = np.array([arm.base.xyz[:2] for arm in scenario.arms.values()])
    low, high = np.minimum(low, bases.min(axis=0) - ARM_MARGIN), np.maximum(high, bases.max(axis=0) + ARM_MARGIN)
    middle = (low + high) / 2
    # Pictures are wider than high, and what is near the camera looks larger.
    reach = float(max((high - low) * [1.0, 1.3]))
    for name, direction, distance, fovy in (
        ("overview", (-0.40, -1.0, 1.30), 1.02 * reach, 38.0),
        ("front", (0.0, -1.0, 0.6), 0.95 * reach, 42.0),
        ("top", (0.0, -0.001, 1.0), 0.95 * reach, 42.0),
    ):
        back = np.array(direction) / np.linalg.norm(direction)
        x_axis = np.cross([0.0, 0.0, 1.0], back)
        x_axis /= np.linalg.norm(x_axis)
        camera = world.add_camera(name=name, pos=np.array([*middle, 0.3]) + distance * back, fovy=fovy)
        camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
        camera.alt.xyaxes = [*x_axis, *np.cross(back, x_axis)]


def build_scene(scenario: Scenario, visuals: bool = True) -> Scene:
    """Compile the scene of a scenario.

    Args:
        scenario: the scenario; all lengths in m in its frame.
        visuals: with the meshes that are only looked at (needed for pictures). Joints, actuators, entities and their
            order are the same either way, so a qpos of one fits the other.

    Raises:
        UnknownName: a robot that nobody knows.
        RobotFilesMissing: a robot's files are nowhere.
    """
    spec = mujoco.MjSpec()
    spec.modelname = scenario.name
    option = spec.option
    # Options live on the parent: attached models lose theirs. These three make a friction grasp hold without creep.
    option.timestep, option.integrator = TIMESTEP, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.cone, option.impratio, option.noslip_iterations = mujoco.mjtCone.mjCONE_ELLIPTIC, 10.0, 5
    multiccd = getattr(mujoco.mjtEnableBit, "mjENBL_MULTICCD", None)  # several contacts between flat mesh faces
    if multiccd is not None:
        option.enableflags |= int(multiccd)
    table_top = min(p.xyz[2] - (TABLE_TOP_BELOW if p.pad else 0.0) for p in scenario.placements.values())
    _add_surroundings(spec, scenario, table_top)
    tints = {entity.goal: entity.rgba for entity in scenario.entities.values() if entity.goal is not None}
    for name, placement in scenario.placements.items():
        _add_placement(spec, name, placement, needs_rim(placement, scenario), table_top, tints.get(name))
    for name, zone in scenario.zones.items():
        _add_box(
            spec.worldbody, f"zone/{name}", [*zone.min, table_top], [*zone.max, table_top + 1.5],
            contype=0, conaffinity=ZONE_BIT, group=5, rgba=[1, 0.3, 0.2, 0.15],
        )  # fmt: skip
    for name, fixture in scenario.fixtures.items():
        if isinstance(fixture, CabinetFixture):
            add_cabinet(spec, name, fixture)
        elif not isinstance(fixture, RopeFixture):
            _add_fixture(spec, name, fixture)
    for name, entity in scenario.entities.items():
        _add_entity(spec, name, entity)
    for name, fixture in scenario.fixtures.items():
        if isinstance(fixture, RopeFixture):  # its ends are entities
            add_rope(spec, scenario, name, fixture)
    for name, arm in scenario.arms.items():
        x, y, z = arm.base.xyz
        pedestal = spec.worldbody.add_body(name=f"pedestal/{name}", pos=[x, y, z / 2])
        pedestal.add_geom(type=mujoco.mjtGeom.mjGEOM_CYLINDER, size=[0.11, z / 2, 0], material="pedestal")
        yaw = math.radians(arm.base.yaw_deg)
        frame = spec.worldbody.add_frame(pos=arm.base.xyz, quat=[math.cos(yaw / 2), 0, 0, math.sin(yaw / 2)])
        robot = robot_spec(arm.robot, visuals)
        spec.attach(add_tool(robot, arm.tool) if arm.tool else robot, frame=frame, prefix=f"{name}/")
        for body in spec.bodies:
            if body.name.startswith(f"{name}/") and body.parent.name == "world":
                # The base is bolted to its pedestal, and the shoulder turns right above it.
                for part in (body, *body.bodies):
                    spec.add_exclude(bodyname1=pedestal.name, bodyname2=part.name)
    if scenario.grasp == "assisted":
        for name, arm in scenario.arms.items():
            for item in scenario.entities:
                weld = spec.add_equality(name=f"weld/{name}/{item}", type=mujoco.mjtEq.mjEQ_WELD, active=False)
                weld.objtype = mujoco.mjtObj.mjOBJ_BODY
                weld.name1, weld.name2 = f"{name}/{robot_model(arm.robot).flange}", f"entity/{item}"
    return _index(scenario, spec.compile())


def _index(scenario: Scenario, model: Any) -> Scene:
    arm_of_geom = np.full(model.ngeom + 1, -1, dtype=np.intp)
    entity_of_geom = np.full(model.ngeom + 1, -1, dtype=np.intp)
    arms: dict[str, ArmIndex] = {}
    owner = [model.body(b).name.split("/") for b in range(model.nbody)]
    for number, (name, arm) in enumerate(scenario.arms.items()):
        robot = robot_model(arm.robot)
        joints = [model.joint(f"{name}/{joint}") for joint in robot.joints]
        actuators = [model.actuator(f"{name}/{actuator}").id for actuator in robot.actuators]
        bodies = frozenset(b for b in range(model.nbody) if owner[b][0] == name)
        geoms = frozenset(g for g in range(model.ngeom) if int(model.geom_bodyid[g]) in bodies)
        arm_of_geom[list(geoms)] = number
        arms[name] = ArmIndex(
            name=name,
            robot=robot,
            qpos=np.array([joint.qposadr[0] for joint in joints]),
            dof=np.array([joint.dofadr[0] for joint in joints]),
            ctrl=np.array(actuators),
            finger_qpos=np.array([model.joint(f"{name}/{joint}").qposadr[0] for joint in robot.finger_joints], int),
            finger_ctrl=model.actuator(f"{name}/{robot.finger_actuator}").id,
            geoms=geoms,
            bodies=bodies,
            tool=model.site(f"{name}/{TOOL_SITE}").id,
            base=_pose(arm.base.xyz, math.radians(arm.base.yaw_deg)),
            lag=np.array([model.actuator_biasprm[a, 2] / model.actuator_biasprm[a, 1] for a in actuators]),
        )
    entities: dict[str, EntityIndex] = {}
    for number, (name, entity) in enumerate(scenario.entities.items()):
        joint = model.joint(f"entity/{name}")
        body = model.body(f"entity/{name}").id
        geoms = frozenset(g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == body)
        entity_of_geom[list(geoms)] = number
        qpos, dof = int(joint.qposadr[0]), int(joint.dofadr[0])
        shape = entity.shape
        entities[name] = EntityIndex(name, qpos, dof, body, geoms, shape.height / 2, grips(shape))
    zones = {name: model.geom(f"zone/{name}").id for name in scenario.zones}
    welds = {
        (arm, entity): model.equality(f"weld/{arm}/{entity}").id
        for arm in arms
        for entity in entities
        if scenario.grasp == "assisted"
    }
    ropes = {
        name: index_rope(scenario, model, name, fixture)
        for name, fixture in scenario.fixtures.items()
        if isinstance(fixture, RopeFixture)
    }
    return Scene(
        scenario, model, arms, entities, arm_of_geom, entity_of_geom, zones, welds, ropes, index_doors(scenario, model)
    )
