"""The world: entities, placements, conditions; observation, legal actions and success (LDT-Coord eqs. 1-5)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from polyarm_core.constraints import MOVE_VERB, STAY, Action
from polyarm_core.scenario import Scenario, Vec3

OBSTACLE = "obstacle"
"""What stands on a blocked placement."""


@dataclass(frozen=True, slots=True)
class World:
    """What is true at one moment.

    Attributes:
        positions: x_t(e) of every entity, m, in the scenario frame.
        conditions: W_t, the logical conditions that are true.
        held_by: entity -> arm that holds it.
        blocked: placements that are out of use: something stands there that is no entity of the task.
    """

    positions: Mapping[str, Vec3]
    conditions: frozenset[str] = frozenset()
    held_by: Mapping[str, str] = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Observation:
    """What one arm perceives: nothing outside its reach band (eq. 2).

    Attributes:
        arm: the arm.
        entities: e -> l(e) for entities with l(e) in B_i and l(e) != p*_e that no other arm holds.
        occupied: placements in B_i on which an entity stands (also one that is at its goal), or that are blocked.
        holding: the entity in the arm's own gripper, or "".
        conditions: W.
    """

    arm: str
    entities: Mapping[str, str]
    occupied: frozenset[str]
    holding: str
    conditions: frozenset[str]


def nearest_placement(scenario: Scenario, position: Vec3, half_height: float = 0.0) -> str:
    """l_t(e): the placement whose surface centre is nearest to an entity's underside; ties go to the lower order.

    Layers of a stack share their place in the plane, so the height counts; where all surfaces are level this is the
    nearest placement in the plane.

    Args:
        scenario: the placements.
        position: of the entity's centre, m.
        half_height: of its underside below that, m.
    """
    x, y, z = position
    return _nearest(scenario, [(x, y, z - half_height)])[0]


def locate(scenario: Scenario, world: World) -> dict[str, str]:
    """l_t(e) of every entity."""
    undersides = [(x, y, z - scenario.entity(name).shape.height / 2) for name, (x, y, z) in world.positions.items()]
    return dict(zip(world.positions, _nearest(scenario, undersides), strict=True))


def _nearest(scenario: Scenario, positions: list[Vec3]) -> list[str]:
    if not positions:
        return []
    names, places = scenario.placement_grid
    offsets = np.array(positions)[:, None, :] - places[None, :, :]
    # argmin takes the first of equals, and the grid is in the order of the flow.
    return [names[index] for index in np.einsum("epk,epk->ep", offsets, offsets).argmin(axis=1)]


class WorldView:
    """A world seen through a scenario: what stands where, what is at its goal, what each arm perceives and may do.

    Everything is computed at most once; two views are equal when they differ in nothing that decides an action.
    """

    def __init__(self, scenario: Scenario, world: World) -> None:
        self.scenario = scenario
        self.world = world
        self.where = locate(scenario, world)
        self.satisfied = satisfied(scenario, world, self.where)
        self._occupants: dict[str, list[str]] = {}
        for entity, placement in self.where.items():
            if entity not in world.held_by:
                self._occupants.setdefault(placement, []).append(entity)
        self._observations: dict[str, Observation] = {}
        self._legal: dict[str, tuple[Action, ...]] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorldView):
            return NotImplemented
        return (
            self.where == other.where
            and self.satisfied == other.satisfied
            and self.world.held_by == other.world.held_by
            and self.world.conditions == other.world.conditions
            and self.world.blocked == other.world.blocked
            and self.scenario is other.scenario
        )

    __hash__ = None  # type: ignore[assignment]

    def occupant(self, placement: str, besides: str = "") -> str:
        """An entity that stands on a placement, other than ``besides`` and in no gripper; "" if there is none.

        On a placement that is blocked it is `OBSTACLE`.

        An entity occupies its nearest placement even when it lies beside it: the cautious reading, since the next
        entity must not be put against it.
        """
        standing = next((entity for entity in self._occupants.get(placement, ()) if entity != besides), "")
        return standing or (OBSTACLE if placement in self.world.blocked else "")

    def observe(self, arm: str) -> Observation:
        """The local observation of an arm (eq. 2). Raises UnknownName for an arm that the scenario does not have."""
        if arm not in self._observations:
            band = self.scenario.arm(arm).reach
            held_by = self.world.held_by
            visible = sorted(
                entity
                for entity, placement in self.where.items()
                if placement in band and entity not in self.satisfied and held_by.get(entity, arm) == arm
            )
            self._observations[arm] = Observation(
                arm=arm,
                entities={entity: self.where[entity] for entity in visible},
                occupied=frozenset(p for p in band if p in self._occupants or p in self.world.blocked),
                holding=next((entity for entity, holder in held_by.items() if holder == arm), ""),
                conditions=self.world.conditions,
            )
        return self._observations[arm]

    def legal(self, arm: str) -> tuple[Action, ...]:
        """O_i^legal of an arm, see :func:`legal_actions`."""
        if arm not in self._legal:
            self._legal[arm] = legal_actions(self.scenario, self.observe(arm))
        return self._legal[arm]


def satisfied(scenario: Scenario, world: World, where: Mapping[str, str] | None = None) -> frozenset[str]:
    """Entities that lie at their goal: l_t(e) = p*_e and ||x_t(e) - x*_e|| <= eps_pos in the plane (eq. 4), not held.

    That the goal must also be the nearest placement tells the layers of a stack apart, and neighbouring slots that
    are closer to each other than the tolerance.

    Args:
        scenario: goals and tolerance.
        world: where everything is.
        where: l_t of every entity, if known already.
    """
    where = locate(scenario, world) if where is None else where
    return frozenset(
        name
        for name, entity in scenario.entities.items()
        if entity.goal is not None
        and where.get(name) == entity.goal
        and name not in world.held_by
        and math.dist(world.positions[name][:2], scenario.placements[entity.goal].xyz[:2]) <= scenario.success.tolerance
    )


def succeeded(scenario: Scenario, world: World) -> bool:
    """The episode succeeds iff every entity that has a goal is satisfied and the success conditions are true."""
    at_goal = satisfied(scenario, world)
    return all(name in at_goal for name, entity in scenario.entities.items() if entity.goal is not None) and all_true(
        scenario.success.conditions, world.conditions
    )


def all_true(literals: Collection[str], conditions: Collection[str]) -> bool:
    """Whether every literal (``condition`` or ``not condition``) agrees with the conditions that are true."""
    return all((text.removeprefix("not ") in conditions) != text.startswith("not ") for text in literals)


def observe(scenario: Scenario, world: World, arm: str) -> Observation:
    """The local observation of one arm (eq. 2); ask a :class:`WorldView` when several arms are looked at."""
    return WorldView(scenario, world).observe(arm)


def is_progress(scenario: Scenario, entity: str, source: str, destination: str) -> bool:
    """nu(e, p): the destination is the goal, or shared and strictly closer to it along the flow (eq. 5)."""
    goal = scenario.entity(entity).goal
    if goal is None or (destination == source and destination != goal):
        return False
    if destination == goal:
        return True
    return destination in scenario.shared_placements and distance_to_goal(scenario, entity, destination) < (
        distance_to_goal(scenario, entity, source)
    )


def distance_to_goal(scenario: Scenario, entity: str, placement: str) -> int:
    """|pos(p) - pos(p*_e)|, 0 for an entity without goal."""
    goal = scenario.entity(entity).goal
    return 0 if goal is None else abs(scenario.order(placement) - scenario.order(goal))


def legal_actions(scenario: Scenario, observation: Observation) -> tuple[Action, ...]:
    """O_i^legal: a0 and every (e, p) with l(e) in B_i, p in B_i and nu(e, p) = 1 (eq. 5), in a fixed order.

    The operators of the task follow: an arm can do what lists it, with an entity that it sees, when its conditions are
    true. Beyond eq. 5, a destination on which the arm sees another entity is left out, and an arm that still holds an
    entity (its last motion failed) can act on that one only, and may put it down at the nearest placement.
    """
    band = scenario.arm(observation.arm).reach
    actions = [STAY]
    for entity, source in observation.entities.items():
        if observation.holding and entity != observation.holding:
            continue
        for destination in band:
            held = entity == observation.holding
            free = destination not in observation.occupied or (destination == source and not held)
            # What an arm still holds may be put down where it is, if it has a goal: nothing else might be open to it.
            put_down = held and destination == source and scenario.entity(entity).goal is not None
            useful = put_down or is_progress(scenario, entity, source, destination)
            if free and useful and all_true(scenario.placements[destination].legal_when, observation.conditions):
                actions.append(Action(MOVE_VERB, entity, destination))
    for operator in scenario.operators:
        entity, placement = operator.entity or "", operator.placement or ""
        if (
            observation.arm in operator.arms
            and (entity not in scenario.entities or entity in observation.entities)
            and (not placement or (placement in band and placement not in observation.occupied))
            and all_true(operator.legal_when, observation.conditions)
        ):
            actions.append(Action(operator.verb, entity, placement))
    return tuple(sorted(actions))


def swept_zones(scenario: Scenario, arm: str, placements: Collection[str]) -> frozenset[str]:
    """Zones that an arm sweeps when it works between placements.

    The arm spans from its base to each of them, so the swept area is the convex hull of the base and the
    placements in the plane; a zone whose rectangle meets that hull is swept.
    """
    key = (arm, frozenset(placements))
    known = scenario.sweeps.get(key)
    if known is not None:
        return known
    base = scenario.arm(arm).base.xyz
    points = [(base[0], base[1])] + [
        (scenario.placement(name).xyz[0], scenario.placement(name).xyz[1]) for name in sorted(set(placements))
    ]
    scenario.sweeps[key] = swept = frozenset(
        name for name, zone in scenario.zones.items() if _hull_meets_rectangle(points, zone.min, zone.max)
    )
    return swept


def _hull_meets_rectangle(
    points: list[tuple[float, float]], low: tuple[float, float], high: tuple[float, float]
) -> bool:
    # Separating axis test: two convex sets are disjoint iff some edge normal of either separates them.
    corners = [(x, y) for x in (low[0], high[0]) for y in (low[1], high[1])]
    axes = [(1.0, 0.0), (0.0, 1.0)]
    axes += [(a[1] - b[1], b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1 :]]
    for ax, ay in axes:
        hull = [x * ax + y * ay for x, y in points]
        rectangle = [x * ax + y * ay for x, y in corners]
        if max(hull) < min(rectangle) or max(rectangle) < min(hull):
            return False
    return True
