"""The slot protocol: late, lost, doubled and stale reports, restarts, vetoes of the twin, whole random episodes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.agents import ArmAgent
from polyarm_core.constraints import STAY, Action, Declaration
from polyarm_core.errors import InvalidValue
from polyarm_core.liveness import draw_start
from polyarm_core.orchestrator import Decision, Rule
from polyarm_core.scenario import load_scenario, parse_scenario
from polyarm_core.slots import (
    Answered,
    ArmSnapshot,
    ArmStatus,
    Effect,
    Opened,
    Phase,
    Report,
    Revoked,
    SlotOptions,
    SlotProtocol,
    Snapshot,
    TwinRule,
)
from polyarm_core.world import World, succeeded

SORT = load_scenario("sort")
EPOCH = 1_790_000_000_000_000_000
ARMS = list(SORT.arms)
START = {"blue_square": "panel7", "pink_polygon": "pad4", "yellow_trapezoid": "panel1"}


class Bench:
    """A twin with a plant that carries out what it grants, in steps that the test chooses."""

    def __init__(self, where: dict[str, str] | None = None, options: SlotOptions | None = None) -> None:
        self.twin = SlotProtocol(SORT, EPOCH, options or SlotOptions(deadline=10.0))
        self.where = dict(where or START)
        self.now = 0.0
        self.sequence = 0
        self.sent = dict.fromkeys(ARMS, 0)
        self.arms = {arm: ArmSnapshot(ArmStatus.IDLE) for arm in ARMS}
        self.plant_time = 0.0
        self.episode = 1
        self.plant_epoch = 1

    def world(self) -> World:
        return World({e: (*SORT.placements[p].xyz[:2], 0.2) for e, p in self.where.items()})

    def snapshot(self) -> list[Effect]:
        self.sequence += 1
        snapshot = Snapshot(
            self.episode,
            0,
            self.plant_epoch,
            self.sequence,
            self.plant_time,
            self.world(),
            dict(self.arms),
            succeeded(SORT, self.world()),
        )
        return self.twin.on_world(snapshot, self.now)

    def report(self, name: str, action: Action, **changes: object) -> tuple[str, list[Effect]]:
        self.sent[name] += 1
        report = Report(name, self.episode, self.twin.slot, EPOCH, 5, self.sent[name], action, Declaration())
        return self.twin.on_report(replace(report, **changes), self.now)  # type: ignore[arg-type]

    def answer(self, actions: dict[str, Action]) -> Answered:
        effects: list[Effect] = []
        for arm in ARMS:
            refusal, more = self.report(arm, actions.get(arm, STAY))
            assert refusal == ""
            effects += more
        return next(e for e in effects if isinstance(e, Answered))

    def carry_out(self, answered: Answered, fail: frozenset[str] = frozenset()) -> list[Effect]:
        effects: list[Effect] = []
        for verdict in answered.verdicts:
            if verdict.grant is not None:
                self.plant_time += 1.0
                if verdict.arm not in fail:
                    self.where[verdict.action.entity] = verdict.action.placement
                effects += self.twin.on_result(verdict.arm, verdict.grant.token, self.plant_time, self.now)
        return effects + self.snapshot()


def move(entity: str, placement: str) -> Action:
    return Action("move", entity, placement)


def verdict_of(answered: Answered, arm: str) -> tuple[Decision, object]:
    verdict = next(v for v in answered.verdicts if v.arm == arm)
    return verdict.decision, verdict.rule


def test_opens_when_the_plant_is_ready_and_only_once() -> None:
    bench = Bench()
    opened = bench.snapshot()
    assert opened == [Opened(1, 1, tuple(ARMS), 1, 10.0)]
    assert bench.snapshot() == [] and bench.twin.tick(1.0) == []


def test_idle_slots_pass_only_as_long_as_the_plant_is_heard() -> None:
    """Where the plant hangs, a team that waits for it must not burn its slots."""
    bench = Bench(options=SlotOptions(deadline=10.0, idle_slots=2))
    bench.snapshot()
    for _ in range(2):
        bench.answer({})
    assert bench.twin.slot == 2 and bench.twin.misses_plant and bench.twin.tick(1e6) == []
    assert [type(effect) for effect in bench.snapshot()] == [Opened]
    bench.answer({})
    bench.carry_out(bench.answer({"alice": move("yellow_trapezoid", "panel3")}))  # what is admitted starts it anew
    bench.answer({})
    assert bench.twin.slot == 6 and not bench.twin.misses_plant
    unbounded = Bench()
    unbounded.snapshot()
    for _ in range(9):
        unbounded.answer({})
    assert unbounded.twin.slot == 10


def test_does_not_open_before_an_episode_or_while_an_arm_moves() -> None:
    bench = Bench()
    bench.episode = 0
    assert bench.snapshot() == []
    bench.episode = 1
    bench.arms["bob"] = ArmSnapshot(ArmStatus.MOVING, 3)
    assert bench.snapshot() == []
    bench.arms["bob"] = ArmSnapshot(ArmStatus.HOLDING)
    assert len(bench.snapshot()) == 1


def test_arbitrates_when_all_have_answered_and_grants_only_to_the_admitted() -> None:
    bench = Bench()
    bench.snapshot()
    answered = bench.answer({"alice": move("yellow_trapezoid", "panel3")})
    assert {v.arm for v in answered.verdicts} == set(ARMS)
    alice = next(v for v in answered.verdicts if v.arm == "alice")
    assert alice.decision is Decision.ADMIT and alice.grant is not None and alice.grant.token > 0
    assert [g.arm for g in bench.twin.leases.grants] == ["alice"]
    assert all(v.grant is None for v in answered.verdicts if v.arm != "alice")


def test_a_slot_waits_for_the_motion_and_for_a_world_seen_after_it() -> None:
    bench = Bench()
    bench.snapshot()
    answered = bench.answer({"alice": move("yellow_trapezoid", "panel3")})
    grant = bench.twin.leases.grants[0]
    assert answered.slot == 1 and bench.snapshot() == []
    bench.plant_time = 2.0
    assert bench.twin.on_result("alice", grant.token, 3.0, 0.0) == []  # the newest world is of 0 s
    assert bench.snapshot() == []  # of 2 s: still before the motion ended
    bench.plant_time = 3.0
    opened = bench.snapshot()
    assert isinstance(opened[0], Opened) and opened[0].slot == 2


def test_deadline_closes_the_slot_without_the_silent() -> None:
    bench = Bench()
    bench.snapshot()
    bench.report("alice", move("yellow_trapezoid", "panel3"))
    bench.now = 9.9
    assert bench.twin.tick(bench.now) == []
    bench.now = 10.0
    answered = bench.twin.tick(bench.now)[0]
    assert isinstance(answered, Answered)
    assert verdict_of(answered, "bob") == (Decision.WAIT, TwinRule.SILENT)
    assert verdict_of(answered, "alice")[0] is Decision.ADMIT


def test_absent_arms_are_no_longer_waited_for_until_they_are_heard() -> None:
    bench = Bench(options=SlotOptions(deadline=10.0, absent_after=2, absent_grace=0.5))
    bench.snapshot()
    for slot in (1, 2):
        bench.report("alice", STAY)
        bench.report("chad", STAY)
        assert bench.twin.slot == slot
        bench.now += 10.0
        assert isinstance(bench.twin.tick(bench.now)[0], Answered)
        bench.snapshot()
    bench.report("alice", STAY)
    bench.report("chad", STAY)
    assert bench.twin.tick(bench.now + 0.4) == []
    assert isinstance(bench.twin.tick(bench.now + 0.6)[0], Answered)
    assert bench.twin.slot == 4
    refusal, _ = bench.report("bob", STAY, slot=3)  # too late, but alive again
    assert "slot 3" in refusal
    bench.report("alice", STAY)
    bench.report("chad", STAY)
    assert bench.twin.tick(bench.now + 5.0) == []  # waits for bob again


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"slot": 99}, "answers slot 99"),
        ({"episode": 7}, "episode 7"),
        ({"twin_epoch": EPOCH - 1}, "answers the twin of epoch"),
        ({"arm": "dave"}, "unknown arm 'dave'; valid: alice, bob, chad"),
    ],
)
def test_what_does_not_belong_to_the_open_slot_is_refused(changes: dict[str, object], why: str) -> None:
    bench = Bench()
    bench.snapshot()
    refusal, effects = bench.report("alice", STAY, **changes)
    assert why in refusal and effects == []
    assert bench.report("alice", STAY)[0] == ""  # and nothing was lost by it


def test_duplicates_and_older_incarnations_are_refused() -> None:
    bench = Bench()
    bench.snapshot()
    assert bench.report("alice", move("yellow_trapezoid", "panel3"))[0] == ""
    assert "seen already" in bench.report("alice", STAY, sequence=1)[0]
    assert "has answered" in bench.report("alice", STAY)[0]
    assert "older" in bench.report("alice", STAY, epoch=4)[0]


def test_an_agent_that_restarted_may_answer_again() -> None:
    bench = Bench()
    bench.snapshot()
    bench.report("alice", move("yellow_trapezoid", "panel3"))
    assert bench.report("alice", STAY, epoch=6, sequence=1)[0] == ""
    bench.report("bob", STAY)
    _, effects = bench.report("chad", STAY)
    answered = next(e for e in effects if isinstance(e, Answered))
    assert next(v for v in answered.verdicts if v.arm == "alice").action == STAY


def test_occupied_destination_is_never_granted() -> None:
    bench = Bench({"blue_square": "pad4", "pink_polygon": "panel7", "yellow_trapezoid": "panel3"})
    bench.snapshot()
    answered = bench.answer({"bob": move("blue_square", "panel3")})
    verdict = next(v for v in answered.verdicts if v.arm == "bob")
    assert (verdict.decision, verdict.rule) == (Decision.YIELD, TwinRule.OCCUPIED)
    assert (verdict.element, verdict.rival) == ("placement:panel3", "yellow_trapezoid")


@pytest.mark.parametrize(
    "action",
    [move("blue_square", "pad2"), move("yellow_trapezoid", "pad6"), move("yellow_trapezoid", "pad2"), Action("fly")],
)
def test_illegal_actions_are_vetoed(action: Action) -> None:
    bench = Bench()
    bench.snapshot()
    assert verdict_of(bench.answer({"alice": action}), "alice") == (Decision.YIELD, TwinRule.ILLEGAL)


def test_an_arm_in_protective_stop_gets_nothing() -> None:
    bench = Bench()
    bench.arms["alice"] = ArmSnapshot(ArmStatus.PROTECTIVE_STOP)
    bench.snapshot()
    answered = bench.answer({"alice": move("yellow_trapezoid", "panel3")})
    assert verdict_of(answered, "alice") == (Decision.WAIT, TwinRule.ILLEGAL)
    assert bench.twin.leases.grants == ()


def test_two_arms_that_would_block_each_other_for_good() -> None:
    both = {"alice": move("yellow_trapezoid", "panel3"), "chad": move("blue_square", "panel5")}
    bench = Bench()
    bench.snapshot()
    answered = bench.answer(both)
    decisions = {arm: verdict_of(answered, arm) for arm in ("alice", "chad")}
    assert sorted(d[0].value for d in decisions.values()) == ["admit", "yield"]
    assert (Decision.YIELD, TwinRule.DEAD_END) in decisions.values()
    unguarded = Bench(options=SlotOptions(guard_dead_ends=False))
    unguarded.snapshot()
    answered = unguarded.answer(both)
    assert all(verdict_of(answered, arm)[0] is Decision.ADMIT for arm in both)


def test_missing_declarations_are_completed_and_counted() -> None:
    where = {"blue_square": "panel5", "pink_polygon": "pad6", "yellow_trapezoid": "panel1"}
    rivals = {"bob": move("blue_square", "panel3"), "chad": move("pink_polygon", "panel5")}
    for options, admitted in ((SlotOptions(), 1), (SlotOptions(complete_declarations=False), 1)):
        bench = Bench(where, options)
        bench.snapshot()
        answered = bench.answer(rivals)
        granted = [v for v in answered.verdicts if v.grant is not None]
        assert len(granted) == admitted
    bench = Bench({"blue_square": "pad2", "pink_polygon": "panel3", "yellow_trapezoid": "panel5"})
    bench.snapshot()
    bench.answer({"bob": move("pink_polygon", "pad4"), "chad": move("yellow_trapezoid", "pad6")})
    assert bench.twin.completed_entries["bob"] == 4  # entity, two placements, one zone
    assert bench.twin.completed_entries["alice"] == 0


def test_contenders_for_one_zone_are_separated_with_element_and_rival() -> None:
    bench = Bench({"blue_square": "panel5", "pink_polygon": "panel1", "yellow_trapezoid": "panel7"})
    bench.snapshot()
    answered = bench.answer({"bob": move("blue_square", "panel3"), "alice": move("pink_polygon", "panel3")})
    verdicts = {v.arm: v for v in answered.verdicts}
    loser = next(v for v in verdicts.values() if v.decision is Decision.YIELD)
    winner = next(v for v in verdicts.values() if v.grant is not None)
    assert loser.rule is Rule.EXCLUSION and loser.rival == winner.arm
    assert loser.element in ("placement:panel3", "zone:around_panel3")


def test_new_episode_voids_reports_and_leases() -> None:
    bench = Bench()
    bench.snapshot()
    bench.answer({"alice": move("yellow_trapezoid", "panel3")})
    assert bench.twin.leases.grants
    bench.episode = 2
    opened = bench.snapshot()
    assert bench.twin.leases.grants == () and isinstance(opened[0], Opened) and opened[0].episode == 2
    assert opened[0].slot == 1


def test_restarted_plant_voids_leases_and_a_stale_world_is_ignored() -> None:
    bench = Bench()
    bench.snapshot()
    bench.answer({"alice": move("yellow_trapezoid", "panel3")})
    bench.plant_epoch, bench.sequence, bench.episode = 2, 0, 9
    assert bench.snapshot() and bench.twin.leases.grants == ()
    bench.plant_epoch, bench.episode = 1, 1
    assert bench.snapshot() == [] and bench.twin.episode == 9


def test_a_lease_that_outlives_its_limit_is_revoked_and_the_episode_goes_on() -> None:
    bench = Bench()
    bench.twin.leases._limit = 30.0
    bench.snapshot()
    bench.answer({"alice": move("yellow_trapezoid", "panel3")})
    assert bench.twin.tick(29.0) == []
    effects = bench.twin.tick(31.0)
    assert isinstance(effects[0], Revoked) and effects[0].grant.arm == "alice"
    assert bench.twin.phase is Phase.COLLECTING


def test_no_slot_after_success_or_beyond_the_limit() -> None:
    done = {e: str(SORT.entities[e].goal) for e in SORT.entities}
    assert Bench(done).snapshot() == []
    data = SORT.model_dump()
    data["slots"]["limit"] = 2
    twin = SlotProtocol(parse_scenario(data), EPOCH, SlotOptions(deadline=1.0))
    bench = Bench()
    bench.twin = twin
    bench.snapshot()
    for _ in range(5):
        bench.now += 2.0
        twin.tick(bench.now)
        bench.snapshot()
    assert twin.slot == 2


def test_options_are_checked() -> None:
    for wrong in ({"deadline": 0.0}, {"absent_after": 0}, {"absent_grace": -1.0}, {"idle_slots": -1}):
        with pytest.raises(InvalidValue):
            SlotOptions(**wrong)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), dice=st.integers(0, 2**32), failures=st.floats(0.0, 0.4))
def test_random_teams_reach_the_goal_whatever_is_lost_or_fails(seed: int, dice: int, failures: float) -> None:
    """Agents that choose at random, motions that fail, reports that are lost or doubled: the goal is reached, no
    placement ever holds two entities, and no two admitted actions share an element."""
    chaos = random.Random(dice)
    bench = Bench(draw_start(SORT, seed))
    agents = {arm: ArmAgent(SORT, arm) for arm in ARMS}
    effects = bench.snapshot()
    for _ in range(2_000):
        if succeeded(SORT, bench.world()):
            break
        if not any(isinstance(e, Opened) for e in effects):
            effects = bench.twin.tick(bench.now) + bench.snapshot()
            bench.now += 1.0
            if bench.twin.phase is not Phase.COLLECTING and bench.twin.slot >= SORT.slots.limit:
                bench.twin.slot = 0
            continue
        answered: list[Effect] = []
        for arm in chaos.sample(ARMS, len(ARMS)):
            deliberation = agents[arm].deliberate(bench.world())
            scores = [chaos.random() for _ in deliberation.candidates]
            choice = agents[arm].only_choice(deliberation) or agents[arm].settle(deliberation, scores)
            if chaos.random() < 0.1:
                continue  # lost
            for _ in range(1 + (chaos.random() < 0.1)):
                answered += bench.twin.on_report(
                    Report(
                        arm,
                        bench.episode,
                        bench.twin.slot,
                        EPOCH,
                        5,
                        bench.sent[arm] + 1,
                        choice.action,
                        choice.declaration,
                    ),
                    bench.now,
                )[1]
            bench.sent[arm] += 1
        if not any(isinstance(e, Answered) for e in answered):
            bench.now += 11.0
            answered += bench.twin.tick(bench.now)
        decision = next(e for e in answered if isinstance(e, Answered))
        granted = [v for v in decision.verdicts if v.grant is not None]
        targets = [v.action.placement for v in granted]
        assert len(set(targets)) == len(targets)
        assert not set(targets) & set(bench.where.values())
        failed = frozenset(v.arm for v in granted if chaos.random() < failures)
        for verdict in decision.verdicts:
            agents[verdict.arm].on_verdict(verdict.action, verdict.decision.value)
            if verdict.arm in failed:
                agents[verdict.arm].on_failure(verdict.action)
        effects = [e for e in answered if isinstance(e, Opened)] + bench.carry_out(decision, failed)
        assert len(set(bench.where.values())) == len(bench.where)
    assert succeeded(SORT, bench.world())
