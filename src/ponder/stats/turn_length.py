"""Tests whether accuracy depends on the number of steps per turn, and which numbers could be the
best.

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
    paired: bool  # by plan
    problems: int  # plans that every turn length was asked; if not paired, all problems
    p_any: float  # of accuracies that differ this much if turn length made no difference
    slope: Estimate  # change in accuracy per doubling of the steps per turn
    p_trend: float
    could_be_best: tuple[int, ...]  # turn lengths whose accuracy can't be told from the best

    @property
    def best(self) -> int | None:
        """The turn length that is better than every other, if one is."""
        return self.could_be_best[0] if len(self.could_be_best) == 1 else None


def turn_length(
    right: Mapping[int, Mapping[str, float]], *, paired: bool, level: float = 0.95
) -> TurnLength | None:
    """From each turn length's accuracy on each of its plans or problems; None if there is nothing
    to compare.
    """
    lengths = sorted(length for length, own in right.items() if own)
    if len(lengths) < 2:
        return None
    shared = sorted(set.intersection(*(set(right[length]) for length in lengths))) if paired else []
    if len(shared) >= FEWEST_PAIRS:
        return _paired(
            lengths,
            np.array([[right[length][plan] for length in lengths] for plan in shared]),
            level,
        )
    means = np.array([np.mean(sorted(right[length].values())) for length in lengths])
    return independent(
        lengths,
        means,
        np.array([len(right[length]) for length in lengths], dtype=np.float64),
        level,
    )


def _paired(lengths: Sequence[int], right: Floats, level: float) -> TurnLength:
    n, x, rng = len(right), np.log2(lengths), np.random.default_rng(0)
    pull = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    slopes = right @ pull
    # Two more plans, right in the last turn length only and wrong in it only, so that plans that
    # agree have an interval too: with two turn lengths this is the interval of Bonett & Price
    # (2012).
    middle = float(slopes.sum()) / (n + 2)
    variance = (float(slopes @ slopes) + 2 * float(np.abs(pull).max()) ** 2) / (n + 2) - middle**2
    half = t_quantile((1 + level) / 2, n - 1) * math.sqrt(variance / (n + 2))
    value = float(slopes.mean())
    slope = Estimate(value, min(value, middle - half), max(value, middle + half), n, n)
    p_any, _ = shuffled(right, 2000, rng)
    p_trend = sign_flips(slopes[np.abs(slopes) > 1e-12])
    return TurnLength(
        True,
        n,
        p_any,
        slope,
        p_trend,
        _set(lengths, right.mean(axis=0), p_best(right, 2000, rng), level),
    )


def independent(
    lengths: Sequence[int], means: Floats, problems: Floats, level: float = 0.95
) -> TurnLength:
    """From the accuracy of each turn length and the number of its problems, which are taken as
    independent.
    """
    x = np.log2(lengths)
    centred = x - float((problems * x).sum() / problems.sum())
    weight = float((problems * centred**2).sum())
    common = float((problems * means).sum() / problems.sum())
    noise = common * (1 - common)
    chi_square = float((problems * (means - common) ** 2).sum()) / noise if noise > 0 else 0.0
    value = float((problems * centred * means).sum()) / weight
    p_trend = math.erfc(abs(value) / math.sqrt(2 * noise / weight)) if noise > 0 else 1.0
    # Agresti & Coull add two answers of each kind, so that 0 % and 100 % have noise too.
    smooth = (means * problems + 2) / (problems + 4)
    variance = smooth * (1 - smooth) / problems
    half = (
        z_quantile((1 + level) / 2)
        * math.sqrt(float(((problems * centred) ** 2 * variance).sum()))
        / weight
    )
    total = int(problems.sum())
    slope = Estimate(value, value - half, value + half, total, total)
    p_value = independent_p_best(means, variance, 10_000, np.random.default_rng(0))
    p_any = chi2_tail(chi_square, len(lengths) - 1)
    return TurnLength(False, total, p_any, slope, p_trend, _set(lengths, means, p_value, level))


def _set(lengths: Sequence[int], means: Floats, p_value: Floats, level: float) -> tuple[int, ...]:
    best = int(np.argmax(means.round(9)))
    return tuple(k for i, k in enumerate(lengths) if p_value[i] > 1 - level or i == best)
