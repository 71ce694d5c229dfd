"""Make Tents puzzles with exactly one solution by repairing the part of a random camp that deduction leaves open.

Simon Tatham's `tents.c` makes a random camp and starts again from nothing until the deductions of the wanted
difficulty solve it. His chances fall exponentially with the area: 0.1 ms at 8×8, 0.5 s at 20×20, and none found
in ten minutes at 30×30. Here some of the trees whose tents stay undecided are moved with their tents to random free
places, and the moves are kept unless more is undecided than before. The cost grows gently: 0.03 s at 30×30 and 1 s at
60×60. In what was measured from 6×6 to 20×20 (how often trees and tents meet each other and the border, how the
sums vary) the puzzles differ from his by a few percent, at most by a tenth.

The difficulties mean what they do in his: easy yields to the easy deductions, tricky to the tricky ones and not to the
easy, and either way they find the only solution and the only way to link its tents to trees.
Departs from his: where he quietly makes 4×4 tricky puzzles easy, `possible` says no. Sides down to 2 work.
"""

from __future__ import annotations

import random

from ponder.tasks.tents.board import bits, board
from ponder.tasks.tents.camp import Camp, random_camp
from ponder.tasks.tents.deduction import Difficulty, State, deduce
from ponder.tasks.tents.puzzle import Puzzle

SHARE = 8  # one undecided tree in so many is moved at a time; at 1 a time 60×60 takes 9 s, not 1 s
PATIENCE = 50  # trials without progress before one is kept that makes it worse


def possible(width: int, height: int, difficulty: Difficulty) -> bool:
    """Whether there are puzzles of this size: with a tree, and if tricky, with room for a tricky one.

    Going through all camps shows the smallest tricky ones at 3×7 and 4×5, where there are 10. (They are as rare at 4×6,
    where one takes seconds.) With a side of 2 the tricky deductions learn nothing that the sums don't tell.
    """
    shorter, area = min(width, height), width * height
    return shorter >= 2 and area >= 5 if difficulty == "easy" else shorter >= 3 and area >= 20


def generate(width: int, height: int, difficulty: Difficulty, rng: random.Random) -> Puzzle:
    """A puzzle with one solution, which needs the deductions of this difficulty."""
    if not possible(width, height, difficulty):
        raise ValueError(f"there is no {difficulty} Tents puzzle of {width}×{height}")
    while True:
        trial = _repaired(_Trial(random_camp(board(width, height), rng), difficulty), rng)
        if trial.tricky or difficulty == "easy":
            state = trial.state
            assert state.tents == trial.camp.tents  # as sound deductions must find
            return Puzzle(width, height, trial.camp.trees, state.columns, state.rows)


class _Trial:
    """How far deduction gets in a camp."""

    __slots__ = ("camp", "difficulty", "state", "tricky", "undecided")

    def __init__(self, camp: Camp, difficulty: Difficulty) -> None:
        self.camp, self.difficulty = camp, difficulty
        columns = tuple([(camp.tents & line).bit_count() for line in camp.board.columns])
        rows = tuple([(camp.tents & line).bit_count() for line in camp.board.rows])
        self.state = State(camp.board, camp.trees, columns, rows)
        self.tricky = deduce(self.state, difficulty)
        self.undecided = (self.state.blank | self.state.lone_trees).bit_count()


def _repaired(trial: _Trial, rng: random.Random) -> _Trial:
    """Move trees that deduction leaves open, with their tents, until there are none."""
    patience = PATIENCE
    while trial.undecided:
        camp = trial.camp
        trees = list(bits(trial.state.lone_trees))
        for tree in rng.sample(trees, 1 + len(trees) // SHARE):
            moved = camp.moved(tree, rng)
            if not moved.bare():
                camp = moved
        other = _Trial(camp, trial.difficulty)
        patience = PATIENCE if other.undecided < trial.undecided else patience - 1
        if other.undecided <= trial.undecided or not patience:
            trial, patience = other, patience or PATIENCE
    return trial
