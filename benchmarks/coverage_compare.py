"""How often the 95 % intervals of `ponder compare` hold the truth, and whether predicted power is
reached.

    python benchmarks/coverage.py compare -r 400

Two models on the same problems share each problem's difficulty. Accuracy: the difference, and how
often a model that is worse by exactly the margin is called not worse (nominal 2.5 %). Tokens:
lognormal with a shared part and a common cap. Critical sizes: logistic curves. Power: runs of the
size that `power` asks for, which should reach 80 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import Columns
from ponder.stats.compare import difference_in_accuracy
from ponder.stats.frontier import Variant, accuracy_difference
from ponder.stats.power import Components, of_two, problems_for_margin
from ponder.stats.ratios import Pair, Side, both_right, critical_ratio, per_right, token_logs

Row = tuple[str, float, float, int]
SIZES = np.array([16.0, 20, 25, 30, 36, 42, 49, 56, 64, 72, 81, 90, 100])
MARGIN = 0.03


def variant(right: np.ndarray, tokens: np.ndarray | None = None, seeds: int = 1) -> Variant:
    """From seeds × problems × samples."""
    seed, problem, _ = (x.ravel() for x in np.indices(right.shape))
    names = tuple((i,) for i in range(seeds)) if seeds > 1 else ()
    spent = np.ones(right.size) if tokens is None else tokens.ravel()
    return Variant("", names, seed, problem, spent, right.ravel(), 0.0, 0.0)


def covered(estimates: Sequence[Estimate], true: float) -> tuple[float, float]:
    hits = [e.low <= true <= e.high for e in estimates]
    return float(np.mean(hits)), float(np.mean([e.high - e.low for e in estimates]))


def discordant(
    replicates: int, seed: int, problems: int, apart: float, difference: float
) -> Iterator[Row]:
    """One attempt each; `apart` is the fraction of problems that one of them alone gets right."""
    rng = np.random.default_rng([seed, problems, int(1000 * apart), int(1000 * abs(difference))])
    better, worse = (apart + difference) / 2, (apart - difference) / 2
    score, adjusted = [], []
    for _ in range(replicates):
        kind = rng.choice(3, problems, p=[better, worse, 1 - apart])
        agreed = rng.random(problems) < 0.8
        one, other = np.where(kind == 2, agreed, kind == 1), np.where(kind == 2, agreed, kind == 0)
        first, second = (variant(x[None, :, None]) for x in (one, other))
        score.append(difference_in_accuracy(first, second)(0.95))
        adjusted.append(accuracy_difference(second, first))
    told = f"{problems} problems, {apart:.1%} discordant, B {100 * difference:+g} points"
    yield f"accuracy, Tango: {told}", *covered(score, difference), replicates
    yield f"accuracy, Bonett-Price: {told}", *covered(adjusted, difference), replicates
    if difference == -MARGIN:
        for name, found in (("Tango", score), ("Bonett-Price", adjusted)):
            rate = float(np.mean([e.low > -MARGIN for e in found]))
            yield f"called not worse, {name}: {told}", rate, math.nan, replicates


def chances(
    rng: np.random.Generator, problems: int, gap: float, interaction: float = 0.5
) -> tuple[np.ndarray, ...]:
    """The chance of a right answer of each model at each problem."""
    shared = rng.normal(1.0, 1.5, problems)
    own = rng.normal(0, interaction, (2, problems))
    return 1 / (1 + np.exp(-shared - own[0])), 1 / (1 + np.exp(-shared - gap - own[1]))


def several(
    replicates: int,
    seed: int,
    problems: int,
    samples: tuple[int, int],
    seeds: tuple[int, int] = (1, 1),
) -> Iterator[Row]:
    """Several samples, also unequal ones, and training seeds that differ by 0.3 in log odds."""
    rng = np.random.default_rng([seed, problems, *samples, *seeds])
    many = chances(np.random.default_rng(0), 400_000, 0.4)
    luck = 0.3 * np.random.default_rng(1).normal(size=400_000)
    true = [
        float((1 / (1 + np.exp(-np.log(p / (1 - p)) - luck))).mean() if s > 1 else p.mean())
        for p, s in zip(many, seeds, strict=True)
    ]
    found = []
    for _ in range(replicates):
        pair = []
        for p, m, s in zip(chances(rng, problems, 0.4), samples, seeds, strict=True):
            odds = np.log(p / (1 - p)) + (rng.normal(0, 0.3, (s, 1)) if s > 1 else np.zeros((1, 1)))
            pair.append(
                variant(rng.random((s, problems, m)) < 1 / (1 + np.exp(-odds[..., None])), seeds=s)
            )
        found.append(difference_in_accuracy(*pair)(0.95))
    design = f"{problems} problems, samples {samples[0]} and {samples[1]}"
    design += f", seeds {seeds[0]} and {seeds[1]}"
    yield f"accuracy: {design}", *covered(found, true[1] - true[0]), replicates


def sized(
    rng: np.random.Generator,
    problems: int,
    samples: int,
    ratio: float,
    cut: float,
    critical: tuple[float, float] = (45.0, 45.0),
    slope: float = 5.0,
    sizes: np.ndarray = SIZES,
) -> Pair:
    """Problems at each size; tokens of spread 0.6, half of their variance shared; a cap that cuts
    `cut` of A.
    """
    size, n = np.repeat(sizes, problems), len(sizes) * problems
    hard, long = rng.normal(size=(2, n))
    cap = _cap(cut, sizes)
    sides = []
    for factor, at in ((1.0, critical[0]), (ratio, critical[1])):
        noise = (long[:, None] + rng.normal(size=(n, samples))) / math.sqrt(2)
        tokens = factor * np.exp(5 + 1.2 * np.log(size / 36)[:, None] + 0.6 * noise)
        odds = slope * np.log(at / size) + hard
        over = tokens > cap
        right = (rng.random((n, samples)) < 1 / (1 + np.exp(-odds[:, None]))) & ~over
        spent = np.minimum(tokens, cap)
        flat = [x.ravel() for x in (right, np.zeros_like(over), over, spent)]
        data = Columns(
            np.repeat(size, samples), np.repeat(np.arange(n), samples), *flat, np.array([])
        )
        sides.append(Side(data, variant(right[None], spent[None]), None, 0, 0))
    return Pair(*sides)


def _cap(cut: float, sizes: np.ndarray) -> float:
    if not cut:
        return math.inf
    many = np.random.default_rng(0).normal(size=100_000)
    drawn = np.exp(5 + 1.2 * np.log(np.resize(sizes, 100_000) / 36) + 0.6 * many)
    return float(np.quantile(drawn, 1 - cut))


def ratios(
    replicates: int, seed: int, problems: int, samples: int, cut: float, sizes: np.ndarray
) -> Iterator[Row]:
    """A true ratio of tokens of 0.7."""
    rng = np.random.default_rng([seed, problems, samples, int(100 * cut), len(sizes)])
    names = ("tokens", "tokens at the largest size", "tokens where both are right")
    found: dict[str, list[Estimate]] = {name: [] for name in names}
    naive = []
    for _ in range(replicates):
        pair = sized(rng, problems, samples, 0.7, cut, sizes=sizes)
        logs, solved = token_logs(pair), both_right(pair)
        assert logs
        assert solved
        for name, (one, other) in zip(names, (logs.overall, logs.by_size[-1], solved), strict=True):
            found[name].append(other.over(one)(0.95))
        naive.append(float(pair.second.data.tokens.mean() / pair.first.data.tokens.mean()))
    told = f"{len(sizes)} × {problems} × {samples}, {cut:.0%} cut"
    for name, estimates in found.items():
        yield f"ratio of {name}: {told}", *covered(estimates, 0.7), replicates
    yield (
        f"ratio of mean tokens, on average (true 0.7): {told}",
        float(np.mean(naive)),
        math.nan,
        replicates,
    )


def seeded(replicates: int, seed: int, problems: int, seeds: int) -> Iterator[Row]:
    """B has training seeds, whose log tokens differ by 0.1 and log odds by 0.3; the true ratio is
    0.7.
    """
    rng = np.random.default_rng([seed, problems, seeds, 9])
    names = ("tokens", "tokens per right answer")
    found: dict[str, list[Estimate]] = {name: [] for name in names}
    for _ in range(replicates):
        hard, long = rng.normal(size=(2, problems))
        sides = []
        for s, factor in ((1, 1.0), (seeds, 0.7)):
            luck, wordy = (
                rng.normal(0, x, (s, 1)) if s > 1 else np.zeros((1, 1)) for x in (0.3, 0.1)
            )
            right = rng.random((s, problems)) < 1 / (1 + np.exp(-1 - hard - luck))
            noise = rng.normal(0, 0.4, (s, problems))
            tokens = factor * np.exp(5 + 0.4 * long + noise + wordy)
            order = np.argsort(np.indices(right.shape)[1].ravel(), kind="stable")
            none = np.zeros(right.size, dtype=bool)
            flat = right.ravel()[order], none, none, tokens.ravel()[order]
            data = Columns(
                np.full(right.size, 36.0), np.repeat(np.arange(problems), s), *flat, np.array([])
            )
            sides.append(Side(data, variant(right[..., None], tokens[..., None], s), None, 0, 0))
        logs, (one, other) = token_logs(Pair(*sides)), (per_right(side) for side in sides)
        assert logs
        assert one
        assert other
        found["tokens"].append(logs.overall[1].over(logs.overall[0])(0.95))
        found["tokens per right answer"].append(other.over(one)(0.95))
    odds = np.random.default_rng(0).normal(1, 1, 400_000)
    luck, wordy = (
        0.3 * np.random.default_rng(1).normal(size=400_000),
        0.1 * np.random.default_rng(2).normal(size=400_000),
    )
    accuracy = [float((1 / (1 + np.exp(-x))).mean()) for x in (odds, odds + luck)]
    truths = 0.7, 0.7 * float(np.exp(wordy).mean()) * accuracy[0] / accuracy[1]
    for name, true in zip(names, truths, strict=True):
        told = f"ratio of {name}: {problems} problems, B with {seeds} seeds"
        yield told, *covered(found[name], true), replicates


def cost(replicates: int, seed: int, problems: int) -> Iterator[Row]:
    """The cost of a right answer, whose truth is that of very many problems."""
    rng = np.random.default_rng([seed, problems, 7])
    many = sized(np.random.default_rng(0), 8000, 1, 0.7, 0.1, (45.0, 50.0))
    true = [side.data.tokens.mean() / side.data.correct.mean() for side in many.sides]
    found = []
    for _ in range(replicates):
        one, other = (
            per_right(side) for side in sized(rng, problems, 1, 0.7, 0.1, (45.0, 50.0)).sides
        )
        assert one
        assert other
        found.append(other.over(one)(0.95))
    yield (
        f"ratio of tokens per right answer: 13 × {problems}",
        *covered(found, true[1] / true[0]),
        replicates,
    )


def critical(
    replicates: int, seed: int, problems: int, slope: float, second: float
) -> Iterator[Row]:
    rng = np.random.default_rng([seed, problems, int(10 * slope), int(second)])
    found, none = [], 0
    for _ in range(replicates):
        ratio = critical_ratio(
            sized(rng, problems, 1, 1.0, 0.0, (40.0, second), slope), replicates=500
        )
        if isinstance(ratio, str):
            none += 1
        else:
            found.append(ratio.ratio(0.95))
    told = f"13 × {problems}, slope {slope:g}, true {second / 40:g}" + (
        f" ({none} without one)" if none else ""
    )
    yield f"ratio of critical sizes: {told}", *covered(found, second / 40), len(found)


def power(
    replicates: int, seed: int, samples: int, seeds: tuple[int, int] = (1, 1), spread: float = 0.0
) -> Iterator[Row]:
    """Equal models: how often a run of as many problems as `power` asks for shows that B is not
    worse by 3 points.
    """
    rng = np.random.default_rng([seed, samples, *seeds, int(100 * spread)])

    def model(p: np.ndarray, s: int) -> Variant:
        odds = np.log(p / (1 - p)) + (rng.normal(0, spread, (s, 1)) if s > 1 else np.zeros((1, 1)))
        shape = (s, len(p), samples)
        return variant(
            rng.random(shape) < np.broadcast_to(1 / (1 + np.exp(-odds[..., None])), shape), seeds=s
        )

    true = _true_components(seeds, spread)
    problems = int(problems_for_margin(true, MARGIN, samples, max(seeds)))
    shown, pilot = [], []
    for _ in range(replicates):
        both = [model(p, s) for p, s in zip(chances(rng, problems, 0.0), seeds, strict=True)]
        shown.append(difference_in_accuracy(*both)(0.95).low > -MARGIN)
        if len(pilot) < 100:
            again = [model(p, s) for p, s in zip(chances(rng, 100, 0.0), seeds, strict=True)]
            pilot.append(problems_for_margin(of_two(*again), MARGIN, samples, max(seeds)))
    told = f"{samples} samples, seeds {seeds[0]} and {seeds[1]}" + (
        f" of spread {spread:g}" if spread else ""
    )
    yield (
        f"POWER at the {problems:,} problems asked for, {told}",
        float(np.mean(shown)),
        math.nan,
        replicates,
    )
    if max(seeds) == 1:  # of five seeds the variance is too uncertain for a forecast
        ratio = float(np.median(pilot)) / problems
        yield (
            f"problems asked for after 100, median over truth, {told}",
            ratio,
            math.nan,
            len(pilot),
        )


def _true_components(seeds: tuple[int, int], spread: float) -> Components:
    one, other = chances(np.random.default_rng(2), 400_000, 0.0)
    within = [float((p * (1 - p)).mean()) for p in (one, other)]
    trained = [s > 1 for s in seeds]
    slope = float((one * (1 - one)).mean())  # of accuracy in log odds
    return Components(
        between=float((one - other).var()),
        within=sum(w for w, t in zip(within, trained, strict=True) if not t),
        within_trained=sum(w for w, t in zip(within, trained, strict=True) if t),
        seeds=sum(trained) * (slope * spread) ** 2,
        trained=sum(trained),
    )


def rows(replicates: int, seed: int) -> Iterator[Row]:
    for problems, apart, difference in (
        (100, 0.05, 0.0),
        (100, 0.04, -MARGIN),
        (300, 0.04, -MARGIN),
        (300, 0.2, -MARGIN),
        (900, 0.1, -MARGIN),
        (900, 0.035, -MARGIN),
        (40, 0.3, 0.1),
    ):
        yield from discordant(replicates, seed, problems, apart, difference)
    for problems, samples, seeds in (
        (100, (4, 4), (1, 1)),
        (100, (1, 8), (1, 1)),
        (30, (4, 4), (1, 1)),
        (100, (2, 2), (1, 3)),
        (100, (2, 2), (3, 3)),
        (100, (1, 1), (5, 5)),
    ):
        yield from several(replicates, seed, problems, samples, seeds)
    for problems, samples, cut in (
        (20, 1, 0.0),
        (20, 1, 0.2),
        (4, 1, 0.0),
        (5, 4, 0.2),
        (20, 1, 0.4),
    ):
        yield from ratios(replicates, seed, problems, samples, cut, SIZES)
    yield from ratios(replicates, seed, 100, 1, 0.1, SIZES[4:5])
    for seeds in (3, 5):
        yield from seeded(replicates, seed, 100, seeds)
    yield from cost(replicates, seed, 20)
    for problems, slope, second in (
        (20, 5.0, 40.0),
        (20, 5.0, 60.0),
        (20, 11.0, 50.0),
        (80, 5.0, 44.0),
        (8, 5.0, 50.0),
    ):
        yield from critical(replicates, seed, problems, slope, second)
    for samples, seeds, spread in (
        (1, (1, 1), 0.0),
        (4, (1, 1), 0.0),
        (1, (1, 5), 0.1),
        (2, (5, 5), 0.05),
        (2, (1, 3), 0.0),
        (2, (1, 5), 0.05),
    ):
        yield from power(replicates, seed, samples, seeds, spread)
