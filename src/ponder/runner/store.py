"""The store: attempts in an SQLite file. All of Ponder's SQL is here.

Write-ahead logging lets a report read while a run writes. Only one run writes at a time; it holds a lock on a second,
empty SQLite file, which the kernel releases however the process ends. The caller batches attempts, and every commit is
synchronous: what was committed survives `kill -9` and a power cut.

Opened to write, an older store is upgraded in one transaction. Opened to read, it is left as it is: temporary views
with the tables' names show its content in the current schema.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from ponder.core import Attempt, Bill, Completion, Outcome, Problem, UserError
from ponder.core.lock import acquire
from ponder.runner.cells import Cell
from ponder.runner.study import Study

SCHEMA_VERSION = 3
SCHEMA = """
CREATE TABLE study (name TEXT, resolved TEXT, started TEXT DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE cell (id INTEGER PRIMARY KEY, key BLOB UNIQUE, spec TEXT, made TEXT);
CREATE TABLE problem (
    id INTEGER PRIMARY KEY, source BLOB, position INTEGER, name TEXT, body BLOB, UNIQUE (source, position));
CREATE TABLE attempt (
    id INTEGER PRIMARY KEY, cell INTEGER, problem INTEGER, sample INTEGER,
    status TEXT, correct INTEGER, why TEXT, details TEXT,
    prompt_tokens INTEGER, thinking_tokens INTEGER, answer_tokens INTEGER, seconds REAL, counted_by TEXT,
    UNIQUE (cell, problem, sample));
CREATE TABLE turn (
    attempt INTEGER, position INTEGER, thinking BLOB, answer TEXT, stop TEXT,
    prompt_tokens INTEGER, thinking_tokens INTEGER, answer_tokens INTEGER, seconds REAL, counted_by TEXT,
    measures TEXT, PRIMARY KEY (attempt, position));
"""

# Before version 3, the details of `execution` had other names. Other tasks' details are not touched.
_DETAILS = """CASE WHEN cell IN (SELECT id FROM main.cell WHERE json_extract(spec, '$.task.name') = 'execution')
    THEN replace(replace(replace(details, '"said":', '"parsed":'), '"filled":', '"history_turns":'),
                 '"errors":', '"error_rate":')
    ELSE details END"""
# By version: what turns a store of that version into one of the next.
UPGRADES = {
    1: "ALTER TABLE turn ADD COLUMN measures TEXT;",
    2: f"ALTER TABLE cell ADD COLUMN made TEXT; UPDATE attempt SET details = {_DETAILS};",  # noqa: S608 our own text
}
# The same for a store that is only read.
VIEWS = {
    1: "CREATE TEMP VIEW turn AS SELECT *, NULL AS measures FROM main.turn;",
    2: f"""CREATE TEMP VIEW cell AS SELECT *, NULL AS made FROM main.cell;
        CREATE TEMP VIEW attempt AS SELECT id, cell, problem, sample, status, correct, why, {_DETAILS} AS details,
        prompt_tokens, thinking_tokens, answer_tokens, seconds, counted_by FROM main.attempt;""",  # noqa: S608
}

PUT_ATTEMPT = """INSERT INTO attempt VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (cell, problem, sample) DO UPDATE SET
    status = excluded.status, correct = excluded.correct, why = excluded.why, details = excluded.details,
    prompt_tokens = excluded.prompt_tokens, thinking_tokens = excluded.thinking_tokens,
    answer_tokens = excluded.answer_tokens, seconds = excluded.seconds, counted_by = excluded.counted_by
    RETURNING id"""
PUT_TURN = "INSERT OR REPLACE INTO turn VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Done(NamedTuple):
    """An attempt on its way into the store or out of it. A conversation may have turns that are not asked yet."""

    cell: Cell
    position: int  # of the problem in the cell's fixed order of problems
    attempt: Attempt
    stored: int = 0  # how many of its turns the store already holds


class Store:
    """An open store. With `lock=True` it can be written to, and no other process can write to it meanwhile."""

    def __init__(self, path: Path, *, lock: bool = False) -> None:
        self.path = path
        self._lock: sqlite3.Connection | None = None
        self._cells: dict[bytes, int] = {}
        self._one_at_a_time = threading.Lock()
        if not lock and not path.is_file():
            raise UserError(
                f"there is no store {path}", hint="`ponder run STUDY` creates one; use --store for another path"
            )
        with self._errors():
            if lock:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = self._acquire()
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
            self._prepare(write=lock)

    def _acquire(self) -> sqlite3.Connection:
        if (lock := acquire(Path(f"{self.path}.lock"))) is None:
            hint = "wait until that run has ended, or use another store for this one: --store"
            raise UserError(f"another run is writing to {self.path}", hint=hint)
        return lock

    def _prepare(self, *, write: bool) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            what = f"{self.path} was written by a newer Ponder (store version {version}, known up to {SCHEMA_VERSION})"
            raise UserError(what, hint="pip install -U ponder")
        older = range(version, SCHEMA_VERSION) if version else ()
        if not write:
            self._db.executescript("".join(VIEWS[v] for v in older))
            self._db.execute("PRAGMA query_only = ON")
            return
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        if version < SCHEMA_VERSION:
            script = "".join(UPGRADES[v] for v in older) or SCHEMA
            self._db.executescript(f"BEGIN; {script} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        if self._lock:
            self._lock.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite's errors into errors that a user can act on."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "full" in str(error) or "disk I/O" in str(error):
                hint = "free some space and run again to resume: everything stored so far is kept"
                raise UserError(f"the disk is full: {self.path} can't grow ({error})", hint=hint) from None
            if "unable to open" in str(error) or "readonly" in str(error):
                raise UserError(f"can't open the store {self.path}", hint="check the path and permissions") from None
            raise
        except sqlite3.DatabaseError as error:
            raise UserError(f"{self.path} is not a store: {error}", hint="use --store for another path") from None
        except OSError as error:
            what = f"can't create the store {self.path}: {error.strerror}"
            raise UserError(what, hint="use --store for another path") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A durable transaction, in one thread at a time; rolled back if an error is raised inside."""
        with self._one_at_a_time, self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # SQLite has already rolled back when the disk was full.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def record_study(self, study: Study) -> None:
        """Store the study as it is run now, for the record."""
        with self._errors():
            row = (study.name, json.dumps(study.resolved(), default=str))
            self._db.execute("INSERT INTO study (name, resolved) VALUES (?, ?)", row)

    def add(self, batch: Sequence[Done]) -> None:
        """Store attempts in one durable transaction. An attempt with the same key is replaced."""
        with self._transaction():
            for done in batch:
                self._add(done)

    def _add(self, done: Done) -> None:
        cell, problem, attempt = self._cell_id(done.cell), done.attempt.problem, done.attempt
        source = (done.cell.source, done.position)
        row = self._db.execute("SELECT id FROM problem WHERE source = ? AND position = ?", source).fetchone()
        if row is None:
            body = zlib.compress(msgspec.json.encode(problem), 1)
            sql = "INSERT INTO problem (source, position, name, body) VALUES (?, ?, ?, ?) RETURNING id"
            row = self._db.execute(sql, (*source, problem.id, body)).fetchone()
        key = (cell, row[0], attempt.sample)
        details = json.dumps(attempt.details) if attempt.details else None
        graded = (attempt.status, attempt.correct, attempt.why, details)
        bill = Bill() if attempt.status == "open" else attempt.bill
        (row_id,) = self._db.execute(PUT_ATTEMPT, (*key, *graded, *_bill(bill))).fetchone()
        for position, turn in enumerate(attempt.completions[done.stored :], done.stored):
            # Compressing takes 30 µs and saves two thirds of the bytes; answers stay readable with any SQLite tool.
            thinking = zlib.compress(turn.thinking.encode(), 1) if turn.thinking else None
            reply = (row_id, position, thinking, turn.answer, turn.stop)
            measures = json.dumps(dict(turn.measures)) if turn.measures else None
            self._db.execute(PUT_TURN, (*reply, *_bill(turn.bill), measures))

    def _cell_id(self, cell: Cell) -> int:
        if cell.key not in self._cells:
            spec = json.dumps(cell.spec(), default=str)
            self._db.execute("INSERT OR IGNORE INTO cell (key, spec) VALUES (?, ?)", (cell.key, spec))
            self._cells[cell.key] = self._find(cell) or 0
        return self._cells[cell.key]

    def record_made(self, cell: Cell, made: Mapping[str, float]) -> None:
        """Store what making the weights of a cell's model cost."""
        if made:
            with self._transaction():
                row = (json.dumps(dict(made)), self._cell_id(cell))
                self._db.execute("UPDATE cell SET made = ? WHERE id = ?", row)

    def _made(self, cell: Cell) -> dict[str, float]:
        """What making the weights cost. Before version 3 this was in the details of every attempt, as `made_…`."""
        row = self._db.execute("SELECT id, made FROM cell WHERE key = ?", (cell.key,)).fetchone()
        if row is None or row[1]:
            return json.loads(row[1]) if row else {}
        sql = "SELECT details FROM attempt WHERE cell = ? AND details LIKE '%\"made_%' LIMIT 1"
        details = self._db.execute(sql, (row[0],)).fetchone()
        old = json.loads(details[0]) if details else {}
        return {name.removeprefix("made_"): value for name, value in old.items() if name.startswith("made_")}

    def _find(self, cell: Cell) -> int | None:
        row = self._db.execute("SELECT id FROM cell WHERE key = ?", (cell.key,)).fetchone()
        return int(row[0]) if row else None

    def done(self, cell: Cell) -> set[tuple[int, int]]:
        """Position and sample of each attempt that is finished; failed ones are not."""
        sql = """SELECT position, sample FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE cell = ? AND status NOT IN ('failed', 'open')"""
        with self._one_at_a_time:
            return set(self._db.execute(sql, (self._find(cell),)))

    def score(self, cell: Cell) -> tuple[int, int]:
        """How many answers of a cell are right, and how many there are."""
        sql = "SELECT TOTAL(correct), COUNT(*) FROM attempt WHERE cell = ? AND status NOT IN ('failed', 'open')"
        right, answers = self._db.execute(sql, (self._find(cell),)).fetchone()
        return int(right), int(answers)

    def begun(self, cell: Cell) -> dict[tuple[int, int], tuple[Completion, ...]]:
        """The finished turns of each conversation that was interrupted or failed, by position and sample."""
        sql = """SELECT position, sample, attempt.id FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE cell = ? AND status IN ('failed', 'open')"""
        with self._one_at_a_time:
            cut = self._db.execute(sql, (self._find(cell),)).fetchall()
            return {(position, sample): tuple(self._turns(attempt)) for position, sample, attempt in cut}

    def spent(self, cells: Iterable[Cell]) -> tuple[int, Bill]:
        """How many of the attempts that these cells ask for are answered, and what those answers cost together."""
        sql = """SELECT COUNT(*), SUM(prompt_tokens), SUM(thinking_tokens), SUM(answer_tokens), SUM(seconds)
                 FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE cell = ? AND position < ? AND sample < ? AND status NOT IN ('failed', 'open')"""
        answers, bill = 0, Bill()
        for cell in cells:
            n, *sums = self._db.execute(sql, (self._find(cell), _limit(cell), cell.samples)).fetchone()
            prompt, thinking, answer, seconds = (s or 0 for s in sums)
            answers, bill = answers + n, bill + Bill(prompt, thinking, answer, seconds)
        return answers, bill

    def outcomes(self, cells: Iterable[Cell]) -> Iterator[Outcome]:
        """The attempts that these cells ask for, as statistics see them. Conversations in progress are left out."""
        sql = """SELECT attempt.id, name, sample, status, correct, why, prompt_tokens, thinking_tokens, answer_tokens,
                 seconds, counted_by, details FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE cell = ? AND position < ? AND sample < ? AND status != 'open' ORDER BY position, sample"""
        for cell in cells:
            labels = (cell.task_label, cell.model_label, cell.size)
            model = (cell.base_label, cell.methods_used, cell.variant_label, cell.training_seeds, self._made(cell))
            for row in self._db.execute(sql, (self._find(cell), _limit(cell), cell.samples)):
                attempt, name, sample, status, correct, why, *cost, details = row
                graded = (name, sample, status, bool(correct), why)
                known = json.loads(details) if details else {}
                yield Outcome._make((*labels, *graded, *cost, known, attempt, *model))

    def attempts(self, cell: Cell, most: int = -1) -> Iterator[Done]:
        """The attempts of a cell with their texts, in the order of the problems; at most `most` of them."""
        sql = """SELECT attempt.id, position, body, sample, status, correct, why, details
                 FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE cell = ? AND position < ? AND sample < ? AND status != 'open'
                 ORDER BY position, sample LIMIT ?"""
        for row in self._db.execute(sql, (self._find(cell), _limit(cell), cell.samples, most)):
            row_id, position, body, sample, status, correct, why, details = row
            problem = msgspec.json.decode(zlib.decompress(body), type=Problem)
            turns = tuple(self._turns(row_id))
            graded = (status, bool(correct), why, turns, json.loads(details) if details else {})
            yield Done(cell, position, Attempt(problem, sample, *graded))

    def _turns(self, attempt: int) -> Iterator[Completion]:
        sql = "SELECT * FROM turn WHERE attempt = ? ORDER BY position"
        for _, _, thinking, answer, stop, *bill, measures in self._db.execute(sql, (attempt,)):
            text = zlib.decompress(thinking).decode() if thinking else ""
            yield Completion(text, answer, stop, Bill(*bill), json.loads(measures) if measures else {})

    def regrade(self, changes: Iterable[Done]) -> None:
        """Replace the grades of stored attempts. Texts and bills are not changed."""
        sql = """UPDATE attempt SET status = ?, correct = ?, why = ?, details = ? WHERE sample = ? AND cell = ?
                 AND problem = (SELECT id FROM problem WHERE source = ? AND position = ?)"""
        with self._transaction():
            for cell, position, attempt, _ in changes:
                details = json.dumps(attempt.details) if attempt.details else None
                grade = (attempt.status, attempt.correct, attempt.why, details)
                where = (attempt.sample, self._cell_id(cell), cell.source, position)
                self._db.execute(sql, grade + where)


def _bill(bill: Bill) -> tuple[Any, ...]:
    # Milliseconds: finer would be noise, and take more bytes.
    return bill.prompt_tokens, bill.thinking_tokens, bill.answer_tokens, round(bill.seconds, 3), bill.counted_by


def _limit(cell: Cell) -> int:
    return cell.problems if cell.problems is not None else 2**62
