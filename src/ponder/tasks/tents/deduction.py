"""Solves Tents without guessing, by the deductions of Simon Tatham's `tents.c` at his two difficulties.

Easy pairs tents with trees, rules out cells, and counts along rows and columns. Tricky also uses the corner between the
only two places of a tree's tent, and the cells beside a line that is nearly full. Every rule is a function that looks
at all cells at once (see `board`) and returns whether it deduced anything. The rules are monotonic, so they end in the
same state in any order.

One difference: `tents.c` enumerates all C(n, k) ways to put a line's k missing tents into its n blank cells. The same
conclusions follow from the lengths of the runs of blanks. A run of n cells holds at most ⌈n/2⌉ tents; the sum of that
over the line's runs, minus k, is its slack. With slack 0 the runs of odd length are forced, with more nothing is, and
cells beside the line can be forced only if the slack is 0 or 1 (the rules say why).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from ponder.tasks.tents.board import Board

Difficulty: TypeAlias = Literal["easy", "tricky"]


class Contradiction(Exception):
    """The puzzle, or the guess being tried, has no solution."""


class State:
    """What is known about a puzzle, as sets of cells. A cell that is neither tree, tent nor blank is grass."""

    __slots__ = ("blank", "board", "columns", "counted", "lone_tents", "lone_trees", "rows", "tents")

    def __init__(self, board: Board, trees: int, columns: tuple[int, ...], rows: tuple[int, ...]) -> None:
        self.board, self.columns, self.rows = board, columns, rows
        self.blank = board.cells & ~trees
        self.tents = 0
        self.lone_tents, self.lone_trees = 0, trees  # not yet paired
        self.counted = -1  # the blank cells when `fill_lines` last ran; -1 before

    def copy(self) -> State:
        other = State.__new__(State)
        for name in State.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    @property
    def solved(self) -> bool:
        return not (self.blank | self.lone_tents | self.lone_trees)

    def pitch(self, cells: int) -> bool:
        """Put a tent on each of these blank cells."""
        self.tents |= cells
        self.lone_tents |= cells
        self.blank &= ~cells
        if self.board.around(cells) & self.tents:
            raise Contradiction("two tents touch")
        return cells != 0

    def rule_out(self, cells: int) -> bool:
        """Make those of these cells grass that are blank."""
        cells &= self.blank
        self.blank ^= cells
        return cells != 0


class _Sides(NamedTuple):
    """The subsets of some cells that have a possible partner above, below, to the left, to the right."""

    above: int
    below: int
    left: int
    right: int

    @classmethod
    def of(cls, cells: int, partners: int, stride: int) -> _Sides:
        return cls(
            cells & partners << stride,
            cells & partners >> stride,
            cells & partners << 1,
            cells & partners >> 1,
        )

    def once(self, cells: int) -> int:
        """The cells with exactly one possible partner; a cell without any is a contradiction."""
        above, below, left, right = self
        vertical, horizontal = above | below, left | right
        if cells & ~(vertical | horizontal):
            raise Contradiction("a tent or tree without a partner")
        return (vertical ^ horizontal) & ~(above & below | left & right)

    def partners(self, cells: int, stride: int) -> int:
        """The partners of cells that have exactly one; two cells with the same partner are a contradiction."""
        above, below = (cells & self.above) >> stride, (cells & self.below) << stride
        left, right = (cells & self.left) >> 1, (cells & self.right) << 1
        together = above | below | left | right
        if together.bit_count() != cells.bit_count():
            raise Contradiction("a partner is wanted twice")
        return together


def link_tents(state: State) -> bool:
    """A tent with a single unpaired tree beside it belongs to that tree."""
    if not state.lone_tents:
        return False
    stride = state.board.stride
    sides = _Sides.of(state.lone_tents, state.lone_trees, stride)
    tents = sides.once(state.lone_tents)
    state.lone_trees ^= sides.partners(tents, stride)
    state.lone_tents ^= tents
    return tents != 0


def clear_far_from_trees(state: State) -> bool:
    """A cell with no unpaired tree beside it is grass."""
    return state.rule_out(~state.board.beside(state.lone_trees))


def clear_around_tents(state: State) -> bool:
    """A cell that touches a tent is grass."""
    return state.rule_out(state.board.around(state.tents))


def link_trees(state: State) -> bool:
    """A tree with a single place left for its tent has it there."""
    stride = state.board.stride
    sides = _Sides.of(state.lone_trees, state.blank | state.lone_tents, stride)
    trees = sides.once(state.lone_trees)
    if not trees:
        return False
    tents = sides.partners(trees, stride)
    state.pitch(tents & state.blank)
    state.lone_tents &= ~tents
    state.lone_trees ^= trees
    return True


def clear_corners(state: State) -> bool:
    """Tricky: if a tree's tent has two places left, at a right angle, the cell that touches both is grass."""
    stride = state.board.stride
    above, below, left, right = _Sides.of(state.lone_trees, state.blank | state.lone_tents, stride)
    corner = ~(above & below | left & right)  # no two opposite sides, so two sides at most
    return state.rule_out(
        (above & left & corner) >> stride + 1
        | (above & right & corner) >> stride - 1
        | (below & left & corner) << stride - 1
        | (below & right & corner) << stride + 1
    )


class _Runs(NamedTuple):
    """The runs of blank cells along all rows (step 1) or all columns (step `stride`).

    `full` is the fullest packing, greedily from each run's first cell: its size is the most tents that fit.
    `odd` is the part of it in runs of odd length, which have no other packing of that size.
    """

    full: int
    odd: int

    @classmethod
    def of(cls, blank: int, step: int) -> _Runs:
        inner = blank & blank << step
        full = placed = blank ^ inner
        while placed := placed << 2 * step & inner:
            full |= placed
        odd = placed = full & ~(blank >> step)
        while placed := (placed & inner) >> 2 * step:
            odd |= placed
        return cls(full, odd)


def _lines(state: State) -> tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]:
    """Rows, then columns: the step along the line, the lines, the number of tents in each."""
    board = state.board
    return (1, board.rows, state.rows), (board.stride, board.columns, state.columns)


def fill_lines(state: State) -> bool:
    """In a line that has all its tents the rest is grass; a line without slack has tents all along its odd runs.

    Nothing else follows from a single line. With slack, any cell can be a tent or not: either choice lowers the most
    that fit by one at most. Without slack, a run of even length 2n has n + 1 packings (n pairs, of which the first few
    have the tent on the left), and no cell is the same in all of them.
    """
    learned, news = False, state.counted if state.counted < 0 else state.counted ^ state.blank
    state.counted = state.blank
    for step, lines, counts in _lines(state):
        full, odd = _Runs.of(state.blank, step)
        done = forced = 0
        for line, count in zip(lines, counts, strict=True):
            if not news & line:
                continue
            missing = count - (state.tents & line).bit_count()
            slack = (full & line).bit_count() - missing
            if missing < 0 or slack < 0:
                raise Contradiction("too many tents in a line, or too few places")
            if not missing:
                done |= line
            elif not slack:
                forced |= line
        learned |= state.rule_out(done) | state.pitch(odd & forced)
    return learned


def clear_beside_lines(state: State) -> bool:
    """Tricky: a cell is grass if every way to fill the adjacent line puts a tent within one cell of it.

    That holds for the cells beside p if too few tents fit without p and its two neighbours: the loss must exceed the
    slack. The loss is 1 for any blank p, and 2 if p is between the tents of a full odd run; for any other p it is 1 for
    each odd run that ends just before or after p.
    """
    ruled_out = 0
    for (step, lines, counts), across in zip(_lines(state), (state.board.stride, 1), strict=True):
        full, odd = _Runs.of(state.blank, step)
        tight = nearly = 0
        for line, count in zip(lines, counts, strict=True):
            slack = (full & line).bit_count() - count + (state.tents & line).bit_count()
            if slack == 0:
                tight |= line
            elif slack == 1:
                nearly |= line
        before, after = odd << step, odd >> step
        seen = tight & (state.blank | before | after) | nearly & before & after
        ruled_out |= seen << across | seen >> across
    return state.rule_out(ruled_out)


LOCAL = (clear_far_from_trees, clear_around_tents, link_trees, link_tents)
TRICKY = (clear_corners, clear_beside_lines)


def deduce(state: State, difficulty: Difficulty) -> bool:
    """Apply the rules until none deduces anything more; returns whether a tricky one did.

    Tricky rules are applied only when the easy ones are stuck, so a puzzle that used one is not easy.
    """
    tricky = False
    while True:
        while any([rule(state) for rule in LOCAL]) or fill_lines(state):
            pass
        if difficulty == "easy" or not any([rule(state) for rule in TRICKY]):
            return tricky
        tricky = True


def deduced(state: State, difficulty: Difficulty) -> int | None:
    """The tents of the only solution, if the rules decide every cell and every pair; else None."""
    try:
        deduce(state, difficulty)
    except Contradiction:
        return None
    return state.tents if state.solved else None
