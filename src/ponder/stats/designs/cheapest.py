"""Find the cheapest setting that is good enough, and ask no more than that takes.

    design = Cheapest(problems=400, margin=0.02)
    while any(more := design.next(scores)):  # per setting: problems × (accuracy, cost) so far
        ...  # ask that many more problems of each setting

A setting is good enough if it is not worse than the reference by more than the margin. The
reference is one of the settings, or whichever is the most accurate; or there is none, and the
accuracy must be at least `floor`. At ten interim analyses, each pair of settings on the problems
that both have answered,

- a setting is *good* once it is surely not worse by the margin than any that may be the best,
- *weak* once it is surely worse by more than the margin,
- and *open* otherwise. It is no longer asked if a good setting is surely cheaper, or if the
  remaining problems would hardly show that it is good (futility).

The cheapest good setting is the choice. A wrong choice is a setting that was called good and is
not, so the level is shared among the settings (Bonferroni), and each test keeps its part over all
analyses. The boundary for good starts high and ends near that of a single analysis (Wang & Tsiatis
1987). The one for worse is the same at every analysis (Pocock 1977), so that weak settings are
dropped early; it gets a fifth of the error, because nobody is compared any more with a setting that
is worse than another. benchmarks/coverage_tune.py simulates how often the choice is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import FEWEST_PAIRS, Bools, Floats
from ponder.stats.designs.sequential import ANALYSES, Precise, analysis_sizes, as_t, boundary
from ponder.stats.distributions import z_quantile
from ponder.stats.paired import bonett_price, common_difference_sums, smoothed_sums

Quality: TypeAlias = Literal["good", "weak", "open"]

# Shapes of the boundaries: what is good shows late, what is weak shows early.
SHAPE = 0.25  # half-way between Pocock's and O'Brien & Fleming's
POCOCK = 0.5
WORSE = 0.2  # fraction of the error that goes to calling a setting worse than another
FUTILE = 0.1  # probability of ever being called good below which a setting is no longer asked
POWER = 0.8  # with which as many problems as `problems_to_decide` would decide


@dataclass(slots=True)
class Standing:
    """Where the settings stand after an analysis."""

    quality: list[Quality]
    asked: Bools  # which settings get more problems
    choice: int | None = None  # the cheapest good setting
    # [i, j]: i is surely not worse than j by the margin
    holds: Bools = field(default_factory=lambda: np.zeros((0, 0), dtype=np.bool_))
    beaten: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))  # surely not best
    analyses: int = 0  # so far
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Cheapest:
    """The settings of the design. The state is in the scores that are passed to its methods."""

    problems: int  # per setting, at most
    margin: float = 0.02
    floor: float | None = None  # instead of a reference: the accuracy that is good enough
    reference: int | None = None  # None: the most accurate setting
    samples: int = 1  # answers per problem: accuracies on it are multiples of 1 / samples
    level: float = 0.95
    analyses: int = ANALYSES  # 1: all problems have been asked already

    def next(self, scores: Sequence[Floats]) -> list[int]:
        """Return how many more problems to ask of each setting; zeros at the end."""
        standing = self.standing(scores)
        sizes = self._sizes()
        if standing.ended or standing.analyses >= len(sizes):
            return [0] * len(scores)
        size = sizes[standing.analyses]
        more = []
        for score, is_asked in zip(scores, standing.asked, strict=True):
            more.append(size - len(score) if is_asked else 0)
        return more

    def standing(self, scores: Sequence[Floats]) -> Standing:
        """Return what the analyses so far have found, by repeating them."""
        settings = len(scores)
        standing = Standing(
            quality=["open"] * settings,
            asked=np.ones(settings, dtype=np.bool_),
            holds=np.eye(settings, dtype=np.bool_),
            beaten=np.zeros(settings, dtype=np.bool_),
        )
        if self.reference is not None:
            standing.quality[self.reference] = "good"
            standing.choice = self.reference
        for size in self._sizes():
            fewest = min(len(scores[i]) for i in np.flatnonzero(standing.asked).tolist())
            if fewest < size:
                break
            self._analyse(scores, size, standing)
            if not standing.asked.any():
                standing.ended = True
                break
        else:
            standing.ended = True
        return standing

    def _sizes(self) -> list[int]:
        return analysis_sizes(self.problems, self.analyses)

    def _analyse(self, scores: Sequence[Floats], size: int, standing: Standing) -> None:
        """Update the standing by the analysis of the first `size` problems."""
        analysis = standing.analyses
        standing.analyses += 1
        settings: list[int] = np.flatnonzero(standing.asked).tolist()
        accuracy = np.array([scores[i][:size, 0] for i in settings])
        if self.floor is None:
            power = self._compare(accuracy, settings, standing, analysis)
        else:
            power = self._compare_with_floor(accuracy, settings, standing, analysis)
        standing.choice = self._choice(scores, standing)
        candidates = []
        for k, i in enumerate(settings):
            if standing.quality[i] != "open" or power[k] < FUTILE:
                continue
            extra = 0.0
            if standing.choice is not None:
                extra = self.extra_cost(scores, i, standing.choice, size)
            if extra <= self._bound("worse", len(scores), analysis, size):
                candidates.append(i)
        standing.asked[:] = False
        standing.asked[candidates] = True
        if self.floor is None:
            for i in candidates:
                standing.asked |= self._opponents(i, standing)

    def _compare(
        self, accuracy: Floats, settings: Sequence[int], standing: Standing, analysis: int
    ) -> list[float]:
        """Compare settings with each other; return each one's probability to be called good.

        Each pair is compared on the problems that both answered.
        """
        # In the matrices [i, j], setting j is compared with setting i.
        total, squares, common = common_difference_sums(accuracy)
        lead, error = smoothed_sums(total, squares, common)
        lead[common < FEWEST_PAIRS] = 0.0
        error[common < FEWEST_PAIRS] = math.inf
        np.fill_diagonal(lead, 0.0)
        sure_good = np.ones_like(lead)
        sure_worse = np.ones_like(lead)
        for n in np.unique(common):
            same = common == n
            sure_good[same] = self._bound("good", len(standing.quality), analysis, int(n))
            sure_worse[same] = self._bound("worse", len(standing.quality), analysis, int(n))
        # A setting that is worse by the margin differs on some problems. If it hasn't been seen to,
        # the error is still that of such a setting (the null hypothesis, as in Tango's test).
        least_variance = max(0.0, self.margin / self.samples - self.margin**2)
        null_error = np.maximum(error, np.sqrt(least_variance / np.maximum(common, 1)))
        not_worse = (lead + self.margin) / null_error > sure_good
        np.fill_diagonal(not_worse, True)
        block = np.ix_(settings, settings)
        standing.holds[block] |= not_worse.T
        surely_ahead = lead - sure_worse * error
        standing.beaten[settings] |= (surely_ahead > 0).any(axis=1)
        too_far_ahead = surely_ahead > self.margin
        for k, i in enumerate(settings):
            if standing.quality[i] != "open":
                continue
            if self.reference is None:
                is_weak = bool(too_far_ahead[k].any())
            else:
                is_weak = bool(too_far_ahead[k, np.equal(settings, self.reference)].any())
            if is_weak:
                standing.quality[i] = "weak"
        for i in settings:
            if standing.quality[i] == "open" and not self._opponents(i, standing).any():
                standing.quality[i] = "good"
        position = {i: k for k, i in enumerate(settings)}
        power = []
        for k, i in enumerate(settings):
            chances = [1.0]
            for j in np.flatnonzero(self._opponents(i, standing)):
                opponent = position.get(int(j))
                if opponent is None:  # it is no longer asked, so nothing more can be shown
                    chances.append(0.0)
                else:
                    spread = null_error[opponent, k]
                    n = int(common[opponent, k])
                    chances.append(self._power(lead[opponent, k], spread, n, standing))
            power.append(min(chances))
        return power

    def _compare_with_floor(
        self, accuracy: Floats, settings: Sequence[int], standing: Standing, analysis: int
    ) -> list[float]:
        """Compare settings with the floor; return each one's probability to be called good."""
        assert self.floor is not None
        power = []
        for k, i in enumerate(settings):
            n = int(np.isfinite(accuracy[k]).sum())
            if n < FEWEST_PAIRS:
                power.append(1.0)
                continue
            sure_good = self._bound("good", len(standing.quality), analysis, n)
            sure_worse = self._bound("worse", len(standing.quality), analysis, n)
            cautious = self._accuracy(accuracy[k], sure_good)
            if cautious.low >= self.floor:
                standing.quality[i] = "good"
            elif self._accuracy(accuracy[k], sure_worse).high < self.floor:
                standing.quality[i] = "weak"
            above = cautious.value - self.floor
            error = (cautious.high - cautious.low) / 2 / sure_good
            power.append(self._power(above - self.margin, error, n, standing))
        return power

    def _accuracy(self, scores: Floats, bound: float) -> Estimate:
        # On few problems a bound may be so high that the level rounds to 1.
        level = min(2 * NormalDist().cdf(bound) - 1, 1 - 1e-12)
        return Precise(self.problems, 0.0, self.samples, level).accuracy(scores)

    def _opponents(self, i: int, standing: Standing) -> Bools:
        """Return the settings that may be the best, and that `i` may still be too far behind."""
        if self.reference is not None:
            opponents = np.zeros(len(standing.quality), dtype=np.bool_)
            opponents[self.reference] = not standing.holds[i, self.reference]
            return opponents
        is_weak = np.array([quality == "weak" for quality in standing.quality])
        return np.asarray(~standing.holds[i] & ~standing.beaten & ~is_weak)

    def _bound(self, test: Literal["good", "worse"], settings: int, analysis: int, n: int) -> float:
        """Return the standard errors of a sure finding at an analysis of n problems."""
        error = (1 - self.level) * (1 - WORSE)
        shape = SHAPE
        if test == "worse":
            error = (1 - self.level) * WORSE
            shape = POCOCK
        comparisons = settings if self.floor is not None else max(1, settings - 1)
        values = boundary(1 - error / comparisons, 1, len(self._sizes()), shape)
        return as_t(values[analysis], n)

    def _power(self, lead: float, error: float, n: int, standing: Standing) -> float:
        """Return the probability that a setting is called good by the last analysis.

        It is assumed to be as accurate as the other, or as far ahead as it is now (Jennison &
        Turnbull 2000, ch. 10).
        """
        fraction = min(1.0, n / self.problems)
        if fraction == 1:
            return 0.0
        if math.isinf(error):  # nothing is known yet
            return 1.0
        z = (lead + self.margin) / error
        planned = (max(lead, 0.0) + self.margin) / (error * math.sqrt(fraction))
        last = self._bound("good", len(standing.quality), len(self._sizes()) - 1, self.problems)
        lacking = last - z * math.sqrt(fraction) - planned * (1 - fraction)
        return NormalDist().cdf(-lacking / math.sqrt(1 - fraction))

    def _choice(self, scores: Sequence[Floats], standing: Standing) -> int | None:
        """Return the good setting with the lowest mean cost, on the problems of all good ones."""
        good = [i for i, quality in enumerate(standing.quality) if quality == "good"]
        if not good:
            return None
        size = min(len(scores[i]) for i in good)
        costs = np.array([scores[i][:size, 1] for i in good])
        answered = ~np.isnan(costs).any(axis=0)
        if not answered.any():
            return good[0]
        mean_costs = costs[:, answered].mean(axis=1)
        return good[int(np.argmin(mean_costs))]

    # --- What is reported ---

    def extra_cost(
        self, scores: Sequence[Floats], i: int, j: int, size: int | None = None
    ) -> float:
        """Return by how many standard errors setting i is more expensive than setting j."""
        first, second = _common(scores[i][:size], scores[j][:size])
        differences = first[:, 1] - second[:, 1]
        n = len(differences)
        if n < FEWEST_PAIRS:
            return 0.0
        error = float(differences.std(ddof=1)) / math.sqrt(n)
        mean = float(differences.mean())
        if error == 0:
            return math.copysign(math.inf, mean) if mean else 0.0
        return mean / error

    def difference(self, scores: Sequence[Floats], i: int, j: int) -> Estimate:
        """Return the accuracy of i minus that of j, with an interval valid at every analysis.

        Its lower end is the bound by which `i` is called good: it holds for all settings at once.
        """
        first, second = _common(scores[i], scores[j])
        n = len(first)
        bound = self._bound("good", len(scores), self._analysis_of(scores, i, j), max(2, n))
        return replace(bonett_price(first[:, 0] - second[:, 0], bound), attempts=2 * n)

    def saving(self, scores: Sequence[Floats], i: int, j: int) -> Estimate:
        """Return the fraction that i costs less than j, with an interval valid at every analysis."""
        first, second = _common(scores[i], scores[j])
        n = len(first)
        cost = first[:, 1]
        other_cost = second[:, 1]
        if n < FEWEST_PAIRS or cost.mean() <= 0 or other_cost.mean() <= 0:
            return Estimate(math.nan, -math.inf, 1.0, 2 * n, n)
        log_ratio = math.log(cost.mean() / other_cost.mean())
        influence = cost / cost.mean() - other_cost / other_cost.mean()
        error = float(influence.std(ddof=1)) / math.sqrt(n)
        values = boundary(self.level, 2, len(self._sizes()), SHAPE)
        half = as_t(values[self._analysis_of(scores, i, j)], n) * error
        low = 1 - math.exp(min(700.0, log_ratio + half))
        high = 1 - math.exp(log_ratio - half)
        return Estimate(1 - math.exp(log_ratio), low, high, 2 * n, n)

    def shortfall(self, scores: Sequence[Floats], i: int, j: int | None) -> float:
        """Return the accuracy that i lacks to be good enough, as measured, negative if none.

        It is compared with j, or with the floor if there is one.
        """
        above = self._above_limit(scores, i, j)
        if not len(above):
            return 0.0
        return -float(above.mean())

    def problems_to_decide(self, scores: Sequence[Floats], i: int, j: int | None) -> float:
        """Return how many more problems would decide whether i is good enough, compared with j.

        With 80 % power, if they differ as they do now; infinite if it is right at the limit.
        """
        above = self._above_limit(scores, i, j)
        n = len(above)
        if n < FEWEST_PAIRS or above.mean() == 0:
            return math.inf
        centred = above - above.mean()
        _, error = smoothed_sums(centred.sum(), centred @ centred, n)
        spread = float(error) * math.sqrt(n + 2)
        last = self._bound("good", len(scores), len(self._sizes()) - 1, 10_000)
        needed = ((last + z_quantile(POWER)) * spread / float(above.mean())) ** 2
        return max(1.0, math.ceil(needed - n))

    def _above_limit(self, scores: Sequence[Floats], i: int, j: int | None) -> Floats:
        """Return by problem how far i is above what is good enough."""
        if self.floor is not None:
            answered = ~np.isnan(scores[i]).any(axis=1)
            return np.asarray(scores[i][answered, 0] - self.floor)
        assert j is not None
        first, second = _common(scores[i], scores[j])
        return np.asarray(first[:, 0] - second[:, 0] + self.margin)

    def _analysis_of(self, scores: Sequence[Floats], i: int, j: int) -> int:
        """Return the analysis that two settings have in common last."""
        size = min(len(scores[i]), len(scores[j]))
        reached = [k for k, problems in enumerate(self._sizes()) if problems <= size]
        return reached[-1] if reached else 0


def _common(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Return the rows of the problems that both settings answered."""
    n = min(len(first), len(second))
    first = first[:n]
    second = second[:n]
    answered = ~(np.isnan(first).any(axis=1) | np.isnan(second).any(axis=1))
    return first[answered], second[answered]
