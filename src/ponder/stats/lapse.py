"""The interval of the lapse rate by profile likelihood: for each rate, the best critical size and slope.

A lattice can't give it: at 100 right of 100 the best lapse is 0, and so is every redrawn one, but 1 % isn't excluded.
"""

from __future__ import annotations

import numpy as np

from ponder.stats.columns import Floats
from ponder.stats.shape import log_likelihood

HIGHEST = 0.45  # at 0.5 accuracy would never be above one half
RATES = np.concatenate([[0.0], np.geomspace(1e-4, HIGHEST, 36)])


def lapse_interval(total: Floats, log_size: Floats, slopes: tuple[float, float], drop: float) -> tuple[float, float]:
    """The lapses whose best log likelihood is at most `drop` below the highest; (attempts, right) by size in `total`.

    The upper end is 1 if the highest rate here isn't excluded.
    """
    rates = RATES
    for _ in range(4):  # with many attempts, the interval may fit between two rates: look closer
        profile = _profile(total, log_size, slopes, rates)
        inside = np.flatnonzero(profile >= profile.max() - drop)
        first, last = max(0, int(inside[0]) - 1), min(len(rates) - 1, int(inside[-1]) + 1)
        if len(inside) >= 8:
            break
        rates = np.linspace(rates[first], rates[last], len(RATES))
    # The root of the drop is almost linear in the rate.
    far = np.sqrt(np.maximum(profile.max() - profile, 0.0))
    low = (
        0.0
        if inside[0] == 0 and rates[0] == 0
        else float(np.interp(-np.sqrt(drop), -far[first:][:2], rates[first:][:2]))
    )
    if inside[-1] == len(rates) - 1:
        return low, 1.0
    return low, float(np.interp(np.sqrt(drop), far[last - 1 : last + 1], rates[last - 1 : last + 1]))


def _profile(total: Floats, log_size: Floats, slopes: tuple[float, float], rates: Floats) -> Floats:
    """For each rate the highest log likelihood, by Fisher scoring with steps that halve where they don't improve."""
    n, right, x = total[:, 0], total[:, 1], log_size - log_size.mean()
    keep = (1 - rates)[:, None]

    def chance(line: Floats) -> tuple[Floats, Floats]:
        rest = 1 / (1 + np.exp(-np.clip(line[:, :1] - line[:, 1:] * x, -500, 500)))
        return np.clip(keep * rest, 1e-12, 1 - 1e-12), np.asarray(keep * rest * (1 - rest))

    best, found = _starts(total, x, slopes, rates)
    step, scale = np.zeros_like(best), np.ones(len(rates))
    for _ in range(40):
        p, rise = chance(best)
        weight, pull = n * rise**2 / (p * (1 - p)), (right - n * p) * rise / (p * (1 - p))
        a, b, d = weight.sum(axis=1) + 1e-9, -(weight @ x), weight @ x**2 + 1e-9
        first, second = pull.sum(axis=1), -(pull @ x)
        determinant = np.maximum(a * d - b * b, 1e-12)
        step = np.stack([d * first - b * second, a * second - b * first], axis=1) / determinant[:, None]
        tried = best + scale[:, None] * np.clip(step, [-4, -slopes[1] / 4], [4, slopes[1] / 4])
        tried[:, 1] = np.clip(tried[:, 1], *slopes)
        score = log_likelihood(total, chance(tried)[0])
        better = score > found
        best, found = np.where(better[:, None], tried, best), np.where(better, score, found)
        scale = np.where(better, np.minimum(1.0, 2 * scale), scale / 4)
        if scale.max() < 1e-6:
            break
    return found


def _starts(total: Floats, x: Floats, slopes: tuple[float, float], rates: Floats) -> tuple[Floats, Floats]:
    """The best of a coarse lattice for each rate."""
    places, steep = np.linspace(x[0] - 0.1, x[-1] + 0.1, 25), np.geomspace(*slopes, 8)
    slope, place = (axis.ravel() for axis in np.meshgrid(steep, places, indexing="ij"))
    rest = 1 / (1 + np.exp(-np.clip(slope[:, None] * (place[:, None] - x), -500, 500)))
    right, wrong = total[:, 1], total[:, 0] - total[:, 1]
    best, found = np.zeros((len(rates), 2)), np.zeros(len(rates))
    for i, rate in enumerate(rates):
        p = np.clip((1 - rate) * rest, 1e-12, 1 - 1e-12)
        score = np.log(p) @ right + np.log1p(-p) @ wrong
        k = int(score.argmax())
        best[i], found[i] = (slope[k] * place[k], slope[k]), score[k]
    return best, found
