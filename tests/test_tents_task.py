"""The Tents task: its sizes, its prompt, and grades that say why."""

from __future__ import annotations

import itertools
import json

import pytest

from ponder.core import UserError
from ponder.tasks.tents import Puzzle, Tents

ID = "4x4:_cia,1,1,0,1,1,0,1,1"


@pytest.fixture
def problem(tmp_path):
    ids = tmp_path / "ids.txt"
    ids.write_text(ID)
    task = Tents(ids=ids)
    return task, next(task.problems(16, 0))


def test_the_prompt_holds_the_puzzle(problem) -> None:
    _, asked = problem
    puzzle = Puzzle.from_id(ID)
    (text,) = asked.turns
    for row in puzzle.grid():
        assert str(row) in text
    assert f"left to right: {list(puzzle.columns)}" in text
    assert f"top to bottom: {list(puzzle.rows)}" in text
    assert asked.id == ID


def test_grades(problem) -> None:
    task, asked = problem
    right = json.loads(task.solve(asked))
    assert task.grade(asked, f"Sure!\n```json\n{right}\n```\nDone.").correct
    assert task.grade(asked, str([[0 if c == 3 else c for c in row] for row in right])).correct
    tents = [(r, c) for r, row in enumerate(right) for c, cell in enumerate(row) if cell == 2]
    trees = [(r, c) for r, row in enumerate(right) for c, cell in enumerate(row) if cell == 1]

    def changed(place, value):
        grid = [list(row) for row in right]
        grid[place[0]][place[1]] = value
        return str(grid)

    for answer, why in {
        "I can't.": "no grid",
        "[[0]]": "wrong shape",
        changed(trees[0], 3): "trees altered",
        changed(tents[0], 3): "row sum",
        changed(tents[0], 7): "unknown cell",
        changed(tents[0], True): "no grid",  # Python's True is none
    }.items():
        grade = task.grade(asked, answer)
        assert (grade.correct, grade.why) == (False, why), answer


@pytest.mark.parametrize("size", [16, 20, 25, 30, 36, 42, 110, 121, 400])
def test_sizes_are_square_or_nearly(size) -> None:
    task = Tents()
    task.check_size(size)
    puzzle = Puzzle.from_id(task.problem(size, seed=3).gold)
    assert puzzle.width * puzzle.height == size
    assert puzzle.height <= puzzle.width <= 2 * puzzle.height


@pytest.mark.parametrize("size", [-4, 0, 1, 9, 15, 17, 53, 997])
def test_sizes_that_cant_be_made(size) -> None:
    with pytest.raises(UserError, match="can't be made") as caught:
        Tents().check_size(size)
    assert "the nearest sizes are" in caught.value.hint


def test_a_thousand_are_distinct_with_one_solution_each() -> None:
    found = list(itertools.islice(Tents().problems(100, seed=1), 1000))
    assert len({p.id for p in found}) == 1000
    assert all(len(Puzzle.from_id(p.gold).solutions(limit=2)) == 1 for p in found)


def test_neighbouring_seeds_share_nothing() -> None:
    first, second = (
        {p.id for p in itertools.islice(Tents().problems(36, seed), 200)} for seed in (1, 2)
    )
    assert not first & second
