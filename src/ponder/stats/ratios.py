"""Ratios of two models on the same problems: tokens, cost of a right answer, critical size.

`pair` matches their attempts at the problems that both answered, by size and problem.

A ratio is a difference of logarithms, and its variance comes from what each problem adds to that
difference (its influence). So what the two models share on a problem cancels. Training seeds widen
it, as they do an accuracy.

Tokens are those of `lognormal`: truncated attempts needed more than they spent, so they are
censored. A ratio of mean tokens would compare the caps instead: with a fifth of the attempts
truncated, it covers the true ratio in 11 % of runs. The cost of a right answer takes what was
spent, truncated attempts included: that is what was paid. Instead of tokens it may be money or
seconds.

For the critical size, problems are resampled jointly, both curves are fitted again, and the
interval is the log ratio ± 1.96 standard deviations of the redrawn ones. That shows too little
where a curve may be a cliff between two sizes, anywhere between which it may lie; there the ends of
the two intervals are compared instead, without pairing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ponder.core import Estimate, Outcome, Resource
from ponder.stats.bootstrap import resampled_sums
from ponder.stats.columns import FEWEST_PAIRS, Bools, Columns, Floats, columns, summed
from ponder.stats.critical import Critical, counts_by_problem, critical_size, redrawn_log_sizes
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.frontier import Variant, variants
from ponder.stats.lognormal import Sums, fit, influences, powers, sums
from ponder.stats.seeds import Spread, spread, widened

NO_SEEDS = Spread(0.0, 0.0, 0)
FEWEST_SOLVED = 5  # problems that both solved, for a ratio where both are right


@dataclass(frozen=True)
class Side:
    """One of the two models, on the common problems, which are numbered alike on both sides."""

    data: Columns
    variant: Variant
    cost: Floats | None  # money per attempt, by problem; None: unknown, or not asked for
    left_out: int  # problems that it answered and the other did not
    failed: int  # attempts
    seconds: Floats | None = None  # per attempt, by problem

    @property
    def right(self) -> Floats:
        """The fraction right, by problem."""
        return self.variant.by_problem(self.variant.correct)


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
    resource: Resource = "output",
    *,
    money: bool = False,
) -> Pair | None:
    """Match the outcomes of two models on one task; None if they have no problem in common.

    A problem counts if every training seed of both models answered it. With `money`, the sides have
    their cost too.
    """
    matched = variants({"A": first, "B": second}, resource)
    if len(matched.variants) < 2:
        return None
    answered = [_answered(first), _answered(second)]
    common = set.intersection(*answered[0], *answered[1])
    sides = []
    for outcomes, by_seed, variant in zip((first, second), answered, matched.variants, strict=True):
        kept = [o for o in outcomes if (o.size, o.problem) in common]
        sides.append(
            Side(
                data=columns(kept, resource, pooled=True),
                variant=variant,
                cost=_problem_means(kept, [o.cost for o in kept]) if money else None,
                left_out=len(set.union(*by_seed) - common),
                failed=sum(o.ended == "failed" for o in outcomes),
                seconds=_problem_means(kept, [o.seconds for o in kept]),
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


def _problem_means(outcomes: Sequence[Outcome], amounts: Sequence[float | None]) -> Floats | None:
    """Return the mean amount of an answered attempt by problem; None if one is unknown."""
    by_problem: dict[tuple[int, str], list[float]] = {}
    for o, amount in zip(outcomes, amounts, strict=True):
        if not o.answered:
            continue
        if amount is None:
            return None
        by_problem.setdefault((o.size, o.problem), []).append(amount)
    means = [np.mean(sorted(by_problem[problem])) for problem in sorted(by_problem)]
    return np.array(means, dtype=np.float64)


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
        """Return the ratio to another on the same problems, as a function of the level."""
        difference = Log(
            self.value - other.value,
            self.influence - other.influence,
            max(self.parameters, other.parameters),
            self.attempts + other.attempts,
            min(self.problems, other.problems),
        )
        return lambda level: _exponential(difference, [self.spread, other.spread], level)


def _exponential(log: Log, spreads: Sequence[Spread], level: float) -> Estimate:
    """Return the estimate whose logarithm this is, widened by the training seeds."""
    problems = len(log.influence)
    freedom = problems - log.parameters
    half = math.inf
    if freedom > 0 and log.problems >= FEWEST_PAIRS:
        error = math.sqrt(float(log.influence @ log.influence) * problems / freedom)
        half = t_quantile((1 + level) / 2, freedom) * error
    over_problems = Estimate(log.value, log.value - half, log.value + half, log.attempts, problems)
    e = widened(over_problems, spreads, level, -math.inf, math.inf)
    return replace(e, value=_exp(e.value), low=_exp(e.low), high=_exp(e.high))


def _exp(x: float) -> float:
    if x >= 700:
        return math.inf
    return math.exp(x)


# --- Tokens ---


@dataclass(frozen=True, slots=True)
class TokenLogs:
    """Log tokens of both models."""

    overall: tuple[Log, Log]  # the geometric mean over the common problems
    by_size: tuple[tuple[Log, Log], ...]
    left_out: int  # problems at which one of them used no tokens


def token_logs(pair: Pair) -> TokenLogs | None:
    """Fit the censored lognormal curves of both.

    Return None if one of them has no attempt that ended, or no tokens.
    """
    used = np.ones(pair.problems, dtype=np.bool_)
    for side in pair.sides:
        tokens = np.bincount(side.data.problem, weights=side.data.tokens, minlength=pair.problems)
        used &= tokens > 0
    if not used.any():
        return None
    totals = [_equal_weights(sums(_at(side.data, used))) for side in pair.sides]
    observed_sizes = [total.observed_sizes for total in totals]
    fewest = min(len(sizes) for sizes in observed_sizes)
    if fewest == 0:
        return None
    degree = min(1, fewest - 1)
    if len(np.intersect1d(observed_sizes[0], observed_sizes[1])) > 3:
        degree = 2
    first = _logs(totals[0], pair.first, degree)
    second = _logs(totals[1], pair.second, degree)
    overall, *by_size = zip(first, second, strict=True)
    return TokenLogs(overall, tuple(by_size), int(np.count_nonzero(~used)))


def _at(data: Columns, problems: Bools) -> Columns:
    """Return the attempts at these problems.

    If a size is 0, as that of a benchmark, sizes are counted from 1, because 0 has no logarithm.
    """
    kept = data
    if not problems.all():
        kept = data.where(problems[data.problem])
    smallest = float(kept.size.min())
    if smallest > 0:
        return kept
    return replace(kept, size=kept.size + (1.0 - smallest))


def _equal_weights(data: Sums) -> Sums:
    """Weigh every problem as if it had the mean number of attempts."""
    attempts = data.attempts_of_problem
    weight = attempts.mean() / attempts
    count = data.censored.count * weight[data.censored.group]
    return replace(
        data,
        observed=data.observed * weight[:, None],
        censored=replace(data.censored, count=count),
    )


def _logs(data: Sums, side: Side, degree: int) -> list[Log]:
    """Return log tokens on average over the problems, then at each size."""
    fitted = fit(data, powers(data.x(data.sizes), degree))
    problems_of_size = np.bincount(data.size_of)
    # one row per Log: the average over problems, then each size
    rows = np.vstack([problems_of_size / data.problems @ fitted.design, fitted.design])
    values = rows @ fitted.coefficients[:-2]
    influence = influences(data, fitted)[:, :-2] @ rows.T
    problems = [data.problems, *problems_of_size.tolist()]

    by_seed = side.variant.by_seed(_log(side.variant.tokens))
    spreads = [spread(by_seed)] * len(rows)
    size_of = side.data.size_of_problem
    if len(data.sizes) == size_of.max() + 1:  # seeds may differ more at one size than over all
        spreads[1:] = [spread(by_seed[:, size_of == k]) for k in range(len(data.sizes))]
    logs = []
    for i, value in enumerate(values):
        logs.append(
            Log(
                value=float(value),
                influence=influence[:, i],
                parameters=len(fitted.coefficients),
                attempts=len(side.data),
                problems=problems[i],
                spread=spreads[i],
            )
        )
    return logs


def both_right(pair: Pair) -> tuple[Log, Log] | None:
    """Return log tokens of the right attempts at the problems that both solved, with tokens.

    Return None if there are fewer than five such problems.
    """
    common = np.ones(pair.problems, dtype=np.bool_)
    for side in pair.sides:
        data = side.data
        common &= summed(data.correct, data.problem) > 0
        common &= summed(data.correct * data.tokens, data.problem) > 0
    if np.count_nonzero(common) < FEWEST_SOLVED:
        return None
    first = _right_tokens(pair.first, common)
    second = _right_tokens(pair.second, common)
    return first, second


def _right_tokens(side: Side, problems: Bools) -> Log:
    """Return the mean over problems of the mean log tokens of their right attempts."""
    data = side.data
    right = summed(data.correct, data.problem)[problems]
    log_tokens = data.correct * _log(data.tokens)
    means = summed(log_tokens, data.problem)[problems] / right
    value = float(means.mean())
    by_seed = side.variant.by_seed(_log(side.variant.tokens))
    return Log(
        value=value,
        influence=(means - value) / len(means),
        parameters=1,
        attempts=int(right.sum()),
        problems=len(means),
        spread=spread(by_seed),
    )


def _log(tokens: Floats) -> Floats:
    """Return logarithms; an attempt without tokens counts as one, or as the least of any.

    An attempt costs far less than one unit of money.
    """
    used = tokens[tokens > 0]
    least = min(1.0, float(used.min(initial=1.0)))
    return np.asarray(np.log(np.maximum(tokens, least)))


def per_attempt(amounts: Floats | None, side: Side) -> Log | None:
    """Return the mean of amounts by problem, such as a cost; None if they are unknown or all 0."""
    if amounts is None or not amounts.any():
        return None
    mean = float(amounts.mean())
    # Money and seconds move with tokens, as far as training seeds are concerned.
    tokens_by_seed = side.variant.by_seed(side.variant.tokens)
    relative = tokens_by_seed / (tokens_by_seed.mean() or 1.0)
    return Log(
        value=math.log(mean),
        influence=(amounts / mean - 1) / len(amounts),
        parameters=1,
        attempts=len(side.data),
        problems=len(amounts),
        spread=spread(relative),
    )


def per_right(side: Side, cost: Floats | None = None) -> Log | None:
    """Return the cost of a right answer: the mean of `cost` by problem over the accuracy.

    Without `cost`, it is tokens. Return None if nothing was right, or nothing was spent.
    """
    variant = side.variant
    right = side.right
    spent = variant.by_problem(variant.tokens) if cost is None else cost
    mean_spent = float(spent.mean())
    accuracy = float(right.mean())
    if not accuracy or not mean_spent:
        return None
    # Money moves with tokens, as far as training seeds are concerned.
    tokens_by_seed = variant.by_seed(variant.tokens)
    right_by_seed = variant.by_seed(variant.correct)
    relative = tokens_by_seed / tokens_by_seed.mean() - right_by_seed / right_by_seed.mean()
    return Log(
        value=math.log(mean_spent / accuracy),
        influence=(spent / mean_spent - right / accuracy) / len(right),
        parameters=1,
        attempts=len(side.data),
        problems=len(right),
        spread=spread(relative),
    )


# --- The critical size ---


@dataclass(frozen=True, slots=True)
class CriticalRatio:
    """The critical sizes of both models, and their ratio."""

    first: Estimate
    second: Estimate
    ratio: Callable[[float], Estimate]  # second over first, by level
    paired: bool  # False: from the ends of the two intervals


def critical_ratio(
    pair: Pair, replicates: int = 1000, seed: int = 0, level: float = 0.95
) -> CriticalRatio | str:
    """Compare the critical sizes; return a reason if there is no such ratio."""
    if len(pair.sizes) < 2 or pair.sizes[0] <= 0:
        return "needs at least two sizes"
    first = critical_size(pair.first.data, level, replicates, seed)
    second = critical_size(pair.second.data, level, replicates, seed)
    outside = [name for name, c in (("A", first), ("B", second)) if math.isnan(c.size.value)]
    if outside:
        return f"accuracy of {' and of '.join(outside)} doesn't cross 50 % within these sizes"
    value = math.log(second.size.value / first.size.value)
    spreads = [_critical_spread(side) for side in pair.sides]
    cliff = math.isinf(first.slope.high) or math.isinf(second.slope.high)
    if cliff:
        below, above = _errors_of_ends(first, second, value, level)
    else:
        below = above = _critical_error(pair, replicates, seed)
    attempts = first.size.attempts + second.size.attempts

    def ratio(level: float) -> Estimate:
        z = z_quantile((1 + level) / 2)
        log = replace(
            second.size,
            value=value,
            low=value - z * below,
            high=value + z * above,
            attempts=attempts,
        )
        log = widened(log, spreads, level, -math.inf, math.inf)
        return Estimate(
            math.exp(value), _exp_end(log.low), _exp_end(log.high), attempts, pair.problems
        )

    return CriticalRatio(first.size, second.size, ratio, paired=not cliff)


def _exp_end(log: float) -> float:
    # An open end of a critical size is 1e-300 here, not 0.
    if log >= 600:
        return math.inf
    return math.exp(log)


def _errors_of_ends(
    first: Critical, second: Critical, value: float, level: float
) -> tuple[float, float]:
    """Return the errors of the log ratio downwards and upwards, from the ends of both intervals."""
    lowest = second.size.low / first.size.high
    log_lowest = -math.inf
    if lowest > 0:
        log_lowest = math.log(lowest)
    log_highest = math.log(second.size.high / max(first.size.low, 1e-300))
    z = z_quantile((1 + level) / 2)
    return (value - log_lowest) / z, (log_highest - value) / z


def _critical_error(pair: Pair, replicates: int, seed: int) -> float:
    """Return the standard deviation of the log ratio when problems are resampled jointly."""
    counts = np.hstack([counts_by_problem(side.data) for side in pair.sides])
    resampled = resampled_sums(counts, pair.first.data.size_of_problem, replicates, seed)
    first = redrawn_log_sizes(pair.first.data, resampled[..., :2])
    second = redrawn_log_sizes(pair.second.data, resampled[..., 2:])
    return float((second - first).std(ddof=1))


def _critical_spread(side: Side) -> Spread:
    """Return the variance of the log critical size between training seeds.

    It includes the part that is due to problems.
    """
    seeds = len(side.variant.seeds)
    if seeds < 2:
        return NO_SEEDS
    log_sizes: Floats = np.array([_log_critical_size(side, i) for i in range(seeds)])
    variance = float(log_sizes.var(ddof=1)) / seeds
    return Spread(variance, variance, seeds - 1)


def _log_critical_size(side: Side, seed: int) -> float:
    """Return the log critical size of one training seed."""
    rows = side.variant.seed == seed
    problem = side.variant.problem[rows]
    correct = side.variant.correct[rows]
    tokens = side.variant.tokens[rows]
    first_attempt = np.unique(side.data.problem, return_index=True)[1]
    size = side.data.size[first_attempt][problem]
    order = np.argsort(problem, kind="stable")
    neither = np.zeros(len(problem), dtype=np.bool_)
    data = replace(
        side.data,
        size=size[order],
        problem=problem[order],
        correct=correct[order],
        unparsed=neither,
        truncated=neither,
        tokens=tokens[order],
    )
    counts = counts_by_problem(data)
    size_of = data.size_of_problem
    total = np.stack([counts[size_of == k].sum(axis=0) for k in range(len(np.unique(size)))])
    return float(redrawn_log_sizes(data, total[None])[0])
