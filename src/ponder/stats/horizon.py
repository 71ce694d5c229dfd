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
        if not len(self):
            return 0
        return int(self.problem[-1]) + 1

    @property
    def asked(self) -> Bools:
        """Rollouts × turns: whether the turn was asked."""
        return np.arange(self.index.shape[1]) < self.length[:, None]

    @property
    def first_error(self) -> Ints:
        """The turn of each rollout's first wrong sum, from 1; if none, one past the last."""
        wrong = self.asked & ~self.index
        never = np.ones((len(self), 1), dtype=np.bool_)
        return np.asarray(np.concatenate([wrong, never], axis=1).argmax(axis=1) + 1)


@dataclass(frozen=True, slots=True)
class TurnRow:
    """Steps `first` to `last`: `task` holds at step `last`, the others are averages over them."""

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
    """How long the rollouts of one model stay right."""

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
    """Read the turns of `execution` outcomes, of one model and one number of steps per turn."""
    ended = one_series(outcomes)
    steps = {int(o.details["per_turn"]) for o in ended}
    if len(steps) > 1:
        raise ValueError(f"one number of steps per turn at a time, not {sorted(steps)}")
    lengths = [min(len(o.details["parsed"]), len(o.details["true"])) for o in ended]
    length = np.array(lengths, dtype=np.int64)
    shape = (len(ended), int(length.max(initial=0)))
    index = np.zeros(shape, dtype=np.bool_)
    turn = np.zeros(shape, dtype=np.bool_)
    unparsed = np.zeros(shape, dtype=np.bool_)
    for row, (o, turns) in enumerate(zip(ended, lengths, strict=True)):
        parsed = o.details["parsed"]
        true = o.details["true"]
        if parsed == true:
            index[row, :turns] = True
            turn[row, :turns] = True
        else:
            index[row, :turns] = _right_sums(parsed, true)
            turn[row, :turns] = _right_turns(parsed, true, o.details["start"])
            unparsed[row, :turns] = [answer is None for answer in parsed[:turns]]
    return Rollouts(
        per_turn=steps.pop() if steps else 1,
        problem=clusters(ended),
        length=length,
        index=index,
        turn=turn,
        unparsed=unparsed,
        failed=sum(o.ended == "failed" for o in outcomes),
    )


# Sums stay Python's integers, because an answer may have forty digits.
def _right_sums(parsed: Sequence[Any], true: Sequence[int]) -> list[bool]:
    """Return for each turn whether the answer is the true sum."""
    return [answer == total for answer, total in zip(parsed, true, strict=False)]


def _right_turns(parsed: Sequence[Any], true: Sequence[int], start: int) -> list[bool]:
    """Return for each turn whether the answer follows from the model's own previous answer."""
    right = []
    previous_answer = start
    previous_total = start
    for answer, total in zip(parsed, true, strict=False):
        if answer is None:
            right.append(False)
        else:
            right.append(answer - previous_answer == total - previous_total)
            previous_answer = answer
        previous_total = total
    return right


def horizon(
    data: Rollouts, target: float = 0.5, level: float = 0.95, blur: float = 0.05
) -> Horizon:
    """Estimate survival until the first error, the horizon, and accuracy by turn.

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


def _rows(data: Rollouts, level: float, blur: float) -> tuple[TurnRow, ...]:
    """Return the accuracies of groups of turns, which get longer along the rollout."""
    turns = data.index.shape[1]
    unbroken = np.logical_and.accumulate(data.index, axis=1)
    rows = []
    start = 0
    while start < turns:
        end = min(turns, start + max(1, int(blur * start)))
        group = slice(start, end)
        rows.append(
            TurnRow(
                first=start * data.per_turn + 1,
                last=end * data.per_turn,
                index=_over_turns(data, data.index, group, level),
                # Only rollouts that were asked this far: shorter ones would count as wrong here.
                task=_over_turns(data, unbroken, slice(end - 1, end), level),
                turn=_over_turns(data, data.turn, group, level),
                unparsed=_over_turns(data, data.unparsed, group, level),
            )
        )
        start = end
    return tuple(rows)


def _over_turns(data: Rollouts, values: Bools, turns: slice, level: float) -> Estimate:
    """Return the fraction of True over these turns; `values` is rollouts × turns."""
    asked = np.arange(turns.start, turns.stop) < data.length[:, None]
    return _fraction(data, values[:, turns], asked, level)


def _fraction(data: Rollouts, values: Bools, turns: Bools, level: float) -> Estimate:
    """Return the fraction of True, each turn counting once; clustered by problem.

    `values` and `turns`, which selects, are rollouts × turns. A mean of the problems' fractions
    would be biased: a rollout that errs at once has few turns at risk, all wrong. Its `attempts`
    are rollouts, not turns.
    """
    asked = np.count_nonzero(turns, axis=1)
    right = np.count_nonzero(values & turns, axis=1)
    fraction = rate(summed(asked, data.problem), summed(right, data.problem), level)
    return replace(fraction, attempts=int(np.count_nonzero(asked)))


def _survival(data: Rollouts, level: float) -> Curve:
    """Return the Kaplan-Meier estimate at every turn where it, or its number of rollouts, changes.

    S(t) is the product of 1 - errors / at risk over the turns up to t.
    """
    turns = data.index.shape[1]
    first_error = data.first_error
    until = np.minimum(first_error, data.length)  # the last turn at risk of each rollout
    # by turn, from 0: rollouts that err there, and rollouts at risk
    events = np.bincount(first_error[first_error <= data.length], minlength=turns + 1)
    events = events[: turns + 1]
    leaving = np.bincount(until, minlength=turns + 1)
    at_risk = np.cumsum(leaving[::-1])[::-1][: turns + 1]
    survival = np.cumprod(1 - events / np.maximum(at_risk, 1))
    changes = np.concatenate([np.flatnonzero(events), data.length + 1, [1, turns]])
    listed = np.unique(changes[(changes >= 1) & (changes <= turns)])

    influence = np.zeros(data.problems)  # of each problem on the log survival so far
    ends = [(1.0, 1.0)]
    done = 0
    for turn in listed.tolist():
        for t in range(done + 1, turn + 1):
            if events[t]:
                influence += _influence(
                    data.problem, first_error, until, t, int(events[t]), int(at_risk[t])
                )
        done = turn
        value = float(survival[turn])
        ends.append(_band(data, first_error, turn, value, influence, level))
    low, high = np.minimum.accumulate(np.array(ends), axis=0).T
    listed = np.concatenate([[0], listed])
    return draw_curve(listed.astype(np.float64) * data.per_turn, survival[listed], low, high)


def _influence(
    problem: Ints, first_error: Ints, until: Ints, turn: int, events: int, at_risk: int
) -> Floats:
    """Return the influence of each problem's rollouts on the log survival, by one turn's errors.

    With one rollout per problem, the squares of the sums over turns add up to Greenwood's variance.
    """
    expected = summed(until >= turn, problem) * (events / at_risk)
    # If none is left, survival is 0 and its logarithm is not used.
    return (summed(first_error == turn, problem) - expected) / max(at_risk - events, 1)


def _band(
    data: Rollouts, first_error: Ints, turn: int, value: float, influence: Floats, level: float
) -> tuple[float, float]:
    """Return the ends of the survival band at one turn."""
    wrong = first_error <= np.minimum(turn, data.length)
    uncensored = wrong | (data.length >= turn)
    problems = _different(data.problem[uncensored])
    if problems < 2:
        return 0.0, 1.0
    rarer = _different(data.problem[uncensored & (wrong == (value > 0.5))])
    variance = float(((value * influence) ** 2).sum()) * data.problems / (data.problems - 1)
    rollouts_seen = int(uncensored.sum())
    effective = effective_sample(value, variance, rollouts_seen, problems, rarer, level)
    return wilson(value, effective, level)


def _different(problem: Ints) -> int:
    """Return the number of different problems."""
    return int(np.count_nonzero(np.bincount(problem)))


def _crossing(data: Rollouts, survival: Curve, target: float) -> Estimate:
    """Return the last step of the first turn at which survival is below the target.

    The interval's ends are where the band's low and high end fall below it.
    """
    steps = np.array(survival.size)

    def first_below(values: Sequence[float]) -> float:
        # the product for 16 of 20 may round to just below 0.8
        below = np.flatnonzero(np.array(values) < target - 1e-9)
        if not len(below):
            return math.inf
        return float(steps[below[0]])

    value = first_below(survival.value)
    if math.isinf(value):
        value = math.nan
    # The error may be in the turn's first step. If the band stays above the target, the horizon
    # exceeds all steps seen.
    low = min(first_below(survival.low) - data.per_turn + 1, float(steps[-1]))
    high = first_below(survival.high)
    return Estimate(value, max(low, 1.0), high, len(data), data.problems)


def _step_accuracy(data: Rollouts, level: float) -> Estimate:
    """Return the K-th root of the accuracy of turns at risk, for K steps per turn."""
    turn = np.arange(1, data.index.shape[1] + 1)
    at_risk = turn <= np.minimum(data.first_error, data.length)[:, None]
    right = _fraction(data, data.index, at_risk, level)
    low = right.low
    if right.value == 1.0 and data.problems > 1:
        # With a constant turn accuracy q, a rollout of T turns has no error with probability q^T.
        # The bound on the fraction of such rollouts therefore bounds q more tightly than one turn
        # per problem would.
        low = low ** (data.problems / int(data.length.sum()))
    root = 1 / data.per_turn
    return replace(right, value=right.value**root, low=low**root, high=right.high**root)


def _conditioned(data: Rollouts, level: float) -> tuple[Estimate, Estimate]:
    """Return turn accuracy after an answer that is right, and after one that is wrong."""
    right_before = data.index[:, :-1]
    later = data.asked[:, 1:]
    after_right = _fraction(data, data.turn[:, 1:], later & right_before, level)
    after_wrong = _fraction(data, data.turn[:, 1:], later & ~right_before, level)
    return after_right, after_wrong


def _predicted(step: Estimate, target: float) -> Estimate:
    """Return the horizon ln(target) / ln(p) of a constant step accuracy p."""

    def steps(p: float) -> float:
        if p >= 1:
            return math.inf
        if p > 0:
            return math.log(target) / math.log(p)
        return 0.0

    value = math.nan
    if step.value < 1:
        value = steps(step.value)
    return Estimate(value, steps(step.low), steps(step.high), step.attempts, step.problems)


def _trend(data: Rollouts, level: float) -> Trend:
    """Test each problem's trend by flipping signs.

    Hard problems and bursts of errors don't bias it. If turn accuracy is constant, a rollout is as
    likely as its reverse, so a problem's covariance of being right with the turn's number is as
    likely positive as negative. Up to 12 problems, all signs are enumerated; beyond that, their sum
    is approximately normal. A trend at 95 % needs at least six problems with an error.
    """
    middle = (data.length - 1) / 2
    covariance = -middle * np.count_nonzero(data.turn, axis=1)
    for number, right in enumerate(data.turn.T):
        covariance += number * right
    drift = np.zeros(0)
    if len(data):
        drift = summed(covariance, data.problem)
    drift = drift[drift != 0]
    p_value = sign_flips(drift)
    direction: Direction = "no clear trend"
    if 2.0 ** (1 - len(drift)) > 1 - level:
        direction = "too few errors"
    elif p_value < 1 - level:
        direction = "falls" if drift.sum() < 0 else "rises"
    turn = np.arange(data.index.shape[1])
    first_half = turn < middle[:, None]
    second_half = (turn > middle[:, None]) & data.asked
    return Trend(
        early=_fraction(data, data.turn, first_half, level),
        late=_fraction(data, data.turn, second_half, level),
        p_value=p_value,
        direction=direction,
    )


def sign_flips(drift: Floats) -> float:
    """Return the probability of a sum as far from 0 if every sign were random."""
    n = len(drift)
    distance = abs(float(drift.sum()))
    if n == 0:
        return 1.0
    if n > 12:
        return math.erfc(distance / math.sqrt(2 * float(drift @ drift)))
    bits = np.arange(2**n)[:, None] >> np.arange(n) & 1
    sums = (1 - 2 * bits) @ drift
    return float((np.abs(sums) >= distance * (1 - 1e-12)).mean())
