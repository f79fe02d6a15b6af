"""What happens to the arms' plant beside what the arms do: drawn beforehand, so that every method meets the same.

A schedule says in which slot something of which kind happens, with a number that chooses victim and place; nothing is
drawn while the episode runs. An event that does not apply in its slot waits for the first one in which it does.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from polyarm_core.control.mirror import MirroredArms
from polyarm_core.domains.arms import ArmsState
from polyarm_core.errors import UnknownName
from polyarm_core.plant.kinematic import KinematicPlant
from polyarm_core.plant.simulation import Simulation
from polyarm_core.scenario import Scenario
from polyarm_core.world import WorldView

Kind = Literal["moved", "dropped", "stopped", "blocked", "slipped"]
KINDS: tuple[Kind, ...] = ("moved", "dropped", "stopped", "blocked", "slipped")
"""``slipped`` only where something is held open, see `kinds_of`."""
BETWEEN: Mapping[str, str] = {"moved": "A1", "stopped": "A3", "blocked": "A4"}
"""Kinds that come between two slots, and the event of the domain that says what they do."""
LEVELS: Mapping[str, tuple[int, int]] = {"none": (0, 1), "standard": (2, 4), "severe": (6, 6)}
"""Level -> number of events, and the last slot in which one falls due. Undisturbed, a task takes two to seven slots."""
FIRST_SLOT = 2
"""In which one falls due for sure."""
HOME_TIME = 30.0
"""Simulated s that the way home may take."""


@dataclass(frozen=True, order=True)
class ScheduledEvent:
    """An event of an episode.

    Attributes:
        slot: first one in which it may happen.
        kind: of ``KINDS``.
        draw: uniform in [0, 1), chooses victim, place and duration.
    """

    slot: int
    kind: Kind
    draw: float


@dataclass(frozen=True)
class Happened:
    """An event that came to pass, in words for the record."""

    slot: int
    kind: Kind
    what: str


def kinds_of(scenario: Scenario) -> tuple[Kind, ...]:
    """The kinds that can come to pass in a scenario: no door slips where no action holds a condition."""
    slips = any(operator.holds for operator in scenario.operators)
    return KINDS if slips else tuple(kind for kind in KINDS if kind != "slipped")


def draw_schedule(scenario: Scenario, level: str, seed: int) -> tuple[ScheduledEvent, ...]:
    """The events of an episode, earliest first.

    Every kind of the scenario comes before one comes twice; slots are drawn with replacement.

    Raises:
        UnknownName: no such level.
    """
    if level not in LEVELS:
        raise UnknownName("disturb", level, LEVELS)
    count, last = LEVELS[level]
    rng = np.random.default_rng([seed & (2**63 - 1), zlib.crc32(f"{scenario.name}:{level}".encode())])
    known = kinds_of(scenario)
    kinds: list[Kind] = []
    while len(kinds) < count:
        kinds += [known[k] for k in rng.permutation(len(known))]
    slots = rng.integers(FIRST_SLOT, last + 1, size=count)
    slots[:1] = FIRST_SLOT
    draws = rng.random(count)
    events = zip(slots, kinds[:count], draws, strict=True)
    return tuple(sorted(ScheduledEvent(int(slot), kind, float(draw)) for slot, kind, draw in events))


class Disturber:
    """Lets a schedule happen to a plant.

    Args:
        plant: of the episode.
        domain: says what events do; must be of the plant's scenario.
        schedule: see `draw_schedule`.

    Attributes:
        happened: events that came to pass, in order.
    """

    def __init__(
        self, plant: Simulation | KinematicPlant, domain: MirroredArms, schedule: Sequence[ScheduledEvent]
    ) -> None:
        self._plant = plant
        self._domain = domain
        self._pending = list(schedule)
        self._stopped: dict[str, int] = {}  # arm -> first slot in which it acts again
        self._blocked: dict[str, int] = {}
        self.happened: list[Happened] = []

    def stopped(self, slot: int) -> dict[str, int]:
        """Arms that stand still, with the slots for which they go on to do so."""
        return {arm: end - slot for arm, end in self._stopped.items() if end > slot}

    def blocked(self, slot: int) -> dict[str, int]:
        """Placements that are out of use, with the slots for which they go on to be."""
        return {name: end - slot for name, end in self._blocked.items() if end > slot}

    def before_slot(self, slot: int) -> None:
        """End what is over, and let what is due between two slots happen; steps the plant while an arm goes home."""
        plant = self._plant
        for _ in self.stages(slot):
            end = plant.time + HOME_TIME
            while not plant.idle and plant.time < end:
                plant.step(5)

    def stages(self, slot: int) -> Iterator[str]:
        """`before_slot` for a plant that somebody else steps.

        Yields:
            an arm that is on its way home; go on when the plant is idle, or after ``HOME_TIME``.
        """
        plant = self._plant
        for arm in self._domain.agents:  # also those that the plant has stopped: a person looks and clears them
            if slot >= self._stopped.get(arm, 0):
                plant.clear(arm)
        for name in [name for name, end in self._blocked.items() if slot >= end]:
            plant.block(name, False)
            del self._blocked[name]
        # A person brings home every arm that has broken off and holds nothing: it would stand in the others' way.
        carrying = set(plant.held_by().values())
        for arm in self._domain.agents:
            if plant.arm(arm).status == "holding" and arm not in carrying:
                plant.go_home(arm)
                yield arm
        for event in [e for e in self._pending if e.slot <= slot and e.kind in BETWEEN]:
            state = self._state(slot)
            after = self._domain.disturb(state, BETWEEN[event.kind], event.draw)
            if after is not None:
                self._pending.remove(event)
                self._apply(event, state, after, slot)

    def in_slot(self, slot: int) -> None:
        """Arms move: what is due drops or slips. Victims are arms with an object, or with a door that is relied on."""
        for event in [e for e in self._pending if e.slot <= slot and e.kind not in BETWEEN]:
            slips = event.kind == "slipped"
            held = {a: e for e, a in self._plant.held_by().items()} if not slips else self._plant.relied_on()
            if not held:
                continue
            self._pending.remove(event)
            arm, entity = sorted(held.items())[int(event.draw * len(held))]
            if slips:
                self._plant.slip(arm)
                self.happened.append(Happened(slot, event.kind, f"{entity} slipped from {arm} and fell shut"))
            else:
                self._drop(event, arm, entity, slot)

    def _state(self, slot: int) -> ArmsState:
        world = replace(self._plant.world(), blocked=frozenset())
        view = WorldView(self._domain.scenario, world)
        return self._domain.world.observe(view, slot - 1, self.stopped(slot), self.blocked(slot))

    def _apply(self, event: ScheduledEvent, before: ArmsState, after: ArmsState, slot: int) -> None:
        domain, words = self._domain, []
        for k, entity in enumerate(domain.world.objects):
            if after.places[k] != before.places[k]:
                self._put(entity, after.places[k])
                words.append(f"{entity} moved from {before.places[k]} to {after.places[k]}")
        for k, arm in enumerate(domain.agents):
            if after.stopped[k] > before.stopped[k]:
                self._plant.protective_stop(arm, "stopped by an event")
                self._stopped[arm] = slot + after.stopped[k]
                words.append(f"{arm} stopped for {after.stopped[k]} slots")
        for name, left in set(after.blocked) - set(before.blocked):
            self._plant.block(name)
            self._blocked[name] = slot + left
            words.append(f"{name} blocked for {left} slots")
        self.happened.append(Happened(slot, event.kind, "; ".join(words)))

    def _drop(self, event: ScheduledEvent, arm: str, entity: str, slot: int) -> None:
        """The gripper opens; what is no rope lies somewhere else within reach, from where the goal can be reached."""
        plant, domain = self._plant, self._domain
        plant.release(arm)
        words = f"{arm} dropped {entity}"
        if entity not in domain.world.tied:
            state = self._state(slot)
            state = state._replace(holders=tuple(arm if n == entity else "" for n in domain.world.objects))
            after = domain.disturb(state, "A2", event.draw)
            if after is not None:
                place = after.places[domain.world.index[entity]]
                self._put(entity, place)
                words += f", it lies on {place}"
        self.happened.append(Happened(slot, event.kind, words))

    def _put(self, entity: str, placement: str) -> None:
        scenario = self._domain.scenario
        x, y, z = scenario.placements[placement].xyz
        self._plant.place_entity(entity, (x, y, z + scenario.entities[entity].shape.height / 2 + 0.001))
