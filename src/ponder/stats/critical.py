"""The critical size, at which accuracy falls below 50 %, from a psychometric curve of accuracy
against size.

p(size) = (1 - lapse) · logistic(slope · (log c - log size)), lapse in [0, 0.45], by maximum
likelihood; after Wichmann & Hill (2001), with the critical size where p itself, not the logistic,
is one half. Problems of one size weigh the same, however many attempts each has.

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
HIGHEST = 0.45  # lapse rate; at 0.5 accuracy would never be above one half
RATES = np.concatenate([[0.0], np.geomspace(1e-4, HIGHEST, 36)])


@dataclass(frozen=True, slots=True)
class Critical:
    """The value of `size` is nan if accuracy does not cross 50 % within the sizes measured."""

    size: Estimate
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


def critical_size(
    data: Columns, level: float = 0.95, replicates: int = 1000, seed: int = 0
) -> Critical:
    sizes = np.unique(data.size)
    if len(sizes) < 2 or sizes[0] <= 0:
        unknown = Estimate(math.nan, 0.0, math.inf, len(data), data.problems)
        lapse = Estimate(math.nan, 0.0, 1.0, len(data), data.problems)
        return Critical(
            unknown,
            unknown,
            lapse,
            None,
            unknown,
            math.nan,
            math.nan,
            math.nan,
            (math.nan, math.nan),
        )
    size_of, log_size = data.size_of_problem, np.log(sizes)
    counts = counts_by_problem(data)
    total = summed(counts, size_of)
    row, effect = _flat(total[None]), _design_effect(counts, size_of, total)
    # Half of a chi-squared with three degrees of freedom exceeds 12 once in 40,000 times:
    # replicates stay within.
    grid = _zoom(_box(log_size), row[0], log_size, within=12 * effect)
    table = _table(grid, log_size)
    best, top = _climb(grid, table, row[0], log_size)
    drop = effect * z_quantile((1 + level) / 2) ** 2 / 2
    likely = grid[table @ row[0] >= top - drop]
    resampled = resampled_sums(counts, size_of, replicates, seed)
    redrawn = grid[_refit(table, _flat(resampled))[0]]
    found = _report(data, best, likely, redrawn, level)
    shallowest, steepest = np.exp(_box(log_size)[:, 1])
    low, high = lapse_interval(total, log_size, (shallowest, steepest), drop)
    value, steady = found.lapse.value, steadiness(total, sizes, effect)
    # it rises: no size is critical
    if steady.p_value < 1 - level and best[1] <= math.log(shallowest) + 1e-6:
        found = replace(found, size=replace(found.size, value=math.nan, low=0.0, high=math.inf))
    found = replace(
        found,
        lapse=replace(found.lapse, low=min(low, value), high=max(high, value)),
        fit_p_value=_fit_p_value(table, total, _accuracy(best[None], log_size)[0], effect, seed),
        steady_p_value=steady.p_value,
        rise=steady.rise,
    )
    local = local_fit(total, log_size, np.bincount(size_of), effect, level)
    return found if local is None else _compared(found, local, sizes, resampled, redrawn)


def counts_by_problem(data: Columns) -> Floats:
    """(Attempts, right) by problem, scaled so that every problem of a size has the mean number of
    attempts.
    """
    size_of = data.size_of_problem
    counts = summed(np.column_stack([np.ones(len(data)), data.correct]), data.problem)
    mean = np.bincount(size_of, weights=counts[:, 0]) / np.bincount(size_of)
    return np.asarray(counts * (mean[size_of] / counts[:, 0])[:, None])


def redrawn_log_sizes(data: Columns, resampled: Floats) -> Floats:
    """The log critical size of each replicate; `resampled` is replicates × sizes × (attempts,
    right).
    """
    size_of, log_size, counts = (
        data.size_of_problem,
        np.log(np.unique(data.size)),
        counts_by_problem(data),
    )
    total = summed(counts, size_of)
    grid = _zoom(
        _box(log_size), _flat(total[None])[0], log_size, 12 * _design_effect(counts, size_of, total)
    )
    return np.asarray(grid[_refit(_table(grid, log_size), _flat(resampled))[0], 0])


def _compared(
    found: Critical, local: Local, sizes: Floats, resampled: Floats, redrawn: Floats
) -> Critical:
    """With the local estimate, and a test of its difference from the critical size, both on the
    same redrawn problems.

    A cliff between two sizes has no shape to check, and an open local interval no spread to compare
    with.
    """
    value, low, high = (math.exp(min(end, 700.0)) for end in (local.value, local.low, local.high))
    estimate = _within(replace(found.size, value=value, low=low, high=high), sizes, local.cliff)
    p_value = math.nan
    bounded = estimate.low > 0 and math.isfinite(estimate.high) and not math.isnan(estimate.value)
    if bounded and not local.cliff and math.isfinite(found.size.value):
        log_size = np.log(sizes[local.nearest])
        again = (
            log_size.mean()
            + crossed(fitted_lines(resampled[:, local.nearest], log_size)[0])
            - redrawn[:, 0]
        )
        # a few may not cross: no sd
        spread = float(np.subtract(*np.nanquantile(again, [0.84134, 0.15866]))) / 2
        apart = abs(math.log(estimate.value / found.size.value))
        p_value = math.erfc(apart / spread / math.sqrt(2)) if spread > 0 else math.nan
    return replace(found, local=estimate, local_p_value=p_value)


def _report(data: Columns, best: Floats, likely: Floats, redrawn: Floats, level: float) -> Critical:
    def estimate(value: float, among: Floats, again: Floats) -> Estimate:
        low, high = (float(end[0]) for end in _wider(among[:, None], again[:, None], level))
        return Estimate(value, min(value, low), max(value, high), len(data), data.problems)

    sizes = np.unique(data.size)
    x = drawing_sizes(sizes)
    value = _accuracy(best[None], np.log(x))[0]
    low, high = _wider(_accuracy(likely, np.log(x)), _accuracy(redrawn, np.log(x)), level)
    curve = draw_curve(x, value, np.minimum(low, value), np.maximum(high, value))
    size, slope = (
        estimate(math.exp(best[i]), np.exp(likely[:, i]), np.exp(redrawn[:, i])) for i in (0, 1)
    )
    shallowest, steepest = np.exp(_box(np.log(sizes))[:, 1])
    cliff = slope.high >= steepest * (1 - 1e-9)
    size = _within(size, sizes, cliff)
    slope = replace(
        slope,
        value=slope.value if math.isfinite(size.value) else math.nan,
        low=slope.low if slope.low > shallowest * (1 + 1e-9) else 0.0,
        high=math.inf if cliff else slope.high,
    )
    lapse, unknown = (
        replace(size, value=float(best[2])),
        replace(size, value=math.nan, low=0.0, high=math.inf),
    )
    return Critical(
        size, slope, lapse, curve, unknown, math.nan, math.nan, math.nan, (math.nan, math.nan)
    )


def _fit_p_value(
    table: Floats, total: Floats, chance: Floats, effect: float, seed: int, replicates: int = 200
) -> float:
    """How often data drawn from the fitted curve, as many as are independent, fit a curve as badly
    as the data do.
    """
    n = np.maximum(1, np.round(total[:, 0] / effect))
    right = np.random.default_rng(seed).binomial(
        n.astype(np.int64), np.clip(chance, 0, 1), (replicates, len(n))
    )
    drawn = np.stack([np.broadcast_to(n, right.shape), right], axis=-1)

    def misfit(counts: Floats) -> Floats:
        return (
            log_likelihood(counts, counts[..., 1] / counts[..., 0])
            - _refit(table, _flat(counts))[1]
        )

    own = float(misfit(total[None])[0]) / effect
    return float(1 + np.count_nonzero(misfit(drawn) >= own - 1e-9)) / (replicates + 1)


def _wider(likely: Floats, redrawn: Floats, level: float) -> tuple[Floats, Floats]:
    low, high = np.quantile(redrawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    if len(likely):
        low, high = np.minimum(low, likely.min(axis=0)), np.maximum(high, likely.max(axis=0))
    return low, high


def _within(critical: Estimate, sizes: Floats, cliff: bool) -> Estimate:
    """Opens the ends beyond the sizes measured; at a possible cliff, widens the interval to the
    sizes around it.
    """
    first, last = float(sizes[0]), float(sizes[-1])
    low, high = min(critical.low, last), max(critical.high, first)
    if cliff:
        low = (
            float(sizes[max(0, int(np.searchsorted(sizes, low, side="right")) - 1)])
            if low >= first
            else low
        )
        high = float(sizes[int(np.searchsorted(sizes, high))]) if high <= last else high
    return replace(
        critical,
        # Where accuracy is exactly 50 % at the first or last size, rounding may put the value just
        # outside.
        value=critical.value
        if first * (1 - 1e-6) <= critical.value <= last * (1 + 1e-6)
        else math.nan,
        low=low if low >= first else 0.0,
        high=high if high <= last else math.inf,
    )


def _box(log_size: Floats) -> Floats:
    """Bounds of the parameters: log of the critical size, log of the slope, lapse."""
    first, last = log_size[0], log_size[-1]
    span, gap = last - first, float(np.diff(log_size).min())
    # The slope ranges from almost flat over all sizes to a cliff between the two nearest ones.
    return np.array(
        [[first - span, math.log(0.5 / span), 0.0], [last + span, math.log(10 / gap), HIGHEST]]
    )


def _lattice(box: Floats, points: tuple[int, int, int]) -> Floats:
    """A regular grid of parameters, one candidate per row."""
    axes = [np.linspace(low, high, n) for low, high, n in zip(*box, points, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def _zoom(box: Floats, row: Floats, log_size: Floats, within: float) -> Floats:
    """A fine grid of the candidates whose log likelihood is `within` this much of the best."""
    points = (49, 13, 5)
    whole = box
    for _ in range(5):  # with more attempts, a smaller part of the box is likely
        grid = _lattice(box, points)
        score = _table(grid, log_size) @ row
        near = grid[score >= score.max() - within]
        step = (box[1] - box[0]) / (np.array(points) - 1)
        box = np.clip([near.min(axis=0) - step, near.max(axis=0) + step], *whole)
    grid = _lattice(box, (141, 21, 7))
    score = _table(grid, log_size) @ row
    return np.asarray(grid[score >= score.max() - within])


def _logits(grid: Floats, log_size: Floats) -> Floats:
    half = -np.log(1 - 2 * grid[:, 2:])  # the logit of 0.5 / (1 - lapse)
    return np.exp(grid[:, 1:2]) * (grid[:, :1] - log_size) + half


def _accuracy(grid: Floats, log_size: Floats) -> Floats:
    return np.asarray(
        (1 - grid[:, 2:]) / (1 + np.exp(-np.clip(_logits(grid, log_size), -500, 500)))
    )


def _table(grid: Floats, log_size: Floats) -> Floats:
    """One row per candidate: what one attempt at each size, and its being right, adds to the log
    likelihood.

    The last column breaks ties in favour of a shallow curve and a small lapse: at a cliff the data
    can't decide.
    """
    logit, lapse = _logits(grid, log_size), grid[:, 2:]
    # 1 - (1-lapse)·logistic = (e^-logit + lapse) / (1 + e^-logit), without loss where it is tiny
    wrong = np.logaddexp(-logit, np.log(np.maximum(lapse, 1e-300)))
    tie = -1e-3 * (grid[:, 1:2] + lapse)
    return np.concatenate([wrong - np.logaddexp(0, -logit), np.log1p(-lapse) - wrong, tie], axis=1)


def _flat(counts: Floats) -> Floats:
    """Replicates × sizes × (attempts, right) as one row per replicate, in the order of the table's
    columns.
    """
    rows = counts.transpose(0, 2, 1).reshape(len(counts), -1)
    return np.column_stack([rows, np.ones(len(rows))])


def _refit(table: Floats, rows: Floats) -> tuple[Ints, Floats]:
    """The best candidate for each replicate and its log likelihood, eight at a time to stay in the
    cache.
    """
    best, top = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))
    for a in range(0, len(rows), 8):
        score = rows[a : a + 8] @ table.T
        best[a : a + 8] = score.argmax(axis=1)
        top[a : a + 8] = score[np.arange(len(score)), best[a : a + 8]]
    return best, top


def _climb(grid: Floats, table: Floats, row: Floats, log_size: Floats) -> tuple[Floats, float]:
    """The best parameters and their log likelihood, on ever finer grids around the best candidate."""
    floor, ceiling = grid.min(axis=0), grid.max(axis=0)
    best, reach = grid[_refit(table, row[None])[0][0]], (ceiling - floor) / 8
    for _ in range(40):
        near = np.clip(_lattice(np.array([best - reach, best + reach]), (5, 5, 5)), floor, ceiling)
        score = _table(near, log_size) @ row
        best, reach = near[score.argmax()], reach * 0.7
    return best, float(score.max())


def _design_effect(counts: Floats, size_of: Ints, total: Floats) -> float:
    """Kish's design effect: attempts per independent attempt, from 1 to the mean number of attempts
    per problem.
    """
    right, problems, most = (
        total[:, 1] / total[:, 0],
        np.bincount(size_of),
        float(counts[:, 0].mean()),
    )
    spread = summed((counts[:, 1] - counts[:, 0] * right[size_of]) ** 2, size_of)
    several = problems > 1
    between = float((spread * problems / np.maximum(problems - 1, 1))[several].sum())
    alone = float((total[:, 0] * right * (1 - right))[several].sum())
    return min(max(between / alone, 1.0), most) if alone > 0 else most


def falling(value: Floats, weight: Floats) -> Floats:
    """The weighted least-squares fit that never rises (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for one, its_weight in zip(value.tolist(), weight.tolist(), strict=True):
        blocks.append((one, its_weight, 1))
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return np.repeat([block[0] for block in blocks], [block[2] for block in blocks])


def steadiness(total: Floats, sizes: Floats, effect: float) -> Steady:
    """A likelihood-ratio test of (attempts, right) by size against every accuracy that never rises.

    Its null distribution is that of a constant accuracy, the hardest to tell from a rise: a mixture
    of chi-squared ones (Robertson, Wright & Dykstra 1988, with the weights for sizes of equally
    many attempts). `effect` is the design effect.
    """
    n, own = total[:, 0], total[:, 1] / total[:, 0]
    ratio = 2 * float(log_likelihood(total, own) - log_likelihood(total, falling(own, n))) / effect
    # levels[i]: the probability that a fit to k sizes has i + 1 different values
    levels = np.ones(1)
    for k in range(2, len(n) + 1):
        levels = (np.append(levels * (k - 1), 0.0) + np.insert(levels, 0, 0.0)) / k
    p_value = (
        sum(p * chi2_tail(ratio, len(n) - i) for i, p in enumerate(levels.tolist(), 1))
        if ratio > 1e-9
        else 1.0
    )
    smooth = (total[:, 1] + 0.5) / (n + 1)
    variance = smooth * (1 - smooth) / n
    rises = (own[None] - own[:, None]) / np.sqrt(variance[None] + variance[:, None])
    lower, upper = np.unravel_index(np.argmax(np.triu(rises, 1)), rises.shape)
    some = lower < upper and rises[lower, upper] > 0
    return Steady(
        p_value, (float(sizes[lower]), float(sizes[upper])) if some else (math.nan, math.nan)
    )


def log_likelihood(total: Floats, chance: Floats) -> Floats:
    """Of (attempts, right) by size, for the last two axes of `total`."""
    right, wrong = total[..., 1], total[..., 0] - total[..., 1]
    some = np.where(right > 0, right * np.log(np.maximum(chance, 1e-300)), 0.0)
    return np.asarray(
        (some + np.where(wrong > 0, wrong * np.log(np.maximum(1 - chance, 1e-300)), 0.0)).sum(
            axis=-1
        )
    )


def local_fit(
    total: Floats, log_size: Floats, problems: Ints, effect: float, level: float
) -> Local | None:
    """None if there are fewer than three sizes, or accuracy does not cross one half."""
    crossing = _crossing(total, log_size)
    if len(log_size) < NEAREST or math.isnan(crossing):
        return None
    nearest = np.sort(np.argsort(np.abs(log_size - crossing), kind="stable")[:NEAREST])
    part, at = total[nearest], log_size[nearest]
    line, information = fitted_lines(part[None], at)
    quantile = t_quantile((1 + level) / 2, max(1, int(problems[nearest].sum()) - 2))
    low, high = _fieller(line[0], np.linalg.inv(information[0]) * effect, quantile)
    right, wrong = part[:, 1] > 0, part[:, 1] < part[:, 0]
    cliff = not (right & wrong).any() and not (right[1:] & wrong[:-1]).any()
    middle = float(at.mean())
    return Local(middle + crossed(line)[0], middle + low, middle + high, nearest, cliff)


def crossed(lines: Floats) -> Floats:
    """Where each line is 0, as a distance from the middle; nan if it does not fall."""
    slope = np.where(lines[:, 1] < 0, lines[:, 1], math.nan)
    return np.asarray(-lines[:, 0] / slope)


def fitted_lines(total: Floats, log_size: Floats) -> tuple[Floats, Floats]:
    """Logistic regressions of replicates × sizes × (attempts, right) on centred log size, and their
    information.

    Firth's (1993) penalty keeps them finite where all are right or all are wrong.
    """
    x = np.column_stack([np.ones(len(log_size)), log_size - log_size.mean()])
    products = (x[:, :, None] * x[:, None, :]).reshape(len(x), 4)
    n, right = total[..., 0], total[..., 1]
    line = np.zeros((len(total), 2))
    scale = 10 / max(1e-12, float(np.abs(x[:, 1]).max()))
    for _ in range(25):
        p = 1 / (1 + np.exp(-np.clip(line @ x.T, -30, 30)))
        weight = n * p * (1 - p) + 1e-12
        information = (weight @ products).reshape(-1, 2, 2)
        inverse = _inverse(information)
        leverage = weight * (inverse.reshape(-1, 4) @ products.T)
        step = np.einsum("rij,rj->ri", inverse, (right - n * p + leverage * (0.5 - p)) @ x)
        line = np.clip(
            line + np.clip(step, [-3, -scale / 3], [3, scale / 3]),
            [-30, -3 * scale],
            [30, 3 * scale],
        )
        if np.abs(step).max() < 1e-8:
            break
    return line, information


def _inverse(matrix: Floats) -> Floats:
    """Of 2 × 2 matrices: a third of the time of NumPy's."""
    a, b, d = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 1]
    return np.asarray(
        np.stack([d, -b, -b, a], axis=1).reshape(-1, 2, 2) / (a * d - b * b)[:, None, None]
    )


def _crossing(total: Floats, log_size: Floats) -> float:
    """Where the best accuracy that never rises is one half, interpolated between sizes."""
    fit = falling(total[:, 1] / total[:, 0], total[:, 0])
    if fit[0] < 0.5 or fit[-1] > 0.5:
        return math.nan
    return float(np.interp(-0.5, -fit, log_size)) if fit[0] > fit[-1] else float(log_size.mean())


def _fieller(line: Floats, covariance: Floats, quantile: float) -> tuple[float, float]:
    """The ends of the interval of -intercept / slope; infinite where the slope may be 0."""
    (a, b), q2 = line, quantile**2
    square = b * b - q2 * covariance[1, 1]
    if square <= 0 or b >= 0:
        return -math.inf, math.inf
    half, rest = a * b - q2 * covariance[0, 1], a * a - q2 * covariance[0, 0]
    root = math.sqrt(max(0.0, half * half - square * rest))
    return (-half - root) / square, (-half + root) / square


def lapse_interval(
    total: Floats, log_size: Floats, slopes: tuple[float, float], drop: float
) -> tuple[float, float]:
    """The lapses whose best log likelihood is at most `drop` below the highest; (attempts, right)
    by size in `total`.

    The upper end is 1 if the highest rate here isn't excluded.
    """
    rates = RATES
    for _ in range(4):  # with many attempts, the interval may fit between two rates: look closer
        profile = _profile(total, log_size, slopes, rates)
        inside = np.flatnonzero(profile >= profile.max() - drop)
        first, last = max(0, int(inside[0]) - 1), min(len(rates) - 1, int(inside[-1]) + 1)
        if len(inside) >= 8:
            break
        rates = np.linspace(rates[first], rates[last], len(RATES))
    # The root of the drop is almost linear in the rate.
    far = np.sqrt(np.maximum(profile.max() - profile, 0.0))
    low = (
        0.0
        if inside[0] == 0 and rates[0] == 0
        else float(np.interp(-np.sqrt(drop), -far[first:][:2], rates[first:][:2]))
    )
    if inside[-1] == len(rates) - 1:
        return low, 1.0
    return low, float(
        np.interp(np.sqrt(drop), far[last - 1 : last + 1], rates[last - 1 : last + 1])
    )


def _profile(total: Floats, log_size: Floats, slopes: tuple[float, float], rates: Floats) -> Floats:
    """For each rate the highest log likelihood, by Fisher scoring with steps that halve where they
    don't improve.
    """
    n, right, x = total[:, 0], total[:, 1], log_size - log_size.mean()
    keep = (1 - rates)[:, None]

    def chance(line: Floats) -> tuple[Floats, Floats]:
        rest = 1 / (1 + np.exp(-np.clip(line[:, :1] - line[:, 1:] * x, -500, 500)))
        return np.clip(keep * rest, 1e-12, 1 - 1e-12), np.asarray(keep * rest * (1 - rest))

    best, found = _starts(total, x, slopes, rates)
    step, scale = np.zeros_like(best), np.ones(len(rates))
    for _ in range(40):
        p, rise = chance(best)
        weight, pull = n * rise**2 / (p * (1 - p)), (right - n * p) * rise / (p * (1 - p))
        a, b, d = weight.sum(axis=1) + 1e-9, -(weight @ x), weight @ x**2 + 1e-9
        first, second = pull.sum(axis=1), -(pull @ x)
        determinant = np.maximum(a * d - b * b, 1e-12)
        step = (
            np.stack([d * first - b * second, a * second - b * first], axis=1)
            / determinant[:, None]
        )
        tried = best + scale[:, None] * np.clip(step, [-4, -slopes[1] / 4], [4, slopes[1] / 4])
        tried[:, 1] = np.clip(tried[:, 1], *slopes)
        score = log_likelihood(total, chance(tried)[0])
        better = score > found
        best, found = np.where(better[:, None], tried, best), np.where(better, score, found)
        scale = np.where(better, np.minimum(1.0, 2 * scale), scale / 4)
        if scale.max() < 1e-6:
            break
    return found


def _starts(
    total: Floats, x: Floats, slopes: tuple[float, float], rates: Floats
) -> tuple[Floats, Floats]:
    """The best of a coarse lattice for each rate."""
    places, steep = np.linspace(x[0] - 0.1, x[-1] + 0.1, 25), np.geomspace(*slopes, 8)
    slope, place = (axis.ravel() for axis in np.meshgrid(steep, places, indexing="ij"))
    rest = 1 / (1 + np.exp(-np.clip(slope[:, None] * (place[:, None] - x), -500, 500)))
    right, wrong = total[:, 1], total[:, 0] - total[:, 1]
    best, found = np.zeros((len(rates), 2)), np.zeros(len(rates))
    for i, rate in enumerate(rates):
        p = np.clip((1 - rate) * rest, 1e-12, 1 - 1e-12)
        score = np.log(p) @ right + np.log1p(-p) @ wrong
        k = int(score.argmax())
        best[i], found[i] = (slope[k] * place[k], slope[k]), score[k]
    return best, found
