"""Judge conditions on how a model differs from a reference: what `ponder compare --fail-if` states.

A threshold on a difference or a ratio is judged by its interval, never by the measured value alone:
`tokens > +10%` fails if the whole interval is above +10 %, passes if none of it is, and is
inconclusive if the interval contains +10 %. `worse` is judged by the verdict of `ponder compare`.
With several tasks, each threshold's interval is at a level of 1 − 0.05 / tasks (Bonferroni), and
verdicts are corrected for the tasks, so that an unchanged model fails no more often than on one.

At most 2.5 % of the models that are exactly at a limit fail, and 2.5 % of those that are as good as
the reference are called worse; after an adaptive run too, because its intervals are valid at every
analysis (`designs.sequential`).

A condition that is inconclusive is also judged `unlikely` to fail, if the rest of an adaptive run
would show it with a probability below 10 %, even if the difference to the limit were as large as
all problems would find with 80 % power, or as the margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ponder.core import Estimate
from ponder.stats.columns import FEWEST_PAIRS
from ponder.stats.compare import LEVEL, difference_in_accuracy, planned_verdicts
from ponder.stats.designs.sequential import (
    ANALYSES,
    FUTILE,
    PLANNED,
    conditional_power,
    nominal_level,
)
from ponder.stats.distributions import z_quantile
from ponder.stats.frontier import Verdict
from ponder.stats.ratios import Pair, per_attempt, token_logs

Status = Literal["pass", "fail", "inconclusive"]
Quantity = Literal["verdict", "accuracy", "tokens", "cost", "seconds"]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition under which a gate fails: `worse`, or a limit that a quantity may not exceed."""

    text: str  # as its user wrote it
    quantity: Quantity
    above: bool = False  # whether it fails above the limit, or below it
    limit: float = 0.0  # of B − A for accuracy, of B / A for the others

    def exceeded(self, effect: Estimate) -> Status:
        """Judge an interval by the limit."""
        if self.above:
            beyond = effect.low > self.limit
            within = effect.high <= self.limit
        else:
            beyond = effect.high < self.limit
            within = effect.low >= self.limit
        if beyond:
            return "fail"
        return "pass" if within else "inconclusive"


WORSE = Condition("worse", "verdict")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a condition is met on one task, with the interval that it is judged by."""

    condition: Condition
    status: Status
    effect: Estimate | None = None  # B − A or B / A; None if it could not be measured
    verdict: Verdict | None = None  # of `worse`
    why: str = ""  # why it could not be measured
    unlikely: bool = False  # whether it is inconclusive, and unlikely to fail on all problems


def judge(
    pairs: Sequence[Pair | None],
    conditions: Sequence[Condition],
    margin: float,
    fraction: float | None = None,
) -> list[list[Judgement]]:
    """Judge each condition on each task; a task's pair is None if no problem was answered by both.

    `fraction` is how much of its problems an adaptive run has asked, or None if it wasn't adaptive.
    """
    analyses = 1 if fraction is None else ANALYSES
    verdict_level = nominal_level(LEVEL, analyses)
    level = nominal_level(1 - (1 - LEVEL) / max(1, len(pairs)), analyses)
    verdicts: Iterator[Verdict] = iter(())
    if WORSE in conditions:
        verdicts = iter(planned_verdicts([pair for pair in pairs if pair], margin, analyses))
    judged = []
    for pair in pairs:
        task_judgements = []
        for condition in conditions:
            if pair is None:
                why = "no problem was answered by both"
                task_judgements.append(Judgement(condition, "inconclusive", why=why))
                continue
            if condition == WORSE:
                difference = difference_in_accuracy(pair.first.variant, pair.second.variant)
                judgement = _of_verdict(next(verdicts), difference(verdict_level))
                unlikely = _unlikely(judgement, fraction, verdict_level, margin)
            else:
                judgement = _of_threshold(condition, pair, level)
                unlikely = _unlikely(judgement, fraction, level)
            task_judgements.append(replace(judgement, unlikely=unlikely))
        judged.append(task_judgements)
    return judged


def _unlikely(
    judgement: Judgement, fraction: float | None, level: float, margin: float = 0.0
) -> bool:
    """Return whether a condition is inconclusive and would hardly fail on all problems."""
    effect = judgement.effect
    if judgement.status != "inconclusive" or effect is None or not fraction or fraction >= 1:
        return False
    condition = judgement.condition
    numbers = [effect.value, effect.low, effect.high, condition.limit]
    if condition.quantity not in ("verdict", "accuracy"):
        if effect.low <= 0 or math.isinf(effect.high):
            return False
        numbers = [math.log(number) for number in numbers]
    value, low, high, limit = numbers
    bound = z_quantile((1 + level) / 2)
    error = (high - low) / (2 * bound)
    if not error:
        return False
    z = (limit - value) / error
    if condition.above:
        z = -z
    planned = max(PLANNED, margin / (error * math.sqrt(fraction)))
    return conditional_power(z, fraction, planned, bound) < FUTILE


def _of_verdict(verdict: Verdict, effect: Estimate) -> Judgement:
    status: Status = "pass"
    if verdict == "below":
        status = "fail"
    elif verdict == "open":
        status = "inconclusive"
    return Judgement(WORSE, status, effect, verdict)


def _of_threshold(condition: Condition, pair: Pair, level: float) -> Judgement:
    if pair.problems < FEWEST_PAIRS:
        why = f"fewer than {FEWEST_PAIRS} problems in common"
        return Judgement(condition, "inconclusive", why=why)
    interval = _effect(condition.quantity, pair)
    if interval is None:
        why = f"one of them has no {condition.quantity}"
        return Judgement(condition, "inconclusive", why=why)
    effect = interval(level)
    return Judgement(condition, condition.exceeded(effect), effect)


def _effect(quantity: Quantity, pair: Pair) -> Callable[[float], Estimate] | None:
    """Return B − A or B / A as a function of the level; None if it can't be measured."""
    if quantity == "accuracy":
        return difference_in_accuracy(pair.first.variant, pair.second.variant)
    if quantity == "tokens":
        curves = token_logs(pair)
        if curves is None:
            return None
        first, second = curves.overall
        return second.over(first)
    of_a, of_b = pair.sides
    if quantity == "cost":
        logs = per_attempt(of_a.cost, of_a), per_attempt(of_b.cost, of_b)
    else:
        logs = per_attempt(of_a.seconds, of_a), per_attempt(of_b.seconds, of_b)
    if logs[0] is None or logs[1] is None:
        return None
    return logs[1].over(logs[0])
