"""Ranks each trace among traces of similar length, so that the best aren't merely the longest."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

REACH = 2500  # neighbours on either side: enough to tell the best in a thousand, and a bound on the time


def matched(scores: Sequence[float], lengths: Sequence[float]) -> list[float]:
    """For each trace, the fraction of the traces nearest in length that score lower; a tie counts half.

    As many neighbours are longer as are shorter, a tenth of all traces together. So however the score depends on
    length, even if it is the length, traces of all lengths are equally likely to rank above most of their neighbours.
    No curve is fitted, since none would follow every reward.
    """
    order = sorted(range(len(scores)), key=lambda n: lengths[n])
    reach = min(REACH, max(1, len(order) // 20))
    near, start, stop = list[float](), 0, 0
    ranks = [0.0] * len(order)
    for at, n in enumerate(order):
        half = min(reach, at, len(order) - 1 - at)
        while stop <= at + half:
            insort(near, scores[order[stop]])
            stop += 1
        while start < at - half:
            del near[bisect_left(near, scores[order[start]])]
            start += 1
        lower, upper = bisect_left(near, scores[n]), bisect_right(near, scores[n])
        ranks[n] = (lower + upper) / 2 / len(near)
    return ranks


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's rank correlation, with mean ranks for ties; 0 if either doesn't vary."""
    ranks = np.array([_ranks(left), _ranks(right)])
    if len(left) < 2 or not ranks.std(axis=1).all():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    _, which, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (counts.cumsum() - (counts - 1) / 2)[which]
    return ranks
