"""The scenario file as validated models: the single truth for names, reach, goals, zones and rules."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=48)]
Literals = tuple[Annotated[str, Field(pattern=r"^(not )?[a-z][a-z0-9_]*$", max_length=64)], ...]
Vec2 = tuple[float, float]
Vec3 = tuple[float, float, float]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class ScenarioError(PolyarmError):
    """The scenario file is not valid; the message names each key, its value and what is expected."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Base(_Model):
    """Where an arm is bolted down: position in the scenario frame (m) and yaw (degrees, counter-clockwise)."""

    xyz: Vec3
    yaw_deg: float = 0.0


class Arm(_Model):
    """One arm: robot model, base, reach band B_i (placements that it can touch) and its language model.

    ``tool``: fixed to its gripper, which then takes nothing else.
    """

    robot: str
    base: Base
    reach: Annotated[tuple[Name, ...], Field(min_length=1)]
    model: Name
    tool: Literal["dustpan", "broom"] | None = None


BACKENDS = ("transformers", "openai", "heuristic", "server")


class ModelSpec(_Model):
    """A language model that arms can name.

    ``url`` points to a running server (OpenAI-compatible for ``openai``, Polyarm's own for ``server``); ``timeout``
    is the longest that one decision may take, in seconds.
    """

    backend: Literal["transformers", "openai", "heuristic", "server"]
    name: str = ""
    url: str | None = None
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    timeout: Positive = 15.0


def parse_model(text: str, like: ModelSpec) -> ModelSpec:
    """A model given as ``BACKEND`` or ``BACKEND:NAME`` (command line, parameters); the rest as in ``like``.

    Raises:
        UnknownName: no such backend.
    """
    backend, _, name = text.partition(":")
    if backend not in BACKENDS:
        raise UnknownName("model backend", backend, BACKENDS)
    return ModelSpec.model_validate({**like.model_dump(), "backend": backend, "name": name or like.name})


class Placement(_Model):
    """A place where an entity can stand: ``pos(p)`` along the transport flow, surface centre (m), size in x, y (m).

    ``requires_held``: conditions that somebody must hold while an arm takes from or puts onto it (a door).
    ``legal_when``: conditions (or ``not condition``) under which something may be put onto it (an order of layers).
    ``relay``: false where nothing may be handed over although several arms reach it (a slot, a layer of a stack).
    ``pad``: false where no pad stands out: a mark on the table if it is level with it, nothing if it is above (a layer
    of a stack, a shelf).
    ``approach``: horizontal vector (m) along which a tool comes in from outside to take an entity; None = from above.
    """

    order: int
    xyz: Vec3
    size: tuple[Positive, Positive]
    relay: bool = True
    pad: bool = True
    approach: Vec2 | None = None
    requires_held: tuple[Name, ...] = ()
    legal_when: Literals = ()


class Box(_Model):
    """Box with edge lengths (m)."""

    kind: Literal["box"]
    size: tuple[Positive, Positive, Positive]

    @property
    def height(self) -> float:
        """Vertical extent, m."""
        return self.size[2]


class Prism(_Model):
    """Upright prism over a regular polygon: circumradius and height (m)."""

    kind: Literal["prism"]
    sides: Annotated[int, Field(ge=3, le=32)]
    radius: Positive
    height: Positive


class Trapezoid(_Model):
    """Upright trapezoid: ``size`` is depth, long side and height (m), ``top`` the ratio of the parallel sides."""

    kind: Literal["trapezoid"]
    size: tuple[Positive, Positive, Positive]
    top: Annotated[float, Field(gt=0.0, le=1.0)]

    @property
    def height(self) -> float:
        """Vertical extent, m."""
        return self.size[2]


Shape = Annotated[Box | Prism | Trapezoid, Field(discriminator="kind")]


class Operator(_Model):
    """An action of the task beside ``move``: who may do what to what, when it is legal, what it declares (eq. 7).

    Attributes:
        verb: its name; the plant has a skill of that name.
        arms: who can do it. With a ``group`` every member does its own part under the same verb.
        entity: entity or fixture that is acted on; ``placement``: where to. Either may be left out.
        legal_when: conditions (or ``not condition``) that must be true for the action to be legal.
        group, exclusive, requires_produced, requires_held, produces, holds: the six constraint fields. The entity
            (unless a group shares it) and the placement are exclusive without being named.
        undoes: conditions that the action makes false when it succeeds.
        skill: parameters of the plant's skill.
    """

    verb: Name
    arms: Annotated[tuple[Name, ...], Field(min_length=1)]
    entity: Name | None = None
    placement: Name | None = None
    legal_when: Literals = ()
    group: tuple[Name, ...] = ()
    exclusive: tuple[str, ...] = ()
    requires_produced: tuple[Name, ...] = ()
    requires_held: tuple[Name, ...] = ()
    produces: tuple[Name, ...] = ()
    holds: tuple[Name, ...] = ()
    undoes: tuple[Name, ...] = ()
    skill: dict[str, float | int | str | bool | list[float]] = Field(default_factory=dict)


class Occupied(_Model):
    """True while an entity (this one, if named) stands on a placement (or on one of several).

    ``gripped``: or is near it in a gripper.
    """

    kind: Literal["occupied"]
    placement: Name | tuple[Name, ...]
    entity: Name | None = None
    gripped: bool = False

    @property
    def places(self) -> tuple[str, ...]:
        """The placements."""
        return (self.placement,) if isinstance(self.placement, str) else self.placement


class Produced(_Model):
    """True from the success of an action that produces it until one that undoes it succeeds."""

    kind: Literal["produced"]


class Measured(_Model):
    """Measured by the plant: ``sensor`` names a quantity of a fixture or entity, true while above or below a value."""

    kind: Literal["measured"]
    sensor: str
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Measured:
        if self.above is None and self.below is None:
            raise ValueError("give 'above', 'below' or both")
        return self

    def within(self, readings: Mapping[str, float]) -> bool:
        """Whether the sensor's reading (sensor -> value) is known and within the bounds."""
        value = readings.get(self.sensor)
        if value is None:  # not measured: not known to be true
            return False
        return (self.above is None or value > self.above) and (self.below is None or value < self.below)


Condition = Annotated[Occupied | Produced | Measured, Field(discriminator="kind")]


class Entity(_Model):
    """A movable object: goal placement p*_e (none = just an obstacle), mass (kg), shape, colour."""

    goal: Name | None = None
    mass: Positive
    shape: Shape
    rgba: tuple[float, float, float, float] = (0.6, 0.6, 0.6, 1.0)


class BoxFixture(_Model):
    """A static box: ``xyz`` of its centre and ``size``, full edge lengths (m), turned by ``yaw_deg`` about z."""

    kind: Literal["box"]
    xyz: Vec3
    size: tuple[Positive, Positive, Positive]
    yaw_deg: float = 0.0
    rgba: tuple[float, float, float, float] = (0.5, 0.52, 0.55, 1.0)


class BinFixture(_Model):
    """An open bin with a floor and four walls.

    ``xyz`` is the centre of the floor's upper face; ``size`` the inner width in x and y and the height of the walls
    above the floor (m); walls and floor are ``wall`` thick.
    """

    kind: Literal["bin"]
    xyz: Vec3
    size: tuple[Positive, Positive, Positive]
    wall: Positive = 0.01
    yaw_deg: float = 0.0
    rgba: tuple[float, float, float, float] = (0.5, 0.52, 0.55, 1.0)


class RopeFixture(_Model):
    """A rope between two end handles, which are entities (boxes); it lies along y at the start.

    Attributes:
        ends: the entities at its first and its last point.
        goals: the placements where these belong.
        bed: the fixture (a bin: a groove) in which the rope is to rest.
        length: between the handles' inner faces, m; ``radius`` m; ``mass`` without the handles, kg.
        vertices: points of the chain, both ends included.
    """

    kind: Literal["rope"]
    ends: tuple[Name, Name]
    goals: tuple[Name, Name]
    bed: Name
    length: Positive
    radius: Positive
    mass: Positive
    vertices: Annotated[int, Field(ge=4, le=200)] = 25
    rgba: tuple[float, float, float, float] = (0.85, 0.62, 0.32, 1.0)


class CabinetFixture(_Model):
    """A cabinet whose doors close by themselves; at ``yaw_deg`` 0 its front faces -y.

    Attributes:
        xyz: centre of its bottom.
        size: outer width, depth and height, m; ``wall`` their thickness.
        doors: name -> side of the hinge, seen from the front. Each has a sensor ``DOOR.angle`` (rad, 0 = closed).
        handle: distance of the handle from the hinge, m.
        stiffness: of the hinges' springs, N m/rad; ``damping`` N m s/rad; ``limit`` the largest angle, rad.
    """

    kind: Literal["cabinet"]
    xyz: Vec3
    size: tuple[Positive, Positive, Positive]
    doors: Annotated[dict[Name, Literal["left", "right"]], Field(min_length=1, max_length=2)]
    wall: Positive = 0.015
    handle: Positive = 0.23
    stiffness: Positive = 2.0
    damping: Positive = 4.0
    limit: Positive = 2.0
    yaw_deg: float = 0.0
    rgba: tuple[float, float, float, float] = (0.72, 0.58, 0.42, 1.0)

    @model_validator(mode="after")
    def _sides(self) -> CabinetFixture:
        if len(set(self.doors.values())) < len(self.doors):
            raise ValueError("doors: two doors hang on opposite sides")
        return self


Fixture = Annotated[BoxFixture | BinFixture | RopeFixture | CabinetFixture, Field(discriminator="kind")]


class Zone(_Model):
    """A part of the shared space in which two arms could meet: axis-aligned rectangle in x, y (m)."""

    min: Vec2
    max: Vec2

    @model_validator(mode="after")
    def _ordered(self) -> Zone:
        if not (self.min[0] < self.max[0] and self.min[1] < self.max[1]):
            raise ValueError(f"min {self.min} must be below max {self.max} in x and in y")
        return self


class Start(_Model):
    """Start of an episode: ``draw: reachable`` (by seed) or ``at`` a fixed placement for each entity.

    ``among`` narrows the draw: entity -> placements that it may start on.
    """

    draw: Literal["reachable"] | None = None
    among: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    at: dict[Name, Name] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Start:
        if (self.draw is None) == (self.at is None):
            raise ValueError("give either 'draw: reachable' or 'at: {entity: placement}'")
        return self


class Success(_Model):
    """An entity is at its goal when it is within ``tolerance`` (eps_pos, m, in the plane) of the goal placement.

    ``conditions`` (or ``not condition``) must be true as well for the episode to succeed.
    """

    tolerance: Positive
    conditions: Literals = ()


class Slots(_Model):
    """At most ``limit`` slots an episode; the twin waits ``deadline`` seconds (steady clock) for reports."""

    limit: Annotated[int, Field(ge=1)] = 80
    deadline: Positive = 20.0


class Scenario(_Model):
    """What is to be done, by which arms, where."""

    name: Name
    description: str
    frame: Name = "world"
    arms: Annotated[dict[Name, Arm], Field(min_length=1, max_length=128)]
    models: Annotated[dict[Name, ModelSpec], Field(min_length=1)]
    placements: Annotated[dict[Name, Placement], Field(min_length=1)]
    entities: dict[Name, Entity]
    zones: dict[Name, Zone] = Field(default_factory=dict)
    fixtures: dict[Name, Fixture] = Field(default_factory=dict)
    operators: tuple[Operator, ...] = ()
    conditions: dict[Name, Condition] = Field(default_factory=dict)
    start: Start
    success: Success
    slots: Slots = Slots()
    grasp: Literal["friction", "assisted"] = "friction"

    @model_validator(mode="after")
    def _names(self) -> Scenario:
        for arm_name, arm in self.arms.items():
            if arm.model not in self.models:
                raise ValueError(f"arms.{arm_name}.model: {UnknownName('model', arm.model, self.models)}")
            for placement in arm.reach:
                if placement not in self.placements:
                    raise ValueError(f"arms.{arm_name}.reach: {UnknownName('placement', placement, self.placements)}")
        for entity_name, entity in self.entities.items():
            goal = entity.goal
            if goal is not None and goal not in self.placements:
                raise ValueError(f"entities.{entity_name}.goal: {UnknownName('placement', goal, self.placements)}")
        for name in sorted(set(self.fixtures) & (set(self.entities) | set(self.placements))):
            raise ValueError(f"fixtures.{name}: the name is taken by an entity or a placement")
        self._check_ropes()
        self._check_operators()
        orders = [placement.order for placement in self.placements.values()]
        if len(set(orders)) != len(orders):
            raise ValueError(f"placements: every order must differ, got {orders}")
        if self.start.at is not None:
            for entity_name, placement in self.start.at.items():
                if entity_name not in self.entities:
                    raise ValueError(f"start.at: {UnknownName('entity', entity_name, self.entities)}")
                if placement not in self.placements:
                    raise ValueError(f"start.at.{entity_name}: {UnknownName('placement', placement, self.placements)}")
            missing = sorted(set(self.entities) - set(self.start.at))
            if missing:
                raise ValueError(f"start.at: no placement for {', '.join(missing)}")
        return self

    def _check_ropes(self) -> None:
        for name, rope in self.fixtures.items():
            if not isinstance(rope, RopeFixture):
                continue
            for end in rope.ends:
                if not isinstance(getattr(self.entities.get(end), "shape", None), Box):
                    boxes = [entity for entity, item in self.entities.items() if isinstance(item.shape, Box)]
                    raise ValueError(f"fixtures.{name}.ends: {UnknownName('entity of kind box', end, boxes)}")
            for goal in rope.goals:
                if goal not in self.placements:
                    raise ValueError(f"fixtures.{name}.goals: {UnknownName('placement', goal, self.placements)}")
            bins = [other for other, item in self.fixtures.items() if isinstance(item, BinFixture)]
            if rope.bed not in bins:
                raise ValueError(f"fixtures.{name}.bed: {UnknownName('fixture of kind bin', rope.bed, bins)}")

    def _check_operators(self) -> None:
        def known(where: str, kind: str, names: Iterable[str], valid: Collection[str]) -> None:
            for name in names:
                if name not in valid:
                    raise ValueError(f"{where}: {UnknownName(kind, name, valid)}")

        def literals(where: str, texts: Iterable[str]) -> None:
            known(where, "condition", (text.removeprefix("not ") for text in texts), self.conditions)

        for number, operator in enumerate(self.operators):
            where = f"operators.{number} ({operator.verb})"
            if operator.verb in ("stay", "move"):
                raise ValueError(f"{where}.verb: 'stay' and 'move' are built in; choose another verb")
            known(f"{where}.arms", "arm", operator.arms, self.arms)
            known(f"{where}.group", "arm", operator.group, self.arms)
            if operator.placement is not None:
                known(f"{where}.placement", "placement", [operator.placement], self.placements)
            literals(f"{where}.legal_when", operator.legal_when)
            for field in ("requires_produced", "requires_held", "produces", "holds", "undoes"):
                known(f"{where}.{field}", "condition", getattr(operator, field), self.conditions)
            for element in operator.exclusive:
                kind, _, name = element.partition(":")
                valid: dict[str, Collection[str]] = {
                    "zone": self.zones,
                    "placement": self.placements,
                    "entity": self.entities,
                }
                if kind not in valid:
                    raise ValueError(f"{where}.exclusive: {element!r} must be KIND:NAME with KIND {', '.join(valid)}")
                known(f"{where}.exclusive", kind, [name], valid[kind])
        for name, placement in self.placements.items():
            known(f"placements.{name}.requires_held", "condition", placement.requires_held, self.conditions)
            literals(f"placements.{name}.legal_when", placement.legal_when)
        for name, condition in self.conditions.items():
            if isinstance(condition, Occupied):
                known(f"conditions.{name}.placement", "placement", condition.places, self.placements)
                if condition.entity is not None:
                    known(f"conditions.{name}.entity", "entity", [condition.entity], self.entities)
        literals("success.conditions", self.success.conditions)
        for entity, among in self.start.among.items():
            known("start.among", "entity", [entity], self.entities)
            known(f"start.among.{entity}", "placement", among, self.placements)

    @property
    def assistance(self) -> str:
        """What physics does not do alone here, in words for tables: how things are held, and tools fixed to hands."""
        grasp = "a weld after contact" if self.grasp == "assisted" else "friction"
        tools = [f"{name} ({arm.tool})" for name, arm in self.arms.items() if arm.tool is not None]
        return f"grasp: {grasp}" + (f", tools fixed to the hand: {', '.join(tools)}" if tools else "")

    @cached_property
    def _operator_of(self) -> dict[tuple[str, str, str, str], Operator]:
        return {
            (arm, operator.verb, operator.entity or "", operator.placement or ""): operator
            for operator in self.operators
            for arm in operator.arms
        }

    def operator(self, arm: str, verb: str, entity: str, placement: str) -> Operator | None:
        """The operator behind an arm's action, None if the task has no such action for it."""
        return self._operator_of.get((arm, verb, entity, placement))

    @cached_property
    def things(self) -> frozenset[str]:
        """Names that the ``entity`` of an action may have: entities, and fixtures that operators act on."""
        return frozenset(self.entities) | {operator.entity for operator in self.operators if operator.entity}

    @cached_property
    def shared_placements(self) -> frozenset[str]:
        """P_sh: placements in two or more reach bands (eq. 1), without those that are no relay."""
        seen: set[str] = set()
        shared: set[str] = set()
        for arm in self.arms.values():
            band = set(arm.reach)
            shared |= seen & band
            seen |= band
        return frozenset(name for name in shared if self.placements[name].relay)

    @cached_property
    def placement_grid(self) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        """Names of the placements in the order of the flow, and their reference positions (P, 3), m."""
        names = tuple(sorted(self.placements, key=self.order))
        return names, np.array([self.placements[name].xyz for name in names])

    @cached_property
    def sweeps(self) -> dict[tuple[str, frozenset[str]], frozenset[str]]:
        """What :func:`polyarm_core.world.swept_zones` has found so far: it depends on the scenario alone."""
        return {}

    @cached_property
    def arm_index(self) -> dict[str, int]:
        """kappa(i): the index of each arm, in the order of the file."""
        return {name: index for index, name in enumerate(self.arms)}

    def order(self, placement: str) -> int:
        """pos(p). Raises UnknownName for a placement that the scenario does not have."""
        return self.placement(placement).order

    def placement(self, name: str) -> Placement:
        """The placement of that name, or UnknownName."""
        try:
            return self.placements[name]
        except KeyError:
            raise UnknownName("placement", name, self.placements) from None

    def arm(self, name: str) -> Arm:
        """The arm of that name, or UnknownName."""
        try:
            return self.arms[name]
        except KeyError:
            raise UnknownName("arm", name, self.arms) from None

    def entity(self, name: str) -> Entity:
        """The entity of that name, or UnknownName."""
        try:
            return self.entities[name]
        except KeyError:
            raise UnknownName("entity", name, self.entities) from None


def config_directory() -> Path:
    """The installed ``config`` folder: of the checkout, else of the colcon or pip installation.

    Raises:
        ScenarioError: when none exists.
    """
    here = Path(__file__).resolve()
    prefixes = [Path(p) for p in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
    candidates = [here.parents[2] / "config"]
    candidates += [prefix / "share" / "polyarm" / "config" for prefix in [*prefixes, Path(sys.prefix)]]
    for candidate in candidates:
        if (candidate / "scenarios").is_dir():
            return candidate
    raise ScenarioError("no config folder found; looked in: " + ", ".join(str(c) for c in candidates))


def scenario_names() -> list[str]:
    """Names of the scenarios that come with the package."""
    return sorted(path.stem for path in (config_directory() / "scenarios").glob("*.yaml"))


def _scenario_path(name_or_path: str | Path, beside: Path | None = None) -> Path:
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        names = scenario_names()
        if str(name_or_path) not in names:
            raise UnknownName("scenario", str(name_or_path), names)
        path = config_directory() / "scenarios" / f"{name_or_path}.yaml"
    elif beside is not None:
        path = beside / path
    if not path.is_file():
        raise InvalidValue("scenario", str(name_or_path), "a packaged name or the path of an existing YAML file")
    return path


def _read(path: Path, within: tuple[Path, ...] = ()) -> Any:
    """Content of a scenario file, laid over that of the file that it ``extends``, if it does."""
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from None
    if not isinstance(data, dict) or "extends" not in data:
        return data
    changes = {key: value for key, value in data.items() if key != "extends"}
    origin = _scenario_path(str(data["extends"]), beside=path.parent)
    if origin.resolve() in (path.resolve(), *within):
        raise ScenarioError(f"{path}: extends: {data['extends']!r} extends this file in turn")
    return _overlay(_read(origin, (*within, path.resolve())), changes)


def _overlay(below: Any, above: Any) -> Any:
    """``above`` laid over ``below``: mappings key by key, anything else replaced; null takes a key away."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    merged = {**below, **{key: _overlay(below.get(key), value) for key, value in above.items()}}
    return {key: value for key, value in merged.items() if key not in above or above[key] is not None}


def load_scenario(name_or_path: str | Path) -> Scenario:
    """Load a packaged scenario by name, or any scenario file by path.

    A file with ``extends: OTHER`` (a packaged name, or a path beside it) says only what differs from the other one:
    mappings are merged key by key, anything else is replaced, and null takes a key away.

    Raises:
        UnknownName: neither a packaged name nor an existing file.
        ScenarioError: the file is not YAML or not a valid scenario.
    """
    path = _scenario_path(name_or_path)
    data = _read(path)
    if isinstance(data, dict) and "cell" in data:  # a cell file: a scenario as measured in a real cell
        from polyarm_core.cell import parse_cell

        return parse_cell(data, path)[1]
    return parse_scenario(data, origin=str(path))


def parse_scenario(data: Any, origin: str = "scenario") -> Scenario:
    """Validate the content of a scenario file. Raises ScenarioError with one line per fault."""
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        lines = [f"{origin} is not a valid scenario:"]
        for fault in error.errors():
            key = ".".join(str(part) for part in fault["loc"]) or "(top level)"
            value = repr(fault.get("input"))
            shown = f" (got {value if len(value) <= 80 else value[:77] + '...'})" if fault["loc"] else ""
            lines.append(f"  {key}: {fault['msg']}{shown}")
        raise ScenarioError("\n".join(lines)) from None
