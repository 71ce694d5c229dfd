"""Finds the largest size at which a model is right with a given probability, from few attempts: an
adaptive search.

    search = Search(target=0.8)
    while asked := search.next(results):  # {size: (right, tries)}
        ...  # make the attempts, add them to the results
    search.estimate(results)

Sinha et al. 2025 report such a size (the longest turn) for frontier models, without a threshold, a
procedure or an interval. Here it is the size at which accuracy falls to `target`. Sizes double
until an attempt is wrong. From then on each attempt is made at the size that is expected to reduce
the posterior variance of log size most (after Kontsevich & Tyler 1999, who use entropy). Within a
batch, each choice assumes that the attempts before it came out as expected.

Accuracy at size k is (1 - lapse) · (1 + c · (k / size)^slope)^-shape, with c such that it is
`target` at `size`. Slope 1 with shape 100 is a constant accuracy per step, p^k; shape 1 is a
logistic in log k; a large slope is a cliff. Both shapes are needed: with one of them alone, the 95
% interval from a fixed ladder of sizes covers a curve of the other shape only 70 % of the time. The
search depends on nothing but the results, so an interrupted run resumes exactly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from ponder.core import Estimate, UserError
from ponder.stats.columns import Floats, Ints
from ponder.stats.designs.critical_size import expected_variance

Results: TypeAlias = Mapping[int, tuple[int, int]]  # by size: right answers, and attempts


@dataclass(frozen=True, slots=True)
class Search:
    """The settings of a search. The state is in the results that are passed to its methods."""

    low: int = 1  # the smallest size to ask
    high: int = 16_384  # the largest size to ask
    target: float = 0.8  # accuracy at the size that is searched for
    # the search ends when the interval's upper end is at most this many times its lower end
    width: float = 1.5
    batch: int = 16  # attempts per round
    most: int = 1000  # attempts in total, at most
    level: float = 0.95  # of the interval

    def __post_init__(self) -> None:
        if not 1 <= self.low < self.high:
            raise UserError(
                f"`largest` must be above {self.low}, not {self.high}", hint="largest = 4096"
            )
        if not 0.05 <= self.target <= 0.95:
            raise UserError(
                f"target is an accuracy from 0.05 to 0.95, not {self.target}", hint="target = 0.8"
            )
        if self.width < 1.05:
            raise UserError(f"width must be at least 1.05, not {self.width}", hint="width = 1.5")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every size that may be asked: doublings, and on a log scale steps of less than half of
        `width`.
        """
        doubled = itertools.takewhile(
            lambda size: size < self.high, (self.low << n for n in itertools.count())
        )
        count = math.ceil(math.log(self.high / self.low) / math.log(self.width) * 2) + 1
        steps = np.rint(np.geomspace(self.low, self.high, count)).astype(int).tolist()
        return tuple(sorted({*doubled, *steps}))

    def next(self, results: Results) -> list[tuple[int, int]]:
        """The sizes to ask next, with the number of attempts at each; empty when the interval is
        narrow enough.
        """
        right, tries = _sums(results)
        left = min(self.batch, self.most - tries)
        largest = max((size for size, (_, n) in results.items() if n), default=0)
        if right == tries and largest < self.high and left > 0:  # no wrong answer yet
            return [(min(max(self.low, 2 * largest), self.high), 1)]
        posterior = self._posterior(results)
        if left <= 0 or self._known(posterior, results):
            return []
        # At most twice the largest size so far: one lucky answer must not lead to a turn of ten
        # thousand steps.
        candidates = np.array([size for size in self.sizes if size <= 2 * largest], dtype=np.int64)
        return _fill(posterior, candidates, left, self.target)

    def estimate(self, results: Results) -> Estimate:
        """The size at which accuracy falls to the target; nan if that is outside the sizes that may
        be asked.
        """
        low, value, high = self._interval(self._posterior(results), results)
        tries = _sums(results)[1]
        return Estimate(
            value if self.low <= value <= self.high else math.nan,
            min(low, self.high) if low >= self.low else 0.0,
            max(high, self.low) if high <= self.high else math.inf,
            tries,
            tries,
        )

    def _interval(self, posterior: _Posterior, results: Results) -> tuple[float, float, float]:
        low, value, high = posterior.quantiles((1 - self.level) / 2, 0.5, (1 + self.level) / 2)
        if posterior.weight[posterior.curves[:, 1] >= 8].sum() > 1 - self.level:
            # Accuracy may fall like a cliff, which can be anywhere between two sizes that were
            # tried.
            tried = [size for size, (_, tries) in results.items() if tries]
            low = max((size for size in tried if size <= low), default=low)
            high = min((size for size in tried if size >= high), default=high)
        return low, value, high

    def _known(self, posterior: _Posterior, results: Results) -> bool:
        low, _, high = self._interval(posterior, results)
        outside = high <= self.low or low >= self.high
        # Sizes are whole numbers, so an interval between two of them can't be narrowed.
        return outside or high <= self.width * low or math.ceil(high) - math.floor(low) <= 1

    def _posterior(self, results: Results) -> _Posterior:
        curves, score = _prior(self.low, self.high, self.target, self.width)
        for size, (right, tries) in sorted(results.items()):
            log_right, log_wrong = _logs(self.low, self.high, self.target, self.width, size)
            score = score + right * log_right + (tries - right) * log_wrong
        likely = score >= score.max() - 12  # e^-12: one in 160,000
        weight = np.exp(score[likely] - score.max())
        return _Posterior(
            curves[likely], weight / weight.sum(), math.log(self.low), math.log(self.high)
        )


@dataclass(frozen=True, slots=True)
class _Posterior:
    curves: Floats  # one candidate per row: log of the size, slope, lapse, shape
    weight: Floats  # posterior probability of each
    first: float  # log of the smallest size that may be asked
    last: float  # log of the largest

    def quantiles(self, *probabilities: float) -> list[float]:
        """Quantiles of the size, with each candidate's weight spread evenly up to its neighbours."""
        size, where = np.unique(self.curves[:, 0], return_inverse=True)
        mass = np.bincount(where, weights=self.weight)
        step = float(np.diff(size).min()) if len(size) > 1 else 0.0
        upto = np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()
        edges = np.concatenate([size - step / 2, size[-1:] + step / 2])
        return [math.exp(x) for x in np.interp(probabilities, upto, edges)]


def _sums(results: Results) -> tuple[int, int]:
    return sum(right for right, _ in results.values()), sum(tries for _, tries in results.values())


@lru_cache(maxsize=8)
def _prior(low: int, high: int, target: float, width: float) -> tuple[Floats, Floats]:
    """Candidate curves (log of the size, slope, lapse, shape), and the logs of their prior weights.

    The prior is flat in log size, from 1/7 of the smallest size that may be asked to 7 times the
    largest. It weakly prefers slopes near 1 (a slope of 16 has a quarter of the weight of 1) and
    small lapses (a lapse that is half of 1 - target has a twelfth of the weight of none).
    """
    ends = math.log(low) - 2, math.log(high) + 2
    size = np.linspace(*ends, math.ceil((ends[1] - ends[0]) / math.log(width) * 6))
    slope, lapse = (
        [*np.geomspace(0.5, 16, 16), 32, 64, 128],
        (1 - target) * np.array([0.0, 0.1, 0.25, 0.5]),
    )
    curves = np.stack(
        np.meshgrid(size, slope, lapse, [1.0, 100.0], indexing="ij"), axis=-1
    ).reshape(-1, 4)
    return curves, -np.abs(np.log(curves[:, 1])) / 2 - curves[:, 2] / (0.2 * (1 - target))


@lru_cache(maxsize=64)
def _logs(low: int, high: int, target: float, width: float, size: int) -> tuple[Floats, Floats]:
    """The log-likelihood of a right and of a wrong answer at a size, for each candidate curve."""
    accuracy = _accuracy(
        _prior(low, high, target, width)[0], np.array([size], dtype=np.float64), target
    )[:, 0]
    return np.log(accuracy), np.log1p(-accuracy)


def _accuracy(curves: Floats, sizes: Floats, target: float) -> Floats:
    """Candidates × sizes: the probability of a right answer, never 0 or 1, so that no single answer
    rules one out.
    """
    size, slope, lapse, shape = curves.T[:, :, None]
    scale = ((1 - lapse) / target) ** (1 / shape) - 1
    fall = shape * np.log1p(scale * np.exp(np.minimum(slope * (np.log(sizes) - size), 20)))
    return np.asarray(np.clip((1 - lapse) * np.exp(-fall), 1e-4, 1 - 1e-4))


def _fill(
    posterior: _Posterior, sizes: Ints, attempts: int, target: float
) -> list[tuple[int, int]]:
    """Distribute the attempts of a round over sizes."""
    accuracy, weight = (
        _accuracy(posterior.curves, sizes.astype(np.float64), target),
        posterior.weight,
    )
    # How far it lies outside the sizes that may be asked makes no difference.
    log_size = np.clip(posterior.curves[:, 0], posterior.first - 0.1, posterior.last + 0.1)
    counts = np.zeros(len(sizes), dtype=np.int64)
    chunk = math.ceil(attempts / 8)
    for start in range(0, attempts, chunk):
        pick = int(expected_variance(log_size, weight, accuracy).argmin())
        n = min(chunk, attempts - start)
        counts[pick] += n
        right = n * float(weight @ accuracy[:, pick])
        weight = weight * accuracy[:, pick] ** right * (1 - accuracy[:, pick]) ** (n - right)
        weight /= weight.sum()
    return [(int(size), int(n)) for size, n in zip(sizes, counts, strict=True) if n]
