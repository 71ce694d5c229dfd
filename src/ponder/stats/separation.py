"""How well a reward tells right samples from wrong ones of the same problem, and whether its
probabilities are true.

A reward that picks one of n samples need only order the samples of one problem. So the AUC here
compares a right and a wrong sample of the same problem and attempt: the fraction of such pairs in
which the right one scores higher, a tie counting half. It is 0.5 for a reward that can't tell,
whatever it knows about which problems are hard. Calibration compares the probability that it gives
with how often samples of that probability are right. Intervals are by bootstrap over problems,
except that of the AUC, which is an interval of a rate clustered by problem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ponder.core import Estimate
from ponder.stats.accuracy import rate
from ponder.stats.bootstrap import resampled_sums
from ponder.stats.columns import Floats, summed

REPLICATES = 2000
EDGES = (0.0, 0.1, 0.5, 0.9, 1.0)  # of the bins of probability: many samples are near 0 or 1


class ScoredSamples(NamedTuple):
    """All samples of one attempt: a score, a probability of being right, and whether each is right."""

    problem: tuple[int, str]  # size and name
    totals: tuple[float, ...]
    probabilities: tuple[float, ...]
    right: tuple[bool, ...]
    thinkings: float  # different ones among the samples
    wrong: float  # samples that are wrong
    wrong_in_answer: float  # of those, the ones with the thinking of a right sample, word for word


class Bin(NamedTuple):
    """The samples that a reward gives about the same probability."""

    low: float
    high: float
    samples: int
    said: float  # mean probability
    right: Estimate  # fraction that is right


@dataclass(frozen=True, slots=True)
class Separation:
    auc: Estimate  # right against wrong samples of the same problem
    pairs: int
    same_thinking: Estimate  # fraction of attempts in which all samples have the same thinking
    thinkings: Estimate  # different thinkings per attempt
    wrong_in_answer: Estimate  # fraction of wrong samples with the thinking of a right one
    said: Estimate  # mean probability of being right
    right: Estimate  # fraction of samples that is right
    brier: Estimate  # mean squared error of the probability
    bins: tuple[Bin, ...]


def separation(attempts: Sequence[ScoredSamples], seed: int = 0) -> Separation:
    """Statistics of all attempts that one reward has scored; their order doesn't matter."""
    rows = sorted(attempts)
    edges = [*EDGES[:-1], math.inf]
    columns = np.array([_row(one, edges) for one in rows], np.float64)
    numbers = {problem: n for n, problem in enumerate(sorted({one.problem for one in rows}))}
    by_problem = summed(columns, np.array([numbers[one.problem] for one in rows], np.int64))
    redrawn = resampled_sums(by_problem, np.zeros(len(numbers), np.int64), REPLICATES, seed)[:, 0]
    sums = np.vstack([columns.sum(axis=0), redrawn])

    def ratio(part: int, whole: int) -> Estimate:
        return _ratio(sums[:, part], sums[:, whole], len(rows), len(numbers))

    bins = []
    for n, (low, high) in enumerate(pairwise(EDGES)):
        first = 11 + 3 * n
        if samples := int(sums[0, first]):
            bins.append(
                Bin(
                    low, high, samples, float(sums[0, first + 1]) / samples, ratio(first + 2, first)
                )
            )
    return Separation(
        # Few problems may have both right and wrong samples: their bootstrap would be too narrow,
        # or have no width.
        auc=rate(by_problem[:, 1], by_problem[:, 0]),
        pairs=int(sums[0, 1]),
        same_thinking=ratio(2, 3),
        thinkings=ratio(4, 3),
        wrong_in_answer=ratio(5, 6),
        said=ratio(7, 10),
        right=ratio(8, 10),
        brier=ratio(9, 10),
        bins=tuple(bins),
    )


def _row(one: ScoredSamples, edges: Sequence[float]) -> list[float]:
    """What an attempt adds to each sum."""
    totals, said, right = (
        np.array(one.totals),
        np.array(one.probabilities),
        np.array(one.right, bool),
    )
    apart = totals[right][:, None] - totals[~right][None, :]
    row = [float((apart > 0).sum() + 0.5 * (apart == 0).sum()), float(apart.size)]
    row += [float(one.thinkings == 1), 1.0, one.thinkings, one.wrong_in_answer, one.wrong]
    row += [
        float(said.sum()),
        float(right.sum()),
        float(((said - right) ** 2).sum()),
        float(len(said)),
    ]
    for low, high in pairwise(edges):
        inside = (said >= low) & (said < high)
        row += [float(inside.sum()), float(said[inside].sum()), float(right[inside].sum())]
    return row


def _ratio(part: Floats, whole: Floats, attempts: int, problems: int) -> Estimate:
    """The first of these ratios, with the quantiles of the others; without bounds where it can't be
    redrawn.
    """
    values: Floats = np.divide(part, whole, out=np.full(len(whole), math.nan), where=whole > 0)
    value, known = float(values[0]), values[1:][np.isfinite(values[1:])]
    if math.isnan(value) or problems < 2 or not len(known):
        return Estimate(value, -math.inf, math.inf, attempts, problems)
    low, high = np.quantile(known, [0.025, 0.975])
    return Estimate(value, min(value, float(low)), max(value, float(high)), attempts, problems)
