"""The ratio of two critical sizes on the same problems.

Problems are redrawn jointly, both curves are fitted again, and the interval is the log ratio ± 1.96 standard deviations
of the redrawn ones: what the two models share on a problem cancels. Redrawing shows too little where a curve may be a
cliff between two sizes, anywhere between which it may lie; there the ends of the two intervals are compared instead,
without pairing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ponder.core import Estimate
from ponder.stats.bootstrap import resampled_sums
from ponder.stats.columns import Floats
from ponder.stats.critical import counts_by_problem, critical_size, redrawn_log_sizes
from ponder.stats.distributions import z_quantile
from ponder.stats.pairs import Pair, Side
from ponder.stats.seeds import Spread, widened

Z95 = z_quantile(0.975)


@dataclass(frozen=True, slots=True)
class CriticalRatio:
    first: Estimate
    second: Estimate
    ratio: Callable[[float], Estimate]  # second over first, by level
    paired: bool  # False: from the ends of the two intervals


def critical_ratio(pair: Pair, replicates: int = 1000, seed: int = 0) -> CriticalRatio | str:
    """A reason, if there is no such ratio."""
    if len(pair.sizes) < 2 or pair.sizes[0] <= 0:
        return "needs at least two sizes"
    one, other = (critical_size(side.data, replicates=replicates, seed=seed) for side in pair.sides)
    outside = [name for name, c in (("A", one), ("B", other)) if math.isnan(c.size.value)]
    if outside:
        return f"accuracy of {' and of '.join(outside)} doesn't cross 50 % within these sizes"
    value = math.log(other.size.value / one.size.value)
    basis = replace(other.size, value=value, attempts=one.size.attempts + other.size.attempts)
    spreads = [_seeds(side) for side in pair.sides]
    cliff = any(math.isinf(c.slope.high) for c in (one, other))
    error = _redrawn_error(pair, replicates, seed)
    ends = _logarithm(other.size.low / one.size.high), _logarithm(other.size.high / max(one.size.low, 1e-300))

    def ratio(level: float) -> Estimate:
        z = z_quantile((1 + level) / 2)
        below, above = ((value - ends[0]) / Z95, (ends[1] - value) / Z95) if cliff else (error, error)
        apart = replace(basis, low=value - z * below, high=value + z * above)
        wide = widened(apart, spreads, level, -math.inf, math.inf)
        low, high = (math.exp(end) if end < 600 else math.inf for end in (wide.low, wide.high))  # 1e-300 is none
        return Estimate(math.exp(value), low, high, basis.attempts, pair.problems)

    return CriticalRatio(one.size, other.size, ratio, not cliff)


def _logarithm(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _redrawn_error(pair: Pair, replicates: int, seed: int) -> float:
    counts = np.hstack([counts_by_problem(side.data) for side in pair.sides])
    drawn = resampled_sums(counts, pair.first.data.size_of_problem, replicates, seed)
    one, other = (redrawn_log_sizes(s.data, drawn[..., 2 * i : 2 * i + 2]) for i, s in enumerate(pair.sides))
    return float((other - one).std(ddof=1))


def _seeds(side: Side) -> Spread:
    """The variance between the critical sizes of training seeds; with their problems' part, which is not taken out."""
    seeds = len(side.variant.seeds)
    if seeds < 2:
        return Spread(0.0, 0.0, 0)
    own: Floats = np.array([_of_seed(side, i) for i in range(seeds)])
    variance = float(own.var(ddof=1)) / seeds
    return Spread(variance, variance, seeds - 1)


def _of_seed(side: Side, seed: int) -> float:
    rows = side.variant.seed == seed
    problem, right = side.variant.problem[rows], side.variant.correct[rows]
    size = side.data.size[np.unique(side.data.problem, return_index=True)[1]][problem]
    none = np.zeros(len(problem), dtype=np.bool_)
    order = np.argsort(problem, kind="stable")
    tokens = side.variant.tokens[rows]
    data = replace(
        side.data,
        size=size[order], problem=problem[order], correct=right[order], unparsed=none, truncated=none,
        tokens=tokens[order],
    )  # fmt: skip
    counts = counts_by_problem(data)
    total = np.stack([counts[data.size_of_problem == k].sum(axis=0) for k in range(len(np.unique(size)))])
    return float(redrawn_log_sizes(data, total[None])[0])
