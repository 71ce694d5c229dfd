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

VERSION = 6
OLDEST = 4  # version that can be read
APPLICATION = 0x506F6E64  # "Pond", since version 4: tells a store from any other SQLite file
# New columns go to the end, where an upgrade adds them too.
SCHEMA = """
CREATE TABLE study (
    name TEXT, resolved TEXT, started TEXT DEFAULT CURRENT_TIMESTAMP, tokens INTEGER, cost REAL,
    lost_tokens INTEGER, held_tokens INTEGER, held_cost REAL, digest INTEGER);
CREATE TABLE cell (id INTEGER PRIMARY KEY, key BLOB UNIQUE, spec TEXT, made TEXT, digest INTEGER);
CREATE TABLE problem (
    id INTEGER PRIMARY KEY, source BLOB, position INTEGER, name TEXT, body BLOB, digest INTEGER,
    UNIQUE (source, position));
CREATE TABLE attempt (
    id INTEGER PRIMARY KEY, cell INTEGER, problem INTEGER, sample INTEGER,
    status TEXT, correct INTEGER, why TEXT, details TEXT,
    prompt_tokens INTEGER, thinking_tokens INTEGER, answer_tokens INTEGER, seconds REAL,
    counted_by TEXT, cached_tokens INTEGER DEFAULT 0, digest INTEGER,
    UNIQUE (cell, problem, sample));
CREATE TABLE turn (
    attempt INTEGER, position INTEGER, thinking BLOB, answer TEXT, stop TEXT,
    prompt_tokens INTEGER, thinking_tokens INTEGER, answer_tokens INTEGER, seconds REAL,
    counted_by TEXT, measures TEXT, cached_tokens INTEGER DEFAULT 0, digest INTEGER,
    PRIMARY KEY (attempt, position));
"""
# Since version 6: the jobs that wait at a provider, and the requests in them that are not answered.
# Each counts as spent at the most that it may take. They are few, and gone when they are answered.
JOBS = """
CREATE TABLE job (id TEXT PRIMARY KEY, study TEXT, server TEXT, remote TEXT, created REAL);
CREATE TABLE job_request (
    id TEXT PRIMARY KEY, job TEXT, attempt TEXT, tokens INTEGER, cost REAL);
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
PUT_ATTEMPT = f"""INSERT INTO attempt ({ATTEMPT}, digest)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (cell, problem, sample) DO UPDATE SET
    status = excluded.status, correct = excluded.correct, why = excluded.why,
    details = excluded.details, prompt_tokens = excluded.prompt_tokens,
    thinking_tokens = excluded.thinking_tokens, answer_tokens = excluded.answer_tokens,
    seconds = excluded.seconds, counted_by = excluded.counted_by,
    cached_tokens = excluded.cached_tokens, digest = excluded.digest
    RETURNING id"""
PUT_STUDY = f"INSERT INTO study ({STUDY}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
SPENT = """UPDATE study SET tokens = ?, cost = ?, lost_tokens = ?, held_tokens = ?, held_cost = ?,
    digest = ? WHERE rowid = ?"""
PUT_JOB = "INSERT OR REPLACE INTO job (id, study, server, remote, created) VALUES (?, ?, ?, ?, ?)"
PUT_JOB_REQUEST = """INSERT OR REPLACE INTO job_request (id, job, attempt, tokens, cost)
    VALUES (?, ?, ?, ?, ?)"""
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
    return _as_current_version(SCHEMA + JOBS)


def upgrade(version: int) -> str:
    """Return the SQL that makes a store of an older version one of this version."""
    sql = ""
    for table, column, kind in _columns_after(version):
        sql += f"ALTER TABLE {table} ADD COLUMN {column} {kind} DEFAULT NULL; "
    if not has_jobs(version):
        sql += JOBS
    return _as_current_version(sql)


def _as_current_version(sql: str) -> str:
    marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
    return f"BEGIN; {sql} {marks} COMMIT;"


def _columns_after(version: int) -> list[tuple[str, str, str]]:
    """Return the table, name and type of each column that was added after a version."""
    added = []
    for column in ADDED:
        if column.version > version:
            added.append((column.table, column.column, column.kind))
    return added


def views(version: int) -> str:
    """Return the same for a store that is only read. Version 0 is an empty file."""
    if version == 0:
        return (SCHEMA + JOBS).replace("CREATE TABLE", "CREATE TEMP TABLE")
    sql = ""
    if not has_jobs(version):
        sql = JOBS.replace("CREATE TABLE", "CREATE TEMP TABLE")
    for table in dict.fromkeys(table for table, _, _ in _columns_after(version)):
        names = columns(table, version)
        sql += f"CREATE TEMP VIEW {table} AS SELECT {names} FROM main.{table}; "
    return sql


def columns(table: str, version: int) -> str:
    """Return the current columns of a table, as a store of some version has them."""
    later = {(added_to, column) for added_to, column, _ in _columns_after(version)}
    selected = []
    for column in COLUMNS[table].split(", "):
        if (table, column) in later:
            selected.append(f"NULL AS {column}")
        else:
            selected.append(column)
    return ", ".join(selected)


def of_table(table: str, columns: str) -> str:
    """Prefix columns with the name of their table, for a join of tables that share some."""
    return ", ".join(f"{table}.{column}" for column in columns.split(", "))


def missing(version: int, tables: dict[str, set[str]]) -> list[str]:
    """Return the columns that a store of a version has, and that a file with these tables lacks."""
    later = {(table, column) for table, column, _ in _columns_after(version)}
    names = []
    for table, table_columns in COLUMNS.items():
        for column in table_columns.split(", "):
            if (table, column) not in later and column not in tables.get(table, ()):
                names.append(f"{table}.{column}")
    return names


def has_jobs(version: int) -> bool:
    """Return whether a store of a version has the tables of jobs."""
    return version >= 6


def digest(*row: Any) -> int:
    """Return the checksum of a row.

    Text and bytes count by their content, numbers as Python prints them, each after a zero byte. A
    row without bytes, such as an attempt's, is formatted at once: 1.3 µs instead of 5.
    """
    if bytes not in {*map(type, row)}:
        return zlib.crc32(("\0%s" * len(row) % row).encode())
    content = bytearray()
    for value in row:
        content += b"\0"
        if isinstance(value, bytes):
            content += value
        else:
            content += str(value).encode()
    return zlib.crc32(content)


def verify(name: str, row: Sequence[Any], check: int | None) -> None:
    """Raise ValueError if the digest of a row doesn't match. Old rows have none."""
    if check is not None and check != digest(*row):
        raise ValueError(f"{name} has changed since it was written")


def verify_attempt(name: str, row: Sequence[Any], check: int | None) -> None:
    verify(name, row, check)
    if check is None and not (row[3] in _STATUSES and all(map(isinstance, row, _ATTEMPT_TYPES))):
        raise ValueError(f"{name} can't be read")


def ended(status: str, correct: int) -> Ended:
    """Return how a stored attempt ended."""
    if status == "graded" and correct:
        return "right"
    if status not in _STATUSES:
        raise ValueError(f"an attempt can't have ended as {status!r}")
    return _STATUSES[status]


def status_of(ended: Ended) -> str:
    """Return what the column `status` holds."""
    if ended in ("right", "wrong"):
        return "graded"
    return ended


def verify_turn(row: Sequence[Any], check: int | None) -> None:
    name = f"turn {row[1]} of attempt {row[0]}"
    verify(name, row, check)
    if check is None and not all(map(isinstance, row, _TURN_TYPES)):
        raise ValueError(f"{name} can't be read")
