"""Censored lognormal regression of tokens on size, fitted to sums per problem.

The log tokens y of an attempt at size s are normal with a mean and a spread that depend on s:

    mean = U·β,    log σ = v₀ + v₁·x,    x = log s minus its mean over attempts

where U has one row per size (powers of x, or two power laws that meet). A truncated attempt needed
more than it spent, so it is right-censored there: with c = log(cap) and z = (c - mean) / σ it adds
log P(Z > z) to the log likelihood, and its derivatives use the normal hazard h(z). The fit is
maximum likelihood by Newton's method, damped; intervals come from the sandwich variance with scores
summed by problem, and Student's t.

An attempt enters only through sums per problem (number, Σy, Σy², and how many were cut at which
cap), so that a million attempts fit in a fraction of a second. An attempt without tokens has no
logarithm and is left out.
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
SPREAD_COEFFICIENTS = 2  # the last of a fit's coefficients: v₀ and v₁


@dataclass(frozen=True, slots=True)
class Censored:
    """Truncated attempts, counted by group (a problem or a size) and cap."""

    group: Ints
    cap: Floats  # log tokens
    count: Floats

    def summed(self, values: Floats, groups: int) -> Floats:
        """Return the sum of a value per attempt in each group."""
        total = np.bincount(self.group, weights=self.count * values, minlength=groups)
        return total.astype(np.float64)


def _censored(group: Ints, cap: Floats, count: Floats) -> Censored:
    """Merge the rows that share a group and a cap."""
    caps, cap_index = np.unique(cap, return_inverse=True)
    number_of_caps = max(1, len(caps))
    pairs, pair_index = np.unique(group * number_of_caps + cap_index, return_inverse=True)
    total = np.bincount(pair_index, weights=count).astype(np.float64)
    return Censored(pairs // number_of_caps, caps[pairs % number_of_caps], total)


@dataclass(frozen=True)
class Sums:
    """The sums over attempts that the likelihood needs."""

    sizes: Floats
    size_of: Ints  # of each problem, as an index
    # problems × 3: attempts that were not truncated, the sum of their log tokens and of its square
    observed: Floats
    censored: Censored  # by problem
    left_out: int  # attempts without tokens

    @property
    def problems(self) -> int:
        return len(self.size_of)

    @cached_property
    def by_size(self) -> Floats:
        """Sizes × 3: the columns of `observed`."""
        return summed(self.observed, self.size_of)

    @cached_property
    def censored_by_size(self) -> Censored:
        size_of_row = self.size_of[self.censored.group]
        return _censored(size_of_row, self.censored.cap, self.censored.count)

    @cached_property
    def attempts(self) -> Floats:
        """The number of attempts at each size."""
        censored = self.censored_by_size
        return self.by_size[:, 0] + censored.summed(np.ones(len(censored.cap)), len(self.sizes))

    @cached_property
    def attempts_of_problem(self) -> Floats:
        censored = self.censored
        return self.observed[:, 0] + censored.summed(np.ones(len(censored.cap)), self.problems)

    @cached_property
    def centre(self) -> float:
        return float(np.average(np.log(self.sizes), weights=self.attempts))

    def x(self, sizes: Floats) -> Floats:
        """Return the centred log sizes."""
        return np.log(sizes) - self.centre

    @property
    def observed_sizes(self) -> Floats:
        """The sizes with at least one attempt that was not truncated."""
        return self.sizes[self.by_size[:, 0] > 0]

    def between(self, first: float, last: float) -> Sums:
        """Return the sums of the problems of these sizes only."""
        size_kept = (self.sizes >= first) & (self.sizes <= last)
        problem_kept = size_kept[self.size_of]
        row_kept = problem_kept[self.censored.group]
        new_size = np.cumsum(size_kept) - 1
        new_problem = np.cumsum(problem_kept) - 1
        return Sums(
            sizes=self.sizes[size_kept],
            size_of=new_size[self.size_of[problem_kept]],
            observed=self.observed[problem_kept],
            censored=Censored(
                group=new_problem[self.censored.group[row_kept]],
                cap=self.censored.cap[row_kept],
                count=self.censored.count[row_kept],
            ),
            left_out=0,
        )


def sums(data: Columns) -> Sums:
    """Sum log tokens by problem; attempts without tokens are left out."""
    attempts = data.where(data.tokens > 0)
    sizes, size_index = np.unique(attempts.size, return_inverse=True)
    y = np.log(attempts.tokens)
    truncated = attempts.truncated
    observed = ~truncated
    count = summed(observed, attempts.problem)
    total = summed(observed * y, attempts.problem)
    squares = summed(observed * (y**2 + ROUNDING**2), attempts.problem)
    first_attempt = np.unique(attempts.problem, return_index=True)[1]
    return Sums(
        sizes=sizes,
        size_of=size_index[first_attempt].astype(np.int64),
        observed=np.column_stack([count, total, squares]),
        censored=_censored(
            attempts.problem[truncated], y[truncated], np.ones(int(truncated.sum()))
        ),
        left_out=len(data) - len(attempts),
    )


def powers(x: Floats, degree: int) -> Floats:
    """Return 1, x, x², … as columns."""
    return np.vander(x, degree + 1, increasing=True)


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted curve of log tokens; its variance is infinite if it is unknown."""

    coefficients: Floats  # of the mean, then the two of the log spread
    variance: Floats  # coefficients × coefficients
    likelihood: float  # its log
    design: Floats  # sizes × coefficients of the mean: U
    spread: Floats  # of log tokens, at each size
    freedom: int  # degrees of freedom: problems minus coefficients

    @property
    def mean(self) -> Floats:
        """The mean of log tokens at each size."""
        return np.asarray(self.design @ self.coefficients[:-SPREAD_COEFFICIENTS])

    def half(self, gradient: Floats, level: float) -> Floats:
        """Return half the width of the intervals of linear combinations of coefficients.

        `gradient` is combinations × coefficients.
        """
        if self.freedom < 1:
            return np.full(len(gradient), math.inf)
        variance = np.einsum("rc,cd,rd->r", gradient, self.variance, gradient)
        # Rounding may leave a tiny negative number where all tokens are equal.
        error = np.sqrt(np.maximum(variance, 0.0))
        return np.asarray(t_quantile((1 + level) / 2, self.freedom) * error)

    def p_value(self, index: int) -> float:
        """Return the two-sided p-value of a coefficient of 0."""
        if self.freedom < 1:
            return 1.0
        variance = max(self.variance[index, index], 1e-300)
        return f_tail(self.coefficients[index] ** 2 / variance, 1, self.freedom)


@dataclass(frozen=True, slots=True)
class _Derivatives:
    """The log likelihood, and its derivatives by mean and log spread in each group."""

    likelihood: float
    first: Floats  # groups × (mean, spread)
    second: Floats  # groups × (mean-mean, mean-spread, spread-spread), negated


def _derivatives(
    observed: Floats, censored: Censored, mean: Floats, log_spread: Floats
) -> _Derivatives:
    """Differentiate the log likelihood of groups, which are problems or sizes.

    `observed` is groups × (number, Σy, Σy²); mean and spread have one entry per group.
    """
    groups = len(mean)
    spread = np.exp(log_spread)
    n, y, yy = observed.T
    # Σ(y - mean)/σ and Σ((y - mean)/σ)² over the observed attempts
    residual = (y - n * mean) / spread
    squares = (yy - 2 * mean * y + n * mean**2) / spread**2
    # z of the censored ones; below -30 the upper tail is 1 to rounding
    z = np.maximum((censored.cap - mean[censored.group]) / spread[censored.group], -30.0)
    h = hazard(z)
    h_slope = np.clip(h * (h - z), 0.0, 1.0)  # the derivative of the hazard
    log_tail = -(z**2) / 2 - math.log(2 * math.pi) / 2 - np.log(h)

    likelihood = float((-n * log_spread - squares / 2).sum() + censored.count @ log_tail)
    by_mean = (residual + censored.summed(h, groups)) / spread
    by_spread = squares - n + censored.summed(z * h, groups)
    mean_mean = (n + censored.summed(h_slope, groups)) / spread**2
    mean_spread = (2 * residual + censored.summed(h + z * h_slope, groups)) / spread
    spread_spread = 2 * squares + censored.summed(z * (h + z * h_slope), groups)
    return _Derivatives(
        likelihood,
        first=np.column_stack([by_mean, by_spread]),
        second=np.column_stack([mean_mean, mean_spread, spread_spread]),
    )


def by_coefficient(second: Floats, u: Floats, v: Floats) -> Floats:
    """Return second derivatives by the coefficients, from those by mean and spread at each size.

    `second` is sizes × (mean-mean, mean-spread, spread-spread); u and v are the design of the mean
    and of the log spread, sizes × coefficients.
    """
    mean_mean, mean_spread, spread_spread = second.T
    of_mean = [(u.T * mean_mean) @ u, (u.T * mean_spread) @ v]
    of_spread = [(v.T * mean_spread) @ u, (v.T * spread_spread) @ v]
    return np.block([of_mean, of_spread])


def fit(data: Sums, design: Floats) -> Fit:
    """Fit by maximum likelihood; `design` is sizes × coefficients of the mean.

    At least as many sizes as `design` has columns need an attempt that was not truncated.
    """
    u = design
    v = powers(data.x(data.sizes), 1)
    best = _least_squares(data, u)
    here = _derivatives_at(data, u, v, best)
    for _ in range(200):
        gradient = np.concatenate([u.T @ here.first[:, 0], v.T @ here.first[:, 1]])
        step = _newton_step(by_coefficient(here.second, u, v), gradient)
        if gradient @ step < 1e-10:
            break
        for halvings in range(40):
            there = _derivatives_at(data, u, v, best + step / 2**halvings)
            if there.likelihood >= here.likelihood:
                break
        else:
            break
        best = best + step / 2**halvings
        here = there
    fitted = Fit(
        coefficients=best,
        variance=np.zeros(0),
        likelihood=here.likelihood,
        design=u,
        spread=np.exp(v @ best[-SPREAD_COEFFICIENTS:]),
        freedom=data.problems - len(best),
    )
    return replace(fitted, variance=_sandwich(data, fitted))


def _least_squares(data: Sums, u: Floats) -> Floats:
    """Return starting coefficients, as if truncated attempts needed what they spent."""
    censored = data.censored_by_size
    n = data.attempts
    y = data.by_size[:, 1] + censored.summed(censored.cap, len(n))
    yy = data.by_size[:, 2] + censored.summed(censored.cap**2, len(n))
    root_n = np.sqrt(n)
    mean = np.linalg.lstsq(u * root_n[:, None], y / root_n, rcond=None)[0]
    fitted = u @ mean
    residual_squares = yy - 2 * fitted * y + n * fitted**2
    variance = float(residual_squares.sum() / n.sum())
    spread = math.sqrt(max(variance, ROUNDING**2))
    return np.concatenate([mean, [math.log(spread), 0.0]])


def _derivatives_at(data: Sums, u: Floats, v: Floats, coefficients: Floats) -> _Derivatives:
    """Return the derivatives at each size."""
    mean = u @ coefficients[:-SPREAD_COEFFICIENTS]
    # A first step may be long; it is then halved.
    log_spread = np.clip(v @ coefficients[-SPREAD_COEFFICIENTS:], -20.0, 20.0)
    return _derivatives(data.by_size, data.censored_by_size, mean, log_spread)


def _newton_step(curvature: Floats, gradient: Floats) -> Floats:
    """Return Newton's step; where the likelihood is convex, with the curvature's sign flipped."""
    scale = 1 / np.sqrt(np.maximum(np.abs(np.diag(curvature)), 1e-300))
    values, vectors = np.linalg.eigh(curvature * np.outer(scale, scale))
    projected = vectors.T @ (scale * gradient)
    return np.asarray(scale * (vectors @ (projected / np.maximum(np.abs(values), 1e-6))))


def scores(data: Sums, fitted: Fit) -> Floats:
    """Return the first derivatives of each problem's log likelihood, problems × (mean, spread)."""
    mean = fitted.mean[data.size_of]
    log_spread = np.log(fitted.spread)[data.size_of]
    return _derivatives(data.observed, data.censored, mean, log_spread).first


def influences(data: Sums, fitted: Fit) -> Floats:
    """Return what each problem adds to the error of each coefficient, problems × coefficients.

    Attempts are correlated within a problem, so their scores are summed by problem.
    """
    u = fitted.design
    v = powers(data.x(data.sizes), 1)
    curvature = by_coefficient(_derivatives_at(data, u, v, fitted.coefficients).second, u, v)
    score = scores(data, fitted)
    by_mean = u[data.size_of] * score[:, :1]
    by_spread = v[data.size_of] * score[:, 1:]
    by_problem = np.column_stack([by_mean, by_spread])
    return np.asarray(by_problem @ np.linalg.pinv(curvature), dtype=np.float64)


def _sandwich(data: Sums, fitted: Fit) -> Floats:
    """Return the variance of the coefficients, from scores summed by problem."""
    if fitted.freedom < 1:
        return np.full((len(fitted.coefficients),) * 2, math.inf)
    influence = influences(data, fitted)
    return np.asarray(influence.T @ influence * data.problems / fitted.freedom)
