"""Estimates pass@n and maj@n with intervals clustered by problem, and how much of the gap to pass@n
a selector closes.

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
from ponder.stats.accuracy import wilson
from ponder.stats.columns import FEWEST_PAIRS, Floats, Ints
from ponder.stats.distributions import t_quantile, z_quantile


def pass_by_problem(tried: Ints, right: Ints, n: int) -> Floats:
    """For each problem, the probability that n of its samples, drawn without replacement, contain a
    right one.
    """
    left = tried - right
    places = np.arange(n)
    none = np.clip(left[:, None] - places, 0, None) / (tried[:, None] - places)
    return np.asarray(1 - none.prod(axis=1), dtype=np.float64)


def pass_at(tried: Ints, right: Ints, n: int, level: float = 0.95) -> Estimate:
    """pass@n on the problems that have at least n samples."""
    enough = tried >= n
    return _over_problems(
        pass_by_problem(tried[enough], right[enough], n), int(tried[enough].sum()), n, level
    )


class Votes(NamedTuple):
    """How the samples of one problem voted."""

    tried: int  # samples, with those that don't vote: unparsed and truncated ones
    # votes for the right answer, or for each of them if a problem has several
    right: tuple[int, ...]
    wrong: tuple[int, ...]  # votes for each wrong answer


def majority_at(votes: Sequence[Votes], n: int, level: float = 0.95) -> Estimate:
    """maj@n on the problems that have at least n samples."""
    enough = [v for v in votes if v.tried >= n]
    chances = np.array([majority_of_problem(v, n) for v in enough], dtype=np.float64)
    return _over_problems(chances, sum(v.tried for v in enough), n, level)


def majority_of_problem(votes: Votes, n: int) -> float:
    """The probability that a right answer wins the vote of n samples, drawn without replacement."""
    chances = [
        _wins(count, (*votes.right[:i], *votes.right[i + 1 :], *votes.wrong), votes.tried, n)
        for i, count in enumerate(votes.right)
    ]
    # a certain win is 1, without rounding errors: intervals depend on it
    return round(sum(chances), 12)


def _wins(own: int, others: Sequence[int], tried: int, n: int) -> float:
    """The probability that an answer with `own` of all votes wins among n samples.

    Drawing n of m samples is tossing a coin for each, given that n come up. So the votes of two
    answers are independent until the total is known, and their distributions are multiplied like
    polynomials.
    """
    coin = (n + 0.5) / (tried + 1)  # any coin will do; this one makes the total n likely
    total = 0.0
    for most in range(1, min(n, own) + 1):
        # Answers that can't get that many votes, and samples that don't vote, may turn up as often
        # as they like.
        rivals = [count for count in others if count >= most]
        left = n - most
        # probability by votes for others, and by the number of rivals that tie
        ways = np.zeros((left + 1, 1))
        rest = _binomial(tried - own - sum(rivals), coin)[: left + 1]
        ways[: len(rest), 0] = rest
        for count in rivals:
            ways = _with_rival(ways, _binomial(count, coin), most)
        total += float(
            _binomial(own, coin)[most] * (ways[left] / np.arange(1, ways.shape[1] + 1)).sum()
        )
    return total / float(_binomial(tried, coin)[n])


def _with_rival(ways: Floats, rival: Floats, most: int) -> Floats:
    """The probabilities with one more answer, which gets at most `most` votes, and ties if it gets
    as many.
    """
    rows, ties = ways.shape
    out = np.zeros((rows, ties + 1))
    for column in range(ties):
        out[:, column] = np.convolve(ways[:, column], rival[:most])[:rows]
    if most < rows:
        out[most:, 1:] += rival[most] * ways[: rows - most]
    return out


@lru_cache(4096)
def _binomial(count: int, coin: float) -> Floats:
    """The distribution of heads among `count` coins."""
    heads = np.arange(count + 1)
    log_factorial = np.cumsum(np.log(np.maximum(heads, 1)))
    ways = log_factorial[-1] - log_factorial - log_factorial[::-1]
    return np.asarray(
        np.exp(ways + heads * math.log(coin) + heads[::-1] * math.log1p(-coin)), dtype=np.float64
    )


def _over_problems(chances: Floats, attempts: int, n: int, level: float) -> Estimate:
    """The mean of the problems' probabilities, each from all subsets of n of its samples."""
    problems = len(chances)
    if problems < 2:
        return Estimate(
            float(chances.mean()) if problems else math.nan, 0.0, 1.0, attempts, problems
        )
    value = min(1.0, float(chances.mean()))
    # As in `accuracy`: only problems with the rarer outcome show how correlated their samples are.
    shown = int((chances > 0).sum() if value < 0.5 else (chances < 1).sum())
    independent = problems + (attempts / n - problems) * shown / (shown + 5)
    variance = float(chances.var(ddof=1)) / problems
    if variance > 0:
        upper = (1 + level) / 2
        few = z_quantile(upper) / t_quantile(upper, problems - 1)
        independent = min(independent, value * (1 - value) / variance * few**2)
    return Estimate(value, *wilson(value, independent, level), attempts, problems)


def gap_closed(one: Floats, picked: Floats, best: Floats, level: float = 0.95) -> Estimate:
    """How far `picked` gets from `one` to `best`, as a fraction; each is the accuracy on every one
    of the problems.
    """
    n = len(one)
    gained, gap = picked - one, best - one
    if n < FEWEST_PAIRS or gap.mean() <= 0:
        return Estimate(math.nan, -math.inf, math.inf, n, n)
    value = float(gained.mean() / gap.mean())
    # One more problem in either direction, as in the interval of `paired_difference`.
    gained, gap = np.append(gained, [1.0, -1.0]), np.append(gap, [0.0, 0.0])
    variance = np.cov(gained, gap) / (n + 2)
    t2 = t_quantile((1 + level) / 2, n - 1) ** 2
    a = float(gap.mean() ** 2 - t2 * variance[1, 1])
    b = float(gained.mean() * gap.mean() - t2 * variance[0, 1])
    c = float(gained.mean() ** 2 - t2 * variance[0, 0])
    if a <= 0 or b * b < a * c:
        return Estimate(value, -math.inf, math.inf, n, n)
    half = math.sqrt(b * b - a * c) / a
    return Estimate(value, min(value, b / a - half), max(value, b / a + half), n, n)
