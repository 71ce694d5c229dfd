"""Tests whether the best cell of a grid of accuracies over two settings is the best, and whether
cells differ at all.

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
    row: int
    column: int
    accuracy: Estimate
    p_best: float  # p-value of "this cell is the best, or tied with it"
    in_set: bool  # in the confidence set: could be the best


@dataclass(frozen=True, slots=True)
class Part:
    """One source of the variance between cells: the fraction that it explains beyond noise, and its
    p-value.
    """

    fraction: float
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
    """The map of attempts: the row, column and problem of each, counted from 0, and whether it was
    right.
    """
    places = sorted(set(zip(row.tolist(), column.tolist(), strict=True)))
    number = np.full((int(row.max()) + 1, int(column.max()) + 1), -1)
    number[tuple(np.transpose(places))] = np.arange(len(places))
    cell = number[row, column]
    estimates = [
        accuracy(correct[cell == k], problem[cell == k], level) for k in range(len(places))
    ]
    right, tried = _by_problem(cell, problem, correct)
    rng = np.random.default_rng(seed)
    if len(right) < FEWEST_PAIRS:  # nothing to compare
        best_p, p_value, luck, parts = np.ones(len(places)), math.nan, math.nan, (UNKNOWN,) * 3
        right = np.array([[e.value for e in estimates]])
    else:
        best_p = p_best(right, replicates, rng)
        p_value, luck = shuffled(right, replicates, rng)
        full = len(places) == number.size
        parts = (
            _parts(right.reshape(-1, *number.shape), replicates, rng) if full else (UNKNOWN,) * 3
        )
    means = right.mean(axis=0)
    best, runner_up = _first_two(means)
    lead = float(means[best] - means[runner_up])
    spread = (
        float(np.var(right[:, best] - right[:, runner_up], ddof=1)) if len(right) > 1 else math.nan
    )
    return Grid(
        cells=tuple(
            Cell(*place, estimate, p, p > 1 - level or k == best)
            for k, (place, estimate, p) in enumerate(
                zip(places, estimates, best_p.tolist(), strict=True)
            )
        ),
        best=best,
        runner_up=runner_up,
        compared=len(tried),
        p_value=p_value,
        luck=luck,
        lead=lead,
        needed=_needed(lead, spread) * (float(tried.mean()) if len(tried) else math.nan),
        row=parts[0],
        column=parts[1],
        interaction=parts[2],
        noise=1 - sum(p.fraction for p in parts if p.fraction > 0)
        if parts[0] is not UNKNOWN
        else math.nan,
    )


def from_accuracies(
    published: Floats, samples: int, level: float = 0.95, replicates: int = 10_000, seed: int = 0
) -> Grid:
    """The map of published accuracies, rows × columns, with `samples` answers per cell taken as
    independent.
    """
    means = np.round(published * samples) / samples  # undoes the rounding to one decimal
    rng, flat, cells = np.random.default_rng(seed), means.ravel(), means.size
    # Agresti & Coull add two answers of each kind, so that 0 % and 100 % have noise too.
    smooth = (flat * samples + 2) / (samples + 4)
    variance = smooth * (1 - smooth) / samples
    best_p = independent_p_best(flat, variance, replicates, rng)
    noise = rng.standard_normal((replicates, cells)) * np.sqrt(variance)
    best, runner_up = _first_two(flat)
    common = float(flat.mean())
    of_chance = common * (1 - common) / samples
    chi_square = float(((flat - common) ** 2).sum()) / of_chance if of_chance > ROUNDING else 0.0
    lead, of_two = (
        float(flat[best] - flat[runner_up]),
        float(variance[best] + variance[runner_up]) * samples,
    )
    # A shuffled map has the same noise, whatever it is; but one number per cell can't tell an
    # interaction from noise.
    shuffled = rng.permuted(np.tile(flat, (replicates, 1)), axis=1).reshape(-1, *means.shape)
    measured, by_chance = two_way(means), two_way(shuffled)
    expected = [of_chance * df / cells for df in _freedom(means.shape)]
    p_values = [float(_p_values(c, m)) for c, m in zip(by_chance[:2], measured[:2], strict=True)]
    parts = _beyond_noise(measured, expected, [*p_values, math.nan])
    return Grid(
        cells=tuple(
            Cell(
                k // means.shape[1],
                k % means.shape[1],
                binomial(right, samples, level),
                p,
                p > 1 - level,
            )
            for k, (right, p) in enumerate(zip(flat.tolist(), best_p.tolist(), strict=True))
        ),
        best=best,
        runner_up=runner_up,
        compared=0,
        p_value=chi2_tail(chi_square, cells - 1),
        luck=float(noise.max(axis=1).mean()),
        lead=lead,
        needed=_needed(lead, of_two),
        row=parts[0],
        column=parts[1],
        interaction=parts[2],
        noise=1 - sum(p.fraction for p in parts),
        chi_square=chi_square,
        slack=chi_square / _chi_square_quantile(0.05, cells - 1),
    )


def binomial(accuracy: float, answers: int, level: float = 0.95) -> Estimate:
    """An accuracy with Wilson's interval, for answers taken as independent, one per problem."""
    return Estimate(accuracy, *wilson(accuracy, answers, level), answers, answers)


def two_way(means: Floats) -> tuple[Floats, Floats, Floats]:
    """The variance between cells (… × rows × columns) due to rows, to columns, and to their
    interaction.
    """
    centred = means - means.mean(axis=(-2, -1), keepdims=True)
    rows, columns = centred.mean(axis=-1, keepdims=True), centred.mean(axis=-2, keepdims=True)
    parts = (rows, columns, centred - rows - columns)
    of_rows, of_columns, of_both = (
        np.asarray((part**2).mean(axis=(-2, -1)), dtype=np.float64) for part in parts
    )
    return of_rows, of_columns, of_both


def _chi_square_quantile(tail: float, df: int) -> float:
    low, high = 0.0, 10.0 * df + 100
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chi2_tail(middle, df) > tail else (low, middle)
    return high


def _freedom(shape: tuple[int, ...]) -> tuple[int, int, int]:
    rows, columns = shape
    return rows - 1, columns - 1, (rows - 1) * (columns - 1)


def _by_problem(cell: Ints, problem: Ints, correct: Bools) -> tuple[Floats, Floats]:
    """Accuracy and number of attempts, problems × cells, on the problems that every cell answered."""
    shape = int(problem.max()) + 1, int(cell.max()) + 1
    tried, right = np.zeros(shape), np.zeros(shape)
    np.add.at(tried, (problem, cell), 1.0)
    np.add.at(right, (problem, cell), correct.astype(np.float64))
    everywhere = (tried > 0).all(axis=1)
    return right[everywhere] / tried[everywhere], tried[everywhere]


def _first_two(means: Floats) -> tuple[int, int]:
    order = np.argsort(-means.round(9), kind="stable")
    return int(order[0]), int(order[min(1, len(order) - 1)])


def _needed(lead: float, variance: float) -> float:
    """Draws for a two-sided test at 5 % to have 80 % power, if a single draw of the difference has
    this variance.
    """
    if lead < ROUNDING or math.isnan(variance):
        return math.inf
    return max(
        2.0, math.ceil((z_quantile(0.975) + z_quantile(0.8)) ** 2 * variance / lead**2 - ROUNDING)
    )


def _p_values(drawn: Floats, measured: Floats) -> Floats:
    """The fraction of draws as large as what was measured, which counts as one of them."""
    as_large = (drawn >= measured * (1 - ROUNDING) - ROUNDING**2).sum(axis=0)
    return np.asarray((1 + as_large) / (1 + len(drawn)), dtype=np.float64)


def independent_p_best(
    means: Floats, variance: Floats, replicates: int, rng: np.random.Generator
) -> Floats:
    """As `p_best`, for cells with independent means of a known variance."""
    apart = np.sqrt(variance[:, None] + variance)
    noise = rng.standard_normal((replicates, len(means))) * np.sqrt(variance)
    lag = ((means - means[:, None]) / apart).max(axis=1)
    drawn = np.column_stack(
        [((noise - noise[:, [k]]) / apart[k]).max(axis=1) for k in range(len(means))]
    )
    return _p_values(drawn, lag)


def p_best(right: Floats, replicates: int, rng: np.random.Generator) -> Floats:
    """For each cell, the p-value of how far it trails the cell that leads it by most, paired by
    problem.
    """
    cells = right.shape[1]
    apart = [_unit(right - right[:, [k]]) for k in range(cells)]
    drawn = np.empty((replicates, cells))
    for chunk in _chunks(replicates, len(right)):
        signs = rng.choice([-1.0, 1.0], (chunk.stop - chunk.start, len(right)))
        for k in range(cells):
            drawn[chunk, k] = (signs @ apart[k]).max(axis=1)
    return _p_values(drawn, np.array([a.sum(axis=0).max() for a in apart]))


def _unit(apart: Floats) -> Floats:
    """Columns scaled to length 1, which signs don't change: their sums are studentised without
    dividing by zero.
    """
    length = np.sqrt((apart**2).sum(axis=0))
    return np.asarray(apart / np.where(length > 0, length, 1.0), dtype=np.float64)


def shuffled(right: Floats, replicates: int, rng: np.random.Generator) -> tuple[float, float]:
    """The p-value of the variance between cells, and the mean lead of the best cell, if settings
    make no difference.

    Shuffles cells within each problem. All samples of a problem in a cell move together: that a
    setting suits one problem is no evidence about others.
    """
    means = _shuffled_means(right, replicates, rng)
    p_value = float(_p_values(means.var(axis=1), right.mean(axis=0).var()))
    return p_value, float((means.max(axis=1) - means.mean(axis=1)).mean())


def _shuffled_means(right: Floats, replicates: int, rng: np.random.Generator) -> Floats:
    means = np.empty((replicates, right.shape[1]))
    for chunk in _chunks(replicates, right.size):
        copies = np.broadcast_to(right, (chunk.stop - chunk.start, *right.shape)).copy()
        means[chunk] = rng.permuted(copies, axis=2, out=copies).mean(axis=1)
    return means


def _parts(right: Floats, replicates: int, rng: np.random.Generator) -> Parts:
    """What rows, columns and their interaction explain. Whole rows are shuffled within a problem,
    then whole columns.

    The interaction has nothing to shuffle, so the sign of each problem's whole residual is flipped
    instead.
    """
    n, means = len(right), right.mean(axis=0)
    measured = two_way(means)
    by_noise = [part.sum() / (n - 1) / n for part in two_way(right - means)]
    p_rows, p_columns = (
        float(
            _p_values(_shuffled_means(lines, replicates, rng).var(axis=1), lines.mean(axis=0).var())
        )
        for lines in (right.mean(axis=2), right.mean(axis=1))
    )
    rows, columns = right.mean(axis=2, keepdims=True), right.mean(axis=1, keepdims=True)
    rest = (right - rows - columns + right.mean(axis=(1, 2), keepdims=True)).reshape(n, -1)
    drawn = np.empty(replicates)
    for chunk in _chunks(replicates, n):
        signs = rng.choice([-1.0, 1.0], (chunk.stop - chunk.start, n))
        drawn[chunk] = ((signs @ rest / n) ** 2).mean(axis=1)
    p_values = (p_rows, p_columns, float(_p_values(drawn, measured[2])))
    told = [
        p if df else math.nan for p, df in zip(p_values, _freedom(right.shape[1:]), strict=True)
    ]
    return _beyond_noise(measured, by_noise, told)


def _beyond_noise(
    measured: Sequence[Any], expected: Sequence[Any], p_values: Sequence[float]
) -> Parts:
    """The fraction of the variance that each part explains beyond what noise is expected to."""
    total = max(float(sum(measured)), 1e-300)
    parts = zip(measured, expected, p_values, strict=True)
    first, second, third = (Part(max(0.0, float(m - e)) / total, p) for m, e, p in parts)
    return first, second, third


def _chunks(replicates: int, width: int) -> Iterator[slice]:
    """Slices of the replicates that keep the draws small, however many problems there are."""
    step = max(1, 200_000 // width)
    return (slice(a, min(a + step, replicates)) for a in range(0, replicates, step))
