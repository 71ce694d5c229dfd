"""Tents: deductions are never wrong, and search finds what brute force finds."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tents_puzzle import DIFFICULTIES, TRICKY_8, changed, drawn, puzzle

from ponder.tasks.tents.board import board
from ponder.tasks.tents.deduction import (
    LOCAL,
    TRICKY,
    Contradiction,
    State,
    clear_beside_lines,
    fill_lines,
)
from ponder.tasks.tents.puzzle import Grid, Puzzle, matching


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
            and all(
                max(abs(a - c), abs(b - d)) > 1
                for (a, b), (c, d) in itertools.combinations(tents, 2)
            )
            and any(
                all(
                    abs(a - c) + abs(b - d) == 1
                    for (a, b), (c, d) in zip(tents, order, strict=True)
                )
                for order in itertools.permutations(trees)
            )
        ):
            found.append(
                changed(
                    [[cell or 3 for cell in row] for row in start], *((y, x, 2) for y, x in tents)
                )
            )
    return found


@settings(max_examples=300, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 5), st.integers(0, 6))
def test_matching_finds_a_pairing_where_there_is_one(
    cells: list[int], tents: int, trees: int
) -> None:
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
    columns, rows = (
        tuple((tents & line).bit_count() for line in lines) for lines in (b.columns, b.rows)
    )
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
    as_tents = [
        sum(b.bit(y, x) for y, row in enumerate(g) for x, c in enumerate(row) if c == 2)
        for g in solutions
    ]
    rules = (*LOCAL, fill_lines, *TRICKY)
    state = State(b, p.trees, p.columns, p.rows)
    try:
        while any(
            learnt := [
                _step(rule, state, as_tents) for rule in random.Random(0).sample(rules, len(rules))
            ]
        ):
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
    # The line is the middle one of seven; the others are blank and have more slack than tells
    # anything.
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
        assert {x for x in blanks if b.bit(3, x) & filled.blank} == (
            set.union(*ways) if count else set()
        )
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
