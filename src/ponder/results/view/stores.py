"""The stores that a page shows: opened to read, seen anew whenever another process has written to
one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponder.core import UserError
from ponder.results.view.index import Index
from ponder.store.file import DamagedStore, connect, errors

if TYPE_CHECKING:
    import sqlite3

# seconds after which a run that writes nothing counts as ended: a long answer takes minutes
SILENCE = 600


class ViewedStore:
    """A store file. It may not exist yet: a run creates it, and then it is here."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.known: dict[str, Any] = {}  # its studies, as they were last read
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._file = 0  # its inode
        self._index, self._indexed, self._growing = Index(), (0, 0), False

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The open file, for one thread at a time."""
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
                self._db, self._file = connect(self.path, write=False), file
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
                known = (
                    self._index
                    if growing and self._growing and version[0] == self._indexed[0]
                    else Index()
                )
                db.execute("BEGIN")  # one moment, though a run may be writing
                try:
                    self._index = known.refreshed(db)
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
    """The stores by their names in addresses: the files' names, numbered where two are equal."""
    stores: dict[str, ViewedStore] = {}
    for path in dict.fromkeys(paths):
        name, n = path.stem, 2
        while name in stores:
            name, n = f"{path.stem}-{n}", n + 1
        stores[name] = ViewedStore(path, name)
    return stores
