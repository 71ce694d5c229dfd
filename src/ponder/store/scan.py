"""Reads everything in a store that is whole, and lists the rest.

Rows are read by their number, without indexes, so that a damaged page costs only the rows on it. A row is whole if it
is the one that its digest was made from; rows of stores before version 4 have no digest, nor have runs of a study
before version 5, so they need only be readable.
An attempt is whole if its row, its cell, its problem and all of its turns are.
"""
# ruff: noqa: S608 the parts of these statements are our own text

from __future__ import annotations

import json
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from ponder.core import Problem, UserError
from ponder.store import schema
from ponder.store.file import connect, errors

_UNREADABLE = (ValueError, TypeError, zlib.error, RecursionError, msgspec.MsgspecError)
_SQL = (sqlite3.DatabaseError, UnicodeDecodeError)  # the second if SQLite's message quotes damaged bytes
_FIRST, _LAST = -(2**63), 2**63 - 1  # row numbers


class Scan:
    """What is whole in a store, by row number, and a sentence for each damage."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"there is no store {path}", hint="check the path")
        self.path, self.damage = path, list[str]()
        self.counts: dict[str, int] = defaultdict(int)  # rows that were read
        self.undigested = 0  # of those, the ones without a digest
        with errors(path, writing=False):
            self.db = connect(path, write=False)
            (self.version,) = self.db.execute("PRAGMA user_version").fetchone()
            self.db.execute("BEGIN")  # all that follows sees the same state, though a run may be writing
        # Bytes that are no UTF-8 can't be encoded again, which shows that the text is damaged.
        self.db.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        self.studies = [row for row, _ in self._whole("study", _check_study)]
        self.cells = {number: row for row, number in self._whole("cell", _check_cell)}
        self._cells_of_index()
        self.problems = {number for _, number in self._whole("problem", _check_problem)}
        self.seen: dict[int, int] = {}  # the cell of each attempt whose row is whole
        self.turns, self._tokens = self._read_turns()
        self.highest = max(self.turns, default=0)  # number of an attempt
        self.attempts = {
            number for row, number in self._whole("attempt", _check_attempt) if self._complete(number, row)
        }
        for number in self.turns.keys() - self.seen.keys():
            self.damage.append(f"turns of attempt {number}: the attempt is missing")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.db.close()

    def _cells_of_index(self) -> None:
        """The keys of lost cells: without them, one damaged page would cost every attempt. What they were is lost."""
        if self.version and self.damage:
            with suppress(*_SQL):
                index = "SELECT rowid, key FROM main.cell INDEXED BY sqlite_autoindex_cell_1"
                for number, key in self.db.execute(index):
                    self.cells.setdefault(number, (key, "{}", None, None))

    def row(self, table: str, number: int) -> tuple[Any, ...]:
        """A row without its id and its digest. ValueError: in a damaged table, the row can't be found by its number."""
        names = f"{getattr(schema, table.upper())}, digest"
        sql = f"SELECT {names} FROM (SELECT rowid AS row, {schema.columns(table, self.version)} FROM main.{table})"
        found = self.db.execute(f"{sql} WHERE row = ?", (number,)).fetchone()
        if found is None:
            raise ValueError(f"{table} {number} is missing")
        *row, check = found
        schema.verify(f"{table} {number}", row, check)
        return tuple(row)

    def integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file: pages, and indexes that don't match their tables."""
        try:
            found = [str(line) for (line,) in self.db.execute("PRAGMA integrity_check(20)")]
        except _SQL as error:
            found = [str(error)]
        return [line.removeprefix("*** in database main ***\n") for line in found if line != "ok"]

    def _read_turns(self) -> tuple[dict[int, list[int]], dict[int, int]]:
        """The row numbers of each attempt's turns in their order, up to the first that is missing; and their tokens."""
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
        """Whether everything that an attempt refers to is there. Failed and open ones may lack their last turns."""
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

    def _whole(self, table: str, check: Callable[[tuple[Any, ...]], None]) -> Iterator[tuple[tuple[Any, ...], int]]:
        """The whole rows of a table with their numbers; columns as in `schema`, without id."""
        if self.version == 0:
            return
        for number, *columns in self._readable(table):
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
                self.damage.append(str(error) if str(error).startswith(table) else f"{table} {number}: {error}")
                continue
            self.undigested += row[-1] is None
            yield row, number

    def _readable(self, table: str) -> Iterator[tuple[Any, ...]]:
        names = schema.columns(table, self.version)
        sql = f"SELECT rowid, {names} FROM main.{table} NOT INDEXED WHERE rowid >= ? ORDER BY rowid"
        start: int | None = _FIRST
        while start is not None:
            why = ""
            try:
                for row in self.db.execute(sql, (start,)):
                    if not start <= row[0] < _LAST:  # a damaged page can lead back to an earlier one
                        raise sqlite3.DatabaseError("rows are out of order")
                    start = row[0] + 1
                    yield row
                return
            except _SQL as error:
                why = str(error)
            # Python's cursor reads one row ahead, so the row before a damaged one isn't returned above.
            readable, row = self._first(sql, start)
            if readable and row is None:
                return
            if readable:
                start = row[0] + 1
                yield row
            else:
                until = self._skip(sql, start)
                last = "the last" if until is None else str(until - 1)
                self.damage.append(f"{table}: rows {max(start, 0)} to {last} can't be read ({why})")
                start = until

    def _first(self, sql: str, start: int) -> tuple[bool, Any]:
        """Whether the first row from a number on can be read, and the row; None if there is no more row."""
        try:
            row = self.db.execute(f"{sql} LIMIT 1", (start,)).fetchone()
        except _SQL:
            return False, None
        return row is None or start <= row[0] < _LAST, row

    def _skip(self, sql: str, start: int) -> int | None:
        """The first number from which rows can be read again; None if there is none. A page holds a range of them."""
        step = 1
        while not self._first(sql, min(start + step, _LAST))[0]:
            if start + step >= _LAST:
                return None
            step *= 2
        bad, good = start + step // 2, min(start + step, _LAST)
        while good - bad > 1:
            middle = (bad + good) // 2
            bad, good = (bad, middle) if self._first(sql, middle)[0] else (middle, good)
        return good if self._first(sql, good)[1] else None


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
