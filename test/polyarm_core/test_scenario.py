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
