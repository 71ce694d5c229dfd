"""Copies what is whole in one or more stores into a new one: to repair a store, or to merge several.

An attempt is known by the key of its cell, the place of its problem and its sample. Where two stores hold the same
attempt, a finished one wins over one that failed or was interrupted, then the one with more turns, then the first.
"""
# ruff: noqa: S608 the parts of these statements are our own text

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ponder.core import UserError
from ponder.store.file import DamagedStore, NewerStore, connect, errors
from ponder.store.scan import Scan
from ponder.store.schema import CELL, PROBLEM, PUT_ATTEMPT, PUT_STUDY, PUT_TURN, SPENT, digest

PAGE = 4096  # bytes; SQLite's default


@dataclass
class Copied:
    """What a new store was made from."""

    attempts: int = 0  # in the new store
    lost: int = 0  # attempts that were in a damaged store, and can't be saved
    lost_by_cell: Counter[str] = field(default_factory=Counter)  # as far as it is known
    damage: list[str] = field(default_factory=list)


def repair(path: Path, new: Path) -> Copied:
    """Copy what is whole in a damaged store."""
    with tempfile.TemporaryDirectory() as folder, _scan(path, Path(folder)) as old, _NewStore(new) as store:
        store.copy(old)
        # Attempts are numbered without gaps, so those that can't even be read are known by their numbers.
        copied = Copied(len(old.attempts), old.highest - len(old.attempts), damage=old.damage)
        for number in old.seen.keys() - old.attempts:
            copied.lost_by_cell[_title(old, old.seen[number])] += 1
        return copied


def _scan(path: Path, folder: Path) -> Scan:
    """What is whole in a store, though its first page, where SQLite looks up the tables, may be unreadable.

    In that case a copy gets the first page of an empty store. Every version creates its tables in the same order, so
    they begin at the same pages, and columns that a version lacks are the last ones.
    """
    try:
        return Scan(path)
    except UserError as error:
        if not path.is_file() or isinstance(error, NewerStore):
            raise
        copy, empty = folder / "copy.db", folder / "empty.db"
        with errors(empty, writing=True), closing(connect(empty, write=True)):
            pass
        shutil.copy(path, copy)
        first = bytearray(empty.read_bytes()[:PAGE])
        first[28:40] = (path.stat().st_size // PAGE).to_bytes(4, "big") + bytes(8)  # pages; no free ones
        with copy.open("r+b") as file:
            file.write(first)
        with suppress(UserError):
            scan = Scan(copy)
            scan.damage.insert(0, "the first page")
            if scan.attempts:
                return scan
        raise error from None


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
                try:
                    cell, problem, *row = old.row("attempt", number)
                    turns = [old.row("turn", turn)[1:] for turn in old.turns.get(number, ())]
                    if problem not in problems:
                        problems[problem] = self._problem(old.path, *old.row("problem", problem))
                except (ValueError, sqlite3.DatabaseError) as error:
                    old.attempts.remove(number)
                    old.damage.append(f"attempt {number}: {error}")
                else:
                    self._attempt((cells[cell], problems[problem], *row), turns)
            self._db.execute("COMMIT")

    def _study(self, name: str, resolved: str, started: str, *spent: float | None) -> None:
        """Keep a run once, though two copies of a store have it; of a run that went on, what it spent in the end."""
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
            raise UserError(what, hint="the task's data has changed between the runs: keep these stores apart")
        return int(row[0])

    def _attempt(self, row: tuple[Any, ...], turns: Sequence[tuple[Any, ...]]) -> None:
        sql = "SELECT id, status, (SELECT COUNT(*) FROM turn WHERE attempt = id) FROM attempt"
        known = self._db.execute(f"{sql} WHERE cell = ? AND problem = ? AND sample = ?", row[:3]).fetchone()
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
    """A cell in few words, for people."""
    if cell not in old.cells:
        return "unknown"
    spec = json.loads(old.cells[cell][1])
    methods = [m.get("name", "?") for m in spec.get("methods", [])]
    model = spec.get("model", {})
    parts = [spec.get("task", {}).get("name", "?"), f"size {spec.get('task', {}).get('size', '?')}"]
    return ", ".join([*parts, " + ".join([model.get("label") or model.get("id") or model.get("name", "?"), *methods])])
