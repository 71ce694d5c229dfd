"""Ranks each trace among traces of similar length, so that the best aren't merely the longest."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Neighbours on either side: enough to tell the best in a thousand, and a bound on the time.
REACH = 2500


def matched(scores: Sequence[float], lengths: Sequence[float]) -> list[float]:
    """Return for each trace the fraction of its neighbours in length that score lower.

    A tie counts half. As many neighbours are longer as are shorter, a tenth of all traces together.
    So however the score depends on length, even if it is the length, traces of all lengths are
    equally likely to rank above most of their neighbours. No curve is fitted, since none would
    follow every reward.
    """
    order = sorted(range(len(scores)), key=lambda n: lengths[n])
    reach = min(REACH, max(1, len(order) // 20))
    window = list[float]()  # the sorted scores of order[start:stop]
    start = 0
    stop = 0
    ranks = [0.0] * len(order)
    for position, n in enumerate(order):
        half = min(reach, position, len(order) - 1 - position)
        while stop <= position + half:
            insort(window, scores[order[stop]])
            stop += 1
        while start < position - half:
            del window[bisect_left(window, scores[order[start]])]
            start += 1
        below = bisect_left(window, scores[n])
        not_above = bisect_right(window, scores[n])
        ranks[n] = (below + not_above) / 2 / len(window)
    return ranks


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Spearman's rank correlation, with mean ranks for ties; 0 if either doesn't vary."""
    ranks = np.array([_ranks(left), _ranks(right)])
    if len(left) < 2 or not ranks.std(axis=1).all():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the rank of each value, from 1; equal values have the mean of theirs."""
    _, inverse, counts = np.unique(
        np.asarray(values, np.float64), return_inverse=True, return_counts=True
    )
    mean_ranks: npt.NDArray[np.float64] = counts.cumsum() - (counts - 1) / 2
    return mean_ranks[inverse]
