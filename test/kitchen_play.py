"""Random play that gets somewhere: pots are filled, cooked and emptied, soups served, and nonsense done in between."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polyarm_core.domains.overcooked.kitchen import (
    DISH,
    FULL,
    IDLE,
    INTERACT,
    NOTHING,
    ONION,
    Kitchen,
    KitchenState,
)


def purposeful(kitchen: Kitchen, state: KitchenState, player: int) -> int | None:
    """The control that brings a lone player nearer to something useful; None = nothing useful is in reach."""
    layout, item = kitchen.layout, state.held[player]
    full = [cell for cell, (n, tick) in zip(layout.pots, state.pots, strict=True) if n == FULL and tick == IDLE]
    filling = [cell for cell, (n, tick) in zip(layout.pots, state.pots, strict=True) if n < FULL and tick == IDLE]
    busy = [cell for cell, (_, tick) in zip(layout.pots, state.pots, strict=True) if tick > IDLE]
    full_counters = [cell for cell, here in zip(layout.counters, state.counters, strict=True) if here]
    free_counters = [cell for cell, here in zip(layout.counters, state.counters, strict=True) if not here]
    if item == NOTHING:
        wishes = [full, layout.dish_dispensers if busy else (), layout.onion_dispensers, full_counters]
    elif item == ONION:
        wishes = [filling, free_counters]
    elif item == DISH:
        wishes = [busy, free_counters]
    else:
        wishes = [layout.servings, free_counters]
    steps = layout.distances[state.positions[player]]
    for tiles in wishes:
        ways = [(steps[cell], cell, tile) for tile in tiles for cell in layout.access[tile] if steps[cell] >= 0]
        if ways:
            _, cell, tile = min(ways)
            if cell != state.positions[player]:
                back = layout.distances[cell]
                here = state.positions[player]
                return min(range(4), key=lambda way: (back[layout.move[here][way]], way))
            facing = layout.front[cell].index(tile)
            return INTERACT if state.facings[player] == facing else facing
    return None


def play(
    kitchen: Kitchen, seed: int, frames: int, state: KitchenState | None = None, noise: float = 0.3
) -> Iterator[tuple[KitchenState, tuple[int, int], KitchenState]]:
    """Frames of one game, (before, controls, after); this share of the controls is drawn at random."""
    rng = np.random.default_rng(seed)
    state = kitchen.start() if state is None else state
    for _ in range(frames):
        controls = [int(rng.integers(6)), int(rng.integers(6))]
        for player in (0, 1):
            aim = purposeful(kitchen, state, player)
            if aim is not None and rng.random() > noise:
                controls[player] = aim
        after = kitchen.step(state, controls)
        yield state, (controls[0], controls[1]), after
        state = after
