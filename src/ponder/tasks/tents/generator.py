"""Generates Tents puzzles with exactly one solution, by local repair of a random camp.

Simon Tatham's `tents.c` draws random camps until the deductions of the wanted difficulty solve one.
Its chance falls exponentially with the area: it takes 0.1 ms at 8×8 and 0.5 s at 20×20, and found
none in ten minutes at 30×30. Here, some of the trees whose tents deduction leaves undecided are
moved with their tents to random free places, and the move is kept unless more is undecided than
before. That takes 0.03 s at 30×30 and 1 s at 60×60. From 6×6 to 20×20 the puzzles' statistics (how
often trees and tents touch each other and the border, how the sums vary) differ from his by a few
percent, by a tenth at most.

The difficulties mean what they mean there: the easy deductions solve an easy puzzle; a tricky one
needs the tricky deductions too. In both cases deduction finds the only solution and the only
pairing of tents and trees. One difference: `tents.c` silently makes 4×4 tricky puzzles easy, here
`possible` returns False. Sides down to 2 work.
"""

from __future__ import annotations

import random

from ponder.tasks.tents.board import bits, board
from ponder.tasks.tents.camp import Camp, random_camp
from ponder.tasks.tents.deduction import Difficulty, State, deduce
from ponder.tasks.tents.puzzle import Puzzle

# One in 8 undecided trees is moved per trial; moving a single tree, 60×60 takes 9 s instead of 1 s.
MOVED = 8
PATIENCE = 50  # trials without progress, after which one that makes it worse is kept


def possible(width: int, height: int, difficulty: Difficulty) -> bool:
    """Return whether there are puzzles of this size and difficulty.

    By enumeration of all camps, the smallest tricky puzzles are 3×7 and 4×5, of which there are 10.
    (At 4×6 they are as rare, and generating one takes seconds.) With a side of 2, the tricky
    deductions add nothing to the sums.
    """
    shorter = min(width, height)
    area = width * height
    if difficulty == "easy":
        return shorter >= 2 and area >= 5
    return shorter >= 3 and area >= 20


def generate(width: int, height: int, difficulty: Difficulty, rng: random.Random) -> Puzzle:
    """Return a random puzzle with one solution, which needs the deductions of this difficulty."""
    if not possible(width, height, difficulty):
        raise ValueError(f"there is no {difficulty} Tents puzzle of {width}×{height}")
    while True:
        camp = random_camp(board(width, height), rng)
        trial = _repaired(_Trial(camp, difficulty), rng)
        if trial.tricky or difficulty == "easy":
            state = trial.state
            assert state.tents == trial.camp.tents  # or a deduction is wrong
            return Puzzle(width, height, trial.camp.trees, state.columns, state.rows)


class _Trial:
    """A camp, and how much of it deduction leaves undecided."""

    __slots__ = ("camp", "difficulty", "state", "tricky", "undecided")

    def __init__(self, camp: Camp, difficulty: Difficulty) -> None:
        self.camp = camp
        self.difficulty = difficulty
        columns = tuple([(camp.tents & line).bit_count() for line in camp.board.columns])
        rows = tuple([(camp.tents & line).bit_count() for line in camp.board.rows])
        self.state = State(camp.board, camp.trees, columns, rows)
        self.tricky = deduce(self.state, difficulty)
        self.undecided = (self.state.blank | self.state.lone_trees).bit_count()


def _repaired(trial: _Trial, rng: random.Random) -> _Trial:
    """Move trees that deduction leaves undecided, with their tents, until none is."""
    patience = PATIENCE
    while trial.undecided:
        camp = trial.camp
        trees = list(bits(trial.state.lone_trees))
        for tree in rng.sample(trees, 1 + len(trees) // MOVED):
            moved = camp.moved(tree, rng)
            if not moved.bare():
                camp = moved
        changed = _Trial(camp, trial.difficulty)
        patience -= 1
        if changed.undecided < trial.undecided:
            patience = PATIENCE
        if changed.undecided <= trial.undecided or not patience:
            trial = changed
            patience = patience or PATIENCE
    return trial
