"""Tents: ids survive the round trip or say what is wrong, and the rules name what a grid breaks."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.tasks.tents.board import board
from ponder.tasks.tents.deduction import Difficulty
from ponder.tasks.tents.puzzle import Grid, Puzzle

EASY_8 = "8x8:ae__ijcecgbcd,3,1,2,1,1,1,2,1,2,1,2,1,1,1,1,3"
TRICKY_8 = "8x8:cd_gdeba_nbbh,1,3,1,1,1,2,1,2,2,1,2,1,2,1,1,2"
EASY_4 = "4x4:_cia,1,1,0,1,1,0,1,1"
EASY_6 = "6x6:ccedaaka,1,1,2,0,2,1,2,0,3,0,1,1"
# trees on the four sides of the middle: its corners link to them in two ways
RING = "3x3:aaaaa,2,0,2,2,0,2"
DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "tricky")


def drawn(text: str) -> Grid:
    return [[".TA".index(cell) % 3 or 3 for cell in row] for row in text.split()]


def puzzle(text: str) -> Puzzle:
    """The puzzle with this solution (T tree, A tent)."""
    grid = drawn(text)
    rows = tuple(row.count(2) for row in grid)
    columns = tuple(column.count(2) for column in zip(*grid, strict=True))
    width = len(columns)
    trees = sum(
        board(width, len(rows)).bit(y, x)
        for y, row in enumerate(grid)
        for x, c in enumerate(row)
        if c == 1
    )
    return Puzzle(width, len(rows), trees, columns, rows)


# --- ids
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [EASY_8, TRICKY_8, EASY_4, EASY_6, RING])
def test_an_id_survives_the_round_trip(text: str) -> None:
    assert Puzzle.from_id(text).id == text


def test_an_id_may_carry_its_difficulty_and_a_square_one_side() -> None:
    assert Puzzle.from_id(EASY_8.replace("8x8", "8x8de")) == Puzzle.from_id(EASY_8)
    assert Puzzle.from_id(EASY_8.replace("8x8", "8dt")) == Puzzle.from_id(EASY_8)


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_any_puzzle_survives_the_round_trip(width: int, height: int, data: st.DataObject) -> None:
    trees = data.draw(st.integers(0, 2**400 - 1)) & board(width, height).cells
    columns = tuple(data.draw(st.lists(st.integers(0, height), min_size=width, max_size=width)))
    rows = tuple(data.draw(st.lists(st.integers(0, width), min_size=height, max_size=height)))
    sparse = Puzzle(width, height, trees & data.draw(st.sampled_from([-1, 1, 0])), columns, rows)
    assert Puzzle.from_id(sparse.id) == sparse


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not of the form"),
        ("4x4", "not of the form"),
        ("4x4:_cia,1,1,0,one", "not of the form"),
        ("4x4:_cia,1,1,0,-1,1,0,1,1", "not of the form"),
        ("99999x4:_", "not of the form"),
        ("0x0:_", "no cells"),
        ("4x4:_cia,1,1,0,1,1,0,1", "expected 8 sums, got 7"),
        ("4x4:_cia,1,1,0,1,1,0,1,1,1", "expected 8 sums, got 9"),
        ("4x4:_cia", "expected 8 sums, got 0"),
        ("4x4:_ci,1,1,0,1,1,0,1,1", "stop before the end"),
        ("4x4:,1,1,0,1,1,0,1,1", "stop before the end"),
        ("9999x9999:a,1", "at most 10,000 cells"),
        ("4x4:_ciaa,1,1,0,1,1,0,1,1", "past the end"),
        ("4x4:_cz,1,1,0,1,1,0,1,1", "past the end"),
        ("4x4:_cIa,1,1,0,1,1,0,1,1", "unknown letter `I`"),
        ("4x4:_c!ia,1,1,0,1,1,0,1,1", "already marked"),
        ("4x4:_cia,1,1,0,5,1,0,1,1", "not between 0 and 4"),
    ],
)
def test_junk_ids_say_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Puzzle.from_id(text)


@given(st.text(alphabet="0123456789x:,_azd!-", max_size=40) | st.text(max_size=20))
def test_any_text_is_a_puzzle_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert Puzzle.from_id(Puzzle.from_id(text).id)


# --- the rules
# ---------------------------------------------------------------------------------------------------


def test_the_known_solution_of_an_id() -> None:
    grid = drawn("AT....AT TTA..... A..T..A. ...A..T. .AT..... T...TA.. A...T..T ..ATA..A")
    p = Puzzle.from_id(EASY_8)
    assert p.solve("easy") == p.solve("tricky") == grid
    assert p.solutions() == [grid]
    assert p.check(grid) is None
    # grass may stay empty
    assert p.check([[0 if cell == 3 else cell for cell in row] for row in grid]) is None


def changed(grid: Grid, *cells: tuple[int, int, int]) -> Grid:
    grid = [row.copy() for row in grid]
    for row, column, code in cells:
        grid[row][column] = code
    return grid


def test_check_names_the_broken_rule() -> None:
    p = Puzzle.from_id(EASY_4)  # TA.. / T... / A... / ..TA
    right = drawn("TA.. T... A... ..TA")
    assert p.check(right) is None
    assert p.check(right[:3]) == "wrong shape"
    assert p.check(changed(right, (0, 3, 1))) == "trees altered"
    assert p.check(changed(right, (0, 0, 3))) == "trees altered"
    assert p.check(changed(right, (0, 0, 2))) == "trees altered"
    assert p.check(changed(right, (2, 0, 3), (1, 1, 2))) == "tents touch"
    assert p.check(changed(right, (2, 0, 3), (2, 1, 2), (1, 0, 1))) == "column sum"
    assert p.check(changed(right, (2, 0, 3))) == "row sum"
    assert p.check(changed(right, (2, 0, 9))) == "unknown cell"
    assert p.check(p.grid()) == "row sum"


def test_sums_alone_are_not_enough() -> None:
    """Two tents beside the same tree, and a tree beside none."""
    p = puzzle("AT... ..... ..A.T")  # the sums of a camp that isn't one
    assert p.check(drawn("AT... ..... ..A.T")) == "tents and trees unmatched"
    p = puzzle("ATA.. ..... ....T")
    assert p.check(drawn("ATA.. ..... ....T")) == "tents and trees unmatched"
    assert p.solutions() == []


@pytest.mark.parametrize("camp", ["TA. ..A ..T", ".AT A.. T..", "TA .A .T"])
def test_tents_touch_at_an_edge_or_a_corner(camp) -> None:
    """Sums and pairs are right, so nothing else is wrong with these."""
    assert puzzle(camp).check(drawn(camp)) == "tents touch"
    assert drawn(camp) not in puzzle(camp).solutions()


def test_a_tent_may_touch_two_trees() -> None:
    p = puzzle("ATAT")  # the second tent stands between both trees
    assert p.check(drawn("ATAT")) is None
    p = puzzle("ATAT. ..... TA...")
    assert p.solutions() == [p.solve()]


def test_more_tents_than_trees_is_wrong_whatever_the_sums() -> None:
    assert puzzle("TA.A").check(drawn("TA.A")) == "tents and trees unmatched"


def test_two_trees_cannot_share_a_tent() -> None:
    p = puzzle("TAT")
    assert p.check(drawn("TAT")) == "tents and trees unmatched"
    assert p.solve() is None
    assert p.solutions() == []


def test_a_ring_has_one_solution_that_links_cannot_decide() -> None:
    """Tatham's solver asks for the links too, and so gets stuck."""
    p = Puzzle.from_id(RING)
    assert p.solutions() == [drawn("ATA T.T ATA")]
    assert p.check(drawn("ATA T.T ATA")) is None
    assert p.solve() is None


JUNK: list[Any] = [
    None,
    7,
    "TA..",
    {},
    [],
    [[]] * 4,
    [None] * 4,
    ["TA..", "T...", "A...", "..TA"],
    [[1, 2, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 1]],
    [[1.0, 2.0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 1, 2]],
    [[True, 2, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 1, 2]],
    [["1", 2, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 1, 2]],
    [[[1], 2, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 1, 2]],
    [[1, 2, 0, 10**400], [1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 1, 2]],
    [[1, 2, 0, float("nan")], [1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 1, 2]],
    [[0] * 10_000] * 10_000,
]


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:30])
def test_junk_is_wrong_and_never_raises(junk: Any) -> None:
    assert Puzzle.from_id(EASY_4).check(junk) in {"wrong shape", "unknown cell"}
