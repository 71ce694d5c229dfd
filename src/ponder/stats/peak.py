"""Does effort fall after a peak? Tested on either side of it, because a curve that must bend falls after any plateau.

A parabola through a rise and a plateau comes down at its end, so its bend proves nothing (Simonsohn 2018). Here the
peak is where two power laws that meet fit best, one of the sizes measured. Then effort must rise over the sizes up to
it and fall over the sizes from it on, each fitted alone: wherever the peak is taken, effort that never falls passes
that at most in 5 % of cases, once the p-value is multiplied by the number of sizes that were tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import Floats
from ponder.stats.distributions import z_quantile
from ponder.stats.lack_of_fit import design_effect
from ponder.stats.lognormal import Fit, Sums, fit, powers


@dataclass(frozen=True, slots=True)
class Peak:
    size: Estimate  # one of the sizes measured; its interval reaches to their neighbours
    before: Estimate  # exponent over the sizes up to the peak
    after: Estimate  # and from the peak on
    p_value: float  # of "effort never falls", or never rises; accounts for the search


def find_peak(data: Sums, level: float) -> Peak | None:
    """None if fewer than five sizes have an attempt that was not truncated."""
    sizes = data.seen_sizes
    tried = sizes[2:-2]
    if not len(tried):
        return None
    fits = [fit(data, _bent(data.x(data.sizes), float(data.x(size)))) for size in tried]
    likelihood = np.array([one.likelihood for one in fits])
    best = int(likelihood.argmax())
    within = max(1.0, design_effect(data, fits[best])) * z_quantile((1 + level) / 2) ** 2 / 2
    likely = np.searchsorted(sizes, tried[likelihood >= likelihood[best] - within])
    n, peak = int(data.attempts.sum()), float(tried[best])
    before, after = data.between(sizes[0], peak), data.between(peak, data.sizes[-1])
    rise, fall = (fit(part, powers(part.x(part.sizes), 1)) for part in (before, after))
    p_value = max(_one_sided(rise, 1), _one_sided(fall, -1))
    ends = float(sizes[likely[0] - 1]), float(sizes[likely[-1] + 1])
    return Peak(
        size=Estimate(peak, *ends, n, data.problems),
        before=exponent(before, rise, level),
        after=exponent(after, fall, level),
        p_value=min(1.0, len(tried) * p_value),
    )


def exponent(data: Sums, power_law: Fit, level: float) -> Estimate:
    value = float(power_law.coefficients[1])
    half = float(power_law.half(np.array([[0.0, 1.0, 0.0, 0.0]]), level)[0])
    return Estimate(value, value - half, value + half, int(data.attempts.sum()), data.problems)


def _bent(x: Floats, peak: float) -> Floats:
    return np.column_stack([np.ones_like(x), np.minimum(x - peak, 0), np.maximum(x - peak, 0)])


def _one_sided(power_law: Fit, sign: int) -> float:
    p = power_law.p_value(1) / 2
    return p if sign * power_law.coefficients[1] > 0 else 1 - p
