"""The five classic kitchens as data of our own, and the names that the paper gives to three of them.

A cell is one integer, ``y * width + x``: x grows to the east, y to the south, (0, 0) is the north-west corner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from polyarm_core.errors import InvalidValue, UnknownName

FLOOR, COUNTER, ONIONS, DISHES, POT, SERVING = " ", "X", "O", "D", "P", "S"
TILES = (FLOOR, COUNTER, ONIONS, DISHES, POT, SERVING)

NORTH, SOUTH, EAST, WEST = 0, 1, 2, 3
DIRECTION_NAMES = ("north", "south", "east", "west")
STEPS = ((0, -1), (0, 1), (1, 0), (-1, 0))  # (dx, dy) of each direction

# Rows from north to south; 1 and 2 are the starting cells of the two players, on floor.
GRIDS: Mapping[str, tuple[str, ...]] = {
    "coordination_ring": ("XXXPX", "X 1 P", "D2X X", "O   X", "XOSXX"),
    "counter_circuit_o_1order": ("XXXPPXXX", "X  2   X", "D XXXX S", "X  1   X", "XXXOOXXX"),
    "asymmetric_advantages": ("XXXXXXXXX", "O XSXOX S", "X   P 1 X", "X2  P   X", "XXXDXDXXX"),
    "cramped_room": ("XXPXX", "O  2O", "X1  X", "XDXSX"),
    "forced_coordination": ("XXXPX", "O X1P", "O2X X", "D X X", "XXXSX"),
}
LAYOUT_NAMES = tuple(GRIDS)

# The paper's names as its numbers suggest them (the Greedy pair's fingerprint), and short names of our own.
ALIASES: Mapping[str, str] = {
    "Coordination": "coordination_ring",
    "Ring": "counter_circuit_o_1order",
    "Symmetric": "asymmetric_advantages",
    "counter_circuit": "counter_circuit_o_1order",
}


@dataclass(frozen=True)
class Layout:
    """A kitchen's map. Everything but the fields is derived from them, once.

    Attributes:
        name: of the layout, as the package has it.
        width, height: in cells.
        terrain: tile of every cell, row by row; one of ``TILES``.
        starts: cell in which each player starts.
    """

    name: str
    width: int
    height: int
    terrain: tuple[str, ...]
    starts: tuple[int, ...]

    @staticmethod
    def of(name: str, rows: Sequence[str]) -> Layout:
        """The layout of a grid: ``rows`` from north to south, with the digits 1 and 2 where the players start.

        Raises:
            InvalidValue: rows of unequal length, an unknown character, floor on the border, or not exactly one 1
                and one 2.
        """
        width, height = len(rows[0]) if rows else 0, len(rows)
        text = "".join(rows)
        if not text or any(len(row) != width for row in rows):
            raise InvalidValue("grid", list(rows), "rows of equal length")
        for character in text:
            if character not in "12" and character not in TILES:
                raise InvalidValue("grid", character, f"characters of {''.join(TILES)!r} and the digits 1 and 2")
        if text.count("1") != 1 or text.count("2") != 1:
            raise InvalidValue("grid", list(rows), "exactly one 1 and one 2, where the players start")
        border = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
        if any(character in "12 " for character in border):
            raise InvalidValue("grid", list(rows), "no floor on the border")
        terrain = tuple(FLOOR if character in "12" else character for character in text)
        return Layout(name, width, height, terrain, (text.index("1"), text.index("2")))

    # --- places ---

    def cell(self, x: int, y: int) -> int:
        """Cell at column x and row y.

        Raises:
            InvalidValue: outside the map.
        """
        if not (0 <= x < self.width and 0 <= y < self.height):
            raise InvalidValue("position", (x, y), f"0 <= x < {self.width} and 0 <= y < {self.height}")
        return y * self.width + x

    def xy(self, cell: int) -> tuple[int, int]:
        """Column and row of a cell."""
        return cell % self.width, cell // self.width

    def _cells(self, tile: str) -> tuple[int, ...]:
        return tuple(cell for cell, here in enumerate(self.terrain) if here == tile)

    @cached_property
    def floor(self) -> tuple[int, ...]:
        """Cells on which players stand, row by row; so with the other tuples of cells."""
        return self._cells(FLOOR)

    @cached_property
    def counters(self) -> tuple[int, ...]:
        """Cells of counters, whether in reach of the floor or not."""
        return self._cells(COUNTER)

    @cached_property
    def pots(self) -> tuple[int, ...]:
        """Cells of pots."""
        return self._cells(POT)

    @cached_property
    def onion_dispensers(self) -> tuple[int, ...]:
        """Cells where onions are taken."""
        return self._cells(ONIONS)

    @cached_property
    def dish_dispensers(self) -> tuple[int, ...]:
        """Cells where dishes are taken."""
        return self._cells(DISHES)

    @cached_property
    def servings(self) -> tuple[int, ...]:
        """Cells where soup is delivered."""
        return self._cells(SERVING)

    # --- neighbourhood ---

    @cached_property
    def front(self) -> tuple[tuple[int, int, int, int], ...]:
        """``front[cell][direction]``: the neighbouring cell; -1 outside the map."""

        def beside(cell: int, direction: int) -> int:
            x, y = self.xy(cell)
            x, y = x + STEPS[direction][0], y + STEPS[direction][1]
            return y * self.width + x if 0 <= x < self.width and 0 <= y < self.height else -1

        return tuple(
            (beside(cell, NORTH), beside(cell, SOUTH), beside(cell, EAST), beside(cell, WEST))
            for cell in range(self.width * self.height)
        )

    @cached_property
    def move(self) -> tuple[tuple[int, int, int, int], ...]:
        """``move[cell][direction]``: where a lone player ends; the same cell where there is no floor ahead."""

        def end(cell: int, direction: int) -> int:
            ahead = self.front[cell][direction]
            return ahead if ahead >= 0 and self.terrain[ahead] == FLOOR else cell

        return tuple(
            (end(cell, NORTH), end(cell, SOUTH), end(cell, EAST), end(cell, WEST))
            for cell in range(self.width * self.height)
        )

    @cached_property
    def access(self) -> tuple[tuple[int, ...], ...]:
        """``access[cell]``: floor cells beside a cell, north, south, east, west: where one stands to use the tile."""
        return tuple(
            tuple(beside for beside in around if beside >= 0 and self.terrain[beside] == FLOOR) for around in self.front
        )

    @cached_property
    def distances(self) -> tuple[tuple[int, ...], ...]:
        """``distances[a][b]``: steps of a lone player from floor cell a to floor cell b; -1 = there is no way."""
        table = []
        for origin in range(self.width * self.height):
            row = [-1] * (self.width * self.height)
            if self.terrain[origin] == FLOOR:
                row[origin] = 0
                queue = [origin]
                for cell in queue:
                    for beside in self.access[cell]:
                        if row[beside] < 0:
                            row[beside] = row[cell] + 1
                            queue.append(beside)
            table.append(tuple(row))
        return tuple(table)

    def region(self, cell: int) -> tuple[int, ...]:
        """Floor cells that can be walked to from a floor cell, itself included, row by row."""
        return tuple(other for other, steps in enumerate(self.distances[cell]) if steps >= 0)


@cache
def load_layout(name: str) -> Layout:
    """A classic layout, by its own name or by an alias.

    Raises:
        UnknownName: neither a layout nor an alias.
    """
    own_name = ALIASES.get(name, name)
    if own_name not in GRIDS:
        raise UnknownName("layout", name, [*GRIDS, *ALIASES])
    return Layout.of(own_name, GRIDS[own_name])
