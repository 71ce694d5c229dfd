"""Make Tents puzzles with exactly one solution by repairing the part of a random camp that deduction leaves open.

Simon Tatham's `tents.c` makes a random camp and starts again from nothing until the deductions of the wanted
difficulty solve it. His chances fall exponentially with the area: 0.1 ms at 8×8, 0.5 s at 20×20, and none found
in ten minutes at 30×30. Here a tree whose tent stays undecided is moved with its tent to a random free place, and the
move is kept unless more is undecided than before, so the cost grows gently: 0.1 s at 30×30.

The difficulties mean what they do in his: easy yields to the easy deductions, tricky to the tricky ones and not to the
easy, and either way they find the only solution and the only way to link its tents to trees.
Departs from his: where he quietly makes 4×4 tricky puzzles easy, `possible` says no. Sides down to 2 work.
"""

from __future__ import annotations

import random

from .board import bits, board
from .camp import Camp, random_camp
from .deduction import Difficulty, State, deduce
from .puzzle import Puzzle

SHARE = 8  # one undecided tree in so many is moved at a time; at 1 a time 60×60 takes 9 s, not 1 s
PATIENCE = 50  # trials without progress before one is kept that makes it worse


def possible(width: int, height: int, difficulty: Difficulty) -> bool:
    """Whether there are puzzles of this size: with a tree, and if tricky, with room for a tricky one.

    By going through all camps, the smallest tricky puzzles are 3×7 and 4×5 (of which there are 10); with a side of 2 no
    tricky deduction can learn anything that the sums of the columns don't tell.
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
            # An earlier move can't have taken this tree: it moves each tree once.
            other = camp.moved(tree, rng)
            if not other.bare():
                camp = other
        other = _Trial(camp, trial.difficulty)
        patience = PATIENCE if other.undecided < trial.undecided else patience - 1
        if other.undecided <= trial.undecided or not patience:
            trial, patience = other, patience or PATIENCE
    return trial
