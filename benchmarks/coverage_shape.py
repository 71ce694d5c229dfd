"""Coverage of the 95 % intervals of accuracy, mean tokens, critical size, its local check and the
lapse rate.

    python benchmarks/coverage.py shape -r 300

One row per scenario: coverage, median relative width (or, for a test, nothing), replicates. A line
"alarm:" gives the fraction of data sets that a check rejects: up to 5 % if its null is true, its
power if not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ponder.core import Estimate
from ponder.stats.accuracy import accuracy, geometric_mean, mean
from ponder.stats.columns import Columns, Floats
from ponder.stats.critical import critical_size

Row = tuple[str, float, float, int]  # scenario, coverage, median width, replicates
SIZES = np.round(np.geomspace(9, 100, 13))


class Curve(NamedTuple):
    """A true accuracy by size, with its critical size, and its lapse if it has one."""

    name: str
    chance: Callable[[Floats], Floats]
    half: float
    lapse: float
    problems: int = 20
    samples: int = 1
    unequal: bool = False


def logistic(half: float, slope: float, lapse: float = 0.0) -> Callable[[Floats], Floats]:
    shift = -math.log(1 - 2 * lapse)
    return lambda size: (1 - lapse) / (1 + np.exp(-shift - slope * (math.log(half) - np.log(size))))


def weibull(half: float, shape: float, lapse: float = 0.0) -> Callable[[Floats], Floats]:
    """1 - lapse at small sizes, one half at `half`: falls late and then fast."""
    middle = math.log(2 * (1 - lapse))
    return lambda size: (1 - lapse) * np.exp(-middle * (size / half) ** shape)


def curves() -> Iterator[Curve]:
    for problems in (20, 80):
        yield Curve(f"logistic, 13 × {problems}", logistic(35, 5, 0.02), 35, 0.02, problems)
        yield Curve(f"Weibull, 13 × {problems}", weibull(35, 3), 35, math.nan, problems)
    yield Curve("shallow, slope 1.5", logistic(35, 1.5), 35, 0.0)
    yield Curve("steep, slope 15", logistic(35, 15), 35, 0.0)
    yield Curve("crossing near the first size", logistic(11, 4), 11, 0.0)
    yield Curve("crossing near the last size", logistic(85, 4), 85, 0.0)
    for lapse in (0.1, 0.25, 0.4):
        yield Curve(f"lapse {lapse}", logistic(35, 6, lapse), 35, lapse)
    yield Curve("4 correlated samples", logistic(35, 5, 0.05), 35, 0.05, samples=4)
    yield Curve("unequal samples", logistic(35, 5), 35, 0.0, samples=4, unequal=True)


def draw(rng: np.random.Generator, curve: Curve) -> Columns:
    size = np.repeat(SIZES, curve.problems)
    own = np.clip(curve.chance(size), 0, 1)
    samples = np.full(len(size), curve.samples)
    if curve.samples > 1:  # correlated: 0.4 within a problem
        own = rng.beta(own * 1.5 + 1e-9, (1 - own) * 1.5 + 1e-9)
    if curve.unequal:  # hard problems are tried four times as often
        samples = np.where(own < 0.4, 8, 2)
    problem = np.repeat(np.arange(len(size)), samples)
    no = np.zeros(len(problem), dtype=np.bool_)
    right = rng.random(len(problem)) < own[problem]
    return Columns(size[problem], problem, right, no, no, np.ones(len(problem)), np.array([]))


class Tally:
    def __init__(self) -> None:
        self.hits: list[bool] = []
        self.widths: list[float] = []

    def add(self, estimate: Estimate, truth: float) -> None:
        self.hits.append(estimate.low <= truth <= estimate.high)
        self.widths.append(
            (estimate.high - estimate.low) / truth if truth else estimate.high - estimate.low
        )

    def row(self, scenario: str) -> Row:
        return scenario, float(np.mean(self.hits)), float(np.median(self.widths)), len(self.hits)


def critical_rows(replicates: int, seed: int, scenarios: list[Curve]) -> Iterator[Row]:
    for curve in scenarios:
        rng = np.random.default_rng(seed)
        size, local, lapse = Tally(), Tally(), Tally()
        alarms: dict[str, list[bool]] = {
            "local differs": [],
            "curve does not fit": [],
            "not steady": [],
        }
        for _ in range(replicates):
            found = critical_size(draw(rng, curve), replicates=200)
            size.add(found.size, curve.half)
            local.add(found.local, curve.half)
            lapse.add(found.lapse, curve.lapse)
            p_values = (found.local_p_value, found.fit_p_value, found.steady_p_value)
            for alarm, p in zip(alarms.values(), p_values, strict=True):
                alarm.append(p < 0.05)
        yield size.row(f"critical size: {curve.name}")
        yield local.row(f"local: {curve.name}")
        if not math.isnan(curve.lapse):
            yield lapse.row(f"lapse: {curve.name}")
        for name, alarm in alarms.items():
            yield f"alarm: {name}: {curve.name}", float(np.mean(alarm)), math.nan, replicates


def unsteady_rows(replicates: int, seed: int) -> Iterator[Row]:
    fall = logistic(35, 5)

    def dip(size: Floats) -> Floats:
        return np.where(size == SIZES[3], 0.4, fall(size))

    def constant(size: Floats) -> Floats:
        return np.full(len(size), 0.6)

    def rising(size: Floats) -> Floats:
        return 0.3 + 0.4 * np.log(size / 9) / np.log(11)

    truths: list[tuple[str, Callable[[Floats], Floats]]] = [
        ("constant 60 %", constant),
        ("rises from 30 to 70 %", rising),
        ("dips to 40 % at one size", dip),
    ]
    for name, chance in truths:
        for samples in (1, 4):
            rng, alarms = np.random.default_rng(seed), []
            for _ in range(replicates):
                found = critical_size(
                    draw(rng, Curve(name, chance, 35, 0.0, samples=samples)), replicates=50
                )
                alarms.append(found.steady_p_value < 0.05)
            yield (
                f"alarm: not steady: {name}, {samples} per problem",
                float(np.mean(alarms)),
                math.nan,
                replicates,
            )


def accuracy_rows(replicates: int, seed: int) -> Iterator[Row]:
    """Problems' accuracies are uniform; how often a problem is tried may depend on it."""
    tries: dict[str, Callable[[Floats], Floats]] = {
        "4 samples each": lambda own: np.full(len(own), 4),
        "2 or 20 samples, hard ones more": lambda own: np.where(own < 0.3, 20, 2),
        "one problem with 200": lambda own: np.where(np.arange(len(own)) == 0, 200, 1),
    }
    for name, often in tries.items():
        rng, tally = np.random.default_rng(seed), Tally()
        for _ in range(replicates):
            own = rng.random(30)
            problem = np.repeat(np.arange(30), often(own))
            tally.add(accuracy(rng.random(len(problem)) < own[problem], problem), 0.5)
        yield tally.row(f"accuracy: 30 problems, {name}")


def token_rows(replicates: int, seed: int) -> Iterator[Row]:
    for spread in (0.6, 1.0, 1.3):
        for problems in (10, 30, 100):
            rng, arithmetic, geometric = np.random.default_rng(seed), Tally(), Tally()
            for _ in range(replicates):
                tokens = 1000 * np.exp(rng.normal(0, spread, problems))
                arithmetic.add(mean(tokens, np.arange(problems)), 1000 * math.exp(spread**2 / 2))
                geometric.add(geometric_mean(tokens, np.arange(problems)), 1000)
            yield arithmetic.row(f"mean tokens: lognormal {spread}, {problems} problems")
            yield geometric.row(f"geometric mean: lognormal {spread}, {problems} problems")


def rows(replicates: int, seed: int) -> Iterator[Row]:
    yield from accuracy_rows(5 * replicates, seed)
    yield from token_rows(5 * replicates, seed)
    yield from critical_rows(replicates, seed, list(curves()))
    yield from unsteady_rows(replicates, seed)
