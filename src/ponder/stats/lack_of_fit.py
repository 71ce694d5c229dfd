"""Does a curve of log tokens fit? A score test of one free mean per size, for attempts correlated within a problem.

It uses the expected information, because the observed one rejects a true curve in 10 to 41 % of cases, and is divided
by the pooled design effect: how much more scores vary between problems of one size than independent attempts would.
"""

from __future__ import annotations

import math

import numpy as np

from ponder.stats.columns import Floats, summed
from ponder.stats.distributions import hazard
from ponder.stats.lognormal import Fit, Sums, by_coefficient, powers, scores
from ponder.stats.tails import f_tail


def lack_of_fit(data: Sums, fitted: Fit) -> float:
    """The p-value; nan if there are not more sizes than coefficients, or not more problems than sizes."""
    u, v = fitted.design, powers(data.x(data.sizes), 1)
    sizes, parameters = u.shape
    if sizes <= parameters or data.problems <= sizes:
        return math.nan
    information = _expected(data, fitted)
    others = np.linalg.svd(u)[0][:, parameters:]  # what the curve can't follow
    score = others.T @ summed(scores(data, fitted)[:, 0], data.size_of)
    beside = by_coefficient(information, np.column_stack([others, u]), v)
    free = sizes - parameters
    own, shared, known = beside[:free, :free], beside[:free, free:], beside[free:, free:]
    left = own - shared @ np.linalg.pinv(known) @ shared.T
    statistic = float(score @ np.linalg.pinv(left) @ score)
    return f_tail(statistic / free / design_effect(data, fitted), free, data.problems - sizes)


def design_effect(data: Sums, fitted: Fit) -> float:
    """How many times the variance of independent attempts the scores of problems have, within sizes."""
    size_of, n = data.size_of, data.attempts_of_problem
    expected = (_expected(data, fitted)[:, 0] / data.attempts)[size_of] * n
    score = scores(data, fitted)[:, 0]
    apart = score - n * (summed(score, size_of) / data.attempts)[size_of]
    told = data.by_size[size_of, 0] > 0  # a size whose attempts were all truncated shows no noise
    spare = int(told.sum()) - len(data.seen_sizes)
    return float((apart[told] ** 2 / expected[told]).sum()) / spare if spare > 0 else 1.0


def _expected(data: Sums, fitted: Fit) -> Floats:
    """The expected information on mean and spread at each size, as in `second`, with the largest cap as that of all."""
    z = np.full(len(data.sizes), 38.0)
    if len(data.cut.cap):
        z = np.clip((data.cut.cap.max() - fitted.mean) / fitted.spread, -38.0, 38.0)
    h = hazard(z)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    below = 1 - density / h
    mm = below + density * (h - z)
    ms = density * (z * (h - z) - 1)
    ss = 2 * (below - z * density) + z * density * (1 + z * (h - z))
    return np.column_stack([mm / fitted.spread**2, ms / fitted.spread, ss]) * data.attempts[:, None]
