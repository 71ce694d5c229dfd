"""What an attempt cost, and the figures that draw cost or seconds where they draw tokens."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_up
import pytest
from test_figures import domains
from test_frontier import attempts
from test_judged_runs import write_study

from ponder import Study
from ponder.core import Bill, Figure, Method, Model, Outcome, Prices, UserError, plugins
from ponder.core.text import number
from ponder.figures.budget import Budget
from ponder.figures.compare import Compare
from ponder.figures.cost import Cost
from ponder.figures.effort import Effort
from ponder.figures.frontier import Frontier
from ponder.figures.samples import Samples
from ponder.figures.tradeoff import Tradeoff
from ponder.results.charts import draw_figure

PRICES = Prices(2.0, 8.0, cached_input=0.5)
REWARD = {"reward_prompt_tokens": 1000, "reward_completion_tokens": 100}


class Judge(made_up.MadeUpModel):
    """A model behind a server."""

    def server(self) -> str:
        return "http://judge"


class Judged(Method):
    """A method that asks a judge."""

    judge: Model

    def apply(self, model: Model) -> Model:
        return model

    def identity(self) -> dict[str, Any]:
        return {"name": "judged"}

    def asks(self) -> tuple[Model, ...]:
        return (self.judge,)


def judged(outcome: Outcome, prices: Prices | None) -> Outcome:
    """The same attempt, with a judge of these prices."""
    method = Judged()
    method.judge = Judge(label="the judge", prices=prices)
    return outcome._replace(cell=replace(outcome.cell, methods=(method,)))


def attempt(prices: Prices | None, cached: int = 0, **details: float) -> Outcome:
    outcome = made_up.outcome(
        prompt_tokens=1000,
        thinking_tokens=300,
        answer_tokens=200,
        cached_tokens=cached,
        details=details,
    )
    return made_up.priced([outcome], prices)[0]


# What an attempt cost


@pytest.mark.parametrize(
    ("outcome", "cost"),
    [
        (attempt(PRICES), 0.002 + 0.004),
        (attempt(PRICES, cached=600), 0.0008 + 0.0003 + 0.004),
        (attempt(replace(PRICES, discount=0.5)), 0.003),
        (attempt(PRICES, billed_cost=0.5), 0.5),
        (attempt(None, billed_cost=0.5), 0.5),
        (attempt(replace(PRICES, currency="EUR"), billed_cost=0.5), 0.006),
        (attempt(None), None),
        (attempt(PRICES, **REWARD, reward_cost=0.25), 0.256),
        (attempt(None, **REWARD, reward_cost=0.25, billed_cost=0.5), 0.75),
        # a reward on this machine, and judges whose price the run didn't know
        (attempt(PRICES, **REWARD, reward_cost=0), 0.006),
        (judged(attempt(PRICES, **REWARD, reward_cost=0), Prices(10.0, 100.0)), 0.026),
        (judged(attempt(PRICES, **REWARD, reward_cost=0.25), Prices(10.0, 100.0)), 0.256),
        (judged(attempt(PRICES, **REWARD, reward_cost=0), None), None),
    ],
)
def test_what_an_attempt_cost(outcome: Outcome, cost: float | None) -> None:
    assert outcome.cost == pytest.approx(cost)


def test_what_another_model_cost_is_not_all() -> None:
    paid = Bill(100, 50, 50, other_cost=0.5)
    served = made_up.cell()
    served = replace(served, model=Judge())
    assert served.cost(paid) is None
    assert replace(served, model=Judge(prices=PRICES)).cost(paid) == pytest.approx(0.501)


def test_figures_and_transcripts_add_up_to_what_a_run_paid(serve, write, ponder) -> None:
    served = serve(usage={"prompt_tokens": 40, "completion_tokens": 120, "cost": 0.002})
    judge = serve()
    write_study(write, served, judge, problems=12)
    paid = json.loads(ponder("run", "s.toml", "--json").stdout)["cost"]
    assert paid == pytest.approx(12 * (2 * 0.002 + 2 * (40 * 100 + 120 * 200) / 1e6))
    results = Study.load("s.toml").results("ponder.db")
    assert sum(outcome.cost for outcome in results.outcomes) == pytest.approx(paid)
    assert sum(each.cost for each in results.attempts()) == pytest.approx(paid)
    [row] = Cost().estimate(results.outcomes)["variants"]
    assert row["cost"] == pytest.approx(paid / 12)
    assert row["currency"] == "USD"


def test_a_judges_price_may_be_found_after_the_run(serve, write, ponder) -> None:
    served, judge = serve(), serve()
    write_study(write, served, judge, problems=3, settings=", budget = 300")
    ponder("run", "s.toml")
    outcomes = Study.load("s.toml").results("ponder.db").outcomes
    with pytest.raises(UserError, match=r"`judge`, which it asks, has no prices") as error:
        Cost().estimate(outcomes)
    assert "docs/endpoints.md#prices" in error.value.hint
    for outcome in outcomes:
        [asked] = outcome.cell.asks()
        asked.prices = Prices(100.0, 200.0)  # as `find_prices` does
    [row] = Cost().estimate(outcomes)["variants"]
    assert row["cost"] == pytest.approx(2 * (40 + 120 * 10 + 40 * 100 + 120 * 200) / 1e6)


# Figures


def by_measure() -> list[tuple[str, type[Figure], str]]:
    """Every figure with cost on an axis, and the key that says so."""
    found = []
    for name in plugins.files("figures"):
        kind = plugins.load("figures", name)
        annotations = {key: str(kind.__annotations__.get(key)) for key in ("measure", "against")}
        for key, values in annotations.items():
            if "Measure" in values or "cost" in values:
                found.append((name, kind, key))
    return found


FIGURES = by_measure()


def outcomes_of_two_models() -> list[Outcome]:
    """Two samples per problem, some truncated, with the details that `tradeoff` needs."""
    found = []
    for number_, o in enumerate(attempts(problems=20, tasks=("tents",), sizes=(8, 16))):
        if o.label.model in ("pocket", "pocket-short"):
            details = {"per_turn": 2 + number_ % 2, "plan": o.problem, "ballot": number_ % 3}
            first = o._replace(details=details, ended="truncated" if number_ % 13 == 0 else o.ended)
            found += [first, first._replace(sample=1, thinking_tokens=o.thinking_tokens + 7)]
    return found


def test_the_figures_that_have_tokens_on_an_axis() -> None:
    assert {name for name, _, _ in FIGURES} == {
        *("budget", "compare", "cost", "effort", "frontier", "samples", "tradeoff")
    }


@pytest.mark.parametrize(("name", "kind", "key"), FIGURES, ids=[name for name, _, _ in FIGURES])
def test_cost_is_tokens_at_a_price(name: str, kind: type[Figure], key: str) -> None:
    """With only output priced, every number is that of tokens, times the price if it is money."""
    price = 1e-7 if name != "effort" else 2.0**-20  # of a token
    outcomes = made_up.priced(outcomes_of_two_models(), Prices(0.0, 1e6 * price))
    counted_as = Frontier if kind is Cost else kind
    plain = {"tokens": "output"}
    of_tokens = counted_as(**plain).estimate(outcomes)  # type: ignore[call-arg]
    of_cost = kind(**plain, **{key: "cost"}).estimate(outcomes)  # type: ignore[call-arg]
    compared = 0
    for table, rows in of_tokens.items():
        # budgets of tokens are whole numbers, and `compare` has the cost of a right answer already
        if table in ("by_budget", "omitted"):
            continue
        for row, priced in zip(rows, of_cost[table], strict=True):
            assert "tokens" not in priced
            for column, value in row.items():
                if not isinstance(value, float | int):
                    continue
                amount = renamed(column)
                factor = price if amount != column or is_amount(table, row, column) else 1.0
                assert priced[amount] == pytest.approx(factor * value, rel=1e-6), (table, column)
                compared += factor != 1.0
    assert compared


def renamed(column: str) -> str:
    """The name of a column of tokens in a table of costs."""
    for name in ("without_tokens", "tokens"):
        if column.startswith(name):
            return column.replace("tokens", "cost")
    for name in ("geometric_mean", "quantile_90", "median", "budget", "most"):
        if column.startswith(name):
            return column.replace(name, f"{name}_cost")
    return column


def is_amount(table: str, row: dict[str, Any], column: str) -> bool:
    """Whether a column is an amount although its name is the same for tokens and money."""
    if table == "curves":
        return column in ("value", "low", "high")
    if table == "rows":
        return "tokens" in row["quantity"] and column[:2] in ("a", "b", "a_", "b_")
    return False


@pytest.mark.parametrize("measure", ["cost", "seconds"])
@pytest.mark.parametrize(("name", "kind", "key"), FIGURES, ids=[name for name, _, _ in FIGURES])
def test_axes_and_findings_name_the_unit(
    name: str, kind: type[Figure], key: str, measure: str
) -> None:
    outcomes = made_up.priced(outcomes_of_two_models(), replace(PRICES, currency="CHF"))
    drawn = draw_figure(name, kind(**{key: measure}), outcomes)  # type: ignore[call-arg]
    unit = "CHF" if measure == "cost" else "seconds"
    chart = json.dumps(drawn.spec)
    assert f"{unit} per" in chart
    assert '"tokens' not in chart.replace('"tokens_per', "")
    said = " ".join(drawn.findings)
    assert f" {unit}" in said or f" {measure}" in said
    assert "tokens" not in said
    assert drawn.picture.png.startswith(b"\x89PNG")


def test_the_ends_of_the_frontier_by_hand() -> None:
    answers = {"long": (400, 0.9), "short": (100, 0.6), "silly": (200, 0.3)}
    outcomes = []
    for model, (tokens, accuracy) in answers.items():
        for problem in range(40):
            right = problem < 40 * accuracy
            outcomes.append(
                made_up.outcome(
                    "tents",
                    model,
                    problem=f"p{problem}",
                    ended="right" if right else "wrong",
                    prompt_tokens=0,
                    thinking_tokens=tokens + problem % 2,
                    answer_tokens=0,
                    seconds=tokens / 50,
                )
            )
    figure = Cost(reference="silly")
    tables = figure.estimate(made_up.priced(outcomes, Prices(1.0, 2.0)))
    [ends] = tables["ends"]
    assert (ends["cheapest"], ends["best"]) == ("short", "long")
    assert ends["times"] == pytest.approx(400.5 / 100.5)
    assert ends["difference"] == pytest.approx(0.3)
    findings = figure.findings(tables)
    cheapest, best, costs = findings[:3]
    assert cheapest.startswith("tents: cheapest on the frontier: short, 0.000201 [")
    assert "USD per answer, 0.000335 [" in cheapest
    assert best.startswith("tents: most accurate on it: long, 0.000801 [")
    assert costs.startswith("tents: long costs 3.99 [")
    assert "times as much as short, for +30.0 points [" in costs
    [domain] = domains(figure.draw(tables).to_dict(), "x")
    assert domain == [0.0, pytest.approx(1.12 * 0.000801)]
    seconds = Cost(measure="seconds")
    findings = seconds.findings(seconds.estimate(outcomes))
    assert "with the server's queue" in findings[0]
    assert any("long takes 4 [4, 4] times as long as short" in finding for finding in findings)


def test_critical_sizes_under_spending_limits() -> None:
    outcomes = made_up.priced(outcomes_of_two_models(), PRICES)
    rows = Effort(measure="cost").estimate(outcomes)["by_budget"]
    largest = max(row["budget_cost"] for row in rows)
    assert 0 < min(row["budget_cost"] for row in rows) < 0.2 * largest < 0.01


def test_seconds_of_training_are_repaid_and_money_for_it_is_unknown() -> None:
    outcomes = made_up.priced(attempts(problems=10, tasks=("tents",)), PRICES)
    outcomes = [o._replace(seconds=o.thinking_tokens / 100) for o in outcomes]
    by_seconds = Frontier(measure="seconds").estimate(outcomes)["variants"]
    first = by_seconds[0]
    trained = next(row for row in by_seconds if "dpo" in row["variant"])
    saved = first["seconds"] - trained["seconds"]
    assert trained["break_even"] == pytest.approx(trained["made_seconds"] / saved)
    figure = Frontier(measure="cost")
    tables = figure.estimate(outcomes)
    trained = next(row for row in tables["variants"] if "dpo" in row["variant"])
    assert trained["made_tokens"]
    assert trained["break_even"] is None
    said = next(finding for finding in figure.findings(tables) if "dpo cuts cost by" in finding)
    assert "tokens to make, which have no price" in said
    assert "never repays" not in said


# Errors


def test_a_cost_that_is_unknown_names_the_model_and_the_way_out() -> None:
    outcomes = made_up.priced([made_up.outcome(model="free")], PRICES)
    with pytest.raises(UserError, match="the cost of `m` is unknown: it has no prices") as error:
        Cost().estimate([*outcomes, made_up.outcome()])
    assert "prices = { input" in error.value.hint
    assert "docs/endpoints.md#prices" in error.value.hint
    failed = made_up.outcome(ended="failed")
    assert Cost().estimate([*outcomes, failed])["variants"]  # it cost nothing


def test_currencies_do_not_mix() -> None:
    here = made_up.priced([made_up.outcome(model="here")], replace(PRICES, currency="EUR"))
    there = [made_up.outcome(model="there", details={"billed_cost": 0.1})]
    with pytest.raises(UserError, match="`here` in EUR, `there` in USD"):
        Frontier(measure="cost").estimate([*here, *there])


def test_seconds_that_nobody_measured() -> None:
    outcomes = [made_up.outcome(), made_up.outcome(model="batch", seconds=0.0)]
    with pytest.raises(UserError, match="`batch` has no seconds: its answers came from batch jobs"):
        Budget(measure="seconds").estimate(outcomes)


def test_published_tokens_are_not_drawn_on_an_axis_of_money() -> None:
    with pytest.raises(UserError, match="`tents_effort` has published tokens"):
        Effort(overlay="tents_effort", measure="cost")
    with pytest.raises(UserError, match="`execution_tradeoff` has published tokens"):
        Tradeoff(overlay="execution_tradeoff", measure="seconds")


def test_a_free_model_is_drawn_but_not_on_a_logarithmic_axis() -> None:
    outcomes = made_up.priced(outcomes_of_two_models(), Prices(0.0, 0.0))
    for figure in (Cost(), Budget(measure="cost"), Effort(measure="cost"), Compare(measure="cost")):
        assert draw_figure("free", figure, outcomes).picture.svg.startswith("<svg")
    with pytest.raises(UserError, match="a logarithmic axis has no 0"):
        Samples(against="cost").estimate(outcomes)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.00042, "0.00042"), (0.0000123456, "0.0000123"), (2e-7, "0.0000002"), (-3.21e-5, "-0.0000321"),
     (0.0, "0"), (41.26, "41.3"), (1234.5, "1,234")],
)  # fmt: skip
def test_small_money_has_no_exponent(amount: float, text: str) -> None:
    assert number(amount) == text


def test_bills_add_up_their_rewards() -> None:
    first = Bill(10, 5, 5, reward_prompt_tokens=100, reward_cost=0.5, cost=1.0)
    outcome = made_up.priced([made_up.outcome()], None)[0]
    assert outcome.cell.cost(first + first) == 3.0


def test_an_export_has_the_cost_of_each_attempt(write, ponder) -> None:
    write(
        "s.toml",
        """
        problems = 3
        [[task]]
        name = "chain_sum"
        size = 3
        [[model]]
        name = "oracle"
        prices = { input = 1.0, output = 1e6, currency = "EUR" }
        """,
    )
    ponder("run", "s.toml")
    assert ponder("export", "s.toml", "--format", "csv").exit_code == 0
    with Path("s.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    for row in rows:
        output = int(row["thinking_tokens"]) + int(row["answer_tokens"])
        assert float(row["cost"]) == pytest.approx(output + int(row["prompt_tokens"]) / 1e6)
        assert row["currency"] == "EUR"
