"""Boundaries for looking at the data several times: Pocock's (1977), the same critical value at every look.

Ten looks at 1.96 would find a difference in 19 % of the runs without one; at Pocock's 2.56 they find it in 5 %. An
interval of that many standard errors is valid at all looks at once, so it is valid whatever made a run stop (a repeated
confidence interval, Jennison & Turnbull 1989).
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

from ponder.stats.columns import Floats
from ponder.stats.distributions import t_quantile

LOOKS = 10


def look_sizes(problems: int, looks: int = LOOKS) -> list[int]:
    """How many problems each look has, the last all of them."""
    return sorted({math.ceil(problems * k / looks) for k in range(1, looks + 1)} - {0, 1} | {problems})


@cache
def pocock(level: float, sides: int, looks: int = LOOKS) -> float:
    """The critical value that a running z-score crosses at no look with probability `level`, if its mean is 0."""
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, sides, looks) < level else (low, middle)
    return high


def as_t(value: float, problems: int) -> float:
    """A critical value for a standard error estimated from this many problems: Student's t of the same tail."""
    return t_quantile(NormalDist().cdf(value), max(1, problems - 1))


def _inside(value: float, sides: int, looks: int) -> float:
    """The probability of no crossing, by Armitage's recursion over the looks with 64 Gauss-Legendre nodes each."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    density, at, wide = np.array([1.0]), np.array([0.0]), np.array([1.0])
    for look in range(1, looks + 1):
        top = value * math.sqrt(look)
        bottom = -top if sides == 2 else -8.0 * math.sqrt(look)
        now = (top - bottom) / 2 * nodes + (top + bottom) / 2
        density = (density * wide) @ _normal(now - at[:, None])
        at, wide = now, (top - bottom) / 2 * weights
    return float(density @ wide)


def _normal(x: Floats) -> Floats:
    return np.asarray(np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))
