"""The world: entities, placements, conditions; observation, legal actions and success (LDT-Coord eqs. 1-5)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from polyarm_core.constraints import MOVE_VERB, STAY, Action
from polyarm_core.scenario import Scenario, Vec3


@dataclass(frozen=True, slots=True)
class World:
    """What is true at one moment.

    Attributes:
        positions: x_t(e) of every entity, m, in the scenario frame.
        conditions: W_t, the logical conditions that are true.
        held_by: entity -> arm that holds it.
    """

    positions: Mapping[str, Vec3]
    conditions: frozenset[str] = frozenset()
    held_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """What one arm perceives: nothing outside its reach band (eq. 2).

    Attributes:
        arm: the arm.
        entities: e -> l(e) for entities with l(e) in B_i and l(e) != p*_e that no other arm holds.
        occupied: placements in B_i on which an entity stands (also one that is at its goal).
        holding: the entity in the arm's own gripper, or "".
        conditions: W.
    """

    arm: str
    entities: Mapping[str, str]
    occupied: frozenset[str]
    holding: str
    conditions: frozenset[str]


def nearest_placement(scenario: Scenario, position: Vec3) -> str:
    """l_t(e): the placement whose reference position is nearest in the plane; ties go to the lower order."""
    return min(
        scenario.placements,
        key=lambda name: (
            math.dist(scenario.placements[name].xyz[:2], position[:2]),
            scenario.placements[name].order,
        ),
    )


def locate(scenario: Scenario, world: World) -> dict[str, str]:
    """l_t(e) of every entity."""
    return {entity: nearest_placement(scenario, position) for entity, position in world.positions.items()}


def satisfied(scenario: Scenario, world: World) -> frozenset[str]:
    """Entities that lie at their goal: ||x_t(e) - x*_e|| <= eps_pos in the plane, in no gripper (eq. 4)."""
    return frozenset(
        name
        for name, entity in scenario.entities.items()
        if entity.goal is not None
        and name in world.positions
        and name not in world.held_by
        and math.dist(world.positions[name][:2], scenario.placements[entity.goal].xyz[:2])
        <= scenario.success.tolerance
    )


def succeeded(scenario: Scenario, world: World) -> bool:
    """The episode succeeds iff every entity that has a goal is satisfied."""
    return all(name in satisfied(scenario, world) for name, e in scenario.entities.items() if e.goal is not None)


def occupied_placements(scenario: Scenario, world: World, besides: Collection[str] = ()) -> dict[str, str]:
    """Placement -> entity that stands on it; entities in a gripper and those named in ``besides`` do not count.

    An entity occupies its nearest placement even when it lies beside it: the cautious reading, since the next
    entity must not be put against it.
    """
    return {
        placement: entity
        for entity, placement in locate(scenario, world).items()
        if entity not in world.held_by and entity not in besides
    }


def observe(scenario: Scenario, world: World, arm: str) -> Observation:
    """The local observation of an arm (eq. 2). Raises UnknownName for an arm that the scenario does not have."""
    band = set(scenario.arm(arm).reach)
    at_goal = satisfied(scenario, world)
    where = locate(scenario, world)
    return Observation(
        arm=arm,
        entities={
            entity: placement
            for entity, placement in sorted(where.items())
            if placement in band and entity not in at_goal and world.held_by.get(entity, arm) == arm
        },
        occupied=frozenset(occupied_placements(scenario, world)) & band,
        holding=next((entity for entity, holder in world.held_by.items() if holder == arm), ""),
        conditions=world.conditions,
    )


def is_progress(scenario: Scenario, entity: str, source: str, destination: str) -> bool:
    """nu(e, p): the destination is the goal, or shared and strictly closer to it along the flow (eq. 5)."""
    goal = scenario.entity(entity).goal
    if goal is None or destination == source and destination != goal:
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

    Beyond eq. 5, a destination on which the arm sees another entity is left out, and an arm that still holds an
    entity (its last motion failed) can act on that one only.
    """
    band = scenario.arm(observation.arm).reach
    actions = [STAY]
    for entity, source in observation.entities.items():
        if observation.holding and entity != observation.holding:
            continue
        for destination in band:
            free = destination not in observation.occupied or (
                destination == source and entity != observation.holding
            )
            if free and is_progress(scenario, entity, source, destination):
                actions.append(Action(MOVE_VERB, entity, destination))
    return tuple(sorted(actions))


def swept_zones(scenario: Scenario, arm: str, placements: Collection[str]) -> frozenset[str]:
    """Zones that an arm sweeps when it works between placements.

    The arm spans from its base to each of them, so the swept area is the convex hull of the base and the
    placements in the plane; a zone whose rectangle meets that hull is swept.
    """
    base = scenario.arm(arm).base.xyz
    points = [(base[0], base[1])] + [
        (scenario.placement(name).xyz[0], scenario.placement(name).xyz[1]) for name in sorted(set(placements))
    ]
    return frozenset(
        name
        for name, zone in scenario.zones.items()
        if _hull_meets_rectangle(points, zone.min, zone.max)
    )


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
