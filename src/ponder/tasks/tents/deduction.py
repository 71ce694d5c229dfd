"""Solves Tents without guessing, by the deductions of Simon Tatham's `tents.c`.

There are two difficulties. Easy pairs tents with trees, rules out cells, and counts along rows and
columns. Tricky also uses the corner between the only two places of a tree's tent, and the cells
beside a line that is nearly full. Every rule is a function that looks at all cells at once (see
`board`) and returns whether it deduced anything. The rules are monotonic, so they end in the same
state in any order.

One difference: `tents.c` enumerates all C(n, k) ways to put a line's k missing tents into its n
blank cells. The same conclusions follow from the lengths of the runs of blanks. A run of n cells
holds at most ⌈n/2⌉ tents; the sum of that over the line's runs, minus k, is its slack. With slack 0
the runs of odd length are forced, with more nothing is, and cells beside the line can be forced
only if the slack is 0 or 1 (the rules say why).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from ponder.tasks.tents.board import Board

Difficulty: TypeAlias = Literal["easy", "tricky"]


class Contradiction(Exception):
    """The puzzle, or the guess being tried, has no solution."""


class State:
    """The facts about a puzzle so far, as sets of cells.

    A cell that is neither tree, tent nor blank is grass.
    """

    __slots__ = (
        "blank",
        "board",
        "columns",
        "counted",
        "lone_tents",
        "lone_trees",
        "rows",
        "tents",
    )

    def __init__(
        self, board: Board, trees: int, columns: tuple[int, ...], rows: tuple[int, ...]
    ) -> None:
        self.board = board
        self.columns = columns
        self.rows = rows
        self.blank = board.cells & ~trees
        self.tents = 0
        self.lone_tents = 0  # not yet paired
        self.lone_trees = trees  # not yet paired
        self.counted = -1  # the blank cells when `fill_lines` last ran; -1 before

    def copy(self) -> State:
        duplicate = State.__new__(State)
        for name in State.__slots__:
            setattr(duplicate, name, getattr(self, name))
        return duplicate

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
    """The subsets of some cells that have a possible partner above, below, left, right."""

    above: int
    below: int
    left: int
    right: int

    @classmethod
    def of(cls, cells: int, partners: int, stride: int) -> _Sides:
        """Return the sides on which cells have partners."""
        return cls(
            cells & partners << stride,
            cells & partners >> stride,
            cells & partners << 1,
            cells & partners >> 1,
        )

    def once(self, cells: int) -> int:
        """Return the cells with exactly one partner; raise `Contradiction` if one has none."""
        above, below, left, right = self
        vertical = above | below
        horizontal = left | right
        if cells & ~(vertical | horizontal):
            raise Contradiction("a tent or tree without a partner")
        opposite = above & below | left & right
        return (vertical ^ horizontal) & ~opposite

    def partners(self, cells: int, stride: int) -> int:
        """Return the partners of cells with exactly one; raise `Contradiction` if two share it."""
        above = (cells & self.above) >> stride
        below = (cells & self.below) << stride
        left = (cells & self.left) >> 1
        right = (cells & self.right) << 1
        partners = above | below | left | right
        if partners.bit_count() != cells.bit_count():
            raise Contradiction("a partner is wanted twice")
        return partners


def link_tents(state: State) -> bool:
    """Pair each tent that has a single unpaired tree beside it with that tree."""
    if not state.lone_tents:
        return False
    stride = state.board.stride
    sides = _Sides.of(state.lone_tents, state.lone_trees, stride)
    tents = sides.once(state.lone_tents)
    state.lone_trees ^= sides.partners(tents, stride)
    state.lone_tents ^= tents
    return tents != 0


def clear_far_from_trees(state: State) -> bool:
    """Make each cell grass that has no unpaired tree beside it."""
    return state.rule_out(~state.board.beside(state.lone_trees))


def clear_around_tents(state: State) -> bool:
    """Make each cell grass that touches a tent."""
    return state.rule_out(state.board.around(state.tents))


def link_trees(state: State) -> bool:
    """Place the tent of each tree that has a single cell left for it."""
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
    """Make the cell between the only two cells for a tree's tent grass (tricky).

    The two cells are at a right angle, so that the one between touches both.
    """
    stride = state.board.stride
    above, below, left, right = _Sides.of(state.lone_trees, state.blank | state.lone_tents, stride)
    corner = ~(above & below | left & right)  # no two opposite sides, so two sides at most
    above_left = (above & left & corner) >> stride + 1
    above_right = (above & right & corner) >> stride - 1
    below_left = (below & left & corner) << stride - 1
    below_right = (below & right & corner) << stride + 1
    return state.rule_out(above_left | above_right | below_left | below_right)


class _Runs(NamedTuple):
    """The runs of blank cells along all rows (step 1) or all columns (step `stride`).

    `full` is the fullest packing, greedily from each run's first cell: its size is the most tents
    that fit. `odd` holds its cells in runs of odd length, which have no other packing of that size.
    """

    full: int
    odd: int

    @classmethod
    def of(cls, blank: int, step: int) -> _Runs:
        """Return the packings of all runs of blank cells."""
        inner = blank & blank << step
        first_cells = blank ^ inner
        full = first_cells
        placed = first_cells
        while placed := placed << 2 * step & inner:
            full |= placed
        last_cells = full & ~(blank >> step)
        odd = last_cells
        placed = last_cells
        while placed := (placed & inner) >> 2 * step:
            odd |= placed
        return cls(full, odd)


def _lines(state: State) -> tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]:
    """Return for rows, then for columns: the step along a line, the lines, the tents in each."""
    board = state.board
    rows = (1, board.rows, state.rows)
    columns = (board.stride, board.columns, state.columns)
    return rows, columns


def fill_lines(state: State) -> bool:
    """Fill lines that have all their tents with grass, and odd runs of lines without slack.

    Nothing else follows from a single line. With slack, any cell can be a tent or not: either
    choice lowers the most that fit by one at most. Without slack, a run of even length 2n has n + 1
    packings (n pairs, of which the first few have the tent on the left), and no cell is the same in
    all of them.
    """
    learned = False
    changed = -1  # all cells
    if state.counted >= 0:
        changed = state.counted ^ state.blank
    state.counted = state.blank
    for step, lines, counts in _lines(state):
        full, odd = _Runs.of(state.blank, step)
        done = 0
        forced = 0
        for line, count in zip(lines, counts, strict=True):
            if not changed & line:
                continue
            missing = count - (state.tents & line).bit_count()
            slack = (full & line).bit_count() - missing
            if missing < 0 or slack < 0:
                raise Contradiction("too many tents in a line, or too few places")
            if not missing:
                done |= line
            elif not slack:
                forced |= line
        learned |= state.rule_out(done)
        learned |= state.pitch(odd & forced)
    return learned


def clear_beside_lines(state: State) -> bool:
    """Make cells grass that touch a tent however the adjacent line is filled (tricky).

    That holds for the cells beside p if too few tents fit without p and its two neighbours: the
    loss must exceed the slack. The loss is 1 for any blank p, and 2 if p is between the tents of a
    full odd run; for any other p it is 1 for each odd run that ends just before or after p.
    """
    ruled_out = 0
    for (step, lines, counts), across in zip(_lines(state), (state.board.stride, 1), strict=True):
        full, odd = _Runs.of(state.blank, step)
        without_slack = 0
        slack_of_one = 0
        for line, count in zip(lines, counts, strict=True):
            missing = count - (state.tents & line).bit_count()
            slack = (full & line).bit_count() - missing
            if slack == 0:
                without_slack |= line
            elif slack == 1:
                slack_of_one |= line
        before = odd << step
        after = odd >> step
        costs_one = without_slack & (state.blank | before | after)
        costs_two = slack_of_one & before & after
        critical = costs_one | costs_two
        ruled_out |= critical << across | critical >> across
    return state.rule_out(ruled_out)


LOCAL = (clear_far_from_trees, clear_around_tents, link_trees, link_tents)
TRICKY = (clear_corners, clear_beside_lines)


def deduce(state: State, difficulty: Difficulty) -> bool:
    """Apply the rules until none deduces anything more; return whether a tricky one did.

    Tricky rules are applied only when the easy ones are stuck, so a puzzle that used one is not
    easy.
    """
    tricky = False
    while True:
        while any([rule(state) for rule in LOCAL]) or fill_lines(state):
            pass
        if difficulty == "easy" or not any([rule(state) for rule in TRICKY]):
            return tricky
        tricky = True


def deduced(state: State, difficulty: Difficulty) -> int | None:
    """Return the tents of the only solution; None if the rules leave a cell or pair undecided."""
    try:
        deduce(state, difficulty)
    except Contradiction:
        return None
    if not state.solved:
        return None
    return state.tents
