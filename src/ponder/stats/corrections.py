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
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import Floats
from ponder.stats.distributions import z_quantile

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


def level_for_all(
    root: Floats, level: float = 0.95, replicates: int = 4000, seed: int = 0
) -> float:
    """Return the level of each of several intervals at which all of them hold together.

    `root` is intervals × factors, with rows of length 1, and root @ root.T the correlation of the
    estimates (single-step max-t; Hothorn, Bretz & Westfall 2008).
    """
    drawn = _normals(replicates, root.shape[1], seed) @ root.T
    largest = float(np.quantile(np.abs(drawn).max(axis=1), level))
    critical_value = max(largest, z_quantile((1 + level) / 2))
    return 2 * NormalDist().cdf(critical_value) - 1


@lru_cache(maxsize=2)
def _normals(replicates: int, factors: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((replicates, factors))
