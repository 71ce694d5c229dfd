"""Tents: place a tent beside each tree so that row and column sums hold and no two tents touch.

After Estermann & Wattenhofer 2025, who ask for the filled grid in one answer; size = rows × columns. Their prompt is
not published: this one is ours, with their cell codes. Any grid that obeys the rules is right, also where a given
puzzle has several solutions; the generated ones have exactly one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from pathlib import Path

from ponder.core import Grade, Problem, Task, UserError, answers, lines
from ponder.tasks.tents.deduction import Difficulty
from ponder.tasks.tents.generator import generate, possible
from ponder.tasks.tents.puzzle import Grid, Puzzle

__all__ = ["Puzzle", "Tents", "shape"]

PROMPT = """\
This is a Tents puzzle on a grid of {height} rows and {width} columns. Some cells hold a tree. Put tents into empty \
cells so that:
- every tree is paired with exactly one tent and every tent with exactly one tree, and the two of a pair share an edge \
(a tent may also stand next to the tree of another pair);
- no two tents touch, not even at a corner;
- each row and each column holds the number of tents that is given for it.

Cell codes: 0 = empty, 1 = tree, 2 = tent, 3 = grass (known to be no tent).

Grid:
{grid}

Tents in each column, from left to right: {columns}
Tents in each row, from top to bottom: {rows}

Solve it by reasoning alone, without tools or code. End with the filled grid as a JSON array of {height} arrays of \
{width} cell codes, with trees and tents in place and every other cell 0 or 3."""


@dataclass(frozen=True)
class Tents(Task):
    difficulty: Difficulty = "easy"  # as in Simon Tatham's collection
    ids: Path | None = None  # a file of game ids, one a line, to ask instead of generated puzzles

    default_sizes = (16, 20, 25, 30, 36, 42, 49, 56, 64, 72, 81, 90, 100)

    def check_size(self, size: int) -> None:
        if self.ids:
            super().check_size(size)
            return
        sides = shape(size)
        smallest = (
            16 if self.difficulty == "easy" else 25
        )  # there are ten tricky puzzles of 4×5, and hardly more of 4×6
        if size < smallest or not sides or not possible(*sides, self.difficulty):
            near = sorted((abs(n - size), n) for n in range(smallest, 2 * max(size, 16)) if shape(n) and n != size)
            hint = f"near it are {', '.join(str(n) for _, n in near[:3])}"
            raise UserError(f"{self.difficulty} tents can't be made at size {size} (rows × columns)", hint=hint)

    def fixed(self) -> list[Problem] | None:
        return self._given if self.ids else None

    @cached_property
    def _given(self) -> list[Problem]:
        found: dict[str, Problem] = {}
        for where, text in lines(self.ids or Path()):
            try:
                puzzle = Puzzle.from_id(text)
            except ValueError as error:
                hint = "one game id a line, such as 4x4:_cia,1,1,0,1,1,0,1,1"
                raise UserError(f"no game id: {error}", where=where, hint=hint) from None
            found[puzzle.id] = _problem(puzzle, {})
        return list(found.values())

    def problem(self, size: int, seed: int) -> Problem:
        if self.ids:
            chosen = [p for p in self._given if p.size == size]
            return chosen[seed % len(chosen)]
        width, height = shape(size) or (0, 0)
        puzzle = generate(width, height, self.difficulty, random.Random(seed))
        return _problem(puzzle, {"difficulty": self.difficulty, "seed": seed})

    def solve(self, problem: Problem) -> str:
        puzzle = Puzzle.from_id(problem.gold)
        grid = puzzle.solve() or next(iter(puzzle.solutions(limit=1)), None)
        return _rows(grid) if grid else "This puzzle has no solution."

    def grade(self, problem: Problem, answer: str) -> Grade:
        grid = answers.last_json_grid(answer)
        if grid is None:
            return Grade(correct=False, why="no JSON")
        broken = Puzzle.from_id(problem.gold).check(grid)
        return Grade(correct=broken is None, parsed=grid, why=broken or "")


def shape(size: int) -> tuple[int, int] | None:
    """Width and height nearest to a square, at most twice as wide as high; None where there are none."""
    height = next((h for h in range(isqrt(max(size, 0)), 3, -1) if size % h == 0), None)
    return (size // height, height) if height and size <= 2 * height * height else None


def _problem(puzzle: Puzzle, facts: dict[str, object]) -> Problem:
    text = PROMPT.format(
        width=puzzle.width,
        height=puzzle.height,
        grid=_rows(puzzle.grid()),
        columns=list(puzzle.columns),
        rows=list(puzzle.rows),
    )
    return Problem(puzzle.id, puzzle.width * puzzle.height, (text,), gold=puzzle.id, facts=facts)


def _rows(grid: Grid) -> str:
    return "[" + ",\n ".join(str(row) for row in grid) + "]"
