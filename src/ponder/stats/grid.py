"""Test whether the best cell of a map over two settings is the best, and if cells differ at all.

Every cell is asked the same problems, so cells are compared problem by problem. The confidence set
holds every cell that could be the best: a cell is excluded if it trails some other cell by more
than chance explains. That is a max-t test per cell (Hsu's comparison with the best); its null
distribution comes from flipping the signs of each problem's differences, for all cells together.
Each truly best cell is in the set with 95 % confidence. Hansen's model confidence set (2011) would
contain all tied best cells at once, but needs an elimination order that is harder to explain.

For published maps we have only the percentages: `from_accuracies` takes answers as independent
(binomial). Cells that were asked the same questions vary less than that, and settings that suit
only some questions vary more; `slack` says how small the noise would have to be for the map to show
anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ponder.core import Estimate
from ponder.stats.accuracy import accuracy, wilson
from ponder.stats.columns import FEWEST_PAIRS, Bools, Floats, Ints
from ponder.stats.distributions import chi2_tail, z_quantile

ROUNDING = 1e-9  # sums of the same numbers in another order are the same


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the map."""

    row: int
    column: int
    accuracy: Estimate
    p_best: float  # p-value of "this cell is the best, or tied with it"
    in_set: bool  # in the confidence set: could be the best


@dataclass(frozen=True, slots=True)
class Part:
    """One source of the variance between cells: rows, columns or their interaction."""

    fraction: float  # of the variance, beyond noise
    p_value: float


Parts: TypeAlias = tuple[Part, Part, Part]  # rows, columns, interaction
UNKNOWN = Part(math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Grid:
    """A map and what it shows. What can't be estimated is nan; `needed` is infinite for a tie."""

    cells: tuple[Cell, ...]  # by row, then by column
    best: int  # index of the cell
    runner_up: int
    compared: int  # problems that every cell answered; 0 for a published map
    p_value: float  # of cells that differ this much, if the settings make no difference
    luck: float  # how far the best of as many equal cells lies above their mean, on average
    lead: float  # of the best over the runner-up
    # attempts per cell to tell these two apart with 80 % power at 5 %, if the lead is real
    needed: float
    row: Part = UNKNOWN
    column: Part = UNKNOWN
    interaction: Part = UNKNOWN
    noise: float = math.nan  # fraction of the variance between cells
    chi_square: float = math.nan  # published maps only, as is `slack`
    # the map would show structure at 5 % if noise were below this fraction of binomial noise
    slack: float = math.nan

    @property
    def in_set(self) -> int:
        return sum(cell.in_set for cell in self.cells)


def grid(
    row: Ints,
    column: Ints,
    problem: Ints,
    correct: Bools,
    level: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> Grid:
    """Compare the cells of a map; each array has one entry per attempt.

    Rows, columns and problems are counted from 0.
    """
    positions = sorted(set(zip(row.tolist(), column.tolist(), strict=True)))
    number = np.full((int(row.max()) + 1, int(column.max()) + 1), -1)
    number[tuple(np.transpose(positions))] = np.arange(len(positions))
    cell = number[row, column]
    estimates = []
    for k in range(len(positions)):
        estimates.append(accuracy(correct[cell == k], problem[cell == k], level))
    right, tried = _by_problem(cell, problem, correct)

    best_p = np.ones(len(positions))
    p_value = math.nan
    luck = math.nan
    parts = (UNKNOWN, UNKNOWN, UNKNOWN)
    noise = math.nan
    spread = math.nan
    attempts = math.nan
    if len(right) >= FEWEST_PAIRS:
        rng = np.random.default_rng(seed)
        best_p = p_best(right, replicates, rng)
        p_value, luck = shuffled(right, replicates, rng)
        if len(positions) == number.size:  # no cell is missing
            parts = _parts(right.reshape(-1, *number.shape), replicates, rng)
            noise = 1 - sum(part.fraction for part in parts if part.fraction > 0)
        means = right.mean(axis=0)
    else:  # nothing to compare
        means = np.array([e.value for e in estimates])
    best, runner_up = _first_two(means)
    lead = float(means[best] - means[runner_up])
    if len(right) >= FEWEST_PAIRS:
        spread = float(np.var(right[:, best] - right[:, runner_up], ddof=1))
    if len(tried):
        attempts = float(tried.mean())

    cells = []
    for k, (position, estimate, p) in enumerate(
        zip(positions, estimates, best_p.tolist(), strict=True)
    ):
        cells.append(Cell(*position, estimate, p, p > 1 - level or k == best))
    return Grid(
        cells=tuple(cells),
        best=best,
        runner_up=runner_up,
        compared=len(tried),
        p_value=p_value,
        luck=luck,
        lead=lead,
        needed=_needed(lead, spread) * attempts,
        row=parts[0],
        column=parts[1],
        interaction=parts[2],
        noise=noise,
    )


def from_accuracies(
    published: Floats, samples: int, level: float = 0.95, replicates: int = 10_000, seed: int = 0
) -> Grid:
    """Compare the cells of a published map, rows × columns.

    Each cell has `samples` answers, taken as independent.
    """
    means = np.round(published * samples) / samples  # undoes the rounding to one decimal
    flat = means.ravel()
    cells = means.size
    rng = np.random.default_rng(seed)
    # Agresti & Coull add two answers of each kind, so that 0 % and 100 % have noise too.
    smooth = (flat * samples + 2) / (samples + 4)
    variance = smooth * (1 - smooth) / samples
    best_p = independent_p_best(flat, variance, replicates, rng)
    noise = rng.standard_normal((replicates, cells)) * np.sqrt(variance)

    best, runner_up = _first_two(flat)
    lead = float(flat[best] - flat[runner_up])
    spread = float(variance[best] + variance[runner_up]) * samples
    common = float(flat.mean())
    by_chance = common * (1 - common) / samples
    chi_square = 0.0
    if by_chance > ROUNDING:
        chi_square = float(((flat - common) ** 2).sum()) / by_chance

    # A shuffled map has the same noise, whatever it is; but one number per cell can't tell an
    # interaction from noise.
    shuffled_maps = rng.permuted(np.tile(flat, (replicates, 1)), axis=1)
    measured = two_way(means)
    drawn = two_way(shuffled_maps.reshape(-1, *means.shape))
    p_rows = float(_p_values(drawn[0], measured[0]))
    p_columns = float(_p_values(drawn[1], measured[1]))
    expected = [by_chance * df / cells for df in _freedom(means.shape)]
    parts = _beyond_noise(measured, expected, [p_rows, p_columns, math.nan])

    cells_of_map = []
    for k, (right, p) in enumerate(zip(flat.tolist(), best_p.tolist(), strict=True)):
        row, column = divmod(k, means.shape[1])
        estimate = binomial(right, samples, level)
        cells_of_map.append(Cell(row, column, estimate, p, p > 1 - level))
    return Grid(
        cells=tuple(cells_of_map),
        best=best,
        runner_up=runner_up,
        compared=0,
        p_value=chi2_tail(chi_square, cells - 1),
        luck=float(noise.max(axis=1).mean()),
        lead=lead,
        needed=_needed(lead, spread),
        row=parts[0],
        column=parts[1],
        interaction=parts[2],
        noise=1 - sum(part.fraction for part in parts),
        chi_square=chi_square,
        slack=chi_square / _chi_square_quantile(0.05, cells - 1),
    )


def binomial(accuracy: float, answers: int, level: float = 0.95) -> Estimate:
    """Return an accuracy with Wilson's interval, for independent answers, one per problem."""
    low, high = wilson(accuracy, answers, level)
    return Estimate(accuracy, low, high, answers, answers)


def two_way(means: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the variance between cells due to rows, to columns, and to their interaction.

    `means` is … × rows × columns.
    """
    centred = means - means.mean(axis=(-2, -1), keepdims=True)
    rows = centred.mean(axis=-1, keepdims=True)
    columns = centred.mean(axis=-2, keepdims=True)
    interaction = centred - rows - columns
    return _mean_square(rows), _mean_square(columns), _mean_square(interaction)


def _mean_square(effects: Floats) -> Floats:
    return np.asarray((effects**2).mean(axis=(-2, -1)), dtype=np.float64)


def _chi_square_quantile(tail: float, df: int) -> float:
    """Return the value that chi-squared exceeds with probability `tail`, by bisection."""
    low = 0.0
    high = 10.0 * df + 100
    for _ in range(60):
        middle = (low + high) / 2
        if chi2_tail(middle, df) > tail:
            low = middle
        else:
            high = middle
    return high


def _freedom(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the degrees of freedom of rows, columns and interaction."""
    rows, columns = shape
    return rows - 1, columns - 1, (rows - 1) * (columns - 1)


def _by_problem(cell: Ints, problem: Ints, correct: Bools) -> tuple[Floats, Floats]:
    """Return accuracy and number of attempts, problems × cells.

    Only the problems that every cell answered are in it.
    """
    shape = (int(problem.max()) + 1, int(cell.max()) + 1)
    tried = np.zeros(shape)
    right = np.zeros(shape)
    np.add.at(tried, (problem, cell), 1.0)
    np.add.at(right, (problem, cell), correct.astype(np.float64))
    everywhere = (tried > 0).all(axis=1)
    return right[everywhere] / tried[everywhere], tried[everywhere]


def _first_two(means: Floats) -> tuple[int, int]:
    """Return the indices of the best cell and of the runner-up."""
    order = np.argsort(-means.round(9), kind="stable")
    return int(order[0]), int(order[min(1, len(order) - 1)])


def _needed(lead: float, variance: float) -> float:
    """Return the draws for a two-sided test at 5 % to have 80 % power.

    `variance` is that of a single draw of the difference.
    """
    if lead < ROUNDING or math.isnan(variance):
        return math.inf
    draws = (z_quantile(0.975) + z_quantile(0.8)) ** 2 * variance / lead**2
    return max(2.0, math.ceil(draws - ROUNDING))


def _p_values(drawn: Floats, measured: Floats) -> Floats:
    """Return the fraction of draws as large as the measured value, which counts as one of them."""
    as_large = (drawn >= measured * (1 - ROUNDING) - ROUNDING**2).sum(axis=0)
    return np.asarray((1 + as_large) / (1 + len(drawn)), dtype=np.float64)


def independent_p_best(
    means: Floats, variance: Floats, replicates: int, rng: np.random.Generator
) -> Floats:
    """Return the p-values of `p_best`, for cells with independent means of a known variance."""
    error = np.sqrt(variance[:, None] + variance)
    noise = rng.standard_normal((replicates, len(means))) * np.sqrt(variance)
    lag = ((means - means[:, None]) / error).max(axis=1)
    drawn = np.empty((replicates, len(means)))
    for k in range(len(means)):
        drawn[:, k] = ((noise - noise[:, [k]]) / error[k]).max(axis=1)
    return _p_values(drawn, lag)


def p_best(right: Floats, replicates: int, rng: np.random.Generator) -> Floats:
    """Return for each cell the p-value of its largest lag behind another, paired by problem.

    `right` is problems × cells.
    """
    problems, cells = right.shape
    leads = [_unit_columns(right - right[:, [k]]) for k in range(cells)]
    lag = np.array([lead.sum(axis=0).max() for lead in leads])
    drawn = np.empty((replicates, cells))
    for chunk in _chunks(replicates, problems):
        signs = rng.choice([-1.0, 1.0], (chunk.stop - chunk.start, problems))
        for k in range(cells):
            drawn[chunk, k] = (signs @ leads[k]).max(axis=1)
    return _p_values(drawn, lag)


def _unit_columns(differences: Floats) -> Floats:
    """Scale columns to length 1, which signs don't change.

    Their sums are then studentised without dividing by zero.
    """
    length = np.sqrt((differences**2).sum(axis=0))
    return np.asarray(differences / np.where(length > 0, length, 1.0), dtype=np.float64)


def shuffled(right: Floats, replicates: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the p-value of the variance between cells, and the mean lead of the best by chance.

    Shuffles cells within each problem of `right`, problems × cells. All samples of a problem in a
    cell move together: that a setting suits one problem is no evidence about others.
    """
    means = _shuffled_means(right, replicates, rng)
    p_value = float(_p_values(means.var(axis=1), right.mean(axis=0).var()))
    return p_value, float((means.max(axis=1) - means.mean(axis=1)).mean())


def _shuffled_means(right: Floats, replicates: int, rng: np.random.Generator) -> Floats:
    """Return the means of shuffled cells, replicates × cells."""
    means = np.empty((replicates, right.shape[1]))
    for chunk in _chunks(replicates, right.size):
        copies = np.broadcast_to(right, (chunk.stop - chunk.start, *right.shape)).copy()
        means[chunk] = rng.permuted(copies, axis=2, out=copies).mean(axis=1)
    return means


def _parts(right: Floats, replicates: int, rng: np.random.Generator) -> Parts:
    """Return what rows, columns and their interaction explain of problems × rows × columns.

    Whole rows are shuffled within a problem, then whole columns. The interaction has nothing to
    shuffle, so the sign of each problem's whole residual is flipped instead.
    """
    n = len(right)
    means = right.mean(axis=0)
    measured = two_way(means)
    by_noise = [variance.sum() / (n - 1) / n for variance in two_way(right - means)]
    p_values = []
    for lines in (right.mean(axis=2), right.mean(axis=1)):  # rows, columns
        drawn = _shuffled_means(lines, replicates, rng).var(axis=1)
        p_values.append(float(_p_values(drawn, lines.mean(axis=0).var())))

    rows = right.mean(axis=2, keepdims=True)
    columns = right.mean(axis=1, keepdims=True)
    residuals = right - rows - columns + right.mean(axis=(1, 2), keepdims=True)
    residuals = residuals.reshape(n, -1)
    drawn = np.empty(replicates)
    for chunk in _chunks(replicates, n):
        signs = rng.choice([-1.0, 1.0], (chunk.stop - chunk.start, n))
        drawn[chunk] = ((signs @ residuals / n) ** 2).mean(axis=1)
    p_values.append(float(_p_values(drawn, measured[2])))
    for i, df in enumerate(_freedom(right.shape[1:])):
        if df == 0:
            p_values[i] = math.nan
    return _beyond_noise(measured, by_noise, p_values)


def _beyond_noise(
    measured: Sequence[Any], expected: Sequence[Any], p_values: Sequence[float]
) -> Parts:
    """Return the fraction of the variance that each source explains beyond the expected noise."""
    total = max(float(sum(measured)), 1e-300)
    fractions = []
    for variance, by_noise in zip(measured, expected, strict=True):
        fractions.append(max(0.0, float(variance - by_noise)) / total)
    return (
        Part(fractions[0], p_values[0]),
        Part(fractions[1], p_values[1]),
        Part(fractions[2], p_values[2]),
    )


def _chunks(replicates: int, width: int) -> Iterator[slice]:
    """Split the replicates so that the draws stay small, however many problems there are."""
    step = max(1, 200_000 // width)
    for start in range(0, replicates, step):
        yield slice(start, min(start + step, replicates))
