"""A band around a whole curve: it contains the whole true curve in 95 % of cases, not each point by itself.

The quantile of the largest of the studentised errors, from a Gaussian with the correlations that problems show (the
sup-t band of Montiel Olea & Plagborg-Møller 2019), takes the place of the normal's in the interval at each point.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from ponder.stats.columns import Floats
from ponder.stats.distributions import z_quantile

FEW = 50  # problems below which a curve of one sample per problem gets a constant band
EDGE = 5  # problems with the rarer outcome below which a band reaches to 0 or to 1


def simultaneous_level(points: Floats, level: float, replicates: int = 4000, seed: int = 0) -> float:
    """The level of each point's interval at which all of them hold together. `points` is problems × points."""
    varying = points[:, points.std(axis=0) > 0]
    if len(points) < 2 or varying.shape[1] < 2:
        return level
    values, vectors = np.linalg.eigh(np.corrcoef(varying, rowvar=False))
    roots = vectors * np.sqrt(values.clip(0))
    drawn = np.random.default_rng(seed).standard_normal((replicates, len(roots))) @ roots.T
    largest = float(np.quantile(np.abs(drawn).max(axis=1), level))
    return 2 * NormalDist().cdf(max(largest, z_quantile((1 + level) / 2))) - 1


def constant_half(problems: int, level: float) -> float:
    """Half the width of the constant band around a distribution function (Massart 1990): at 95 %, 1.358/√problems."""
    return math.sqrt(math.log(2 / (1 - level)) / 2 / problems)
