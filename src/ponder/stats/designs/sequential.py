"""Group sequential designs: compares two models, or measures each, and stops at one of ten interim
analyses.

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
            return (
                "precise" if t_quantile((1 + self.level) / 2, n - 1) * error <= self.margin else ""
            )
        bound = pocock(self.level, 2)
        z = abs(middle) / error
        if z > as_t(bound, n):
            return "clear"
        if self.effect and abs(middle) + as_t(bound, n) * error < self.effect:
            return "small"
        fraction = n / self.problems
        planned = z_quantile(0.975) + z_quantile(POWER)
        if self.effect:
            planned = self.effect / (error * math.sqrt(fraction))
        short = bound - z * math.sqrt(fraction) - planned * (1 - fraction)
        conditional_power = NormalDist().cdf(-short / math.sqrt(max(1 - fraction, 1e-9)))
        return "futile" if conditional_power < FUTILE and n < self.problems else ""

    def difference(self, scores: Sequence[Floats]) -> Estimate:
        """Return the first minus the second, with an interval that is valid whatever made the run
        stop.
        """
        analyses = 1 if self.margin is not None else ANALYSES
        return valid_difference(scores[0] - scores[1], self.level, analyses)


@dataclass(frozen=True, slots=True)
class Precise:
    """Asks each cell, on its own, until its accuracy is known to within a margin."""

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
        mean = float(answered.mean()) if n else math.nan
        if n < 2:
            return Estimate(mean, 0.0, 1.0, n, n)
        attempts = n * self.samples
        rarer = int(min(np.count_nonzero(answered > 0), np.count_nonzero(answered < 1)))
        worth = effective_sample(
            mean, float(answered.var(ddof=1)) / n, attempts, n, rarer, self.level
        )
        return Estimate(mean, *wilson(mean, worth, self.level), attempts, n)


def valid_difference(differences: Floats, level: float, analyses: int = ANALYSES) -> Estimate:
    """Return the mean of paired differences with an interval that is valid at every analysis."""
    differences = differences[~np.isnan(differences)]
    n = len(differences)
    return replace(bonett_price(differences, as_t(pocock(level, 2, analyses), n)), attempts=2 * n)


def analysis_sizes(problems: int, analyses: int = ANALYSES) -> list[int]:
    """Return how many problems each analysis has, the last all of them."""
    return sorted(
        {math.ceil(problems * k / analyses) for k in range(1, analyses + 1)} - {0, 1} | {problems}
    )


def until_next_analysis(problems: int, done: int) -> int:
    """Return how many problems to ask after `done` of at most `problems`, until the next analysis."""
    return next(size for size in analysis_sizes(problems) if size > done) - done


@cache
def pocock(level: float, sides: int, analyses: int = ANALYSES) -> float:
    """Return the critical value that a running z-score of mean 0 crosses at no analysis with
    probability `level`.
    """
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        if _inside(middle, sides, analyses) < level:
            low = middle
        else:
            high = middle
    return high


def as_t(value: float, problems: int) -> float:
    """Return a critical value for a standard error estimated from this many problems: Student's t
    of the same tail.
    """
    return t_quantile(NormalDist().cdf(value), max(1, problems - 1))


def _inside(value: float, sides: int, analyses: int) -> float:
    """Return the probability of no crossing, by Armitage's recursion with 64 Gauss-Legendre nodes
    per analysis.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    density = np.array([1.0])
    position = np.array([0.0])
    node_widths = np.array([1.0])
    for analysis in range(1, analyses + 1):
        top = value * math.sqrt(analysis)
        bottom = -top if sides == 2 else -8.0 * math.sqrt(analysis)
        next_position = (top - bottom) / 2 * nodes + (top + bottom) / 2
        density = (density * node_widths) @ _normal(next_position - position[:, None])
        position = next_position
        node_widths = (top - bottom) / 2 * weights
    return float(density @ node_widths)


def _normal(x: Floats) -> Floats:
    return np.asarray(np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))
