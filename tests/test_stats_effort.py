"""Effort against SciPy's maximum likelihood and least squares, and against simulation."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
from pathlib import Path

import made_up
import numpy as np
import pytest
from scipy import optimize, stats

from ponder.core import Estimate
from ponder.stats.columns import Columns, columns
from ponder.stats.critical import critical_size
from ponder.stats.distributions import f_tail
from ponder.stats.effort import by_budget, effort, power_law

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from coverage_effort import scenario

SIZES = np.array([16.0, 20, 25, 30, 36, 42, 49, 64])


def made(
    rng, mean, problems=20, samples=1, sizes=SIZES, cap=math.inf, spread=0.4, grows=0.0, right=1.0
) -> Columns:
    """Lognormal attempts about `mean(size)`, half of the variance shared within a problem."""
    size, problem = (
        np.repeat(sizes, problems * samples),
        np.repeat(np.arange(len(sizes) * problems), samples),
    )
    shared = rng.normal(size=len(sizes) * problems)[problem]
    sigma = spread * (size / 36) ** grows
    tokens = mean(size) * np.exp(sigma * (shared + rng.normal(size=len(size))) / math.sqrt(2))
    cut = tokens > cap
    correct = (rng.random(len(size)) < right) & ~cut
    return Columns(
        size, problem, correct, np.zeros_like(cut), cut, np.minimum(tokens, cap), np.array([])
    )


def power(size):
    return 10 * size**1.2


def rise_and_fall(size):
    return 200 * np.minimum(size, 36) - 180 * np.maximum(size - 36, 0) * (36 / size)


def rise_and_plateau(size):
    return 200 * np.minimum(size, 36)


def test_coefficients_and_variance_are_those_of_the_censored_likelihood() -> None:
    data = made(np.random.default_rng(1), power, 10, 3, cap=900.0, grows=0.5)
    assert 0.1 < data.truncated.mean() < 0.4
    x, y = np.log(data.size) - np.log(data.size).mean(), np.log(data.tokens)

    def each(theta):
        sigma = np.exp(theta[2] + theta[3] * x)
        z = (y - theta[0] - theta[1] * x) / sigma
        return np.where(data.truncated, stats.norm.logsf(z), stats.norm.logpdf(z) - np.log(sigma))

    best = optimize.minimize(
        lambda t: -each(t).sum(), [6, 1, -1, 0], method="BFGS", options={"gtol": 1e-6}
    ).x
    step = 1e-4 * np.eye(4)
    scores = np.array([(each(best + s) - each(best - s)) / 2e-4 for s in step]).T
    bend = [[(each(best + a + b) - each(best + a - b) - each(best - a + b) + each(best - a - b)).sum() / 4e-8
             for a in step] for b in step]  # fmt: skip
    by_problem = np.array([scores[data.problem == p].sum(axis=0) for p in range(data.problems)])
    bread = np.linalg.inv(-np.array(bend))
    error = math.sqrt((bread @ by_problem.T @ by_problem @ bread)[1, 1] * 80 / 76)
    law = power_law(data)
    assert law
    assert law.exponent.value == pytest.approx(best[1], abs=1e-4)
    assert law.exponent.high - law.exponent.value == pytest.approx(
        stats.t.ppf(0.975, 76) * error, rel=1e-3
    )
    assert (law.exponent.attempts, law.exponent.problems) == (240, 80)


def test_without_truncation_the_curve_is_the_weighted_parabola_and_its_quantile() -> None:
    data = made(np.random.default_rng(2), power, 30)
    law = power_law(data)
    assert law
    assert law.bend
    x, y = np.log(data.size) - np.log(data.size).mean(), np.log(data.tokens)
    spread = np.array([s.spread.value for s in law.sizes])[np.searchsorted(SIZES, data.size)]
    q, b, a = np.polyfit(x, y, 2, w=1 / spread)
    assert law.bend.value == pytest.approx(q, abs=1e-5)
    for size, x_at in zip(law.sizes, np.unique(x), strict=True):
        assert math.log(size.tokens.value) == pytest.approx(a + b * x_at + q * x_at**2, abs=1e-5)
        assert math.log(size.upper.value / size.tokens.value) == pytest.approx(
            1.281552 * size.spread.value, rel=1e-5
        )
    assert law.curve.value[0] == law.sizes[0].tokens.value
    assert law.upper.value[-1] == law.sizes[-1].upper.value


@pytest.mark.parametrize(
    ("spread", "cut", "problems"), [(0.6, 0.1, 20), (1.0, 0.4, 20), (0.6, 0.2, 4)]
)
def test_intervals_cover_and_tests_hold_their_level(
    spread: float, cut: float, problems: int
) -> None:
    reached = {
        name.split(": ")[1]: share for name, share, _, _ in scenario(150, 3, spread, cut, problems)
    }
    assert reached["exponent"] >= 0.9  # 150 runs: three standard errors below 95 %
    assert reached["geometric mean, largest size"] >= 0.88
    assert reached["test of a bend, rejections"] <= 0.11
    assert reached["test of lack of fit, rejections"] <= 0.11


def test_a_bend_and_a_kink_are_found() -> None:
    rng, bends, kinks = np.random.default_rng(4), 0, 0
    for _ in range(40):
        bent = power_law(
            made(rng, lambda s: 500 * (s / 36) ** 1.2 * np.exp(0.8 * np.log(s / 36) ** 2))
        )
        kinked = power_law(made(rng, lambda s: power(s) * np.where(s == 30, 1.6, 1.0)))
        assert bent
        assert kinked
        bends += bent.bend_p < 0.05
        kinks += kinked.lack_of_fit_p < 0.05
    assert (bends >= 36, kinks >= 32) == (True, True)


def test_extrapolated_where_more_than_a_fifth_is_cut() -> None:
    law = power_law(made(np.random.default_rng(5), power, 100, cap=1000.0))
    assert law
    for size in law.sizes:
        assert size.extrapolated == (size.truncated > 0.2)
    assert [s.size for s in law.sizes if s.extrapolated] == [36, 42, 49, 64]


def test_attempts_without_tokens_are_left_out_and_counted() -> None:
    data = made(np.random.default_rng(6), power, 5)
    none = np.arange(len(data)) % 7 == 0
    law, kept = (
        power_law(dataclasses.replace(data, tokens=np.where(none, 0.0, data.tokens))),
        power_law(data.where(~none)),
    )
    assert law
    assert kept
    assert law.left_out == none.sum()
    assert law.exponent == kept.exponent
    assert power_law(dataclasses.replace(data, tokens=0 * data.tokens)) is None


def test_line_on_solved_attempts_is_least_squares() -> None:
    data = made(np.random.default_rng(7), power, 5, 3, right=0.7)
    line = effort(data).line_on_solved
    assert line
    expected = stats.linregress(data.size[data.correct], data.tokens[data.correct])
    assert (line.slope.value, line.intercept.value) == pytest.approx(
        (expected.slope, expected.intercept)
    )
    assert line.curve.value[0] == pytest.approx(expected.intercept + expected.slope * 16)


@pytest.mark.parametrize(
    "mean", [power, rise_and_plateau, lambda s: 0 * s + 7000, lambda s: np.where(s < 33, 1e3, 4e3)]
)
def test_a_fall_is_rarely_seen_where_there_is_none(mean) -> None:
    rng = np.random.default_rng(8)
    assert sum("after" in effort(made(rng, mean)).verdict for _ in range(80)) <= 6


def test_a_fall_is_seen_where_there_is_one() -> None:
    rng = np.random.default_rng(9)
    fits = [effort(made(rng, rise_and_fall, spread=0.3)) for _ in range(40)]
    assert sum(e.verdict == "falls after a peak" for e in fits) >= 36
    peaks = [e.peak for e in fits if e.peak]
    assert sum(p.size.low <= 36 <= p.size.high for p in peaks) >= 0.95 * len(peaks)
    assert all(p.before.low > 0 > p.after.high for p in peaks)


def test_a_cap_is_no_peak() -> None:
    rng = np.random.default_rng(10)
    fits = [effort(made(rng, lambda s: 300 * s, cap=12_000, spread=0.3)) for _ in range(40)]
    assert sum(e.verdict == "rises" for e in fits) >= 38


def test_other_verdicts() -> None:
    rng = np.random.default_rng(11)
    assert effort(made(rng, power)).verdict == "rises"
    assert effort(made(rng, lambda size: 1e5 / size)).verdict == "falls"
    assert effort(made(rng, lambda size: 0 * size + 7000)).verdict == "no clear trend"


@pytest.mark.parametrize("problems", [0, 1])
def test_too_little_says_so(problems) -> None:
    rows = [
        made_up.outcome("t", "m", size, str(size), thinking_tokens=10 * size, answer_tokens=0)
        for size in (16, 20)[: 2 * problems]
    ]
    fits = effort(columns(rows))
    assert fits.verdict == "not enough data"
    if fits.on_all:
        assert (fits.on_all.exponent.low, fits.on_all.exponent.high) == (-math.inf, math.inf)


def test_everything_truncated_or_a_size_of_zero_has_no_fit() -> None:
    data = made(np.random.default_rng(12), power, cap=1.0)
    assert data.truncated.all()
    assert (effort(data).on_all, effort(data).on_solved, effort(data).verdict) == (
        None,
        None,
        "not enough data",
    )
    assert (
        effort(made(np.random.default_rng(12), lambda s: 9 + s, sizes=np.arange(5.0))).on_all
        is None
    )


def test_order_moves_no_number() -> None:
    data = made(np.random.default_rng(14), power, 4, 2, cap=900)
    rows = [
        made_up.outcome(
            "t",
            "m",
            int(s),
            str(p),
            "truncated" if cut else "right",
            sample=i,
            thinking_tokens=int(t),
            answer_tokens=0,
        )
        for i, (s, p, cut, t) in enumerate(
            zip(data.size, data.problem, data.truncated, data.tokens, strict=True)
        )
    ]
    mixed = random.Random(1).sample(rows, len(rows))
    first, second = (repr(dataclasses.asdict(effort(columns(r)))) for r in (rows, mixed))
    assert first == second


def test_critical_size_by_budget_counts_what_was_right_in_time() -> None:
    data = made(np.random.default_rng(15), power, 30, cap=1000.0)
    whole = critical_size(data).size
    budgets = by_budget(data, whole)
    assert [b for b, _ in budgets] == [125, 187, 250, 375, 500, 1000]
    assert budgets[-1][1] is whole
    within = critical_size(
        dataclasses.replace(data, correct=data.correct & (data.tokens <= 500)), replicates=400
    ).size
    assert budgets[-2][1] == within
    values = [size.value for _, size in budgets if not math.isnan(size.value)]
    assert values == sorted(values)
    # An attempt that was cut at 300 might have been right within 500.
    early = dataclasses.replace(
        data, tokens=np.where(data.truncated & (data.size == 64), 300.0, data.tokens)
    )
    assert [b for b, _ in by_budget(early, whole)] == [125, 187, 250, 1000]
    assert (
        by_budget(dataclasses.replace(data, tokens=0 * data.tokens), Estimate(1, 1, 1, 1, 1)) == []
    )


@pytest.mark.parametrize(
    ("x", "above", "below"), [(1.3, 3, 20), (28.0, 1, 1035), (50, 2, 1000), (0.2, 10, 5), (3, 1, 1)]
)
def test_tail_of_f(x: float, above: int, below: int) -> None:
    assert f_tail(x, above, below) == pytest.approx(stats.f.sf(x, above, below), rel=1e-9)
    assert (f_tail(0.0, above, below), f_tail(math.inf, above, below)) == (1.0, 0.0)
