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
class _Cells:
    """Attempts cut off at the same size and count are one cell; a common cap leaves one cell a size."""

    size_of: Ints
    cap: Floats
    count: Floats

    def summed(self, values: Floats, sizes: int) -> Floats:
        return np.bincount(self.size_of, weights=self.count * values, minlength=sizes).astype(np.float64)


def working(data: Columns, designs: Sequence[Floats]) -> Floats:
    """Two columns, one row an attempt: its weight, and weight times response, for the best of the designs.

    They are 1 and its tokens unless it was truncated; then those of the last Newton step, whose weighted
    least-squares fit is the fit itself.
    """
    out = np.column_stack([np.ones(len(data)), data.tokens])
    cut = data.truncated
    if cut.any():
        size_of = np.unique(data.size, return_inverse=True)[1].astype(np.int64)
        mean, spread = _fit(data, size_of, designs)
        mu, sigma = mean[size_of[cut]], spread[size_of[cut]]
        weight, excess = _beyond((data.tokens[cut] - mu) / sigma)
        out[cut] = np.column_stack([weight, weight * mu + sigma * excess])
    return out


def _beyond(x: Floats) -> tuple[Floats, Floats]:
    """Of a standard normal known to exceed x: the information about its mean, and its expectation."""
    excess = hazard(x)
    return np.clip(excess * (excess - x), 1e-9, 1.0), excess


def _fit(data: Columns, size_of: Ints, designs: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Mean and spread at each size."""
    cut, tokens, sizes = data.truncated, data.tokens, np.unique(data.size)
    n = np.bincount(size_of).astype(np.float64)
    seen = summed(np.column_stack([~cut, np.where(cut, 0, tokens), np.where(cut, 0, tokens**2)]), size_of)
    rows, count = np.unique(np.column_stack([size_of[cut], tokens[cut]]), axis=0, return_counts=True)
    cells = _Cells(rows[:, 0].astype(np.int64), rows[:, 1], count.astype(np.float64))
    scale = float(tokens.std()) or 1.0
    powers = np.column_stack([np.ones(len(sizes)), np.log(sizes) - np.average(np.log(sizes), weights=n)])
    shape = np.array([math.log(scale), 0.0])
    mean = search((summed(tokens, size_of) / n)[None], n, designs).fitted(designs)[0]
    for _ in range(1000):
        spread = np.maximum(np.exp(powers @ shape), 1e-3 * scale)
        x = (cells.cap - mean[cells.size_of]) / spread[cells.size_of]
        information, excess = _beyond(x)
        # Too short a step is safe, too long a one is not.
        weight = seen[:, 0] + cells.summed(np.maximum(information, 0.2), len(sizes))
        pull = seen[:, 1] - seen[:, 0] * mean + spread * cells.summed(excess, len(sizes))
        new = search((mean + pull / weight)[None], weight, designs).fitted(designs)[0]
        squares = seen[:, 2] - 2 * mean * seen[:, 1] + seen[:, 0] * mean**2
        surplus = squares / spread**2 + cells.summed(1 + x * excess, len(sizes)) - n
        step = np.linalg.solve((powers.T * n) @ powers, powers.T @ surplus) / 2
        moved = max(float(np.abs(new - mean).max()) / scale, float(np.abs(step).max()))
        mean, shape = new, shape + np.clip(step, -1, 1)
        if moved < 1e-9:
            break
    return mean, spread
