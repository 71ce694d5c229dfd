"""Caps count what preparations ask: teachers, samplers, judges; in this process and in others, as
the server counts.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("torch")

STUDY = """
problems = 2
{caps}
[[task]]
name = "execution"
size = 2
dictionary = 6
per_turn = 0
[[train]]
name = "execution"
size = 3
dictionary = 6
per_turn = 0
[[model]]
name = "transformers"
id = "{weights}"
budget = 200
method = [{method}]
"""
ENDPOINT = """name = "endpoint", id = "served", url = "{url}", budget = 400, concurrency = 8"""
PRICED = ENDPOINT + ", prices = {{ input = 1.0, output = 10.0 }}"
TEACHER = '{{ name = "sft", teachers = [{{ {model} }}], pool = 60, epochs = 1, number = 8, by = "random" }}'
JUDGE = (
    '{{ name = "sft", teachers = [{{ name = "pocket", budget = 200 }}], pool = 60, epochs = 1, number = 8, '
    'by = "reward", reward = {{ name = "judge", model = {{ {model} }} }} }}'
)
SAMPLER = '{{ name = "shortest", sampler = {{ {model} }}, problems = 20, n = 3, epochs = 1 }}'
JUDGED_RL = (
    '{{ name = "length_rl", iterations = 4, problems = 4, n = 4, pool = 8, inner = 1, '
    'process = {{ name = "judge", model = {{ {model} }} }} }}'
)
LENGTHS = {"median": 150, "sigma": 0.8}


@pytest.fixture
def study(write, models, tmp_path):
    """Write a study whose model is prepared by a method that asks a server."""

    def of(served, method: str, caps: str, model: str = ENDPOINT) -> str:
        from ponder.models.pocket import WEIGHTS

        model = model.format(url=served.url)
        text = STUDY.format(
            caps=caps, weights=WEIGHTS / "execution", method=method.format(model=model)
        )
        return write("s.toml", text.replace('name = "transformers"\nid = ', 'name = "pocket"\n# '))

    return of


def summary(result) -> dict:
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("method", [TEACHER, JUDGE, SAMPLER], ids=["teacher", "judge", "sampler"])
def test_a_preparation_stops_at_the_cap_and_resumes(serve, study, ponder, method, jobs) -> None:
    served = serve(lengths=LENGTHS)
    cap = 6000 if method is not JUDGE else 12_000
    study(served, method, f"max_tokens = {cap}")
    result = ponder("run", "s.toml", "--jobs", jobs, "--json")
    tally, billed = summary(result), served.state()["billed_tokens"]
    assert result.exit_code == 0
    assert tally["capped"]
    assert "Traceback" not in result.stderr
    assert f"of {cap:,} tokens, and the next turn may take" in result.stderr
    assert billed <= cap
    if method is JUDGE:
        assert tally["tokens"] > billed > 0  # the pocket model's samples count too
    else:
        assert tally["preparation_tokens"] == tally["tokens"] == billed > 4000
    with closing(sqlite3.connect("ponder.db")) as db:
        assert db.execute("SELECT tokens, held_tokens FROM study").fetchone() == (
            tally["tokens"],
            0,
        )
    asked = served.state()["answered"]
    again = ponder("run", "s.toml", "--jobs", jobs, "--set", "max_tokens=100000000", "--json")
    assert summary(again)["done"] == 2
    assert served.state()["repeated"] == (
        0 if method is not SAMPLER else served.state()["repeated"]
    )
    if method is not JUDGE:
        assert served.state()["answered"] == 60  # what was paid for is kept
    assert served.state()["answered"] > asked > 0
    with closing(sqlite3.connect("ponder.db")) as db:
        spent = sum(tokens for (tokens,) in db.execute("SELECT tokens FROM study"))
    assert spent >= served.state()["billed_tokens"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_reinforcement_learning_with_a_judge_stops_at_the_cap(serve, study, ponder, jobs) -> None:
    served = serve(lengths=LENGTHS)
    cap = 8000
    study(served, JUDGED_RL, f"max_tokens = {cap}")
    result = ponder("run", "s.toml", "--jobs", jobs, "--json")
    tally, billed = summary(result), served.state()["billed_tokens"]
    assert tally["capped"]
    assert "Traceback" not in result.stderr
    assert 0 < billed < tally["tokens"] <= cap  # the policy's own samples count too
    again = ponder("run", "s.toml", "--jobs", jobs, "--set", "max_tokens=100000000", "--json")
    assert summary(again)["done"] == 2
    with closing(sqlite3.connect("ponder.db")) as db:
        spent = sum(tokens for (tokens,) in db.execute("SELECT tokens FROM study"))
    assert spent >= served.state()["billed_tokens"] > billed


def test_money_has_a_cap_in_preparations_too(serve, study, ponder) -> None:
    served = serve(lengths=LENGTHS)
    study(served, TEACHER, "max_cost = 0.05", PRICED)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert 0.03 < tally["preparation_cost"] == tally["cost"] <= 0.05


@pytest.mark.parametrize(
    ("caps", "model", "message"),
    [
        ("max_tokens = 100", ENDPOINT.replace(", budget = 400", ""), "a reply of `served`, which"),
        ("max_cost = 1.0", ENDPOINT, "max_cost can't be kept: `served` has no prices"),
    ],
)
def test_a_cap_that_a_teacher_can_not_keep_is_refused(
    serve, study, ponder, caps, model, message
) -> None:
    served = serve()
    study(served, TEACHER, caps, model)
    for verb in ("plan", "run", "prepare"):
        result = ponder(verb, "s.toml")
        assert result.exit_code == 2
        assert message in result.stderr
    assert "requests" not in served.state()


def test_plan_counts_preparations_under_the_caps(serve, study, ponder) -> None:
    served = serve()
    study(served, TEACHER, "max_tokens = 3000\nmax_cost = 0.01", PRICED)
    plan = ponder("plan", "s.toml")
    assert "not capped" not in plan.stdout
    assert "the study fits" not in plan.stdout
    assert "samples to train on: 60 calls, at most" in plan.stdout
    assert "which the caps count" in plan.stdout
    making = json.loads(ponder("plan", "s.toml", "--json").stdout)["making"]
    assert making["calls"] == 60
    assert making["cost"] > 60 * 400 * 10e-6
    study(served, TEACHER, "max_tokens = 3000000", PRICED)
    assert "the study fits" in ponder("plan", "s.toml").stdout


def test_prepare_spends_under_the_same_cap(serve, study, ponder) -> None:
    served = serve(lengths=LENGTHS)
    study(served, TEACHER, "max_tokens = 6000")
    result = ponder("prepare", "s.toml")
    assert result.exit_code == 2
    assert "stopped at the cap: " in result.stderr
    assert "what was paid for is kept" in result.stderr
    billed = served.state()["billed_tokens"]
    assert 4000 < billed <= 6000
    assert json.loads(ponder("plan", "s.toml", "--json").stdout)["spent"]["tokens"] == billed
    assert summary(ponder("run", "s.toml", "--json"))["capped"]  # the same cap
    assert served.state()["billed_tokens"] <= 6000


def test_a_probe_prepares_under_the_same_cap(serve, study, ponder) -> None:
    served = serve(lengths=LENGTHS)
    study(served, TEACHER, "max_tokens = 6000")
    result = ponder("plan", "s.toml", "--probe", "1")
    assert result.exit_code == 0
    assert "stopped at the cap: " in result.stderr
    assert 4000 < served.state()["billed_tokens"] <= 6000


def test_calls_that_time_out_in_a_preparation_count(serve, study, ponder) -> None:
    served = serve(lengths=LENGTHS, ignore=0.2)
    study(served, TEACHER, "max_tokens = 20000", ENDPOINT + ", timeout = 0.5, retries = 3")
    result = ponder("run", "s.toml", "--json")
    assert served.state()["billed_tokens"] <= 20_000
    if result.exit_code != 2:  # a sample may have failed for good
        assert served.state()["billed_tokens"] <= summary(result)["tokens"] <= 20_000
