"""How good a process reward is, where the right labels of steps are known; and how good knowing their place alone is.

- First error, as in ProcessBench (arXiv 2412.06559): a step whose score is below the threshold is called wrong, and the
  first of them must be the first wrong one; where all are right, none may be called wrong. F1 is the harmonic mean of
  the two accuracies.
- Steps, as in PRMBench (arXiv 2501.03124): F1 of the right steps and F1 of the wrong ones (`negative`), each over all
  steps of all traces, and their mean, the PRMScore.

A threshold that isn't given is learnt: the problems are dealt into two halves, and each half is judged with the
threshold that is best on the other. So is the position-only reward, which has seen nothing of a step but its place,
counted from the start, from the end or as a share, whichever is best on the half that it learns from. Intervals are by
bootstrap over problems, and `gain` is over the position-only reward on the same draws.
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
BINS = 20  # places counted from either end; what is farther away shares the last
THRESHOLDS = 200  # tried, at most

Ragged: TypeAlias = Sequence[Sequence[float]]
Ratio: TypeAlias = Callable[[Floats], Floats]  # sums of a tally's columns, one row a replicate -> a number each


@dataclass(frozen=True)
class _Some:
    """Some of the traces: the places of their steps in one long column of all that are meant."""

    which: Ints
    starts: Ints
    place: Ints  # of each step in its trace
    length: Ints  # of its trace

    @classmethod
    def of(cls, lengths: Ints, which: Ints) -> _Some:
        own = lengths[which]
        starts = np.r_[0, own.cumsum()[:-1]].astype(np.int64) if len(own) else own
        place = np.arange(own.sum()) - np.repeat(starts, own)
        return cls(which, starts, place, np.repeat(own, own))


# What a threshold on the scores of some traces comes to: four columns, one row a trace.
Tally: TypeAlias = Callable[[Floats, float, _Some], Floats]


@dataclass(frozen=True, slots=True)
class FirstError:
    """`thresholds` are those used on the two halves."""

    f1: Estimate
    on_wrong: Estimate  # share of traces with an error in which the first one was found
    on_right: Estimate  # share of traces without any in which none was found
    position: Estimate  # F1 of the position-only reward
    gain: Estimate  # F1 over that
    thresholds: tuple[float, float]


@dataclass(frozen=True, slots=True)
class StepErrors:
    prm_score: Estimate
    f1: Estimate
    negative: Estimate
    position: Estimate  # PRMScore of the position-only reward
    gain: Estimate
    thresholds: tuple[float, float]


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
    """`wrong` is each trace's first wrong step, counted from 0, or -1; traces of one problem hang together."""
    if len(scores) != len(wrong) or any(not -1 <= w < len(s) for s, w in zip(scores, wrong, strict=True)):
        raise ValueError("a first wrong step for each trace: a step's number, or -1")
    at = np.array(wrong, np.int64)
    lengths = np.array([len(row) for row in scores], np.int64)
    all_of = _Some.of(lengths, np.arange(len(at)))
    first = np.repeat(at, lengths)
    # Up to the first error each step is a chance to make it; what comes after is not known.
    known = (all_of.place <= first) | (first < 0)

    def tally(values: Floats, threshold: float, some: _Some) -> Floats:
        below = np.where(values < threshold, some.place, len(first))
        found = np.minimum.reduceat(below, some.starts)
        right = at[some.which] < 0
        hit = np.where(right, found == len(first), found == at[some.which])
        return np.column_stack([hit & ~right, ~right, hit & right, right]).astype(np.float64)

    def f1(sums: Floats) -> Floats:
        return _harmonic(_share(sums[:, 0], sums[:, 1]), _share(sums[:, 2], sums[:, 3]))

    found = _crossed(scores, all_of.place != first, known, threshold, problems, tally, f1, seed)
    return FirstError(
        found.estimate(f1),
        found.estimate(lambda sums: _share(sums[:, 0], sums[:, 1])),
        found.estimate(lambda sums: _share(sums[:, 2], sums[:, 3])),
        found.estimate(f1, position=True),
        found.gain(f1),
        found.thresholds,
    )


def step_errors(
    scores: Ragged,
    labels: Sequence[Sequence[bool]],
    threshold: float | None = None,
    problems: Sequence[str] | None = None,
    seed: int = 0,
) -> StepErrors:
    """`labels` says of each step whether it is right. PRMBench leaves traces without errors out; so may you."""
    if [len(s) for s in scores] != [len(row) for row in labels]:
        raise ValueError("a label for each score")
    right = np.array([label for row in labels for label in row], bool)
    lengths = np.array([len(row) for row in labels], np.int64)
    begins = _Some.of(lengths, np.arange(len(lengths))).starts

    def tally(values: Floats, threshold: float, some: _Some) -> Floats:
        """Right and called so; wrong, but called right; right, but called wrong; wrong and called so."""
        true = right[np.repeat(begins[some.which], lengths[some.which]) + some.place]
        kept = values >= threshold
        counts = [kept & true, kept & ~true, ~kept & true, ~kept & ~true]
        return np.column_stack([np.add.reduceat(c.astype(np.float64), some.starts) for c in counts])

    def f1(sums: Floats) -> Floats:
        return _share(2 * sums[:, 0], 2 * sums[:, 0] + sums[:, 1] + sums[:, 2])

    def negative(sums: Floats) -> Floats:
        return _share(2 * sums[:, 3], 2 * sums[:, 3] + sums[:, 1] + sums[:, 2])

    def prm_score(sums: Floats) -> Floats:
        return (f1(sums) + negative(sums)) / 2

    found = _crossed(scores, right, np.ones(len(right), bool), threshold, problems, tally, prm_score, seed)
    return StepErrors(
        found.estimate(prm_score),
        found.estimate(f1),
        found.estimate(negative),
        found.estimate(prm_score, position=True),
        found.gain(prm_score),
        found.thresholds,
    )


@dataclass(frozen=True)
class _Crossed:
    """Sums over redrawn problems, of the reward's judgements and of the position-only one's."""

    own: Floats  # all of them as they are, then one row a replicate
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
        return Estimate(value, min(value, float(low)), max(value, float(high)), self.traces, self.problems)


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
    """Each half judged with what was learnt on the other. `right` and `known` are of all steps, one after the other."""
    values = np.array([score for row in scores for score in row], np.float64)
    lengths = np.array([len(row) for row in scores], np.int64)
    if not np.isfinite(values).all() or (lengths == 0).any():
        raise ValueError("leave out traces without steps, and those that could not be scored")
    names = [str(n) for n in range(len(scores))] if problems is None else list(problems)
    half = _halves(names, seed)
    owner = np.repeat(half, lengths)
    own, position = np.zeros((len(scores), 4)), np.zeros((len(scores), 4))
    used = []
    for mine in (0, 1):
        judged, learnt = (_Some.of(lengths, np.flatnonzero((half == mine) == own_half)) for own_half in (True, False))
        here, there = owner == mine, owner != mine
        limit = _best(values[there], learnt, tally, aim)[1] if threshold is None else threshold
        used.append(limit)
        if not len(judged.which):
            continue
        own[judged.which] = tally(values[here], limit, judged)
        tried = (_learnt(where, right[there], known[there], learnt, tally, aim) for where in PLACES)
        _, limit, worth, where = max(tried, key=lambda found: found[0])
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
    """0 or 1 for each trace: problems are dealt out in an order that depends on the seed and on nothing else."""
    order = sorted(set(names), key=lambda name: digest("half", seed, name))
    dealt = {name: n % 2 for n, name in enumerate(order)}
    return np.array([dealt[name] for name in names], np.int64)


def _best(values: Floats, some: _Some, tally: Tally, aim: Ratio) -> tuple[float, float]:
    """How the threshold that comes off best does, and which it is."""
    if not len(values):
        return -1.0, 0.5
    distinct = np.unique(values)
    between = np.r_[distinct[0], (distinct[1:] + distinct[:-1]) / 2, distinct[-1] + 1e-9]
    if len(between) > THRESHOLDS:
        between = np.quantile(between, np.linspace(0, 1, THRESHOLDS))
    sums = np.array([tally(values, limit, some).sum(axis=0) for limit in between])
    found = np.nan_to_num(aim(sums), nan=-1.0)
    if found.max() < 0:  # there was nothing to learn it from
        return -1.0, 0.5
    return float(found.max()), float(between[found.argmax()])


def _learnt(
    where: Callable[[_Some], Ints], right: Bools, known: Bools, some: _Some, tally: Tally, aim: Ratio
) -> tuple[float, float, Floats, Callable[[_Some], Ints]]:
    """How often a step at each place is right, and the best threshold on that."""
    places = where(some)
    seen = np.bincount(places[known], minlength=BINS)
    fine = np.bincount(places[known], weights=right[known], minlength=BINS)
    prior = fine.sum() / max(1, seen.sum())
    worth = (fine + prior) / (seen + 1)  # a place that was hardly seen is worth what all are
    comes_off, limit = _best(worth[places], some, tally, aim)
    return comes_off, limit, worth, where


def _from_start(some: _Some) -> Ints:
    return np.minimum(some.place, BINS - 1)


def _from_end(some: _Some) -> Ints:
    back: Ints = some.length - 1 - some.place
    return np.minimum(back, BINS - 1)


def _along(some: _Some) -> Ints:
    place: Ints = some.place * BINS // some.length
    return place


PLACES = (_from_start, _from_end, _along)


def _share(part: Floats, whole: Floats) -> Floats:
    shares: Floats = np.divide(part, whole, out=np.full(len(whole), math.nan), where=whole > 0)
    return shares


def _harmonic(a: Floats, b: Floats) -> Floats:
    """0 where both are."""
    mean: Floats = np.where(a + b == 0, 0.0, _share(2 * a * b, a + b))
    return mean
