"""Accuracy and tokens at each size, with intervals that know that attempts at one problem hang together.

Accuracy has a Wilson interval on the effective sample size of Korn & Graubard (1998), who put theirs into
Clopper-Pearson, which is longer than it need be. It differs from theirs near 0 % and 100 %, where few problems
show how attempts hang together: there the sample is nearly as small as it may be, one attempt a problem.
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
    """What one model did at one size. `graded`, `unparsed` and `truncated` add up to the attempts."""

    size: float
    accuracy: Estimate
    tokens: Estimate  # the mean of the thinking tokens spent, truncated attempts as far as they came
    median: Estimate  # of the thinking tokens wanted: a truncated attempt wanted more than it got
    graded: int
    unparsed: int
    truncated: int
    failed: int  # left out of every estimate


def accuracy(correct: Bools, problem: Ints, level: float = 0.95) -> Estimate:
    """The share that is correct; `problem` says which attempts belong together."""
    n, problems = len(correct), len(np.unique(problem))
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0, 0)
    right = int(correct.sum())
    if problems == 1:  # the others may be anything
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
                median=_median(part, level),
                graded=len(part) - unparsed - truncated,
                unparsed=unparsed,
                truncated=truncated,
                failed=int((data.failed_size == size).sum()),
            )
        )
    return rows


def _variance_of_mean(values: Floats, problem: Ints) -> float:
    """Linearised, between problems, for at least two of them; they may be of any number of attempts."""
    totals = np.bincount(problem, weights=values - values.mean())
    problems = len(np.unique(problem))
    return float(totals @ totals) / len(values) ** 2 * problems / (problems - 1)


def _effective(correct: Bools, problem: Ints, level: float) -> float:
    """How many independent attempts would tell as much, for at least two problems."""
    n, problems, share = len(correct), len(np.unique(problem)), float(correct.mean())
    # How much attempts hang together shows only in problems with the rarer outcome: few of them show little, and at
    # 0 % or 100 % there are none. Without this, one slip among 80 attempts would give a shorter interval than none.
    shown = len(np.unique(problem[correct == (share < 0.5)]))
    most = problems + (n - problems) * shown / (shown + 5)
    variance = _variance_of_mean(correct.astype(np.float64), problem)
    if variance == 0.0:
        return most
    upper = (1 + level) / 2
    few = z_quantile(upper) / t_quantile(upper, problems - 1)
    return min(most, share * (1 - share) / variance * few**2)


def wilson(share: float, n: float, level: float) -> tuple[float, float]:
    z2 = z_quantile((1 + level) / 2) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def mean(values: Floats, problem: Ints, level: float = 0.95, *, least: float = 0.0) -> Estimate:
    """The mean of something that is never below `least`, such as tokens."""
    n, problems = len(values), len(np.unique(problem))
    if problems < 2:
        return Estimate(float(values.mean()) if n else math.nan, least, math.inf, n, problems)
    half = t_quantile((1 + level) / 2, problems - 1) * math.sqrt(_variance_of_mean(values, problem))
    mean = float(values.mean())
    return Estimate(mean, max(least, mean - half), mean + half, n, problems)


def _median(data: Columns, level: float) -> Estimate:
    """Woodruff's interval: the values at the ends of the interval of the share that lies below the median."""
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
    # With more than half of the attempts cut off, even the low end may be unknown: it is what they got at least.
    least = float(min(ends[0], data.tokens.max()))
    return Estimate(middle, least, float(ends[1]), n, problems)
