"""The horizon against hand-worked rollouts, SciPy's survival function and simulation."""

from __future__ import annotations

import math
import random
import runpy
import time
from pathlib import Path

import made_up
import numpy as np
import pytest
from scipy import stats

from ponder.core import Outcome
from ponder.stats.accuracy import accuracy
from ponder.stats.horizon import Rollouts, horizon, rollouts


def outcome(
    said, true, problem="a", sample=0, per_turn=1, start=0, ended="wrong", model="m"
) -> Outcome:
    details = {"parsed": said, "true": true, "start": start, "per_turn": per_turn}
    size = len(true) * per_turn
    return made_up.outcome("execution", model, size, problem, ended, sample=sample, details=details)


def sums(errors, turns, start=0) -> list[int]:
    """What a model says that is off by one more from each of these turns on, where each turn adds
    2.
    """
    return [start + 2 * t + sum(e <= t for e in errors) for t in range(1, turns + 1)]


def true(turns, start=0) -> list[int]:
    return sums([], turns, start)


def clean_until(errors, turns=10, per_turn=1) -> list[Outcome]:
    """One rollout for each of `errors`: its only wrong turn, or None."""
    return [
        outcome(sums([e] if e else [], turns), true(turns), f"p{i:03}", per_turn=per_turn)
        for i, e in enumerate(errors)
    ]


def simulated(rng, turn_accuracy, rollouts=50, per_turn=1, problem=None) -> Rollouts:
    right = rng.random((rollouts, len(turn_accuracy))) < turn_accuracy
    index = np.logical_and.accumulate(right, axis=1)
    problem = np.arange(rollouts) if problem is None else problem
    length = np.full(rollouts, right.shape[1])
    return Rollouts(per_turn, problem, length, index, right, np.zeros_like(right), 0)


def test_a_rollout_by_hand() -> None:
    #        index:  right, wrong, wrong (own sum goes on), unparsed, right again by luck
    said = [5, 9, 16, None, 10]
    found = rollouts([outcome(said, [5, 8, 15, 15, 10], per_turn=3)])
    assert found.index.tolist() == [[True, False, False, False, True]]
    # Turn 5 is judged from 16, the last number said: 16 - 5 would follow, 10 doesn't.
    assert found.turn.tolist() == [[True, False, True, False, False]]
    assert found.unparsed.tolist() == [[False, False, False, True, False]]
    assert (found.per_turn, found.first_error.tolist()) == (3, [2])


def test_a_reply_without_a_number_is_wrong_where_the_turn_adds_nothing() -> None:
    found = rollouts([outcome([None, 7], [4, 7], start=4)])
    assert found.turn.tolist() == [[False, True]]  # 7 is judged from the sum shown at the start
    assert found.index.tolist() == [[False, True]]


def test_numbers_of_any_length() -> None:
    found = rollouts([outcome([10**40, 10**40 + 2, 6], [2, 4, 6])])
    assert found.turn.tolist() == [[False, True, False]]
    assert found.index.tolist() == [[False, False, True]]


def test_rows_by_hand() -> None:
    found = horizon(
        rollouts(
            [
                outcome([2, 4, 6], true(3), "a", per_turn=2),
                outcome([2, 5, 7], true(3), "b", per_turn=2),
                outcome([2, 4, None], true(3), "c", per_turn=2, ended="truncated"),
                outcome([], true(3), "d", per_turn=2, ended="failed"),
            ]
        )
    )
    assert [(row.first, row.last) for row in found.rows] == [(1, 2), (3, 4), (5, 6)]
    assert [row.index.value for row in found.rows] == pytest.approx([1, 2 / 3, 1 / 3])
    assert [row.task.value for row in found.rows] == pytest.approx([1, 2 / 3, 1 / 3])
    assert [row.turn.value for row in found.rows] == pytest.approx([1, 2 / 3, 2 / 3])
    assert [row.unparsed.value for row in found.rows] == pytest.approx([0, 0, 1 / 3])
    assert (found.rows[0].task.attempts, found.failed) == (3, 1)
    assert found.rows[1].task == accuracy(np.array([True, False, True]), np.arange(3))


def test_a_lucky_sum_does_not_mend_the_task() -> None:
    found = horizon(rollouts([outcome([3, 4, 6], true(3), p) for p in "ab"]))
    assert [row.index.value for row in found.rows] == [0, 1, 1]
    assert [row.task.value for row in found.rows] == [0, 0, 0]


def test_many_turns_are_taken_together_and_rest_on_rollouts() -> None:
    data = simulated(np.random.default_rng(1), np.full(1000, 0.99), rollouts=100)
    start = time.process_time()
    found = horizon(data)
    assert time.process_time() - start < 1
    assert len(found.rows) < 120
    assert [(row.first, row.last) for row in found.rows[:40]] == [(n, n) for n in range(1, 41)]
    assert all(a.last + 1 == b.first for a, b in zip(found.rows, found.rows[1:], strict=False))
    assert found.rows[-1].last == 1000
    assert {row.turn.attempts for row in found.rows} == {100}
    assert len(horizon(data, blur=0).rows) == 1000


def test_survival_is_scipys_with_censoring() -> None:
    rng = np.random.default_rng(2)
    error, length = rng.integers(1, 30, 60), rng.integers(5, 25, 60)
    data = rollouts(
        [
            outcome(sums([e], n), true(n), f"p{i}")
            for i, (e, n) in enumerate(zip(error, length, strict=True))
        ]
    )
    curve = horizon(data).survival
    seen = stats.CensoredData.right_censored(np.minimum(error, length), error > length)
    theirs = stats.ecdf(seen).sf
    assert curve.value == pytest.approx(theirs.evaluate(np.array(curve.size)))
    assert curve.size[-1] == length.max()
    # Alone in its problem each rollout counts as Greenwood says, but for t(G-1) and Wilson.
    greenwood = theirs.confidence_interval().high.evaluate(np.array(curve.size)) - np.array(
        curve.value
    )
    middle = (np.array(curve.value) > 0.3) & (np.array(curve.value) < 0.7)
    assert np.array(curve.high)[middle] - np.array(curve.value)[middle] == pytest.approx(
        greenwood[middle], abs=0.035
    )


def test_without_censoring_the_band_is_that_of_accuracy() -> None:
    found = horizon(rollouts(clean_until([3, 3, 5, 8, 8, 9, None, None, 2, 6])))
    at = dict(
        zip(
            found.survival.size,
            zip(found.survival.low, found.survival.high, strict=True),
            strict=True,
        )
    )
    for row in found.rows:
        if row.last in at:
            assert at[row.last] == pytest.approx((row.task.low, row.task.high))


def test_band_knows_that_samples_of_a_problem_hang_together() -> None:
    rng = np.random.default_rng(3)
    apart = simulated(rng, np.full(30, 0.97), rollouts=40)
    copies = np.repeat(np.arange(40), 4)
    parts = (
        apart.length[copies],
        apart.index[copies],
        apart.turn[copies],
        apart.unparsed[copies],
        0,
    )
    together = horizon(Rollouts(1, copies, *parts))
    assert together.horizon.low == pytest.approx(horizon(apart).horizon.low, abs=1)
    assert together.horizon.high == pytest.approx(horizon(apart).horizon.high, abs=1)
    assert horizon(Rollouts(1, np.arange(160), *parts)).horizon.low > together.horizon.low
    assert (together.horizon.attempts, together.horizon.problems) == (160, 40)


def test_horizon_by_hand() -> None:
    errors = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, *[None] * 10]
    # 11 of 20 are clean after turn 9, 10 after turn 10: one half is not below one half.
    assert math.isnan(horizon(rollouts(clean_until(errors))).horizon.value)
    errors[-1] = 10
    found = horizon(rollouts(clean_until(errors)))
    assert found.horizon.value == 10
    # 16 of 20 after turn 4
    assert horizon(rollouts(clean_until(errors)), target=0.8).horizon.value == 5
    lows = [row.first for row in found.rows if row.task.low < 0.5]
    assert (found.horizon.low, found.horizon.high) == (lows[0], math.inf)


def test_horizon_is_known_to_the_turn() -> None:
    found = horizon(rollouts(clean_until([4] * 30, per_turn=5))).horizon
    assert (found.value, found.low, found.high) == (20, 16, 20)


def test_no_error_leaves_the_horizon_open() -> None:
    found = horizon(rollouts(clean_until([None] * 20)))
    assert math.isnan(found.horizon.value)
    assert (found.horizon.low, found.horizon.high) == (10, math.inf)
    assert (found.step_accuracy.value, found.step_accuracy.high) == (1, 1)
    # A clean rollout of ten turns has chance q^10, and 20 of 20 bound it.
    clean = accuracy(np.ones(20, dtype=bool), np.arange(20)).low
    assert found.step_accuracy.low == pytest.approx(clean**0.1)
    assert math.isnan(found.predicted.value)
    assert found.predicted.low == pytest.approx(math.log(0.5) / math.log(clean**0.1))
    assert found.predicted.high == math.inf
    assert (found.trend.direction, found.trend.p_value) == ("too few errors", 1)


def test_every_turn_wrong() -> None:
    said = [7 * t for t in range(1, 6)]
    found = horizon(rollouts([outcome(said, true(5), f"p{i}", per_turn=2) for i in range(10)]))
    assert (found.horizon.value, found.horizon.low, found.horizon.high) == (2, 1, 2)
    assert (found.step_accuracy.value, found.predicted.value) == (0, 0)


def test_step_accuracy_and_prediction_by_hand() -> None:
    # 20 rollouts of 10 turns of 3 steps, whose first errors are in turns 1 to 10: 20 errors in 110
    # turns at risk.
    found = horizon(rollouts(clean_until([1 + i % 10 for i in range(20)], per_turn=3)))
    p = (90 / 110) ** (1 / 3)
    assert found.step_accuracy.value == pytest.approx(p)
    assert found.predicted.value == pytest.approx(math.log(0.5) / math.log(p))
    assert found.step_accuracy.low < p < found.step_accuracy.high
    for end in ("low", "high"):
        assert getattr(found.predicted, end) == pytest.approx(
            math.log(0.5) / math.log(getattr(found.step_accuracy, end))
        )


def test_turns_after_the_first_error_do_not_move_the_prediction() -> None:
    """A model whose answers are all wrong after a slip has the horizon of one that slips once."""
    once = [outcome(sums([1 + i], 40), true(40), f"p{i}") for i in range(40)]
    lost = [outcome(sums(range(1 + i, 41), 40), true(40), f"p{i}") for i in range(40)]
    assert horizon(rollouts(once)).predicted == horizon(rollouts(lost)).predicted
    assert horizon(rollouts(once)).step_accuracy.value == pytest.approx(780 / 820)


def test_turn_accuracy_after_right_and_wrong_answers_by_hand() -> None:
    # Off by one from turn 2 on; the first rollout slips again in turn 4. Turn 1 has no answer
    # before it.
    found = horizon(
        rollouts([outcome(sums([2, 4], 4), true(4), "a"), outcome(sums([2], 4), true(4), "b")])
    )
    # turns 2 and 2; turns 3, 4, 3 and 4
    assert (found.after_right.value, found.after_wrong.value) == (0, 3 / 4)
    assert (found.after_wrong.attempts, found.after_wrong.problems) == (2, 2)
    clean = horizon(rollouts(clean_until([None] * 20)))
    assert clean.after_right.value == 1
    assert math.isnan(clean.after_wrong.value)
    assert (clean.after_wrong.low, clean.after_wrong.high) == (0, 1)


def test_coverage_of_the_prediction_and_of_turns_after_right_and_wrong_answers() -> None:
    """`python benchmarks/coverage.py horizon` is the long form."""
    benchmark = runpy.run_path(
        str(Path(__file__).parents[1] / "benchmarks" / "coverage_horizon.py")
    )
    for scenario, reached, _, _ in benchmark["rows"](60, seed=3):
        assert reached >= 0.88, scenario  # 2.5 standard errors below .95


def test_one_problem_or_none_says_nothing() -> None:
    one = horizon(rollouts([outcome(sums([3], 5), true(5), sample=s) for s in range(4)]))
    assert (one.horizon.value, one.horizon.low, one.horizon.high) == (3, 1, math.inf)
    assert one.trend.direction == "too few errors"
    none = horizon(rollouts([outcome([], [], ended="failed"), outcome([], [], ended="open")]))
    assert (none.rows, none.failed, none.horizon.attempts) == ((), 1, 0)
    assert math.isnan(none.horizon.value)
    assert math.isnan(none.predicted.value)


def test_mixed_outcomes_are_refused() -> None:
    with pytest.raises(ValueError, match="one model"):
        rollouts([outcome([2], [2], model="a"), outcome([2], [2], model="b")])
    with pytest.raises(ValueError, match="steps per turn"):
        rollouts([outcome([2], [2], per_turn=1), outcome([2], [2], per_turn=2)])


def test_order_moves_nothing() -> None:
    rng = random.Random(4)
    several = [
        outcome(sums([rng.randint(1, 14), rng.randint(1, 14)], n), true(n), f"p{i}", s)
        for i, n in enumerate([12] * 10 + [9] * 5)
        for s in range(3)
    ]
    expected = horizon(rollouts(several))
    for _ in range(3):
        rng.shuffle(several)
        assert horizon(rollouts(several)) == expected


def curves(kind, per_turn, turns=60):
    """Step accuracy, the true horizon, and turn accuracy."""
    step = np.arange(1, turns * per_turn + 1)
    p = (
        np.full(len(step), 0.5 ** (1 / (12 * per_turn)))
        if kind == "constant"
        else 1 - 0.004 * step / per_turn
    )
    return int(np.argmax(np.cumprod(p) < 0.5)) + 1, p.reshape(turns, per_turn).prod(axis=1)


@pytest.mark.parametrize("number", [20, 50, 100])
@pytest.mark.parametrize("per_turn", [1, 5])
@pytest.mark.parametrize("kind", ["constant", "falling"])
def test_horizon_covers(kind, per_turn, number) -> None:
    rng, hits = np.random.default_rng(5), 0
    truth, turn_accuracy = curves(kind, per_turn)
    for _ in range(200):
        found = horizon(simulated(rng, turn_accuracy[:30], number, per_turn), blur=9).horizon
        hits += found.low <= truth <= found.high
    assert hits >= 0.93 * 200


def test_horizon_covers_with_censoring_and_several_samples() -> None:
    rng, hits = np.random.default_rng(6), 0
    problem = np.repeat(np.arange(25), 4)
    for _ in range(200):
        q = 1 - rng.beta(1.5, 20, 25)  # some problems are harder
        data = simulated(rng, np.ones(30), 100, problem=problem)
        right = rng.random((100, 30)) < q[problem, None]
        length = rng.integers(8, 31, 25)[problem]
        seen = np.arange(30) < length[:, None]
        index = np.logical_and.accumulate(right, axis=1) & seen
        found = horizon(
            Rollouts(1, problem, length, index, right & seen, data.unparsed, 0), blur=9
        ).horizon
        survival = np.array(
            [np.prod([(20 + j) / (21.5 + j) for j in range(h)]) for h in range(1, 60)]
        )
        hits += found.low <= int(np.argmax(survival < 0.5)) + 1 <= found.high
    assert hits >= 0.93 * 200


@pytest.mark.parametrize(
    ("p", "turns", "number"), [(0.95, 60, 50), (0.99, 20, 50), (0.8, 100, 8), (0.999, 50, 60)]
)
def test_no_drift_is_seldom_called_one(p, turns, number) -> None:
    rng, called = np.random.default_rng(7), 0
    for _ in range(300):
        trend = horizon(simulated(rng, np.full(turns, p), number), blur=9).trend
        called += trend.direction in ("falls", "rises")
    assert called <= 0.07 * 300


def test_bursts_of_errors_and_hard_problems_are_no_drift() -> None:
    rng, called = np.random.default_rng(8), 0
    for _ in range(200):
        data = simulated(rng, np.ones(60), 40)
        hard = rng.random(40) < 0.3
        start = rng.integers(-9, 60, 40)  # ten turns wrong in a row, anywhere
        turn = np.arange(60)
        wrong = hard[:, None] & (turn >= start[:, None]) & (turn < start[:, None] + 10)
        drifts = horizon(
            Rollouts(1, data.problem, data.length, ~wrong, ~wrong, data.unparsed, 0), blur=9
        ).trend
        called += drifts.direction in ("falls", "rises")
    assert called <= 0.07 * 200


@pytest.mark.parametrize(
    ("first", "last", "direction"), [(0.97, 0.85, "falls"), (0.8, 0.92, "rises")]
)
def test_a_real_drift_is_found(first, last, direction) -> None:
    rng = np.random.default_rng(9)
    found = [
        horizon(simulated(rng, np.linspace(first, last, 60), 30), blur=9).trend for _ in range(100)
    ]
    assert sum(trend.direction == direction for trend in found) >= 95
    assert np.mean([trend.early.value for trend in found]) == pytest.approx(
        first + (last - first) / 4, abs=0.01
    )
    assert np.mean([trend.late.value for trend in found]) == pytest.approx(
        last + (first - last) / 4, abs=0.01
    )


def test_drift_of_few_rollouts_by_hand() -> None:
    # Seven problems, each wrong in its last turn only: of 128 ways to set the signs, 2 are as
    # clear.
    assert horizon(rollouts(clean_until([10] * 7))).trend.p_value == pytest.approx(2 / 128)
    assert horizon(rollouts(clean_until([10] * 7))).trend.direction == "falls"
    assert horizon(rollouts(clean_until([1] * 7))).trend.direction == "rises"
    assert horizon(rollouts(clean_until([10] * 5))).trend.direction == "too few errors"
