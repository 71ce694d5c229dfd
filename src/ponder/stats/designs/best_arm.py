"""Find the best of several cells or variants on shared problems, and drop those that trail it.

    design = Best(problems=400)
    while any(more := design.next(scores)):  # per cell: the accuracy on each problem so far
        ...  # ask that many more problems of each cell

Cells are compared problem by problem at ten interim analyses. A cell is dropped when it trails
another by more than chance explains, for all analyses and all other cells at once: the cells that
remain hold the best in 95 % of runs, whenever a run ends. With a `margin`, a cell within it of
the best will do, and the level is shared with a second rule, which asks for a smaller lag the
longer a run lasts (Kim & Nelson 2001, with a variance that is updated as in 2006).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import FEWEST_PAIRS, Bools, Floats
from ponder.stats.designs.sequential import (
    ANALYSES,
    as_t,
    pocock,
    until_next_analysis,
    valid_difference,
)
from ponder.stats.paired import difference_sums, smoothed_sums

DRAWS = 1000  # of the noise at all analyses, for the boundary


@dataclass(frozen=True, slots=True)
class Best:
    """The settings of the design. The state is in the scores that are passed to its methods."""

    problems: int  # per cell, at most
    margin: float | None = None  # a cell that is within this of the best will do
    level: float = 0.95

    def next(self, scores: Sequence[Floats]) -> list[int]:
        """Return how many more problems to ask of each cell.

        All are zero when one cell remains or all problems are asked.
        """
        remaining = self.left(scores)
        done = max(len(score) for score in scores)
        if remaining.sum() == 1 or done >= self.problems:
            return [0] * len(scores)
        more = until_next_analysis(self.problems, done)
        return [more if keep else 0 for keep in remaining]

    def left(self, scores: Sequence[Floats]) -> Bools:
        """Return which cells may be the best.

        They are those asked until the last analysis, without those that it drops.
        """
        done = max(len(score) for score in scores)
        remaining = np.array([len(score) == done for score in scores])
        rows = np.array([score for score in scores if len(score) == done])
        rows = rows[:, ~np.isnan(rows).any(axis=0)]  # problems that all of them answered
        if rows.shape[1] >= FEWEST_PAIRS and len(rows) > 1:
            remaining[remaining] = ~self._trails(rows, len(scores))
        return remaining

    def _trails(self, rows: Floats, cells: int) -> Bools:
        """Return for each cell whether it trails another by more than chance explains.

        `rows` is the cells that remain × problems; `cells` is the number of all cells.
        """
        n = rows.shape[1]
        level = self.level
        if self.margin is not None:
            level = 1 - (1 - self.level) / 2  # the other half is for the margin
        lead, error = smoothed_sums(*difference_sums(rows), n)  # [i, j]: of j over i
        np.fill_diagonal(lead, -math.inf)
        z = (lead / error).max(axis=1)
        bonferroni = as_t(pocock(1 - (1 - level) / (len(rows) - 1), 1), n)
        for_one_other_cell = as_t(pocock(level, 1), n)
        trails = np.array(z > bonferroni)
        # The exact boundary lies between the two, and takes longer.
        for i in np.flatnonzero(~trails & (z > for_one_other_cell)):
            trails[i] = z[i] > as_t(_boundary(rows, int(i), level), n)
        if self.margin is not None:
            # Kim & Nelson: h²·s² / margin² problems settle it in any case, and until then the lag
            # that is allowed falls to 0.
            h2 = ((2 * (1 - level) / (cells - 1)) ** (-2 / (n - 1)) - 1) * (n - 1)
            needed = h2 * error**2 * n / self.margin**2
            allowed = np.maximum(0.0, self.margin / 2 * (needed / n - 1))
            trails |= (lead > allowed).any(axis=1)
        return trails

    def lead(self, scores: Sequence[Floats], cell: int, other: int) -> Estimate:
        """Return how far a cell is above another, with an interval valid at every analysis."""
        n = min(len(scores[cell]), len(scores[other]))
        differences = scores[cell][:n] - scores[other][:n]
        level = 1 - 2 * (1 - self.level) / max(1, len(scores) - 1)
        return valid_difference(differences, level)


def _boundary(rows: Floats, cell: int, level: float) -> float:
    """Return what a cell's largest lag exceeds at no analysis with probability `level`.

    That is if all cells are equal: from draws of the noise at every analysis, with the covariances
    of the cells' scores. `rows` is cells × problems.
    """
    problems = rows.shape[1]
    leads = np.delete(rows, cell, axis=0) - rows[cell]
    covariance = np.atleast_2d(np.cov(leads)) + np.eye(len(leads)) * 2 / (problems + 2)
    scale = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / scale / scale[:, None])
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    largest = (_noise(len(leads)) @ root.T).max(axis=(0, 2))
    return float(np.quantile(largest, level))


@cache
def _noise(cells: int) -> Floats:
    """Return running means of standard normals, scaled to variance 1: analyses × draws × cells."""
    steps = np.random.default_rng(0).standard_normal((ANALYSES, DRAWS, cells))
    scale = np.sqrt(np.arange(1, ANALYSES + 1))[:, None, None]
    return np.asarray(np.cumsum(steps, axis=0) / scale)
