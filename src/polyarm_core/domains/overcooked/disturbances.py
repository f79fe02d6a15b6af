"""Events that change a kitchen behind the agents' backs, and their schedules.

An event is a function of the state and of one number drawn beforehand, so that every method that runs a trial sees the
same events. The number chooses the victim first, then the place. An event of frame k changes the state that has
``frame == k``, before the controls of that frame are chosen.

O1 to O3 are the paper's; O4 and O5 are held out: no detector is trained on them. Where the paper leaves a choice:

* O1: the item lands on the nearest counter beside floor that is empty and in use (steps of a straight walk over the
  map, walls ignored); among equally near ones the number decides.
* O2 takes an onion out of any pot that has one: filling, full, cooking or ready. So a ready soup is lost as a soup: two
  onions stay in the idle pot.
* O3: far means at least half as many steps as the farthest free cell of the agent's own region. Facing and hands stay.
* O4 puts a dispenser out of use, or a counter that carries an item or lies between floor cells; never one without
  which no soup could be served. It lasts for the rest of the episode, and an item on the counter stays there.
* O5: a stray hand does the team's next step at a pot: an onion goes into a pot that has one or two, or a full one is
  started. Nothing is lost, but remaining steps have nothing left to do: the onion on its way finds a full pot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from polyarm_core.domains.interface import Disturbance
from polyarm_core.domains.overcooked.kitchen import FULL, HORIZON, IDLE, NOTHING, Kitchen, KitchenState
from polyarm_core.domains.overcooked.layouts import Layout
from polyarm_core.errors import InvalidValue, UnknownName

DISTURBANCES = (
    Disturbance("O1", "the item in an agent's hands drops to the nearest free counter"),
    Disturbance("O2", "one onion of a pot is lost, the pot goes idle and its timer resets"),
    Disturbance("O3", "an agent is displaced to a far cell of its own region"),
    Disturbance("O4", "a dispenser or a counter is out of use from now on"),
    Disturbance("O5", "a stray hand adds an onion to a pot, or starts a full one"),
)
NAMES = tuple(disturbance.name for disturbance in DISTURBANCES)
STANDARD = ("O1", "O2", "O3")
HELD_OUT = ("O4", "O5")

FIRST_FRAME, LAST_FRAME = 5, 59  # of scheduled events, both included

_Option = TypeVar("_Option")


def disturb(kitchen: Kitchen, state: KitchenState, name: str, draw: float) -> KitchenState | None:
    """The state after an event; None where it does not apply now.

    Args:
        kitchen: of the state.
        state: before the event.
        name: one of ``NAMES``.
        draw: uniform in [0, 1).

    Raises:
        UnknownName: no such event.
        InvalidValue: the draw is not in [0, 1).
    """
    if name not in NAMES:
        raise UnknownName("disturbance", name, NAMES)
    if not 0.0 <= draw < 1.0:
        raise InvalidValue("draw", draw, "0 <= draw < 1")
    return {"O1": _drop_item, "O2": _lose_onion, "O3": _displace, "O4": _block, "O5": _stray_hand}[name](
        kitchen, state, draw
    )


def _choose(options: Sequence[_Option], draw: float) -> tuple[_Option, float]:
    """An option, and what is left of the draw: again uniform in [0, 1) and independent of the choice."""
    scaled = draw * len(options)
    index = min(int(scaled), len(options) - 1)
    return options[index], min(scaled - index, float(np.nextafter(1.0, 0.0)))


def _drop_item(kitchen: Kitchen, state: KitchenState, draw: float) -> KitchenState | None:
    layout = kitchen.layout
    carriers = [player for player, item in enumerate(state.held) if item != NOTHING]
    free = [
        index
        for index, cell in enumerate(layout.counters)
        if layout.access[cell] and state.counters[index] == NOTHING and cell not in state.blocked
    ]
    if not carriers or not free:
        return None
    player, draw = _choose(carriers, draw)
    x, y = layout.xy(state.positions[player])

    def steps(index: int) -> int:
        to_x, to_y = layout.xy(layout.counters[index])
        return abs(to_x - x) + abs(to_y - y)

    nearest = min(map(steps, free))
    place, _ = _choose([index for index in free if steps(index) == nearest], draw)
    return state._replace(
        held=_with(state.held, player, NOTHING), counters=_with(state.counters, place, state.held[player])
    )


def _lose_onion(kitchen: Kitchen, state: KitchenState, draw: float) -> KitchenState | None:
    victims = [index for index, (onions, _) in enumerate(state.pots) if onions]
    if not victims:
        return None
    index, _ = _choose(victims, draw)
    return state._replace(pots=_with(state.pots, index, (state.pots[index][0] - 1, IDLE)))


def _displace(kitchen: Kitchen, state: KitchenState, draw: float) -> KitchenState | None:
    layout = kitchen.layout
    places: dict[int, list[int]] = {}
    for player, position in enumerate(state.positions):
        steps = layout.distances[position]
        cells = [cell for cell in layout.region(position) if cell not in state.positions]
        farthest = max((steps[cell] for cell in cells), default=0)
        places[player] = [cell for cell in cells if 2 * steps[cell] >= farthest]
    victims = [player for player, cells in places.items() if cells]
    if not victims:
        return None
    player, draw = _choose(victims, draw)
    cell, _ = _choose(places[player], draw)
    return state._replace(positions=_with(state.positions, player, cell))


def _block(kitchen: Kitchen, state: KitchenState, draw: float) -> KitchenState | None:
    layout = kitchen.layout
    dispensers = [*layout.onion_dispensers, *layout.dish_dispensers]
    counters = [
        cell
        for cell, item in zip(layout.counters, state.counters, strict=True)
        if layout.access[cell] and (item != NOTHING or len(layout.access[cell]) > 1)
    ]
    groups = []
    for tiles in (dispensers, counters):
        blockable = [
            cell
            for cell in tiles
            if cell not in state.blocked and workable(layout, state.positions, {*state.blocked, cell})
        ]
        if blockable:
            groups.append(blockable)
    if not groups:
        return None
    tiles, draw = _choose(groups, draw)
    tile, _ = _choose(tiles, draw)
    return state._replace(blocked=tuple(sorted((*state.blocked, tile))))


def _stray_hand(kitchen: Kitchen, state: KitchenState, draw: float) -> KitchenState | None:
    victims = [index for index, (onions, tick) in enumerate(state.pots) if onions and tick == IDLE]
    if not victims:
        return None
    index, _ = _choose(victims, draw)
    onions = state.pots[index][0]
    pot = (onions, 0) if onions == FULL else (onions + 1, IDLE)
    return state._replace(pots=_with(state.pots, index, pot))


_Element = TypeVar("_Element")


def _with(values: tuple[_Element, ...], index: int, value: _Element) -> tuple[_Element, ...]:
    return (*values[:index], value, *values[index + 1 :])


def workable(layout: Layout, positions: Sequence[int], blocked: set[int]) -> bool:
    """Whether soup can still be made and served with these tiles out of use, hand-overs included.

    Agents whose regions touch the same usable counter can hand over, and count as one crew. There must be a usable pot
    that a crew with onions reaches, and that a crew with dishes and a serving tile reaches too.

    Args:
        layout: the map.
        positions: cell of each agent.
        blocked: cells of tiles out of use.
    """
    crews = [_reach(layout, position) - blocked for position in positions]
    merged = True
    while merged:
        merged = False
        for one in range(len(crews)):
            for other in range(one + 1, len(crews)):
                if crews[one] & crews[other] & set(layout.counters):
                    crews[one] |= crews.pop(other)
                    merged = True
                    break
            if merged:
                break
    with_onions = [crew for crew in crews if crew & set(layout.onion_dispensers)]
    that_serve = [crew for crew in crews if crew & set(layout.dish_dispensers) and crew & set(layout.servings)]
    return any(
        any(pot in crew for crew in with_onions) and any(pot in crew for crew in that_serve) for pot in layout.pots
    )


def _reach(layout: Layout, position: int) -> set[int]:
    """Tiles beside the region of a cell."""
    region = set(layout.region(position))
    return {tile for tile, access in enumerate(layout.access) if tile not in region and region.intersection(access)}


# --- schedules ---


class Event(NamedTuple):
    """One event of a schedule.

    Attributes:
        name: of the disturbance.
        frame: first frame in which it may happen.
        draw: chooses victim and place, uniform in [0, 1).
        deferred: where it does not apply in that frame, it waits for the first one where it does; else it is dropped.
    """

    name: str
    frame: int
    draw: float
    deferred: bool = True


@dataclass(frozen=True)
class EventSchedule:
    """The events of one trial, drawn beforehand, in the order of their frames.

    ``pending`` starts as ``schedule.events``; a frame begins with
    ``state, happened, pending = happen(kitchen, state, pending)``.
    """

    events: tuple[Event, ...] = ()

    @staticmethod
    def once_each(seed: int, names: Sequence[str] = STANDARD, known: Sequence[str] = NAMES) -> EventSchedule:
        """Each named event once, in random order at distinct frames of 5 to 59, deferred until it applies.

        With ``STANDARD`` this is the paper's dynamic setting; with one name, the setting of a single kind of event;
        with ``HELD_OUT``, the one of unseen kinds. A name may stand several times. ``known`` are the names of another
        domain.

        Raises:
            UnknownName: no such event.
            InvalidValue: more events than frames.
        """
        _check(names, known)
        frames = LAST_FRAME - FIRST_FRAME + 1
        if len(names) > frames:
            raise InvalidValue("names", len(names), f"at most {frames} events")
        rng = np.random.default_rng(seed)
        chosen = rng.choice(frames, size=len(names), replace=False) + FIRST_FRAME
        draws = rng.random(len(names))
        events = [Event(name, int(frame), float(draw)) for name, frame, draw in zip(names, chosen, draws, strict=True)]
        return EventSchedule(tuple(sorted(events, key=lambda event: event.frame)))

    @staticmethod
    def at_rate(
        seed: int, rate: float, names: Sequence[str] = STANDARD, last_frame: int = HORIZON - 1
    ) -> EventSchedule:
        """In every frame from 5 on an event with this probability, of a random kind; dropped where it cannot apply.

        For one seed the events of a lower rate are among those of a higher one.

        Raises:
            UnknownName: no such event.
            InvalidValue: the rate is no probability, or no names.
        """
        _check(names)
        if not 0.0 <= rate <= 1.0:
            raise InvalidValue("rate", rate, "0 <= rate <= 1")
        if not names:
            raise InvalidValue("names", names, f"at least one of {', '.join(NAMES)}")
        rng = np.random.default_rng(seed)
        events = []
        for frame in range(FIRST_FRAME, last_frame + 1):
            chance, kind, draw = rng.random(3).tolist()
            if chance < rate:
                events.append(Event(_choose(names, kind)[0], frame, draw, deferred=False))
        return EventSchedule(tuple(events))


def _check(names: Sequence[str], known: Sequence[str] = NAMES) -> None:
    for name in names:
        if name not in known:
            raise UnknownName("disturbance", name, known)


def happen(
    kitchen: Kitchen, state: KitchenState, pending: tuple[Event, ...]
) -> tuple[KitchenState, tuple[Event, ...], tuple[Event, ...]]:
    """Let every event that is due happen, as far as it applies.

    Args:
        kitchen: of the state.
        state: at the beginning of a frame.
        pending: events that have not happened yet.

    Returns:
        The state after the events, the events that happened, and those still pending.
    """
    happened, still = [], []
    for event in pending:
        if event.frame > state.frame:
            still.append(event)
            continue
        after = disturb(kitchen, state, event.name, event.draw)
        if after is not None:
            state = after
            happened.append(event)
        elif event.deferred:
            still.append(event)
    return state, tuple(happened), tuple(still)
