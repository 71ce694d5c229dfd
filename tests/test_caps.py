"""A cap is kept: at any concurrency, through methods, turns, retries and earlier runs, as the
server itself counts.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing

import pytest

from ponder import Study
from ponder.core import Request, UserError
from ponder.store.store import Store

STUDY = """
problems = 200
max_tokens = {cap}
{more}
[[task]]
name = "chain_sum"
size = [2, 4]
digits = 5
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
budget = 2000
concurrency = {concurrency}
{model}
"""
LONG_TAILED = {"lengths": {"median": 300, "sigma": 1.2}, "seconds_per_token": 2e-5}
TURNS = """
problems = 12
max_tokens = {cap}
[[task]]
name = "execution"
size = 10
per_turn = 2
dictionary = 6
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
budget = 400
concurrency = 64
"""


def study_for(served, cap: int, *, concurrency: int = 256, more: str = "", model: str = "") -> str:
    return STUDY.format(cap=cap, url=served.url, concurrency=concurrency, more=more, model=model)


def summary(result) -> dict:
    assert result.exit_code in (0, 1), result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("concurrency", [1, 256])
def test_long_answers_take_longer(serve, write, ponder, concurrency) -> None:
    """Short answers arrive first.

    An estimate from those would start three times what the cap allows.
    """
    served = serve(**LONG_TAILED)
    write("s.toml", study_for(served, 60_000, concurrency=concurrency))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert tally["tokens"] == served.state()["billed_tokens"]
    # what is left would not hold one more call at its most
    assert 60_000 - 2500 < tally["tokens"] <= 60_000


@pytest.mark.parametrize(
    "method", ['{ name = "vote", n = 8 }', '{ name = "budget_force", think = 300, answer = 500 }']
)
def test_calls_of_methods_count(serve, write, ponder, method) -> None:
    served = serve(**LONG_TAILED)
    write("s.toml", study_for(served, 60_000, model=f"method = {method}"))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert tally["tokens"] == served.state()["billed_tokens"]
    assert 40_000 < tally["tokens"] <= 60_000


@pytest.mark.parametrize(
    "method", ['{ name = "vote", n = 8 }', '{ name = "budget_force", think = 300, answer = 500 }']
)
def test_answers_beside_a_failed_call_are_spent_too(serve, write, ponder, method) -> None:
    """A turn of several calls fails with any of them; the others were answered and billed."""
    served = serve(**LONG_TAILED, **{"500": 0.1})
    more = f"method = {method}\nretries = 0"
    write("s.toml", study_for(served, 10**9, concurrency=4, model=more).replace("= 200", "= 20"))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["failed"] > 0
    assert tally["right"] > 0
    assert tally["tokens"] == served.state()["billed_tokens"]


def test_conversations_are_finished_rather_than_begun(serve, write, ponder) -> None:
    served = serve(lengths={"median": 60, "sigma": 0.5}, seconds_per_token=2e-5)
    write("s.toml", TURNS.format(cap=8000, url=served.url))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert tally["tokens"] == served.state()["billed_tokens"] <= 8000
    whole = tally["tokens"] / served.state()["answered"] * 5  # of one conversation
    assert tally["done"] >= 0.6 * tally["tokens"] / whole
    write("s.toml", TURNS.format(cap=1_000_000, url=served.url))
    assert summary(ponder("run", "s.toml", "--json"))["done"] == 12 - tally["done"]
    assert served.state()["answered"] == 60  # what was begun is resumed: no turn is paid for twice


def test_calls_that_time_out_count_as_spent(serve, write, ponder) -> None:
    served = serve(**LONG_TAILED, ignore=0.3)
    write("s.toml", study_for(served, 80_000, concurrency=32, model="timeout = 0.5\nretries = 3"))
    result = ponder("run", "s.toml", "--json")
    tally, state = summary(result), served.state()
    assert tally["lost_tokens"] > 0
    assert (
        f"{tally['lost_calls']} calls without an answer may have been billed: up to"
        in result.stderr
    )
    assert tally["retries"]["timeout"] > 0
    assert state["billed_tokens"] <= tally["tokens"] <= 80_000


def test_earlier_runs_count(serve, write, ponder) -> None:
    served = serve(**LONG_TAILED)
    write("s.toml", study_for(served, 30_000))
    first = summary(ponder("run", "s.toml", "--json"))["tokens"]
    again = summary(ponder("run", "s.toml", "--json"))
    assert (again["tokens"], again["capped"]) == (0, True)
    plan = json.loads(ponder("plan", "s.toml", "--json").stdout)
    assert plan["spent"]["tokens"] == first
    more = summary(ponder("run", "s.toml", "--set", "max_tokens=50000", "--json"))
    assert 40_000 < first + more["tokens"] == served.state()["billed_tokens"] <= 50_000
    alone = summary(ponder("run", "s.toml", "--set", "cap_per=run", "--json"))
    assert 25_000 < alone["tokens"] <= 30_000


def test_calls_in_progress_when_the_process_is_killed_count(serve, write, ponder, running) -> None:
    """Each is on record before it is sent, so that no moment is too early for `kill -9`."""
    served = serve(hold_after=1)
    write("s.toml", study_for(served, 20_000, concurrency=4))
    with running("run", "s.toml") as process:
        served.wait(held=4)
        with closing(sqlite3.connect("file:ponder.db?mode=ro", uri=True)) as db:
            assert db.execute("SELECT TOTAL(held_tokens) FROM study").fetchone()[0] >= 4 * 2000
        process.send_signal(signal.SIGKILL)
    served.release()
    assert summary(ponder("run", "s.toml", "--json"))["capped"]
    assert served.state()["billed_tokens"] <= 20_000
    plan = json.loads(ponder("plan", "s.toml", "--json").stdout)
    assert plan["spent"]["tokens"] >= 4 * 2000


def test_what_killed_runs_held_can_be_released(serve, write, ponder, running) -> None:
    """Nobody but the user can know whether calls in flight at a kill were billed."""
    served = serve(hold_after=1)
    write(
        "s.toml", study_for(served, 12_000, concurrency=4).replace("problems = 200", "problems = 8")
    )
    with running("run", "s.toml") as process:
        served.wait(held=4)
        process.send_signal(signal.SIGKILL)
    served.release()
    stopped = ponder("run", "s.toml", "--json")
    held = served.state()["billed_tokens"]
    assert summary(stopped)["capped"]
    assert "of these tokens are of calls in flight when earlier runs were killed" in stopped.stderr
    assert "run with --release-lost" in stopped.stderr
    released = ponder("run", "s.toml", "--release-lost", "--json")
    assert (
        "tokens of calls in flight when runs were killed are counted as not spent"
        in released.stderr
    )
    tally = summary(released)
    assert not tally["capped"]
    assert json.loads(ponder("plan", "s.toml", "--json").stdout)["total"]["to_run"] == 0
    assert served.state()["billed_tokens"] - held <= 12_000


def test_a_cap_on_money(serve, write, ponder) -> None:
    served = serve(**LONG_TAILED)
    prices = "prices = { input = 1.0, output = 10.0, currency = 'EUR' }"
    write("s.toml", study_for(served, 10**9, more="max_cost = 0.5", model=prices))
    result = ponder("run", "s.toml", "--json")
    tally = summary(result)
    assert 0.45 < tally["cost"] <= 0.5
    assert f"{tally['cost']:.4f} of 0.5000 EUR" in result.stderr
    assert "to go on, raise max_tokens or max_cost and run again" in result.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("budget = 2000", ""), "max_tokens can't be kept: a reply of `served` has no limit"),
        (("max_tokens = 100", "max_cost = 1.0"), "max_cost can't be kept: `served` has no prices"),
    ],
)
def test_a_cap_that_can_not_be_kept_is_refused(serve, write, ponder, change, message) -> None:
    served = serve()
    write("s.toml", study_for(served, 100).replace(*change))
    for verb in ("plan", "run"):
        result = ponder(verb, "s.toml")
        assert result.exit_code == 2
        assert message in result.stderr
    assert "requests" not in served.state()


def test_a_cap_below_one_call_asks_nothing(serve, write, ponder) -> None:
    served = serve()
    write("s.toml", study_for(served, 500))
    result = ponder("run", "s.toml")
    assert result.exit_code == 0
    assert "0 of 500 tokens, and the next turn may take 2," in result.stderr
    assert "requests" not in served.state()


LOSING = """
from dataclasses import dataclass
from ponder.core import Method, Wrapped
@dataclass(frozen=True)
class Losing(Method):
    def turn_limit(self, inner):
        return lambda prompt, budget: inner(prompt, budget).times(2)
    def apply(self, model):
        return Lost(model)
class Lost(Wrapped):
    async def complete(self, request):
        await self.inner.complete(request)
        raise ZeroDivisionError("after the first of two calls")
"""


def test_a_method_that_fails_between_its_calls_counts_at_most(serve, write, ponder) -> None:
    served = serve(**LONG_TAILED)
    write("losing.py", LOSING)
    write(
        "s.toml",
        study_for(served, 30_000, concurrency=4, model='method = { name = "./losing.py" }'),
    )
    tally = summary(ponder("run", "s.toml", "--json"))
    assert (tally["right"], tally["capped"]) == (0, True)
    assert served.state()["billed_tokens"] < tally["tokens"] <= 30_000


CRASHING = """
from ponder.core import ParsesAnswers
from ponder.tasks.chain_sum import ChainSum
class Crashing(ChainSum, ParsesAnswers):
    def parse(self, problem, answer):
        raise ZeroDivisionError("after the answer came")
"""


def test_an_answer_that_a_method_loses_is_spent(serve, write, ponder) -> None:
    served = serve(**LONG_TAILED)
    write("crashing_sums.py", CRASHING)
    study = study_for(served, 10_000, concurrency=4, model='method = { name = "vote", n = 1 }')
    write("s.toml", study.replace('"chain_sum"', '"./crashing_sums.py"'))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert served.state()["billed_tokens"] <= tally["tokens"] <= 10_000
    assert tally["capped"]


def test_calls_that_were_not_sent_cost_nothing(serve, write, running) -> None:
    """One request per minute: the others wait in the client when the run is stopped."""
    served = serve(hold_after=0)
    write("s.toml", study_for(served, 100_000, concurrency=8, model="requests_per_minute = 1"))
    with running("run", "s.toml", "--grace", "0") as process:
        served.wait(held=1)
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate()
    # 2,000 tokens and a prompt
    assert "1 call without an answer may have been billed: up to 2." in talk
    assert served.state()["requests"] == 1


def test_nothing_is_sent_after_a_stop(serve, write, running) -> None:
    served = serve(hold_after=0)
    write(
        "s.toml", study_for(served, 1_000_000, concurrency=400, model="requests_per_minute = 300")
    )
    with running("run", "s.toml", "--grace", "600") as process:
        served.wait(held=1)
        process.send_signal(signal.SIGINT)
        assert any("stopping" in line for line in process.stderr)
        sent = served.state()["requests"]
        served.release()
        process.communicate()
    assert served.state()["requests"] <= sent + 1  # one may be on its way
    assert sent < 400


@pytest.mark.parametrize("link", ["symlink", "hard link"])
def test_a_store_has_one_run_at_a_time_by_whatever_name(
    serve, write, ponder, running, folder, link
) -> None:
    served = serve(hold_after=4)
    write("s.toml", study_for(served, 60_000, concurrency=4))
    with running("run", "s.toml") as process:
        served.wait(held=4)
        (folder / "linked").mkdir()
        other = folder / "linked" / "other.db"
        if link == "symlink":
            other.symlink_to("../ponder.db")
        else:
            other.hardlink_to("ponder.db")
        asked = served.state()["requests"]
        result = ponder("run", "s.toml", "--store", "linked/other.db")
        assert result.exit_code == 2
        assert (
            "another run is writing to linked/other.db" if link == "symlink" else "hard links"
        ) in result.stderr
        assert served.state()["requests"] == asked
        served.release()
        process.communicate()
    assert served.state()["billed_tokens"] <= 60_000


def test_a_store_behind_a_symlink_is_put_on_the_disk(folder, monkeypatch) -> None:
    """SQLite's log and the lock are beside the file, not beside the link."""
    synced = []
    monkeypatch.setattr("os.fsync", lambda file: synced.append(os.fstat(file).st_ino))
    (folder / "linked.db").symlink_to("real.db")
    with Store(folder / "linked.db", lock=True) as store:
        store.sync()
        assert (folder / "real.db-wal").stat().st_ino in synced
    assert (folder / "real.db.lock").is_file()


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 40, "completion_tokens": 9000, "total_tokens": 9040},
        {"prompt_tokens": 40, "completion_tokens": 20, "total_tokens": 9040},
        {"prompt_tokens": 40, "completion_tokens": 2001, "total_tokens": 2041},
    ],
)
@pytest.mark.parametrize("method", ["", 'method = { name = "vote", n = 8 }'])
def test_a_server_that_bills_more_than_its_budget_stops_the_run_at_the_first_reply(
    serve, write, ponder, usage, method
) -> None:
    served = serve(usage=usage, seconds_per_token=1e-4)
    write("s.toml", study_for(served, 1_000_000, concurrency=64, model=method))
    result = ponder("run", "s.toml", "--json")
    assert summary(result)["capped"]
    assert served.state()["requests"] == 1
    assert summary(result)["tokens"] == usage["total_tokens"]
    billed = usage["total_tokens"] - 40
    assert (
        f"stopped: a reply was billed {billed:,} tokens, where its budget allows 2,000"
        in result.stderr
    )


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_prompts_that_a_template_makes_longer_stay_under_the_cap(
    serve, write, ponder, factor
) -> None:
    """A prompt may exceed its bound by a quarter before the run stops: that is reserved too."""
    write("s.toml", study_for(serve(), 10**6))
    bound = min(
        Request.first_turn(cell.task, problem).prompt_limit
        for cell in Study.load("s.toml").cells
        for problem in cell.asked()
    )
    served = serve(usage={"prompt_tokens": int(factor * bound), "completion_tokens": 50})
    cap = 40 * (bound + 50)
    write("s.toml", study_for(served, cap, concurrency=64).replace("budget = 2000", "budget = 50"))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert 0.8 * cap < tally["tokens"] <= cap


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": 0, "completion_tokens": -3}, {"completion_tokens": 10**18}],
)
def test_without_usage_a_cap_counts_the_most_that_a_call_may_have_taken(
    serve, write, ponder, usage
) -> None:
    """Characters divided by four may be too few: of digits, of Chinese, or of thinking that is not
    shown.
    """
    served = serve(**LONG_TAILED, usage=usage or "", thinking="17" * 1000 if usage == {} else "")
    write("s.toml", study_for(served, 60_000, concurrency=64, model="probe = false"))
    result = ponder("run", "s.toml", "--json")
    tally = summary(result)
    assert served.state()["billed_tokens"] <= tally["tokens"] <= 60_000
    assert tally["capped"]
    assert result.stderr.count("warning: the server reports no usage of ") == 1
    with closing(sqlite3.connect("ponder.db")) as db:
        stored = db.execute("SELECT SUM(answer_tokens + thinking_tokens) FROM attempt").fetchone()[
            0
        ]
    assert stored < tally["tokens"] / 2  # the estimate of each attempt stays one


@pytest.mark.parametrize("usage", ["", {"prompt_tokens": 40, "completion_tokens": 1500}])
@pytest.mark.parametrize("cap", [1_000_000, None])
def test_a_server_that_hides_that_it_ignores_its_budget_is_seen_at_the_first_reply(
    serve, write, ponder, cap, usage
) -> None:
    """Its text is longer than 2,000 tokens can be, whether it reports no usage or too little.

    Without a cap, that is a warning.
    """
    served = serve(usage=usage, thinking="seventeen " * 8000)
    study = study_for(served, 1_000_000, concurrency=64, model="probe = false")
    if cap is None:
        study = study.replace("max_tokens = 1000000", "")
    write("s.toml", study)
    plan = ponder("plan", "s.toml", "--probe", "1")
    seen = "a reply may have taken 80,0"
    assert seen in plan.stderr
    assert "at most: unknown, because `served` was billed above its budget" in plan.stdout
    result = ponder("run", "s.toml", "--json")
    assert seen in result.stderr
    if cap is None:
        assert "no cap would hold with such a server" in result.stderr
        assert not summary(result)["capped"]
    else:
        assert summary(result)["capped"]
        assert served.state()["requests"] == 2  # one of `plan`
        assert summary(result)["tokens"] > 80_000


def test_a_full_disk_says_how_many_are_stored(serve, write, ponder, monkeypatch) -> None:
    served = serve()
    write("s.toml", study_for(served, 10**9, concurrency=4))
    stored, add = [], Store.add

    def full(store, batch, *more):
        if len(stored) + len(batch) > 20:
            raise UserError("the disk is full: ponder.db can't grow")
        add(store, batch, *more)
        stored.extend(batch)

    monkeypatch.setattr(Store, "add", full)
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert f"{len(stored)} attempts made and stored" in result.stderr
    with closing(sqlite3.connect("ponder.db")) as db:
        assert db.execute("SELECT COUNT(*) FROM attempt").fetchone() == (len(stored),)
