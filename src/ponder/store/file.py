"""Opens the SQLite file of a store, and says what is wrong with it where SQLite can't.

A file that isn't a store is refused before anything is read from it. An empty file is an empty
store.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ponder.core import UserError
from ponder.store import schema

OTHER = "name another file: --store, or the argument of `ponder store`"


class DamagedStore(UserError):
    """Parts of a store can't be read."""

    def __init__(self, path: Path, why: str) -> None:
        hint = (
            f"`ponder store check {shlex.quote(str(path))}` lists the damage, "
            "`ponder store repair` saves the rest"
        )
        super().__init__(f"{path} is damaged: {why}", hint=hint)


def recover(path: Path) -> str:
    """Return the command by which SQLite saves the rows of a damaged file."""
    return f"sqlite3 {shlex.quote(str(path))} .recover | sqlite3 recovered.db"


@contextmanager
def errors(path: Path, *, writing: bool) -> Iterator[None]:
    """Turn SQLite's errors into errors that a user can act on."""
    try:
        yield
    except sqlite3.Error as error:
        explained = _explained(error, path, writing)
        if explained is None:
            raise
        raise explained from None
    except UnicodeDecodeError:  # SQLite's message quotes the damaged bytes
        raise DamagedStore(path, "its tables can't be read") from None
    except OSError as error:
        verb = "read"
        if writing:
            verb = "write"
        raise UserError(f"can't {verb} {path}: {error.strerror}", hint=OTHER) from None


def _explained(error: sqlite3.Error, path: Path, writing: bool) -> UserError | None:
    code = getattr(error, "sqlite_errorname", "")
    why = str(error)
    if code == "SQLITE_NOTADB":
        hint = f"{OTHER}; if it was a store once, `{recover(path)}` may save its attempts"
        return UserError(f"{path} is not a store: {why}", hint=hint)
    if code == "SQLITE_FULL" or (code.startswith("SQLITE_IOERR") and writing):
        hint = "free some space and run again to resume: everything stored so far is kept"
        return UserError(f"the disk is full: {path} can't grow ({why})", hint=hint)
    if code.startswith("SQLITE_IOERR"):
        return UserError(f"can't read {path}: {why}", hint="check the disk")
    if code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
        return UserError(f"can't open the store {path}", hint="check the path and permissions")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return UserError(
            f"another program is using {path}: {why}", hint="close it, then run the command again"
        )
    # The last two are of text that is no UTF-8, and of JSON in SQL. Our own statements violate no
    # constraint.
    broken = code.startswith(
        ("SQLITE_CORRUPT", "SQLITE_TOOBIG", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH")
    )
    if broken or why.startswith(("unsupported file format", "Could not decode", "malformed JSON")):
        return DamagedStore(path, why.partition(" with text ")[0])  # the rest is the damaged text
    return None


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open a store.

    To write, it is created or upgraded; to read, an older one is shown as if it were upgraded.
    """
    if not write:
        return _reader(path)
    db = _connection(path)
    with _closed_on_error(db):
        version = _version(db, path)
        db.execute("PRAGMA journal_mode = WAL")
        # only checkpoints wait for the disk; see `Store.sync`
        db.execute("PRAGMA synchronous = NORMAL")
        if version == 0:
            db.executescript(schema.create())
        elif version < schema.VERSION:
            db.executescript(schema.upgrade(version))
    return db


def _connection(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30, uri=uri)


@contextmanager
def _closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        db.close()
        raise


def _reader(path: Path) -> sqlite3.Connection:
    db = _connection(path)
    try:
        with _closed_on_error(db):
            version = _version(db, path)
    except sqlite3.OperationalError as error:
        if not getattr(error, "sqlite_errorname", "").startswith(
            ("SQLITE_CANTOPEN", "SQLITE_READONLY")
        ):
            raise
        db = _immutable(path)
        with _closed_on_error(db):
            version = _version(db, path)
    with _closed_on_error(db):
        db.executescript(schema.views(version))
        db.execute("PRAGMA query_only = ON")
    return db


def _immutable(path: Path) -> sqlite3.Connection:
    """Open a store in a read-only folder, where SQLite can't index a write-ahead log."""
    log = Path(f"{path.resolve()}-wal")
    if log.is_file() and log.stat().st_size:
        raise UserError(
            f"{path} can't be read here: the last attempts are in {log.name}, "
            "and this folder is read-only",
            hint=f"copy {path.name} and {log.name} to a folder that can be written to",
        )
    return _connection(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)


def _version(db: sqlite3.Connection, path: Path) -> int:
    """Return the version of a store; 0 if the file is empty. Refuse anything else."""
    db.execute("BEGIN")  # all at one moment: another process may be creating the store
    try:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        names = db.execute("SELECT name, type FROM sqlite_master").fetchall()
        tables = {}
        for name, _ in names:
            if name in schema.COLUMNS:
                columns = db.execute(f"PRAGMA table_info('{name}')")
                tables[name] = {column[1] for column in columns}
        ours = db.execute("PRAGMA application_id").fetchone() == (schema.APPLICATION,)
    finally:
        db.rollback()
    if version > schema.VERSION and ours:
        raise UserError(
            f"{path} was written by a newer Ponder "
            f"(store version {version}, known up to {schema.VERSION})",
            hint="pip install -U ponder-lab",
        )
    if 1 <= version < schema.OLDEST and schema.COLUMNS.keys() <= tables.keys():
        raise UserError(
            f"{path} was written by Ponder 0.1 "
            f"(store version {version}; this one reads {schema.OLDEST} and later)",
            hint="read it with Ponder 0.1, or run the study again with another --store",
        )
    empty = version == 0 and not names and not ours
    readable = schema.OLDEST <= version <= schema.VERSION
    if empty or (readable and not schema.missing(version, tables)):
        return version
    reason = "it has no tables"
    if names:
        first_names = sorted(name for name, _ in names)[:5]
        reason = f"it has other tables: {', '.join(first_names)}"
    raise UserError(f"{path} is an SQLite file, but not a store: {reason}", hint=OTHER)


def sync_folder(folder: Path) -> None:
    """Wait until the names of its new files are on the disk. Windows can't, and needn't."""
    if os.name == "posix":
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
