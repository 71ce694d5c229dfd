"""Truncated attempts in a least-squares fit: each counts as "more than it got".

Tokens are taken as normal about the fitted mean, with a spread that is a power of size, and censored where an attempt
was cut off (Tobin 1958, who has one spread for all). What the cut-off ones would have used is replaced by its
expectation and the mean is fitted by plain least squares, until neither moves: with nothing truncated that is plain
least squares, with one spread for all it is Tobin's maximum likelihood. Tails heavier than the normal's would
need more than this adds.
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
    """The last Newton step: its weighted least-squares fit is the fit itself, and redrawing attempts repeats it."""

    rows: Floats  # an attempt's weight, its weight times its response, its part in the spread's two parameters
    shift: Floats  # sizes × 2: how the weighted responses at a size move with those two parameters


@dataclass(frozen=True, slots=True)
class _Fit:
    design: Floats
    powers: Floats  # sizes × 2: the spread's design, on the scale of logarithms
    mean: Floats
    spread: Floats


def working(data: Columns, designs: Sequence[Floats]) -> Working:
    """For the best of the designs; weight 1 and response `tokens` unless an attempt was truncated."""
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
    # How the equations for the mean and for the spread move with each other's parameters.
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
    """Of a standard normal known to exceed x: the information about its mean, and its expectation."""
    excess = hazard(x)
    return np.clip(excess * (excess - x), 1e-9, 1.0), excess


@dataclass(frozen=True, slots=True)
class _Cells:
    """Attempts cut off at the same size and count are one cell; a common cap leaves one cell a size."""

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
        # Too short a step is safe, too long a one is not.
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
