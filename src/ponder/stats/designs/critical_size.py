"""Finds the critical size with fewer attempts than a full ladder of sizes: asks more near it, less
elsewhere.

    design = Ladder(sizes=(16, 20, 25, 30, 36, 42), problems=80)
    while any(more := design.next(scores)):  # one array per size: the accuracy on each of its
    problems so far
        ...  # ask that many more problems of each size

A grid of curves (critical size, slope, lapse; as in `critical`) has a posterior probability each.
Every round goes to the one to four sizes that reduce the expected variance of the log of the
critical size most (after Kontsevich & Tyler 1999, who use entropy). It ends when the 95 % interval
is narrow enough: within `margin`, or, without one, about as narrow as the full ladder's is expected
to be. The design depends on nothing but the scores.

Where attempts go and when they end depends on their results, so the interval to report has a higher
nominal level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import Columns, Floats, summed

LEVEL = 0.97  # nominal, of an interval that covers 95 % after such a run
SLACK = 1.03  # times the ladder's width; at 1.00 a shallow curve would take a fifth more attempts
CHUNKS, ROUNDS = 4, 40  # sizes per round, at most; rounds of a run that asks the whole ladder
# curves whose likelihood is this far (in logs) below the best's are left out: one in 160,000
UNLIKELY = 12
SLOPES, LAPSES = 16, (0.0, 0.01, 0.03, 0.08, 0.16, 0.3)


@dataclass(frozen=True, slots=True)
class Ladder:
    """The settings of the design. The state is in the scores that are passed to its methods."""

    sizes: tuple[float, ...]  # ascending
    problems: int  # of each size, at most
    samples: int = 1  # attempts per problem
    # known to within this fraction of the critical size; None: as well as by all attempts
    margin: float | None = None

    def next(self, scores: Sequence[Floats]) -> list[int]:
        """Return how many more problems of each size to ask; zeros when the critical size is known
        well enough.
        """
        asked = np.array([len(score) for score in scores])
        right, wrong = self._counts(scores)
        likely = _grid(self.sizes).given(right, wrong)
        if asked.any() and self._known(likely, right, wrong, asked):
            return [0] * len(self.sizes)
        return self._fill(likely, self.problems - asked)

    def estimate(self, scores: Sequence[Floats], level: float = LEVEL) -> Estimate:
        """Return the critical size with an interval valid after such a run; open where it would
        leave the sizes.
        """
        asked = [k for k, score in enumerate(scores) if np.isfinite(score).any()]
        problems = sum(int(np.isfinite(scores[k]).sum()) for k in asked)
        if len(asked) < 2:
            return Estimate(math.nan, 0.0, math.inf, problems * self.samples, problems)
        sizes = tuple(float(self.sizes[k]) for k in asked)
        likely = _grid(sizes).given(*self._counts([scores[k] for k in asked]))
        low, value, high = (
            math.exp(end) for end in likely.quantiles((1 - level) / 2, 0.5, (1 + level) / 2)
        )
        first, last = sizes[0], sizes[-1]
        return Estimate(
            value if first <= value <= last else math.nan,
            min(low, last) if low >= first else 0.0,
            max(high, first) if high <= last else math.inf,
            problems * self.samples,
            problems,
        )

    def _known(self, likely: _Likely, right: Floats, wrong: Floats, asked: Floats) -> bool:
        width = likely.width()
        if self.margin is not None:
            return width <= 2 * math.log1p(self.margin)
        # What the whole ladder would tell, if the rest came out as expected.
        chance = likely.weight @ likely.grid.chance
        each = self.problems * (right + wrong).sum() / max(1, asked.sum())
        return width <= SLACK * likely.grid.given(each * chance, each * (1 - chance)).width()

    def _fill(self, likely: _Likely, left: Floats) -> list[int]:
        """Distribute a round over sizes that have problems left."""
        grid, weight, more = likely.grid, likely.weight, np.zeros(len(self.sizes), dtype=np.int64)
        chunk = math.ceil(len(self.sizes) * self.problems / ROUNDS / CHUNKS)
        for _ in range(CHUNKS):
            candidates = np.flatnonzero(left > more)
            if not len(candidates):
                break
            pick = candidates[
                expected_variance(grid.inside, weight, grid.chance[:, candidates]).argmin()
            ]
            n = min(chunk, int(left[pick] - more[pick]))
            more[pick] += n
            right = n * float(weight @ grid.chance[:, pick])
            weight = weight * np.exp(
                right * grid.log_right[:, pick] + (n - right) * grid.log_wrong[:, pick]
            )
            weight /= weight.sum()
        return [int(n) for n in more]

    def _counts(self, scores: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Return the right and wrong answers of each size, as if they were independent."""
        answered = [score[~np.isnan(score)] for score in scores]
        right = np.array([float(np.sum(score)) for score in answered])
        tried = np.array([float(len(score)) for score in answered])
        sizes = [
            (len(score), float(score.mean()), float(score.var(ddof=1)))
            for score in answered
            if len(score) > 1
        ]
        worth = _worth(sizes, self.samples)
        return right * worth, (tried - right) * worth


def after_ladder(data: Columns) -> Estimate:
    """Return the critical size with an interval that is valid after such a run."""
    sizes = np.unique(data.size)
    if len(sizes) < 2 or sizes[0] <= 0:
        return Estimate(math.nan, 0.0, math.inf, len(data), data.problems)
    attempts, right = summed(np.column_stack([np.ones(len(data)), data.correct]), data.problem).T
    scores = right / attempts
    samples = round(float(attempts.mean()))
    by_size = [scores[data.size_of_problem == k] for k in range(len(sizes))]
    return Ladder(tuple(sizes.tolist()), 0, samples).estimate(by_size)


def _worth(sizes: Sequence[tuple[int, float, float]], samples: int) -> float:
    """Return the independent attempts per problem: 1 if its samples always agree, `samples` if they
    are independent.

    From the number of problems of each size, the mean of their accuracies, and the variance.
    """
    between = sum(n * variance for n, _, variance in sizes)
    alone = sum(n * mean * (1 - mean) for n, mean, _ in sizes)
    return min(max(alone / between, 1.0), float(samples)) if between > 0 else 1.0


@dataclass(frozen=True, slots=True)
class _Grid:
    """Candidate curves, and what they say of each size that may be asked."""

    log_size: Floats  # of each candidate's critical size
    inside: Floats  # the same, no further outside the sizes asked than makes a difference
    prior: Floats  # its log
    chance: Floats  # candidates × sizes: the probability of a right answer
    log_right: Floats
    log_wrong: Floats
    ends: tuple[float, float]  # logs of the first and the last size asked

    def given(self, right: Floats, wrong: Floats) -> _Likely:
        """Return the candidates that are left after these answers, with their posterior
        probabilities.
        """
        score = self.prior + self.log_right @ right + self.log_wrong @ wrong
        keep = score >= score.max() - UNLIKELY
        of_size = (self.log_size[keep], self.inside[keep], self.prior[keep])
        of_answers = (self.chance[keep], self.log_right[keep], self.log_wrong[keep])
        weight = np.exp(score[keep] - score.max())
        return _Likely(_Grid(*of_size, *of_answers, self.ends), weight / weight.sum())


@dataclass(frozen=True, slots=True)
class _Likely:
    grid: _Grid
    weight: Floats  # posterior probability of each candidate

    def quantiles(self, *probabilities: float) -> list[float]:
        """Return quantiles of the log of the critical size; each candidate's weight is spread up to
        its neighbours.
        """
        size, where = np.unique(self.grid.log_size, return_inverse=True)
        mass = np.bincount(where, weights=self.weight)
        step = float(np.diff(size).min()) if len(size) > 1 else 0.0
        upto = np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()
        edges = np.concatenate([size - step / 2, size[-1:] + step / 2])
        return [float(x) for x in np.interp(probabilities, upto, edges)]

    def width(self) -> float:
        """Return the width of the 95 % interval of the log of the critical size, within the sizes."""
        low, high = np.clip(self.quantiles(0.025, 0.975), *self.grid.ends)
        return float(high - low)


@lru_cache(maxsize=8)
def _grid(sizes: tuple[float, ...]) -> _Grid:
    """Return a prior flat in log size, to half a span beyond the sizes; it prefers middle slopes
    and small lapses.
    """
    logs = np.log(np.array(sizes, dtype=np.float64))
    first, last = float(logs[0]), float(logs[-1])
    span = last - first
    size = np.linspace(first - span / 2, last + span / 2, 401)
    slope = np.geomspace(1 / span, 10 / float(np.diff(logs).min()), SLOPES)
    at, steep, lapse = (
        part.ravel()[:, None] for part in np.meshgrid(size, slope, LAPSES, indexing="ij")
    )
    logit = steep * (at - logs) - np.log(1 - 2 * lapse)
    # Never 0 or 1, so that no single answer rules a curve out.
    chance = np.clip((1 - lapse) / (1 + np.exp(-np.clip(logit, -500, 500))), 1e-4, 1 - 1e-4)
    prior = -10 * lapse[:, 0] - 0.25 * np.abs(np.log(steep[:, 0] * span / 15))
    inside = np.clip(at[:, 0], first - 0.05 * span, last + 0.05 * span)
    return _Grid(at[:, 0], inside, prior, chance, np.log(chance), np.log1p(-chance), (first, last))


def expected_variance(value: Floats, weight: Floats, chance: Floats) -> Floats:
    """Return the posterior variance of `value` to expect after one more attempt at each of the
    sizes.
    """
    centred = value - weight @ value
    moments = np.stack([weight, weight * centred, weight * centred**2])
    right = moments @ chance
    wrong = moments.sum(axis=1)[:, None] - right
    return np.asarray(
        sum(part[2] - part[1] ** 2 / np.maximum(part[0], 1e-12) for part in (right, wrong))
    )
