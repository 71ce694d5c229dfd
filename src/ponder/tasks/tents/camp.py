"""Places tents and trees at random: tents that don't touch, each with its tree.

The puzzle may have many solutions.

As in Simon Tatham's `tents.c` there are ⌊area / 5⌋ tents in random places, each with a tree on a
random side, and no row or column is bare (without tent and tree). He starts again if the tents
don't fit or a row or column is bare, which on large or long boards happens almost always; here
tents are moved instead. If a side is below 4, his minimum, bare rows and columns are allowed,
because there are few such camps without one, or none.
"""

from __future__ import annotations

import random
from itertools import islice

from ponder.tasks.tents.board import Board, bits


class Camp:
    """Trees with their tents, and both as sets of cells."""

    __slots__ = ("board", "tent_of", "tents", "trees")

    def __init__(self, board: Board, tent_of: dict[int, int], tents: int, trees: int) -> None:
        self.board = board
        self.tent_of = tent_of  # by tree
        self.tents = tents
        self.trees = trees

    def moved(self, tree: int, rng: random.Random) -> Camp:
        """Return the camp with a tree and its tent moved to random free cells, or to the old ones."""
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
