"""The joint wait-for graph: against a full search, and cycles that neither chains nor twin see alone."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.chains import terms
from polyarm_core.chains.terms import Plan, Wait, WaitAgents
from polyarm_core.constraints import Action
from polyarm_core.control.episode import run_controlled_episode
from polyarm_core.control.modes import UNPLANNED, Head, Standing
from polyarm_core.control.waits import Claim, TeamWaits, veto_claims
from polyarm_core.coordinator.interface import PlanAnswer, PlanRequest
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.orchestrator import Decision, Rule
from polyarm_core.scenario import Start, load_scenario
from polyarm_core.slots import ArmVerdict, TwinRule

SORT, ROPE, CABINET = (load_scenario(name) for name in ("sort", "rope", "cabinet"))
ARMS = tuple(f"arm{k}" for k in range(7))


def stuck(claims: dict[str, tuple[Claim, ...]]) -> set[str]:
    """The full search: the largest set of arms each of which has a claim with every alternative in the set."""
    left = set(claims)
    while True:
        kept = {a for a in left if any(c.others and set(c.others) <= left for c in claims[a])}
        if kept == left:
            return left
        left = kept


def random_claims(draw: random.Random) -> dict[str, tuple[Claim, ...]]:
    claims = {}
    for arm in ARMS:
        if draw.random() < 0.4:
            continue
        others = [name for name in ARMS if name != arm]
        found = [
            Claim(tuple(sorted(draw.sample(others, draw.choice((1, 1, 2))))), f"for {draw.random():.1f}")
            for _ in range(draw.choice((1, 1, 2)))
        ]
        claims[arm] = tuple(dict.fromkeys(found))
    return claims


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**31), slots=st.integers(1, 6))
def test_a_new_deadlock_is_reported_when_a_full_search_finds_one_and_never_else(seed: int, slots: int) -> None:
    draw = random.Random(seed)
    waits = TeamWaits(ARMS)
    before: set[str] = set()
    told: list[set[str]] = []
    claims: dict[str, tuple[Claim, ...]] = {}
    for slot in range(slots):
        fresh = random_claims(draw)
        claims = {arm: found for arm, found in (claims | fresh).items() if arm in fresh or draw.random() < 0.5}
        now = stuck(claims)
        found = waits.update(claims, slot)
        for detection in found:
            assert detection.kind == "deadlock" and set(detection.agents) <= now
            cycle = detection.cycle
            for arm, other in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                assert any(other in claim.others for claim in claims[arm])
                assert f"{arm} waits for {other}" in detection.reason
        # A circle of arms that were free before is new, unless it was told earlier; whoever is held up behind a circle
        # that is known already brings no news.
        new = stuck({arm: claims[arm] for arm in now - before})
        assert found or not new or any(new & agents for agents in told), (claims, now)
        told += [set(detection.agents) for detection in found]
        before = now


def test_what_was_reported_is_not_reported_again_until_it_is_forgotten() -> None:
    waits = TeamWaits(("a", "b"))
    claims = {"a": (Claim(("b",), "x"),), "b": (Claim(("a",), "y"),)}
    (found,) = waits.update(claims, 1)
    assert found.cycle in (("a", "b"), ("b", "a"))
    assert "a waits for b (x)" in found.reason and "b waits for a (y)" in found.reason
    assert waits.update(claims, 2) == () and waits.update({}, 3) == () and waits.update(claims, 4) == ()
    waits.forget()
    assert len(waits.update(claims, 5)) == 1


def test_a_wait_that_nobody_can_end_is_a_stall() -> None:
    (found,) = TeamWaits(("a", "b")).update({"a": (Claim((), "the twin on x: held door"),)}, 3)
    assert (found.kind, found.agents, found.frame) == ("stall", ("a",), 3) and "nobody" in found.reason


# -- claims from verdicts ---------------------------------------------------------------------------------------------

LIFT_A, LIFT_B = Action("lift", "end_a"), Action("lift", "end_b")
ACT = Head(Standing.ACT, LIFT_A)


def test_a_group_waits_for_the_partner_that_has_not_come() -> None:
    vetoed = ArmVerdict("alice", LIFT_A, Decision.WAIT, Rule.SYNCHRONISATION, "", "bob")
    stays = ArmVerdict("bob", Action("stay"), Decision.ADMIT)
    heads = {"alice": ACT, "bob": Head(Standing.WAIT)}
    plan = Plan.of({"alice": (), "bob": ()})
    claims = veto_claims(ROPE, [vetoed, stays], heads, plan)
    assert claims["alice"][0].others == ("bob",) and "bob has not come" in claims["alice"][0].why
    ended = veto_claims(ROPE, [vetoed, stays], {"alice": ACT, "bob": Head(Standing.ENDED)}, plan)
    assert ended["alice"][0].others == ()  # it will never come


def test_what_must_be_held_is_waited_for_from_those_whose_chain_still_holds_it() -> None:
    fetch = Action("move", "mug", "coaster_mug")
    vetoed = [ArmVerdict("chad", fetch, Decision.WAIT, Rule.HELD, "left_door_open")]
    heads = {"alice": Head(Standing.WAIT), "bob": Head(Standing.WAIT), "chad": Head(Standing.ACT, fetch)}
    hold = terms.Action("hold", ("left_door",))
    with_hold, without = (Plan.of({"alice": chain, "bob": (), "chad": ()}) for chain in ((hold,), ()))
    assert veto_claims(CABINET, vetoed, heads, with_hold)["chad"][0].others == ("alice",)
    assert veto_claims(CABINET, vetoed, heads, without)["chad"][0].others == ()
    assert veto_claims(CABINET, vetoed, dict.fromkeys(heads, UNPLANNED), None)["chad"][0].others == ("alice",)


def test_only_an_arm_that_follows_its_chain_is_held_up_by_yield() -> None:
    move = Action("move", "blue_square", "panel3")
    vetoed = [ArmVerdict("bob", move, Decision.YIELD, TwinRule.DEAD_END, "entity:blue_square")]
    heads = dict.fromkeys(SORT.arms, UNPLANNED)
    assert veto_claims(SORT, vetoed, heads, None) == {}
    claims = veto_claims(SORT, vetoed, heads | {"bob": Head(Standing.ACT, move)}, None)
    assert claims["bob"][0].others == ("alice", "chad")


def test_time_and_persons_are_no_claim() -> None:
    move = Action("move", "blue_square", "panel3")
    heads = dict.fromkeys(SORT.arms, Head(Standing.ACT, move))
    for rule, element, rival in (
        (TwinRule.OCCUPIED, "placement:panel3", "obstacle"),
        (TwinRule.ILLEGAL, "protective_stop", ""),
    ):
        assert veto_claims(SORT, [ArmVerdict("bob", move, Decision.YIELD, rule, element, rival)], heads, None) == {}
    exclusion = ArmVerdict("bob", move, Decision.YIELD, Rule.EXCLUSION, "placement:panel3", "alice")
    assert veto_claims(SORT, [exclusion, ArmVerdict("alice", move, Decision.ADMIT)], heads, None) == {}


# -- the whole --------------------------------------------------------------------------------------------------------


class Scripted:
    """Gives one plan at the start, and the search's afterwards."""

    name = "scripted"

    def __init__(self, domain: ArmsDomain, plan: Plan) -> None:
        from polyarm_core.coordinator.search import SearchCoordinator

        self._search = SearchCoordinator(domain)
        self._plan = plan

    def plan(self, request: PlanRequest[ArmsState]) -> PlanAnswer:
        if request.reason == "start":
            return PlanAnswer(self._plan, "", 0.0)
        return self._search.plan(request)


def test_a_cycle_of_a_chain_s_wait_and_the_twin_s_veto_is_found_and_mended() -> None:
    """Alice may not put the polygon where the trapezoid is, and bob takes that away only after she has."""
    places = {"yellow_trapezoid": "panel3", "pink_polygon": "panel1", "blue_square": "panel7"}
    scenario = SORT.model_copy(update={"start": Start(at=places)})
    domain = ArmsDomain(scenario)
    plan = Plan.of(
        {
            "alice": (terms.Action("move", ("pink_polygon", "panel3")),),
            "bob": (
                Wait((WaitAgents("alice", "done", 1),)),
                terms.Action("move", ("yellow_trapezoid", "panel5")),
                terms.Action("move", ("pink_polygon", "pad4")),
            ),
            "chad": (),
        }
    )
    coordinator = Scripted(domain, plan)
    episode = run_controlled_episode(
        scenario, 0, "planned", domain=domain, coordinator=coordinator, detector="never", latency=0.0
    )
    found = [detection for detection in episode.detections if detection.kind == "deadlock"]
    assert len(found) == 1 and set(found[0].cycle) == {"alice", "bob"}
    assert "alice waits for bob (the twin on move pink_polygon to panel3: occupied" in found[0].reason
    assert "bob waits for alice (step 1, Wait_agents(alice, done, 1))" in found[0].reason
    assert episode.summary.success and episode.replans["deadlock"] == 1
    assert found[0].frame == 1  # in the slot in which it arose, not after some patience
