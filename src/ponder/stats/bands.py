"""A band around a whole curve: it contains the whole true curve in 95 % of cases, not each point by itself.

The quantile of the largest of the studentised errors, from a Gaussian with the correlations that problems show (the
sup-t band of Montiel Olea & Plagborg-Møller 2019), takes the place of the normal's in the interval at each point.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from ponder.stats.columns import Floats, Ints
from ponder.stats.distributions import z_quantile

FEW = 50  # problems below which a curve of one sample per problem gets a constant band
PART = 5000  # problems at a time
EDGE = 5  # problems with the rarer outcome below which a band reaches to 0 or to 1


def simultaneous_level(
    right: Floats | Ints, level: float, attempts: Floats | Ints, replicates: int = 4000, seed: int = 0
) -> float:
    """The level of each point's interval at which all of them hold together.

    `right` is problems × points: how many of each problem's `attempts` are right.
    """
    together = _covariance(right, attempts)
    varying = np.flatnonzero(np.diag(together) > 0)
    if len(right) < 2 or len(varying) < 2:
        return level
    together = together[np.ix_(varying, varying)]
    error = np.sqrt(np.diag(together))
    values, vectors = np.linalg.eigh((together / np.outer(error, error)).clip(-1, 1))
    roots = vectors * np.sqrt(values.clip(0))
    drawn = np.random.default_rng(seed).standard_normal((replicates, len(roots))) @ roots.T
    largest = float(np.quantile(np.abs(drawn).max(axis=1), level))
    return 2 * NormalDist().cdf(max(largest, z_quantile((1 + level) / 2))) - 1


def _covariance(right: Floats | Ints, attempts: Floats | Ints) -> Floats:
    """Points × points, over the problems' means, up to a factor; some problems at a time, to use little memory."""
    parts = [slice(a, a + PART) for a in range(0, len(right), PART)]
    means = sum((right[part] / attempts[part, None]).sum(axis=0) for part in parts) / len(right)
    total = np.zeros((right.shape[1], right.shape[1]))
    for part in parts:
        apart = right[part] / attempts[part, None] - means
        total += apart.T @ apart
    return total


def constant_half(problems: int, level: float) -> float:
    """Half the width of the constant band around a distribution function (Massart 1990): at 95 %, 1.358/√problems."""
    return math.sqrt(math.log(2 / (1 - level)) / 2 / problems)
