"""How good a reward is: against counts by hand, and against rewards whose worth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ponder.stats.process import first_error, first_wrong, step_errors

SCORES = [[0.9, 0.2, 0.1], [0.8, 0.9], [0.4, 0.9], [0.9, 0.9, 0.3, 0.1], [0.7, 0.4]]
WRONG = [1, -1, 1, 3, -1]  # found at 0.5: 1 (hit), -1 (hit), 0 (miss), 2 (miss), 1 (miss)
LABELS = [
    [True, False, False],
    [True, True],
    [True, False],
    [True, True, True, False],
    [True, True],
]


def test_first_error_by_hand() -> None:
    found = first_error(SCORES, WRONG, threshold=0.5)
    assert found.on_wrong.value == pytest.approx(1 / 3)
    assert found.on_right.value == pytest.approx(1 / 2)
    assert found.f1.value == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))
    assert found.thresholds == (0.5, 0.5)
    assert (found.f1.attempts, found.f1.problems) == (5, 5)
    assert [first_wrong(row) for row in LABELS] == WRONG


def test_a_score_on_the_threshold_is_right() -> None:
    assert first_error([[0.5, 0.4], [0.5]], [1, -1], threshold=0.5).f1.value == 1.0
    assert (
        step_errors([[0.5, 0.4], [0.5]], [[True, False], [True]], threshold=0.5).prm_score.value
        == 1.0
    )


def test_step_errors_by_hand() -> None:
    # Kept at 0.5: [1 0 0] [1 1] [0 1] [1 1 0 0] [1 0]; right: [1 0 0] [1 1] [1 0] [1 1 1 0] [1 1]
    tp, fp, fn, tn = 6, 1, 3, 3
    found = step_errors(SCORES, LABELS, threshold=0.5)
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    assert found.f1.value == pytest.approx(2 * precision * recall / (precision + recall))
    precision, recall = tn / (tn + fn), tn / (tn + fp)
    assert found.negative.value == pytest.approx(2 * precision * recall / (precision + recall))
    assert found.prm_score.value == pytest.approx((found.f1.value + found.negative.value) / 2)


def made(rng, traces, noise, longest=12):
    """Traces with an error at a random place or none, scores that know it but for the noise."""
    scores, wrong = [], []
    for _ in range(traces):
        steps = int(rng.integers(2, longest))
        at = int(rng.integers(0, steps)) if rng.random() < 0.5 else -1
        truth = np.array([at < 0 or n < at for n in range(steps)], float)
        scores.append(np.clip(truth * 0.6 + 0.2 + rng.normal(0, noise, steps), 0, 1).tolist())
        wrong.append(at)
    return scores, wrong


def test_a_perfect_reward_and_a_blind_one() -> None:
    rng = np.random.default_rng(1)
    scores, wrong = made(rng, 400, 0.0)
    assert first_error(scores, wrong).f1.value == 1.0
    blind = [rng.random(len(row)).tolist() for row in scores]
    found = first_error(blind, wrong)
    assert found.f1.value < 0.35
    assert found.gain.low < 0.1


def test_the_threshold_is_learnt_on_the_other_half() -> None:
    scores, wrong = made(np.random.default_rng(2), 600, 0.1)
    shifted = [[s * 0.1 for s in row] for row in scores]  # at 0.5 every step would be wrong
    found = first_error(shifted, wrong)
    assert first_error(shifted, wrong, threshold=0.5).on_right.value == 0.0
    assert found.f1.value > 0.85
    assert all(0.03 < limit < 0.08 for limit in found.thresholds)
    assert found.thresholds[0] != found.thresholds[1]  # each from its own half
    noise = [np.random.default_rng(n).random(6).tolist() for n in range(40)]
    right = [n % 2 - 1 for n in range(40)]  # first step wrong, or none
    chosen_on_all = max(
        first_error(noise, right, threshold=t).f1.value for t in np.linspace(0, 1, 201)
    )
    assert first_error(noise, right).f1.value <= chosen_on_all


def test_position_alone_is_a_strong_reward_where_errors_stand_at_the_end() -> None:
    rng = np.random.default_rng(3)
    labels = []
    for _ in range(500):
        steps = int(rng.integers(4, 15))
        labels.append([True] * (steps - 2) + [bool(rng.random() < 0.1) for _ in range(2)])
    blind = [rng.random(len(row)).tolist() for row in labels]
    found = step_errors(blind, labels)
    assert found.position.value > 0.85
    assert found.gain.high < -0.2
    knows = [[0.9 if right else 0.1 for right in row] for row in labels]
    best = step_errors(knows, labels)
    assert best.prm_score.value == 1.0
    assert best.gain.low > 0.0
    assert best.gain.value == pytest.approx(best.prm_score.value - best.position.value)


def test_position_alone_finds_first_errors_that_stand_at_the_third_step() -> None:
    wrong = [2 if n % 2 else -1 for n in range(300)]
    scores = [[0.5] * (5 if w >= 0 else 2) for w in wrong]  # only the long ones go wrong
    found = first_error(scores, wrong)
    assert found.position.value == 1.0
    assert found.f1.value == 0.0


def test_intervals_cover() -> None:
    rng = np.random.default_rng(4)
    scores, wrong = made(rng, 20_000, 0.25)
    truth = first_error(scores, wrong, threshold=0.5).f1.value
    hits = 0
    for n in range(100):
        some = slice(n * 200, n * 200 + 200)
        found = first_error(scores[some], wrong[some], threshold=0.5, seed=n).f1
        hits += found.low <= truth <= found.high
    assert 88 <= hits <= 100


def test_traces_of_one_problem_hang_together() -> None:
    scores, wrong = made(np.random.default_rng(5), 60, 0.3)
    copied = [
        (s, w, str(n))
        for n, (s, w) in enumerate(zip(scores, wrong, strict=True))
        for _ in range(10)
    ]
    many, few = (
        [list(column) for column in zip(*copied, strict=True)],
        first_error(scores, wrong, threshold=0.5).f1,
    )
    clustered = first_error(many[0], many[1], threshold=0.5, problems=many[2]).f1
    apart = first_error(many[0], many[1], threshold=0.5).f1
    assert clustered.value == pytest.approx(few.value)
    assert (clustered.attempts, clustered.problems) == (600, 60)
    assert clustered.high - clustered.low == pytest.approx(few.high - few.low, rel=0.15)
    assert apart.high - apart.low < 0.5 * (few.high - few.low)


def test_the_order_of_the_traces_moves_nothing() -> None:
    scores, wrong = made(np.random.default_rng(6), 50, 0.2)
    names = [f"p{n}" for n in range(50)]
    order = np.random.default_rng(7).permutation(50)
    shuffled = first_error(
        [scores[n] for n in order], [wrong[n] for n in order], problems=[names[n] for n in order]
    )
    assert shuffled == first_error(scores, wrong, problems=names)


def test_what_can_not_be_said() -> None:
    found = first_error([[0.9, 0.8], [0.7]], [-1, -1])
    assert found.on_right.value == 1.0
    assert math.isnan(found.on_wrong.value)
    assert math.isnan(found.f1.value)
    assert found.f1.low == -math.inf
    assert math.isnan(first_error([], []).f1.value)
    assert first_error([[0.9, 0.2]], [1], threshold=0.5).on_wrong.value == 1.0
    for scores, wrong in (([[0.9]], [1]), ([[math.nan]], [-1]), ([[]], [-1]), ([[0.1]], [])):
        with pytest.raises(ValueError, match=r"leave out|first wrong"):
            first_error(scores, wrong)
    with pytest.raises(ValueError, match="each score needs a label"):
        step_errors([[0.1, 0.2]], [[True]])


def test_it_is_quick_on_a_benchmark_of_full_size() -> None:
    """83,000 steps as in PRMBench: no loop over traces for each threshold."""
    rng = np.random.default_rng(8)
    labels = [(rng.random(13) < 0.8).tolist() for _ in range(6216)]
    found = step_errors([rng.random(13).tolist() for _ in labels], labels)
    assert found.prm_score.attempts == 6216
    assert abs(found.gain.value) < 0.05
