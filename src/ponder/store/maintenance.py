"""Checks stores row by row, repairs one and merges several, by copying intact rows to a new store.

A row is intact if its digest matches. Runs of a study before version 5 have no digest, nor have
rows that were changed by hand, so these need only be readable. An attempt is intact if its row, its
cell, its problem and all of its turns are. Pages that SQLite can't read are left to SQLite's
`.recover`.

An attempt is identified by the key of its cell, the position of its problem and its sample. Where
two stores hold the same attempt, a finished one wins over one that failed or was interrupted, then
the one with more turns, then the first.
"""
# ruff: noqa: S608 the parts of these statements are our own text

from __future__ import annotations

import json
import sqlite3
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from ponder.core import Problem, UserError
from ponder.store import schema
from ponder.store.file import DamagedStore, connect, errors, recover
from ponder.store.schema import (
    CELL,
    PROBLEM,
    PUT_ATTEMPT,
    PUT_JOB,
    PUT_JOB_REQUEST,
    PUT_STUDY,
    PUT_TURN,
    SPENT,
    digest,
)

_UNREADABLE = (ValueError, TypeError, zlib.error, RecursionError, msgspec.MsgspecError)
# the second if SQLite's message quotes damaged bytes
_SQL = (sqlite3.DatabaseError, UnicodeDecodeError)


class Scan:
    """The intact rows of a store, by row number, and a sentence for each damage."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"there is no store {path}", hint="check the path")
        self.path = path
        self.damage: list[str] = []
        self.counts: dict[str, int] = defaultdict(int)  # rows that were read
        self.undigested = 0  # of those, the ones without a digest
        self.unreadable = ""  # why SQLite can't read a table to its end
        with errors(path, writing=False):
            self.db = connect(path, write=False)
            (self.version,) = self.db.execute("PRAGMA user_version").fetchone()
            # all that follows sees the same state, though a run may be writing
            self.db.execute("BEGIN")
        # Bytes that are not UTF-8 can't be encoded again, which shows that the text is damaged.
        self.db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        self.studies = [row for row, _ in self._intact("study", _check_study)]
        self.cells = {number: row for row, number in self._intact("cell", _check_cell)}
        self.problems = {number for _, number in self._intact("problem", _check_problem)}
        self.turns: dict[int, list[int]] = {}  # row numbers of each attempt's turns, in order
        self._tokens: dict[int, int] = {}  # of these turns
        self._read_turns()
        self.attempts = set[int]()  # with everything that they refer to
        self.cell_of: dict[int, int] = {}  # the cell of each attempt whose row is intact
        self.highest = max(self.turns, default=0)  # number of an attempt
        self._read_attempts()
        for number in self.turns.keys() - self.cell_of.keys():
            self.damage.append(f"turns of attempt {number}: the attempt is missing")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.db.close()

    def row(self, table: str, number: int) -> tuple[Any, ...]:
        """Return a row without its id and its digest."""
        names = getattr(schema, table.upper())
        table_columns = schema.columns(table, self.version)
        numbered = f"SELECT rowid AS row, {table_columns} FROM main.{table}"
        sql = f"SELECT {names} FROM ({numbered}) WHERE row = ?"
        row: tuple[Any, ...] | None = self.db.execute(sql, (number,)).fetchone()
        if row is None:  # it was read in order, so a page that leads to it is damaged
            raise _damaged_pages(self.path, f"{table} {number} can't be found by its number")
        return row

    def integrity(self) -> list[str]:
        """Return SQLite's own findings: damaged pages, indexes that don't match their tables."""
        try:
            rows = self.db.execute("PRAGMA integrity_check(20)").fetchall()
        except _SQL as error:
            rows = [(error,)]
        findings = []
        for (finding,) in rows:
            text = str(finding)
            if text != "ok":
                findings.append(text.removeprefix("*** in database main ***\n"))
        return findings

    def _read_turns(self) -> None:
        """Read each attempt's turns in their order, up to the first that is missing."""
        rows: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        for row, number in self._intact("turn", _check_turn):
            attempt, position = row[:2]
            rows[attempt][position] = (number, sum(row[5:8]))
        for attempt, by_position in rows.items():
            numbers = []
            tokens = 0
            for position in range(len(by_position)):
                if position not in by_position:
                    self.damage.append(f"turn {position} of attempt {attempt} is missing")
                    break
                number, turn_tokens = by_position[position]
                numbers.append(number)
                tokens += turn_tokens
            self.turns[attempt] = numbers
            self._tokens[attempt] = tokens

    def _read_attempts(self) -> None:
        """Read the attempts, and check that everything they refer to is in the store.

        Failed and open ones may lack their last turns.
        """
        for row, number in self._intact("attempt", _check_attempt):
            cell, problem, _, status = row[:4]
            self.cell_of[number] = cell
            self.highest = max(self.highest, number)
            self.counts[status] += 1
            missing = []
            if cell not in self.cells:
                missing.append(f"cell {cell}")
            if problem not in self.problems:
                missing.append(f"problem {problem}")
            if status not in ("failed", "open") and self._tokens.get(number) != sum(row[7:10]):
                missing.append("some of its turns")
            for noun in missing:
                self.damage.append(f"attempt {number} lacks {noun}")
            if not missing:
                self.attempts.add(number)

    def _intact(
        self, table: str, check: Callable[[tuple[Any, ...]], None]
    ) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield the intact rows of a table without their ids, and their row numbers."""
        if self.version == 0:
            return
        for number, *columns in self._rows(table):
            if table in ("cell", "problem", "attempt"):
                del columns[0]  # the id
            row = tuple(columns)
            self.counts[table] += 1
            try:
                if row[-1] is None:  # no digest
                    for text in row:
                        if isinstance(text, str):
                            text.encode()
                check(row)
            except UnicodeError:
                self.damage.append(f"{table} {number}: its text is damaged")
                continue
            except _UNREADABLE as error:
                message = str(error)
                if not message.startswith(table):
                    message = f"{table} {number}: {error}"
                self.damage.append(message)
                continue
            self.undigested += row[-1] is None
            yield row, number

    def _rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """Yield rows with their numbers, without indexes, up to a page that SQLite can't read."""
        names = schema.columns(table, self.version)
        sql = f"SELECT rowid, {names} FROM main.{table} NOT INDEXED ORDER BY rowid"
        try:
            yield from self.db.execute(sql)
        except _SQL as error:
            self.unreadable = f"table {table} can't be read to its end: {error}"
            self.damage.append(self.unreadable)


def _check_study(row: tuple[Any, ...]) -> None:
    *columns, check = row
    name, resolved, started, *spent = columns
    schema.verify("it", columns, check)
    f"{name}{resolved}{started}".encode()
    json.loads(resolved)
    numbers = all(isinstance(amount, int | float | None) for amount in spent)
    if not isinstance(name, str) or not numbers:
        raise ValueError("it can't be read")


def _check_cell(row: tuple[Any, ...]) -> None:
    *columns, check = row
    key, spec, making_cost = columns
    schema.verify("it", columns, check)
    if not isinstance(key, bytes) or not isinstance(json.loads(spec), dict):
        raise ValueError("it can't be read")
    json.loads(making_cost or "{}")


def _check_problem(row: tuple[Any, ...]) -> None:
    *columns, check = row
    source, position, name, body = columns
    schema.verify("it", columns, check)
    problem = msgspec.json.decode(zlib.decompress(body), type=Problem)
    if problem.id != name or not isinstance(source, bytes) or not isinstance(position, int):
        raise ValueError("it can't be read")


def _check_attempt(row: tuple[Any, ...]) -> None:
    *columns, check = row
    schema.verify_attempt("it", columns, check)
    if check is None:
        json.loads(row[6] or "{}")


def _check_turn(row: tuple[Any, ...]) -> None:
    *columns, check = row
    schema.verify_turn(columns, check)
    if check is None:
        zlib.decompress(row[2] or zlib.compress(b"")).decode()
        json.loads(row[11] or "{}")


@dataclass
class Copied:
    """What a repaired or merged store holds, and what was lost."""

    attempts: int = 0  # in the new store
    lost: int = 0  # attempts that were in a damaged store, and can't be saved
    lost_by_cell: Counter[str] = field(default_factory=Counter)  # where the cell can be read
    damage: list[str] = field(default_factory=list)


def repair(path: Path, new: Path) -> Copied:
    """Copy the intact attempts of a store to a new one."""
    with Scan(path) as old:
        if old.unreadable:
            raise _damaged_pages(path, old.unreadable)
        with _NewStore(new) as store:
            store.copy(old)
        # Attempts are numbered without gaps, so missing numbers are lost attempts.
        copied = Copied(len(old.attempts), old.highest - len(old.attempts), damage=old.damage)
        for number in old.cell_of.keys() - old.attempts:
            copied.lost_by_cell[_title(old, old.cell_of[number])] += 1
        return copied


def _damaged_pages(path: Path, why: str) -> UserError:
    """Return the error of a store that SQLite itself must save first."""
    hint = (
        f"`{recover(path)}` (`.dump` if it has no `.recover`), "
        "then `ponder store repair recovered.db -o NEW.db`"
    )
    return UserError(f"{path} has damaged pages: {why}", hint=hint)


def merge(paths: Sequence[Path], new: Path) -> Copied:
    """Copy the attempts of several intact stores to a new one."""
    with _NewStore(new) as store:
        for path in paths:
            with Scan(path) as old:
                damage = old.damage or old.integrity()
                if damage:
                    raise DamagedStore(path, damage[0])
                store.copy(old)
        return Copied(store.attempts())


class _NewStore:
    """A store that appears under its name when it is complete."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise UserError(f"{path} already exists", hint="name a new file with -o")
        self.path = path
        self._partial = Path(f"{path}.part")
        self._remove()

    def __enter__(self) -> Self:
        with errors(self.path, writing=True):
            self._db = connect(self._partial, write=True)
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        self._db.close()
        if kind is None:
            self._partial.replace(self.path)
        self._remove()

    def _remove(self) -> None:
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._partial}{ending}").unlink(missing_ok=True)

    def attempts(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM attempt").fetchone()[0])

    def copy(self, old: Scan) -> None:
        with errors(self.path, writing=True):
            self._db.execute("BEGIN")
            for study in old.studies:
                self._copy_study(*study[:-1])
            cells = {}
            for number, (key, spec, making_cost, _) in old.cells.items():
                cells[number] = self._copy_cell(key, spec, making_cost)
            problems: dict[int, int] = {}
            self._copy_jobs(old)
            for number in sorted(old.attempts):
                cell, problem, *grade_and_bill = old.row("attempt", number)
                if problem not in problems:
                    problems[problem] = self._copy_problem(old.path, *old.row("problem", problem))
                turns = []
                for turn_number in old.turns.get(number, ()):
                    _, *turn = old.row("turn", turn_number)
                    turns.append(turn)
                self._copy_attempt((cells[cell], problems[problem], *grade_and_bill), turns)
            self._db.execute("COMMIT")

    def _copy_study(self, name: str, resolved: str, started: str, *spent: float | None) -> None:
        """Add a run, unless another copy of the store had it; the larger spending counts."""
        run = (name, resolved, started)
        sql = "SELECT rowid, tokens FROM study WHERE name IS ? AND resolved IS ? AND started IS ?"
        existing = self._db.execute(sql, run).fetchone()
        if existing is None:
            self._db.execute(PUT_STUDY, (*run, *spent, digest(*run, *spent)))
            return
        row_id, tokens = existing
        if (spent[0] or 0) > (tokens or 0):
            self._db.execute(SPENT, (*spent, digest(*run, *spent), row_id))

    def _copy_jobs(self, old: Scan) -> None:
        """Add the jobs that wait at a provider."""
        if not schema.has_jobs(old.version):
            return
        for job in old.db.execute("SELECT id, study, server, remote, created FROM main.job"):
            self._db.execute(PUT_JOB, job)
        sql = "SELECT id, job, attempt, tokens, cost FROM main.job_request"
        for request in old.db.execute(sql):
            self._db.execute(PUT_JOB_REQUEST, request)

    def _copy_cell(self, key: bytes, spec: str, making_cost: str | None) -> int:
        values = (key, spec, making_cost)
        sql = "SELECT id, made FROM cell WHERE key = ?"
        existing = self._db.execute(sql, (key,)).fetchone()
        if existing is None:
            sql = f"INSERT INTO cell ({CELL}, digest) VALUES (?, ?, ?, ?) RETURNING id"
            (row_id,) = self._db.execute(sql, (*values, digest(*values))).fetchone()
            return int(row_id)
        row_id, existing_cost = existing
        if existing_cost is None and making_cost is not None:
            sql = "UPDATE cell SET spec = ?, made = ?, digest = ? WHERE id = ?"
            self._db.execute(sql, (spec, making_cost, digest(*values), row_id))
        return int(row_id)

    def _copy_problem(
        self, path: Path, source: bytes, position: int, name: str, body: bytes
    ) -> int:
        sql = "SELECT id, name FROM problem WHERE source = ? AND position = ?"
        existing = self._db.execute(sql, (source, position)).fetchone()
        if existing is None:
            sql = f"INSERT INTO problem ({PROBLEM}, digest) VALUES (?, ?, ?, ?, ?) RETURNING id"
            values = (source, position, name, body)
            (row_id,) = self._db.execute(sql, (*values, digest(*values))).fetchone()
            return int(row_id)
        row_id, existing_name = existing
        if existing_name != name:
            earlier = f"{existing_name} in an earlier store"
            raise UserError(
                f"problem {position} of one task is {earlier} and {name} in {path}",
                hint="the task's data has changed between the runs: keep these stores apart",
            )
        return int(row_id)

    def _copy_attempt(self, row: tuple[Any, ...], turns: Sequence[Sequence[Any]]) -> None:
        cell, problem, sample, status = row[:4]
        sql = """SELECT status, (SELECT COUNT(*) FROM turn WHERE attempt = id) FROM attempt
                 WHERE cell = ? AND problem = ? AND sample = ?"""
        existing = self._db.execute(sql, (cell, problem, sample)).fetchone()
        if existing and _rank(*existing) >= _rank(status, len(turns)):
            return
        (attempt,) = self._db.execute(PUT_ATTEMPT, (*row, digest(*row))).fetchone()
        self._db.execute("DELETE FROM turn WHERE attempt = ?", (attempt,))
        for turn in turns:
            self._db.execute(PUT_TURN, (attempt, *turn, digest(attempt, *turn)))


def _rank(status: str, turns: int) -> tuple[bool, int]:
    """Return a sort key: of two copies of an attempt, the one with the higher rank is kept."""
    if status in ("failed", "open"):
        return False, turns
    return True, 0


def _title(old: Scan, cell: int) -> str:
    """Describe a cell by its task, its size, and its model with methods."""
    if cell not in old.cells:
        return "unknown"
    spec = json.loads(old.cells[cell][1])
    task = spec.get("task", {})
    model = spec.get("model", {})
    chain = [model.get("label") or model.get("id") or model.get("name", "?")]
    for method in spec.get("methods", []):
        chain.append(method.get("name", "?"))
    return f"{task.get('name', '?')}, size {task.get('size', '?')}, {' + '.join(chain)}"
