"""Draws a Tents puzzle as a grid: the model's tents with their mistakes, and the solution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ponder.core import Drawing, Mark
from ponder.tasks.tents.puzzle import TENT, TREE, Grid, Puzzle

SYMBOLS = ("", "♣", "▲", "·")  # empty, tree, tent, grass: in every font, unlike the emoji


def drawings(puzzle: Puzzle, answer: Grid | None) -> Iterator[Drawing]:
    """The answer, if it has the puzzle's shape, and the solution; without an answer the puzzle."""
    fits = answer is not None and puzzle.check(answer) not in ("wrong shape", "unknown cell")
    if answer is not None and fits:
        yield _drawn("answer", puzzle, answer)
    else:
        caption = "no grid in the answer" if answer is None else "the answer's grid does not have the puzzle's shape"
        yield _drawn("puzzle", puzzle, puzzle.grid(), caption=caption)
    solution = puzzle.solve() or next(iter(puzzle.solutions(limit=1)), None)
    if solution:
        yield _drawn("solution", puzzle, solution)


def _drawn(name: str, puzzle: Puzzle, grid: Grid, caption: str = "") -> Drawing:
    columns = [_sum(puzzle.columns[x], [row[x] for row in grid], "column", name) for x in range(puzzle.width)]
    rows = [
        (*(_cell(puzzle, grid, y, x, name) for x in range(puzzle.width)), _sum(puzzle.rows[y], grid[y], "row", name))
        for y in range(puzzle.height)
    ]
    wrong = sum(mark.kind == "wrong" for row in (*rows, columns) for mark in row)
    caption = caption or (f"{wrong} marked: point at one to see why" if wrong else "")
    return Drawing(name, (*rows, tuple(columns)), caption=caption, square=True)


def _cell(puzzle: Puzzle, grid: Grid, y: int, x: int, name: str) -> Mark:
    cell, given = grid[y][x], puzzle.trees & puzzle.board.bit(y, x)
    text = SYMBOLS[cell]
    if given:
        return Mark(SYMBOLS[TREE], "given", "tree") if cell == TREE else Mark(text, "wrong", "there was a tree here")
    if cell == TREE:
        return Mark(text, "wrong", "there is no tree here")
    if cell != TENT:
        return Mark(text)
    bit = puzzle.board.bit(y, x)
    tents = sum(puzzle.board.bit(j, i) for j, row in enumerate(grid) for i, c in enumerate(row) if c == TENT)
    faults = ["touches another tent"] if puzzle.board.around(bit) & tents & ~bit else []
    faults += [] if puzzle.board.beside(bit) & puzzle.trees else ["no tree beside it"]
    return Mark(text, "wrong", ", ".join(faults)) if faults else Mark(text, "right" if name == "answer" else "", "tent")


def _sum(wanted: int, cells: Sequence[int], line: str, name: str) -> Mark:
    """The given number of tents of a row or column, beside how many there are."""
    there = sum(cell == TENT for cell in cells)
    if there == wanted or name == "puzzle":
        return Mark(str(wanted), "note", f"tents in this {line}")
    return Mark(f"{there}/{wanted}", "wrong", f"{there} tents in this {line}, not {wanted}")
