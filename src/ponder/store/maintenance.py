"""Checks a store row by row, and copies what is whole into a new one: to repair a store, or to
merge several.

A row is whole if it is the one that its digest was made from; runs of a study before version 5 have
no digest, nor have rows that were changed by hand, so they need only be readable. An attempt is
whole if its row, its cell, its problem and all of its turns are. Pages that SQLite can't read are
left to SQLite's `.recover`.

An attempt is known by the key of its cell, the place of its problem and its sample. Where two
stores hold the same attempt, a finished one wins over one that failed or was interrupted, then the
one with more turns, then the first.
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
from ponder.store.schema import CELL, PROBLEM, PUT_ATTEMPT, PUT_STUDY, PUT_TURN, SPENT, digest

_UNREADABLE = (ValueError, TypeError, zlib.error, RecursionError, msgspec.MsgspecError)
# the second if SQLite's message quotes damaged bytes
_SQL = (sqlite3.DatabaseError, UnicodeDecodeError)


class Scan:
    """What is whole in a store, by row number, and a sentence for each damage."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"there is no store {path}", hint="check the path")
        self.path, self.damage = path, list[str]()
        self.counts: dict[str, int] = defaultdict(int)  # rows that were read
        self.undigested = 0  # of those, the ones without a digest
        self.unreadable = ""  # why SQLite can't read a table to its end
        with errors(path, writing=False):
            self.db = connect(path, write=False)
            (self.version,) = self.db.execute("PRAGMA user_version").fetchone()
            # all that follows sees the same state, though a run may be writing
            self.db.execute("BEGIN")
        # Bytes that are no UTF-8 can't be encoded again, which shows that the text is damaged.
        self.db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        self.studies = [row for row, _ in self._whole("study", _check_study)]
        self.cells = {number: row for row, number in self._whole("cell", _check_cell)}
        self.problems = {number for _, number in self._whole("problem", _check_problem)}
        self.seen: dict[int, int] = {}  # the cell of each attempt whose row is whole
        self.turns, self._tokens = self._read_turns()
        self.highest = max(self.turns, default=0)  # number of an attempt
        self.attempts = {
            number
            for row, number in self._whole("attempt", _check_attempt)
            if self._complete(number, row)
        }
        for number in self.turns.keys() - self.seen.keys():
            self.damage.append(f"turns of attempt {number}: the attempt is missing")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.db.close()

    def row(self, table: str, number: int) -> tuple[Any, ...]:
        """Return a row without its id and its digest."""
        names = f"{getattr(schema, table.upper())}, digest"
        sql = f"SELECT {names} FROM (SELECT rowid AS row, {schema.columns(table, self.version)} FROM main.{table})"
        *row, _ = self.db.execute(f"{sql} WHERE row = ?", (number,)).fetchone()
        return tuple(row)

    def integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file: pages, and indexes that don't match their
        tables.
        """
        try:
            found = [str(line) for (line,) in self.db.execute("PRAGMA integrity_check(20)")]
        except _SQL as error:
            found = [str(error)]
        return [line.removeprefix("*** in database main ***\n") for line in found if line != "ok"]

    def _read_turns(self) -> tuple[dict[int, list[int]], dict[int, int]]:
        """The row numbers of each attempt's turns in their order, up to the first that is missing;
        and their tokens.
        """
        found: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        for row, number in self._whole("turn", _check_turn):
            found[row[0]][row[1]] = (number, sum(row[5:8]))
        turns, tokens = {}, {}
        for attempt, by_position in found.items():
            first = [by_position[i] for i in range(len(by_position)) if i in by_position]
            if len(first) < len(by_position):
                missing = next(i for i in range(len(by_position)) if i not in by_position)
                self.damage.append(f"turn {missing} of attempt {attempt} is missing")
                first = first[:missing]
            turns[attempt] = [number for number, _ in first]
            tokens[attempt] = sum(n for _, n in first)
        return turns, tokens

    def _complete(self, number: int, row: tuple[Any, ...]) -> bool:
        """Whether everything that an attempt refers to is there.

        Failed and open ones may lack their last turns.
        """
        cell, problem, _, status = row[:4]
        self.seen[number] = cell
        self.highest = max(self.highest, number)
        self.counts[status] += 1
        found = [f"cell {cell}"] if cell not in self.cells else []
        found += [f"problem {problem}"] if problem not in self.problems else []
        if status not in ("failed", "open") and self._tokens.get(number) != sum(row[7:10]):
            found.append("some of its turns")
        self.damage += [f"attempt {number} lacks {what}" for what in found]
        return not found

    def _whole(
        self, table: str, check: Callable[[tuple[Any, ...]], None]
    ) -> Iterator[tuple[tuple[Any, ...], int]]:
        """Yield the intact rows of a table with their numbers; columns as in `schema`, without id."""
        if self.version == 0:
            return
        for number, *columns in self._rows(table):
            row = tuple(columns[1:]) if table in ("cell", "problem", "attempt") else tuple(columns)
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
                self.damage.append(
                    str(error) if str(error).startswith(table) else f"{table} {number}: {error}"
                )
                continue
            self.undigested += row[-1] is None
            yield row, number

    def _rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """Every row with its number, read without indexes, up to the first page that SQLite can't
        read.
        """
        names = schema.columns(table, self.version)
        try:
            yield from self.db.execute(
                f"SELECT rowid, {names} FROM main.{table} NOT INDEXED ORDER BY rowid"
            )
        except _SQL as error:
            self.unreadable = f"table {table} can't be read to its end: {error}"
            self.damage.append(self.unreadable)


def _check_study(row: tuple[Any, ...]) -> None:
    *columns, check = row
    name, resolved, started, *spent = columns
    schema.verify("it", columns, check)
    f"{name}{resolved}{started}".encode()
    json.loads(resolved)
    if not (isinstance(name, str) and all(isinstance(n, int | float | None) for n in spent)):
        raise ValueError("it can't be read")


def _check_cell(row: tuple[Any, ...]) -> None:
    *columns, check = row
    key, spec, made = columns
    schema.verify("it", columns, check)
    if not (isinstance(key, bytes) and isinstance(json.loads(spec), dict)):
        raise ValueError("it can't be read")
    json.loads(made or "{}")


def _check_problem(row: tuple[Any, ...]) -> None:
    *columns, check = row
    schema.verify("it", columns, check)
    problem = msgspec.json.decode(zlib.decompress(row[3]), type=Problem)
    if problem.id != row[2] or not (isinstance(row[0], bytes) and isinstance(row[1], int)):
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
    """What a new store was made from."""

    attempts: int = 0  # in the new store
    lost: int = 0  # attempts that were in a damaged store, and can't be saved
    lost_by_cell: Counter[str] = field(default_factory=Counter)  # as far as it is known
    damage: list[str] = field(default_factory=list)


def repair(path: Path, new: Path) -> Copied:
    """Copy the attempts of a store that are whole, without rows that have changed or lack others."""
    with Scan(path) as old:
        if old.unreadable:
            hint = f"`{recover(path)}` (`.dump` if it has no `.recover`), then `ponder store repair recovered.db -o {new}`"
            raise UserError(f"{path} has damaged pages: {old.unreadable}", hint=hint)
        with _NewStore(new) as store:
            store.copy(old)
        # Attempts are numbered without gaps, so those that are gone are known by their numbers.
        copied = Copied(len(old.attempts), old.highest - len(old.attempts), damage=old.damage)
        for number in old.seen.keys() - old.attempts:
            copied.lost_by_cell[_title(old, old.seen[number])] += 1
        return copied


def merge(paths: Sequence[Path], new: Path) -> Copied:
    """Copy the attempts of several stores. All of them must be whole."""
    with _NewStore(new) as store:
        for path in paths:
            with Scan(path) as old:
                if found := old.damage or old.integrity():
                    raise DamagedStore(path, found[0])
                store.copy(old)
        return Copied(store.attempts())


class _NewStore:
    """A store that appears under its name when it is complete."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise UserError(f"{path} already exists", hint="name a new file with -o")
        self.path, self._part = path, Path(f"{path}.part")
        self._remove()

    def __enter__(self) -> Self:
        with errors(self.path, writing=True):
            self._db = connect(self._part, write=True)
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        self._db.close()
        if kind is None:
            self._part.replace(self.path)
        self._remove()

    def _remove(self) -> None:
        for ending in ("", "-wal", "-shm"):
            Path(f"{self._part}{ending}").unlink(missing_ok=True)

    def attempts(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM attempt").fetchone()[0])

    def copy(self, old: Scan) -> None:
        with errors(self.path, writing=True):
            self._db.execute("BEGIN")
            for study in old.studies:
                self._study(*study[:-1])
            cells = {number: self._cell(*row[:3]) for number, row in old.cells.items()}
            problems: dict[int, int] = {}
            for number in sorted(old.attempts):
                cell, problem, *row = old.row("attempt", number)
                turns = [old.row("turn", turn)[1:] for turn in old.turns.get(number, ())]
                if problem not in problems:
                    problems[problem] = self._problem(old.path, *old.row("problem", problem))
                self._attempt((cells[cell], problems[problem], *row), turns)
            self._db.execute("COMMIT")

    def _study(self, name: str, resolved: str, started: str, *spent: float | None) -> None:
        """Keep a run once, though two copies of a store have it; of a run that went on, what it
        spent in the end.
        """
        same = (name, resolved, started)
        sql = "SELECT rowid, tokens FROM study WHERE name IS ? AND resolved IS ? AND started IS ?"
        row = self._db.execute(sql, same).fetchone()
        if row is None:
            self._db.execute(PUT_STUDY, (*same, *spent, digest(*same, *spent)))
        elif (spent[0] or 0) > (row[1] or 0):
            self._db.execute(SPENT, (*spent, digest(*same, *spent), row[0]))

    def _cell(self, key: bytes, spec: str, made: str | None) -> int:
        row = self._db.execute("SELECT id, made FROM cell WHERE key = ?", (key,)).fetchone()
        if row is None:
            sql = f"INSERT INTO cell ({CELL}, digest) VALUES (?, ?, ?, ?) RETURNING id"
            row = self._db.execute(sql, (key, spec, made, digest(key, spec, made))).fetchone()
        elif row[1] is None and made is not None:
            sql = "UPDATE cell SET spec = ?, made = ?, digest = ? WHERE id = ?"
            self._db.execute(sql, (spec, made, digest(key, spec, made), row[0]))
        return int(row[0])

    def _problem(self, path: Path, source: bytes, position: int, name: str, body: bytes) -> int:
        sql = "SELECT id, name FROM problem WHERE source = ? AND position = ?"
        row = self._db.execute(sql, (source, position)).fetchone()
        if row is None:
            sql = f"INSERT INTO problem ({PROBLEM}, digest) VALUES (?, ?, ?, ?, ?) RETURNING id"
            values = (source, position, name, body)
            row = self._db.execute(sql, (*values, digest(*values))).fetchone()
        elif row[1] != name:
            what = f"problem {position} of one task is {row[1]} in an earlier store and {name} in {path}"
            raise UserError(
                what, hint="the task's data has changed between the runs: keep these stores apart"
            )
        return int(row[0])

    def _attempt(self, row: tuple[Any, ...], turns: Sequence[tuple[Any, ...]]) -> None:
        sql = "SELECT id, status, (SELECT COUNT(*) FROM turn WHERE attempt = id) FROM attempt"
        known = self._db.execute(
            f"{sql} WHERE cell = ? AND problem = ? AND sample = ?", row[:3]
        ).fetchone()
        if known and _rank(known[1], known[2]) >= _rank(row[3], len(turns)):
            return
        (attempt,) = self._db.execute(PUT_ATTEMPT, (*row, digest(*row))).fetchone()
        self._db.execute("DELETE FROM turn WHERE attempt = ?", (attempt,))
        for values in turns:
            self._db.execute(PUT_TURN, (attempt, *values, digest(attempt, *values)))


def _rank(status: str, turns: int) -> tuple[bool, int]:
    finished = status not in ("failed", "open")
    return finished, 0 if finished else turns


def _title(old: Scan, cell: int) -> str:
    """Describe a cell in few words."""
    if cell not in old.cells:
        return "unknown"
    spec = json.loads(old.cells[cell][1])
    methods = [m.get("name", "?") for m in spec.get("methods", [])]
    model = spec.get("model", {})
    parts = [spec.get("task", {}).get("name", "?"), f"size {spec.get('task', {}).get('size', '?')}"]
    return ", ".join(
        [
            *parts,
            " + ".join([model.get("label") or model.get("id") or model.get("name", "?"), *methods]),
        ]
    )
