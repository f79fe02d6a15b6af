"""Overcooked as a domain: two cooks who interact with tiles to deliver one onion soup.

Names of things are those of the map, numbered from 1 row by row: ``pot_1``, ``onion_dispenser_1``,
``dish_dispenser_1``, ``serving_1``, and ``counter_1`` for the counters that can be reached from the floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Protocol

from polyarm_core.chains.terms import Action, Plan, Step, Value, Wait, WaitAgents, WaitEntity
from polyarm_core.domains.interface import (
    ActionStatus,
    ActionTemplate,
    Attribute,
    Disturbance,
    Entity,
    Progress,
)
from polyarm_core.domains.overcooked import disturbances
from polyarm_core.domains.overcooked.candidates import PlanSearch
from polyarm_core.domains.overcooked.kitchen import (
    CONTROLS,
    COOK_TIME,
    DISH,
    FULL,
    HORIZON,
    IDLE,
    INTERACT,
    ITEM_NAMES,
    NOTHING,
    ONION,
    SOUP,
    STAY,
    Kitchen,
    KitchenState,
)
from polyarm_core.domains.overcooked.layouts import (
    COUNTER,
    DIRECTION_NAMES,
    DISHES,
    FLOOR,
    ONIONS,
    POT,
    SERVING,
    STEPS,
    load_layout,
)
from polyarm_core.domains.overcooked.navigation import NO_GOAL, Goal, Navigation, firm, tentative
from polyarm_core.errors import InvalidValue, UnknownName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AGENTS = ("agent_1", "agent_2")
KINDS = {ONIONS: "onion_dispenser", DISHES: "dish_dispenser", POT: "pot", SERVING: "serving", COUNTER: "counter"}
FEATURES = 16
PASS_COUNTERS = 6  # counters among the watched entities

INTERACT_NAME, MOVE_NAME, FACE_NAME = "Interact", "Move_to", "Face"
VOCABULARY = (
    ActionTemplate(
        INTERACT_NAME,
        ("target",),
        "Walk to the target, face it and use it: take an onion or a dish from its dispenser, put an onion into a pot, "
        "start a full pot with empty hands, take a ready soup with a dish, serve a soup, put an item on a free counter "
        "or take one from it.",
        "Interact(pot_1)",
    ),
    ActionTemplate(MOVE_NAME, ("x", "y"), "Walk to the floor cell in column x and row y.", "Move_to(1, 2)"),
    ActionTemplate(
        FACE_NAME,
        ("direction",),
        "Turn to north, south, east or west; where the way ahead is free this is also a step.",
        "Face(north)",
    ),
)

DONE, RUNNING = Progress(ActionStatus.DONE), Progress(ActionStatus.RUNNING)

NOW, LATER, NEVER = 0, 1, 2
Use = tuple[int, str]
USE_NOW: Use = (NOW, "")
_LATER_EMPTY: Use = (LATER, "nothing lies there yet")
_LATER_OCCUPIED: Use = (LATER, "something still lies there")
_LATER_FILLING: Use = (LATER, "the pot is not full yet")
_LATER_COOKING: Use = (LATER, "the soup is not ready yet")
_BLOCKED: Use = (NEVER, "it is out of use")
_HANDS_FULL: Use = (NEVER, "it needs empty hands")
_POT_FULL: Use = (NEVER, "the pot takes no onion now")
_POT_STARTED: Use = (NEVER, "the pot cooks already; it needs a dish")
_NOT_FOR_POT: Use = (NEVER, "this item does not go into a pot")
_NO_SOUP: Use = (NEVER, "only soup can be served")


# Columns of the staleness detector
_NONE = (0.0,) * FEATURES
_ITEM_COLUMNS = tuple(tuple(1.0 if item == here else 0.5 for here in range(SOUP + 1)) for item in range(SOUP + 1))


class Plant(Protocol):
    """What carries out steps: our kitchen or the package."""

    def start(self) -> KitchenState:
        """First state."""
        ...

    def step(self, state: KitchenState, controls: Sequence[int]) -> KitchenState:
        """The next state."""
        ...


class OvercookedDomain:
    """One layout with one order; implements ``Domain[KitchenState]``.

    Args:
        layout: name of a classic layout or an alias.
        cook_time: frames from the start of cooking to a ready soup.
        plant: carries out ``step``; our own kitchen by default. Searching and imagining always use our kitchen
            (``simulation``).

    Raises:
        UnknownName: no such layout.
        InvalidValue: cook time below 1.
    """

    agents: tuple[str, ...] = AGENTS
    vocabulary: tuple[ActionTemplate, ...] = VOCABULARY
    horizon = HORIZON
    feature_count = FEATURES
    control_count = len(CONTROLS)
    movements = (0, 1, 2, 3)  # controls that count as movement steps
    disturbances: tuple[Disturbance, ...] = disturbances.DISTURBANCES

    def __init__(self, layout: str, cook_time: int = COOK_TIME, plant: Plant | None = None) -> None:
        self.layout = load_layout(layout)
        self.name = f"overcooked:{self.layout.name}"
        self.kitchen = Kitchen(self.layout, cook_time)
        self.plant: Plant = plant or self.kitchen
        self.cook_time = cook_time
        self.navigation = Navigation(self.layout)
        self.background = "the Overcooked kitchen, a grid on which cooks carry one item each"
        self.target = (
            "to deliver one onion soup as fast as possible: three onions in one pot, start it with empty hands, "
            f"wait {cook_time} frames, fill a dish, serve"
        )
        self.attributes: Mapping[str, tuple[Attribute, ...]] = self._attributes()

        self.tiles: dict[str, int] = {}  # name -> cell of everything but agents
        self._kind: dict[str, str] = {}
        for tile, cells in (
            (ONIONS, self.layout.onion_dispensers),
            (DISHES, self.layout.dish_dispensers),
            (POT, self.layout.pots),
            (SERVING, self.layout.servings),
            (COUNTER, tuple(cell for cell in self.layout.counters if self.layout.access[cell])),
        ):
            for number, cell in enumerate(cells, start=1):
                self.tiles[f"{KINDS[tile]}_{number}"] = cell
                self._kind[f"{KINDS[tile]}_{number}"] = KINDS[tile]
        self.names = {cell: name for name, cell in self.tiles.items()}  # cell -> name
        self.search = PlanSearch(self.kitchen, self.navigation, self.names)
        watched = [name for name in self.tiles if self._kind[name] != "counter"]
        watched += [self.names[cell] for cell in self.search.pass_counters[:PASS_COUNTERS]]
        rows = (*self.agents, *watched)
        self.entity_rows = rows
        self._row = {name: i for i, name in enumerate(rows)}
        self._targets: dict[Action, int] = {}  # known actions -> cell
        self._cells = {(str(x), str(y)): self.layout.cell(x, y) for x, y in map(self.layout.xy, self.layout.floor)}
        self._entity = lru_cache(maxsize=4096)(self._make_entity)
        self._things = lru_cache(maxsize=16384)(self._make_things)
        self._depends = lru_cache(maxsize=65536)(self._dependencies)

    @property
    def simulation(self) -> OvercookedDomain:
        """This domain with our own kitchen as plant: for searching and imagining."""
        if self.plant is self.kitchen:
            return self
        twin = OvercookedDomain.__new__(OvercookedDomain)
        twin.__dict__.update(self.__dict__)
        twin.plant = self.kitchen
        return twin

    # --- episode ---

    def start(self, seed: int) -> KitchenState:
        """Standard start; it is the same for every seed."""
        return self.plant.start()

    def step(self, state: KitchenState, controls: Sequence[int]) -> KitchenState:
        """The next state."""
        return self.plant.step(state, controls)

    def situation(self, state: KitchenState) -> KitchenState:
        """The state without its clock: plans do not depend on it."""
        return state._replace(frame=0)

    def succeeded(self, state: KitchenState) -> bool:
        """A soup has been delivered."""
        return state.delivered > 0

    # --- what a plan can say ---

    def _attributes(self) -> dict[str, tuple[Attribute, ...]]:
        layout = self.layout
        items = ITEM_NAMES[: SOUP + 1]
        blocked = Attribute("blocked", "bool", description="out of use")
        return {
            "agent": (
                Attribute("x", "int", 0, layout.width - 1, description="column"),
                Attribute("y", "int", 0, layout.height - 1, description="row"),
                Attribute("holding", "choice", choices=items, description="item in its hands"),
            ),
            "pot": (
                Attribute("onions", "int", 0, FULL, description="onions in it"),
                Attribute("status", "choice", choices=("empty", "filling", "full", "cooking", "ready")),
                Attribute("time_left", "int", 0, self.cook_time, description="frames until the soup is ready"),
            ),
            "counter": (Attribute("item", "choice", choices=items, description="what lies on it"), blocked),
            "onion_dispenser": (blocked,),
            "dish_dispenser": (blocked,),
            "serving": (blocked,),
        }

    def _make_entity(self, name: str, values: tuple[Value, ...]) -> Entity:
        kind = "agent" if name in self.agents else self._kind[name]
        return Entity(name, kind, {a.name: v for a, v in zip(self.attributes[kind], values, strict=True)})

    def pot_status(self, pot: tuple[int, int]) -> str:
        """Status of a pot, in words."""
        onions, tick = pot
        if tick == IDLE:
            return "empty" if not onions else "full" if onions == FULL else "filling"
        return "ready" if tick >= self.cook_time else "cooking"

    def entities(self, state: KitchenState) -> tuple[Entity, ...]:
        """Agents, then dispensers, pots, serving tiles and reachable counters."""
        entity = self._entity
        agents = [
            entity(agent, (*self.layout.xy(state.positions[i]), ITEM_NAMES[state.held[i]]))
            for i, agent in enumerate(self.agents)
        ]
        return (*agents, *self._things(state.pots, state.counters, state.blocked))

    def _make_things(
        self, pots: tuple[tuple[int, int], ...], counters: tuple[int, ...], blocked: tuple[int, ...]
    ) -> tuple[Entity, ...]:
        result = []
        for name, cell in self.tiles.items():
            kind = self._kind[name]
            values: tuple[Value, ...] = (cell in blocked,)
            if kind == "pot":
                pot = pots[self.kitchen.pot_index[cell]]
                left = self.cook_time - pot[1] if pot[1] != IDLE else 0
                values = (pot[0], self.pot_status(pot), left)
            elif kind == "counter":
                values = (ITEM_NAMES[counters[self.kitchen.counter_index[cell]]], cell in blocked)
            result.append(self._entity(name, values))
        return tuple(result)

    def arguments(self, state: KitchenState, agent: str, template: ActionTemplate) -> tuple[tuple[str, ...], ...]:
        """Targets and cells in this agent's reach; tiles out of use are left out."""
        here = state.positions[self._agent_index(agent)]
        if template.name == INTERACT_NAME:
            return tuple(
                (name,)
                for name, cell in self.tiles.items()
                if cell not in state.blocked and self.navigation.reachable(here, cell)
            )
        if template.name == MOVE_NAME:
            return tuple((str(x), str(y)) for x, y in (self.layout.xy(c) for c in self.layout.region(here)))
        if template.name == FACE_NAME:
            return tuple((direction,) for direction in DIRECTION_NAMES)
        raise UnknownName("action", template.name, [known.name for known in self.vocabulary])

    def describe(self, state: KitchenState) -> str:
        """Agents, pots, items on counters, what is out of use, and each agent's steps to things (- = out of reach)."""
        xy = self.layout.xy
        parts = []
        for i, agent in enumerate(self.agents):
            x, y = xy(state.positions[i])
            parts.append(
                f"{agent} at ({x}, {y}) facing {DIRECTION_NAMES[state.facings[i]]} holding {ITEM_NAMES[state.held[i]]}"
            )
        for name, cell in self.tiles.items():
            kind = self._kind[name]
            if kind == "pot":
                pot = state.pots[self.kitchen.pot_index[cell]]
                status = self.pot_status(pot)
                if status == "filling":
                    status += f" with {pot[0]} onions"
                elif status == "cooking":
                    status += f", {self.cook_time - pot[1]} frames left"
                parts.append(f"{name} {status}")
            elif kind == "counter":
                item = state.counters[self.kitchen.counter_index[cell]]
                if item:
                    parts.append(f"{name} has {ITEM_NAMES[item]}")
            if cell in state.blocked:
                parts.append(f"{name} blocked")
        shared = self.search.pass_counters[:PASS_COUNTERS]
        steps = []
        for name, cell in self.tiles.items():
            if self._kind[name] == "counter" and cell not in shared:
                if not state.counters[self.kitchen.counter_index[cell]]:
                    continue
            if cell not in state.blocked:
                near = [
                    min(self.navigation.arrivals(position, facing, cell).values(), default=-1)
                    for position, facing in zip(state.positions, state.facings, strict=True)
                ]
                steps.append(f"{name} {'/'.join('-' if n < 0 else str(n) for n in near)}")
        parts.append(f"steps of {'/'.join(self.agents)} to {', '.join(steps)}")
        return "; ".join(parts) + "."

    # --- execution ---

    def use(self, state: KitchenState, player: int, tile: int) -> Use:
        """What an interact of this player with this tile would do: NOW has an effect, LATER may have, NEVER will.

        A pot that is not full is not started, though the rules allow it: such a soup is no order.
        """
        if tile in state.blocked:
            return _BLOCKED
        kind, item = self.layout.terrain[tile], state.held[player]
        if kind == COUNTER:
            occupied = state.counters[self.kitchen.counter_index[tile]] != NOTHING
            if item == NOTHING:
                return USE_NOW if occupied else _LATER_EMPTY
            return _LATER_OCCUPIED if occupied else USE_NOW
        if kind == POT:
            onions, tick = state.pots[self.kitchen.pot_index[tile]]
            if item == NOTHING:
                if tick != IDLE:
                    return _POT_STARTED
                return USE_NOW if onions == FULL else _LATER_FILLING
            if item == ONION:
                return USE_NOW if tick == IDLE and onions < FULL else _POT_FULL
            if item == DISH:
                return USE_NOW if tick >= self.cook_time else _LATER_COOKING
            return _NOT_FOR_POT
        if kind == SERVING:
            return USE_NOW if item >= SOUP else _NO_SOUP
        return USE_NOW if item == NOTHING else _HANDS_FULL

    def _target(self, action: Action) -> int:
        """Cell of a known action's target; for ``Face`` its direction.

        Raises:
            UnknownName, InvalidValue: the action is not in the vocabulary, or its arguments are not on this map.
        """
        found = self._targets.get(action)
        if found is None:
            if action.name == INTERACT_NAME and len(action.arguments) == 1:
                if action.arguments[0] not in self.tiles:
                    raise UnknownName("target", action.arguments[0], self.tiles)
                found = self.tiles[action.arguments[0]]
            elif action.name == MOVE_NAME and len(action.arguments) == 2:
                key = (action.arguments[0].strip(), action.arguments[1].strip())
                if key not in self._cells:
                    raise InvalidValue("position", f"({', '.join(key)})", "column and row of a floor cell")
                found = self._cells[key]
            elif action.name == FACE_NAME and len(action.arguments) == 1:
                if action.arguments[0] not in DIRECTION_NAMES:
                    raise UnknownName("direction", action.arguments[0], DIRECTION_NAMES)
                found = DIRECTION_NAMES.index(action.arguments[0])
            else:
                raise UnknownName("action", str(action), [template.usage for template in self.vocabulary])
            self._targets[action] = found
        return found

    def control(self, state: KitchenState, intents: Sequence[Action | None]) -> tuple[int, int]:
        """Controls for one frame; who has no intent stays, but steps aside for the other.

        Raises:
            UnknownName, InvalidValue: an intent is not an action of this map.
        """
        layout = self.layout
        goals: list[Goal] = [NO_GOAL, NO_GOAL]
        fixed = [-1, -1]  # control that is not a matter of walking
        for player in (0, 1):
            action = intents[player]
            if action is None:
                continue
            cell = self._targets.get(action)
            if cell is None:
                cell = self._target(action)
            here = state.positions[player]
            if action.name == FACE_NAME:
                fixed[player] = cell
            elif self.navigation.reachable(here, cell):
                if layout.terrain[cell] == FLOOR:
                    goals[player] = firm(cell)
                elif self.use(state, player, cell)[0] == NOW:
                    goals[player] = firm(cell)
                    if layout.front[here][state.facings[player]] == cell:
                        fixed[player] = INTERACT
                else:
                    goals[player] = tentative(cell)
        if goals[0] == NO_GOAL == goals[1]:
            first = second = STAY
        else:
            first, second = self.navigation.moves(state.positions, state.facings, (goals[0], goals[1]))
        return (first if fixed[0] < 0 else fixed[0], second if fixed[1] < 0 else fixed[1])

    def progress(
        self, before: KitchenState, controls: Sequence[int], after: KitchenState, agent: str, action: Action
    ) -> Progress:
        """What a frame did to an action.

        DONE: the interact had an effect, the cell is reached, the agent looks there. FAILED: it stands in front of a
        target that it cannot use now and that waiting does not change.
        """
        player = self._agent_index(agent)
        target = self._target(action)
        if action.name == MOVE_NAME:
            return DONE if after.positions[player] == target else RUNNING
        if action.name == FACE_NAME:
            return DONE if after.facings[player] == target else RUNNING
        if self.layout.front[before.positions[player]][before.facings[player]] != target:
            return RUNNING
        if controls[player] == INTERACT:
            if before.held[player] != after.held[player]:
                return DONE
            pot = self.kitchen.pot_index.get(target)
            if pot is not None and not before.held[player] and before.pots[pot][1] == IDLE != after.pots[pot][1]:
                return DONE
        when, reason = self.use(before, player, target)
        return Progress(ActionStatus.FAILED, reason) if when == NEVER else RUNNING

    def impossible(self, state: KitchenState, agent: str, action: Action) -> str | None:
        """Out of this agent's reach, out of use, or not on this map."""
        try:
            target = self._target(action)
        except (UnknownName, InvalidValue) as error:
            return str(error)
        if action.name == FACE_NAME:
            return None
        if target in state.blocked:
            return f"{action.arguments[0]} is out of use"
        if not self.navigation.reachable(state.positions[self._agent_index(agent)], target):
            return f"{', '.join(action.arguments)} is out of reach for {agent}"
        return None

    def can_become(self, state: KitchenState, wait: WaitEntity, remaining: Plan) -> bool:
        """Whether cooking or some remaining action can bring the condition about.

        Chains whose head is just this wait do not count: they cannot act before it is satisfied.
        """
        chains = [
            (i, chain)
            for i, chain in enumerate(remaining.values())
            if chain and not (isinstance(chain[0], Wait) and wait in chain[0].atoms and chain[0].connective != "|")
        ]
        acting = any(isinstance(step, Action) for _, chain in chains for step in chain)
        if wait.entity in self.agents:
            own = next((chain for i, chain in chains if self.agents[i] == wait.entity), ())
            return acting if wait.attribute in ("x", "y") else any(isinstance(step, Action) for step in own)
        if wait.attribute == "blocked":
            return False
        uses = [
            (i, step)
            for i, chain in chains
            for step in chain
            if isinstance(step, Action) and step.name == INTERACT_NAME and step.arguments == (wait.entity,)
        ]
        cell = self.tiles.get(wait.entity)
        if cell is None:
            return False
        if self._kind[wait.entity] != "pot":
            return bool(uses)
        onions, tick = state.pots[self.kitchen.pot_index[cell]]
        if IDLE < tick < self.cook_time and (wait.attribute == "time_left" or wait.value in ("ready", "cooking")):
            return True
        if tick == IDLE and wait.value in ("full", "cooking", "ready"):
            return self._onions_coming(state, chains, wait.entity) >= FULL - onions and (
                bool(uses) or wait.value == "full"
            )
        return bool(uses)

    def _onions_coming(self, state: KitchenState, chains: Sequence[tuple[int, Sequence[Step]]], pot: str) -> int:
        """Onions that these chains can bring to a pot at most."""
        count = 0
        for i, chain in chains:
            may_hold = state.held[i] == ONION
            for step in chain:
                if not isinstance(step, Action) or step.name != INTERACT_NAME:
                    continue
                kind = self._kind.get(step.arguments[0], "")
                if kind in ("onion_dispenser", "counter"):
                    may_hold = True
                elif step.arguments == (pot,) and may_hold:
                    count += 1
                    may_hold = False
        return count

    def _agent_index(self, agent: str) -> int:
        if agent not in self.agents:
            raise UnknownName("agent", agent, self.agents)
        return self.agents.index(agent)

    # --- staleness ---

    @cached_property
    def _walks(self) -> dict[str, list[list[float]]]:
        """Frames until a lone cook faces each watched tile, by cell and facing; 1 = farthest, or out of reach."""
        frames: dict[str, dict[tuple[int, int], int]] = {}
        for name in self._row.keys() - set(self.agents):
            poses = [(cell, facing) for cell in self.layout.floor for facing in range(4)]
            arrivals = {pose: self.navigation.arrivals(*pose, self.tiles[name]) for pose in poses}
            frames[name] = {pose: min(found.values()) for pose, found in arrivals.items() if found}
        farthest = max(max(walk.values(), default=1) for walk in frames.values())
        cells = range(self.layout.width * self.layout.height)
        return {
            name: [[walk.get((cell, facing), farthest) / farthest for facing in range(4)] for cell in cells]
            for name, walk in frames.items()
        }

    def features(self, state: KitchenState) -> NDArray[np.float32]:
        """What the staleness detector sees of the watched entities.

        0 stands for an attribute that the entity does not have; its values are in [1/2, 1], so that a product with
        them keeps a change to the lowest value. Columns:

        * agents: 0, 1 place; 2, 3 facing, as a vector;
        * agents and counters: 4 to 7 holds nothing, an onion, a dish, a soup;
        * pots: 8 onions, 9 idle, 10 time left (all of it while idle);
        * tiles: 11 out of use; 12, 13 frames until either agent faces it (farthest where it never can); 14, 15 whether
          either agent, with what it holds, has no use for it now (half) or never as long as it is out of use.
        """
        import numpy as np

        layout, counters = self.layout, self.kitchen.counter_index
        rows: list[list[float]] = []
        for position, facing, item in zip(state.positions, state.facings, state.held, strict=True):
            x, y = layout.xy(position)
            dx, dy = STEPS[facing]
            place = (x / (layout.width - 1), y / (layout.height - 1), (1 + dx) / 2, (1 + dy) / 2)
            rows.append([*((1 + value) / 2 for value in place), *_ITEM_COLUMNS[min(item, SOUP)], *_NONE[8:]])
        for name in self.entity_rows[len(self.agents) :]:
            cell = self.tiles[name]
            row = [*_NONE]
            rows.append(row)
            if cell in counters:
                row[4:8] = _ITEM_COLUMNS[min(state.counters[counters[cell]], SOUP)]
            elif cell in self.kitchen.pot_index:
                onions, tick = state.pots[self.kitchen.pot_index[cell]]
                left = 1 - tick / self.cook_time if tick != IDLE else 1
                row[8:11] = (1 + onions / FULL) / 2, 1 if tick == IDLE else 0.5, (1 + left) / 2
            blocked = cell in state.blocked
            row[11] = 1 if blocked else 0.5
            walk = self._walks[name]
            for player in (0, 1):
                row[12 + player] = (1 + walk[state.positions[player]][state.facings[player]]) / 2
                useful = self.use(state, player, cell)[0] == NOW
                row[14 + player] = 1 if blocked else 0.5 if useful else 0.75
        return np.array(rows, dtype=np.float32)

    def refers(self, state: KitchenState, agent: str, step: Step) -> frozenset[str]:
        """Watched things that the step names."""
        if isinstance(step, Wait):
            named = {atom.agent if isinstance(atom, WaitAgents) else atom.entity for atom in step.atoms}
        else:
            named = set(step.arguments)
        return frozenset(name for name in named if name in self._row)

    def depends(self, state: KitchenState, agent: str, step: Step) -> frozenset[str]:
        """``refers`` and what else the step depends on, by the kitchen's rules.

        * every step: the agent itself (where it is, what it holds);
        * an action: its target, and the other agent where it stands on a shortest way to it or in front of it;
        * serving, without a soup in hand: every pot that is not empty, and counters with soup;
        * a pot: who holds an onion or a dish, since that is about to go there;
        * a counter: the other agent, if it is to put something there or take it away, i.e. if the counter is not ready
          for this agent's use;
        * a wait on a pot or counter: the other agent as well, who may have to bring the condition about.
        """
        return self._depends(state._replace(frame=0), agent, step)

    def _dependencies(self, state: KitchenState, agent: str, step: Step) -> frozenset[str]:
        me = self._agent_index(agent)
        other = 1 - me
        names = {agent, *self.refers(state, agent, step)}
        if isinstance(step, Wait):
            if any(isinstance(atom, WaitEntity) for atom in step.atoms):
                names.add(self.agents[other])
        elif step.name != FACE_NAME and self.impossible(state, agent, step) is None:
            target = self._target(step)
            kind = self.layout.terrain[target]
            if self._in_the_way(state, me, target):
                names.add(self.agents[other])
            if kind == COUNTER and self.use(state, me, target)[0] != NOW:
                names.add(self.agents[other])
            if kind == POT and state.held[other] in (ONION, DISH):
                names.add(self.agents[other])
            if kind == SERVING and state.held[me] != SOUP:
                soups = [p for p, pot in zip(self.layout.pots, state.pots, strict=True) if pot[0]]
                soups += [c for c, item in zip(self.layout.counters, state.counters, strict=True) if item == SOUP]
                names.update(self.names[cell] for cell in soups if cell in self.names)
                if state.held[other] == SOUP:
                    names.add(self.agents[other])
        return frozenset(name for name in names if name in self._row)

    def _in_the_way(self, state: KitchenState, me: int, target: int) -> bool:
        """Whether the other agent stands on a shortest way to the target, or where it is used from."""
        here, there = state.positions[me], state.positions[1 - me]
        distances = self.layout.distances
        ends = [target] if self.layout.terrain[target] == FLOOR else self.layout.access[target]
        reach = [distances[here][end] for end in ends if distances[here][end] >= 0]
        if not reach or distances[here][there] < 0:
            return False
        if there in ends:
            return True
        return any(distances[here][there] + distances[there][end] == min(reach) for end in ends)

    def disturb(self, state: KitchenState, name: str, draw: float) -> KitchenState | None:
        """The state after an event; see ``disturbances``."""
        return disturbances.disturb(self.kitchen, state, name, draw)

    # --- search ---

    def candidates(self, state: KitchenState) -> Iterator[Plan]:
        """Joint plans in order of their estimated finish; see ``candidates``."""
        return (plan for _, plan in self.search.plans(state))

    def bounded_candidates(self, state: KitchenState) -> Iterator[tuple[int, Plan]]:
        """``candidates`` with the frames that each needs at least; the bounds never fall."""
        return self.search.plans(state)

    def patches(self, state: KitchenState, agent: str, remaining: Plan) -> Iterator[Plan]:
        """New chains for one agent that fit to what the other is going to do; see ``candidates``."""
        return self.search.patches(state, self._agent_index(agent), remaining)
