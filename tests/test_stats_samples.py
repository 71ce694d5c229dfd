"""pass@n, maj@n and the share of a gap that is closed, against counting every set, simulation and t
tests.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from ponder.stats.accuracy import accuracy, wilson
from ponder.stats.samples import (
    Votes,
    gap_closed,
    majority_at,
    majority_of_problem,
    pass_at,
    pass_by_problem,
)


def test_pass_at_n_counts_every_set_of_n() -> None:
    rng = np.random.default_rng(1)
    samples = rng.random((40, 7)) < rng.random((40, 1))
    for n in range(1, 8):
        counted = [
            np.mean([any(s) for s in itertools.combinations(row, n)]) for row in samples.tolist()
        ]
        assert pass_by_problem(np.full(40, 7), samples.sum(axis=1), n) == pytest.approx(counted)


@pytest.mark.parametrize("often", [0.005, 0.5, 0.995])
def test_one_sample_and_all_samples_have_the_interval_of_accuracy(often: float) -> None:
    rng = np.random.default_rng(2)
    samples = rng.random((30, 6)) < (often if often != 0.5 else rng.random((30, 1)))
    tried, right = np.full(30, 6), samples.sum(axis=1)
    one, every = pass_at(tried, right, 1), pass_at(tried, right, 6)
    for found, same in (
        (one, accuracy(samples.ravel(), np.repeat(np.arange(30), 6))),
        (every, accuracy(samples.any(axis=1), np.arange(30))),
    ):
        assert (found.value, found.low, found.high) == pytest.approx(
            (same.value, same.low, same.high)
        )
    assert (one.attempts, one.problems) == (180, 30)


def test_certainty_is_never_claimed_and_problems_with_too_few_samples_are_left_out() -> None:
    always = pass_at(np.full(20, 8), np.full(20, 8), 4)
    assert (always.value, always.high) == (1.0, 1.0)
    assert 0.8 < always.low < 0.9
    # One problem that rarely fails shows little of how samples are correlated: two sets of four per
    # problem, if at all.
    rarely = pass_at(np.full(20, 8), np.array([4] + [8] * 19), 4)
    assert rarely.value == pytest.approx(1 - 1 / 70 / 20)
    assert (rarely.low, rarely.high) == pytest.approx(wilson(rarely.value, 20 + 20 * 1 / 6, 0.95))
    assert pass_at(np.array([8]), np.array([3]), 2).low == 0.0
    assert math.isnan(pass_at(np.array([3, 3]), np.array([1, 1]), 4).value)
    some = pass_at(np.array([4, 4, 3]), np.array([1, 0, 3]), 4)
    assert (some.value, some.problems, some.attempts) == (0.5, 2, 8)


@pytest.mark.parametrize("n", [1, 4, 16])
def test_pass_at_n_covers(n: int) -> None:
    rng = np.random.default_rng(n)
    truth = float((1 - (1 - rng.beta(0.8, 0.7, 200_000)) ** n).mean())
    hits = 0
    for _ in range(400):
        found = pass_at(np.full(30, 16), rng.binomial(16, rng.beta(0.8, 0.7, 30)), n)
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / 400 <= 0.99


def test_the_ends_of_a_closed_gap_are_where_a_t_test_gives_up() -> None:
    rng = np.random.default_rng(4)
    one = rng.random(40)
    best = 1 - (1 - one) ** 4
    picked = (rng.random(40) < 0.5 * (one + best)).astype(float)
    found = gap_closed(one, picked, best)
    assert found.value == pytest.approx((picked - one).mean() / (best - one).mean())
    assert found.low < found.value < found.high
    gained, gap = np.append(picked - one, [1, -1]), np.append(best - one, [0, 0])
    for end in (found.low, found.high):
        assert abs(stats.ttest_1samp(gained - end * gap, 0).statistic) == pytest.approx(
            stats.t.ppf(0.975, 39)
        )
    twice = gap_closed(one, 2 * best - one, best)
    assert twice.value == pytest.approx(2.0)


def test_a_gap_that_may_be_none_is_closed_by_nobody_knows_how_much() -> None:
    one = np.array([0.5, 0.5, 1.0, 0.0])
    assert math.isnan(gap_closed(one, one, one).value)
    unsure = gap_closed(one, one, one + np.array([0.1, 0.0, 0.0, 0.0]))
    assert (unsure.value, unsure.low, unsure.high) == (0.0, -math.inf, math.inf)


def test_maj_at_n_counts_every_set_of_n_and_splits_ties() -> None:
    rng = random.Random(5)
    for _ in range(60):
        # R and S are right, - doesn't vote
        samples = [rng.choice("RRSabc-") for _ in range(rng.randint(1, 9))]
        count = Counter(samples)
        right, wrong = (tuple(count[a] for a in group if count[a]) for group in ("RS", "abc"))
        for n in range(1, len(samples) + 1):
            won = []
            for drawn in itertools.combinations(samples, n):
                votes = Counter(vote for vote in drawn if vote != "-")
                first = [vote for vote in votes if votes[vote] == max(votes.values())]
                won.append(sum(vote in "RS" for vote in first) / len(first) if first else 0.0)
            assert majority_of_problem(Votes(len(samples), right, wrong), n) == pytest.approx(
                np.mean(won)
            )


def test_maj_at_n_of_many_samples() -> None:
    assert majority_of_problem(Votes(1000, (350,), (300, 250)), 1000) == 1.0
    assert majority_of_problem(Votes(1000, (300,), (350, 250)), 1000) == 0.0
    assert majority_of_problem(Votes(1000, (300,), (300, 250)), 1000) == 0.5
    assert majority_of_problem(Votes(1000, (300,), (350, 250)), 1) == pytest.approx(0.3)
    # Two answers: at least 3 of 5 drawn from 1000 must be right.
    right = stats.hypergeom.sf(2, 1000, 530, 5)
    assert majority_of_problem(Votes(1000, (530,), (470,)), 5) == pytest.approx(right)


def test_maj_at_n_covers() -> None:
    """The truth is that of problems with a right answer, a popular wrong one and many that occur
    once.
    """
    rng = np.random.default_rng(8)

    def drawn(chance: float, samples: int) -> Votes:
        right, rival, others = rng.multinomial(
            samples, [chance, 0.6 * (1 - chance), 0.4 * (1 - chance)]
        ).tolist()
        return Votes(samples, (right,) * bool(right), (*((rival,) * bool(rival)), *[1] * others))

    truth = float(
        np.mean([majority_of_problem(drawn(p, 4), 4) for p in rng.beta(0.8, 0.7, 20_000)])
    )
    hits = 0
    for _ in range(300):
        found = majority_at([drawn(p, 16) for p in rng.beta(0.8, 0.7, 30)], 4)
        hits += found.low <= truth <= found.high
    assert 0.92 <= hits / 300 <= 0.99


def test_maj_at_one_is_accuracy_and_a_certain_majority_has_an_interval() -> None:
    votes = [Votes(8, (r,) * bool(r), (8 - r,) * bool(8 - r)) for r in (0, 1, 4, 8, 8, 5)]
    one = majority_at(votes, 1)
    same = pass_at(np.full(6, 8), np.array([0, 1, 4, 8, 8, 5]), 1)
    assert (one.value, one.low, one.high) == pytest.approx((same.value, same.low, same.high))
    sure = majority_at([Votes(16, (9,), (7,)) for _ in range(20)], 16)
    assert (sure.value, sure.high) == (1.0, 1.0)
    assert 0.8 < sure.low < 0.9
    assert majority_at([Votes(4, (1,), (3,)), Votes(2, (2,), ())], 4).problems == 1
