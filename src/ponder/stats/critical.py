"""Estimate the critical size, at which accuracy falls below 50 %, from a psychometric curve.

    p(size) = (1 - lapse) · logistic(slope · (log c - log size) - log(1 - 2·lapse))

with a lapse rate in [0, 0.45], fitted by maximum likelihood after Wichmann & Hill (2001). The last
term puts the critical size c where p itself, not the logistic, is one half. Problems of one size
weigh the same, however many attempts each has.

Each end of the interval is the wider of two. The bootstrap over problems accounts for attempts that
are correlated within a problem. The profile likelihood accounts for the uncertainty that is left at
20 right of 20, and between the two sizes where accuracy drops from 100 % to 0 %. Nothing is
extrapolated: an end beyond the sizes measured is open, and a value beyond them is nan.

The curve is checked in three ways: against a local fit, against no curve at all, and against any
accuracy that never rises with size. The critical size comes from one curve through all sizes: if
the true curve has another shape, sizes far from the crossing pull it aside. The local fit, a
logistic without lapses through the three sizes nearest the crossing, is less certain and depends
less on the shape.

The interval of the lapse rate is by profile likelihood: for each rate, the best critical size and
slope. A lattice can't give it: at 100 right of 100 the best lapse is 0, and so is every redrawn
one, but 1 % isn't excluded.

Arrays called `total` are sizes × (attempts, right answers); a candidate curve is a row of three
parameters: log of the critical size, log of the slope, lapse rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ponder.core import Estimate
from ponder.stats.bootstrap import Curve, draw_curve, drawing_sizes, resampled_sums
from ponder.stats.columns import Columns, Floats, Ints, summed
from ponder.stats.distributions import chi2_tail, t_quantile, z_quantile

NEAREST = 3  # sizes of the local fit
MAX_LAPSE = 0.45  # at 0.5 accuracy would never be above one half
LAPSE_RATES = np.concatenate([[0.0], np.geomspace(1e-4, MAX_LAPSE, 36)])
# Half of a chi-squared with three degrees of freedom exceeds 12 once in 40,000 times, so the best
# curves of the replicates are among the candidates within this log likelihood of the best.
SEARCHED = 12


@dataclass(frozen=True, slots=True)
class Critical:
    """The critical size, the curve it comes from, and three checks of the curve's shape."""

    size: Estimate  # nan if accuracy does not cross 50 % within the sizes measured
    slope: Estimate  # of the logit, in units of log size
    lapse: Estimate  # the fraction of attempts that is wrong at any size
    curve: Curve | None  # None: fewer than two sizes, or a size of 0, which has no logarithm
    local: Estimate  # the size at 50 % from the three sizes nearest to it only
    # small: `size` and `local` differ by more than chance explains; nan: not known
    local_p_value: float
    fit_p_value: float  # small: the curve does not fit
    steady_p_value: float  # small: accuracy does not fall steadily with size
    # the two sizes between which accuracy rises most clearly; nan if it never rises
    rise: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Local:
    """A local fit on the scale of log size."""

    value: float
    low: float
    high: float
    nearest: Ints  # indices of the sizes it uses
    # no wrong answer at a smaller size than a right one: the data can't place it between two sizes
    cliff: bool


@dataclass(frozen=True, slots=True)
class Steady:
    """Whether accuracy falls steadily with size, or at least never rises."""

    p_value: float  # small: it rises somewhere
    # the two sizes between which it rises most clearly; nan if it never does
    rise: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Curves:
    """The fitted curve, and the candidates that its intervals are computed from."""

    best: Floats  # shape (3,)
    likely: Floats  # candidates × 3: not rejected by the likelihood ratio
    redrawn: Floats  # replicates × 3: the best curve of each resampled data set


def critical_size(
    data: Columns, level: float = 0.95, replicates: int = 1000, seed: int = 0
) -> Critical:
    """Fit the curve to all sizes and return the size at which its accuracy is 50 %."""
    sizes = np.unique(data.size)
    if len(sizes) < 2 or sizes[0] <= 0:
        return _without_curve(data)
    size_of = data.size_of_problem
    log_size = np.log(sizes)
    counts = counts_by_problem(data)
    total = summed(counts, size_of)
    effect = _design_effect(counts, size_of, total)

    row = _rows(total[None])[0]
    candidates = _likely_candidates(row, log_size, SEARCHED * effect)
    table = _table(candidates, log_size)
    best, highest = _climb(candidates, table, row, log_size)
    drop = effect * z_quantile((1 + level) / 2) ** 2 / 2
    resampled = resampled_sums(counts, size_of, replicates, seed)
    curves = _Curves(
        best=best,
        likely=candidates[table @ row >= highest - drop],
        redrawn=candidates[_refit(table, _rows(resampled))[0]],
    )

    shallowest, steepest = np.exp(_bounds(log_size)[:, 1])
    size, slope = _size_and_slope(data, curves, level)
    steady = steadiness(total, sizes, effect)
    flat = best[1] <= math.log(shallowest) + 1e-6
    if flat and steady.p_value < 1 - level:  # accuracy rises, so no size is critical
        size = replace(size, value=math.nan, low=0.0, high=math.inf)
    lapse_value = float(best[2])
    lapse_low, lapse_high = lapse_interval(total, log_size, (shallowest, steepest), drop)
    local = replace(size, value=math.nan, low=0.0, high=math.inf)
    local_p_value = math.nan
    fitted = local_fit(total, log_size, np.bincount(size_of), effect, level)
    if fitted is not None:
        local = _local_estimate(size, fitted, sizes)
        local_p_value = _local_p_value(size, local, fitted, log_size, resampled, curves.redrawn)
    return Critical(
        size=size,
        slope=slope,
        lapse=replace(
            size,
            value=lapse_value,
            low=min(lapse_low, lapse_value),
            high=max(lapse_high, lapse_value),
        ),
        curve=_drawn_curve(sizes, curves, level),
        local=local,
        local_p_value=local_p_value,
        fit_p_value=_fit_p_value(table, total, _accuracy(best[None], log_size)[0], effect, seed),
        steady_p_value=steady.p_value,
        rise=steady.rise,
    )


def _without_curve(data: Columns) -> Critical:
    """Return a result in which everything is unknown."""
    unknown = Estimate(math.nan, 0.0, math.inf, len(data), data.problems)
    return Critical(
        size=unknown,
        slope=unknown,
        lapse=replace(unknown, high=1.0),
        curve=None,
        local=unknown,
        local_p_value=math.nan,
        fit_p_value=math.nan,
        steady_p_value=math.nan,
        rise=(math.nan, math.nan),
    )


def counts_by_problem(data: Columns) -> Floats:
    """Return problems × (attempts, right), scaled to the mean number of attempts of their size."""
    size_of = data.size_of_problem
    counts = summed(np.column_stack([np.ones(len(data)), data.correct]), data.problem)
    mean_attempts = np.bincount(size_of, weights=counts[:, 0]) / np.bincount(size_of)
    return np.asarray(counts * (mean_attempts[size_of] / counts[:, 0])[:, None])


def redrawn_log_sizes(data: Columns, resampled: Floats) -> Floats:
    """Return the log critical size of each replicate.

    `resampled` is replicates × sizes × (attempts, right).
    """
    size_of = data.size_of_problem
    log_size = np.log(np.unique(data.size))
    counts = counts_by_problem(data)
    total = summed(counts, size_of)
    effect = _design_effect(counts, size_of, total)
    candidates = _likely_candidates(_rows(total[None])[0], log_size, SEARCHED * effect)
    best = _refit(_table(candidates, log_size), _rows(resampled))[0]
    return np.asarray(candidates[best, 0])


# --- Estimates from the curves ---


def _size_and_slope(data: Columns, curves: _Curves, level: float) -> tuple[Estimate, Estimate]:
    """Return the critical size and the slope, open where the sizes measured can't bound them."""
    estimates = []
    for parameter in (0, 1):
        value = math.exp(curves.best[parameter])
        likely = np.exp(curves.likely[:, parameter])
        redrawn = np.exp(curves.redrawn[:, parameter])
        low, high = _wider(likely, redrawn, level)
        estimates.append(
            Estimate(
                value,
                min(value, float(low)),
                max(value, float(high)),
                len(data),
                data.problems,
            )
        )
    size, slope = estimates

    sizes = np.unique(data.size)
    shallowest, steepest = np.exp(_bounds(np.log(sizes))[:, 1])
    cliff = slope.high >= steepest * (1 - 1e-9)
    size = _within_sizes(size, sizes, cliff)
    if not math.isfinite(size.value):
        slope = replace(slope, value=math.nan)
    if not slope.low > shallowest * (1 + 1e-9):
        slope = replace(slope, low=0.0)
    if cliff:
        slope = replace(slope, high=math.inf)
    return size, slope


def _drawn_curve(sizes: Floats, curves: _Curves, level: float) -> Curve:
    """Return the accuracy of the fitted curve at enough sizes to draw it, with a pointwise band."""
    x = drawing_sizes(sizes)
    log_x = np.log(x)
    value = _accuracy(curves.best[None], log_x)[0]
    low, high = _wider(_accuracy(curves.likely, log_x), _accuracy(curves.redrawn, log_x), level)
    return draw_curve(x, value, np.minimum(low, value), np.maximum(high, value))


def _wider(likely: Floats, redrawn: Floats, level: float) -> tuple[Floats, Floats]:
    """Return the ends of the wider of two intervals: likelihood and bootstrap, along axis 0."""
    low, high = np.quantile(redrawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    if len(likely):
        low = np.minimum(low, likely.min(axis=0))
        high = np.maximum(high, likely.max(axis=0))
    return low, high


def _within_sizes(critical: Estimate, sizes: Floats, cliff: bool) -> Estimate:
    """Open the ends beyond the sizes measured; at a cliff, widen to the sizes around it."""
    first = float(sizes[0])
    last = float(sizes[-1])
    low = min(critical.low, last)
    high = max(critical.high, first)
    if cliff and low >= first:
        below = int(np.searchsorted(sizes, low, side="right")) - 1
        low = float(sizes[max(0, below)])
    if cliff and high <= last:
        high = float(sizes[int(np.searchsorted(sizes, high))])
    value = critical.value
    # Where accuracy is exactly 50 % at the first or last size, rounding may put the value outside.
    if not first * (1 - 1e-6) <= value <= last * (1 + 1e-6):
        value = math.nan
    if low < first:
        low = 0.0
    if high > last:
        high = math.inf
    return replace(critical, value=value, low=low, high=high)


def _fit_p_value(
    table: Floats, total: Floats, chance: Floats, effect: float, seed: int, replicates: int = 200
) -> float:
    """Return how often data drawn from the fitted curve fit a curve as badly as the data do.

    `chance` is the accuracy of the fitted curve at each size. As many attempts are drawn as are
    independent.
    """
    attempts = np.maximum(1, np.round(total[:, 0] / effect))
    right = np.random.default_rng(seed).binomial(
        attempts.astype(np.int64), np.clip(chance, 0, 1), (replicates, len(attempts))
    )
    drawn = np.stack([np.broadcast_to(attempts, right.shape), right], axis=-1)

    def misfit(counts: Floats) -> Floats:
        without_curve = log_likelihood(counts, counts[..., 1] / counts[..., 0])
        return without_curve - _refit(table, _rows(counts))[1]

    measured = float(misfit(total[None])[0]) / effect
    as_bad = np.count_nonzero(misfit(drawn) >= measured - 1e-9)
    return float(1 + as_bad) / (replicates + 1)


# --- The curve, on a grid of candidates ---


def _bounds(log_size: Floats) -> Floats:
    """Return the lowest and the highest value of the three parameters, shape (2, 3)."""
    first = log_size[0]
    last = log_size[-1]
    span = last - first
    gap = float(np.diff(log_size).min())
    # The slope ranges from almost flat over all sizes to a cliff between the two nearest ones.
    lowest = [first - span, math.log(0.5 / span), 0.0]
    highest = [last + span, math.log(10 / gap), MAX_LAPSE]
    return np.array([lowest, highest])


def _lattice(bounds: Floats, points: tuple[int, int, int]) -> Floats:
    """Return a regular grid of parameters, one candidate per row."""
    axes = []
    for low, high, n in zip(*bounds, points, strict=True):
        axes.append(np.linspace(low, high, n))
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def _likely_candidates(row: Floats, log_size: Floats, within: float) -> Floats:
    """Return a fine grid of the candidates whose log likelihood is `within` this of the best."""
    limits = _bounds(log_size)
    bounds = limits
    points = (49, 13, 5)
    for _ in range(5):  # with more attempts, a smaller region is likely
        grid = _lattice(bounds, points)
        score = _table(grid, log_size) @ row
        near = grid[score >= score.max() - within]
        step = (bounds[1] - bounds[0]) / (np.array(points) - 1)
        bounds = np.clip([near.min(axis=0) - step, near.max(axis=0) + step], *limits)
    grid = _lattice(bounds, (141, 21, 7))
    score = _table(grid, log_size) @ row
    return np.asarray(grid[score >= score.max() - within])


def _logits(candidates: Floats, log_size: Floats) -> Floats:
    """Return the argument of the logistic, candidates × sizes; see the formula at the top."""
    critical = candidates[:, :1]
    slope = np.exp(candidates[:, 1:2])
    half = -np.log(1 - 2 * candidates[:, 2:])  # the logit of 0.5 / (1 - lapse)
    return slope * (critical - log_size) + half


def _accuracy(candidates: Floats, log_size: Floats) -> Floats:
    """Return the accuracy of each candidate at each size, candidates × sizes."""
    logit = np.clip(_logits(candidates, log_size), -500, 500)
    return np.asarray((1 - candidates[:, 2:]) / (1 + np.exp(-logit)))


def _table(candidates: Floats, log_size: Floats) -> Floats:
    """Return what each attempt adds to the log likelihood: candidates × (2 · sizes + 1).

    The log likelihood is linear in the counts: `table @ row`, with a row from `_rows`. The first
    columns are log(1 - p) for an attempt at each size, the next log p - log(1 - p) for a right one.
    The last column breaks ties in favour of a shallow curve and a small lapse: at a cliff the data
    can't decide.
    """
    logit = _logits(candidates, log_size)
    lapse = candidates[:, 2:]
    # 1 - (1-lapse)·logistic = (e^-logit + lapse) / (1 + e^-logit), without loss where it is tiny
    numerator = np.logaddexp(-logit, np.log(np.maximum(lapse, 1e-300)))
    log_wrong = numerator - np.logaddexp(0, -logit)
    log_odds = np.log1p(-lapse) - numerator
    tie = -1e-3 * (candidates[:, 1:2] + lapse)
    return np.concatenate([log_wrong, log_odds, tie], axis=1)


def _rows(counts: Floats) -> Floats:
    """Flatten replicates × sizes × (attempts, right) to one row each, in the table's order."""
    rows = counts.transpose(0, 2, 1).reshape(len(counts), -1)
    return np.column_stack([rows, np.ones(len(rows))])


def _refit(table: Floats, rows: Floats) -> tuple[Ints, Floats]:
    """Return the index of the best candidate for each row, and its log likelihood."""
    best = np.empty(len(rows), dtype=np.int64)
    highest = np.empty(len(rows))
    for start in range(0, len(rows), 8):  # eight at a time stay in the processor's cache
        chunk = slice(start, start + 8)
        score = rows[chunk] @ table.T
        best[chunk] = score.argmax(axis=1)
        highest[chunk] = score[np.arange(len(score)), best[chunk]]
    return best, highest


def _climb(
    candidates: Floats, table: Floats, row: Floats, log_size: Floats
) -> tuple[Floats, float]:
    """Return the best parameters and their log likelihood, on ever finer grids around the best."""
    floor = candidates.min(axis=0)
    ceiling = candidates.max(axis=0)
    best = candidates[_refit(table, row[None])[0][0]]
    reach = (ceiling - floor) / 8
    for _ in range(40):
        lattice = _lattice(np.array([best - reach, best + reach]), (5, 5, 5))
        near = np.clip(lattice, floor, ceiling)
        score = _table(near, log_size) @ row
        best = near[score.argmax()]
        reach = reach * 0.7
    return best, float(score.max())


def _design_effect(counts: Floats, size_of: Ints, total: Floats) -> float:
    """Return Kish's design effect: the number of attempts per independent attempt.

    It is between 1 and the mean number of attempts per problem.
    """
    most = float(counts[:, 0].mean())
    accuracy = total[:, 1] / total[:, 0]
    problems = np.bincount(size_of)
    squares = summed((counts[:, 1] - counts[:, 0] * accuracy[size_of]) ** 2, size_of)
    repeated = problems > 1
    between = float((squares * problems / np.maximum(problems - 1, 1))[repeated].sum())
    binomial = float((total[:, 0] * accuracy * (1 - accuracy))[repeated].sum())
    if binomial > 0:
        return min(max(between / binomial, 1.0), most)
    return most


# --- No curve but an accuracy that never rises ---


def falling(value: Floats, weight: Floats) -> Floats:
    """Return the weighted least-squares fit that never rises (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # value, weight, number of entries
    for block_value, block_weight in zip(value.tolist(), weight.tolist(), strict=True):
        blocks.append((block_value, block_weight, 1))
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            b, weight_b, length_b = blocks.pop()
            a, weight_a, length_a = blocks.pop()
            pooled_weight = weight_a + weight_b
            pooled = (a * weight_a + b * weight_b) / pooled_weight
            blocks.append((pooled, pooled_weight, length_a + length_b))
    values = [block[0] for block in blocks]
    lengths = [block[2] for block in blocks]
    return np.repeat(values, lengths)


def steadiness(total: Floats, sizes: Floats, effect: float) -> Steady:
    """Test by likelihood ratio whether accuracy never rises with size.

    The null distribution is that of a constant accuracy, the hardest to tell from a rise: a mixture
    of chi-squared ones (Robertson, Wright & Dykstra 1988, with the weights for sizes of equally
    many attempts). `effect` is the design effect.
    """
    attempts = total[:, 0]
    accuracy = total[:, 1] / attempts
    free = log_likelihood(total, accuracy)
    ratio = 2 * float(free - log_likelihood(total, falling(accuracy, attempts))) / effect
    # levels[i]: the probability that a fit to k sizes has i + 1 different values
    levels = np.ones(1)
    for k in range(2, len(attempts) + 1):
        levels = (np.append(levels * (k - 1), 0.0) + np.insert(levels, 0, 0.0)) / k
    p_value = 1.0
    if ratio > 1e-9:
        p_value = sum(
            probability * chi2_tail(ratio, len(attempts) - i)
            for i, probability in enumerate(levels.tolist(), 1)
        )

    smooth = (total[:, 1] + 0.5) / (attempts + 1)
    variance = smooth * (1 - smooth) / attempts
    differences = accuracy[None] - accuracy[:, None]
    rises = differences / np.sqrt(variance[None] + variance[:, None])
    lower, upper = np.unravel_index(np.argmax(np.triu(rises, 1)), rises.shape)
    rise = (math.nan, math.nan)
    if lower < upper and rises[lower, upper] > 0:
        rise = (float(sizes[lower]), float(sizes[upper]))
    return Steady(p_value, rise)


def log_likelihood(total: Floats, chance: Floats) -> Floats:
    """Return the binomial log likelihood of … × sizes × (attempts, right), summed over sizes."""
    right = total[..., 1]
    wrong = total[..., 0] - right
    of_right = np.where(right > 0, right * np.log(np.maximum(chance, 1e-300)), 0.0)
    of_wrong = np.where(wrong > 0, wrong * np.log(np.maximum(1 - chance, 1e-300)), 0.0)
    return np.asarray((of_right + of_wrong).sum(axis=-1))


# --- The local fit ---


def local_fit(
    total: Floats, log_size: Floats, problems: Ints, effect: float, level: float
) -> Local | None:
    """Fit a logistic to the sizes nearest the crossing of one half.

    `problems` is the number of them at each size. Return None if there are fewer than three sizes,
    or accuracy does not cross one half.
    """
    crossing = _falling_crossing(total, log_size)
    if len(log_size) < NEAREST or math.isnan(crossing):
        return None
    by_distance = np.argsort(np.abs(log_size - crossing), kind="stable")
    nearest = np.sort(by_distance[:NEAREST])
    counts = total[nearest]
    x = log_size[nearest]
    line, information = fitted_lines(counts[None], x)
    quantile = t_quantile((1 + level) / 2, max(1, int(problems[nearest].sum()) - 2))
    low, high = _fieller(line[0], np.linalg.inv(information[0]) * effect, quantile)
    some_right = counts[:, 1] > 0
    some_wrong = counts[:, 1] < counts[:, 0]
    cliff = not (some_right & some_wrong).any() and not (some_right[1:] & some_wrong[:-1]).any()
    middle = float(x.mean())
    return Local(middle + zero_crossings(line)[0], middle + low, middle + high, nearest, cliff)


def _local_estimate(size: Estimate, local: Local, sizes: Floats) -> Estimate:
    """Return the critical size of the local fit, with the counts of `size`."""
    estimate = replace(
        size,
        value=math.exp(min(local.value, 700.0)),
        low=math.exp(min(local.low, 700.0)),
        high=math.exp(min(local.high, 700.0)),
    )
    return _within_sizes(estimate, sizes, local.cliff)


def _local_p_value(
    size: Estimate,
    local: Estimate,
    fitted: Local,
    log_size: Floats,
    resampled: Floats,
    redrawn: Floats,
) -> float:
    """Test the difference between the two critical sizes, on the same resampled problems.

    Return nan where it can't be tested: a cliff between two sizes has no shape to check, and an
    open local interval no spread to compare with.
    """
    bounded = local.low > 0 and math.isfinite(local.high) and not math.isnan(local.value)
    if not bounded or fitted.cliff or not math.isfinite(size.value):
        return math.nan
    x = log_size[fitted.nearest]
    lines = fitted_lines(resampled[:, fitted.nearest], x)[0]
    differences = x.mean() + zero_crossings(lines) - redrawn[:, 0]
    # A few replicates may not cross, so there is no standard deviation: half the central 68 %.
    spread = float(np.subtract(*np.nanquantile(differences, [0.84134, 0.15866]))) / 2
    if not spread > 0:
        return math.nan
    difference = abs(math.log(local.value / size.value))
    return math.erfc(difference / spread / math.sqrt(2))


def zero_crossings(lines: Floats) -> Floats:
    """Return where each line (intercept, slope) is 0; nan if it does not fall."""
    slope = np.where(lines[:, 1] < 0, lines[:, 1], math.nan)
    return np.asarray(-lines[:, 0] / slope)


def fitted_lines(total: Floats, log_size: Floats) -> tuple[Floats, Floats]:
    """Fit a logistic regression on centred log size to each replicate.

    `total` is replicates × sizes × (attempts, right). Return the lines, replicates × (intercept,
    slope), and their information, replicates × 2 × 2. Firth's (1993) penalty keeps the lines finite
    where all attempts are right or all are wrong.
    """
    x = np.column_stack([np.ones(len(log_size)), log_size - log_size.mean()])
    products = (x[:, :, None] * x[:, None, :]).reshape(len(x), 4)
    attempts = total[..., 0]
    right = total[..., 1]
    line = np.zeros((len(total), 2))
    scale = 10 / max(1e-12, float(np.abs(x[:, 1]).max()))
    longest_step = np.array([3, scale / 3])
    limit = np.array([30, 3 * scale])
    for _ in range(25):
        p = 1 / (1 + np.exp(-np.clip(line @ x.T, -30, 30)))
        weight = attempts * p * (1 - p) + 1e-12
        information = (weight @ products).reshape(-1, 2, 2)
        inverse = _inverse(information)
        leverage = weight * (inverse.reshape(-1, 4) @ products.T)
        gradient = (right - attempts * p + leverage * (0.5 - p)) @ x
        step = np.einsum("rij,rj->ri", inverse, gradient)
        line = np.clip(line + np.clip(step, -longest_step, longest_step), -limit, limit)
        if np.abs(step).max() < 1e-8:
            break
    return line, information


def _inverse(matrix: Floats) -> Floats:
    """Invert symmetric 2 × 2 matrices, in a third of the time that NumPy takes."""
    a = matrix[:, 0, 0]
    b = matrix[:, 0, 1]
    d = matrix[:, 1, 1]
    adjugate = np.stack([d, -b, -b, a], axis=1).reshape(-1, 2, 2)
    return np.asarray(adjugate / (a * d - b * b)[:, None, None])


def _falling_crossing(total: Floats, log_size: Floats) -> float:
    """Return where the best accuracy that never rises is one half, interpolated between sizes."""
    fit = falling(total[:, 1] / total[:, 0], total[:, 0])
    if fit[0] < 0.5 or fit[-1] > 0.5:
        return math.nan
    if fit[0] == fit[-1]:
        return float(log_size.mean())
    return float(np.interp(-0.5, -fit, log_size))


def _fieller(line: Floats, covariance: Floats, quantile: float) -> tuple[float, float]:
    """Return Fieller's (1954) interval of -intercept / slope; infinite where the slope may be 0.

    Its ends are the roots x of (intercept + slope·x)² = quantile² · Var(intercept + slope·x).
    """
    intercept, slope = line
    q2 = quantile**2
    # a·x² + 2·b·x + c = 0
    a = slope * slope - q2 * covariance[1, 1]
    if a <= 0 or slope >= 0:
        return -math.inf, math.inf
    b = intercept * slope - q2 * covariance[0, 1]
    c = intercept * intercept - q2 * covariance[0, 0]
    root = math.sqrt(max(0.0, b * b - a * c))
    return (-b - root) / a, (-b + root) / a


# --- The interval of the lapse rate ---


def lapse_interval(
    total: Floats, log_size: Floats, slopes: tuple[float, float], drop: float
) -> tuple[float, float]:
    """Return the lapse rates whose profile log likelihood is at most `drop` below the highest.

    The upper end is 1 if the highest rate here isn't excluded.
    """
    rates = LAPSE_RATES
    for _ in range(4):  # with many attempts, the interval may fit between two rates: look closer
        profile = _profile(total, log_size, slopes, rates)
        inside = np.flatnonzero(profile >= profile.max() - drop)
        first = max(0, int(inside[0]) - 1)
        last = min(len(rates) - 1, int(inside[-1]) + 1)
        if len(inside) >= 8:
            break
        rates = np.linspace(rates[first], rates[last], len(LAPSE_RATES))
    # The root of the drop is almost linear in the rate.
    root_drop = np.sqrt(np.maximum(profile.max() - profile, 0.0))
    low = 0.0
    if inside[0] > 0 or rates[0] > 0:
        ends = slice(first, first + 2)
        low = float(np.interp(-np.sqrt(drop), -root_drop[ends], rates[ends]))
    high = 1.0
    if inside[-1] < len(rates) - 1:
        ends = slice(last - 1, last + 1)
        high = float(np.interp(np.sqrt(drop), root_drop[ends], rates[ends]))
    return low, high


def _profile(total: Floats, log_size: Floats, slopes: tuple[float, float], rates: Floats) -> Floats:
    """Return the highest log likelihood for each lapse rate.

    For a fixed rate λ, p = (1 - λ) · logistic(intercept - slope · x), with x the centred log size.
    Fisher scoring, for all rates at once, with steps that shrink where they don't improve.
    """
    attempts = total[:, 0]
    right = total[:, 1]
    x = log_size - log_size.mean()
    without_lapse = (1 - rates)[:, None]
    steepest = slopes[1]
    longest_step = np.array([4, steepest / 4])

    def chance(lines: Floats) -> tuple[Floats, Floats]:
        """Return p and its derivative by the logit, rates × sizes."""
        logit = np.clip(lines[:, :1] - lines[:, 1:] * x, -500, 500)
        logistic = 1 / (1 + np.exp(-logit))
        derivative = np.asarray(without_lapse * logistic * (1 - logistic))
        return np.clip(without_lapse * logistic, 1e-12, 1 - 1e-12), derivative

    best, highest = _starting_lines(total, x, slopes, rates)
    scale = np.ones(len(rates))
    for _ in range(40):
        p, derivative = chance(best)
        variance = p * (1 - p)
        weight = attempts * derivative**2 / variance
        score = (right - attempts * p) * derivative / variance
        # the information [[a, b], [b, d]] and the gradient, by intercept and slope
        a = weight.sum(axis=1) + 1e-9
        b = -(weight @ x)
        d = weight @ x**2 + 1e-9
        by_intercept = score.sum(axis=1)
        by_slope = -(score @ x)
        determinant = np.maximum(a * d - b * b, 1e-12)
        solved = [d * by_intercept - b * by_slope, a * by_slope - b * by_intercept]
        step = np.stack(solved, axis=1) / determinant[:, None]
        tried = best + scale[:, None] * np.clip(step, -longest_step, longest_step)
        tried[:, 1] = np.clip(tried[:, 1], *slopes)
        likelihood = log_likelihood(total, chance(tried)[0])
        better = likelihood > highest
        best = np.where(better[:, None], tried, best)
        highest = np.where(better, likelihood, highest)
        scale = np.where(better, np.minimum(1.0, 2 * scale), scale / 4)
        if scale.max() < 1e-6:
            break
    return highest


def _starting_lines(
    total: Floats, x: Floats, slopes: tuple[float, float], rates: Floats
) -> tuple[Floats, Floats]:
    """Return the best line of a coarse lattice for each lapse rate, and its log likelihood.

    The lines are rates × (intercept, slope).
    """
    crossings = np.linspace(x[0] - 0.1, x[-1] + 0.1, 25)
    slope_grid, crossing_grid = np.meshgrid(np.geomspace(*slopes, 8), crossings, indexing="ij")
    slope = slope_grid.ravel()
    crossing = crossing_grid.ravel()
    logit = np.clip(slope[:, None] * (crossing[:, None] - x), -500, 500)
    logistic = 1 / (1 + np.exp(-logit))
    right = total[:, 1]
    wrong = total[:, 0] - right
    lines = np.zeros((len(rates), 2))
    highest = np.zeros(len(rates))
    for i, rate in enumerate(rates):
        p = np.clip((1 - rate) * logistic, 1e-12, 1 - 1e-12)
        score = np.log(p) @ right + np.log1p(-p) @ wrong
        k = int(score.argmax())
        lines[i] = slope[k] * crossing[k], slope[k]
        highest[i] = score[k]
    return lines, highest
