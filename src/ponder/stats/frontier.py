"""Which variants of a model are worth their tokens? Accuracy and tokens of all variants on the same problems.

Two things are drawn at random: problems, the same for every variant, and the training seeds of each trained variant.
The spread between seeds, less the part that problems explain, has Student's t with one degree of freedom fewer than
there are seeds: three seeds, redrawn, would seem to agree more than they do. Its half interval is added by squares to
that of the problems (as in `difference`); for what is made of several numbers, such as a ratio or the frontier, both
are drawn jointly. Without seeds, accuracy and tokens are those of `accuracy` and `mean`.

AES is that of O1-Pruner (Luo et al. 2025). Accuracy under a budget is OAA_t of OptimalThinkingBench (Aggarwal et al.
2025), but with tokens equal to the budget within it, and its area is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate, Outcome, seed_from
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.bootstrap import resampled_sums, strata
from ponder.stats.columns import Bools, Floats, Ints, summed
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.grid import paired_difference

Verdict: TypeAlias = Literal["above", "not below", "slightly below", "below", "open"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A model, or all training seeds of one: a row an attempt that got an answer, sorted by seed and problem."""

    name: str
    seeds: tuple[tuple[int, ...], ...]  # training seeds, one tuple per chain; none for an untrained model
    seed: Ints  # which of them, counted from 0
    problem: Ints  # counted from 0, the same for every variant
    tokens: Floats  # thinking and answer
    correct: Bools
    made_tokens: float  # rollouts and training, the mean of its seeds
    made_seconds: float

    def by_problem(self, values: Floats | Bools) -> Floats:
        return summed(values, self.problem) / np.bincount(self.problem)


@dataclass(frozen=True, slots=True)
class Variants:
    """Variants in the study's order, and the problems that all of them, with each seed, answered."""

    variants: tuple[Variant, ...]
    size_of: Ints  # which of the sizes each problem has, counted from 0
    left_out: int  # problems that one of them didn't answer

    @property
    def problems(self) -> int:
        return len(self.size_of)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A variant set against the reference, problem by problem."""

    difference: Estimate  # in accuracy
    verdict: Verdict
    ratio: Estimate  # of tokens
    aes: Estimate
    break_even: Estimate  # answers until it has saved what it cost; infinite: never


@dataclass(frozen=True, slots=True)
class VariantSummary:
    tokens: Estimate
    accuracy: Estimate
    tokens_per_right: Estimate
    on_frontier: bool  # as measured
    frontier_chance: float  # nan for a single problem
    against: Comparison | None  # None for the reference itself, or where it has no answers


def variants(outcomes: Sequence[Outcome]) -> Variants:
    """Those of one task, or of one size of it; a seed without any answer is left out."""
    groups: dict[str, dict[tuple[int, ...], list[Outcome]]] = {}
    for o in outcomes:
        if o.status != "failed":
            groups.setdefault(o.variant, {}).setdefault(o.seeds, []).append(o)
    asked = [{(o.size, o.problem) for o in part} for seeds in groups.values() for part in seeds.values()]
    common = sorted(set.intersection(*asked)) if asked else []
    number = {problem: i for i, problem in enumerate(common)}
    size_of = np.unique(np.array([size for size, _ in common]), return_inverse=True)[1].astype(np.int64)
    found = tuple(_variant(name, seeds, number) for name, seeds in groups.items()) if common else ()
    return Variants(found, size_of, len(set().union(*asked)) - len(common))


def _variant(name: str, seeds: dict[tuple[int, ...], list[Outcome]], number: dict[tuple[int, str], int]) -> Variant:
    names = sorted(seed for seed in seeds if seed)
    rows = []
    for i, part in enumerate([seeds[seed] for seed in names] or seeds.values()):
        own = [o for o in part if (o.size, o.problem) in number]
        rows += sorted((i, number[o.size, o.problem], o.thinking_tokens + o.answer_tokens, _right(o)) for o in own)
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
    # The pipeline never calls the others right; here it can't.
    return outcome.correct and outcome.status == "graded"


def standings(
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
    """One for each variant. `gain` and `loss` are the coefficients of AES, `margin` what may be lost in accuracy."""
    if not data.variants:
        return []
    own = [(mean_tokens(v, level), share(v, v.correct, level)) for v in data.variants]
    names = [v.name for v in data.variants]
    ref = names.index(reference) if reference in names else -1  # it may have answered nothing here
    tokens, right = _draws(data, level, replicates, seed)
    on = on_frontier(tokens, right)
    chance = on[1:].mean(axis=0)
    # Only now: held to 100 %, half of the draws of two perfect variants would tie.
    right = right.clip(0, 1)
    per_right = _per(tokens, right)
    ratio = tokens / tokens[:, [ref]]
    score = aes(ratio, right, right[:, [ref]], gain, loss)
    paid = _per(np.array([v.made_tokens for v in data.variants]), tokens[:, [ref]] - tokens)
    found = []
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
        found.append(
            VariantSummary(spent, correct, _estimate(per_right[:, k], correct, level), bool(on[0, k]), told, against)
        )
    return found


def mean_tokens(variant: Variant, level: float = 0.95) -> Estimate:
    found = mean(variant.tokens, variant.problem, level)
    return _widened(found, [_departures(variant, variant.tokens)], level, 0.0, math.inf)


def share(variant: Variant, right: Bools, level: float = 0.95) -> Estimate:
    """The share of attempts for which `right` holds."""
    return _widened(accuracy(right, variant.problem, level), [_departures(variant, right)], level, 0.0, 1.0)


def accuracy_difference(first: Variant, second: Variant, level: float = 0.95) -> Estimate:
    found = paired_difference(first.by_problem(first.correct), second.by_problem(second.correct), level)
    return _widened(found, [_departures(v, v.correct) for v in (first, second)], level, -1.0, 1.0)


def verdict(difference: Estimate, margin: float) -> Verdict:
    """What the interval of a difference to the reference allows to say. That it holds 0 alone says nothing."""
    if difference.low > 0:
        return "above"
    if difference.low > -margin:
        return "slightly below" if difference.high < 0 else "not below"
    return "below" if difference.high < 0 else "open"


def aes(ratio: Floats, right: Floats, of_reference: Floats, gain: float = 3.0, loss: float = 5.0) -> Floats:
    """Tokens saved, and accuracy gained or lost times a coefficient, both relative to the reference."""
    never = of_reference <= 0
    change = np.where(never, math.inf, right / np.where(never, 1.0, of_reference) - 1)
    return np.asarray(1 - ratio + np.where(change >= 0, gain, loss) * change, dtype=np.float64)


def on_frontier(tokens: Floats, right: Floats) -> Bools:
    """Along the last axis: whether no other has as few tokens and is as often right, one of them strictly."""
    fewer, more = tokens[..., None, :], right[..., None, :]
    than, as_often = tokens[..., :, None], right[..., :, None]
    dominated = (fewer <= than) & (more >= as_often) & ((fewer < than) | (more > as_often))
    return np.asarray(~dominated.any(axis=-1), dtype=np.bool_)


def under_budget(variant: Variant, budgets: Sequence[float], level: float = 0.95) -> list[Estimate]:
    """Accuracy if only answers within a budget of tokens counted, for budgets in rising order."""
    found = [share(variant, variant.correct & (variant.tokens <= t), level) for t in budgets]
    # It can't fall, so neither should its band; widening keeps what it covers.
    low = np.minimum.accumulate([e.low for e in reversed(found)])[::-1]
    high = np.maximum.accumulate([e.high for e in found])
    return [replace(e, low=float(a), high=float(b)) for e, a, b in zip(found, low, high, strict=True)]


def budget_area(variant: Variant, most: float, level: float = 0.95) -> Estimate:
    """Accuracy under a budget, averaged over all budgets up to `most`."""
    if not variant.correct.any():  # as far as accuracy may be above 0, so may this
        return share(variant, variant.correct, level)
    earned = _earned(variant, most)
    return _widened(mean(earned, variant.problem, level), [_departures(variant, earned)], level, 0.0, 1.0)


def area_difference(first: Variant, second: Variant, most: float, level: float = 0.95) -> Estimate:
    earned = [_earned(v, most) for v in (first, second)]
    apart = first.by_problem(earned[0]) - second.by_problem(earned[1])
    found = mean(apart, np.arange(len(apart)), level, least=-1.0)
    both = [_departures(v, e) for v, e in zip((first, second), earned, strict=True)]
    return _widened(found, both, level, -1.0, 1.0)


def _earned(variant: Variant, most: float) -> Floats:
    """The share of the budgets up to `most` under which an attempt is right."""
    return np.asarray(variant.correct * (1 - variant.tokens / most).clip(0), dtype=np.float64)


def _departures(variant: Variant, values: Floats | Bools) -> Floats:
    """How far each training seed's mean is from that of all seeds, less what a redraw of the problems explains."""
    seeds, problems = max(1, len(variant.seeds)), int(variant.problem.max()) + 1
    if seeds < 2 or problems < 2:
        return np.zeros(seeds)
    cell = variant.seed * problems + variant.problem
    means = (summed(values, cell) / np.bincount(cell)).reshape(seeds, problems)
    apart = means.mean(axis=1) - means.mean()
    rest = means - means.mean(axis=0) - apart[:, None]
    # That part is in the interval of the problems already: both hold the interaction of seeds and problems.
    explained = float((rest**2).sum()) / (problems - 1) / problems
    found = float(apart @ apart)
    return np.asarray(apart * math.sqrt(max(0.0, 1 - explained / found)) if found > 0 else apart, dtype=np.float64)


def _widened(found: Estimate, departures: Sequence[Floats], level: float, least: float, most: float) -> Estimate:
    halves = [_half(d, level) for d in departures]
    if not any(halves):
        return found
    low = found.value - math.hypot(found.value - found.low, *halves)
    high = found.value + math.hypot(found.high - found.value, *halves)
    return replace(found, low=max(least, low), high=min(most, high))


def _half(departures: Floats, level: float) -> float:
    n = len(departures)
    if n < 2:
        return 0.0
    return t_quantile((1 + level) / 2, n - 1) * math.sqrt(float(departures @ departures) / (n - 1) / n)


def _draws(data: Variants, level: float, replicates: int, seed: int) -> tuple[Floats, Floats]:
    """Mean tokens and accuracy, draws × variants, the first row as measured."""
    columns = [summed(c, v.problem) for v in data.variants for c in (v.tokens, v.correct, np.ones(len(v.tokens)))]
    values = np.column_stack(columns)
    sums = np.vstack([values.sum(axis=0), resampled_sums(values, data.size_of, replicates, seed).sum(axis=1)])
    tokens, right, tried = sums[:, 0::3], sums[:, 1::3], sums[:, 2::3]
    log_tokens, right = np.log(np.maximum(tokens / tried, 1e-9)), right / tried
    # Percentiles are those of the normal; few problems have Student's t.
    freedom = max(1, data.problems - len(strata(data.size_of)))
    few = t_quantile((1 + level) / 2, freedom) / z_quantile((1 + level) / 2)
    for drawn in (log_tokens, right):
        drawn[1:] = drawn[0] + few * (drawn[1:] - drawn[0])
    for k, variant in enumerate(data.variants):
        rng = np.random.default_rng(seed_from(seed, variant.name))
        # One problem more that it alone gets right or wrong (Bonett & Price 2012): two perfect variants may differ.
        right[1:, k] += rng.standard_normal(replicates) / (data.problems + 2)
        n = len(variant.seeds)
        if n > 1:
            pull = rng.standard_normal((replicates, n)) / math.sqrt(n * (n - 1))
            pull /= np.sqrt(rng.chisquare(n - 1, (replicates, 1)) / (n - 1))
            right[1:, k] += pull @ _departures(variant, variant.correct)
            # In the logarithm, because two seeds have Cauchy's tails, and tokens are never negative.
            log_tokens[1:, k] += pull @ _departures(variant, variant.tokens) / math.exp(log_tokens[0, k])
    return np.exp(log_tokens.clip(-50, 50)), right


def _estimate(drawn: Floats, basis: Estimate, level: float, least: float = 0.0) -> Estimate:
    """What was measured, in the first row, with the percentiles of the others."""
    value, low, high = float(drawn[0]), least, math.inf
    if basis.problems > 1:
        ends = np.quantile(drawn[1:], [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
        low, high = min(value, float(ends[0])), max(value, float(ends[1]))
    return Estimate(value, low, high, basis.attempts, basis.problems)


def _per(amount: Floats, count: Floats) -> Floats:
    """Infinite where there is nothing to share the amount."""
    none = count <= 0
    return np.where(none, math.inf, amount / np.where(none, 1.0, count))
