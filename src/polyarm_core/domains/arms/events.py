"""What can happen to the arms' world beside what the arms do.

No event leaves a state from which moves cannot reach the goal. Between two slots nothing is in a gripper but the ends
of a rope; elsewhere a drop (A2) is what it leaves behind: an object that is not yet at its goal lies somewhere else
within reach of an arm that can touch it. Between two slots no door is held open, so a slip (A5) never applies to a
state: it strikes while arms move, in a plant. What the victim holds is false from then on, its action fails, those that
require it held are stopped, and what was being taken out stays where it was: the slot has passed for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyarm_core.domains.arms.world import PAN, AbstractWorld, ArmsState, free_placements
from polyarm_core.domains.interface import Disturbance
from polyarm_core.errors import UnknownName
from polyarm_core.liveness import RelayGraph
from polyarm_core.world import satisfied

SHORTEST, LONGEST = 3, 8
"""Slots for which a stop or a block lasts, both included."""
DISTURBANCES = (
    Disturbance("A1", "a person moves an object to another place"),
    Disturbance("A2", "an object drops, and lies elsewhere within reach of the arm"),
    Disturbance("A3", "an arm stops for some slots"),
    Disturbance("A4", "a placement is blocked for some slots"),
    Disturbance("A5", "a door that an arm holds open slips from its gripper and falls shut"),
)
SLIP = "A5"
"""Only in scenarios in which an action holds a condition."""


class Events:
    """Applies disturbances.

    Args:
        world: of the scenario.
        graph: tells from where the goal can be reached.
    """

    def __init__(self, world: AbstractWorld, graph: RelayGraph) -> None:
        self.world = world
        self._graph = graph
        arms = world.scenario.arms.values()
        self._reachable = tuple(p for p in world.scenario.placements if any(p in arm.reach for arm in arms))

    def disturb(self, state: ArmsState, name: str, draw: float) -> ArmsState | None:
        """The state after an event; None where it does not apply now.

        Args:
            state: before it.
            name: of ``DISTURBANCES``.
            draw: uniform in [0, 1), chooses victim, place and duration.

        Raises:
            UnknownName: no such disturbance.
        """
        if name == "A1":
            return self._displaced(state, self._movable_by_person(state), draw)
        if name == "A2":
            return self._dropped(state, draw)
        if name == "A3":
            running = [k for k, left in enumerate(state.stopped) if not left]
            if not running:
                return None
            which, slots = _split(draw, len(running))
            stopped = list(state.stopped)
            stopped[running[which]] = slots
            return state._replace(stopped=tuple(stopped))
        if name == "A4":
            free = free_placements(self.world, state, self._reachable)
            if not free:
                return None
            which, slots = _split(draw, len(free))
            return state._replace(blocked=tuple(sorted((*state.blocked, (free[which], slots)))))
        if name == SLIP:
            return None
        raise UnknownName("disturbance", name, [item.name for item in DISTURBANCES])

    def _movable_by_person(self, state: ArmsState) -> list[tuple[str, Sequence[str]]]:
        """Objects that lie free, with the placements to which they may be moved: the plausible ones of the start."""
        return [
            (name, self._start_places(name))
            for name, place, arm in zip(self.world.objects, state.places, state.holders, strict=True)
            if not arm and name not in self.world.tied and place in self.world.scenario.placements
            if not self.world.supports(state, place)
        ]

    def _start_places(self, name: str) -> Sequence[str]:
        return self.world.scenario.start.among.get(name, self._reachable)

    def _displaced(
        self, state: ArmsState, choices: Sequence[tuple[str, Sequence[str]]], draw: float
    ) -> ArmsState | None:
        options = [
            (name, place)
            for name, among in choices
            for place in free_placements(self.world, state, among)
            if place != self.world.scenario.entities[name].goal
        ]
        first = int(draw * len(options))
        for name, place in (*options[first:], *options[:first]):
            k = self.world.index[name]
            places = (*state.places[:k], place, *state.places[k + 1 :])
            holders = (*state.holders[:k], "", *state.holders[k + 1 :])
            after = state._replace(places=places, holders=holders)
            if self._graph.reaches_goal(self.world.where(after)) is not False:
                return after
        return None

    def _dropped(self, state: ArmsState, draw: float) -> ArmsState | None:
        scenario = self.world.scenario
        held = [(name, arm) for name, arm in zip(self.world.objects, state.holders, strict=True) if arm]
        if held:
            choices = [(n, [p for p in self._start_places(n) if p in scenario.arms[a].reach]) for n, a in held]
            return self._displaced(state, choices, draw)
        if PAN in state.places:
            return self._displaced(
                state,
                [(n, self._start_places(n)) for n, p in self.world.where(state).items() if p == PAN],
                draw,
            )
        at_goal = satisfied(scenario, self.world.view(state).world)
        choices = []
        for name, among in self._movable_by_person(state):
            place = state.places[self.world.index[name]]
            bands = {p for arm in scenario.arms.values() if place in arm.reach for p in arm.reach}
            if name not in at_goal:
                choices.append((name, [p for p in among if p in bands]))
        return self._displaced(state, choices, draw)


def _split(draw: float, count: int) -> tuple[int, int]:
    """One draw as a choice among ``count`` and a number of slots."""
    which = int(draw * count)
    return which, SHORTEST + int((draw * count - which) * (LONGEST - SHORTEST + 1))
