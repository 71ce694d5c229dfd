"""Is the best cell of a map the best? What a grid of accuracies over two settings shows beyond sampling noise.

Every cell is asked the same problems, so cells are compared problem by problem. A cell stays in the confidence set
unless others are ahead of it by more than noise: a max-t test (Hsu's comparison with the best, one test a cell) whose
noise comes from flipping the signs of a problem's differences, all cells together. Hansen's model confidence set
(2011) would hold all of several equal bests at once; this one holds the best, or each of several, at its level, with
no order of elimination to explain. For single samples and equal cells the signs are exactly as likely either way.

Of a published map only the shares are known: `from_shares` takes answers as independent (binomial). Pairing over
questions makes true noise between cells smaller than that, and questions that suit one cell and not another make it
larger; `slack` says how much smaller it would have to be for the map to show anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ponder.core import Estimate, Outcome
from ponder.stats.accuracy import accuracy, wilson
from ponder.stats.columns import Bools, Floats, Ints
from ponder.stats.distributions import t_quantile, z_quantile

ROUNDING = 1e-9  # sums of the same numbers in another order are the same


@dataclass(frozen=True, slots=True)
class Cell:
    row: int
    column: int
    accuracy: Estimate
    p_best: float  # chance of lagging so far behind others for a cell that none is better than
    in_set: bool  # can't be excluded as the best


@dataclass(frozen=True, slots=True)
class Part:
    """One source of the variance between cells: its share, noise taken off, and its p-value."""

    share: float
    p_value: float


UNKNOWN = Part(math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Grid:
    """A map and what it shows. What can't be known is nan; `needed` is infinite for a tie."""

    cells: tuple[Cell, ...]  # by row, then by column
    best: int  # index of the cell
    runner_up: int
    compared: int  # problems that every cell answered; 0 for a published map
    p_value: float  # of cells that differ this much if settings make no difference
    luck: float  # how far above the mean the best of so many equal cells lies on average
    lead: float  # of the best over the runner-up
    needed: float  # attempts a cell that would tell these two apart: 80 % power at 5 %, if the lead is real
    row: Part = UNKNOWN
    column: Part = UNKNOWN
    interaction: Part = UNKNOWN
    noise: float = math.nan  # share of the variance between cells
    chi_square: float = math.nan  # the last two: of a published map
    slack: float = math.nan  # the share of binomial noise below which the map would show structure at 5 %

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
    """From attempts: the row, column and problem of each, counted from 0, and whether it was right."""
    places = sorted(set(zip(row.tolist(), column.tolist(), strict=True)))
    number = np.full((int(row.max()) + 1, int(column.max()) + 1), -1)
    number[tuple(np.transpose(places))] = np.arange(len(places))
    cell = number[row, column]
    estimates = [accuracy(correct[cell == k], problem[cell == k], level) for k in range(len(places))]
    share, tried = _by_problem(cell, problem, correct)
    rng = np.random.default_rng(seed)
    if len(share) < 2:  # nothing to compare
        p_best, p_value, luck, parts = np.ones(len(places)), math.nan, math.nan, (UNKNOWN,) * 3
        share = np.array([[e.value for e in estimates]])
    else:
        p_best = _p_best(share, replicates, rng)
        p_value, luck = _shuffled(share, replicates, rng)
        full = len(places) == number.size
        parts = _parts(share.reshape(-1, *number.shape), replicates, rng) if full else (UNKNOWN,) * 3
    means = share.mean(axis=0)
    best, runner_up = _first_two(means)
    lead = float(means[best] - means[runner_up])
    spread = float(np.var(share[:, best] - share[:, runner_up], ddof=1)) if len(share) > 1 else math.nan
    return Grid(
        cells=tuple(
            Cell(*place, estimate, p, p > 1 - level or k == best)
            for k, (place, estimate, p) in enumerate(zip(places, estimates, p_best.tolist(), strict=True))
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
        noise=1 - sum(p.share for p in parts if p.share > 0) if parts[0] is not UNKNOWN else math.nan,
    )


def from_shares(shares: Floats, samples: int, level: float = 0.95, replicates: int = 10_000, seed: int = 0) -> Grid:
    """From a published map alone, rows × columns, with `samples` answers a cell taken as independent."""
    shares = np.round(shares * samples) / samples  # printed with one decimal, they were counts
    rng, flat, cells = np.random.default_rng(seed), shares.ravel(), shares.size
    # Agresti & Coull's two answers more of each kind: 0 % and 100 % have noise too.
    smooth = (flat * samples + 2) / (samples + 4)
    variance = smooth * (1 - smooth) / samples
    apart = np.sqrt(variance[:, None] + variance)
    noise = rng.standard_normal((replicates, cells)) * np.sqrt(variance)
    lag = ((flat - flat[:, None]) / apart).max(axis=1)
    drawn = np.column_stack([((noise - noise[:, [k]]) / apart[k]).max(axis=1) for k in range(cells)])
    p_best = _p_values(drawn, lag)
    best, runner_up = _first_two(flat)
    common = float(flat.mean())
    binomial = common * (1 - common) / samples
    chi_square = float(((flat - common) ** 2).sum()) / binomial if binomial > ROUNDING else 0.0
    lead, of_two = float(flat[best] - flat[runner_up]), float(variance[best] + variance[runner_up]) * samples
    # A shuffled map has the same noise, whatever it is; but one number a cell can't tell an interaction from noise.
    shuffled = rng.permuted(np.tile(flat, (replicates, 1)), axis=1).reshape(-1, *shares.shape)
    found, by_chance = two_way(shares), two_way(shuffled)
    total = max(float(sum(found)), 1e-300)
    expected = [binomial * df / cells for df in _freedom(shares.shape)]
    p_values = [float(_p_values(c, f)) for c, f in zip(by_chance[:2], found[:2], strict=True)]
    parts = [
        Part(max(0.0, float(f - e)) / total, p) for f, e, p in zip(found, expected, [*p_values, math.nan], strict=True)
    ]
    return Grid(
        cells=tuple(
            Cell(k // shares.shape[1], k % shares.shape[1], _binomial(share, samples, level), p, p > 1 - level)
            for k, (share, p) in enumerate(zip(flat.tolist(), p_best.tolist(), strict=True))
        ),
        best=best,
        runner_up=runner_up,
        compared=0,
        p_value=chi_square_tail(chi_square, cells - 1),
        luck=float(noise.max(axis=1).mean()),
        lead=lead,
        needed=_needed(lead, of_two),
        row=parts[0],
        column=parts[1],
        interaction=parts[2],
        noise=1 - sum(p.share for p in parts),
        chi_square=chi_square,
        slack=chi_square / _chi_square_quantile(0.05, cells - 1),
    )


def paired_difference(first: Floats, second: Floats, level: float = 0.95) -> Estimate:
    """First less second, each the shares right of the same problems.

    Bonett & Price's (2012) interval: one problem more in either direction, so that two models that agree on all of ten
    problems are not known to agree on all others.
    """
    apart, n = first - second, len(first)
    if n < 2:
        return Estimate(float(apart.mean()) if n else math.nan, -1.0, 1.0, n, n)
    middle = float(apart.sum()) / (n + 2)
    variance = (float(apart @ apart) + 2) / (n + 2) - middle**2
    half = t_quantile((1 + level) / 2, n - 1) * math.sqrt(variance / (n + 2))
    value = float(apart.mean())
    return Estimate(value, min(value, max(-1.0, middle - half)), max(value, min(1.0, middle + half)), n, n)


def matched(first: Sequence[Outcome], second: Sequence[Outcome]) -> tuple[Floats, Floats]:
    """The shares right of the problems that both answered, in one order."""
    shares = []
    for outcomes in (first, second):
        found: dict[tuple[int, str], list[bool]] = {}
        for o in outcomes:
            if o.status != "failed":
                found.setdefault((o.size, o.problem), []).append(o.correct)
        shares.append({name: sum(right) / len(right) for name, right in found.items()})
    both = sorted(shares[0].keys() & shares[1].keys())
    one, other = (np.array([share[name] for name in both], dtype=np.float64) for share in shares)
    return one, other


def two_way(means: Floats) -> tuple[Floats, Floats, Floats]:
    """The variance between cells (… × rows × columns) due to rows, to columns and to neither alone."""
    centred = means - means.mean(axis=(-2, -1), keepdims=True)
    rows, columns = centred.mean(axis=-1, keepdims=True), centred.mean(axis=-2, keepdims=True)
    parts = (rows, columns, centred - rows - columns)
    of_rows, of_columns, of_both = (np.asarray((part**2).mean(axis=(-2, -1)), dtype=np.float64) for part in parts)
    return of_rows, of_columns, of_both


def chi_square_tail(x: float, df: int) -> float:
    """The chance that chi-square exceeds x: a finite sum for whole degrees of freedom."""
    if x <= 0 or df < 1:
        return 1.0
    half = x / 2
    start = math.erfc(math.sqrt(half)) if df % 2 else 0.0
    powers = np.arange(0.5 if df % 2 else 0.0, df / 2 - 0.5, 1.0)
    return min(1.0, start + sum(math.exp(a * math.log(half) - half - math.lgamma(a + 1)) for a in powers))


def _chi_square_quantile(tail: float, df: int) -> float:
    low, high = 0.0, 10.0 * df + 100
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chi_square_tail(middle, df) > tail else (low, middle)
    return high


def _binomial(share: float, samples: int, level: float) -> Estimate:
    return Estimate(share, *wilson(share, samples, level), samples, 0)


def _freedom(shape: tuple[int, ...]) -> tuple[int, int, int]:
    rows, columns = shape
    return rows - 1, columns - 1, (rows - 1) * (columns - 1)


def _by_problem(cell: Ints, problem: Ints, correct: Bools) -> tuple[Floats, Floats]:
    """Shares right and attempts, problems × cells, of the problems that every cell answered."""
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
    """Draws until a difference with this variance a draw is found by a two-sided test at 5 % in 80 % of cases."""
    if lead < ROUNDING or math.isnan(variance):
        return math.inf
    return max(2.0, math.ceil((z_quantile(0.975) + z_quantile(0.8)) ** 2 * variance / lead**2 - ROUNDING))


def _p_values(drawn: Floats, found: Floats) -> Floats:
    """The share of draws as large as what was found, which counts as one of them."""
    as_large = (drawn >= found * (1 - ROUNDING) - ROUNDING**2).sum(axis=0)
    return np.asarray((1 + as_large) / (1 + len(drawn)), dtype=np.float64)


def _p_best(share: Floats, replicates: int, rng: np.random.Generator) -> Floats:
    """For each cell the p-value of its largest lag behind another, both asked the same problems."""
    cells = share.shape[1]
    apart = [_unit(share - share[:, [k]]) for k in range(cells)]
    drawn = np.empty((replicates, cells))
    for some in _chunks(replicates, len(share)):
        signs = rng.choice([-1.0, 1.0], (some.stop - some.start, len(share)))
        for k in range(cells):
            drawn[some, k] = (signs @ apart[k]).max(axis=1)
    return _p_values(drawn, np.array([a.sum(axis=0).max() for a in apart]))


def _unit(apart: Floats) -> Floats:
    """Columns of length 1, which signs don't change: their sums are studentised, even if only one problem differs."""
    length = np.sqrt((apart**2).sum(axis=0))
    return np.asarray(apart / np.where(length > 0, length, 1.0), dtype=np.float64)


def _shuffled(share: Floats, replicates: int, rng: np.random.Generator) -> tuple[float, float]:
    """The p-value of the variance between cells, and the lead of the best over the mean, if a cell's name says nothing.

    All samples of a problem in a cell move together: whether a setting suits one problem is no evidence about others.
    """
    means = _shuffled_means(share, replicates, rng)
    p_value = float(_p_values(means.var(axis=1), share.mean(axis=0).var()))
    return p_value, float((means.max(axis=1) - means.mean(axis=1)).mean())


def _shuffled_means(share: Floats, replicates: int, rng: np.random.Generator) -> Floats:
    means = np.empty((replicates, share.shape[1]))
    for some in _chunks(replicates, share.size):
        copies = np.broadcast_to(share, (some.stop - some.start, *share.shape)).copy()
        means[some] = rng.permuted(copies, axis=2, out=copies).mean(axis=1)
    return means


def _parts(share: Floats, replicates: int, rng: np.random.Generator) -> tuple[Part, Part, Part]:
    """Rows are shuffled whole within a problem, so columns can't disturb them, and columns likewise.

    What is left after both has no labels to shuffle: a problem's whole pattern changes its sign.
    """
    n, means = len(share), share.mean(axis=0)
    found = two_way(means)
    by_noise = [part.sum() / (n - 1) / n for part in two_way(share - means)]
    p_rows, p_columns = (
        float(_p_values(_shuffled_means(lines, replicates, rng).var(axis=1), lines.mean(axis=0).var()))
        for lines in (share.mean(axis=2), share.mean(axis=1))
    )
    rows, columns = share.mean(axis=2, keepdims=True), share.mean(axis=1, keepdims=True)
    rest = (share - rows - columns + share.mean(axis=(1, 2), keepdims=True)).reshape(n, -1)
    drawn = np.empty(replicates)
    for some in _chunks(replicates, n):
        signs = rng.choice([-1.0, 1.0], (some.stop - some.start, n))
        drawn[some] = ((signs @ rest / n) ** 2).mean(axis=1)
    p_values = (p_rows, p_columns, float(_p_values(drawn, found[2])))
    total = max(float(sum(found)), 1e-300)
    first, second, third = (
        Part(max(0.0, float(f - e)) / total, p if df else math.nan)
        for f, e, p, df in zip(found, by_noise, p_values, _freedom(share.shape[1:]), strict=True)
    )
    return first, second, third


def _chunks(replicates: int, width: int) -> Iterator[slice]:
    """Slices of the replicates that keep the draws small, however many problems there are."""
    step = max(1, 200_000 // width)
    return (slice(a, min(a + step, replicates)) for a in range(0, replicates, step))
