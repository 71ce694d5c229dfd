"""Many comparisons at once: p-values of intervals, and the false discovery rate.

Of 20 differences that aren't there, one is beyond a 95 % interval. The corrected value q of a
difference (Benjamini & Hochberg 1995) is the rate of false findings among all that are at least as
clear; called a finding at q ≤ 0.05, at most 5 % of the findings are false on average. Comparisons
that share a reference or its problems are positively correlated, for which that holds too
(Benjamini & Yekutieli 2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ponder.core import Estimate

LEAST_P = 1e-5  # smaller ones are given as this
FALSE_RATE = 0.05  # of the findings


def p_value(interval: Callable[[float], Estimate], null: float = 0.0) -> float:
    """Return the p-value that agrees with an interval, which is a function of its level.

    It is 1 minus the lowest confidence level at which the interval contains `null`.
    """

    def excluded(p: float) -> bool:
        estimate = interval(1 - p)
        return not estimate.low <= null <= estimate.high

    if excluded(LEAST_P):
        return LEAST_P
    log_low = math.log(LEAST_P)
    log_high = 0.0
    for _ in range(24):
        middle = (log_low + log_high) / 2
        if excluded(math.exp(middle)):
            log_high = middle
        else:
            log_low = middle
    return math.exp(log_high)


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Return the corrected value q of each p, in their order.

    Reject where q is at most the rate of false findings.
    """
    tests = len(p)
    descending = sorted(range(tests), key=lambda i: p[i], reverse=True)
    q = [1.0] * tests
    least = 1.0
    for position, i in enumerate(descending):
        rank = tests - position
        least = min(least, p[i] * tests / rank)
        q[i] = least
    return q
