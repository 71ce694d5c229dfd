"""Find the largest size at which a model is right with a given probability, from few attempts.

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

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from ponder.core import Estimate, UserError
from ponder.stats.columns import Floats, Ints
from ponder.stats.designs.critical_size import bounded, expected_variance, grid_quantiles

Results: TypeAlias = Mapping[int, tuple[int, int]]  # by size: right answers, and attempts
CLIFF_SLOPE = 8  # from this slope on, accuracy may fall within one step of sizes
SHAPES = (1.0, 100.0)


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
        """Every size that may be asked: doublings, and log steps of less than half of `width`."""
        sizes = set()
        doubled = self.low
        while doubled < self.high:
            sizes.add(doubled)
            doubled *= 2
        steps = math.ceil(math.log(self.high / self.low) / math.log(self.width) * 2) + 1
        sizes.update(np.rint(np.geomspace(self.low, self.high, steps)).astype(int).tolist())
        return tuple(sorted(sizes))

    def next(self, results: Results) -> list[tuple[int, int]]:
        """Return the sizes to ask next, with the number of attempts at each.

        It is empty when the interval is narrow enough.
        """
        right, tries = _totals(results)
        remaining = min(self.batch, self.most - tries)
        largest = max((size for size, (_, n) in results.items() if n), default=0)
        if right == tries and largest < self.high and remaining > 0:  # no wrong answer yet
            doubled = max(self.low, 2 * largest)
            return [(min(doubled, self.high), 1)]
        posterior = self._posterior(results)
        if remaining <= 0 or self._known(posterior, results):
            return []
        # At most twice the largest size so far: one lucky answer must not lead to a turn of ten
        # thousand steps.
        candidates = np.array([size for size in self.sizes if size <= 2 * largest], dtype=np.int64)
        return _fill(posterior, candidates, remaining, self.target)

    def estimate(self, results: Results) -> Estimate:
        """Return the size at which accuracy falls to the target.

        It is nan if that is outside the sizes that may be asked.
        """
        low, value, high = self._interval(self._posterior(results), results)
        tries = _totals(results)[1]
        return bounded(low, value, high, (self.low, self.high), tries, tries)

    def _interval(self, posterior: _Posterior, results: Results) -> tuple[float, float, float]:
        """Return the low end, the median and the high end of the size."""
        low, value, high = posterior.quantiles((1 - self.level) / 2, 0.5, (1 + self.level) / 2)
        steep = posterior.curves[:, 1] >= CLIFF_SLOPE
        if posterior.weight[steep].sum() > 1 - self.level:
            # Accuracy may fall like a cliff, which can be anywhere between two sizes that were
            # tried.
            tried = [size for size, (_, tries) in results.items() if tries]
            low = max((size for size in tried if size <= low), default=low)
            high = min((size for size in tried if size >= high), default=high)
        return low, value, high

    def _known(self, posterior: _Posterior, results: Results) -> bool:
        """Return whether the interval is narrow enough, or outside the sizes that may be asked."""
        low, _, high = self._interval(posterior, results)
        if high <= self.low or low >= self.high:
            return True
        # Sizes are whole numbers, so an interval between two of them can't be narrowed.
        return high <= self.width * low or math.ceil(high) - math.floor(low) <= 1

    def _posterior(self, results: Results) -> _Posterior:
        curves, score = _prior(self.low, self.high, self.target, self.width)
        for size, (right, tries) in sorted(results.items()):
            log_right, log_wrong = _log_chances(self.low, self.high, self.target, self.width, size)
            score = score + right * log_right + (tries - right) * log_wrong
        likely = score >= score.max() - 12  # e^-12: one in 160,000
        weight = np.exp(score[likely] - score.max())
        return _Posterior(
            curves=curves[likely],
            weight=weight / weight.sum(),
            first=math.log(self.low),
            last=math.log(self.high),
        )


@dataclass(frozen=True, slots=True)
class _Posterior:
    curves: Floats  # one candidate per row: log of the size, slope, lapse, shape
    weight: Floats  # posterior probability of each
    first: float  # log of the smallest size that may be asked
    last: float  # log of the largest

    def quantiles(self, *probabilities: float) -> list[float]:
        """Return quantiles of the size."""
        log_quantiles = grid_quantiles(self.curves[:, 0], self.weight, probabilities)
        return [math.exp(x) for x in log_quantiles]


def _totals(results: Results) -> tuple[int, int]:
    """Return the right answers and the attempts of all sizes."""
    right = sum(right for right, _ in results.values())
    tries = sum(tries for _, tries in results.values())
    return right, tries


@lru_cache(maxsize=8)
def _prior(low: int, high: int, target: float, width: float) -> tuple[Floats, Floats]:
    """Return candidate curves, candidates × (log size, slope, lapse, shape), and their log prior.

    The prior is flat in log size, from 1/7 of the smallest size that may be asked to 7 times the
    largest. It weakly prefers slopes near 1 (a slope of 16 has a quarter of the weight of 1) and
    small lapses (a lapse that is half of 1 - target has a twelfth of the weight of none).
    """
    first = math.log(low) - 2
    last = math.log(high) + 2
    log_sizes = np.linspace(first, last, math.ceil((last - first) / math.log(width) * 6))
    slopes = [*np.geomspace(0.5, 16, 16), 32, 64, 128]
    lapses = (1 - target) * np.array([0.0, 0.1, 0.25, 0.5])
    grids = np.meshgrid(log_sizes, slopes, lapses, SHAPES, indexing="ij")
    curves = np.stack(grids, axis=-1).reshape(-1, 4)
    log_prior = -np.abs(np.log(curves[:, 1])) / 2 - curves[:, 2] / (0.2 * (1 - target))
    return curves, log_prior


@lru_cache(maxsize=64)
def _log_chances(
    low: int, high: int, target: float, width: float, size: int
) -> tuple[Floats, Floats]:
    """Return the log probability of a right and of a wrong answer at a size, by candidate."""
    curves = _prior(low, high, target, width)[0]
    accuracy = _accuracy(curves, np.array([size], dtype=np.float64), target)[:, 0]
    return np.log(accuracy), np.log1p(-accuracy)


def _accuracy(curves: Floats, sizes: Floats, target: float) -> Floats:
    """Return the probability of a right answer, candidates × sizes; the formula is at the top.

    It is never 0 or 1, so that no single answer rules a candidate out.
    """
    log_size, slope, lapse, shape = curves.T[:, :, None]
    c = ((1 - lapse) / target) ** (1 / shape) - 1
    power = np.exp(np.minimum(slope * (np.log(sizes) - log_size), 20))  # (k / size)^slope
    fall = shape * np.log1p(c * power)
    return np.asarray(np.clip((1 - lapse) * np.exp(-fall), 1e-4, 1 - 1e-4))


def _fill(
    posterior: _Posterior, sizes: Ints, attempts: int, target: float
) -> list[tuple[int, int]]:
    """Distribute the attempts of a round over sizes."""
    accuracy = _accuracy(posterior.curves, sizes.astype(np.float64), target)
    weight = posterior.weight
    # How far it lies outside the sizes that may be asked makes no difference.
    log_size = np.clip(posterior.curves[:, 0], posterior.first - 0.1, posterior.last + 0.1)
    counts = np.zeros(len(sizes), dtype=np.int64)
    chunk = math.ceil(attempts / 8)
    for start in range(0, attempts, chunk):
        pick = int(expected_variance(log_size, weight, accuracy).argmin())
        n = min(chunk, attempts - start)
        counts[pick] += n
        # The next choice assumes that these attempts come out as expected.
        chance = accuracy[:, pick]
        right = n * float(weight @ chance)
        weight = weight * chance**right * (1 - chance) ** (n - right)
        weight /= weight.sum()
    return [(int(size), int(n)) for size, n in zip(sizes, counts, strict=True) if n]
