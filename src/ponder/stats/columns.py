"""Turn outcomes into NumPy columns, sorted so that no estimate depends on their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import Outcome, Resource

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

SORTED = ("wrong", "right", "truncated", "unparsed")
FEWEST_PAIRS = 3  # problems that two models answered, for an interval or a test of their difference


@dataclass(frozen=True, slots=True)
class Columns:
    """One row per attempt that ended with an answer or a truncation.

    Failed attempts are only counted.
    """

    size: Floats
    problem: Ints  # number of the problem: 0, 1, 2, … in order of size
    correct: Bools
    unparsed: Bools
    truncated: Bools
    tokens: Floats  # or another resource; for a truncated attempt a lower bound of its need
    failed_size: Floats  # the sizes of the failed attempts

    def __len__(self) -> int:
        return len(self.size)

    @property
    def problems(self) -> int:
        if not len(self):
            return 0
        return int(self.problem[-1]) + 1

    def where(self, rows: Bools) -> Columns:
        """Return these rows only, with their problems renumbered from 0."""
        return Columns(
            size=self.size[rows],
            problem=np.unique(self.problem[rows], return_inverse=True)[1].astype(np.int64),
            correct=self.correct[rows],
            unparsed=self.unparsed[rows],
            truncated=self.truncated[rows],
            tokens=self.tokens[rows],
            failed_size=self.failed_size,
        )

    @property
    def size_of_problem(self) -> Ints:
        """For each problem, the index of its size."""
        first_attempt = np.unique(self.problem, return_index=True)[1]
        return np.unique(self.size[first_attempt], return_inverse=True)[1].astype(np.int64)


def one_series(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the answered outcomes, sorted by size and problem.

    Raise ValueError if they mix tasks or models.
    """
    cells = {o.cell for o in outcomes}
    series = {(cell.task_key, cell.model_key) for cell in cells}
    if len(series) > 1:
        raise ValueError("one task and one model at a time")
    return by_problem(outcomes)


def by_problem(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the answered outcomes, sorted by size and problem."""
    answered = [o for o in outcomes if o.answered]
    keys = (  # in NumPy's order: the last key is the primary one
        _ints(o.answer_tokens for o in answered),
        _ints(SORTED.index(o.ended) for o in answered),
        _ints(o.thinking_tokens for o in answered),
        _ints(o.sample for o in answered),
        _names(answered),
        _floats(o.size for o in answered),
    )
    return [answered[i] for i in np.lexsort(keys).tolist()]


def columns(
    outcomes: Sequence[Outcome], resource: Resource = "thinking", *, pooled: bool = False
) -> Columns:
    """Return outcomes as columns.

    `pooled`: they may be of several models, such as the training seeds of a variant.
    """
    if pooled:
        rows = by_problem(outcomes)
    else:
        rows = one_series(outcomes)
    failed_sizes = sorted(o.size for o in outcomes if o.ended == "failed")
    return Columns(
        size=_floats(o.size for o in rows),
        problem=clusters(rows),
        correct=_bools(o.ended == "right" for o in rows),
        unparsed=_bools(o.ended == "unparsed" for o in rows),
        truncated=_bools(o.ended == "truncated" for o in rows),
        tokens=_floats(o.used(resource) for o in rows),
        failed_size=np.array(failed_sizes, dtype=np.float64),
    )


def summed(values: Floats | Bools, group: Ints) -> Floats:
    """Sum a vector, or each column of a matrix, by group; groups are numbered from 0."""
    if values.ndim == 2:
        return np.column_stack([summed(column, group) for column in values.T])
    return np.bincount(group, weights=values).astype(np.float64)


def clusters(outcomes: Sequence[Outcome]) -> Ints:
    """Return the number of each outcome's problem, counted by size and name.

    The order of the attempts can't matter.
    """
    name = _names(outcomes)
    size = np.unique(_floats(o.size for o in outcomes), return_inverse=True)[1].astype(np.int64)
    size_and_name = size * (int(name.max(initial=0)) + 1) + name
    return np.asarray(np.unique(size_and_name, return_inverse=True)[1], dtype=np.int64)


def _names(outcomes: Sequence[Outcome]) -> Ints:
    """Return the number of each outcome's problem, counted by name alone."""
    names = sorted({o.problem for o in outcomes})
    numbers = {name: n for n, name in enumerate(names)}
    return _ints(numbers[o.problem] for o in outcomes)


# Straight into an array: a list of a million numbers takes five times its memory.
def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _bools(values: Iterable[bool]) -> Bools:
    return np.fromiter(values, dtype=np.bool_)


def _floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)
