"""Solve Tents without guessing, by the deductions of Simon Tatham's `tents.c` at his two difficulties.

Easy links tents to trees, rules out cells, and counts along rows and columns. Tricky also looks across: at the corner
between the only two places of a tree's tent, and at the cells beside a line that is nearly full. Every rule is a
function that looks at all cells at once (see `board`) and says whether it learnt something. Knowing more never makes
a rule say less, so they end in the same state in whatever order they are asked.

Departs from Tatham's: he goes through all C(n, k) ways to put a line's k missing tents into its n blank cells. The
same conclusions follow from the lengths of the runs of blanks. A run of n cells holds at most ⌈n/2⌉ tents; what the
runs of a line hold together, less k, is its slack. Without slack the runs of odd length are forced, with it nothing
is, and beside the line cells can be forced only where the slack is 0 or 1 (the rules say why).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from ponder.tasks.tents.board import Board

Difficulty: TypeAlias = Literal["easy", "tricky"]


class Contradiction(Exception):
    """The puzzle, or the guess being tried, has no solution."""


class State:
    """What is known of a puzzle, as sets of cells. Those neither tree, tent nor blank are grass."""

    __slots__ = ("blank", "board", "columns", "counted", "lone_tents", "lone_trees", "rows", "tents")

    def __init__(self, board: Board, trees: int, columns: tuple[int, ...], rows: tuple[int, ...]) -> None:
        self.board, self.columns, self.rows = board, columns, rows
        self.blank = board.cells & ~trees
        self.tents = 0
        self.lone_tents, self.lone_trees = 0, trees  # not yet linked to a partner
        self.counted = -1  # what was blank when `fill_lines` last counted; -1 before it did

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
        """Make grass of those of these cells that are blank."""
        cells &= self.blank
        self.blank ^= cells
        return cells != 0


class _Sides(NamedTuple):
    """Those of some cells that have a partner above, below, to the left, to the right."""

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
        """The cells with exactly one partner; each must have some."""
        above, below, left, right = self
        vertical, horizontal = above | below, left | right
        if cells & ~(vertical | horizontal):
            raise Contradiction("a tent or tree without a partner")
        return (vertical ^ horizontal) & ~(above & below | left & right)

    def partners(self, cells: int, stride: int) -> int:
        """The partners of cells that have one each; no two may share it."""
        above, below = (cells & self.above) >> stride, (cells & self.below) << stride
        left, right = (cells & self.left) >> 1, (cells & self.right) << 1
        together = above | below | left | right
        if together.bit_count() != cells.bit_count():
            raise Contradiction("a partner is wanted twice")
        return together


def link_tents(state: State) -> bool:
    """A tent with a single unlinked tree beside it belongs to that tree."""
    if not state.lone_tents:
        return False
    stride = state.board.stride
    sides = _Sides.of(state.lone_tents, state.lone_trees, stride)
    tents = sides.once(state.lone_tents)
    state.lone_trees ^= sides.partners(tents, stride)
    state.lone_tents ^= tents
    return tents != 0


def clear_far_from_trees(state: State) -> bool:
    """A cell with no unlinked tree beside it is grass."""
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
    """Tricky: where a tree's tent has two places left, at a right angle, the cell that touches both is grass."""
    stride = state.board.stride
    above, below, left, right = _Sides.of(state.lone_trees, state.blank | state.lone_tents, stride)
    corner = ~(above & below | left & right)  # not on two opposite sides, so on two sides at most
    return state.rule_out(
        (above & left & corner) >> stride + 1
        | (above & right & corner) >> stride - 1
        | (below & left & corner) << stride - 1
        | (below & right & corner) << stride + 1
    )


class _Runs(NamedTuple):
    """The runs of blank cells along all rows (step 1) or all columns (step `stride`).

    `full` is the fullest packing, greedily from each run's first cell: its size in a line is the most tents that fit.
    `odd` is the part of it in runs of odd length, which have no other packing so full.
    """

    full: int
    odd: int

    @classmethod
    def of(cls, blank: int, step: int) -> _Runs:
        inner = blank & blank << step
        full = found = blank ^ inner
        while found := found << 2 * step & inner:
            full |= found
        odd = found = full & ~(blank >> step)
        while found := (found & inner) >> 2 * step:
            odd |= found
        return cls(full, odd)


def _lines(state: State) -> tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]:
    """Rows, then columns: the step along the line, the lines, the number of tents in each."""
    board = state.board
    return (1, board.rows, state.rows), (board.stride, board.columns, state.columns)


def fill_lines(state: State) -> bool:
    """A line that has all its tents is grass elsewhere; one with no slack has tents all along its odd runs.

    That is all that a line tells about itself. With slack, any cell can be a tent or not: taking it as either
    lowers the most that fits by one at most. Without, a run of even length 2n has n + 1 packings (n pairs, the
    first few with the tent on the left) and no cell is the same in all of them.
    """
    learnt, news = False, state.counted if state.counted < 0 else state.counted ^ state.blank
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
        learnt |= state.rule_out(done) | state.pitch(odd & forced)
    return learnt


def clear_beside_lines(state: State) -> bool:
    """Tricky: a cell is grass if each way to fill the next line puts a tent within one cell of it.

    That is so for the cells beside p if without p and its two neighbours too few tents fit: the loss must exceed the
    slack. The loss is 1 for any blank p, but 2 for one between the tents of a full odd run; and for any other p
    it is 1 for each odd run that ends just before or after p.
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
    """Apply the rules until none learns anything more; say whether a tricky one did.

    The tricky ones are asked last, so one that learns something is one that easy would be stuck without.
    """
    tricky = False
    while True:
        while any([rule(state) for rule in LOCAL]) or fill_lines(state):
            pass
        if difficulty == "easy" or not any([rule(state) for rule in TRICKY]):
            return tricky
        tricky = True


def deduced(state: State, difficulty: Difficulty) -> int | None:
    """The tents of the only solution, where the rules decide every cell and every link."""
    try:
        deduce(state, difficulty)
    except Contradiction:
        return None
    return state.tents if state.solved else None
