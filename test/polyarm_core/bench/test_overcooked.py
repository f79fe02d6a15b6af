"""The benchmark in the kitchen: names of methods, trials that repeat, a log that is resumed, the page and the film."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_language_model import save_tiny_model

from polyarm_core.bench.overcooked.methods import MAX_CALLS, AskedModel, open_model_coordinator, parse_method
from polyarm_core.bench.overcooked.page import permutation_p, write_page
from polyarm_core.bench.overcooked.sweep import read_trials, run, seeds_of
from polyarm_core.bench.overcooked.trial import open_domain, run_trial, schedule_of
from polyarm_core.domains.overcooked.package import require_package
from polyarm_core.errors import InvalidValue, MissingExtra, UnknownName
from polyarm_core.llm.interface import ModelError


@pytest.mark.parametrize(
    ("text", "coordinator", "trigger", "interval", "repair", "policy"),
    [
        ("search+closed+repair", "search", "closed", 8, True, "detector"),
        ("search+bilinear/small_bce", "search", "bilinear", 8, False, "detector"),
        ("search+every4", "search", "every", 4, False, "interval"),
        ("sft/free+stall", "sft", "stall", 8, False, "stall"),
        ("base+never", "base", "never", 8, False, "never"),
        ("search+oracle", "search", "oracle", 8, False, "detector"),
    ],
)
def test_a_method_is_read_from_its_name(text, coordinator, trigger, interval, repair, policy) -> None:
    method = parse_method(text)
    assert (method.coordinator, method.trigger, method.interval, method.repair) == (
        coordinator,
        trigger,
        interval,
        repair,
    )
    assert method.replan_policy == policy
    assert method.uses_model == (coordinator != "search")


def test_calls_of_a_model_are_bounded_and_its_samples_named() -> None:
    assert parse_method("search+closed").max_calls is None
    assert parse_method("base+stall").max_calls == MAX_CALLS
    methods = [parse_method(text) for text in ("sft+closed", "sft*4+closed", "sft/free*12+stall+repair")]
    assert [(method.decoding, method.samples) for method in methods] == [
        ("constrained", 1), ("constrained", 4), ("free", 12),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["search*4+closed", "sft*1+stall", "sft*+stall", "sft*x+stall", "sft*4/free+stall", "*4+stall",
     "", "gredy", "search", "search+sometimes", "search+every0", "search+everyN", "search/free+never", "sft/hot+never",
     "search+stall/small_bce", "search+closed+repair+repair", "search+closed+mend"],
)  # fmt: skip
def test_a_method_that_does_not_exist_is_refused_with_the_alternatives(text: str) -> None:
    with pytest.raises(UnknownName, match=r"greedy_aware"):
        parse_method(text)


def test_a_setting_that_does_not_exist_is_refused_with_the_alternatives() -> None:
    with pytest.raises(UnknownName, match=r"dynamic, held_out, rateP, standard"):
        schedule_of("sometimes", 0)
    with pytest.raises(InvalidValue):
        schedule_of("rate2.0", 0)


def test_the_events_of_a_trial_depend_on_setting_and_seed_alone() -> None:
    assert schedule_of("dynamic", 3) == schedule_of("dynamic", 3) != schedule_of("dynamic", 4)
    assert [event.name for event in schedule_of("O4", 1).events] == ["O4"]
    assert {event.name for event in schedule_of("dynamic", 9).events} == {"O1", "O2", "O3"}
    assert not schedule_of("standard", 7).events


def test_methods_with_a_model_get_a_quarter_of_the_seeds() -> None:
    assert list(seeds_of("base+stall", range(200))) == list(range(50))
    assert list(seeds_of("search+stall", range(200))) == list(range(200))
    assert list(seeds_of("proagent", range(2))) == [0]


def _need_package() -> None:
    try:
        require_package()
    except MissingExtra as error:
        pytest.skip(str(error))


def _timeless(row: dict) -> dict:
    return {name: value for name, value in row.items() if not name.endswith("_s")}


def test_a_trial_is_the_same_twice_and_on_both_plants() -> None:
    own = run_trial("search+stall+repair", "cramped_room", "dynamic", 3, "own")
    again = run_trial("search+stall+repair", "cramped_room", "dynamic", 3, "own")
    assert _timeless(own.to_json()) == _timeless(again.to_json())
    assert len(own.events) == 3 or own.success
    _need_package()
    package = run_trial("search+stall+repair", "cramped_room", "dynamic", 3, "package")
    assert {**_timeless(package.to_json()), "plant": "own"} == _timeless(own.to_json())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_model_of_ones_own_plans_in_this_process_and_behind_a_server(tiny: Path, tmp_path: Path) -> None:
    from polyarm_core.llm.process import ServerProcess

    here = AskedModel(f"transformers:{tiny}", variant="compact")
    options = {"layouts": ["cramped_room"], "settings": ["standard"], "seeds": range(8), "plant": "own"}
    log = tmp_path / "trials.jsonl"
    figures = run(["model+never"], **options, model=here, jobs=2, log=log)
    assert figures["overcooked.cramped_room.standard.model_never.trials"] == 2
    first, second = read_trials(log)
    assert first.calls == first.outputs == 1 and first.tokens > 50
    assert (first.tokens, first.frames) == (second.tokens, second.frames)  # the same question, the same answer
    with ServerProcess(str(tiny)) as server:
        there = AskedModel("openai:", server.port_file.read_text().strip(), "compact")
        trial = run_trial("model+never", "cramped_room", "standard", 0, "own", there)
    assert trial.calls == trial.outputs == 1 and trial.tokens > 50
    with pytest.raises(InvalidValue, match="no text can be drawn"):
        open_model_coordinator(parse_method("model*4+stall"), open_domain("cramped_room", "own"), there)


def test_a_model_that_is_not_named_or_cannot_write_is_refused() -> None:
    with pytest.raises(InvalidValue, match="BACKEND:NAME"):
        run(["model+stall"], layouts=["Ring"], seeds=[0])
    with pytest.raises(InvalidValue, match="can write"):
        run_trial("model+stall", "cramped_room", "standard", 0, "own", AskedModel("heuristic"))
    with pytest.raises(UnknownName, match="transformers"):
        run_trial("proagent", "cramped_room", "standard", 0, "own", AskedModel("vllm:Qwen"))
    with pytest.raises(UnknownName, match="compact"):
        AskedModel("openai:Qwen", variant="short")


def test_a_trial_in_which_the_model_is_silent_does_not_count(tiny: Path) -> None:
    from polyarm_core.llm.process import ServerProcess

    with pytest.raises(ModelError):  # nobody there
        run(
            ["model+never"], layouts=["Ring"], seeds=[0], plant="own", model=AskedModel("openai:", "http://127.0.0.1:9")
        )
    with ServerProcess(str(tiny)) as server:
        there = AskedModel("openai:", server.port_file.read_text().strip(), "compact", timeout=20.0)
        run_trial("model+never", "cramped_room", "standard", 0, "own", there)
    for method in ("model+stall", "proagent"):  # the layout is another, so nothing of it was asked before
        with pytest.raises(ModelError, match="does not count"):
            run_trial(method, "forced_coordination", "standard", 0, "own", there)


def test_planning_beats_the_greedy_pair_that_meets_head_on() -> None:
    greedy = run_trial("greedy", "Coordination", "standard", 0, "own")
    planned = run_trial("search+never", "Coordination", "standard", 0, "own")
    assert not greedy.success and greedy.frames == 100
    assert planned.success and planned.frames <= 44 and planned.calls == 1


def test_a_sweep_is_resumed_from_its_log_and_a_torn_line_is_played_again(tmp_path: Path) -> None:
    log = tmp_path / "trials.jsonl"
    options = {"layouts": ["Symmetric"], "settings": ["standard"], "seeds": [0, 1, 2], "plant": "own", "log": log}
    first = run(["greedy_aware"], **options)
    lines = log.read_text().splitlines()
    assert len(lines) == 3
    marked = json.loads(lines[0])
    marked["frames"] = 77  # what the log holds is believed, not played again
    log.write_text("\n".join([json.dumps(marked), lines[1], lines[2][:40]]))
    second = run(["greedy_aware"], **options)
    name = "overcooked.asymmetric_advantages.standard.greedy_aware"
    assert first[f"{name}.tar"] == second[f"{name}.tar"] == 1.0
    assert first[f"{name}.trials"] == second[f"{name}.trials"] == 3
    assert second[f"{name}.frames"] == pytest.approx((first[f"{name}.frames"] * 2 + 77) / 3)
    assert len(read_trials(log)) == 3


def test_the_page_has_every_method_the_paper_and_a_plot(tmp_path: Path) -> None:
    methods = ["greedy", "greedy_aware", "search+stall"]
    trials = [run_trial(method, "Symmetric", "dynamic", seed, "own") for method in methods for seed in range(3)]
    write_page(trials, tmp_path)
    text = (tmp_path / "overcooked.md").read_text()
    for method in methods:
        assert f"| `{method}` | 3 |" in text
    assert "paper: SyncPlan full" in text and "Physical minimum without events: 31 frames" in text
    assert (tmp_path / "overcooked.png").stat().st_size > 5000


def test_the_page_puts_single_events_and_rates_side_by_side(tmp_path: Path) -> None:
    settings = ("O1", "O3", "rate0.02", "rate0.1")
    trials = [run_trial("greedy_aware", "Symmetric", setting, seed, "own") for setting in settings for seed in (0, 1)]
    write_page(trials, tmp_path)
    text = (tmp_path / "overcooked.md").read_text()
    assert "| layout | method | trials | O1 | O3 |" in text and "| rate0.02 | rate0.1 |" in text
    rate = [row for row in trials if row.setting == "rate0.1"]
    mean = sum(row.frames if row.success else 100 for row in rate) / 2
    cells = f"{50 * sum(row.success for row in rate)} % ({mean:.1f}) |"
    assert text.count("`greedy_aware` | 2 |") == 2 and cells in text
    assert (tmp_path / "overcooked_rates.png").stat().st_size > 5000


def test_a_film_has_a_picture_for_every_frame(tmp_path: Path) -> None:
    _need_package()
    image = pytest.importorskip("PIL.Image")
    from polyarm_core.bench.overcooked.film import write_film

    frames = write_film("search+stall", "cramped_room", "O1", 0, tmp_path / "film.gif")
    assert 30 < frames <= 101
    with image.open(tmp_path / "film.gif") as film:
        assert film.n_frames > 10  # equal neighbours become one
    with pytest.raises(InvalidValue):
        write_film("greedy", "cramped_room", "O1", 0, tmp_path / "film.gif")
    with pytest.raises(InvalidValue):
        write_film("search+stall", "cramped_room", "O1", 0, tmp_path / "film.mp4")


@given(st.lists(st.integers(-60, 60), min_size=2, max_size=40).filter(any))
def test_the_permutation_test_does_not_care_who_is_first(differences: list[int]) -> None:
    p = permutation_p(differences, resamples=199)
    assert 0.0 < p <= 1.0
    assert p == pytest.approx(permutation_p([-d for d in differences], resamples=199), abs=0.1)


def test_the_permutation_test_sees_a_difference_and_sees_none() -> None:
    assert permutation_p([5] * 30) < 0.001
    assert permutation_p([1, -1] * 15) > 0.5
