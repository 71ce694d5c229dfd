"""Comparisons at their edges: no tokens, no upper end, seeds that differ in slope."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from made_up import variants_of
from test_compare import attempts, outcome

from ponder.core import Outcome
from ponder.figures.compare import Compare
from ponder.stats.compare import compare
from ponder.stats.designs.sequential import valid_difference
from ponder.stats.frontier import area_difference, area_p, summarize
from ponder.stats.paired import paired_difference, tango
from ponder.stats.ratios import pair, token_logs


def test_problems_without_tokens_are_told() -> None:
    one, other = attempts("a", 20, 1), attempts("b", 20, 1)
    lazy = [
        o._replace(thinking_tokens=0, answer_tokens=0) if o.problem.endswith("1") else o
        for o in one
    ]
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


def pairs(model: str, numbers: dict[int, int], factor: float, right: bool = True) -> list[Outcome]:
    """As many problems of each size, with tokens that vary."""
    rng = np.random.default_rng(3)
    return [
        outcome(model, size, f"p{size}-{n}", int(factor * size * rng.uniform(80, 120)), right)
        for size, number in numbers.items()
        for n in range(number)
    ]


@pytest.mark.parametrize("few", [1, 2])
def test_no_interval_from_fewer_than_three_pairs_at_a_size(few: int) -> None:
    """A run in progress: the fitted curve goes through the only problem of the largest size, as if
    it had no error.
    """
    numbers = {4: 20, 8: few}
    found = compare(pairs("a", numbers, 1.0), pairs("b", numbers, 1.5, right=False))
    assert found.row("tokens at the smallest size").p_value < 0.001
    assert found.row("tokens at the largest size") is None
    assert (
        dict(found.omitted)["tokens at the largest size"]
        == "fewer than 3 problems of that size in common"
    )
    small, large = found.by_size
    assert small.tokens.low > 1.2
    assert small.difference.high < -0.5
    assert large.tokens is None
    assert (large.difference.low, large.difference.high) == (-1.0, 1.0)
    outcomes = [*pairs("a", numbers, 1.0), *pairs("b", numbers, 1.5, right=False)]
    tables = Compare().estimate(outcomes)
    drawn = json.dumps(Compare().draw(tables).to_dict())
    assert '"size": 4.0' in drawn
    assert '"size": 8.0' not in drawn
    three = {4: 20, 8: 3}
    found = compare(pairs("a", three, 1.0), pairs("b", three, 1.5, right=False))
    assert found.row("tokens at the largest size").effect.value == pytest.approx(1.5, abs=0.1)
    assert found.by_size[1].tokens is not None


@pytest.mark.parametrize("few", [1, 2])
def test_no_verdict_from_fewer_than_three_pairs(few: int) -> None:
    numbers = {4: few}
    first, second = pairs("a", numbers, 1.0), pairs("b", numbers, 1.5, right=False)
    found = compare(first, second)
    assert [row.quantity for row in found.rows] == ["accuracy"]
    assert found.rows[0].p_value == 1
    assert (found.rows[0].effect.low, found.rows[0].effect.high) == (-1.0, 1.0)
    assert found.verdict == "open"
    tables = Compare().estimate([*first, *second])
    assert tables["comparisons"][0]["sentence"].startswith(f"Can't tell: {few} problem")
    Compare().draw(tables).to_dict()
    one, other = np.zeros(few), np.ones(few)
    for interval in (
        paired_difference(one, other),
        tango(one, other),
        valid_difference(one - other, 0.95),
    ):
        assert (interval.low, interval.high) == (-1.0, 1.0)
    left, right = variants_of([*first, *second]).variants
    assert (area_difference(left, right, 10_000).low, area_p(left, right, 10_000)) == (-1.0, 1.0)
    against = summarize(variants_of([*first, *second]), "a")[1].against
    assert against.p_value == 1
    assert (against.ratio.low, against.ratio.high) == (0.0, math.inf)
