"""Conditions of a gate: how they are read and judged, and how often they fail in simulation.

The long form of the simulation is `python benchmarks/coverage.py gate`.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from ponder.cli.gate import Gate
from ponder.core import Estimate, Outcome, Prices, UserError
from ponder.stats.compare import LEVEL, compare_tasks, planned_verdicts
from ponder.stats.designs.sequential import ANALYSES, nominal_level, pocock, valid_p_value
from ponder.stats.distributions import z_quantile
from ponder.stats.gate import WORSE, Condition, judge
from ponder.stats.ratios import pair

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import coverage_gate as simulated
import made_up

CONDITIONS = [
    ("worse", WORSE),
    ("tokens > +10%", Condition("tokens > +10%", "tokens", True, 1.1)),
    ("tokens>10 %", Condition("tokens>10 %", "tokens", True, 1.1)),
    ("cost < -25%", Condition("cost < -25%", "cost", False, 0.75)),
    ("seconds > 0%", Condition("seconds > 0%", "seconds", True, 1.0)),
    ("accuracy < -2", Condition("accuracy < -2", "accuracy", False, -0.02)),
    ("accuracy < −2.5 points", Condition("accuracy < −2.5 points", "accuracy", False, -0.025)),
]


@pytest.mark.parametrize(("text", "condition"), CONDITIONS)
def test_conditions(text: str, condition: Condition) -> None:
    gate = Gate.read([text, "inconclusive", text], 0.03, "output")
    (read,) = gate.conditions
    assert read.limit == pytest.approx(condition.limit)
    assert (read.text, read.quantity, read.above) == (text, condition.quantity, condition.above)
    assert gate.fails_if_inconclusive


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wrose", "did you mean `worse`?"),
        ("token > 10%", "did you mean `tokens > …`?"),
        ("accuracy < -2%", "in points, not in percent"),
        ("tokens > 10", r"hint: --fail-if 'tokens > \+10%'"),
        ("tokens > ten%", "is not QUANTITY > LIMIT"),
        ("tokens >= 10%", "is not QUANTITY > LIMIT"),
        ("tokens < -100%", "tokens can't fall by 100 %"),
        ("inconclusive", "`inconclusive` needs another condition"),
        ("", "there is no condition ``"),
    ],
)
def test_a_wrong_condition_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Gate.read([text], 0.03, "output")


@pytest.mark.parametrize(
    ("interval", "above", "below"),
    [
        ((0.98, 1.02), "pass", "pass"),
        ((0.90, 1.10), "pass", "pass"),  # up to the limits
        ((1.05, 1.15), "inconclusive", "pass"),
        ((1.11, 1.20), "fail", "pass"),
        ((0.80, 0.89), "pass", "fail"),
        ((0.85, 0.95), "pass", "inconclusive"),
        ((0.50, math.inf), "inconclusive", "inconclusive"),
    ],
)
def test_a_threshold_is_judged_by_the_interval(interval, above: str, below: str) -> None:
    effect = Estimate(sum(interval) / 2, *interval, 10, 10)
    assert Condition("", "tokens", True, 1.1).exceeded(effect) == above
    assert Condition("", "tokens", False, 0.9).exceeded(effect) == below


def outcomes(model: str, right, tokens, seconds) -> list[Outcome]:
    """Return attempts, problems × samples, all at one size."""
    rows = []
    for (problem, sample), is_right in np.ndenumerate(right):
        rows.append(
            made_up.outcome(
                model=model,
                problem=f"p{problem}",
                ended="right" if is_right else "wrong",
                sample=sample,
                prompt_tokens=0,
                thinking_tokens=0,
                answer_tokens=int(tokens[problem, sample]),
                seconds=float(seconds[problem, sample]),
            )
        )
    return rows


def test_costs_and_seconds_are_ratios_of_means_paired_by_problem() -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(100, 1000, (400, 1))
    seconds = rng.uniform(1, 3, (400, 1))
    right = np.ones((400, 1), dtype=bool)
    first = outcomes("a", right, tokens, seconds)
    second = outcomes("b", right, 3 * tokens, seconds * 1.5 * rng.uniform(0.9, 1.1, (400, 1)))
    first = made_up.priced(first, Prices(0, 10.0))
    second = made_up.priced(second, Prices(0, 5.0))
    matched = pair(first, second, money=True)
    assert matched
    conditions = Gate.read(["cost > +10%", "seconds > +10%"], 0.03, "output").conditions
    ((cost, seconds_judged),) = judge([matched], conditions, 0.03)
    assert cost.effect
    assert cost.effect.value == pytest.approx(1.5)  # three times the tokens at half the price
    assert cost.effect.high - cost.effect.low < 1e-9  # the same on every problem
    assert seconds_judged.effect
    assert seconds_judged.effect.low < 1.5 < seconds_judged.effect.high
    assert 0.005 < seconds_judged.effect.high - seconds_judged.effect.low < 0.05
    assert cost.status == seconds_judged.status == "fail"
    unpriced = pair(first, second)
    assert unpriced
    ((cost, _),) = judge([unpriced], conditions, 0.03)
    assert (cost.status, cost.why) == ("inconclusive", "one of them has no cost")


@pytest.mark.parametrize("analyses", [1, ANALYSES])
def test_the_gate_and_the_comparison_agree(analyses: int) -> None:
    """On three tasks of which none, one or all are worse; the verdict, its interval and tokens."""
    verdicts = set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        tasks = []
        for number in range(3):
            drop = 0.35 if number < seed % 4 else 0.0
            sides = []
            for model, chance in (("a", 0.7), ("b", 0.7 - drop)):
                right = rng.random((40, 2)) < chance
                tokens = rng.lognormal(5, 0.3, (40, 2)).round()
                sides.append(outcomes(model, right, tokens, tokens))
            tasks.append((sides[0], sides[1]))
        results = compare_tasks(tasks, planned=True, analyses=analyses)
        pairs = [pair(*sides) for sides in tasks]
        compared = [result.verdict for result in results if result]
        assert compared == planned_verdicts([each for each in pairs if each], 0.03, analyses)
        verdicts.update(compared)
        fraction = None if analyses == 1 else 0.5
        tokens_up = Gate.read(["tokens > +10%"], 0.03, "output").conditions
        alone = judge([pairs[0]] if pairs[0] else [], [WORSE, *tokens_up], 0.03, fraction)[0]
        assert results[0]
        for judgement, row in zip(alone, results[0].rows, strict=False):
            assert judgement.effect == row.effect
    assert {"below", "open"} <= verdicts


def test_a_task_without_answers_in_common_is_inconclusive() -> None:
    right = np.ones((5, 1), dtype=bool)
    first = outcomes("a", right, right, right)
    gate = Gate.read(["worse", "accuracy < -2"], 0.03, "output")
    judged = gate.judged({"t": (first, first), "u": (first, [])})
    statuses = [[each.status for each in of_task] for of_task in judged.by_task.values()]
    assert statuses[1] == ["inconclusive", "inconclusive"]
    assert not judged.decided
    assert "`worse` on u: no problem was answered by both" in judged.sentence()


def test_intervals_of_an_adaptive_run_are_those_of_pocock() -> None:
    level = nominal_level(LEVEL)
    assert z_quantile((1 + level) / 2) == pytest.approx(2.555, abs=0.001)
    assert z_quantile((1 + level) / 2) == pytest.approx(pocock(LEVEL, 2))
    assert valid_p_value(1 - level) == pytest.approx(0.05, abs=1e-6)
    assert valid_p_value(1 - nominal_level(0.9)) == pytest.approx(0.1, abs=1e-6)
    assert valid_p_value(0.01, 1) == 0.01
    assert valid_p_value(1.0) == pytest.approx(1.0)


def test_other_rows_do_not_weaken_a_planned_verdict() -> None:
    rng = np.random.default_rng(5)
    tokens = rng.lognormal(5, 0.3, (200, 1)).round()
    first = outcomes("a", np.arange(200)[:, None] < 150, tokens, tokens)
    right = (np.arange(200)[:, None] < 144) & (np.arange(200)[:, None] != 3)
    second = outcomes("b", right | (np.arange(200)[:, None] == 199), tokens, tokens)
    (explored,) = compare_tasks([(first, second)])
    (planned,) = compare_tasks([(first, second)], planned=True)
    assert explored
    assert planned
    assert planned.rows[0].p_value == explored.rows[0].p_value == planned.rows[0].q_value
    assert explored.rows[0].q_value > explored.rows[0].p_value
    assert (explored.verdict, planned.verdict) == ("open", "below")


def test_simulated_gates() -> None:
    """At R = 150 a true 2.5 % is above 7 % once in 1,000 times."""
    worse = simulated.Scenario(200, 4, 0.05, (0.0, 0.1))
    tasks = simulated.Scenario(200, 1, 0.05, (0.0,), tasks=3)
    at_limit = simulated.Scenario(200, 2, 0.05, (0.0,), fail_if=simulated.TOKENS, ratio=1.1)
    beyond = at_limit._replace(ratio=1.3)
    rows = simulated.rows(150, 3, (worse, tasks, at_limit, beyond))
    unchanged, lower, of_tasks, limit, above = [failed for _, failed, _, _ in rows]
    assert max(unchanged, of_tasks, limit) <= 0.07
    assert lower >= 0.85
    assert above >= 0.85
    scenario = simulated.Scenario(1000, 4, 0.05, (0.0,))
    failed, unknown, fraction, _ = simulated.simulated(scenario, 0.0, 50, 3)
    assert failed <= 0.1
    assert unknown <= 0.1
    assert fraction <= 0.4
