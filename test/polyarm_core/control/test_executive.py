"""The executive of a cell: plan numbers grow, only the open request counts, nobody is told two things in one slot."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.chains import terms
from polyarm_core.chains.terms import Plan, Wait, WaitAgents
from polyarm_core.constraints import STAY, Action
from polyarm_core.control.executive import Called, Detected, Effect, PlanExecutive, SlotPlan, Watch, nobody_watches
from polyarm_core.control.mirror import MirroredArms
from polyarm_core.control.modes import UNPLANNED, Control, Standing
from polyarm_core.control.planner import Ask, Follow, PlannerOptions
from polyarm_core.coordinator.interface import PlanAnswer
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.domains.arms.search import chain_action
from polyarm_core.errors import UnknownName
from polyarm_core.orchestrator import Decision
from polyarm_core.slots import ArmSnapshot, ArmStatus, ArmVerdict, TwinRule

DOMAIN = ArmsDomain("sort")
SEARCH = SearchCoordinator(DOMAIN)
IDLE = {arm: ArmSnapshot(ArmStatus.IDLE) for arm in DOMAIN.agents}
NO_PLAN = PlanAnswer(None, "", 0.0, error="nothing")
NO_SUCH = PlanAnswer(Plan.of({"alice": (terms.Action("juggle", ("pad2",)),), "bob": (), "chad": ()}), "", 0.0)
STRANGER = PlanAnswer(Plan.of({"alice": (), "bob": (), "chad": (), "dave": ()}), "", 0.0)


class Game:
    """A cell in which what the heads say is carried out by the rules of the task, slot by slot."""

    def __init__(self, control: Control = Control.PLANNED, repair: bool = True, **options: float) -> None:
        self.executive = PlanExecutive(
            MirroredArms(DOMAIN),
            control,
            Repair(DOMAIN) if repair else None,
            PlannerOptions(**options),  # type: ignore[arg-type]
        )
        self.state = DOMAIN.start(0)
        self.slot, self.now = 0, 0.0
        self.asked: list[Ask[ArmsState]] = []
        self.followed: list[Follow] = []
        self.called: list[Called] = []
        self.told: SlotPlan | None = None

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                self.asked.append(effect)
            elif isinstance(effect, Follow):
                self.followed.append(effect)
            elif isinstance(effect, Called):
                self.called.append(effect)

    def open(self, watch: Watch = nobody_watches) -> None:
        self.slot += 1
        self.take(self.executive.on_opening(self.slot, self.now, DOMAIN.world.view(self.state), IDLE, watch))

    def answer(self, answer: PlanAnswer | None = None, ask: Ask[ArmsState] | None = None) -> None:
        """To the newest request, or to another; the search's by default."""
        ask = ask or self.asked[-1]
        self.take(self.executive.on_answer(ask.number, answer or SEARCH.plan(ask.request), self.now))

    def act(self) -> Mapping[str, Action]:
        """Release, carry out, tell the verdicts and the results."""
        self.told = self.executive.release()
        actions = {arm: head.action or STAY for arm, head in self.told.heads.items()}
        controls = tuple(DOMAIN.control_of(action) for action in actions.values())
        admitted = DOMAIN.outcome(self.state, controls).admitted
        verdicts = [
            ArmVerdict(arm, action, Decision.ADMIT if action == STAY or arm in admitted else Decision.WAIT)
            for arm, action in actions.items()
        ]
        self.take(self.executive.on_verdicts(verdicts))
        for arm, action in admitted.items():
            self.executive.on_result(arm, action, "succeeded", "")
        self.state = DOMAIN.step(self.state, controls)
        return dict(admitted)

    def reset(self) -> None:
        self.executive.on_reset()
        self.state, self.slot, self.told = DOMAIN.start(0), 0, None


def started(control: Control = Control.PLANNED, **options: float) -> Game:
    """A game whose first slot is open, with a plan."""
    game = Game(control, **options)
    game.open()
    game.answer()
    return game


def test_a_plan_is_followed_step_by_step_to_the_end() -> None:
    game = started()
    assert [f.epoch for f in game.followed] == [1] and [c.number for c in game.called] == [1]
    while not DOMAIN.succeeded(game.state):
        game.act()
        assert game.told is not None and game.told.sound and game.slot < 10
        game.open()
    assert len(game.followed) == 1 and game.executive.planner.calls == 1


def test_what_an_arm_waits_for_is_said_in_words() -> None:
    game = Game()
    game.open()
    wait = Wait((WaitAgents("bob", "done", 1), WaitAgents("bob", "start", 1)), "&")
    step = terms.Action("move", ("blue_square", "panel3"))
    game.answer(PlanAnswer(Plan.of({"alice": (wait,), "bob": (step,), "chad": ()}), "", 0.0))
    told = game.executive.release()
    assert told.heads["alice"].standing is Standing.WAIT
    assert told.missing == {
        "alice": "step 1, Wait_agents(bob, done, 1) & Wait_agents(bob, start, 1); missing: Wait_agents(bob, done, 1)"
    }


def test_a_held_slot_gets_the_plan_at_once_and_a_released_one_waits_for_the_next_opening() -> None:
    game = Game()
    game.open()
    assert game.executive.worth_holding
    game.act()
    assert game.told is not None and set(game.told.heads.values()) == {UNPLANNED} and not game.told.sound
    game.answer()
    assert game.followed == [] and game.executive.open_request == 0  # it is here, but nobody is told before
    game.open()
    assert [f.epoch for f in game.followed] == [1] and game.executive.release().sound


def test_only_planned_arms_are_kept_waiting_and_only_while_a_plan_may_come() -> None:
    game = Game(Control.HYBRID)
    game.open()
    assert game.executive.open_request == 1 and not game.executive.worth_holding
    game = Game(calls=1, attempts=1, rest=2.0)
    game.open()
    assert game.executive.worth_holding
    game.answer(NO_PLAN)
    assert not game.executive.worth_holding  # no call is left
    assert not started().executive.worth_holding


def test_while_a_slot_is_held_time_gives_requests_up_and_makes_new_ones() -> None:
    game = Game(timeout=5.0, attempts=1, rest=2.0)
    game.open()
    game.now = 5.0
    game.take(game.executive.tick(game.now))
    assert game.called[-1].record.error == "no answer in time" and game.executive.open_request == 0
    game.answer(ask=game.asked[0])
    assert game.followed == []  # too late
    game.now = 7.5
    game.take(game.executive.tick(game.now))
    assert [ask.number for ask in game.asked] == [1, 2] and game.executive.worth_holding
    game.answer()
    assert game.executive.sound


def test_an_answer_of_the_last_episode_is_none_of_this() -> None:
    game = Game()
    game.open()
    old = game.asked[-1]
    game.reset()
    game.open()
    assert game.asked[-1].number > old.number
    game.answer(ask=old)
    assert game.followed == [] and not game.executive.sound
    game.answer()
    assert [f.epoch for f in game.followed] == [1]


@pytest.mark.parametrize(("answer", "why"), [(NO_SUCH, "no action juggle"), (STRANGER, "no such agent")])
def test_a_plan_that_means_nothing_in_the_scene_is_not_followed(answer: PlanAnswer, why: str) -> None:
    game = Game()
    game.open()
    game.answer(answer)
    assert game.followed == [] and game.called[-1].number == 0 and why in game.called[-1].record.error
    assert len(game.asked) == 2 and why in game.asked[-1].request.history[-1]


def test_a_request_about_the_plan_that_is_followed_is_trouble_at_the_next_opening_and_once() -> None:
    game = started(repair=False)
    game.act()
    executive = game.executive
    assert not executive.on_request(2, "stale", "?") and not executive.on_request(0, "stale", "?")
    assert executive.on_request(1, "stale", "blue has moved", ("bob",))
    game.open()
    assert executive.alarm == "stale" and executive.replans == {"stale": 1}
    assert game.asked[-1].request.reason == "stale" and "blue has moved" in game.asked[-1].request.history[-1]
    assert not executive.on_request(1, "stale", "again")  # it is being replaced
    game.answer()
    assert game.followed[-1].epoch == 2 and game.followed[-1].reason == "stale"
    game.act()
    game.open()
    assert executive.alarm == "" and executive.replans == {"stale": 1}
    with pytest.raises(UnknownName, match="unknown reason 'boredom'"):
        executive.on_request(2, "boredom", "")
    with pytest.raises(UnknownName, match="unknown agent 'dave'"):
        executive.on_request(2, "stale", "", ("dave",))


def test_the_detector_is_asked_once_in_a_slot_and_heeded_where_there_is_a_plan() -> None:
    seen: list[tuple[ArmsState, Plan]] = []

    def watch(state: ArmsState, remaining: Plan) -> bool:
        seen.append((state, remaining))
        return True

    game = Game()
    game.open(watch)
    assert len(seen) == 1 and game.executive.alarm == ""  # there was no plan yet
    game.answer()
    game.act()
    game.open(watch)
    assert len(seen) == 2 and seen[-1][0].places == game.state.places
    assert game.executive.alarm == "stale" and game.executive.replans == {"stale": 1}


@pytest.mark.parametrize("by_request", [True, False])
def test_who_cries_wolf_uses_up_half_of_the_calls_at_most(by_request: bool) -> None:
    game = Game(repair=False, calls=10)
    for _ in range(8):
        game.open(nobody_watches if by_request else lambda state, remaining: True)
        game.answer()
        game.executive.release()
        game.executive.on_request(game.executive.number, "stale", "wolf")
    assert [ask.request.reason for ask in game.asked] == ["start", *["stale"] * 4]
    assert game.executive.sound and not game.executive.heeds_alarms


def test_of_a_slot_that_was_decided_without_it_the_executive_says_that_no_plan_was_followed() -> None:
    game = started()
    game.act()
    told = game.executive.untold(2)
    assert (told.slot, told.number, told.sound) == (2, 1, False)
    assert set(told.heads.values()) == {UNPLANNED}
    game.open()
    game.act()
    assert game.told is not None and game.told.sound  # nothing has changed


def test_the_number_is_above_that_of_another_coordinator() -> None:
    game = Game()
    game.executive.on_plan_elsewhere(6)
    game.open()
    game.answer()
    assert game.followed[-1].epoch == game.executive.number == 7
    game.executive.on_plan_elsewhere(3)
    game.act()
    game.executive.on_request(7, "interval", "")
    game.open()
    game.answer()
    assert game.followed[-1].epoch == 8


@pytest.mark.parametrize("in_time", [True, False])
def test_only_arms_that_were_told_to_wait_for_each_other_do(in_time: bool) -> None:
    """Alice waits for bob's step, and the twin does not let bob act because alice stands in his way."""
    game = Game()
    game.open()
    blue = Action("move", "blue_square", "panel3")
    wait = Wait((WaitAgents("bob", "done", 1),))
    game.answer(PlanAnswer(Plan.of({"alice": (wait,), "bob": (chain_action(blue),), "chad": ()}), "", 0.0))
    if in_time:
        game.executive.release()
    vetoed = ArmVerdict("bob", blue, Decision.YIELD, TwinRule.OCCUPIED, "zone:middle", "alice")
    found = [e.detection for e in game.executive.on_verdicts([vetoed]) if isinstance(e, Detected)]
    assert [set(detection.cycle) for detection in found] == [{"alice", "bob"}] * in_time
    assert not game.executive.is_open


EVENTS = (
    "slot",
    "held slot",
    "answer",
    "no plan",
    "invalid",
    "late",
    "request",
    "old request",
    "move",
    "reset",
    "tick",
)


@settings(deadline=None, max_examples=60)
@given(
    control=st.sampled_from((Control.PLANNED, Control.HYBRID)),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0, 4)), max_size=40),
)
def test_whatever_happens(control: Control, events: list[tuple[str, float]]) -> None:
    game = Game(control, timeout=6.0, attempts=2, rest=3.0, calls=12)
    executive = game.executive
    number, base = 0, 0
    for event, wait in events:
        game.now += wait
        known, open_request, closed = executive.number, executive.open_request, not executive.is_open
        if event in ("slot", "held slot"):
            if executive.is_open:
                game.act()
                assert game.told is not None
                check_told(game.told, executive)
            game.open()
            if event == "slot":
                game.act()
                assert game.told is not None
                check_told(game.told, executive)
        elif event in ("answer", "no plan", "invalid") and game.asked:
            game.answer({"answer": None, "no plan": NO_PLAN, "invalid": NO_SUCH}[event])
            if not open_request or closed or event != "answer":  # a closed slot keeps what its arms were told
                assert executive.number == known or (executive.is_open and event != "answer")
        elif event == "late" and len(game.asked) > 1:
            game.answer(ask=game.asked[-2])
            assert executive.number == known and executive.open_request == open_request
        elif event in ("request", "old request"):
            taken = executive.on_request(executive.number - (event == "old request"), "stale", "")
            assert not taken or (event == "request" and executive.sound)
        elif event == "move":
            game.state = DOMAIN.disturb(game.state, "A1", wait / 5) or game.state
        elif event == "reset":
            base = len(game.asked)
            game.reset()
            number = 0
            game.followed.clear()
        elif event == "tick":
            game.take(executive.tick(game.now))
        numbers = [follow.epoch for follow in game.followed]
        assert numbers == list(range(1, len(numbers) + 1)) and executive.number == len(numbers) >= number
        number = executive.number
        assert [ask.number for ask in game.asked] == list(range(1, len(game.asked) + 1))
        assert len(game.asked) - base <= 12


def check_told(told: SlotPlan, executive: PlanExecutive) -> None:
    """Heads are the first steps of what is left of the plan that is followed, and nothing where none is."""
    assert told.number == executive.number
    for arm, head in told.heads.items():
        if not told.sound:
            assert head == UNPLANNED
        elif head.standing is Standing.ACT:
            assert head.action is not None and told.remaining[arm][0] == chain_action(head.action)
        elif head.standing is Standing.WAIT:
            assert isinstance(told.remaining[arm][0], Wait) and arm in told.missing
        else:
            assert head.standing is Standing.ENDED and not told.remaining[arm]
