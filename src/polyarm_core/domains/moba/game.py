"""The rules of the small MOBA: a pure function from state and controls to the next state.

What it is: an open world with the paper's vocabulary, five controlled agents and actors that nobody controls, so that
the domain interface, the executor and the planners can be exercised on more than two agents. What it is not: Honor of
Kings. A square of 24 x 24 cells, walked in king's moves; no terrain, no fog, no skills, no gold, one kind of hero;
heroes may share a cell. Results on it say nothing about the paper's figures for its proprietary game.

The one idea that it keeps from a MOBA: a hero who flees is as fast as the one who chases it, and opponents flee when
they are outnumbered or hurt; but who is being hit does not get away. Whoever is to be eliminated must be cut off, and
the others must be there in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

SIDE = 24
TEAM = 5
HOME, RED_HOME = (1, 1), (22, 22)
Cell = tuple[int, int]

HEALTH, TOWER_HEALTH, MONSTER_HEALTH, WAVE_SIZE = 100, 200, 120, 4
HIT, BOON_HIT, TOWER_HIT, MONSTER_HIT = 7, 10, 12, 6
REACH = 2
"""Cells (king's moves) from which a hero hits."""
TOWER_REACH, SIGHT, ROTATION = 3, 4, 10
"""Cells within which a tower shoots, an opponent sees, and an opponent comes to the help of another."""
AWAY, MONSTER_AWAY, BOON, WAVE_PERIOD = 30, 50, 60, 40
"""Frames until a hero and the monster are back, of the monster's boon, and between waves."""
HURT, FIT, HEALING = 35, 80, 10
"""Health at which an opponent flees and comes back; what a frame at home gives."""

MONSTER_AT: Cell = (7, 15)
CAMPS: tuple[Cell, ...] = ((16, 19), (13, 17), (19, 13), (16, 10))
"""Where the opposing jungler goes about."""

Control = int
STAY, FIRST_OPPONENT, MONSTER, FIRST_TOWER, FIRST_WAVE, CONTROLS = 0, 9, 14, 15, 18, 21
"""Controls: 0 stays, 1-8 walk, 9-13 hit an opponent, 14 the monster, 15-17 a red tower, 18-20 a red wave."""
STEPS: tuple[Cell, ...] = ((0, 0), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


def _lane(corner: Cell | None) -> tuple[Cell, ...]:
    cells, at = [HOME], HOME
    for goal in (corner, RED_HOME) if corner is not None else (RED_HOME,):
        while at != goal:
            at = toward(at, goal)
            cells.append(at)
    return tuple(cells)


def toward(at: Cell, goal: Cell) -> Cell:
    """One king's move from a cell towards another."""
    (x, y), (gx, gy) = at, goal
    return (x + (gx > x) - (gx < x), y + (gy > y) - (gy < y))


def distance(a: Cell, b: Cell) -> int:
    """King's moves between two cells."""
    x, y = a[0] - b[0], a[1] - b[1]
    x, y = (x if x >= 0 else -x), (y if y >= 0 else -y)
    return x if x > y else y


LANE_NAMES = ("top", "mid", "bottom")
LANES: tuple[tuple[Cell, ...], ...] = (_lane((1, 22)), _lane(None), _lane((22, 1)))
"""Cells of each lane from the blue home to the red one."""
TOWER_CELLS: tuple[Cell, ...] = tuple(lane[len(lane) * part // 3] for part in (1, 2) for lane in LANES)
"""Towers 0-2 are blue, 3-5 red, in the order of the lanes."""
POSTS = (0, -1, 1, 2, 2)
"""Lane of each opponent; -1 goes about in the jungle."""


class Hero(NamedTuple):
    """Cell, health, and frames until it is back (0 = it is on the map)."""

    x: int
    y: int
    health: int
    away: int

    @property
    def cell(self) -> Cell:
        """Where it is; its home while it is away."""
        return (self.x, self.y)


class MobaState(NamedTuple):
    """Everything that changes; immutable and hashable.

    Attributes:
        seed: of the opponents' whims; they follow from it and the frame.
        heroes: 0-4 controlled (blue), 5-9 opponents (red).
        towers: health of each, in the order of ``TOWER_CELLS``.
        waves: place along its lane and minions left, blue top, mid, bottom, then red.
        monster: health, and frames until it is back.
        boon: frames for which the blue team still hits harder.
        fallen: bit k is set once opponent k has been eliminated.
    """

    frame: int
    seed: int
    heroes: tuple[Hero, ...]
    towers: tuple[int, ...]
    waves: tuple[tuple[int, int], ...]
    monster: tuple[int, int]
    boon: int
    fallen: int


def wave_cell(state: MobaState, index: int) -> Cell:
    """Where a wave is."""
    return LANES[index % 3][state.waves[index][0]]


def whim(seed: int, frame: int, who: int) -> int:
    """A number that looks random (splitmix64 of its arguments): the only chance in the game."""
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + frame * 0xBF58476D1CE4E5B9 + who * 0x94D049BB133111EB) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def step(state: MobaState, controls: Sequence[Control]) -> MobaState:
    """One frame: opponents decide on the state as it is, everybody walks and hits at once, then losses are counted."""
    heroes = state.heroes
    cells = [hero.cell for hero in heroes]
    losses = [0] * (2 * TEAM)
    tower_losses, wave_losses = [0] * 6, [0] * 6
    monster_loss, monster_rivals = 0, []
    hit = BOON_HIT if state.boon else HIT
    goals: dict[int, Cell] = {}
    for k, control in enumerate(controls):
        if heroes[k].away or (control >= FIRST_OPPONENT and not can_hit(state, k, control)):
            continue
        if control < FIRST_OPPONENT:
            goals[k] = _walk(cells[k], STEPS[control])
        elif control < MONSTER:
            losses[TEAM + control - FIRST_OPPONENT] += hit
        elif control == MONSTER:
            monster_loss += hit
            monster_rivals.append(k)
        elif control < FIRST_WAVE:
            tower_losses[3 + control - FIRST_TOWER] += hit
        else:
            wave_losses[3 + control - FIRST_WAVE] += 1
    for k in range(TEAM, 2 * TEAM):
        if not heroes[k].away:
            goal, victim = opponent(state, k)
            if victim is not None:
                losses[victim] += HIT
            else:
                goals[k] = toward(cells[k], goal)
    for k, goal in goals.items():
        if not losses[k]:  # who is being hit by a hero does not get away
            cells[k] = goal
    _towers_shoot(state, losses, wave_losses)
    waves = _waves(state, losses, tower_losses, wave_losses)
    for k in monster_rivals[:1]:
        losses[k] += MONSTER_HIT
    fallen = state.fallen
    after = []
    for k, hero in enumerate(heroes):
        home = HOME if k < TEAM else RED_HOME
        if hero.away:
            after.append(Hero(*home, HEALTH if hero.away == 1 else 0, hero.away - 1))
            continue
        health = hero.health - losses[k]
        if health <= 0:
            fallen |= (1 << (k - TEAM)) if k >= TEAM else 0
            after.append(Hero(*home, 0, AWAY))
            continue
        if distance(cells[k], home) <= 1:
            health = min(HEALTH, health + HEALING)
        after.append(Hero(*cells[k], health, 0))
    towers = tuple(max(0, health - loss) for health, loss in zip(state.towers, tower_losses, strict=True))
    health, back = state.monster
    boon = max(0, state.boon - 1)
    if back:
        monster = (MONSTER_HEALTH, 0) if back == 1 else (0, back - 1)
    elif health <= monster_loss:
        monster, boon = (0, MONSTER_AWAY), BOON
    else:
        monster = (health - monster_loss, 0)
    return MobaState(state.frame + 1, state.seed, tuple(after), towers, waves, monster, boon, fallen)


def can_hit(state: MobaState, k: int, control: Control) -> bool:
    """Whether controlled hero k hits something with this control: it is there and within reach."""
    at = state.heroes[k].cell
    if control < FIRST_OPPONENT:
        return False
    if control < MONSTER:
        victim = state.heroes[TEAM + control - FIRST_OPPONENT]
        return not victim.away and distance(at, victim.cell) <= REACH
    if control == MONSTER:
        return not state.monster[1] and distance(at, MONSTER_AT) <= REACH
    if control < FIRST_WAVE:
        tower = 3 + control - FIRST_TOWER
        return state.towers[tower] > 0 and distance(at, TOWER_CELLS[tower]) <= REACH
    wave = 3 + control - FIRST_WAVE
    return state.waves[wave][1] > 0 and distance(at, wave_cell(state, wave)) <= REACH


def opponent(state: MobaState, k: int) -> tuple[Cell, int | None]:
    """What scripted hero k (5-9) does: where it walks, or the index of the hero that it hits.

    It flees home when hurt and stays until it is fit, and when it is outnumbered; hits or chases who comes into sight
    otherwise; may come to the help of another nearby; else keeps its lane with its wave.
    """
    me = state.heroes[k]
    if me.health <= HURT or (distance(me.cell, RED_HOME) <= 2 and me.health < FIT):
        return RED_HOME, None
    rivals = [j for j in range(TEAM) if not state.heroes[j].away and distance(state.heroes[j].cell, me.cell) <= SIGHT]
    friends = [
        j
        for j in range(TEAM, 2 * TEAM)
        if not state.heroes[j].away and distance(state.heroes[j].cell, me.cell) <= SIGHT
    ]
    if rivals:
        shelter = any(state.towers[t] and distance(TOWER_CELLS[t], me.cell) <= TOWER_REACH for t in (3, 4, 5))
        if len(rivals) > len(friends) + shelter:
            return RED_HOME, None
        victim = min(rivals, key=lambda j: (distance(state.heroes[j].cell, me.cell), state.heroes[j].health, j))
        cell = state.heroes[victim].cell
        return cell, victim if distance(cell, me.cell) <= REACH else None
    for j in range(TEAM, 2 * TEAM):
        ally = state.heroes[j]
        if j == k or ally.away or distance(ally.cell, me.cell) > ROTATION:
            continue
        fights = any(not foe.away and distance(foe.cell, ally.cell) <= REACH + 1 for foe in state.heroes[:TEAM])
        if fights and whim(state.seed, state.frame // 8, k) % 3 == 0:
            return ally.cell, None
    lane = POSTS[k - TEAM]
    if lane < 0:
        return CAMPS[whim(state.seed, state.frame // 12, k) % len(CAMPS)], None
    own = state.waves[3 + lane]
    cells = LANES[lane]
    front = own[0] if own[1] else len(cells) * 2 // 3
    # It keeps two cells behind its wave and never goes past the middle.
    return cells[min(len(cells) - 1, max(front, len(cells) // 2) + 2 + whim(state.seed, state.frame // 6, k) % 2)], None


def _walk(cell: Cell, by: Cell) -> Cell:
    return (min(SIDE - 1, max(0, cell[0] + by[0])), min(SIDE - 1, max(0, cell[1] + by[1])))


def _towers_shoot(state: MobaState, losses: list[int], wave_losses: list[int]) -> None:
    """A tower shoots minions as long as there are some, else the nearest hostile hero."""
    for t, cell in enumerate(TOWER_CELLS):
        if not state.towers[t]:
            continue
        blue = t < 3
        wave = t % 3 + (3 if blue else 0)
        if state.waves[wave][1] and distance(wave_cell(state, wave), cell) <= TOWER_REACH:
            wave_losses[wave] += state.frame % 6 == 0
            continue
        hostile = range(TEAM, 2 * TEAM) if blue else range(TEAM)
        seen = [
            (distance(state.heroes[k].cell, cell), k)
            for k in hostile
            if not state.heroes[k].away and distance(state.heroes[k].cell, cell) <= TOWER_REACH
        ]
        if seen:
            losses[min(seen)[1]] += TOWER_HIT


def _waves(
    state: MobaState, losses: list[int], tower_losses: list[int], wave_losses: list[int]
) -> tuple[tuple[int, int], ...]:
    """Waves walk every other frame, stop before each other and before a tower, and hit what they stand before."""
    after = []
    for index, (place, count) in enumerate(state.waves):
        lane, blue = index % 3, index < 3
        cells = LANES[lane]
        rival_place, rival_count = state.waves[(index + 3) % 6]
        if not count:
            fresh = state.frame % WAVE_PERIOD == 0
            after.append((0 if blue else len(cells) - 1, WAVE_SIZE if fresh else 0))
            continue
        tower = lane + (3 if blue else 0)
        meets = rival_count and abs(rival_place - place) <= 2
        sieges = state.towers[tower] and distance(cells[place], TOWER_CELLS[tower]) <= 1
        if meets:
            count -= state.frame % 9 == 0
        elif sieges:
            tower_losses[tower] += count // 2
        elif state.frame % 2 == 0:
            place = min(place + 1, len(cells) - 1) if blue else max(place - 1, 0)
        hostile = range(TEAM, 2 * TEAM) if blue else range(TEAM)
        near = [k for k in hostile if not state.heroes[k].away and distance(state.heroes[k].cell, cells[place]) <= 1]
        if near and not meets:
            losses[near[0]] += count
        after.append((place, max(0, count - wave_losses[index])))
    return tuple(after)
