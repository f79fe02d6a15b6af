"""The planner: epochs, outdated answers, bounds, no failed plan twice, mending first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core.chains.terms import Action, Plan
from polyarm_core.control.planner import Ask, Effect, Follow, Planner, PlannerOptions
from polyarm_core.coordinator.interface import PlanAnswer, PlanRequest
from polyarm_core.coordinator.repair import Repair
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.arms import ArmsDomain, ArmsState
from polyarm_core.errors import InvalidValue

DOMAIN = ArmsDomain("sort")
SEARCH = SearchCoordinator(DOMAIN)
START = DOMAIN.start(0)
GOOD = SEARCH.plan(PlanRequest(START)).plan
assert GOOD is not None
EMPTY = Plan.of(dict.fromkeys(DOMAIN.agents, ()))
EVENTS = ("trouble", "answer", "late", "none", "tick")
NO_PLAN = PlanAnswer(None, "", 0.0, error="nothing")


def asked(effects: list[Effect[ArmsState]]) -> Ask[ArmsState]:
    (effect,) = effects
    assert isinstance(effect, Ask)
    return effect


def started(repair: bool = False, **options: float) -> tuple[Planner[ArmsState], Ask[ArmsState]]:
    planner: Planner[ArmsState] = Planner(
        DOMAIN,
        Repair(DOMAIN) if repair else None,
        PlannerOptions(**options),  # type: ignore[arg-type]
    )
    return planner, asked(planner.start(START, 0.0))


def moved() -> ArmsState:
    """The start, but an object has been moved by a person."""
    after = DOMAIN.disturb(START, "A1", 0.3)
    assert after is not None
    return after


def test_a_plan_is_followed_with_an_epoch_that_grows() -> None:
    planner, ask = started()
    assert planner.thinking and not planner.sound and ask.request.reason == "start"
    assert planner.on_answer(ask.number, PlanAnswer(GOOD, "", 0.1), START, EMPTY, 0, 1.0) == [Follow(1, GOOD, "start")]
    assert planner.sound and not planner.thinking
    again = asked(planner.on_trouble(moved(), "stale", "moved", (), GOOD, 2, 3.0))
    assert not planner.sound and again.request.history == ("frame 2: moved",) and again.request.previous == GOOD
    new = SEARCH.plan(again.request)
    (follow,) = planner.on_answer(again.number, new, moved(), GOOD, 2, 3.0)
    assert isinstance(follow, Follow) and follow.epoch == 2 and follow.plan == new.plan
    assert [record.reason for record in planner.records] == ["start", "stale"]


def test_an_answer_to_another_request_is_dropped() -> None:
    planner, ask = started(timeout=5.0)
    assert planner.on_answer(ask.number + 1, PlanAnswer(GOOD, "", 0.1), START, EMPTY, 0, 1.0) == []
    assert planner.tick(START, EMPTY, 4, 4.9) == []
    second = asked(planner.tick(START, EMPTY, 5, 5.0))  # it took too long: asked again
    assert planner.on_answer(ask.number, PlanAnswer(GOOD, "", 9.0), START, EMPTY, 6, 6.0) == []
    assert planner.plan is None and planner.thinking
    assert planner.on_answer(second.number, PlanAnswer(GOOD, "", 1.0), START, EMPTY, 6, 6.5)


def test_a_plan_for_a_world_that_has_changed_is_tried_before_it_is_followed() -> None:
    planner, ask = started()
    gone = DOMAIN.step(START, DOMAIN.control(START, (None, None, None)))
    assert planner.on_answer(ask.number, PlanAnswer(GOOD, "", 1.0), gone, EMPTY, 1, 1.0) == [Follow(1, GOOD, "start")]
    planner, ask = started()
    second = asked(planner.on_answer(ask.number, PlanAnswer(EMPTY, "", 1.0), moved(), EMPTY, 1, 1.0))
    assert planner.records[-1].error.startswith("the world has changed") and second.request.state == moved()


def test_what_has_been_done_while_the_model_thought_is_skipped() -> None:
    planner, ask = started()
    head = {arm: chain[:1] for arm, chain in GOOD.items() if chain and isinstance(chain[0], Action)}
    controls = DOMAIN.control(START, tuple(head[arm][0] if arm in head else None for arm in DOMAIN.agents))
    done = {arm: head[arm] for arm in DOMAIN.outcome(START, controls).admitted}
    assert done
    after = DOMAIN.step(START, controls)
    (follow,) = planner.on_answer(ask.number, PlanAnswer(GOOD, "", 1.0), after, EMPTY, 1, 1.0, done)  # type: ignore[arg-type]
    assert isinstance(follow, Follow)
    for arm, chain in follow.plan.items():
        left = [step for step in GOOD[arm] if isinstance(step, Action)][arm in done :]
        assert [step for step in chain if isinstance(step, Action)] == left


def test_trouble_is_mended_before_anybody_is_asked() -> None:
    mended = 0
    for k in range(8):
        state = DOMAIN.disturb(START, "A1", k / 8)
        assert state is not None
        planner, ask = started(repair=True)
        planner.on_answer(ask.number, PlanAnswer(GOOD, "", 0.1), START, EMPTY, 0, 1.0)
        (effect,) = planner.on_trouble(state, "stale", "moved", (), GOOD, 1, 2.0)
        assert planner.records[-1].source == "repair" and planner.sound is isinstance(effect, Follow)
        mended += planner.sound
        assert planner.calls == 2 - planner.sound
    assert mended


def test_what_failed_is_not_tried_again_in_the_same_situation() -> None:
    planner, ask = started(attempts=2, rest=10.0)
    planner.on_answer(ask.number, PlanAnswer(GOOD, "", 0.1), START, EMPTY, 0, 1.0)
    again = asked(planner.on_trouble(START, "stall", "alice fails", ("alice",), GOOD, 1, 2.0))
    third = asked(planner.on_answer(again.number, PlanAnswer(GOOD, "", 0.1), START, GOOD, 1, 3.0))
    assert "has failed before" in planner.records[-1].error and "has failed before" in third.request.history[-1]
    assert planner.on_answer(third.number, PlanAnswer(GOOD, "", 0.1), START, GOOD, 1, 4.0) == []  # now it rests
    assert not planner.sound and not planner.thinking
    assert planner.tick(START, GOOD, 2, 13.0) == []
    fourth = asked(planner.tick(START, GOOD, 3, 14.0))
    assert planner.on_answer(fourth.number, PlanAnswer(GOOD, "", 0.1), START, GOOD, 3, 14.0)  # nothing else was found
    fifth = asked(planner.on_trouble(START, "stall", "alice fails again", ("alice",), GOOD, 4, 15.0))
    assert not [
        e
        for e in planner.on_answer(fifth.number, PlanAnswer(GOOD, "", 0.1), START, GOOD, 4, 15.0)
        if isinstance(e, Follow)
    ]


def test_calls_are_bounded() -> None:
    planner, ask = started(calls=3, attempts=100)
    for _ in range(2):
        ask = asked(planner.on_answer(ask.number, NO_PLAN, START, EMPTY, 0, 1.0))
    assert planner.on_answer(ask.number, NO_PLAN, START, EMPTY, 0, 1.0) == []
    assert planner.tick(START, EMPTY, 9, 1000.0) == [] and planner.calls == 3


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(("trouble", "answer", "late", "none", "tick")), st.floats(0, 9)), max_size=25)
)
def test_whatever_happens_the_epoch_grows_and_one_request_is_open(events: list[tuple[str, float]]) -> None:
    planner, ask = started(timeout=12.0)
    now, epoch, numbers = 0.0, 0, [ask.number]
    for frame, (event, wait) in enumerate(events):
        now += wait
        if event == "trouble":
            effects = planner.on_trouble(START, "stale", "", (), EMPTY, frame, now)
        elif event == "tick":
            effects = planner.tick(START, EMPTY, frame, now)
        else:
            number = numbers[-1] if event != "late" else numbers[0] - 1
            answer = NO_PLAN if event == "none" else PlanAnswer(GOOD, "", 0.0)
            effects = planner.on_answer(number, answer, START, EMPTY, frame, now)
        assert len(effects) <= 1
        for effect in effects:
            if isinstance(effect, Follow):
                assert effect.epoch == epoch + 1 and planner.sound and not planner.thinking
                epoch = effect.epoch
            else:
                assert effect.number == numbers[-1] + 1 and planner.thinking and not planner.sound
                numbers.append(effect.number)


@pytest.mark.parametrize("options", [{"timeout": 0.0}, {"rest": -1.0}, {"attempts": 0}, {"calls": 0}])
def test_options_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        PlannerOptions(**options)  # type: ignore[arg-type]
