"""What every baseline is: a policy for the whole team of one kitchen."""

from __future__ import annotations

from typing import Protocol

from polyarm_core.domains.overcooked.kitchen import KitchenState


class Policy(Protocol):
    """A joint policy for both players of a kitchen.

    Same seed, same states, same controls: whatever is random comes from a generator that ``reset`` makes of the seed.

    Attributes:
        name: as in tables, e.g. ``greedy``.
    """

    name: str

    def reset(self, seed: int) -> None:
        """Begin an episode: forget everything of the last one."""
        ...

    def act(self, state: KitchenState) -> tuple[int, int]:
        """Controls of player 0 and player 1 for one frame.

        0 north, 1 south, 2 east, 3 west, 4 stay, 5 interact. To be called once per frame, in order.
        """
        ...
