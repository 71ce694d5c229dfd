"""Outcomes of one task and one model as NumPy columns, sorted so that no estimate depends on their
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import Outcome, TokenKind

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

SORTED = ("wrong", "right", "truncated", "unparsed")
FEWEST_PAIRS = 3  # problems that two models answered, for an interval or a test of their difference


@dataclass(frozen=True, slots=True)
class Columns:
    """One row per attempt that ended with an answer or a truncation; failed attempts are only
    counted.
    """

    size: Floats
    problem: Ints  # number of the problem: 0, 1, 2, … in order of size
    correct: Bools
    unparsed: Bools
    truncated: Bools
    tokens: Floats  # of the kind asked for; for a truncated attempt a lower bound of what it needed
    failed_size: Floats  # the sizes of the failed attempts

    def __len__(self) -> int:
        return len(self.size)

    @property
    def problems(self) -> int:
        return int(self.problem[-1]) + 1 if len(self) else 0

    def where(self, rows: Bools) -> Columns:
        """These rows only, with their problems renumbered from 0."""
        problem = np.unique(self.problem[rows], return_inverse=True)[1].astype(np.int64)
        parts = (self.correct[rows], self.unparsed[rows], self.truncated[rows], self.tokens[rows])
        return Columns(self.size[rows], problem, *parts, self.failed_size)

    @property
    def size_of_problem(self) -> Ints:
        """For each problem, the index of its size."""
        first = np.unique(self.problem, return_index=True)[1]
        return np.unique(self.size[first], return_inverse=True)[1].astype(np.int64)


def one_series(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the answered outcomes, sorted by size and problem.

    Raise ValueError if they mix tasks or models.
    """
    cells = {o.cell for o in outcomes}
    if len({(cell.task_key, cell.model_key) for cell in cells}) > 1:
        raise ValueError("one task and one model at a time")
    return by_problem(outcomes)


def by_problem(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the answered outcomes, sorted by size and problem."""
    answered = [o for o in outcomes if o.answered]
    keys = (  # the last is the first to sort by
        _ints(o.answer_tokens for o in answered),
        _ints(SORTED.index(o.ended) for o in answered),
        _ints(o.thinking_tokens for o in answered),
        _ints(o.sample for o in answered),
        _names(answered),
        _floats(o.size for o in answered),
    )
    return [answered[i] for i in np.lexsort(keys).tolist()]


def columns(
    outcomes: Sequence[Outcome], tokens: TokenKind = "thinking", *, pooled: bool = False
) -> Columns:
    """Return outcomes as columns.

    `pooled`: they may be of several models, such as the training seeds of a variant.
    """
    rows = by_problem(outcomes) if pooled else one_series(outcomes)
    return Columns(
        size=_floats(o.size for o in rows),
        problem=clusters(rows),
        correct=_bools(o.ended == "right" for o in rows),
        unparsed=_bools(o.ended == "unparsed" for o in rows),
        truncated=_bools(o.ended == "truncated" for o in rows),
        tokens=_floats(o.tokens(tokens) for o in rows),
        failed_size=np.array(
            sorted(o.size for o in outcomes if o.ended == "failed"), dtype=np.float64
        ),
    )


def summed(values: Floats | Bools, group: Ints) -> Floats:
    """Sums by group, of a vector or of each column of a matrix; groups are numbered from 0."""
    if values.ndim == 2:
        return np.column_stack([summed(column, group) for column in values.T])
    return np.bincount(group, weights=values).astype(np.float64)


def clusters(outcomes: Sequence[Outcome]) -> Ints:
    """The number of each outcome's problem, in sorted order, so that the order of the attempts
    can't matter.
    """
    name = _names(outcomes)
    size = np.unique(_floats(o.size for o in outcomes), return_inverse=True)[1].astype(np.int64)
    both = size * (int(name.max(initial=0)) + 1) + name
    return np.asarray(np.unique(both, return_inverse=True)[1], dtype=np.int64)


def _names(outcomes: Sequence[Outcome]) -> Ints:
    """The number of each outcome's problem in the order of their names, whatever their sizes."""
    numbers = {name: n for n, name in enumerate(sorted({o.problem for o in outcomes}))}
    return _ints(numbers[o.problem] for o in outcomes)


# Straight into an array: a list of a million numbers takes five times its memory.
def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _bools(values: Iterable[bool]) -> Bools:
    return np.fromiter(values, dtype=np.bool_)


def _floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)
