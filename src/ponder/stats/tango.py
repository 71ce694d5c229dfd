"""The difference of two accuracies on the same problems, one attempt each, with Tango's (1998) score interval.

The interval holds every difference that a score test doesn't reject. It keeps its level where few problems are
answered differently by the two, which is where a claim of "not worse by more than the margin" is made.
"""

from __future__ import annotations

import math

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import FEWEST_PAIRS, Floats
from ponder.stats.distributions import z_quantile


def tango(first: Floats, second: Floats, level: float = 0.95) -> Estimate:
    """The first less the second; each is 0 or 1 for every one of the same problems."""
    n = len(first)
    if n < FEWEST_PAIRS:
        return Estimate(float((first - second).mean()) if n else math.nan, -1.0, 1.0, n, n)
    only_first, only_second = int(np.count_nonzero(first > second)), int(np.count_nonzero(first < second))
    value, z = (only_first - only_second) / n, z_quantile((1 + level) / 2)
    low = _end(n, only_first, only_second, z, value, -1.0)
    high = _end(n, only_first, only_second, -z, value, 1.0)
    return Estimate(value, min(value, low), max(value, high), 2 * n, n)


def _end(n: int, only_first: int, only_second: int, z: float, inside: float, outside: float) -> float:
    """The difference at which the score is z, between one that isn't rejected and one that is."""
    for _ in range(60):
        middle = (inside + outside) / 2
        if abs(_score(n, only_first, only_second, middle)) <= abs(z):
            inside = middle
        else:
            outside = middle
    return inside


def _score(n: int, only_first: int, only_second: int, difference: float) -> float:
    """Of a difference, with the other parameter at its maximum likelihood."""
    b = -only_first - only_second + (2 * n - only_first + only_second) * difference
    c = -only_second * difference * (1 - difference)
    rest = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
    variance = n * (2 * rest + difference * (1 - difference))
    apart = only_first - only_second - n * difference
    return apart / math.sqrt(variance) if variance > 1e-12 else math.copysign(math.inf, apart) if apart else 0.0
