from __future__ import annotations

import numpy as np
import pytest

from polyarm_core.domains.overcooked.batch import KitchenBatch
from polyarm_core.domains.overcooked.kitchen import COOK_TIME, Kitchen
from polyarm_core.domains.overcooked.layouts import Layout, load_layout
from polyarm_core.domains.overcooked.minimum import CLASSIC_MINIMA, TEAMS, Team, minimum
from polyarm_core.errors import InvalidValue


def replay(layout: Layout, cook_time: int, controls: tuple[tuple[int, int], ...]) -> list[int]:
    """Soups delivered after each frame."""
    kitchen = Kitchen(layout, cook_time)
    state, delivered = kitchen.start(), []
    for pair in controls:
        state = kitchen.step(state, pair)
        delivered.append(state.delivered)
    return delivered


# Frames of the table that was measured by other means: both players, without hand-over, one alone.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("coordination_ring", (40, 43, 53)),
        ("cramped_room", (34, 34, 41)),
        ("forced_coordination", (40, None, None)),
        pytest.param("asymmetric_advantages", (31, 31, 39), marks=pytest.mark.slow),
        pytest.param("counter_circuit", (41, 53, 73), marks=pytest.mark.slow),
    ],
)
def test_minima_of_the_classic_layouts(name: str, expected: tuple[int | None, ...]) -> None:
    layout = load_layout(name)
    found = [minimum(layout, team=team) for team in TEAMS]
    assert tuple(result and result.frames for result in found) == expected
    assert CLASSIC_MINIMA[layout.name] == expected[0]
    for result in found:
        if result is not None:
            delivered = replay(layout, COOK_TIME, result.controls)
            assert len(delivered) == result.frames and delivered == [0] * (result.frames - 1) + [1]


def plain_minimum(layout: Layout, cook_time: int) -> int | None:
    """Breadth-first search over all states of the kitchen, with nothing left out."""
    kitchen = Kitchen(layout, cook_time)
    layer, seen, frames = [kitchen.start()], {kitchen.start()}, 0
    controls = np.array([(one, two) for one in range(6) for two in range(6)]).T
    while layer:
        frames += 1
        batch = KitchenBatch.of(kitchen, layer).take(np.repeat(np.arange(len(layer)), 36))
        batch.step(np.tile(controls, len(layer)))
        if batch.delivered.any():
            return frames
        batch.frame[:] = 0
        rows = np.vstack([batch.positions, batch.facings, batch.held, batch.content])
        fresh = {batch.state(row) for row in np.unique(rows, axis=1, return_index=True)[1].tolist()} - seen
        seen |= fresh
        layer = list(fresh)
    return None


# Corridors of three cells, in which the two cannot pass each other; S instead of counters keeps the plain search small.
@pytest.mark.parametrize(
    ("rows", "cook_time"),
    [
        (("SSPSS", "O1 2D", "SSOSS"), 1),  # so short that the dish must be on its way before cooking starts
        (("SSPSS", "O1 2D", "SSOSS"), 5),
        (("SPSSS", "O1 2S", "SDSSS"), 2),
        (("SPXSS", "O1 2D", "SSSSS"), 2),  # the dish has to be handed over on the counter
        (("SPSSS", "O1 2D", "SSSSS"), 2),  # it cannot be handed over: the first must come and get it
        (("SPPSS", "O12XX", "XXXDX"), 1),  # two cells: nobody reaches the dishes
    ],
)
def test_nothing_is_lost_by_what_the_search_leaves_out(rows: tuple[str, ...], cook_time: int) -> None:
    layout = Layout.of("corridor", rows)
    found = minimum(layout, cook_time)
    assert (found and found.frames) == plain_minimum(layout, cook_time)
    if found is not None:
        assert replay(layout, cook_time, found.controls) == [0] * (found.frames - 1) + [1]


@pytest.mark.parametrize("cook_time", [1, 6])
def test_a_shorter_cook_time_never_costs_frames(cook_time: int) -> None:
    layout = load_layout("forced_coordination")
    shorter, longer = minimum(layout, cook_time), minimum(layout, cook_time + 1)
    assert shorter is not None and longer is not None
    assert shorter.frames <= longer.frames <= shorter.frames + 1
    assert replay(layout, cook_time, shorter.controls)[-1] == 1


def test_an_unknown_team_is_refused() -> None:
    team: Team = "trio"  # type: ignore[assignment]
    with pytest.raises(InvalidValue, match="joint, no_hand_over, solo"):
        minimum(load_layout("cramped_room"), team=team)
