"""How well a reward separates the samples of a problem, by hand and against SciPy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy import stats

from ponder.stats.separation import ScoredSamples, separation


def attempt(problem: int, totals, right, said=None, thinkings=2.0, in_answer=0.0) -> ScoredSamples:
    wrong = float(sum(not r for r in right))
    return ScoredSamples(
        (8, f"p{problem}"),
        tuple(totals),
        tuple(said or totals),
        tuple(right),
        thinkings,
        wrong,
        in_answer,
    )


def test_pairs_are_counted_within_an_attempt_only() -> None:
    # Across problems every right sample scores below every wrong one; within them, three of four
    # pairs are in order.
    rows = [
        attempt(0, (0.2, 0.1), (True, False)),
        attempt(1, (0.9, 0.8, 0.8, 0.9), (False, True, False, False)),
        attempt(2, (0.5, 0.5), (True, True)),
    ]
    found = separation(rows)
    assert (found.auc.value, found.pairs) == (pytest.approx((1 + 0 + 0.5 + 0) / 4), 4)
    assert found.auc.low <= found.auc.value <= found.auc.high
    assert found.right.value == pytest.approx(4 / 8)
    assert found.said.value == pytest.approx(np.mean([0.2, 0.1, 0.9, 0.8, 0.8, 0.9, 0.5, 0.5]))


def test_of_one_problem_it_is_the_mann_whitney_statistic() -> None:
    rng = np.random.default_rng(3)
    totals, right = rng.integers(0, 6, 40) / 5, rng.random(40) < 0.4
    found = separation([attempt(0, totals, right), attempt(1, (0.5,), (True,))])
    u = stats.mannwhitneyu(totals[right], totals[~right]).statistic
    assert found.auc.value == pytest.approx(u / (right.sum() * (~right).sum()))


def test_what_samples_differ_in_and_what_probabilities_are_worth() -> None:
    rows = [
        attempt(0, (2.0, 1.0), (True, False), (0.95, 0.05), 1.0, 1.0),
        attempt(1, (2.0, 1.0), (True, False), (0.97, 0.6), 2.0, 0.0),
        attempt(1, (2.0, 1.0), (False, False), (0.91, 0.7), 3.0, 0.0),
    ]
    found = separation(rows)
    assert found.same_thinking.value == pytest.approx(1 / 3)
    assert found.thinkings.value == pytest.approx(2.0)
    assert found.wrong_in_answer.value == pytest.approx(1 / 4)
    bins = [(b.low, b.high, b.samples, b.right.value) for b in found.bins]
    assert bins == [(0.0, 0.1, 1, 0.0), (0.5, 0.9, 2, 0.0), (0.9, 1.0, 3, pytest.approx(2 / 3))]
    assert found.bins[1].said == pytest.approx(0.65)
    squares = [0.05, 0.05, 0.03, 0.6, 0.91, 0.7]
    assert found.brier.value == pytest.approx(np.mean(np.square(squares)))


def test_the_order_of_attempts_does_not_matter_and_problems_are_resampled() -> None:
    rng = np.random.default_rng(5)
    rows = []
    for problem in range(40):
        # a problem's attempts agree, so ten attempts tell no more than one
        good = rng.random() < 0.7
        rows += [attempt(problem, (0.9, 0.1) if good else (0.1, 0.9), (True, False))] * 10
    found = separation(rows)
    assert separation(random.Random(1).sample(rows, len(rows))) == found
    width = found.auc.high - found.auc.low
    assert width == pytest.approx(2 * 1.96 * np.sqrt(0.7 * 0.3 / 40), rel=0.25)


def test_nothing_to_compare() -> None:
    found = separation([attempt(0, (0.5, 0.6), (True, True)), attempt(1, (0.5,), (True,))])
    assert np.isnan(found.auc.value)
    assert found.pairs == 0
    assert np.isnan(found.wrong_in_answer.value)


def test_three_pairs_in_order_prove_nothing() -> None:
    found = separation([attempt(n, (0.9, 0.1), (True, False)) for n in range(3)])
    assert found.auc.value == 1
    assert found.auc.low < 0.5
