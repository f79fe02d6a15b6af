"""A cell file: a scenario as it stands in a real cell.

It names, per arm, what its drivers offer (namespace, joints, controller, gripper, safety) and replaces what was
measured in the cell: base poses, taught placements, reach. Wherever a scenario file is accepted, a cell file is too,
so twin, agents and monitor all see the placements as they were taught. Its first key is ``cell``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import Field, ValidationError, model_validator

from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_core.scenario import (
    Base,
    Name,
    Positive,
    Scenario,
    Vec3,
    _Model,
    config_directory,
    load_scenario,
    parse_scenario,
)

Topic = Annotated[str, Field(pattern=r"^/?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$", max_length=200)]
JointName = Annotated[str, Field(min_length=1, max_length=100)]


class CellError(PolyarmError):
    """The cell file is not valid; the message names each key, its value and what is expected."""


class FingerJoints(_Model):
    """Opening of a gripper from joint states: ``offset + scale * (sum of the joints)``, in m.

    ``topic``: where they are published, if not with the arm's.
    """

    joints: Annotated[tuple[JointName, ...], Field(min_length=1)]
    topic: Topic | None = None
    offset: float = 0.0
    scale: float = 1.0

    @model_validator(mode="after")
    def _invertible(self) -> FingerJoints:
        if self.scale == 0.0:
            raise ValueError("scale must not be 0")
        return self


class ParallelGripper(_Model):
    """Two fingers. ``command`` takes the opening to go to (std_msgs/Float64, m).

    Attributes:
        action: GripperCommand action (needs control_msgs) to be used instead of ``command``. Its position is the
            opening, or, where ``state`` names finger joints, what one of them has at that opening.
        max_effort: of that action, N.
        open, closed: widths between the fingers, m.
        state: topic with the measured opening (std_msgs/Float64, m), or finger joints in the arm's joint states. A
            grasp is judged by it, so it must be there.
    """

    kind: Literal["parallel"]
    command: Topic = "gripper/command"
    action: Topic | None = None
    max_effort: Positive = 40.0
    open: Positive
    closed: Annotated[float, Field(ge=0.0)] = 0.0
    state: Topic | FingerJoints

    @model_validator(mode="after")
    def _ordered(self) -> ParallelGripper:
        if self.closed >= self.open:
            raise ValueError(f"closed ({self.closed} m) must be less than open ({self.open} m)")
        return self

    def position(self, opening: float) -> float:
        """What the action is told for an opening (m): the inverse of `FingerJoints`."""
        if isinstance(self.state, str):
            return opening
        return (opening - self.state.offset) / (self.state.scale * len(self.state.joints))


class SuctionGripper(_Model):
    """A vacuum cup. ``command``: std_msgs/Float64, 0 = on, 1 = off.

    ``detected``: topic that says whether something is sucked on (std_msgs/Bool); without it the perception alone
    tells, that is, only once the entity ought to have moved along.
    """

    kind: Literal["suction"]
    command: Topic = "gripper/command"
    detected: Topic | None = None


Gripper = Annotated[ParallelGripper | SuctionGripper, Field(discriminator="kind")]


class CellArm(_Model):
    """One arm and its drivers. Topics without a leading slash lie in ``namespace``.

    Attributes:
        namespace: of the drivers; without a leading slash in the cell's own.
        joints: the driver's names, in the order of the robot model's joints (base to tip).
        controller: its trajectory controller (``scaled_joint_trajectory_controller`` for UR drivers).
        motion: how trajectories are sent: ``topic``, or ``action`` (FollowJointTrajectory, needs control_msgs).
        gripper: kind and topics.
        joint_states: topic, sensor_msgs/JointState.
        safety_mode: topic, std_msgs/UInt8 with UR's numbers (1 normal, 2 reduced; anything else stops the arm),
            reliable and transient local; None for an arm without one.
        speed_scaling: topic, std_msgs/Float64, per cent by which the controller stretches time; None if it has none.
        robot: robot model, if not the scenario's.
        base: measured base pose in the scenario frame, if not the scenario's.
        reach: placements that it can touch, if not the scenario's.
        velocity_scaling: share of the robot model's joint speeds that motions are planned with.
    """

    namespace: Topic
    joints: Annotated[tuple[JointName, ...], Field(min_length=1)]
    controller: Topic = "joint_trajectory_controller"
    motion: Literal["topic", "action"] = "topic"
    gripper: Gripper
    joint_states: Topic = "joint_states"
    safety_mode: Topic | None = "safety_mode"
    speed_scaling: Topic | None = None
    robot: str | None = None
    base: Base | None = None
    reach: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    velocity_scaling: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0

    def topic(self, name: str) -> str:
        """Name of one of the arm's topics as seen from the cell's namespace."""
        return name if name.startswith("/") else f"{self.namespace}/{name}"


class TaughtPlacement(_Model):
    """Where a placement is: ``xyz`` in the scenario frame, or ``taught`` by arms, each in its own base frame (m).

    A pose is taught by touching the centre of the surface with the tool's tip. Arms that share a placement should
    each teach it: if their answers differ, a base pose is wrong.
    """

    xyz: Vec3 | None = None
    taught: dict[Name, Vec3] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of(self) -> TaughtPlacement:
        if (self.xyz is None) == (not self.taught):
            raise ValueError("give either 'xyz: [x, y, z]' or 'taught: {arm: [x, y, z]}'")
        return self


class Deadlines(_Model):
    """Longest silence, s, after which an arm holds: of its joint states, and of the perception as a whole."""

    joint_states: Positive = 0.5
    perception: Positive = 1.0


class Cell(_Model):
    """A scenario in a real cell.

    Attributes:
        cell: its name.
        scenario: packaged name, or a path relative to the cell file.
        world: prefix of the perception's topics; entity E is on ``WORLD/E/pose`` (geometry_msgs/PoseStamped).
        frame: frame_id that those poses must carry, if not the scenario's.
        agreement: placements that two arms have taught may differ by this much, m.
        arms: every arm of the scenario.
        placements: those that were taught; the others stay where the scenario has them.
    """

    cell: Name
    scenario: str
    world: Topic = "perception"
    frame: str | None = None
    agreement: Positive = 0.01
    deadlines: Deadlines = Deadlines()
    arms: Annotated[dict[Name, CellArm], Field(min_length=1)]
    placements: dict[Name, TaughtPlacement] = Field(default_factory=dict)

    def entity_topic(self, entity: str) -> str:
        """Topic on which the perception publishes an entity's pose."""
        return f"{self.world}/{entity}/pose"

    def apply(self, scenario: Scenario) -> Scenario:
        """The scenario with what was measured in the cell.

        Raises:
            UnknownName: an arm or a placement that the scenario does not have.
            CellError: an arm is missing, or arms disagree about a placement.
            ScenarioError: what results is not valid.
        """
        for name in self.arms:
            scenario.arm(name)
        if missing := sorted(set(scenario.arms) - set(self.arms)):
            raise CellError(f"cell {self.cell}: arms without drivers: {', '.join(missing)}")
        data = scenario.model_dump(mode="json")
        for name, arm in self.arms.items():
            given = {"robot": arm.robot, "reach": arm.reach, "base": arm.base and arm.base.model_dump(mode="json")}
            data["arms"][name].update({key: value for key, value in given.items() if value is not None})
        measured = parse_scenario(data, origin=f"cell {self.cell}")
        for name, placement in self.placements.items():
            measured.placement(name)
            data["placements"][name]["xyz"] = self._position(name, placement, measured)
        return parse_scenario(data, origin=f"cell {self.cell}")

    def _position(self, name: str, placement: TaughtPlacement, scenario: Scenario) -> list[float]:
        if placement.xyz is not None:
            return list(placement.xyz)
        points = {arm: in_world(scenario.arm(arm).base, point) for arm, point in placement.taught.items()}
        mean = np.mean(list(points.values()), axis=0)
        far = {arm: float(np.linalg.norm(point - mean)) for arm, point in points.items()}
        if max(far.values()) > self.agreement / 2:
            told = "; ".join(f"{arm}: {np.round(point, 4).tolist()}" for arm, point in points.items())
            raise CellError(
                f"cell {self.cell}: placements.{name}: the arms disagree by more than agreement = {self.agreement} m "
                f"({told}, in the scenario frame); measure the base poses again or teach it again"
            )
        return [float(value) for value in mean]


def in_world(base: Base, point: Vec3) -> np.ndarray[Any, Any]:
    """A point (m) of an arm's base frame in the scenario frame: base.xyz + R_z(yaw) point."""
    yaw = math.radians(base.yaw_deg)
    c, s = math.cos(yaw), math.sin(yaw)
    x, y, z = point
    return np.array([base.xyz[0] + c * x - s * y, base.xyz[1] + s * x + c * y, base.xyz[2] + z])


def is_cell(data: Any) -> bool:
    """Whether the content of a YAML file is that of a cell file."""
    return isinstance(data, dict) and "cell" in data


def cell_names() -> list[str]:
    """Names of the cells that come with the package."""
    return sorted(path.stem for path in (config_directory() / "cells").glob("*.yaml"))


def cell_path(name_or_path: str | Path) -> Path:
    """File of a packaged cell, or the path itself. Raises UnknownName, InvalidValue."""
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        if str(name_or_path) not in cell_names():
            raise UnknownName("cell", str(name_or_path), cell_names())
        path = config_directory() / "cells" / f"{name_or_path}.yaml"
    if not path.is_file():
        raise InvalidValue("cell", str(name_or_path), "a packaged name or the path of an existing YAML file")
    return path


def load_cell(name_or_path: str | Path) -> tuple[Cell, Scenario]:
    """A packaged cell by name or any cell file by path, and its scenario as measured there.

    Raises:
        UnknownName, InvalidValue: no such file; an arm or placement that the scenario does not have.
        CellError: the file is not YAML or not a valid cell.
    """
    path = cell_path(name_or_path)
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise CellError(f"{path}: not YAML: {error}") from None
    return parse_cell(data, path)


def parse_cell(data: Any, path: Path) -> tuple[Cell, Scenario]:
    """Validate the content of a cell file at ``path``. Raises as :func:`load_cell`."""
    if not is_cell(data):
        raise CellError(f"{path} is not a cell file: it has no key 'cell'")
    try:
        cell = Cell.model_validate(data)
    except ValidationError as error:
        lines = [f"{path} is not a valid cell:"]
        for fault in error.errors():
            key = ".".join(str(part) for part in fault["loc"]) or "(top level)"
            value = repr(fault.get("input"))
            lines.append(f"  {key}: {fault['msg']} (got {value if len(value) <= 80 else value[:77] + '...'})")
        raise CellError("\n".join(lines)) from None
    inside = path.parent / cell.scenario
    return cell, cell.apply(load_scenario(inside if inside.suffix in {".yaml", ".yml"} else cell.scenario))
