"""Represents sets of cells of a rectangle as bit masks, so that looking at all neighbours at once is a shift.

Cell (row y, column x) is bit `y * stride + x`. The stride is the width plus one, so that a shift to the left or right
moves into an empty column instead of the next row.
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
    """The cells of a set one by one, in reading order."""
    while cells:
        lowest = cells & -cells
        yield lowest
        cells ^= lowest
