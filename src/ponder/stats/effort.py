"""Fits of tokens against size: a straight line, and two lines that meet at a peak.

After Estermann & Wattenhofer (2025), who fit a line by least squares to the solved attempts only. Here the same line is
also fitted to all attempts, with truncated ones censored (see `censored`). The second fit tests whether effort falls
after a peak; the peak is searched for among the sizes measured, with two of them on either side.

Intervals come from a bootstrap over problems within a size. It changes only the mean at each size, so that a replicate
costs one matrix product; with truncated attempts it repeats the last Newton step. The replicates are stretched by t/z
with Satterthwaite's degrees of freedom, because the largest sizes have few problems, the most noise and the most
leverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate
from ponder.stats.bootstrap import Curve, draw_curve, drawing_sizes, resampled_sums, strata
from ponder.stats.censored import working
from ponder.stats.columns import Columns, Floats, Ints, summed
from ponder.stats.distributions import t_quantile, z_quantile
from ponder.stats.least_squares import projection, search

Verdict: TypeAlias = Literal["rises", "falls", "falls after a peak", "no clear trend", "not enough data"]


@dataclass(frozen=True, slots=True)
class Line:
    intercept: Estimate
    slope: Estimate  # tokens per unit of size
    r2: Estimate  # nan if attempts were truncated: the tokens that they needed are unknown
    curve: Curve


@dataclass(frozen=True, slots=True)
class Bend:
    """Two lines that meet at `peak`, which is one of the sizes measured."""

    before: Estimate  # slope up to the peak
    after: Estimate  # slope beyond it
    peak: Estimate
    p_value: float  # of the fall after the peak, against a rise and a plateau; accounts for the search for the peak
    curve: Curve


@dataclass(frozen=True, slots=True)
class Effort:
    line_on_successes: Line | None  # None: fewer than two sizes have an attempt that was not truncated
    line_on_all: Line | None
    bend_on_successes: Bend | None  # None: fewer than five sizes have one
    bend_on_all: Bend | None
    truncated: int
    verdict: Verdict  # on all attempts


def effort(data: Columns, level: float = 0.95, replicates: int = 1000, seed: int = 0) -> Effort:
    """Fits tokens against size, for solved attempts and for all."""
    line_on_successes, bend_on_successes = _fits(data.where(data.correct), level, replicates, seed)
    line, bend = _fits(data, level, replicates, seed)
    truncated = int(data.truncated.sum())
    verdict = _verdict(line, bend, level)
    return Effort(line_on_successes, line, bend_on_successes, bend, truncated, verdict)


def _verdict(line: Line | None, bend: Bend | None, level: float) -> Verdict:
    if line is None or math.isinf(line.slope.low):
        return "not enough data"
    if bend and bend.before.value > 0 and bend.p_value < 1 - level:
        return "falls after a peak"
    if line.slope.low > 0:
        return "rises"
    return "falls" if line.slope.high < 0 else "no clear trend"


def _fits(data: Columns, level: float, replicates: int, seed: int) -> tuple[Line | None, Bend | None]:
    sizes, seen = np.unique(data.size), np.unique(data.size[~data.truncated])
    if len(seen) < 2:
        return None, None
    peaks = seen[2:-2]
    line, bends = [_straight(sizes)], [_bent(sizes, peak) for peak in peaks]
    centred = data.tokens - data.tokens.mean()
    moments = np.column_stack([np.ones(len(data)), centred, centred**2])
    straight, bent = working(data, line), working(data, bends or line)
    once = summed(np.column_stack([moments, straight.rows, bent.rows]), data.problem)
    again = resampled_sums(once, data.size_of_problem, replicates, seed)
    means = _means(data, line, once[:, 3:7], again[:, :, 3:7], straight.shift, level)
    fitted = _line(means, _r2(data, once[:, :3], again[:, :, :3], means))
    if not bends:
        return fitted, None
    return fitted, _bend(_means(data, bends, once[:, 7:], again[:, :, 7:], bent.shift, level), bends, peaks)


def _straight(x: Floats) -> Floats:
    return np.column_stack([np.ones_like(x), x])


def _bent(x: Floats, peak: float) -> Floats:
    """Design with three coefficients: the value at the peak, the slope before it, the slope after it."""
    return np.column_stack([np.ones_like(x), np.minimum(x - peak, 0), np.maximum(x - peak, 0)])


@dataclass(frozen=True, slots=True)
class _Means:
    """The weight and mean of each size, and the noise of the means over bootstrap replicates."""

    sizes: Floats
    weight: Floats
    mean: Floats
    noise: Floats  # replicates × sizes
    attempts: int
    problems: int
    known: bool  # whether there are enough problems to estimate the noise
    level: float

    def interval(self, redrawn: Floats) -> tuple[Floats, Floats]:
        low, high = np.quantile(redrawn, [(1 - self.level) / 2, (1 + self.level) / 2], axis=0)
        return (low, high) if self.known else (low - math.inf, high + math.inf)

    def estimate(self, value: float, redrawn: Floats) -> Estimate:
        low, high = (float(end) for end in self.interval(redrawn))
        return Estimate(float(value), min(low, value), max(high, value), self.attempts, self.problems)

    def curve(self, x: Floats, value: Floats, redrawn: Floats) -> Curve:
        return draw_curve(x, value, *self.interval(redrawn))


def _means(
    data: Columns, designs: Sequence[Floats], once: Floats, again: Floats, shift: Floats, level: float
) -> _Means:
    """From the rows of `Working`: `once`, summed by problem, and `again`, resampled and summed by size."""
    size_of = data.size_of_problem
    total = summed(once, size_of)
    weight, mean = total[:, 0], total[:, 1] / total[:, 0]
    best = search(mean[None], weight, designs)
    design = designs[best.design[0]]
    project = projection(design, weight)
    # A size with one problem shows its noise only as its distance from the fit, which its leverage has reduced.
    alone = np.bincount(size_of) == 1
    pulled = np.sqrt(1 - np.minimum(np.einsum("sc,cs->s", design, project), 0.99))
    centre = np.where(alone, best.fitted(designs)[0], mean)
    change = again - total
    moved = change[:, :, 1] - centre * change[:, :, 0] + change[:, :, 2:].sum(axis=1) @ shift.T
    noise = moved / weight / np.where(alone, pulled, 1.0)
    upper = (1 + level) / 2
    noise *= t_quantile(upper, _degrees_of_freedom(project[-1], noise, size_of)) / z_quantile(upper)
    known = data.problems > max(len(strata(size_of)), design.shape[1])
    return _Means(np.unique(data.size), weight, mean, noise, len(data), data.problems, known, level)


def _degrees_of_freedom(contrast: Floats, noise: Floats, size_of: Ints) -> int:
    """Satterthwaite's degrees of freedom of a contrast: the last slope depends on few problems at the last sizes."""
    by_size = noise.var(axis=0) * contrast**2
    runs = strata(size_of)
    variance = np.array([by_size[np.unique(size_of[run])].sum() for run in runs])
    spare = np.array([max(1, run.stop - run.start - 1) for run in runs])
    if not variance.any():
        return int(spare.sum())
    return max(1, int(variance.sum() ** 2 / (variance**2 / spare).sum()))


def _line(means: _Means, r2: Estimate) -> Line:
    project = projection(_straight(means.sizes), means.weight)
    best, redrawn = project @ means.mean, (means.mean + means.noise) @ project.T
    x = drawing_sizes(means.sizes)
    return Line(
        intercept=means.estimate(best[0], redrawn[:, 0]),
        slope=means.estimate(best[1], redrawn[:, 1]),
        r2=r2,
        curve=means.curve(x, _straight(x) @ best, redrawn @ _straight(x).T),
    )


def _r2(data: Columns, once: Floats, again: Floats, means: _Means) -> Estimate:
    if data.truncated.any() or data.tokens.min() == data.tokens.max():
        return Estimate(math.nan, 0.0, 1.0, means.attempts, means.problems)
    value = _squared_correlation(summed(once, data.size_of_problem)[None], means.sizes)[0]
    r2 = means.estimate(value, _squared_correlation(again, means.sizes))
    return Estimate(r2.value, max(r2.low, 0.0), min(r2.high, 1.0), r2.attempts, r2.problems)


def _squared_correlation(moments: Floats, sizes: Floats) -> Floats:
    """R² of tokens and size, from replicates × sizes × (attempts, sum of tokens, sum of their squares)."""
    n, y, yy = moments.sum(axis=1).T
    x, xx, xy = moments[:, :, 0] @ sizes, moments[:, :, 0] @ sizes**2, moments[:, :, 1] @ sizes
    return np.asarray((n * xy - x * y) ** 2 / np.maximum((n * xx - x**2) * (n * yy - y**2), 1e-300))


def _bend(means: _Means, designs: Sequence[Floats], peaks: Floats) -> Bend:
    best = search(means.mean[None], means.weight, designs)
    redrawn = search(means.mean + means.noise, means.weight, designs)
    x = drawing_sizes(means.sizes)
    at_x = [_bent(x, peak) for peak in peaks]
    return Bend(
        before=means.estimate(best.coefficients[0, 1], redrawn.coefficients[:, 1]),
        after=means.estimate(best.coefficients[0, 2], redrawn.coefficients[:, 2]),
        peak=_peak(means, float(peaks[best.design[0]]), peaks[redrawn.design]),
        p_value=_p_value(means, designs),
        curve=means.curve(x, best.fitted(at_x)[0], redrawn.fitted(at_x)),
    )


def _peak(means: _Means, value: float, redrawn: Floats) -> Estimate:
    """The peak's interval, widened to the neighbouring sizes: no size in between was measured."""
    sizes, peak = means.sizes, means.estimate(value, redrawn)
    low = sizes[max(0, int(np.searchsorted(sizes, peak.low)) - 1)]
    high = sizes[min(len(sizes) - 1, int(np.searchsorted(sizes, peak.high, side="right")))]
    return Estimate(value, float(low), float(high), peak.attempts, peak.problems)


def _p_value(means: _Means, designs: Sequence[Floats]) -> float:
    """How often noise around the best rise-and-plateau fit shows as clear a fall, with the same search for a peak."""
    by_size = means.noise.var(axis=0)
    errors = np.sqrt([projection(design, means.weight)[2] ** 2 @ by_size for design in designs])
    if not means.known or not errors.all():
        return 1.0

    def fall(responses: Floats) -> Floats:
        fits = search(responses, means.weight, designs)
        return np.asarray(fits.coefficients[:, 2] / errors[fits.design])

    plateaus = [design[:, :2] for design in designs]
    null = search(means.mean[None], means.weight, plateaus)
    flat = np.full_like(means.mean, np.average(means.mean, weights=means.weight))
    truth = null.fitted(plateaus)[0] if null.coefficients[0, 1] > 0 else flat
    as_clear = fall(truth + means.noise) <= fall(means.mean[None])
    return (1 + int(as_clear.sum())) / (1 + len(as_clear))
