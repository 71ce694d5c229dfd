"""Checks of the curve behind the critical size: a local fit, and whether accuracy falls steadily at all.

The critical size comes from one curve through all sizes. If the true curve has another shape, sizes far from the
crossing pull it aside. The local fit, a logistic without lapses through the three sizes nearest the crossing, is less
certain and depends less on the shape. A test against every curve that never rises says whether any such fit makes
sense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ponder.stats.columns import Floats, Ints
from ponder.stats.distributions import chi2_tail, t_quantile

NEAREST = 3  # sizes of the local fit


@dataclass(frozen=True, slots=True)
class Local:
    """A local fit on the scale of log size."""

    value: float
    low: float
    high: float
    nearest: Ints  # indices of the sizes it uses
    cliff: bool  # no wrong answer at a smaller size than a right one: the data can't place it between two sizes


@dataclass(frozen=True, slots=True)
class Steady:
    """Whether accuracy falls steadily with size, or at least never rises."""

    p_value: float  # small: it rises somewhere
    rise: tuple[float, float]  # the two sizes between which it rises most clearly; nan if it never does


def falling(value: Floats, weight: Floats) -> Floats:
    """The weighted least-squares fit that never rises (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for one, its_weight in zip(value.tolist(), weight.tolist(), strict=True):
        blocks.append((one, its_weight, 1))
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return np.repeat([block[0] for block in blocks], [block[2] for block in blocks])


def steadiness(total: Floats, sizes: Floats, effect: float) -> Steady:
    """A likelihood-ratio test of (attempts, right) by size against every accuracy that never rises.

    Its null distribution is that of a constant accuracy, the hardest to tell from a rise: a mixture of chi-squared ones
    (Robertson, Wright & Dykstra 1988, with the weights for sizes of equally many attempts). `effect` is the design
    effect.
    """
    n, own = total[:, 0], total[:, 1] / total[:, 0]
    ratio = 2 * float(log_likelihood(total, own) - log_likelihood(total, falling(own, n))) / effect
    levels = np.ones(1)  # levels[i]: the probability that a fit to k sizes has i + 1 different values
    for k in range(2, len(n) + 1):
        levels = (np.append(levels * (k - 1), 0.0) + np.insert(levels, 0, 0.0)) / k
    p_value = sum(p * chi2_tail(ratio, len(n) - i) for i, p in enumerate(levels.tolist(), 1)) if ratio > 1e-9 else 1.0
    smooth = (total[:, 1] + 0.5) / (n + 1)
    variance = smooth * (1 - smooth) / n
    rises = (own[None] - own[:, None]) / np.sqrt(variance[None] + variance[:, None])
    lower, upper = np.unravel_index(np.argmax(np.triu(rises, 1)), rises.shape)
    some = lower < upper and rises[lower, upper] > 0
    return Steady(p_value, (float(sizes[lower]), float(sizes[upper])) if some else (math.nan, math.nan))


def log_likelihood(total: Floats, chance: Floats) -> Floats:
    """Of (attempts, right) by size, for the last two axes of `total`."""
    right, wrong = total[..., 1], total[..., 0] - total[..., 1]
    some = np.where(right > 0, right * np.log(np.maximum(chance, 1e-300)), 0.0)
    return np.asarray((some + np.where(wrong > 0, wrong * np.log(np.maximum(1 - chance, 1e-300)), 0.0)).sum(axis=-1))


def local_fit(total: Floats, log_size: Floats, problems: Ints, effect: float, level: float) -> Local | None:
    """None if there are fewer than three sizes, or accuracy does not cross one half."""
    crossing = _crossing(total, log_size)
    if len(log_size) < NEAREST or math.isnan(crossing):
        return None
    nearest = np.sort(np.argsort(np.abs(log_size - crossing), kind="stable")[:NEAREST])
    part, at = total[nearest], log_size[nearest]
    line, information = fitted_lines(part[None], at)
    quantile = t_quantile((1 + level) / 2, max(1, int(problems[nearest].sum()) - 2))
    low, high = _fieller(line[0], np.linalg.inv(information[0]) * effect, quantile)
    right, wrong = part[:, 1] > 0, part[:, 1] < part[:, 0]
    cliff = not (right & wrong).any() and not (right[1:] & wrong[:-1]).any()
    middle = float(at.mean())
    return Local(middle + crossed(line)[0], middle + low, middle + high, nearest, cliff)


def crossed(lines: Floats) -> Floats:
    """Where each line is 0, as a distance from the middle; nan if it does not fall."""
    slope = np.where(lines[:, 1] < 0, lines[:, 1], math.nan)
    return np.asarray(-lines[:, 0] / slope)


def fitted_lines(total: Floats, log_size: Floats) -> tuple[Floats, Floats]:
    """Logistic regressions of replicates × sizes × (attempts, right) on centred log size, and their information.

    Firth's (1993) penalty keeps them finite where all are right or all are wrong.
    """
    x = np.column_stack([np.ones(len(log_size)), log_size - log_size.mean()])
    products = (x[:, :, None] * x[:, None, :]).reshape(len(x), 4)
    n, right = total[..., 0], total[..., 1]
    line = np.zeros((len(total), 2))
    scale = 10 / max(1e-12, float(np.abs(x[:, 1]).max()))
    for _ in range(25):
        p = 1 / (1 + np.exp(-np.clip(line @ x.T, -30, 30)))
        weight = n * p * (1 - p) + 1e-12
        information = (weight @ products).reshape(-1, 2, 2)
        inverse = _inverse(information)
        leverage = weight * (inverse.reshape(-1, 4) @ products.T)
        step = np.einsum("rij,rj->ri", inverse, (right - n * p + leverage * (0.5 - p)) @ x)
        line = np.clip(line + np.clip(step, [-3, -scale / 3], [3, scale / 3]), [-30, -3 * scale], [30, 3 * scale])
        if np.abs(step).max() < 1e-8:
            break
    return line, information


def _inverse(matrix: Floats) -> Floats:
    """Of 2 × 2 matrices: a third of the time of NumPy's."""
    a, b, d = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 1]
    return np.asarray(np.stack([d, -b, -b, a], axis=1).reshape(-1, 2, 2) / (a * d - b * b)[:, None, None])


def _crossing(total: Floats, log_size: Floats) -> float:
    """Where the best accuracy that never rises is one half, interpolated between sizes."""
    fit = falling(total[:, 1] / total[:, 0], total[:, 0])
    if fit[0] < 0.5 or fit[-1] > 0.5:
        return math.nan
    return float(np.interp(-0.5, -fit, log_size)) if fit[0] > fit[-1] else float(log_size.mean())


def _fieller(line: Floats, covariance: Floats, quantile: float) -> tuple[float, float]:
    """The ends of the interval of -intercept / slope; infinite where the slope may be 0."""
    (a, b), q2 = line, quantile**2
    square = b * b - q2 * covariance[1, 1]
    if square <= 0 or b >= 0:
        return -math.inf, math.inf
    half, rest = a * b - q2 * covariance[0, 1], a * a - q2 * covariance[0, 0]
    root = math.sqrt(max(0.0, half * half - square * rest))
    return (-half - root) / square, (-half + root) / square
