"""Opens the stores that a page shows, to read only, and holds their attempts as columns of numbers.

A store is read again whenever another process has written to it. With columns a page can count,
filter and sort 200,000 attempts in a blink: an attempt takes 60 bytes here, and its texts stay in
the store until a page shows them. While a run writes, only what is new is read: attempts are added
with growing ids, and only those that failed or are in progress change later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import ENDINGS, UserError
from ponder.store.file import DamagedStore, connect, errors
from ponder.store.schema import ended as how_ended

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

Whole: TypeAlias = npt.NDArray[np.int64]
OPEN, RIGHT, WRONG, UNPARSED, TRUNCATED, FAILED = range(len(ENDINGS))
READ = """SELECT id, cell, problem, sample, status, correct, why,
                 prompt_tokens, thinking_tokens, answer_tokens, seconds
          FROM attempt WHERE id > ? ORDER BY id"""
# the columns of an `Index` that are read from the store, in the order of `READ`
COLUMNS = (
    "id",
    "cell",
    "problem",
    "sample",
    "ended",
    "why",
    "prompt",
    "thinking",
    "answer",
    "milliseconds",
)
CHUNK = 4000  # rows read at once


def _whole() -> Whole:
    return np.zeros(0, np.int64)


@dataclass
class Index:
    """Columns, one entry per attempt, by growing id."""

    id: Whole = field(default_factory=_whole)
    cell: Whole = field(default_factory=_whole)  # row of the table `cell`
    problem: Whole = field(default_factory=_whole)  # row of the table `problem`
    sample: Whole = field(default_factory=_whole)
    ended: Whole = field(default_factory=_whole)  # number of an ending
    why: Whole = field(default_factory=_whole)  # number of a reason
    prompt: Whole = field(default_factory=_whole)
    thinking: Whole = field(default_factory=_whole)
    answer: Whole = field(default_factory=_whole)
    milliseconds: Whole = field(default_factory=_whole)
    reasons: list[str] = field(default_factory=list)
    # of each problem in its cells' order, by its row
    positions: Whole = field(default_factory=_whole)
    cells: dict[bytes, int] = field(default_factory=dict)  # rows of cells by their key

    def __len__(self) -> int:
        return len(self.id)

    @property
    def tokens(self) -> Whole:
        return self.thinking + self.answer

    def refreshed(self, db: sqlite3.Connection) -> Index:
        """Return the index of a store that has changed.

        Attempts that failed or are in progress are read again, and those that are new.
        """
        reasons = {why: number for number, why in enumerate(self.reasons)}
        last = int(self.id[-1]) if len(self) else 0
        new = _read(db.execute(READ, (last,)), reasons)
        columns = [getattr(self, name).copy() for name in COLUMNS]
        unsettled = np.flatnonzero(np.isin(self.ended, (OPEN, FAILED)))
        rows_again: list[Sequence[Any]] = []
        for attempt in self.id[unsettled].tolist():
            rows_again += db.execute(f"{READ} LIMIT 1", (attempt - 1,))
        again = _read(rows_again, reasons)
        removed = len(rows_again) != len(unsettled)
        changed = False
        if not removed:
            for column, values in zip(columns, again, strict=True):
                changed = changed or not np.array_equal(column[unsettled], values)
                column[unsettled] = values
        nothing_new = not changed and not len(new[0])
        if len(self) and (removed or nothing_new):
            return Index().refreshed(db)  # attempts were graded again, or removed
        values_by_name: dict[str, Any] = {}
        for name, old_values, new_values in zip(COLUMNS, columns, new, strict=True):
            values_by_name[name] = np.concatenate((old_values, new_values))
        return Index(
            **values_by_name,
            reasons=list(reasons),
            positions=_positions(db),
            cells=dict(db.execute("SELECT key, id FROM cell")),
        )


def _positions(db: sqlite3.Connection) -> Whole:
    rows = np.array(db.execute("SELECT id, position FROM problem").fetchall(), np.int64).reshape(
        -1, 2
    )
    positions = np.zeros(int(rows[:, 0].max(initial=0)) + 1, np.int64)
    positions[rows[:, 0]] = rows[:, 1]
    return positions


def _read(rows: Iterable[Sequence[Any]], reasons: dict[str, int]) -> list[Whole]:
    """Return the columns of some attempts; new reasons are added to `reasons`."""
    chunks = []
    chunk = []
    for row in rows:
        (attempt, cell, problem, sample, status, correct, why, *tokens, seconds) = row
        ended = ENDINGS.index(how_ended(status, correct))
        reason = reasons.setdefault(why, len(reasons))
        milliseconds = round(1000 * seconds)
        chunk.append((attempt, cell, problem, sample, ended, reason, *tokens, milliseconds))
        if len(chunk) == CHUNK:
            chunks.append(np.array(chunk, np.int64))
            chunk = []
    chunks.append(np.array(chunk, np.int64).reshape(-1, len(COLUMNS)))
    return list(np.ascontiguousarray(np.concatenate(chunks).T))


# seconds after which a run that writes nothing counts as ended: a long answer takes minutes
SILENCE = 600


class ViewedStore:
    """A store file. It may not exist yet: a run creates it, and then it is here."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.known: dict[str, Any] = {}  # its studies, as they were last read
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._file = 0  # its inode
        self._index = Index()
        self._indexed = (0, 0)  # the version of the index
        self._growing = False

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the open file, for one thread at a time."""
        with self._lock, errors(self.path, writing=False):
            file = self.path.stat().st_ino if self.path.is_file() else 0
            if file != self._file and self._db:
                self._db.close()
                self._db = None
            if not file:
                raise UserError(
                    f"there is no store {self.path}", hint="`ponder run STUDY` creates it"
                )
            if self._db is None:
                self._db = connect(self.path, write=False)
                self._file = file
            yield self._db

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.reading() as db:
            return db.execute(sql, values).fetchall()

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever another process has written: the file, and SQLite's count (9 µs)."""
        if not self.path.is_file():
            return 0, 0
        with self.reading() as db:
            return self._file, int(db.execute("PRAGMA data_version").fetchone()[0])

    @property
    def index(self) -> Index:
        if not self.path.is_file():
            return Index()
        with self.reading() as db:
            version = self.version
            if version != self._indexed:
                # Only while a run writes are attempts just added; otherwise they may have been
                # graded again.
                growing, self._growing = self._growing, self.running
                base = (
                    self._index
                    if growing and self._growing and version[0] == self._indexed[0]
                    else Index()
                )
                db.execute("BEGIN")  # one moment, though a run may be writing
                try:
                    self._index = base.refreshed(db)
                except (
                    ValueError,
                    TypeError,
                    OverflowError,
                ):  # a text where a number belongs, an unknown status
                    raise DamagedStore(self.path, "an attempt or a problem can't be read") from None
                finally:
                    db.execute("ROLLBACK")
                self._indexed = version
            return self._index

    @property
    def running(self) -> bool:
        """Whether a run is writing now.

        A run holds an exclusive transaction on the lock file. Its journal tells without touching
        the lock, which might keep a run from starting; a run that was killed leaves the journal
        behind, but writes no more.
        """
        return (
            Path(f"{self.path.resolve()}.lock-journal").is_file()
            and time.time() - self.changed() < SILENCE
        )

    def changed(self) -> float:
        """When it was last written to, in seconds since 1970."""
        files = (self.path, Path(f"{self.path.resolve()}-wal"))
        return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)

    def close(self) -> None:
        with self._lock:
            if self._db:
                self._db.close()
                self._db = None


def opened(paths: Sequence[Path]) -> dict[str, ViewedStore]:
    """Return the stores by the names of their files, numbered where two are equal."""
    stores: dict[str, ViewedStore] = {}
    for path in dict.fromkeys(paths):
        name = path.stem
        number = 1
        while name in stores:
            number += 1
            name = f"{path.stem}-{number}"
        stores[name] = ViewedStore(path, name)
    return stores
