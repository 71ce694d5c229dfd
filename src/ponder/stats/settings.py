"""Summarise what each setting of a model came to: accuracy, tokens, money, seconds, by problem.

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
    """What the answered attempts of a setting came to."""

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
    """Return the amount per right answer: mean amount over accuracy, means of problems' means."""
    attempts = len(amounts)
    if not attempts:
        return Estimate(math.nan, 0.0, math.inf, 0, 0)
    number = np.bincount(problem)
    spent = np.bincount(problem, weights=amounts) / number
    share = np.bincount(problem, weights=right) / number
    problems = len(number)
    if not share.any() or not spent.any():
        return Estimate(math.nan, 0.0, math.inf, attempts, problems)
    value = float(spent.mean() / share.mean())
    if problems < FEWEST_PAIRS:
        return Estimate(value, 0.0, math.inf, attempts, problems)
    relative = spent / spent.mean() - share / share.mean()
    half = t_quantile(0.975, problems - 1) * float(relative.std(ddof=1)) / math.sqrt(problems)
    low = value * math.exp(-half)
    high = value * math.exp(min(700.0, half))
    return Estimate(value, low, high, attempts, problems)


def changes(first: Sequence[Outcome], second: Sequence[Outcome]) -> list[Change]:
    """Return the problems that the second setting gains and loses, compared with the first."""
    by_problem: list[dict[tuple[int, str], list[Outcome]]] = []
    for outcomes in (first, second):
        groups: dict[tuple[int, str], list[Outcome]] = {}
        for o in outcomes:
            if o.answered:
                groups.setdefault((o.size, o.problem), []).append(o)
        by_problem.append(groups)
    changed = []
    for key in sorted(by_problem[0].keys() & by_problem[1].keys()):
        before, after = by_problem[0][key], by_problem[1][key]
        gain = np.mean([o.correct for o in after]) - np.mean([o.correct for o in before])
        if gain:
            changed.append(
                Change(
                    size=key[0],
                    problem=key[1],
                    first=tuple(o.attempt for o in before),
                    second=tuple(o.attempt for o in after),
                    gained=bool(gain > 0),
                )
            )
    return changed


def _numbers(outcomes: Sequence[Outcome]) -> Ints:
    """Return the number of each attempt's problem, counted from 0."""
    numbers: dict[tuple[int, str], int] = {}
    for o in outcomes:
        numbers.setdefault((o.size, o.problem), len(numbers))
    values = [numbers[o.size, o.problem] for o in outcomes]
    return np.array(values, dtype=np.int64)


def _values(outcomes: Sequence[Outcome], resource: Resource) -> Floats:
    return np.array([o.used(resource) for o in outcomes], dtype=np.float64)
