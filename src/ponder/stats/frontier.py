"""Compare variants of a model by accuracy and tokens on the same problems.

That is the frontier, the savings, and the accuracy under a budget of tokens. Instead of tokens it
may be money or seconds: wherever this file says tokens, it means the resource of its `Variants`.

Two things vary by chance: the problems, which all variants share, and the training seed of each
trained variant. Redrawing three seeds would understate how much they differ, so the variance
between seeds (minus the part that problems explain) enters as Student's t with one degree of
freedom fewer than there are seeds. Accuracy, tokens, AUC and their differences are widened by it
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
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate, Outcome, Resource, seed_from
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.bootstrap import resampled_sums, strata
from ponder.stats.columns import FEWEST_PAIRS, Bools, Floats, Ints, summed
from ponder.stats.corrections import level_for_all, p_value
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.paired import paired_difference
from ponder.stats.seeds import PooledSeeds, Spread, pooled, spread, widened

Verdict: TypeAlias = Literal["above", "not below", "slightly below", "below", "open"]
FEW_PROBLEMS = 50  # below this, a curve of one sample per problem gets a constant band
CHUNK = 5000  # problems at a time
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
    tokens: Floats  # or another resource, as requested
    correct: Bools
    made_tokens: float  # rollouts and training, averaged over its seeds
    made_seconds: float
    # how much accuracy varies between seeds, if other variants say so too
    pool: PooledSeeds | None = None
    resource: Resource = "output"  # that `tokens` holds

    @property
    def problems(self) -> int:
        return int(self.problem.max()) + 1

    @property
    def made(self) -> float:
        """What making it took of its resource; nan for money, since training has no price."""
        if self.resource == "seconds":
            return self.made_seconds
        if self.resource == "cost" and (self.made_tokens or self.made_seconds):
            return math.nan
        return self.made_tokens

    def within(self, budget: float) -> Bools:
        """Return which attempts are right and took no more tokens than this."""
        return np.asarray(self.correct & (self.tokens <= budget))

    def by_problem(self, values: Floats | Bools) -> Floats:
        """Return the mean of a value per attempt on each problem."""
        return summed(values, self.problem) / np.bincount(self.problem)

    def by_seed(self, values: Floats | Bools) -> Floats:
        """Return the means of a value per attempt, seeds × problems."""
        seeds = max(1, len(self.seeds))
        cell = self.seed * self.problems + self.problem
        return (summed(values, cell) / np.bincount(cell)).reshape(seeds, self.problems)


@dataclass(frozen=True, slots=True)
class Variants:
    """Variants in the study's order, on the problems that every seed of every variant answered."""

    variants: tuple[Variant, ...]
    size_of: Ints  # of each problem, as an index into the sizes
    left_out: int  # problems that not all answered
    # for each variant that lacks some: how many of the problems that others answered
    missing: Mapping[str, int] = field(default_factory=dict)

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


def variants(outcomes: Mapping[str, Sequence[Outcome]], resource: Resource = "output") -> Variants:
    """Match the variants of one task, or of one size of it, given by name.

    A seed without any answer is left out.
    """
    groups: dict[str, dict[tuple[int, ...], list[Outcome]]] = {}
    for name, attempts in outcomes.items():
        for o in attempts:
            if o.answered:
                groups.setdefault(name, {}).setdefault(o.cell.training_seeds, []).append(o)
    answered: dict[str, set[tuple[int, str]]] = {}  # by variant: the problems of all its seeds
    answered_by_any: set[tuple[int, str]] = set()
    for name, seeds in groups.items():
        problems = [{(o.size, o.problem) for o in attempts} for attempts in seeds.values()]
        answered[name] = set.intersection(*problems)
        answered_by_any.update(*problems)
    common: list[tuple[int, str]] = []
    if answered:
        common = sorted(set.intersection(*answered.values()))
    missing = {}
    for name in outcomes:  # with those that have no answers at all
        lacking = len(answered_by_any - answered.get(name, set()))
        if lacking:
            missing[name] = lacking
    matched = []
    if common:
        number = {problem: i for i, problem in enumerate(common)}
        matched = [_variant(name, seeds, number, resource) for name, seeds in groups.items()]
    sizes = np.array([size for size, _ in common])
    return Variants(
        variants=tuple(matched),
        size_of=np.unique(sizes, return_inverse=True)[1].astype(np.int64),
        left_out=len(answered_by_any) - len(common),
        missing=missing,
    )


def _variant(
    name: str,
    by_seed: dict[tuple[int, ...], list[Outcome]],
    number: dict[tuple[int, str], int],
    resource: Resource,
) -> Variant:
    """Return one variant's columns; `number` has the problems to keep."""
    trained = sorted(seed for seed in by_seed if seed)
    if trained:
        attempts_by_seed = [by_seed[seed] for seed in trained]
    else:
        attempts_by_seed = list(by_seed.values())
    columns = []
    for i, attempts in enumerate(attempts_by_seed):
        kept = [o for o in attempts if (o.size, o.problem) in number]
        problem = np.fromiter((number[o.size, o.problem] for o in kept), dtype=np.int64)
        tokens = np.fromiter((o.used(resource) for o in kept), dtype=np.float64)
        correct = np.fromiter((o.correct for o in kept), dtype=np.bool_)
        order = np.lexsort((correct, tokens, problem))
        columns.append((np.full(len(kept), i), problem[order], tokens[order], correct[order]))
    seed, problem, tokens, correct = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    made = [attempts[0].made for attempts in by_seed.values()]
    made_tokens = [m.get("rollout_tokens", 0) + m.get("training_tokens", 0) for m in made]
    made_seconds = [m.get("seconds", 0) for m in made]
    return Variant(
        name=name,
        seeds=tuple(trained),
        seed=seed,
        problem=problem,
        tokens=tokens,
        correct=correct,
        made_tokens=math.fsum(made_tokens) / len(made),
        made_seconds=math.fsum(made_seconds) / len(made),
        resource=resource,
    )


def pool_seeds(data: Variants, recipe: Mapping[str, Hashable]) -> Variants:
    """Give each variant the spread of all seeds of its recipe, if four or more variants share it.

    `recipe` is keyed by the variant's name.
    """
    arms: dict[Hashable, list[Floats]] = {}
    for variant in data.variants:
        by_seed = variant.by_seed(variant.correct)
        arms.setdefault(recipe[variant.name], []).append(by_seed)
    pools = {name: pooled(cells) for name, cells in arms.items()}
    with_pools = []
    for variant in data.variants:
        pool = None
        if len(variant.seeds) > 1:
            pool = pools[recipe[variant.name]]
        with_pools.append(replace(variant, pool=pool))
    return replace(data, variants=tuple(with_pools))


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
    """Summarize each variant; `gain` and `loss` weigh the accuracy in AES."""
    if not data.variants:
        return []
    names = [variant.name for variant in data.variants]
    reference_index = None  # None: the reference has no answers here
    if reference in names:
        reference_index = names.index(reference)
    tokens, right = _draws(data, level, replicates, seed)
    on = on_frontier(tokens, right)
    chance = on[1:].mean(axis=0)
    # Clip only after `on_frontier`: clipped earlier, half of the draws of two perfect variants
    # would tie.
    right = right.clip(0, 1)
    per_right = _quotient(tokens, right)
    comparisons: list[Comparison | None] = [None] * len(names)
    if reference_index is not None:
        comparisons = _comparisons(data, reference_index, tokens, right, gain, loss, level)
    summaries = []
    for k, variant in enumerate(data.variants):
        frontier_chance = math.nan
        if data.problems >= FEWEST_PAIRS:
            frontier_chance = float(chance[k])
        summaries.append(
            VariantSummary(
                tokens=mean_tokens(variant, level),
                accuracy=fraction(variant, variant.correct, level),
                tokens_per_right=_estimate(per_right[:, k], variant, level),
                on_frontier=bool(on[0, k]),
                frontier_chance=frontier_chance,
                against=comparisons[k],
            )
        )
    return summaries


def _comparisons(
    data: Variants,
    reference_index: int,
    tokens: Floats,
    right: Floats,
    gain: float,
    loss: float,
    level: float,
) -> list[Comparison | None]:
    """Compare each variant with the reference; `tokens` and `right` are draws × variants."""
    reference = data.variants[reference_index]
    reference_tokens = tokens[:, [reference_index]]
    ratio = tokens / reference_tokens
    score = aes(ratio, right, right[:, [reference_index]], gain, loss)
    made = np.array([variant.made for variant in data.variants])
    break_even = _quotient(made, reference_tokens - tokens)
    comparisons: list[Comparison | None] = []
    for k, variant in enumerate(data.variants):
        if k == reference_index:
            comparisons.append(None)
            continue
        comparisons.append(
            Comparison(
                difference=accuracy_difference(variant, reference, level),
                p_value=difference_p(variant, reference),
                ratio=_estimate(ratio[:, k], variant, level),
                aes=_estimate(score[:, k], variant, level, least=-math.inf),
                break_even=_break_even(break_even[:, k], variant, level),
            )
        )
    return comparisons


def _break_even(drawn: Floats, variant: Variant, level: float) -> Estimate:
    """Return after how many answers a variant has saved what making it took."""
    if math.isnan(variant.made):
        return Estimate(math.nan, math.nan, math.nan, len(variant.correct), variant.problems)
    return _estimate(drawn, variant, level)


def mean_tokens(variant: Variant, level: float = 0.95) -> Estimate:
    """Return the mean tokens of an attempt, over problems and training seeds."""
    over_problems = mean(variant.tokens, variant.problem, level)
    return widened(over_problems, [_spread(variant, variant.tokens)], level, 0.0, math.inf)


def fraction(variant: Variant, right: Bools, level: float = 0.95) -> Estimate:
    """Return the fraction of attempts for which `right` holds, such as the accuracy."""
    over_problems = accuracy(right, variant.problem, level)
    return widened(over_problems, [_spread(variant, right)], level, 0.0, 1.0)


def accuracy_difference(first: Variant, second: Variant, level: float = 0.95) -> Estimate:
    """Return `first` minus `second`, paired by problem, with Welch's freedom over their seeds."""
    return _accuracy_difference(first, second)(level)


def difference_p(first: Variant, second: Variant) -> float:
    """Return the p-value of equal accuracy, which agrees with the interval of the difference."""
    return p_value(_accuracy_difference(first, second))


def _accuracy_difference(first: Variant, second: Variant) -> Callable[[float], Estimate]:
    """Return the difference in accuracy as a function of the level."""
    first_right = first.by_problem(first.correct)
    second_right = second.by_problem(second.correct)
    spreads = [_spread(first, first.correct), _spread(second, second.correct)]

    def difference(level: float) -> Estimate:
        over_problems = paired_difference(first_right, second_right, level)
        return widened(over_problems, spreads, level, -1.0, 1.0)

    return difference


def verdict(difference: Estimate, margin: float, differs: bool = True) -> Verdict:
    """Judge a difference to the reference; `margin` is a loss of accuracy that is tolerable.

    That the interval contains 0 doesn't show equality. `differs` is False if the difference doesn't
    withstand the correction for many comparisons: then no side of 0 is claimed.
    """
    if differs and difference.low > 0:
        return "above"
    below = differs and difference.high < 0
    within_margin = difference.low > -margin
    if below and within_margin:
        return "slightly below"
    if below:
        return "below"
    if within_margin:
        return "not below"
    return "open"


def aes(
    ratio: Floats, right: Floats, of_reference: Floats, gain: float = 3.0, loss: float = 5.0
) -> Floats:
    """Return the accuracy-efficiency score of O1-Pruner (Luo et al. 2025).

    AES = fraction of tokens saved + weight · relative change in accuracy, where the weight is
    `gain` if accuracy rises and `loss` if it falls. `ratio` is that of tokens.
    """
    never_right = of_reference <= 0
    relative = right / np.where(never_right, 1.0, of_reference) - 1
    change = np.where(never_right, math.inf, relative)
    weight = np.where(change >= 0, gain, loss)
    return np.asarray(1 - ratio + weight * change, dtype=np.float64)


def on_frontier(tokens: Floats, right: Floats) -> Bools:
    """Return, along the last axis, which variants no other one dominates.

    Another one dominates if it is at least as accurate for at most as many tokens, and better in
    one of the two.
    """
    other_tokens = tokens[..., None, :]
    other_right = right[..., None, :]
    own_tokens = tokens[..., :, None]
    own_right = right[..., :, None]
    at_least_as_good = (other_tokens <= own_tokens) & (other_right >= own_right)
    better = (other_tokens < own_tokens) | (other_right > own_right)
    dominated = (at_least_as_good & better).any(axis=-1)
    return np.asarray(~dominated, dtype=np.bool_)


# --- Accuracy under a budget ---


def under_budget(variant: Variant, budgets: Sequence[float], level: float = 0.95) -> list[Estimate]:
    """Return accuracy if only answers within a budget of tokens count, for ascending budgets.

    The intervals are a simultaneous band: in 95 % of cases the whole true curve is inside.
    """
    one_sample_each = variant.problems == len(variant.correct)
    if one_sample_each and 1 < variant.problems < FEW_PROBLEMS:
        band = _constant_band(variant, budgets, level)
    else:
        band = _sup_t_band(variant, budgets, level)
    # Accuracy can't fall as the budget grows, so what bounds it at one budget bounds it at the
    # others.
    lows = np.maximum.accumulate([e.low for e in band])
    highs = np.minimum.accumulate([e.high for e in reversed(band)])[::-1]
    estimates = []
    for e, low, high in zip(band, lows, highs, strict=True):
        estimates.append(replace(e, low=float(low), high=float(high)))
    return estimates


def _constant_band(variant: Variant, budgets: Sequence[float], level: float) -> list[Estimate]:
    half = constant_half(variant.problems, level)
    band = []
    for budget in budgets:
        e = accuracy(variant.within(budget), variant.problem, level)
        band.append(replace(e, low=max(0.0, e.value - half), high=min(1.0, e.value + half)))
    return band


def _sup_t_band(variant: Variant, budgets: Sequence[float], level: float) -> list[Estimate]:
    """Return the sup-t band of Montiel Olea & Plagborg-Møller (2019)."""
    attempts = np.bincount(variant.problem)
    smallest_type = np.min_scalar_type(attempts.max())  # a byte each, mostly
    right = np.empty((len(attempts), len(budgets)), dtype=smallest_type)
    for k, budget in enumerate(budgets):
        right[:, k] = summed(variant.within(budget), variant.problem)
    point_level = simultaneous_level(right, level, attempts)
    times = z_quantile((1 + point_level) / 2) / z_quantile((1 + level) / 2)
    band = []
    for budget, right_of_problem in zip(budgets, right.T, strict=True):
        within = variant.within(budget)
        over_problems = accuracy(within, variant.problem, point_level)
        e = widened(over_problems, [_spread(variant, within)], level, 0.0, 1.0, times)
        # The first steps come early by luck, where errors are far from normal: with this the band
        # of 100 problems covers 95 %, without it 89 %.
        if (right_of_problem > 0).sum() < EDGE:
            e = replace(e, low=0.0)
        if (right_of_problem < attempts).sum() < EDGE:
            e = replace(e, high=1.0)
        band.append(e)
    return band


def simultaneous_level(
    right: Floats | Ints,
    level: float,
    attempts: Floats | Ints,
    replicates: int = 4000,
    seed: int = 0,
) -> float:
    """Return the level of each point's interval at which all of them hold together.

    `right` is problems × points: how many of each problem's `attempts` are right.
    """
    covariance = _covariance(right, attempts)
    varying = np.flatnonzero(np.diag(covariance) > 0)
    if len(right) < 2 or len(varying) < 2:
        return level
    covariance = covariance[np.ix_(varying, varying)]
    error = np.sqrt(np.diag(covariance))
    correlation = (covariance / np.outer(error, error)).clip(-1, 1)
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(values.clip(0))
    return level_for_all(root, level, replicates, seed)


def _covariance(right: Floats | Ints, attempts: Floats | Ints) -> Floats:
    """Return the covariance of the problems' means, points × points, up to a factor.

    Computed from some problems at a time, to use little memory.
    """
    chunks = [slice(start, start + CHUNK) for start in range(0, len(right), CHUNK)]
    totals = [(right[chunk] / attempts[chunk, None]).sum(axis=0) for chunk in chunks]
    means = sum(totals) / len(right)
    covariance = np.zeros((right.shape[1], right.shape[1]))
    for chunk in chunks:
        centred = right[chunk] / attempts[chunk, None] - means
        covariance += centred.T @ centred
    return covariance


def constant_half(problems: int, level: float) -> float:
    """Return half the width of the constant band around a distribution function (Massart 1990).

    At 95 % it is 1.358/√problems.
    """
    return math.sqrt(math.log(2 / (1 - level)) / 2 / problems)


def budget_area(variant: Variant, largest: float, level: float = 0.95) -> Estimate:
    """Return accuracy under a budget, averaged over all budgets up to the largest (the AUC)."""
    if not variant.correct.any():  # a mean of zeros would have no interval
        return fraction(variant, variant.correct, level)
    earned = _earned(variant, largest)
    over_problems = mean(earned, variant.problem, level)
    area = widened(over_problems, [spread(variant.by_seed(earned))], level, 0.0, 1.0)
    return replace(area, high=min(area.high, 1.0))  # of a few problems it may be anything


def area_difference(
    first: Variant, second: Variant, largest: float, level: float = 0.95
) -> Estimate:
    """Return the area of `first` minus that of `second`, paired by problem."""
    return _area_difference(first, second, largest)(level)


def area_p(first: Variant, second: Variant, largest: float) -> float:
    """Return the p-value of equal areas, which agrees with the interval of their difference."""
    return p_value(_area_difference(first, second, largest))


def _area_difference(
    first: Variant, second: Variant, largest: float
) -> Callable[[float], Estimate]:
    """Return the difference of the areas as a function of the level."""
    first_earned = _earned(first, largest)
    second_earned = _earned(second, largest)
    differences = first.by_problem(first_earned) - second.by_problem(second_earned)
    spreads = [spread(first.by_seed(first_earned)), spread(second.by_seed(second_earned))]
    n = len(differences)

    def difference(level: float) -> Estimate:
        if n < FEWEST_PAIRS:
            return Estimate(float(differences.mean()), -1.0, 1.0, n, n)
        over_problems = mean(differences, np.arange(n), level, least=-1.0)
        area = widened(over_problems, spreads, level, -1.0, 1.0)
        return replace(area, high=min(area.high, 1.0))

    return difference


def _earned(variant: Variant, largest: float) -> Floats:
    """Return for each attempt the fraction of budgets up to the largest under which it is right."""
    return np.asarray(variant.correct * (1 - variant.tokens / largest).clip(0), dtype=np.float64)


# --- Training seeds, and draws of problems and seeds ---


def _spread(variant: Variant, values: Floats | Bools) -> Spread:
    """Return how much training seeds contribute; of fractions, from the pool if there is one."""
    if variant.pool and values.dtype == np.bool_:
        return variant.pool.spread(float(variant.by_problem(values).mean()), len(variant.seeds))
    return spread(variant.by_seed(values))


def _seed_deviations(variant: Variant, values: Floats | Bools) -> Floats:
    """Return how far each training seed's mean is from the mean of all.

    Shrunk by the variance that problems explain.
    """
    cells = variant.by_seed(values)
    deviations = np.asarray(cells.mean(axis=1) - cells.mean(), dtype=np.float64)
    seeds = spread(cells)
    if not seeds.total:
        return deviations
    return deviations * math.sqrt(max(0.0, seeds.training) / seeds.total)


def _draws(data: Variants, level: float, replicates: int, seed: int) -> tuple[Floats, Floats]:
    """Draw mean tokens and accuracy, draws × variants; the first row is as measured."""
    # Every problem counts once, however many samples it has; its weights add up to the number of
    # problems.
    columns = []
    for variant in data.variants:
        columns.append(variant.by_problem(variant.tokens))
        columns.append(variant.by_problem(variant.correct))
    values = np.column_stack(columns)
    resampled = resampled_sums(values, data.size_of, replicates, seed).sum(axis=1)
    means = np.vstack([values.sum(axis=0), resampled]) / data.problems
    log_tokens = np.log(np.maximum(means[:, 0::2], 1e-9))
    right = means[:, 1::2]
    # Widens the percentiles from the normal's to those of Student's t, which matters for few
    # problems.
    freedom = max(1, data.problems - len(strata(data.size_of)))
    factor = t_quantile((1 + level) / 2, freedom) / z_quantile((1 + level) / 2)
    log_tokens[1:] = log_tokens[0] + factor * (log_tokens[1:] - log_tokens[0])
    right[1:] = right[0] + factor * (right[1:] - right[0])
    for k, variant in enumerate(data.variants):
        rng = np.random.default_rng(seed_from(seed, variant.name))
        # One more problem that this variant alone gets right or wrong (Bonett & Price 2012): two
        # perfect variants may differ.
        right[1:, k] += rng.standard_normal(replicates) / (data.problems + 2)
        n = len(variant.seeds)
        if n > 1:
            # Student's t with n - 1 degrees of freedom, in directions of the seeds' deviations
            direction = rng.standard_normal((replicates, n)) / math.sqrt(n * (n - 1))
            direction /= np.sqrt(rng.chisquare(n - 1, (replicates, 1)) / (n - 1))
            right[1:, k] += direction @ _seed_deviations(variant, variant.correct)
            # On the log scale, because two seeds have Cauchy tails and tokens are never negative.
            tokens = direction @ _seed_deviations(variant, variant.tokens)
            log_tokens[1:, k] += tokens / math.exp(log_tokens[0, k])
    return np.exp(log_tokens.clip(-50, 50)), right


def _estimate(drawn: Floats, variant: Variant, level: float, least: float = 0.0) -> Estimate:
    """Return the first entry, which was measured, with the percentiles of the others."""
    value = float(drawn[0])
    low = least
    high = math.inf
    if variant.problems >= FEWEST_PAIRS:
        probabilities = [(1 - level) / 2, (1 + level) / 2]
        ends = np.quantile(drawn[1:], probabilities, method="inverted_cdf")
        low = min(value, float(ends[0]))
        high = max(value, float(ends[1]))
    return Estimate(value, low, high, len(variant.correct), variant.problems)


def _quotient(amount: Floats, count: Floats) -> Floats:
    """Return amount / count; infinite where the count is not positive."""
    none = count <= 0
    return np.where(none, math.inf, amount / np.where(none, 1.0, count))
