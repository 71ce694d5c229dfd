"""How often the 95 % intervals of `effort` hold the truth, and how often its tests reject a true
law at 5 %.

    python benchmarks/coverage.py effort -r 1000

Tokens are lognormal around a power law of exponent 1.2 at 13 sizes, with a common cap that
truncates a fraction of all attempts. `width` is the mean width of the interval; for a test, whose
second number is how often it rejects, nan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ponder.stats.columns import Columns
from ponder.stats.effort import power_law

SIZES = np.array([16.0, 20, 25, 30, 36, 42, 49, 56, 64, 72, 81, 90, 100])
EXPONENT = 1.2


def lognormal(
    rng: np.random.Generator,
    spread: float,
    cut: float,
    problems: int,
    samples: int = 1,
    grows: float = 0.0,
    sizes: np.ndarray = SIZES,
) -> Columns:
    """Half of the variance is shared within a problem; the spread is a power `grows` of size,
    `spread` at 36.
    """
    cap = _cap(spread, cut, grows, tuple(sizes))
    size, problem = (
        np.repeat(sizes, problems * samples),
        np.repeat(np.arange(len(sizes) * problems), samples),
    )
    shared = rng.normal(size=len(sizes) * problems)[problem]
    own = (shared + rng.normal(size=len(size))) / math.sqrt(2)
    tokens = np.exp(EXPONENT * np.log(size / 36) + 5 + spread * (size / 36) ** grows * own)
    over = tokens > cap
    none = np.zeros_like(over)
    return Columns(size, problem, ~over, none, over, np.minimum(tokens, cap), np.array([]))


def _cap(spread: float, cut: float, grows: float, sizes: tuple[float, ...]) -> float:
    """The cap above which this fraction of the attempts is, by bisection."""
    if not cut:
        return math.inf
    low, high = 0.0, 12.0
    for _ in range(50):
        middle = (low + high) / 2
        above = [
            math.erfc(
                (middle - 5 - EXPONENT * math.log(s / 36))
                / (spread * (s / 36) ** grows)
                / math.sqrt(2)
            )
            / 2
            for s in sizes
        ]
        low, high = (middle, high) if np.mean(above) > cut else (low, middle)
    return math.exp(low)


def rows(replicates: int, seed: int) -> Iterator[tuple[str, float, float, int]]:
    """Scenario, coverage (or rejections), mean width, replicates."""
    for problems in (20, 4):
        for spread in (0.3, 0.6, 1.0):
            for cut in (0.0, 0.1, 0.2, 0.4):
                yield from scenario(replicates, seed, spread, cut, problems)
    yield from scenario(replicates, seed, 0.6, 0.2, 20, grows=0.3)
    yield from scenario(replicates, seed, 0.6, 0.4, 20, grows=0.3)
    yield from scenario(replicates, seed, 0.6, 0.2, 5, samples=4)
    yield from scenario(replicates, seed, 0.6, 0.2, 20, samples=4)
    yield from scenario(replicates, seed, 0.6, 0.2, 5, sizes=SIZES[::3])


def scenario(
    replicates: int,
    seed: int,
    spread: float,
    cut: float,
    problems: int,
    samples: int = 1,
    grows: float = 0.0,
    sizes: np.ndarray = SIZES,
) -> Iterator[tuple[str, float, float, int]]:
    rng = np.random.default_rng(
        [seed, int(100 * spread), int(100 * cut), problems, samples, int(100 * grows)]
    )
    last = len(sizes) - 1
    at_last = EXPONENT * math.log(sizes[last] / 36) + 5
    spread_at_last = spread * (sizes[last] / 36) ** grows
    truths = {
        "exponent": EXPONENT,
        "geometric mean, largest size": at_last,
        "90 % quantile, largest size": at_last + 1.2815515655446004 * spread_at_last,
        "spread, largest size": math.log(spread_at_last),
    }
    hits, widths = dict.fromkeys(truths, 0), dict.fromkeys(truths, 0.0)
    rejected = {"test of a bend": 0, "test of lack of fit": 0}
    for _ in range(replicates):
        law = power_law(lognormal(rng, spread, cut, problems, samples, grows, sizes))
        assert law
        end = law.sizes[last]
        ends = [(law.exponent.low, law.exponent.high)]
        ends += [(math.log(e.low), math.log(e.high)) for e in (end.tokens, end.upper, end.spread)]
        for (name, truth), (low, high) in zip(truths.items(), ends, strict=True):
            hits[name] += low <= truth <= high
            widths[name] += (high - low) / replicates
        rejected["test of a bend"] += law.bend_p < 0.05
        rejected["test of lack of fit"] += law.lack_of_fit_p < 0.05
    where = f"σ {spread:g}"
    if grows:
        where += f" growing as size^{grows:g}"
    where += f", {cut:.0%} cut, {len(sizes)} × {problems}"
    if samples > 1:
        where += f" × {samples}"
    for name in truths:
        yield f"{where}: {name}", hits[name] / replicates, widths[name], replicates
    for name, n in rejected.items():
        yield f"{where}: {name}, rejections", n / replicates, math.nan, replicates
