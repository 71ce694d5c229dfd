"""Finds the variants on the frontier of accuracy and tokens, and stops asking those that another
surely dominates.

    design = Frontier(problems=400)
    while any(more := design.next(scores)):  # per variant: problems × (accuracy, tokens) so far
        ...  # ask that many more problems of each variant

At each of ten interim analyses a variant is dropped if another is surely more often right and
surely cheaper, paired by problem. A variant on the frontier is dominated by no other, so one of the
two is then an error: each test may have the whole level (Berger 1982), at Pocock's boundary for all
analyses and Bonferroni's for all other variants. Each variant on the frontier is kept in 95 % of
runs. The run ends when each variant that is left is surely better than each other in accuracy or in
tokens, or with the last problem: of two equal variants neither can be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.stats.columns import FEWEST_PAIRS, Bools, Floats
from ponder.stats.designs.sequential import as_t, pocock, until_next_analysis
from ponder.stats.paired import difference_sums, smoothed_sums


@dataclass(frozen=True, slots=True)
class Frontier:
    """The settings of the design. The state is in the scores that are passed to its methods."""

    problems: int  # per variant, at most
    level: float = 0.95

    def next(self, scores: Sequence[Floats]) -> list[int]:
        """Return how many more problems to ask of each variant; zeros when the frontier is clear or
        all are asked.
        """
        done = max(len(score) for score in scores)
        left, clear = self._analyse(scores)
        if clear or done >= self.problems:
            return [0] * len(scores)
        more = until_next_analysis(self.problems, done)
        return [more if keep else 0 for keep in left]

    def left(self, scores: Sequence[Floats]) -> Bools:
        """Return which variants may be on the frontier."""
        return self._analyse(scores)[0]

    def _analyse(self, scores: Sequence[Floats]) -> tuple[Bools, bool]:
        """Return the variants that this analysis leaves, and whether each is surely on their
        frontier.
        """
        done = max(len(score) for score in scores)
        left = np.array([len(score) == done for score in scores])
        rows = np.array([score for score in scores if len(score) == done]).reshape(
            left.sum(), done, 2
        )
        rows = rows[:, ~np.isnan(rows).any(axis=(0, 2))]
        n = rows.shape[1]
        if n < FEWEST_PAIRS:
            return left, False
        bound = as_t(pocock(1 - (1 - self.level) / max(1, len(scores) - 1), 1), n)
        middle, error = smoothed_sums(*difference_sums(rows[:, :, 0]), n)
        better = middle / error > bound  # [i, j]: j is surely more often right than i
        more, squares = difference_sums(rows[:, :, 1] - rows[:, :, 1].mean())
        spread = np.sqrt(np.maximum(squares - more**2 / n, 0.0) / (n - 1))
        cheaper = -more / n > bound * spread / np.sqrt(n)  # j is surely cheaper than i
        keep = ~(better & cheaper).any(axis=1)
        left[left] = keep
        # [i, j]: i is surely better than j in one of the two
        beats = (better | cheaper).T[np.ix_(keep, keep)]
        return left, bool((beats | np.eye(len(beats), dtype=np.bool_)).all())
