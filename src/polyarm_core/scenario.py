"""The scenario file as validated models: the single truth for names, reach, goals, zones and rules."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
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
    """One arm: robot model, base, reach band B_i (placements that it can touch) and its language model."""

    robot: str
    base: Base
    reach: Annotated[tuple[Name, ...], Field(min_length=1)]
    model: Name


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
    """

    order: int
    xyz: Vec3
    size: tuple[Positive, Positive]
    requires_held: tuple[Name, ...] = ()
    legal_when: Literals = ()


class Box(_Model):
    """Box with edge lengths (m)."""

    kind: Literal["box"]
    size: tuple[Positive, Positive, Positive]


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
    """True while an entity (this one, if named) stands on a placement."""

    kind: Literal["occupied"]
    placement: Name
    entity: Name | None = None


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


Condition = Annotated[Occupied | Produced | Measured, Field(discriminator="kind")]


class Entity(_Model):
    """A movable object: goal placement p*_e (none = just an obstacle), mass (kg), shape, colour."""

    goal: Name | None = None
    mass: Positive
    shape: Shape
    rgba: tuple[float, float, float, float] = (0.6, 0.6, 0.6, 1.0)


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
                known(f"conditions.{name}.placement", "placement", [condition.placement], self.placements)
                if condition.entity is not None:
                    known(f"conditions.{name}.entity", "entity", [condition.entity], self.entities)
        literals("success.conditions", self.success.conditions)
        for entity, among in self.start.among.items():
            known("start.among", "entity", [entity], self.entities)
            known(f"start.among.{entity}", "placement", among, self.placements)

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
        """P_sh: placements in two or more reach bands (eq. 1)."""
        seen: set[str] = set()
        shared: set[str] = set()
        for arm in self.arms.values():
            band = set(arm.reach)
            shared |= seen & band
            seen |= band
        return frozenset(shared)

    @cached_property
    def placement_grid(self) -> tuple[tuple[str, ...], NDArray[np.float64]]:
        """Names of the placements in the order of the flow, and their reference positions in the plane (P, 2), m."""
        names = tuple(sorted(self.placements, key=self.order))
        return names, np.array([self.placements[name].xyz[:2] for name in names])

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


def load_scenario(name_or_path: str | Path) -> Scenario:
    """Load a packaged scenario by name, or any scenario file by path.

    Raises:
        UnknownName: neither a packaged name nor an existing file.
        ScenarioError: the file is not YAML or not a valid scenario.
    """
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"}:
        names = scenario_names()
        if str(name_or_path) not in names:
            raise UnknownName("scenario", str(name_or_path), names)
        path = config_directory() / "scenarios" / f"{name_or_path}.yaml"
    if not path.is_file():
        raise InvalidValue("scenario", str(name_or_path), "a packaged name or the path of an existing YAML file")
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from None
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
