"""The store: attempts in an SQLite file, whose tables are in `schema`.

Write-ahead logging lets a report read while a run writes. Only one run writes at a time; it holds a
lock on a second, empty SQLite file, which the kernel releases however the process ends. Both stand
beside the file that the path leads to, whatever symbolic links it goes through. A store with two
names (hard links) is not written to: SQLite would keep a log for each name, and neither run would
see what the other has stored. A commit is a write to the log: it survives `kill -9`. `sync` puts
the log on the disk: everything committed before it survives a power cut too.
"""
# ruff: noqa: S608 the parts of these statements are our own text

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from ponder.core import Attempt, Bill, Completion, Judgement, Outcome, Problem, UserError
from ponder.core.capabilities import judge_of_task
from ponder.core.lock import acquire
from ponder.core.nouns import BILLED_COST, OTHER_MODEL, REWARD
from ponder.store.file import DamagedStore, connect, errors, sync_folder
from ponder.store.outcomes import OutcomeReader
from ponder.store.schema import (
    ATTEMPT,
    PROBLEM,
    PUT_ATTEMPT,
    PUT_JOB,
    PUT_JOB_REQUEST,
    PUT_STUDY,
    PUT_TURN,
    SPENT,
    TURN,
    digest,
    ended,
    of_table,
    status_of,
    verify,
    verify_attempt,
    verify_turn,
)
from ponder.study.cell import StudyCell
from ponder.study.prices import found_prices
from ponder.study.study import StudySpec

# The attempts that a cell asks for, with the parameters of `_asked`.
ASKED = """cell = ? AND problem.position < ? AND sample < ?
    AND (? IS NULL OR problem.position IN (SELECT value FROM json_each(?)))"""
# The same in the order of two indexes: SQLite needn't sort texts.
IN_ORDER = f"""FROM problem CROSS JOIN attempt ON attempt.problem = problem.id
    WHERE source = ? AND {ASKED} AND status != 'open'"""
FIRST_TURN = "CROSS JOIN turn ON turn.attempt = attempt.id AND turn.position = 0 WHERE"
N_ATTEMPT = len(ATTEMPT.split(", "))
PARTS = (REWARD, OTHER_MODEL)  # of a bill, which have no columns
FOUND_PRICES = "found_prices"  # beside a study's settings
STEPS = "step_scores"  # beside the measures of a turn
BLOCKS = "blocks"  # the same
JUDGEMENT = "judgement"  # the same
MOST_PROBLEMS = 4096  # whose ids are remembered


class Done(NamedTuple):
    """An attempt on its way into the store or out of it.

    A conversation may have turns that are not asked yet.
    """

    cell: StudyCell
    position: int  # of the problem in the cell's fixed order of problems
    attempt: Attempt
    stored: int = 0  # how many of its turns the store already holds
    answered: tuple[str, ...] = ()  # requests in jobs whose answers are in these turns


class Stored(NamedTuple):
    """An attempt with the rows of its cell and its problem."""

    cell: int
    problem: int
    attempt: Attempt


class Recorded(NamedTuple):
    """What a run has spent so far, as the store keeps it."""

    tokens: int  # of answers
    cost: float  # of everything, `lost_tokens` included
    lost_tokens: int  # of tries without an answer that may have been billed, at most
    held_tokens: int  # of the calls in progress, at most
    held_cost: float


class JobRequest(NamedTuple):
    """A request in a job, and the most that it may take."""

    id: str
    attempt: str  # which attempt it belongs to: its cell, problem and sample
    tokens: int
    cost: float


class StoredJob(NamedTuple):
    """A job that waits at a provider, and those of its requests whose answers aren't stored."""

    id: str
    study: str
    server: str
    remote: str  # the provider's id; "" until the provider has confirmed it
    created: float  # seconds since 1970
    requests: tuple[JobRequest, ...] = ()


class Store:
    """An open store.

    With `lock=True` it can be written to, and no other process can write to it meanwhile.
    """

    def __init__(self, path: Path, *, lock: bool = False) -> None:
        self.path = path
        self._file = path.resolve()  # beside which SQLite and the lock have their files
        self._lock: sqlite3.Connection | None = None
        self._cells: dict[bytes, int] = {}
        self._problems: dict[tuple[bytes, int], int] = {}
        self._log: int | None = None  # file descriptor of the write-ahead log
        self._one_at_a_time = threading.Lock()
        if not lock and not path.is_file():
            hint = "`ponder run STUDY` creates one; use --store for another path"
            raise UserError(f"there is no store {path}", hint=hint)
        with errors(path, writing=lock):
            if lock:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._lock = self._acquire()
                self._check_names()
            try:
                self._db = connect(path, write=lock)
            except BaseException:
                if self._lock:
                    self._lock.close()
                raise

    def _acquire(self) -> sqlite3.Connection:
        lock = acquire(Path(f"{self._file}.lock"))
        if lock is None:
            hint = "wait until that run has ended, or use another store for this one: --store"
            raise UserError(f"another run is writing to {self.path}", hint=hint)
        return lock

    def _check_names(self) -> None:
        """Raise `UserError` if the file has a second name, which another run could write to."""
        if not self._file.is_file() or self._file.stat().st_nlink < 2:
            return
        assert self._lock
        self._lock.close()
        raise UserError(
            f"{self.path} has more than one name (hard links), "
            "and each would have a log of its own",
            hint=f"`find / -samefile {self._file}` lists them: remove the others, "
            "or copy the store to a file of its own",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            self.sync()
        finally:
            if self._log is not None:
                os.close(self._log)
                self._log = None
            self._db.close()
            if self._lock:
                self._lock.close()

    def sync(self) -> None:
        """Wait until everything committed so far is on the disk, so that it survives a power cut.

        May be called while another thread writes. SQLite keeps one file as the log for as long as
        the store is open.
        """
        if self._lock is None:
            return
        with errors(self.path, writing=True):
            if self._log is None:
                try:
                    self._log = os.open(f"{self._file}-wal", os.O_RDWR)
                except FileNotFoundError:
                    return  # nothing was written yet
                sync_folder(self._file.parent)
            os.fsync(self._log)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise `DamagedStore` for a row that can't be read."""
        try:
            with errors(self.path, writing=self._lock is not None):
                yield
        except (
            zlib.error,
            ValueError,
            OverflowError,
            RecursionError,
            msgspec.MsgspecError,
        ) as error:
            raise DamagedStore(self.path, str(error)) from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a transaction, in one thread at a time; roll it back after an error."""
        with self._one_at_a_time, errors(self.path, writing=True):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._cells.clear()  # their rows may be rolled back with the rest
                self._problems.clear()
                # SQLite has already rolled back when the disk was full.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything inside as of one moment, though a run may be writing."""
        with errors(self.path, writing=False):
            self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def record_study(self, study: StudySpec) -> int:
        """Store the study as it is run now; return the run's id, for recording its spending."""
        with self._transaction():
            # To the microsecond, so that no two runs are alike: `store merge` keeps equal ones
            # once.
            started = datetime.now(UTC).isoformat(" ")
            content = study.resolved()
            found = found_prices(study.cells)
            if found:
                content[FOUND_PRICES] = found
            resolved = json.dumps(content, default=str)
            nothing_spent = (None, None, None, None, None)
            row = (study.name, resolved, started, *nothing_spent)
            return self._db.execute(PUT_STUDY, (*row, digest(*row))).lastrowid or 0

    def last_run(self, name: str) -> dict[str, Any]:
        """Return a study's tables as they were last run; nothing if it never was."""
        sql = "SELECT resolved FROM study WHERE name = ? ORDER BY rowid DESC LIMIT 1"
        with self._one_at_a_time, self._reading():
            row = self._db.execute(sql, (name,)).fetchone()
        if row is None:
            return {}
        tables: dict[str, Any] = json.loads(row[0])
        return tables

    def found_prices(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the prices that the last run of a study found, by server and model."""
        sql = f"""SELECT resolved FROM study WHERE name = ? AND resolved LIKE '%"{FOUND_PRICES}"%'
                  ORDER BY rowid DESC LIMIT 1"""
        with self._one_at_a_time, self._reading():
            row = self._db.execute(sql, (name,)).fetchone()
            if row is None:
                return {}
            prices: dict[str, dict[str, Any]] = json.loads(row[0]).get(FOUND_PRICES, {})
            return prices

    def spent_by_runs(self, name: str) -> tuple[int, float]:
        """Return tokens and cost of all runs of a study, calls without an answer included."""
        sql = """SELECT TOTAL(tokens) + TOTAL(lost_tokens) + TOTAL(held_tokens),
                 TOTAL(cost) + TOTAL(held_cost)
                 FROM study WHERE name = ?"""
        with self._one_at_a_time, self._reading():
            tokens, cost = self._db.execute(sql, (name,)).fetchone()
            return int(tokens), float(cost)

    def held_by_runs(self, name: str) -> tuple[int, float]:
        """Return an upper bound on tokens and cost of calls in progress when runs were killed."""
        sql = "SELECT TOTAL(held_tokens), TOTAL(held_cost) FROM study WHERE name = ?"
        with self._one_at_a_time, self._reading():
            tokens, cost = self._db.execute(sql, (name,)).fetchone()
            return int(tokens), float(cost)

    def release_held(self, name: str) -> None:
        """Count as not billed what was in progress when runs of this study were killed."""
        sql = """SELECT rowid, TOTAL(tokens), TOTAL(cost), TOTAL(lost_tokens)
                 FROM study WHERE name = ? GROUP BY rowid"""
        with self._transaction():
            for run, tokens, cost, lost_tokens in self._db.execute(sql, (name,)).fetchall():
                self._record_spent(run, Recorded(int(tokens), cost, int(lost_tokens), 0, 0.0))

    def jobs(self) -> list[StoredJob]:
        """Return the jobs with requests that are not answered."""
        requests: dict[str, list[JobRequest]] = {}
        jobs = []
        with self._one_at_a_time, self._reading():
            sql = "SELECT job, id, attempt, tokens, cost FROM job_request ORDER BY rowid"
            for job, *row in self._db.execute(sql):
                requests.setdefault(job, []).append(JobRequest(*row))
            sql = "SELECT id, study, server, remote, created FROM job"
            for job_id, study, server, remote, created in self._db.execute(sql):
                if job_id in requests:
                    rows = tuple(requests[job_id])
                    jobs.append(StoredJob(job_id, study, server, remote, created, rows))
        return jobs

    def held_by_jobs(self, name: str) -> tuple[int, float]:
        """Return an upper bound on tokens and cost of a study's requests in jobs."""
        sql = """SELECT TOTAL(tokens), TOTAL(cost) FROM job_request
                 JOIN job ON job.id = job_request.job WHERE study = ?"""
        with self._one_at_a_time, self._reading():
            tokens, cost = self._db.execute(sql, (name,)).fetchone()
            return int(tokens), float(cost)

    def forget_jobs(self, name: str) -> None:
        """Forget the jobs of a study, and count them as not billed."""
        with self._transaction():
            for (job,) in self._db.execute(
                "SELECT id FROM job WHERE study = ?", (name,)
            ).fetchall():
                self._forget_job(job)

    def _forget_job(self, job: str) -> None:
        self._db.execute("DELETE FROM job_request WHERE job = ?", (job,))
        self._db.execute("DELETE FROM job WHERE id = ?", (job,))

    def _put_job(self, job: StoredJob) -> None:
        """Store a job; one without requests, which its provider never got, is forgotten."""
        if not job.requests:
            self._forget_job(job.id)
            return
        self._db.execute(PUT_JOB, job[:5])
        for request in job.requests:
            self._leave_other_job(request.id, job.id)
            row = (request.id, job.id, request.attempt, request.tokens, float(request.cost))
            self._db.execute(PUT_JOB_REQUEST, row)

    def _leave_other_job(self, request: str, job: str) -> None:
        """Take a request from the job that it was in before, which had only an error for it."""
        sql = "SELECT job FROM job_request WHERE id = ?"
        row = self._db.execute(sql, (request,)).fetchone()
        if row is not None and row[0] != job:
            self._take_from_job(request)

    def _take_from_job(self, request: str) -> None:
        """Forget a request whose answer is stored, and its job if it was the last."""
        sql = "DELETE FROM job_request WHERE id = ? RETURNING job"
        row = self._db.execute(sql, (request,)).fetchone()
        if row is None:
            return
        sql = (
            "DELETE FROM job WHERE id = ? AND NOT EXISTS (SELECT 1 FROM job_request WHERE job = ?)"
        )
        self._db.execute(sql, (row[0], row[0]))

    def add(
        self,
        batch: Sequence[Done],
        run: int | None = None,
        spent: Recorded | None = None,
        jobs: Sequence[StoredJob] = (),
    ) -> None:
        """Store attempts and jobs in one transaction, with what the run has spent.

        An attempt with the same key is replaced.
        """
        with self._transaction():
            for job in jobs:
                self._put_job(job)
            for done in batch:
                self._add(done)
                for request in done.answered:
                    self._take_from_job(request)
            if run is not None and spent is not None:
                self._record_spent(run, spent)

    def _record_spent(self, run: int, spent: Recorded) -> None:
        study = self._db.execute(
            "SELECT name, resolved, started FROM study WHERE rowid = ?", (run,)
        ).fetchone()
        # As SQLite gives them back, which the digest depends on.
        row = (
            spent.tokens,
            float(spent.cost),
            spent.lost_tokens,
            spent.held_tokens,
            float(spent.held_cost),
        )
        self._db.execute(SPENT, (*row, digest(*study, *row), run))

    def _add(self, done: Done) -> None:
        attempt = done.attempt
        bill = attempt.bill
        if attempt.ended == "open":
            bill = Bill()
        row = (
            self._cell_id(done.cell),
            self._problem_id(done.cell.source, done.position, attempt.problem),
            attempt.sample,
            status_of(attempt.ended),
            int(attempt.correct),
            attempt.why,
            _json_or_none(attempt.details),
            *_bill(bill),
        )
        (row_id,) = self._db.execute(PUT_ATTEMPT, (*row, digest(*row))).fetchone()
        for position, turn in enumerate(attempt.completions[done.stored :], done.stored):
            self._add_turn(row_id, position, turn)

    def _add_turn(self, attempt: int, position: int, turn: Completion) -> None:
        # Compressing takes 30 µs and saves two thirds of the bytes; answers stay readable with any
        # SQLite tool.
        thinking = None
        if turn.thinking:
            thinking = zlib.compress(turn.thinking.encode(), 1)
        measures: dict[str, Any] = {**turn.measures, **billed_part(turn.bill)}
        if turn.step_scores:
            measures[STEPS] = turn.step_scores
        if turn.blocks:
            measures[BLOCKS] = turn.blocks
        if turn.judgement:
            measures[JUDGEMENT] = turn.judgement
        row = (
            attempt,
            position,
            thinking,
            turn.answer,
            turn.stop,
            *_bill(turn.bill),
            _json_or_none(measures),
        )
        self._db.execute(PUT_TURN, (*row, digest(*row)))

    def _problem_id(self, source: bytes, position: int, problem: Problem) -> int:
        if (source, position) in self._problems:
            return self._problems[source, position]
        sql = "SELECT id FROM problem WHERE source = ? AND position = ?"
        row = self._db.execute(sql, (source, position)).fetchone()
        if row is None:
            body = zlib.compress(msgspec.json.encode(problem), 1)
            values = (source, position, problem.id, body)
            sql = """INSERT INTO problem (source, position, name, body, digest)
                     VALUES (?, ?, ?, ?, ?) RETURNING id"""
            row = self._db.execute(sql, (*values, digest(*values))).fetchone()
        if len(self._problems) >= MOST_PROBLEMS:
            self._problems.clear()
        self._problems[source, position] = int(row[0])
        return int(row[0])

    def problem_name(self, cell: StudyCell, position: int) -> str | None:
        """Return the id of the problem at a position in a cell's order; None if there is none."""
        sql = "SELECT name FROM problem WHERE source = ? AND position = ?"
        with self._one_at_a_time:
            row = self._db.execute(sql, (cell.source, position)).fetchone()
        if row is None:
            return None
        name: str = row[0]
        return name

    def _cell_id(self, cell: StudyCell) -> int:
        if cell.key not in self._cells:
            spec = json.dumps(cell.spec(), default=str)
            row = (cell.key, spec, digest(cell.key, spec, None))
            self._db.execute("INSERT OR IGNORE INTO cell (key, spec, digest) VALUES (?, ?, ?)", row)
            self._cells[cell.key] = self._find(cell) or 0
        return self._cells[cell.key]

    def record_made(self, cell: StudyCell, making_cost: Mapping[str, float]) -> None:
        """Store what making the weights of a cell's model cost."""
        if not making_cost:
            return
        with self._transaction():
            row_id = self._cell_id(cell)
            text = json.dumps(dict(making_cost))
            (spec,) = self._db.execute("SELECT spec FROM cell WHERE id = ?", (row_id,)).fetchone()
            values = (text, digest(cell.key, spec, text), row_id)
            self._db.execute("UPDATE cell SET made = ?, digest = ? WHERE id = ?", values)

    def _making_cost(self, cell: StudyCell) -> dict[str, float]:
        """Return what making the weights cost."""
        row = self._db.execute("SELECT made FROM cell WHERE key = ?", (cell.key,)).fetchone()
        if row is None:
            return {}
        return _decoded(row[0])

    def _find(self, cell: StudyCell) -> int | None:
        row = self._db.execute("SELECT id FROM cell WHERE key = ?", (cell.key,)).fetchone()
        if row is None:
            return None
        return int(row[0])

    def done(self, cell: StudyCell) -> set[tuple[int, int]]:
        """Return position and sample of each attempt that is finished; failed ones are not."""
        sql = """SELECT position, sample FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE cell = ? AND status NOT IN ('failed', 'open')"""
        with self._one_at_a_time, self._reading():
            return set(self._db.execute(sql, (self._find(cell),)))

    def results(self, cell: StudyCell) -> dict[int, tuple[int, int, int, int]]:
        """Return by position: right answers, all answers, attempts (some failed), output tokens."""
        sql = """SELECT position, SUM(correct), SUM(status != 'failed'), COUNT(*),
                 SUM((status != 'failed') * (thinking_tokens + answer_tokens))
                 FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE cell = ? AND sample < ? AND status != 'open' GROUP BY position"""
        with self._one_at_a_time, self._reading():
            rows = self._db.execute(sql, (self._find(cell), cell.quota.samples))
            return {row[0]: row[1:] for row in rows}

    def bills(self, cell: StudyCell) -> dict[int, Bill]:
        """Return by position the summed bill of the answered attempts at a problem."""
        names = [BILLED_COST, *itertools.chain.from_iterable(PARTS)]
        in_details = ", ".join(
            f"""TOTAL(CASE WHEN details LIKE '%"{name}"%'
                THEN json_extract(details, '$.{name}') END)"""
            for name in names
        )
        sql = f"""SELECT position, SUM(prompt_tokens), SUM(thinking_tokens), SUM(answer_tokens),
                 SUM(seconds), SUM(cached_tokens), COUNT(*),
                 SUM(details LIKE '%"{BILLED_COST}"%'), {in_details}
                 FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE {ASKED} AND status NOT IN ('failed', 'open') GROUP BY position"""
        bills = {}
        with self._one_at_a_time, self._reading():
            for row in self._db.execute(sql, self._asked(cell)):
                position, prompt, thinking, answer, seconds, cached, answers, reported = row[:8]
                amounts = dict(zip(names, row[8:], strict=True))
                cost = amounts.pop(BILLED_COST)
                bill = Bill(
                    prompt,
                    thinking,
                    answer,
                    seconds,
                    cached_tokens=cached or 0,
                    cost=cost if reported == answers else None,
                )
                bills[position] = _with_parts(bill, amounts)
        return bills

    def begun(self, cell: StudyCell) -> dict[tuple[int, int], tuple[Completion, ...]]:
        """Return the finished turns of interrupted conversations, by position and sample."""
        sql = """SELECT position, sample, attempt.id
                 FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE cell = ? AND status IN ('failed', 'open')"""
        with self._one_at_a_time, self._reading():
            turns = {}
            for position, sample, attempt in self._db.execute(sql, (self._find(cell),)).fetchall():
                turns[position, sample] = tuple(_turns(self._db, attempt))
            return turns

    def spent(self, cells: Iterable[StudyCell]) -> tuple[int, Bill]:
        """Return how many of the attempts of these cells are answered, and their summed bill."""
        sql = f"""SELECT COUNT(*), SUM(prompt_tokens), SUM(thinking_tokens), SUM(answer_tokens),
                 SUM(seconds), SUM(cached_tokens)
                 FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE {ASKED} AND status NOT IN ('failed', 'open')"""
        answers = 0
        bill = Bill()
        with self._one_at_a_time, self._reading():
            for cell in cells:
                row = self._db.execute(sql, self._asked(cell)).fetchone()
                count, prompt, thinking, answer, seconds, cached = (value or 0 for value in row)
                answers += count
                cost = self._billed_cost(cell, count)
                bill += Bill(prompt, thinking, answer, seconds, cached_tokens=cached, cost=cost)
                if cell.methods:
                    bill += self._parts(cell)
                if judge_of_task(cell.task):
                    bill += self._judging(cell)
        return answers, bill

    def _billed_cost(self, cell: StudyCell, answers: int) -> float | None:
        """Return what a cell's answers were charged; None if the server didn't report it for all."""
        if not cell.model.server():
            return None
        sql = f"""SELECT COUNT(*), TOTAL(json_extract(details, '$.{BILLED_COST}'))
                  FROM attempt JOIN problem ON problem.id = attempt.problem
                  WHERE {ASKED} AND status NOT IN ('failed', 'open')
                  AND details LIKE '%"{BILLED_COST}"%'"""
        count, cost = self._db.execute(sql, self._asked(cell)).fetchone()
        if not count or count < answers:
            return None
        return float(cost)

    def _parts(self, cell: StudyCell) -> Bill:
        """Return what the bills of a cell's answered attempts say of rewards and other models."""
        amounts: dict[str, float] = {}
        for part in PARTS:
            amounts |= self._summed_details(cell, part)
        return _with_parts(Bill(), amounts)

    def _judging(self, cell: StudyCell) -> Bill:
        """Return what a cell's answered attempts have cost the task's judge."""
        sums = self._summed_details(cell, tuple(Judgement().bill()))
        return _with_parts(Bill(), dict(zip(REWARD, sums.values(), strict=True)))

    def _summed_details(self, cell: StudyCell, names: Sequence[str]) -> dict[str, float]:
        """Return the sums of details that stand together, over a cell's answered attempts."""
        sums = ", ".join(f"TOTAL(json_extract(details, '$.{name}'))" for name in names)
        sql = f"""SELECT {sums} FROM attempt JOIN problem ON problem.id = attempt.problem
                  WHERE {ASKED} AND status NOT IN ('failed', 'open')
                  AND details LIKE '%"{names[-1]}"%'"""
        row = self._db.execute(sql, self._asked(cell)).fetchone()
        return dict(zip(names, row, strict=True))

    def sum_of_squares(self, cell: StudyCell) -> float:
        """Return the sum of the squared tokens of the answered attempts of a cell."""
        sql = f"""SELECT TOTAL(1.0 * (prompt_tokens + thinking_tokens + answer_tokens)
                             * (prompt_tokens + thinking_tokens + answer_tokens))
                 FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE {ASKED} AND status NOT IN ('failed', 'open')"""
        with self._one_at_a_time, self._reading():
            (squares,) = self._db.execute(sql, self._asked(cell)).fetchone()
        return float(squares)

    def speed(self, cells: Iterable[StudyCell]) -> tuple[float, float] | None:
        """Return the fraction of tokens that models wrote, and seconds per such token.

        Only answers whose model measured it count; None if there are none.
        """
        sql = f"""SELECT TOTAL(prompt_tokens + thinking_tokens + answer_tokens),
                 TOTAL(thinking_tokens + answer_tokens),
                 TOTAL((thinking_tokens + answer_tokens)
                       * json_extract(details, '$.seconds_per_token'))
                 FROM attempt JOIN problem ON problem.id = attempt.problem
                 WHERE {ASKED} AND status NOT IN ('failed', 'open')
                 AND details LIKE '%"seconds_per_token"%'"""
        tokens = 0.0
        written = 0.0
        seconds = 0.0
        with self._one_at_a_time, self._reading():
            for cell in cells:
                sums = self._db.execute(sql, self._asked(cell)).fetchone()
                tokens += sums[0]
                written += sums[1]
                seconds += sums[2]
        if not seconds:
            return None
        return written / tokens, seconds / written

    def outcomes(self, cells: Iterable[StudyCell]) -> Iterator[Outcome]:
        """Yield the attempts of these cells as statistics see them, without those in progress.

        Cells with one identity have the same attempts, which are read once.
        """
        sql = f"""SELECT attempt.id, name, attempt.digest, {ATTEMPT}
                  {IN_ORDER} ORDER BY position, sample"""
        reader = OutcomeReader()
        with self._reading():
            for cell in dict.fromkeys(cells):
                rows = self._db.execute(sql, (cell.source, *self._asked(cell)))
                yield from reader.read(cell, self._making_cost(cell), rows)

    def attempts(self, cell: StudyCell, limit: int = -1) -> Iterator[Done]:
        """Yield the attempts of a cell with their texts, in the order of problems."""
        sql = f"""SELECT attempt.id, attempt.digest, {ATTEMPT}, problem.digest, {PROBLEM}
                  {IN_ORDER} ORDER BY position, sample LIMIT ?"""
        with self._reading():
            rows = self._db.execute(sql, (cell.source, *self._asked(cell), limit))
            for row_id, check, *row in rows:
                attempt_row = row[:N_ATTEMPT]
                problem_check, *problem_row = row[N_ATTEMPT:]
                verify_attempt(f"attempt {row_id}", attempt_row, check)
                problem = _problem(problem_row, problem_check)
                attempt = _attempt(self._db, row_id, attempt_row, problem)
                if not attempt.completions and attempt.ended != "failed":
                    raise ValueError(f"attempt {row_id} has lost its texts")
                position = problem_row[1]
                yield Done(cell, position, attempt)

    def answers(self, cell: StudyCell) -> Iterator[tuple[Problem, list[tuple[int, bool, str]]]]:
        """Yield each problem of a cell with its graded samples.

        A sample is its number, whether it is right, and the answer in the first turn. Thinking is
        not unpacked, and a problem only once.
        """
        sql = f"""SELECT attempt.id, attempt.digest, {of_table("attempt", ATTEMPT)},
                  turn.digest, {of_table("turn", TURN)},
                  problem.digest, {of_table("problem", PROBLEM)}
                  {IN_ORDER.replace("WHERE", FIRST_TURN)}
                  AND status = 'graded' ORDER BY problem.position, sample"""
        with self._reading():
            rows = self._db.execute(sql, (cell.source, *self._asked(cell)))
            for _, problem_rows in itertools.groupby(rows, key=lambda row: row[-3]):
                samples = []
                for row_id, check, *row in problem_rows:
                    attempt_row = row[:N_ATTEMPT]
                    turn_check, *turn_row = row[N_ATTEMPT:-5]
                    problem_check, *problem_row = row[-5:]
                    verify_attempt(f"attempt {row_id}", attempt_row, check)
                    verify_turn(turn_row, turn_check)
                    _, _, sample, _, correct, *_ = attempt_row
                    answer = turn_row[3]
                    samples.append((sample, bool(correct), answer))
                yield _problem(problem_row, problem_check), samples

    def _asked(self, cell: StudyCell) -> tuple[Any, ...]:
        """Return the parameters of `ASKED`."""
        limit = 2**62
        positions = None
        if cell.quota.positions is not None:
            positions = json.dumps(cell.quota.positions)
        elif cell.quota.problems is not None:
            limit = cell.quota.problems
        return self._find(cell), limit, cell.quota.samples, positions, positions

    def attempt(self, row_id: int) -> Stored | None:
        """Return an attempt by its id, with its texts; None if there is none."""
        with self._reading():
            return read_attempt(self._db, row_id)

    def regrade(self, changes: Iterable[Done]) -> None:
        """Replace the grades of stored attempts. Texts and bills are not changed."""
        update_grade = """
            UPDATE attempt SET status = ?, correct = ?, why = ?, details = ?
            WHERE sample = ? AND cell = ?
            AND problem = (SELECT id FROM problem WHERE source = ? AND position = ?) RETURNING id"""
        read_row = f"SELECT {ATTEMPT} FROM attempt WHERE id = ?"
        update_digest = "UPDATE attempt SET digest = ? WHERE id = ?"
        with self._transaction():
            for cell, position, attempt, *_ in changes:
                values = (
                    status_of(attempt.ended),
                    int(attempt.correct),
                    attempt.why,
                    json.dumps(attempt.details) if attempt.details else None,
                    attempt.sample,
                    self._cell_id(cell),
                    cell.source,
                    position,
                )
                for (row_id,) in self._db.execute(update_grade, values).fetchall():
                    row = self._db.execute(read_row, (row_id,)).fetchone()
                    self._db.execute(update_digest, (digest(*row), row_id))


def billed_part(bill: Bill) -> dict[str, float]:
    """Return what of a bill has no column, for a turn's measures and an attempt's details.

    That is a reward's tokens and cost, those of another model, and the cost that the server
    reported.
    """
    amounts: dict[str, float] = {}
    for part in PARTS:
        values = {name: getattr(bill, name) for name in part}
        if any(values.values()):
            amounts |= values
    if bill.cost is not None:
        amounts[BILLED_COST] = bill.cost
    return amounts


def _with_parts(bill: Bill, amounts: Mapping[str, float]) -> Bill:
    """Return a bill with the amounts that have no columns."""
    values: dict[str, Any] = {}
    for name, amount in amounts.items():
        values[name] = amount if name.endswith("_cost") else int(amount)
    return replace(bill, **values)


def _json_or_none(table: Mapping[str, Any]) -> str | None:
    """Return a table as JSON, or None if it is empty."""
    if not table:
        return None
    return json.dumps(table, default=str)


def _decoded(text: str | None) -> dict[str, Any]:
    """Return the table that a column holds as JSON."""
    if not text:
        return {}
    table: dict[str, Any] = json.loads(text)
    return table


def _bill(bill: Bill) -> tuple[Any, ...]:
    """Return the columns of a bill."""
    return (
        bill.prompt_tokens,
        bill.thinking_tokens,
        bill.answer_tokens,
        round(float(bill.seconds), 3),  # finer would be noise, and take more bytes
        bill.counted_by,
        bill.cached_tokens,
    )


def read_attempt(db: sqlite3.Connection, row_id: int) -> Stored | None:
    """Return an attempt with its texts, from an open file; None if there is none.

    Raises ValueError if it is damaged.
    """
    row = db.execute(f"SELECT digest, {ATTEMPT} FROM attempt WHERE id = ?", (row_id,)).fetchone()
    if not row:
        return None
    check, *attempt_row = row
    verify_attempt(f"attempt {row_id}", attempt_row, check)
    cell, problem_id, *_ = attempt_row
    sql = f"SELECT digest, {PROBLEM} FROM problem WHERE id = ?"
    check, *problem_row = db.execute(sql, (problem_id,)).fetchone()
    problem = _problem(problem_row, check)
    return Stored(cell, problem_id, _attempt(db, row_id, attempt_row, problem))


def _problem(row: Sequence[Any], check: int | None) -> Problem:
    """Verify and decode the columns `PROBLEM`."""
    _, _, name, body = row
    verify(f"problem {name}", row, check)
    return msgspec.json.decode(zlib.decompress(body), type=Problem)


def _attempt(db: sqlite3.Connection, row_id: int, row: Sequence[Any], problem: Problem) -> Attempt:
    """Decode the columns `ATTEMPT`, and read the attempt's turns."""
    _, _, sample, status, correct, why, details, *_ = row
    turns = tuple(_turns(db, row_id))
    return Attempt(problem, sample, ended(status, correct), why, turns, _decoded(details))


def _turns(db: sqlite3.Connection, attempt: int) -> Iterator[Completion]:
    sql = f"SELECT digest, {TURN} FROM turn WHERE attempt = ? ORDER BY position"
    for i, (check, *row) in enumerate(db.execute(sql, (attempt,)).fetchall()):
        verify_turn(row, check)
        _, position, compressed, answer, stop, *bill, text = row
        if position != i:
            raise ValueError(f"attempt {attempt} has lost turn {i}")
        thinking = ""
        if compressed:
            thinking = zlib.decompress(compressed).decode()
        measures = _decoded(text)
        parts = {}
        for name in itertools.chain.from_iterable(PARTS):
            parts[name] = measures.pop(name, 0)
        cost = measures.pop(BILLED_COST, None)
        step_scores = tuple((end, score) for end, score in measures.pop(STEPS, ()))
        blocks = measures.pop(BLOCKS, "")
        judgement = measures.pop(JUDGEMENT, None)
        yield Completion(
            thinking,
            answer,
            stop,
            _with_parts(replace(Bill(*bill), cost=cost), parts),
            measures,
            blocks=blocks,
            step_scores=step_scores,
            judgement=Judgement(*judgement) if judgement else None,
        )
