"""Find the variants on the frontier of accuracy and tokens, and drop those that are dominated.

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
        """Return how many more problems to ask of each variant.

        All are zero when the frontier is clear or all problems are asked.
        """
        done = max(len(score) for score in scores)
        remaining, clear = self._analyse(scores)
        if clear or done >= self.problems:
            return [0] * len(scores)
        more = until_next_analysis(self.problems, done)
        return [more if keep else 0 for keep in remaining]

    def left(self, scores: Sequence[Floats]) -> Bools:
        """Return which variants may be on the frontier."""
        return self._analyse(scores)[0]

    def _analyse(self, scores: Sequence[Floats]) -> tuple[Bools, bool]:
        """Return the variants that remain, and whether each is surely on their frontier."""
        done = max(len(score) for score in scores)
        remaining = np.array([len(score) == done for score in scores])
        rows = np.array([score for score in scores if len(score) == done])
        rows = rows.reshape(remaining.sum(), done, 2)
        rows = rows[:, ~np.isnan(rows).any(axis=(0, 2))]  # problems that all of them answered
        n = rows.shape[1]
        if n < FEWEST_PAIRS:
            return remaining, False
        level = 1 - (1 - self.level) / max(1, len(scores) - 1)
        bound = as_t(pocock(level, 1), n)
        # In the matrices [i, j], variant j is compared with variant i.
        middle, error = smoothed_sums(*difference_sums(rows[:, :, 0]), n)
        surely_better = middle / error > bound
        tokens = rows[:, :, 1]
        extra_tokens, squares = difference_sums(tokens - tokens.mean())
        spread = np.sqrt(np.maximum(squares - extra_tokens**2 / n, 0.0) / (n - 1))
        surely_cheaper = -extra_tokens / n > bound * spread / np.sqrt(n)
        keep = ~(surely_better & surely_cheaper).any(axis=1)
        remaining[remaining] = keep
        # The frontier is clear if each variant surely beats each other one in one of the two.
        beats = (surely_better | surely_cheaper)[np.ix_(keep, keep)]
        np.fill_diagonal(beats, True)
        return remaining, bool(beats.all())
