"""Least squares with truncated attempts as censored observations: each needed more tokens than it spent.

A Tobit model (Tobin 1958) in which the standard deviation is a power of size instead of constant: tokens are normal
around the fitted mean, and censored where an attempt was truncated. The fit alternates between replacing what a
truncated attempt would have spent by its expectation, and least squares, until neither changes. Without truncated
attempts this is ordinary least squares; with a constant standard deviation it is Tobin's maximum likelihood. If tokens
have heavier tails than the normal distribution, the correction is too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.stats.columns import Columns, Floats, Ints, summed
from ponder.stats.distributions import hazard
from ponder.stats.least_squares import search


@dataclass(frozen=True, slots=True)
class Working:
    """The last Newton step as a weighted least-squares problem, which the bootstrap repeats for each replicate."""

    rows: Floats  # per attempt: weight, weight times response, influence on the two parameters of the spread
    shift: Floats  # sizes × 2: how the weighted responses at a size change with those two parameters


@dataclass(frozen=True, slots=True)
class _Fit:
    design: Floats
    powers: Floats  # sizes × 2: design matrix of the log spread
    mean: Floats
    spread: Floats


def working(data: Columns, designs: Sequence[Floats]) -> Working:
    """For the best of the designs. An attempt that was not truncated has weight 1 and response `tokens`."""
    sizes, cut = np.unique(data.size), data.truncated
    rows = np.column_stack([np.ones(len(data)), data.tokens, np.zeros((len(data), 2))])
    if not cut.any():
        return Working(rows, np.zeros((len(sizes), 2)))
    size_of = np.searchsorted(sizes, data.size).astype(np.int64)
    fit = _fit(data, size_of, designs)
    mean, spread = fit.mean[size_of], fit.spread[size_of]
    x = (data.tokens - mean) / spread
    weight, excess = _beyond(x)
    rows[cut, 0] = weight[cut]
    rows[cut, 1] = (weight * mean + spread * excess)[cut]
    # Derivatives of the score equations of mean and spread by each other's parameters.
    mean_by_shape = np.where(cut, spread * (excess - x * weight), 0.0)
    shape_score = np.where(cut, x * excess, x**2 - 1)
    shape_by_mean = np.where(cut, excess + x * weight, 2 * x) / spread
    shape_by_shape = np.where(cut, x * (excess + x * weight), 2 * x**2)
    u, v = fit.design, fit.powers

    def crossed(left: Floats, values: Floats, right: Floats) -> Floats:
        return np.asarray((left.T * summed(values, size_of)) @ right)

    jacobian = np.block(
        [
            [crossed(u, rows[:, 0], u), -crossed(u, mean_by_shape, v)],
            [crossed(v, shape_by_mean, u), crossed(v, shape_by_shape, v)],
        ]
    )
    mean_score = rows[:, 1] - rows[:, 0] * mean
    scores = np.column_stack([u[size_of] * mean_score[:, None], v[size_of] * shape_score[:, None]])
    rows[:, 2:] = np.linalg.solve(jacobian, scores.T)[-2:].T
    return Working(rows, summed(mean_by_shape, size_of)[:, None] * v)


def _beyond(x: Floats) -> tuple[Floats, Floats]:
    """For a standard normal variable above x: the Fisher information about its mean, and its expectation."""
    excess = hazard(x)
    return np.clip(excess * (excess - x), 1e-9, 1.0), excess


@dataclass(frozen=True, slots=True)
class _Cells:
    """Truncated attempts grouped by size and token count; a common budget gives one group per size."""

    size_of: Ints
    cap: Floats
    count: Floats

    def summed(self, values: Floats, sizes: int) -> Floats:
        return np.bincount(self.size_of, weights=self.count * values, minlength=sizes).astype(np.float64)


def _cells(data: Columns, size_of: Ints) -> _Cells:
    pairs = np.column_stack([size_of, data.tokens])[data.truncated]
    rows, count = np.unique(pairs, axis=0, return_counts=True)
    return _Cells(rows[:, 0].astype(np.int64), rows[:, 1], count.astype(np.float64))


def _fit(data: Columns, size_of: Ints, designs: Sequence[Floats]) -> _Fit:
    tokens, seen, log_size = data.tokens, ~data.truncated, np.log(np.maximum(np.unique(data.size), 1))
    cells, sizes, n = _cells(data, size_of), len(log_size), np.bincount(size_of).astype(np.float64)
    seen_n, seen_sum, seen_squares = summed(np.column_stack([seen, seen * tokens, seen * tokens**2]), size_of).T
    powers = np.column_stack([np.ones(sizes), log_size - np.average(log_size, weights=n)])
    scale = float(tokens.std()) or 1.0
    shape = np.array([math.log(scale), 0.0])
    best = search((summed(tokens, size_of) / n)[None], n, designs)
    for _ in range(1000):
        mean = best.fitted(designs)[0]
        spread = np.maximum(np.exp(powers @ shape), 1e-3 * scale)
        x = (cells.cap - mean[cells.size_of]) / spread[cells.size_of]
        information, excess = _beyond(x)
        # A floor on the information keeps steps short: a short step only needs more iterations, a long one may diverge.
        weight = seen_n + cells.summed(np.maximum(information, 0.2), sizes)
        pull = seen_sum - seen_n * mean + spread * cells.summed(excess, sizes)
        best = search((mean + pull / weight)[None], weight, designs)
        squares = seen_squares - 2 * mean * seen_sum + seen_n * mean**2
        surplus = squares / spread**2 + cells.summed(1 + x * excess, sizes) - n
        step = np.clip(np.linalg.solve((powers.T * n) @ powers, powers.T @ surplus) / 2, -1, 1)
        shape = shape + step
        if max(np.abs(best.fitted(designs)[0] - mean).max() / scale, np.abs(step).max()) < 1e-9:
            break
    return _Fit(designs[best.design[0]], powers, best.fitted(designs)[0], spread)
