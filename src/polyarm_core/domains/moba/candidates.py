"""Joint plans for a hunt, from a handful of patterns: no search, the caller rolls them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from polyarm_core.chains.terms import Action, Plan, Step, Wait, WaitAgents, WaitEntity
from polyarm_core.domains.moba.game import (
    HOME,
    LANE_NAMES,
    LANES,
    MONSTER_AT,
    POSTS,
    RED_HOME,
    SIDE,
    SIGHT,
    STEPS,
    TEAM,
    TOWER_CELLS,
    TOWER_REACH,
    Cell,
    MobaState,
    distance,
)

WEAK, FIT = 45, 80
"""Health below which a hero goes home first, and with which it sets out again."""
SIDES: tuple[tuple[int, int], ...] = ((5, 5), (6, 0), (0, 6), (3, 3))
"""Where those wait who cut off the quarry's way home, from the quarry, cells."""
RASTER = 3
DANGER = 6
"""What a leg costs more that passes a tower or an opponent."""


def _agent(k: int) -> str:
    return f"agent_{k + 1}"


def _waypoint(value: float) -> int:
    return min(SIDE - 2, max(1, 1 + 3 * round((value - 1) / 3)))


def _move(cell: tuple[float, float]) -> Action:
    return Action("Move", (str(_waypoint(cell[0])), str(_waypoint(cell[1]))))


def _raster(cell: tuple[float, float]) -> Cell:
    return (_waypoint(cell[0]), _waypoint(cell[1]))


def _route(state: MobaState, start: Cell, goal: tuple[float, float]) -> list[Step]:
    """Moves over the raster to the point nearest to ``goal``, around towers and opponents (Dijkstra).

    Legs are straight, so a hero walks exactly over the raster; legs in one direction are one move.
    """
    begin, end = _raster(start), _raster(goal)
    dangers = [cell for cell, health in zip(TOWER_CELLS[3:], state.towers[3:], strict=True) if health]
    dangers += [hero.cell for hero in state.heroes[TEAM:] if not hero.away and distance(hero.cell, end) > SIGHT]
    points = range(1, SIDE, RASTER)
    costly = {(x, y) for x in points for y in points if any(distance((x, y), cell) <= SIGHT for cell in dangers)}
    cost = {begin: 0}
    came: dict[Cell, Cell] = {}
    queue = [(0, begin)]
    while queue:
        spent, at = heappop(queue)
        if at == end:
            break
        if spent > cost[at]:
            continue
        for dx, dy in STEPS[1:]:
            to = (at[0] + RASTER * dx, at[1] + RASTER * dy)
            if not (0 < to[0] < SIDE and 0 < to[1] < SIDE):
                continue
            more = spent + 1 + DANGER * (to in costly)
            if more < cost.get(to, 1 << 30):
                cost[to], came[to] = more, at
                heappush(queue, (more, to))
    path = [end]
    while path[-1] != begin:
        path.append(came[path[-1]])
    path.reverse()
    kept = [
        at
        for before, at, after in zip(path, path[1:], path[2:], strict=False)
        if (at[0] - before[0], at[1] - before[1]) != (after[0] - at[0], after[1] - at[1])
    ]
    return [_move(cell) for cell in (*kept, end)]


def _expected_at(state: MobaState, quarry: int) -> Cell:
    """Where the quarry is, or will be once it is back on its post."""
    hero, lane = state.heroes[TEAM + quarry], POSTS[quarry]
    if hero.away or distance(hero.cell, RED_HOME) <= 3:
        return LANES[lane][len(LANES[lane]) * 5 // 8] if lane >= 0 else (16, 15)
    return hero.cell


def _together(team: Sequence[int], own: int, arrivals: dict[int, int]) -> list[Step]:
    """Waits until every other hero of the team has done its arrival step; two atoms fit into a wait."""
    atoms = [WaitAgents(_agent(k), "done", arrivals[k]) for k in team if k != own]
    pairs = [atoms[i : i + 2] for i in range(0, len(atoms), 2)]
    return [Wait(tuple(pair), "&" if len(pair) == 2 else None) for pair in pairs]


def _plan(chains: dict[int, list[Step]]) -> Plan:
    return Plan.of({_agent(k): tuple(chains.get(k, ())) for k in range(TEAM)})


def candidate_plans(state: MobaState, quarry_name: str) -> Iterator[Plan]:
    """Joint plans for the hunt, most promising first.

    Args:
        state: now.
        quarry_name: who is hunted.
    """
    quarry = int(quarry_name.removeprefix("enemy_")) - 1
    target = _expected_at(state, quarry)
    kill = Action("Kill", (quarry_name,))
    order = sorted(range(TEAM), key=lambda k: (state.heroes[k].away, distance(state.heroes[k].cell, target), k))
    fit = [k for k in order if not state.heroes[k].away and state.heroes[k].health >= WEAK]
    seen: set[Plan] = set()

    def fresh(plan: Plan) -> Iterator[Plan]:
        if plan not in seen:
            seen.add(plan)
            yield plan

    yield from fresh(_plan({k: [kill] for k in order}))
    teams = [team for team in (fit, order, order[:4]) if len(team) >= 2]
    for team in teams:
        for cutters in (2, 3, 1):
            if cutters < len(team):
                for side in SIDES:
                    yield from fresh(_gank(state, team, cutters, side, target, kill))
    for helper in range(TEAM):
        hero = state.heroes[TEAM + helper]
        if helper != quarry and not hero.away and distance(hero.cell, target) <= SIGHT:
            first = Action("Kill", (f"enemy_{helper + 1}",))
            for team in teams[:2]:
                yield from fresh(_plan({k: [*_recover(state, k), first, kill] for k in team}))
                yield from fresh(_gank(state, team, 2, SIDES[0], target, first, kill))
    for team in teams[:2]:
        yield from fresh(_siege(state, team, target, kill))
        yield from fresh(_monster_first(state, team, target, kill))
    yield from fresh(_regroup(state, order, target, kill))


def _recover(state: MobaState, k: int) -> list[Step]:
    """What a hero does before it joins: come back from the dead, heal."""
    hero = state.heroes[k]
    if not hero.away and hero.health >= WEAK:
        return []
    return [Action("Back"), Wait((WaitEntity(_agent(k), "health", ">=", FIT),))]


def _gank(
    state: MobaState, team: Sequence[int], cutters: int, side: tuple[int, int], target: Cell, *kills: Action
) -> Plan:
    """Some take the quarry's way home, the others come from the front; they wait for each other and strike together."""
    spot = (target[0] + side[0], target[1] + side[1])
    front = (target[0] - 5, target[1] - 5)
    chains: dict[int, list[Step]] = {}
    for place, k in enumerate(team):
        healing = _recover(state, k)
        start = HOME if healing else state.heroes[k].cell
        chains[k] = [*healing, *_route(state, start, spot if place < cutters else front)]
    return _strike(team, chains, *kills)


def _strike(team: Sequence[int], chains: dict[int, list[Step]], *kills: Action) -> Plan:
    """The chains, and then the hunt, by all at the same time."""
    arrivals = {k: len(chains[k]) for k in team}
    for k in team:
        chains[k] = [*chains[k], *_together(team, k, arrivals), *kills]
    return _plan(chains)


def _siege(state: MobaState, team: Sequence[int], target: Cell, kill: Action) -> Plan:
    """First the minions and the tower that shelters the quarry, then the quarry."""
    standing = [t for t in (3, 4, 5) if state.towers[t]]
    if not standing:
        return _plan({k: [kill] for k in team})
    tower = min(standing, key=lambda t: distance(TOWER_CELLS[t], target))
    x, y = TOWER_CELLS[tower]
    push = Action("Push", (f"red_tower_{LANE_NAMES[tower - 3]}",))
    return _plan(
        {
            k: [*_recover(state, k), _move((x - TOWER_REACH - 2, y - TOWER_REACH - 2)), Action("Clear"), push, kill]
            for k in team
        }
    )


def _monster_first(state: MobaState, team: Sequence[int], target: Cell, kill: Action) -> Plan:
    """The monster first, where there is one: its boon makes every hit count for more."""
    if state.monster[1] or state.boon:
        return _gank(state, team, 1, SIDES[0], target, kill)
    first: list[Step] = [_move(MONSTER_AT), Action("Kill", ("monster",))]
    front = (target[0] - 5, target[1] - 5)
    chains = {
        k: [*first, *_route(state, MONSTER_AT, (target[0] + 5, target[1] + 5) if place < 2 else front)]
        for place, k in enumerate(team)
    }
    return _strike(team, chains, kill)


def _regroup(state: MobaState, team: Sequence[int], target: Cell, kill: Action) -> Plan:
    """Home, until everybody is fit; then all together by the way that is taken for safe now."""
    chains: dict[int, list[Step]] = {}
    for place, k in enumerate(team):
        heal: list[Step] = [Action("Back"), Wait((WaitEntity(_agent(k), "health", ">=", FIT),))]
        spot = (target[0] + 5, target[1] + 5) if place < 2 else (target[0] - 5, target[1] - 5)
        chains[k] = [*heal, *_route(state, HOME, spot)]
    return _strike(team, chains, kill)


def patched_plans(state: MobaState, quarry_name: str, agent: str, remaining: Plan) -> Iterator[Plan]:
    """Plans that change one hero's chain: heal first, strike at once, strike from the near side, or stand by."""
    kill = Action("Kill", (quarry_name,))
    k = int(agent.removeprefix("agent_")) - 1
    quarry = int(quarry_name.removeprefix("enemy_")) - 1
    target = _expected_at(state, quarry)
    heal: list[Step] = [Action("Back"), Wait((WaitEntity(agent, "health", ">=", FIT),))]
    near = ((target[0] + HOME[0]) / 2, (target[1] + HOME[1]) / 2)
    head = state.heroes[k]
    chains: list[list[Step]] = [[kill], [*heal, kill], [_move(near), kill], []]
    if head.health < WEAK or head.away:
        chains.insert(0, chains.pop(1))
    for chain in chains:
        if tuple(chain) != remaining[agent]:
            yield Plan(tuple((name, tuple(chain) if name == agent else old) for name, old in remaining.chains))
