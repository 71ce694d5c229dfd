"""The ledger behind caps: no order of events exceeds a cap, nobody overtakes, and nobody waits for
ever.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ponder.core import Bill, ModelFailure, Prices, Spend
from ponder.run.caps import NOTHING, Ledger, Money


class Spender:
    """Attempts that take what `random` says, under a ledger, on a loop without a network."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger, self.random = ledger, random.Random(seed)
        self.billed = self.most_at_once = 0
        self.complete = 0

    async def attempt(self, turns: int) -> None:
        kind = turns if turns > 1 else None
        claim = self.ledger.open(
            None, kind, turns=turns, server=self.random.choice(["", "here", "there"])
        )
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


@given(
    seed=st.integers(0, 10**6),
    cap=st.integers(0, 4000),
    turns=st.lists(st.integers(1, 5), max_size=40),
)
def test_no_order_of_events_exceeds_a_cap(seed, cap, turns) -> None:
    ledger = Ledger(max_tokens=cap, before=Money(50))
    spender = Spender(ledger, seed)

    async def all_at_once() -> None:
        await asyncio.gather(*(spender.attempt(n) for n in turns))

    asyncio.run(asyncio.wait_for(all_at_once(), 60))
    assert 50 + spender.billed <= 50 + ledger.spent.tokens <= max(cap, 50)
    assert ledger.calls == 0
    assert ledger.held == NOTHING
    # something was refused, so there was no room for a call, or for a conversation
    if spender.complete < len(turns):
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
            asyncio.ensure_future(ledger.reserve(claim, Spend(0, n, 1)))
            for claim, n in ((large, 100), (small, 10))
        ]
        await asyncio.sleep(0)
        assert [w.done() for w in waiting] == [False, False]
        ledger.settle(first, Bill(0, 0, 20))
        assert [await w for w in waiting] == [True, True]

    on_a_loop(body)


def test_until_the_first_bill_of_a_server_one_call_is_in_progress() -> None:
    async def body() -> None:
        ledger = Ledger(max_tokens=10_000)
        claims = [ledger.open(None, server="there") for _ in range(5)]
        waiting = [
            asyncio.ensure_future(ledger.reserve(claim, Spend(0, 100, 1))) for claim in claims
        ]
        elsewhere = ledger.open(None, server="elsewhere")
        # a server waits for its own bill only
        assert await ledger.reserve(elsewhere, Spend(0, 100, 1))
        await asyncio.sleep(0)
        assert [w.done() for w in waiting] == [True, False, False, False, False]
        ledger.settle(claims[0], None)  # it failed: the next is alone too
        for _ in range(3):
            await asyncio.sleep(0)
        assert [w.done() for w in waiting] == [True, True, False, False, False]
        waiting[2].cancel()
        ledger.settle(claims[1], Bill(0, 0, 50))
        assert await asyncio.gather(*waiting[3:]) == [True, True]

    on_a_loop(body)


def test_no_call_waits_for_a_first_bill_without_a_cap() -> None:
    async def body() -> None:
        ledger = Ledger()
        claims = [ledger.open(None, server="there") for _ in range(5)]
        assert all([await ledger.reserve(claim, Spend(0, 100, 1)) for claim in claims])

    on_a_loop(body)


def test_a_cancelled_wait_is_given_to_the_next() -> None:
    async def body() -> None:
        ledger = Ledger(max_tokens=100)
        claims = [ledger.open(None) for _ in range(3)]
        assert await ledger.reserve(claims[0], Spend(0, 100, 1))
        waiting = [
            asyncio.ensure_future(ledger.reserve(claim, Spend(0, 100, 1))) for claim in claims[1:]
        ]
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
        # 170 - 2 × 80 is not enough for 80
        waiting = asyncio.ensure_future(ledger.reserve(third, Spend(0, 10, 1)))
        await asyncio.sleep(0)
        assert not waiting.done()
        ledger.settle(begun, Bill(0, 0, 40))
        ledger.settle(new, Bill(0, 0, 40))
        assert not await waiting  # nothing in progress, and still no room for a whole one
        assert await ledger.reserve(begun, Spend(0, 60, 1))  # but those that have begun go on

    on_a_loop(body)


def test_a_retry_needs_room_for_calls_only() -> None:
    """What conversations will still take is a forecast; it must not fail a call that was merely
    refused.
    """

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
    assert prices.cost(Bill(1_000_000, 0, 0, cached_tokens=600_000)) == pytest.approx(
        0.4 * 2 + 0.6 * 0.5
    )
    # never less than all cached
    assert prices.cost(Bill(1000, 0, 0, cached_tokens=5000)) == pytest.approx(0.0005)
    assert Prices(2.0, 8.0).cost(Bill(1_000_000, 0, 0, cached_tokens=600_000)) == 2.0
    assert prices.cost_at_most(Spend(1_000_000, 1_000_000)) == 10.0
