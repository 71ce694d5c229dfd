"""Estimates pass@n with an interval clustered by problem, and how much of the gap to pass@n a selector closes.

pass@n is the unbiased estimator of Chen et al. 2021 (Codex): for a problem with m samples, the fraction of all subsets
of n that contain a right one. Its interval is that of `accuracy`, Wilson's on an effective sample size: m samples hold
m/n disjoint subsets, so for n = 1 the two intervals are equal, and for n = m each problem counts once.

The gap closed by a selector, from one sample to pass@n, is a ratio of means over the same problems with Fieller's
interval (1954). The interval is unbounded if the gap itself may be zero.
"""

from __future__ import annotations

import math

import numpy as np

from ponder.core import Estimate
from ponder.stats.accuracy import wilson
from ponder.stats.columns import Floats, Ints
from ponder.stats.distributions import t_quantile, z_quantile


def pass_by_problem(tried: Ints, right: Ints, n: int) -> Floats:
    """For each problem, the probability that n of its samples, drawn without replacement, contain a right one."""
    left = tried - right
    places = np.arange(n)
    none = np.clip(left[:, None] - places, 0, None) / (tried[:, None] - places)
    return np.asarray(1 - none.prod(axis=1), dtype=np.float64)


def pass_at(tried: Ints, right: Ints, n: int, level: float = 0.95) -> Estimate:
    """pass@n on the problems that have at least n samples."""
    enough = tried >= n
    chances, attempts, problems = (
        pass_by_problem(tried[enough], right[enough], n),
        int(tried[enough].sum()),
        int(enough.sum()),
    )
    if problems < 2:
        return Estimate(float(chances.mean()) if problems else math.nan, 0.0, 1.0, attempts, problems)
    value = min(1.0, float(chances.mean()))
    # As in `accuracy`: only problems with the rarer outcome show how correlated their samples are.
    shown = int((chances > 0).sum() if value < 0.5 else (chances < 1).sum())
    independent = problems + (attempts / n - problems) * shown / (shown + 5)
    variance = float(chances.var(ddof=1)) / problems
    if variance > 0:
        upper = (1 + level) / 2
        few = z_quantile(upper) / t_quantile(upper, problems - 1)
        independent = min(independent, value * (1 - value) / variance * few**2)
    return Estimate(value, *wilson(value, independent, level), attempts, problems)


def gap_closed(one: Floats, picked: Floats, best: Floats, level: float = 0.95) -> Estimate:
    """How far `picked` gets from `one` to `best`, as a fraction; each is the accuracy on every one of the problems."""
    n = len(one)
    gained, gap = picked - one, best - one
    if n < 2 or gap.mean() <= 0:
        return Estimate(math.nan, -math.inf, math.inf, n, n)
    value = float(gained.mean() / gap.mean())
    # One more problem in either direction, as in the interval of `paired_difference`.
    gained, gap = np.append(gained, [1.0, -1.0]), np.append(gap, [0.0, 0.0])
    variance = np.cov(gained, gap) / (n + 2)
    t2 = t_quantile((1 + level) / 2, n - 1) ** 2
    a = float(gap.mean() ** 2 - t2 * variance[1, 1])
    b = float(gained.mean() * gap.mean() - t2 * variance[0, 1])
    c = float(gained.mean() ** 2 - t2 * variance[0, 0])
    if a <= 0 or b * b < a * c:
        return Estimate(value, -math.inf, math.inf, n, n)
    half = math.sqrt(b * b - a * c) / a
    return Estimate(value, min(value, b / a - half), max(value, b / a + half), n, n)
