"""Tests of turn length: against published points, by hand, and by simulation."""

from __future__ import annotations

import math

import made_up
import numpy as np
import pytest
from scipy import stats

from ponder.core import Outcome
from ponder.figures._published import published
from ponder.figures.tradeoff import Tradeoff
from ponder.stats.paired import paired_difference
from ponder.stats.turn_length import independent, turn_length

LENGTHS = (1, 2, 4, 8, 16)


def drawn(
    rng: np.random.Generator, accuracies: tuple[float, ...], plans: int = 40
) -> dict[int, dict[str, float]]:
    """Rollouts on shared plans, of which some are harder than others."""
    hard = rng.normal(0, 0.15, plans)
    return {
        k: {str(i): float(rng.random() < p + hard[i]) for i in range(plans)}
        for k, p in zip(LENGTHS, accuracies, strict=True)
    }


def test_the_published_points() -> None:
    points = sorted((int(r["per_turn"]), r["accuracy"]) for r in published("execution_tradeoff"))
    lengths, accuracies = zip(*points, strict=True)
    test = independent(lengths, np.array(accuracies), np.full(16, 20.0))
    right = np.round(np.array(accuracies) * 20)
    assert test.p_any == pytest.approx(stats.chi2_contingency([right, 20 - right]).pvalue)
    assert test.p_any == pytest.approx(0.016, abs=5e-4)
    # Cochran and Armitage's statistic is n times the squared correlation of log length with right
    # and wrong.
    x = np.repeat(np.log(lengths), 20)
    y = np.concatenate([np.arange(20) < n for n in right])
    assert test.p_trend == pytest.approx(
        math.erfc(math.sqrt(320 / 2) * abs(np.corrcoef(x, y)[0, 1]))
    )
    assert test.best is None
    assert {60, 90, 180} <= set(test.could_be_best)


def test_two_turn_lengths_have_the_interval_of_a_paired_difference() -> None:
    right = {
        k: own
        for k, own in drawn(np.random.default_rng(1), (0.5, 0.7, 0.5, 0.5, 0.5)).items()
        if k < 4
    }
    test = turn_length(right, paired=True)
    assert test is not None
    one, two = (np.array([right[k][str(i)] for i in range(40)]) for k in (1, 2))
    expected = paired_difference(two, one)
    assert (test.slope.value, test.slope.low, test.slope.high) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )


def test_equal_turn_lengths_are_seldom_told_apart() -> None:
    rng, any_, trend, named, covered = np.random.default_rng(2), 0, 0, 0, 0
    for _ in range(100):
        test = turn_length(drawn(rng, (0.6,) * 5), paired=True)
        assert test is not None
        any_, trend, named = (
            any_ + (test.p_any < 0.05),
            trend + (test.p_trend < 0.05),
            named + (test.best is not None),
        )
        covered += test.slope.low <= 0 <= test.slope.high
    assert any_ <= 11
    assert trend <= 11
    assert named <= 5
    assert covered >= 89


def test_a_clear_best_and_a_clear_trend_are_found() -> None:
    test = turn_length(
        drawn(np.random.default_rng(3), (0.3, 0.35, 0.4, 0.4, 0.85), plans=100), paired=True
    )
    assert test is not None
    assert (test.best, test.paired, test.problems) == (16, True, 100)
    assert max(test.p_any, test.p_trend) < 0.01
    assert test.slope.low > 0


def rollouts(plan: bool) -> list[Outcome]:
    out = []
    for k in (1, 2, 4):
        for i in range(20):
            details = {"per_turn": k, "parsed": [1], "true": [1], "start": 0} | (
                {"plan": f"{i}"} if plan else {}
            )
            right, problem = i % 4 > 0, f"{k} {i}"
            out.append(
                made_up.outcome(
                    "e", "m", 8, problem, "right" if right else "wrong", details=details
                )
            )
    return out


def test_tradeoff_names_no_winner_without_a_test_and_says_how_it_compared() -> None:
    for plan, how in ((True, "the same 20 plans"), (False, "not by plan")):
        tables = Tradeoff().estimate(rollouts(plan))
        findings = " ".join(Tradeoff().findings(tables))
        assert how in findings
        assert "1, 2, 4 per turn can't be told apart" in findings
        assert "most accurate with" not in findings
        assert Tradeoff().estimate(rollouts(plan)[::-1])["summary"] == tables["summary"]
