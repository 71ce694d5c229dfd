"""A cap is kept: at any concurrency, through methods, turns, retries and earlier runs, as the server itself counts."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.core import Bill, ModelFailure, Prices, Spend
from ponder.runner.ledger import NOTHING, Ledger, Money

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
    """Short answers arrive first. An estimate from those would start three times what the cap allows."""
    served = serve(**LONG_TAILED)
    write("s.toml", study_for(served, 60_000, concurrency=concurrency))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert tally["tokens"] == served.state()["billed_tokens"]
    assert 60_000 - 2500 < tally["tokens"] <= 60_000  # what is left would not hold one more call at its most


@pytest.mark.parametrize("method", ['{ name = "vote", n = 8 }', '{ name = "budget_force", think = 300, answer = 500 }'])
def test_calls_of_methods_count(serve, write, ponder, method) -> None:
    served = serve(**LONG_TAILED)
    write("s.toml", study_for(served, 60_000, model=f"method = {method}"))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert tally["capped"]
    assert tally["tokens"] == served.state()["billed_tokens"]
    assert 40_000 < tally["tokens"] <= 60_000


@pytest.mark.parametrize("method", ['{ name = "vote", n = 8 }', '{ name = "budget_force", think = 300, answer = 500 }'])
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
    assert f"{tally['lost_calls']} calls without an answer may have been billed: up to" in result.stderr
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
    served = serve(hold_after=0)
    write("s.toml", study_for(served, 20_000, concurrency=4))
    with running("run", "s.toml") as process:
        served.wait(held=4)
        with closing(sqlite3.connect("file:ponder.db?mode=ro", uri=True)) as db:
            assert db.execute("SELECT TOTAL(lost_tokens) FROM study").fetchone()[0] >= 4 * 2000
        process.send_signal(signal.SIGKILL)
    served.release()
    assert summary(ponder("run", "s.toml", "--json"))["capped"]
    assert served.state()["billed_tokens"] <= 20_000
    plan = json.loads(ponder("plan", "s.toml", "--json").stdout)
    assert plan["spent"]["tokens"] >= 4 * 2000


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


class Spender:
    """Attempts that take what `random` says, under a ledger, on a loop without a network."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger, self.random = ledger, random.Random(seed)
        self.billed = self.most_at_once = 0
        self.complete = 0

    async def attempt(self, turns: int) -> None:
        kind = turns if turns > 1 else None
        claim = self.ledger.open(None, kind, turns=turns)
        complete = False
        try:
            for _ in range(turns):
                if not await self.ledger.reserve(claim, Spend(10, 90, 1)):
                    return
                await self.call(claim)
            complete = True
            self.complete += 1
        except ModelFailure:
            pass
        finally:
            self.ledger.close(claim, kind, complete=complete)

    async def call(self, claim) -> None:
        bill = None
        try:
            while self.random.random() < 0.2:  # a try that times out; the server bills some of them
                await self.pause()
                self.billed += self.random.choice([0, 60, 100])
                self.ledger.lose(claim, Spend(10, 90, 1))
                self.ledger.check_room()
            await self.pause()
            bill = Bill(10, self.random.randint(0, 80), 10)
            self.billed += bill.tokens
        finally:
            self.ledger.settle(claim, bill)

    async def pause(self) -> None:
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)


@given(seed=st.integers(0, 10**6), cap=st.integers(0, 4000), turns=st.lists(st.integers(1, 5), max_size=40))
def test_no_order_of_events_exceeds_a_cap(seed, cap, turns) -> None:
    ledger = Ledger(max_tokens=cap, before=Money(50))
    spender = Spender(ledger, seed)

    async def all_at_once() -> None:
        await asyncio.gather(*(spender.attempt(n) for n in turns))

    asyncio.run(asyncio.wait_for(all_at_once(), 60))
    assert 50 + spender.billed <= 50 + ledger.spent.tokens <= max(cap, 50)
    assert ledger.calls == 0
    assert ledger.held == NOTHING
    if spender.complete < len(turns):  # something was refused, so there was no room for a call, or for a conversation
        assert ledger.capped


def on_a_loop(body: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        await body()

    asyncio.run(go())


def test_a_new_attempt_waits_for_the_bill_of_another() -> None:
    async def body() -> None:
        ledger = Ledger(max_tokens=150)
        first, second = ledger.open(None), ledger.open(None)
        assert await ledger.reserve(first, Spend(0, 100, 1))
        waiting = asyncio.ensure_future(ledger.reserve(second, Spend(0, 100, 1)))
        await asyncio.sleep(0)
        assert not waiting.done()
        ledger.settle(first, Bill(0, 0, 50))
        assert await waiting
        third = ledger.open(None)
        assert not ledger.capped
        ledger.settle(second, Bill(0, 0, 60))
        assert not await ledger.reserve(third, Spend(0, 100, 1))
        assert ledger.refused == Money(100)

    on_a_loop(body)


def test_a_small_call_does_not_overtake_a_large_one() -> None:
    """Else a model with large budgets would wait until those with small ones have spent the cap."""

    async def body() -> None:
        ledger = Ledger(max_tokens=150)
        first, large, small = (ledger.open(None) for _ in range(3))
        assert await ledger.reserve(first, Spend(0, 100, 1))
        waiting = [
            asyncio.ensure_future(ledger.reserve(claim, Spend(0, n, 1))) for claim, n in ((large, 100), (small, 10))
        ]
        await asyncio.sleep(0)
        assert [w.done() for w in waiting] == [False, False]
        ledger.settle(first, Bill(0, 0, 20))
        assert [await w for w in waiting] == [True, True]

    on_a_loop(body)


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
    write("s.toml", study_for(served, 30_000, concurrency=4, model='method = { name = "./losing.py" }'))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert (tally["right"], tally["capped"]) == (0, True)
    assert served.state()["billed_tokens"] < tally["tokens"] <= 30_000


CRASHING = """
from ponder.tasks.chain_sum import ChainSum
class Crashing(ChainSum):
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
    assert "1 call without an answer may have been billed: up to 2." in talk  # 2,000 tokens and a prompt
    assert served.state()["requests"] == 1


def test_nothing_is_sent_after_a_stop(serve, write, running) -> None:
    served = serve(hold_after=0)
    write("s.toml", study_for(served, 100_000, concurrency=8, model="requests_per_minute = 600"))
    with running("run", "s.toml", "--grace", "600") as process:
        served.wait(held=1)
        process.send_signal(signal.SIGINT)
        assert any("stopping" in line for line in process.stderr)
        sent = served.state()["requests"]
        served.release()
        process.communicate()
    assert served.state()["requests"] <= sent + 1  # one may be on its way
    assert sent < 8


def test_a_cancelled_wait_is_given_to_the_next() -> None:
    async def body() -> None:
        ledger = Ledger(max_tokens=100)
        claims = [ledger.open(None) for _ in range(3)]
        assert await ledger.reserve(claims[0], Spend(0, 100, 1))
        waiting = [asyncio.ensure_future(ledger.reserve(claim, Spend(0, 100, 1))) for claim in claims[1:]]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        ledger.settle(claims[0], None)
        assert await waiting[1]

    on_a_loop(body)


def test_the_first_conversation_of_a_kind_runs_alone_under_a_close_cap() -> None:
    """Nobody knows what one takes, and a second might leave both half finished."""

    async def body() -> None:
        for cap, together in ((900, False), (1000, True)):
            ledger = Ledger(max_tokens=cap)
            first, second = (ledger.open(None, "kind", turns=5) for _ in range(2))
            assert await ledger.reserve(first, Spend(0, 100, 1))
            waiting = asyncio.ensure_future(ledger.reserve(second, Spend(0, 100, 1)))
            await asyncio.sleep(0)
            assert waiting.done() == together
            ledger.close(first)
            assert await waiting

    on_a_loop(body)


def test_a_new_conversation_leaves_room_for_those_in_progress() -> None:
    async def body() -> None:
        ledger = Ledger(max_tokens=250)
        first = ledger.open(None, "kind")
        for _ in range(2):
            assert await ledger.reserve(first, Spend(0, 60, 1))
            ledger.settle(first, Bill(0, 0, 40))
        ledger.close(first, "kind", complete=True)  # 80 in all, so 170 are left
        begun, new = ledger.open(None, "kind"), ledger.open(None, "kind")
        assert begun.forecast == Money(80)
        assert await ledger.reserve(begun, Spend(0, 60, 1))
        assert await ledger.reserve(new, Spend(0, 60, 1))
        third = ledger.open(None, "kind")
        waiting = asyncio.ensure_future(ledger.reserve(third, Spend(0, 10, 1)))  # 170 - 2 × 80 is not enough for 80
        await asyncio.sleep(0)
        assert not waiting.done()
        ledger.settle(begun, Bill(0, 0, 40))
        ledger.settle(new, Bill(0, 0, 40))
        assert not await waiting  # nothing in progress, and still no room for a whole one
        assert await ledger.reserve(begun, Spend(0, 60, 1))  # but those that have begun go on

    on_a_loop(body)


def test_a_retry_needs_room_for_calls_only() -> None:
    """What conversations will still take is a forecast; it must not fail a call that was merely refused."""

    async def body() -> None:
        ledger = Ledger(max_tokens=1900)
        first = ledger.open(None, "kind")
        assert await ledger.reserve(first, Spend(0, 100, 1))
        ledger.settle(first, Bill(0, 0, 100))
        ledger.close(first, "kind", complete=True)
        ledger._ended["kind"] = (1, Money(900))
        claims = [ledger.open(None, "kind") for _ in range(2)]
        assert await ledger.reserve(claims[0], Spend(0, 100, 1))
        assert await ledger.reserve(claims[1], Spend(0, 100, 1))
        ledger.check_room()
        ledger.lose(claims[0], Spend(0, 100, 1))
        ledger.check_room()  # 200 spent, 200 in progress
        ledger.lose(claims[0], Spend(0, 1600, 1))
        with pytest.raises(ModelFailure, match="no room"):
            ledger.check_room()

    on_a_loop(body)


def test_prices() -> None:
    prices = Prices(2.0, 8.0, cached_input=0.5)
    assert prices.cost(Bill(1_000_000, 500_000, 500_000)) == 10.0
    assert prices.cost(Bill(1_000_000, 0, 0, cached_tokens=600_000)) == pytest.approx(0.4 * 2 + 0.6 * 0.5)
    assert prices.cost(Bill(1000, 0, 0, cached_tokens=5000)) == pytest.approx(0.0005)  # never less than all cached
    assert Prices(2.0, 8.0).cost(Bill(1_000_000, 0, 0, cached_tokens=600_000)) == 2.0
    assert prices.cost_at_most(Spend(1_000_000, 1_000_000)) == 10.0
