"""Quantiles of the normal and Student's t, tails of chi-squared, F and the binomial, and the normal
hazard.

They are written out here because SciPy would add 113 MB to an installation.
"""

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
    """Return the quantile of Student's t, for 0.5 <= p < 1 and at least one degree of freedom.

    With t = √df·tan(a), the distribution function is a constant times the integral of
    cos(a)^(df-1). It is concave on the right half, so Newton's method from a = 0 never overshoots;
    64 Gauss-Legendre nodes are exact to rounding.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    constant = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    angle = 0.0
    for _ in range(100):
        integrand = np.cos(angle / 2 * (nodes + 1)) ** (df - 1)
        area = angle / 2 * float(weights @ integrand)
        step = ((p - 0.5) / constant - area) / math.cos(angle) ** (df - 1)
        angle += step
        if step <= 1e-15 * angle:
            break
    return math.sqrt(df) * math.tan(angle)


def chi2_tail(x: float, df: int) -> float:
    """Return the probability that chi-squared exceeds x, for up to 500 degrees of freedom.

    It is a finite sum for whole degrees of freedom (Abramowitz & Stegun 26.4.4 and 26.4.5).
    """
    if x <= 0:
        return 1.0
    if df == 0 or x > 1400:  # beyond 1400 exp(-x / 2) underflows, and the tail is below 1e-80
        return 0.0
    half = x / 2
    odd = df % 2
    # each term is the one before times half / (i + odd / 2)
    factors = [1.0]
    if odd:
        factors = [math.sqrt(half) / math.gamma(1.5)]
    for i in range(1, df // 2):
        factors.append(half / (i + odd / 2))
    terms = np.cumprod(factors)[: df // 2]
    total = math.exp(-half) * float(terms.sum())
    if odd:
        total = math.erfc(math.sqrt(half)) + total
    return min(1.0, total)


_erfc = np.frompyfunc(math.erfc, 1, 1)


def hazard(x: Floats) -> Floats:
    """Return the hazard of the standard normal: its density over its upper tail.

    It is also the mean of the values that exceed x.
    """
    near = np.minimum(x, 25.0)
    tail = np.asarray(_erfc(near / math.sqrt(2)), dtype=np.float64) / 2
    # Beyond 25 the tail approaches the smallest float; the asymptotic series is exact to rounding
    # there.
    far = np.maximum(x, 25.0)
    series = far + 1 / far - 2 / far**3 + 10 / far**5
    density = np.exp(-(near**2) / 2) / math.sqrt(2 * math.pi)
    return np.where(x < 25.0, density / tail, series)


def f_tail(x: float, above: float, below: float) -> float:
    """Return the probability that F with these degrees of freedom exceeds x.

    `above` are those of the numerator, `below` of the denominator. Student's t squared is F with
    (1, df).
    """
    if not x > 0:
        return 1.0
    if math.isinf(x):
        return 0.0
    return _incomplete_beta(below / (below + above * x), below / 2, above / 2)


def binomial_at_most(k: int, n: int, p: float) -> float:
    """Return the probability of at most k successes in n trials, for 0 < p < 1."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return _incomplete_beta(1 - p, n - k, k + 1)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the continued fraction converges fast below the mean only
        return 1 - _incomplete_beta(1 - x, b, a)
    minus_log_beta = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front = minus_log_beta + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d₁/(1 + d₂/(1 + …)), by Lentz's method (Press et al., Numerical Recipes, §6.4)."""
    value = 1.0
    numerators = 1.0  # the ratio of two successive ones
    denominators = 0.0  # the same, inverted
    for i in range(1, 10_000):
        m, odd = divmod(i, 2)
        if odd:
            d = -(a + m) * (a + b + m)
        else:
            d = m * (b - m)
        d *= x / ((a + i - 1) * (a + i))
        denominators = 1 / (1 + d * denominators)
        numerators = 1 + d / numerators
        factor = numerators * denominators
        value *= factor
        if abs(factor - 1) < 1e-15:
            break
    return value
