"""Thinking that solves an easy Tents puzzle out loud, step by small step, and a judge of such thinking.

The rules are those of the task's easy deductions. They are told so that each word needs one look at what was said
before: facts are added and never withdrawn; what follows from a tent is said at once; and what a count needs is
listed just before it. A round has three passes:

- trees: each tree with the open cells and unpaired tents beside it. A single one must be its tent. A tent that has
  no other unpaired tree is this tree's. Cells that are left without an unpaired tree are grass.
- rows, then columns: each line's clue, its tents and open cells, the tents it needs, and the room that its open
  cells have for them (`+` marks the fullest packing). If it needs none, they are grass; if it needs all its room,
  each run of odd length has its tents where the packing has them.

A pass that lists no open cell is the last; then the answer lists the tents, row by row. Cells without a tree beside
them are never spoken of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ponder.models.pocket import tents_words as v
from ponder.models.pocket.codec import ANSWER, EOS
from ponder.tasks.tents.board import bits
from ponder.tasks.tents.puzzle import TENT, Puzzle

Cell = tuple[int, int]  # row, column


class Shape(NamedTuple):
    beside: dict[Cell, tuple[Cell, ...]]
    around: dict[Cell, tuple[Cell, ...]]
    rows: tuple[tuple[Cell, ...], ...]
    columns: tuple[tuple[Cell, ...], ...]


@lru_cache(maxsize=256)
def _shape(width: int, height: int) -> Shape:
    rows = tuple(tuple((y, x) for x in range(width)) for y in range(height))
    cells = [cell for row in rows for cell in row]
    around = {
        (y, x): tuple((b, a) for b, a in cells if max(abs(a - x), abs(b - y)) == 1)  # in reading order
        for y, x in cells
    }
    beside = {
        (y, x): tuple((b, a) for b, a in near if abs(a - x) + abs(b - y) == 1)  # in reading order
        for (y, x), near in around.items()
    }
    return Shape(beside, around, rows, tuple(zip(*rows, strict=True)))


class Line(NamedTuple):
    """One row or column as far as it is known."""

    need: int
    open: list[Cell]
    counted: list[Cell]  # the fullest packing of the open cells, greedily from the first of each run
    odd: list[Cell]  # those of them in runs of odd length


class Facts:
    """What has been said of a puzzle so far, and what follows from it by one rule."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle
        self.shape = _shape(puzzle.width, puzzle.height)
        self.trees = [divmod(bit.bit_length() - 1, puzzle.board.stride) for bit in bits(puzzle.trees)]
        self.tents: set[Cell] = set()
        self.paired: set[Cell] = set()  # trees and tents that have found each other
        self.open = {cell for tree in self.trees for cell in self.shape.beside[tree]}.difference(self.trees)
        self.lines = [
            *zip(self.shape.rows, puzzle.rows, strict=True),
            *zip(self.shape.columns, puzzle.columns, strict=True),
        ]
        self._is_tree = set(self.trees)

    def lone_trees(self, cell: Cell) -> list[Cell]:
        return [n for n in self.shape.beside[cell] if n in self._is_tree and n not in self.paired]

    def candidates(self, tree: Cell) -> list[Cell]:
        """The places where a tree's tent may be."""
        return [n for n in self.shape.beside[tree] if n in self.open or (n in self.tents and n not in self.paired)]

    def partner(self, tree: Cell) -> Cell | None:
        """The place where an unpaired tree's tent must be."""
        places = self.candidates(tree)
        if len(places) == 1:
            return places[0]
        return next((n for n in places if n in self.tents and self.lone_trees(n) == [tree]), None)

    def line(self, cells: Sequence[Cell], clue: int) -> Line:
        counted: list[Cell] = []
        odd: list[Cell] = []
        for run in self._runs(cells):
            counted += run[::2]
            odd += run[::2] if len(run) % 2 else []
        need = clue - sum([cell in self.tents for cell in cells])
        return Line(need, [cell for cell in cells if cell in self.open], counted, odd)

    def _runs(self, cells: Sequence[Cell]) -> list[list[Cell]]:
        runs: list[list[Cell]] = [[]]
        for cell in cells:
            if cell in self.open:
                runs[-1].append(cell)
            elif runs[-1]:
                runs.append([])
        return runs

    def forced(self, cell: Cell, state: Literal["A", "."]) -> bool:
        """Whether one rule tells this of an open cell."""
        lines = [self.line(cells, clue) for cells, clue in self.lines if cell in cells]
        if state == v.TENTED:
            trees = self.lone_trees(cell)
            return any(line.need == len(line.counted) and cell in line.odd for line in lines) or any(
                self.candidates(tree) == [cell] for tree in trees
            )
        touched = any(n in self.tents for n in self.shape.around[cell])
        return touched or not self.lone_trees(cell) or any(line.need == 0 for line in lines)


class _Writer:
    def __init__(self, puzzle: Puzzle) -> None:
        self.facts, self.words, self.listed = Facts(puzzle), list[str](), 0

    def say(self, cell: Cell, state: str) -> None:
        self.words.append(v.cell(*cell, state))

    def list_open(self, cell: Cell, state: str = v.OPEN) -> None:
        self.listed += 1
        self.say(cell, state)

    def clear(self, cells: Iterable[Cell]) -> None:
        for cell in cells:
            if cell in self.facts.open:
                self.facts.open.remove(cell)
                self.say(cell, v.GRASS)

    def pitch(self, cell: Cell) -> None:
        self.facts.open.remove(cell)
        self.facts.tents.add(cell)
        self.say(cell, v.TENTED)
        self.clear(self.facts.shape.around[cell])

    def tree(self, tree: Cell) -> None:
        facts = self.facts
        if tree in facts.paired:
            self.say(tree, v.PAIRED)
            return
        self.say(tree, v.TREE)
        places = facts.candidates(tree)
        for cell in places:
            if cell in facts.open:
                self.list_open(cell)
            else:
                self.say(cell, v.TENTED)
        if tent := facts.partner(tree):
            if tent in facts.open:
                self.pitch(tent)
            facts.paired |= {tent, tree}
            self.say(tent, v.PAIRED)
            self.say(tree, v.PAIRED)
            self.clear([cell for cell in places if not facts.lone_trees(cell)])

    def line(self, cells: Sequence[Cell], clue: int) -> None:
        facts = self.facts
        line = facts.line(cells, clue)
        if not line.open:
            return
        for cell in cells:
            if cell in facts.tents:
                self.say(cell, v.TENTED)
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
        """Make one pass after another; say how many open cells each listed."""
        facts, puzzle = self.facts, self.facts.puzzle
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
    """Thinking and answer for an easy puzzle, every step sound; None where these rules get stuck."""
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
    """The first word of some thinking that is false, or that follows from what stands before it by no rule."""
    judge = _Judge(puzzle)
    return next((word for word in thinking if not judge.accepts(word)), None)


class _Judge:
    """Follows thinking word by word. It may go about it in any order; what it states must hold."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.facts, self.puzzle = Facts(puzzle), puzzle
        grid = puzzle.solve() or []
        self.solution = {(y, x) for y, row in enumerate(grid) for x, code in enumerate(row) if code == TENT}
        self.trees = set(self.facts.trees)
        self.header: tuple[Sequence[Cell], int] = ((), 0)
        self.partner: Cell | None = None  # the tent that was just said to be paired, until its tree is named

    def accepts(self, word: str) -> bool:
        if found := v.place(word):
            return self._cell((found[0], found[1]), found[2])
        if word.startswith(("need", "room")):
            line = self.facts.line(*self.header)
            return word == (v.need(line.need) if word.startswith("need") else v.room(len(line.counted)))
        if "=" in word:
            return self._clue(word)
        return word in (v.TREES, v.ROWS, v.COLS)

    def _clue(self, word: str) -> bool:
        rows, columns = self.puzzle.rows, self.puzzle.columns
        for clues, lines, write in (
            (rows, self.facts.shape.rows, v.row_clue),
            (columns, self.facts.shape.columns, v.column_clue),
        ):
            for place, clue in enumerate(clues):
                if word == write(place, clue):
                    self.header = lines[place], clue
                    return True
        return False

    def _cell(self, cell: Cell, state: str) -> bool:
        facts = self.facts
        if state == v.TREE:
            return cell in self.trees
        if state == v.PAIRED:
            return self._paired(cell)
        if state in (v.OPEN, v.COUNTED):
            return cell in facts.open
        known = cell in facts.tents if state == v.TENTED else cell in facts.shape.beside and cell not in facts.open
        if cell in facts.open:
            if not facts.forced(cell, "A" if state == v.TENTED else "."):
                return False
            facts.open.remove(cell)
            if state == v.TENTED:
                facts.tents.add(cell)
            known = True
        return known and (cell in self.solution) == (state == v.TENTED)

    def _paired(self, cell: Cell) -> bool:
        facts = self.facts
        if cell in facts.paired:
            return True
        if cell in facts.tents:
            self.partner = cell
            return True
        tent, self.partner = self.partner, None
        if cell not in self.trees or tent is None or facts.partner(cell) != tent:
            return False
        facts.paired |= {cell, tent}
        return True
