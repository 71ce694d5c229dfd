"""Accuracy and tokens at each size, with intervals for attempts correlated within a problem.

Every problem counts once, however many attempts it has: an accuracy or a mean is the mean of the
problems' means, with the variance between them. Pooled attempts would favour the problems with the
most attempts.

Accuracy has a Wilson interval on the effective sample size of Korn & Graubard (1998), who use it
with Clopper-Pearson, whose intervals are wider than necessary. The effective size differs from
theirs near 0 % and 100 %, where too few problems show how strongly attempts are correlated: there
it approaches its minimum, the number of problems.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import Bools, Columns, Floats, Ints, summed
from ponder.stats.distributions import t_quantile, z_quantile


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Results of one model at one size.

    `graded`, `unparsed` and `truncated` add up to the attempts.
    """

    size: float
    accuracy: Estimate
    tokens: Estimate  # mean of the tokens spent; a truncated attempt counts what it spent
    geometric: Estimate  # geometric mean of the same
    median: Estimate  # median of the tokens needed; a truncated attempt needed more than it spent
    graded: int
    unparsed: int
    truncated: int
    failed: int  # excluded from every estimate


def by_size(data: Columns, level: float = 0.95) -> list[SizeRow]:
    """Return accuracy and tokens at each size, in ascending order."""
    rows = []
    for size in np.unique(np.concatenate([data.size, data.failed_size])):
        attempts = data.where(data.size == size)
        unparsed = int(attempts.unparsed.sum())
        truncated = int(attempts.truncated.sum())
        rows.append(
            SizeRow(
                size=float(size),
                accuracy=accuracy(attempts.correct, attempts.problem, level),
                tokens=mean(attempts.tokens, attempts.problem, level),
                geometric=geometric_mean(attempts.tokens, attempts.problem, level),
                median=median_tokens(attempts, level),
                graded=len(attempts) - unparsed - truncated,
                unparsed=unparsed,
                truncated=truncated,
                failed=int((data.failed_size == size).sum()),
            )
        )
    return rows


# --- Fractions ---


def accuracy(correct: Bools, problem: Ints, level: float = 0.95) -> Estimate:
    """Return the mean of the problems' fractions correct.

    Both arrays have one entry per attempt; `problem` is the number of its problem.
    """
    attempts = len(correct)
    means = problem_means(correct, problem)
    problems = len(means)
    if attempts == 0:
        return Estimate(math.nan, 0.0, 1.0, attempts, problems)
    value = float(means.mean())
    if problems < 2:  # one says nothing about other problems
        return Estimate(value, 0.0, 1.0, attempts, problems)
    low, high = wilson(value, effective_attempts(correct, problem, level), level)
    return Estimate(value, low, high, attempts, problems)


def rate(events: Floats, right: Floats, level: float = 0.95) -> Estimate:
    """Return the fraction right of all events, so that a problem with more events weighs more.

    Events are turns at risk, for example. Both arrays are counts, one per problem; a problem
    without events doesn't count.
    """
    with_events = events > 0
    events = events[with_events]
    right = right[with_events]
    n = int(events.sum())
    problems = len(events)
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, n, problems)
    value = float(right.sum()) / n
    if problems < 2:
        return Estimate(value, 0.0, 1.0, n, problems)
    # the ratio's variance, linearised
    variance = float(((right - value * events) ** 2).sum()) / n**2 * problems / (problems - 1)
    rarer = _problems_with_rarer(events, right, value)
    effective = effective_sample(value, variance, n, problems, rarer, level)
    low, high = wilson(value, effective, level)
    return Estimate(value, low, high, n, problems)


def problem_means(values: Floats | Bools, problem: Ints) -> Floats:
    """Return the mean value of each problem's attempts."""
    attempts, total = _counts(values, problem)
    return np.asarray(total / attempts)


def _counts(values: Floats | Bools, problem: Ints) -> tuple[Floats, Floats]:
    """Return the number of attempts at each problem, and the sum of their values."""
    attempts = np.bincount(problem)
    tried = attempts > 0
    return attempts[tried].astype(np.float64), summed(values, problem)[tried]


def _problems_with_rarer(attempts: Floats, right: Floats, value: float) -> int:
    """Return the number of problems with the rarer outcome; at one half, with a wrong answer.

    `attempts` and `right` are counts by problem, `value` is the accuracy.
    """
    if value < 0.5 - 1e-12:  # one half, despite rounding
        return int(np.count_nonzero(right > 0))
    return int(np.count_nonzero(right < attempts))


def effective_attempts(correct: Bools, problem: Ints, level: float) -> float:
    """Return the effective sample size of an accuracy."""
    attempts, right = _counts(correct, problem)
    means = right / attempts
    value = float(means.mean())
    problems = len(means)
    # What the mean of the problems' means would be worth if all attempts were independent.
    independent = problems**2 / float((1 / attempts).sum())
    variance = float(means.var(ddof=1)) / problems
    rarer = _problems_with_rarer(attempts, right, value)
    return effective_sample(value, variance, independent, problems, rarer, level)


def effective_sample(
    fraction: float, variance: float, attempts: float, problems: int, rarer: int, level: float
) -> float:
    """Return how many independent attempts carry as much information, at two problems or more.

    That is fraction·(1 - fraction) / variance, shrunk for few problems (Korn & Graubard 1998). Only
    problems with the rarer outcome (`rarer` of them) show how strongly attempts are correlated: few
    show little, and at 0 % or 100 % there are none. Without that limit, one error in 80 attempts
    would give a narrower interval than none.
    """
    limit = problems + (attempts - problems) * rarer / (rarer + 5)
    if variance == 0.0:
        return limit
    upper = (1 + level) / 2
    few_problems = z_quantile(upper) / t_quantile(upper, problems - 1)
    return min(limit, fraction * (1 - fraction) / variance * few_problems**2)


def wilson(fraction: float, n: float, level: float) -> tuple[float, float]:
    """Return Wilson's (1927) score interval of a fraction of n independent attempts."""
    z2 = z_quantile((1 + level) / 2) ** 2
    shrinkage = 1 + z2 / n
    middle = (fraction + z2 / (2 * n)) / shrinkage
    half = math.sqrt(z2 * (fraction * (1 - fraction) / n + z2 / (4 * n**2))) / shrinkage
    low = max(0.0, middle - half)
    high = min(1.0, middle + half)
    return min(fraction, low), max(fraction, high)


# --- Tokens ---


def mean(values: Floats, problem: Ints, level: float = 0.95, *, least: float = 0.0) -> Estimate:
    """Return the mean of a quantity that is never below `least`, with Hall's (1992) interval.

    Hall's cubic removes the skewness of the t statistic. Of lognormal tokens with a spread of 1 in
    the logarithm, 10, 30 and 100 problems, it covers .91, .92 and .94; Student's t covers .84, .87
    and .93.
    """
    attempts = len(values)
    means = problem_means(values, problem)
    problems = len(means)
    if problems == 0:
        return Estimate(math.nan, least, math.inf, attempts, problems)
    value = float(means.mean())
    if problems < 2:
        return Estimate(value, least, math.inf, attempts, problems)
    spread = float(means.std())
    skewness = 0.0
    if spread > 1e-9 * abs(value):
        skewness = float(((means - value) ** 3).mean()) / spread**3
    skewness_of_mean = skewness / math.sqrt(problems)
    error = spread / math.sqrt(problems - 1)
    t = t_quantile((1 + level) / 2, problems - 1)
    low = value - error * _unskewed(t, skewness_of_mean)
    high = value - error * _unskewed(-t, skewness_of_mean)
    return Estimate(value, max(least, min(low, value)), max(high, value), attempts, problems)


def _unskewed(t: float, skewness: float) -> float:
    """Invert Hall's transformation of the t statistic of a mean with this skewness.

    Hall's transformation is g(t) = t + a·t² + a²·t³/3 + a/2, with a = skewness / 3.
    """
    a = skewness / 3
    if abs(a) <= 1e-6:
        return t
    return float(np.cbrt(1 + 3 * a * (t - a / 2)) - 1) / a


def geometric_mean(tokens: Floats, problem: Ints, level: float = 0.95) -> Estimate:
    """Return the exponential of the mean log tokens, with a t interval.

    An attempt without tokens counts as one token.
    """
    attempts = len(tokens)
    means = problem_means(np.log(np.maximum(tokens, 1.0)), problem)
    problems = len(means)
    if problems == 0:
        return Estimate(math.nan, 0.0, math.inf, attempts, problems)
    if problems == 1:
        return Estimate(math.exp(means[0]), 0.0, math.inf, attempts, problems)
    t = t_quantile((1 + level) / 2, problems - 1)
    half = t * float(means.std(ddof=1)) / math.sqrt(problems)
    value = float(means.mean())
    low = math.exp(value - half)
    high = math.inf  # two problems may differ a lot
    if value + half < 700:
        high = math.exp(value + half)
    return Estimate(math.exp(value), low, high, attempts, problems)


def median_tokens(data: Columns, level: float = 0.95) -> Estimate:
    """Return the median of the tokens needed, with Woodruff's (1952) interval.

    Its ends are the quantiles at the ends of the interval of the fraction below the median.
    Attempts are weighted so that problems weigh the same.
    """
    attempts = len(data)
    problems = data.problems
    if attempts == 0:
        return Estimate(math.nan, 0.0, math.inf, 0, 0)
    needed = np.where(data.truncated, math.inf, data.tokens)
    order = np.argsort(needed, kind="stable")
    tokens = needed[order]
    attempts_at_same = np.bincount(data.problem)[data.problem[order]]
    cumulative = np.cumsum(1 / (problems * attempts_at_same))

    def reached(fraction: float) -> float:
        """Return the tokens of the first attempt by which this fraction is reached."""
        index = int(np.searchsorted(cumulative, fraction))
        return float(tokens[min(index, attempts - 1)])

    # The slack of 1e-9 decides ties between "reached" and "exceeded", despite rounding.
    lower = reached(0.5 - 1e-9)
    upper = reached(0.5 + 1e-9)
    median = math.nan
    if upper < math.inf:
        median = (lower + upper) / 2
    if problems < 2:
        return Estimate(median, 0.0, math.inf, attempts, problems)
    effective = effective_attempts(needed <= lower, data.problem, level)
    low, high = wilson(0.5, effective, level)
    # With more than half of the attempts truncated, even the low end may be unknown: they spent at
    # least this much.
    least = float(min(reached(low - 1e-9), data.tokens.max()))
    return Estimate(median, least, reached(high + 1e-9), attempts, problems)
