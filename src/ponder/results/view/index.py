"""The attempts of a store as columns of numbers, so that a page can count, filter and sort 200,000
of them in a blink.

An attempt takes 60 bytes here; its texts stay in the store until a page shows them. While a run
writes, only what is new is read: attempts are added with growing ids, and only those that failed or
are in progress change later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import ENDINGS
from ponder.store.schema import ended as how_ended

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

Whole: TypeAlias = npt.NDArray[np.int64]
OPEN, RIGHT, WRONG, UNPARSED, TRUNCATED, FAILED = range(len(ENDINGS))
READ = """SELECT id, cell, problem, sample, status, correct, why, prompt_tokens, thinking_tokens, answer_tokens, seconds
          FROM attempt WHERE id > ? ORDER BY id"""
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
        """The index of a store that has changed."""
        unsettled = np.flatnonzero(np.isin(self.ended, (OPEN, FAILED)))
        last = int(self.id[-1]) if len(self) else 0
        numbers = {why: n for n, why in enumerate(self.reasons)}
        new = _read(db.execute(READ, (last,)), numbers)
        old = _columns(self)
        again = [
            row
            for i in unsettled.tolist()
            for row in db.execute(f"{READ} LIMIT 1", (int(self.id[i]) - 1,))
        ]
        changed = _read(again, numbers)
        if len(changed[0]) == len(unsettled):
            same = all(np.array_equal(a[unsettled], b) for a, b in zip(old, changed, strict=True))
            for a, b in zip(old, changed, strict=True):
                a[unsettled] = b
        if len(self) and (len(changed[0]) != len(unsettled) or (same and not len(new[0]))):
            return Index().refreshed(db)  # attempts were graded again, or removed
        columns: dict[str, Any] = {
            f.name: np.concatenate(p) for f, *p in zip(fields(self), old, new, strict=False)
        }
        cells = dict(db.execute("SELECT key, id FROM cell"))
        return Index(**columns, reasons=list(numbers), positions=_positions(db), cells=cells)


def _columns(index: Index) -> list[Whole]:
    return [getattr(index, f.name).copy() for f in fields(index)[:10]]


def _positions(db: sqlite3.Connection) -> Whole:
    rows = np.array(db.execute("SELECT id, position FROM problem").fetchall(), np.int64).reshape(
        -1, 2
    )
    positions = np.zeros(int(rows[:, 0].max(initial=0)) + 1, np.int64)
    positions[rows[:, 0]] = rows[:, 1]
    return positions


def _read(rows: Iterable[Sequence[Any]], reasons: dict[str, int]) -> list[Whole]:
    parts, chunk = [], []
    for row in rows:
        id_, cell, problem, sample, status, correct, why, *tokens, seconds = row
        ended = ENDINGS.index(how_ended(status, correct))
        number = reasons.setdefault(why, len(reasons))
        chunk.append((id_, cell, problem, sample, ended, number, *tokens, round(1000 * seconds)))
        if len(chunk) == CHUNK:
            parts.append(np.array(chunk, np.int64))
            chunk = []
    parts.append(np.array(chunk, np.int64).reshape(-1, 10))
    return list(np.ascontiguousarray(np.concatenate(parts).T))
