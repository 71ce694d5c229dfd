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

A camp is tents that don't touch, each with its tree; a puzzle made from it may have many solutions.
As in `tents.c` there are ⌊area / 5⌋ tents in random places, each with a tree on a random side, and
no row or column is bare (without tent and tree). He starts again if the tents don't fit or a row or
column is bare, which on large or long boards happens almost always; here tents are moved instead.
If a side is below 4, his minimum, bare rows and columns are allowed, because there are few such
camps without one, or none.
"""

from __future__ import annotations

import random
from itertools import islice

from ponder.tasks.tents.board import Board, bits, board
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


class Camp:
    """Trees with their tents, and both as sets of cells."""

    __slots__ = ("board", "tent_of", "tents", "trees")

    def __init__(self, board: Board, tent_of: dict[int, int], tents: int, trees: int) -> None:
        self.board = board
        self.tent_of = tent_of  # by tree
        self.tents = tents
        self.trees = trees

    def moved(self, tree: int, rng: random.Random) -> Camp:
        """Return the camp with a tree and its tent moved to random free cells, or back."""
        tents = self.tents ^ self.tent_of[tree]
        trees = self.trees ^ tree
        free = self.board.cells & ~(tents | trees | self.board.around(tents))
        while True:
            new_tent = random_cell(free, rng)
            sides = self.board.beside(new_tent) & ~(tents | trees)
            if sides:
                break
        new_tree = random_cell(sides, rng)
        tent_of = self.tent_of.copy()
        del tent_of[tree]
        tent_of[new_tree] = new_tent
        return Camp(self.board, tent_of, tents | new_tent, trees | new_tree)

    def bare(self) -> int:
        """Count the rows and columns with neither tree nor tent; 0 if a side is below 4."""
        board = self.board
        if min(board.width, board.height) < 4:
            return 0
        occupied = self.trees | self.tents
        bare_rows = [occupied & row for row in board.rows].count(0)
        bare_columns = [occupied & column for column in board.columns].count(0)
        return bare_rows + bare_columns


def random_camp(board: Board, rng: random.Random) -> Camp:
    """Return a random camp without bare rows and columns."""
    tents = _pitched(board, rng)
    tent_of = _planted(board, tents, rng)
    camp = Camp(board, tent_of, sum(tents), sum(tent_of))
    bare = camp.bare()
    while bare:
        changed = camp.moved(random_cell(camp.trees, rng), rng)
        changed_bare = changed.bare()
        if changed_bare <= bare:
            camp = changed
            bare = changed_bare
    return camp


def random_cell(cells: int, rng: random.Random) -> int:
    """Return a random cell of a set."""
    skipped = rng.randrange(cells.bit_count())
    return next(islice(bits(cells), skipped, None))


def _pitched(board: Board, rng: random.Random) -> list[int]:
    """Return ⌊area / 5⌋ tents in random cells, none touching.

    Filling cells in random order gets stuck at 0.187 tents per cell on large boards (random
    sequential adsorption of 2×2 squares), short of 0.2. From there on, tents are moved to random
    free cells until there is room for one more.
    """
    count = board.width * board.height // 5
    tents: list[int] = []
    free = board.cells
    order = list(bits(free))
    rng.shuffle(order)
    for cell in order:
        if cell & free and len(tents) < count:
            tents.append(cell)
            free &= ~(cell | board.around(cell))
    while len(tents) < count:
        if not free:
            tents.pop(rng.randrange(len(tents)))
            occupied = sum(tents)
            free = board.cells & ~(occupied | board.around(occupied))
        tent = random_cell(free, rng)
        tents.append(tent)
        free &= ~(tent | board.around(tent))
    return tents


def _planted(board: Board, tents: list[int], rng: random.Random) -> dict[int, int]:
    """Return a random tree beside each tent, as {tree: tent}.

    A tent without a free side takes another tent's tree, which moves. It terminates: a tent has at
    least two cells beside it, and a cell at most two tents, so a perfect matching exists.
    """
    tent_of: dict[int, int] = {}
    free = board.cells & ~sum(tents)
    not_tents = free
    queue = tents.copy()
    while queue:
        tent = queue.pop()
        beside = board.beside(tent)
        tree = random_cell(beside & free or beside & not_tents, rng)
        if tree in tent_of:
            queue.append(tent_of[tree])
        tent_of[tree] = tent
        free &= ~tree
    return tent_of
