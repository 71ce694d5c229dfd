"""Compares two models or variants on shared problems, and stops once the answer is clear or can't become so.

    design = Paired(problems=400)
    while any(more := design.next(scores)):  # two arrays: the accuracy on each problem so far
        ...  # ask that many more problems of both

Ten looks. It ends when the difference is beyond Pocock's boundary, or when it is unlikely to get there by the last look
even if the planned difference is real (futility). The planned difference is `effect`, or, without one, what all
problems would find with 80 % power. It also ends when a difference of `effect` is excluded. With `margin` it ends when
the difference is known to within the margin.

The interval is valid at every look, whatever made the run stop, so it is wider than that of a run planned for as many
problems. The difference itself is too large, by 7 to 20 % on average at the planned one: runs stop early where it is
large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from ponder.core import Estimate
from ponder.stats.accuracy import effective_sample, wilson
from ponder.stats.columns import FEWEST_PAIRS, Floats
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.elimination import smoothed, valid_difference
from ponder.stats.looks import LOOKS, as_t, look_sizes, pocock

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
        """How many more problems to ask of both; zeros at the end."""
        done = min(len(score) for score in scores)
        if done >= self.problems or self.why(scores):
            return [0, 0]
        return [next(size for size in look_sizes(self.problems) if size > done) - done] * 2

    def why(self, scores: Sequence[Floats]) -> Literal["", "clear", "small", "futile", "precise"]:
        """Why the run ends at this look; "" if it goes on."""
        apart = scores[0] - scores[1]
        apart = apart[~np.isnan(apart)]
        n = len(apart)
        if n < FEWEST_PAIRS:
            return ""
        middle, error = (float(number) for number in smoothed(apart))
        if self.margin is not None:
            return "precise" if t_quantile((1 + self.level) / 2, n - 1) * error <= self.margin else ""
        bound = pocock(self.level, 2)
        z = abs(middle) / error
        if z > as_t(bound, n):
            return "clear"
        if self.effect and abs(middle) + as_t(bound, n) * error < self.effect:
            return "small"
        part = n / self.problems
        planned = self.effect / (error * math.sqrt(part)) if self.effect else z_quantile(0.975) + z_quantile(POWER)
        short = bound - z * math.sqrt(part) - planned * (1 - part)
        likely = NormalDist().cdf(-short / math.sqrt(max(1 - part, 1e-9)))
        return "futile" if likely < FUTILE and n < self.problems else ""

    def difference(self, scores: Sequence[Floats]) -> Estimate:
        """The first less the second, with an interval that is valid whatever made the run stop."""
        return valid_difference(scores[0] - scores[1], self.level, 1 if self.margin is not None else LOOKS)


@dataclass(frozen=True, slots=True)
class Precise:
    """Asks each cell, on its own, until its accuracy is known to within a margin; ten looks."""

    problems: int
    margin: float
    samples: int = 1
    level: float = 0.95

    def next(self, scores: Sequence[Floats]) -> list[int]:
        return [self._more(score) for score in scores]

    def _more(self, score: Floats) -> int:
        done = len(score)
        if done >= self.problems or (done > 1 and self._half(score) <= self.margin):
            return 0
        return next(size for size in look_sizes(self.problems) if size > done) - done

    def _half(self, score: Floats) -> float:
        found = self.accuracy(score)
        return (found.high - found.low) / 2

    def accuracy(self, score: Floats) -> Estimate:
        """The mean of the problems' scores with Wilson's interval."""
        known = score[~np.isnan(score)]
        n = len(known)
        mean = float(known.mean()) if n else math.nan
        if n < 2:
            return Estimate(mean, 0.0, 1.0, n, n)
        attempts, rarer = n * self.samples, int(min(np.count_nonzero(known > 0), np.count_nonzero(known < 1)))
        worth = effective_sample(mean, float(known.var(ddof=1)) / n, attempts, n, rarer, self.level)
        return Estimate(mean, *wilson(mean, worth, self.level), attempts, n)
