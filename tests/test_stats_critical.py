"""The critical size against SciPy's maximum likelihood, degenerate data and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from ponder.stats.columns import Columns
from ponder.stats.critical import critical_size, falling, fitted_lines

SIZES = (16, 20, 25, 30, 36, 42, 49, 64)


def columns_of(sizes, problem, correct) -> Columns:
    no = np.zeros(len(sizes), dtype=bool)
    return Columns(
        np.asarray(sizes, dtype=float), problem, correct, no, no, np.ones(len(sizes)), np.array([])
    )


def with_shares(shares, sizes=SIZES, problems=20) -> Columns:
    correct = np.concatenate([np.arange(problems) < round(share * problems) for share in shares])
    return columns_of(np.repeat(sizes, problems), np.arange(len(correct)), correct)


def truth(size, c, slope, lapse):
    return (1 - lapse) * special.expit(slope * (math.log(c) - np.log(size)))


def drawn(rng, c, slope, lapse, problems=20, samples=1, together=0.0) -> Columns:
    size = np.repeat(np.array(SIZES, dtype=float), problems)
    own = truth(size, c, slope, lapse)
    if together:
        own = rng.beta(own * (1 / together - 1), (1 - own) * (1 / together - 1) + 1e-12)
    problem = np.repeat(np.arange(len(size)), samples)
    return columns_of(size[problem], problem, rng.random(len(problem)) < own[problem])


@pytest.mark.parametrize("seed", range(4))
def test_fit_is_the_maximum_likelihood(seed) -> None:
    data = drawn(np.random.default_rng(seed), 36, 6, 0.08, problems=50)

    def loss(theta):
        p = np.clip(
            truth(data.size, math.exp(theta[0]), math.exp(theta[1]), theta[2]), 1e-12, 1 - 1e-12
        )
        return -np.where(data.correct, np.log(p), np.log1p(-p)).sum()

    box = ((2, 5), (-1, 4), (0, 0.2))
    fits = [
        optimize.minimize(loss, [math.log(36), 1.8, start], bounds=box) for start in (0.02, 0.1)
    ]
    log_c, log_slope, lapse = min(fits, key=lambda fit: fit.fun).x
    half = optimize.brentq(
        lambda size: truth(size, math.exp(log_c), math.exp(log_slope), lapse) - 0.5, 5, 200
    )
    found = critical_size(data)
    assert found.size.value == pytest.approx(half, rel=1e-3)
    assert found.slope.value == pytest.approx(math.exp(log_slope), rel=2e-2)
    assert found.lapse.value == pytest.approx(lapse, abs=3e-3)
    assert found.curve
    assert np.interp(half, found.curve.size, found.curve.value) == pytest.approx(0.5, abs=2e-2)


@pytest.mark.parametrize(
    ("c", "slope", "lapse", "samples", "together"),
    [(35, 5, 0.02, 1, 0.0), (35, 5, 0.1, 1, 0.0), (35, 15, 0.0, 1, 0.0), (28, 5, 0.02, 4, 0.5)],
)
def test_interval_covers(c, slope, lapse, samples, together) -> None:
    rng, hits = np.random.default_rng(3), 0
    half = optimize.brentq(lambda size: truth(size, c, slope, lapse) - 0.5, 5, 200)
    for _ in range(150):
        found = critical_size(
            drawn(rng, c, slope, lapse, 20, samples, together), replicates=200
        ).size
        hits += found.low <= half <= found.high
    assert hits >= 0.92 * 150


def test_band_covers_the_curve() -> None:
    rng, hits = np.random.default_rng(4), []
    for _ in range(60):
        curve = critical_size(drawn(rng, 35, 5, 0.05), replicates=200).curve
        assert curve
        real = truth(np.array(curve.size), 35, 5, 0.05)
        hits.append(np.mean((np.array(curve.low) <= real) & (real <= np.array(curve.high))))
    assert np.mean(hits) >= 0.93


def test_never_below_half_is_open_above() -> None:
    for share in (1.0, 0.9, 0.7):
        found = critical_size(with_shares([share] * 8))
        assert math.isnan(found.size.value)
        assert math.isnan(found.slope.value)
        # 14 of 20 may be luck
        assert (found.size.low, found.size.high) == (49 if share == 0.7 else 64, math.inf)


def test_never_above_half_is_open_below() -> None:
    for share in (0.0, 0.3):
        found = critical_size(with_shares([share] * 8)).size
        assert math.isnan(found.value)
        assert (found.low, found.high) == (0, 16)


@pytest.mark.parametrize("problems", [1, 3, 20, 1000])
def test_a_cliff_is_known_to_its_gap_and_no_finer(problems) -> None:
    found = critical_size(with_shares([1, 1, 1, 1, 0, 0, 0, 0], problems=problems))
    assert 30 < found.size.value < 36
    assert (found.size.low <= 30, found.size.high >= 36) == (True, True)
    assert found.slope.high == math.inf


def test_a_cliff_between_two_sizes_only() -> None:
    found = critical_size(with_shares([1, 0], sizes=(16, 64))).size
    assert found.value == pytest.approx(32, rel=0.01)  # the middle, on the scale of logarithms
    assert (found.low, found.high) == (16, 64)


def test_a_small_gap_elsewhere_does_not_make_a_wide_cliff_known() -> None:
    found = critical_size(with_shares([1, 1, 1, 0], sizes=(16, 17, 30, 60))).size
    assert 30 < found.value < 60
    assert (found.low, found.high) == (30, 60)


def test_one_size_or_none_says_nothing() -> None:
    empty = columns_of([], np.array([], dtype=np.int64), np.array([], dtype=bool))
    for data in (with_shares([0.5], sizes=(16,)), with_shares([1.0], sizes=(16,)), empty):
        found = critical_size(data)
        assert math.isnan(found.size.value)
        assert (found.size.low, found.size.high, found.curve) == (0, math.inf, None)


def test_more_attempts_narrow_it_but_attempts_at_the_same_problems_hardly() -> None:
    rng = np.random.default_rng(5)

    def width(**how):
        found = critical_size(drawn(rng, 35, 5, 0.0, **how)).size
        return math.log(found.high / found.low)

    assert width(problems=2000) < 0.15 * width(problems=20)
    assert width(problems=20, samples=30, together=0.999) > 0.6 * width(problems=20)


def test_the_seed_alone_moves_the_interval() -> None:
    data = drawn(np.random.default_rng(6), 35, 5, 0.02, samples=4, together=0.6)
    assert repr(critical_size(data)) == repr(critical_size(data))
    assert critical_size(data).size.value == critical_size(data, seed=1).size.value


def test_the_lapse_interval_is_not_a_point() -> None:
    found = critical_size(with_shares([1, 1, 1, 1, 0.5, 0, 0, 0], problems=100)).lapse
    assert found.value == pytest.approx(0, abs=1e-4)
    assert found.low == 0
    # 400 right of 400: (1 - lapse)^400 = exp(-1.92)
    assert found.high == pytest.approx(1 - math.exp(-stats.chi2.ppf(0.95, 1) / 2 / 400), rel=0.1)


def test_the_lapse_interval_is_the_profile_likelihood() -> None:
    data = drawn(np.random.default_rng(2), 36, 6, 0.1, problems=300)
    found = critical_size(data).lapse

    def best(lapse):
        def loss(theta):
            p = np.clip(
                truth(data.size, math.exp(theta[0]), math.exp(theta[1]), lapse), 1e-12, 1 - 1e-12
            )
            return -np.where(data.correct, np.log(p), np.log1p(-p)).sum()

        return optimize.minimize(
            loss, [math.log(36), 1.8], method="Nelder-Mead", options={"xatol": 1e-7}
        ).fun

    lowest = best(found.value)
    for end in (found.low, found.high):
        assert 2 * (best(end) - lowest) == pytest.approx(stats.chi2.ppf(0.95, 1), abs=0.15)


@pytest.mark.parametrize("lapse", [0.25, 0.4])
def test_lapses_above_a_fifth_are_possible(lapse) -> None:
    data = drawn(np.random.default_rng(7), 36, 8, lapse, problems=1000)
    found = critical_size(data)
    assert found.lapse.low < lapse < found.lapse.high
    assert found.lapse.value == pytest.approx(lapse, abs=0.05)


def test_a_problem_tried_more_often_weighs_the_same() -> None:
    data = with_shares([1, 1, 0.9, 0.8, 0.5, 0.3, 0.1, 0])
    often = np.where(data.correct, 1, 5)
    again = columns_of(
        np.repeat(data.size, often), np.repeat(data.problem, often), np.repeat(data.correct, often)
    )
    assert critical_size(again).size.value == pytest.approx(
        critical_size(data).size.value, rel=0.01
    )


def weibull(rng, problems) -> Columns:
    sizes = np.round(np.geomspace(9, 100, 13))
    size = np.repeat(sizes, problems)
    right = rng.random(len(size)) < np.exp(-math.log(2) * (size / 35) ** 3)
    return columns_of(size, np.arange(len(size)), right)


def test_the_local_estimate_covers_whatever_the_shape() -> None:
    # The curve through all sizes covers .65 here.
    rng, hits = np.random.default_rng(11), 0
    for _ in range(60):
        found = critical_size(weibull(rng, 80), replicates=20).local
        hits += found.low <= 35 <= found.high
    assert hits >= 53


def test_a_disagreement_with_the_local_estimate_is_found() -> None:
    assert critical_size(weibull(np.random.default_rng(12), 1000)).local_p_value < 0.01
    assert (
        critical_size(drawn(np.random.default_rng(12), 35, 5, 0.0, problems=1000)).local_p_value
        > 0.05
    )


def test_local_lines_are_firths() -> None:
    total, log_size = np.array([[20.0, 20], [20, 13], [20, 0]]), np.log([25.0, 36, 49])
    x = np.column_stack([np.ones(3), log_size - log_size.mean()])

    def loss(line):
        p = special.expit(x @ line)
        information = x.T @ (x * (total[:, 0] * p * (1 - p))[:, None])
        return -(
            special.xlogy(total[:, 1], p) + special.xlogy(total[:, 0] - total[:, 1], 1 - p)
        ).sum() - (np.linalg.slogdet(information)[1] / 2)

    expected = optimize.minimize(
        loss, [0.0, -5.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}
    ).x
    assert fitted_lines(total[None], log_size)[0][0] == pytest.approx(expected, rel=1e-4)


def test_falling_is_scipys_isotonic_regression() -> None:
    rng = np.random.default_rng(13)
    for _ in range(20):
        value, weight = rng.integers(0, 5, 9) / 4, rng.integers(1, 9, 9).astype(float)
        expected = optimize.isotonic_regression(value, weights=weight, increasing=False).x
        assert falling(value, weight) == pytest.approx(expected)


def test_a_rise_or_a_dip_is_told() -> None:
    rising = critical_size(with_shares(np.linspace(0.2, 0.8, 8)))
    assert rising.steady_p_value < 0.01
    assert (math.isnan(rising.size.value), rising.size.low, rising.size.high) == (True, 0, math.inf)
    dip = critical_size(with_shares([1, 1, 0.3, 1, 0.9, 0.5, 0.1, 0]))
    assert dip.steady_p_value < 0.01
    assert dip.rise == (25, 30)
    assert dip.fit_p_value < 0.01
    falling = critical_size(with_shares([1, 1, 0.95, 0.9, 0.6, 0.3, 0.1, 0]))
    assert falling.steady_p_value > 0.5
    assert falling.fit_p_value > 0.2


def test_a_constant_accuracy_is_rarely_called_unsteady() -> None:
    rng, alarms = np.random.default_rng(14), 0
    for _ in range(100):
        size = np.repeat(np.array(SIZES, dtype=float), 20)
        own = rng.beta(1, 1, len(size))  # four attempts at each problem, correlated
        problem = np.repeat(np.arange(len(size)), 4)
        data = columns_of(size[problem], problem, rng.random(len(problem)) < own[problem])
        alarms += critical_size(data, replicates=20).steady_p_value < 0.05
    assert alarms <= 11
