"""Cell files: what they change in a scenario, and what is said about wrong ones."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from polyarm_core.cell import CellError, cell_names, in_world, load_cell, parse_cell
from polyarm_core.errors import InvalidValue, PolyarmError, UnknownName
from polyarm_core.scenario import Base, config_directory, load_scenario

DEMO = config_directory() / "cells" / "sort_demo.yaml"
DATA: dict[str, Any] = yaml.safe_load(DEMO.read_text())


def changed(path: str, value: Any) -> dict[str, Any]:
    """The demo's content with one key set (``None`` deletes it)."""
    data = copy.deepcopy(DATA)
    *parents, last = path.split(".")
    target = data
    for key in parents:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return data


def test_the_demo_replaces_what_was_measured_and_nothing_else() -> None:
    cell, measured = load_cell("sort_demo")
    scenario = load_scenario(cell.scenario)
    assert "sort_demo" in cell_names()
    assert measured.arms["alice"].base == cell.arms["alice"].base != scenario.arms["alice"].base
    assert measured.arms["bob"] == scenario.arms["bob"]
    # bob's base frame is turned by 90 degrees: his x is the scenario's y.
    assert measured.placements["pad4"].xyz == pytest.approx((-0.002, 0.502, 0.19))
    assert measured.placements["panel1"].xyz == (-1.12, 0.502, 0.16)
    assert measured.placements["panel7"] == scenario.placements["panel7"]
    assert (measured.entities, measured.zones, measured.start) == (scenario.entities, scenario.zones, scenario.start)


def test_a_cell_file_is_accepted_wherever_a_scenario_file_is() -> None:
    assert load_scenario(DEMO) == load_cell("sort_demo")[1]


def test_a_cell_may_name_a_scenario_file_beside_it(tmp_path: Path) -> None:
    source = config_directory() / "scenarios" / "sort.yaml"
    (tmp_path / "mine.yaml").write_text(source.read_text().replace("name: sort", "name: mine"))
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(changed("scenario", "mine.yaml")))
    assert load_cell(tmp_path / "cell.yaml")[1].name == "mine"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("arms.alice.joints", None, ["arms.alice.joints", "Field required"]),
        ("arms.alice.joint_names", ["a"], ["arms.alice.joint_names", "Extra inputs are not permitted"]),
        ("arms.alice.gripper.kind", "magnet", ["arms.alice.gripper", "'parallel'", "'suction'"]),
        ("arms.alice.gripper.state", None, ["arms.alice.gripper.parallel.state", "Field required"]),
        ("arms.alice.gripper.closed", 0.09, ["arms.alice.gripper", "closed (0.09 m) must be less than open (0.085 m)"]),
        ("arms.alice.namespace", "ali ce", ["arms.alice.namespace", "got 'ali ce'"]),
        ("arms.bob.velocity_scaling", 1.5, ["arms.bob.velocity_scaling", "less than or equal to 1"]),
        ("placements.pad2", {"xyz": [0, 0, 0], "taught": {"bob": [0, 0, 0]}}, ["placements.pad2", "give either"]),
        ("deadlines.perception", 0.0, ["deadlines.perception", "greater than 0"]),
    ],
)
def test_a_wrong_file_is_explained_by_key_and_value(path: str, value: Any, words: list[str]) -> None:
    with pytest.raises(CellError) as error:
        parse_cell(changed(path, value), DEMO)
    assert str(error.value).startswith(f"{DEMO} is not a valid cell:")
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "error", "words"),
    [
        ("arms.dave", DATA["arms"]["bob"], UnknownName, "unknown arm 'dave'; valid: alice, bob, chad"),
        ("arms.chad", None, CellError, "arms without drivers: chad"),
        ("placements.pad9", {"xyz": [0, 0, 0]}, UnknownName, "unknown placement 'pad9'; valid: pad2"),
        ("placements.pad2", {"taught": {"dave": [0, 0, 0]}}, UnknownName, "unknown arm 'dave'"),
        ("arms.chad.reach", ["panel5", "pad9"], PolyarmError, "arms.chad.reach: unknown placement 'pad9'"),
        ("scenario", "srot", UnknownName, "unknown scenario 'srot'; valid: .*sort"),
        ("cell", None, CellError, "is not a cell file: it has no key 'cell'"),
    ],
)
def test_names_that_do_not_fit_the_scenario(path: str, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        parse_cell(changed(path, value), DEMO)


def test_arms_that_disagree_about_a_placement_show_that_a_base_is_wrong() -> None:
    data = changed("placements.panel5", {"taught": {"bob": [0.55, -0.4, 0.06], "chad": [0.53, -0.5, 0.06]}})
    with pytest.raises(
        CellError, match=r"placements.panel5: the arms disagree by more than agreement = 0.01 m \(bob: "
    ):
        parse_cell(data, DEMO)


def test_files_that_are_none() -> None:
    with pytest.raises(UnknownName, match="unknown cell 'lab'; valid: sort_demo"):
        load_cell("lab")
    with pytest.raises(InvalidValue, match="a packaged name or the path of an existing YAML file"):
        load_cell("no/such.yaml")


COORDINATE = st.floats(-3.0, 3.0)


@given(st.tuples(COORDINATE, COORDINATE, COORDINATE), st.floats(-180.0, 180.0), st.tuples(*[COORDINATE] * 6))
def test_a_base_moves_points_rigidly(base: Any, yaw: float, points: tuple[float, ...]) -> None:
    frame = Base(xyz=base, yaw_deg=yaw)
    a, b = points[:3], points[3:]
    p, q = in_world(frame, a), in_world(frame, b)
    assert np.linalg.norm(p - q) == pytest.approx(np.linalg.norm(np.subtract(a, b)), abs=1e-9)
    assert (p - q)[2] == pytest.approx(a[2] - b[2], abs=1e-9)
    assert in_world(frame, (0.0, 0.0, 0.0)) == pytest.approx(base)
