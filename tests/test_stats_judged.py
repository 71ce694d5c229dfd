"""Accuracy corrected for a judge's errors: its limits worked out by hand, and its coverage."""

from __future__ import annotations

import random

import numpy as np
import pytest
from made_up import outcome

from ponder.stats.accuracy import accuracy
from ponder.stats.judged import FEWEST, JudgedColumns, agreement, corrected, judged


def columns(right, label, labelled=None, problem=None, has_verdict=None) -> JudgedColumns:
    """Columns of attempts, at one problem each unless said otherwise."""
    right = np.array(right, dtype=np.bool_)
    labelled = np.ones(len(right), np.bool_) if labelled is None else np.array(labelled, np.bool_)
    has_verdict = np.ones(len(right), np.bool_) if has_verdict is None else has_verdict
    problem = np.arange(len(right)) if problem is None else np.array(problem)
    return JudgedColumns(
        right & has_verdict, has_verdict, labelled, np.array(label, np.bool_) & labelled, problem
    )


def test_if_every_reply_is_labelled_people_decide() -> None:
    data = columns([1] * 15 + [0] * 5, [1] * 10 + [0] * 5 + [1] * 2 + [0] * 3)
    estimate = corrected(data)
    assert estimate is not None
    assert estimate.value == pytest.approx(12 / 20)
    sensitivity, false_positives = agreement(data)
    assert sensitivity.value == pytest.approx(10 / 12)
    assert false_positives.value == pytest.approx(5 / 8)


def test_a_judge_that_people_agree_with_decides_for_all() -> None:
    right = [1, 0, 1] * 100
    estimate = corrected(columns(right, right, [n < 30 for n in range(300)]))
    assert estimate is not None
    assert estimate.value == pytest.approx(2 / 3)
    alone = accuracy(np.array(right, np.bool_), np.arange(300))
    # Thirty labels without an error don't show that there is none.
    assert estimate.high - estimate.low > 1.5 * (alone.high - alone.low)


def test_a_judge_that_knows_nothing_is_ignored() -> None:
    right = [1, 1, 0, 0] * 10 + [1] * 260
    label = [1, 0, 1, 0] * 10 + [0] * 260
    estimate = corrected(columns(right, label, [n < 40 for n in range(300)]))
    assert estimate is not None
    assert estimate.value == pytest.approx(0.5)


def test_verdicts_and_labels_are_weighted_by_their_regression() -> None:
    """Of 20 labelled replies, half are right by the judge and by people, who agree on 16.

    So the slope is 0.8 - 0.2. Of all 200, the judge calls 9 points more right than of the labelled.
    """
    right = [1] * 10 + [0] * 10 + [1] * 108 + [0] * 72
    label = [1] * 8 + [0] * 2 + [1] * 2 + [0] * 8 + [0] * 180
    data = columns(right, label, [n < 20 for n in range(200)])
    f, y, n, total = np.array(right, float), np.array(label, float), 20, 200

    def variance(weight: float) -> float:
        errors = weight * (f - f.mean()) / total
        residual = y[:n] - weight * f[:n]
        errors[:n] += (residual - residual.mean()) / n
        return float(errors @ errors)

    best = min(np.linspace(0, 1, 2001), key=variance)
    estimate = corrected(data)
    assert estimate is not None
    assert estimate.value == pytest.approx(0.5 + best * (f.mean() - 0.5), abs=1e-4)
    assert estimate.value == pytest.approx(0.5 + 0.6 * 0.09, abs=2e-3)


def test_attempts_without_a_verdict_are_wrong_for_certain() -> None:
    has_verdict = np.array([True] * 40 + [False] * 40)
    estimate = corrected(
        columns([1] * 80, [1] * 80, [n < 40 for n in range(80)], has_verdict=has_verdict)
    )
    assert estimate is not None
    assert estimate.value == pytest.approx(0.5)


def test_few_labels_correct_nothing() -> None:
    many = [n < FEWEST for n in range(50)]
    assert corrected(columns([1] * 50, [1] * 50, many)) is not None
    # as many labels, at fewer problems
    assert corrected(columns([1] * 50, [1] * 50, many, [n // 2 for n in range(50)])) is None


@pytest.mark.parametrize(("problems", "samples"), [(150, 1), (50, 4)])
def test_coverage(problems, samples) -> None:
    """A judge finds 80 % of the right replies, and takes 30 % of the wrong ones for right."""
    rng = np.random.default_rng(5)
    inside = 0
    inside_alone = 0
    for _ in range(300):
        ability = rng.beta(3, 1, problems)
        problem = np.repeat(np.arange(problems), samples)
        right = rng.random(len(problem)) < ability[problem]
        says = rng.random(len(problem)) < np.where(right, 0.8, 0.3)
        labelled = np.zeros(len(problem), np.bool_)
        labelled[rng.choice(len(problem), 40, replace=False)] = True
        data = columns(says, right, labelled, problem)
        estimate = corrected(data)
        assert estimate is not None
        inside += estimate.low <= 0.75 <= estimate.high
        alone = accuracy(data.right, data.problem)
        inside_alone += alone.low <= 0.75 <= alone.high
    assert inside >= 0.94 * 300
    assert inside_alone < 0.5 * 300


def test_columns_come_from_the_details_in_any_order() -> None:
    attempts = []
    for n in range(12):
        details = {"judge_right": n % 3 > 0}
        if n % 2:
            details["label"] = n % 4 == 1
        ended = "right" if n % 3 else "wrong"
        attempts.append(outcome(problem=f"p{n}", ended=ended, details=details))
    attempts.append(outcome(problem="cut", ended="truncated", details={"grader": "x"}))
    data = judged(attempts)
    assert (int(data.judged.sum()), data.labels, int(data.label.sum())) == (12, 6, 3)
    assert int(data.right.sum()) == 8
    random.Random(1).shuffle(attempts)
    again = judged(attempts)
    for name in ("right", "judged", "labelled", "label", "problem"):
        assert getattr(data, name).tolist() == getattr(again, name).tolist()


def test_labels_that_are_all_right_leave_an_interval_that_says_something() -> None:
    right = [1] * 18 + [0] * 2 + [1] * 180
    estimate = corrected(columns(right, [1] * 200, [n < 20 for n in range(200)]))
    assert estimate is not None
    assert estimate.value == 1.0
    assert 0.7 < estimate.low < 0.9
