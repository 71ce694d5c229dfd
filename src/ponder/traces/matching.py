"""Scores compared among traces of like length, so that the best aren't merely the longest."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

REACH = 2500  # traces on either side: enough to tell the best in a thousand, and a bound on the time


def matched(scores: Sequence[float], lengths: Sequence[float]) -> list[float]:
    """For each trace, the share of those nearest in length that score lower; a tie counts half.

    As many are longer as are shorter, a tenth of the pile in all: so however the score grows with length, and even
    where it is the length, traces of all lengths are as likely to be above most of those around them. No curve is
    fitted, as none could follow every reward.
    """
    order = sorted(range(len(scores)), key=lambda n: lengths[n])
    reach = min(REACH, max(1, len(order) // 20))
    around, start, stop = list[float](), 0, 0
    found = [0.0] * len(order)
    for at, n in enumerate(order):
        half = min(reach, at, len(order) - 1 - at)
        while stop <= at + half:
            insort(around, scores[order[stop]])
            stop += 1
        while start < at - half:
            del around[bisect_left(around, scores[order[start]])]
            start += 1
        lower, upper = bisect_left(around, scores[n]), bisect_right(around, scores[n])
        found[n] = (lower + upper) / 2 / len(around)
    return found


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's, with mean ranks for ties; 0 where one of them doesn't vary."""
    ranks = np.array([_ranks(left), _ranks(right)])
    if len(left) < 2 or not ranks.std(axis=1).all():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    _, which, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (counts.cumsum() - (counts - 1) / 2)[which]
    return ranks
