"""Logical conditions: which are true, from placements, the plant's sensors and past actions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from polyarm_core.constraints import Action
from polyarm_core.scenario import Occupied, Produced, Scenario
from polyarm_core.world import World, locate


class ConditionTracker:
    """Keeps W_t of one episode.

    Args:
        scenario: its ``conditions`` say how each comes about.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._produced: set[str] = set()

    def reset(self) -> None:
        """A new episode: nothing has been produced."""
        self._produced.clear()

    def on_success(self, arm: str, action: Action) -> None:
        """An action of the task succeeded: what it produces becomes true, what it undoes false."""
        operator = self._scenario.operator(arm, action.verb, action.entity, action.placement)
        if operator is not None:
            self._produced |= set(operator.produces)
            self._produced -= set(operator.undoes)

    def true_now(self, world: World, readings: Mapping[str, float], held: Collection[str] = ()) -> frozenset[str]:
        """The conditions that are true.

        Args:
            world: where everything stands; its own ``conditions`` are ignored.
            readings: sensor -> value, as the plant measures it (units are the sensor's).
            held: conditions that running actions hold, in a plant that has no sensor for them.
        """
        where = locate(self._scenario, world)
        true = set(held)
        for name, condition in self._scenario.conditions.items():
            if isinstance(condition, Occupied):
                holds = any(
                    place in condition.places
                    and condition.entity in (None, entity)
                    and (condition.gripped or entity not in world.held_by)
                    for entity, place in where.items()
                )
            elif isinstance(condition, Produced):
                holds = name in self._produced
            else:
                holds = condition.within(readings)
            if holds:
                true.add(name)
        return frozenset(true)
