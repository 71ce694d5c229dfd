"""How tokens grow with size: a censored lognormal power law, on all attempts and on solved ones.

After Estermann & Wattenhofer (2025), who fit a straight line by least squares to the solved
attempts only; that line is here too, as published. Tokens are closer to lognormal, and a truncated
attempt says only that it needed more, so the main model is `lognormal`, with log tokens a parabola
in log size. Its curve is a geometric mean; solved attempts alone show what success took, not what
the model spends.

*Does effort fall after a peak?* A parabola through a rise and a plateau comes down at its end, so
its bend proves nothing (Simonsohn 2018). Here the peak is where two power laws that meet fit best,
one of the sizes measured. Then effort must rise over the sizes up to it and fall over the sizes
from it on, each fitted alone: wherever the peak is taken, effort that never falls passes that at
most in 5 % of cases, once the p-value is multiplied by the number of sizes that were tried.

*Does the curve fit?* A score test of one free mean per size, for attempts correlated within a
problem. It uses the expected information, because the observed one rejects a true curve in 10 to 41
% of cases, and is divided by the pooled design effect: how much more scores vary between problems
of one size than independent attempts would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate
from ponder.stats.bootstrap import Curve, draw_curve, drawing_sizes
from ponder.stats.columns import Columns, Floats, summed
from ponder.stats.critical import critical_size
from ponder.stats.distributions import f_tail, hazard, t_quantile, z_quantile
from ponder.stats.lognormal import Fit, Sums, by_coefficient, fit, powers, scores, sums

Verdict: TypeAlias = Literal[
    "rises", "falls", "falls after a peak", "no clear trend", "not enough data"
]
UPPER = 0.9  # the quantile of the upper curve
# above this fraction of truncated attempts, a size's numbers depend on the lognormal tail
EXTRAPOLATED = 0.2
BUDGETS = (1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2)  # of the largest


@dataclass(frozen=True, slots=True)
class Peak:
    """The size from which effort falls."""

    size: Estimate  # one of the sizes measured; its interval reaches to their neighbours
    before: Estimate  # exponent over the sizes up to the peak
    after: Estimate  # and from the peak on
    p_value: float  # of "effort never falls", or never rises; accounts for the search


@dataclass(frozen=True, slots=True)
class SizeFit:
    """The fit at one of the sizes measured."""

    size: float
    tokens: Estimate  # geometric mean
    upper: Estimate  # 90 % quantile
    spread: Estimate  # standard deviation of log tokens
    truncated: float  # fraction of the attempts

    @property
    def extrapolated(self) -> bool:
        return self.truncated > EXTRAPOLATED


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Tokens as a power of the size, bent or not."""

    exponent: Estimate  # of the straight power law that fits best, even if the tokens bend
    bend: Estimate | None  # coefficient of the squared log size; None: fewer than four sizes
    bend_p: float  # of a straight power law, by the bend
    # of the curve, by a free mean at each size; nan if there are too few sizes or problems
    lack_of_fit_p: float
    curve: Curve  # geometric mean
    upper: Curve  # 90 % quantile
    sizes: tuple[SizeFit, ...]
    left_out: int  # attempts without tokens, which have no logarithm


@dataclass(frozen=True, slots=True)
class Line:
    """A line fitted by least squares."""

    intercept: Estimate
    slope: Estimate  # tokens per unit of size
    curve: Curve


@dataclass(frozen=True, slots=True)
class Effort:
    """Tokens against size, for one model and one task."""

    # None: fewer than two sizes have an attempt that was not truncated, or a size is 0
    on_all: PowerLaw | None
    on_solved: PowerLaw | None
    line_on_solved: Line | None  # as published; None: fewer than two sizes
    peak: Peak | None  # None unless the verdict is that effort falls after it
    verdict: Verdict  # on all attempts


def effort(data: Columns, level: float = 0.95) -> Effort:
    """Fit tokens against size, for all attempts and for the solved ones."""
    solved = data.where(data.correct)
    on_all = power_law(data, level)
    verdict, peak = _verdict(data, on_all, level)
    return Effort(on_all, power_law(solved, level), line(solved, level), peak, verdict)


def _verdict(data: Columns, law: PowerLaw | None, level: float) -> tuple[Verdict, Peak | None]:
    if law is None or math.isinf(law.exponent.low):
        return "not enough data", None
    if law.bend and law.bend.value < 0:
        peak = find_peak(sums(data), level)
        if peak and peak.p_value < 1 - level:
            return "falls after a peak", peak
    if law.exponent.low > 0:
        return "rises", None
    if law.exponent.high < 0:
        return "falls", None
    return "no clear trend", None


def power_law(data: Columns, level: float = 0.95) -> PowerLaw | None:
    """Fit a power law, bent if at least four sizes have an attempt that was not truncated."""
    totals = sums(data)
    observed_sizes = len(totals.observed_sizes)
    if observed_sizes < 2 or totals.sizes[0] <= 0:
        return None
    x = totals.x(totals.sizes)
    straight = fit(totals, powers(x, 1))
    best = straight
    bend = None
    bend_p = math.nan
    if observed_sizes > 3:
        best = fit(totals, powers(x, 2))
        bend = _coefficient(totals, best, 2, level)
        bend_p = best.p_value(2)
    return PowerLaw(
        exponent=_coefficient(totals, straight, 1, level),
        bend=bend,
        bend_p=bend_p,
        lack_of_fit_p=lack_of_fit(totals, best),
        curve=_curve(totals, best, 0.5, level),
        upper=_curve(totals, best, UPPER, level),
        sizes=_sizes(totals, best, level),
        left_out=totals.left_out,
    )


def _coefficient(data: Sums, fitted: Fit, index: int, level: float) -> Estimate:
    value = float(fitted.coefficients[index])
    gradient = np.eye(len(fitted.coefficients))[index : index + 1]
    half = float(fitted.half(gradient, level)[0])
    return Estimate(value, value - half, value + half, int(data.attempts.sum()), data.problems)


def _quantile(
    data: Sums, fitted: Fit, sizes: Floats, quantile: float, level: float
) -> tuple[Floats, Floats, Floats]:
    """Return a quantile of tokens at each of these sizes, with the two ends of its interval.

    One half is the geometric mean.
    """
    x = data.x(sizes)
    z = NormalDist().inv_cdf(quantile)
    u = powers(x, fitted.design.shape[1] - 1)
    v = powers(x, 1)
    spread = np.exp(v @ fitted.coefficients[-2:])
    log_tokens = u @ fitted.coefficients[:-2] + z * spread
    half = fitted.half(np.column_stack([u, z * spread[:, None] * v]), level)
    return _exp(log_tokens), _exp(log_tokens - half), _exp(log_tokens + half)


def _exp(x: Floats) -> Floats:
    # Few problems and many truncated attempts leave the upper end open.
    with np.errstate(over="ignore"):
        return np.exp(x)


def _curve(data: Sums, fitted: Fit, quantile: float, level: float) -> Curve:
    sizes = drawing_sizes(data.sizes)
    return draw_curve(sizes, *_quantile(data, fitted, sizes, quantile, level))


def _sizes(data: Sums, fitted: Fit, level: float) -> tuple[SizeFit, ...]:
    """Return the fit at each of the sizes measured."""
    v = powers(data.x(data.sizes), 1)
    half = fitted.half(np.column_stack([np.zeros_like(fitted.design), v]), level)
    log_spread = np.log(fitted.spread)
    spread = (fitted.spread, _exp(log_spread - half), _exp(log_spread + half))
    tokens = _quantile(data, fitted, data.sizes, 0.5, level)
    upper = _quantile(data, fitted, data.sizes, UPPER, level)
    problems = np.bincount(data.size_of)
    truncated = 1 - data.by_size[:, 0] / data.attempts

    def at(index: int, ends: tuple[Floats, Floats, Floats]) -> Estimate:
        value, low, high = (float(end[index]) for end in ends)
        return Estimate(value, low, high, int(data.attempts[index]), int(problems[index]))

    rows = []
    for index, size in enumerate(data.sizes):
        rows.append(
            SizeFit(
                size=float(size),
                tokens=at(index, tokens),
                upper=at(index, upper),
                spread=at(index, spread),
                truncated=float(truncated[index]),
            )
        )
    return tuple(rows)


def line(data: Columns, level: float = 0.95) -> Line | None:
    """Fit a line by least squares, with the sandwich variance by problem.

    Truncated attempts count what they spent.
    """
    sizes = np.unique(data.size)
    if len(sizes) < 2:
        return None
    u = powers(data.size, 1)
    bread = np.linalg.inv(u.T @ u)
    best = bread @ (u.T @ data.tokens)
    by_problem = summed(u * (data.tokens - u @ best)[:, None], data.problem)
    freedom = data.problems - 2
    variance = bread @ (by_problem.T @ by_problem) @ bread * data.problems / max(1, freedom)

    # one row for the intercept, one for the slope, then one per drawn size
    x = drawing_sizes(sizes)
    gradient = np.vstack([np.eye(2), powers(x, 1)])
    t = math.inf
    if freedom > 0:
        t = t_quantile((1 + level) / 2, freedom)
    value = gradient @ best
    variances = np.einsum("rc,cd,rd->r", gradient, variance, gradient)
    half = t * np.sqrt(np.maximum(variances, 1e-300))
    low = value - half
    high = value + half

    def coefficient(row: int) -> Estimate:
        return Estimate(
            float(value[row]), float(low[row]), float(high[row]), len(data), data.problems
        )

    curve = draw_curve(x, value[2:], low[2:], high[2:])
    return Line(intercept=coefficient(0), slope=coefficient(1), curve=curve)


def by_budget(
    data: Columns, unlimited: Estimate, level: float = 0.95, *, whole: bool = True
) -> list[tuple[float, Estimate]]:
    """Return budgets of tokens, and the critical size if only answers within each count as right.

    No model is queried again: under a smaller budget, an attempt would have been the same until it
    was cut. The largest budget is the one that the attempts had (if none was truncated, the next
    power of two), with `unlimited` as its critical size. Budgets are `whole` numbers, unless they
    are of money or seconds.
    """
    if not len(data) or data.tokens.max() <= 0:
        return []
    caps = data.tokens[data.truncated]
    if len(caps):
        largest = float(caps.max())
        # beyond the smallest cap, a truncated attempt might have been right
        smallest_cap = float(caps.min())
    else:
        largest = 2.0 ** math.ceil(math.log2(data.tokens.max()))
        smallest_cap = largest
    rows = []
    for fraction in BUDGETS:
        budget = fraction * largest
        if whole:
            budget = float(math.floor(budget))
        if budget <= smallest_cap:
            within = data.correct & (data.tokens <= budget)
            critical = critical_size(replace(data, correct=within), level, replicates=400)
            rows.append((budget, critical.size))
    rows.append((largest, unlimited))
    return rows


def find_peak(data: Sums, level: float) -> Peak | None:
    """Find the size at which two power laws meet best, and test that effort falls after it.

    Return None if fewer than five sizes have an attempt that was not truncated.
    """
    sizes = data.observed_sizes
    tried = sizes[2:-2]
    if not len(tried):
        return None
    x = data.x(data.sizes)
    fits = [fit(data, _two_power_laws(x, float(data.x(size)))) for size in tried]
    likelihood = np.array([fitted.likelihood for fitted in fits])
    best = int(likelihood.argmax())
    peak = float(tried[best])
    # The interval holds every peak that the likelihood ratio doesn't reject, and its neighbours.
    drop = max(1.0, design_effect(data, fits[best])) * z_quantile((1 + level) / 2) ** 2 / 2
    likely = np.searchsorted(sizes, tried[likelihood >= likelihood[best] - drop])
    low = float(sizes[likely[0] - 1])
    high = float(sizes[likely[-1] + 1])

    before = data.between(sizes[0], peak)
    after = data.between(peak, data.sizes[-1])
    rise = fit(before, powers(before.x(before.sizes), 1))
    fall = fit(after, powers(after.x(after.sizes), 1))
    p_value = max(_one_sided(rise, 1), _one_sided(fall, -1))
    return Peak(
        size=Estimate(peak, low, high, int(data.attempts.sum()), data.problems),
        before=_coefficient(before, rise, 1, level),
        after=_coefficient(after, fall, 1, level),
        p_value=min(1.0, len(tried) * p_value),
    )


def _two_power_laws(x: Floats, peak: float) -> Floats:
    """Return the design of two lines in log size that meet at the peak."""
    before = np.minimum(x - peak, 0)
    after = np.maximum(x - peak, 0)
    return np.column_stack([np.ones_like(x), before, after])


def _one_sided(straight: Fit, sign: int) -> float:
    """Return the p-value of an exponent that does not have this sign."""
    p = straight.p_value(1) / 2
    if sign * straight.coefficients[1] > 0:
        return p
    return 1 - p


def lack_of_fit(data: Sums, fitted: Fit) -> float:
    """Return the p-value of a score test of one free mean per size.

    Return nan if there are not more sizes than coefficients, or not more problems than sizes.
    """
    u = fitted.design
    v = powers(data.x(data.sizes), 1)
    sizes, parameters = u.shape
    if sizes <= parameters or data.problems <= sizes:
        return math.nan
    free = sizes - parameters
    departures = np.linalg.svd(u)[0][:, parameters:]  # directions that the curve can't follow
    score = departures.T @ summed(scores(data, fitted)[:, 0], data.size_of)
    expected = _expected_information(data, fitted)
    information = by_coefficient(expected, np.column_stack([departures, u]), v)
    # the information on the departures that is left once the curve is fitted
    of_departures = information[:free, :free]
    shared = information[:free, free:]
    of_curve = information[free:, free:]
    remaining = of_departures - shared @ np.linalg.pinv(of_curve) @ shared.T
    statistic = float(score @ np.linalg.pinv(remaining) @ score)
    return f_tail(statistic / free / design_effect(data, fitted), free, data.problems - sizes)


def design_effect(data: Sums, fitted: Fit) -> float:
    """Return the variance of problems' scores, relative to that of independent attempts."""
    size_of = data.size_of
    attempts = data.attempts_of_problem
    per_attempt = _expected_information(data, fitted)[:, 0] / data.attempts
    expected = per_attempt[size_of] * attempts
    score = scores(data, fitted)[:, 0]
    mean_score = summed(score, size_of) / data.attempts
    centred = score - attempts * mean_score[size_of]
    # A size whose attempts were all truncated shows no noise.
    observed = data.by_size[size_of, 0] > 0
    freedom = int(observed.sum()) - len(data.observed_sizes)
    if freedom <= 0:
        return 1.0
    return float((centred[observed] ** 2 / expected[observed]).sum()) / freedom


def _expected_information(data: Sums, fitted: Fit) -> Floats:
    """Return the expected information, sizes × (mean-mean, mean-spread, spread-spread).

    The largest cap is taken as that of all attempts. With φ the normal density at z = (cap - mean)
    / σ, and h the hazard, an attempt is observed with probability 1 - φ/h.
    """
    z = np.full(len(data.sizes), 38.0)
    if len(data.censored.cap):
        z = np.clip((data.censored.cap.max() - fitted.mean) / fitted.spread, -38.0, 38.0)
    h = hazard(z)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    below = 1 - density / h
    mean_mean = below + density * (h - z)
    mean_spread = density * (z * (h - z) - 1)
    spread_spread = 2 * (below - z * density) + z * density * (1 + z * (h - z))
    per_attempt = np.column_stack(
        [mean_mean / fitted.spread**2, mean_spread / fitted.spread, spread_spread]
    )
    return per_attempt * data.attempts[:, None]
