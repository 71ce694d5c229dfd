"""Represents a Tents puzzle: reads and writes Simon Tatham's game ids, checks grids, and solves.

The rules are those of Tatham's `tents.c`: as many tents as trees; no two tents touch, not even at a
corner; each row and column has its given number of tents; and tents and trees can be paired so that
each pair shares an edge. A tent may share edges with other trees too. One difference: ids that
contain a half-solved grid (the marks `!` and `-`) are refused.
"""

from __future__ import annotations

import itertools
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
    """A grid with trees (a bit mask, see `board`) and the sums of tents in columns and rows."""

    width: int
    height: int
    trees: int
    columns: tuple[int, ...]
    rows: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1:
            raise ValueError("the grid has no cells")
        if (len(self.columns), len(self.rows)) != (self.width, self.height):
            raise ValueError(
                f"expected {self.width + self.height} sums, "
                f"got {len(self.columns) + len(self.rows)}"
            )
        if self.trees < 0 or self.trees & ~self.board.cells:
            raise ValueError("a tree stands outside the grid")
        if not all(0 <= tents <= self.height for tents in self.columns):
            raise ValueError(f"a sum is not between 0 and {self.height}")
        if not all(0 <= tents <= self.width for tents in self.rows):
            raise ValueError(f"a sum is not between 0 and {self.width}")

    @property
    def board(self) -> Board:
        return board(self.width, self.height)

    @classmethod
    def from_id(cls, text: str) -> Puzzle:
        """Read a game id such as `4x4:_cia,1,1,0,1,1,0,1,1`."""
        match = _ID.fullmatch(text.strip())
        if not match:
            raise ValueError("not of the form `WIDTHxHEIGHT:TREES,SUMS`")
        width = int(match[1])
        height = int(match[2] or match[1])
        if width * height > LARGEST:
            raise ValueError(f"a grid has at most {LARGEST:,} cells, not {width * height:,}")
        sums = tuple(int(tents) for tents in match[4].split(",")[1:])
        trees = 0
        for position in _tree_positions(match[3], width * height):
            row, column = divmod(position, width)
            trees |= 1 << row * (width + 1) + column
        if len(sums) != width + height:
            raise ValueError(f"expected {width + height} sums, got {len(sums)}")
        return cls(width, height, trees, sums[:width], sums[width:])

    @property
    def id(self) -> str:
        """Return the game id, as Simon Tatham's collection writes it."""
        letters = ""
        gap = 0  # empty cells since the last tree
        for row in self.grid():
            for cell in row:
                if cell == TREE:
                    letters += _letters(gap)
                    gap = 0
                else:
                    gap += 1
        letters += _letters(gap)
        sums = ",".join(map(str, self.columns + self.rows))
        return f"{self.width}x{self.height}:{letters},{sums}"

    def __str__(self) -> str:
        """Return the grid with its sums: T is a tree."""
        return self.text(self.grid())

    def text(self, grid: Grid) -> str:
        """Return a grid as text: T tree, A tent.

        The sums of the rows are at the right, those of the columns below.
        """
        width = max(len(str(tents)) for tents in self.columns)
        lines = []
        for row, tents in zip(grid, self.rows, strict=True):
            symbols = " ".join(f"{'.TA.'[cell]:>{width}}" for cell in row)
            lines.append(f"{symbols}  {tents}")
        lines.append("")
        lines.append(" ".join(f"{tents:>{width}}" for tents in self.columns))
        return "\n".join(lines)

    def grid(self) -> Grid:
        """Return the unsolved puzzle: 0 empty, 1 tree."""
        return self._grid_with(0, EMPTY)

    def solve(self, difficulty: Difficulty = "tricky") -> Grid | None:
        """Return the solution by deduction; None if that gets stuck or to a contradiction."""
        tents = deduced(self._state(), difficulty)
        if tents is None:
            return None
        return self._grid_with(tents, GRASS)

    def solutions(self, limit: int = 2) -> list[Grid]:
        """Return up to `limit` different solutions, by deduction and search."""
        return [self._grid_with(tents, GRASS) for tents in _solutions(self._state(), limit)]

    def any_solution(self) -> Grid | None:
        """Return a solution; None if there is none."""
        solution = self.solve()
        if solution:
            return solution
        return next(iter(self.solutions(limit=1)), None)

    def check(self, grid: Any) -> str | None:
        """Return None if `grid` is a solution, else the first rule that it breaks."""
        if not _shaped(grid, self.height) or not all(_shaped(row, self.width) for row in grid):
            return "wrong shape"
        for cell in itertools.chain.from_iterable(grid):
            if type(cell) is not int or not EMPTY <= cell <= GRASS:
                return "unknown cell"
        trees = self.cells(grid, TREE)
        tents = self.cells(grid, TENT)
        if trees != self.trees:
            return "trees altered"
        if tents & self.board.around(tents):
            return "tents touch"
        row_sums = tuple([(tents & row).bit_count() for row in self.board.rows])
        if row_sums != self.rows:
            return "row sum"
        column_sums = tuple([(tents & column).bit_count() for column in self.board.columns])
        if column_sums != self.columns:
            return "column sum"
        if tents.bit_count() != trees.bit_count() or matching(self.board, tents, trees) is None:
            return "tents and trees unmatched"
        return None

    def _state(self) -> State:
        return State(self.board, self.trees, self.columns, self.rows)

    def _grid_with(self, tents: int, background: int) -> Grid:
        """Return a grid with the trees and these tents; all other cells are `background`."""
        grid = [[background] * self.width for _ in range(self.height)]
        for cells, code in (self.trees, TREE), (tents, TENT):
            for bit in bits(cells):
                row, column = divmod(bit.bit_length() - 1, self.board.stride)
                grid[row][column] = code
        return grid

    def cells(self, grid: Grid, code: int) -> int:
        """Return the set of a grid's cells that have this code."""
        cells = 0
        for y, row in enumerate(grid):
            for x, cell in enumerate(row):
                if cell == code:
                    cells |= self.board.bit(y, x)
        return cells


def matching(board: Board, tents: int, trees: int) -> dict[int, int] | None:
    """Pair each tent with a tree beside it, as {tent: tree}; return None if that is impossible.

    By augmenting paths, breadth first: a chain of tents as long as the grid would exceed the
    recursion limit.
    """
    tree_of: dict[int, int] = {}
    tent_of: dict[int, int] = {}
    for start in bits(tents):
        reached_from: dict[int, int] = {}  # by tree: the tent that the path comes from
        queue = [start]
        for tent in queue:
            for tree in bits(board.beside(tent) & trees):
                if tree not in reached_from:
                    reached_from[tree] = tent
                    if tree in tent_of:
                        queue.append(tent_of[tree])
        unpaired = [tree for tree in reached_from if tree not in tent_of]
        if not unpaired:
            return None
        tree = unpaired[0]
        while tree:  # each tent on the path exchanges its tree for the next one
            tent = reached_from[tree]
            previous_tree = tree_of.get(tent, 0)
            tent_of[tree] = tent
            tree_of[tent] = tree
            tree = previous_tree
    return tree_of


def _shaped(line: Any, length: int) -> bool:
    return isinstance(line, list | tuple) and len(line) == length


def _letters(gap: int) -> str:
    """Return the letters of a tree after `gap` empty cells; `z` is 25 empty cells and no tree."""
    if not gap:
        return "_"
    full, remainder = divmod(gap - 1, 25)
    return "z" * full + "abcdefghijklmnopqrstuvwxy"[remainder]


def _tree_positions(letters: str, cells: int) -> list[int]:
    """Return the trees' positions in reading order.

    The letters end with an extra tree just after the last cell.
    """
    positions = [-1]
    position = 0
    for letter in letters:
        if letter in "!-":
            raise ValueError("ids with tents or grass already marked are not supported")
        if letter != "_" and not "a" <= letter <= "z":
            raise ValueError(f"unknown letter `{letter}` among the trees")
        if letter != "_":
            position += min(ord(letter) - 96, 25)
        if letter != "z":
            positions.append(position)
            position += 1
        if position > cells + 1:
            raise ValueError("the trees run past the end of the grid")
    if positions[-1] != cells:
        raise ValueError("the trees stop before the end of the grid")
    return positions[1:-1]


def _solutions(start: State, limit: int) -> list[int]:
    """Return the tents of up to `limit` different solutions, by deduction and backtracking.

    Exact for puzzles with several solutions or none. Tents is NP-complete (De Biasi), so the worst
    case is exponential. On random camps, with and without two row sums exchanged, it took up to 32
    ms at 20×20 and up to 3 s at 30×30.
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
            # Tents and trees not yet paired form rings, and a ring can always be paired: each of
            # the n trees has at most two tents beside it (three would touch), each of the n tents
            # at least two trees, so all have two.
            solved.append(state.tents)
            continue
        cell = state.blank & -state.blank
        without = state.copy()
        without.rule_out(cell)
        stack.append(without)
        state.pitch(cell)
        stack.append(state)
    return solved
