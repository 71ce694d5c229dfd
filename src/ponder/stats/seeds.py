"""How much training seeds add to the interval of a variant's mean, and of the difference between
two variants.

Each trained variant is a table of training seeds × problems. The variance between its seeds' means
has two parts: what training adds, and the interaction of seeds with problems, which the interval
over problems already holds. The interval is the wider of two: problems and training in quadrature,
and Student's t over the seeds' means alone. The second one matters for two or three seeds, whose
training part is often estimated as zero: without it accuracy over two seeds covers 89 to 92 % if
seeds differ, with it 93 to 98 %.

A difference has the degrees of freedom of Welch (1947) over the two arms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ponder.core import Estimate
from ponder.stats.columns import Floats
from ponder.stats.distributions import t_quantile

LEAST_ARMS = 4  # variants of one recipe from which their seeds may be pooled


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of a variant's mean that is due to its training seeds."""

    # without the interaction of seeds and problems; below zero if that explains more than all
    training: float
    total: float  # of the seeds' means
    freedom: int  # 0: a single seed, which shows no variance
    pool: PooledSeeds | None = None  # where it comes from, if not from this variant's seeds alone


@dataclass(frozen=True, slots=True)
class PooledSeeds:
    """The variance between the seeds of one recipe, in log odds, from all of its variants."""

    training: float
    total: float
    freedom: int
    arms: int

    def spread(self, fraction: float, seeds: int) -> Spread:
        """Of a variant with this accuracy and so many seeds."""
        scale = (fraction * (1 - fraction)) ** 2 / seeds
        return Spread(scale * self.training, scale * self.total, self.freedom, self)


def spread(cells: Floats) -> Spread:
    """Of the mean of `cells`, seeds × problems."""
    seeds, problems = cells.shape
    if seeds < 2 or problems < 2:
        return Spread(0.0, 0.0, 0)
    apart = cells.mean(axis=1) - cells.mean()
    rest = cells - cells.mean(axis=0) - apart[:, None]
    interaction = float((rest**2).sum()) / (problems - 1) / problems
    seen = float(apart @ apart)
    each = (seeds - 1) * seeds
    return Spread((seen - interaction) / each, seen / each, seeds - 1)


def pooled(arms: Sequence[Floats]) -> PooledSeeds | None:
    """The spread of all arms together, each 0 or 1 by seeds × problems; None if fewer than four
    have two seeds.
    """
    several = [cells for cells in arms if min(cells.shape) > 1 and 0 < cells.mean() < 1]
    if len(several) < LEAST_ARMS:
        return None
    training = total = 0.0
    for cells in several:
        own, fraction = spread(cells), float(cells.mean())
        weight = own.freedom * len(cells) / (fraction * (1 - fraction)) ** 2
        training, total = training + weight * own.training, total + weight * own.total
    freedom = sum(len(cells) - 1 for cells in several)
    return PooledSeeds(training / freedom, total / freedom, freedom, len(several))


def widened(
    over_problems: Estimate,
    spreads: Sequence[Spread],
    level: float,
    least: float,
    most: float,
    times: float = 1.0,
) -> Estimate:
    """An interval over problems, widened by what seeds add.

    `times` multiplies their part, for a simultaneous band.
    """
    training, total = (times * half for half in _halves(spreads, level))
    if not total:
        return over_problems
    value = over_problems.value
    below, above = (
        max(math.hypot(half, training), total)
        for half in (value - over_problems.low, over_problems.high - value)
    )
    return replace(over_problems, low=max(least, value - below), high=min(most, value + above))


def _halves(spreads: Sequence[Spread], level: float) -> tuple[float, float]:
    """Half the width that training adds, and half the width of Student's t over the seeds' means
    alone.
    """
    several = [s for s in spreads if s.freedom]
    training, total = [max(0.0, s.training) for s in several], [s.total for s in several]
    return _half(several, training, level), _half(several, total, level)


def _half(spreads: Sequence[Spread], variances: Sequence[float], level: float) -> float:
    variance = math.fsum(variances)
    if not variance:
        return 0.0
    # Two arms of one pool share one estimate, so they don't add up to twice its degrees of freedom.
    arms: dict[PooledSeeds | int, float] = {}
    freedom = {s.pool or i: s.freedom for i, s in enumerate(spreads)}
    for i, (s, v) in enumerate(zip(spreads, variances, strict=True)):
        arms[s.pool or i] = arms.get(s.pool or i, 0.0) + v
    welch = variance**2 / math.fsum(v**2 / freedom[arm] for arm, v in arms.items())
    return t_quantile((1 + level) / 2, welch) * math.sqrt(variance)
