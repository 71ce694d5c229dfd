"""Generates Tents puzzles: place a tent beside each tree; row and column sums are given, and no two
tents touch.

After Estermann & Wattenhofer 2025, who ask for the filled grid in one answer; size = rows ×
columns. Their prompt isn't published, so this one is ours, with their cell codes. Any grid that
obeys the rules is right. Generated puzzles have exactly one solution; those from a file may have
several.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from pathlib import Path

from ponder.core import Drawing, Grade, Problem, Task, UserError, lines
from ponder.core.capabilities import Drawable
from ponder.tasks.tents.deduction import Difficulty
from ponder.tasks.tents.drawing import drawings
from ponder.tasks.tents.generator import generate, possible
from ponder.tasks.tents.grid_text import last_grid
from ponder.tasks.tents.puzzle import Grid, Puzzle

__all__ = ["Puzzle", "Tents", "shape"]

# Cells; such a puzzle takes 2 s to make, one of 10,000 cells 9 s, and the time grows with the cube.
LARGEST = 6400
PROMPT = """\
This is a Tents puzzle on a grid of {height} rows and {width} columns. Some cells hold a tree. \
Put tents into empty cells so that:
- every tree is paired with exactly one tent and every tent with exactly one tree, and the two of \
a pair share an edge (a tent may also stand next to the tree of another pair);
- no two tents touch, not even at a corner;
- each row and each column holds the number of tents that is given for it.

Cell codes: 0 = empty, 1 = tree, 2 = tent, 3 = grass (known to be no tent).

{examples}{given}

Solve it by reasoning alone, without tools or code. End with the filled grid as a JSON array of \
{height} arrays of {width} cell codes, with trees and tents in place and every other cell 0 or 3."""

GIVEN = """\
Grid:
{grid}

Tents in each column, from left to right: {columns}
Tents in each row, from top to bottom: {rows}"""
MOST_SHOTS = 100


@dataclass(frozen=True)
class Tents(Task, Drawable):
    difficulty: Difficulty = "easy"  # easy or tricky, as in Simon Tatham's puzzle collection
    # a file of game ids, one per line, to ask instead of generating puzzles
    ids: Path | None = None
    shots: int = 0  # examples in the prompt: other puzzles, of 4 × 4 cells, with their solutions

    default_sizes = (16, 20, 25, 30, 36, 42, 49, 56, 64, 72, 81, 90, 100)
    unit = "cells"

    def __post_init__(self) -> None:
        if not 0 <= self.shots <= MOST_SHOTS:
            raise UserError(f"shots must be from 0 to {MOST_SHOTS}, not {self.shots}")

    def check_size(self, size: int) -> None:
        if self.ids:
            super().check_size(size)
            return
        if size > LARGEST:
            message = (
                f"tents can be made with at most {LARGEST:,} cells (rows × columns), not {size:,}"
            )
            raise UserError(message, hint="size = [16, 36, 64, 100]")
        sides = shape(size)
        # There are only ten tricky puzzles of 4×5, and few of 4×6.
        smallest = 16 if self.difficulty == "easy" else 25
        if size < smallest or not sides or not possible(*sides, self.difficulty):
            sizes = [n for n in range(smallest, 2 * max(size, 16)) if shape(n) and n != size]
            nearest = sorted(sizes, key=lambda n: (abs(n - size), n))[:3]
            hint = f"the nearest sizes are {', '.join(map(str, nearest))}"
            raise UserError(
                f"{self.difficulty} tents can't be made at size {size} (rows × columns)", hint=hint
            )

    def fixed(self) -> list[Problem] | None:
        if not self.ids:
            return None
        return self._from_file

    @cached_property
    def _from_file(self) -> list[Problem]:
        by_id: dict[str, Problem] = {}
        for where, text in lines(self.ids or Path()):
            try:
                puzzle = Puzzle.from_id(text)
            except ValueError as error:
                hint = "one game id per line, such as 4x4:_cia,1,1,0,1,1,0,1,1"
                raise UserError(f"not a game id: {error}", where=where, hint=hint) from None
            by_id[puzzle.id] = _problem(puzzle, {}, self.shots)
        return list(by_id.values())

    def problem(self, size: int, seed: int) -> Problem:
        if self.ids:
            of_size = [problem for problem in self._from_file if problem.size == size]
            return of_size[seed % len(of_size)]
        width, height = shape(size) or (0, 0)
        puzzle = generate(width, height, self.difficulty, random.Random(seed))
        return _problem(puzzle, {"difficulty": self.difficulty, "seed": seed}, self.shots)

    def solve(self, problem: Problem) -> str:
        puzzle = Puzzle.from_id(problem.gold)
        grid = puzzle.any_solution()
        if grid is None:
            return "This puzzle has no solution."
        return _rows(grid)

    def grade(self, problem: Problem, answer: str) -> Grade:
        grid = last_grid(answer)
        if grid is None:
            return Grade(correct=False, why="no grid")
        broken = Puzzle.from_id(problem.gold).check(grid)
        return Grade(correct=broken is None, parsed=grid, why=broken or "")

    def drawings(self, problem: Problem, answers: Sequence[str]) -> list[Drawing]:
        grid = None
        if answers:
            grid = self.grade(problem, answers[-1]).parsed
        return list(drawings(Puzzle.from_id(problem.gold), grid))


def shape(size: int) -> tuple[int, int] | None:
    """Return width and height nearest to a square.

    Return None if there are none, or they are more than twice as wide as high.
    """
    for height in range(isqrt(max(size, 0)), 3, -1):
        if size % height == 0:
            width = size // height
            return (width, height) if width <= 2 * height else None
    return None


def _problem(puzzle: Puzzle, facts: dict[str, object], shots: int) -> Problem:
    text = PROMPT.format(
        width=puzzle.width,
        height=puzzle.height,
        examples=_examples(puzzle, shots),
        given=_puzzle_text(puzzle),
    )
    return Problem(puzzle.id, puzzle.width * puzzle.height, (text,), gold=puzzle.id, facts=facts)


def _puzzle_text(puzzle: Puzzle) -> str:
    return GIVEN.format(
        grid=_rows(puzzle.grid()), columns=list(puzzle.columns), rows=list(puzzle.rows)
    )


def _examples(problem: Puzzle, shots: int) -> str:
    """Return solved puzzles for the prompt of another one."""
    if not shots:
        return ""
    puzzles = [generate(4, 4, "easy", random.Random(f"shot {n}")) for n in range(shots + 1)]
    examples = [puzzle for puzzle in puzzles if puzzle != problem][:shots]
    text = ""
    for puzzle in examples:
        solution = _rows(puzzle.solve() or [])
        text += f"Example:\n{_puzzle_text(puzzle)}\nSolution:\n{solution}\n\n"
    return f"{text}Now the puzzle to solve:\n"


def _rows(grid: Grid) -> str:
    """Return a grid as JSON, a line per row."""
    return "[" + ",\n ".join(str(row) for row in grid) + "]"
