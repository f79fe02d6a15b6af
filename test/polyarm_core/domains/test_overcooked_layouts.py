from __future__ import annotations

import pytest

from polyarm_core.domains.overcooked.layouts import ALIASES, LAYOUT_NAMES, Layout, load_layout
from polyarm_core.errors import InvalidValue, UnknownName

layouts = pytest.mark.parametrize("name", LAYOUT_NAMES)


def test_names_of_the_paper_lead_to_layouts() -> None:
    assert {alias: load_layout(alias).name for alias in ALIASES} == dict(ALIASES)
    assert load_layout("Ring") is load_layout("Ring")


def test_an_unknown_layout_is_refused_with_the_valid_names() -> None:
    with pytest.raises(UnknownName, match=r"kitchen_9.*Coordination.*cramped_room"):
        load_layout("kitchen_9")


@layouts
def test_every_cell_has_one_tile_and_stands_in_its_tuple(name: str) -> None:
    layout = load_layout(name)
    tuples = (
        layout.floor,
        layout.counters,
        layout.pots,
        layout.onion_dispensers,
        layout.dish_dispensers,
        layout.servings,
    )
    assert sorted(cell for cells in tuples for cell in cells) == list(range(layout.width * layout.height))
    assert all(list(cells) == sorted(cells) and cells for cells in tuples)
    assert all(layout.terrain[cell] == " " for cell in layout.starts)


@layouts
def test_neighbours_are_mutual(name: str) -> None:
    layout = load_layout(name)
    back = (1, 0, 3, 2)
    for cell in range(layout.width * layout.height):
        assert layout.cell(*layout.xy(cell)) == cell
        for direction, ahead in enumerate(layout.front[cell]):
            if ahead >= 0:
                assert layout.front[ahead][back[direction]] == cell
            moved = layout.move[cell][direction]
            assert moved in (cell, ahead) and (moved == ahead) == (ahead in layout.floor)


@layouts
def test_distances_are_those_of_single_steps(name: str) -> None:
    layout = load_layout(name)
    for a in layout.floor:
        for b in layout.floor:
            steps = layout.distances[a][b]
            assert steps == layout.distances[b][a]
            if a == b:
                assert steps == 0
            elif steps > 0:
                assert steps == 1 + min(
                    layout.distances[c][b] for c in layout.move[a] if layout.distances[c][b] >= 0 and c != a
                )
            else:
                assert b not in layout.region(a) and a not in layout.region(b)
    assert set(layout.region(layout.starts[0])) | set(layout.region(layout.starts[1])) == set(layout.floor)


def test_forced_coordination_has_two_regions_of_its_own() -> None:
    layout = load_layout("forced_coordination")
    left, right = layout.region(layout.starts[1]), layout.region(layout.starts[0])
    assert not set(left) & set(right) and len(left) == len(right) == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "equal length"),
        (("XXX", "X1"), "equal length"),
        (("XXXX", "X12X", "XT?X"), "T"),
        (("XXXX", "X1 X", "XXXX"), "exactly one"),
        (("XXXXX", "X121X", "XXXXX"), "exactly one"),
        (("XX X", "X12X", "XXXX"), "border"),
        (("XXX", "X12", "XXX"), "border"),
    ],
)
def test_a_broken_grid_is_refused(rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Layout.of("broken", rows)


def test_a_position_off_the_map_is_refused() -> None:
    with pytest.raises(InvalidValue, match="position"):
        load_layout("cramped_room").cell(5, 0)
