"""Estimate pass@n and maj@n, and how much of the gap to pass@n a selector closes.

pass@n is the unbiased estimator of Chen et al. 2021 (Codex): for a problem with m samples, the
fraction of all subsets of n that contain a right one. maj@n is the same for majority votes: the
fraction of all subsets of n in which a right answer has the most votes, where a tie of t answers
counts 1/t. Both are exact; no subset is drawn.

Their interval is that of `accuracy`, Wilson's on an effective sample size: m samples hold m/n
disjoint subsets, so for n = 1 the two intervals are equal, and for n = m each problem counts once.

The gap closed by a selector, from one sample to pass@n, is a ratio of means over the same problems
with Fieller's interval (1954). The interval is unbounded if the gap itself may be zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ponder.core import Estimate
from ponder.stats.accuracy import effective_sample, wilson
from ponder.stats.columns import FEWEST_PAIRS, Floats, Ints
from ponder.stats.distributions import t_quantile


def pass_by_problem(tried: Ints, right: Ints, n: int) -> Floats:
    """Return the probability that n samples of a problem contain a right one, for each problem.

    The n samples are drawn without replacement from the `tried` ones: 1 - C(wrong, n) / C(tried, n)
    (Chen et al. 2021).
    """
    wrong = tried - right
    drawn_before = np.arange(n)
    next_is_wrong = np.clip(wrong[:, None] - drawn_before, 0, None) / (
        tried[:, None] - drawn_before
    )
    return np.asarray(1 - next_is_wrong.prod(axis=1), dtype=np.float64)


def pass_at(tried: Ints, right: Ints, n: int, level: float = 0.95) -> Estimate:
    """Estimate pass@n on the problems that have at least n samples."""
    enough = tried >= n
    chances = pass_by_problem(tried[enough], right[enough], n)
    return over_problems(chances, int(tried[enough].sum()), n, level)


class Votes(NamedTuple):
    """How the samples of one problem voted."""

    tried: int  # samples, with those that don't vote: unparsed and truncated ones
    # votes for the right answer, or for each of them if a problem has several
    right: tuple[int, ...]
    wrong: tuple[int, ...]  # votes for each wrong answer


def majority_at(votes: Sequence[Votes], n: int, level: float = 0.95) -> Estimate:
    """Estimate maj@n on the problems that have at least n samples."""
    enough = [v for v in votes if v.tried >= n]
    chances = np.array([majority_of_problem(v, n) for v in enough], dtype=np.float64)
    return over_problems(chances, sum(v.tried for v in enough), n, level)


def majority_of_problem(votes: Votes, n: int) -> float:
    """Return the probability that a right answer wins the vote of n samples.

    They are drawn without replacement.
    """
    chances = []
    for i, count in enumerate(votes.right):
        other_right = votes.right[:i] + votes.right[i + 1 :]
        chances.append(_win_chance(count, other_right + votes.wrong, votes.tried, n))
    # a certain win is 1, without rounding errors: intervals depend on it
    return round(sum(chances), 12)


def _win_chance(votes: int, rivals: Sequence[int], tried: int, n: int) -> float:
    """Return the probability that an answer with this many of all votes wins among n samples.

    `rivals` are the votes of the other answers. Drawing n of m samples is tossing a coin for each,
    given that n come up. So the votes of two answers are independent until the total is known, and
    their distributions are multiplied like polynomials.
    """
    coin = (n + 0.5) / (tried + 1)  # any coin will do; this one makes the total n likely
    total = 0.0
    for drawn in range(1, min(n, votes) + 1):
        # Answers that can't get that many votes, and samples that don't vote, may turn up as often
        # as they like.
        strong = [count for count in rivals if count >= drawn]
        free = _binomial(tried - votes - sum(strong), coin)
        # probability by votes for others (rows), and by the number of rivals that tie (columns)
        for_others = n - drawn
        ways = np.zeros((for_others + 1, 1))
        free = free[: for_others + 1]
        ways[: len(free), 0] = free
        for count in strong:
            ways = _with_rival(ways, _binomial(count, coin), drawn)
        tied = np.arange(1, ways.shape[1] + 1)
        total += float(_binomial(votes, coin)[drawn] * (ways[for_others] / tied).sum())
    return total / float(_binomial(tried, coin)[n])


def _with_rival(ways: Floats, rival: Floats, most: int) -> Floats:
    """Add one more answer, which gets at most `most` votes, and ties if it gets as many.

    `ways` is votes for others × ties, `rival` the distribution of the answer's votes.
    """
    rows, ties = ways.shape
    added = np.zeros((rows, ties + 1))
    for column in range(ties):
        added[:, column] = np.convolve(ways[:, column], rival[:most])[:rows]
    if most < rows:
        added[most:, 1:] += rival[most] * ways[: rows - most]
    return added


@lru_cache(4096)
def _binomial(count: int, coin: float) -> Floats:
    """Return the distribution of heads among `count` coins."""
    heads = np.arange(count + 1)
    log_factorial = np.cumsum(np.log(np.maximum(heads, 1)))
    log_ways = log_factorial[-1] - log_factorial - log_factorial[::-1]
    log_probability = log_ways + heads * math.log(coin) + heads[::-1] * math.log1p(-coin)
    return np.asarray(np.exp(log_probability), dtype=np.float64)


def over_problems(chances: Floats, attempts: int, n: int = 1, level: float = 0.95) -> Estimate:
    """Return the mean of the problems' probabilities, each from all subsets of n of its samples."""
    problems = len(chances)
    if problems == 0:
        return Estimate(math.nan, 0.0, 1.0, attempts, problems)
    if problems == 1:
        return Estimate(float(chances.mean()), 0.0, 1.0, attempts, problems)
    value = min(1.0, float(chances.mean()))
    # As in `accuracy`: only problems with the rarer outcome show how correlated their samples are.
    if value < 0.5:
        rarer = int((chances > 0).sum())
    else:
        rarer = int((chances < 1).sum())
    variance = float(chances.var(ddof=1)) / problems
    effective = effective_sample(value, variance, attempts / n, problems, rarer, level)
    low, high = wilson(value, effective, level)
    return Estimate(value, low, high, attempts, problems)


def gap_closed(single: Floats, picked: Floats, best: Floats, level: float = 0.95) -> Estimate:
    """Return how far `picked` gets from `single` to `best`, as a fraction.

    Each is the accuracy on every one of the problems.
    """
    n = len(single)
    gained = picked - single
    gap = best - single
    if n < FEWEST_PAIRS or gap.mean() <= 0:
        return Estimate(math.nan, -math.inf, math.inf, n, n)
    value = float(gained.mean() / gap.mean())
    # One more problem in either direction, as in the interval of `paired_difference`.
    gained = np.append(gained, [1.0, -1.0])
    gap = np.append(gap, [0.0, 0.0])
    covariance = np.cov(gained, gap) / (n + 2)
    t2 = t_quantile((1 + level) / 2, n - 1) ** 2
    # Fieller: the interval holds every ratio r with a·r² - 2·b·r + c <= 0.
    mean_gained = gained.mean()
    mean_gap = gap.mean()
    a = float(mean_gap**2 - t2 * covariance[1, 1])
    b = float(mean_gained * mean_gap - t2 * covariance[0, 1])
    c = float(mean_gained**2 - t2 * covariance[0, 0])
    if a <= 0 or b * b < a * c:
        return Estimate(value, -math.inf, math.inf, n, n)
    middle = b / a
    half = math.sqrt(b * b - a * c) / a
    return Estimate(value, min(value, middle - half), max(value, middle + half), n, n)
