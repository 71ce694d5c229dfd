"""Coverage of intervals over training seeds, of the band around a budget curve, and the false
discovery rate.

    python benchmarks/coverage.py seeds            # R = 400, about three CPU minutes
    python benchmarks/coverage.py seeds -r 2000

Nominal are 95 % and a false discovery rate of at most 5 %. Seeds differ by `spread` in log odds and
problems by 1.5; a budget curve's tokens are lognormal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ponder.core import Estimate
from ponder.stats.corrections import benjamini_hochberg
from ponder.stats.frontier import (
    Variant,
    Variants,
    accuracy_difference,
    difference_p,
    fraction,
    pool_seeds,
    under_budget,
)

Row = tuple[str, float, float, int]  # scenario, coverage (or what it names), mean width, replicates
MANY = np.random.default_rng(0).normal(size=(2, 200_000))
EASY, BETTER = 0.75, 1.39  # log odds whose accuracies are 10 points apart


def true_accuracy(odds: float, spread: float) -> float:
    return float((1 / (1 + np.exp(-odds - 1.5 * MANY[0] - spread * MANY[1]))).mean())


def arm(
    rng: np.random.Generator,
    easy: np.ndarray,
    odds: float,
    spread: float,
    seeds: int,
    name: str = "",
) -> Variant:
    """A variant of so many training seeds; of one, it is taken as untrained."""
    luck = rng.normal(0, spread, (seeds, 1)) if seeds > 1 else 0.0
    right = rng.random((seeds, len(easy))) < 1 / (1 + np.exp(-easy - odds - luck))
    seed, problem = (x.ravel() for x in np.indices(right.shape))
    names = tuple((i,) for i in range(seeds)) if seeds > 1 else ()
    return Variant(name, names, seed, problem, np.ones(right.size), right.ravel(), 0.0, 0.0)


def covered(estimates: Sequence[Estimate], true: float) -> tuple[float, float]:
    """The fraction of intervals that contain the truth, and their mean width."""
    return (
        float(np.mean([e.low <= true <= e.high for e in estimates])),
        float(np.mean([e.high - e.low for e in estimates])),
    )


def single(
    seeds: int, problems: int, spread: float, replicates: int, rng: np.random.Generator
) -> Row:
    found = []
    for _ in range(replicates):
        v = arm(rng, rng.normal(0, 1.5, problems), BETTER, spread, seeds)
        found.append(fraction(v, v.correct))
    told = f"accuracy, {seeds} seeds, {problems} problems, spread {spread:g}"
    return told, *covered(found, true_accuracy(BETTER, spread)), replicates


def difference(
    seeds: tuple[int, int],
    problems: int,
    spreads: tuple[float, float],
    replicates: int,
    rng: np.random.Generator,
) -> Row:
    found = []
    for _ in range(replicates):
        easy = rng.normal(0, 1.5, problems)
        found.append(
            accuracy_difference(
                *(arm(rng, easy, EASY, s, n) for s, n in zip(spreads, seeds, strict=True))
            )
        )
    true = true_accuracy(EASY, spreads[0]) - true_accuracy(
        EASY, spreads[1] if seeds[1] > 1 else 0.0
    )
    design = f"difference, {seeds[0]} and {seeds[1]} seeds, {problems} problems"
    design += f", spread {spreads[0]:g} and {spreads[1]:g}"
    return design, *covered(found, true), replicates


def power(
    seeds: int,
    problems: int,
    spread: float,
    arms: int,
    replicates: int,
    rng: np.random.Generator,
    noisy: float = 1.0,
) -> Iterator[Row]:
    """How often 10 points are found, and what covers; with several arms, their seeds are pooled."""
    found = []
    spreads = [noisy * spread] + [spread] * (arms - 1)
    for _ in range(replicates):
        easy = rng.normal(0, 1.5, problems)
        odds = [BETTER] + [EASY] * (arms - 1)
        made = [
            arm(rng, easy, o, s, seeds, f"v{i}")
            for i, (o, s) in enumerate(zip(odds, spreads, strict=True))
        ]
        data = Variants(tuple(made), np.zeros(problems, dtype=np.int64), 0)
        first, second, *_ = pool_seeds(data, {v.name: "one" for v in made}).variants
        found.append(accuracy_difference(first, second))
    true = true_accuracy(BETTER, spreads[0]) - true_accuracy(EASY, spread)
    told = f"pooled over {arms} arms" if arms > 2 else "Welch"
    told += f", {seeds} seeds, {problems} problems, spread {spread:g}"
    if noisy != 1:
        told += f", one arm {noisy:g} times"
    share, width = covered(found, true)
    yield f"10 points, {told}", share, width, replicates
    yield f"10 points, {told}: POWER", float(np.mean([e.low > 0 for e in found])), width, replicates


def band(
    problems: int,
    samples: int,
    seeds: int,
    spread: float,
    replicates: int,
    rng: np.random.Generator,
) -> Row:
    """Whether the whole true curve is in the band, on a fine grid, and the band's mean width."""
    grid = np.exp(np.linspace(3.0, 8.0, 101))
    logs = 5.5 + 0.5 * MANY[0]
    odds = 1.0 - 1.2 * MANY[0]  # hard problems take longer
    if spread:
        odds = odds + spread * MANY[1]
    right = 1 / (1 + np.exp(-odds))
    order = np.argsort(
        tokens := np.exp(logs + 0.5 * np.random.default_rng(1).normal(size=len(logs)))
    )
    at = np.searchsorted(tokens[order], grid, side="right")
    true = np.concatenate([[0.0], np.cumsum(right[order])])[at] / len(logs)
    hits, widths = 0, []
    for _ in range(replicates):
        hard = rng.normal(size=problems)
        luck = rng.normal(0, spread, (seeds, 1, 1)) if seeds > 1 else 0.0
        shape = (max(1, seeds), problems, samples)
        correct = rng.random(shape) < 1 / (1 + np.exp(-(1.0 - 1.2 * hard[None, :, None] + luck)))
        spent = np.exp(5.5 + 0.5 * hard[None, :, None] + 0.5 * rng.normal(size=shape))
        seed, problem, _ = (x.ravel() for x in np.indices(shape))
        names = tuple((i,) for i in range(seeds)) if seeds > 1 else ()
        v = Variant("", names, seed, problem, spent.ravel(), correct.ravel(), 0.0, 0.0)
        steps = np.unique(v.tokens[v.correct])
        thinned = np.unique(
            np.linspace(0, len(steps) - 1, min(100, len(steps))).round().astype(np.int64)
        )
        places = [0.0, *steps[thinned].tolist(), float(grid[-1])]
        found = under_budget(v, places)
        place = np.searchsorted(places, grid, side="right") - 1
        low = np.array([estimate.low for estimate in found])[place]
        high = np.array([estimate.high for estimate in found])[place]
        hits += bool(((low <= true + 1e-9) & (true <= high + 1e-9)).all())
        widths.append(float((high - low).mean()))
    told = f"budget curve, all budgets at once, {problems} problems × {samples}" + (
        f", {seeds} seeds" * (seeds > 1)
    )
    return told, hits / replicates, float(np.mean(widths)), replicates


def false_discoveries(
    arms: int, real: int, seeds: int, problems: int, replicates: int, rng: np.random.Generator
) -> Iterator[Row]:
    """Of variants compared with one reference, `real` are 15 points better: the rates of false and
    of true findings.
    """
    false, plain, found = [], [], []
    for _ in range(replicates):
        easy = rng.normal(0, 1.5, problems)
        reference = arm(rng, easy, 0.0, 0.0, 1)
        odds = [0.95] * real + [0.0] * (arms - real)
        p = [difference_p(arm(rng, easy, o, 0.2, seeds), reference) for o in odds]
        for kept, rates in ((benjamini_hochberg(p), false), (p, plain)):
            claims = [k <= 0.05 for k in kept]
            rates.append(sum(claims[real:]) / max(1, sum(claims)))
        found.append(sum(q <= 0.05 for q in benjamini_hochberg(p)[:real]) / max(1, real))
    seed_noun = "seeds" if seeds > 1 else "seed"
    told = f"{arms} variants, {real} of them better, {seeds} {seed_noun}, {problems} problems"
    yield f"false discovery rate, corrected: {told}", float(np.mean(false)), math.nan, replicates
    yield f"false discovery rate, uncorrected: {told}", float(np.mean(plain)), math.nan, replicates
    if real:
        yield f"found after correction: {told}", float(np.mean(found)), math.nan, replicates


SEEDS = (2, 3, 5)
SPREADS = ((0.0, 0.0), (0.3, 0.3), (1.0, 1.0), (0.2, 0.8))
CURVES = (
    (20, 1, 0),
    (40, 1, 0),
    (50, 1, 0),
    (100, 1, 0),
    (400, 1, 0),
    (30, 4, 0),
    (100, 4, 0),
    (100, 1, 3),
    (100, 1, 5),
)


def rows(replicates: int = 400, seed: int = 0) -> Iterator[Row]:
    rng = np.random.default_rng(seed)
    for seeds, problems, spread in itertools.product(SEEDS, (40, 200), (0.0, 0.3, 1.0)):
        yield single(seeds, problems, spread, replicates, rng)
    for seeds, problems, spreads in itertools.product(SEEDS, (40, 200), SPREADS):
        yield difference((seeds, seeds), problems, spreads, replicates, rng)
    for seeds, problems, spreads in itertools.product(SEEDS, (40, 200), SPREADS[:3]):
        yield difference((seeds, 1), problems, spreads, replicates, rng)
    for spread, (seeds, arms) in itertools.product((0.1, 0.3), ((3, 2), (5, 2), (3, 4), (3, 8))):
        yield from power(seeds, 200, spread, arms, replicates, rng)
    yield from power(3, 200, 0.3, 8, replicates, rng, noisy=3.0)
    for problems, samples, seeds in CURVES:
        yield band(problems, samples, seeds, 0.3 if seeds else 0.0, replicates, rng)
    for arms, real, seeds in ((8, 0, 1), (8, 2, 1), (20, 5, 1), (8, 2, 3)):
        yield from false_discoveries(arms, real, seeds, 200, replicates // 2, rng)
