"""Represents a Tents puzzle: reads and writes Simon Tatham's game ids, checks grids against the rules, and solves.

The rules are those of Tatham's `tents.c`: as many tents as trees; no two tents touch, not even at a corner; each row
and column has its given number of tents; and tents and trees can be paired so that each pair shares an edge. A tent may
share edges with other trees too. One difference: ids that contain a half-solved grid (the marks `!` and `-`) are
refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

from ponder.tasks.tents.board import Board, bits, board
from ponder.tasks.tents.deduction import Contradiction, Difficulty, State, deduce, deduced

EMPTY, TREE, TENT, GRASS = range(4)
Grid: TypeAlias = list[list[int]]
LARGEST = 10_000  # cells: making such a puzzle takes 9 s, grading an answer to it 30 ms

_ID = re.compile(r"([0-9]{1,4})(?:x([0-9]{1,4}))?(?:d[et])?:([^,]*)((?:,[0-9]{1,4})*)")


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A grid with trees (a bit mask, see `board`) and the number of tents in each column and row."""

    width: int
    height: int
    trees: int
    columns: tuple[int, ...]
    rows: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise ValueError("the grid has no cells")
        if (len(self.columns), len(self.rows)) != (self.width, self.height):
            raise ValueError(f"expected {self.width + self.height} sums, got {len(self.columns) + len(self.rows)}")
        if self.trees < 0 or self.trees & ~self.board.cells:
            raise ValueError("a tree stands outside the grid")
        for sums, most in (self.columns, self.height), (self.rows, self.width):
            if not all(0 <= tents <= most for tents in sums):
                raise ValueError(f"a sum is not between 0 and {most}")

    @property
    def board(self) -> Board:
        return board(self.width, self.height)

    @classmethod
    def from_id(cls, text: str) -> Puzzle:
        """Read a game id such as `4x4:_cia,1,1,0,1,1,0,1,1`."""
        match = _ID.fullmatch(text.strip())
        if not match:
            raise ValueError("not of the form `WIDTHxHEIGHT:TREES,SUMS`")
        width, height = int(match[1]), int(match[2] or match[1])
        if width * height > LARGEST:
            raise ValueError(f"a grid has at most {LARGEST:,} cells, not {width * height:,}")
        sums = tuple(int(tents) for tents in match[4].split(",")[1:])
        trees = sum(1 << place // width * (width + 1) + place % width for place in _read(match[3], width * height))
        if len(sums) != width + height:
            raise ValueError(f"expected {width + height} sums, got {len(sums)}")
        return cls(width, height, trees, sums[:width], sums[width:])

    @property
    def id(self) -> str:
        gaps, gap = [], 0
        for row in self.grid():
            for cell in row:
                if cell == TREE:
                    gaps.append(gap)
                gap = 0 if cell == TREE else gap + 1
        trees = "".join(_letters(gap) for gap in [*gaps, gap])
        return f"{self.width}x{self.height}:{trees}," + ",".join(map(str, self.columns + self.rows))

    def __str__(self) -> str:
        """The grid with its sums: T is a tree."""
        return self.text(self.grid())

    def text(self, grid: Grid) -> str:
        """A grid as text, with the sums of the rows at the right and those of the columns below: T tree, A tent."""
        wide = max(len(str(tents)) for tents in self.columns)
        rows = [" ".join(f"{'.TA.'[cell]:>{wide}}" for cell in row) for row in grid]
        below = " ".join(f"{tents:>{wide}}" for tents in self.columns)
        return "\n".join([*(f"{row}  {tents}" for row, tents in zip(rows, self.rows, strict=True)), "", below])

    def grid(self) -> Grid:
        """The unsolved puzzle: 0 empty, 1 tree."""
        return self._drawn(0, EMPTY)

    def solve(self, difficulty: Difficulty = "tricky") -> Grid | None:
        """The solution by deduction alone; None if the deductions get stuck or contradict each other."""
        tents = deduced(self._state(), difficulty)
        return None if tents is None else self._drawn(tents, GRASS)

    def solutions(self, limit: int = 2) -> list[Grid]:
        """Up to `limit` different solutions, by deduction and search."""
        return [self._drawn(tents, GRASS) for tents in _solutions(self._state(), limit)]

    def check(self, grid: Any) -> str | None:
        """None if `grid` is a solution, else the first rule that it breaks."""
        if not _shaped(grid, self.height) or not all(_shaped(row, self.width) for row in grid):
            return "wrong shape"
        if any(type(cell) is not int or not EMPTY <= cell <= GRASS for row in grid for cell in row):
            return "unknown cell"
        trees, tents = (self._cells(grid, code) for code in (TREE, TENT))
        if trees != self.trees:
            return "trees altered"
        if tents & self.board.around(tents):
            return "tents touch"
        if any((tents & row).bit_count() != sum_ for row, sum_ in zip(self.board.rows, self.rows, strict=True)):
            return "row sum"
        if any(
            (tents & column).bit_count() != sum_ for column, sum_ in zip(self.board.columns, self.columns, strict=True)
        ):
            return "column sum"
        if tents.bit_count() != trees.bit_count() or matching(self.board, tents, trees) is None:
            return "tents and trees unmatched"
        return None

    def _state(self) -> State:
        return State(self.board, self.trees, self.columns, self.rows)

    def _drawn(self, tents: int, other: int) -> Grid:
        grid = [[other] * self.width for _ in range(self.height)]
        for cells, code in (self.trees, TREE), (tents, TENT):
            for bit in bits(cells):
                row, column = divmod(bit.bit_length() - 1, self.board.stride)
                grid[row][column] = code
        return grid

    def _cells(self, grid: Grid, code: int) -> int:
        return sum(self.board.bit(y, x) for y, row in enumerate(grid) for x, cell in enumerate(row) if cell == code)


def matching(board: Board, tents: int, trees: int) -> dict[int, int] | None:
    """Pair each tent with its own tree beside it, as {tent: tree}; None if that is impossible.

    By augmenting paths, breadth first: a chain of tents as long as the grid would exceed the recursion limit.
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
        while spare:  # each tent on the path exchanges its tree for the one it asked for
            tent = asked_by[spare]
            tent_of[spare] = tent
            spare, tree_of[tent] = tree_of.get(tent, 0), spare
    return tree_of


def _shaped(line: Any, length: int) -> bool:
    return isinstance(line, list | tuple) and len(line) == length


def _letters(gap: int) -> str:
    """A tree after `gap` empty cells; `z` stands for 25 empty cells without a tree."""
    full, rest = divmod(gap - 1, 25) if gap else (0, -1)
    return "z" * full + ("_abcdefghijklmnopqrstuvwxy"[rest + 1])


def _read(letters: str, cells: int) -> list[int]:
    """The trees' positions in reading order; the letters end with an extra tree just after the last cell."""
    places, place = [-1], 0
    for letter in letters:
        if letter in "!-":
            raise ValueError("ids with tents or grass already marked are not supported")
        if letter != "_" and not "a" <= letter <= "z":
            raise ValueError(f"unknown letter `{letter}` among the trees")
        place += 0 if letter == "_" else min(ord(letter) - 96, 25)
        if letter != "z":
            places.append(place)
            place += 1
        if place > cells + 1:
            raise ValueError("the trees run past the end of the grid")
    if places[-1] != cells:
        raise ValueError("the trees stop before the end of the grid")
    return places[1:-1]


def _solutions(start: State, limit: int) -> list[int]:
    """Return the tents of up to `limit` different solutions, by deduction and backtracking.

    Exact for puzzles with several solutions or none. Tents is NP-complete (De Biasi), so the worst case is exponential.
    On random camps, with and without two row sums exchanged, it took up to 32 ms at 20×20 and up to 3 s at 30×30.
    """
    solved: list[int] = []
    if not sum(start.rows) == sum(start.columns) == start.lone_trees.bit_count():
        return solved
    stack = [start]
    while stack and len(solved) < limit:
        state = stack.pop()
        try:
            deduce(state, "tricky")
        except Contradiction:
            continue
        if not state.blank:
            # Tents and trees not yet paired form rings, and a ring can always be paired: each of the n trees has at
            # most two tents beside it (three would touch), each of the n tents at least two trees, so all have two.
            solved.append(state.tents)
            continue
        cell = state.blank & -state.blank
        without = state.copy()
        without.rule_out(cell)
        stack.append(without)
        state.pitch(cell)
        stack.append(state)
    return solved
