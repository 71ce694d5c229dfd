"""Compares variants of a model by accuracy and tokens on the same problems: frontier, savings, accuracy under a budget.

Two things vary by chance: the problems, which all variants share, and the training seed of each trained variant.
Redrawing three seeds would understate how much they differ, so the variance between seeds (less the part that problems
explain) enters as Student's t with one degree of freedom fewer than there are seeds. For accuracy and tokens its half-
width is added in quadrature to that of the problems (as in `difference`); for a ratio, AES and the frontier, both
are drawn jointly. Without seeds, accuracy and tokens have the intervals of `accuracy` and `mean`.

AES is that of O1-Pruner (Luo et al. 2025). Accuracy under a budget is OAA_t of OptimalThinkingBench (Aggarwal et al.
2025), except that an answer of exactly the budget counts, and the area under the curve is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate, Outcome, TokenKind, seed_from
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.bootstrap import resampled_sums, strata
from ponder.stats.columns import Bools, Floats, Ints, summed
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.grid import paired_difference

Verdict: TypeAlias = Literal["above", "not below", "slightly below", "below", "open"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A model, or all training seeds of one. Its columns have one row per answered attempt, by seed and problem."""

    name: str
    seeds: tuple[tuple[int, ...], ...]  # one tuple of training seeds per trained model; empty if nothing was trained
    seed: Ints  # index into `seeds`
    problem: Ints  # counted from 0, the same for every variant
    tokens: Floats  # of the kind asked for
    correct: Bools
    made_tokens: float  # rollouts and training, averaged over its seeds
    made_seconds: float

    def by_problem(self, values: Floats | Bools) -> Floats:
        return summed(values, self.problem) / np.bincount(self.problem)


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
    verdict: Verdict
    ratio: Estimate  # of tokens
    aes: Estimate
    break_even: Estimate  # answers until it has saved the tokens that making it cost; infinite: never


@dataclass(frozen=True, slots=True)
class VariantSummary:
    tokens: Estimate
    accuracy: Estimate
    tokens_per_right: Estimate
    on_frontier: bool  # as measured
    frontier_chance: float  # probability of being on the frontier; nan for a single problem
    against: Comparison | None  # None for the reference itself, or if the reference has no answers


def variants(outcomes: Sequence[Outcome], tokens: TokenKind = "output") -> Variants:
    """The variants of one task, or of one size of it. A seed without any answer is left out."""
    groups: dict[str, dict[tuple[int, ...], list[Outcome]]] = {}
    for o in outcomes:
        if o.status != "failed":
            groups.setdefault(o.variant, {}).setdefault(o.seeds, []).append(o)
    asked = {
        name: set.intersection(*({(o.size, o.problem) for o in part} for part in seeds.values()))
        for name, seeds in groups.items()
    }
    common = sorted(set.intersection(*asked.values())) if asked else []
    every = {(o.size, o.problem) for seeds in groups.values() for part in seeds.values() for o in part}
    names = dict.fromkeys(o.variant for o in outcomes)  # with those that have no answers at all
    missing = {name: len(every - asked.get(name, set())) for name in names if every - asked.get(name, set())}
    number = {problem: i for i, problem in enumerate(common)}
    size_of = np.unique(np.array([size for size, _ in common]), return_inverse=True)[1].astype(np.int64)
    answered = tuple(_variant(name, seeds, number, tokens) for name, seeds in groups.items()) if common else ()
    return Variants(answered, size_of, len(every) - len(common), missing)


def _variant(
    name: str, seeds: dict[tuple[int, ...], list[Outcome]], number: dict[tuple[int, str], int], kind: TokenKind
) -> Variant:
    names = sorted(seed for seed in seeds if seed)
    rows = []
    for i, part in enumerate([seeds[seed] for seed in names] or seeds.values()):
        own = [o for o in part if (o.size, o.problem) in number]
        rows += sorted((i, number[o.size, o.problem], o.tokens(kind), _right(o)) for o in own)
    seed, problem, tokens, right = zip(*rows, strict=True)
    made = [part[0].made for part in seeds.values()]
    spent = [m.get("rollout_tokens", 0) + m.get("training_tokens", 0) for m in made]
    return Variant(
        name=name,
        seeds=tuple(names),
        seed=np.array(seed, dtype=np.int64),
        problem=np.array(problem, dtype=np.int64),
        tokens=np.array(tokens, dtype=np.float64),
        correct=np.array(right, dtype=np.bool_),
        made_tokens=math.fsum(spent) / len(made),
        made_seconds=math.fsum(m.get("seconds", 0) for m in made) / len(made),
    )


def _right(outcome: Outcome) -> bool:
    # An unparsed or truncated attempt is never right, whatever a task's grader says.
    return outcome.correct and outcome.status == "graded"


def summarize(
    data: Variants,
    reference: str,
    *,
    gain: float = 3.0,
    loss: float = 5.0,
    margin: float = 0.05,
    level: float = 0.95,
    replicates: int = 4000,
    seed: int = 0,
) -> list[VariantSummary]:
    """One summary per variant. `gain` and `loss` weigh AES; `margin` is a loss of accuracy that is tolerable."""
    if not data.variants:
        return []
    own = [(mean_tokens(v, level), fraction(v, v.correct, level)) for v in data.variants]
    names = [v.name for v in data.variants]
    ref = names.index(reference) if reference in names else -1  # -1: it has no answers here
    tokens, right = _draws(data, level, replicates, seed)
    on = on_frontier(tokens, right)
    chance = on[1:].mean(axis=0)
    # Clip only after `on_frontier`: clipped earlier, half of the draws of two perfect variants would tie.
    right = right.clip(0, 1)
    per_right = _per(tokens, right)
    ratio = tokens / tokens[:, [ref]]
    score = aes(ratio, right, right[:, [ref]], gain, loss)
    paid = _per(np.array([v.made_tokens for v in data.variants]), tokens[:, [ref]] - tokens)
    summaries = []
    for k, (variant, (spent, correct)) in enumerate(zip(data.variants, own, strict=True)):
        against = None
        if ref >= 0 and k != ref:
            difference = accuracy_difference(variant, data.variants[ref], level)
            against = Comparison(
                difference=difference,
                verdict=verdict(difference, margin),
                ratio=_estimate(ratio[:, k], correct, level),
                aes=_estimate(score[:, k], correct, level, least=-math.inf),
                break_even=_estimate(paid[:, k], correct, level),
            )
        told = float(chance[k]) if data.problems > 1 else math.nan
        summaries.append(
            VariantSummary(spent, correct, _estimate(per_right[:, k], correct, level), bool(on[0, k]), told, against)
        )
    return summaries


def mean_tokens(variant: Variant, level: float = 0.95) -> Estimate:
    over_problems = mean(variant.tokens, variant.problem, level)
    return _widened(over_problems, [_departures(variant, variant.tokens)], level, 0.0, math.inf)


def fraction(variant: Variant, right: Bools, level: float = 0.95) -> Estimate:
    """The fraction of attempts for which `right` holds; for `variant.correct` it is the accuracy."""
    return _widened(accuracy(right, variant.problem, level), [_departures(variant, right)], level, 0.0, 1.0)


def accuracy_difference(first: Variant, second: Variant, level: float = 0.95) -> Estimate:
    paired = paired_difference(first.by_problem(first.correct), second.by_problem(second.correct), level)
    return _widened(paired, [_departures(v, v.correct) for v in (first, second)], level, -1.0, 1.0)


def verdict(difference: Estimate, margin: float) -> Verdict:
    """What the interval of a difference to the reference shows. That it contains 0 doesn't show equality."""
    if difference.low > 0:
        return "above"
    if difference.low > -margin:
        return "slightly below" if difference.high < 0 else "not below"
    return "below" if difference.high < 0 else "open"


def aes(ratio: Floats, right: Floats, of_reference: Floats, gain: float = 3.0, loss: float = 5.0) -> Floats:
    """The fraction of tokens saved plus the relative change in accuracy, weighted by `gain` or by `loss`."""
    never = of_reference <= 0
    change = np.where(never, math.inf, right / np.where(never, 1.0, of_reference) - 1)
    return np.asarray(1 - ratio + np.where(change >= 0, gain, loss) * change, dtype=np.float64)


def on_frontier(tokens: Floats, right: Floats) -> Bools:
    """Along the last axis: whether no other is at least as accurate for at most as many tokens, and better in one."""
    fewer, more = tokens[..., None, :], right[..., None, :]
    than, as_often = tokens[..., :, None], right[..., :, None]
    dominated = (fewer <= than) & (more >= as_often) & ((fewer < than) | (more > as_often))
    return np.asarray(~dominated.any(axis=-1), dtype=np.bool_)


def under_budget(variant: Variant, budgets: Sequence[float], level: float = 0.95) -> list[Estimate]:
    """Accuracy if only answers within a budget of tokens count, for budgets in ascending order."""
    right = [fraction(variant, variant.correct & (variant.tokens <= t), level) for t in budgets]
    # Accuracy can't fall as the budget grows, so the band is widened until it doesn't either.
    low = np.minimum.accumulate([e.low for e in reversed(right)])[::-1]
    high = np.maximum.accumulate([e.high for e in right])
    return [replace(e, low=float(a), high=float(b)) for e, a, b in zip(right, low, high, strict=True)]


def budget_area(variant: Variant, most: float, level: float = 0.95) -> Estimate:
    """Accuracy under a budget, averaged over all budgets up to `most` (the area under the curve)."""
    if not variant.correct.any():  # a mean of zeros would have no interval
        return fraction(variant, variant.correct, level)
    earned = _earned(variant, most)
    return _widened(mean(earned, variant.problem, level), [_departures(variant, earned)], level, 0.0, 1.0)


def area_difference(first: Variant, second: Variant, most: float, level: float = 0.95) -> Estimate:
    earned = [_earned(v, most) for v in (first, second)]
    apart = first.by_problem(earned[0]) - second.by_problem(earned[1])
    paired = mean(apart, np.arange(len(apart)), level, least=-1.0)
    both = [_departures(v, e) for v, e in zip((first, second), earned, strict=True)]
    return _widened(paired, both, level, -1.0, 1.0)


def _earned(variant: Variant, most: float) -> Floats:
    """For each attempt, the fraction of budgets up to `most` under which it is right."""
    return np.asarray(variant.correct * (1 - variant.tokens / most).clip(0), dtype=np.float64)


def _departures(variant: Variant, values: Floats | Bools) -> Floats:
    """How far each training seed's mean is from the mean of all, shrunk by the variance that problems explain."""
    seeds, problems = max(1, len(variant.seeds)), int(variant.problem.max()) + 1
    if seeds < 2 or problems < 2:
        return np.zeros(seeds)
    cell = variant.seed * problems + variant.problem
    means = (summed(values, cell) / np.bincount(cell)).reshape(seeds, problems)
    apart = means.mean(axis=1) - means.mean()
    rest = means - means.mean(axis=0) - apart[:, None]
    # The interaction of seeds and problems is already in the interval over problems; don't count it twice.
    explained = float((rest**2).sum()) / (problems - 1) / problems
    total = float(apart @ apart)
    return np.asarray(apart * math.sqrt(max(0.0, 1 - explained / total)) if total > 0 else apart, dtype=np.float64)


def _widened(
    over_problems: Estimate, departures: Sequence[Floats], level: float, least: float, most: float
) -> Estimate:
    halves = [_half(d, level) for d in departures]
    if not any(halves):
        return over_problems
    value = over_problems.value
    low = value - math.hypot(value - over_problems.low, *halves)
    high = value + math.hypot(over_problems.high - value, *halves)
    return replace(over_problems, low=max(least, low), high=min(most, high))


def _half(departures: Floats, level: float) -> float:
    n = len(departures)
    if n < 2:
        return 0.0
    return t_quantile((1 + level) / 2, n - 1) * math.sqrt(float(departures @ departures) / (n - 1) / n)


def _draws(data: Variants, level: float, replicates: int, seed: int) -> tuple[Floats, Floats]:
    """Mean tokens and accuracy, draws × variants; the first row is as measured."""
    columns = [summed(c, v.problem) for v in data.variants for c in (v.tokens, v.correct, np.ones(len(v.tokens)))]
    values = np.column_stack(columns)
    sums = np.vstack([values.sum(axis=0), resampled_sums(values, data.size_of, replicates, seed).sum(axis=1)])
    tokens, right, tried = sums[:, 0::3], sums[:, 1::3], sums[:, 2::3]
    log_tokens, right = np.log(np.maximum(tokens / tried, 1e-9)), right / tried
    # Widens the percentiles from the normal's to those of Student's t, which matters for few problems.
    freedom = max(1, data.problems - len(strata(data.size_of)))
    few = t_quantile((1 + level) / 2, freedom) / z_quantile((1 + level) / 2)
    for drawn in (log_tokens, right):
        drawn[1:] = drawn[0] + few * (drawn[1:] - drawn[0])
    for k, variant in enumerate(data.variants):
        rng = np.random.default_rng(seed_from(seed, variant.name))
        # One more problem that this variant alone gets right or wrong (Bonett & Price 2012): two perfect variants may
        # differ.
        right[1:, k] += rng.standard_normal(replicates) / (data.problems + 2)
        n = len(variant.seeds)
        if n > 1:
            pull = rng.standard_normal((replicates, n)) / math.sqrt(n * (n - 1))
            pull /= np.sqrt(rng.chisquare(n - 1, (replicates, 1)) / (n - 1))
            right[1:, k] += pull @ _departures(variant, variant.correct)
            # On the log scale, because two seeds have Cauchy tails and tokens are never negative.
            log_tokens[1:, k] += pull @ _departures(variant, variant.tokens) / math.exp(log_tokens[0, k])
    return np.exp(log_tokens.clip(-50, 50)), right


def _estimate(drawn: Floats, basis: Estimate, level: float, least: float = 0.0) -> Estimate:
    """The first row, which was measured, with the percentiles of the other rows."""
    value, low, high = float(drawn[0]), least, math.inf
    if basis.problems > 1:
        ends = np.quantile(drawn[1:], [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
        low, high = min(value, float(ends[0])), max(value, float(ends[1]))
    return Estimate(value, low, high, basis.attempts, basis.problems)


def _per(amount: Floats, count: Floats) -> Floats:
    """The quotient; infinite where the count is zero."""
    none = count <= 0
    return np.where(none, math.inf, amount / np.where(none, 1.0, count))
