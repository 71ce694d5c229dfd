"""Accuracy along a rollout, survival until the first error, and the horizon H_s.

After Sinha et al. (2025). H_s is the first step at which the fraction of rollouts without an error
is below s; a constant step accuracy p predicts ln s / ln p. Differences from the paper: p counts
turns at risk only, those up to a rollout's first error, because later ones say nothing about H_s; a
reply without a number is wrong even if the turn adds up to 0; rollouts of different lengths are
censored at their ends (Kaplan-Meier); every number has an interval clustered by problem; and
whether p is constant is tested.

Turn accuracy after a right sum and after a wrong one shows self-conditioning without injected
errors. The two also differ if some problems are harder than others, because those have more turns
after an error.

The survival band is Wilson's interval on the effective sample size (Rothman 1978), with the
variance summed by problem (Williams 1995); without censoring it equals the interval of `accuracy`.
The interval of the horizon holds every step at which the band allows a first fall below s. Errors
are known per turn only, so it extends to the turn's edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ponder.core import Estimate, Outcome
from ponder.stats.accuracy import effective_sample, rate, wilson
from ponder.stats.bootstrap import Curve, draw_curve
from ponder.stats.columns import Bools, Floats, Ints, clusters, one_series, summed

Direction: TypeAlias = Literal["falls", "rises", "no clear trend", "too few errors"]


@dataclass(frozen=True, slots=True)
class Rollouts:
    """One row per rollout and one column per turn; turns after a rollout's `length` are False."""

    per_turn: int
    problem: Ints  # number of the problem: 0, 1, 2, …
    length: Ints  # turns asked
    index: Bools  # the sum is correct
    turn: Bools  # the sum follows from the model's own previous answer
    unparsed: Bools  # no number in the reply
    failed: int  # attempts excluded

    def __len__(self) -> int:
        return len(self.problem)

    @property
    def problems(self) -> int:
        return int(self.problem[-1]) + 1 if len(self) else 0

    @property
    def seen(self) -> Bools:
        return np.arange(self.index.shape[1]) < self.length[:, None]

    @property
    def first_error(self) -> Ints:
        """The turn of each rollout's first wrong sum, counted from 1; one past the last turn if
        there is none.
        """
        wrong = self.seen & ~self.index
        never = np.ones((len(self), 1), dtype=np.bool_)
        return np.asarray(np.concatenate([wrong, never], axis=1).argmax(axis=1) + 1)


@dataclass(frozen=True, slots=True)
class TurnRow:
    """Steps `first` to `last`: `task` holds at step `last`, the others are averages over these
    steps.
    """

    first: int
    last: int
    index: Estimate  # the sum is correct
    task: Estimate  # every sum so far is correct
    turn: Estimate  # the sum follows from the model's own previous answer
    unparsed: Estimate


@dataclass(frozen=True, slots=True)
class Trend:
    """Whether turn accuracy is constant along a rollout."""

    early: Estimate  # turn accuracy in the first half of a rollout
    late: Estimate
    p_value: float  # of a trend this clear if turn accuracy were constant
    direction: Direction


@dataclass(frozen=True, slots=True)
class Horizon:
    rows: tuple[TurnRow, ...]
    survival: Curve  # a step function: each value holds until the next step listed
    horizon: Estimate  # nan: task accuracy never falls below the target within the steps seen
    at_end: Estimate  # task accuracy at the last step seen
    step_accuracy: Estimate  # up to the first error, assuming that it is the same at every step
    predicted: Estimate  # the horizon that follows from it; nan if no turn was wrong
    # turn accuracy after an answer that is the true sum; the first turn has no answer before it
    after_right: Estimate
    after_wrong: Estimate  # turn accuracy after another answer, or none
    trend: Trend
    failed: int


def rollouts(outcomes: Sequence[Outcome]) -> Rollouts:
    """Outcomes of `execution` for one model and one number of steps per turn."""
    ended = one_series(outcomes)
    steps = {int(o.details["per_turn"]) for o in ended}
    if len(steps) > 1:
        raise ValueError(f"one number of steps per turn at a time, not {sorted(steps)}")
    length = np.array(
        [min(len(o.details["parsed"]), len(o.details["true"])) for o in ended], dtype=np.int64
    )
    index, turn, unparsed = (
        np.zeros((len(ended), int(length.max(initial=0))), dtype=np.bool_) for _ in range(3)
    )
    for row, (o, turns) in enumerate(zip(ended, length.tolist(), strict=True)):
        parsed, true = o.details["parsed"], o.details["true"]
        if parsed == true:
            index[row, :turns] = turn[row, :turns] = True
        else:
            judged = _judged(parsed, true, o.details["start"])
            index[row, :turns], turn[row, :turns], unparsed[row, :turns] = judged
    return Rollouts(
        per_turn=steps.pop() if steps else 1,
        problem=clusters(ended),
        length=length,
        index=index,
        turn=turn,
        unparsed=unparsed,
        failed=sum(o.ended == "failed" for o in outcomes),
    )


def horizon(
    data: Rollouts, target: float = 0.5, level: float = 0.95, blur: float = 0.05
) -> Horizon:
    """Estimate how long rollouts stay right: survival of the first error, the horizon, and accuracy
    by turn.

    `target` is the survival that defines the horizon. Turns are averaged in groups, each `blur`
    times as long as all before it, to keep long rollouts readable.
    """
    survival = _survival(data, level)
    step = _step_accuracy(data, level)
    after_right, after_wrong = _conditioned(data, level)
    return Horizon(
        rows=_rows(data, level, blur),
        survival=survival,
        horizon=_crossing(data, survival, target),
        at_end=Estimate(
            survival.value[-1], survival.low[-1], survival.high[-1], len(data), data.problems
        ),
        step_accuracy=step,
        predicted=_predicted(step, target),
        after_right=after_right,
        after_wrong=after_wrong,
        trend=_trend(data, level),
        failed=data.failed,
    )


def _judged(
    parsed: Sequence[Any], true: Sequence[int], start: int
) -> tuple[list[bool], list[bool], list[bool]]:
    """Per turn: index, turn, unparsed.

    With Python's integers, because an answer may have forty digits.
    """
    index, turn = [], []
    shown = before = start
    for answer, total in zip(parsed, true, strict=False):
        index.append(answer == total)
        turn.append(answer is not None and answer - shown == total - before)
        shown, before = shown if answer is None else answer, total
    return index, turn, [answer is None for answer, _ in zip(parsed, true, strict=False)]


def _rows(data: Rollouts, level: float, blur: float) -> tuple[TurnRow, ...]:
    turns, rows, start = data.index.shape[1], [], 0
    unbroken = np.logical_and.accumulate(data.index, axis=1)
    while start < turns:
        end = min(turns, start + max(1, int(blur * start)))
        group, last = slice(start, end), slice(end - 1, end)
        index, turn, unparsed = (
            _over(data, x, group, level) for x in (data.index, data.turn, data.unparsed)
        )
        # Only rollouts that were asked this far: shorter ones would count as wrong here.
        task = _over(data, unbroken, last, level)
        rows.append(
            TurnRow(start * data.per_turn + 1, end * data.per_turn, index, task, turn, unparsed)
        )
        start = end
    return tuple(rows)


def _over(data: Rollouts, values: Bools, turns: slice, level: float) -> Estimate:
    """The fraction of True over these turns."""
    seen = np.arange(turns.start, turns.stop) < data.length[:, None]
    return _pooled(data, values[:, turns], seen, level)


def _pooled(data: Rollouts, values: Bools, turns: Bools, level: float) -> Estimate:
    """The fraction of True over these turns of all rollouts, each turn counting once; clustered by
    problem.

    A mean of the problems' fractions would be biased: a rollout that errs at once has few turns at
    risk, all wrong. Its `attempts` are rollouts, not turns.
    """
    asked, right = np.count_nonzero(turns, axis=1), np.count_nonzero(values & turns, axis=1)
    fraction = rate(summed(asked, data.problem), summed(right, data.problem), level)
    return replace(fraction, attempts=int(np.count_nonzero(asked)))


def _survival(data: Rollouts, level: float) -> Curve:
    """The Kaplan-Meier estimate at every turn where it, or its number of rollouts, changes."""
    error, turns = data.first_error, data.index.shape[1]
    until = np.minimum(error, data.length)
    events = np.bincount(error[error <= data.length], minlength=turns + 1)[: turns + 1]
    at_risk = np.cumsum(np.bincount(until, minlength=turns + 1)[::-1])[::-1][: turns + 1]
    value = np.cumprod(1 - events / np.maximum(at_risk, 1))
    changes = np.concatenate([np.flatnonzero(events), data.length + 1, [1, turns]])
    at = np.unique(changes[(changes >= 1) & (changes <= turns)])
    pull, ends, done = np.zeros(data.problems), [], 0
    for t in at.tolist():
        for when in range(done + 1, t + 1):
            pull += _influence(
                data.problem, error, until, when, int(events[when]), int(at_risk[when])
            )
        done = t
        ends.append(_ends(data, error, t, float(value[t]), pull, level))
    low, high = np.minimum.accumulate(np.array([(1.0, 1.0), *ends]), axis=0).T
    at = np.concatenate([[0], at])
    return draw_curve(at.astype(np.float64) * data.per_turn, value[at], low, high)


def _influence(
    problem: Ints, error: Ints, until: Ints, turn: int, events: int, at_risk: int
) -> Floats | float:
    """The influence of each problem's rollouts on the log survival, by the errors at one turn.

    With one rollout per problem, the squares of the sums over turns add up to Greenwood's variance.
    """
    if not events:
        return 0.0
    expected = summed(until >= turn, problem) * (events / at_risk)
    # If none is left, survival is 0 and its logarithm is not used.
    return (summed(error == turn, problem) - expected) / max(at_risk - events, 1)


def _ends(
    data: Rollouts, error: Ints, turn: int, value: float, pull: Floats, level: float
) -> tuple[float, float]:
    """The band at one turn."""
    wrong = error <= np.minimum(turn, data.length)
    known = wrong | (data.length >= turn)
    problems = _different(data.problem[known])
    if problems < 2:
        return 0.0, 1.0
    rarer = _different(data.problem[known & (wrong == (value > 0.5))])
    variance = float(((value * pull) ** 2).sum()) * data.problems / (data.problems - 1)
    return wilson(
        value, effective_sample(value, variance, int(known.sum()), problems, rarer, level), level
    )


def _different(problem: Ints) -> int:
    return int(np.count_nonzero(np.bincount(problem)))


def _crossing(data: Rollouts, survival: Curve, target: float) -> Estimate:
    """Return the last step of the first turn at which survival is below the target.

    The interval's ends are where the band's low and high end fall below it.
    """
    steps = np.array(survival.size)

    def first(values: Sequence[float]) -> float:
        # the product for 16 of 20 may round to just below 0.8
        below = np.flatnonzero(np.array(values) < target - 1e-9)
        return float(steps[below[0]]) if len(below) else math.inf

    value, high = first(survival.value), first(survival.high)
    # The error may be in the turn's first step. If the band stays above the target, the horizon
    # exceeds all steps seen.
    low = min(first(survival.low) - data.per_turn + 1, float(steps[-1]))
    return Estimate(
        value if math.isfinite(value) else math.nan, max(low, 1.0), high, len(data), data.problems
    )


def _step_accuracy(data: Rollouts, level: float) -> Estimate:
    """The K-th root of the accuracy of turns at risk, for K steps per turn."""
    turn = np.arange(1, data.index.shape[1] + 1)
    at_risk = turn <= np.minimum(data.first_error, data.length)[:, None]
    right = _pooled(data, data.index, at_risk, level)
    low = right.low
    if right.value == 1.0 and data.problems > 1:
        # With a constant turn accuracy q, a rollout of T turns has no error with probability q^T.
        # The bound on the fraction of such rollouts therefore bounds q more tightly than one turn
        # per problem would.
        low = low ** (data.problems / int(data.length.sum()))
    value, low, high = (x ** (1 / data.per_turn) for x in (right.value, low, right.high))
    return replace(right, value=value, low=low, high=high)


def _conditioned(data: Rollouts, level: float) -> tuple[Estimate, Estimate]:
    """Turn accuracy after an answer that is right, and after one that is wrong."""
    before, later = data.index[:, :-1], data.seen[:, 1:]
    after_right, after_wrong = (
        _pooled(data, data.turn[:, 1:], later & which, level) for which in (before, ~before)
    )
    return after_right, after_wrong


def _predicted(step: Estimate, target: float) -> Estimate:
    def steps(p: float) -> float:
        return math.inf if p >= 1 else math.log(target) / math.log(p) if p > 0 else 0.0

    value = math.nan if math.isnan(step.value) or step.value >= 1 else steps(step.value)
    return Estimate(value, steps(step.low), steps(step.high), step.attempts, step.problems)


def _trend(data: Rollouts, level: float) -> Trend:
    """A sign-flip test on each problem's own trend, which hard problems and bursts of errors do not
    bias.

    If turn accuracy is constant, a rollout is as likely as its reverse, so a problem's covariance
    of being right with the turn's number is as likely positive as negative. Up to 12 problems, all
    signs are enumerated; beyond that, their sum is approximately normal. A trend at 95 % needs at
    least six problems with an error.
    """
    middle = (data.length - 1) / 2
    drift = -middle * np.count_nonzero(data.turn, axis=1)
    for number, right in enumerate(data.turn.T):
        drift += number * right
    drift = summed(drift, data.problem) if len(data) else np.zeros(0)
    drift = drift[drift != 0]
    p_value = sign_flips(drift)
    direction: Direction = "no clear trend"
    if 2.0 ** (1 - len(drift)) > 1 - level:
        direction = "too few errors"
    elif p_value < 1 - level:
        direction = "falls" if drift.sum() < 0 else "rises"
    turn = np.arange(data.index.shape[1])
    halves = (turn < middle[:, None], (turn > middle[:, None]) & data.seen)
    early, late = (_pooled(data, data.turn, half, level) for half in halves)
    return Trend(early, late, p_value, direction)


def sign_flips(drift: Floats) -> float:
    """The probability of a sum as far from 0 if every sign were random."""
    n, far = len(drift), abs(float(drift.sum()))
    if n == 0:
        return 1.0
    if n > 12:
        return math.erfc(far / math.sqrt(2 * float(drift @ drift)))
    signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    return float((np.abs(signs @ drift) >= far * (1 - 1e-12)).mean())
