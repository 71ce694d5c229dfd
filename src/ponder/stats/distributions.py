"""Quantiles of the normal and Student's t, tails of chi-squared, and the normal hazard: SciPy would add 113 MB."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

from ponder.stats.columns import Floats


def z_quantile(p: float) -> float:
    return NormalDist().inv_cdf(p)


@cache
def t_quantile(p: float, df: float) -> float:
    """The quantile of Student's t, for 0.5 <= p < 1 and at least one degree of freedom.

    With t = √df·tan(a), the distribution function is a constant times the integral of cos(a)^(df-1). It is concave on
    the right half, so Newton's method from a = 0 never overshoots; 64 Gauss-Legendre nodes are exact to rounding.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    constant = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    angle = 0.0
    for _ in range(100):
        area = angle / 2 * float(weights @ np.cos(angle / 2 * (nodes + 1)) ** (df - 1))
        step = ((p - 0.5) / constant - area) / math.cos(angle) ** (df - 1)
        angle += step
        if step <= 1e-15 * angle:
            break
    return math.sqrt(df) * math.tan(angle)


def chi2_tail(x: float, df: int) -> float:
    """The probability that chi-squared exceeds x >= 0, for integer degrees of freedom."""
    if df == 0:
        return 0.0
    half, odd = x / 2, df % 2
    start = math.sqrt(half) / math.gamma(1.5) if odd else 1.0
    terms = np.cumprod([start, *(half / (i + odd / 2) for i in range(1, df // 2))])[: df // 2]
    return (math.erfc(math.sqrt(half)) if odd else 0.0) + math.exp(-half) * float(terms.sum())


_erfc = np.frompyfunc(math.erfc, 1, 1)


def hazard(x: Floats) -> Floats:
    """The hazard of the standard normal: its density over its upper tail, which is also the mean of what exceeds x."""
    near = np.minimum(x, 25.0)
    tail = np.asarray(_erfc(near / math.sqrt(2)), dtype=np.float64) / 2
    # Beyond 25 the tail approaches the smallest float; the asymptotic series is exact to rounding there.
    far = np.maximum(x, 25.0)
    series = far + 1 / far - 2 / far**3 + 10 / far**5
    density = np.exp(-(near**2) / 2) / math.sqrt(2 * math.pi)
    return np.where(x < 25.0, density / tail, series)
