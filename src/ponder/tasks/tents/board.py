"""A rectangle of cells held as one integer: a set of cells is a bit mask, and looking at a neighbour is a shift.

Cell (row y, column x) is bit `y * stride + x`. The stride is one more than the width, so that a shift to the
left or right falls into an empty column instead of the next row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache


class Board:
    """The masks of a `width` × `height` rectangle."""

    __slots__ = ("cells", "columns", "height", "rows", "stride", "width")

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height, self.stride = width, height, width + 1
        self.rows = tuple(((1 << width) - 1) << y * self.stride for y in range(height))
        column = sum(1 << y * self.stride for y in range(height))
        self.columns = tuple(column << x for x in range(width))
        self.cells = sum(self.rows)

    def bit(self, row: int, column: int) -> int:
        return 1 << row * self.stride + column

    def beside(self, cells: int) -> int:
        """The cells that share an edge with one of `cells`."""
        return (cells << 1 | cells >> 1 | cells << self.stride | cells >> self.stride) & self.cells

    def around(self, cells: int) -> int:
        """The cells that share an edge or a corner with one of `cells`."""
        flanks = cells << 1 | cells >> 1
        three = cells | flanks
        return (flanks | three << self.stride | three >> self.stride) & self.cells


@lru_cache(maxsize=64)
def board(width: int, height: int) -> Board:
    return Board(width, height)


def bits(cells: int) -> Iterator[int]:
    """Each cell of a set by itself, in reading order."""
    while cells:
        lowest = cells & -cells
        yield lowest
        cells ^= lowest


def matching(board: Board, tents: int, trees: int) -> dict[int, int] | None:
    """Pair each tent with a tree of its own beside it (tent: tree), or None where that can't be done.

    Augmenting paths, breadth first: a chain of tents as long as the grid would exhaust a recursion.
    """
    tree_of: dict[int, int] = {}
    tent_of: dict[int, int] = {}
    for start in bits(tents):
        asked_by: dict[int, int] = {}  # tree: the tent that wants it
        queue = [start]
        for tent in queue:
            for tree in bits(board.beside(tent) & trees):
                if tree not in asked_by:
                    asked_by[tree] = tent
                    if tree in tent_of:
                        queue.append(tent_of[tree])
        spare = next((tree for tree in asked_by if tree not in tent_of), 0)
        if not spare:
            return None
        while spare:  # each tent on the path gives up its tree for the one it asked for
            tent = asked_by[spare]
            tent_of[spare] = tent
            spare, tree_of[tent] = tree_of.get(tent, 0), spare
    return tree_of
