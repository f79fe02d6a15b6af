import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_domain import ToyDomain

from polyarm_core.chains.executor import ChainExecutor
from polyarm_core.chains.terms import Plan
from polyarm_core.coordinator.episode import run_episode
from polyarm_core.coordinator.search import SearchCoordinator
from polyarm_core.domains.overcooked.disturbances import NAMES, STANDARD, EventSchedule
from polyarm_core.domains.overcooked.domain import OvercookedDomain
from polyarm_core.errors import InvalidValue
from polyarm_core.psd.data import CLEAN, CONSTRUCTED, generate
from polyarm_core.psd.detector import LearnedDetector, NeverStale, OracleDetector
from polyarm_core.psd.network import initial_weights, probability
from polyarm_core.psd.oracle import RollOutOracle
from polyarm_core.psd.tensors import FrameHistory, Inputs, Shape, incidence


@pytest.fixture(scope="module")
def kitchen():
    return OvercookedDomain("coordination_ring")


@pytest.fixture(scope="module")
def coordinator(kitchen):
    return SearchCoordinator(kitchen)


def frames(domain, plan, events):
    """Remaining plan, executor and state of each frame of an episode that is disturbed at some frames."""
    executor, state = ChainExecutor(domain, plan), domain.start(0)
    for frame in range(domain.horizon):
        for name, draw in events.get(frame, ()):
            state = domain.disturb(state, name, draw) or state
        yield executor.remaining(), executor, state, frame
        controls = domain.control(state, executor.intents(state))
        after = domain.step(state, controls)
        executor.advance(state, controls, after)
        state = after


def test_oracle_detector_agrees_with_the_oracle_that_has_the_executor():
    domain = ToyDomain()
    plan = next(domain.candidates(domain.start(0)))
    detector, oracle = OracleDetector(domain), RollOutOracle(domain)
    detector.reset(plan)
    verdicts = []
    for remaining, executor, state, frame in frames(domain, plan, {3: [("T1", 0.0)]}):
        verdicts.append(detector.observe(state, remaining) > detector.threshold)
        assert verdicts[-1] == oracle.stale(executor, state, domain.horizon - frame)
    assert verdicts.index(True) == 3


@pytest.mark.parametrize("name", ["bilinear", "closed"])
def test_learned_detector_is_network_of_the_tensors(name):
    domain = ToyDomain()
    plan = next(domain.candidates(domain.start(0)))
    weights = initial_weights(name, "small", Shape(2, 8, 6, 5), 0)
    detector, history = LearnedDetector(domain, weights, 0.5), FrameHistory(domain, weights.shape)
    detector.reset(plan)
    for remaining, _, state, frame in frames(domain, plan, {3: [("T3", 0.0)]}):
        if frame == 4:
            detector.reset(plan)
            history.restart()
        x, d = history.push(state)
        c = incidence(domain, state, remaining, "refers" if name == "bilinear" else "depends", weights.shape)
        assert detector.observe(state, remaining) == probability(weights, Inputs(c, x, d))


def test_load_takes_the_threshold_from_the_figures(tmp_path):
    weights = initial_weights("closed", "small", Shape(), 0)
    weights.save(tmp_path / "closed_small_bce.npz")
    (tmp_path / "closed_small_bce.json").write_text(json.dumps({"threshold": 0.7}))
    assert LearnedDetector.load(ToyDomain(), tmp_path / "closed_small_bce.npz").threshold == 0.7
    with pytest.raises(InvalidValue, match="agents of toy:3"):
        LearnedDetector.load(ToyDomain(agents=3), tmp_path / "closed_small_bce.npz")
    with pytest.raises(OSError):
        LearnedDetector.load(ToyDomain(), tmp_path / "missing.npz")


class Scripted(LearnedDetector):
    """The hysteresis of a learned detector over given probabilities."""

    def __init__(self, values):
        super().__init__(ToyDomain(), initial_weights("closed", "small", Shape(2, 8, 6, 5), 0), 0.5)
        self.values = iter(values)

    def _probability(self, state, remaining, x, d):
        return next(self.values)

    def fires(self):
        return self.observe(ToyDomain().start(0), Plan(())) > self.threshold


@given(st.lists(st.floats(0.0, 1.0), max_size=30), st.booleans())
def test_after_an_alarm_that_led_to_a_plan_only_news_raise_another(values, plans_follow):
    detector, answered = Scripted(values), None  # lowest probability since the alarm that was answered with a plan
    for value in values:
        fired = detector.fires()
        assert fired == (value > (0.5 if answered is None else (1 + answered) / 2))
        if value <= 0.5:
            answered = None
        elif fired and plans_follow:
            detector.reset(Plan(()))
            answered = value
        elif answered is not None:
            answered = min(answered, value)


def test_a_plateau_asks_once_and_a_jump_from_it_again():
    detector, fired = Scripted([0.97, 0.52, 0.67, 0.67, 0.66, 0.95, 0.7, 0.4, 0.6]), []
    for frame in range(9):
        if detector.fires():
            fired.append(frame)
            detector.reset(Plan(()))
    assert fired == [0, 5, 8]


def test_a_glance_sees_what_is_not_as_expected_and_leaves_the_frames_alone():
    domain = ToyDomain()
    weights = initial_weights("closed", "small", Shape(2, 8, 6, 5), 0)
    plan = next(domain.candidates(domain.start(0)))
    glancing, plain = (LearnedDetector(domain, weights, 0.5) for _ in range(2))
    other = domain.disturb(domain.start(0), "T3", 0.0)
    for remaining, _, state, frame in frames(domain, plan, {}):
        assert glancing.observe(state, remaining) == plain.observe(state, remaining)
        fresh = LearnedDetector(domain, weights, 0.5)
        fresh.observe(state, remaining)
        assert glancing.glance(other, remaining, state) == fresh.observe(other, remaining)
        if frame > 6:
            break


def test_never_stale():
    detector = NeverStale()
    detector.reset(Plan(()))
    assert detector.observe(None, Plan(())) <= detector.threshold


def test_oracle_detector_saves_disturbed_episodes(kitchen, coordinator):
    """O2 breaks every plan at once; with the oracle the correction comes in the same frame."""
    schedule = EventSchedule.once_each(1, ("O2",)).events
    episode = run_episode(kitchen, coordinator, OracleDetector(kitchen), schedule)
    assert episode.success
    assert [frame for frame, _ in episode.events] == list(episode.stale)
    blind = run_episode(kitchen, coordinator, NeverStale(), schedule, policy="never")
    assert not blind.success


def test_samples_of_the_kitchen(kitchen, coordinator):
    """Both labels, constructed changes and features in range, on a few real episodes."""
    samples = generate([kitchen], [lambda _: coordinator], events=NAMES, inject=STANDARD, episodes=8, seed=0)
    happened = (samples.event >= 0) & (samples.delay == 0)
    displaced = happened & (samples.event == NAMES.index("O3"))
    emptied = happened & (samples.event == NAMES.index("O2"))
    assert samples.stale[emptied].all() and not samples.stale[displaced].any()
    assert samples.unmarked[displaced].all()  # no step names an agent: the blind spot
    assert not samples.stale[samples.event == CLEAN].any()
    made = samples.where(samples.event == CONSTRUCTED)
    assert made.stale.any() and not made.stale.all()
    assert abs(made.difference).max(axis=(1, 2)).all()
    assert samples.state.min() == 0 and samples.state.max() == 1 and abs(samples.difference).max() <= 0.5
    assert np.array_equal(samples.refers & samples.depends, samples.refers)  # what is named is depended on


@pytest.mark.slow
def test_a_frame_takes_less_than_a_millisecond(kitchen, coordinator):
    """Median with the largest network, tensors included, on one core; slow because only an idle machine can tell."""
    weights = initial_weights("closed", "wide", Shape(), 0)
    detector = LearnedDetector(kitchen, weights, 0.5)
    plan = run_episode(kitchen, coordinator).plans[0].plan
    times = []
    for remaining, _, state, _ in frames(kitchen, plan, {}):
        begin = time.perf_counter()
        detector.observe(state, remaining)
        times.append(time.perf_counter() - begin)
    assert np.median(times) < 1e-3
