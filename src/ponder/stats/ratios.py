"""Ratios of two models on the same problems: tokens, tokens where both are right, and the cost of a right answer.

A ratio is a difference of logarithms, and its variance comes from what each problem adds to that difference (its
influence). So what the two models share on a problem cancels. Training seeds widen it, as they do an accuracy.

Tokens are those of `lognormal`: truncated attempts needed more than they spent, so they are censored. A ratio of mean
tokens would compare the caps instead: with a fifth of the attempts truncated, it covers the true ratio in 11 % of
runs. The cost of a right answer takes what was spent, truncated attempts included: that is what was paid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import FEWEST_PAIRS, Bools, Columns, Floats, summed
from ponder.stats.distributions import t_quantile
from ponder.stats.lognormal import Sums, fit, influences, powers, sums
from ponder.stats.pairs import Pair, Side
from ponder.stats.seeds import Spread, spread, widened

NO_SEEDS = Spread(0.0, 0.0, 0)
FEWEST = 5  # problems that both solved, for a ratio where both are right


@dataclass(frozen=True, slots=True)
class Log:
    """The logarithm of an estimate, and what each problem adds to its error."""

    value: float
    influence: Floats  # by problem
    parameters: int  # that were fitted
    attempts: int
    problems: int  # that it is about: at one size fewer than those it was fitted to
    spread: Spread = NO_SEEDS  # what training seeds add

    def interval(self, level: float = 0.95) -> Estimate:
        return _exponential(self, [self.spread], level)

    def over(self, other: Log) -> Callable[[float], Estimate]:
        """The ratio to another on the same problems, as a function of the level."""
        apart = Log(
            self.value - other.value,
            self.influence - other.influence,
            max(self.parameters, other.parameters),
            self.attempts + other.attempts,
            min(self.problems, other.problems),
        )
        return lambda level: _exponential(apart, [self.spread, other.spread], level)


def _exponential(log: Log, spreads: Sequence[Spread], level: float) -> Estimate:
    problems = len(log.influence)
    spare = problems - log.parameters
    half = math.inf
    if spare > 0 and log.problems >= FEWEST_PAIRS:
        error = math.sqrt(float(log.influence @ log.influence) * problems / spare)
        half = t_quantile((1 + level) / 2, spare) * error
    over_problems = Estimate(log.value, log.value - half, log.value + half, log.attempts, problems)
    seeds = widened(over_problems, spreads, level, -math.inf, math.inf)
    return replace(seeds, value=_exp(seeds.value), low=_exp(seeds.low), high=_exp(seeds.high))


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


@dataclass(frozen=True, slots=True)
class TokenLogs:
    overall: tuple[Log, Log]  # the geometric mean over the common problems
    by_size: tuple[tuple[Log, Log], ...]
    left_out: int  # problems at which one of them used no tokens


def token_logs(pair: Pair) -> TokenLogs | None:
    """The censored lognormal curves of both; None if one of them has no attempt that ended, or no tokens."""
    some = np.ones(pair.problems, dtype=np.bool_)
    for side in pair.sides:
        some &= np.bincount(side.data.problem, weights=side.data.tokens, minlength=pair.problems) > 0
    told = [_equal_weights(sums(_at(side.data, some))) for side in pair.sides] if some.any() else []
    if not told or any(len(one.seen_sizes) == 0 for one in told):
        return None
    seen = len(np.intersect1d(told[0].seen_sizes, told[1].seen_sizes))
    degree = 2 if seen > 3 else min(1, max(0, min(len(one.seen_sizes) for one in told) - 1))
    logs = [_logs(one, side, degree) for one, side in zip(told, pair.sides, strict=True)]
    first, *rest = zip(*logs, strict=True)
    return TokenLogs(first, tuple(rest), int(np.count_nonzero(~some)))


def _at(data: Columns, problems: Bools) -> Columns:
    """The attempts at these problems, at sizes from 1 on if one is 0, as that of a benchmark: it has no logarithm."""
    kept = data if problems.all() else data.where(problems[data.problem])
    return replace(kept, size=kept.size + max(0.0, 1.0 - float(kept.size.min())) * (kept.size.min() <= 0))


def _equal_weights(told: Sums) -> Sums:
    """Every problem as if it had the mean number of attempts."""
    own = told.attempts_of_problem
    weight = own.mean() / own
    cut = replace(told.cut, count=told.cut.count * weight[told.cut.group])
    return replace(told, seen=told.seen * weight[:, None], cut=cut)


def _logs(told: Sums, side: Side, degree: int) -> list[Log]:
    """Log tokens on average over the problems, then at each size."""
    x = told.x(told.sizes)
    fitted = fit(told, powers(x, degree))
    share = np.bincount(told.size_of) / told.problems
    places = np.vstack([share @ fitted.design, fitted.design])
    influence = influences(told, fitted)[:, :-2] @ places.T
    logs = np.log(np.maximum(side.variant.tokens, 1.0))
    by_seed, size_of = side.variant.by_seed(logs), side.data.size_of_problem
    seeds = [spread(by_seed)] * len(places)
    if len(told.sizes) == size_of.max() + 1:  # seeds may differ more at one size than over all
        seeds[1:] = [spread(by_seed[:, size_of == k]) for k in range(len(told.sizes))]
    numbers = [told.problems, *np.bincount(told.size_of).tolist()]
    return [
        Log(float(value), influence[:, i], len(fitted.coefficients), len(side.data), numbers[i], seeds[i])
        for i, value in enumerate(places @ fitted.coefficients[:-2])
    ]


def both_right(pair: Pair) -> tuple[Log, Log] | None:
    """Log tokens of the right attempts at the problems that both solved, with tokens; None if fewer than five."""
    right = [np.bincount(s.data.problem, weights=s.data.correct, minlength=pair.problems) for s in pair.sides]
    used = [np.bincount(s.data.problem, weights=s.data.correct * s.data.tokens) > 0 for s in pair.sides]
    common = (right[0] > 0) & (right[1] > 0) & used[0] & used[1]
    if np.count_nonzero(common) < FEWEST:
        return None
    logs = []
    for side, solved in zip(pair.sides, right, strict=True):
        total = summed(side.data.correct * np.log(np.maximum(side.data.tokens, 1.0)), side.data.problem)
        own = total[common] / solved[common]
        value, seeds = float(own.mean()), spread(side.variant.by_seed(np.log(np.maximum(side.variant.tokens, 1.0))))
        logs.append(Log(value, (own - value) / len(own), 1, int(solved[common].sum()), len(own), seeds))
    return logs[0], logs[1]


def per_right(side: Side, cost: Floats | None = None) -> Log | None:
    """What a right answer took: the mean of `cost` by problem (tokens, unless given) over the accuracy."""
    variant, right = side.variant, side.right
    paid = variant.by_problem(variant.tokens) if cost is None else cost
    spent, share = float(paid.mean()), float(right.mean())
    if not share or not spent:
        return None
    influence = (paid / spent - right / share) / len(right)
    # Money moves with tokens, as far as training seeds are concerned.
    tokens, own = variant.by_seed(variant.tokens), variant.by_seed(variant.correct)
    seeds = spread(tokens / tokens.mean() - own / own.mean())
    return Log(math.log(spent / share), influence, 1, len(side.data), len(right), seeds)
