"""`jsonl` with a judge behind an endpoint: asked about each stored reply, billed apart, counted by
the caps, and asked again where it gave no verdict.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from ponder import Study

STUDY = """
{caps}
[[task]]
name = "jsonl"
file = "sums.jsonl"
grader = "judge"
rubric = "{rubric}"
judge = {{ name = "endpoint", id = "judge", url = "{judge}"{settings} }}
{labels}
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
budget = 400
concurrency = {concurrency}
retries = 0
prices = {{ input = 1.0, output = 10.0 }}
[[figure]]
name = "accuracy"
"""
SETTINGS = (
    ", budget = 300, concurrency = 3, retries = 0, prices = { input = 100.0, output = 200.0 }"
)


def write_study(write, served, judge, problems: int = 20, **values) -> None:
    lines = []
    for n in range(problems):
        # Every fourth reference answer is not what the fake model says.
        answer = n + 1 if n % 4 else n + 2
        lines.append(
            json.dumps({"prompt": f"What is {n} + 1?", "answer": f">{answer}<", "id": f"p{n}"})
        )
    write("sums.jsonl", "\n".join(lines))
    filled = {"caps": "", "settings": SETTINGS, "rubric": "It has the sum.", "labels": ""}
    filled |= {"concurrency": 8, **values}
    write("s.toml", STUDY.format(url=served.url, judge=judge.url, **filled))


def summary(result) -> dict:
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


def details_of_attempts() -> list[dict]:
    with closing(sqlite3.connect("ponder.db")) as db:
        rows = db.execute("SELECT details FROM attempt WHERE status = 'graded'").fetchall()
    return [json.loads(row[0]) for row in rows]


def test_a_judge_grades_and_is_billed_apart(serve, write, ponder) -> None:
    served, judge = serve(together=8), serve(together=3)
    write_study(write, served, judge)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert (tally["right"], tally["wrong"]) == (15, 5)
    assert judge.state()["answered"] == served.state()["answered"] == 20
    assert judge.state()["most_in_flight"] == 3
    assert tally["tokens"] == served.state()["billed_tokens"] + judge.state()["billed_tokens"]
    assert tally["cost"] == pytest.approx(20 * (40 * 1 + 120 * 10 + 40 * 100 + 120 * 200) / 1e6)
    for details in details_of_attempts():
        assert details["judge_prompt_tokens"] == 40
        assert details["judge_completion_tokens"] == 120
        assert details["judge_cost"] == pytest.approx((40 * 100 + 120 * 200) / 1e6)
        assert "reward_cost" not in details
    plan = json.loads(ponder("plan", "s.toml", "--json").stdout)["total"]
    assert plan["to_run"] == 0
    write_study(write, served, judge, problems=20, caps="samples = 2")
    plan = json.loads(ponder("plan", "s.toml", "--json").stdout)["total"]
    assert plan["tokens"]["expected"] == tally["tokens"]
    assert plan["cost"]["expected"] == pytest.approx(tally["cost"])
    assert plan["cost"]["at_most"] > plan["cost"]["expected"]


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize(
    ("cap", "name"), [("max_tokens = 30_000", "tokens"), ("max_cost = 3.0", "cost")]
)
def test_a_cap_counts_the_judge(serve, write, ponder, cap, name, concurrency) -> None:
    lengths = {"lengths": {"median": 100, "sigma": 0.3}, "seconds_per_token": 2e-5}
    served, judge = serve(**lengths), serve(**lengths)
    write_study(write, served, judge, problems=120, caps=cap, concurrency=concurrency)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert tally["tokens"] == served.state()["billed_tokens"] + judge.state()["billed_tokens"]
    limit = float(cap.split("=")[1])
    assert 0.5 * limit < tally[name] <= limit
    # A reply that the cap left without a verdict is not asked again.
    write_study(write, served, judge, problems=120, concurrency=concurrency)
    assert summary(ponder("run", "s.toml", "--json"))["failed"] == 0
    assert served.state()["answered"] == judge.state()["answered"] == 120


def test_a_judge_that_bills_more_than_its_budget_ends_the_run(serve, write, ponder) -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 9000, "total_tokens": 9040}
    served, judge = serve(), serve(usage=usage)
    write_study(write, served, judge, caps="max_tokens = 200_000")
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert judge.state()["answered"] == 1  # the others wait for the first bill


def test_a_failed_judge_is_asked_again_and_the_model_is_not(serve, write, ponder) -> None:
    served, judge = serve(), serve(**{"500": 0.4})
    write_study(write, served, judge)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert 0 < tally["failed"] < 20
    assert all(why.startswith("the judge: HTTP 500") for why in tally["reasons"]["failed"])
    judge.calm()
    again = summary(ponder("run", "s.toml", "--json"))
    assert tally["right"] + again["right"] == 15
    assert served.state()["answered"] == judge.state()["answered"] == 20


def test_a_reply_without_a_verdict_is_no_grade_and_its_bill_counts(serve, write, ponder) -> None:
    served, judge = serve(), serve()
    write_study(write, served, judge, rubric="Say nothing.")
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["failed"] == 20
    assert list(tally["reasons"]["failed"]) == ["the judge: its reply doesn't end with a verdict"]
    assert tally["tokens"] == served.state()["billed_tokens"] + judge.state()["billed_tokens"]
    write_study(write, served, judge)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert (tally["right"], tally["wrong"]) == (15, 5)
    assert served.state()["answered"] == 20
    # what the first judge took is in the attempt's bill
    assert {details["judge_completion_tokens"] for details in details_of_attempts()} == {240}


def test_after_another_rubric_the_judge_is_asked_again(serve, write, ponder) -> None:
    served, judge = serve(), serve()
    write_study(write, served, judge)
    ponder("run", "s.toml")
    write_study(write, served, judge, rubric="It has the right sum.")
    regraded = ponder("regrade", "s.toml", "--json")
    assert json.loads(regraded.stdout) == {"changed": 20, "unjudged": 20}
    assert "20 replies not judged with this judge and rubric: ponder run" in regraded.stderr
    assert summary(ponder("run", "s.toml", "--json"))["right"] == 15
    assert served.state()["answered"] == 20
    assert judge.state()["answered"] == 40
    assert json.loads(ponder("regrade", "s.toml", "--json").stdout)["changed"] == 0


def test_a_judge_that_is_down_is_an_error_before_the_model_is_asked(serve, write, ponder) -> None:
    served = serve()
    write_study(write, served, served, settings="")
    down = "task.judge.url=http://127.0.0.1:9/v1"
    result = ponder("run", "s.toml", "--set", down)
    assert result.exit_code == 2
    assert "judge of task `jsonl`: no connection to http://127.0.0.1:9/v1" in result.stderr
    assert "answered" not in served.state()


def write_labels(write, folder, ponder, wrong: int) -> None:
    """Label every reply as right, but for the first ones; the judge calls five wrong."""
    ponder("export", "s.toml", "--format", "jsonl", "-o", "out.jsonl")
    lines = []
    for line in (folder / "out.jsonl").read_text().splitlines():
        lines.append(json.dumps(json.loads(line) | {"right": len(lines) >= wrong}))
    write("labels.jsonl", "\n".join(lines))


def test_labels_correct_the_accuracy(serve, write, folder, ponder) -> None:
    served, judge = serve(), serve()
    write_study(write, served, judge)
    run = ponder("run", "s.toml")
    assert "graded by the judge judge, which is unchecked" in run.stderr
    assert "The judge took 3,200 tokens and 0.56 USD, billed apart" in run.stderr
    write_labels(write, folder, ponder, wrong=2)
    write_study(write, served, judge, labels='labels = "labels.jsonl"')
    report = ponder("report", "s.toml")
    assert "changed since 20 attempts were graded; `ponder regrade`" in report.stderr
    regraded = json.loads(ponder("regrade", "s.toml", "--json").stdout)
    assert regraded == {"changed": 20, "unjudged": 0}
    report = ponder("report", "s.toml")
    # 14 of 18, and one of two
    assert "the judge judge calls 78% [52%, 92%] of the right ones right" in report.stderr
    assert "changed since" not in report.stderr
    [row] = Study.load("s.toml").results().estimates("accuracy")["sizes"]
    assert row["accuracy"] == pytest.approx(0.9)  # all are labelled, so what people say
    assert row["judged_accuracy"] == pytest.approx(0.75)
    assert row["accuracy_low"] < 0.75 < row["accuracy_high"]
    assert "] by the judge alone. Only the figure" in (folder / "reports/s/report.html").read_text()


def test_labels_of_other_replies_are_an_error(serve, write, folder, ponder) -> None:
    served, judge = serve(), serve()
    write_study(write, served, judge)
    ponder("run", "s.toml")
    write("labels.jsonl", '{"problem": "p1", "answer": "something else", "right": true}')
    labels = 'labels = "labels.jsonl"'
    write_study(write, served, judge, labels=labels)
    result = ponder("regrade", "s.toml")
    assert result.exit_code == 2
    assert "task `jsonl`: none of its 1 label is about a stored reply" in result.stderr
    write("labels.jsonl", '{"problem": "p99", "answer": "x", "right": true}')
    result = ponder("plan", "s.toml")
    assert result.exit_code == 2
    assert "labels.jsonl:1: there is no problem `p99`" in result.stderr
    twice = '{"problem": "p1", "answer": "x", "right": %s}'
    write("labels.jsonl", f"{twice % 'true'}\n{twice % 'false'}")
    assert "labels.jsonl:2: an earlier line says the opposite" in ponder("plan", "s.toml").stderr
