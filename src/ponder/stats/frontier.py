"""Compares variants of a model by accuracy and tokens on the same problems: frontier, savings,
accuracy under a budget.

Two things vary by chance: the problems, which all variants share, and the training seed of each
trained variant. Redrawing three seeds would understate how much they differ, so the variance
between seeds (less the part that problems explain) enters as Student's t with one degree of freedom
fewer than there are seeds. Accuracy, tokens, AUC and their differences are widened by it
(`stats/seeds.py`); for a ratio, AES and the frontier, problems and seeds are drawn jointly. Without
seeds, accuracy and tokens have the intervals of `accuracy` and `mean`.

AES is that of O1-Pruner (Luo et al. 2025). Accuracy under a budget is OAA_t of OptimalThinkingBench
(Aggarwal et al. 2025), except that an answer of exactly the budget counts, and the area under the
curve is exact. The band around it contains the whole true curve in 95 % of cases, not each point by
itself: the quantile of the largest of the studentised errors, from a Gaussian with the correlations
that problems show (the sup-t band of Montiel Olea & Plagborg-Møller 2019), takes the place of the
normal's in the interval at each point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate, Outcome, TokenKind, seed_from
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.bootstrap import resampled_sums, strata
from ponder.stats.columns import FEWEST_PAIRS, Bools, Floats, Ints, summed
from ponder.stats.corrections import p_value
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.paired import paired_difference
from ponder.stats.seeds import PooledSeeds, Spread, pooled, spread, widened

Verdict: TypeAlias = Literal["above", "not below", "slightly below", "below", "open"]
FEW = 50  # problems below which a curve of one sample per problem gets a constant band
PART = 5000  # problems at a time
EDGE = 5  # problems with the rarer outcome below which a band reaches to 0 or to 1


@dataclass(frozen=True, slots=True)
class Variant:
    """A model, or all training seeds of one.

    Its columns have one row per answered attempt, by seed and problem.
    """

    name: str
    # one tuple of training seeds per trained model; empty if nothing was trained
    seeds: tuple[tuple[int, ...], ...]
    seed: Ints  # index into `seeds`
    problem: Ints  # counted from 0, the same for every variant
    tokens: Floats  # of the kind asked for
    correct: Bools
    made_tokens: float  # rollouts and training, averaged over its seeds
    made_seconds: float
    # how much accuracy varies between seeds, if other variants say so too
    pool: PooledSeeds | None = None

    def within(self, budget: float) -> Bools:
        """Which attempts are right and took no more tokens than this."""
        return np.asarray(self.correct & (self.tokens <= budget))

    def by_problem(self, values: Floats | Bools) -> Floats:
        return summed(values, self.problem) / np.bincount(self.problem)

    def by_seed(self, values: Floats | Bools) -> Floats:
        """Means, seeds × problems."""
        seeds, problems = max(1, len(self.seeds)), int(self.problem.max()) + 1
        cell = self.seed * problems + self.problem
        return (summed(values, cell) / np.bincount(cell)).reshape(seeds, problems)


@dataclass(frozen=True, slots=True)
class Variants:
    """Variants in the study's order, on the problems that every seed of every variant answered."""

    variants: tuple[Variant, ...]
    size_of: Ints  # of each problem, as an index into the sizes
    left_out: int  # problems that not all answered
    missing: Mapping[str, int] = field(
        default_factory=dict
    )  # for each variant that lacks some: how many of the problems that others answered

    @property
    def problems(self) -> int:
        return len(self.size_of)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A variant compared with the reference, paired by problem."""

    difference: Estimate  # in accuracy
    p_value: float  # of no difference
    ratio: Estimate  # of tokens
    aes: Estimate
    # answers until it has saved the tokens that making it cost; infinite: never
    break_even: Estimate


@dataclass(frozen=True, slots=True)
class VariantSummary:
    tokens: Estimate
    accuracy: Estimate
    tokens_per_right: Estimate
    on_frontier: bool  # as measured
    frontier_chance: float  # probability of being on the frontier; nan for a single problem
    against: Comparison | None  # None for the reference itself, or if the reference has no answers


def variants(outcomes: Mapping[str, Sequence[Outcome]], tokens: TokenKind = "output") -> Variants:
    """Match the variants of one task, or of one size of it, given by name.

    A seed without any answer is left out.
    """
    groups: dict[str, dict[tuple[int, ...], list[Outcome]]] = {}
    for name, own in outcomes.items():
        for o in own:
            if o.answered:
                groups.setdefault(name, {}).setdefault(o.cell.training_seeds, []).append(o)
    asked = {
        name: set.intersection(*({(o.size, o.problem) for o in part} for part in seeds.values()))
        for name, seeds in groups.items()
    }
    common = sorted(set.intersection(*asked.values())) if asked else []
    every = {
        (o.size, o.problem) for seeds in groups.values() for part in seeds.values() for o in part
    }
    # With those that have no answers at all.
    missing = {
        name: len(every - asked.get(name, set()))
        for name in outcomes
        if every - asked.get(name, set())
    }
    number = {problem: i for i, problem in enumerate(common)}
    size_of = np.unique(np.array([size for size, _ in common]), return_inverse=True)[1].astype(
        np.int64
    )
    answered = (
        tuple(_variant(name, seeds, number, tokens) for name, seeds in groups.items())
        if common
        else ()
    )
    return Variants(answered, size_of, len(every) - len(common), missing)


def _variant(
    name: str,
    seeds: dict[tuple[int, ...], list[Outcome]],
    number: dict[tuple[int, str], int],
    kind: TokenKind,
) -> Variant:
    names = sorted(seed for seed in seeds if seed)
    columns = []
    for i, part in enumerate([seeds[seed] for seed in names] or seeds.values()):
        own = [o for o in part if (o.size, o.problem) in number]
        problem = np.fromiter((number[o.size, o.problem] for o in own), dtype=np.int64)
        tokens = np.fromiter((o.tokens(kind) for o in own), dtype=np.float64)
        right = np.fromiter((o.correct for o in own), dtype=np.bool_)
        order = np.lexsort((right, tokens, problem))
        columns.append((np.full(len(own), i), problem[order], tokens[order], right[order]))
    seed, problem, tokens, right = (np.concatenate(column) for column in zip(*columns, strict=True))
    made = [part[0].made for part in seeds.values()]
    spent = [m.get("rollout_tokens", 0) + m.get("training_tokens", 0) for m in made]
    return Variant(
        name=name,
        seeds=tuple(names),
        seed=seed,
        problem=problem,
        tokens=tokens,
        correct=right,
        made_tokens=math.fsum(spent) / len(made),
        made_seconds=math.fsum(m.get("seconds", 0) for m in made) / len(made),
    )


def pool_seeds(data: Variants, recipe: Mapping[str, Hashable]) -> Variants:
    """The variants, each with the spread of all seeds of its recipe, if four or more share it; else
    as they were.
    """
    arms: dict[Hashable, list[Floats]] = {}
    for v in data.variants:
        arms.setdefault(recipe[v.name], []).append(v.by_seed(v.correct))
    pools = {name: pooled(own) for name, own in arms.items()}
    return replace(
        data,
        variants=tuple(
            replace(v, pool=pools[recipe[v.name]] if len(v.seeds) > 1 else None)
            for v in data.variants
        ),
    )


def summarize(
    data: Variants,
    reference: str,
    *,
    gain: float = 3.0,
    loss: float = 5.0,
    level: float = 0.95,
    replicates: int = 4000,
    seed: int = 0,
) -> list[VariantSummary]:
    """One summary per variant. `gain` and `loss` weigh AES."""
    if not data.variants:
        return []
    own = [(mean_tokens(v, level), fraction(v, v.correct, level)) for v in data.variants]
    names = [v.name for v in data.variants]
    ref = names.index(reference) if reference in names else -1  # -1: it has no answers here
    tokens, right = _draws(data, level, replicates, seed)
    on = on_frontier(tokens, right)
    chance = on[1:].mean(axis=0)
    # Clip only after `on_frontier`: clipped earlier, half of the draws of two perfect variants
    # would tie.
    right = right.clip(0, 1)
    per_right = _per(tokens, right)
    ratio = tokens / tokens[:, [ref]]
    score = aes(ratio, right, right[:, [ref]], gain, loss)
    paid = _per(np.array([v.made_tokens for v in data.variants]), tokens[:, [ref]] - tokens)
    summaries = []
    for k, (variant, (spent, correct)) in enumerate(zip(data.variants, own, strict=True)):
        against = None
        if ref >= 0 and k != ref:
            against = Comparison(
                difference=accuracy_difference(variant, data.variants[ref], level),
                p_value=difference_p(variant, data.variants[ref]),
                ratio=_estimate(ratio[:, k], correct, level),
                aes=_estimate(score[:, k], correct, level, least=-math.inf),
                break_even=_estimate(paid[:, k], correct, level),
            )
        told = float(chance[k]) if data.problems >= FEWEST_PAIRS else math.nan
        summaries.append(
            VariantSummary(
                spent,
                correct,
                _estimate(per_right[:, k], correct, level),
                bool(on[0, k]),
                told,
                against,
            )
        )
    return summaries


def mean_tokens(variant: Variant, level: float = 0.95) -> Estimate:
    over_problems = mean(variant.tokens, variant.problem, level)
    return widened(over_problems, [_spread(variant, variant.tokens)], level, 0.0, math.inf)


def fraction(variant: Variant, right: Bools, level: float = 0.95) -> Estimate:
    """The fraction of attempts for which `right` holds; for `variant.correct` it is the accuracy."""
    return widened(
        accuracy(right, variant.problem, level), [_spread(variant, right)], level, 0.0, 1.0
    )


def accuracy_difference(first: Variant, second: Variant, level: float = 0.95) -> Estimate:
    """Paired by problem, and over the seeds of the two with Welch's degrees of freedom."""
    return _accuracy_difference(first, second)(level)


def difference_p(first: Variant, second: Variant) -> float:
    """The p-value of equal accuracy, which agrees with the interval of the difference."""
    return p_value(_accuracy_difference(first, second))


def _accuracy_difference(first: Variant, second: Variant) -> Callable[[float], Estimate]:
    one, other = (v.by_problem(v.correct) for v in (first, second))
    spreads = [_spread(v, v.correct) for v in (first, second)]
    return lambda level: widened(paired_difference(one, other, level), spreads, level, -1.0, 1.0)


def verdict(difference: Estimate, margin: float, differs: bool = True) -> Verdict:
    """What a difference to the reference shows, where `margin` is a loss of accuracy that is
    tolerable.

    That the interval contains 0 doesn't show equality. `differs` is False if the difference doesn't
    withstand the correction for many comparisons: then no side of 0 is claimed.
    """
    if differs and difference.low > 0:
        return "above"
    below = differs and difference.high < 0
    if difference.low > -margin:
        return "slightly below" if below else "not below"
    return "below" if below else "open"


def aes(
    ratio: Floats, right: Floats, of_reference: Floats, gain: float = 3.0, loss: float = 5.0
) -> Floats:
    """The fraction of tokens saved plus the relative change in accuracy, weighted by `gain` or by
    `loss`.
    """
    never = of_reference <= 0
    change = np.where(never, math.inf, right / np.where(never, 1.0, of_reference) - 1)
    return np.asarray(1 - ratio + np.where(change >= 0, gain, loss) * change, dtype=np.float64)


def on_frontier(tokens: Floats, right: Floats) -> Bools:
    """Along the last axis: whether no other is at least as accurate for at most as many tokens, and
    better in one.
    """
    fewer, more = tokens[..., None, :], right[..., None, :]
    than, as_often = tokens[..., :, None], right[..., :, None]
    dominated = (fewer <= than) & (more >= as_often) & ((fewer < than) | (more > as_often))
    return np.asarray(~dominated.any(axis=-1), dtype=np.bool_)


def under_budget(variant: Variant, budgets: Sequence[float], level: float = 0.95) -> list[Estimate]:
    """Accuracy if only answers within a budget of tokens count, for budgets in ascending order.

    The intervals are a simultaneous band: in 95 % of cases the whole true curve is inside.
    """
    problems = int(variant.problem.max()) + 1
    if 1 < problems == len(variant.correct) < FEW:
        half = constant_half(problems, level)
        plain = [accuracy(variant.within(t), variant.problem, level) for t in budgets]
        band = [
            replace(e, low=max(0.0, e.value - half), high=min(1.0, e.value + half)) for e in plain
        ]
    else:
        band = _sup_t(variant, budgets, level)
    # Accuracy can't fall as the budget grows, so what bounds it at one budget bounds it at the
    # others.
    low = np.maximum.accumulate([e.low for e in band])
    high = np.minimum.accumulate([e.high for e in reversed(band)])[::-1]
    return [
        replace(e, low=float(a), high=float(b)) for e, a, b in zip(band, low, high, strict=True)
    ]


def _sup_t(variant: Variant, budgets: Sequence[float], level: float) -> list[Estimate]:
    attempts = np.bincount(variant.problem)
    # a byte each, mostly
    right = np.empty((len(attempts), len(budgets)), dtype=np.min_scalar_type(attempts.max()))
    for k, t in enumerate(budgets):
        right[:, k] = summed(variant.within(t), variant.problem)
    all_hold = simultaneous_level(right, level, attempts)
    times = z_quantile((1 + all_hold) / 2) / z_quantile((1 + level) / 2)
    band = []
    for t, column in zip(budgets, right.T, strict=True):
        within = variant.within(t)
        e = widened(
            accuracy(within, variant.problem, all_hold),
            [_spread(variant, within)],
            level,
            0.0,
            1.0,
            times,
        )
        # The first steps come early by luck, where errors are far from normal: with this the band
        # of 100 problems covers 95 %, without it 89 %.
        few_right, few_wrong = (column > 0).sum() < EDGE, (column < attempts).sum() < EDGE
        band.append(replace(e, low=0.0 if few_right else e.low, high=1.0 if few_wrong else e.high))
    return band


def simultaneous_level(
    right: Floats | Ints,
    level: float,
    attempts: Floats | Ints,
    replicates: int = 4000,
    seed: int = 0,
) -> float:
    """The level of each point's interval at which all of them hold together.

    `right` is problems × points: how many of each problem's `attempts` are right.
    """
    together = _covariance(right, attempts)
    varying = np.flatnonzero(np.diag(together) > 0)
    if len(right) < 2 or len(varying) < 2:
        return level
    together = together[np.ix_(varying, varying)]
    error = np.sqrt(np.diag(together))
    values, vectors = np.linalg.eigh((together / np.outer(error, error)).clip(-1, 1))
    roots = vectors * np.sqrt(values.clip(0))
    drawn = np.random.default_rng(seed).standard_normal((replicates, len(roots))) @ roots.T
    largest = float(np.quantile(np.abs(drawn).max(axis=1), level))
    return 2 * NormalDist().cdf(max(largest, z_quantile((1 + level) / 2))) - 1


def _covariance(right: Floats | Ints, attempts: Floats | Ints) -> Floats:
    """Points × points, over the problems' means, up to a factor; some problems at a time, to use
    little memory.
    """
    parts = [slice(a, a + PART) for a in range(0, len(right), PART)]
    means = sum((right[part] / attempts[part, None]).sum(axis=0) for part in parts) / len(right)
    total = np.zeros((right.shape[1], right.shape[1]))
    for part in parts:
        apart = right[part] / attempts[part, None] - means
        total += apart.T @ apart
    return total


def constant_half(problems: int, level: float) -> float:
    """Half the width of the constant band around a distribution function (Massart 1990): at 95 %,
    1.358/√problems.
    """
    return math.sqrt(math.log(2 / (1 - level)) / 2 / problems)


def budget_area(variant: Variant, most: float, level: float = 0.95) -> Estimate:
    """Accuracy under a budget, averaged over all budgets up to `most` (the area under the curve)."""
    if not variant.correct.any():  # a mean of zeros would have no interval
        return fraction(variant, variant.correct, level)
    earned = _earned(variant, most)
    area = widened(
        mean(earned, variant.problem, level), [spread(variant.by_seed(earned))], level, 0.0, 1.0
    )
    return replace(area, high=min(area.high, 1.0))  # of a few problems it may be anything


def area_difference(first: Variant, second: Variant, most: float, level: float = 0.95) -> Estimate:
    return _area_difference(first, second, most)(level)


def area_p(first: Variant, second: Variant, most: float) -> float:
    """The p-value of equal areas, which agrees with the interval of their difference."""
    return p_value(_area_difference(first, second, most))


def _area_difference(first: Variant, second: Variant, most: float) -> Callable[[float], Estimate]:
    earned = [_earned(v, most) for v in (first, second)]
    apart = first.by_problem(earned[0]) - second.by_problem(earned[1])
    spreads = [spread(v.by_seed(e)) for v, e in zip((first, second), earned, strict=True)]
    number = np.arange(len(apart))

    def difference(level: float) -> Estimate:
        if len(apart) < FEWEST_PAIRS:
            return Estimate(float(apart.mean()), -1.0, 1.0, len(apart), len(apart))
        area = widened(mean(apart, number, level, least=-1.0), spreads, level, -1.0, 1.0)
        return replace(area, high=min(area.high, 1.0))

    return difference


def _earned(variant: Variant, most: float) -> Floats:
    """For each attempt, the fraction of budgets up to `most` under which it is right."""
    return np.asarray(variant.correct * (1 - variant.tokens / most).clip(0), dtype=np.float64)


def _spread(variant: Variant, values: Floats | Bools) -> Spread:
    """How much training seeds contribute; from the pool if there is one and these are fractions."""
    if variant.pool and values.dtype == np.bool_:
        return variant.pool.spread(float(variant.by_problem(values).mean()), len(variant.seeds))
    return spread(variant.by_seed(values))


def _departures(variant: Variant, values: Floats | Bools) -> Floats:
    """How far each training seed's mean is from the mean of all, shrunk by the variance that
    problems explain.
    """
    cells = variant.by_seed(values)
    apart, own = np.asarray(cells.mean(axis=1) - cells.mean(), dtype=np.float64), spread(cells)
    return apart * math.sqrt(max(0.0, own.training) / own.total) if own.total else apart


def _draws(data: Variants, level: float, replicates: int, seed: int) -> tuple[Floats, Floats]:
    """Mean tokens and accuracy, draws × variants; the first row is as measured."""
    # Every problem counts once, however many samples it has; its weights add up to the number of
    # problems.
    values = np.column_stack(
        [v.by_problem(c) for v in data.variants for c in (v.tokens, v.correct)]
    )
    sums = np.vstack(
        [values.sum(axis=0), resampled_sums(values, data.size_of, replicates, seed).sum(axis=1)]
    )
    means = sums / data.problems
    log_tokens, right = np.log(np.maximum(means[:, 0::2], 1e-9)), means[:, 1::2]
    # Widens the percentiles from the normal's to those of Student's t, which matters for few
    # problems.
    freedom = max(1, data.problems - len(strata(data.size_of)))
    few = t_quantile((1 + level) / 2, freedom) / z_quantile((1 + level) / 2)
    for drawn in (log_tokens, right):
        drawn[1:] = drawn[0] + few * (drawn[1:] - drawn[0])
    for k, variant in enumerate(data.variants):
        rng = np.random.default_rng(seed_from(seed, variant.name))
        # One more problem that this variant alone gets right or wrong (Bonett & Price 2012): two
        # perfect variants may differ.
        right[1:, k] += rng.standard_normal(replicates) / (data.problems + 2)
        n = len(variant.seeds)
        if n > 1:
            pull = rng.standard_normal((replicates, n)) / math.sqrt(n * (n - 1))
            pull /= np.sqrt(rng.chisquare(n - 1, (replicates, 1)) / (n - 1))
            right[1:, k] += pull @ _departures(variant, variant.correct)
            # On the log scale, because two seeds have Cauchy tails and tokens are never negative.
            log_tokens[1:, k] += (
                pull @ _departures(variant, variant.tokens) / math.exp(log_tokens[0, k])
            )
    return np.exp(log_tokens.clip(-50, 50)), right


def _estimate(drawn: Floats, basis: Estimate, level: float, least: float = 0.0) -> Estimate:
    """The first row, which was measured, with the percentiles of the other rows."""
    value, low, high = float(drawn[0]), least, math.inf
    if basis.problems >= FEWEST_PAIRS:
        ends = np.quantile(drawn[1:], [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
        low, high = min(value, float(ends[0])), max(value, float(ends[1]))
    return Estimate(value, low, high, basis.attempts, basis.problems)


def _per(amount: Floats, count: Floats) -> Floats:
    """The quotient; infinite where the count is zero."""
    none = count <= 0
    return np.where(none, math.inf, amount / np.where(none, 1.0, count))
