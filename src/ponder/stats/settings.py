"""Summarise each setting of a model: its accuracy, tokens, money and seconds per answer.

Money includes what methods pay other models, such as a judge. Every interval is clustered by
problem; that of an amount per right answer is on a log scale (delta method).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ponder.core import Estimate, Outcome
from ponder.core.nouns import Resource
from ponder.stats.accuracy import accuracy, mean
from ponder.stats.columns import FEWEST_PAIRS, Floats, Ints
from ponder.stats.distributions import t_quantile
from ponder.stats.quantiles import quantile


@dataclass(frozen=True, slots=True)
class SettingSummary:
    """Accuracy and amounts of a setting's answered attempts, and how many ended otherwise."""

    accuracy: Estimate
    tokens: Estimate  # output tokens per answer
    cost: Estimate | None  # per answer; None without prices
    seconds: Estimate  # mean per answer
    seconds_p50: Estimate
    seconds_p95: Estimate
    per_right: Estimate  # tokens, money or seconds per right answer
    truncated: int
    unparsed: int
    failed: int


class Change(NamedTuple):
    """A problem that two settings answer differently."""

    size: int
    problem: str
    first: tuple[int, ...]  # attempts, by their ids in the store
    second: tuple[int, ...]
    gained: bool  # whether the second is more often right


def summarise(outcomes: Sequence[Outcome], resource: Resource, *, priced: bool) -> SettingSummary:
    """Return the summary of a setting's attempts; `resource` is what a right answer takes."""
    answered = [o for o in outcomes if o.answered]
    problem = _numbers(answered)
    right = np.array([o.correct for o in answered], dtype=np.bool_)
    times = np.array([o.seconds for o in answered], dtype=np.float64)
    costs = None
    if priced:
        costs = mean(_values(answered, "cost"), problem)
    return SettingSummary(
        accuracy=accuracy(right, problem),
        tokens=mean(_values(answered, "output"), problem),
        cost=costs,
        seconds=mean(times, problem),
        seconds_p50=quantile(times, problem, 0.5),
        seconds_p95=quantile(times, problem, 0.95),
        per_right=per_right(_values(answered, resource), right, problem),
        truncated=sum(o.ended == "truncated" for o in answered),
        unparsed=sum(o.ended == "unparsed" for o in answered),
        failed=sum(o.ended == "failed" for o in outcomes),
    )


def per_right(amounts: Floats, right: Floats | np.ndarray, problem: Ints) -> Estimate:
    """Return the amount per right answer: the mean amount divided by the accuracy.

    Both are means of the problems' means.
    """
    attempts = len(amounts)
    if not attempts:
        return Estimate(math.nan, 0.0, math.inf, 0, 0)
    attempts_by_problem = np.bincount(problem)
    problems = len(attempts_by_problem)
    spent = np.bincount(problem, weights=amounts) / attempts_by_problem
    accuracies = np.bincount(problem, weights=right) / attempts_by_problem
    if not accuracies.any() or not spent.any():
        return Estimate(math.nan, 0.0, math.inf, attempts, problems)
    mean_spent = spent.mean()
    mean_accuracy = accuracies.mean()
    value = float(mean_spent / mean_accuracy)
    if problems < FEWEST_PAIRS:
        return Estimate(value, 0.0, math.inf, attempts, problems)
    # what each problem adds to the error of the logarithm
    influence = spent / mean_spent - accuracies / mean_accuracy
    spread = float(influence.std(ddof=1))
    half_width = t_quantile(0.975, problems - 1) * spread / math.sqrt(problems)
    low = value * math.exp(-half_width)
    high = value * math.exp(min(700.0, half_width))
    return Estimate(value, low, high, attempts, problems)


def changes(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[Change]:
    """Return the problems that the second setting gains and loses, compared with the first."""
    by_problem_first = _by_problem(first)
    by_problem_second = _by_problem(second)
    changed = []
    for size, problem in sorted(by_problem_first.keys() & by_problem_second.keys()):
        before = by_problem_first[size, problem]
        after = by_problem_second[size, problem]
        gain = np.mean([o.correct for o in after]) - np.mean([o.correct for o in before])
        if not gain:
            continue
        change = Change(
            size=size,
            problem=problem,
            first=tuple(o.attempt for o in before),
            second=tuple(o.attempt for o in after),
            gained=bool(gain > 0),
        )
        changed.append(change)
    return changed


def _by_problem(outcomes: Sequence[Outcome]) -> dict[tuple[int, str], list[Outcome]]:
    """Group answered attempts by the size and the name of their problem."""
    groups: dict[tuple[int, str], list[Outcome]] = {}
    for o in outcomes:
        if o.answered:
            groups.setdefault((o.size, o.problem), []).append(o)
    return groups


def _numbers(outcomes: Sequence[Outcome]) -> Ints:
    """Return the number of each attempt's problem, counted from 0."""
    numbers: dict[tuple[int, str], int] = {}
    for o in outcomes:
        numbers.setdefault((o.size, o.problem), len(numbers))
    values = [numbers[o.size, o.problem] for o in outcomes]
    return np.array(values, dtype=np.int64)


def _values(outcomes: Sequence[Outcome], resource: Resource) -> Floats:
    return np.array([o.used(resource) for o in outcomes], dtype=np.float64)
