"""The tail of Fisher's F, and with it of Student's t: SciPy would add 113 MB for one function."""

from __future__ import annotations

import math


def f_tail(x: float, above: float, below: float) -> float:
    """The chance that F with these degrees of freedom exceeds x. Student's t squared is F with (1, df)."""
    if not x > 0:
        return 1.0
    return _incomplete_beta(below / (below + above * x), below / 2, above / 2) if math.isfinite(x) else 0.0


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function; its continued fraction converges fast below the mean."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / (a * _continued_fraction(x, a, b))


def _continued_fraction(x: float, a: float, b: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)), by Lentz's method (Press et al., Numerical Recipes, §6.4)."""
    value = above = 1.0
    below = 0.0
    for i in range(1, 10_000):
        m, odd = divmod(i, 2)
        term = -(a + m) * (a + b + m) if odd else m * (b - m)
        term *= x / ((a + i - 1) * (a + i))
        below, above = 1 / (1 + term * below), 1 + term / above
        value *= above * below
        if abs(above * below - 1) < 1e-15:
            break
    return value
