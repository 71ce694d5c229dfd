"""Scores a process reward against known labels of steps, beside a baseline that knows only each
step's position.

- First error, as in ProcessBench (arXiv 2412.06559): a step that scores below the threshold is
  called wrong, and the
  first such step must be the first wrong one; in a trace without errors, none may be called wrong.
  F1 is the harmonic
  mean of the two accuracies.
- Steps, as in PRMBench (arXiv 2501.03124): F1 of the right steps and F1 of the wrong ones
  (`negative`), each over all
  steps of all traces, and their mean, the PRMScore.

A threshold that isn't given is fitted by two-fold cross-validation over problems: each half is
scored with the one that is best on the other. So is the position-only baseline, which sees a step's
position counted from the start, from the end, or as a fraction of the trace, whichever is best on
the half it is fitted on. Intervals are by bootstrap over problems, and `gain` is the reward less
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
BINS = 20  # positions told apart by the baseline; those farther from the end share the last bin
THRESHOLDS = 200  # tried at most

Ragged: TypeAlias = Sequence[Sequence[float]]
# sums of a tally's columns, one row per replicate -> one number each
Ratio: TypeAlias = Callable[[Floats], Floats]


@dataclass(frozen=True)
class _Subset:
    """A subset of the traces, with the steps of all of them laid out in one column."""

    which: Ints  # indices of the traces
    starts: Ints  # where each trace starts in the column
    place: Ints  # each step's position in its trace
    length: Ints  # of each step's trace

    @classmethod
    def of(cls, lengths: Ints, which: Ints) -> _Subset:
        own = lengths[which]
        starts = np.r_[0, own.cumsum()[:-1]].astype(np.int64) if len(own) else own
        place = np.arange(own.sum()) - np.repeat(starts, own)
        return cls(which, starts, place, np.repeat(own, own))


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
    gain: Estimate  # F1 less that of the baseline
    thresholds: tuple[float, float]  # used on the two halves


@dataclass(frozen=True, slots=True)
class StepErrors:
    """How well a reward tells right steps from wrong ones."""

    prm_score: Estimate  # mean of the two F1
    f1: Estimate  # of the right steps
    negative: Estimate  # F1 of the wrong steps
    position: Estimate  # PRMScore of the position-only baseline
    gain: Estimate  # PRMScore less that of the baseline
    thresholds: tuple[float, float]  # used on the two halves


def first_wrong(labels: Sequence[bool]) -> int:
    """The first wrong step, counted from 0; -1 if all are right."""
    return next((n for n, right in enumerate(labels) if not right), -1)


def first_error(
    scores: Ragged,
    wrong: Sequence[int],
    threshold: float | None = None,
    problems: Sequence[str] | None = None,
    seed: int = 0,
) -> FirstError:
    """`wrong` is the first wrong step of each trace, counted from 0, or -1.

    Traces of one problem are correlated.
    """
    if len(scores) != len(wrong) or any(
        not -1 <= w < len(s) for s, w in zip(scores, wrong, strict=True)
    ):
        raise ValueError("each trace needs its first wrong step, a step's number or -1")
    at = np.array(wrong, np.int64)
    lengths = np.array([len(row) for row in scores], np.int64)
    all_of = _Subset.of(lengths, np.arange(len(at)))
    first = np.repeat(at, lengths)
    # Labels after the first error are unknown, so the baseline isn't fitted on those steps.
    known = (all_of.place <= first) | (first < 0)

    def tally(values: Floats, threshold: float, part: _Subset) -> Floats:
        below = np.where(values < threshold, part.place, len(first))
        called = np.minimum.reduceat(below, part.starts)
        right = at[part.which] < 0
        hit = np.where(right, called == len(first), called == at[part.which])
        return np.column_stack([hit & ~right, ~right, hit & right, right]).astype(np.float64)

    def f1(sums: Floats) -> Floats:
        return _harmonic(_ratio(sums[:, 0], sums[:, 1]), _ratio(sums[:, 2], sums[:, 3]))

    crossed = _crossed(scores, all_of.place != first, known, threshold, problems, tally, f1, seed)
    return FirstError(
        crossed.estimate(f1),
        crossed.estimate(lambda sums: _ratio(sums[:, 0], sums[:, 1])),
        crossed.estimate(lambda sums: _ratio(sums[:, 2], sums[:, 3])),
        crossed.estimate(f1, position=True),
        crossed.gain(f1),
        crossed.thresholds,
    )


def step_errors(
    scores: Ragged,
    labels: Sequence[Sequence[bool]],
    threshold: float | None = None,
    problems: Sequence[str] | None = None,
    seed: int = 0,
) -> StepErrors:
    """`labels` tells whether each step is right.

    PRMBench leaves out traces without errors; the caller may too.
    """
    if [len(s) for s in scores] != [len(row) for row in labels]:
        raise ValueError("each score needs a label")
    right = np.array([label for row in labels for label in row], bool)
    lengths = np.array([len(row) for row in labels], np.int64)
    begins = _Subset.of(lengths, np.arange(len(lengths))).starts

    def tally(values: Floats, threshold: float, part: _Subset) -> Floats:
        """True positives, false positives, false negatives and true negatives, where right is
        positive.
        """
        true = right[np.repeat(begins[part.which], lengths[part.which]) + part.place]
        kept = values >= threshold
        counts = [kept & true, kept & ~true, ~kept & true, ~kept & ~true]
        return np.column_stack([np.add.reduceat(c.astype(np.float64), part.starts) for c in counts])

    def f1(sums: Floats) -> Floats:
        return _ratio(2 * sums[:, 0], 2 * sums[:, 0] + sums[:, 1] + sums[:, 2])

    def negative(sums: Floats) -> Floats:
        return _ratio(2 * sums[:, 3], 2 * sums[:, 3] + sums[:, 1] + sums[:, 2])

    def prm_score(sums: Floats) -> Floats:
        return (f1(sums) + negative(sums)) / 2

    crossed = _crossed(
        scores, right, np.ones(len(right), bool), threshold, problems, tally, prm_score, seed
    )
    return StepErrors(
        crossed.estimate(prm_score),
        crossed.estimate(f1),
        crossed.estimate(negative),
        crossed.estimate(prm_score, position=True),
        crossed.gain(prm_score),
        crossed.thresholds,
    )


@dataclass(frozen=True)
class _Crossed:
    """Summed tallies of the reward and of the position-only baseline."""

    own: Floats  # as measured, then one row per replicate
    position: Floats
    traces: int
    problems: int
    thresholds: tuple[float, float]

    def estimate(self, ratio: Ratio, *, position: bool = False) -> Estimate:
        return self._from(ratio(self.position if position else self.own))

    def gain(self, ratio: Ratio) -> Estimate:
        return self._from(ratio(self.own) - ratio(self.position))

    def _from(self, values: Floats) -> Estimate:
        redrawn = values[1:][np.isfinite(values[1:])]
        if math.isnan(values[0]) or not len(redrawn) or self.problems < 2:
            return Estimate(float(values[0]), -math.inf, math.inf, self.traces, self.problems)
        low, high = np.quantile(redrawn, [0.025, 0.975])
        value = float(values[0])
        return Estimate(
            value, min(value, float(low)), max(value, float(high)), self.traces, self.problems
        )


def _crossed(
    scores: Ragged,
    right: Bools,
    known: Bools,
    threshold: float | None,
    problems: Sequence[str] | None,
    tally: Tally,
    aim: Ratio,
    seed: int,
) -> _Crossed:
    """Cross-validates: each half is scored with what was fitted on the other.

    `right` and `known` have one entry per step of all traces; the baseline is fitted on the known
    steps.
    """
    values = np.array([score for row in scores for score in row], np.float64)
    lengths = np.array([len(row) for row in scores], np.int64)
    if not np.isfinite(values).all() or (lengths == 0).any():
        raise ValueError("leave out traces without steps and traces that could not be scored")
    names = [str(n) for n in range(len(scores))] if problems is None else list(problems)
    half = _halves(names, seed)
    owner = np.repeat(half, lengths)
    own, position = np.zeros((len(scores), 4)), np.zeros((len(scores), 4))
    used = []
    for mine in (0, 1):
        judged, fitted_on = (
            _Subset.of(lengths, np.flatnonzero((half == mine) == own_half))
            for own_half in (True, False)
        )
        here, there = owner == mine, owner != mine
        limit = _best(values[there], fitted_on, tally, aim)[1] if threshold is None else threshold
        used.append(limit)
        if not len(judged.which):
            continue
        own[judged.which] = tally(values[here], limit, judged)
        tried = (
            _baseline(where, right[there], known[there], fitted_on, tally, aim) for where in PLACES
        )
        _, limit, worth, where = max(tried, key=lambda fit: fit[0])
        position[judged.which] = tally(worth[where(judged)], limit, judged)
    problem = np.unique(np.array(names, np.str_), return_inverse=True)[1].astype(np.int64)
    sums = []
    for columns in (own, position):
        by_problem = summed(columns, problem) if names else columns
        one_size = np.zeros(len(by_problem), np.int64)
        redrawn = resampled_sums(by_problem, one_size, REPLICATES, seed)[:, 0] if names else columns
        sums.append(np.vstack([columns.sum(axis=0), redrawn]))
    return _Crossed(sums[0], sums[1], len(names), len(set(names)), (used[0], used[1]))


def _halves(names: Sequence[str], seed: int) -> Ints:
    """0 or 1 for each trace, by its problem; depends on the problems' names and the seed, not on
    their order.
    """
    order = sorted(set(names), key=lambda name: digest("half", seed, name))
    dealt = {name: n % 2 for n, name in enumerate(order)}
    return np.array([dealt[name] for name in names], np.int64)


def _best(values: Floats, part: _Subset, tally: Tally, aim: Ratio) -> tuple[float, float]:
    """The score of the best threshold, and the threshold."""
    if not len(values):
        return -1.0, 0.5
    distinct = np.unique(values)
    between = np.r_[distinct[0], (distinct[1:] + distinct[:-1]) / 2, distinct[-1] + 1e-9]
    if len(between) > THRESHOLDS:
        between = np.quantile(between, np.linspace(0, 1, THRESHOLDS))
    sums = np.array([tally(values, limit, part).sum(axis=0) for limit in between])
    reached = np.nan_to_num(aim(sums), nan=-1.0)
    if reached.max() < 0:  # only right traces, or only wrong ones
        return -1.0, 0.5
    return float(reached.max()), float(between[reached.argmax()])


def _baseline(
    where: Callable[[_Subset], Ints],
    right: Bools,
    known: Bools,
    part: _Subset,
    tally: Tally,
    aim: Ratio,
) -> tuple[float, float, Floats, Callable[[_Subset], Ints]]:
    """Fits the position-only baseline: how often a step in each bin is right, and the best
    threshold on that.
    """
    places = where(part)
    seen = np.bincount(places[known], minlength=BINS)
    fine = np.bincount(places[known], weights=right[known], minlength=BINS)
    prior = fine.sum() / max(1, seen.sum())
    worth = (fine + prior) / (seen + 1)  # shrunk to the mean of all, for bins with few steps
    reached, limit = _best(worth[places], part, tally, aim)
    return reached, limit, worth, where


def _from_start(part: _Subset) -> Ints:
    return np.minimum(part.place, BINS - 1)


def _from_end(part: _Subset) -> Ints:
    back: Ints = part.length - 1 - part.place
    return np.minimum(back, BINS - 1)


def _along(part: _Subset) -> Ints:
    place: Ints = part.place * BINS // part.length
    return place


PLACES = (_from_start, _from_end, _along)


def _ratio(part: Floats, whole: Floats) -> Floats:
    ratios: Floats = np.divide(part, whole, out=np.full(len(whole), math.nan), where=whole > 0)
    return ratios


def _harmonic(a: Floats, b: Floats) -> Floats:
    """The harmonic mean; 0 if both are 0."""
    mean: Floats = np.where(a + b == 0, 0.0, _ratio(2 * a * b, a + b))
    return mean
