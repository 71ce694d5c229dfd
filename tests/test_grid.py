"""Maps against numbers worked out by hand, SciPy, exhaustive shuffles and simulation."""

from __future__ import annotations

import itertools
import math

import made_up
import numpy as np
import pytest
from scipy import stats

from ponder.figures._published import published
from ponder.stats.accuracy import accuracy, wilson
from ponder.stats.distributions import chi2_tail
from ponder.stats.grid import from_accuracies, grid, two_way
from ponder.stats.paired import matched, paired_difference


def mapped(right, **settings):
    """A map from problems × rows × columns × samples of right and wrong."""
    right = np.asarray(right, dtype=bool)
    right = right[..., None] if right.ndim == 3 else right
    problem, row, column, _ = (i.ravel() for i in np.indices(right.shape))
    return grid(row, column, problem, right.ravel(), **settings)


def simulated(rng, effect, problems, samples=1, suits=0.0):
    """Problems of any difficulty; `suits` is how much a cell suits one problem and not another."""
    hard = (
        rng.normal(0, 2, (problems, 1, 1))
        + effect
        + rng.normal(0, 1, (problems, *effect.shape)) * suits
    )
    return rng.random((problems, *effect.shape, samples)) < 1 / (1 + np.exp(-hard[..., None]))


def map_of(benchmark):
    rows = [r for r in published("dynts_window_ratio") if r["benchmark"] == benchmark]
    shares = np.array([r["accuracy"] for r in rows]).reshape(4, 5)
    return from_accuracies(shares, int(rows[0]["problems"] * rows[0]["samples"]))


def test_a_map_by_hand() -> None:
    # Three problems, one row of two cells: the second solves all, the first only one.
    found = mapped([[[1, 1]], [[0, 1]], [[0, 1]]])
    assert [c.accuracy.value for c in found.cells] == pytest.approx([1 / 3, 1])
    assert found.cells[0].accuracy == accuracy(np.array([True, False, False]), np.arange(3))
    assert (found.best, found.runner_up, found.compared, found.in_set) == (1, 0, 3, 2)
    assert found.lead == pytest.approx(2 / 3)
    # Differences 0, 1, 1: both signs must be + for so large a sum, one case in four.
    assert found.cells[0].p_best == pytest.approx(1 / 4, abs=0.03)
    assert found.cells[1].p_best == 1
    # Two problems to shuffle: half of the shuffles set them against each other.
    assert found.p_value == pytest.approx(1 / 2, abs=0.03)
    # (1.96 + 0.84)² · (1/3) / (2/3)² = 5.9 problems of one attempt
    assert found.needed == 6
    # By luck the cells lie 1/3 from their mean, or 0.
    assert found.luck == pytest.approx(1 / 6, abs=0.01)


def test_all_shuffles_and_all_signs() -> None:
    rng = np.random.default_rng(4)
    right = rng.random((4, 1, 3)) < 0.5
    found = mapped(right, replicates=20_000)
    share = right[:, 0].astype(float)
    shuffles = itertools.product(itertools.permutations(range(3)), repeat=4)
    variances = [
        np.var(np.mean([s[list(p)] for s, p in zip(share, ps, strict=True)], axis=0))
        for ps in shuffles
    ]
    assert found.p_value == pytest.approx(
        np.mean(np.array(variances) >= share.mean(0).var() - 1e-12), abs=0.01
    )
    for cell in range(3):
        apart = share - share[:, [cell]]
        length = np.sqrt((apart**2).sum(0))
        apart = apart / np.where(length > 0, length, 1)
        lags = [(np.array(signs) @ apart).max() for signs in itertools.product([-1, 1], repeat=4)]
        exact = np.mean(np.array(lags) >= apart.sum(0).max() - 1e-12)
        assert found.cells[cell].p_best == pytest.approx(exact, abs=0.012)


def test_variance_falls_into_rows_columns_and_neither() -> None:
    means = np.array([[0.1, 0.3], [0.5, 0.9]])
    rows, columns, neither = two_way(means)
    # Row means 0.2 and 0.7, column means 0.3 and 0.6, all 0.45; what is left is ±0.05.
    assert (rows, columns, neither) == pytest.approx((0.0625, 0.0225, 0.0025))
    assert rows + columns + neither == pytest.approx(means.var())
    found = mapped(np.random.default_rng(0).random((500, 2, 2)) < means)
    assert (found.row.fraction, found.column.fraction) == pytest.approx((0.71, 0.26), abs=0.06)
    assert (
        found.row.fraction + found.column.fraction + found.interaction.fraction + found.noise
        == pytest.approx(1)
    )
    assert max(found.row.p_value, found.column.p_value, found.p_value) < 0.001


def test_an_effect_of_rows_is_not_one_of_columns() -> None:
    right = np.random.default_rng(1).random((200, 2, 3)) < np.array([[0.3], [0.7]])
    by_row, by_column = mapped(right), mapped(right.transpose(0, 2, 1))
    assert max(by_row.row.p_value, by_column.column.p_value) < 0.001
    assert min(by_row.column.p_value, by_column.row.p_value) > 0.05


@pytest.mark.parametrize("df", [1, 2, 3, 12, 19, 40])
def test_chi_square_is_scipys(df) -> None:
    for x in (0.01, 1, 9.13, 30, 200):
        assert chi2_tail(x, df) == pytest.approx(stats.chi2.sf(x, df), rel=1e-9)
    assert chi2_tail(0, df) == 1
    assert chi2_tail(1e9, df) == 0


def test_the_published_map_is_noise() -> None:
    found = map_of("AIME24")
    assert found.chi_square == pytest.approx(9.13, abs=0.01)
    assert found.p_value == pytest.approx(stats.chi2.sf(found.chi_square, 19))
    assert found.p_value == pytest.approx(0.971, abs=0.001)
    assert found.slack == pytest.approx(found.chi_square / stats.chi2.isf(0.05, 19))
    table = [
        [round(150 * c.accuracy.value), 150 - round(150 * c.accuracy.value)] for c in found.cells
    ]
    assert stats.chi2_contingency(table).statistic == pytest.approx(found.chi_square)
    best = found.cells[found.best]
    assert (best.row, best.column, best.accuracy.value) == (2, 3, pytest.approx(0.52))
    assert (best.accuracy.low, best.accuracy.high) == wilson(0.52, 150, 0.95)
    assert found.in_set == 20
    # The largest of 20 normal draws lies 1.867 standard deviations out.
    assert found.luck == pytest.approx(1.867 * math.sqrt(0.45 * 0.55 / 150), rel=0.02)
    # 52.0 against 48.7, unpaired: 2.8016² · (0.2496 + 0.2498) / (5/150)²
    assert found.needed == pytest.approx(3528, rel=0.01)
    assert min(found.row.p_value, found.column.p_value) > 0.5


@pytest.mark.parametrize("benchmark", ["AIME25", "AMC23", "GPQA-D"])
def test_so_are_the_others(benchmark) -> None:
    found = map_of(benchmark)
    assert found.p_value > 0.99
    assert found.in_set == 20
    assert min(found.row.p_value, found.column.p_value) > 0.05
    assert (found.needed == math.inf) == (benchmark == "AMC23")  # four cells tie


def test_a_published_peak_is_found() -> None:
    shares = np.full((4, 5), 0.5)
    shares[1, 2] = 0.9
    found = from_accuracies(shares, 150)
    assert (found.in_set, found.best) == (1, 7)
    assert found.p_value < 1e-9
    assert from_accuracies(np.ones((2, 2)), 50).p_value == 1


def test_the_set_holds_the_best_and_without_structure_nearly_all() -> None:
    rng, runs = np.random.default_rng(1), 150
    level, peak = np.zeros((3, 4)), np.zeros((3, 4))
    peak[1, 2] = 0.5
    held, sizes, false, found_best = [], [], [], []
    for run in range(runs):
        flat = mapped(simulated(rng, level, 30, 2, suits=0.7), replicates=300, seed=run)
        sizes.append(flat.in_set / 12)
        false.append(
            [
                p <= 0.05
                for p in (
                    flat.p_value,
                    flat.row.p_value,
                    flat.column.p_value,
                    flat.interaction.p_value,
                )
            ]
        )
        tilted = mapped(simulated(rng, peak, 30, 2), replicates=300, seed=run)
        held.append(tilted.cells[6].in_set)
    for run in range(20):
        clear = mapped(simulated(rng, 6 * peak, 60), replicates=300, seed=run)
        found_best.append(clear.best == 6 and clear.in_set == 1 and clear.p_value < 0.01)
    assert np.mean(held) >= 0.95
    assert np.mean(sizes) >= 0.93
    # At 5 %, 150 runs give up to 14 false alarms in all but one case of a hundred.
    assert np.sum(false, axis=0).max() <= 14
    assert np.mean(found_best) >= 0.9


def test_cells_of_equal_noise_are_paired_by_problem() -> None:
    # Twenty of forty problems are easy, so a cell's interval is wide; but one cell never solves
    # less than the others.
    right = np.zeros((40, 1, 3), dtype=bool)
    right[:20] = True
    right[20:28, 0, 2] = True
    found = mapped(right)
    assert found.cells[0].accuracy.high > found.cells[2].accuracy.low
    assert [c.in_set for c in found.cells] == [False, False, True]
    assert found.needed == pytest.approx(2.8016**2 * (0.2 * 0.8 * 40 / 39) / 0.04, abs=1)


def test_what_is_missing_is_left_out_and_said() -> None:
    right = np.random.default_rng(2).random((10, 2, 2)) < 0.5
    problem, row, column = (i.ravel() for i in np.indices(right.shape))
    gone = (problem == 3) & (row == 0) & (column == 0)
    some = grid(row[~gone], column[~gone], problem[~gone], right.ravel()[~gone])
    assert some.compared == 9
    assert [c.accuracy.attempts for c in some.cells] == [9, 10, 10, 10]
    hole = (row == 1) & (column == 1)
    three = grid(row[~hole], column[~hole], problem[~hole], right.ravel()[~hole])
    assert [(c.row, c.column) for c in three.cells] == [(0, 0), (0, 1), (1, 0)]
    assert math.isnan(three.row.fraction)
    assert three.p_value <= 1


def test_too_little_says_nothing() -> None:
    one = mapped([[[1, 0]]])
    assert (one.in_set, one.compared) == (2, 1)
    assert math.isnan(one.p_value)
    cell = mapped([[[1]], [[0]]])
    assert (cell.in_set, cell.needed) == (1, math.inf)
    apart = grid(np.array([0, 0]), np.array([0, 1]), np.array([0, 1]), np.array([True, False]))
    assert (apart.in_set, apart.compared) == (2, 0)


def test_the_order_of_attempts_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    right = simulated(rng, np.zeros((2, 3)), 12, 2)
    problem, row, column, _ = (i.ravel() for i in np.indices(right.shape))
    order = rng.permutation(right.size)
    shuffled = grid(row[order], column[order], problem[order], right.ravel()[order])
    assert repr(shuffled) == repr(mapped(right))  # as text, because nan is not equal to itself


def test_paired_difference_is_bonett_and_prices() -> None:
    first, second = np.zeros(100), np.zeros(100)
    first[:12], second[12:16] = 1, 1
    found = paired_difference(first, second)
    low, high = 13 / 102, 5 / 102
    half = stats.t.ppf(0.975, 99) * math.sqrt((low + high - (low - high) ** 2) / 102)
    assert found.value == pytest.approx(0.08)
    assert (found.low, found.high) == pytest.approx((low - high - half, low - high + half))
    same = paired_difference(np.ones(10), np.ones(10))
    assert same.low < same.value == 0 < same.high
    assert paired_difference(np.ones(1), np.zeros(1)).low == -1


def test_matched_problems_are_those_that_both_answered() -> None:
    def outcome(problem, correct, sample=0, ended=""):
        return made_up.outcome(
            "t", "m", 4, problem, ended or ("right" if correct else "wrong"), sample=sample
        )

    first = [
        outcome("a", True),
        outcome("a", False, 1),
        outcome("b", True),
        outcome("c", True, ended="failed"),
    ]
    second = [outcome("c", True), outcome("b", False), outcome("a", False)]
    shares = matched(first, second)
    assert [s.tolist() for s in shares] == [[0.5, 1.0], [0.0, 0.0]]
