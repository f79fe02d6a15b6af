"""A complete domain of a hundred lines for tests: agents in a corridor with a door, its button and a crate.

::

    cell_0   cell_1   cell_2   cell_3   cell_4   cell_5   cell_6
    agent_1  button   agent_2  crate    door              goal

A press of the button opens the door for good, ``opening`` frames later: time alone does the rest. The crate must lie on
the last cell. With ``solid`` agents no two share a cell and nobody yields, so that two can block each other head-on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from polyarm_core.chains.terms import Action, Plan, Step, Value, Wait, WaitAgents, WaitEntity
from polyarm_core.domains.interface import (
    ActionStatus,
    ActionTemplate,
    Attribute,
    Disturbance,
    Entity,
    Progress,
)
from polyarm_core.errors import UnknownName

STAY, LEFT, RIGHT, PRESS, TAKE, DROP = range(6)
RUNNING, DONE = Progress(ActionStatus.RUNNING), Progress(ActionStatus.DONE)


class ToyState(NamedTuple):
    """``door``: -1 closed, from 0 on opening, ``opening`` open. ``carrier``: index of an agent, -1 nobody."""

    positions: tuple[int, ...]
    crate: int
    carrier: int
    door: int
    delivered: bool
    frame: int


class ToyDomain:
    """The corridor. Two agents by default; a third starts beside the button."""

    background = "A corridor of cells in a row. A closed door can be opened with a button."
    target = "Put the crate on the last cell."
    vocabulary = (
        ActionTemplate("Go", ("cell",), "Walk to a cell.", "Go(cell_3)"),
        ActionTemplate("Press", ("button",), "Walk to the button and press it.", "Press(button)"),
        ActionTemplate("Take", ("crate",), "Walk to the crate and take it.", "Take(crate)"),
        ActionTemplate("Drop", (), "Put down what one carries.", "Drop()"),
    )
    disturbances = (
        Disturbance("T1", "The door falls shut."),
        Disturbance("T2", "The crate, when nobody carries it, is moved."),
        Disturbance("T3", "An agent is moved."),
    )
    feature_count = 4
    control_count = 6

    def __init__(
        self, agents: int = 2, width: int = 7, solid: bool = False, walls: tuple[int, ...] = (), opening: int = 4
    ) -> None:
        self.name = f"toy:{agents}"
        self.agents = tuple(f"agent_{i + 1}" for i in range(agents))
        self.width, self.solid, self.walls, self.opening = width, solid, walls, opening
        self.horizon = 60
        self.button, self.door_cell, self.goal = 1, 4, width - 1
        self.cells = tuple(f"cell_{x}" for x in range(width))
        self.attributes = {
            "agent": (
                Attribute("cell", "int", 0, width - 1, description="where it stands"),
                Attribute("carries", "choice", choices=("nothing", "crate")),
            ),
            "cell": (Attribute("occupied", "bool", description="somebody stands there"),),
            "door": (
                Attribute("status", "choice", choices=("closed", "opening", "open")),
                Attribute("open", "bool"),
                Attribute("travel", "float", 0.0, 1.0, description="how far it is open"),
            ),
            "button": (Attribute("pressed", "bool"),),
            "crate": (Attribute("cell", "int", 0, width - 1), Attribute("carried", "bool")),
        }
        self.entity_rows = (*self.agents, "door", "button", "crate")

    # --- episode ---

    def start(self, seed: int) -> ToyState:
        return ToyState((0, 2, 1, 3, 4)[: len(self.agents)], 3, -1, -1, False, 0)

    def step(self, state: ToyState, controls: Sequence[int]) -> ToyState:
        old = state.positions
        new = [self._moved(state, cell, control) for cell, control in zip(old, controls, strict=True)]
        if self.solid:
            for _ in new:  # whoever runs into another stays, which may block a third
                for i, j in combinations(range(len(new)), 2):
                    if new[i] == new[j] or (new[i], new[j]) == (old[j], old[i]):
                        new[i], new[j] = old[i], old[j]
        crate, carrier, door = state.crate, state.carrier, state.door
        if 0 <= door < self.opening:
            door += 1
        for i, control in enumerate(controls):
            if control == PRESS and old[i] == self.button and door < 0:
                door = 0
            elif control == TAKE and carrier < 0 and crate == old[i]:
                carrier = i
            elif control == DROP and carrier == i:
                carrier = -1
        if carrier >= 0:
            crate = new[carrier]
        delivered = state.delivered or (carrier < 0 and crate == self.goal)
        return ToyState(tuple(new), crate, carrier, door, delivered, state.frame + 1)

    def _moved(self, state: ToyState, cell: int, control: int) -> int:
        to = cell + {LEFT: -1, RIGHT: 1}.get(control, 0)
        shut = to == self.door_cell != cell and state.door < self.opening
        return cell if shut or to in self.walls or not 0 <= to < self.width else to

    def succeeded(self, state: ToyState) -> bool:
        return state.delivered

    # --- what a plan can say ---

    def entities(self, state: ToyState) -> tuple[Entity, ...]:
        def entity(name: str, kind: str, *values: Value) -> Entity:
            return Entity(name, kind, {a.name: v for a, v in zip(self.attributes[kind], values, strict=True)})

        opened = state.door == self.opening
        status = "open" if opened else "closed" if state.door < 0 else "opening"
        return (
            *(
                entity(name, "agent", state.positions[i], "crate" if state.carrier == i else "nothing")
                for i, name in enumerate(self.agents)
            ),
            *(entity(name, "cell", x in state.positions) for x, name in enumerate(self.cells)),
            entity("door", "door", status, opened, max(state.door, 0) / self.opening),
            entity("button", "button", state.door >= 0),
            entity("crate", "crate", state.crate, state.carrier >= 0),
        )

    def arguments(self, state: ToyState, agent: str, template: ActionTemplate) -> tuple[tuple[str, ...], ...]:
        choices: dict[str, tuple[tuple[str, ...], ...]] = {
            "Go": tuple((name,) for x, name in enumerate(self.cells) if x not in self.walls),
            "Press": (("button",),),
            "Take": (("crate",),),
            "Drop": ((),),
        }
        return choices[template.name]

    def describe(self, state: ToyState) -> str:
        lines = []
        for entity in self.entities(state):
            if entity.kind != "cell":
                lines.append(f"{entity.name}: " + ", ".join(f"{k} {v}" for k, v in entity.values.items()))
        return "\n".join(lines)

    # --- execution ---

    def _place(self, state: ToyState, action: Action) -> int | None:
        if action.name == "Go":
            return self.cells.index(action.arguments[0])
        return {"Press": self.button, "Take": state.crate}.get(action.name)

    def control(self, state: ToyState, intents: Sequence[Action | None]) -> tuple[int, ...]:
        controls = []
        for cell, intent in zip(state.positions, intents, strict=True):
            to = None if intent is None else self._place(state, intent)
            if to is not None and to != cell:
                controls.append(RIGHT if to > cell else LEFT)
            else:
                controls.append(
                    STAY if intent is None else {"Press": PRESS, "Take": TAKE, "Drop": DROP}.get(intent.name, STAY)
                )
        return tuple(controls)

    def progress(
        self, before: ToyState, controls: Sequence[int], after: ToyState, agent: str, action: Action
    ) -> Progress:
        i = self.agents.index(agent)
        if action.name == "Go":
            return DONE if after.positions[i] == self._place(after, action) else RUNNING
        if action.name == "Press":
            return DONE if controls[i] == PRESS and before.positions[i] == self.button else RUNNING
        if action.name == "Take":
            if before.carrier not in (-1, i):
                return Progress(ActionStatus.FAILED, f"{self.agents[before.carrier]} carries the crate")
            return DONE if after.carrier == i else RUNNING
        if before.carrier != i:
            return Progress(ActionStatus.FAILED, f"{agent} carries nothing")
        return DONE

    def impossible(self, state: ToyState, agent: str, action: Action) -> str | None:
        here, to = state.positions[self.agents.index(agent)], self._place(state, action)
        if to is not None and any(min(here, to) <= wall <= max(here, to) for wall in self.walls):
            return f"a wall is between {agent} and {self.cells[to]}"
        return None

    def can_become(self, state: ToyState, wait: WaitEntity, remaining: Plan) -> bool:
        actions = [(agent, step) for agent in remaining for step in remaining[agent] if isinstance(step, Action)]
        if wait.entity in self.agents:
            return any(agent == wait.entity for agent, _ in actions)
        if wait.entity in self.cells:
            return bool(actions)
        if wait.entity == "crate":
            return any(action.name in ("Take", "Drop") for _, action in actions) or state.carrier >= 0
        return 0 <= state.door < self.opening or (
            state.door < 0 and any(action.name == "Press" for _, action in actions)
        )

    # --- staleness ---

    def features(self, state: ToyState) -> np.ndarray:
        rows = [[cell / (self.width - 1), state.carrier == i, 0, 0] for i, cell in enumerate(state.positions)]
        rows.append([max(state.door, 0) / self.opening, state.door == self.opening, 0, 0])
        rows.append([state.door >= 0, 0, 0, 0])
        rows.append([state.crate / (self.width - 1), state.carrier >= 0, 0, 0])
        return np.array(rows, dtype=np.float32)

    def refers(self, state: ToyState, agent: str, step: Step) -> frozenset[str]:
        if isinstance(step, Wait):
            names = [atom.agent if isinstance(atom, WaitAgents) else atom.entity for atom in step.atoms]
        else:
            names = list(step.arguments)
        return frozenset(names) & frozenset(self.entity_rows)

    def depends(self, state: ToyState, agent: str, step: Step) -> frozenset[str]:
        named = self.refers(state, agent, step)
        if isinstance(step, Wait):
            return named
        return named | {agent} | ({"door"} if step.name == "Go" else {"crate"} if step.name == "Drop" else set())

    def disturb(self, state: ToyState, name: str, draw: float) -> ToyState | None:
        if name == "T1":
            return None if state.door < 0 else state._replace(door=-1)
        if name == "T2":
            return None if state.carrier >= 0 else state._replace(crate=int(draw * (self.width - 1)))
        if name == "T3":
            victim = int(draw * len(self.agents))
            moved = list(state.positions)
            moved[victim] = next(x for x in range(self.width) if x not in state.positions and x not in self.walls)
            crate = moved[victim] if state.carrier == victim else state.crate
            return state._replace(positions=tuple(moved), crate=crate)
        raise UnknownName("disturbance", name, [d.name for d in self.disturbances])

    # --- search ---

    def candidates(self, state: ToyState) -> Iterator[Plan]:
        """One agent opens the door where it is closed, another (or the same) brings the crate."""
        for presser in self.agents:
            for carrier in self.agents:
                chains: dict[str, list[Step]] = {agent: [] for agent in self.agents}
                if state.door < 0:
                    chains[presser].append(Action("Press", ("button",)))
                if state.carrier < 0:
                    chains[carrier].append(Action("Take", ("crate",)))
                elif self.agents[state.carrier] != carrier:
                    continue
                if state.door < self.opening:
                    chains[carrier].append(Wait((WaitEntity("door", "open", "==", True),)))
                chains[carrier] += [Action("Go", (self.cells[self.goal],)), Action("Drop")]
                yield Plan.of({agent: tuple(chain) for agent, chain in chains.items()})

    def patches(self, state: ToyState, agent: str, remaining: Plan) -> Iterator[Plan]:
        """The agent does what it can alone; the others keep their chains."""
        for candidate in self.candidates(state):
            if candidate[agent]:
                yield Plan.of({name: candidate[name] if name == agent else remaining[name] for name in self.agents})
