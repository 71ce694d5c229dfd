"""Routing against numbers worked out by hand and by simulation, and what it says in words.

The long form of the simulations is benchmarks/coverage_routing.py.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import outcome

from ponder.core import Outcome
from ponder.methods.escalate import Sign
from ponder.results.routing import routing_json, routing_sentences, routing_table
from ponder.stats.corrections import level_for_all
from ponder.stats.routing import Route, Routing, Rule, routing

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import coverage_routing as simulated


def attempts(
    model: str, ended: Sequence[str], tokens: int, sizes: Sequence[int], sample: int = 0, **more
) -> list[Outcome]:
    """One attempt per problem."""
    rows = []
    for index, (how, size) in enumerate(zip(ended, sizes, strict=True)):
        rows.append(
            outcome(
                model=model,
                size=size,
                problem=f"p{index}",
                ended=how,
                thinking_tokens=tokens,
                answer_tokens=0,
                sample=sample,
                **more,
            )
        )
    return rows


def tokens(o: Outcome) -> float:
    return float(o.tokens("output"))


def find(result: Routing | None, sign: str) -> Route:
    assert result is not None
    (route,) = [route for route in result.routes if route.rule.sign == sign]
    return route


SIZES = [4] * 20 + [8] * 20
# The cheap one is cut on the large problems, which the expensive one solves.
BY_SIZE = {
    "low": attempts("low", ["right"] * 20 + ["truncated"] * 20, 100, SIZES),
    "high": attempts("high", ["right"] * 40, 500, SIZES),
}


def test_rules_and_oracle_by_hand() -> None:
    result = routing(BY_SIZE, tokens)
    assert result is not None
    assert (result.single, result.settings) == ("high", ("low", "high"))
    by_size = find(result, "size")
    assert by_size.rule.threshold == 8
    assert by_size.scored.accuracy.value == 1
    assert by_size.scored.cost.value == 300  # 100 and 500: one call each
    assert by_size.scored.saving.value == pytest.approx(1 - 300 / 500)
    assert by_size.escalated.value == 0.5
    truncated = find(result, "truncated")
    assert truncated.scored.cost.value == 350  # 100, and 100 + 500
    assert truncated.scored.saving.value == pytest.approx(1 - 350 / 500)
    assert result.best.rule.sign == "size"
    assert result.oracle.cost.value == 300
    assert result.held_out_oracle is None
    assert result.reached.value == pytest.approx(1)


def test_neither_order_nor_failures_matter() -> None:
    shuffled = {}
    for name, outcomes in BY_SIZE.items():
        failed = outcome(model=name, size=4, problem="p99", ended="failed", thinking_tokens=9)
        rows = [*outcomes, failed]
        random.Random(3).shuffle(rows)
        shuffled[name] = rows
    assert routing(shuffled, tokens) == routing(BY_SIZE, tokens)


def test_there_is_nothing_to_route_with_one_setting_or_few_problems() -> None:
    assert routing({"low": BY_SIZE["low"]}, tokens) is None
    assert routing({name: rows[11:30] for name, rows in BY_SIZE.items()}, tokens) is None
    assert routing({}, tokens) is None


def test_a_setting_of_which_little_was_asked_is_left_out() -> None:
    """An adaptive run drops settings early."""
    dropped = attempts("medium", ["wrong"] * 10, 200, SIZES[:10])
    assert routing({**BY_SIZE, "medium": dropped}, tokens) == routing(BY_SIZE, tokens)
    assert routing({**BY_SIZE, "medium": dropped}, tokens, single="medium") is None


def test_a_disagreement_asks_twice_and_counts_every_pair_of_samples() -> None:
    """Three samples: on odd problems, two right and one wrong; one pair of three agrees."""
    low = []
    for sample in range(3):
        rows = attempts("low", ["right"] * 40, 100, SIZES, sample, details={"ballot": 0})
        if sample == 2:
            for index in range(1, 40, 2):
                rows[index] = rows[index]._replace(ended="wrong", details={"ballot": 2})
        low += rows
    high = attempts("high", ["right"] * 40, 500, SIZES)
    route = find(routing({"low": low, "high": high}, tokens), "disagree of 2")
    assert route.scored.accuracy.value == 1
    assert route.escalated.value == pytest.approx(0.5 * 2 / 3)
    assert route.scored.cost.value == pytest.approx(200 + 0.5 * 2 / 3 * 500)
    assert route.rule.escalate() == {"when": ["disagree"], "n": 2}


def test_an_oracle_that_profits_from_luck_and_one_that_does_not() -> None:
    """Two settings that toss a coin: choosing by the toss itself wins, by another one it doesn't."""
    rng = np.random.default_rng(5)
    settings = {}
    for name in ("low", "high"):
        rows = []
        for sample in range(3):
            ended = np.where(rng.random(400) < 0.5, "right", "wrong").tolist()
            rows += attempts(name, ended, 100, [4] * 400, sample)
        settings[name] = rows
    result = routing(settings, tokens)
    assert result is not None
    assert result.held_out_oracle is not None
    assert result.oracle.accuracy.value == pytest.approx(0.75, abs=0.03)
    assert result.held_out_oracle.accuracy.value == pytest.approx(0.5, abs=0.03)
    assert result.worth == "no"


def test_a_level_for_many_at_once_is_that_of_independent_ones() -> None:
    """Of k independent estimates, all are covered with the probability level ** k."""
    assert level_for_all(np.eye(16)) ** 16 == pytest.approx(0.95, abs=0.01)
    assert level_for_all(np.tile(np.eye(16)[0], (9, 1))) == pytest.approx(0.95, abs=0.01)


def test_the_interval_of_the_best_rule_holds_for_all_rules() -> None:
    (case,) = [case for case in simulated.SCENARIOS if case.name == "votes"]
    result = simulated.estimated(np.random.default_rng(1), case)
    best = result.best.scored
    alone = find(result, "disagree of 2").scored
    assert result.best.rule.sign == "disagree of 2"
    assert best.difference.value == alone.difference.value
    assert best.difference.low < alone.difference.low
    assert best.saving.low < alone.saving.low


def test_a_threshold_is_scored_on_problems_that_did_not_choose_it() -> None:
    """Of prompts whose length says nothing, some threshold looks 4 points better than it is."""
    rng = np.random.default_rng(3)
    differences = []
    for _ in range(40):
        settings = {}
        for name, spent in (("low", 100), ("high", 500)):
            ended = np.where(rng.random(60) < 0.5, "right", "wrong").tolist()
            rows = attempts(name, ended, spent, [4] * 60)
            settings[name] = [o._replace(prompt_tokens=i) for i, o in enumerate(rows)]
        route = find(routing(settings, tokens, 0.0, single="high"), "prompt_tokens")
        differences.append(route.scored.difference.value)
    assert abs(np.mean(differences)) < 0.025


def test_values_are_unbiased_and_intervals_cover() -> None:
    """A short form: at R = 500 the bias is below .001 and .045, and coverage at least .95."""
    names = {"signs": 30, "votes": 20}
    for case in simulated.SCENARIOS:
        if case.name not in names:
            continue
        replicates = names[case.name]
        rows = {row[0].split(": bias")[0]: row for row in rows_of(case, replicates)}
        for quantity in ("difference", "saving"):
            name, covered, _, _ = rows[f"{case.name}: {quantity} of the best rule"]
            bias = float(name.split("bias ")[1].split(" ±")[0])
            assert covered >= 0.85, name
            assert abs(bias) < 0.08, name
        assert rows[f"{case.name}: false claims"][1] <= 0.05


def rows_of(case: simulated.Scenario, replicates: int) -> list[tuple[str, float, float, int]]:
    return list(simulated.scenario_rows(case, replicates, 16))


def test_every_rule_is_one_that_escalate_applies() -> None:
    rules = [Rule(sign, 0.5) for sign in ("size", "prompt_tokens", "thinking_tokens", "agreement")]
    rules += [Rule("unparsed"), Rule("truncated"), Rule("unparsed or truncated")]
    for rule in rules:
        for text in rule.escalate()["when"]:
            assert Sign.parse(text).threshold == (rule.threshold or 0)


def test_the_verdict_in_words() -> None:
    result = routing(BY_SIZE, tokens, margin=0.2)
    assert result is not None
    assert result.worth == "yes"
    worth_it, oracle = routing_sentences(result)
    opening = "Routing is worth it: `high` if size >= 8, else `low` saves 40 % ["
    assert worth_it.startswith(opening)
    assert "beside `high` and is not worse by more than 20 points (difference 0 [" in worth_it
    assert "an upper bound that is inflated by luck" in oracle
    heading, single, best, *others = routing_table(result, "tokens")
    assert heading == ["policy", "escalated %", "accuracy %", "tokens", "saving %", "difference"]
    assert single[0] == "`high` alone"
    assert best[0] == "`high` if size >= 8, else `low`"
    assert others[-1][0] == "oracle, with luck"
    assert routing_json(result)["best"]["escalate"] == {"when": ["size >= 8"]}

    unclear = replace(result, worth="unclear", margin=0.01)
    assert "may be worse by more than 1 point " in routing_sentences(unclear)[0]


def test_where_the_oracle_saves_little_routing_is_not_worth_it() -> None:
    equal = {
        "low": attempts("low", ["right"] * 40, 100, SIZES),
        "high": attempts("high", ["right"] * 40, 500, SIZES),
    }
    result = routing(equal, tokens)
    assert result is not None
    assert (result.single, result.worth, result.best.rule.sign) == ("low", "no", "none")
    (sentence,) = routing_sentences(result)
    assert sentence.startswith("Routing isn't worth it: even choosing the right setting")
