"""Compares how many model calls the adaptive search and a fixed ladder of sizes need to find the
longest turn.

    python benchmarks/max_turn.py [WIDTH [RUNS]]

The models are simulated. The ladder makes equally many attempts at each of 1, 2, 4, …, 1024, and
its interval comes from the same posterior. For each model it is the smallest ladder with an
interval of WIDTH (upper over lower end, default 1.5) in half of the runs: the best choice of
someone who knew the model beforehand. The last line is for someone who didn't: one ladder for all
models, the smallest with that width in 90 % of the runs, over the models for which a ladder can
reach it at all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np

from ponder.core import Estimate
from ponder.stats.designs.max_size import Search

RUNGS = [2**i for i in range(11)]
MOST = 1000  # attempts per rung

Curve = Callable[[float], float]


def power(p: float, lapse: float = 0.0) -> Curve:
    return lambda size: (1 - lapse) * p**size


def logistic(middle: float, slope: float, lapse: float = 0.0) -> Curve:
    return lambda size: (1 - lapse) / (1 + (size / middle) ** slope)


MODELS = {
    "0.9^k": power(0.9),
    "0.99^k": power(0.99),
    "0.999^k": power(0.999),
    "0.99^k, lapse 5 %": power(0.99, 0.05),
    "logistic 40, slope 1.2": logistic(40, 1.2),
    "logistic 60, slope 2, lapse 5 %": logistic(60, 2, 0.05),
    "logistic 100, slope 3": logistic(100, 3),
    "logistic 200, slope 4": logistic(200, 4),
    "logistic 30, slope 4, lapse 2 %": logistic(30, 4, 0.02),
    "logistic 200, slope 6, lapse 2 %": logistic(200, 6, 0.02),
    "logistic 300, slope 10": logistic(300, 10),
    "cliff after 100": lambda size: float(size <= 100),
}


def true_size(curve: Curve, target: float) -> float:
    low, high = 0.01, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if curve(middle) >= target else (low, middle)
    return low


def searched(search: Search, curve: Curve, rng: np.random.Generator) -> Estimate:
    results: dict[int, tuple[int, int]] = {}
    while asked := search.next(results):
        for size, tries in asked:
            right, before = results.get(size, (0, 0))
            results[size] = (right + int(rng.binomial(tries, curve(size))), before + tries)
    return search.estimate(results)


def laddered(search: Search, curve: Curve, tries: int, runs: int) -> list[Estimate]:
    rng = np.random.default_rng(tries)
    estimates = []
    for _ in range(runs):
        results = {}
        for size in RUNGS:
            right = int(rng.binomial(tries, curve(size)))
            results[size] = (right, tries)
        estimates.append(search.estimate(results))
    return estimates


def width(estimate: Estimate) -> float:
    return estimate.high / estimate.low if estimate.low > 0 else math.inf


def median_width(estimates: list[Estimate]) -> float:
    return float(np.median([width(estimate) for estimate in estimates]))


def smallest(enough: Callable[[int], bool]) -> int | None:
    """The fewest attempts per rung that are enough, to within 5 %; None if even `MOST` are not."""
    low, high = 0, 4
    while not enough(high):
        if high >= MOST:
            return None
        low, high = high, min(2 * high, MOST)
    while high > 1.05 * low and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def covered(estimates: list[Estimate], truth: float) -> float:
    return sum(e.low <= truth <= e.high for e in estimates) / len(estimates)


def main() -> None:
    search = Search(width=float(sys.argv[1]) if len(sys.argv) > 1 else 1.5, most=10_000)
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    print(f"interval: high / low <= {search.width}; {runs} runs per model; target {search.target}")
    sides = f"{'calls':>6}{'width':>7}{'covers':>8} | {'ladder':>7}{'width':>7}{'covers':>8}"
    print(f"{'model':34}{'size':>7} | {sides} | ratio")
    calls, within_reach = [], []
    for name, curve in MODELS.items():
        rng, truth = np.random.default_rng(0), true_size(curve, search.target)
        estimates = [searched(search, curve, rng) for _ in range(runs)]
        calls.append(float(np.mean([e.attempts for e in estimates])))
        line = f"{name:34}{truth:7.1f} | {calls[-1]:6.0f}{median_width(estimates):7.2f}"
        line += f"{covered(estimates, truth):8.0%} | "
        tries = smallest(
            lambda n, curve=curve: median_width(laddered(search, curve, n, runs)) <= search.width
        )
        if tries is None:
            print(line + "never: the size is between two rungs", flush=True)
            continue
        within_reach.append(curve)
        ladder = laddered(search, curve, tries, runs)
        line += f"{tries * len(RUNGS):7}{median_width(ladder):7.2f}{covered(ladder, truth):8.0%} | "
        print(line + f"{calls[-1] / (tries * len(RUNGS)):5.2f}", flush=True)

    def nine_of_ten(tries: int) -> bool:
        widths = []
        for curve in within_reach:
            estimates = laddered(search, curve, tries, max(10, runs // 4))
            widths += [width(estimate) for estimate in estimates]
        return float(np.quantile(widths, 0.9)) <= search.width

    tries = smallest(nine_of_ten)
    mean = float(np.mean(calls))
    if tries is None:
        print(
            f"all models: {mean:.0f} calls; one ladder for all needs more than {MOST * len(RUNGS)}"
        )
    else:
        every = tries * len(RUNGS)
        ladder_text = f"one ladder for all needs {every}; ratio {mean / every:.2f}"
        print(f"all models: {mean:.0f} calls; {ladder_text}")


if __name__ == "__main__":
    main()
