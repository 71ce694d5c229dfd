"""Find the critical size with fewer attempts than a full ladder: more near it, fewer elsewhere.

    design = Ladder(sizes=(16, 20, 25, 30, 36, 42), problems=80)
    while any(more := design.next(scores)):  # per size: the accuracy on each problem so far
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
CHUNKS = 4  # sizes per round, at most
ROUNDS = 40  # of a run that asks the whole ladder
# curves whose likelihood is this far (in logs) below the best's are left out: one in 160,000
UNLIKELY = 12
SLOPES = 16  # candidates
LAPSES = (0.0, 0.01, 0.03, 0.08, 0.16, 0.3)


@dataclass(frozen=True, slots=True)
class Ladder:
    """The settings of the design. The state is in the scores that are passed to its methods."""

    sizes: tuple[float, ...]  # ascending
    problems: int  # of each size, at most
    samples: int = 1  # attempts per problem
    # known to within this fraction of the critical size; None: as well as by all attempts
    margin: float | None = None

    def next(self, scores: Sequence[Floats]) -> list[int]:
        """Return how many more problems of each size to ask; zeros when the size is known."""
        asked = np.array([len(score) for score in scores])
        right, wrong = self._counts(scores)
        posterior = _candidates(self.sizes).posterior(right, wrong)
        if asked.any() and self._known(posterior, right, wrong, asked):
            return [0] * len(self.sizes)
        return self._fill(posterior, self.problems - asked)

    def estimate(self, scores: Sequence[Floats], level: float = LEVEL) -> Estimate:
        """Return the critical size with an interval valid after such a run.

        An end is open where it would leave the sizes.
        """
        asked = [k for k, score in enumerate(scores) if np.isfinite(score).any()]
        problems = sum(int(np.isfinite(scores[k]).sum()) for k in asked)
        attempts = problems * self.samples
        if len(asked) < 2:
            return Estimate(math.nan, 0.0, math.inf, attempts, problems)
        sizes = tuple(float(self.sizes[k]) for k in asked)
        right, wrong = self._counts([scores[k] for k in asked])
        posterior = _candidates(sizes).posterior(right, wrong)
        log_ends = posterior.quantiles((1 - level) / 2, 0.5, (1 + level) / 2)
        low, value, high = (math.exp(end) for end in log_ends)
        return bounded(low, value, high, (sizes[0], sizes[-1]), attempts, problems)

    def _known(self, posterior: _Posterior, right: Floats, wrong: Floats, asked: Floats) -> bool:
        """Return whether the interval is narrow enough."""
        width = posterior.width()
        if self.margin is not None:
            return width <= 2 * math.log1p(self.margin)
        # What the whole ladder would tell, if the remaining problems came out as expected.
        candidates = posterior.candidates
        chance = posterior.weight @ candidates.chance
        attempts_per_size = self.problems * (right + wrong).sum() / max(1, asked.sum())
        whole_ladder = candidates.posterior(
            attempts_per_size * chance, attempts_per_size * (1 - chance)
        )
        return width <= SLACK * whole_ladder.width()

    def _fill(self, posterior: _Posterior, remaining: Floats) -> list[int]:
        """Distribute a round over sizes that have problems remaining."""
        candidates = posterior.candidates
        weight = posterior.weight
        more = np.zeros(len(self.sizes), dtype=np.int64)
        chunk = math.ceil(len(self.sizes) * self.problems / ROUNDS / CHUNKS)
        for _ in range(CHUNKS):
            open_sizes = np.flatnonzero(remaining > more)
            if not len(open_sizes):
                break
            variance = expected_variance(
                candidates.clipped_log_size, weight, candidates.chance[:, open_sizes]
            )
            size = open_sizes[variance.argmin()]
            n = min(chunk, int(remaining[size] - more[size]))
            more[size] += n
            # The next choice assumes that these attempts come out as expected.
            right = n * float(weight @ candidates.chance[:, size])
            log_right = candidates.log_right[:, size]
            log_wrong = candidates.log_wrong[:, size]
            weight = weight * np.exp(right * log_right + (n - right) * log_wrong)
            weight /= weight.sum()
        return [int(n) for n in more]

    def _counts(self, scores: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Return the right and wrong answers of each size, in independent attempts."""
        answered = [score[~np.isnan(score)] for score in scores]
        right = np.array([float(np.sum(score)) for score in answered])
        tried = np.array([float(len(score)) for score in answered])
        independent = _independent_attempts(answered, self.samples)
        return right * independent, (tried - right) * independent


def bounded(
    low: float,
    value: float,
    high: float,
    sizes: tuple[float, float],
    attempts: int,
    problems: int,
) -> Estimate:
    """Return an estimate of a size, open where it leaves the smallest or the largest size."""
    first, last = sizes
    if not first <= value <= last:
        value = math.nan
    low = min(low, last) if low >= first else 0.0
    high = max(high, first) if high <= last else math.inf
    return Estimate(value, low, high, attempts, problems)


def after_ladder(data: Columns) -> Estimate:
    """Return the critical size with an interval that is valid after such a run."""
    sizes = np.unique(data.size)
    if len(sizes) < 2 or sizes[0] <= 0:
        return Estimate(math.nan, 0.0, math.inf, len(data), data.problems)
    attempts = np.bincount(data.problem).astype(np.float64)
    scores = summed(data.correct, data.problem) / attempts
    samples = round(float(attempts.mean()))
    by_size = [scores[data.size_of_problem == k] for k in range(len(sizes))]
    return Ladder(tuple(sizes.tolist()), 0, samples).estimate(by_size)


def _independent_attempts(scores: Sequence[Floats], samples: int) -> float:
    """Return the independent attempts per problem.

    It is 1 if the samples of a problem always agree, and `samples` if they are independent.
    `scores` are the accuracies on the problems of each size.
    """
    between = 0.0
    binomial = 0.0
    for score in scores:
        n = len(score)
        if n > 1:
            mean = float(score.mean())
            between += n * float(score.var(ddof=1))
            binomial += n * mean * (1 - mean)
    if between <= 0:
        return 1.0
    return min(max(binomial / between, 1.0), float(samples))


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Candidate curves, and their accuracy at each size that may be asked."""

    log_size: Floats  # of each candidate's critical size
    # the same, no further outside the sizes asked than makes a difference
    clipped_log_size: Floats
    log_prior: Floats
    chance: Floats  # candidates × sizes: the probability of a right answer
    log_right: Floats  # its log
    log_wrong: Floats  # log(1 - chance)
    ends: tuple[float, float]  # logs of the first and the last size asked

    def posterior(self, right: Floats, wrong: Floats) -> _Posterior:
        """Return the candidates that are likely after these answers, which are counts by size."""
        score = self.log_prior + self.log_right @ right + self.log_wrong @ wrong
        likely = score >= score.max() - UNLIKELY
        candidates = _Candidates(
            log_size=self.log_size[likely],
            clipped_log_size=self.clipped_log_size[likely],
            log_prior=self.log_prior[likely],
            chance=self.chance[likely],
            log_right=self.log_right[likely],
            log_wrong=self.log_wrong[likely],
            ends=self.ends,
        )
        weight = np.exp(score[likely] - score.max())
        return _Posterior(candidates, weight / weight.sum())


@dataclass(frozen=True, slots=True)
class _Posterior:
    candidates: _Candidates
    weight: Floats  # posterior probability of each candidate

    def quantiles(self, *probabilities: float) -> list[float]:
        """Return quantiles of the log of the critical size."""
        return grid_quantiles(self.candidates.log_size, self.weight, probabilities)

    def width(self) -> float:
        """Return the width of the 95 % interval of the log critical size, within the sizes."""
        low, high = np.clip(self.quantiles(0.025, 0.975), *self.candidates.ends)
        return float(high - low)


def grid_quantiles(values: Floats, weight: Floats, probabilities: Sequence[float]) -> list[float]:
    """Return quantiles of a quantity on a regular grid, with each weight spread to its neighbours.

    `values` and `weight` have one entry per candidate; several candidates may share a value.
    """
    points, point_index = np.unique(values, return_inverse=True)
    mass = np.bincount(point_index, weights=weight)
    step = 0.0
    if len(points) > 1:
        step = float(np.diff(points).min())
    cumulative = np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()
    edges = np.concatenate([points - step / 2, points[-1:] + step / 2])
    return [float(x) for x in np.interp(probabilities, cumulative, edges)]


@lru_cache(maxsize=8)
def _candidates(sizes: tuple[float, ...]) -> _Candidates:
    """Return curves with a prior flat in log size, to half a span beyond the sizes.

    It prefers middle slopes and small lapses. The curve is that of `critical`.
    """
    logs = np.log(np.array(sizes, dtype=np.float64))
    first = float(logs[0])
    last = float(logs[-1])
    span = last - first
    log_sizes = np.linspace(first - span / 2, last + span / 2, 401)
    slopes = np.geomspace(1 / span, 10 / float(np.diff(logs).min()), SLOPES)
    grids = np.meshgrid(log_sizes, slopes, LAPSES, indexing="ij")
    log_size, slope, lapse = (grid.ravel()[:, None] for grid in grids)
    logit = slope * (log_size - logs) - np.log(1 - 2 * lapse)
    accuracy = (1 - lapse) / (1 + np.exp(-np.clip(logit, -500, 500)))
    # Never 0 or 1, so that no single answer rules a curve out.
    chance = np.clip(accuracy, 1e-4, 1 - 1e-4)
    return _Candidates(
        log_size=log_size[:, 0],
        clipped_log_size=np.clip(log_size[:, 0], first - 0.05 * span, last + 0.05 * span),
        log_prior=-10 * lapse[:, 0] - 0.25 * np.abs(np.log(slope[:, 0] * span / 15)),
        chance=chance,
        log_right=np.log(chance),
        log_wrong=np.log1p(-chance),
        ends=(first, last),
    )


def expected_variance(value: Floats, weight: Floats, chance: Floats) -> Floats:
    """Return the posterior variance of `value` to expect after one more attempt at each size.

    `value` and `weight` have one entry per candidate, `chance` is candidates × sizes.
    """
    centred = value - weight @ value
    moments = np.stack([weight, weight * centred, weight * centred**2])
    # 3 × sizes: the moments times the probability of a right and of a wrong answer
    right = moments @ chance
    wrong = moments.sum(axis=1)[:, None] - right
    after_right = right[2] - right[1] ** 2 / np.maximum(right[0], 1e-12)
    after_wrong = wrong[2] - wrong[1] ** 2 / np.maximum(wrong[0], 1e-12)
    return np.asarray(after_right + after_wrong)
