"""Training seeds, bands and corrections, against SciPy, and with what they cover in simulation.

The long form of the simulations, with its table, is benchmarks/coverage_seeds.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ponder.core import Estimate
from ponder.stats.corrections import benjamini_hochberg, p_value
from ponder.stats.distributions import t_quantile
from ponder.stats.frontier import (
    Variant,
    accuracy_difference,
    constant_half,
    simultaneous_level,
    under_budget,
)
from ponder.stats.seeds import pooled, spread, widened

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import coverage_seeds as simulated


def cells(*means: float, problems: int = 50) -> np.ndarray:
    """Seeds × problems, without an interaction: seeds differ by the same on all problems."""
    return np.array(means)[:, None] + np.linspace(-0.1, 0.1, problems)


def test_a_difference_over_seeds_alone_is_welchs() -> None:
    first, second = [0.5, 0.56, 0.64], [0.3, 0.31, 0.33, 0.36, 0.35]
    value = float(np.mean(first) - np.mean(second))
    found = widened(
        Estimate(value, value, value, 9, 9),
        [spread(cells(*arm)) for arm in (first, second)],
        0.95,
        -1,
        1,
    )
    truth = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((truth.low, truth.high))


def test_the_quantile_between_whole_degrees_of_freedom() -> None:
    asked = [(p, df) for p in (0.6, 0.975, 0.9999) for df in (1.5, 2.25, 7.9, 33.4)]
    assert [t_quantile(*a) for a in asked] == pytest.approx(
        [stats.t.ppf(*a) for a in asked], rel=1e-6
    )


def test_seed_means_alone_bound_the_interval_from_below() -> None:
    rng = np.random.default_rng(1)
    # the interaction explains all of the difference
    noisy = np.array([[0.4], [0.6]]) + rng.normal(0, 2.0, (2, 40))
    noisy += np.array([[0.4], [0.6]]) - noisy.mean(axis=1, keepdims=True)
    own = spread(noisy)
    assert own.training < 0 < own.total
    found = widened(Estimate(0.5, 0.49, 0.51, 80, 40), [own], 0.95, -9, 9)
    assert found.high - 0.5 == pytest.approx(stats.t.ppf(0.975, 1) * 0.1)


def test_pooling_shares_one_estimate_and_needs_four_arms() -> None:
    arms = [
        cells(0.4, 0.5, 0.6),
        cells(0.6, 0.7, 0.8),
        cells(0.1, 0.2, 0.3),
        cells(0.45, 0.5, 0.55),
    ]
    pool = pooled(arms)
    assert pool is not None
    logit = [0.1 / 0.25, 0.1 / 0.21, 0.1 / 0.16, 0.05 / 0.25]
    assert (pool.arms, pool.freedom, pool.total) == (4, 8, pytest.approx(np.mean(np.square(logit))))
    assert pooled(arms[:3]) is None
    assert pooled([*arms[:3], cells(0.5)]) is None
    both = [pool.spread(0.5, 3), pool.spread(0.5, 3)]
    found = widened(Estimate(0.0, 0.0, 0.0, 9, 9), both, 0.95, -1, 1)
    # 8 degrees of freedom, not 16
    half = stats.t.ppf(0.975, 8) * 0.25 * np.sqrt(2 * pool.total / 3)
    assert found.high == pytest.approx(half)


def test_benjamini_and_hochberg() -> None:
    p = np.random.default_rng(2).beta(0.4, 1.5, 40).tolist()
    assert benjamini_hochberg(p) == pytest.approx(stats.false_discovery_control(p))
    assert benjamini_hochberg([]) == []


def test_the_p_value_is_that_of_the_interval() -> None:
    values = np.random.default_rng(3).normal(0.4, 1.0, 30)

    def interval(level: float) -> Estimate:
        return Estimate(0.4, *stats.t.interval(level, 29, values.mean(), stats.sem(values)), 30, 30)

    assert p_value(interval) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-4)
    assert p_value(interval, float(values.mean())) == pytest.approx(1.0)
    assert p_value(interval, 99.0) == 1e-5


def test_the_band_of_independent_points_is_sidaks() -> None:
    points = np.random.default_rng(4).normal(size=(4000, 12))
    assert simultaneous_level(points, 0.95, np.ones(4000)) == pytest.approx(
        0.95 ** (1 / 12), abs=0.001
    )
    same = np.tile(points[:, :1], 12)
    assert simultaneous_level(same, 0.95, np.ones(4000)) == pytest.approx(0.95, abs=0.005)
    assert constant_half(25, 0.95) == pytest.approx(stats.kstwobign.ppf(0.95) / 5, rel=1e-3)


def test_few_problems_have_a_constant_band() -> None:
    number = np.arange(25)
    few = Variant(
        "v", (), np.zeros(25, dtype=np.int64), number, 10.0 + number, number < 20, 0.0, 0.0
    )
    middle = under_budget(few, [0.0, 21.0, 99.0])[1]
    assert (middle.value, middle.low, middle.high) == pytest.approx(
        (0.48, 0.48 - 0.2716, 0.48 + 0.2716), abs=1e-3
    )


def test_problems_count_equally_however_many_samples_they_have() -> None:
    problem = np.array([0] * 90 + list(range(1, 10)))
    one = Variant(
        "v", (), np.zeros(99, dtype=np.int64), problem, np.ones(99), problem == 0, 0.0, 0.0
    )
    other = Variant(
        "w",
        (),
        np.zeros(10, dtype=np.int64),
        np.arange(10),
        np.ones(10),
        np.zeros(10, bool),
        0.0,
        0.0,
    )
    assert accuracy_difference(one, other).value == pytest.approx(0.1)
    assert one.by_seed(one.correct).mean() == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("seeds", "spread_of_seeds", "widest"),
    # without the interval over seed means alone, 89 and 92 % are covered
    [(2, 0.3, 0.7), (3, 1.0, 0.65)],
)
def test_one_variants_accuracy_covers(seeds: int, spread_of_seeds: float, widest: float) -> None:
    _, share, width, _ = simulated.single(
        seeds, 200, spread_of_seeds, 400, np.random.default_rng(5)
    )
    assert share >= 0.93
    assert width < widest


def test_a_difference_covers_and_finds_ten_points() -> None:
    rng = np.random.default_rng(6)
    _, share, width, _ = simulated.difference((3, 3), 200, (0.3, 0.3), 300, rng)
    assert share >= 0.93
    assert width < 0.32  # of two t(2) halves it would be 0.33 to 0.36
    (_, share, _, _), (_, found, _, _) = simulated.power(3, 200, 0.1, 4, 150, rng)
    assert share >= 0.91
    assert found > 0.8  # without pooling, two thirds


@pytest.mark.parametrize(("problems", "samples"), [(40, 1), (60, 1), (30, 4)])
def test_a_whole_budget_curve_is_in_its_band(problems: int, samples: int) -> None:
    share = simulated.band(problems, samples, 0, 0.0, 150, np.random.default_rng(7))[1]
    assert share >= 0.91  # pointwise intervals: 0.80 to 0.84


def test_false_discoveries_are_rare() -> None:
    (_, false, _, _), (_, plain, _, _) = simulated.false_discoveries(
        8, 0, 1, 60, 60, np.random.default_rng(8)
    )
    assert false <= 0.08 < plain
