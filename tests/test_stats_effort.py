"""Effort against NumPy's least squares, SciPy's maximum likelihood and simulation."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
from scipy import optimize, stats

from ponder.core import Outcome
from ponder.stats.columns import Columns, columns
from ponder.stats.effort import effort

SIZES = np.array([16.0, 20, 25, 30, 36, 42, 49, 64])


def made(rng, mean, problems=20, samples=1, sizes=SIZES, cap=math.inf, noise=60.0, grows=True, right=1.0) -> Columns:
    """Attempts about `mean(size)`, half of the variance shared within a problem, noise growing with size or not."""
    size, problem = np.repeat(sizes, problems * samples), np.repeat(np.arange(len(sizes) * problems), samples)
    shared = rng.normal(size=len(sizes) * problems)[problem]
    scale = noise * (size if grows else np.full_like(size, 36.0))
    tokens = mean(size) + scale * (shared + rng.normal(size=len(size))) / math.sqrt(2)
    cut = tokens > cap
    correct = (rng.random(len(size)) < right) & ~cut
    return Columns(size, problem, correct, np.zeros_like(cut), cut, np.minimum(tokens, cap), np.array([]))


def line(size):
    return 1000 + 200 * size


def rise_and_fall(size):
    return 1000 + 200 * np.minimum(size, 36) - 180 * np.maximum(size - 36, 0)


def rise_and_plateau(size):
    return 1000 + 200 * np.minimum(size, 36)


def test_line_and_r2_are_least_squares() -> None:
    data = made(np.random.default_rng(1), line, 5, 3, right=0.7)
    found = effort(data)
    for fit, rows in ((found.line_on_all, slice(None)), (found.line_on_successes, data.correct)):
        assert fit
        expected = stats.linregress(data.size[rows], data.tokens[rows])
        assert fit.slope.value == pytest.approx(expected.slope)
        assert fit.intercept.value == pytest.approx(expected.intercept)
        assert fit.r2.value == pytest.approx(expected.rvalue**2)
        assert fit.curve.value[0] == pytest.approx(expected.intercept + expected.slope * 16)
        assert fit.slope.attempts == len(data.size[rows])


def test_bend_is_least_squares_at_the_best_size() -> None:
    data = made(np.random.default_rng(2), rise_and_fall, 20)
    bend = effort(data).bend_on_all
    assert bend
    best = (math.inf, 0.0, np.zeros(3))
    for peak in SIZES[2:-2]:
        low, high = np.minimum(data.size - peak, 0), np.maximum(data.size - peak, 0)
        fit, squares, *_ = np.linalg.lstsq(np.column_stack([np.ones_like(low), low, high]), data.tokens, rcond=None)
        best = min(best, (float(squares[0]), float(peak), fit), key=lambda b: b[0])
    assert bend.peak.value == best[1]
    assert (bend.before.value, bend.after.value) == pytest.approx(tuple(best[2][1:]))


def test_line_interval_is_the_cluster_robust_one() -> None:
    data = made(np.random.default_rng(3), line, 40, 3)
    fit = effort(data, replicates=4000).line_on_all
    assert fit
    x = np.column_stack([np.ones(len(data)), data.size])
    at = np.array([data.tokens[data.size == s].mean() for s in SIZES])[np.searchsorted(SIZES, data.size)]
    scores = np.zeros((data.problems, 2))
    np.add.at(scores, data.problem, x * (data.tokens - at)[:, None])
    bread = np.linalg.inv(x.T @ x)
    error = math.sqrt((bread @ (scores.T @ scores) @ bread)[1, 1] * 40 / 39)
    assert (fit.slope.high - fit.slope.low) / 2 == pytest.approx(1.98 * error, rel=0.06)


def test_truncated_line_is_tobins_where_the_noise_is_one() -> None:
    data = made(np.random.default_rng(4), line, 400, cap=10_000, grows=False)
    assert 0.1 < data.truncated.mean() < 0.5

    def loss(theta):
        z = (data.tokens - theta[0] - theta[1] * data.size) / math.exp(theta[2])
        return -np.where(data.truncated, stats.norm.logsf(z), stats.norm.logpdf(z) - theta[2]).sum()

    tobin = optimize.minimize(loss, [1000, 200, 7.5], method="Nelder-Mead", options={"maxiter": 5000, "fatol": 1e-8}).x
    fit = effort(data).line_on_all
    assert fit
    assert fit.slope.value == pytest.approx(tobin[1], rel=0.01)  # a spread free to grow moves it a little
    assert fit.slope.low < 200 < fit.slope.high
    assert math.isnan(fit.r2.value)


def test_truncated_line_solves_its_equations() -> None:
    """Least squares through expectations, and a spread that is a power of size: worked out by SciPy."""
    data = made(np.random.default_rng(5), line, 30, cap=11_000)
    logs = np.log(data.size) - np.log(data.size).mean()

    def off(theta):
        mu, sigma = theta[0] + theta[1] * data.size, np.exp(theta[2] + theta[3] * logs)
        least = (data.tokens - mu) / sigma
        tail = stats.truncnorm(np.where(data.truncated, least, -40), 40)
        first = np.where(data.truncated, tail.mean(), least)
        second = np.where(data.truncated, tail.var() + tail.mean() ** 2, least**2)
        pull, surplus = sigma * first / 5000, second - 1
        return [pull.sum(), (pull * data.size).sum() / 36, surplus.sum(), (surplus * logs).sum()]

    expected = optimize.root(off, [500, 210, 7.6, 0.9], tol=1e-10).x
    fit = effort(data).line_on_all
    assert fit
    assert (fit.intercept.value, fit.slope.value) == pytest.approx(expected[:2], rel=1e-4)


def test_truncation_leaves_the_slope_unbiased_and_covered() -> None:
    rng = np.random.default_rng(6)
    naive, slopes, hits = [], [], 0
    for _ in range(200):
        data = made(rng, line, 20, cap=11_000)
        fit = effort(data, replicates=300).line_on_all
        assert fit
        naive.append(np.polyfit(data.size, data.tokens, 1)[0])
        slopes.append(fit.slope.value)
        hits += fit.slope.low <= 200 <= fit.slope.high
    assert np.mean(naive) < 180
    assert np.mean(slopes) == pytest.approx(200, rel=0.02)
    assert hits >= 0.91 * 200


@pytest.mark.parametrize(("problems", "samples"), [(5, 1), (20, 1), (10, 4)])
def test_slope_interval_covers(problems, samples) -> None:
    rng, hits = np.random.default_rng(7), 0
    for _ in range(300):
        fit = effort(made(rng, line, problems, samples), replicates=300).line_on_all
        assert fit
        hits += fit.slope.low <= 200 <= fit.slope.high
    assert hits >= 0.92 * 300


@pytest.mark.parametrize("mean", [line, rise_and_plateau, lambda size: 0 * size + 7000])
def test_a_fall_is_rarely_seen_where_there_is_none(mean) -> None:
    rng = np.random.default_rng(8)
    falls = sum("after" in effort(made(rng, mean), replicates=300).verdict for _ in range(300))
    assert falls <= 0.07 * 300


def test_a_fall_is_seen_where_there_is_one() -> None:
    rng = np.random.default_rng(9)
    found = [effort(made(rng, rise_and_fall), replicates=300) for _ in range(50)]
    assert sum(e.verdict == "falls after a peak" for e in found) >= 48
    assert found[0].verdict == "falls after a peak"
    assert all(e.bend_on_all and e.bend_on_all.peak.low <= 36 <= e.bend_on_all.peak.high for e in found)


def test_a_cap_is_no_peak() -> None:
    rng = np.random.default_rng(10)
    found = [effort(made(rng, lambda size: 300 * size, cap=12_000, noise=40.0), replicates=300) for _ in range(40)]
    assert sum(e.verdict == "rises" for e in found) >= 38


def test_other_verdicts() -> None:
    rng = np.random.default_rng(11)
    assert effort(made(rng, line)).verdict == "rises"
    assert effort(made(rng, lambda size: 20_000 - 200 * size)).verdict == "falls"
    assert effort(made(rng, lambda size: 0 * size + 7000, grows=False)).verdict == "no clear trend"


@pytest.mark.parametrize("problems", [0, 1])
def test_too_little_says_so(problems) -> None:
    rows = [
        Outcome("t", "m", size, str(size), 0, "graded", True, "", 0, 10 * size, 0, 0.0, "server", {})
        for size in (16, 20)[: 2 * problems]
    ]
    found = effort(columns(rows))
    assert found.verdict == "not enough data"
    if found.line_on_all:
        assert (found.line_on_all.slope.low, found.line_on_all.slope.high) == (-math.inf, math.inf)


def test_everything_truncated_says_so() -> None:
    data = made(np.random.default_rng(12), line, cap=1.0)
    assert data.truncated.all()
    found = effort(data)
    assert (found.line_on_all, found.line_on_successes, found.verdict) == (None, None, "not enough data")
    assert found.truncated == len(data)


def test_one_problem_a_size_still_has_noise() -> None:
    rng, hits = np.random.default_rng(13), 0
    for _ in range(200):
        fit = effort(made(rng, line, 1, sizes=np.arange(16.0, 64, 3), grows=False), replicates=300).line_on_all
        assert fit
        hits += fit.slope.low <= 200 <= fit.slope.high
    assert hits >= 0.9 * 200


def test_order_and_repetition_move_no_number() -> None:
    data = made(np.random.default_rng(14), line, 4, 2, cap=11_000)
    rows = [
        Outcome(
            "t", "m", int(s), str(p), i, "truncated" if cut else "graded", not cut, "", 0, int(t), 0, 0.0, "server", {}
        )
        for i, (s, p, cut, t) in enumerate(zip(data.size, data.problem, data.truncated, data.tokens, strict=True))
    ]
    mixed = random.Random(1).sample(rows, len(rows))
    found = [repr(dataclasses.asdict(effort(columns(r)))) for r in (rows, mixed)]
    assert found[0] == found[1]
