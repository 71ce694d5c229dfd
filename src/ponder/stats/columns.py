"""Outcomes of one task and one model as NumPy columns, sorted, so that their order can't move a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import Outcome

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """One row an attempt that got an answer; failed attempts are only counted."""

    size: Floats
    problem: Ints  # 0, 1, 2, … in order of size: problems are nested in sizes
    correct: Bools
    unparsed: Bools
    truncated: Bools
    tokens: Floats  # thinking tokens; of a truncated attempt only a lower bound of what it wanted
    failed_size: Floats  # the sizes of the failed attempts

    def __len__(self) -> int:
        return len(self.size)

    @property
    def problems(self) -> int:
        return int(self.problem[-1]) + 1 if len(self) else 0

    def where(self, rows: Bools) -> Columns:
        """These rows only, with the problems that are left numbered afresh."""
        problem = np.unique(self.problem[rows], return_inverse=True)[1].astype(np.int64)
        parts = (self.correct[rows], self.unparsed[rows], self.truncated[rows], self.tokens[rows])
        return Columns(self.size[rows], problem, *parts, self.failed_size)

    @property
    def size_of_problem(self) -> Ints:
        """For each problem, which of the sizes, counted from 0, is its own."""
        first = np.unique(self.problem, return_index=True)[1]
        return np.unique(self.size[first], return_inverse=True)[1].astype(np.int64)


def columns(outcomes: Sequence[Outcome]) -> Columns:
    if len(mixed := {(o.task, o.model) for o in outcomes}) > 1:
        raise ValueError(f"one task and one model at a time, not {sorted(mixed)}")
    rows = sorted(
        (o.size, o.problem, o.sample, o.thinking_tokens, o.status, o.correct) for o in outcomes if o.status != "failed"
    )
    numbers: dict[tuple[int, str], int] = {}
    problem = [numbers.setdefault((size, name), len(numbers)) for size, name, *_ in rows]
    status = np.array([row[4] for row in rows], dtype="U9")
    truncated, unparsed = status == "truncated", status == "unparsed"
    return Columns(
        size=np.array([row[0] for row in rows], dtype=np.float64),
        problem=np.array(problem, dtype=np.int64),
        # The pipeline never calls these right; here it can't.
        correct=np.array([row[5] for row in rows], dtype=np.bool_) & ~truncated & ~unparsed,
        unparsed=unparsed,
        truncated=truncated,
        tokens=np.array([row[3] for row in rows], dtype=np.float64),
        failed_size=np.array(sorted(o.size for o in outcomes if o.status == "failed"), dtype=np.float64),
    )


def summed(values: Floats | Bools, group: Ints) -> Floats:
    """Sums by group, or for a matrix of each of its columns; groups are numbered from 0."""
    if values.ndim == 2:
        return np.column_stack([summed(column, group) for column in values.T])
    return np.bincount(group, weights=values).astype(np.float64)


def clusters(outcomes: Sequence[Outcome]) -> Ints:
    """The number of each outcome's problem."""
    names = [f"{o.size} {o.problem}" for o in outcomes]
    return np.unique(np.array(names, dtype=np.str_), return_inverse=True)[1].astype(np.int64)
