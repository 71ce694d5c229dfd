"""How many problems, samples and training seeds an answer needs, from variances measured or
guessed.

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
FEW = 5  # problems with the rarer outcome, or that the two answered differently
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
        """Of one problem with one sample of each: Var(d)."""
        return self.between + self.within + self.within_trained

    @property
    def all_within(self) -> Components:
        """The same sum, all of it within problems: what samples could do at best."""
        return replace(self, between=0.0, within=self.total, within_trained=0.0)

    def of_problem(self, samples: int, seeds: int = 1) -> float:
        """The variance of one problem's mean."""
        return self.between + self.within / samples + self.within_trained / (samples * seeds)

    def error(self, problems: float, samples: int, seeds: int = 1) -> float:
        return math.sqrt(self.of_problem(samples, seeds) / problems + self.seeds / seeds)

    def half(self, problems: float, samples: int, seeds: int = 1, level: float = 0.95) -> float:
        """Half the width of the interval that is expected."""
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
        t, training = t_quantile(upper, freedom), self.seeds / seeds
        interaction = self.within_trained / (samples * seeds * problems)
        total = (training + interaction) * _chi_square_over_freedom(freedom)
        # As in `seeds.widened`: the wider of problems and training in quadrature, and of the seeds'
        # means alone.
        together = np.hypot(over_problems, t * np.sqrt(np.maximum(0.0, total - interaction)))
        return np.asarray(np.maximum(together, t * np.sqrt(total)))


def _chi_square_over_freedom(freedom: int) -> Floats:
    """Quantiles of equal probability (Wilson & Hilferty 1931)."""
    z = np.array([z_quantile((i + 0.5) / QUANTILES) for i in range(QUANTILES)])
    return np.asarray(
        np.maximum(0.0, 1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3
    )


def of_one(variant: Variant) -> Components:
    """Of one model's accuracy."""
    own = variant.by_problem(variant.correct)
    n, total = len(own), float(own.var(ddof=1))
    if min(np.count_nonzero(own > 0), np.count_nonzero(own < 1)) < FEW:
        # Two problems of each outcome more, as Agresti and Coull add: 100 % has a variance too.
        centre = (float(own.sum()) + 2) / (n + 4)
        total = (float(((own - centre) ** 2).sum()) + 2 * centre**2 + 2 * (1 - centre) ** 2) / (
            n + 4
        )
    return _components([variant], total)


def of_two(first: Variant, second: Variant) -> Components:
    """Of the difference of two models' accuracies on the same problems."""
    apart = first.by_problem(first.correct) - second.by_problem(second.correct)
    n = len(apart)
    if np.count_nonzero(apart) < FEW:
        # One problem more in either direction, as Bonett and Price add: ten that agree don't prove
        # that all do.
        total = (float(apart @ apart) + 2) / (n + 2) - (float(apart.sum()) / (n + 2)) ** 2
    else:
        total = float(apart.var(ddof=1))
    return _components([first, second], total)


def _components(models: list[Variant], total: float) -> Components:
    """From the variance of the problems' means."""
    parts = [_within(variant) for variant in models]
    trained = [len(variant.seeds) > 1 for variant in models]
    seeds = sum(
        max(0.0, spread(v.by_seed(v.correct)).training) * len(v.seeds)
        for v, seeded in zip(models, trained, strict=True)
        if seeded
    )
    if any(part is None for part in parts):
        return Components(total, 0.0, 0.0, seeds, sum(trained), separate=False)
    known = [part for part in parts if part]
    return Components(
        between=max(0.0, total - sum(of_mean for _, of_mean in known)),
        within=sum(own for (own, _), seeded in zip(known, trained, strict=True) if not seeded),
        within_trained=sum(own for (own, _), seeded in zip(known, trained, strict=True) if seeded),
        seeds=seeds,
        trained=sum(trained),
    )


def _within(variant: Variant) -> tuple[float, float] | None:
    """The variance of one attempt around its problem's mean, and that of the problem's mean; None:
    single attempts.
    """
    tried = np.bincount(variant.problem).astype(np.float64)
    several = tried > 1
    if not several.any():
        return None
    right = variant.by_problem(variant.correct)
    own = (right * (1 - right) * tried / np.maximum(tried - 1, 1))[several]
    return float(own.mean()), float((own / tried[several]).mean())


def problems_for_margin(
    c: Components,
    margin: float,
    samples: int = 1,
    seeds: int = 1,
    *,
    difference: float = 0.0,
    power: float = POWER,
) -> float:
    """Return the problems that show with this power that a model is not worse by more than the
    margin; infinite: never.

    `difference` is the true one. With a margin of 0 it is the number that shows a difference.
    """
    needed = _fewest(
        lambda n: power_of(c, margin, n, samples, seeds, difference=difference) >= power
    )
    return max(needed, _at_least(margin, samples)) if difference <= 0 < margin else needed


def problems_for_width(c: Components, width: float, samples: int = 1, seeds: int = 1) -> float:
    """Problems for an interval of this width, from end to end; infinite: never."""
    return max(_fewest(lambda n: 2 * c.half(n, samples, seeds) <= width), _at_least(width, samples))


def _at_least(length: float, samples: int) -> float:
    """Problems below which an interval is longer than this even if no two answers differ (Wilson's,
    and Tango's).
    """
    z = z_quantile(0.975)
    return math.ceil(z * z * (1 - length) / length / samples)


def _fewest(enough: Callable[[int], bool]) -> float:
    if not enough(MOST):
        return math.inf
    low, high = 1, MOST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
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
    """The chance that such a run shows that a model is not worse by more than the margin."""
    # 0: a guess without any difference
    error, normal = max(c.error(problems, samples, seeds), 1e-12), NormalDist()
    room = (margin + difference - c.halves(problems, samples, seeds)) / error
    return math.fsum(normal.cdf(x) for x in room.tolist()) / len(room)


def guessed(
    accuracy: float,
    discordant: float | None = None,
    within: float = 0.5,
    seeds: float | None = None,
    trained: int = 0,
) -> tuple[Components, Components]:
    """Of one model and of two, from an accuracy, and from the fraction of problems that one sample
    of each divides.

    `within` is the fraction of the variance that is between samples of one problem, `seeds` the
    standard deviation of accuracy between training seeds of the models that are `trained`. Without
    `discordant`, half of what independent models would have.
    """

    def components(total: float, seeded: int, models: int) -> Components:
        inside, share = within * total, seeded / models
        training = seeded * (seeds or 0.0) ** 2
        return Components(
            (1 - within) * total, (1 - share) * inside, share * inside, training, seeded
        )

    alone = accuracy * (1 - accuracy)
    return components(alone, min(1, trained), 1), components(
        alone if discordant is None else discordant, trained, 2
    )
