"""The MOBA stand-in: its rules, and that a hunt by several heroes can be planned in it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.terms import Action, Plan, Wait, WaitAgents, WaitEntity
from polyarm_core.coordinator.episode import run_episode
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.moba import MobaDomain, MobaState, game
from polyarm_core.domains.moba.domain import AGENTS, OPPONENTS, RELEVANT, ROWS, TOWERS, WAYPOINTS
from polyarm_core.domains.moba.game import AWAY, CONTROLS, HEALTH, HIT, HOME, RED_HOME, SIDE, TEAM, Hero, distance
from polyarm_core.errors import InvalidValue, UnknownName

IDLE = (0,) * TEAM


def scene(*, blue: dict[int, tuple[int, int]], red: dict[int, tuple[int, int]], health: int = HEALTH) -> MobaState:
    """Heroes at cells, the other blue ones at home, the other red ones away; no towers, minions or monster."""
    heroes = [Hero(*blue.get(k, HOME), HEALTH, 0) for k in range(TEAM)]
    heroes += [Hero(*red[k], health, 0) if k in red else Hero(*RED_HOME, 0, AWAY) for k in range(TEAM)]
    return MobaState(1, 7, tuple(heroes), (0,) * 6, ((0, 0),) * 6, (0, 50), 0, 0)


def strike(*heroes: int, target: int = 0) -> tuple[int, ...]:
    return tuple(game.FIRST_OPPONENT + target if k in heroes else 0 for k in range(TEAM))


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**31))
def test_whatever_is_done_the_state_stays_sound(seed: int) -> None:
    draw = random.Random(seed)
    state = MobaDomain().start(seed)
    for _ in range(120):
        after = game.step(state, [draw.randrange(CONTROLS) for _ in range(TEAM)])
        assert after.frame == state.frame + 1 and after.seed == state.seed
        for k, hero in enumerate(after.heroes):
            assert 0 <= hero.x < SIDE and 0 <= hero.y < SIDE
            assert 0 <= hero.health <= HEALTH and 0 <= hero.away <= AWAY
            assert (hero.health == 0) == (hero.away > 0)
            if hero.away:
                assert hero.cell == (HOME if k < TEAM else RED_HOME)
            else:
                assert distance(hero.cell, state.heroes[k].cell) <= 1 or state.heroes[k].away
        assert all(0 <= now <= was for now, was in zip(after.towers, state.towers, strict=True))
        assert after.fallen & state.fallen == state.fallen
        state = after


def test_an_opponent_that_is_outnumbered_cannot_be_caught_from_behind() -> None:
    state = scene(blue={0: (8, 8), 1: (8, 9)}, red={0: (11, 11)})
    for _ in range(8):
        goals = [game.toward(state.heroes[k].cell, state.heroes[TEAM].cell) for k in (0, 1)]
        steps = [
            game.STEPS.index((goal[0] - state.heroes[k].x, goal[1] - state.heroes[k].y)) for k, goal in enumerate(goals)
        ]
        state = game.step(state, [*steps, 0, 0, 0])
        assert state.heroes[TEAM].health == HEALTH
    assert state.heroes[TEAM].cell == (19, 19)


def test_who_is_hit_does_not_get_away() -> None:
    state = scene(blue={0: (11, 11), 1: (12, 11)}, red={0: (12, 12)})
    after = game.step(state, strike(0, 1))
    assert after.heroes[TEAM] == Hero(12, 12, HEALTH - 2 * HIT, 0)
    assert game.step(state, IDLE).heroes[TEAM].cell == (13, 13)


def test_elimination_is_remembered_and_the_hero_comes_back() -> None:
    domain = MobaDomain("enemy_1")
    state = scene(blue={0: (11, 11), 1: (12, 11)}, red={0: (12, 12)}, health=HIT)
    after = game.step(state, strike(0))
    assert after.heroes[TEAM] == Hero(*RED_HOME, 0, AWAY)
    assert domain.succeeded(after) and not MobaDomain("enemy_2").succeeded(after)
    for _ in range(AWAY):
        assert after.heroes[TEAM].away
        after = game.step(after, IDLE)
    assert after.heroes[TEAM] == Hero(*RED_HOME, HEALTH, 0)
    assert domain.succeeded(after)


def test_a_tower_shoots_minions_before_heroes() -> None:
    x, y = game.TOWER_CELLS[4]
    place = game.LANES[1].index((x, y)) - 1
    bare = scene(blue={0: (x - 2, y)}, red={})._replace(towers=(0, 0, 0, 0, 100, 0))
    assert game.step(bare, IDLE).heroes[0].health == HEALTH - game.TOWER_HIT
    waves = ((0, 0), (place, 4), (0, 0), (0, 0), (0, 0), (0, 0))
    assert game.step(bare._replace(waves=waves), IDLE).heroes[0].health == HEALTH


def test_the_monster_gives_a_boon() -> None:
    x, y = game.MONSTER_AT
    state = scene(blue={0: (x, y)}, red={})._replace(monster=(HIT, 0))
    after = game.step(state, (game.MONSTER, 0, 0, 0, 0))
    assert after.monster == (0, game.MONSTER_AWAY) and after.boon == game.BOON
    hunted = after._replace(heroes=scene(blue={0: (11, 11)}, red={0: (12, 12)}).heroes)
    assert game.step(hunted, strike(0)).heroes[TEAM].health == HEALTH - game.BOON_HIT


def test_home_heals() -> None:
    heroes = (Hero(*HOME, 30, 0), *scene(blue={}, red={}).heroes[1:])
    assert game.step(scene(blue={}, red={})._replace(heroes=heroes), IDLE).heroes[0].health == 30 + game.HEALING


def test_opponents_follow_from_the_seed_in_the_state() -> None:
    domain = MobaDomain()

    def trace(seed: int) -> list[MobaState]:
        states = [domain.start(3)._replace(seed=seed)]
        for _ in range(40):
            states.append(domain.step(states[-1], IDLE)._replace(seed=0))
            states[-1] = states[-1]._replace(seed=seed)
        return [state._replace(seed=0) for state in states]

    assert trace(1) == trace(1)
    assert len({tuple(trace(seed)) for seed in range(5)}) > 1


@given(x=st.sampled_from(WAYPOINTS[:4]), y=st.sampled_from(WAYPOINTS[:4]))
@settings(deadline=None, max_examples=10)
def test_a_walk_takes_as_many_frames_as_the_way_is_long(x: int, y: int) -> None:
    domain = MobaDomain()
    state = scene(blue={0: (5, 3)}, red={})
    action = Action("Move", (str(x), str(y)))
    executor: ChainExecutor[MobaState] = ChainExecutor(domain, Plan.of({AGENTS[0]: (action,)}))
    frames = 0
    while not executor.finished:
        controls = domain.control(state, executor.intents(state))
        after = domain.step(state, controls)
        executor.advance(state, controls, after)
        state, frames = after, frames + 1
    assert state.heroes[0].cell == (x, y)
    assert frames == max(1, distance((5, 3), (x, y)))


def test_actions_end_with_their_effect_or_the_heros_end() -> None:
    domain = MobaDomain("enemy_1")
    kill, back = Action("Kill", ("enemy_1",)), Action("Back")
    before = scene(blue={0: (11, 11)}, red={0: (12, 12)}, health=HIT)
    after = game.step(before, strike(0))
    assert domain.progress(before, strike(0), after, "agent_1", kill).status.value == "done"
    assert domain.progress(before, strike(0), after, "agent_2", kill).status.value == "done"  # whoever did it
    assert domain.progress(before, strike(0), after, "agent_1", back).status.value == "running"
    weak = before._replace(
        heroes=(Hero(11, 11, 1, 0), *before.heroes[1:5], Hero(12, 12, HEALTH, 0), *before.heroes[6:])
    )
    lost = game.step(weak, IDLE)
    assert lost.heroes[0].away
    failed = domain.progress(weak, IDLE, lost, "agent_1", kill)
    assert (failed.status.value, failed.reason) == ("failed", "agent_1 was eliminated")


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (Action("Kill", ("agent_2",)), "neither an enemy hero nor the monster"),
        (Action("Push", ("blue_tower_mid",)), "no enemy tower"),
        (Action("Push", ("red_tower_top",)), "fallen"),
        (Action("Move", ("2", "1")), "no position"),
    ],
)
def test_what_can_never_be_done_is_named(action: Action, reason: str) -> None:
    state = MobaDomain().start(0)._replace(towers=(200, 200, 200, 0, 200, 200))
    assert reason in str(MobaDomain().impossible(state, "agent_1", action))


def test_a_tower_does_not_heal() -> None:
    domain = MobaDomain()
    state = domain.start(0)._replace(towers=(200, 200, 200, 150, 200, 200))
    nothing = Plan.of(dict.fromkeys(AGENTS, ()))
    assert domain.can_become(state, WaitEntity("red_tower_top", "health", "<", 20), nothing)
    assert not domain.can_become(state, WaitEntity("red_tower_top", "health", ">", 150), nothing)
    assert not domain.can_become(state, WaitEntity("red_tower_top", "x", "!=", game.TOWER_CELLS[3][0]), nothing)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), k=st.integers(0, TEAM - 1), name=st.sampled_from([*OPPONENTS, *TOWERS[3:]]))
def test_relevant_is_what_lies_near_the_agent_or_the_target(seed: int, k: int, name: str) -> None:
    """The paper's rule (A.6), against its definition."""
    domain = MobaDomain()
    state = domain.start(seed)
    where = {e.name: (e.values["x"], e.values["y"]) for e in domain.entities(state)}
    there = {e.name for e in domain.entities(state) if e.values.get("minions", e.values.get("health", 1))}
    near = {
        other
        for other in there
        for centre in (where[AGENTS[k]], where[name])
        if distance(where[other], centre) <= RELEVANT
    }
    verb = "Kill" if name in OPPONENTS else "Push"
    assert domain.refers(state, AGENTS[k], Action(verb, (name,))) == near | {AGENTS[k], name}
    assert set(ROWS) >= near


def test_events_do_what_they_say() -> None:
    domain = MobaDomain("enemy_3")
    state = domain.start(1)
    hurt = domain.disturb(state, "M1", 0.5)
    assert hurt is not None
    assert sum(h.health for h in state.heroes) - sum(h.health for h in hurt.heroes) == 40
    helped = domain.disturb(state, "M2", 0.0)
    assert helped is not None
    moved = [k for k in range(2 * TEAM) if helped.heroes[k] != state.heroes[k]]
    assert len(moved) == 1 and distance(helped.heroes[moved[0]].cell, state.heroes[TEAM + 2].cell) <= 1
    gone = state._replace(monster=(0, 5))
    assert domain.disturb(gone, "M3", 0.1) == gone._replace(monster=(game.MONSTER_HEALTH, 0))
    assert domain.disturb(state._replace(monster=(9, 0)), "M3", 0.1) is None


def test_a_gank_strikes_together() -> None:
    """In every plan that waits for heroes, nobody strikes before the last one has taken its place."""
    state = MobaDomain().start(0)
    ganks = [
        plan
        for plan in MobaDomain().candidates(state)
        if any(isinstance(step, Wait) and isinstance(step.atoms[0], WaitAgents) for c in plan.values() for step in c)
    ]
    assert ganks
    for plan in ganks:
        for agent, chain in plan.items():
            if not chain:
                continue
            waited = {
                atom.agent
                for step in chain
                if isinstance(step, Wait)
                for atom in step.atoms
                if isinstance(atom, WaitAgents)
            }
            assert waited == {other for other in plan if plan[other] and other != agent}


def test_the_search_coordinator_hunts_with_and_without_events() -> None:
    domain = MobaDomain("enemy_3")
    coordinator = SearchCoordinator(domain)
    episodes = [run_episode(domain, coordinator, policy="stall", seed=seed) for seed in range(4)]
    assert all(episode.success for episode in episodes)
    plan = episodes[0].plans[0].plan
    assert plan is not None
    start = domain.start(0)
    assert roll_out(ChainExecutor(domain, plan), start, domain.horizon).frames == episodes[0].frames


def test_what_does_not_exist_cannot_be_hunted() -> None:
    with pytest.raises(UnknownName):
        MobaDomain("enemy_6")
    with pytest.raises(InvalidValue):
        MobaDomain(horizon=0)
