"""`ponder store merge` keeps each attempt once: the finished one, or the longer conversation, or
the first.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ponder import Study
from ponder.core import Attempt, Bill, Completion, Problem, UserError
from ponder.run.caps import Recorded
from ponder.store.maintenance import merge
from ponder.store.store import Done, Store

DATA = Path(__file__).parent / "data"
CONVERSATION = Problem("p", 3, ("one?", "two?", "three?"))


@pytest.fixture
def study() -> Study:
    return Study(
        task=[{"name": "execution", "size": [3, 5]}],
        model=[{"name": "oracle"}],
        problems=5,
        samples=4,
    )


def attempt(
    sample: int, ended: str, turns: int, text: str = "", problem: Problem = CONVERSATION
) -> Attempt:
    said = tuple(
        Completion(f"so {text}", f"{text}{i}", "end", Bill(1, 2, 3, 0.5, "server", 1))
        for i in range(turns)
    )
    details = {"parsed": [text]} if ended == "right" else {}
    return Attempt(problem, sample, ended, text, said, details)  # type: ignore[arg-type]


@pytest.fixture
def make(folder: Path, study: Study) -> Callable[..., Path]:
    def make(name: str, *attempts: Attempt, cell: int = 0, position: int = 0) -> Path:
        with Store(folder / name, lock=True) as store:
            run = store.record_study(study)
            store.add(
                [Done(study.cells[cell], position, a) for a in attempts],
                run,
                Recorded(10, 0.5, 1, 0, 0.0),
            )
        return folder / name

    return make


def held(path: Path, study: Study) -> dict[tuple[int, int, int], tuple[str, str, int]]:
    """By cell, position and sample: status, text of the first turn, and number of turns; open ones
    too.
    """
    found = {}
    with Store(path) as store:
        for number, cell in enumerate(study.cells):
            for done in store.attempts(cell):
                turns = done.attempt.completions
                first = turns[0].answer if turns else ""
                found[number, done.position, done.attempt.sample] = (
                    done.attempt.ended,
                    first,
                    len(turns),
                )
            for (position, sample), turns in store.begun(cell).items():
                found.setdefault(
                    (number, position, sample),
                    ("open", turns[0].answer if turns else "", len(turns)),
                )
    return found


def test_a_finished_attempt_wins_then_the_longer_then_the_first(make, study, folder) -> None:
    a = make(
        "a.db",
        *(
            attempt(0, "right", 3, "a"),
            attempt(1, "open", 2, "a"),
            attempt(2, "failed", 1, "a"),
            attempt(3, "open", 1, "a"),
        ),
    )
    b = make(
        "b.db",
        *(
            attempt(0, "right", 3, "b"),
            attempt(1, "right", 3, "b"),
            attempt(2, "failed", 1, "b"),
            attempt(3, "open", 2, "b"),
        ),
    )
    make("b.db", attempt(0, "right", 3, "c"), cell=1, position=2)
    expected = {
        (0, 0, 0): ("right", "a0", 3), (0, 0, 1): ("right", "b0", 3), (0, 0, 2): ("failed", "a0", 1),
        (0, 0, 3): ("open", "b0", 2), (1, 2, 0): ("right", "c0", 3),
    }  # fmt: skip
    assert merge([a, b], folder / "ab.db").attempts == 5
    assert held(folder / "ab.db", study) == expected
    merge([b, a], folder / "ba.db")
    first_of_ties = {(0, 0, 0): ("right", "b0", 3), (0, 0, 2): ("failed", "b0", 1)}
    assert held(folder / "ba.db", study) == expected | first_of_ties
    with Store(folder / "ab.db") as store, Store(a) as first:
        assert store.spent_by_runs(study.name) == (33, 1.5)  # the spending of three runs
        assert next(store.attempts(study.cells[0])) == next(first.attempts(study.cells[0]))


def test_a_store_and_its_copy_spent_once(make, study, folder) -> None:
    a = make("a.db", attempt(0, "right", 3, "a"))
    with Store(a) as store:
        spent = store.spent_by_runs(study.name)
    shutil.copy(a, folder / "copy.db")
    merge([a, folder / "copy.db"], folder / "both.db")
    with Store(folder / "both.db") as store:
        assert store.spent_by_runs(study.name) == spent != (0, 0.0)


def test_merged_stores_are_whole_and_the_old_ones_unchanged(make, ponder) -> None:
    paths = [make("a.db", attempt(0, "right", 3, "a")), make("b.db", attempt(1, "open", 2, "b"))]
    shutil.copy(DATA / "version4.db", "old.db")
    paths.append(Path("old.db"))
    before = [path.read_bytes() for path in paths]
    result = ponder("store", "merge", *paths, "-o", "new.db", "--json")
    assert json.loads(result.stdout) == {"store": "new.db", "attempts": 28}
    assert ponder("store", "check", "new.db").stdout.endswith("\nno damage\n")
    assert [path.read_bytes() for path in paths] == before
    assert not list(Path().glob("new.db*.*"))
    names = {cell.key for cell in Study.load(str(DATA / "conversation.toml")).cells}
    with closing(sqlite3.connect("new.db")) as db:
        assert names <= {key for (key,) in db.execute("SELECT key FROM cell")}


def test_what_making_a_model_cost_is_kept(make, study, folder) -> None:
    a, b = make("a.db", attempt(0, "right", 3, "a")), make("b.db", attempt(0, "right", 3, "b"))
    with Store(b, lock=True) as store:
        store.record_made(study.cells[0], {"training_tokens": 7.0})
    merge([a, b], folder / "new.db")
    with Store(folder / "new.db") as store:
        assert [o.made for o in store.outcomes(study.cells)] == [{"training_tokens": 7.0}]


def test_different_problems_under_one_key_are_refused(make, folder) -> None:
    other = Problem("q", 3, CONVERSATION.turns)
    a, b = (
        make("a.db", attempt(0, "right", 3, "a")),
        make("b.db", attempt(1, "right", 3, "b", other)),
    )
    with pytest.raises(
        UserError, match=r"problem 0 of one task is p in an earlier store and q in .*b.db"
    ):
        merge([a, b], folder / "new.db")
    assert not list(folder.glob("new.db*"))


def test_a_damaged_store_is_repaired_first(make, ponder) -> None:
    a, b = make("a.db", attempt(0, "right", 3, "a")), make("b.db", attempt(1, "right", 3, "b"))
    with closing(sqlite3.connect(b, isolation_level=None)) as db:
        db.execute("UPDATE turn SET answer = 'x'")
    result = ponder("store", "merge", a, b, "-o", "new.db")
    assert result.exit_code == 2
    assert "b.db is damaged: turn 0 of attempt 1 has changed" in result.stderr
    assert not list(Path().glob("new.db*"))


def test_a_store_can_be_checked_while_a_run_writes(make, study, folder, ponder) -> None:
    path = make("a.db", attempt(0, "right", 3, "a"))
    with Store(path, lock=True) as store:
        store.add([Done(study.cells[0], 0, attempt(1, "right", 3, "b"))])
        assert "2 attempts" in ponder("store", "check", path).stdout
        assert merge([path], folder / "new.db").attempts == 2
