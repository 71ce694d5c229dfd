"""How well a reward tells right samples from wrong ones of the same problem, and its calibration.

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
COLUMNS = (  # what an attempt adds; three more columns for each bin
    "ordered pairs",
    "pairs",
    "same thinking",
    "attempts",
    "thinkings",
    "wrong in answer",
    "wrong",
    "probability",
    "right",
    "squared error",
    "samples",
)
BIN_COLUMNS = ("samples", "probability", "right")


class ScoredSamples(NamedTuple):
    """All samples of one attempt, with a score and a probability of being right for each."""

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
    """How well one reward tells right samples from wrong ones."""

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
    """Summarize the attempts that one reward has scored; their order doesn't matter."""
    attempts = sorted(attempts)
    names = sorted({attempt.problem for attempt in attempts})
    numbers = {name: n for n, name in enumerate(names)}
    problem = np.array([numbers[attempt.problem] for attempt in attempts], np.int64)
    columns = np.array([_row(attempt) for attempt in attempts], np.float64)
    by_problem = summed(columns, problem)
    one_size = np.zeros(len(names), np.int64)
    redrawn = resampled_sums(by_problem, one_size, REPLICATES, seed)[:, 0]
    sums = np.vstack([columns.sum(axis=0), redrawn])  # as measured, then one row per replicate

    def ratio(numerator: str, denominator: str) -> Estimate:
        return _ratio(
            sums[:, COLUMNS.index(numerator)],
            sums[:, COLUMNS.index(denominator)],
            len(attempts),
            len(names),
        )

    bins = []
    for n, (low, high) in enumerate(pairwise(EDGES)):
        first = len(COLUMNS) + len(BIN_COLUMNS) * n
        samples, probability, right = sums[:, first : first + len(BIN_COLUMNS)].T
        in_bin = int(samples[0])
        if in_bin:
            mean_probability = float(probability[0]) / in_bin
            fraction = _ratio(right, samples, len(attempts), len(names))
            bins.append(Bin(low, high, in_bin, mean_probability, fraction))
    return Separation(
        # Few problems may have both right and wrong samples: their bootstrap would be too narrow,
        # or have no width.
        auc=rate(
            by_problem[:, COLUMNS.index("pairs")], by_problem[:, COLUMNS.index("ordered pairs")]
        ),
        pairs=int(sums[0, COLUMNS.index("pairs")]),
        same_thinking=ratio("same thinking", "attempts"),
        thinkings=ratio("thinkings", "attempts"),
        wrong_in_answer=ratio("wrong in answer", "wrong"),
        said=ratio("probability", "samples"),
        right=ratio("right", "samples"),
        brier=ratio("squared error", "samples"),
        bins=tuple(bins),
    )


def _row(attempt: ScoredSamples) -> list[float]:
    """Return what an attempt adds to each sum: `COLUMNS`, then `BIN_COLUMNS` for each bin."""
    score = np.array(attempt.totals)
    probability = np.array(attempt.probabilities)
    right = np.array(attempt.right, bool)
    differences = score[right][:, None] - score[~right][None, :]
    row = [
        float((differences > 0).sum() + 0.5 * (differences == 0).sum()),
        float(differences.size),
        float(attempt.thinkings == 1),
        1.0,
        attempt.thinkings,
        attempt.wrong_in_answer,
        attempt.wrong,
        float(probability.sum()),
        float(right.sum()),
        float(((probability - right) ** 2).sum()),
        float(len(probability)),
    ]
    for low, high in pairwise((*EDGES[:-1], math.inf)):
        inside = (probability >= low) & (probability < high)
        row.append(float(inside.sum()))
        row.append(float(probability[inside].sum()))
        row.append(float(right[inside].sum()))
    return row


def _ratio(numerator: Floats, denominator: Floats, attempts: int, problems: int) -> Estimate:
    """Return the first of these ratios, with the quantiles of the others.

    It has no bounds where it can't be redrawn.
    """
    values: Floats = np.divide(
        numerator,
        denominator,
        out=np.full(len(denominator), math.nan),
        where=denominator > 0,
    )
    value = float(values[0])
    redrawn = values[1:][np.isfinite(values[1:])]
    if math.isnan(value) or problems < 2 or not len(redrawn):
        return Estimate(value, -math.inf, math.inf, attempts, problems)
    low, high = np.quantile(redrawn, [0.025, 0.975])
    return Estimate(value, min(value, float(low)), max(value, float(high)), attempts, problems)
