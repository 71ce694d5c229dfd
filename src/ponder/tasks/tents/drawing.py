"""Draws a Tents puzzle as a grid: the model's tents with their mistakes, and the solution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ponder.core import Drawing, Mark
from ponder.tasks.tents.puzzle import TENT, TREE, Grid, Puzzle

SYMBOLS = ("", "♣", "▲", "·")  # empty, tree, tent, grass: in every font, unlike the emoji


def drawings(puzzle: Puzzle, answer: Grid | None) -> Iterator[Drawing]:
    """Yield the answer, if it has the puzzle's shape, else the puzzle; then the solution."""
    if answer is None:
        yield _draw("puzzle", puzzle, puzzle.grid(), "no grid in the answer")
    elif puzzle.check(answer) in ("wrong shape", "unknown cell"):
        yield _draw(
            "puzzle", puzzle, puzzle.grid(), "the answer's grid does not have the puzzle's shape"
        )
    else:
        yield _draw("answer", puzzle, answer)
    solution = puzzle.any_solution()
    if solution:
        yield _draw("solution", puzzle, solution)


def _draw(name: str, puzzle: Puzzle, grid: Grid, caption: str = "") -> Drawing:
    """Draw a grid, with the sums of rows at the right and those of columns below."""
    rows = []
    for y in range(puzzle.height):
        marks = [_cell(puzzle, grid, y, x, name) for x in range(puzzle.width)]
        marks.append(_sum(puzzle.rows[y], grid[y], "row", name))
        rows.append(tuple(marks))
    sums = []
    for x in range(puzzle.width):
        column = [row[x] for row in grid]
        sums.append(_sum(puzzle.columns[x], column, "column", name))
    rows.append(tuple(sums))
    wrong = 0
    for row in rows:
        wrong += sum(mark.kind == "wrong" for mark in row)
    if wrong and not caption:
        caption = f"{wrong} marked: point at one to see why"
    return Drawing(name, tuple(rows), caption=caption, square=True)


def _cell(puzzle: Puzzle, grid: Grid, y: int, x: int, name: str) -> Mark:
    """Draw a cell, with what is wrong about it."""
    cell = grid[y][x]
    symbol = SYMBOLS[cell]
    bit = puzzle.board.bit(y, x)
    if puzzle.trees & bit:
        if cell != TREE:
            return Mark(symbol, "wrong", "there was a tree here")
        return Mark(symbol, "given", "tree")
    if cell == TREE:
        return Mark(symbol, "wrong", "there is no tree here")
    if cell != TENT:
        return Mark(symbol)
    faults = []
    if puzzle.board.around(bit) & puzzle.cells(grid, TENT):
        faults.append("touches another tent")
    if not puzzle.board.beside(bit) & puzzle.trees:
        faults.append("no tree beside it")
    if faults:
        return Mark(symbol, "wrong", ", ".join(faults))
    return Mark(symbol, "right" if name == "answer" else "", "tent")


def _sum(expected: int, cells: Sequence[int], line: str, name: str) -> Mark:
    """Draw the expected number of tents of a row or column, and the actual number if it differs."""
    tents = sum(cell == TENT for cell in cells)
    if tents == expected or name == "puzzle":
        return Mark(str(expected), "note", f"tents in this {line}")
    return Mark(f"{tents}/{expected}", "wrong", f"{tents} tents in this {line}, not {expected}")
