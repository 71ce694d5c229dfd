"""How tokens grow with size: a censored lognormal power law with a bend, on all attempts and on the
solved ones.

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
# above this fraction of truncated attempts, a size's numbers rest on the lognormal tail
EXTRAPOLATED = 0.2
BUDGETS = (1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2)  # of the largest


@dataclass(frozen=True, slots=True)
class Peak:
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
    exponent: Estimate  # of the power law that fits best, bent or not
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
    """Least squares."""

    intercept: Estimate
    slope: Estimate  # tokens per unit of size
    curve: Curve


@dataclass(frozen=True, slots=True)
class Effort:
    # None: fewer than two sizes have an attempt that was not truncated, or a size is 0
    on_all: PowerLaw | None
    on_solved: PowerLaw | None
    line_on_solved: Line | None  # as published; None: fewer than two sizes
    peak: Peak | None  # None unless the verdict is that effort falls after it
    verdict: Verdict  # on all attempts


def effort(data: Columns, level: float = 0.95) -> Effort:
    """Fits tokens against size, for all attempts and for the solved ones."""
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
    return "falls" if law.exponent.high < 0 else "no clear trend", None


def power_law(data: Columns, level: float = 0.95) -> PowerLaw | None:
    told = sums(data)
    seen = told.seen_sizes
    if len(seen) < 2 or told.sizes[0] <= 0:
        return None
    x = told.x(told.sizes)
    straight = fit(told, powers(x, 1))
    bent = fit(told, powers(x, 2)) if len(seen) > 3 else None
    curve = bent or straight
    return PowerLaw(
        exponent=exponent(told, straight, level),
        bend=_bend(told, bent, level) if bent else None,
        bend_p=bent.p_value(2) if bent else math.nan,
        lack_of_fit_p=lack_of_fit(told, curve),
        curve=_curve(told, curve, 0.5, level),
        upper=_curve(told, curve, UPPER, level),
        sizes=_sizes(told, curve, level),
        left_out=told.left_out,
    )


def _bend(told: Sums, bent: Fit, level: float) -> Estimate:
    value, half = float(bent.coefficients[2]), float(bent.half(np.eye(5)[2:3], level)[0])
    return Estimate(value, value - half, value + half, int(told.attempts.sum()), told.problems)


def _quantile(
    told: Sums, fitted: Fit, sizes: Floats, quantile: float, level: float
) -> tuple[Floats, Floats, Floats]:
    """A quantile of tokens at each of these sizes, with its interval; one half is the geometric
    mean.
    """
    x, z = told.x(sizes), NormalDist().inv_cdf(quantile)
    u, v = powers(x, fitted.design.shape[1] - 1), powers(x, 1)
    spread = np.exp(v @ fitted.coefficients[-2:])
    middle = u @ fitted.coefficients[:-2] + z * spread
    half = fitted.half(np.column_stack([u, z * spread[:, None] * v]), level)
    return _exp(middle), _exp(middle - half), _exp(middle + half)


def _exp(x: Floats) -> Floats:
    # few problems and many truncated attempts leave the upper end open
    with np.errstate(over="ignore"):
        return np.exp(x)


def _curve(told: Sums, fitted: Fit, quantile: float, level: float) -> Curve:
    x = drawing_sizes(told.sizes)
    return draw_curve(x, *_quantile(told, fitted, x, quantile, level))


def _sizes(told: Sums, fitted: Fit, level: float) -> tuple[SizeFit, ...]:
    v = powers(told.x(told.sizes), 1)
    half = fitted.half(np.column_stack([np.zeros_like(fitted.design), v]), level)
    log_spread = np.log(fitted.spread)
    spread = fitted.spread, _exp(log_spread - half), _exp(log_spread + half)
    middle, upper = (
        _quantile(told, fitted, told.sizes, quantile, level) for quantile in (0.5, UPPER)
    )
    problems = np.bincount(told.size_of)

    def at(k: int, ends: tuple[Floats, Floats, Floats]) -> Estimate:
        value, low, high = (float(end[k]) for end in ends)
        return Estimate(value, low, high, int(told.attempts[k]), int(problems[k]))

    cut = 1 - told.by_size[:, 0] / told.attempts
    return tuple(
        SizeFit(float(size), at(k, middle), at(k, upper), at(k, spread), float(cut[k]))
        for k, size in enumerate(told.sizes)
    )


def line(data: Columns, level: float = 0.95) -> Line | None:
    """Ordinary least squares with the sandwich variance by problem; truncated attempts count what
    they spent.
    """
    sizes = np.unique(data.size)
    if len(sizes) < 2:
        return None
    u = powers(data.size, 1)
    bread = np.linalg.inv(u.T @ u)
    best = bread @ (u.T @ data.tokens)
    scores = summed(u * (data.tokens - u @ best)[:, None], data.problem)
    spare, x = data.problems - 2, drawing_sizes(sizes)
    variance = bread @ (scores.T @ scores) @ bread * data.problems / max(1, spare)
    at = np.vstack([np.eye(2), powers(x, 1)])
    t = t_quantile((1 + level) / 2, spare) if spare > 0 else math.inf
    half = t * np.sqrt(np.maximum(np.einsum("rc,cd,rd->r", at, variance, at), 1e-300))
    value = at @ best
    intercept, slope = (
        Estimate(
            float(value[i]),
            float(value[i] - half[i]),
            float(value[i] + half[i]),
            len(data),
            data.problems,
        )
        for i in (0, 1)
    )
    return Line(intercept, slope, draw_curve(x, value[2:], (value - half)[2:], (value + half)[2:]))


def by_budget(
    data: Columns, unlimited: Estimate, level: float = 0.95
) -> list[tuple[float, Estimate]]:
    """Budgets, and the critical size under each: an attempt counts as right if it was right within
    the budget.

    No model is asked again: under a smaller budget, an attempt would have been the same until it
    was cut. The largest budget is the one that the attempts had (if none was truncated, the next
    power of two), with `unlimited` as its critical size.
    """
    if not len(data) or data.tokens.max() <= 0:
        return []
    caps = data.tokens[data.truncated]
    most = float(caps.max()) if len(caps) else 2.0 ** math.ceil(math.log2(data.tokens.max()))
    # beyond it, a truncated attempt might have been right
    least = float(caps.min()) if len(caps) else most
    smaller = [budget for part in BUDGETS if (budget := float(math.floor(part * most))) <= least]
    rights = [data.correct & (data.tokens <= budget) for budget in smaller]
    sizes = [
        critical_size(replace(data, correct=right), level, replicates=400).size for right in rights
    ]
    return [*zip(smaller, sizes, strict=True), (most, unlimited)]


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


def lack_of_fit(data: Sums, fitted: Fit) -> float:
    """The p-value; nan if there are not more sizes than coefficients, or not more problems than
    sizes.
    """
    u, v = fitted.design, powers(data.x(data.sizes), 1)
    sizes, parameters = u.shape
    if sizes <= parameters or data.problems <= sizes:
        return math.nan
    information = _expected(data, fitted)
    others = np.linalg.svd(u)[0][:, parameters:]  # what the curve can't follow
    score = others.T @ summed(scores(data, fitted)[:, 0], data.size_of)
    beside = by_coefficient(information, np.column_stack([others, u]), v)
    free = sizes - parameters
    own, shared, known = beside[:free, :free], beside[:free, free:], beside[free:, free:]
    left = own - shared @ np.linalg.pinv(known) @ shared.T
    statistic = float(score @ np.linalg.pinv(left) @ score)
    return f_tail(statistic / free / design_effect(data, fitted), free, data.problems - sizes)


def design_effect(data: Sums, fitted: Fit) -> float:
    """How many times the variance of independent attempts the scores of problems have, within
    sizes.
    """
    size_of, n = data.size_of, data.attempts_of_problem
    expected = (_expected(data, fitted)[:, 0] / data.attempts)[size_of] * n
    score = scores(data, fitted)[:, 0]
    apart = score - n * (summed(score, size_of) / data.attempts)[size_of]
    told = data.by_size[size_of, 0] > 0  # a size whose attempts were all truncated shows no noise
    spare = int(told.sum()) - len(data.seen_sizes)
    return float((apart[told] ** 2 / expected[told]).sum()) / spare if spare > 0 else 1.0


def _expected(data: Sums, fitted: Fit) -> Floats:
    """The expected information on mean and spread at each size, as in `second`, with the largest
    cap as that of all.
    """
    z = np.full(len(data.sizes), 38.0)
    if len(data.cut.cap):
        z = np.clip((data.cut.cap.max() - fitted.mean) / fitted.spread, -38.0, 38.0)
    h = hazard(z)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    below = 1 - density / h
    mm = below + density * (h - z)
    ms = density * (z * (h - z) - 1)
    ss = 2 * (below - z * density) + z * density * (1 + z * (h - z))
    return np.column_stack([mm / fitted.spread**2, ms / fitted.spread, ss]) * data.attempts[:, None]
