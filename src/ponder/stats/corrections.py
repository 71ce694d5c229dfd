"""Many comparisons at once: p-values of intervals, and Benjamini and Hochberg's (1995) false
discovery rate.

Of 20 differences that aren't there, one is beyond a 95 % interval. The corrected value q of a
difference is the rate of false findings among all that are at least as clear; called a finding at q
≤ 0.05, at most 5 % of the findings are false on average. Comparisons that share a reference or its
problems are positively correlated, for which that holds too (Benjamini & Yekutieli 2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ponder.core import Estimate

LEAST_P = 1e-5  # smaller ones are given as this
FALSE_RATE = 0.05  # of the findings


def p_value(interval: Callable[[float], Estimate], null: float = 0.0) -> float:
    """The p-value that agrees with an interval: 1 less the lowest confidence level at which it
    contains `null`.
    """

    def outside(p: float) -> bool:
        e = interval(1 - p)
        return not e.low <= null <= e.high

    low, high = math.log(LEAST_P), 0.0
    if outside(LEAST_P):
        return LEAST_P
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (low, middle) if outside(math.exp(middle)) else (middle, high)
    return math.exp(high)


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """The corrected value q of each p, in their order: reject where q is at most the rate of false
    findings.
    """
    order = sorted(range(len(p)), key=lambda i: p[i], reverse=True)
    q, least = [1.0] * len(p), 1.0
    for rank, i in zip(range(len(p), 0, -1), order, strict=True):
        least = min(least, p[i] * len(p) / rank)
        q[i] = least
    return q
