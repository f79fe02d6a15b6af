"""The MOBA stand-in as a domain: entities, vocabulary, relevance, disturbances, candidate plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from polyarm_core.chains.executor import COMPARE
from polyarm_core.chains.terms import Action, Plan, Step, WaitAgents, WaitEntity
from polyarm_core.domains.interface import (
    ActionStatus,
    ActionTemplate,
    Attribute,
    Disturbance,
    Domain,
    Entity,
    Progress,
)
from polyarm_core.domains.moba import game
from polyarm_core.domains.moba.candidates import candidate_plans, patched_plans
from polyarm_core.domains.moba.game import (
    FIRST_OPPONENT,
    FIRST_TOWER,
    FIRST_WAVE,
    HEALTH,
    HOME,
    LANE_NAMES,
    LANES,
    MONSTER,
    MONSTER_AT,
    MONSTER_HEALTH,
    SIDE,
    SIGHT,
    STAY,
    STEPS,
    TEAM,
    TOWER_CELLS,
    TOWER_HEALTH,
    WAVE_SIZE,
    Cell,
    Hero,
    MobaState,
    distance,
    toward,
)
from polyarm_core.errors import InvalidValue, UnknownName

if TYPE_CHECKING:
    from numpy.typing import NDArray

AGENTS = tuple(f"agent_{k + 1}" for k in range(TEAM))
OPPONENTS = tuple(f"enemy_{k + 1}" for k in range(TEAM))
TOWERS = tuple(f"{side}_tower_{lane}" for side in ("blue", "red") for lane in LANE_NAMES)
WAVES = tuple(f"{side}_wave_{lane}" for side in ("blue", "red") for lane in LANE_NAMES)
ROWS = (*AGENTS, *OPPONENTS, *TOWERS, *WAVES, "monster")
ROW_OF = {name: row for row, name in enumerate(ROWS)}

WAYPOINTS = tuple(range(1, SIDE, 3))
"""``Move`` takes these values of x and y: a raster of 8 x 8 points keeps the vocabulary small."""
CLEAR_RADIUS = 6
RELEVANT = SIGHT
"""Radius in cells of the paper's relevance rule for its MOBA (A.6)."""
WOUND = 40
"""Health that an ambush costs."""

_PLACE = (
    Attribute("x", "int", 0, SIDE - 1, description="column, 0 at the blue side"),
    Attribute("y", "int", 0, SIDE - 1, description="row, 0 at the blue side"),
)
_HERO = (
    *_PLACE,
    Attribute("health", "int", 0, HEALTH, description="0 while it is away"),
    Attribute("alive", "bool", description="on the map"),
)


class MobaDomain(Domain[MobaState]):
    """Five heroes have to eliminate a named opponent.

    Args:
        quarry: name of that opponent, ``enemy_1`` to ``enemy_5``.
        horizon: frames after which the episode has failed, >= 1.

    Raises:
        UnknownName: no such opponent.
        InvalidValue: the horizon.
    """

    agents = AGENTS
    vocabulary = (
        ActionTemplate("Kill", ("target",), "Hunt an enemy hero or the monster until it is dead.", "Kill(enemy_2)"),
        ActionTemplate("Move", ("x", "y"), "Walk to a position.", "Move(7, 10)"),
        ActionTemplate("Push", ("tower",), "Attack an enemy tower until it falls.", "Push(red_tower_mid)"),
        ActionTemplate("Clear", (), "Kill all enemy minions around.", "Clear()"),
        ActionTemplate("Back", (), "Go home, where health comes back.", "Back()"),
    )
    attributes = {  # noqa: RUF012 - constant of the class
        "hero": _HERO,
        "enemy": _HERO,
        "tower": (*_PLACE, Attribute("health", "int", 0, TOWER_HEALTH, description="0 once it has fallen")),
        "wave": (*_PLACE, Attribute("minions", "int", 0, WAVE_SIZE, description="minions left")),
        "monster": (
            *_PLACE,
            Attribute("health", "int", 0, MONSTER_HEALTH, description="0 while it is away"),
            Attribute("alive", "bool", description="on the map"),
        ),
    }
    disturbances = (
        Disturbance("M1", "a controlled hero is ambushed and loses health"),
        Disturbance("M2", "another enemy hero turns up beside the one that is hunted"),
        Disturbance("M3", "the monster is back before its time"),
    )
    entity_rows = ROWS
    feature_count = 4
    control_count = game.CONTROLS

    def __init__(self, quarry: str = "enemy_3", horizon: int = 150) -> None:
        if quarry not in OPPONENTS:
            raise UnknownName("enemy hero", quarry, OPPONENTS)
        if horizon < 1:
            raise InvalidValue("horizon", horizon, "frames, 1 or more")
        self.quarry = quarry
        self.name = f"moba:{quarry}"
        self.horizon = horizon
        self.background = (
            f"a battle of five heroes against five on a map of {SIDE} x {SIDE} cells. Your home is at "
            f"{game.HOME}, the enemy's at {game.RED_HOME}; three lanes with towers and minions lead from one to the "
            "other. Enemy heroes flee when they are hurt or outnumbered, and nobody is faster than another"
        )
        self.target = f"to eliminate the enemy hero {quarry}"

    # --- episode ---

    def start(self, seed: int) -> MobaState:
        """Heroes at drawn waypoints of the blue half, opponents about their posts, lanes in full swing."""
        rng = np.random.default_rng(np.random.SeedSequence([seed & (2**63 - 1), 0x30BA]))
        blue = []
        for _ in range(TEAM):
            x, y = (int(rng.choice(WAYPOINTS[:4])), int(rng.choice(WAYPOINTS[:4])))
            blue.append(Hero(x, y, int(rng.integers(50, HEALTH + 1)), 0))
        red = []
        for lane in game.POSTS:
            cells = LANES[lane]
            at = cells[len(cells) * 5 // 8] if lane >= 0 else game.CAMPS[int(rng.integers(len(game.CAMPS)))]
            x, y = (min(SIDE - 1, max(0, v + int(rng.integers(-1, 2)))) for v in at)
            red.append(Hero(x, y, int(rng.integers(70, HEALTH + 1)), 0))
        waves = []
        for blue_side in (True, False):
            for lane in range(3):
                place = len(LANES[lane]) * int(rng.integers(30, 50)) // 100
                count = int(rng.integers(1, WAVE_SIZE + 1))
                waves.append((place if blue_side else len(LANES[lane]) - 1 - place, count))
        monster = (MONSTER_HEALTH, 0) if rng.random() < 0.5 else (0, int(rng.integers(1, game.MONSTER_AWAY)))
        return MobaState(0, int(rng.integers(2**31)), (*blue, *red), (TOWER_HEALTH,) * 6, tuple(waves), monster, 0, 0)

    def step(self, state: MobaState, controls: Sequence[int]) -> MobaState:
        """One frame; opponents are part of it."""
        return game.step(state, controls)

    def succeeded(self, state: MobaState) -> bool:
        """The named opponent has been eliminated once."""
        return bool(state.fallen >> OPPONENTS.index(self.quarry) & 1)

    # --- what a plan can say ---

    def entities(self, state: MobaState) -> tuple[Entity, ...]:
        """Heroes, opponents, towers, waves and the monster."""
        found = []
        for k, hero in enumerate(state.heroes):
            name, kind = (AGENTS[k], "hero") if k < TEAM else (OPPONENTS[k - TEAM], "enemy")
            values = {"x": hero.x, "y": hero.y, "health": hero.health, "alive": not hero.away}
            found.append(Entity(name, kind, values))
        for name, health, (x, y) in zip(TOWERS, state.towers, TOWER_CELLS, strict=True):
            found.append(Entity(name, "tower", {"x": x, "y": y, "health": health}))
        for index, name in enumerate(WAVES):
            x, y = game.wave_cell(state, index)
            found.append(Entity(name, "wave", {"x": x, "y": y, "minions": state.waves[index][1]}))
        health, back = state.monster
        x, y = MONSTER_AT
        found.append(Entity("monster", "monster", {"x": x, "y": y, "health": health, "alive": not back}))
        return tuple(found)

    def arguments(self, state: MobaState, agent: str, template: ActionTemplate) -> tuple[tuple[str, ...], ...]:
        """The same for every agent: standing towers, all opponents and the monster, all waypoints."""
        if template.name == "Kill":
            return tuple((name,) for name in (*OPPONENTS, "monster"))
        if template.name == "Move":
            return tuple((str(x), str(y)) for x in WAYPOINTS for y in WAYPOINTS)
        if template.name == "Push":
            return tuple((name,) for name, health in zip(TOWERS[3:], state.towers[3:], strict=True) if health)
        return ((),)

    def describe(self, state: MobaState) -> str:
        """One line for each kind of thing; what is away is said to be."""
        lines = [f"Frame {state.frame} of {self.horizon}."]
        for title, names, heroes in (
            ("Your heroes", AGENTS, state.heroes[:TEAM]),
            ("Enemy heroes", OPPONENTS, state.heroes[TEAM:]),
        ):
            lines.append(f"{title}: " + "; ".join(_hero_text(n, h) for n, h in zip(names, heroes, strict=True)) + ".")
        lines.append(
            "Towers: "
            + "; ".join(
                f"{n} at {c[0]},{c[1]} {f'health {h}' if h else 'fallen'}"
                for n, c, h in zip(TOWERS, TOWER_CELLS, state.towers, strict=True)
            )
            + "."
        )
        waves = []
        for index, name in enumerate(WAVES):
            x, y = game.wave_cell(state, index)
            if count := state.waves[index][1]:
                waves.append(f"{name} at {x},{y} {count} minions")
        lines.append(f"Minions: {'; '.join(waves) or 'none'}.")
        health, back = state.monster
        where = f"{MONSTER_AT[0]},{MONSTER_AT[1]}"
        lines.append(f"Monster at {where}: {f'back in {back} frames' if back else f'health {health}'}.")
        if state.boon:
            lines.append(f"Your heroes hit harder for {state.boon} frames.")
        return "\n".join(lines)

    # --- execution ---

    def control(self, state: MobaState, intents: Sequence[Action | None]) -> tuple[int, ...]:
        """Hit what is within reach, else walk towards it. Heroes share cells, so nobody has to yield."""
        return tuple(
            STAY if intent is None or state.heroes[k].away else self._control(state, k, intent)
            for k, intent in enumerate(intents)
        )

    def _control(self, state: MobaState, k: int, action: Action) -> int:
        at = state.heroes[k].cell
        hit, goal = STAY, at
        if action.name == "Move":
            goal = (int(action.arguments[0]), int(action.arguments[1]))
        elif action.name == "Back":
            goal = HOME
        elif action.name == "Clear":
            wave = self._nearest_wave(state, at)
            if wave is not None:
                hit, goal = FIRST_WAVE + wave - 3, game.wave_cell(state, wave)
        elif self._is_there(state, action.arguments[0]):
            hit, goal = _hit_control(action.arguments[0]), self._cell(state, action.arguments[0])
        if hit != STAY and game.can_hit(state, k, hit):
            return hit
        to = toward(at, goal)
        return STEPS.index((to[0] - at[0], to[1] - at[1]))

    def progress(
        self, before: MobaState, controls: Sequence[int], after: MobaState, agent: str, action: Action
    ) -> Progress:
        """Done when the effect is there, whoever brought it about; failed when the hero was eliminated."""
        k = AGENTS.index(agent)
        me = after.heroes[k]
        if action.name in ("Kill", "Push"):
            done = not self._is_there(after, action.arguments[0])
        elif action.name == "Move":
            done = not me.away and me.cell == (int(action.arguments[0]), int(action.arguments[1]))
        elif action.name == "Clear":
            done = not me.away and self._nearest_wave(after, me.cell) is None
        else:
            done = not me.away and distance(me.cell, HOME) <= 1
        if done:
            return Progress(ActionStatus.DONE)
        if me.away and not before.heroes[k].away:
            return Progress(ActionStatus.FAILED, f"{agent} was eliminated")
        return Progress(ActionStatus.RUNNING)

    def impossible(self, state: MobaState, agent: str, action: Action) -> str | None:
        """Unknown names, own or fallen towers, positions off the raster; nothing is out of reach for good."""
        if action.name == "Kill" and action.arguments[0] not in (*OPPONENTS, "monster"):
            return f"{action.arguments[0]} is neither an enemy hero nor the monster"
        if action.name == "Push":
            if action.arguments[0] not in TOWERS[3:]:
                return f"{action.arguments[0]} is no enemy tower"
            if not self._is_there(state, action.arguments[0]):
                return f"{action.arguments[0]} has fallen already"
        if action.name == "Move" and not all(text in map(str, WAYPOINTS) for text in action.arguments):
            return (
                f"({', '.join(action.arguments)}) is no position; x and y are one of {', '.join(map(str, WAYPOINTS))}"
            )
        return None

    def can_become(self, state: MobaState, wait: WaitEntity, remaining: Plan) -> bool:
        """Only towers are sure: they stand still, and their health does not come back."""
        if wait.entity not in TOWERS or isinstance(wait.value, str):
            return True
        tower = TOWERS.index(wait.entity)
        if wait.attribute == "health":
            reachable: Sequence[int] = range(state.towers[tower] + 1)
        else:
            reachable = (TOWER_CELLS[tower][0 if wait.attribute == "x" else 1],)
        return any(COMPARE[wait.comparison](value, wait.value) for value in reachable)

    # --- staleness ---

    def features(self, state: MobaState) -> NDArray[np.float32]:
        """x, y, health (or minions), on the map: each over its range."""
        rows = np.empty((len(ROWS), 4), np.float32)
        scale = 1.0 / (SIDE - 1)
        for k, hero in enumerate(state.heroes):
            rows[k] = (hero.x * scale, hero.y * scale, hero.health / HEALTH, not hero.away)
        for t, health in enumerate(state.towers):
            x, y = TOWER_CELLS[t]
            rows[2 * TEAM + t] = (x * scale, y * scale, health / TOWER_HEALTH, health > 0)
        for w, (_, count) in enumerate(state.waves):
            x, y = game.wave_cell(state, w)
            rows[2 * TEAM + 6 + w] = (x * scale, y * scale, count / WAVE_SIZE, count > 0)
        health, back = state.monster
        rows[-1] = (MONSTER_AT[0] * scale, MONSTER_AT[1] * scale, health / MONSTER_HEALTH, not back)
        return rows

    def refers(self, state: MobaState, agent: str, step: Step) -> frozenset[str]:
        """The agent, and everything within a radius of it and of the step's target (A.6)."""
        centres = [state.heroes[AGENTS.index(agent)].cell, *self._targets(state, step)]
        return frozenset({agent}) | self._around(state, centres, RELEVANT) | self._named(step)

    def depends(self, state: MobaState, agent: str, step: Step) -> frozenset[str]:
        """Also who may come to help the target in time, and the way there.

        Opponents come from as far as they rotate; on its way an agent passes what lies near the line to the target;
        and what another agent is waited for depends on that agent's surroundings.
        """
        at = state.heroes[AGENTS.index(agent)].cell
        targets = self._targets(state, step)
        way = []
        for goal in targets:
            cell = at
            while cell != goal:
                cell = toward(cell, goal)
                way.append(cell)
        near = self._around(state, way, RELEVANT)
        helpers = self._around(state, targets, game.ROTATION) & set(OPPONENTS)
        return self.refers(state, agent, step) | near | helpers

    def _named(self, step: Step) -> frozenset[str]:
        names: set[str] = set()
        if isinstance(step, Action):
            names.update(step.arguments)
        else:
            names.update(atom.agent if isinstance(atom, WaitAgents) else atom.entity for atom in step.atoms)
        return frozenset(names & ROW_OF.keys())

    def _targets(self, state: MobaState, step: Step) -> list[Cell]:
        if isinstance(step, Action) and step.name == "Move":
            return [(int(step.arguments[0]), int(step.arguments[1]))]
        if isinstance(step, Action) and step.name == "Back":
            return [HOME]
        return [self._cell(state, name) for name in sorted(self._named(step))]

    def _around(self, state: MobaState, centres: Sequence[Cell], radius: int) -> frozenset[str]:
        present = [name for name in ROWS if self._is_there(state, name)]
        return frozenset(
            name for name in present if any(distance(self._cell(state, name), cell) <= radius for cell in centres)
        )

    # --- disturbances ---

    def disturb(self, state: MobaState, name: str, draw: float) -> MobaState | None:
        """See ``disturbances``; M1 and M2 are the paper's two synthetic perturbations of its MOBA (A.6)."""
        heroes = list(state.heroes)
        quarry = heroes[TEAM + OPPONENTS.index(self.quarry)]
        if name == "M1":
            victims = [k for k in range(TEAM) if not heroes[k].away and heroes[k].health > WOUND]
            if not victims:
                return None
            k = victims[int(draw * len(victims))]
            heroes[k] = heroes[k]._replace(health=heroes[k].health - WOUND)
            return state._replace(heroes=tuple(heroes))
        if name == "M2":
            if quarry.away:
                return None
            helpers = [
                k
                for k in range(TEAM, 2 * TEAM)
                if not heroes[k].away and heroes[k] is not quarry and distance(heroes[k].cell, quarry.cell) > SIGHT
            ]
            if not helpers:
                return None
            k = helpers[int(draw * len(helpers))]
            x, y = toward(quarry.cell, heroes[k].cell)
            heroes[k] = heroes[k]._replace(x=x, y=y)
            return state._replace(heroes=tuple(heroes))
        if name == "M3":
            return state._replace(monster=(MONSTER_HEALTH, 0)) if state.monster[1] else None
        raise UnknownName("disturbance", name, [item.name for item in self.disturbances])

    # --- search ---

    def candidates(self, state: MobaState) -> Iterator[Plan]:
        """Ganks of several sizes and shapes, with retreat, minions and monster first where that may help."""
        return candidate_plans(state, self.quarry)

    def patches(self, state: MobaState, agent: str, remaining: Plan) -> Iterator[Plan]:
        """The agent heals first, gives up its preparation, or drops out."""
        return patched_plans(state, self.quarry, agent, remaining)

    # --- inside ---

    def _cell(self, state: MobaState, name: str) -> Cell:
        row = ROW_OF[name]
        if row < 2 * TEAM:
            return state.heroes[row].cell
        if row < 2 * TEAM + 6:
            return TOWER_CELLS[row - 2 * TEAM]
        return game.wave_cell(state, row - 2 * TEAM - 6) if name != "monster" else MONSTER_AT

    def _is_there(self, state: MobaState, name: str) -> bool:
        row = ROW_OF[name]
        if row < 2 * TEAM:
            return not state.heroes[row].away
        if row < 2 * TEAM + 6:
            return state.towers[row - 2 * TEAM] > 0
        return state.waves[row - 2 * TEAM - 6][1] > 0 if name != "monster" else not state.monster[1]

    @staticmethod
    def _nearest_wave(state: MobaState, at: Cell) -> int | None:
        near = [
            (far, wave)
            for wave in (3, 4, 5)
            if state.waves[wave][1] and (far := distance(game.wave_cell(state, wave), at)) <= CLEAR_RADIUS
        ]
        return min(near)[1] if near else None


def _hit_control(name: str) -> int:
    if name == "monster":
        return MONSTER
    if name in OPPONENTS:
        return FIRST_OPPONENT + OPPONENTS.index(name)
    return FIRST_TOWER + TOWERS.index(name) - 3


def _hero_text(name: str, hero: Hero) -> str:
    return f"{name} away for {hero.away} frames" if hero.away else f"{name} at {hero.x},{hero.y} health {hero.health}"
