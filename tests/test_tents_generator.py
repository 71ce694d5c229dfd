"""Tents: generated puzzles keep their promises, and Simon Tatham's program agrees with ours."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_tents_puzzle import DIFFICULTIES

from ponder.tasks.tents.deduction import Difficulty
from ponder.tasks.tents.generator import generate, possible
from ponder.tasks.tents.puzzle import Puzzle

SGT = shutil.which("sgt-tents") or shutil.which("sgt-tents", path="/usr/games")
needs_sgt = pytest.mark.skipif(
    SGT is None, reason="sgt-tents is not installed (Debian: sgt-puzzles)"
)


LADDER = [
    (4, 4),
    (4, 5),
    (5, 5),
    (5, 6),
    (6, 6),
    (6, 7),
    (7, 7),
    (7, 8),
    (8, 8),
    (9, 9),
    (10, 10),
    (15, 15),
    (20, 20),
]
LARGE = [(30, 30), (25, 40), (4, 100), (100, 10), (8, 50)]
SMALL = [(2, 3), (3, 2), (2, 8), (3, 3), (3, 4), (8, 3), (3, 7), (3, 10)]


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize(("width", "height"), LADDER + LARGE + SMALL)
def test_generated_puzzles_keep_their_promises(
    width: int, height: int, difficulty: Difficulty
) -> None:
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


# --- Simon Tatham's own program
# -----------------------------------------------------------------------------------


def sgt(*arguments: str, cwd: Path | None = None) -> list[str]:
    assert SGT is not None
    done = subprocess.run(
        [SGT, *arguments], check=True, capture_output=True, text=True, timeout=600, cwd=cwd
    )
    return done.stdout.split()


@needs_sgt
@pytest.mark.parametrize("size", ["4x4", "4x5", "7x6", "8x8", "10x10", "15x15"])
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_tathams_puzzles_are_read_and_solved_at_their_difficulty(
    size: str, difficulty: Difficulty
) -> None:
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
def test_tathams_program_solves_our_puzzles(
    size: tuple[int, int], difficulty: Difficulty, tmp_path: Path
) -> None:
    """It reads our id and its solver, which never guesses, saves the same tents."""
    if not possible(*size, difficulty):
        pytest.skip("there is none")
    for seed in range(1 if size == (20, 20) else 4):
        p = generate(*size, difficulty, random.Random(seed))
        sgt(
            "--generate",
            "1",
            "--test-solve",
            "--save",
            "game",
            "--save-suffix",
            ".sav",
            p.id,
            cwd=tmp_path,
        )
        (saved,) = tmp_path.glob("game*.sav")
        moves = re.search(r"^SOLVE *:\d+:S(.*)$", saved.read_text(), re.MULTILINE)
        assert moves is not None
        tents = {(int(y), int(x)) for x, y in re.findall(r";T(\d+),(\d+)", moves[1])}
        solution = p.solve()
        assert solution is not None
        assert tents == {
            (y, x) for y, row in enumerate(solution) for x, cell in enumerate(row) if cell == 2
        }
        saved.unlink()
