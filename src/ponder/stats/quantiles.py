"""Quantiles of a quantity that attempts have, such as their seconds, clustered by problem.

The interval's ends are order statistics, so it holds for any distribution: the number of attempts
below the true quantile is binomial. Attempts at one problem are correlated and count as fewer
independent ones. If even the largest attempt may be below the quantile, the upper end is infinite:
the 95th percentile has one from 72 independent attempts on, the 90th from 36.
"""

from __future__ import annotations

import math

import numpy as np

from ponder.core import Estimate
from ponder.stats.accuracy import effective_attempts
from ponder.stats.columns import Floats, Ints
from ponder.stats.distributions import binomial_at_most


def quantile(
    values: Floats, problem: Ints, fraction: float, level: float = 0.95, *, least: float = 0.0
) -> Estimate:
    """Return the quantile at `fraction` of a quantity that is never below `least`.

    Attempts are weighted so that problems weigh the same. A value that reaches the fraction exactly
    is averaged with the next one.
    """
    attempts = len(values)
    if attempts == 0:
        return Estimate(math.nan, least, math.inf, 0, 0)
    number = np.unique(problem, return_inverse=True)[1]
    attempts_at = np.bincount(number)
    problems = len(attempts_at)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    cumulative = np.cumsum(1 / (problems * attempts_at[number[order]]))

    def reached(share: float) -> float:
        """Return the value of the first attempt by which this share of the weight is reached."""
        index = int(np.searchsorted(cumulative, share))
        return float(ordered[min(index, attempts - 1)])

    # The slack of 1e-9 decides ties between "reached" and "exceeded", despite rounding.
    lower = reached(fraction - 1e-9)
    value = (lower + reached(fraction + 1e-9)) / 2
    if problems < 2:
        return Estimate(value, least, math.inf, attempts, problems)
    independent = problems
    if attempts > problems:
        independent = max(2, math.floor(effective_attempts(values <= lower, number, level)))
    low_rank, high_rank = _ranks(independent, fraction, level)
    low = least
    if low_rank > 0:
        low = min(value, reached(low_rank / independent - 1e-9))
    high = math.inf
    if high_rank <= independent:
        high = max(value, reached(high_rank / independent - 1e-9))
    return Estimate(value, low, high, attempts, problems)


def _ranks(n: int, fraction: float, level: float) -> tuple[int, int]:
    """Return the ranks, from 1 to n, of the values between which the true quantile is.

    Rank 0 stands for no lower end, n + 1 for no upper end.
    """
    tail = (1 - level) / 2
    low = 0
    while low < n and binomial_at_most(low, n, fraction) <= tail:
        low += 1
    high = low
    while high <= n and binomial_at_most(high - 1, n, fraction) < 1 - tail:
        high += 1
    return low, high
