"""Holds the pocket model's vocabulary for Tents: a puzzle as a few dozen tokens, and its answer as a grid to grade.

A word names a cell together with its state (`b3?`: column b, row 3, still open), so that attending to one token
retrieves the whole fact.
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

TREES, ROWS, COLS = "<trees>", "<rows>", "<columns>"  # start a pass of the thinking
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
    """Every word, with the parts of its meaning."""
    side, tents = range(SIDE), range(MOST + 1)
    return [
        *((word, (word,)) for word in SPECIAL),
        *((f"w{n + 1}", ("width", f"column {n}")) for n in side),
        *((f"h{n + 1}", ("height", f"row {n}")) for n in side),
        *((column_clue(n, k), ("column clue", f"column {n}", f"tents {k}")) for n in side for k in tents),
        *((row_clue(n, k), ("row clue", f"row {n}", f"tents {k}")) for n in side for k in tents),
        *((need(k), ("need", f"tents {k}")) for k in tents),
        *((room(k), ("room", f"tents {k}")) for k in tents),
        *((cell(y, x, s), (s, f"row {y}", f"column {x}")) for s in STATES for y in side for x in side),
    ]


def expressible(puzzle: Puzzle) -> bool:
    """Whether the vocabulary covers this puzzle."""
    return max(puzzle.width, puzzle.height) <= SIDE and max(puzzle.columns + puzzle.rows) <= MOST


def prompt(puzzle: Puzzle) -> list[str]:
    """The puzzle as words, up to `THINK`."""
    trees = [divmod(bit.bit_length() - 1, puzzle.board.stride) for bit in bits(puzzle.trees)]
    return [
        BOS,
        f"w{puzzle.width}",
        f"h{puzzle.height}",
        *(column_clue(n, k) for n, k in enumerate(puzzle.columns)),
        *(row_clue(n, k) for n, k in enumerate(puzzle.rows)),
        *(cell(row, column, TREE) for row, column in trees),
        THINK,
    ]


def place(word: str) -> tuple[int, int, str] | None:
    """Row, column and state, if the word names a cell."""
    if word[0] in COLUMNS and word[-1] in STATES:
        return int(word[1:-1]) - 1, COLUMNS.index(word[0]), word[-1]
    return None


def grid_text(puzzle: Puzzle, answer: Sequence[str]) -> str:
    """The puzzle with the answer's tents, as the JSON grid that the task asks for."""
    grid = puzzle.grid()
    for word in answer:
        row, column, state = place(word) or (SIDE, SIDE, "")
        if state == TENTED and row < puzzle.height and column < puzzle.width and grid[row][column] == EMPTY:
            grid[row][column] = TENT
        elif state:
            return f"{word} is no place for a tent."
    return json.dumps(grid)


def tent_words(grid: Sequence[Sequence[int]]) -> list[str]:
    """The tents of a grid as words, row by row."""
    return [cell(y, x, TENTED) for y, row in enumerate(grid) for x, state in enumerate(row) if state == TENT]
