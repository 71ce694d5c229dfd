"""Comparisons at their edges: no tokens, no upper end, seeds that differ in slope."""

from __future__ import annotations

import math

import numpy as np
from test_compare import attempts, outcome

from ponder.core import Outcome
from ponder.figures.compare import Compare
from ponder.stats.compare import compare
from ponder.stats.pairs import pair
from ponder.stats.ratios import token_logs


def test_problems_without_tokens_are_told() -> None:
    one, other = attempts("a", 20, 1), attempts("b", 20, 1)
    lazy = [o._replace(thinking_tokens=0, answer_tokens=0) if o.problem.endswith("1") else o for o in one]
    dropped = len({o.problem for o in one if o.problem.endswith("1")})
    found = compare(lazy, other)
    assert found.row("tokens").note == f"without {dropped} problems at which one of them used none"
    assert found.row("tokens where both are right").effect.value < 2


def test_a_ratio_without_an_upper_end_is_infinite() -> None:
    one, other = (
        [outcome(model, size, f"p{size}", 100, size < limit) for size in (4, 6, 8, 12, 16)]
        for model, limit in (("a", 10), ("b", 14))
    )
    assert compare(one, other).row("critical size").effect.high == math.inf
    outcomes = [*one, *other]
    Compare().draw(Compare().estimate(outcomes)).to_dict()


def test_seeds_that_differ_in_slope_widen_the_ratios_at_the_ends() -> None:
    """With the spread of the seeds' overall means, half of the intervals missed there."""
    rng, sizes = np.random.default_rng(5), (4, 6, 8, 12, 16)
    middle = float(np.log(sizes).mean())

    def tokens(slope: float, size: int) -> list[int]:
        logs = slope * (math.log(size) - middle) + rng.normal(0, 0.3, 10)
        return [int(number) for number in 1000 * np.exp(logs)]

    def arm(model: str) -> list[Outcome]:
        return [
            outcome(model, size, f"p{size}-{n}", number, True, seed=seed)
            for seed, slope in enumerate(1 + rng.normal(0, 0.2, 5))
            for size in sizes
            for n, number in enumerate(tokens(slope, size))
        ]

    covered = 0
    for _ in range(20):
        found = token_logs(pair(arm("a"), arm("b")))
        first, second = found.by_size[-1]
        interval = second.over(first)(0.95)
        covered += interval.low <= 1 <= interval.high
    assert covered >= 17
