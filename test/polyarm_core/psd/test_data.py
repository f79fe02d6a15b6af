import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psd_samples import EVENTS, SHAPE, FirstThatSucceeds, SlowDomain, toy_samples
from toy_domain import ToyDomain

from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.psd.data import (
    CLEAN,
    CONSTRUCTED,
    FIRST_EVENT,
    LAST_EVENT,
    NEGATIVES,
    NOISE_COLUMNS,
    NOISE_MARGIN,
    START_PLANS,
    Samples,
    draw_events,
    exchange,
    generate,
    join,
    noise,
    split_by_episode,
    start_plans,
)


@pytest.fixture(scope="module")
def samples():
    return toy_samples(0)


def test_same_seed_same_samples(samples):
    again, other = toy_samples(0), toy_samples(1)
    for name in Samples.__annotations__:
        assert np.array_equal(getattr(again, name), getattr(samples, name))
    assert len(other) != len(samples) or not np.array_equal(other.state, samples.state)


def test_the_two_labels(samples):
    event = samples.labels("event") == 1
    assert np.array_equal(event, (samples.event != CLEAN) & (samples.delay == 0))
    oracle = samples.labels("oracle") == 1
    assert not oracle[samples.event == CLEAN].any()  # no plan fails by itself
    assert oracle[event].any() and not oracle[event].all()  # the labels disagree where an event leaves the plan intact
    assert set(np.unique(samples.event)) == {CONSTRUCTED, CLEAN, 0, 1, 2}
    with pytest.raises(UnknownName, match="event, oracle"):
        samples.labels("guess")


def test_clean_frames_are_subsampled_within_their_episode(samples):
    for episode in np.unique(samples.episode):
        rows = samples.episode == episode
        events = ((samples.event >= 0) & (samples.delay == 0))[rows].sum()
        assert events >= 1
        assert (samples.event[rows] == CLEAN).sum() <= NEGATIVES * events


def test_frames_after_an_event_follow_it_and_are_not_negatives(samples):
    assert (samples.delay > 0).any()
    for row in np.flatnonzero(samples.delay > 0):
        assert samples.delay[row - 1] == samples.delay[row] - 1
        assert samples.event[row - 1] == samples.event[row] >= 0
        assert samples.frame[row - 1] == samples.frame[row] - 1


def test_clean_frames_show_no_jump(samples):
    """In clean frames an agent is at most one cell (in three frames of this domain) from where it was."""
    clean = samples.where(samples.event == CLEAN)
    assert abs(clean.difference[:, :2, 0]).max() <= 1 / 6 + 1e-6
    jumps = samples.where((samples.event == EVENTS.index("T3")) & (samples.delay == 0))
    assert abs(jumps.difference[:, :2, 0]).max() > 2 / 6


def test_blind_spot_is_an_event_without_a_marked_entity(samples):
    doors = samples.where((samples.event == 0) & (samples.delay == 0))
    marked = doors.refers[:, :, 2:4].any(axis=(1, 2, 3))  # rows of door and button, which falls with it
    assert np.array_equal(doors.unmarked == 1, ~marked)


def test_only_injected_events_happen():
    only = toy_samples(0, inject=("T2",))
    assert set(np.unique(only.event)) - {CONSTRUCTED} == {CLEAN, EVENTS.index("T2")}


def test_samples_survive_storage(samples, tmp_path):
    samples.save(tmp_path / "samples.npz")
    loaded = Samples.load(tmp_path / "samples.npz")
    for name in Samples.__annotations__:
        assert np.array_equal(getattr(loaded, name), getattr(samples, name))


def test_split_keeps_episodes_whole(samples):
    parts = split_by_episode(samples, (0.7, 0.1, 0.2), seed=3)
    assert sum(map(len, parts)) == len(samples) == len(join(parts))
    episodes = [set(part.episode.tolist()) for part in parts]
    assert not episodes[0] & episodes[1] and not episodes[0] & episodes[2] and not episodes[1] & episodes[2]
    assert abs(len(episodes[2]) - 0.2 * len(np.unique(samples.episode))) <= 1


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_schedules(seed, count):
    names = [f"E{i}" for i in range(count)]
    events = draw_events(names, np.random.default_rng(seed))
    assert sorted(event.name for event in events) == names
    frames = [event.due for event in events]
    assert frames == sorted(set(frames)) and frames[0] >= FIRST_EVENT and frames[-1] <= LAST_EVENT
    assert all(0 <= event.draw < 1 for event in events)
    assert events == draw_events(names, np.random.default_rng(seed))


def test_coordinators_plan_the_episodes_in_turn():
    asked = {"first": [], "second": []}

    class First(FirstThatSucceeds):
        name = "first"

        def plan(self, request):
            asked[self.name].append(request.reason)
            return super().plan(request)

    class Second(First):
        name = "second"

        def variants(self, request, limit):
            asked[self.name].append(limit)
            return start_plans(self.domain, request.state, 1)

    made = generate([SlowDomain()], [First, Second], events=EVENTS, inject=EVENTS, episodes=24, seed=1, shape=SHAPE)
    assert set(np.unique(made.episode) % 2) == {0, 1}
    assert asked["first"][0] == "start" and asked["second"][:2] == ["start", START_PLANS]
    assert "stale" in asked["first"] and "stale" in asked["second"]
    alone = generate([SlowDomain()], [First], events=EVENTS, inject=EVENTS, episodes=24, seed=1, shape=SHAPE)
    assert np.array_equal(made.where(made.episode == 0).state, alone.where(alone.episode == 0).state)


def test_no_event_no_samples():
    with pytest.raises(InvalidValue, match="events that apply"):
        toy_samples(0, inject=(), episodes=1)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(0, 6))
def test_an_exchange_changes_one_entry_of_one_tuple_and_keeps_agents_apart(seed, first, second):
    state = ToyDomain().start(0)
    donor = state._replace(positions=(first, second), crate=6, door=2)
    after = exchange(state, donor, np.random.default_rng(seed))
    if after is None:
        assert {first, second} & {0, 2} or first == second
    else:
        assert after._replace(positions=state.positions) == state  # single numbers are no entries
        assert sum(a != b for a, b in zip(after.positions, state.positions, strict=True)) == 1
        assert after.positions in ((first, 2), (0, second))
        assert after.positions[0] != after.positions[1]


def test_noise_touches_a_few_features_of_one_entity_that_matters(samples):
    clean = samples.where(samples.event == CLEAN)
    made = noise(clean, 60, np.random.default_rng(0))
    assert (made.event == CONSTRUCTED).all() and (made.labels("event") == 1).all()
    assert (made.state >= 0).all() and (made.state <= 1).all() and (abs(made.difference) <= 1).all()
    for row in range(len(made)):
        twin = np.flatnonzero((clean.episode == made.episode[row]) & (clean.frame == made.frame[row]))[0]
        change = made.state[row] - clean.state[twin]
        entity = np.flatnonzero(change.any(axis=1))
        assert len(entity) == 1 and made.depends[row, :, entity[0]].any()
        assert 1 <= np.count_nonzero(change) <= NOISE_COLUMNS and abs(change).max() >= NOISE_MARGIN
        past = made.state[row] - made.difference[row]
        assert past == pytest.approx(clean.state[twin] - clean.difference[twin], abs=1e-6)
    with pytest.raises(InvalidValue, match="at least one frame"):
        noise(clean.where(slice(0)), 1, np.random.default_rng(0))
