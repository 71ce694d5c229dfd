"""Adaptive runs: coverage of their 95 % intervals, and how many of the full plan's attempts they
make.

    python benchmarks/coverage.py adaptive -r 400

Each scenario names the mean fraction of the attempts that were made. "reached" is, for a critical
size and a difference, the fraction of intervals with the truth inside; for the best cell, the
fraction of runs whose remaining cells hold the best (with a margin: whose cells are all within it
of the best). The width is the median interval's, divided by that of the full plan; for the best
cell it is the mean number of cells left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Protocol

import numpy as np

from ponder.stats.columns import Floats
from ponder.stats.designs.best_arm import Best
from ponder.stats.designs.critical_size import Ladder
from ponder.stats.designs.frontier import Frontier
from ponder.stats.designs.sequential import Paired, Precise, valid_difference

Row = tuple[str, float, float, int]
SIZES = tuple(int(size) for size in np.round(np.geomspace(9, 100, 13)))


class Design(Protocol):
    def next(self, scores: Sequence[Floats]) -> list[int]: ...


def asked(design: Design, full: Sequence[Floats]) -> list[Floats]:
    """What a run with this design gets to see of the full plan's scores."""
    counts = [0] * len(full)
    while any(more := design.next([score[:n] for score, n in zip(full, counts, strict=True)])):
        counts = [n + m for n, m in zip(counts, more, strict=True)]
    return [score[:n] for score, n in zip(full, counts, strict=True)]


def part(seen: Sequence[Floats], full: Sequence[Floats]) -> float:
    return sum(map(len, seen)) / sum(map(len, full))


# critical size: (critical size, slope, lapse), problems per size, samples per problem
LADDERS = [
    ((35.0, 15.0, 0.0), 20, 1),
    ((35.0, 8.5, 0.0), 20, 1),
    ((35.0, 8.5, 0.05), 20, 1),
    ((60.0, 9.0, 0.1), 20, 1),
    ((11.0, 8.5, 0.0), 20, 1),
    ((35.0, 5.0, 0.02), 20, 1),
    ((35.0, 3.0, 0.0), 20, 1),
    ((85.0, 5.0, 0.0), 20, 1),
    ((35.0, 5.0, 0.02), 20, 4),
    ((35.0, 9.0, 0.0), 80, 1),
    ((35.0, 4.0, 0.05), 80, 1),
]


def ladder_scores(
    rng: np.random.Generator, curve: tuple[float, float, float], problems: int, samples: int
) -> list[Floats]:
    half, slope, lapse = curve
    logit = slope * (math.log(half) - np.log(SIZES)) - math.log(1 - 2 * lapse)
    chance = np.repeat(((1 - lapse) / (1 + np.exp(-logit)))[:, None], problems, axis=1)
    if samples > 1:  # correlated: 0.4 within a problem
        chance = rng.beta(chance * 1.5 + 1e-9, (1 - chance) * 1.5 + 1e-9)
    return list(rng.binomial(samples, chance) / samples)


def ladder_rows(replicates: int, seed: int) -> Iterator[Row]:
    for curve, problems, samples in LADDERS:
        rng, hits, parts, widths = np.random.default_rng(seed), [], [], []
        for _ in range(replicates):
            full = ladder_scores(rng, curve, problems, samples)
            design = Ladder(SIZES, problems, samples)
            seen = asked(design, full)
            found, whole = design.estimate(seen), design.estimate(full, 0.95)
            hits.append(found.low <= curve[0] <= found.high)
            parts.append(part(seen, full))
            if found.low and whole.low and math.isfinite(found.high + whole.high):
                widths.append(math.log(found.high / found.low) / math.log(whole.high / whole.low))
        half, slope, lapse = curve
        steep = slope * math.log(SIZES[-1] / SIZES[0])
        what = f"critical size {half:g}, slope {slope:g} (x ln span = {steep:.0f}), lapse {lapse:g}"
        design_text = f"13 x {problems}"
        if samples > 1:
            design_text += " x 4"
        name = f"{what}, {design_text}: {np.mean(parts):.0%} of the attempts"
        yield name, float(np.mean(hits)), float(np.median(widths)), replicates


def shared_problems(
    rng: np.random.Generator, accuracies: Sequence[float], problems: int
) -> list[Floats]:
    """Cells that share the difficulty of their problems: a correlation of 0.4 between latent
    normals.
    """
    cut = np.array([NormalDist().inv_cdf(a) for a in accuracies])
    own = rng.standard_normal((problems, len(cut))) * math.sqrt(0.6)
    return list(
        ((rng.standard_normal(problems)[:, None] * math.sqrt(0.4) + own) < cut).astype(float).T
    )


CELLS = {
    "5 variants, 50 to 80 %": ([0.5, 0.6, 0.65, 0.7, 0.8], 400),
    "3 variants, 50, 60, 70 %": ([0.5, 0.6, 0.7], 400),
    "20 cells, 30 to 70 %": (np.linspace(0.3, 0.7, 20).tolist(), 400),
    "20 cells, 10 to 80 %": (np.linspace(0.1, 0.8, 20).tolist(), 400),
    "20 cells, one 15 points above the rest": ([0.5] * 19 + [0.65], 400),
    "20 cells, two best, 30 to 70 %": ([*np.linspace(0.3, 0.7, 19).tolist(), 0.7], 400),
    "20 cells, 30 to 75 %, few problems": (np.linspace(0.3, 0.75, 20).tolist(), 100),
    "20 equal cells": ([0.6] * 20, 200),
    "2 equal cells": ([0.6] * 2, 200),
}


def best_rows(replicates: int, seed: int) -> Iterator[Row]:
    for margin in (None, 0.05):
        for name, (accuracies, problems) in CELLS.items():
            rng, hits, parts, left = np.random.default_rng(seed), [], [], []
            best = max(accuracies)
            for _ in range(replicates):
                full = shared_problems(rng, accuracies, problems)
                design = Best(problems, margin)
                seen = asked(design, full)
                kept = np.flatnonzero(design.left(seen))
                least, top = min(accuracies[k] for k in kept), accuracies.index(best)
                # With a margin a run that ends early ends with one cell; at the end of the problems
                # with several.
                hits.append(top in kept or (margin is not None and least >= best - margin - 1e-9))
                parts.append(part(seen, full))
                left.append(len(kept))
            goal = "certify" if margin is None else f"pick within {margin:.0%}"
            what = f"best cell, {goal}: {name}, {problems} problems"
            what += f": {np.mean(parts):.0%} of the attempts"
            yield what, float(np.mean(hits)), float(np.mean(left)), replicates


# Accuracies and mean tokens of variants, and which of them are on the frontier.
VARIANTS = {
    "5 variants, 2 dominated": (
        [0.9, 0.85, 0.5, 0.6, 0.4],
        [300.0, 100.0, 90.0, 200.0, 250.0],
        (0, 1, 2),
    ),
    "8 variants, 6 dominated": (
        [0.9, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.8],
        [150.0] + [200.0] * 6 + [60.0],
        (0, 7),
    ),
    "6 equal variants": ([0.7] * 6, [100.0] * 6, (0,)),
    "5 variants, equal tokens, two best": ([0.8, 0.8, 0.6, 0.5, 0.4], [100.0] * 5, (0,)),
}


def frontier_rows(replicates: int, seed: int) -> Iterator[Row]:
    for name, (accuracies, tokens, on) in VARIANTS.items():
        rng, hits, parts, left = np.random.default_rng(seed), [], [], []
        for _ in range(replicates):
            right = shared_problems(rng, accuracies, 400)
            hard = rng.standard_normal(400) * 0.5
            spent = [t * np.exp(hard + 0.5 * rng.standard_normal(400)) for t in tokens]
            full = [np.column_stack(both) for both in zip(right, spent, strict=True)]
            design = Frontier(400)
            seen = asked(design, full)
            kept = np.flatnonzero(design.left(seen))
            hits.append(np.mean([k in kept for k in on]))  # each by itself
            parts.append(part(seen, full))
            left.append(len(kept))
        what = f"frontier: {name}, 400 problems: {np.mean(parts):.0%} of the attempts"
        yield what, float(np.mean(hits)), float(np.mean(left)), replicates


def two_scores(
    rng: np.random.Generator, difference: float, discordant: float, problems: int
) -> list[Floats]:
    drawn, both = rng.random(problems), rng.random(problems) < 0.6
    first = drawn < (discordant + difference) / 2
    second = ~first & (drawn < discordant)
    return [
        np.where(first, 1.0, np.where(second, 0.0, both)),
        np.where(second, 1.0, np.where(first, 0.0, both)),
    ]


def paired_rows(replicates: int, seed: int) -> Iterator[Row]:
    power = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)
    for problems, discordant in ((100, 0.3), (400, 0.1), (400, 0.3)):
        # The variance of a difference d between answers that differ on a fraction q of the problems
        # is q - d².
        planned = math.sqrt(discordant / (problems / power**2 + 1))
        for times in (0, 1, 2):
            rng, hits, parts, widths, clear = np.random.default_rng(seed), [], [], [], []
            for _ in range(replicates):
                full = two_scores(rng, times * planned, discordant, problems)
                design = Paired(problems)
                seen = asked(design, full)
                found, whole = (
                    design.difference(seen),
                    valid_difference(full[0] - full[1], 0.95, analyses=1),
                )
                hits.append(found.low <= times * planned <= found.high)
                parts.append(part(seen, full))
                clear.append(found.low > 0 or found.high < 0)
                widths.append((found.high - found.low) / (whole.high - whole.low))
            effect = ("no difference", "planned difference", "twice the planned")[times]
            what = f"paired, {problems} problems, {discordant:.0%} discordant, {effect}"
            name = f"{what}: {np.mean(parts):.0%} of the attempts"
            yield (
                f"{name}, clear {np.mean(clear):.0%}",
                float(np.mean(hits)),
                float(np.median(widths)),
                replicates,
            )


def margin_rows(replicates: int, seed: int) -> Iterator[Row]:
    for discordant, margin in ((0.1, 0.05), (0.3, 0.08)):
        rng, hits, parts = np.random.default_rng(seed), [], []
        for _ in range(replicates):
            full = two_scores(rng, 0.04, discordant, 400)
            design = Paired(400, margin)
            seen = asked(design, full)
            found = design.difference(seen)
            hits.append(found.low <= 0.04 <= found.high)
            parts.append(part(seen, full))
        name = f"difference to within {margin:.0%}, {discordant:.0%} discordant"
        name += f": {np.mean(parts):.0%} of the attempts"
        yield name, float(np.mean(hits)), math.nan, replicates
    for accuracy, margin in ((0.5, 0.07), (0.9, 0.05), (0.97, 0.03)):
        rng, hits, parts = np.random.default_rng(seed), [], []
        for _ in range(replicates):
            full = [(rng.random(400) < accuracy).astype(float)]
            precise = Precise(400, margin)
            seen = asked(precise, full)
            found = precise.accuracy(seen[0])
            hits.append(found.low <= accuracy <= found.high)
            parts.append(part(seen, full))
        name = (
            f"accuracy {accuracy:.0%} to within {margin:.0%}: {np.mean(parts):.0%} of the attempts"
        )
        yield name, float(np.mean(hits)), math.nan, replicates


def rows(replicates: int, seed: int) -> Iterator[Row]:
    yield from ladder_rows(replicates, seed)
    yield from best_rows(replicates, seed)
    yield from frontier_rows(replicates, seed)
    yield from paired_rows(replicates, seed)
    yield from margin_rows(replicates, seed)
