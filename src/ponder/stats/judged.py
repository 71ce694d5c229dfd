"""Corrects an accuracy for the errors of the judge, with people's verdicts on some of the replies.

Prediction-powered inference (Angelopoulos et al. 2023, arXiv 2301.09633): the judge's verdicts on
all replies, plus the mean difference between people's verdicts and the judge's on the labelled
ones. The judge's verdicts are weighted by λ, which makes the variance smallest (PPI++, Angelopoulos,
Duchi & Zrnic 2023, arXiv 2311.01453): a judge that knows nothing has λ = 0, and the labels alone
count. The labelled replies must be a random sample of the judged ones.

The variance is linearised and clustered by problem. On its own it is too small where few of the
labels contradict the judge: with none in twenty, nothing shows that it errs. So the interval is the
wider, at each end, of two: Wilson's on the effective sample size of that variance, and one that
combines the Wilson intervals of its parts (MOVER, Zou & Donner 2008): how often the judge says
right, and how often people agree where it says right and where it says wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ponder.core import Estimate, Outcome
from ponder.core.capabilities import JUDGED, LABEL
from ponder.stats.accuracy import accuracy, problem_means, rate, wilson
from ponder.stats.columns import Bools, Floats, Ints, by_problem, clusters, summed
from ponder.stats.distributions import t_quantile, z_quantile

# Problems with a labelled reply, for a correction. With fewer, the interval says next to nothing.
FEWEST = 10


@dataclass(frozen=True, slots=True)
class JudgedColumns:
    """Verdicts of a judge and of people, as columns with one row per answered attempt."""

    right: Bools  # by the judge; False without a verdict, such as for a truncated attempt
    judged: Bools  # whether there is a verdict
    labelled: Bools  # whether a person has judged it too
    label: Bools  # right by that person
    problem: Ints

    @property
    def labels(self) -> int:
        return int(self.labelled.sum())

    def labelled_problems(self) -> int:
        return len(np.unique(self.problem[self.labelled]))


def judged(outcomes: Sequence[Outcome]) -> JudgedColumns:
    """Return outcomes as columns, in an order that doesn't depend on theirs."""
    rows = by_problem(outcomes)

    def column(values: list[bool]) -> Bools:
        return np.array(values, dtype=np.bool_)

    return JudgedColumns(
        right=column([row.ended == "right" for row in rows]),
        judged=column([row.ended in ("right", "wrong") and JUDGED in row.details for row in rows]),
        labelled=column([LABEL in row.details for row in rows]),
        label=column([bool(row.details.get(LABEL)) for row in rows]),
        problem=clusters(rows),
    )


def corrected(data: JudgedColumns, level: float = 0.95) -> Estimate | None:
    """Return the accuracy by people's standard; None if too few replies are labelled."""
    if data.labelled_problems() < FEWEST:
        return None
    value, effective = _prediction_powered(data, level)
    low, high = _combined(data, level)
    other_low, other_high = wilson(value, effective, level)
    return Estimate(
        value,
        max(0.0, min(low, other_low, value)),
        min(1.0, max(high, other_high, value)),
        len(data.right),
        len(np.unique(data.problem)),
    )


def agreement(data: JudgedColumns, level: float = 0.95) -> tuple[Estimate, Estimate]:
    """Return the fraction of right replies that the judge calls right, and that of wrong ones."""
    return _rate(data, data.right, data.label, level), _rate(data, data.right, ~data.label, level)


def _prediction_powered(data: JudgedColumns, level: float) -> tuple[float, float]:
    """Return the estimate and its effective sample size."""
    problems = len(np.unique(data.problem))
    verdict = problem_means(data.right, data.problem)
    has_verdict = problem_means(data.judged, data.problem)
    labels, verdicts, labelled = _labelled_means(data)
    n = int(labelled.sum())
    fraction = float(has_verdict.mean())  # of attempts with a verdict; the others are wrong
    label = float(labels[labelled].mean())
    verdict_of_labelled = float(verdicts[labelled].mean())

    # What each problem contributes to the error of the estimate λ·verdicts + labels.
    drift = (has_verdict - fraction) / problems
    of_verdicts = (verdict - verdict.mean()) / problems - drift * verdict_of_labelled
    of_verdicts -= labelled * fraction * (verdicts - verdict_of_labelled) / n
    of_labels = drift * label + labelled * fraction * (labels - label) / n
    weight = 1.0
    power = float(of_verdicts @ of_verdicts)
    if power > 0:
        weight = min(1.0, max(0.0, -float(of_verdicts @ of_labels) / power))
    value = weight * float(verdict.mean()) + fraction * (label - weight * verdict_of_labelled)
    value = min(1.0, max(0.0, value))
    error = weight * of_verdicts + of_labels
    variance = float(error @ error) * n / (n - 1)
    upper = (1 + level) / 2
    few_labels = z_quantile(upper) / t_quantile(upper, max(1, n - 2))
    effective = float(len(data.right))
    if variance > 0:
        # At 0 % and 100 % the formula would say that nothing is known.
        inside = min(max(value, 0.5 / n), 1 - 0.5 / n)
        effective = min(effective, inside * (1 - inside) / variance * few_labels**2)
    return value, effective


def _labelled_means(data: JudgedColumns) -> tuple[Floats, Floats, Bools]:
    """Return each problem's mean label and verdict on labelled replies, and whether it has any."""
    problem = np.unique(data.problem, return_inverse=True)[1].astype(np.int64)
    count = summed(data.labelled, problem)
    labelled = count > 0
    divisor = np.maximum(count, 1)
    labels = summed(data.label & data.labelled, problem) / divisor
    verdicts = summed(data.right & data.labelled, problem) / divisor
    return labels, verdicts, labelled


def _combined(data: JudgedColumns, level: float) -> tuple[float, float]:
    """Return the interval that combines those of the estimate's parts."""
    says_right = accuracy(data.right, data.problem, level)
    has_verdict = accuracy(data.judged, data.problem, level)
    if data.judged.all():
        has_verdict = Estimate(1.0, 1.0, 1.0, has_verdict.attempts, has_verdict.problems)
    right = _or_uninformative(_rate(data, data.label, data.right, level))
    wrong = _or_uninformative(_rate(data, data.label, ~data.right, level))
    gain = right.value - wrong.value
    value = says_right.value * gain + has_verdict.value * wrong.value
    terms = (  # rates, and the derivatives of the estimate by them
        (says_right, gain),
        (has_verdict, wrong.value),
        (right, says_right.value),
        (wrong, has_verdict.value - says_right.value),
    )
    below = 0.0
    above = 0.0
    for estimate, weight in terms:
        downwards = estimate.value - estimate.low
        upwards = estimate.high - estimate.value
        if weight < 0:
            downwards, upwards = upwards, downwards
        below += (weight * downwards) ** 2
        above += (weight * upwards) ** 2
    return value - math.sqrt(below), value + math.sqrt(above)


def _rate(data: JudgedColumns, events: Bools, among: Bools, level: float) -> Estimate:
    """Return the fraction of labelled replies of a kind for which something holds."""
    at_risk = data.labelled & among
    problem = np.unique(data.problem, return_inverse=True)[1].astype(np.int64)
    return rate(summed(at_risk, problem), summed(at_risk & events, problem), level)


def _or_uninformative(estimate: Estimate) -> Estimate:
    """Return a rate; if nothing was observed, 0.5 with the interval from 0 to 1."""
    if math.isnan(estimate.value):
        return Estimate(0.5, 0.0, 1.0, estimate.attempts, estimate.problems)
    return estimate
