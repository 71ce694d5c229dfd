"""The size at which a model is right half of the time: a psychometric curve through accuracy against size.

p(size) = (1 - lapse) · logistic(slope · (log c - log size)), lapse in [0, 0.2], by maximum likelihood; after Wichmann &
Hill (2001), with `critical` the size where p itself, not the logistic, is one half.

The interval is the wider of two at each end. Redrawing problems sees that attempts at one problem hang together. The
profile likelihood sees that 20 right of 20 is not certainty, and that between two sizes of a cliff nothing is known.
Where either end lies beyond the sizes measured the interval is open there, and so may be the value: none is invented.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ponder.core import Estimate
from ponder.stats.bootstrap import Curve, draw_curve, drawing_sizes, resampled_sums
from ponder.stats.columns import Columns, Floats, Ints
from ponder.stats.distributions import z_quantile


@dataclass(frozen=True, slots=True)
class Critical:
    """`size` has nan for a value where accuracy doesn't cross one half within the sizes measured."""

    size: Estimate
    slope: Estimate  # of the logit, in units of log size
    lapse: Estimate  # the share of attempts wrong at any size
    curve: Curve | None  # None: fewer than two sizes


def critical_size(data: Columns, level: float = 0.95, replicates: int = 1000, seed: int = 0) -> Critical:
    sizes, size_of_attempt = np.unique(data.size, return_inverse=True)
    if len(sizes) < 2:
        unknown = Estimate(math.nan, 0.0, math.inf, len(data), data.problems)
        return Critical(unknown, unknown, Estimate(math.nan, 0.0, 1.0, len(data), data.problems), None)
    size_of = np.zeros(data.problems, dtype=np.int64)
    size_of[data.problem] = size_of_attempt
    tries, right = (np.bincount(data.problem, weights=w) for w in (np.ones(len(data)), data.correct))
    counts = np.column_stack([tries, right])
    grid = _grid(np.log(sizes))
    total = np.column_stack([np.bincount(size_of, weights=column) for column in counts.T])
    best, top = _climb(grid, total, np.log(sizes))
    drop = z_quantile((1 + level) / 2) ** 2 / 2 * _design_effect(counts, size_of, total)
    likely = grid[_log_likelihood(grid, total[None], np.log(sizes))[0] >= top - drop]
    redrawn = _refit(grid, resampled_sums(counts, size_of, replicates, seed), np.log(sizes))
    return _report(data, sizes, best, likely, redrawn, level)


def _report(
    data: Columns, sizes: Floats, best: Floats, likely: Floats, redrawn: Floats, level: float
) -> Critical:
    def estimate(value: float, among: Floats, again: Floats) -> Estimate:
        low, high = _wider(among[:, None], again[:, None], level)
        return Estimate(
            value, min(value, float(low[0])), max(value, float(high[0])), len(data), data.problems
        )

    x = drawing_sizes(sizes)
    value = _share(best[None], np.log(x))[0]
    low, high = _wider(_share(likely, np.log(x)), _share(redrawn, np.log(x)), level)
    critical, slope = (
        estimate(math.exp(best[i]), np.exp(likely[:, i]), np.exp(redrawn[:, i])) for i in (0, 1)
    )
    return Critical(
        size=_within(critical, sizes),
        slope=slope,
        lapse=estimate(float(best[2]), likely[:, 2], redrawn[:, 2]),
        curve=draw_curve(x, value, np.minimum(low, value), np.maximum(high, value)),
    )


def _wider(likely: Floats, redrawn: Floats, level: float) -> tuple[Floats, Floats]:
    low, high = np.quantile(redrawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    if len(likely):
        low, high = np.minimum(low, likely.min(axis=0)), np.maximum(high, likely.max(axis=0))
    return low, high


def _within(critical: Estimate, sizes: Floats) -> Estimate:
    """Nothing is claimed beyond the sizes measured."""
    first, last = float(sizes[0]), float(sizes[-1])
    value = critical.value if first <= critical.value <= last else math.nan
    low = 0.0 if critical.low < first else min(critical.low, last)
    high = math.inf if critical.high > last else max(critical.high, first)
    return Estimate(value, low, high, critical.attempts, critical.problems)


def _grid(log_size: Floats) -> Floats:
    """Candidates, one a row: log of the critical size, log of the slope, lapse."""
    first, last = log_size[0], log_size[-1]
    span, gap = last - first, float(np.diff(log_size).min())
    outside = np.linspace(0.12, 2.0, 12) * span
    inside = np.linspace(first - 0.1 * span, last + 0.1 * span, 97)
    critical = np.concatenate([first - outside[::-1], inside, last + outside])
    # From hardly any fall over all sizes to a cliff between the two nearest ones.
    slope = np.linspace(math.log(0.5 / span), math.log(10 / gap), 24)
    lapse = np.array([0.0, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2])
    return np.stack(np.meshgrid(critical, slope, lapse, indexing="ij"), axis=-1).reshape(-1, 3)


def _logits(grid: Floats, log_size: Floats) -> Floats:
    half = -np.log(1 - 2 * grid[:, 2:])  # the logit of 0.5 / (1 - lapse)
    return np.exp(grid[:, 1:2]) * (grid[:, :1] - log_size) + half


def _share(grid: Floats, log_size: Floats) -> Floats:
    return np.asarray((1 - grid[:, 2:]) / (1 + np.exp(-np.clip(_logits(grid, log_size), -500, 500))))


def _log_likelihood(grid: Floats, counts: Floats, log_size: Floats) -> Floats:
    """Replicates × candidates, from replicates × sizes × (tries, right)."""
    logit, lapse = _logits(grid, log_size), grid[:, 2:]
    log_right = np.log1p(-lapse) - np.logaddexp(0, -logit)
    # 1 - (1-lapse)·logistic = (e^-logit + lapse) / (1 + e^-logit), without loss where it is tiny
    log_wrong = np.where(lapse > 0, np.logaddexp(-logit, np.log(np.maximum(lapse, 1e-300))), -logit)
    log_wrong = log_wrong - np.logaddexp(0, -logit)
    tries, right = counts[:, :, 0], counts[:, :, 1]
    # Among equals the shallower curve and the smaller lapse: at a cliff the data can't choose.
    return np.asarray(right @ log_right.T + (tries - right) @ log_wrong.T - 1e-3 * (grid[:, 1] + grid[:, 2]))


def _refit(grid: Floats, counts: Floats, log_size: Floats) -> Floats:
    """The best candidate for each replicate."""
    step = max(1, 2_000_000 // len(grid))
    best: list[Ints] = [
        _log_likelihood(grid, counts[a : a + step], log_size).argmax(axis=1)
        for a in range(0, len(counts), step)
    ]
    return np.asarray(grid[np.concatenate(best)])


def _climb(grid: Floats, total: Floats, log_size: Floats) -> tuple[Floats, float]:
    """The best candidate, then ever finer grids around it."""
    best = _refit(grid, total[None], log_size)[0]
    floor, ceiling = grid.min(axis=0), grid.max(axis=0)
    reach = (ceiling - floor) / 20
    offsets = np.stack(np.meshgrid(*[np.linspace(-1, 1, 5)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    for _ in range(60):
        near = np.clip(best + offsets * reach, floor, ceiling)
        score = _log_likelihood(near, total[None], log_size)[0]
        best, reach = near[score.argmax()], reach * 0.8
    return best, float(score.max())


def _design_effect(counts: Floats, size_of: Ints, total: Floats) -> float:
    """How many attempts are worth one independent attempt: from 1 to the mean number at a problem."""
    share = total[:, 1] / total[:, 0]
    problems = np.bincount(size_of)
    spread = np.bincount(size_of, weights=(counts[:, 1] - counts[:, 0] * share[size_of]) ** 2)
    between = float((spread * problems / np.maximum(problems - 1, 1)).sum())
    alone = float((total[:, 0] * share * (1 - share)).sum())
    most = float(counts[:, 0].mean())
    return min(max(between / alone, 1.0), most) if alone > 0 else most
