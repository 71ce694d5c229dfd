"""Coverage of the predicted horizon and of turn accuracy after right and wrong answers, by
simulation (nominal 95 %).

`python benchmarks/coverage.py horizon` prints one row per scenario. A rollout errs with probability
1 - q per turn while its sum is right, and 1 - r once it is wrong. With `spread`, q differs between
problems (beta, 4 rollouts each), and the truth is the fraction over turns at risk in a large
sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ponder.core import Estimate
from ponder.stats.columns import Floats
from ponder.stats.horizon import Rollouts, horizon


@dataclass(frozen=True)
class Scenario:
    q: float  # turn accuracy after a right sum
    r: float  # after a wrong one
    turns: int
    problems: int
    samples: int = 1
    spread: float = 0.0  # 1 / (a + b + 1) of the beta distribution of q over problems

    def __str__(self) -> str:
        name = f"q {self.q}, r {self.r}, {self.turns} turns, {self.problems} × {self.samples}"
        return f"{name}, spread {self.spread}" if self.spread else name


SCENARIOS = (
    Scenario(0.95, 0.95, 64, 30),
    Scenario(0.98, 0.5, 64, 30),
    Scenario(0.98, 0.0, 100, 100),
    Scenario(0.9, 0.7, 20, 12),
    Scenario(0.995, 0.9, 64, 30),
    Scenario(0.95, 0.6, 40, 25, samples=4, spread=0.02),
)


def simulated(rng: np.random.Generator, case: Scenario, problems: int) -> Rollouts:
    """Rollouts whose turn accuracy depends on whether the sum before is right; a wrong sum is never
    right again.
    """
    problem = np.repeat(np.arange(problems), case.samples)
    q = np.full(problems, case.q)
    if case.spread:
        total = 1 / case.spread - 1
        q = rng.beta(case.q * total, (1 - case.q) * total, problems)
    shape = (len(problem), case.turns)
    draws = rng.random(shape)
    index = np.logical_and.accumulate(draws < q[problem][:, None], axis=1)
    before = np.column_stack([np.ones(len(problem), dtype=np.bool_), index[:, :-1]])
    turn = np.where(before, index, draws < case.r)
    return Rollouts(
        1, problem, np.full(len(problem), case.turns), index, turn, np.zeros(shape, np.bool_), 0
    )


def truth(case: Scenario) -> Floats:
    """The predicted horizon, turn accuracy after right and after wrong sums."""
    if not case.spread:
        return np.array([math.log(0.5) / math.log(case.q), case.q, case.r])
    found = horizon(simulated(np.random.default_rng(1), case, 20_000), blur=9)
    return np.array([found.predicted.value, found.after_right.value, case.r])


def rows(replicates: int, seed: int) -> Iterator[tuple[str, float, float, int]]:
    """For each scenario and estimate: coverage, mean relative width of the intervals that are
    finite, replicates.
    """
    for case in SCENARIOS:
        rng, true = np.random.default_rng(seed), truth(case)
        hits, widths = np.zeros(3), [list[float](), list[float](), list[float]()]
        for _ in range(replicates):
            found = horizon(simulated(rng, case, case.problems), blur=9)
            estimates: tuple[Estimate, ...] = (
                found.predicted,
                found.after_right,
                found.after_wrong,
            )
            for i, estimate in enumerate(estimates):
                hits[i] += estimate.low - 1e-12 <= true[i] <= estimate.high + 1e-12
                if math.isfinite(estimate.high):
                    widths[i].append((estimate.high - estimate.low) / (true[i] or 1.0))
        for i, name in enumerate(
            ("predicted horizon", "after a right answer", "after a wrong answer")
        ):
            yield (
                f"{name}: {case}",
                hits[i] / replicates,
                float(np.mean(widths[i] or [math.inf])),
                replicates,
            )
