"""Writes thinking that solves an easy Tents puzzle step by step, and verifies such thinking.

The rules are the task's easy deductions, worded so that each word follows from a few earlier ones:
facts are added and never withdrawn; the consequences of a tent follow it immediately; what a count
needs is listed just before it. A round has three passes:

- trees: each tree with the open cells and unpaired tents beside it. If there is only one, it is the
  tree's tent. A tent without another unpaired tree belongs to this tree. Cells left without an
  unpaired tree are grass.
- rows, then columns: each line's clue, its tents and open cells, the number of tents it still
  needs, and the most that fit into its open cells (`+` marks the fullest packing). If it needs
  none, the open cells are grass; if it needs the most that fit, each run of odd length has its
  tents where the packing has them.

The first pass that lists no open cell is the last; then the answer lists the tents, row by row.
Cells without a tree beside them are never mentioned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ponder.models.pocket import tents_words as v
from ponder.models.pocket.codec import ANSWER, EOS
from ponder.tasks.tents.puzzle import TENT, Puzzle

Square = tuple[int, int]  # row and column of a cell


class Shape(NamedTuple):
    """The cells of a board, and which are neighbours."""

    beside: dict[Square, tuple[Square, ...]]  # the neighbours that share a side
    around: dict[Square, tuple[Square, ...]]  # all neighbours, diagonal ones too
    rows: tuple[tuple[Square, ...], ...]
    columns: tuple[tuple[Square, ...], ...]


@lru_cache(maxsize=256)
def _shape(width: int, height: int) -> Shape:
    rows = tuple(tuple((y, x) for x in range(width)) for y in range(height))
    columns = tuple(zip(*rows, strict=True))
    around = {}
    beside = {}
    for y in range(height):
        for x in range(width):
            neighbours = []  # in reading order
            for row in range(max(0, y - 1), min(height, y + 2)):
                neighbours += [(row, column) for column in range(max(0, x - 1), min(width, x + 2))]
            neighbours.remove((y, x))
            around[y, x] = tuple(neighbours)
            beside[y, x] = tuple(
                (row, column) for row, column in neighbours if row == y or column == x
            )
    return Shape(beside, around, rows, columns)


class LineState(NamedTuple):
    """The open cells of a row or column, and how many tents it needs."""

    need: int  # tents still to be placed
    open: list[Square]
    counted: list[Square]  # the fullest packing of the open cells, from the first of each run
    odd: list[Square]  # those of them in runs of odd length


class Facts:
    """What has been deduced about a puzzle so far, and what follows from it by one rule."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle
        self.shape = _shape(puzzle.width, puzzle.height)
        self.trees = v.tree_cells(puzzle)
        self._is_tree = set(self.trees)
        self.tents: set[Square] = set()
        self.paired: set[Square] = set()  # trees and tents that are paired with each other
        self.open: set[Square] = set()
        for tree in self.trees:
            self.open.update(self.shape.beside[tree])
        self.open -= self._is_tree
        rows = zip(self.shape.rows, puzzle.rows, strict=True)
        columns = zip(self.shape.columns, puzzle.columns, strict=True)
        self.lines = [*rows, *columns]

    def lone_trees(self, cell: Square) -> list[Square]:
        """Return the unpaired trees beside a cell."""
        return [n for n in self.shape.beside[cell] if n in self._is_tree and n not in self.paired]

    def candidates(self, tree: Square) -> list[Square]:
        """Return the cells where a tree's tent may be."""
        beside = self.shape.beside[tree]
        return [n for n in beside if n in self.open or (n in self.tents and n not in self.paired)]

    def partner(self, tree: Square) -> Square | None:
        """Return the cell where an unpaired tree's tent must be; None if no single rule tells."""
        cells = self.candidates(tree)
        if len(cells) == 1:
            return cells[0]
        for cell in cells:
            if cell in self.tents and self.lone_trees(cell) == [tree]:
                return cell
        return None

    def line(self, cells: Sequence[Square], clue: int) -> LineState:
        """Return the state of a row or column."""
        counted: list[Square] = []
        odd: list[Square] = []
        for run in self._runs(cells):
            counted += run[::2]
            if len(run) % 2:
                odd += run[::2]
        open_cells = [cell for cell in cells if cell in self.open]
        tents = sum([cell in self.tents for cell in cells])
        return LineState(clue - tents, open_cells, counted, odd)

    def _runs(self, cells: Sequence[Square]) -> list[list[Square]]:
        """Return the runs of open cells in a line."""
        runs: list[list[Square]] = [[]]
        for cell in cells:
            if cell in self.open:
                runs[-1].append(cell)
            elif runs[-1]:
                runs.append([])
        return runs

    def forced(self, cell: Square, state: Literal["A", "."]) -> bool:
        """Return whether one rule gives this state to an open cell."""
        lines = [self.line(cells, clue) for cells, clue in self.lines if cell in cells]
        trees = self.lone_trees(cell)
        if state == v.TENTED:
            if any(line.need == len(line.counted) and cell in line.odd for line in lines):
                return True
            return any(self.candidates(tree) == [cell] for tree in trees)
        if not trees or any(line.need == 0 for line in lines):
            return True
        return any(n in self.tents for n in self.shape.around[cell])


class _Writer:
    """Writes the thinking that solves a puzzle."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.facts = Facts(puzzle)
        self.words: list[str] = []
        self.listed = 0  # open cells

    def write_cell(self, cell: Square, state: str) -> None:
        self.words.append(v.cell(*cell, state))

    def list_open(self, cell: Square, state: str = v.OPEN) -> None:
        self.listed += 1
        self.write_cell(cell, state)

    def clear(self, cells: Iterable[Square]) -> None:
        """Mark the open ones of these cells as grass."""
        for cell in cells:
            if cell in self.facts.open:
                self.facts.open.remove(cell)
                self.write_cell(cell, v.GRASS)

    def pitch(self, cell: Square) -> None:
        """Place a tent, and mark the open cells around it as grass."""
        self.facts.open.remove(cell)
        self.facts.tents.add(cell)
        self.write_cell(cell, v.TENTED)
        self.clear(self.facts.shape.around[cell])

    def tree(self, tree: Square) -> None:
        """Write a tree with the cells of its tent, and what follows."""
        facts = self.facts
        if tree in facts.paired:
            self.write_cell(tree, v.PAIRED)
            return
        self.write_cell(tree, v.TREE)
        cells = facts.candidates(tree)
        for cell in cells:
            if cell in facts.open:
                self.list_open(cell)
            else:
                self.write_cell(cell, v.TENTED)
        tent = facts.partner(tree)
        if tent is None:
            return
        if tent in facts.open:
            self.pitch(tent)
        facts.paired |= {tent, tree}
        self.write_cell(tent, v.PAIRED)
        self.write_cell(tree, v.PAIRED)
        self.clear([cell for cell in cells if not facts.lone_trees(cell)])

    def line(self, cells: Sequence[Square], clue: int) -> None:
        """Write the tents and open cells of a row or column, and what follows."""
        facts = self.facts
        line = facts.line(cells, clue)
        if not line.open:
            return
        for cell in cells:
            if cell in facts.tents:
                self.write_cell(cell, v.TENTED)
            elif cell in facts.open:
                self.list_open(cell, v.COUNTED if cell in line.counted else v.OPEN)
        self.words.append(v.need(line.need))
        if line.need == 0:
            self.clear(line.open)
            return
        self.words.append(v.room(len(line.counted)))
        if line.need == len(line.counted):
            for cell in line.odd:
                self.pitch(cell)

    def passes(self) -> Iterator[int]:
        """Write pass after pass; after each, yield how many open cells have been listed so far."""
        facts = self.facts
        puzzle = facts.puzzle
        while True:
            self.words.append(v.TREES)
            for tree in facts.trees:
                self.tree(tree)
            yield self.listed
            self.words.append(v.ROWS)
            for row, clue in enumerate(puzzle.rows):
                self.words.append(v.row_clue(row, clue))
                self.line(facts.shape.rows[row], clue)
            yield self.listed
            self.words.append(v.COLS)
            for column, clue in enumerate(puzzle.columns):
                self.words.append(v.column_clue(column, clue))
                self.line(facts.shape.columns[column], clue)
            yield self.listed


def trace(puzzle: Puzzle) -> list[str] | None:
    """Return thinking and answer for an easy puzzle; None if these rules get stuck."""
    writer = _Writer(puzzle)
    before = -1
    for listed in writer.passes():
        if listed == before:
            break
        before = listed
        if len(writer.words) > 40 * puzzle.width * puzzle.height:
            return None
    facts = writer.facts
    answer = []
    for row, (cells, clue) in enumerate(zip(facts.shape.rows, puzzle.rows, strict=True)):
        answer.append(v.row_clue(row, clue))
        answer += [v.cell(*cell, v.TENTED) for cell in cells if cell in facts.tents]
    return [*writer.words, ANSWER, *answer, EOS]


def unsound(puzzle: Puzzle, thinking: Iterable[str]) -> str | None:
    """Return the first word of the thinking that is wrong or doesn't follow; else None."""
    judge = _Judge(puzzle)
    for word in thinking:
        if not judge.accepts(word):
            return word
    return None


class _Judge:
    """Verifies thinking word by word. Steps may come in any order; each statement must hold."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.facts = Facts(puzzle)
        self.puzzle = puzzle
        self.solution: set[Square] = set()
        for y, row in enumerate(puzzle.solve() or []):
            self.solution |= {(y, x) for x, code in enumerate(row) if code == TENT}
        self.trees = set(self.facts.trees)
        # The line that was named last, and its clue.
        self.header: tuple[Sequence[Square], int] = ((), 0)
        self.partner: Square | None = None  # the tent just named as paired, until its tree is named

    def accepts(self, word: str) -> bool:
        """Return whether a word holds, and take it as a fact if it does."""
        named_cell = v.parse_cell(word)
        if named_cell:
            row, column, state = named_cell
            return self._cell((row, column), state)
        if word.startswith("need"):
            return word == v.need(self.facts.line(*self.header).need)
        if word.startswith("room"):
            return word == v.room(len(self.facts.line(*self.header).counted))
        if "=" in word:
            return self._clue(word)
        return word in (v.TREES, v.ROWS, v.COLS)

    def _clue(self, word: str) -> bool:
        shape = self.facts.shape
        for row, clue in enumerate(self.puzzle.rows):
            if word == v.row_clue(row, clue):
                self.header = (shape.rows[row], clue)
                return True
        for column, clue in enumerate(self.puzzle.columns):
            if word == v.column_clue(column, clue):
                self.header = (shape.columns[column], clue)
                return True
        return False

    def _cell(self, cell: Square, state: str) -> bool:
        facts = self.facts
        if state == v.TREE:
            return cell in self.trees
        if state == v.PAIRED:
            return self._paired(cell)
        if state in (v.OPEN, v.COUNTED):
            return cell in facts.open
        if state == v.TENTED:
            return self._tent(cell)
        return self._grass(cell)

    def _tent(self, cell: Square) -> bool:
        facts = self.facts
        if cell in facts.open:
            if not facts.forced(cell, "A"):
                return False
            facts.open.remove(cell)
            facts.tents.add(cell)
        return cell in facts.tents and cell in self.solution

    def _grass(self, cell: Square) -> bool:
        facts = self.facts
        if cell in facts.open:
            if not facts.forced(cell, "."):
                return False
            facts.open.remove(cell)
        return cell in facts.shape.beside and cell not in self.solution

    def _paired(self, cell: Square) -> bool:
        facts = self.facts
        if cell in facts.paired:
            return True
        if cell in facts.tents:
            self.partner = cell
            return True
        tent = self.partner
        self.partner = None
        if cell not in self.trees or tent is None or facts.partner(cell) != tent:
            return False
        facts.paired |= {cell, tent}
        return True
