"""How often the gate of `ponder compare --run --fail-if` fails, and how many calls it takes.

    python benchmarks/coverage.py gate -r 1000

A model is compared with its baseline, both sampled from the same problems, whose difficulty varies
(log odds with a standard deviation of 1.5; accuracy 70 %, or 95 %). "reached" is the fraction of
runs that fail, which for an unchanged model is the type I error; the width is that of the interval
at the end, in points, or in percent of tokens. Each scenario names the fraction of the calls that
were made, and how many of the runs that passed could not tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ponder.cli.gate import Gate, GateResult
from ponder.core import Estimate
from ponder.stats.columns import Columns, Floats
from ponder.stats.designs.sequential import analysis_sizes
from ponder.stats.frontier import Variant
from ponder.stats.gate import judge
from ponder.stats.ratios import Pair, Side

Row = tuple[str, float, float, int]
MARGIN = 0.03


class Attempts(NamedTuple):
    """Attempts of a model, problems × samples."""

    right: Floats
    tokens: Floats


def difficulty(rng: np.random.Generator, problems: int, accuracy: float) -> Floats:
    """Return the log odds of a right answer at each problem."""
    return rng.normal(_shift(accuracy), 1.5, problems)


@cache
def _shift(accuracy: float) -> float:
    """Return the mean log odds at which a model has an accuracy."""
    normal = 1.5 * np.array([NormalDist().inv_cdf((i + 0.5) / 2000) for i in range(2000)])
    low, high = -10.0, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        if float((1 / (1 + np.exp(-normal - middle))).mean()) < accuracy:
            low = middle
        else:
            high = middle
    return high


def sampled(
    rng: np.random.Generator, log_odds: Floats, lengths: Floats, samples: int, ratio: float = 1.0
) -> Attempts:
    """Sample attempts; tokens are lognormal around each problem's own length."""
    shape = (len(log_odds), samples)
    right = rng.random(shape) < 1 / (1 + np.exp(-log_odds[:, None]))
    tokens = ratio * lengths[:, None] * np.exp(0.5 * rng.standard_normal(shape))
    return Attempts(right, np.round(tokens))


def side(attempts: Attempts, problems: int) -> Side:
    """Return the attempts at the first problems, as `pair` would."""
    right = attempts.right[:problems]
    problem = np.repeat(np.arange(problems), right.shape[1])
    tokens = attempts.tokens[:problems].ravel().astype(np.float64)
    correct = right.ravel().astype(np.bool_)
    neither = np.zeros(len(problem), dtype=np.bool_)
    size = np.full(len(problem), 1.0)
    data = Columns(size, problem, correct, neither, neither, tokens, np.zeros(0))
    seed = np.zeros(len(problem), dtype=np.int64)
    variant = Variant("", (), seed, problem, tokens, correct, 0.0, 0.0)
    return Side(data, variant, None, 0, 0)


def run(gate: Gate, tasks: list[tuple[Attempts, Attempts]]) -> tuple[GateResult, int]:
    """Return how a gate judges at the end of an adaptive run, and the problems that it asked."""
    problems = len(tasks[0][0].right)
    judged = GateResult(gate, {})
    for asked in analysis_sizes(problems):
        pairs = [Pair(side(baseline, asked), side(new, asked)) for baseline, new in tasks]
        judgements = judge(pairs, gate.conditions, gate.margin, asked / problems)
        judged = GateResult(gate, {str(number): each for number, each in enumerate(judgements)})
        if judged.decided:
            return judged, asked
    return judged, problems


class Scenario(NamedTuple):
    problems: int  # per task
    samples: int
    margin: float
    drops: tuple[float, ...] = (0.0, 0.05, 0.1)
    accuracy: float = 0.7
    fail_if: tuple[str, ...] = ("worse",)
    ratio: float = 1.0  # of tokens
    equal: float = 0.0  # fraction of attempts that are the same: greedy decoding
    tasks: int = 1

    def title(self, drop: float) -> str:
        title = f"{' '.join(self.fail_if)}, {self.problems} × {self.samples}"
        if self.tasks > 1:
            title += f" on {self.tasks} tasks"
        if "worse" in self.fail_if:
            title += f", margin {100 * self.margin:g}, {self.accuracy:.0%} − {100 * drop:g}"
        if "tokens > +10%" in self.fail_if:
            title += f", tokens × {self.ratio:g}"
        if self.equal:
            title += f", {self.equal:.0%} equal"
        return title


TOKENS = ("tokens > +10%",)
SCENARIOS = (
    Scenario(200, 1, 0.05),
    Scenario(200, 4, 0.05),
    Scenario(1000, 1, 0.03),
    Scenario(1000, 1, 0.05),
    Scenario(1000, 4, 0.03),
    Scenario(1000, 4, 0.05),
    Scenario(1000, 4, 0.03, accuracy=0.95),
    Scenario(1000, 1, 0.03, (0.0,), equal=0.95),
    Scenario(200, 1, 0.05, (0.0,), equal=0.95),
    Scenario(1000, 4, 0.03, fail_if=("worse", "inconclusive")),
    Scenario(500, 2, 0.03, (0.0, 0.05), tasks=4),
    Scenario(1000, 4, 0.03, (0.0,), fail_if=("worse", *TOKENS)),
    Scenario(1000, 4, 0.03, (0.0,), fail_if=TOKENS),
    Scenario(1000, 4, 0.03, (0.0,), fail_if=TOKENS, ratio=1.1),
    Scenario(1000, 4, 0.03, (0.0,), fail_if=TOKENS, ratio=1.15),
    Scenario(1000, 4, 0.03, (0.0,), fail_if=TOKENS, ratio=1.2),
)


def pair_of_models(
    rng: np.random.Generator, scenario: Scenario, drop: float
) -> tuple[Attempts, Attempts]:
    """Sample a baseline and a new model on the problems of a task."""
    fall = _shift(scenario.accuracy) - _shift(scenario.accuracy - drop)
    log_odds = difficulty(rng, scenario.problems, scenario.accuracy)
    lengths = 500 * np.exp(0.6 * rng.standard_normal(scenario.problems))
    baseline = sampled(rng, log_odds, lengths, scenario.samples)
    new = sampled(rng, log_odds - fall, lengths, scenario.samples, scenario.ratio)
    if scenario.equal:
        equal = rng.random(new.right.shape) < scenario.equal
        right = np.where(equal, baseline.right, new.right)
        new = Attempts(right, np.where(equal, baseline.tokens, new.tokens))
    return baseline, new


def simulated(
    scenario: Scenario, drop: float, replicates: int, seed: int
) -> tuple[float, float, float, float]:
    """Return how often the gate fails, can't tell, the calls that it made, and the width."""
    rng = np.random.default_rng([seed, scenario.problems, scenario.samples, round(1000 * drop)])
    gate = Gate.read(scenario.fail_if, scenario.margin, "output")
    failed = []
    open_ended = []
    fractions = []
    widths = []
    for _ in range(replicates):
        tasks = [pair_of_models(rng, scenario, drop) for _ in range(scenario.tasks)]
        judged, asked = run(gate, tasks)
        judgements = [each for of_task in judged.by_task.values() for each in of_task]
        undecided = any(judgement.status == "inconclusive" for judgement in judgements)
        failed.append(bool(judged.failing))
        open_ended.append(not judged.failing and undecided)
        fractions.append(asked / scenario.problems)
        widths.append(_width(judgements[0].effect))
    return (
        float(np.mean(failed)),
        float(np.mean(open_ended)),
        float(np.mean(fractions)),
        float(np.median(widths)),
    )


def _width(effect: Estimate | None) -> float:
    return math.nan if effect is None else 100 * (effect.high - effect.low)


def rows(replicates: int, seed: int, scenarios: tuple[Scenario, ...] = SCENARIOS) -> Iterator[Row]:
    for scenario in scenarios:
        for drop in scenario.drops:
            failed, unknown, fraction, width = simulated(scenario, drop, replicates, seed)
            name = f"{scenario.title(drop)}: {fraction:.0%} asked, {unknown:.0%} can't tell"
            yield name, failed, width, replicates
