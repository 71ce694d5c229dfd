"""Accuracy and tokens at each size, with intervals for attempts that are correlated within a
problem.

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


def accuracy(correct: Bools, problem: Ints, level: float = 0.95) -> Estimate:
    """The mean of the problems' fractions correct; `problem` is the number of each attempt's
    problem.
    """
    n, own = len(correct), problem_means(correct, problem)
    problems = len(own)
    value = float(own.mean()) if n else math.nan
    if problems < 2:  # one says nothing about other problems
        return Estimate(value, 0.0, 1.0, n, problems)
    low, high = wilson(value, _effective(correct, problem, level), level)
    return Estimate(value, low, high, n, problems)


def rate(events: Floats, right: Floats, level: float = 0.95) -> Estimate:
    """The fraction right of all events, such as turns at risk, where a problem with more events
    weighs more.

    Both are counts, one per problem; a problem without events doesn't count.
    """
    asked = events > 0
    events, right = events[asked], right[asked]
    n, problems = int(events.sum()), len(events)
    value = float(right.sum()) / n if n else math.nan
    if problems < 2:
        return Estimate(value, 0.0, 1.0, n, problems)
    # The ratio's variance, linearised.
    variance = float(((right - value * events) ** 2).sum()) / n**2 * problems / (problems - 1)
    size = effective_sample(value, variance, n, problems, _rarer(events, right, value), level)
    return Estimate(value, *wilson(value, size, level), n, problems)


def by_size(data: Columns, level: float = 0.95) -> list[SizeRow]:
    rows = []
    for size in np.unique(np.concatenate([data.size, data.failed_size])):
        part = data.where(data.size == size)
        unparsed, truncated = int(part.unparsed.sum()), int(part.truncated.sum())
        rows.append(
            SizeRow(
                size=float(size),
                accuracy=accuracy(part.correct, part.problem, level),
                tokens=mean(part.tokens, part.problem, level),
                geometric=geometric_mean(part.tokens, part.problem, level),
                median=median_tokens(part, level),
                graded=len(part) - unparsed - truncated,
                unparsed=unparsed,
                truncated=truncated,
                failed=int((data.failed_size == size).sum()),
            )
        )
    return rows


def _counts(values: Floats | Bools, problem: Ints) -> tuple[Floats, Floats]:
    """The attempts at each problem, and the sum of their values."""
    attempts = np.bincount(problem)
    asked = attempts > 0
    return attempts[asked].astype(np.float64), summed(values, problem)[asked]


def problem_means(values: Floats | Bools, problem: Ints) -> Floats:
    attempts, total = _counts(values, problem)
    return np.asarray(total / attempts)


def _rarer(attempts: Floats, right: Floats, value: float) -> int:
    """The number of problems with the rarer outcome; at one half, of those with a wrong answer,
    despite rounding.
    """
    return int(np.count_nonzero(right > 0 if value < 0.5 - 1e-12 else right < attempts))


def _effective(correct: Bools, problem: Ints, level: float) -> float:
    attempts, right = _counts(correct, problem)
    own = right / attempts
    value, problems = float(own.mean()), len(own)
    # What the mean of the problems' means would be worth if all attempts were independent.
    most = problems**2 / float((1 / attempts).sum())
    variance = float(own.var(ddof=1)) / problems
    return effective_sample(value, variance, most, problems, _rarer(attempts, right, value), level)


def effective_sample(
    fraction: float, variance: float, attempts: float, problems: int, rarer: int, level: float
) -> float:
    """How many independent attempts carry as much information as these, at two problems or more.

    Only problems with the rarer outcome (`rarer` of them) show how strongly attempts are
    correlated: few show little, and at 0 % or 100 % there are none. Without that limit, one error
    in 80 attempts would give a narrower interval than none.
    """
    most = problems + (attempts - problems) * rarer / (rarer + 5)
    if variance == 0.0:
        return most
    upper = (1 + level) / 2
    few_problems = z_quantile(upper) / t_quantile(upper, problems - 1)
    return min(most, fraction * (1 - fraction) / variance * few_problems**2)


def wilson(fraction: float, n: float, level: float) -> tuple[float, float]:
    """Wilson's score interval of a fraction of n independent attempts."""
    z2 = z_quantile((1 + level) / 2) ** 2
    middle = (fraction + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (fraction * (1 - fraction) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return min(fraction, max(0.0, middle - half)), max(fraction, min(1.0, middle + half))


def mean(values: Floats, problem: Ints, level: float = 0.95, *, least: float = 0.0) -> Estimate:
    """The mean of a quantity that is never below `least`, such as tokens, with Hall's (1992)
    interval.

    Hall's cubic removes the skewness of the t statistic. Of lognormal tokens with a spread of 1 in
    the logarithm, 10, 30 and 100 problems, it covers .91, .92 and .94; Student's t covers .84, .87
    and .93.
    """
    own = problem_means(values, problem)
    n, problems, value = len(values), len(own), float(own.mean()) if len(own) else math.nan
    if problems < 2:
        return Estimate(value, least, math.inf, n, problems)
    spread, upper = float(own.std()), t_quantile((1 + level) / 2, problems - 1)
    skewness = float(((own - value) ** 3).mean()) / spread**3 if spread > 1e-9 * abs(value) else 0.0
    error = spread / math.sqrt(problems - 1)
    low, high = (
        value - error * _unskewed(t, skewness / math.sqrt(problems)) for t in (upper, -upper)
    )
    return Estimate(value, max(least, min(low, value)), max(high, value), n, problems)


def _unskewed(t: float, skewness: float) -> float:
    """Hall's transformation of the t statistic of a mean, inverted; `skewness` is that of the mean."""
    a = skewness / 3
    return float(np.cbrt(1 + 3 * a * (t - a / 2)) - 1) / a if abs(a) > 1e-6 else t


def geometric_mean(tokens: Floats, problem: Ints, level: float = 0.95) -> Estimate:
    """The exponential of the mean logarithm, with a t interval; an attempt without tokens counts as
    one token.
    """
    own = problem_means(np.log(np.maximum(tokens, 1.0)), problem)
    n, problems = len(tokens), len(own)
    if problems < 2:
        return Estimate(math.exp(own[0]) if problems else math.nan, 0.0, math.inf, n, problems)
    half = t_quantile((1 + level) / 2, problems - 1) * float(own.std(ddof=1)) / math.sqrt(problems)
    value = float(own.mean())
    return Estimate(math.exp(value), math.exp(value - half), _exp(value + half), n, problems)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf  # two problems that differ a lot


def median_tokens(data: Columns, level: float = 0.95) -> Estimate:
    """The median with Woodruff's interval: the quantiles at the ends of the interval of the
    fraction below it.

    Quantiles of attempts, weighted so that problems weigh the same.
    """
    n, problems = len(data), data.problems
    if n == 0:
        return Estimate(math.nan, 0.0, math.inf, 0, 0)
    needed = np.where(data.truncated, math.inf, data.tokens)
    order = np.argsort(needed, kind="stable")
    tokens, up_to = (
        needed[order],
        np.cumsum(1 / (problems * np.bincount(data.problem)[data.problem[order]])),
    )

    def quantile(fraction: float, *, above: bool = False) -> float:
        """The first attempt by which this fraction is reached, or exceeded."""
        index = np.searchsorted(up_to, fraction + 1e-9 if above else fraction - 1e-9)
        return float(tokens[min(int(index), n - 1)])

    lower, upper = quantile(0.5), quantile(0.5, above=True)
    middle = (lower + upper) / 2 if upper < math.inf else math.nan
    if problems < 2:
        return Estimate(middle, 0.0, math.inf, n, problems)
    low, high = wilson(0.5, _effective(needed <= lower, data.problem, level), level)
    # With more than half of the attempts truncated, even the low end may be unknown: they spent at
    # least this much.
    least = float(min(quantile(low), data.tokens.max()))
    return Estimate(middle, least, quantile(high, above=True), n, problems)
