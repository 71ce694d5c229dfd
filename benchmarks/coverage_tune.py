"""How often does `ponder tune` choose a setting that is too weak, and what does it save?

Simulates the design `stats/designs/cheapest.py`: settings that share problems of unequal
difficulty, with the accuracies and costs of a scenario. Printed per scenario: the probability that
the choice is worse than the reference by more than the margin (nominal: at most 5 %), that there is
a choice at all, that it is the cheapest good one, the calls spent as a fraction of all, what the
choice costs above the cheapest good setting (regret), and how often the interval of the saving
holds the truth (nominal: 95 %).

    python benchmarks/coverage_tune.py            # R = 2,000: about ten minutes of one core
    python benchmarks/coverage_tune.py --runs 200
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ponder.stats.columns import Floats
from ponder.stats.designs.cheapest import Cheapest

COSTS = (100.0, 200.0, 400.0, 800.0)


@dataclass(frozen=True)
class Scenario:
    """True accuracies, lowest setting first, and how replies vary."""

    name: str
    accuracy: tuple[float, ...]
    cost: tuple[float, ...] = COSTS
    problems: int = 1000
    margin: float = 0.05
    correlation: float = 0.7  # of the settings' abilities on one problem, on the probit scale
    tail: float = 0.5  # sigma of the log costs
    pareto: bool = False  # costs with infinite variance instead
    identical: bool = False  # the dial has no effect: two replies in three are the same
    samples: int = 1
    reference: int | None = None
    floor: float | None = None


SCENARIOS = (
    Scenario("all equal", (0.8, 0.8, 0.8, 0.8)),
    Scenario("all equal, small margin", (0.8, 0.8, 0.8, 0.8), margin=0.02),
    Scenario("one cliff", (0.6, 0.85, 0.85, 0.85)),
    Scenario("slow decline", (0.7, 0.75, 0.8, 0.85)),
    Scenario("slow decline, small margin", (0.7, 0.75, 0.8, 0.85), margin=0.02),
    Scenario("steep decline", (0.5, 0.65, 0.8, 0.9)),
    Scenario("all at the margin", (0.7999, 0.7999, 0.7999, 0.85)),
    Scenario("all at a small margin", (0.8299, 0.8299, 0.8299, 0.85), margin=0.02, problems=4000),
    Scenario("at the margin, uncorrelated", (0.7999, 0.7999, 0.7999, 0.85), correlation=0.0),
    Scenario("at the margin, nearly the same", (0.7999, 0.7999, 0.7999, 0.85), correlation=0.99),
    Scenario("at the margin, 200 problems", (0.7, 0.7, 0.7, 0.8), margin=0.1, problems=200),
    Scenario("at the margin, 60 problems", (0.6, 0.6, 0.6, 0.8), margin=0.2, problems=60),
    Scenario("at the margin, near 1", (0.9499, 0.9499, 0.9499, 0.9999)),
    Scenario("at the margin, near 0", (0.0001, 0.0001, 0.0001, 0.0502)),
    Scenario("at the margin, four samples", (0.7999, 0.7999, 0.7999, 0.85), samples=4),
    Scenario("at the margin, labelled reference", (0.7999, 0.7999, 0.7999, 0.85), reference=3),
    Scenario("the reference is not the best", (0.7499, 0.85, 0.9, 0.8), reference=3),
    Scenario("at the floor", (0.7999, 0.7999, 0.7999, 0.7999), floor=0.8),
    Scenario("at the floor, 60 problems", (0.7999,) * 4, floor=0.8, problems=60),
    Scenario("at a high floor, 100 problems", (0.9499,) * 4, floor=0.95, problems=100),
    Scenario("at the floor, four samples", (0.7999,) * 4, floor=0.8, problems=60, samples=4),
    Scenario("above a floor, 60 problems", (0.6, 0.8, 0.97, 0.97), floor=0.8, problems=60),
    Scenario("above and below a floor", (0.65, 0.75, 0.85, 0.9), floor=0.8),
    Scenario("higher is no better", (0.85, 0.8, 0.9, 0.7)),
    Scenario("eight settings, equal", (0.8,) * 8, cost=tuple(100.0 * 1.5**k for k in range(8))),
    Scenario(
        "eight settings at the margin",
        (0.7999,) * 7 + (0.85,),
        cost=tuple(100.0 * 1.5**k for k in range(8)),
    ),
    Scenario("heavy token tails", (0.7, 0.8, 0.85, 0.85), tail=1.5),
    Scenario("Pareto token tails", (0.7, 0.8, 0.85, 0.85), pareto=True),
    Scenario("a dial without effect", (0.8, 0.8, 0.8, 0.8), cost=(400.0,) * 4, identical=True),
)


@dataclass(frozen=True)
class Summary:
    """What the runs of a scenario came to, as fractions."""

    wrong: float
    chosen: float
    cheapest: float
    calls: float
    regret: float
    coverage: float


def draw(scenario: Scenario, rng: np.random.Generator) -> list[Floats]:
    """Return for each setting all problems × (accuracy, cost)."""
    n = scenario.problems
    shared = rng.standard_normal(n)
    effort = rng.standard_normal(n)  # problems that take one setting long take all long
    same_ability = rng.standard_normal(n)
    same_cost = rng.standard_normal(n)
    is_same = rng.random(n) < 2 / 3
    settings = []
    for accuracy, cost in zip(scenario.accuracy, scenario.cost, strict=True):
        threshold = NormalDist().inv_cdf(accuracy)
        right = np.zeros(n)
        for _ in range(scenario.samples):
            noise = rng.standard_normal(n)
            if scenario.identical:
                noise = np.where(is_same, same_ability, noise)
            weight = scenario.correlation
            ability = math.sqrt(weight) * shared + math.sqrt(1 - weight) * noise
            right += ability < threshold
        variation = rng.standard_normal(n)
        if scenario.identical:
            variation = np.where(is_same, same_cost, variation)
        if scenario.pareto:
            factor = (rng.pareto(1.5, n) + 1) / 3  # its mean is 1, its variance infinite
        else:
            log = scenario.tail * (effort + variation) / math.sqrt(2)
            factor = np.exp(log - scenario.tail**2 / 2)
        settings.append(np.column_stack([right / scenario.samples, cost * factor]))
    return settings


def run(scenario: Scenario, rng: np.random.Generator) -> tuple[int | None, int, bool | None]:
    """Return the choice, the calls, and whether the interval of the saving holds the truth."""
    data = draw(scenario, rng)
    design = Cheapest(
        scenario.problems,
        scenario.margin,
        floor=scenario.floor,
        reference=scenario.reference,
        samples=scenario.samples,
    )
    asked = [0] * len(data)
    while True:
        scores = [data[i][:n] for i, n in enumerate(asked)]
        more = design.next(scores)
        if not any(more):
            break
        asked = [n + m for n, m in zip(asked, more, strict=True)]
    standing = design.standing(scores)
    calls = sum(asked)
    if standing.choice is None:
        return None, calls, None
    dearest = int(np.argmax(scenario.cost))
    if standing.choice == dearest:
        return standing.choice, calls, None
    saving = design.saving(scores, standing.choice, dearest)
    truth = 1 - scenario.cost[standing.choice] / scenario.cost[dearest]
    return standing.choice, calls, saving.low <= truth <= saving.high


def simulate(scenario: Scenario, runs: int, seed: int = 0) -> Summary:
    """Return what so many runs of a scenario come to."""
    rng = np.random.default_rng(seed)
    best = max(scenario.accuracy)
    if scenario.reference is not None:
        best = scenario.accuracy[scenario.reference]
    least = best - scenario.margin
    if scenario.floor is not None:
        least = scenario.floor
    good = [k for k, accuracy in enumerate(scenario.accuracy) if accuracy >= least]
    cheapest = min(scenario.cost[k] for k in good) if good else math.nan
    wrong = 0
    chosen = 0
    hits = 0
    calls = 0
    regrets = []
    covers = []
    for _ in range(runs):
        choice, spent, covered = run(scenario, rng)
        calls += spent
        if covered is not None:
            covers.append(covered)
        if choice is None:
            continue
        chosen += 1
        if choice not in good:
            wrong += 1
            continue
        hits += scenario.cost[choice] == cheapest
        regrets.append(scenario.cost[choice] / cheapest - 1)
    everything = runs * len(scenario.accuracy) * scenario.problems
    return Summary(
        wrong=wrong / runs,
        chosen=chosen / runs,
        cheapest=hits / runs,
        calls=calls / everything,
        regret=float(np.mean(regrets)) if regrets else math.nan,
        coverage=float(np.mean(covers)) if covers else math.nan,
    )


def main() -> None:
    """Print one line per scenario."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    arguments = parser.parse_args()
    print(f"{arguments.runs} runs per scenario; nominal: wrong at most 0.050, coverage 0.950")
    heading = f"{'scenario':36} {'wrong':>6} {'chosen':>6} {'cheapest':>8} {'calls':>6}"
    print(f"{heading} {'regret':>6} {'coverage':>8}")
    for scenario in SCENARIOS:
        if arguments.only not in scenario.name:
            continue
        s = simulate(scenario, arguments.runs)
        line = f"{scenario.name:36} {s.wrong:6.3f} {s.chosen:6.3f} {s.cheapest:8.3f} {s.calls:6.2f}"
        print(f"{line} {s.regret:6.2f} {s.coverage:8.3f}", flush=True)


if __name__ == "__main__":
    main()
