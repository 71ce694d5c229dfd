"""Censored lognormal regression: log tokens are normal around a curve in log size, with a spread
that varies with size.

log t = X·β and log σ = s0 + s1·x, x = log size minus its mean. A truncated attempt needed more than
it spent, so it is right-censored there. Maximum likelihood by Newton's method, damped; intervals
from the sandwich variance with scores summed by problem, and Student's t. An attempt enters only
through sums per problem (number, Σy, Σy², and how many were cut at which cap), so that a million
attempts fit in a fraction of a second. An attempt without tokens has no logarithm and is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ponder.stats.columns import Columns, Floats, Ints, summed
from ponder.stats.distributions import f_tail, hazard, t_quantile

# Tokens are whole numbers, and made-up ones can fit exactly: this keeps the likelihood finite, and
# moves a spread of 0.1 by 0.005 %.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class _Cut:
    """Truncated attempts that share a group and a cap."""

    group: Ints
    cap: Floats  # log tokens
    count: Floats

    def summed(self, values: Floats, groups: int) -> Floats:
        return np.bincount(self.group, weights=self.count * values, minlength=groups).astype(
            np.float64
        )


def _cut(group: Ints, cap: Floats, count: Floats) -> _Cut:
    caps, cap_of = np.unique(cap, return_inverse=True)
    pairs, pair_of = np.unique(group * max(1, len(caps)) + cap_of, return_inverse=True)
    total = np.bincount(pair_of, weights=count).astype(np.float64)
    return _Cut(pairs // max(1, len(caps)), caps[pairs % max(1, len(caps))], total)


@dataclass(frozen=True)
class Sums:
    """All that the likelihood needs of the attempts."""

    sizes: Floats
    size_of: Ints  # of each problem, as an index
    # problems × 3: attempts that were not truncated, the sum of their log tokens and of its square
    seen: Floats
    cut: _Cut  # by problem
    left_out: int  # attempts without tokens

    @property
    def problems(self) -> int:
        return len(self.size_of)

    @cached_property
    def by_size(self) -> Floats:
        return summed(self.seen, self.size_of)

    @cached_property
    def cut_by_size(self) -> _Cut:
        return _cut(self.size_of[self.cut.group], self.cut.cap, self.cut.count)

    @cached_property
    def attempts(self) -> Floats:
        """By size."""
        return self.by_size[:, 0] + self.cut_by_size.summed(
            np.ones(len(self.cut_by_size.cap)), len(self.sizes)
        )

    @cached_property
    def attempts_of_problem(self) -> Floats:
        return self.seen[:, 0] + self.cut.summed(np.ones(len(self.cut.cap)), self.problems)

    @cached_property
    def centre(self) -> float:
        return float(np.average(np.log(self.sizes), weights=self.attempts))

    def x(self, sizes: Floats) -> Floats:
        return np.log(sizes) - self.centre

    @property
    def seen_sizes(self) -> Floats:
        """The sizes at which some attempt was not truncated."""
        return self.sizes[self.by_size[:, 0] > 0]

    def between(self, first: float, last: float) -> Sums:
        """The problems of these sizes only."""
        sizes = (self.sizes >= first) & (self.sizes <= last)
        kept = sizes[self.size_of]
        number = np.cumsum(kept) - 1
        inside = kept[self.cut.group]
        cut = _Cut(number[self.cut.group[inside]], self.cut.cap[inside], self.cut.count[inside])
        size_of = (np.cumsum(sizes) - 1)[self.size_of[kept]]
        return Sums(self.sizes[sizes], size_of, self.seen[kept], cut, 0)


def sums(data: Columns) -> Sums:
    some = data.where(data.tokens > 0)
    sizes, size_of = np.unique(some.size, return_inverse=True)
    y, seen = np.log(some.tokens), ~some.truncated
    totals = np.column_stack(
        [summed(v, some.problem) for v in (seen, seen * y, seen * (y**2 + ROUNDING**2))]
    )
    first = np.unique(some.problem, return_index=True)[1]
    cut = _cut(some.problem[~seen], y[~seen], np.ones(int((~seen).sum())))
    return Sums(sizes, size_of[first].astype(np.int64), totals, cut, len(data) - len(some))


def powers(x: Floats, degree: int) -> Floats:
    return np.vander(x, degree + 1, increasing=True)


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients of the mean, then of the log spread, and their variance, which is infinite if it
    is unknown.
    """

    coefficients: Floats
    variance: Floats
    likelihood: float
    design: Floats  # sizes × coefficients of the mean
    spread: Floats  # of log tokens, at each size
    spare: int  # degrees of freedom: problems minus coefficients

    @property
    def mean(self) -> Floats:
        return np.asarray(self.design @ self.coefficients[:-2])

    def half(self, gradient: Floats, level: float) -> Floats:
        """Half the width of the intervals of linear combinations, one per row."""
        if self.spare < 1:
            return np.full(len(gradient), math.inf)
        # Rounding may leave a tiny negative number where all tokens are equal.
        error = np.sqrt(
            np.maximum(np.einsum("rc,cd,rd->r", gradient, self.variance, gradient), 0.0)
        )
        return np.asarray(t_quantile((1 + level) / 2, self.spare) * error)

    def p_value(self, which: int) -> float:
        """Of a coefficient that isn't 0, two-sided."""
        if self.spare < 1:
            return 1.0
        return f_tail(
            self.coefficients[which] ** 2 / max(self.variance[which, which], 1e-300), 1, self.spare
        )


@dataclass(frozen=True, slots=True)
class _Terms:
    """The log likelihood with its first and second derivatives by log mean and log spread, at each
    size.
    """

    likelihood: float
    first: Floats  # sizes × 2
    second: Floats  # sizes × (mean-mean, mean-spread, spread-spread), negated


def _terms(seen: Floats, cut: _Cut, mean: Floats, log_spread: Floats) -> _Terms:
    spread, groups = np.exp(log_spread), len(mean)
    n, y, yy = seen.T
    pull = (y - n * mean) / spread
    squares = (yy - 2 * mean * y + n * mean**2) / spread**2
    # below, the tail is 1 to rounding
    z = np.maximum((cut.cap - mean[cut.group]) / spread[cut.group], -30.0)
    h = hazard(z)
    w = np.clip(h * (h - z), 0.0, 1.0)
    tail = -(z**2) / 2 - math.log(2 * math.pi) / 2 - np.log(h)
    likelihood = float((-n * log_spread - squares / 2).sum() + cut.count @ tail)
    first = [(pull + cut.summed(h, groups)) / spread, squares - n + cut.summed(z * h, groups)]
    second = [
        (n + cut.summed(w, groups)) / spread**2,
        (2 * pull + cut.summed(h + z * w, groups)) / spread,
        2 * squares + cut.summed(z * (h + z * w), groups),
    ]
    return _Terms(likelihood, np.column_stack(first), np.column_stack(second))


def by_coefficient(second: Floats, u: Floats, v: Floats) -> Floats:
    """Second derivatives by the coefficients, from those by mean and spread at each size."""
    mm, ms, ss = second.T
    return np.block([[(u.T * mm) @ u, (u.T * ms) @ v], [(v.T * ms) @ u, (v.T * ss) @ v]])


def fit(data: Sums, design: Floats) -> Fit:
    """By maximum likelihood.

    At least as many sizes as `design` has columns need an attempt that was not truncated.
    """
    u, v = design, powers(data.x(data.sizes), 1)
    best = _start(data, u)
    terms = _at(data, u, v, best)
    for _ in range(200):
        gradient = np.concatenate([u.T @ terms.first[:, 0], v.T @ terms.first[:, 1]])
        step = _uphill(by_coefficient(terms.second, u, v), gradient)
        if gradient @ step < 1e-10:
            break
        for halved in range(40):
            moved = _at(data, u, v, best + step / 2**halved)
            if moved.likelihood >= terms.likelihood:
                break
        else:
            break
        best, terms = best + step / 2**halved, moved
    fitted = Fit(
        best, np.zeros(0), terms.likelihood, u, np.exp(v @ best[-2:]), data.problems - len(best)
    )
    return replace(fitted, variance=_sandwich(data, fitted))


def _start(data: Sums, u: Floats) -> Floats:
    """Least squares in which truncated attempts needed what they spent."""
    cut, n = data.cut_by_size, data.attempts
    total = data.by_size[:, 1] + cut.summed(cut.cap, len(n))
    squares = data.by_size[:, 2] + cut.summed(cut.cap**2, len(n))
    mean = np.linalg.lstsq(u * np.sqrt(n)[:, None], total / np.sqrt(n), rcond=None)[0]
    at = u @ mean
    spread = math.sqrt(
        max(float((squares - 2 * at * total + n * at**2).sum() / n.sum()), ROUNDING**2)
    )
    return np.concatenate([mean, [math.log(spread), 0.0]])


def _at(data: Sums, u: Floats, v: Floats, coefficients: Floats) -> _Terms:
    # a first step may be long; it is then halved
    log_spread = np.clip(v @ coefficients[-2:], -20.0, 20.0)
    return _terms(data.by_size, data.cut_by_size, u @ coefficients[:-2], log_spread)


def _uphill(curvature: Floats, gradient: Floats) -> Floats:
    """Newton's step; where the likelihood is not concave, as if it curved as much the other way."""
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(curvature)), 1e-300))
    values, vectors = np.linalg.eigh(curvature * np.outer(scale, scale))
    return np.asarray(
        scale * (vectors @ ((vectors.T @ (scale * gradient)) / np.maximum(np.abs(values), 1e-6)))
    )


def scores(data: Sums, fitted: Fit) -> Floats:
    """Problems × (mean, spread): derivatives of the log likelihood by the mean and the log spread
    at its size.
    """
    return _terms(
        data.seen, data.cut, fitted.mean[data.size_of], np.log(fitted.spread)[data.size_of]
    ).first


def influences(data: Sums, fitted: Fit) -> Floats:
    """Problems × coefficients: what each problem adds to the error of each coefficient.

    Attempts are correlated within a problem, so their scores are summed by problem.
    """
    u, v, size_of = fitted.design, powers(data.x(data.sizes), 1), data.size_of
    curvature = by_coefficient(_at(data, u, v, fitted.coefficients).second, u, v)
    own = scores(data, fitted)
    by_problem = np.column_stack([u[size_of] * own[:, :1], v[size_of] * own[:, 1:]])
    return np.asarray(by_problem @ np.linalg.pinv(curvature), dtype=np.float64)


def _sandwich(data: Sums, fitted: Fit) -> Floats:
    if fitted.spare < 1:
        return np.full((len(fitted.coefficients),) * 2, math.inf)
    own = influences(data, fitted)
    return np.asarray(own.T @ own * data.problems / fitted.spare)
