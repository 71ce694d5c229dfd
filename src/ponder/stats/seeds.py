"""How much training seeds add to the interval of a variant's mean, or of a difference of two.

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

    # without the interaction of seeds and problems; below zero if that exceeds the total
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
        """Return the spread of a variant with this accuracy and this many seeds.

        By the delta method, Var(p) = (p·(1 - p))² · Var(log odds).
        """
        scale = (fraction * (1 - fraction)) ** 2 / seeds
        return Spread(scale * self.training, scale * self.total, self.freedom, self)


def spread(cells: Floats) -> Spread:
    """Return the spread of the mean of `cells`, seeds × problems, from a two-way layout."""
    seeds, problems = cells.shape
    if seeds < 2 or problems < 2:
        return Spread(0.0, 0.0, 0)
    deviations = cells.mean(axis=1) - cells.mean()
    residuals = cells - cells.mean(axis=0) - deviations[:, None]
    interaction = float((residuals**2).sum()) / (problems - 1) / problems
    squares = float(deviations @ deviations)
    scale = (seeds - 1) * seeds
    return Spread((squares - interaction) / scale, squares / scale, seeds - 1)


def pooled(arms: Sequence[Floats]) -> PooledSeeds | None:
    """Return the spread of all arms together, each a 0/1 array of seeds × problems.

    Return None if fewer than four have two seeds.
    """
    repeated = [cells for cells in arms if min(cells.shape) > 1 and 0 < cells.mean() < 1]
    if len(repeated) < LEAST_ARMS:
        return None
    training = 0.0
    total = 0.0
    freedom = 0
    for cells in repeated:
        arm = spread(cells)
        fraction = float(cells.mean())
        weight = arm.freedom * len(cells) / (fraction * (1 - fraction)) ** 2
        training += weight * arm.training
        total += weight * arm.total
        freedom += arm.freedom
    return PooledSeeds(training / freedom, total / freedom, freedom, len(repeated))


def widened(
    over_problems: Estimate,
    spreads: Sequence[Spread],
    level: float,
    least: float,
    most: float,
    times: float = 1.0,
) -> Estimate:
    """Widen an interval over problems by what training seeds add, within `least` and `most`.

    `times` multiplies the seeds' part, for a simultaneous band.
    """
    repeated = [s for s in spreads if s.freedom]
    training = times * _half_width(repeated, [max(0.0, s.training) for s in repeated], level)
    total = times * _half_width(repeated, [s.total for s in repeated], level)
    if not total:
        return over_problems
    value = over_problems.value
    below = max(math.hypot(value - over_problems.low, training), total)
    above = max(math.hypot(over_problems.high - value, training), total)
    return replace(over_problems, low=max(least, value - below), high=min(most, value + above))


def _half_width(spreads: Sequence[Spread], variances: Sequence[float], level: float) -> float:
    """Return half the width of Student's t interval of a sum with these variances, one per arm."""
    variance = math.fsum(variances)
    if not variance:
        return 0.0
    # Two arms of one pool share one estimate, so they don't add up to twice its degrees of freedom.
    by_estimate: dict[PooledSeeds | int, float] = {}
    freedom: dict[PooledSeeds | int, int] = {}
    for i, (s, arm_variance) in enumerate(zip(spreads, variances, strict=True)):
        estimate = s.pool or i
        freedom[estimate] = s.freedom
        by_estimate[estimate] = by_estimate.get(estimate, 0.0) + arm_variance
    terms = [v**2 / freedom[estimate] for estimate, v in by_estimate.items()]
    welch = variance**2 / math.fsum(terms)
    return t_quantile((1 + level) / 2, welch) * math.sqrt(variance)
