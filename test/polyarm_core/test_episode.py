"""What one episode comes to, and the series of episodes: laws over random event streams."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyarm_core import episode_log
from polyarm_core.bench.figures import Figures
from polyarm_core.episode import (
    ABORTED,
    SLOT_LIMIT,
    STUCK,
    SUCCESS,
    TIME_LIMIT,
    VETO_RULES,
    Answer,
    Detection,
    Disturbance,
    Done,
    EpisodeSeries,
    EpisodeSummary,
    EpisodeTally,
    Event,
    Finished,
    Limits,
    Opening,
    PlanCall,
    Plant,
    PlanTraffic,
    Report,
    Reset,
    Result,
    Verdict,
    add_figures,
)
from polyarm_core.errors import InvalidValue, PolyarmError

LIMITS = Limits(slots=5, stuck=3, time=100.0, settle=2.0, start=10.0, reset=4.0, resets=2)

times = st.floats(0, 50)
slots = st.integers(1, 6)
arms = st.sampled_from(["alice", "bob", "chad"])
answers = st.builds(
    Answer,
    arm=arms,
    decision=st.sampled_from(["admit", "yield", "wait"]),
    rule=st.sampled_from(["", "silent", *VETO_RULES]),
    acts=st.booleans(),
)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Opening, slot=slots, at=times),
    st.builds(
        Report,
        arm=arms,
        epoch=st.just(1),
        sequence=st.integers(1, 8),
        slot=slots,
        at=times,
        size=st.just(100),
        decided_by=st.just("model"),
        model_time=st.just(0.5),
        prompt_tokens=st.just(7),
    ),
    st.builds(Verdict, epoch=st.just(1), slot=slots, at=times, answers=st.just(())),
    st.builds(Result, epoch=st.just(1), sequence=st.integers(1, 8), failed=st.just(True)),
    st.builds(
        PlanCall,
        epoch=st.just(1),
        sequence=st.integers(1, 8),
        repair=st.booleans(),
        planned=st.just(True),
        tokens=st.just(5),
    ),
    st.builds(
        PlanTraffic,
        kind=st.sampled_from(["plan", "plan_state"]),
        epoch=st.just(1),
        sequence=st.integers(1, 8),
        size=st.just(40),
    ),
    st.builds(Detection, epoch=st.just(1), sequence=st.integers(1, 8)),
    st.builds(Disturbance, epoch=st.just(1), sequence=st.integers(1, 8)),
)


def tally(*given_events: Event, limits: Limits = LIMITS) -> EpisodeTally:
    result = EpisodeTally("sort", 1, 7, limits, 0.0)
    for event in given_events:
        result.add(event)
    return result


def plant(at: float = 1.0, **fields: Any) -> Plant:
    defaults: dict[str, Any] = {
        "epoch": 1, "seed": 7, "at": at, "sim_time": 10 * at, "success": False, "busy": False, "arm_contacts": 0
    }  # fmt: skip
    return Plant(**{**defaults, **fields})


def verdict(slot: int, *answered: Answer, at: float = 1.0, epoch: int = 1) -> Verdict:
    return Verdict(epoch, slot, at, answered)


ACTED = Answer("alice", "admit")
VETOED = Answer("bob", "yield", "exclusion")


@given(st.lists(events, max_size=30).flatmap(lambda items: st.tuples(st.just(items), st.permutations(items))))
def test_order_and_duplication_change_nothing(streams: tuple[list[Event], list[Event]]) -> None:
    first, second = streams
    # Two reports of one sender with one sequence number are one report; which content it has, the sender decides.
    unique = {(e.arm, e.sequence): e for e in first if isinstance(e, Report)}
    kept = [e for e in first if not isinstance(e, Report) or unique[e.arm, e.sequence] is e]
    shuffled = [e for e in second if not isinstance(e, Report) or unique[e.arm, e.sequence] is e]
    expected = tally(*kept).summary(60.0, SLOT_LIMIT)
    assert tally(*shuffled).summary(60.0, SLOT_LIMIT) == expected
    assert tally(*kept, *shuffled).summary(60.0, SLOT_LIMIT) == expected


@given(st.lists(events, max_size=30))
def test_counts_agree_with_the_events(stream: list[Event]) -> None:
    summary = tally(*stream).summary(60.0, SLOT_LIMIT)
    reports = {(e.arm, e.sequence) for e in stream if isinstance(e, Report)}
    assert summary.reports == len(reports) == summary.decided_by.get("model", 0)
    assert summary.uplink_bytes == 100 * summary.reports and summary.prompt_tokens == 7 * summary.reports
    assert summary.slots == len({e.slot for e in stream if isinstance(e, Verdict)})
    assert summary.failed_actions == len({e.sequence for e in stream if isinstance(e, Result)})
    calls = {e for e in stream if isinstance(e, PlanCall)}
    assert summary.plan_calls == sum(not e.repair for e in calls)
    assert summary.plan_repairs == sum(e.repair for e in calls)
    assert summary.plan_tokens == 5 * len(calls)
    assert summary.plan_bytes == 40 * len({e for e in stream if isinstance(e, PlanTraffic)})
    assert summary.detections == len({e for e in stream if isinstance(e, Detection)})
    assert summary.disturbances == len({e for e in stream if isinstance(e, Disturbance)})
    assert summary.model_calls == summary.reports + summary.plan_calls
    assert all(value >= 0 for value in (*summary.decision_times, *summary.verdict_times))
    assert summary.decision_p50 <= summary.decision_p99 and summary.verdict_p50 <= summary.verdict_p99


@given(st.lists(answers, max_size=20))
def test_every_answer_is_counted_under_one_rule(given_answers: list[Answer]) -> None:
    summary = tally(verdict(1, *given_answers)).summary(1.0)
    for rule in VETO_RULES:
        assert getattr(summary, f"vetoes_{rule}") == sum(a.rule == rule for a in given_answers)
    assert summary.silent == sum(a.rule == "silent" for a in given_answers)
    assert summary.vetoes + summary.silent == sum(a.rule != "" for a in given_answers)
    assert summary.admitted == sum(a.decision == "admit" and a.acts for a in given_answers)


def test_a_plan_that_could_not_be_mended_is_no_repair() -> None:
    summary = tally(PlanCall(1, 1, True, False), PlanCall(1, 2, False, False, 7), PlanCall(2, 1, True, True)).summary(
        1.0
    )
    assert (summary.plan_calls, summary.plan_repairs, summary.plan_tokens) == (1, 1, 7)


def test_latency_runs_from_the_opening() -> None:
    summary = tally(
        Report("bob", 1, 1, 1, 1.5, 10),
        Opening(1, 1.0),
        verdict(1, ACTED, at=2.0),
        Opening(2, 3.0),
        verdict(2, ACTED, at=2.9),  # heard before its opening: never negative
        verdict(9, ACTED, at=4.0),  # its opening was not heard at all: no latency
    ).summary(5.0)
    assert summary.decision_times == (0.5,) and summary.verdict_times == (1.0, 0.0)


def test_success_counts_from_when_it_was_reached_and_can_be_lost() -> None:
    counted = tally(plant(1.0), plant(2.0, success=True), plant(3.0, success=True, arm_contacts=4))
    assert counted.stop_reason(3.0) == SUCCESS
    summary = counted.summary(9.0)
    assert summary.success and summary.reason == ""
    assert (summary.wall_time, summary.sim_time, summary.arm_contacts) == (2.0, 20.0, 4)
    counted.add(plant(4.0))
    assert counted.stop_reason(4.0) is None
    assert not counted.summary(9.0, SLOT_LIMIT).success


def test_an_episode_ends_at_each_of_its_limits() -> None:
    assert tally().stop_reason(99.9) is None
    assert tally().stop_reason(100.0) == TIME_LIMIT
    acting = [verdict(slot, ACTED) for slot in range(1, 6)]
    assert tally(*acting[:4]).stop_reason(1.0) is None
    assert tally(*acting).stop_reason(1.0) == SLOT_LIMIT
    assert tally(*acting[:4], acting[0], acting[1]).stop_reason(1.0) is None  # repeated verdicts are no new slots


def test_a_team_is_stuck_only_when_it_reports_rests_and_gets_nothing_admitted() -> None:
    vetoed = [verdict(slot, VETOED) for slot in (1, 2, 3)]
    staying = [verdict(slot, Answer("alice", "admit", acts=False)) for slot in (1, 2, 3)]
    silent = [verdict(slot, Answer("alice", "wait", "silent", False)) for slot in (1, 2, 3)]
    assert tally(*vetoed).stop_reason(1.0) == STUCK
    assert tally(*staying).stop_reason(1.0) == STUCK
    assert tally(*silent).stop_reason(1.0) is None
    without_model = [Report("alice", 1, slot, slot, 1.0, 10, decided_by="fallback") for slot in (1, 2, 3)]
    assert tally(*without_model, *staying).stop_reason(1.0) is None
    assert tally(plant(busy=True), *vetoed).stop_reason(1.0) is None
    assert tally(*vetoed[:2], verdict(3, ACTED), verdict(4, VETOED)).stop_reason(1.0) is None


def test_a_restarted_plant_voids_the_episode() -> None:
    counted = tally(plant(1.0), plant(2.0, epoch=2, success=True))
    assert counted.stop_reason(2.0) == ABORTED
    assert not counted.summary(2.0).success


@given(
    st.builds(
        EpisodeSummary,
        scenario=st.just("sort"),
        episode=st.integers(0, 9),
        seed=st.integers(0, 2**63 - 1),
        success=st.booleans(),
        decision_times=st.lists(times, max_size=4).map(tuple),
        decided_by=st.dictionaries(st.sampled_from(["model", "fallback"]), st.integers(1, 9)),
    )
)
def test_a_summary_survives_json(summary: EpisodeSummary) -> None:
    assert EpisodeSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary


def test_a_foreign_object_is_no_summary() -> None:
    with pytest.raises(InvalidValue, match="episode summary"):
        EpisodeSummary.from_json({"scenario": "sort", "speed": 3})
    with pytest.raises(InvalidValue, match="episode summary"):
        EpisodeSummary.from_json({"scenario": "sort"})


def test_the_log_is_followed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "out" / episode_log.FILE_NAME
    tail = episode_log.Tail(path)
    assert tail.poll() == [] == episode_log.read(path)
    first, second = (EpisodeSummary("sort", n, n, True) for n in (1, 2))
    episode_log.append(path, first)
    assert tail.poll() == [first] and tail.poll() == []
    line = json.dumps(second.to_json())
    with path.open("a") as file:
        file.write(line[:20])
        file.flush()
        assert tail.poll() == []  # half a line is not read
        file.write(line[20:] + "\n")
    assert tail.poll() == [second]
    assert episode_log.read(path) == [first, second]
    path.write_text("[]\n")
    with pytest.raises(InvalidValue, match="one JSON object per line"):
        episode_log.read(path)


# -- the series ------------------------------------------------------------------------------------------------------


def series(*seeds: int) -> EpisodeSeries:
    return EpisodeSeries("sort", seeds, LIMITS, 0.0)


def summaries(commands: list[Any]) -> list[EpisodeSummary]:
    return [command.summary for command in commands if isinstance(command, Finished)]


def test_seeds_run_one_after_another_to_the_end() -> None:
    run = series(3, 5)
    assert run.step(0.0, False) == []  # the graph is not complete yet
    (reset,) = run.step(1.0, True)
    assert reset == Reset(3, 1)
    assert run.step(1.1, True) == []
    run.reset_answered(1, True, 10, "", 1.2)
    run.event(10, plant(2.0, success=True, busy=True))
    run.event(9, verdict(1, ACTED))  # of another episode
    assert run.step(2.0, True) == []  # the arms still move
    run.event(10, plant(2.5, success=True))
    (summary,) = summaries(run.step(2.6, True))
    assert (summary.seed, summary.episode, summary.success, summary.slots) == (3, 10, True, 0)
    (reset,) = run.step(2.7, True)
    assert reset == Reset(5, 2)
    run.reset_answered(1, True, 11, "", 2.8)  # a late answer to the first: not ours
    assert run.tally is None
    run.reset_answered(2, True, 12, "", 2.9)
    assert run.step(200.0, True) == []
    run.event(12, verdict(1, ACTED, at=200.0))  # it was on its way when the time was up
    (summary,) = summaries(run.step(200.4, True))
    assert (summary.seed, summary.reason, summary.slots) == (5, TIME_LIMIT, 1)
    assert summary.wall_time == pytest.approx(200.0 - 2.9)
    assert run.step(200.5, True) == [Done()] and run.step(200.6, True) == []


def test_settling_is_bounded_and_a_success_within_it_counts() -> None:
    run = series(1)
    run.step(0.0, True)
    run.reset_answered(1, True, 1, "", 0.0)
    run.event(1, plant(0.1, busy=True))
    for slot in range(1, 6):
        run.event(1, verdict(slot, ACTED, at=0.2))
    assert run.step(0.3, True) == []
    run.event(1, plant(1.0, busy=True, success=True))
    assert run.step(1.1, True) == []
    (summary,) = summaries(run.step(2.4, True))  # the arm never came to rest
    assert summary.success and summary.wall_time == 1.0


def test_events_that_overtake_the_answer_to_the_reset_count() -> None:
    run = series(1)
    run.step(0.0, True)
    run.event(4, Opening(1, 0.5))
    run.event(4, verdict(1, ACTED, at=0.6))
    run.event(3, verdict(7, ACTED, at=0.6))  # the last of the episode before
    run.reset_answered(1, True, 4, "", 0.7)
    assert run.tally is not None
    assert run.tally.slots == 1 and run.tally.began == 0.5


def test_a_lost_answer_is_made_up_for_by_the_world() -> None:
    run = series(7)
    run.step(0.0, True)
    run.event(2, plant(1.0, seed=7))
    assert run.step(3.9, True) == [] and run.tally is None
    assert run.step(4.0, True) == []
    assert run.tally is not None and run.tally.episode == 2


def test_resets_are_retried_and_then_given_up() -> None:
    run = series(1, 2)
    assert run.step(0.0, True) == [Reset(1, 1)]
    run.reset_answered(1, False, 0, "busy", 0.1)
    assert run.step(0.2, True) == [Reset(1, 2)]
    assert run.step(4.1, True) == []
    (summary,) = summaries(run.step(4.2, True))
    assert (summary.seed, summary.reason, summary.text) == (1, ABORTED, "no answer to the reset within 4 s")
    assert run.step(4.3, True) == [Reset(2, 3)]  # the next seed gets its own attempts


def test_a_graph_that_never_completes_ends_the_run() -> None:
    run = EpisodeSeries("sort", [1], LIMITS, 0.0, "planned", "severe")
    assert run.step(9.9, False) == []
    (summary,) = summaries(run.step(10.0, False))
    assert (summary.control, summary.disturb) == ("planned", "severe")
    assert summary.reason == ABORTED and "not complete within 10 s" in summary.text
    assert run.step(10.1, False) == [Done()]


def test_a_restarted_plant_ends_the_episode_and_the_series_goes_on() -> None:
    run = series(1, 2)
    run.step(0.0, True)
    run.reset_answered(1, True, 6, "", 0.0)
    run.event(6, plant(0.1, busy=True))
    run.event(0, plant(0.2, epoch=2))  # a new plant has no episode yet
    assert run.step(0.3, True) == []
    (summary,) = summaries(run.step(0.7, True))
    assert summary.reason == ABORTED
    assert run.step(0.8, True) == [Reset(2, 2)]


def test_stopping_writes_down_what_runs() -> None:
    run = series(1, 2)
    assert run.abort(0.0) is None
    run.step(0.0, True)
    run.reset_answered(1, True, 1, "", 0.0)
    run.event(1, verdict(1, ACTED))
    summary = run.abort(3.0)
    assert summary is not None and (summary.reason, summary.slots, summary.wall_time) == (ABORTED, 1, 3.0)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 5), unique=True, max_size=4), st.data())
def test_whatever_happens_every_seed_gets_one_summary_in_order(seeds: list[int], data: st.DataObject) -> None:
    """A fuzzer plays plant, twin and clock: the series always comes to its end, within its deadlines."""
    run, now, finished, pending = series(*seeds), 0.0, [], 0
    bound = len(seeds) * (LIMITS.start + LIMITS.resets * LIMITS.reset + LIMITS.time + LIMITS.settle) + 60.0
    done = False
    while not done:
        now += data.draw(st.floats(0.5, 20.0))
        assert now < bound + 20.0 * (3 + 4 * len(seeds)), "the series hangs"
        for command in run.step(now, data.draw(st.booleans())):
            if isinstance(command, Reset):
                pending = command.request
            elif isinstance(command, Finished):
                finished.append(command.summary)
            else:
                done = True
        if data.draw(st.booleans()):
            request = pending - data.draw(st.integers(0, 1))
            run.reset_answered(request, data.draw(st.booleans()), data.draw(st.integers(0, 9)), "", now)
        for event in data.draw(st.lists(events, max_size=3)):
            run.event(data.draw(st.integers(0, 9)), event)
        if data.draw(st.booleans()):
            world = plant(now, success=data.draw(st.booleans()), busy=data.draw(st.booleans()))
            run.event(data.draw(st.integers(0, 9)), world)
    assert [summary.seed for summary in finished] == seeds


# -- figures of a run ------------------------------------------------------------------------------------------------


def test_figures_pool_the_slots_of_all_episodes() -> None:
    base = EpisodeSummary("sort", 1, 0, True, slots=4, reports=12, uplink_bytes=1200, sim_time=20.0, wall_time=5.0,
                          decision_times=(0.1, 0.2), verdict_times=(0.3,), decided_by={"model": 12})  # fmt: skip
    other = dataclasses.replace(base, seed=1, success=False, reason=ABORTED, vetoes_exclusion=2, decision_times=(0.9,),
                                arm_contacts=1, decided_by={"fallback": 3})  # fmt: skip
    figures = Figures("x", [0, 1])
    add_figures(figures, "sort", [base, other])
    assert figures["sort.episodes"] == 2 and figures["sort.success_rate"] == 0.5 and figures["sort.aborted"] == 1
    assert 0.09 < figures["sort.success_rate_low"] < 0.5 < figures["sort.success_rate_high"] < 0.91
    assert figures["sort.arm_contacts"] == 1 and figures["sort.vetoes.exclusion"] == 2
    assert figures["sort.decision.p50_s"] == pytest.approx(0.2)
    assert figures["sort.decided_by.model"] == 12 and figures["sort.decided_by.fallback"] == 3
    assert "sort.model.p50_s" not in figures  # no model was asked
    assert "sort.plan_calls" not in figures  # nobody planned
    planned = dataclasses.replace(base, control="planned", plan_calls=2, plan_bytes=900, detections=1)
    figures = Figures("x", [0, 1])
    add_figures(figures, "sort", [planned, other])
    assert figures["sort.plan_calls"] == 2 and figures["sort.plan_bytes"] == 900 and figures["sort.detections"] == 1
    assert figures["sort.model_calls"] == 12 + 2 and "sort.disturbances" not in figures
    with pytest.raises(PolyarmError, match="no episode"):
        add_figures(Figures("x", []), "sort", [])


def test_limits_are_checked() -> None:
    with pytest.raises(InvalidValue, match=r"limits\.settle"):
        Limits(settle=0)
