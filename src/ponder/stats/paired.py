"""Compare two accuracies: on the same problems, problem by problem, or on different ones.

On the same problems, with one attempt at each, the interval of the difference is Tango's (1998)
score interval: it keeps its level where the two answer few problems differently, which is where
"not worse by more than the margin" is claimed. With several attempts per problem it is Bonett &
Price's (2012) on the problems' means. On different problems it is Newcombe's (1998) square-and-add
interval, which combines the two accuracies' intervals, so that clustering by problem carries over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ponder.core import Estimate, Outcome
from ponder.stats.columns import FEWEST_PAIRS, Floats
from ponder.stats.distributions import t_quantile, z_quantile


def matched(first: Sequence[Outcome], second: Sequence[Outcome]) -> tuple[Floats, Floats]:
    """Return the accuracy of each on the problems that both answered, in the same order."""
    first_means = _problem_means(first)
    second_means = _problem_means(second)
    common = sorted(first_means.keys() & second_means.keys())
    return (
        np.array([first_means[problem] for problem in common], dtype=np.float64),
        np.array([second_means[problem] for problem in common], dtype=np.float64),
    )


def _problem_means(outcomes: Sequence[Outcome]) -> dict[tuple[int, str], float]:
    """Return the accuracy on each problem, keyed by size and name."""
    answers: dict[tuple[int, str], list[bool]] = {}
    for o in outcomes:
        if o.answered:
            answers.setdefault((o.size, o.problem), []).append(o.correct)
    return {problem: sum(right) / len(right) for problem, right in answers.items()}


def paired_difference(first: Floats, second: Floats, level: float = 0.95) -> Estimate:
    """Return `first` minus `second`, accuracies on the same problems, with a paired interval."""
    t = t_quantile((1 + level) / 2, max(1, len(first) - 1))
    return bonett_price(first - second, t)


def _unknown_difference(differences: Floats) -> Estimate:
    """Return a difference from fewer problems than an interval needs."""
    n = len(differences)
    value = math.nan
    if n:
        value = float(differences.mean())
    return Estimate(value, -1.0, 1.0, n, n)


def bonett_price(differences: Floats, critical_value: float) -> Estimate:
    """Return the mean of paired differences ± `critical_value` standard errors."""
    n = len(differences)
    if n < FEWEST_PAIRS:
        return _unknown_difference(differences)
    middle, error = smoothed(differences)
    half = critical_value * error
    value = float(differences.mean())
    low = max(-1.0, middle - half)
    high = min(1.0, middle + half)
    return Estimate(value, min(value, low), max(value, high), n, n)


def smoothed(differences: Floats) -> tuple[float, float]:
    """Return the mean of paired differences and its standard error, after Bonett & Price (2012).

    They add one more problem in either direction, a difference of 1 and one of -1: two models that
    agree on ten problems needn't agree on all others.
    """
    middle, error = smoothed_sums(differences.sum(), differences @ differences, len(differences))
    return float(middle), float(error)


def smoothed_sums(total: Floats, squares: Floats, n: int | Floats) -> tuple[Floats, Floats]:
    """Return the same as `smoothed`, from the sums of the differences and of their squares."""
    middle = np.asarray(total / (n + 2))
    variance = (squares + 2) / (n + 2) - middle**2
    return middle, np.sqrt(variance / (n + 2))


def difference_sums(rows: Floats) -> tuple[Floats, Floats]:
    """Return matrices [i, j]: the sum of row j minus row i, and of the squares of that difference.

    `rows` is models × problems. The differences themselves are never formed.
    """
    total = rows.sum(axis=1)
    products = rows @ rows.T
    squares = np.diag(products)
    return total - total[:, None], squares + squares[:, None] - 2 * products


def common_difference_sums(rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the same for rows with nan where a model has no answer, and the number of problems.

    Each pair of models is compared on the problems that both answered.
    """
    answered = np.isfinite(rows).astype(np.float64)
    values = np.nan_to_num(rows, nan=0.0)
    totals = answered @ values.T  # [i, j]: the sum of j on what i answered too
    squares = answered @ (values**2).T
    products = values @ values.T
    return totals - totals.T, squares + squares.T - 2 * products, answered @ answered.T


def tango(first: Floats, second: Floats, level: float = 0.95) -> Estimate:
    """Return `first` minus `second`, each 0 or 1 on the same problems.

    Tango's (1998) interval holds every difference that a score test doesn't reject.
    """
    n = len(first)
    if n < FEWEST_PAIRS:
        return _unknown_difference(first - second)
    only_first = int(np.count_nonzero(first > second))
    only_second = int(np.count_nonzero(first < second))
    value = (only_first - only_second) / n
    z = z_quantile((1 + level) / 2)
    low = _tango_end(n, only_first, only_second, z, value, -1.0)
    high = _tango_end(n, only_first, only_second, z, value, 1.0)
    return Estimate(value, min(value, low), max(value, high), 2 * n, n)


def _tango_end(
    n: int, only_first: int, only_second: int, z: float, inside: float, outside: float
) -> float:
    """Find the difference whose score is z, by bisection.

    `inside` is a difference that isn't rejected, `outside` one that is.
    """
    for _ in range(60):
        middle = (inside + outside) / 2
        if abs(_tango_score(n, only_first, only_second, middle)) <= z:
            inside = middle
        else:
            outside = middle
    return inside


def _tango_score(n: int, only_first: int, only_second: int, difference: float) -> float:
    """Return the score of a difference, with the other parameter at its maximum likelihood.

    Under a given difference, the probability that only the second is right solves
    2·n·p² + b·p + c = 0 (Tango 1998).
    """
    b = -only_first - only_second + (2 * n - only_first + only_second) * difference
    c = -only_second * difference * (1 - difference)
    p_only_second = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
    variance = n * (2 * p_only_second + difference * (1 - difference))
    excess = only_first - only_second - n * difference
    if variance > 1e-12:
        return excess / math.sqrt(variance)
    if excess == 0:
        return 0.0
    return math.copysign(math.inf, excess)


def newcombe(first: Estimate, second: Estimate) -> Estimate:
    """Return `first` minus `second`, two accuracies that share no problems."""
    value = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    attempts = first.attempts + second.attempts
    problems = first.problems + second.problems
    return Estimate(value, value - below, value + above, attempts, problems)
