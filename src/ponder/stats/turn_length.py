"""Test whether accuracy depends on the number of steps per turn, and which one could be the best.

The figure `tradeoff` uses it. A plan is a problem of the task `execution`.

If every turn length was asked the same plans, they are compared plan by plan: a shuffle of turn
lengths within each plan tests for any difference, flipped signs of each plan's slope test for a
trend in log steps per turn, and the max-t test of `grid` gives the turn lengths that could be the
best. Otherwise, and for published accuracies, problems are taken as independent: a chi-square test,
Cochran and Armitage's test of the trend, and the same max-t test with normal noise. Several
rollouts of a problem then count as their mean, which errs on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import FEWEST_PAIRS, Floats
from ponder.stats.distributions import chi2_tail, t_quantile, z_quantile
from ponder.stats.grid import independent_p_best, p_best, shuffled
from ponder.stats.horizon import sign_flips


@dataclass(frozen=True, slots=True)
class TurnLength:
    """How accuracy depends on the number of steps per turn."""

    paired: bool  # by plan
    problems: int  # plans that every turn length was asked; if not paired, all problems
    p_any: float  # of accuracies that differ this much if turn length made no difference
    slope: Estimate  # change in accuracy per doubling of the steps per turn
    p_trend: float
    could_be_best: tuple[int, ...]  # turn lengths whose accuracy can't be told from the best

    @property
    def best(self) -> int | None:
        """The turn length that is better than every other, if one is."""
        if len(self.could_be_best) > 1:
            return None
        return self.could_be_best[0]


def turn_length(
    right: Mapping[int, Mapping[str, float]], *, paired: bool, level: float = 0.95
) -> TurnLength | None:
    """Compare turn lengths by their accuracy on each plan or problem.

    Return None if there is nothing to compare.
    """
    lengths = sorted(length for length, accuracies in right.items() if accuracies)
    if len(lengths) < 2:
        return None
    if paired:
        plans = [set(right[length]) for length in lengths]
        common = sorted(set.intersection(*plans))
        if len(common) >= FEWEST_PAIRS:
            rows = [[right[length][plan] for length in lengths] for plan in common]
            return _paired(lengths, np.array(rows), level)
    means = np.array([np.mean(sorted(right[length].values())) for length in lengths])
    problems = np.array([len(right[length]) for length in lengths], dtype=np.float64)
    return independent(lengths, means, problems, level)


def _paired(lengths: Sequence[int], right: Floats, level: float) -> TurnLength:
    """Compare plan by plan; `right` is plans × turn lengths."""
    n = len(right)
    x = np.log2(lengths)
    centred = x - x.mean()
    coefficients = centred / (centred**2).sum()  # of the least-squares slope
    slopes = right @ coefficients
    # Two more plans, right in the last turn length only and wrong in it only, so that plans that
    # agree have an interval too: with two turn lengths this is the interval of Bonett & Price
    # (2012).
    middle = float(slopes.sum()) / (n + 2)
    largest = float(np.abs(coefficients).max())
    variance = (float(slopes @ slopes) + 2 * largest**2) / (n + 2) - middle**2
    half = t_quantile((1 + level) / 2, n - 1) * math.sqrt(variance / (n + 2))
    value = float(slopes.mean())
    rng = np.random.default_rng(0)
    p_any, _ = shuffled(right, 2000, rng)
    p_values = p_best(right, 2000, rng)
    return TurnLength(
        paired=True,
        problems=n,
        p_any=p_any,
        slope=Estimate(value, min(value, middle - half), max(value, middle + half), n, n),
        p_trend=sign_flips(slopes[np.abs(slopes) > 1e-12]),
        could_be_best=_not_excluded(lengths, right.mean(axis=0), p_values, level),
    )


def independent(
    lengths: Sequence[int], means: Floats, problems: Floats, level: float = 0.95
) -> TurnLength:
    """Compare the mean accuracies of turn lengths, with their problems taken as independent."""
    x = np.log2(lengths)
    centred = x - float((problems * x).sum() / problems.sum())
    squares = float((problems * centred**2).sum())
    common = float((problems * means).sum() / problems.sum())
    noise = common * (1 - common)
    value = float((problems * centred * means).sum()) / squares
    chi_square = 0.0
    p_trend = 1.0
    if noise > 0:
        chi_square = float((problems * (means - common) ** 2).sum()) / noise
        p_trend = math.erfc(abs(value) / math.sqrt(2 * noise / squares))
    # Agresti & Coull add two answers of each kind, so that 0 % and 100 % have noise too.
    smooth = (means * problems + 2) / (problems + 4)
    variance = smooth * (1 - smooth) / problems
    error = math.sqrt(float(((problems * centred) ** 2 * variance).sum()))
    half = z_quantile((1 + level) / 2) * error / squares
    total = int(problems.sum())
    p_values = independent_p_best(means, variance, 10_000, np.random.default_rng(0))
    return TurnLength(
        paired=False,
        problems=total,
        p_any=chi2_tail(chi_square, len(lengths) - 1),
        slope=Estimate(value, value - half, value + half, total, total),
        p_trend=p_trend,
        could_be_best=_not_excluded(lengths, means, p_values, level),
    )


def _not_excluded(
    lengths: Sequence[int], means: Floats, p_values: Floats, level: float
) -> tuple[int, ...]:
    """Return the turn lengths that could be the best, always with the one that is."""
    best = int(np.argmax(means.round(9)))
    kept = []
    for i, length in enumerate(lengths):
        if p_values[i] > 1 - level or i == best:
            kept.append(length)
    return tuple(kept)
