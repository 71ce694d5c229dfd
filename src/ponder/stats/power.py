"""How many problems, samples and training seeds an answer needs, from its variances.

The difference d of two models' accuracies on a problem has three variances: *between* problems (one
model is better at some of them), *within* a problem (a second sample may end otherwise), and
between training seeds. With n problems, m samples each and s seeds, the variance of the mean
difference is (between + within / (m·s)) / n + seeds / s. To show "not worse by more than δ" in 80 %
of runs of two equally good models, at 5 % two-sided, without seeds, takes n = 7.85 · Var(d) / δ²
problems: 7.85 = (1.96 + 0.84)².

At equal cost more problems always beat more samples: m samples at n/m problems leave between · m /
n. Samples help where problems run out, as in a fixed benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from ponder.stats.columns import Floats
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.frontier import Variant
from ponder.stats.seeds import spread

POWER = 0.8
QUANTILES = 40  # of the variance between seeds
# With fewer problems of the rarer outcome, or that the two answered differently, the variance is
# smoothed.
FEW = 5
MOST = 10_000_000  # problems; more count as never


@dataclass(frozen=True, slots=True)
class Components:
    """The variances of an accuracy, or of a difference of two."""

    between: float
    within: float  # of a single sample of the models that have no training seeds
    within_trained: float = 0.0  # and of those that have
    seeds: float = 0.0  # of a single training seed of each
    trained: int = 0  # models with training seeds
    # False: one sample per problem, so `between` is the sum of between and within
    separate: bool = True

    @property
    def total(self) -> float:
        """The variance of one problem with one sample of each: Var(d)."""
        return self.between + self.within + self.within_trained

    @property
    def all_within(self) -> Components:
        """The same total, all of it within problems: the most that samples could help."""
        return replace(self, between=0.0, within=self.total, within_trained=0.0)

    def of_problem(self, samples: int, seeds: int = 1) -> float:
        """Return the variance of one problem's mean."""
        return self.between + self.within / samples + self.within_trained / (samples * seeds)

    def error(self, problems: float, samples: int, seeds: int = 1) -> float:
        """Return the standard error of the mean over problems and seeds."""
        return math.sqrt(self.of_problem(samples, seeds) / problems + self.seeds / seeds)

    def half(self, problems: float, samples: int, seeds: int = 1, level: float = 0.95) -> float:
        """Return the expected half-width of the interval."""
        return float(self.halves(problems, samples, seeds, level).mean())

    def halves(self, problems: float, samples: int, seeds: int = 1, level: float = 0.95) -> Floats:
        """Return equally likely half-widths of the interval: with few seeds they vary a lot."""
        upper = (1 + level) / 2
        over_problems = z_quantile(upper) * math.sqrt(self.of_problem(samples, seeds) / problems)
        if not self.trained:
            return np.array([over_problems])
        if seeds < 2:
            return np.array([math.inf])  # one seed says nothing about training
        freedom = self.trained * (seeds - 1)
        t = t_quantile(upper, freedom)
        training = self.seeds / seeds
        interaction = self.within_trained / (samples * seeds * problems)
        total = (training + interaction) * _chi_square_over_freedom(freedom)
        # As in `seeds.widened`: the wider of problems and training in quadrature, and of the seeds'
        # means alone.
        without_interaction = np.maximum(0.0, total - interaction)
        together = np.hypot(over_problems, t * np.sqrt(without_interaction))
        return np.asarray(np.maximum(together, t * np.sqrt(total)))


def _chi_square_over_freedom(freedom: int) -> Floats:
    """Return equally likely values of chi-squared / freedom (Wilson & Hilferty 1931)."""
    z = np.array([z_quantile((i + 0.5) / QUANTILES) for i in range(QUANTILES)])
    variance = 2 / (9 * freedom)
    return np.asarray(np.maximum(0.0, 1 - variance + z * math.sqrt(variance)) ** 3)


def of_one(variant: Variant) -> Components:
    """Return the variances of one model's accuracy."""
    right = variant.by_problem(variant.correct)
    n = len(right)
    total = float(right.var(ddof=1))
    if min(np.count_nonzero(right > 0), np.count_nonzero(right < 1)) < FEW:
        # Two problems of each outcome more, as Agresti and Coull add: 100 % has a variance too.
        centre = (float(right.sum()) + 2) / (n + 4)
        squares = float(((right - centre) ** 2).sum())
        total = (squares + 2 * centre**2 + 2 * (1 - centre) ** 2) / (n + 4)
    return _components([variant], total)


def of_two(first: Variant, second: Variant) -> Components:
    """Return the variances of the difference of two models' accuracies on the same problems."""
    differences = first.by_problem(first.correct) - second.by_problem(second.correct)
    n = len(differences)
    if np.count_nonzero(differences) < FEW:
        # One problem more in either direction, as Bonett and Price add: ten that agree don't prove
        # that all do.
        squares = float(differences @ differences)
        mean = float(differences.sum()) / (n + 2)
        total = (squares + 2) / (n + 2) - mean**2
    else:
        total = float(differences.var(ddof=1))
    return _components([first, second], total)


def _components(models: list[Variant], total: float) -> Components:
    """Split `total`, the variance of the problems' means, or of their differences."""
    seeds = 0.0
    trained = 0
    for variant in models:
        if len(variant.seeds) > 1:
            trained += 1
            training = spread(variant.by_seed(variant.correct)).training
            seeds += max(0.0, training) * len(variant.seeds)
    within = 0.0
    within_trained = 0.0
    of_means = 0.0
    for variant in models:
        variances = _within(variant)
        if variances is None:
            return Components(total, 0.0, 0.0, seeds, trained, separate=False)
        of_attempt, of_mean = variances
        of_means += of_mean
        if len(variant.seeds) > 1:
            within_trained += of_attempt
        else:
            within += of_attempt
    return Components(
        between=max(0.0, total - of_means),
        within=within,
        within_trained=within_trained,
        seeds=seeds,
        trained=trained,
    )


def _within(variant: Variant) -> tuple[float, float] | None:
    """Return the variance of an attempt around its problem's mean, and that of the problem's mean.

    Return None if no problem has two attempts.
    """
    tried = np.bincount(variant.problem).astype(np.float64)
    repeated = tried > 1
    if not repeated.any():
        return None
    right = variant.by_problem(variant.correct)
    variance = (right * (1 - right) * tried / np.maximum(tried - 1, 1))[repeated]
    return float(variance.mean()), float((variance / tried[repeated]).mean())


def problems_for_margin(
    c: Components,
    margin: float,
    samples: int = 1,
    seeds: int = 1,
    *,
    difference: float = 0.0,
    power: float = POWER,
) -> float:
    """Return the problems that show with this power that a model is not worse by the margin.

    `difference` is the true one. With a margin of 0 it is the number that shows a difference.
    Return infinity if no number does.
    """

    def enough(problems: int) -> bool:
        return power_of(c, margin, problems, samples, seeds, difference=difference) >= power

    needed = _fewest(enough)
    if difference <= 0 < margin:
        return max(needed, _at_least(margin, samples))
    return needed


def problems_for_width(c: Components, width: float, samples: int = 1, seeds: int = 1) -> float:
    """Return the problems for an interval of this width, from end to end; infinite: never."""

    def enough(problems: int) -> bool:
        return 2 * c.half(problems, samples, seeds) <= width

    return max(_fewest(enough), _at_least(width, samples))


def _at_least(length: float, samples: int) -> float:
    """Return the problems that an interval of this length needs even if no two answers differ.

    That holds for Wilson's interval and for Tango's.
    """
    z = z_quantile(0.975)
    return math.ceil(z * z * (1 - length) / length / samples)


def _fewest(enough: Callable[[int], bool]) -> float:
    """Return the smallest number of problems that is enough, by bisection; infinite: none is."""
    if not enough(MOST):
        return math.inf
    low = 1
    high = MOST
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return float(max(2, low))


def power_of(
    c: Components,
    margin: float,
    problems: int,
    samples: int = 1,
    seeds: int = 1,
    *,
    difference: float = 0.0,
) -> float:
    """Return the probability that a run shows that a model is not worse by more than the margin."""
    # The error is 0 for a guess without any difference.
    error = max(c.error(problems, samples, seeds), 1e-12)
    z = (margin + difference - c.halves(problems, samples, seeds)) / error
    normal = NormalDist()
    return math.fsum(normal.cdf(x) for x in z.tolist()) / len(z)


def guessed(
    accuracy: float,
    discordant: float | None = None,
    within: float = 0.5,
    seeds: float | None = None,
    trained: int = 0,
) -> tuple[Components, Components]:
    """Guess the variances of one model and of two, from an accuracy.

    `discordant` is the fraction of problems that one sample of each model divides; without it, half
    of what independent models would have. `within` is the fraction of the variance that is between
    samples of one problem, `seeds` the standard deviation of accuracy between training seeds of the
    models that are `trained`.
    """
    seed_variance = (seeds or 0.0) ** 2
    alone = accuracy * (1 - accuracy)

    def components(total: float, seeded: int, models: int) -> Components:
        within_problem = within * total
        trained_fraction = seeded / models
        return Components(
            between=(1 - within) * total,
            within=(1 - trained_fraction) * within_problem,
            within_trained=trained_fraction * within_problem,
            seeds=seeded * seed_variance,
            trained=seeded,
        )

    divided = alone if discordant is None else discordant
    return components(alone, min(1, trained), 1), components(divided, trained, 2)
