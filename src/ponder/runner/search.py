"""The longest single turn: the largest size at which a model is still right with a given chance, for few attempts.

    search = Search(target=0.8)
    while asked := search.next(results):  # {size: (right, tries)}
        ...  # make the attempts, add them to the results
    search.estimate(results)

Sinha et al. 2025 name such a size for each frontier model, without a threshold, a procedure or an interval. Here it
is the size at which success falls to `target`. Sizes double until a first attempt is wrong; then each attempt
goes where it is expected to narrow the posterior of that size most (Kontsevich & Tyler 1999, with variance in place of
entropy), and a batch is filled as if the attempts before had come out as expected.

Success at size k is (1 - lapse) · (1 + c · (k / size)^slope)^-shape, c such that it is `target` at `size`. Slope 1 with
shape 100 is a step accuracy that stays the same, p^k; shape 1 is a logistic in log k; a large slope is a cliff. With
one of the shapes alone, a ladder of sizes covers a curve of the other 70 times in 100. The search depends on
nothing but the results, so a run that was broken off goes on as it would have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ponder.core import Estimate, UserError

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

Results: TypeAlias = Mapping[int, tuple[int, int]]  # of each size tried: how many were right, of how many


@dataclass(frozen=True, slots=True)
class Search:
    low: int = 1  # the smallest size to ask
    high: int = 16_384
    target: float = 0.8  # chance of success
    width: float = 1.5  # enough when the interval's high end is so many times its low end
    batch: int = 16  # attempts asked at once
    most: int = 1000  # attempts in all
    level: float = 0.95

    def __post_init__(self) -> None:
        if not 1 <= self.low < self.high:
            raise UserError(f"the search goes from low to a higher size, not from {self.low} to {self.high}")
        if not 0.05 <= self.target <= 0.95:
            raise UserError(f"target is a chance from 0.05 to 0.95, not {self.target}", hint="target = 0.8")
        if self.width < 1.05:
            raise UserError(f"width is high over low, at least 1.05, not {self.width}", hint="width = 1.5")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every size that a search may ask: doublings, and steps of less than half of `width`, on a log scale."""
        doubled = itertools.takewhile(lambda size: size < self.high, (self.low << n for n in itertools.count()))
        count = math.ceil(math.log(self.high / self.low) / math.log(self.width) * 2) + 1
        steps = np.rint(np.geomspace(self.low, self.high, count)).astype(int).tolist()
        return tuple(sorted({*doubled, *steps}))

    def next(self, results: Results) -> list[tuple[int, int]]:
        """Sizes to ask, and how many attempts at each; none when the interval is narrow enough."""
        right, tries = _sums(results)
        left = min(self.batch, self.most - tries)
        largest = max((size for size, (_, n) in results.items() if n), default=0)
        if right == tries and largest < self.high and left > 0:  # nothing is known of where it ends
            return [(min(max(self.low, 2 * largest), self.high), 1)]
        posterior = self._posterior(results)
        if left <= 0 or self._known(posterior, results):
            return []
        # Not further than twice what was tried: one lucky answer must not buy a turn of ten thousand steps.
        candidates = np.array([size for size in self.sizes if size <= 2 * largest], dtype=np.int64)
        return _fill(posterior, candidates, left, self.target)

    def estimate(self, results: Results) -> Estimate:
        """The size at which success falls to the target; nan where that lies outside the sizes that may be asked."""
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
        if posterior.weight[posterior.grid[:, 1] >= 8].sum() > 1 - self.level:
            # It may be a cliff, and of a cliff nothing is known between two sizes that were tried.
            tried = [size for size, (_, tries) in results.items() if tries]
            low = max((size for size in tried if size <= low), default=low)
            high = min((size for size in tried if size >= high), default=high)
        return low, value, high

    def _known(self, posterior: _Posterior, results: Results) -> bool:
        low, _, high = self._interval(posterior, results)
        outside = high <= self.low or low >= self.high
        # Between two whole numbers nothing can be asked.
        return outside or high <= self.width * low or math.ceil(high) - math.floor(low) <= 1

    def _posterior(self, results: Results) -> _Posterior:
        grid, score = _prior(self.low, self.high, self.target, self.width)
        for size, (right, tries) in sorted(results.items()):
            log_right, log_wrong = _logs(self.low, self.high, self.target, self.width, size)
            score = score + right * log_right + (tries - right) * log_wrong
        likely = score >= score.max() - 12  # e^-12: one in 160,000
        weight = np.exp(score[likely] - score.max())
        return _Posterior(grid[likely], weight / weight.sum(), math.log(self.low), math.log(self.high))


@dataclass(frozen=True, slots=True)
class _Posterior:
    grid: Floats  # candidates: log of the size, slope, lapse
    weight: Floats
    first: float  # log of the smallest and the largest size that may be asked
    last: float

    def quantiles(self, *shares: float) -> list[float]:
        """Of the size, a candidate's weight being spread over its step of the grid."""
        size, where = np.unique(self.grid[:, 0], return_inverse=True)
        mass = np.bincount(where, weights=self.weight)
        step = float(np.diff(size).min()) if len(size) > 1 else 0.0
        upto = np.concatenate([[0.0], np.cumsum(mass)]) / mass.sum()
        edges = np.concatenate([size - step / 2, size[-1:] + step / 2])
        return [math.exp(x) for x in np.interp(shares, upto, edges)]


def _sums(results: Results) -> tuple[int, int]:
    return sum(right for right, _ in results.values()), sum(tries for _, tries in results.values())


@lru_cache(maxsize=8)
def _prior(low: int, high: int, target: float, width: float) -> tuple[Floats, Floats]:
    """Candidates (log of the size, slope, lapse, shape) and the logarithms of their weights.

    Any size is as likely as any other, from a seventh of the smallest to seven times the largest that may be asked.
    Slopes near 1 and small lapses are likelier, weakly: a slope of 16 is a quarter as likely as one of 1, and a lapse
    of half the way to the target a twelfth as likely as none.
    """
    ends = math.log(low) - 2, math.log(high) + 2
    size = np.linspace(*ends, math.ceil((ends[1] - ends[0]) / math.log(width) * 6))
    slope, lapse = [*np.geomspace(0.5, 16, 16), 32, 64, 128], (1 - target) * np.array([0.0, 0.1, 0.25, 0.5])
    grid = np.stack(np.meshgrid(size, slope, lapse, [1.0, 100.0], indexing="ij"), axis=-1).reshape(-1, 4)
    return grid, -np.abs(np.log(grid[:, 1])) / 2 - grid[:, 2] / (0.2 * (1 - target))


@lru_cache(maxsize=64)
def _logs(low: int, high: int, target: float, width: float, size: int) -> tuple[Floats, Floats]:
    """What a right and what a wrong answer at a size add to each candidate's score."""
    share = _share(_prior(low, high, target, width)[0], np.array([size], dtype=np.float64), target)[:, 0]
    return np.log(share), np.log1p(-share)


def _share(grid: Floats, sizes: Floats, target: float) -> Floats:
    """Candidates × sizes: the chance of success, short of certainty so that no single answer rules one out."""
    size, slope, lapse, shape = grid.T[:, :, None]
    scale = ((1 - lapse) / target) ** (1 / shape) - 1
    fall = shape * np.log1p(scale * np.exp(np.minimum(slope * (np.log(sizes) - size), 20)))
    return np.asarray(np.clip((1 - lapse) * np.exp(-fall), 1e-4, 1 - 1e-4))


def _fill(posterior: _Posterior, sizes: Ints, attempts: int, target: float) -> list[tuple[int, int]]:
    share, weight = _share(posterior.grid, sizes.astype(np.float64), target), posterior.weight
    # Where outside the sizes that may be asked it lies makes no difference.
    place = np.clip(posterior.grid[:, 0], posterior.first - 0.1, posterior.last + 0.1)
    counts = np.zeros(len(sizes), dtype=np.int64)
    some = math.ceil(attempts / 8)
    for start in range(0, attempts, some):
        pick = int(_expected_variance(place, weight, share).argmin())
        n = min(some, attempts - start)
        counts[pick] += n
        hoped = n * float(weight @ share[:, pick])
        weight = weight * share[:, pick] ** hoped * (1 - share[:, pick]) ** (n - hoped)
        weight /= weight.sum()
    return [(int(size), int(n)) for size, n in zip(sizes, counts, strict=True) if n]


def _expected_variance(place: Floats, weight: Floats, share: Floats) -> Floats:
    """Of `place`, after one more attempt at each size: its mean over right and wrong."""
    centred = place - weight @ place
    moments = np.stack([weight, weight * centred, weight * centred**2])
    right = moments @ share
    wrong = moments.sum(axis=1)[:, None] - right
    return np.asarray(sum(part[2] - part[1] ** 2 / np.maximum(part[0], 1e-12) for part in (right, wrong)))
