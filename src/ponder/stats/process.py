"""Score a process reward against known labels of steps, next to a position-only baseline.

- First error, as in ProcessBench (arXiv 2412.06559): a step that scores below the threshold is
  called wrong, and the first such step must be the first wrong one; in a trace without errors, none
  may be called wrong. F1 is the harmonic mean of the two accuracies.
- Steps, as in PRMBench (arXiv 2501.03124): F1 of the right steps and F1 of the wrong ones
  (`negative`), each over all steps of all traces, and their mean, the PRMScore.

A threshold that isn't given is fitted by two-fold cross-validation over problems: each half is
scored with the one that is best on the other. So is the position-only baseline, which sees a step's
position counted from the start, from the end, or as a fraction of the trace, whichever is best on
the half it is fitted on. Intervals are by bootstrap over problems, and `gain` is the reward minus
the baseline on the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ponder.core import Estimate, digest
from ponder.stats.bootstrap import resampled_sums
from ponder.stats.columns import Bools, Floats, Ints, summed

REPLICATES = 2000
BINS = 20  # positions that the baseline distinguishes; all later ones share the last bin
THRESHOLDS = 200  # tried at most

Ragged: TypeAlias = Sequence[Sequence[float]]
# sums of a tally's columns, one row per replicate -> one number each
Ratio: TypeAlias = Callable[[Floats], Floats]


@dataclass(frozen=True)
class _Subset:
    """A subset of the traces, with the steps of all of them laid out in one column."""

    traces: Ints  # indices of the traces
    starts: Ints  # where each trace starts in the column
    position: Ints  # of each step in its trace
    length: Ints  # of each step's trace

    @classmethod
    def of(cls, lengths: Ints, traces: Ints) -> _Subset:
        """Return the subset of these traces; `lengths` has the steps of all traces."""
        steps = lengths[traces]
        starts = steps.cumsum() - steps
        position = np.arange(steps.sum()) - np.repeat(starts, steps)
        return cls(traces, starts, position, np.repeat(steps, steps))


# Counts what a threshold gets right and wrong on a subset of traces: four columns, one row per
# trace.
Tally: TypeAlias = Callable[[Floats, float, _Subset], Floats]


@dataclass(frozen=True, slots=True)
class FirstError:
    """How well a reward finds the first error of a trace."""

    f1: Estimate
    on_wrong: Estimate  # fraction of traces with an error in which the first one was found
    on_right: Estimate  # fraction of traces without errors in which none was found
    position: Estimate  # F1 of the position-only baseline
    gain: Estimate  # F1 minus that of the baseline
    thresholds: tuple[float, float]  # used on the two halves


@dataclass(frozen=True, slots=True)
class StepErrors:
    """How well a reward tells right steps from wrong ones."""

    prm_score: Estimate  # mean of the two F1
    f1: Estimate  # of the right steps
    negative: Estimate  # F1 of the wrong steps
    position: Estimate  # PRMScore of the position-only baseline
    gain: Estimate  # PRMScore minus that of the baseline
    thresholds: tuple[float, float]  # used on the two halves


def first_wrong(labels: Sequence[bool]) -> int:
    """Return the first wrong step, counted from 0; -1 if all are right."""
    for step, right in enumerate(labels):
        if not right:
            return step
    return -1


def first_error(
    scores: Ragged,
    wrong: Sequence[int],
    threshold: float | None = None,
    problems: Sequence[str] | None = None,
    seed: int = 0,
) -> FirstError:
    """Score how well a reward finds the first error; a score per step of each trace.

    `wrong` is the first wrong step of each trace, counted from 0, or -1. Traces of one problem are
    correlated.
    """
    valid = len(scores) == len(wrong)
    if valid:
        for trace, step in zip(scores, wrong, strict=True):
            valid = valid and -1 <= step < len(trace)
    if not valid:
        raise ValueError("each trace needs its first wrong step, a step's number or -1")
    first_of_trace = np.array(wrong, np.int64)
    lengths = np.array([len(trace) for trace in scores], np.int64)
    position = _Subset.of(lengths, np.arange(len(lengths))).position
    first = np.repeat(first_of_trace, lengths)
    never = len(first)  # larger than any position
    # Labels after the first error are unknown, so the baseline isn't fitted on those steps.
    labelled = (position <= first) | (first < 0)

    def tally(values: Floats, threshold: float, subset: _Subset) -> Floats:
        """Count hits in wrong traces, wrong traces, hits in right traces, and right traces."""
        below = np.where(values < threshold, subset.position, never)
        called = np.minimum.reduceat(below, subset.starts)
        true_first = first_of_trace[subset.traces]
        right = true_first < 0
        hit = np.where(right, called == never, called == true_first)
        return np.column_stack([hit & ~right, ~right, hit & right, right]).astype(np.float64)

    def on_wrong(sums: Floats) -> Floats:
        return _ratio(sums[:, 0], sums[:, 1])

    def on_right(sums: Floats) -> Floats:
        return _ratio(sums[:, 2], sums[:, 3])

    def f1(sums: Floats) -> Floats:
        return _harmonic_mean(on_wrong(sums), on_right(sums))

    steps = _Steps(scores, position != first, labelled)
    validated = _cross_validated(steps, threshold, problems, tally, f1, seed)
    return FirstError(
        f1=validated.estimate(f1),
        on_wrong=validated.estimate(on_wrong),
        on_right=validated.estimate(on_right),
        position=validated.baseline(f1),
        gain=validated.gain(f1),
        thresholds=validated.thresholds,
    )


def step_errors(
    scores: Ragged,
    labels: Sequence[Sequence[bool]],
    threshold: float | None = None,
    problems: Sequence[str] | None = None,
    seed: int = 0,
) -> StepErrors:
    """Score how well a reward tells right steps from wrong ones; `labels` is True for right.

    PRMBench leaves out traces without errors; the caller may too.
    """
    lengths = np.array([len(trace) for trace in labels], np.int64)
    if [len(trace) for trace in scores] != lengths.tolist():
        raise ValueError("each score needs a label")
    right = np.array([label for trace in labels for label in trace], bool)
    starts = _Subset.of(lengths, np.arange(len(lengths))).starts

    def tally(values: Floats, threshold: float, subset: _Subset) -> Floats:
        """Count true positives, false positives, false negatives and true negatives.

        A right step is positive.
        """
        first_step = np.repeat(starts[subset.traces], lengths[subset.traces])
        true = right[first_step + subset.position]
        kept = values >= threshold
        columns = []
        for outcome in (kept & true, kept & ~true, ~kept & true, ~kept & ~true):
            columns.append(np.add.reduceat(outcome.astype(np.float64), subset.starts))
        return np.column_stack(columns)

    def f1(sums: Floats) -> Floats:
        return _ratio(2 * sums[:, 0], 2 * sums[:, 0] + sums[:, 1] + sums[:, 2])

    def negative(sums: Floats) -> Floats:
        return _ratio(2 * sums[:, 3], 2 * sums[:, 3] + sums[:, 1] + sums[:, 2])

    def prm_score(sums: Floats) -> Floats:
        return (f1(sums) + negative(sums)) / 2

    steps = _Steps(scores, right, np.ones(len(right), bool))
    validated = _cross_validated(steps, threshold, problems, tally, prm_score, seed)
    return StepErrors(
        prm_score=validated.estimate(prm_score),
        f1=validated.estimate(f1),
        negative=validated.estimate(negative),
        position=validated.baseline(prm_score),
        gain=validated.gain(prm_score),
        thresholds=validated.thresholds,
    )


@dataclass(frozen=True)
class _Validated:
    """Summed tallies of the reward and of the position-only baseline."""

    reward: Floats  # as measured, then one row per replicate
    position: Floats
    traces: int
    problems: int
    thresholds: tuple[float, float]

    def estimate(self, ratio: Ratio) -> Estimate:
        return self._from(ratio(self.reward))

    def baseline(self, ratio: Ratio) -> Estimate:
        return self._from(ratio(self.position))

    def gain(self, ratio: Ratio) -> Estimate:
        return self._from(ratio(self.reward) - ratio(self.position))

    def _from(self, values: Floats) -> Estimate:
        """Return the first value with the quantiles of the others."""
        value = float(values[0])
        redrawn = values[1:][np.isfinite(values[1:])]
        if math.isnan(value) or not len(redrawn) or self.problems < 2:
            return Estimate(value, -math.inf, math.inf, self.traces, self.problems)
        low, high = np.quantile(redrawn, [0.025, 0.975])
        return Estimate(
            value, min(value, float(low)), max(value, float(high)), self.traces, self.problems
        )


@dataclass(frozen=True)
class _Steps:
    """The scores of all traces, and two flags per step, in one column."""

    scores: Ragged
    right: Bools
    labelled: Bools  # the baseline is fitted on these steps only


def _cross_validated(
    steps: _Steps,
    threshold: float | None,
    problems: Sequence[str] | None,
    tally: Tally,
    aim: Ratio,
    seed: int,
) -> _Validated:
    """Score each half of the problems with the threshold and the baseline fitted on the other.

    `aim` is the ratio to maximize.
    """
    values = np.array([score for trace in steps.scores for score in trace], np.float64)
    lengths = np.array([len(trace) for trace in steps.scores], np.int64)
    if not np.isfinite(values).all() or (lengths == 0).any():
        raise ValueError("leave out traces without steps and traces that could not be scored")
    if problems is None:
        names = [str(n) for n in range(len(lengths))]
    else:
        names = list(problems)
    half_of_trace = _halves(names, seed)
    half_of_step = np.repeat(half_of_trace, lengths)
    reward = np.zeros((len(lengths), 4))
    position = np.zeros((len(lengths), 4))
    thresholds = []
    for half in (0, 1):
        scored = _Subset.of(lengths, np.flatnonzero(half_of_trace == half))
        fitted_on = _Subset.of(lengths, np.flatnonzero(half_of_trace != half))
        in_scored = half_of_step == half
        in_fitted = ~in_scored
        limit = threshold
        if limit is None:
            limit = _best_threshold(values[in_fitted], fitted_on, tally, aim)[1]
        thresholds.append(limit)
        if not len(scored.traces):
            continue
        reward[scored.traces] = tally(values[in_scored], limit, scored)
        baseline = _fit_baseline(
            steps.right[in_fitted], steps.labelled[in_fitted], fitted_on, tally, aim
        )
        position[scored.traces] = tally(baseline.values(scored), baseline.threshold, scored)
    return _Validated(
        reward=_with_replicates(reward, names, seed),
        position=_with_replicates(position, names, seed),
        traces=len(names),
        problems=len(set(names)),
        thresholds=(thresholds[0], thresholds[1]),
    )


def _with_replicates(tallies: Floats, names: Sequence[str], seed: int) -> Floats:
    """Sum tallies, one row per trace, as measured and for each resampling of problems."""
    measured: Floats = tallies.sum(axis=0)
    if not names:
        return measured[None]
    problem = np.unique(np.array(names, np.str_), return_inverse=True)[1].astype(np.int64)
    by_problem = summed(tallies, problem)
    one_size = np.zeros(len(by_problem), np.int64)
    redrawn = resampled_sums(by_problem, one_size, REPLICATES, seed)[:, 0]
    return np.vstack([measured, redrawn])


def _halves(names: Sequence[str], seed: int) -> Ints:
    """Return 0 or 1 for each trace, by its problem.

    It depends on the problems' names and the seed, not on their order.
    """
    order = sorted(set(names), key=lambda name: digest("half", seed, name))
    half = {name: n % 2 for n, name in enumerate(order)}
    return np.array([half[name] for name in names], np.int64)


def _best_threshold(
    values: Floats, subset: _Subset, tally: Tally, aim: Ratio
) -> tuple[float, float]:
    """Return the highest value of `aim` that a threshold reaches, and the threshold."""
    if not len(values):
        return -1.0, 0.5
    distinct = np.unique(values)
    between = (distinct[1:] + distinct[:-1]) / 2
    limits = np.concatenate([distinct[:1], between, distinct[-1:] + 1e-9])
    if len(limits) > THRESHOLDS:
        limits = np.quantile(limits, np.linspace(0, 1, THRESHOLDS))
    sums = np.array([tally(values, limit, subset).sum(axis=0) for limit in limits])
    reached = np.nan_to_num(aim(sums), nan=-1.0)
    if reached.max() < 0:  # only right traces, or only wrong ones
        return -1.0, 0.5
    return float(reached.max()), float(limits[reached.argmax()])


@dataclass(frozen=True)
class _Baseline:
    """A reward that knows only a step's position."""

    bin_of: Callable[[_Subset], Ints]
    accuracy: Floats  # by bin: how often a step is right
    threshold: float

    def values(self, subset: _Subset) -> Floats:
        return np.asarray(self.accuracy[self.bin_of(subset)])


def _fit_baseline(
    right: Bools, labelled: Bools, subset: _Subset, tally: Tally, aim: Ratio
) -> _Baseline:
    """Fit how often a step in each bin is right, for the way to count positions that is best."""
    highest = -math.inf
    for bin_of in (_from_start, _from_end, _along):
        bins = bin_of(subset)
        steps = np.bincount(bins[labelled], minlength=BINS)
        right_steps = np.bincount(bins[labelled], weights=right[labelled], minlength=BINS)
        mean = right_steps.sum() / max(1, steps.sum())
        accuracy = (right_steps + mean) / (steps + 1)  # shrunk to the mean, for bins with few steps
        reached, threshold = _best_threshold(accuracy[bins], subset, tally, aim)
        if reached > highest:
            highest = reached
            best = _Baseline(bin_of, accuracy, threshold)
    return best


def _from_start(subset: _Subset) -> Ints:
    return np.minimum(subset.position, BINS - 1)


def _from_end(subset: _Subset) -> Ints:
    from_end: Ints = subset.length - 1 - subset.position
    return np.minimum(from_end, BINS - 1)


def _along(subset: _Subset) -> Ints:
    fraction: Ints = subset.position * BINS // subset.length
    return fraction


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotients; nan where the denominator is 0."""
    unknown = np.full(len(denominator), math.nan)
    ratios: Floats = np.divide(numerator, denominator, out=unknown, where=denominator > 0)
    return ratios


def _harmonic_mean(a: Floats, b: Floats) -> Floats:
    """Return the harmonic mean; 0 if both are 0."""
    mean: Floats = np.where(a + b == 0, 0.0, _ratio(2 * a * b, a + b))
    return mean
