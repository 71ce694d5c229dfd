"""Thinking tokens against size: a line, and a line with a bend that asks whether effort falls after a peak.

After Estermann & Wattenhofer (2025), who fit a line by least squares to the successes only. Here the same line is also
fitted to all attempts, where a truncated one counts as "more than it got": a normal error censored at the tokens seen,
its spread a power of size. The bend is searched for among the sizes measured, with two of them on either side.

Within a size everything is a sum over problems, so a fit needs one weight and one mean a size. For truncated attempts
these are the weight and the working response of the last Newton step, and replicates repeat only that step.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ponder.core import Estimate
from ponder.stats.bootstrap import Curve, draw_curve, drawing_sizes, resampled_sums, strata
from ponder.stats.columns import Columns, Floats, Ints
from ponder.stats.distributions import hazard, t_quantile, z_quantile

Verdict: TypeAlias = Literal["rises", "falls", "falls after a peak", "no clear trend", "not enough data"]


@dataclass(frozen=True, slots=True)
class Line:
    intercept: Estimate
    slope: Estimate  # tokens per unit of size
    r2: Estimate  # nan where attempts were truncated: what they wanted was not seen
    curve: Curve


@dataclass(frozen=True, slots=True)
class Bend:
    """Two lines that meet at `peak`, one of the sizes measured."""

    before: Estimate  # slope up to the peak
    after: Estimate  # slope beyond it
    peak: Estimate
    p_value: float  # of a fall as clear as this one, were the truth a rise and then a plateau; the search is counted in
    curve: Curve


@dataclass(frozen=True, slots=True)
class Effort:
    on_successes: Line | None  # None: fewer than two sizes have any
    on_all: Line | None
    bend_on_successes: Bend | None  # None: fewer than five sizes
    bend_on_all: Bend | None
    truncated: int
    verdict: Verdict  # on all attempts

    @property
    def says(self) -> str:
        """The verdict as a phrase: `falls after 100`."""
        if self.verdict == "falls after a peak" and self.bend_on_all:
            return f"falls after {self.bend_on_all.peak.value:g}"
        return self.verdict


@dataclass(frozen=True, slots=True)
class _Means:
    """A weight and a mean a size, and how the mean varies when problems are drawn again."""

    sizes: Floats
    weight: Floats
    mean: Floats
    noise: Floats  # replicates × sizes
    attempts: int
    problems: int
    spare: int  # problems beyond what the fit used up; with none, nothing is known of the noise


def effort(data: Columns, level: float = 0.95, replicates: int = 1000, seed: int = 0) -> Effort:
    successes = data.where(data.correct)
    line = _line(data, level, replicates, seed)
    bend = _bend(data, level, replicates, seed)
    return Effort(
        on_successes=_line(successes, level, replicates, seed),
        on_all=line,
        bend_on_successes=_bend(successes, level, replicates, seed),
        bend_on_all=bend,
        truncated=int(data.truncated.sum()),
        verdict=_verdict(line, bend, level),
    )


def _verdict(line: Line | None, bend: Bend | None, level: float) -> Verdict:
    if line is None or not math.isfinite(line.slope.low):
        return "not enough data"
    if bend and bend.p_value < 1 - level and bend.before.value > 0:
        return "falls after a peak"
    if line.slope.low > 0:
        return "rises"
    return "falls" if line.slope.high < 0 else "no clear trend"


def _line(data: Columns, level: float, replicates: int, seed: int) -> Line | None:
    sizes = np.unique(data.size)
    if len(np.unique(data.size[~data.truncated])) < 2:
        return None
    design = np.column_stack([np.ones_like(sizes), sizes])
    means = _means(data, [design], level, replicates, seed)
    project = _projection(design, means.weight)
    best, redrawn = project @ means.mean, (means.mean + means.noise) @ project.T
    x = drawing_sizes(sizes)
    at_x = np.column_stack([np.ones_like(x), x]).T
    return Line(
        intercept=_estimate(best[0], redrawn[:, 0], means, level),
        slope=_estimate(best[1], redrawn[:, 1], means, level),
        r2=_r2(data, means, level, replicates, seed),
        curve=_curve(x, best @ at_x, redrawn @ at_x, means, level),
    )


def _bend(data: Columns, level: float, replicates: int, seed: int) -> Bend | None:
    sizes = np.unique(data.size)
    seen = np.unique(data.size[~data.truncated])
    if len(seen) < 5:
        return None
    peaks = seen[2:-2]
    designs = [_bent(sizes, peak) for peak in peaks]
    means = _means(data, designs, level, replicates, seed)
    projects = np.array([_projection(design, means.weight) for design in designs])
    which, best = _search(means.mean[None], means.weight, designs, projects)
    picks, redrawn = _search(means.mean + means.noise, means.weight, designs, projects)
    peak = _estimate(peaks[which[0]], peaks[picks], means, level)
    x = drawing_sizes(sizes)
    curves = np.empty((replicates, len(x)))
    for i, place in enumerate(peaks):
        curves[picks == i] = redrawn[picks == i] @ _bent(x, place).T
    return Bend(
        before=_estimate(best[0, 1], redrawn[:, 1], means, level),
        after=_estimate(best[0, 2], redrawn[:, 2], means, level),
        peak=_between_neighbours(peak, sizes),
        p_value=_p_value(means, designs, projects, int(which[0]), float(best[0, 2])),
        curve=_curve(x, best[0] @ _bent(x, peaks[which[0]]).T, curves, means, level),
    )


def _bent(x: Floats, peak: float) -> Floats:
    """Coefficients: the value at the peak, the slope before it, the slope after it."""
    return np.column_stack([np.ones_like(x), np.minimum(x - peak, 0), np.maximum(x - peak, 0)])


def _projection(design: Floats, weight: Floats) -> Floats:
    """The matrix that turns means into least-squares coefficients."""
    weighted = design.T * weight
    return np.asarray(np.linalg.solve(weighted @ design, weighted))


def _search(means: Floats, weight: Floats, designs: list[Floats], projects: Floats) -> tuple[Ints, Floats]:
    """For each row of means: which design leaves the smallest squares, and its coefficients."""
    fits = np.einsum("rs,kcs->krc", means, projects)
    explained = [
        ((means * weight) @ design * fit).sum(axis=1) for design, fit in zip(designs, fits, strict=True)
    ]
    which = np.argmax(np.array(explained), axis=0)
    return which, fits[which, np.arange(len(means))]


def _p_value(means: _Means, designs: list[Floats], projects: Floats, which: int, after: float) -> float:
    """How often noise on top of the best rise-then-plateau yields a fall as clear, the peak searched for each time."""
    variance = means.noise.var(axis=0)
    errors = np.sqrt(projects[:, 2] ** 2 @ variance)
    if means.spare < 1 or not errors.all():
        return 1.0
    level_off = [design[:, :2] for design in designs]
    null_projects = np.array([_projection(design, means.weight) for design in level_off])
    place, fit = _search(means.mean[None], means.weight, level_off, null_projects)
    if fit[0, 1] > 0:
        null = level_off[place[0]] @ fit[0]
    else:
        null = np.full_like(means.mean, np.average(means.mean, weights=means.weight))
    picks, redrawn = _search(null + means.noise, means.weight, designs, projects)
    as_clear = redrawn[:, 2] / errors[picks] <= after / errors[which]
    return (1 + int(as_clear.sum())) / (1 + len(picks))


def _means(data: Columns, designs: list[Floats], level: float, replicates: int, seed: int) -> _Means:
    weight, response = _working(data, designs)
    per_problem = np.column_stack([np.bincount(data.problem, weights=v) for v in (weight, response)])
    size_of = _size_of_problem(data)
    total = np.column_stack([np.bincount(size_of, weights=column) for column in per_problem.T])
    mean = total[:, 1] / total[:, 0]
    # A size with one problem shows its noise only as the distance from the fit.
    project = [_projection(design, total[:, 0]) for design in designs]
    which, fit = _search(mean[None], total[:, 0], designs, np.array(project))
    design, project_best = designs[which[0]], project[which[0]]
    leverage = np.minimum(np.einsum("sc,cs->s", design, project_best), 0.99)
    alone = np.bincount(size_of) == 1
    centre, stretch = np.where(alone, design @ fit[0], mean), np.where(alone, 1 / np.sqrt(1 - leverage), 1.0)
    change = resampled_sums(per_problem, size_of, replicates, seed) - total
    noise = (change[:, :, 1] - centre * change[:, :, 0]) / total[:, 0] * stretch
    spare = data.problems - max(len(strata(size_of)), design.shape[1])
    upper = (1 + level) / 2
    few = t_quantile(upper, max(spare, 1)) / z_quantile(upper)
    return _Means(np.unique(data.size), total[:, 0], mean, noise * few, len(data), data.problems, spare)


def _size_of_problem(data: Columns) -> Ints:
    size_of = np.zeros(data.problems, dtype=np.int64)
    size_of[data.problem] = np.unique(data.size, return_inverse=True)[1]
    return size_of


def _working(data: Columns, designs: list[Floats]) -> tuple[Floats, Floats]:
    """A weight an attempt, and its weight times its response: 1 and its tokens, unless it was truncated."""
    weight, response = np.ones(len(data)), data.tokens.copy()
    cut = data.truncated
    if cut.any():
        sizes, size_of = np.unique(data.size, return_inverse=True)
        mean, spread = _censored_fit(data.tokens, cut, size_of.astype(np.int64), np.log(sizes), designs)
        mu, sigma = mean[size_of[cut]], spread[size_of[cut]]
        weight[cut], excess = _beyond((data.tokens[cut] - mu) / sigma)
        response[cut] = weight[cut] * mu + sigma * excess
    return weight, response


def _beyond(x: Floats) -> tuple[Floats, Floats]:
    """Of a standard normal known to exceed x: the information about its mean, and its expectation."""
    excess = hazard(x)
    return np.clip(excess * (excess - x), 1e-9, 1.0), excess


def _censored_fit(
    tokens: Floats, cut: np.typing.NDArray[np.bool_], size_of: Ints, log_size: Floats, designs: list[Floats]
) -> tuple[Floats, Floats]:
    """Mean and spread at each size: expectation-maximisation, the best of the designs chosen at each step."""
    sizes, n = len(log_size), np.bincount(size_of)
    seen_n, seen_sum, seen_squares = (
        np.bincount(size_of[~cut], weights=v, minlength=sizes)
        for v in (np.ones((~cut).sum()), tokens[~cut], tokens[~cut] ** 2)
    )
    # Attempts cut off at the same size and count are one cell; a common cap leaves one a size.
    cells, count = np.unique(np.column_stack([size_of[cut], tokens[cut]]), axis=0, return_counts=True)
    place, cap = cells[:, 0].astype(np.int64), cells[:, 1]
    powers = np.column_stack([np.ones(sizes), log_size - np.average(log_size, weights=n)])
    scale = float(tokens.std()) or 1.0
    mean, shape = np.bincount(size_of, weights=tokens) / n, np.array([math.log(scale), 0.0])
    mean = _fitted(mean, n.astype(np.float64), designs)
    for _ in range(500):
        spread = np.maximum(np.exp(powers @ shape), 1e-3 * scale)
        x = (cap - mean[place]) / spread[place]
        weight, excess = _beyond(x)
        weight = np.maximum(weight, 0.2)  # too short a step is safe, too long a one is not
        w = seen_n + np.bincount(place, weights=count * weight, minlength=sizes)
        pull = np.bincount(place, weights=count * spread[place] * excess, minlength=sizes)
        new = _fitted(mean + (seen_sum - seen_n * mean + pull) / w, w, designs)
        squares = seen_squares - 2 * mean * seen_sum + seen_n * mean**2
        ratio = (
            squares / spread**2 + np.bincount(place, weights=count * (1 + x * excess), minlength=sizes) - n
        )
        shape = shape + np.linalg.solve((powers.T * n) @ powers, powers.T @ ratio) / 2
        moved, mean = float(np.abs(new - mean).max()), new
        if moved < 1e-8 * scale:
            break
    return mean, spread


def _fitted(mean: Floats, weight: Floats, designs: list[Floats]) -> Floats:
    projects = np.array([_projection(design, weight) for design in designs])
    which, fit = _search(mean[None], weight, designs, projects)
    return np.asarray(designs[which[0]] @ fit[0])


def _r2(data: Columns, means: _Means, level: float, replicates: int, seed: int) -> Estimate:
    """The squared correlation of tokens and size, and the same among redrawn problems."""
    if data.truncated.any() or data.tokens.min() == data.tokens.max():
        return Estimate(math.nan, 0.0, 1.0, means.attempts, means.problems)
    centred = data.tokens - data.tokens.mean()
    moments = (np.ones(len(data)), centred, centred**2)
    per_problem = np.column_stack([np.bincount(data.problem, weights=v) for v in moments])
    size_of = _size_of_problem(data)
    value = _squared_correlation(per_problem[None], means.sizes[size_of])[0]
    redrawn = _squared_correlation(resampled_sums(per_problem, size_of, replicates, seed), means.sizes)
    estimate = _estimate(value, redrawn, means, level)
    return dataclasses.replace(estimate, low=max(0.0, estimate.low), high=min(1.0, estimate.high))


def _squared_correlation(moments: Floats, size: Floats) -> Floats:
    """From replicates × groups × (attempts, their sum, their sum of squares), each group of one size."""
    n, y, y2 = moments.sum(axis=1).T
    x, x2, xy = moments[:, :, 0] @ size, moments[:, :, 0] @ size**2, moments[:, :, 1] @ size
    return np.asarray((n * xy - x * y) ** 2 / np.maximum((n * x2 - x**2) * (n * y2 - y**2), 1e-300))


def _estimate(value: float, redrawn: Floats, means: _Means, level: float) -> Estimate:
    low, high = np.quantile(redrawn, [(1 - level) / 2, (1 + level) / 2])
    if means.spare < 1:
        low, high = -math.inf, math.inf
    return Estimate(
        float(value),
        min(float(low), float(value)),
        max(float(high), float(value)),
        means.attempts,
        means.problems,
    )


def _curve(x: Floats, value: Floats, redrawn: Floats, means: _Means, level: float) -> Curve:
    low, high = np.quantile(redrawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    if means.spare < 1:
        low, high = np.full_like(value, -math.inf), np.full_like(value, math.inf)
    return draw_curve(x, value, low, high)


def _between_neighbours(peak: Estimate, sizes: Floats) -> Estimate:
    """A peak is known no finer than the sizes next to it."""
    low = sizes[max(0, int(np.searchsorted(sizes, peak.low)) - 1)]
    high = sizes[min(len(sizes) - 1, int(np.searchsorted(sizes, peak.high, side="right")))]
    return Estimate(peak.value, float(low), float(high), peak.attempts, peak.problems)
