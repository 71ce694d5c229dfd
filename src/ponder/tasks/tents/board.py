"""Represents sets of cells as bit masks, so that a shift gives the neighbours of all cells at once.

Cell (row y, column x) is bit `y * stride + x`. The stride is the width plus one, so that a shift to
the left or right moves into an empty column instead of the next row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache


class Board:
    """The masks of a `width` × `height` rectangle."""

    __slots__ = ("cells", "columns", "height", "rows", "stride", "width")

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.stride = width + 1
        first_row = (1 << width) - 1
        first_column = sum(1 << y * self.stride for y in range(height))
        self.rows = tuple(first_row << y * self.stride for y in range(height))
        self.columns = tuple(first_column << x for x in range(width))
        self.cells = sum(self.rows)

    def bit(self, row: int, column: int) -> int:
        return 1 << row * self.stride + column

    def beside(self, cells: int) -> int:
        """Return the cells that share an edge with one of `cells`."""
        horizontal = cells << 1 | cells >> 1
        vertical = cells << self.stride | cells >> self.stride
        return (horizontal | vertical) & self.cells

    def around(self, cells: int) -> int:
        """Return the cells that share an edge or a corner with one of `cells`."""
        flanks = cells << 1 | cells >> 1
        three = cells | flanks
        return (flanks | three << self.stride | three >> self.stride) & self.cells


@lru_cache(maxsize=64)
def board(width: int, height: int) -> Board:
    return Board(width, height)


def bits(cells: int) -> Iterator[int]:
    """Yield the cells of a set one by one, in reading order."""
    while cells:
        lowest = cells & -cells
        yield lowest
        cells ^= lowest
