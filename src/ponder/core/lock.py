"""A lock between processes that is released however its holder ends, `kill -9` included.

The lock is an exclusive transaction on a small SQLite file, because SQLite locks files on every
system (`fcntl` exists on POSIX alone).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ponder.core.errors import UserError


class Held(UserError):
    """Another process holds the lock."""


def acquire(path: Path) -> sqlite3.Connection | None:
    """Return the lock, held until its connection is closed; None if some process holds it."""
    lock = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        if "locked" not in str(error):
            raise
        return None
    return lock
