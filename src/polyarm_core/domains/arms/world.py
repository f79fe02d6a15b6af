"""The abstract world of a scenario: who is where and in whose gripper, and what follows from it.

An `ArmsState` says at which placement every object is; positions, sensors, conditions, observations and legal actions
follow from that through the scenario, as in the plant. `AbstractWorld` goes both ways: from a state to the `WorldView`
that the twin would have of it, and from the twin's view to the state.

What actions do is a table of the plant's skills (``move``, ``hold``, ``lift``, ``carry``, ``lower``, ``set_down``,
``sweep``, ``dump``), each taking effect at once and never failing. A verb that is not among them brings its entity to
its placement, if it names both, and makes its conditions true.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from polyarm_core.conditions import ConditionTracker
from polyarm_core.constraints import MOVE_VERB, Action
from polyarm_core.scenario import BinFixture, Occupied, Produced, RopeFixture, Scenario, Vec3
from polyarm_core.world import World, WorldView, succeeded

PAN = "dustpan"
"""Where an object is that was swept up; in a bin it is at that fixture's name."""
HIGH, FAR, MANY = 1.0, 1.0, 1.0
"""What a sensor reads when it is clearly above its threshold: heights and distances in m, a count of points."""
LIFT = 0.15
"""How far above a placement an object is drawn that is in a gripper or a pan, m."""
CLEAR = 0.06
"""An object whose underside is this far above its placement is in the pan, m; half the height to which it is raised."""


class ArmsState(NamedTuple):
    """Everything that changes; immutable and hashable. Objects and arms in the order of the scenario.

    Attributes:
        slot: slots that have passed.
        places: placement of each object, or the pan, or a bin.
        holders: arm that holds each object, "" for none.
        produced: conditions that actions have made true (those without a sensor), sorted.
        waited: slots for which each arm has wanted to act in vain.
        stopped: slots for which each arm still stands still.
        blocked: placements that are out of use, with the slots that are left, sorted.
        finished: the task was done at some time.
        refused: (arm, verb, entity, placement) that the plant could not carry out while everything lay as it does now,
            sorted. No motion was found for it, for example; once something has moved, it may be tried again.
    """

    slot: int
    places: tuple[str, ...]
    holders: tuple[str, ...]
    produced: tuple[str, ...]
    waited: tuple[int, ...]
    stopped: tuple[int, ...]
    blocked: tuple[tuple[str, int], ...] = ()
    finished: bool = False
    refused: tuple[tuple[str, str, str, str], ...] = ()


class _Conditions(ConditionTracker):
    """The tracker of a world in which these conditions have been produced; what is measured is not kept."""

    def __init__(self, scenario: Scenario, produced: Iterable[str]) -> None:
        super().__init__(scenario)
        self._produced = set(produced)

    @property
    def produced(self) -> tuple[str, ...]:
        kinds = self._scenario.conditions
        return tuple(sorted(name for name in self._produced if isinstance(kinds[name], Produced)))


class AbstractWorld:
    """What a scenario says about states. Views are computed once per state and kept.

    Args:
        scenario: the task.
        capacity: views that are kept.
    """

    def __init__(self, scenario: Scenario, capacity: int = 20_000) -> None:
        self.scenario = scenario
        self.objects = tuple(scenario.entities)
        self.arms = tuple(scenario.arms)
        self.index = {name: k for k, name in enumerate(self.objects)}
        self.sweepers = tuple(name for name, arm in scenario.arms.items() if arm.tool == "dustpan")
        self.bins = tuple(name for name, item in scenario.fixtures.items() if isinstance(item, BinFixture))
        self.ropes = {name: item for name, item in scenario.fixtures.items() if isinstance(item, RopeFixture)}
        self.tied = frozenset(end for rope in self.ropes.values() for end in rope.ends)
        self._capacity = capacity
        self._views: dict[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], WorldView] = {}

    # -- states and views ---------------------------------------------------------------------------------------------

    def state(self, places: Mapping[str, str]) -> ArmsState:
        """The first state of an episode, from the start placements."""
        count, arms = len(self.objects), len(self.arms)
        at = tuple(places[name] for name in self.objects)
        return ArmsState(0, at, ("",) * count, (), (0,) * arms, (0,) * arms)

    def view(self, state: ArmsState) -> WorldView:
        """The state as the twin would mirror it."""
        key = (state.places, state.holders, state.produced)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= self._capacity:
                self._views.clear()
            positions = {name: self._position(name, state) for name in self.objects}
            held = {name: arm for name, arm in zip(self.objects, state.holders, strict=True) if arm}
            bare = World(positions, held_by=held)
            tracker = _Conditions(self.scenario, state.produced)
            world = World(positions, tracker.true_now(bare, self.readings(state)), held)
            view = self._views[key] = WorldView(self.scenario, world)
        return view

    def observe(
        self,
        view: WorldView,
        slot: int = 0,
        stopped: Mapping[str, int] | None = None,
        blocked: Mapping[str, int] | None = None,
    ) -> ArmsState:
        """The state that a mirrored view shows.

        Args:
            view: of the twin; every object of the scenario must be in it.
            slot: slots that have passed.
            stopped, blocked: arms and placements that are out of use, with the slots that this is expected to last;
                a view does not tell.
        """
        world, scenario = view.world, self.scenario
        stopped, blocked = stopped or {}, blocked or {}
        kinds = scenario.conditions
        return ArmsState(
            slot,
            tuple(self._whereabouts(name, view) for name in self.objects),
            tuple(world.held_by.get(name, "") for name in self.objects),
            tuple(sorted(name for name in world.conditions if isinstance(kinds.get(name), Produced))),
            (0,) * len(self.arms),
            tuple(stopped.get(name, 0) for name in self.arms),
            tuple(sorted(blocked.items())),
            succeeded(scenario, world),
        )

    def _position(self, name: str, state: ArmsState) -> Vec3:
        scenario, k = self.scenario, self.index[name]
        place, half = state.places[k], scenario.entities[name].shape.height / 2
        if place == PAN:  # a pan has no place of its own; it is last seen over what its arm reaches first
            x, y, z = scenario.placements[scenario.arms[self.sweepers[0]].reach[0]].xyz
            return (x, y, z + half + LIFT)
        if place in self.bins:
            x, y, z = scenario.fixtures[place].xyz  # type: ignore[union-attr]
            return (x, y, z + half)
        x, y, z = scenario.placements[place].xyz
        return (x, y, z + half + (LIFT if state.holders[k] else 0.0))

    def _whereabouts(self, name: str, view: WorldView) -> str:
        place = view.where[name]
        if not self.sweepers:
            return place
        x, y, z = view.world.positions[name]
        for bin_name in self.bins:
            fixture = self.scenario.fixtures[bin_name]
            assert isinstance(fixture, BinFixture)
            if abs(x - fixture.xyz[0]) < fixture.size[0] / 2 and abs(y - fixture.xyz[1]) < fixture.size[1] / 2:
                return bin_name
        underside = z - self.scenario.entities[name].shape.height / 2
        return PAN if underside - self.scenario.placements[place].xyz[2] > CLEAR else place

    def readings(self, state: ArmsState) -> dict[str, float]:
        """What the plant's sensors would measure between two slots, each far from its threshold.

        A door is closed: it closes by itself, and is held only during a slot.
        """
        readings: dict[str, float] = {}
        where = dict(zip(self.objects, state.places, strict=True))
        for name, rope in self.ropes.items():
            held = [bool(state.holders[self.index[end]]) for end in rope.ends]
            arrived = all(where[end] == goal for end, goal in zip(rope.ends, rope.goals, strict=True))
            readings.update({f"{end}.held": float(h) for end, h in zip(rope.ends, held, strict=True)})
            readings[f"{name}.hanging"] = HIGH * (sum(held) == 1)
            readings[f"{name}.lowest_end"] = HIGH * all(held)
            readings[f"{name}.highest_end"] = HIGH * any(held)
            readings[f"{name}.end_offset"] = FAR * (not arrived)
            readings[f"{name}.in_bed"] = MANY * (arrived and not any(held))
        if self.sweepers:
            readings[f"{self.sweepers[0]}.pan"] = float(state.places.count(PAN))
            readings.update({f"{name}.count": float(state.places.count(name)) for name in self.bins})
            readings.update({f"{name}.count": float(state.places.count(name)) for name in self.scenario.placements})
        return readings

    # -- actions ------------------------------------------------------------------------------------------------------

    def legal(self, state: ArmsState, arm: str) -> tuple[Action, ...]:
        """The legal actions of an arm, without those that end on a blocked placement or that the plant has refused."""
        blocked = {name for name, _ in state.blocked}
        legal = tuple(a for a in self.view(state).legal(arm) if not a.placement or a.placement not in blocked)
        if not state.refused:
            return legal
        return tuple(a for a in legal if (arm, a.verb, a.entity, a.placement) not in state.refused)

    def apply(self, state: ArmsState, actions: Mapping[str, Action]) -> ArmsState:
        """The state after these arms have acted together; nothing else of it changes."""
        places, holders = list(state.places), list(state.holders)
        tracker = _Conditions(self.scenario, state.produced)
        for arm, action in actions.items():
            if action.is_stay:
                continue
            verb, k = action.verb, self.index.get(action.entity)
            if verb == "sweep":
                places = [PAN if place == action.entity else place for place in places]
            elif verb == "dump":
                places = [action.entity if place == PAN else place for place in places]
            elif k is not None:
                if action.placement:
                    places[k] = action.placement
                if verb == "lift":
                    holders[k] = arm
                elif verb in (MOVE_VERB, "lower", "set_down"):
                    holders[k] = ""
            tracker.on_success(arm, action)
        after = state._replace(places=tuple(places), holders=tuple(holders), produced=tracker.produced)
        if after.refused and (after.places, after.holders) != (state.places, state.holders):
            after = after._replace(refused=())
        return after._replace(finished=state.finished or succeeded(self.scenario, self.view(after).world))

    def where(self, state: ArmsState) -> dict[str, str]:
        """Object -> placement, or pan, or bin."""
        return dict(zip(self.objects, state.places, strict=True))

    def supports(self, state: ArmsState, placement: str) -> bool:
        """Whether something stands on top: an occupied placement is legal only while this one is filled."""
        kinds = self.scenario.conditions.items()
        filled = {name for name, kind in kinds if isinstance(kind, Occupied) and placement in kind.places}
        return any(
            filled & set(self.scenario.placements[place].legal_when)
            for place in state.places
            if place in self.scenario.placements
        )


def free_placements(world: AbstractWorld, state: ArmsState, among: Collection[str]) -> tuple[str, ...]:
    """Those of the placements on which nothing stands and that are not blocked, in the order given."""
    taken = set(state.places) | {name for name, _ in state.blocked}
    return tuple(name for name in among if name not in taken)
