"""Path finding for two cooks that yields: nobody blocks, nobody collides, nobody wanders.

Both cooks are steered by one table per pair of goals: the exact cost-to-go over their joint places, found by value
iteration on first use. One frame costs, for each cook,

    100  on the way to something that can be done now (firm),
      3  on the way to something that cannot be done yet, e.g. to a pot that still cooks (tentative),
      0  at the goal, and without one;
      1  more for every step taken,

so the sum is minimal when all arrive as early as possible, one without a goal steps aside exactly when that helps, and
nobody moves without need. A cook with a firm goal uses it in the frame after its arrival and is then without a goal, so
two cooks who need the same place take turns. Entering one cell and swapping cells are never chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyarm_core.domains.overcooked.kitchen import STAY
from polyarm_core.domains.overcooked.layouts import FLOOR, Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Goal = int  # 2 * cell (firm) or 2 * cell + 1 (tentative): a floor cell to be on, or a tile to be in front of
NO_GOAL: Goal = -1

FIRM_COST, TENTATIVE_COST, STEP_COST = 100, 3, 1
FORBIDDEN = 1 << 28
SWEEPS = 80  # of value iteration at most: more frames than any way through a classic kitchen has
ORDER = (STAY, 0, 1, 2, 3)  # where costs are equal the first one wins

Moves = tuple[tuple[int, int], ...]


def firm(cell: int) -> Goal:
    """Goal: reach the floor cell, or face the tile, and use it at once."""
    return 2 * cell


def tentative(cell: int) -> Goal:
    """Goal: reach the floor cell, or face the tile, without standing in anybody's way there."""
    return 2 * cell + 1


class _Walker:
    """What one cook can do about one goal: a small automaton, as arrays over its places.

    Places are: on the way in each floor cell, then at the goal (one for each cell and direction), then, for a firm
    goal, after its use in each floor cell.

    Attributes:
        next: place after each action of ``ORDER``, shape (places, 5).
        cell: index of the floor cell of each place.
        cost: of one frame in each place.
    """

    def __init__(self, layout: Layout, goal: Goal) -> None:
        import numpy as np

        floor = layout.floor
        index = {cell: i for i, cell in enumerate(floor)}
        n = len(floor)
        target, is_firm = goal >> 1, goal >= 0 and goal % 2 == 0
        at_goal = _at_goal(layout, goal)
        self.place_at_goal = {pose: n + i for i, pose in enumerate(at_goal)}
        on_floor = goal >= 0 and layout.terrain[target] == FLOOR
        used = n + len(at_goal)

        def arrive(cell: int, direction: int) -> int:
            if on_floor and cell == target:
                return used + index[cell] if is_firm else self.place_at_goal[cell, direction]
            return self.place_at_goal.get((cell, direction), index[cell])

        def free(origin: int, offset: int) -> list[int]:
            return [offset + index[origin if a == STAY else layout.move[origin][a]] for a in ORDER]

        rows: list[list[int]] = []
        for origin in floor:
            rows.append([index[origin] if a == STAY else arrive(layout.move[origin][a], a) for a in ORDER])
        for place, (origin, _) in enumerate(at_goal, start=n):
            if is_firm:  # it is used in this frame, whatever the table would like
                rows.append([used + index[origin]] * len(ORDER))
            else:
                rows.append([place if a == STAY else arrive(layout.move[origin][a], a) for a in ORDER])
        if is_firm:
            rows += [free(origin, used) for origin in floor]
        self.next: NDArray[np.int64] = np.array(rows)
        cells = [*range(n), *(index[cell] for cell, _ in at_goal), *(range(n) if is_firm else ())]
        self.cell: NDArray[np.int64] = np.array(cells)
        self.cost: NDArray[np.int64] = np.zeros(len(rows), dtype=np.int64)
        if goal >= 0:
            # Where the goal is out of reach nothing can be gained (and value iteration would never end).
            reach = [any(layout.distances[origin][cell] >= 0 for cell, _ in at_goal) for origin in floor]
            self.cost[:n] = np.array(reach) * (FIRM_COST if is_firm else TENTATIVE_COST)
        self._index = index

    def place(self, cell: int, facing: int) -> int:
        """Place of a cook that stands in a cell and looks in a direction."""
        return self.place_at_goal.get((cell, facing), self._index[cell])


def _at_goal(layout: Layout, goal: Goal) -> tuple[tuple[int, int], ...]:
    """(cell, direction) pairs in which a goal is reached."""
    if goal < 0:
        return ()
    target = goal >> 1
    if layout.terrain[target] == FLOOR:
        return tuple((target, direction) for direction in range(4))
    return tuple(
        (cell, direction)
        for cell in layout.access[target]
        for direction in range(4)
        if layout.front[cell][direction] == target
    )


class _Table:
    """Best moves of both cooks for one pair of goals."""

    def __init__(self, layout: Layout, goals: tuple[Goal, Goal]) -> None:
        import numpy as np

        first, second = (_Walker(layout, goal) for goal in goals)
        self._first, self._second = first, second
        self._width = len(second.cost)
        # Everything below has the axes: place of the first, place of the second, action of the first, of the second.
        after = first.next[:, None, :, None] * self._width + second.next[None, :, None, :]
        end_1, end_2 = first.cell[first.next][:, None, :, None], second.cell[second.next][None, :, None, :]
        here_1, here_2 = first.cell[:, None, None, None], second.cell[None, :, None, None]
        collides = (end_1 == end_2) | ((end_1 == here_2) & (end_2 == here_1))
        step = np.array([0 if action == STAY else STEP_COST for action in ORDER])
        fixed = np.where(collides, FORBIDDEN, step[:, None] + step[None, :]).reshape(-1, len(ORDER) ** 2)
        after = after.reshape(-1, len(ORDER) ** 2)
        frame = (first.cost[:, None] + second.cost[None, :]).ravel()
        value = np.zeros(len(frame), dtype=np.int64)
        total = fixed
        for _ in range(SWEEPS):
            total = fixed + value[after]
            improved = frame + total.min(axis=1)
            np.minimum(improved, FORBIDDEN, out=improved)
            if np.array_equal(improved, value):
                break
            value = improved
        pairs = [(a, b) for a in ORDER for b in ORDER]
        self._moves: list[tuple[int, int]] = [pairs[choice] for choice in total.argmin(axis=1).tolist()]
        # Places as dictionaries of (cell, direction): one look-up each in every frame.
        self._places_1, self._places_2 = (
            {(cell, d): walker.place(cell, d) for cell in layout.floor for d in range(4)} for walker in (first, second)
        )

    def moves(self, positions: tuple[int, ...], facings: tuple[int, ...]) -> tuple[int, int]:
        """Move of each cook, a direction or STAY."""
        one = self._places_1[positions[0], facings[0]]
        return self._moves[one * self._width + self._places_2[positions[1], facings[1]]]


class Navigation:
    """Ways through one layout. Tables are made on first use and kept.

    Args:
        layout: the map.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._tables: dict[tuple[Goal, Goal], _Table] = {}
        self._frames: dict[int, dict[tuple[int, int], dict[tuple[int, int], int]]] = {}

    def moves(self, positions: tuple[int, ...], facings: tuple[int, ...], goals: tuple[Goal, Goal]) -> tuple[int, int]:
        """Move of both cooks in one frame: a direction, or STAY; at a goal it is STAY.

        Args:
            positions: cell of each, two different ones.
            facings: direction in which each looks.
            goals: of each; NO_GOAL also for what cannot be reached.
        """
        table = self._tables.get(goals)
        if table is None:
            table = self._tables[goals] = _Table(self.layout, goals)
        return table.moves(positions, facings)

    def reachable(self, cell: int, target: int) -> bool:
        """Whether a cook in this cell can walk to a floor cell, or stand beside a tile."""
        distances = self.layout.distances[cell]
        if self.layout.terrain[target] == FLOOR:
            return distances[target] >= 0
        return any(distances[beside] >= 0 for beside in self.layout.access[target])

    def arrivals(self, cell: int, facing: int, target: int) -> dict[tuple[int, int], int]:
        """Frames that a lone cook needs to each (cell, direction) from which it can use a target; nothing out of reach.

        Args:
            cell, facing: where it stands and looks.
            target: a tile, or a floor cell to be on (then the direction is the one of arrival).
        """
        table = self._frames.get(target)
        if table is None:
            table = self._frames[target] = self._all_arrivals(target)
        return table[cell, facing]

    def _all_arrivals(self, target: int) -> dict[tuple[int, int], dict[tuple[int, int], int]]:
        """``arrivals`` from everywhere: breadth first search backwards over (cell, direction)."""
        layout = self.layout
        before: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for cell in layout.floor:
            for facing in range(4):
                for move in range(4):
                    before.setdefault((layout.move[cell][move], move), []).append((cell, facing))
        result: dict[tuple[int, int], dict[tuple[int, int], int]] = {
            (cell, facing): {} for cell in layout.floor for facing in range(4)
        }
        for goal in _at_goal(layout, firm(target)):
            frames = {goal: 0}
            queue = [goal]
            for pose in queue:
                for origin in before.get(pose, ()):
                    if origin not in frames:
                        frames[origin] = frames[pose] + 1
                        queue.append(origin)
            for origin, count in frames.items():
                result[origin][goal] = count
        return result
