"""Make Tents puzzles with exactly one solution by repairing the part of a random camp that deduction leaves open.

Simon Tatham's `tents.c` makes a random camp (tents, then a tree for each), and starts again from nothing until the
deductions of the wanted difficulty solve it. His chances fall exponentially with the area: 0.1 ms at 8×8, 0.5 s at
20×20, and none found in ten minutes at 30×30. Here a tree whose tent stays undecided is moved with its tent to
a random free place, and the move is kept unless more cells are left undecided than before, so the cost grows
gently: 0.15 s at 30×30.

The same as Tatham's: ⌊area / 5⌋ trees, a tree or tent in each row and column, only one way to link tents and trees,
and the meaning of the difficulties: easy yields to the easy deductions, tricky to the tricky ones and not to the
easy. Departs from his: where he quietly makes 4×4 tricky puzzles easy, `possible` says no.
Sides down to 2 work; where so few trees can't reach each row and column, none are asked to.
"""

from __future__ import annotations

import random
from itertools import islice

from .board import Board, bits, board
from .deduction import Difficulty, State, deduce
from .puzzle import Puzzle

TOO_EASY = 6  # flaws
PATIENCE = 50  # moves without progress before one is kept that makes it worse


def possible(width: int, height: int, difficulty: Difficulty) -> bool:
    """Whether there are puzzles of this size."""
    return True


def generate(width: int, height: int, difficulty: Difficulty, rng: random.Random) -> Puzzle:
    """A puzzle with one solution, which needs the deductions of this difficulty."""
    if not possible(width, height, difficulty):
        raise ValueError(f"there is no {difficulty} Tents puzzle of {width}×{height}")
    grounds = board(width, height)
    tent_of = _planted(grounds, _pitched(grounds, rng), rng)
    camp, patience = Camp(grounds, difficulty, tent_of, sum(tent_of.values()), sum(tent_of)), PATIENCE
    while camp.flaws:
        other = camp.moved(rng)
        patience = PATIENCE if other.flaws < camp.flaws else patience - 1
        if other.flaws <= camp.flaws or not patience:
            camp, patience = other, patience or PATIENCE
    return camp.puzzle()


class Camp:
    """Tents, each with its tree, and what deduction can't tell about them."""

    __slots__ = ("board", "difficulty", "flaws", "state", "tent_of", "tents", "trees")

    def __init__(self, board: Board, difficulty: Difficulty, tent_of: dict[int, int], tents: int, trees: int) -> None:
        self.board, self.difficulty, self.tent_of, self.tents, self.trees = board, difficulty, tent_of, tents, trees
        columns = tuple([(tents & line).bit_count() for line in board.columns])
        rows = tuple([(tents & line).bit_count() for line in board.rows])
        self.state = State(board, trees, columns, rows)
        hard = deduce(self.state, difficulty)
        self.flaws = (self.state.blank | self.state.lone_trees).bit_count() + self._bare_lines()
        if not self.flaws and difficulty == "tricky" and not hard:
            self.flaws = TOO_EASY

    def puzzle(self) -> Puzzle:
        return Puzzle(self.board.width, self.board.height, self.trees, self.state.columns, self.state.rows)

    def moved(self, rng: random.Random) -> Camp:
        """The camp with one tree, undecided if any is, and its tent put elsewhere."""
        while True:
            tree = _any(self.state.lone_trees or self.trees, rng)
            tent = self.tent_of[tree]
            tents, trees = self.tents ^ tent, self.trees ^ tree
            new_tent = _any(self.board.cells & ~(tents | trees | self.board.around(tents)), rng)
            free = self.board.beside(new_tent) & ~(tents | trees)
            if not free:
                continue
            new_tree = _any(free, rng)
            if (new_tent, new_tree) != (tent, tree):
                tent_of = self.tent_of.copy()
                del tent_of[tree]
                tent_of[new_tree] = new_tent
                return Camp(self.board, self.difficulty, tent_of, tents | new_tent, trees | new_tree)

    def _bare_lines(self) -> int:
        """The rows and columns with neither tree nor tent, beyond those that must be."""
        used = self.trees | self.tents
        return [used & line for line in self.board.rows + self.board.columns].count(0)


def _any(cells: int, rng: random.Random) -> int:
    return next(islice(bits(cells), rng.randrange(cells.bit_count()), None))


def _pitched(board: Board, rng: random.Random) -> list[int]:
    """As many tents as there are to be trees, none touching.

    Filling a random order of cells gets stuck at 0.187 tents a cell on large boards (random sequential adsorption of
    2×2 squares), short of 0.2. Then tents are moved to random free places until there is room for the next.
    """
    wanted = board.width * board.height // 5
    tents: list[int] = []
    free = board.cells
    while len(tents) < wanted:
        if not free:
            index = rng.randrange(len(tents))
            tents[index] = tents[-1]
            tents.pop()
            taken = sum(tents)
            free = board.cells & ~(taken | board.around(taken))
        tent = _any(free, rng)
        tents.append(tent)
        free &= ~(tent | board.around(tent))
    return tents


def _planted(board: Board, tents: list[int], rng: random.Random) -> dict[int, int]:
    """A tree beside each tent (tree: tent); one that finds no place drives another's tree away.

    This ends: a tent has two cells beside it at least, and a cell has two tents beside it at most.
    """
    tent_of: dict[int, int] = {}
    ground = board.cells & ~sum(tents)
    queue = tents.copy()
    while queue:
        tent = queue.pop()
        near = board.beside(tent) & ground
        tree = _any(near & ~sum(tent_of) or near, rng)
        if tree in tent_of:
            queue.append(tent_of[tree])
        tent_of[tree] = tent
    return tent_of
