"""Scenario files: what is accepted, and that each fault is named with the key, the value and the alternatives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from polyarm_core.errors import InvalidValue, UnknownName
from polyarm_core.scenario import ScenarioError, config_directory, load_scenario, parse_scenario, scenario_names


@pytest.fixture()
def data() -> dict[str, Any]:
    return yaml.safe_load((config_directory() / "scenarios" / "sort.yaml").read_text())


def test_every_packaged_scenario_loads() -> None:
    assert "sort" in scenario_names()
    for name in scenario_names():
        assert load_scenario(name).name == name


def test_shared_placements_are_those_in_two_reach_bands() -> None:
    assert load_scenario("sort").shared_placements == {"panel3", "panel5"}


def test_what_is_assisted_is_said_in_words(data: dict[str, Any]) -> None:
    assert load_scenario("sort").assistance == "grasp: friction"
    assert load_scenario("sweep").assistance == "grasp: friction, tools fixed to the hand: alice (dustpan), bob (broom)"
    assert parse_scenario({**data, "grasp": "assisted"}, "test").assistance == "grasp: a weld after contact"


def test_unknown_scenario_lists_the_valid_names() -> None:
    with pytest.raises(UnknownName, match=r"unknown scenario 'srot'; valid: .*sort"):
        load_scenario("srot")
    with pytest.raises(InvalidValue, match=r"nowhere\.yaml"):
        load_scenario("nowhere.yaml")


def _set(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(data)
    *parents, last = path.split(".")
    node = changed
    for key in parents:
        node = node[key]
    node[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("arms.alice.reach", ["panel1", "panel9"], r"arms.alice.reach: unknown placement 'panel9'; valid: .*panel7"),
        ("arms.bob.model", "gpt", r"arms.bob.model: unknown model 'gpt'; valid: smollm2"),
        ("entities.blue_square.goal", "pad3", r"entities.blue_square.goal: unknown placement 'pad3'"),
        ("entities.blue_square.mass", -1.0, r"entities.blue_square.mass: .*greater than 0.*-1.0"),
        ("entities.blue_square.mass", float("nan"), r"entities.blue_square.mass: .*finite"),
        ("models.smollm2.backend", "llama", r"models.smollm2.backend: .*transformers.*openai.*heuristic.*'llama'"),
        ("placements.pad2.order", 1, r"placements: every order must differ"),
        ("zones.around_panel3.min", [9.0, 9.0], r"must be below max"),
        ("start", {"at": {"blue_square": "panel1"}}, r"start.at: no placement for pink_polygon, yellow_trapezoid"),
        ("start", {"draw": "reachable", "at": {}}, r"give either"),
        ("grasp", "glue", r"grasp: .*friction.*assisted"),
        ("slots.limit", 0, r"slots.limit"),
        ("colour", "red", r"colour: Extra inputs are not permitted"),
    ],
)
def test_faults_are_named(data: dict[str, Any], path: str, value: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        parse_scenario(_set(data, path, value))


def test_not_yaml(tmp_path: Any) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("arms: [alice")
    with pytest.raises(ScenarioError, match="not YAML"):
        load_scenario(path)


def test_every_fault_is_listed_at_once(data: dict[str, Any]) -> None:
    broken = _set(_set(data, "grasp", "glue"), "slots.limit", 0)
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(broken)
    assert "grasp" in str(caught.value) and "slots.limit" in str(caught.value)


def test_a_file_that_extends_another_says_only_what_differs(tmp_path: Any) -> None:
    (tmp_path / "first.yaml").write_text(
        "extends: sort\n"
        "name: first\n"
        "entities: {blue_square: {goal: null}, pink_polygon: {mass: 0.1}}\n"
        "zones: {around_panel5: null}\n"
    )
    (tmp_path / "second.yaml").write_text("extends: first.yaml\nname: second\n")
    sort, first, second = (
        load_scenario("sort"),
        load_scenario(tmp_path / "first.yaml"),
        load_scenario(tmp_path / "second.yaml"),
    )
    assert first.arms == sort.arms and first.entities["yellow_trapezoid"] == sort.entities["yellow_trapezoid"]
    assert first.entities["blue_square"].goal is None
    assert first.entities["blue_square"].shape == sort.entities["blue_square"].shape
    assert first.entities["pink_polygon"].mass == 0.1 and list(first.zones) == ["around_panel3"]
    assert second == first.model_copy(update={"name": "second"})


def test_files_that_extend_each_other_are_refused(tmp_path: Any) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ScenarioError, match="extends"):
        load_scenario(tmp_path / "a.yaml")
    (tmp_path / "c.yaml").write_text("extends: nowhere\n")
    with pytest.raises(UnknownName, match="nowhere"):
        load_scenario(tmp_path / "c.yaml")


def test_fixtures_are_checked(data: dict[str, Any]) -> None:
    box = {"kind": "box", "xyz": [0.0, 0.3, 0.2], "size": [0.1, 0.1, 0.1]}
    assert parse_scenario({**data, "fixtures": {"wall": box}}).fixtures["wall"].kind == "box"
    with pytest.raises(ScenarioError, match="taken"):
        parse_scenario({**data, "fixtures": {"pad2": box}})
    with pytest.raises(ScenarioError, match="size"):
        parse_scenario({**data, "fixtures": {"wall": {**box, "size": [0.1, 0.0, 0.1]}}})
    with pytest.raises(ScenarioError, match="kind"):
        parse_scenario({**data, "fixtures": {"wall": {**box, "kind": "sphere"}}})


def test_a_shared_placement_may_be_no_relay(data: dict[str, Any]) -> None:
    scenario = parse_scenario(_set(data, "placements.panel3.relay", False))
    assert scenario.shared_placements == {"panel5"}
