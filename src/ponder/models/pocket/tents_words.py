"""Holds the pocket model's vocabulary for Tents, and translates puzzles and answers.

A puzzle is a few dozen tokens, an answer becomes a grid to grade.

A word names a cell together with its state (`b3?`: column b, row 3, still open), so that attending
to one token retrieves the whole fact.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ponder.models.pocket.codec import ANSWER, BOS, EOS, PAD, THINK
from ponder.tasks.tents.board import bits
from ponder.tasks.tents.puzzle import EMPTY, TENT, Puzzle

SIDE = 12  # longest side
MOST = SIDE // 2  # most tents in a row or column: tents don't touch
COLUMNS = "abcdefghijkl"

# Each starts a pass of the thinking.
TREES = "<trees>"
ROWS = "<rows>"
COLS = "<columns>"
SPECIAL = (PAD, BOS, EOS, THINK, ANSWER, TREES, ROWS, COLS)

# States of a cell: open; open, and in the fullest packing of its line; grass; tent; tree; paired.
STATES = OPEN, COUNTED, GRASS, TENTED, TREE, PAIRED = "?+.AT*"


def cell(row: int, column: int, state: str) -> str:
    return f"{COLUMNS[column]}{row + 1}{state}"


def row_clue(row: int, tents: int) -> str:
    return f"{row + 1}={tents}"


def column_clue(column: int, tents: int) -> str:
    return f"{COLUMNS[column]}={tents}"


def need(tents: int) -> str:
    return f"need{tents}"


def room(tents: int) -> str:
    return f"room{tents}"


def all_words() -> list[tuple[str, tuple[str, ...]]]:
    """Return every word with its features."""
    words: list[tuple[str, tuple[str, ...]]] = [(special, (special,)) for special in SPECIAL]
    words += [(f"w{n + 1}", ("width", f"column {n}")) for n in range(SIDE)]
    words += [(f"h{n + 1}", ("height", f"row {n}")) for n in range(SIDE)]
    for n in range(SIDE):
        words += [
            (column_clue(n, k), ("column clue", f"column {n}", f"tents {k}"))
            for k in range(MOST + 1)
        ]
    for n in range(SIDE):
        words += [(row_clue(n, k), ("row clue", f"row {n}", f"tents {k}")) for k in range(MOST + 1)]
    words += [(need(k), ("need", f"tents {k}")) for k in range(MOST + 1)]
    words += [(room(k), ("room", f"tents {k}")) for k in range(MOST + 1)]
    for state in STATES:
        for y in range(SIDE):
            words += [(cell(y, x, state), (state, f"row {y}", f"column {x}")) for x in range(SIDE)]
    return words


def expressible(puzzle: Puzzle) -> bool:
    """Return whether the vocabulary covers this puzzle."""
    return max(puzzle.width, puzzle.height) <= SIDE and max(puzzle.columns + puzzle.rows) <= MOST


def prompt(puzzle: Puzzle) -> list[str]:
    """Return the puzzle as words, up to `THINK`."""
    words = [BOS, f"w{puzzle.width}", f"h{puzzle.height}"]
    words += [column_clue(n, tents) for n, tents in enumerate(puzzle.columns)]
    words += [row_clue(n, tents) for n, tents in enumerate(puzzle.rows)]
    words += [cell(row, column, TREE) for row, column in tree_cells(puzzle)]
    words.append(THINK)
    return words


def tree_cells(puzzle: Puzzle) -> list[tuple[int, int]]:
    """Return row and column of each tree, in reading order."""
    return [divmod(bit.bit_length() - 1, puzzle.board.stride) for bit in bits(puzzle.trees)]


def parse_cell(word: str) -> tuple[int, int, str] | None:
    """Return row, column and state if the word names a cell, else None."""
    if word[0] in COLUMNS and word[-1] in STATES:
        return int(word[1:-1]) - 1, COLUMNS.index(word[0]), word[-1]
    return None


def grid_text(puzzle: Puzzle, answer: Sequence[str]) -> str:
    """Return the puzzle with the answer's tents, as the JSON grid that the task asks for."""
    grid = puzzle.grid()
    for word in answer:
        named_cell = parse_cell(word)
        if named_cell is None:
            continue
        row, column, state = named_cell
        on_board = row < puzzle.height and column < puzzle.width
        if state != TENTED or not on_board or grid[row][column] != EMPTY:
            return f"{word} is no place for a tent."
        grid[row][column] = TENT
    return json.dumps(grid)


def tent_words(grid: Sequence[Sequence[int]]) -> list[str]:
    """Return the tents of a grid as words, row by row."""
    words = []
    for y, row in enumerate(grid):
        words += [cell(y, x, TENTED) for x, code in enumerate(row) if code == TENT]
    return words
