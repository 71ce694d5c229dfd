"""`best_of` with a judge behind an endpoint: asked in the run's own loop, billed apart, and counted
by the caps.
"""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing

import pytest

STUDY = """
problems = {problems}
{caps}
[[task]]
name = "chain_sum"
size = 3
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
budget = 400
concurrency = 16
prices = {{ input = 1.0, output = 10.0 }}
[[model.method]]
name = "best_of"
n = 2
[model.method.reward]
name = "judge"
model = {{ name = "endpoint", id = "judge", url = "{judge}"{settings} }}
"""
SETTINGS = ", budget = 300, concurrency = 3, prices = { input = 100.0, output = 200.0 }"


def write_study(
    write, served, judge, problems: int = 20, caps: str = "", settings: str = SETTINGS
) -> None:
    write(
        "s.toml",
        STUDY.format(
            url=served.url, judge=judge.url, problems=problems, caps=caps, settings=settings
        ),
    )


def summary(result) -> dict:
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


def test_a_judge_is_opened_once_and_billed_apart(serve, write, ponder) -> None:
    served, judge = serve(together=8), serve(together=3)
    write_study(write, served, judge)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["right"] == 20
    assert judge.state()["listed"] == 2  # for its prices, then when it is opened
    assert judge.state()["answered"] == 40
    assert judge.state()["most_in_flight"] == 3
    assert tally["tokens"] == served.state()["billed_tokens"] + judge.state()["billed_tokens"]
    assert tally["cost"] == pytest.approx(40 * (40 * 1 + 120 * 10 + 40 * 100 + 120 * 200) / 1e6)
    with closing(sqlite3.connect("ponder.db")) as db:
        rows = db.execute(
            "SELECT prompt_tokens, thinking_tokens, answer_tokens, details FROM attempt"
        ).fetchall()
    assert {row[:3] for row in rows} == {(80, 200, 40)}
    costs = {"reward_prompt_tokens": 80, "reward_completion_tokens": 240}
    for row in rows:
        details = json.loads(row[3])
        assert {name: details[name] for name in costs} == costs
        assert details["reward_cost"] == pytest.approx((80 * 100 + 240 * 200) / 1e6)


def test_what_was_stored_is_planned_and_graded_with_the_judges_part(serve, write, ponder) -> None:
    served, judge = serve(), serve()
    write_study(write, served, judge, problems=5)
    paid = summary(ponder("run", "s.toml", "--json"))
    assert json.loads(ponder("regrade", "s.toml", "--json").stdout)["changed"] == 0
    write_study(write, served, judge, problems=10)
    plan = json.loads(ponder("plan", "s.toml", "--json").stdout)["total"]
    assert plan["tokens"]["expected"] == paid["tokens"]  # five more of the same
    assert plan["cost"]["expected"] == pytest.approx(paid["cost"])
    assert plan["cost"]["at_most"] > plan["cost"]["expected"]


@pytest.mark.parametrize(
    ("cap", "name"), [("max_tokens = 40_000", "tokens"), ("max_cost = 4.0", "cost")]
)
def test_a_cap_counts_the_judge(serve, write, ponder, cap, name) -> None:
    lengths = {"lengths": {"median": 100, "sigma": 0.8}, "seconds_per_token": 2e-5}
    served, judge = serve(**lengths), serve(**lengths)
    write_study(write, served, judge, problems=300, caps=cap)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert tally["tokens"] == served.state()["billed_tokens"] + judge.state()["billed_tokens"]
    limit = float(cap.split("=")[1])
    assert 0.4 * limit < tally[name] <= limit


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (", budget = 300", "max_cost can't be kept: `judge` has no prices"),
        (
            ", prices = { input = 1.0, output = 1.0 }",
            "max_cost can't be kept: a reply of `judge`, which",
        ),
        (
            ", budget = 300, prices = { input = 1, output = 1, currency = 'EUR' }",
            "in different currencies: EUR, USD",
        ),
    ],
)
def test_a_cap_needs_to_know_what_the_judge_costs(serve, write, ponder, settings, message) -> None:
    served = serve()
    write_study(write, served, served, caps="max_cost = 1.0", settings=settings)
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_attempt_fails_if_the_judge_gives_no_answer(serve, write, ponder) -> None:
    """The first sample would be an answer that nobody picked. What was spent is spent."""
    served, judge = serve(), serve(**{"500": 0.3})
    write_study(write, served, judge, settings=", budget = 300, retries = 0")
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["failed"] > 0
    assert tally["right"] > 0
    assert any(why.startswith("the judge: HTTP 500") for why in tally["reasons"]["failed"])
    assert tally["tokens"] == served.state()["billed_tokens"] + judge.state()["billed_tokens"]


def test_a_judges_calls_that_time_out_count_as_spent(serve, write, ponder) -> None:
    served, judge = serve(), serve(ignore=0.2)
    write_study(write, served, judge, settings=f"{SETTINGS}, timeout = 1, retries = 1")
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["retries"]["timeout"] > 0
    # more than those ignored, if the machine is so slow that others time out too
    lost = tally["lost_calls"]
    assert judge.state()["ignore"] <= lost <= tally["retries"]["timeout"] + 2 * tally["failed"]
    assert tally["lost_tokens"] >= lost * 300
    # of the judge's prompt and budget, not of the model's too
    assert tally["lost_tokens"] < lost * (300 + 2000 + 400)
    assert (
        tally["cost"]
        > judge.state()["ignore"] * 300 * 200 / 1e6
        + judge.state()["answered"] * (40 * 100 + 120 * 200) / 1e6
    )
    assert tally["tokens"] >= served.state()["billed_tokens"] + judge.state()["billed_tokens"]


def test_a_judge_that_is_down_is_an_error_at_once(serve, write, ponder) -> None:
    served = serve()
    write(
        "s.toml",
        STUDY.format(
            url=served.url, judge="http://127.0.0.1:9/v1", problems=2, caps="", settings=""
        ),
    )
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "no connection to http://127.0.0.1:9/v1" in result.stderr
    assert "requests" not in served.state()


def test_ctrl_c_ends_a_run_that_waits_for_its_judge(serve, write, running) -> None:
    served, judge = serve(), serve(hold_after=0)
    write_study(write, served, judge)
    with running("run", "s.toml", "--grace", "600") as process:
        judge.wait(held=3)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "Ctrl-C" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
