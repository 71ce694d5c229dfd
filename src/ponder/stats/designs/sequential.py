"""Group sequential designs: compare two models, or measure each, with ten interim analyses.

    design = Paired(problems=400)
    while any(more := design.next(scores)):  # two arrays: the accuracy on each problem so far
        ...  # ask that many more problems of both

Ten analyses at 1.96 standard errors would find a difference in 19 % of the runs without one; at
Pocock's (1977) boundary, 2.56 at every analysis, they find it in 5 %. An interval of that many
standard errors is valid at all analyses at once, so it is valid whatever made a run stop (a
repeated confidence interval, Jennison & Turnbull 1989).

`Paired` ends when the difference is beyond Pocock's boundary, or when it is unlikely to get there
by the last analysis even if the planned difference is real (futility). The planned difference is
`effect`, or, without one, what all problems would find with 80 % power. It also ends when a
difference of `effect` is excluded. With `margin` it ends when the difference is known to within the
margin. The interval is wider than that of a run planned for as many problems. The difference itself
is too large, by 7 to 20 % on average at the planned one: runs stop early where it is large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from ponder.core import Estimate
from ponder.stats.accuracy import effective_sample, wilson
from ponder.stats.columns import FEWEST_PAIRS, Floats
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.paired import bonett_price, smoothed

ANALYSES = 10
POWER = 0.8  # with which all problems find the planned difference
PLANNED = z_quantile(0.975) + z_quantile(POWER)  # the expected z of all problems
FUTILE = 0.1  # conditional power below which a run ends


@dataclass(frozen=True, slots=True)
class Paired:
    """The settings of the design. The state is in the scores that are passed to its methods."""

    problems: int  # at most
    margin: float | None = None  # ends when the difference is known to within this
    effect: float | None = None  # the planned difference
    level: float = 0.95

    def next(self, scores: Sequence[Floats]) -> list[int]:
        """Return how many more problems to ask of both; zeros at the end."""
        done = min(len(score) for score in scores)
        if done >= self.problems or self.why(scores):
            return [0, 0]
        return [until_next_analysis(self.problems, done)] * 2

    def why(self, scores: Sequence[Floats]) -> Literal["", "clear", "small", "futile", "precise"]:
        """Return why the run ends at this analysis; "" if it goes on."""
        differences = scores[0] - scores[1]
        differences = differences[~np.isnan(differences)]
        n = len(differences)
        if n < FEWEST_PAIRS:
            return ""
        middle, error = smoothed(differences)
        if self.margin is not None:
            half = t_quantile((1 + self.level) / 2, n - 1) * error
            return "precise" if half <= self.margin else ""
        bound = pocock(self.level, 2)
        z = abs(middle) / error
        if z > as_t(bound, n):
            return "clear"
        if self.effect and abs(middle) + as_t(bound, n) * error < self.effect:
            return "small"
        if n < self.problems and self._conditional_power(z, error, n) < FUTILE:
            return "futile"
        return ""

    def _conditional_power(self, z: float, error: float, n: int) -> float:
        """Return the probability of a clear difference at the end, if the planned one is real."""
        fraction = n / self.problems
        planned = PLANNED
        if self.effect:
            planned = self.effect / (error * math.sqrt(fraction))
        return conditional_power(z, fraction, planned, pocock(self.level, 2))

    def difference(self, scores: Sequence[Floats]) -> Estimate:
        """Return the first minus the second, with an interval valid whatever made the run stop."""
        analyses = ANALYSES
        if self.margin is not None:
            analyses = 1
        return valid_difference(scores[0] - scores[1], self.level, analyses)


@dataclass(frozen=True, slots=True)
class Precise:
    """Asks each cell, separately, until its accuracy is known to within a margin."""

    problems: int
    margin: float
    samples: int = 1
    level: float = 0.95

    def next(self, scores: Sequence[Floats]) -> list[int]:
        """Return how many more problems to ask of each cell."""
        return [self._more(score) for score in scores]

    def _more(self, score: Floats) -> int:
        done = len(score)
        if done >= self.problems:
            return 0
        if done > 1:
            estimate = self.accuracy(score)
            if (estimate.high - estimate.low) / 2 <= self.margin:
                return 0
        return until_next_analysis(self.problems, done)

    def accuracy(self, score: Floats) -> Estimate:
        """Return the mean of the problems' scores with Wilson's interval."""
        answered = score[~np.isnan(score)]
        n = len(answered)
        if n == 0:
            return Estimate(math.nan, 0.0, 1.0, n, n)
        mean = float(answered.mean())
        if n == 1:
            return Estimate(mean, 0.0, 1.0, n, n)
        attempts = n * self.samples
        rarer = int(min(np.count_nonzero(answered > 0), np.count_nonzero(answered < 1)))
        variance = float(answered.var(ddof=1)) / n
        effective = effective_sample(mean, variance, attempts, n, rarer, self.level)
        low, high = wilson(mean, effective, self.level)
        return Estimate(mean, low, high, attempts, n)


def valid_difference(differences: Floats, level: float, analyses: int = ANALYSES) -> Estimate:
    """Return the mean of paired differences with an interval that is valid at every analysis."""
    differences = differences[~np.isnan(differences)]
    n = len(differences)
    critical_value = as_t(pocock(level, 2, analyses), n)
    return replace(bonett_price(differences, critical_value), attempts=2 * n)


def conditional_power(z: float, fraction: float, planned: float, bound: float) -> float:
    """Return the probability that the final z is beyond a bound, after a fraction of the problems.

    `planned` is the expected z of all problems. With a fraction f of the information, the final z
    is normal with mean z·√f + planned·(1 - f) and variance 1 - f (Jennison & Turnbull 2000, ch.
    10).
    """
    lacking = bound - z * math.sqrt(fraction) - planned * (1 - fraction)
    return NormalDist().cdf(-lacking / math.sqrt(max(1 - fraction, 1e-9)))


def nominal_level(level: float, analyses: int = ANALYSES) -> float:
    """Return the level of a fixed-sample interval that, shown at each analysis, is valid at all."""
    if analyses == 1:
        return level
    return 2 * NormalDist().cdf(pocock(level, 2, analyses)) - 1


def valid_p_value(p_value: float, analyses: int = ANALYSES) -> float:
    """Return a fixed-sample p-value corrected for the analyses at which a run may have ended."""
    if analyses == 1:
        return p_value
    z = NormalDist().inv_cdf(1 - min(p_value, 1.0) / 2)
    return 1 - _inside([z] * analyses, 2)


def analysis_sizes(problems: int, analyses: int = ANALYSES) -> list[int]:
    """Return how many problems each analysis has, the last all of them."""
    sizes = {math.ceil(problems * k / analyses) for k in range(1, analyses + 1)}
    return sorted(sizes - {0, 1} | {problems})


def until_next_analysis(problems: int, done: int) -> int:
    """Return how many problems to ask after `done` of them, until the next analysis."""
    next_size = next(size for size in analysis_sizes(problems) if size > done)
    return next_size - done


@cache
def pocock(level: float, sides: int, analyses: int = ANALYSES) -> float:
    """Return the value that a running z-score of mean 0 stays below with probability `level`.

    That is at all analyses (Pocock 1977), on one side or, in absolute value, on both.
    """
    return boundary(level, sides, analyses, 0.5)[-1]


@cache
def boundary(level: float, sides: int, analyses: int, shape: float) -> tuple[float, ...]:
    """Return for each analysis the value that a running z-score of mean 0 stays below.

    It stays below all of them with probability `level`. The values fall with the fraction of the
    information as its power `shape` − ½ (Wang & Tsiatis 1987): at ½ all are equal (Pocock 1977),
    at 0 the last is hardly above that of a single analysis, and the first hardly ever reached.
    """
    profile = [(k / analyses) ** (shape - 0.5) for k in range(1, analyses + 1)]
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        if _inside([middle * factor for factor in profile], sides) < level:
            low = middle
        else:
            high = middle
    return tuple(high * factor for factor in profile)


def as_t(value: float, problems: int) -> float:
    """Return Student's t of the same tail as z, for an error estimated from so many problems."""
    return t_quantile(NormalDist().cdf(value), max(1, problems - 1))


def _inside(values: Sequence[float], sides: int) -> float:
    """Return the probability of no crossing, by the recursion of Armitage et al. (1969).

    Each analysis is integrated with 64 Gauss-Legendre nodes.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    density = np.array([1.0])
    position = np.array([0.0])
    node_widths = np.array([1.0])
    for analysis, value in enumerate(values, start=1):
        top = value * math.sqrt(analysis)
        bottom = -top if sides == 2 else -8.0 * math.sqrt(analysis)
        next_position = (top - bottom) / 2 * nodes + (top + bottom) / 2
        transition = _normal_density(next_position - position[:, None])
        density = (density * node_widths) @ transition
        position = next_position
        node_widths = (top - bottom) / 2 * weights
    return float(density @ node_widths)


def _normal_density(x: Floats) -> Floats:
    return np.asarray(np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))
