"""Routing: whether its cross-validated numbers are unbiased, its intervals cover, and its verdicts
hold, by simulation (nominal 95 %).

    python benchmarks/coverage.py routing -r 500

Each replicate draws problems and attempts of two or three settings, and runs `routing` with tokens
as the cost and a margin of 2 points. The truth of a difference and of a saving is that of the rule
and the single setting that this replicate would deploy, computed on 100,000 other problems. A row
names the bias, mean estimate − mean truth, with its Monte-Carlo error. "false claims" is the fraction
of replicates in which routing is said to be worth it though the deployed rule is worse by more than
the margin, or saves nothing. The last rows are the oracle's mean saving with and without luck.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ponder.core import Cell, Ended, Estimate, Label, Outcome
from ponder.models.oracle import Oracle
from ponder.stats.columns import Bools, Floats, Ints
from ponder.stats.routing import Route, Routing, routing
from ponder.tasks.chain_sum import ChainSum

Row = tuple[str, float, float, int]
SIZES = (8, 16, 32, 64)
MARGIN = 0.02
ANSWER_TOKENS = 10
POPULATION = 100_000
NAMES = ("low", "medium", "high")


@dataclass(frozen=True)
class Setting:
    """How often a setting is right at each size on easy and on hard problems, and what it thinks."""

    easy: tuple[float, ...]  # by size
    hard: tuple[float, ...]
    tokens: float  # median of the thinking
    truncated: float = 0.0  # fraction of its wrong attempts


@dataclass(frozen=True)
class Scenario:
    name: str
    settings: tuple[Setting, ...]
    hard: float  # fraction of the problems, at every size
    watched: str  # the sign whose route is followed apart from the best one
    problems: int = 200
    samples: int = 1
    spread: float = 0.0  # of the chances over problems, shared by all settings: 1 / (a + b + 1)


@dataclass(frozen=True)
class Attempts:
    """Attempts of one setting, problems × samples, and its chances by problem."""

    right: Bools
    truncated: Bools
    thinking: Floats
    ballot: Ints
    chance: Floats
    mean_cost: float


def flat(chance: float) -> tuple[float, ...]:
    return (chance,) * len(SIZES)


SCENARIOS = (
    Scenario("all equal", (Setting(flat(0.7), flat(0.7), 1000),) * 3, 0.0, "size", spread=0.3),
    Scenario(
        "no structure",
        (Setting(flat(0.62), flat(0.62), 1000), Setting(flat(0.75), flat(0.75), 3000)),
        0.0,
        "thinking_tokens",
        spread=0.3,
    ),
    Scenario(
        "sizes",
        (
            Setting((0.97, 0.95, 0.6, 0.2), (0.97, 0.95, 0.6, 0.2), 500),
            Setting((0.97, 0.96, 0.9, 0.85), (0.97, 0.96, 0.9, 0.85), 2000),
        ),
        0.0,
        "size",
    ),
    Scenario(
        "signs",
        (
            Setting(flat(0.97), flat(0.1), 500, truncated=0.9),
            Setting(flat(0.97), flat(0.8), 2500, truncated=0.3),
        ),
        0.4,
        "truncated",
    ),
    Scenario(
        "clear signs, 400 problems",
        (
            Setting(flat(0.99), flat(0.1), 500, truncated=1.0),
            Setting(flat(0.99), flat(0.8), 2500, truncated=0.3),
        ),
        0.4,
        "truncated",
        problems=400,
    ),
    Scenario(
        "signs, 60 problems",
        (
            Setting(flat(0.97), flat(0.1), 500, truncated=0.9),
            Setting(flat(0.97), flat(0.8), 2500, truncated=0.3),
        ),
        0.4,
        "truncated",
        problems=60,
    ),
    Scenario(
        "votes",
        (Setting(flat(0.97), flat(0.25), 500), Setting(flat(0.97), flat(0.8), 2500)),
        0.4,
        "disagree of 2",
        samples=3,
    ),
)


def drawn(rng: np.random.Generator, case: Scenario, problems: int) -> tuple[Ints, list[Attempts]]:
    """Return the sizes of problems, and the attempts of each setting at them."""
    position = np.arange(problems) % len(SIZES)
    is_hard = rng.random(problems) < case.hard
    difficulty = rng.random(problems)
    attempts = []
    for setting in case.settings:
        chance = np.where(
            is_hard, np.array(setting.hard)[position], np.array(setting.easy)[position]
        )
        if case.spread:
            # some problems are always solved, the others as often as leaves the mean
            chance = np.where(difficulty < case.spread, 1.0, (chance - case.spread) / 0.7)
        shape = (problems, case.samples)
        right = rng.random(shape) < chance[:, None]
        truncated = ~right & (rng.random(shape) < setting.truncated)
        thinking = np.round(setting.tokens * np.exp(0.6 * rng.standard_normal(shape)))
        ballot = np.where(right, 0, rng.integers(1, 50, shape))
        mean_cost = setting.tokens * float(np.exp(0.18)) + ANSWER_TOKENS
        attempts.append(Attempts(right, truncated, thinking, ballot, chance, mean_cost))
    return np.array(SIZES)[position], attempts


@cache
def _cell(size: int) -> Cell:
    return Cell(ChainSum(), size, Oracle())


def outcomes(size: Ints, attempts: Attempts, name: str) -> list[Outcome]:
    label = Label("chain_sum", name, name, name)
    rows = []
    for problem, sample in np.ndindex(attempts.right.shape):
        ended: Ended = "wrong"
        details = {"ballot": int(attempts.ballot[problem, sample])}
        if attempts.right[problem, sample]:
            ended = "right"
        elif attempts.truncated[problem, sample]:
            ended = "truncated"
            details = {}
        rows.append(
            Outcome(
                cell=_cell(int(size[problem])),
                label=label,
                problem=f"p{problem}",
                sample=sample,
                ended=ended,
                why="",
                prompt_tokens=int(3 * size[problem]),
                thinking_tokens=int(attempts.thinking[problem, sample]),
                answer_tokens=ANSWER_TOKENS,
                seconds=1.0,
                counted_by="server",
                details=details,
            )
        )
    return rows


def estimated(rng: np.random.Generator, case: Scenario) -> Routing:
    size, settings = drawn(rng, case, case.problems)
    by_setting = {}
    for name, attempts in zip(NAMES, settings, strict=False):
        by_setting[name] = outcomes(size, attempts, name)
    found = routing(by_setting, lambda o: o.tokens("output"), MARGIN)
    assert found is not None
    return found


@dataclass
class Population:
    """Many problems of a scenario, to compute the truth of a rule on."""

    size: Ints
    settings: dict[str, Attempts]

    def single(self, name: str) -> tuple[float, float]:
        attempts = self.settings[name]
        return float(attempts.chance.mean()), attempts.mean_cost

    def route(self, route: Route) -> tuple[float, float]:
        """Return the accuracy and the mean cost of a rule with its threshold."""
        cheap, expensive = self.settings[route.cheap], self.settings[route.expensive]
        sign, threshold = route.rule.sign, route.rule.threshold or 0.0
        if sign == "none":
            return self.single(route.cheap)
        if sign in ("size", "prompt_tokens"):
            value = self.size if sign == "size" else 3 * self.size
            sent = value >= threshold
            accuracy = np.where(sent, expensive.chance, cheap.chance).mean()
            cost = np.where(sent, expensive.mean_cost, cheap.mean_cost).mean()
            return float(accuracy), float(cost)
        calls = 1
        if sign == "thinking_tokens":
            sent = cheap.thinking[:, 0] >= threshold
        elif sign == "truncated":
            sent = cheap.truncated[:, 0]
        else:
            calls = int(sign[-1])
            ballots = cheap.ballot[:, :calls]
            agree = (ballots == ballots[:, :1]).all(axis=1) & ~cheap.truncated[:, :calls].any(
                axis=1
            )
            sent = ~agree
        accuracy = np.where(sent, expensive.chance, cheap.right[:, 0]).mean()
        return float(accuracy), float(calls * cheap.mean_cost + sent.mean() * expensive.mean_cost)


def population(case: Scenario, seed: int) -> Population:
    size, settings = drawn(np.random.default_rng(seed), case, POPULATION)
    return Population(size, dict(zip(NAMES, settings, strict=False)))


class Tally:
    """Estimates and truths of one quantity over the replicates."""

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.hits: list[bool] = []
        self.widths: list[float] = []

    def add(self, estimate: Estimate, truth: float) -> None:
        self.errors.append(estimate.value - truth)
        self.hits.append(estimate.low - 1e-9 <= truth <= estimate.high + 1e-9)
        self.widths.append(estimate.high - estimate.low)

    def row(self, name: str) -> Row:
        error = float(np.std(self.errors)) / max(1, len(self.errors)) ** 0.5
        text = f"{name}: bias {np.mean(self.errors):+.4f} ± {1.96 * error:.4f}"
        return text, float(np.mean(self.hits)), float(np.mean(self.widths)), len(self.hits)


def scenario_rows(case: Scenario, replicates: int, seed: int) -> Iterator[Row]:
    rng = np.random.default_rng(seed)
    true = population(case, seed + 1)
    last_name = NAMES[len(case.settings) - 1]
    tallies = {name: Tally() for name in ("difference", "saving")}
    watched = {name: Tally() for name in ("difference", "saving")}
    false_claims: list[bool] = []
    claims: list[bool] = []
    savings: dict[str, list[float]] = {"with luck": [], "held out": []}
    for _ in range(replicates):
        found = estimated(rng, case)
        single_accuracy, single_cost = true.single(found.single)
        routes = [(found.best, tallies)]
        for route in found.routes:
            pair = {route.cheap, route.expensive}
            if route.rule.sign == case.watched and pair == {NAMES[0], last_name}:
                routes.append((route, watched))
                break
        true_of_best = (0.0, 0.0)
        for route, into in routes:
            accuracy, cost = true.route(route)
            truth = (accuracy - single_accuracy, 1 - cost / single_cost)
            into["difference"].add(route.scored.difference, truth[0])
            into["saving"].add(route.scored.saving, truth[1])
            if into is tallies:
                true_of_best = truth
        claims.append(found.worth == "yes")
        is_false = true_of_best[0] < -MARGIN or true_of_best[1] <= 0
        false_claims.append(claims[-1] and is_false)
        savings["with luck"].append(found.oracle.saving.value)
        if found.held_out_oracle:
            savings["held out"].append(found.held_out_oracle.saving.value)
    for what, tally in tallies.items():
        yield tally.row(f"{case.name}: {what} of the best rule")
    for what, tally in watched.items():
        if tally.hits:
            yield tally.row(f"{case.name}: {what} by `{case.watched}`")
    yield f"{case.name}: false claims", float(np.mean(false_claims)), 0.0, replicates
    yield f"{case.name}: claims that routing is worth it", float(np.mean(claims)), 0.0, replicates
    for what, values in savings.items():
        if values:
            yield f"{case.name}: oracle's saving, {what}", float(np.mean(values)), 0.0, replicates


def rows(replicates: int, seed: int, cases: Sequence[Scenario] = SCENARIOS) -> Iterator[Row]:
    for case in cases:
        yield from scenario_rows(case, replicates, seed)
