"""The store: nothing is lost, and what is not an answer is never counted."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from test_store_versions import version_4

from ponder import Study
from ponder.core import Attempt, Bill, Completion, UserError
from ponder.run.attempt import grade_again
from ponder.run.caps import Recorded
from ponder.run.progress import Tally
from ponder.run.run import run
from ponder.store import schema
from ponder.store.store import Done, Store


@pytest.fixture
def study() -> Study:
    return Study(
        task=[{"name": "execution", "size": [2, 4]}],
        model=[{"name": "oracle", "error": 0.3}],
        problems=5,
        samples=2,
    )


@pytest.fixture
def store(tmp_path: Path, study: Study) -> Callable[[], Store]:
    """A store with the study in it, opened anew by every call."""
    with Store(tmp_path / "s.db", lock=True) as opened:
        asyncio.run(run(study, opened, Tally()))
    return lambda: Store(tmp_path / "s.db", lock=True)


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(sql)


def test_grading_again_restores_grades_and_keeps_details(store, study, tmp_path) -> None:
    with store() as opened:
        before = list(opened.outcomes(study.cells))
        texts = [list(opened.attempts(cell)) for cell in study.cells]
    assert all(o.details["parsed"] for o in before)
    change(
        tmp_path / "s.db",
        "UPDATE attempt SET digest = NULL, correct = 1 - correct, why = 'an old grader', details = NULL WHERE id <= 4",
    )
    with store() as opened:
        assert grade_again(study, opened).changed == 4
        assert list(opened.outcomes(study.cells)) == before
        assert [list(opened.attempts(cell)) for cell in study.cells] == texts
        assert grade_again(study, opened).changed == 0


def test_grading_again_leaves_failures_alone(store, study, tmp_path) -> None:
    change(
        tmp_path / "s.db",
        "UPDATE attempt SET digest = NULL, status = 'failed', correct = 0, why = 'down' WHERE id = 1",
    )
    with store() as opened:
        assert grade_again(study, opened).changed == 0
        assert [o.why for o in opened.outcomes(study.cells) if o.ended == "failed"] == ["down"]


def right_and_answered(opened: Store, study: Study) -> tuple[int, int]:
    """Of the first cell."""
    results = opened.results(study.cells[0]).values()
    return sum(right for right, *_ in results), sum(answers for _, answers, *_ in results)


def test_failed_and_open_attempts_are_no_answers(store, study, tmp_path) -> None:
    with store() as opened:
        outcomes = list(opened.outcomes(study.cells))
        answered, bill = opened.spent(study.cells)
        right, tries = right_and_answered(opened, study)
    assert (answered, tries) == (20, 10)
    assert right == sum(o.correct for o in outcomes if o.size == 2)
    assert bill.thinking_tokens == sum(o.thinking_tokens for o in outcomes)
    first, second = (o for o in outcomes[:2])
    change(
        tmp_path / "s.db",
        f"UPDATE attempt SET digest = NULL, status = 'failed', correct = 0 WHERE id = {first.attempt}",
    )
    change(
        tmp_path / "s.db",
        f"UPDATE attempt SET digest = NULL, status = 'open', correct = 0 WHERE id = {second.attempt}",
    )
    with store() as opened:
        left, rest = opened.spent(study.cells)
        assert left == 18
        assert (
            rest.thinking_tokens
            == bill.thinking_tokens - first.thinking_tokens - second.thinking_tokens
        )
        counts = right_and_answered(opened, study)
        assert counts == (right - first.correct - second.correct, 8)
        assert len(opened.done(study.cells[0])) == 8
        assert [o.attempt for o in opened.outcomes(study.cells)] == [
            o.attempt for o in outcomes if o.attempt != second.attempt
        ]
        assert len(opened.begun(study.cells[0])) == 2


def test_a_narrower_study_sees_only_what_it_asks_for(store, study) -> None:
    narrow = Study(task=study.task, model=study.model, problems=3, samples=1)
    with store() as opened:
        wide, few = list(opened.outcomes(study.cells)), list(opened.outcomes(narrow.cells))
        assert opened.spent(narrow.cells)[0] == len(few) == 6
        assert few == [o for o in wide if o.sample == 0 and o.problem in {f.problem for f in few}]
        assert [len(list(opened.attempts(cell))) for cell in narrow.cells] == [3, 3]
        assert [d.attempt.sample for d in opened.attempts(study.cells[0], limit=3)] == [0, 1, 0]


def test_what_goes_in_comes_out(tmp_path, study) -> None:
    cell = study.cells[1]
    problem = next(cell.asked())
    turns = (
        Completion(
            "thinking …",
            "<answer>1</answer>",
            "end",
            Bill(1, 2, 3, 0.1234, "tokenizer", 1),
            {"cache_bytes": 7.5},
        ),
        Completion("", "é\u2028", "length", Bill(4, 5, 6, 2.0, "estimate", 3)),
    )
    attempt = Attempt(problem, 1, "truncated", "no number", turns, {"parsed": [1, None]})
    with Store(tmp_path / "s.db", lock=True) as store:
        store.add([Done(cell, 0, attempt)])
        store.record_made(cell, {"training_tokens": 900.0})
        (done,) = store.attempts(cell)
        (outcome,) = store.outcomes([cell])
        assert store.spent([cell]) == (1, Bill(5, 7, 9, 2.123, "server", 4))
    back = done.attempt.completions
    assert (back[0].bill, back[1]) == (Bill(1, 2, 3, 0.123, "tokenizer", 1), turns[1])
    assert (back[0].thinking, back[0].answer, back[0].measures) == (
        "thinking …",
        "<answer>1</answer>",
        {"cache_bytes": 7.5},
    )
    assert (done.attempt.problem, done.attempt.details) == (problem, {"parsed": [1, None]})
    assert (outcome.prompt_tokens, outcome.thinking_tokens, outcome.answer_tokens) == (5, 7, 9)
    assert (outcome.counted_by, outcome.made) == ("estimate", {"training_tokens": 900.0})
    assert outcome.cached_tokens == 4


def test_what_runs_spend_adds_up(tmp_path, study) -> None:
    version_4(tmp_path / "s.db")
    cell = study.cells[0]
    right = Attempt(
        next(cell.asked()), 0, "right", "", (Completion("", "1", "end", Bill(1, 2, 3)),)
    )
    with Store(tmp_path / "s.db") as reader:
        assert reader.spent_by_runs("conversation") == (6686, 0.0)
    with Store(tmp_path / "s.db", lock=True) as store:
        assert store.spent_by_runs("conversation") == (6686, 0.0)
        first, second = store.record_study(study), store.record_study(study)
        assert first != second
        store.add([Done(cell, 0, right)], run=first, spent=Recorded(6, 0.5, 100, 40, 0.25))
        store.add([Done(cell, 0, right)], run=first, spent=Recorded(12, 0.75, 200, 40, 0.25))
        assert store.spent_by_runs(study.name) == (252, 1.0)  # calls in progress included
        assert store.held_by_runs(study.name) == (40, 0.25)
        store.release_held(study.name)
        assert store.spent_by_runs(study.name) == (212, 0.75)
        store.add([], second, Recorded(1000, 2.0, 0, 0, 0.0))
        assert store.spent_by_runs(study.name) == (1212, 2.75)
        bad = Done(cell, 0, Attempt(right.problem, 1, "right", "\ud800", ()))
        with pytest.raises(UnicodeEncodeError):
            store.add([bad], run=second, spent=Recorded(9999, 9.0, 9, 9, 9.0))
        assert store.spent_by_runs(study.name) == (1212, 2.75)
        assert store.spent_by_runs("conversation") == (6686, 0.0)


def test_a_cell_of_a_batch_that_was_rolled_back_is_stored_by_the_next(tmp_path, study) -> None:
    cell = study.cells[0]
    problem = next(cell.asked())
    bad = Attempt(problem, 0, "right", "\ud800", ())
    good = Attempt(problem, 1, "right", "", (Completion("", "1", "end", Bill()),))
    with Store(tmp_path / "s.db", lock=True) as store:
        with pytest.raises(UnicodeEncodeError):
            store.add([Done(cell, 0, bad)])
        store.add([Done(study.cells[1], 0, good)])  # takes the ids that were given back
        store.add([Done(cell, 0, good)])
        assert [len(list(store.attempts(c))) for c in study.cells] == [1, 1]


def test_a_later_attempt_takes_the_place_of_a_failed_one(tmp_path, study) -> None:
    cell = study.cells[0]
    problem = next(cell.asked())
    failed = Attempt(problem, 0, "failed", "down", (), {"per_turn": 1})
    right = Attempt(
        problem, 0, "right", "", (Completion("", "1", "end", Bill(1, 2, 3)),), {"parsed": [1]}
    )
    with Store(tmp_path / "s.db", lock=True) as store:
        store.add([Done(cell, 0, failed)])
        store.add([Done(cell, 0, right)])
        (outcome,) = store.outcomes([cell])
    assert (outcome.ended, outcome.why, outcome.details) == ("right", "", {"parsed": [1]})
    assert outcome.thinking_tokens == 2


def test_a_batch_is_stored_whole_or_not_at_all(tmp_path, study) -> None:
    cell = study.cells[0]
    problem = next(cell.asked())
    good = Attempt(problem, 0, "right", "", (Completion("", "1", "end", Bill()),))
    bad = Attempt(problem, 1, "right", "\ud800", (Completion("", "1", "end", Bill()),))
    with Store(tmp_path / "s.db", lock=True) as store:
        with pytest.raises(UnicodeEncodeError):
            store.add([Done(cell, 0, good), Done(cell, 0, bad)])
        assert list(store.outcomes([cell])) == []
    with Store(tmp_path / "s.db", lock=True) as store:
        store.add([Done(cell, 0, good)])
        assert len(list(store.outcomes([cell]))) == 1


def test_a_reader_can_write_nothing(store, study, tmp_path) -> None:
    with Store(tmp_path / "s.db") as reader, pytest.raises(UserError, match="can't open"):
        reader.record_study(study)


def test_the_study_is_recorded_as_it_was_run(store, study, tmp_path) -> None:
    with closing(sqlite3.connect(tmp_path / "s.db")) as db:
        ((name, resolved),) = db.execute("SELECT name, resolved FROM study").fetchall()
        specs = [json.loads(spec) for (spec,) in db.execute("SELECT spec FROM cell ORDER BY id")]
    assert name == "study"
    assert json.loads(resolved)["task"] == [{"name": "execution", "size": [2, 4]}]
    assert [spec["task"]["size"] for spec in specs] == [2, 4]
    assert specs[0]["model"] == {"name": "oracle", "error": 0.3}


def test_a_store_from_a_newer_version(write, ponder) -> None:
    change("ponder.db", "PRAGMA user_version = 99")
    change("ponder.db", f"PRAGMA application_id = {schema.APPLICATION}")
    for verb in ("run", "plan", "report"):
        result = ponder(verb, "effort")
        assert result.exit_code == 2
        assert "newer Ponder" in result.stderr
        assert "hint: pip install -U ponder" in result.stderr
    assert "newer Ponder" in ponder("store", "repair", "ponder.db", "-o", "new.db").stderr


def test_a_file_that_is_no_store(write, ponder) -> None:
    write("ponder.db", "this is no database, and long enough to look at" * 100)
    result = ponder("run", "effort")
    assert result.exit_code == 2
    assert "ponder.db is not a store" in result.stderr


def test_a_store_that_cant_be_made(ponder, folder) -> None:
    (folder / "file").touch()
    result = ponder("run", "effort", "--store", "file/ponder.db")
    assert result.exit_code == 2
    assert "file/ponder.db" in result.stderr


def test_sync_puts_the_log_on_the_disk(tmp_path, study, monkeypatch) -> None:
    cell = study.cells[0]
    right = Attempt(
        next(cell.asked()), 0, "right", "", (Completion("", "1", "end", Bill(1, 2, 3)),)
    )
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(os.fstat(file).st_ino), fsync(file))
    )
    with Store(tmp_path / "s.db", lock=True) as store:
        store.add([Done(cell, 0, right)])
        assert synced == []  # a commit doesn't wait for the disk
        log = (tmp_path / "s.db-wal").stat().st_ino
        store.sync()
        # once, the folder: the log is a new file in it
        assert synced == [tmp_path.stat().st_ino, log]
        store.add([Done(cell, 0, right)])
        store.sync()
        assert synced[2:] == [log]
    assert synced[3:] == [log]
    with Store(tmp_path / "s.db") as reader:
        reader.sync()
    assert len(synced) == 4
