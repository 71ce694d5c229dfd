"""Tents: ids, rules, deductions, search and generator, against brute force and against Simon Tatham's program."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.tasks.tents.board import board
from ponder.tasks.tents.deduction import LOCAL, TRICKY, Contradiction, Difficulty, State, clear_beside_lines, fill_lines
from ponder.tasks.tents.generator import generate, possible
from ponder.tasks.tents.puzzle import Grid, Puzzle, matching

SGT = shutil.which("sgt-tents") or shutil.which("sgt-tents", path="/usr/games")
needs_sgt = pytest.mark.skipif(SGT is None, reason="sgt-tents is not installed (Debian: sgt-puzzles)")

EASY_8 = "8x8:ae__ijcecgbcd,3,1,2,1,1,1,2,1,2,1,2,1,1,1,1,3"
TRICKY_8 = "8x8:cd_gdeba_nbbh,1,3,1,1,1,2,1,2,2,1,2,1,2,1,1,2"
EASY_4 = "4x4:_cia,1,1,0,1,1,0,1,1"
EASY_6 = "6x6:ccedaaka,1,1,2,0,2,1,2,0,3,0,1,1"
RING = "3x3:aaaaa,2,0,2,2,0,2"  # trees on the four sides of the middle: its corners link to them in two ways
DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "tricky")


def drawn(text: str) -> Grid:
    return [[".TA".index(cell) % 3 or 3 for cell in row] for row in text.split()]


def puzzle(text: str) -> Puzzle:
    """The puzzle with this solution (T tree, A tent)."""
    grid = drawn(text)
    rows = tuple(row.count(2) for row in grid)
    columns = tuple(column.count(2) for column in zip(*grid, strict=True))
    width = len(columns)
    trees = sum(board(width, len(rows)).bit(y, x) for y, row in enumerate(grid) for x, c in enumerate(row) if c == 1)
    return Puzzle(width, len(rows), trees, columns, rows)


# --- ids ---------------------------------------------------------------------------------------------------------


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
        ("9999x9999:a,1", "stop before the end"),
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


# --- the rules ---------------------------------------------------------------------------------------------------


def test_the_known_solution_of_an_id() -> None:
    grid = drawn("AT....AT TTA..... A..T..A. ...A..T. .AT..... T...TA.. A...T..T ..ATA..A")
    p = Puzzle.from_id(EASY_8)
    assert p.solve("easy") == p.solve("tricky") == grid
    assert p.solutions() == [grid]
    assert p.check(grid) is None
    assert p.check([[0 if cell == 3 else cell for cell in row] for row in grid]) is None  # grass may stay empty


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


# --- deductions and search against brute force ----------------------------------------------------------------------


def brute(p: Puzzle) -> list[Grid]:
    """Every solution, by trying all sets of tents and all ways to hand out the trees."""
    cells = [(y, x) for y in range(p.height) for x in range(p.width)]
    start = p.grid()
    trees = [cell for cell in cells if start[cell[0]][cell[1]] == 1]
    found = []
    for tents in itertools.combinations([cell for cell in cells if cell not in trees], len(trees)):
        rows, columns = Counter(y for y, _ in tents), Counter(x for _, x in tents)
        if (
            all(rows[y] == p.rows[y] for y in range(p.height))
            and all(columns[x] == p.columns[x] for x in range(p.width))
            and all(max(abs(a - c), abs(b - d)) > 1 for (a, b), (c, d) in itertools.combinations(tents, 2))
            and any(
                all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in zip(tents, order, strict=True))
                for order in itertools.permutations(trees)
            )
        ):
            found.append(changed([[cell or 3 for cell in row] for row in start], *((y, x, 2) for y, x in tents)))
    return found


@settings(max_examples=300, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 5), st.integers(0, 6))
def test_matching_finds_a_pairing_where_there_is_one(cells: list[int], tents: int, trees: int) -> None:
    b = board(4, 3)
    bits = [b.bit(cell // 4, cell % 4) for cell in cells]
    camp, wood = bits[:tents], bits[tents : tents + trees]
    exists = any(
        all(tree & b.beside(tent) for tent, tree in zip(camp, order, strict=True))
        for order in itertools.permutations(wood, len(camp))
    )
    found = matching(b, sum(camp), sum(wood))
    assert (found is not None) == exists
    if found is not None:
        assert sorted(found) == sorted(camp)
        assert len(set(found.values())) == len(camp)
        assert all(tree in wood and tree & b.beside(tent) for tent, tree in found.items())


@st.composite
def foreign(draw: st.DrawFn) -> Puzzle:
    """Small puzzles from anywhere: with one solution, several or none."""
    width, height = draw(st.sampled_from([(2, 2), (1, 6), (3, 3), (4, 3), (3, 5), (4, 4), (5, 4)]))
    cells = draw(st.permutations(range(width * height)))
    count = draw(st.integers(0, 5 if width * height < 16 else 4))
    trees, tents = cells[:count], cells[count : 2 * count + draw(st.sampled_from([0, 0, 0, -1, 1]))]
    columns, rows = [0] * width, [0] * height
    for tent in tents:
        rows[tent // width] += 1
        columns[tent % width] += 1
    mask = sum(board(width, height).bit(tree // width, tree % width) for tree in trees)
    return Puzzle(width, height, mask, tuple(columns), tuple(rows))


@st.composite
def camped(draw: st.DrawFn) -> Puzzle:
    """Small puzzles with a solution, and often more."""
    width, height = draw(st.sampled_from([(3, 3), (4, 3), (4, 4), (5, 4), (3, 6)]))
    rng = random.Random(draw(st.integers(0, 2**32)))
    b, tents, trees = board(width, height), 0, 0
    for _ in range(draw(st.integers(1, 4))):
        cells = [b.bit(y, x) for y in range(height) for x in range(width)]
        free = [cell for cell in cells if not cell & (tents | trees | b.around(tents))]
        if free:
            tent = rng.choice(free)
            sides = [cell for cell in cells if cell & b.beside(tent) & ~(tents | trees)]
            if sides:
                tents, trees = tents | tent, trees | rng.choice(sides)
    columns, rows = (tuple((tents & line).bit_count() for line in lines) for lines in (b.columns, b.rows))
    return Puzzle(width, height, trees, columns, rows)


@settings(max_examples=300, deadline=None)
@given(foreign() | camped())
def test_search_finds_what_brute_force_finds(p: Puzzle) -> None:
    expected = brute(p)
    assert sorted(p.solutions(limit=1000)) == sorted(expected)
    assert len(p.solutions()) == min(2, len(expected))
    assert all(p.check(grid) is None for grid in expected)


@settings(max_examples=300, deadline=None)
@given(foreign() | camped())
def test_no_deduction_is_ever_wrong(p: Puzzle) -> None:
    """After every single step: each tent is one in all solutions, each ruled-out cell in none."""
    solutions = p.solutions(limit=1000)
    b = p.board
    as_tents = [sum(b.bit(y, x) for y, row in enumerate(g) for x, c in enumerate(row) if c == 2) for g in solutions]
    rules = (*LOCAL, fill_lines, *TRICKY)
    state = State(b, p.trees, p.columns, p.rows)
    try:
        while any(learnt := [_step(rule, state, as_tents) for rule in random.Random(0).sample(rules, len(rules))]):
            assert len(learnt) == len(rules)
    except Contradiction:
        assert not solutions
    for difficulty in DIFFICULTIES:
        solved = p.solve(difficulty)
        assert solved is None or solutions == [solved]


def _step(rule: Any, state: State, solutions: list[int]) -> bool:
    learnt: bool = rule(state)
    for tents in solutions:
        assert not state.tents & ~tents
        assert not tents & ~(state.tents | state.blank)
    return learnt


@given(st.integers(5, 11), st.data())
def test_lines_tell_what_enumerating_them_tells(width: int, data: st.DataObject) -> None:
    """Runs and slack against Tatham's way: all placements of the missing tents in a line's blanks."""
    blanks = data.draw(st.sets(st.integers(0, width - 1), min_size=1))
    count = data.draw(st.integers(0, (width + 1) // 2))
    ways = [
        set(way)
        for way in itertools.combinations(sorted(blanks), count)
        if all(b - a > 1 for a, b in itertools.pairwise(way))
    ]
    # The line is the middle one of seven; the others are blank and have more slack than tells anything.
    b = board(width, 7)

    def state() -> State:
        new = State(b, 0, (1,) * width, (1, 1, 1, count, 1, 1, 1))
        new.blank = b.cells & ~sum(b.bit(3, x) for x in range(width) if x not in blanks)
        return new

    filled = state()
    if not ways:
        with pytest.raises(Contradiction):
            fill_lines(filled)
        return
    fill_lines(filled)
    assert {x for x in range(width) if b.bit(3, x) & filled.tents} == set.intersection(*ways)
    if not filled.tents:  # cells beside a forced tent are left to another rule
        assert {x for x in blanks if b.bit(3, x) & filled.blank} == (set.union(*ways) if count else set())
    beside = state()
    clear_beside_lines(beside)
    seen = {x for x in range(width) if all({x - 1, x, x + 1} & way for way in ways)}
    for row in range(7):
        if row != 3:
            cleared = {x for x in range(width) if not b.bit(row, x) & beside.blank}
            assert cleared == (seen if row in (2, 4) else set())


def test_difficulties_differ() -> None:
    p = Puzzle.from_id(TRICKY_8)
    assert p.solve("easy") is None
    assert p.solve("tricky") is not None
    assert p.solutions() == [p.solve("tricky")]


def test_several_solutions_and_none() -> None:
    square = Puzzle.from_id("3x3:dd,1,0,0,1,0,0")
    assert square.solutions() == []
    free = Puzzle(3, 3, board(3, 3).bit(1, 1), (0, 1, 0), (1, 0, 0))
    assert free.solutions() == [drawn(".A. .T. ...")]
    either = puzzle("AT.. .... ..TA")
    assert len(either.solutions(limit=10)) == len(brute(either))


# --- the generator -----------------------------------------------------------------------------------------------

LADDER = [(4, 4), (4, 5), (5, 5), (5, 6), (6, 6), (6, 7), (7, 7), (7, 8), (8, 8), (9, 9), (10, 10), (15, 15), (20, 20)]
LARGE = [(30, 30), (25, 40), (4, 100), (100, 10), (8, 50)]
SMALL = [(2, 3), (3, 2), (2, 8), (3, 3), (3, 4), (8, 3), (3, 7), (3, 10)]


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize(("width", "height"), LADDER + LARGE + SMALL)
def test_generated_puzzles_keep_their_promises(width: int, height: int, difficulty: Difficulty) -> None:
    if not possible(width, height, difficulty):
        with pytest.raises(ValueError, match="no tricky"):
            generate(width, height, difficulty, random.Random(0))
        return
    for seed in range(2 if width * height in (20, *range(100, 10_000)) else 10):
        p = generate(width, height, difficulty, random.Random(seed))
        assert (p.width, p.height) == (width, height)
        solution = p.solve(difficulty)
        assert solution is not None
        assert p.check(solution) is None
        assert p.solutions() == [solution]
        assert (p.solve("easy") is None) == (difficulty == "tricky")
        assert p.trees.bit_count() == sum(p.rows) == sum(p.columns) == width * height // 5
        if min(width, height) >= 4:
            lines = [*solution, *zip(*solution, strict=True)]
            assert all(1 in line or 2 in line for line in lines)


def test_a_thousand_puzzles_are_distinct_and_have_one_solution_each() -> None:
    rng = random.Random(1)
    puzzles = {generate(10, 10, "easy", rng) for _ in range(1000)}
    assert len(puzzles) == 1000
    assert all(len(p.solutions()) == 1 for p in puzzles)


def test_what_is_possible() -> None:
    assert not any(possible(*size, "easy") for size in [(2, 2), (1, 9), (0, 8)])
    assert not any(possible(*size, "tricky") for size in [(4, 4), (3, 6), (2, 50)])
    assert all(possible(*size, "easy") for size in [(2, 3), (3, 3), (4, 4), (60, 60)])
    assert all(possible(*size, "tricky") for size in [(4, 5), (3, 7), (5, 5), (60, 60)])


def test_a_seed_gives_the_same_puzzle_in_any_process() -> None:
    program = (
        "import random; from ponder.tasks.tents.generator import generate;"
        "print(*(generate(w, h, d, random.Random(7)).id for w, h in [(6, 5), (15, 15)] for d in ('easy', 'tricky')))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


# --- Simon Tatham's own program -----------------------------------------------------------------------------------


def sgt(*arguments: str, cwd: Path | None = None) -> list[str]:
    assert SGT is not None
    done = subprocess.run([SGT, *arguments], check=True, capture_output=True, text=True, timeout=60, cwd=cwd)
    return done.stdout.split()


@needs_sgt
@pytest.mark.parametrize("size", ["4x4", "4x5", "7x6", "8x8", "10x10", "15x15"])
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_tathams_puzzles_are_read_and_solved_at_their_difficulty(size: str, difficulty: Difficulty) -> None:
    if size == "4x4" and difficulty == "tricky":
        pytest.skip("there is none, and his program makes an easy one instead")
    for text in sgt("--generate", "20", f"{size}d{difficulty[0]}"):
        p = Puzzle.from_id(text)
        assert p.id == text
        solution = p.solve(difficulty)
        assert p.solutions() == [solution]
        assert (p.solve("easy") is None) == (difficulty == "tricky")


@needs_sgt
@pytest.mark.parametrize("size", [(4, 4), (5, 4), (6, 7), (8, 8), (10, 10), (15, 15), (20, 20)])
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_tathams_program_solves_our_puzzles(size: tuple[int, int], difficulty: Difficulty, tmp_path: Path) -> None:
    """It reads our id and its solver, which never guesses, saves the same tents."""
    if not possible(*size, difficulty):
        pytest.skip("there is none")
    for seed in range(1 if size == (20, 20) else 4):
        p = generate(*size, difficulty, random.Random(seed))
        sgt("--generate", "1", "--test-solve", "--save", "game", "--save-suffix", ".sav", p.id, cwd=tmp_path)
        (saved,) = tmp_path.glob("game*.sav")
        moves = re.search(r"^SOLVE *:\d+:S(.*)$", saved.read_text(), re.MULTILINE)
        assert moves is not None
        tents = {(int(y), int(x)) for x, y in re.findall(r";T(\d+),(\d+)", moves[1])}
        solution = p.solve()
        assert solution is not None
        assert tents == {(y, x) for y, row in enumerate(solution) for x, cell in enumerate(row) if cell == 2}
        saved.unlink()
