"""The tables of a store, and what turns a store of the version before into the current one.

Opened to write, such a store is upgraded in one transaction. Opened to read, it is left as it is:
temporary views with the tables' names show its content in the current schema. Older versions are
refused.
"""
# ruff: noqa: S608 the parts of these statements are our own text

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import NoneType
from typing import Any, NamedTuple

from ponder.core import Ended

VERSION = 5
OLDEST = 4  # version that can be read
APPLICATION = 0x506F6E64  # "Pond", since version 4: tells a store from any other SQLite file
# New columns go to the end, where an upgrade adds them too.
SCHEMA = """
CREATE TABLE study (
    name TEXT, resolved TEXT, started TEXT DEFAULT CURRENT_TIMESTAMP, tokens INTEGER, cost REAL, lost_tokens INTEGER,
    held_tokens INTEGER, held_cost REAL, digest INTEGER);
CREATE TABLE cell (id INTEGER PRIMARY KEY, key BLOB UNIQUE, spec TEXT, made TEXT, digest INTEGER);
CREATE TABLE problem (
    id INTEGER PRIMARY KEY, source BLOB, position INTEGER, name TEXT, body BLOB, digest INTEGER,
    UNIQUE (source, position));
CREATE TABLE attempt (
    id INTEGER PRIMARY KEY, cell INTEGER, problem INTEGER, sample INTEGER,
    status TEXT, correct INTEGER, why TEXT, details TEXT,
    prompt_tokens INTEGER, thinking_tokens INTEGER, answer_tokens INTEGER, seconds REAL, counted_by TEXT,
    cached_tokens INTEGER DEFAULT 0, digest INTEGER, UNIQUE (cell, problem, sample));
CREATE TABLE turn (
    attempt INTEGER, position INTEGER, thinking BLOB, answer TEXT, stop TEXT,
    prompt_tokens INTEGER, thinking_tokens INTEGER, answer_tokens INTEGER, seconds REAL, counted_by TEXT,
    measures TEXT, cached_tokens INTEGER DEFAULT 0, digest INTEGER, PRIMARY KEY (attempt, position));
"""
# The columns of a row that its digest is made from, in this order.
STUDY = "name, resolved, started, tokens, cost, lost_tokens, held_tokens, held_cost"
CELL = "key, spec, made"
PROBLEM = "source, position, name, body"
ATTEMPT = (
    "cell, problem, sample, status, correct, why, details, "
    "prompt_tokens, thinking_tokens, answer_tokens, seconds, counted_by, cached_tokens"
)
TURN = (
    "attempt, position, thinking, answer, stop, "
    "prompt_tokens, thinking_tokens, answer_tokens, seconds, counted_by, cached_tokens, measures"
)
COLUMNS = {
    "study": f"{STUDY}, digest",
    "cell": f"id, {CELL}, digest",
    "problem": f"id, {PROBLEM}, digest",
    "attempt": f"id, {ATTEMPT}, digest",
    "turn": f"{TURN}, digest",
}
PUT_ATTEMPT = f"""INSERT INTO attempt ({ATTEMPT}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (cell, problem, sample) DO UPDATE SET
    status = excluded.status, correct = excluded.correct, why = excluded.why, details = excluded.details,
    prompt_tokens = excluded.prompt_tokens, thinking_tokens = excluded.thinking_tokens,
    answer_tokens = excluded.answer_tokens, seconds = excluded.seconds, counted_by = excluded.counted_by,
    cached_tokens = excluded.cached_tokens, digest = excluded.digest
    RETURNING id"""
PUT_STUDY = f"INSERT INTO study ({STUDY}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
SPENT = """UPDATE study SET tokens = ?, cost = ?, lost_tokens = ?, held_tokens = ?, held_cost = ?, digest = ?
    WHERE rowid = ?"""
PUT_TURN = (
    f"INSERT OR REPLACE INTO turn ({TURN}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Added(NamedTuple):
    """A column that the oldest version did not have."""

    version: int
    table: str
    column: str
    kind: str


ADDED = (
    Added(5, "study", "held_tokens", "INTEGER"),
    Added(5, "study", "held_cost", "REAL"),
    Added(5, "study", "digest", "INTEGER"),
)


# The column `status`. An attempt with an answer is `graded`, and the column `correct` says how.
_STATUSES: dict[str, Ended] = {
    "open": "open",
    "graded": "wrong",
    "unparsed": "unparsed",
    "truncated": "truncated",
    "failed": "failed",
}
_BILL: tuple[Any, ...] = (int, int, int, float, str, int)
_ATTEMPT_TYPES: tuple[Any, ...] = (int, int, int, str, int, str, (str, NoneType), *_BILL)
_TURN_TYPES: tuple[Any, ...] = (int, int, (bytes, NoneType), str, str, *_BILL, (str, NoneType))


def create() -> str:
    """Return the SQL that makes an empty file a store."""
    return f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"


def upgrade(version: int) -> str:
    """Return the SQL that makes a store of an older version one of this version."""
    new = (a for a in ADDED if a.version > version)
    sql = "".join(
        f"ALTER TABLE {a.table} ADD COLUMN {a.column} {a.kind} DEFAULT NULL; " for a in new
    )
    return f"BEGIN; {sql} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"


def views(version: int) -> str:
    """Return the same for a store that is only read. Version 0 is an empty file."""
    if version == 0:
        return SCHEMA.replace("CREATE TABLE", "CREATE TEMP TABLE")
    tables = dict.fromkeys(a.table for a in ADDED if a.version > version)
    return "".join(
        f"CREATE TEMP VIEW {t} AS SELECT {columns(t, version)} FROM main.{t}; " for t in tables
    )


def columns(table: str, version: int) -> str:
    """Return the current columns of a table, as a store of some version has them."""
    later = {a.column for a in ADDED if a.table == table and a.version > version}
    return ", ".join(f"NULL AS {c}" if c in later else c for c in COLUMNS[table].split(", "))


def of_table(table: str, columns: str) -> str:
    """Columns with the name of their table, for a join of tables that share some."""
    return ", ".join(f"{table}.{column}" for column in columns.split(", "))


def missing(version: int, tables: dict[str, set[str]]) -> list[str]:
    """Return the columns that a store of a version has, and that a file with these tables lacks."""
    later = {(a.table, a.column) for a in ADDED if a.version > version}
    known = ((table, column) for table, names in COLUMNS.items() for column in names.split(", "))
    return [f"{t}.{c}" for t, c in known if (t, c) not in later and c not in tables.get(t, ())]


def digest(*row: Any) -> int:
    """The check sum of a row: text and bytes by their content, numbers as Python prints them, each
    after a zero byte.

    A row without bytes, such as an attempt's, is formatted at once: 1.3 µs instead of 5.
    """
    if bytes not in {*map(type, row)}:
        return zlib.crc32(("\0%s" * len(row) % row).encode())
    return zlib.crc32(
        b"".join(b"\0" + (v if isinstance(v, bytes) else str(v).encode()) for v in row)
    )


def verify(what: str, row: Sequence[Any], check: int | None) -> None:
    """Raise ValueError if a row isn't the one that its digest was made from. Old rows have none."""
    if check is not None and check != digest(*row):
        raise ValueError(f"{what} has changed since it was written")


def verify_attempt(what: str, row: Sequence[Any], check: int | None) -> None:
    verify(what, row, check)
    if check is None and not (row[3] in _STATUSES and all(map(isinstance, row, _ATTEMPT_TYPES))):
        raise ValueError(f"{what} can't be read")


def ended(status: str, correct: int) -> Ended:
    """Return how a stored attempt ended."""
    if status == "graded" and correct:
        return "right"
    if status not in _STATUSES:
        raise ValueError(f"an attempt can't have ended as {status!r}")
    return _STATUSES[status]


def status_of(ended: Ended) -> str:
    """Return what the column `status` holds."""
    return "graded" if ended in ("right", "wrong") else ended


def verify_turn(row: Sequence[Any], check: int | None) -> None:
    what = f"turn {row[1]} of attempt {row[0]}"
    verify(what, row, check)
    if check is None and not all(map(isinstance, row, _TURN_TYPES)):
        raise ValueError(f"{what} can't be read")
