"""Accuracy and tokens at each size, with intervals for attempts that are correlated within a problem.

Accuracy has a Wilson interval on the effective sample size of Korn & Graubard (1998), who use it with Clopper-Pearson,
whose intervals are wider than necessary. The effective size differs from theirs near 0 % and 100 %, where too few
problems show how strongly attempts are correlated: there it approaches its minimum, the number of problems.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import Bools, Columns, Floats, Ints
from ponder.stats.distributions import t_quantile, z_quantile


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Results of one model at one size. `graded`, `unparsed` and `truncated` add up to the attempts."""

    size: float
    accuracy: Estimate
    tokens: Estimate  # mean of the tokens spent; a truncated attempt counts what it spent
    median: Estimate  # median of the tokens needed; a truncated attempt needed more than it spent
    graded: int
    unparsed: int
    truncated: int
    failed: int  # excluded from every estimate


def accuracy(correct: Bools, problem: Ints, level: float = 0.95) -> Estimate:
    """The fraction correct; `problem` is the number of each attempt's problem."""
    n, problems = len(correct), len(np.unique(problem))
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0, 0)
    right = int(correct.sum())
    if problems == 1:  # says nothing about other problems
        return Estimate(right / n, 0.0, 1.0, n, 1)
    low, high = wilson(right / n, _effective(correct, problem, level), level)
    return Estimate(right / n, low, high, n, problems)


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
                median=median_tokens(part, level),
                graded=len(part) - unparsed - truncated,
                unparsed=unparsed,
                truncated=truncated,
                failed=int((data.failed_size == size).sum()),
            )
        )
    return rows


def _variance_of_mean(values: Floats, problem: Ints) -> float:
    """The variance of the mean between at least two problems, linearised, so that attempts per problem may vary."""
    totals = np.bincount(problem, weights=values - values.mean())
    problems = len(np.unique(problem))
    return float(totals @ totals) / len(values) ** 2 * problems / (problems - 1)


def _effective(correct: Bools, problem: Ints, level: float) -> float:
    fraction = float(correct.mean())
    rarer = len(np.unique(problem[correct == (fraction < 0.5)]))
    variance = _variance_of_mean(correct.astype(np.float64), problem)
    return effective_sample(fraction, variance, len(correct), len(np.unique(problem)), rarer, level)


def effective_sample(fraction: float, variance: float, attempts: int, problems: int, rarer: int, level: float) -> float:
    """How many independent attempts carry as much information as these, at two problems or more.

    Only problems with the rarer outcome (`rarer` of them) show how strongly attempts are correlated: few show little,
    and at 0 % or 100 % there are none. Without that limit, one error in 80 attempts would give a narrower interval
    than none.
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
    """The mean of a quantity that is never below `least`, such as tokens."""
    n, problems = len(values), len(np.unique(problem))
    if problems < 2:
        return Estimate(float(values.mean()) if n else math.nan, least, math.inf, n, problems)
    half = t_quantile((1 + level) / 2, problems - 1) * math.sqrt(_variance_of_mean(values, problem))
    mean = float(values.mean())
    return Estimate(mean, max(least, mean - half), mean + half, n, problems)


def median_tokens(data: Columns, level: float = 0.95) -> Estimate:
    """The median with Woodruff's interval: the quantiles at the ends of the interval of the fraction below it."""
    n, problems = len(data), data.problems
    if n == 0:
        return Estimate(math.nan, 0.0, math.inf, 0, 0)
    tokens = np.sort(np.where(data.truncated, math.inf, data.tokens))
    middle = float(np.median(tokens)) if tokens[n // 2] < math.inf else math.nan
    if problems < 2:
        return Estimate(middle, 0.0, math.inf, n, problems)
    below = np.where(data.truncated, math.inf, data.tokens) <= tokens[(n - 1) // 2]
    low, high = wilson(0.5, _effective(below, data.problem, level), level)
    ends = tokens[max(0, math.ceil(n * low) - 1)], tokens[min(n - 1, math.floor(n * high))]
    # With more than half of the attempts truncated, even the low end may be unknown: they spent at least this much.
    least = float(min(ends[0], data.tokens.max()))
    return Estimate(middle, least, float(ends[1]), n, problems)
