"""Event-driven data: one question and answer per update of the chains, the same for the same seed."""

from __future__ import annotations

import json
from itertools import islice, pairwise

import pytest

from polyarm_core.chains.executor import ChainExecutor, roll_out
from polyarm_core.chains.parser import parse_plan
from polyarm_core.chains.validation import validate
from polyarm_core.coordinator.interface import PlanRequest
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.training.sft_data import (
    LAYOUTS,
    collect,
    decode_state,
    encode_state,
    open_domain,
    read_samples,
    stream,
    write_samples,
)
from polyarm_core.training.teacher import SLACK, Teacher

DOMAIN = open_domain("overcooked:asymmetric_advantages")


def test_answers_are_valid_in_their_states_and_reach_the_target():
    samples = collect(DOMAIN, Teacher(DOMAIN), 7)
    assert samples[0].reason == "start" and samples[0].frame == 0 and samples[0].previous == ""
    assert len(samples) > 1
    for sample in samples:
        request = sample.request(DOMAIN)
        plan = parse_plan(sample.answer, DOMAIN.agents)
        assert not validate(plan, DOMAIN, request.state)
        assert roll_out(ChainExecutor(DOMAIN, plan, frame=request.frame), request.state, DOMAIN.horizon).success


def test_footprints_add_up_to_the_actions_of_an_undisturbed_episode():
    (sample,) = collect(DOMAIN, Teacher(DOMAIN), 1, events=(), errors=0.0, wander=0.0)
    plan = parse_plan(sample.answer, DOMAIN.agents)
    planned = {agent: sum("Wait" not in str(step) for step in chain) for agent, chain in plan.items()}
    assert sample.footprint == planned


def test_footprints_count_what_was_done_in_each_segment():
    samples = collect(DOMAIN, Teacher(DOMAIN), 5, errors=0.2, wander=0.0)
    assert len(samples) > 3
    for sample, following in pairwise(samples):
        left = sum("Wait" not in str(step) for chain in parse_plan(following.previous).values() for step in chain)
        made = sum("Wait" not in str(step) for chain in parse_plan(sample.answer).values() for step in chain)
        assert sum(sample.footprint.values()) == made - left


def test_a_learner_drives_and_the_teacher_answers():
    class Idle:
        name = "idle"

        def plan(self, request):
            return SearchCoordinator(DOMAIN).plan(request) if request.frame > 20 else answer_nothing(request)

    def answer_nothing(request):
        from polyarm_core.coordinator.interface import PlanAnswer

        return PlanAnswer(None, "", 0.0, error="no idea")

    samples = collect(DOMAIN, Teacher(DOMAIN), 3, learner=Idle(), events=())
    assert len(samples) > 3  # asked again while it had no idea
    assert all(sample.answer for sample in samples)
    assert sum(samples[0].footprint.values()) == 0


def test_the_teacher_is_brief_and_nearly_as_fast():
    for layout in LAYOUTS:
        domain = open_domain(f"overcooked:{layout}")
        request = PlanRequest(domain.start(0))

        def frames(plan, domain=domain, request=request):
            return roll_out(ChainExecutor(domain, plan), request.state, domain.horizon).frames

        best, brief = SearchCoordinator(domain).plan(request), Teacher(domain).plan(request)
        assert best.plan is not None and brief.plan is not None
        assert frames(brief.plan) <= frames(best.plan) + SLACK
        assert len(brief.text) <= len(best.text)


def test_the_teachers_variants_differ_and_succeed():
    request = PlanRequest(DOMAIN.start(0))
    plans = Teacher(DOMAIN).variants(request, 5)
    assert 2 <= len(plans) <= 5 and len(set(plans)) == len(plans)
    for plan in plans:
        assert roll_out(ChainExecutor(DOMAIN, plan), request.state, DOMAIN.horizon).success


def test_episodes_of_a_learner_side_by_side_come_in_the_order_of_their_seeds():
    def samples(jobs):
        return list(islice(stream([DOMAIN], 60, 5, SearchCoordinator, jobs, max_calls=3), 12))

    assert samples(1) == samples(4)


def test_states_survive_json():
    state = DOMAIN.start(0)._replace(held=(1, 0), blocked=(3, 4))
    assert decode_state(DOMAIN, json.loads(json.dumps(encode_state(state)))) == state
    with pytest.raises(InvalidValue):
        encode_state((1, object()))


def test_a_file_can_be_continued_after_a_cut(tmp_path):
    def samples():
        return stream([DOMAIN], 40)

    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert write_samples(whole, samples(), 8) == 8
    cut.write_text("".join(whole.read_text().splitlines(keepends=True)[:3]) + '{"domain": "overco')
    assert write_samples(cut, samples(), 8) == 5
    assert cut.read_text() == whole.read_text()
    assert len(read_samples(cut)) == 8


def test_a_repeated_question_is_kept_a_few_times_only():
    starts = [sample for sample in islice(stream([DOMAIN], 40, repeats=2, rate=0.1), 20) if sample.reason == "start"]
    assert len(starts) == 2


def test_bad_files_and_names_are_told(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"domain": "overcooked"}\n')
    with pytest.raises(InvalidValue, match=r"bad.jsonl:1"):
        read_samples(path)
    with pytest.raises(UnknownName, match="counter_circuit"):
        open_domain("chess:8x8")
