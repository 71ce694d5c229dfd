"""Ratios of two models on the same problems: tokens, the cost of a right answer, and the critical
size.

`pair` matches their attempts at the problems that both answered, by size and problem.

A ratio is a difference of logarithms, and its variance comes from what each problem adds to that
difference (its influence). So what the two models share on a problem cancels. Training seeds widen
it, as they do an accuracy.

Tokens are those of `lognormal`: truncated attempts needed more than they spent, so they are
censored. A ratio of mean tokens would compare the caps instead: with a fifth of the attempts
truncated, it covers the true ratio in 11 % of runs. The cost of a right answer takes what was
spent, truncated attempts included: that is what was paid.

For the critical size, problems are redrawn jointly, both curves are fitted again, and the interval
is the log ratio ± 1.96 standard deviations of the redrawn ones. Redrawing shows too little where a
curve may be a cliff between two sizes, anywhere between which it may lie; there the ends of the two
intervals are compared instead, without pairing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ponder.core import Bill, Estimate, Outcome, Prices, TokenKind
from ponder.stats.bootstrap import resampled_sums
from ponder.stats.columns import FEWEST_PAIRS, Bools, Columns, Floats, columns, summed
from ponder.stats.critical import counts_by_problem, critical_size, redrawn_log_sizes
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.frontier import Variant, variants
from ponder.stats.lognormal import Sums, fit, influences, powers, sums
from ponder.stats.seeds import Spread, spread, widened

Z95 = z_quantile(0.975)
NO_SEEDS = Spread(0.0, 0.0, 0)
FEWEST = 5  # problems that both solved, for a ratio where both are right


@dataclass(frozen=True)
class Side:
    """One of the two models, on the common problems, which are numbered alike on both sides."""

    data: Columns
    variant: Variant
    cost: Floats | None  # money per attempt, by problem; None: no prices
    left_out: int  # problems that it answered and the other did not
    failed: int  # attempts

    @property
    def right(self) -> Floats:
        """The fraction right, by problem."""
        return self.variant.by_problem(self.variant.correct)

    @property
    def single(self) -> bool:
        """Whether it has one attempt per problem."""
        return len(self.data) == self.data.problems


@dataclass(frozen=True)
class Pair:
    first: Side
    second: Side

    @property
    def problems(self) -> int:
        return self.first.data.problems

    @property
    def sizes(self) -> Floats:
        return np.unique(self.first.data.size)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.first, self.second


def pair(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    tokens: TokenKind = "output",
    prices: tuple[Prices | None, Prices | None] = (None, None),
) -> Pair | None:
    """The outcomes of two models on one task; None if they have no problem in common.

    A problem counts if every training seed of both models answered it.
    """
    matched = variants({"A": first, "B": second}, tokens)
    if len(matched.variants) < 2:
        return None
    answered = [_answered(outcomes) for outcomes in (first, second)]
    common = set.intersection(*(problems for by_seed in answered for problems in by_seed))
    sides = []
    for outcomes, by_seed, variant, price in zip(
        (first, second), answered, matched.variants, prices, strict=True
    ):
        kept = [o for o in outcomes if (o.size, o.problem) in common]
        sides.append(
            Side(
                data=columns(kept, tokens, pooled=True),
                variant=variant,
                cost=_cost(kept, price) if price else None,
                left_out=len(set.union(*by_seed) - common),
                failed=sum(o.ended == "failed" for o in outcomes),
            )
        )
    return Pair(*sides)


def _answered(outcomes: Sequence[Outcome]) -> list[set[tuple[int, str]]]:
    """Return the problems that each training seed answered."""
    by_seed: dict[tuple[int, ...], set[tuple[int, str]]] = {}
    for o in outcomes:
        if o.answered:
            by_seed.setdefault(o.cell.training_seeds, set()).add((o.size, o.problem))
    return list(by_seed.values())


def _cost(outcomes: Sequence[Outcome], prices: Prices) -> Floats:
    """The mean cost of an attempt, by problem."""
    paid: dict[tuple[int, str], list[float]] = {}
    for o in outcomes:
        if o.answered:
            bill = Bill(
                o.prompt_tokens, o.thinking_tokens, o.answer_tokens, cached_tokens=o.cached_tokens
            )
            paid.setdefault((o.size, o.problem), []).append(prices.cost(bill))
    return np.array([np.mean(sorted(paid[problem])) for problem in sorted(paid)], dtype=np.float64)


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
    """The censored lognormal curves of both; None if one of them has no attempt that ended, or no
    tokens.
    """
    some = np.ones(pair.problems, dtype=np.bool_)
    for side in pair.sides:
        some &= (
            np.bincount(side.data.problem, weights=side.data.tokens, minlength=pair.problems) > 0
        )
    told = [_equal_weights(sums(_at(side.data, some))) for side in pair.sides] if some.any() else []
    if not told or any(len(one.seen_sizes) == 0 for one in told):
        return None
    seen = len(np.intersect1d(told[0].seen_sizes, told[1].seen_sizes))
    degree = 2 if seen > 3 else min(1, max(0, min(len(one.seen_sizes) for one in told) - 1))
    logs = [_logs(one, side, degree) for one, side in zip(told, pair.sides, strict=True)]
    first, *rest = zip(*logs, strict=True)
    return TokenLogs(first, tuple(rest), int(np.count_nonzero(~some)))


def _at(data: Columns, problems: Bools) -> Columns:
    """The attempts at these problems, at sizes from 1 on if one is 0, as that of a benchmark: it
    has no logarithm.
    """
    kept = data if problems.all() else data.where(problems[data.problem])
    return replace(
        kept, size=kept.size + max(0.0, 1.0 - float(kept.size.min())) * (kept.size.min() <= 0)
    )


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
        Log(
            float(value),
            influence[:, i],
            len(fitted.coefficients),
            len(side.data),
            numbers[i],
            seeds[i],
        )
        for i, value in enumerate(places @ fitted.coefficients[:-2])
    ]


def both_right(pair: Pair) -> tuple[Log, Log] | None:
    """Log tokens of the right attempts at the problems that both solved, with tokens; None if fewer
    than five.
    """
    right = [
        np.bincount(s.data.problem, weights=s.data.correct, minlength=pair.problems)
        for s in pair.sides
    ]
    used = [
        np.bincount(s.data.problem, weights=s.data.correct * s.data.tokens) > 0 for s in pair.sides
    ]
    common = (right[0] > 0) & (right[1] > 0) & used[0] & used[1]
    if np.count_nonzero(common) < FEWEST:
        return None
    logs = []
    for side, solved in zip(pair.sides, right, strict=True):
        total = summed(
            side.data.correct * np.log(np.maximum(side.data.tokens, 1.0)), side.data.problem
        )
        own = total[common] / solved[common]
        value, seeds = (
            float(own.mean()),
            spread(side.variant.by_seed(np.log(np.maximum(side.variant.tokens, 1.0)))),
        )
        logs.append(
            Log(value, (own - value) / len(own), 1, int(solved[common].sum()), len(own), seeds)
        )
    return logs[0], logs[1]


def per_right(side: Side, cost: Floats | None = None) -> Log | None:
    """What a right answer took: the mean of `cost` by problem (tokens, unless given) over the
    accuracy.
    """
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


@dataclass(frozen=True, slots=True)
class CriticalRatio:
    first: Estimate
    second: Estimate
    ratio: Callable[[float], Estimate]  # second over first, by level
    paired: bool  # False: from the ends of the two intervals


def critical_ratio(pair: Pair, replicates: int = 1000, seed: int = 0) -> CriticalRatio | str:
    """A reason, if there is no such ratio."""
    if len(pair.sizes) < 2 or pair.sizes[0] <= 0:
        return "needs at least two sizes"
    one, other = (critical_size(side.data, replicates=replicates, seed=seed) for side in pair.sides)
    outside = [name for name, c in (("A", one), ("B", other)) if math.isnan(c.size.value)]
    if outside:
        return f"accuracy of {' and of '.join(outside)} doesn't cross 50 % within these sizes"
    value = math.log(other.size.value / one.size.value)
    basis = replace(other.size, value=value, attempts=one.size.attempts + other.size.attempts)
    spreads = [_critical_spread(side) for side in pair.sides]
    cliff = any(math.isinf(c.slope.high) for c in (one, other))
    error = _critical_error(pair, replicates, seed)
    ends = (
        _logarithm(other.size.low / one.size.high),
        _logarithm(other.size.high / max(one.size.low, 1e-300)),
    )

    def ratio(level: float) -> Estimate:
        z = z_quantile((1 + level) / 2)
        below, above = (
            ((value - ends[0]) / Z95, (ends[1] - value) / Z95) if cliff else (error, error)
        )
        apart = replace(basis, low=value - z * below, high=value + z * above)
        wide = widened(apart, spreads, level, -math.inf, math.inf)
        # 1e-300 is none
        low, high = (math.exp(end) if end < 600 else math.inf for end in (wide.low, wide.high))
        return Estimate(math.exp(value), low, high, basis.attempts, pair.problems)

    return CriticalRatio(one.size, other.size, ratio, not cliff)


def _logarithm(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _critical_error(pair: Pair, replicates: int, seed: int) -> float:
    counts = np.hstack([counts_by_problem(side.data) for side in pair.sides])
    drawn = resampled_sums(counts, pair.first.data.size_of_problem, replicates, seed)
    one, other = (
        redrawn_log_sizes(s.data, drawn[..., 2 * i : 2 * i + 2]) for i, s in enumerate(pair.sides)
    )
    return float((other - one).std(ddof=1))


def _critical_spread(side: Side) -> Spread:
    """The variance between the critical sizes of training seeds; with their problems' part, which
    is not taken out.
    """
    seeds = len(side.variant.seeds)
    if seeds < 2:
        return Spread(0.0, 0.0, 0)
    own: Floats = np.array([_log_critical_size(side, i) for i in range(seeds)])
    variance = float(own.var(ddof=1)) / seeds
    return Spread(variance, variance, seeds - 1)


def _log_critical_size(side: Side, seed: int) -> float:
    rows = side.variant.seed == seed
    problem, right = side.variant.problem[rows], side.variant.correct[rows]
    size = side.data.size[np.unique(side.data.problem, return_index=True)[1]][problem]
    none = np.zeros(len(problem), dtype=np.bool_)
    order = np.argsort(problem, kind="stable")
    tokens = side.variant.tokens[rows]
    data = replace(
        side.data,
        size=size[order], problem=problem[order], correct=right[order], unparsed=none, truncated=none,
        tokens=tokens[order],
    )  # fmt: skip
    counts = counts_by_problem(data)
    total = np.stack(
        [counts[data.size_of_problem == k].sum(axis=0) for k in range(len(np.unique(size)))]
    )
    return float(redrawn_log_sizes(data, total[None])[0])
