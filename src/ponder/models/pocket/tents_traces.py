"""Writes thinking that solves an easy Tents puzzle step by step, and verifies such thinking.

The rules are the task's easy deductions, worded so that each word follows from a few earlier ones: facts are added and
never withdrawn; the consequences of a tent follow it immediately; what a count needs is listed just before it. A
round has three passes:

- trees: each tree with the open cells and unpaired tents beside it. If there is only one, it is the tree's tent. A tent
  without another unpaired tree belongs to this tree. Cells left without an unpaired tree are grass.
- rows, then columns: each line's clue, its tents and open cells, the number of tents it still needs, and the most that
  fit into its open cells (`+` marks the fullest packing). If it needs none, the open cells are grass; if it needs the
  most that fit, each run of odd length has its tents where the packing has them.

The first pass that lists no open cell is the last; then the answer lists the tents, row by row. Cells without a tree
beside them are never mentioned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ponder.models.pocket import tents_words as v
from ponder.models.pocket.codec import ANSWER, EOS
from ponder.tasks.tents.board import bits
from ponder.tasks.tents.puzzle import TENT, Puzzle

Square = tuple[int, int]  # row and column of a cell


class Shape(NamedTuple):
    beside: dict[Square, tuple[Square, ...]]
    around: dict[Square, tuple[Square, ...]]
    rows: tuple[tuple[Square, ...], ...]
    columns: tuple[tuple[Square, ...], ...]


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


class LineState(NamedTuple):
    """What is known about one row or column."""

    need: int
    open: list[Square]
    counted: list[Square]  # the fullest packing of the open cells, greedily from the first of each run
    odd: list[Square]  # the part of it in runs of odd length


class Facts:
    """What has been deduced about a puzzle so far, and what follows from it by one rule."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle
        self.shape = _shape(puzzle.width, puzzle.height)
        self.trees = [divmod(bit.bit_length() - 1, puzzle.board.stride) for bit in bits(puzzle.trees)]
        self.tents: set[Square] = set()
        self.paired: set[Square] = set()  # trees and tents that are paired with each other
        self.open = {cell for tree in self.trees for cell in self.shape.beside[tree]}.difference(self.trees)
        self.lines = [
            *zip(self.shape.rows, puzzle.rows, strict=True),
            *zip(self.shape.columns, puzzle.columns, strict=True),
        ]
        self._is_tree = set(self.trees)

    def lone_trees(self, cell: Square) -> list[Square]:
        return [n for n in self.shape.beside[cell] if n in self._is_tree and n not in self.paired]

    def candidates(self, tree: Square) -> list[Square]:
        """The cells where a tree's tent may be."""
        return [n for n in self.shape.beside[tree] if n in self.open or (n in self.tents and n not in self.paired)]

    def partner(self, tree: Square) -> Square | None:
        """The cell where an unpaired tree's tent must be, if one rule tells."""
        places = self.candidates(tree)
        if len(places) == 1:
            return places[0]
        return next((n for n in places if n in self.tents and self.lone_trees(n) == [tree]), None)

    def line(self, cells: Sequence[Square], clue: int) -> LineState:
        counted: list[Square] = []
        odd: list[Square] = []
        for run in self._runs(cells):
            counted += run[::2]
            odd += run[::2] if len(run) % 2 else []
        need = clue - sum([cell in self.tents for cell in cells])
        return LineState(need, [cell for cell in cells if cell in self.open], counted, odd)

    def _runs(self, cells: Sequence[Square]) -> list[list[Square]]:
        runs: list[list[Square]] = [[]]
        for cell in cells:
            if cell in self.open:
                runs[-1].append(cell)
            elif runs[-1]:
                runs.append([])
        return runs

    def forced(self, cell: Square, state: Literal["A", "."]) -> bool:
        """Whether one rule gives this state to an open cell."""
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

    def say(self, cell: Square, state: str) -> None:
        self.words.append(v.cell(*cell, state))

    def list_open(self, cell: Square, state: str = v.OPEN) -> None:
        self.listed += 1
        self.say(cell, state)

    def clear(self, cells: Iterable[Square]) -> None:
        for cell in cells:
            if cell in self.facts.open:
                self.facts.open.remove(cell)
                self.say(cell, v.GRASS)

    def pitch(self, cell: Square) -> None:
        self.facts.open.remove(cell)
        self.facts.tents.add(cell)
        self.say(cell, v.TENTED)
        self.clear(self.facts.shape.around[cell])

    def tree(self, tree: Square) -> None:
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

    def line(self, cells: Sequence[Square], clue: int) -> None:
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
        """Write pass after pass; after each, yields how many open cells have been listed so far."""
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
    """Thinking and answer for an easy puzzle; None if these rules get stuck."""
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
    """The first word of the thinking that is wrong, or that no rule derives from the words before it."""
    judge = _Judge(puzzle)
    return next((word for word in thinking if not judge.accepts(word)), None)


class _Judge:
    """Verifies thinking word by word. Steps may come in any order; each statement must hold."""

    def __init__(self, puzzle: Puzzle) -> None:
        self.facts, self.puzzle = Facts(puzzle), puzzle
        grid = puzzle.solve() or []
        self.solution = {(y, x) for y, row in enumerate(grid) for x, code in enumerate(row) if code == TENT}
        self.trees = set(self.facts.trees)
        self.header: tuple[Sequence[Square], int] = ((), 0)
        self.partner: Square | None = None  # the tent just named as paired, until its tree is named

    def accepts(self, word: str) -> bool:
        if place := v.place(word):
            return self._cell((place[0], place[1]), place[2])
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

    def _cell(self, cell: Square, state: str) -> bool:
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

    def _paired(self, cell: Square) -> bool:
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
