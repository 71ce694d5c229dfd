"""Rate limits: in any minute, from the first second on, no more is started than a minute's worth."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import pytest
import virtual_time
from endpoint_calls import ask, request

from ponder.core import Bill, ModelFailure
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.rate_limit import BURST, LONG_REPLY, RateLimit


class Call(NamedTuple):
    """A request: what its prompt is estimated at, what its reply takes, and for how long it runs."""

    prompt: int
    reply: int
    seconds: float


def play(
    pace: Callable[[], RateLimit], calls: list[Call], concurrency: int, budget: int | None
) -> list[tuple[float, int]]:
    """When each call started, and the tokens it took."""
    starts: list[tuple[float, int]] = []

    async def worker(limits: RateLimit, waiting: list[Call]) -> None:
        while waiting:
            call = waiting.pop()
            charge = await limits.start(call.prompt, budget, lambda: None)
            starts.append((asyncio.get_running_loop().time(), call.prompt + call.reply))
            await asyncio.sleep(call.seconds)
            limits.end(charge, Bill(call.prompt, call.reply, 0))

    async def all_of_them() -> None:
        limits, waiting = pace(), calls[::-1]
        await asyncio.gather(*(worker(limits, waiting) for _ in range(concurrency)))

    virtual_time.run(all_of_them())
    return starts


def worst_minute(starts: list[tuple[float, int]]) -> int:
    return max(
        sum(tokens for at, tokens in starts if begin <= at < begin + 60) for begin, _ in starts
    )


@pytest.mark.parametrize("concurrency", [4, 64, 256])
@pytest.mark.parametrize("seed", range(3))
def test_slow_long_replies_keep_to_the_limit_from_the_first_second(concurrency, seed) -> None:
    draw = random.Random(seed)
    lengths = [min(8000, int(draw.lognormvariate(7, 1))) for _ in range(600)]
    # 20 tokens per second: up to 400 seconds
    calls = [Call(200, length, length / 20) for length in lengths]
    starts = play(lambda: RateLimit(None, 50_000), calls, concurrency, budget=8000)
    assert len(starts) == 600
    assert worst_minute(starts) <= 50_000
    # The first minute's allowance grows from a few seconds' worth, or one request.
    for at, _ in starts[:50]:
        begun = sum(tokens for other, tokens in starts if other <= at)
        assert begun <= 50_000 * (BURST + at) / 60 + 8200


def test_without_a_budget_short_replies_that_end_first_mislead_nobody() -> None:
    draw = random.Random(0)
    lengths = [int(draw.lognormvariate(7, 1)) for _ in range(400)]
    calls = [Call(200, length, length / 20) for length in lengths]
    starts = play(lambda: RateLimit(None, 50_000), calls, 64, budget=None)
    assert worst_minute(starts) <= 50_000 + max(lengths)


def test_the_limit_is_used() -> None:
    calls = [Call(100, 900, 2.0)] * 600
    starts = play(lambda: RateLimit(None, 60_000), calls, 64, budget=1000)
    # 600,000 tokens at 60,000 a minute: ten minutes.
    assert 9 * 60 <= starts[-1][0] <= 10.5 * 60


def test_what_is_not_used_is_given_back() -> None:
    # Each reserves 10,100 of 20,200 per minute but takes 200 and a second: without refunds two a
    # minute would start.
    starts = play(lambda: RateLimit(None, 20_200), [Call(100, 100, 1.0)] * 60, 8, budget=10_000)
    assert starts[-1][0] < 100
    assert worst_minute(starts) <= 20_200


def test_a_request_of_more_than_a_minutes_worth_runs_alone_and_is_paid_off() -> None:
    starts = play(lambda: RateLimit(None, 1000), [Call(100, 2900, 5.0)] * 4, 4, budget=2900)
    assert [at for at, _ in starts] == [0, 180, 360, 540]  # 3,000 tokens are three minutes' worth


def test_without_a_budget_a_long_reply_is_expected() -> None:
    starts = play(
        lambda: RateLimit(None, 2 * LONG_REPLY), [Call(0, 1000, 30.0)] * 4, 4, budget=None
    )
    # there is no room for a second one beside it
    assert [at for at, _ in starts] == pytest.approx([0, 30, 60, 90])


def test_what_exceeds_a_reservation_is_counted_when_it_is_known() -> None:
    starts = play(
        lambda: RateLimit(None, 10_000), [Call(0, LONG_REPLY + 12_000, 90.0)] * 2, 1, budget=None
    )
    # 12,000 tokens are 72 seconds' worth
    assert [at for at, _ in starts] == pytest.approx([0, 90 + 72])


def test_requests_per_minute() -> None:
    starts = play(lambda: RateLimit(600, None), [Call(0, 0, 0.0)] * 11, 4, budget=None)
    assert [at for at, _ in starts] == pytest.approx([n / 10 for n in range(11)], abs=1e-6)


def test_without_limits_nothing_waits() -> None:
    starts = play(lambda: RateLimit(None, None), [Call(0, 10**9, 0.0)] * 10, 2, budget=None)
    assert {at for at, _ in starts} == {0}


@pytest.mark.parametrize("limits", [(60, None), (None, 10_000), (60, 10_000)])
def test_what_is_not_sent_takes_nothing_of_the_limits(limits) -> None:
    def no() -> None:
        raise ModelFailure("the cap is reached")

    async def ten() -> float:
        pace = RateLimit(*limits)
        for _ in range(10):
            with pytest.raises(ModelFailure):
                await pace.start(0, 10_000, no)
        await pace.start(0, 10_000, lambda: None)
        return asyncio.get_running_loop().time()

    assert virtual_time.run(ten()) == 0


@pytest.mark.parametrize(
    ("faults", "counted"),
    [
        ({}, 160),  # what the server has billed
        ({"429": 1.0}, 0),  # refused: given back
        ({"drop": 1.0}, "reserved"),  # it may have been billed
        ({"malformed": 1.0}, "reserved"),
    ],
)
def test_what_a_try_counts_for(serve, faults, counted) -> None:
    model = Endpoint(id="m", url=serve(**faults).url, tokens_per_minute=1e9, retries=0, budget=5000)

    async def once() -> int:
        async with model:
            with suppress(ModelFailure):
                await model.complete(request())
            (charge,) = model._client.rate_limit._charges
            return "reserved" if 5000 < charge.tokens < 5200 else charge.tokens

    assert asyncio.run(once()) == counted


def test_limits_of_both_kinds_let_answers_through(serve) -> None:
    served = serve()
    assert (
        len(
            ask(
                Endpoint(id="m", url=served.url, requests_per_minute=1e6, tokens_per_minute=1e9),
                *range(20),
            )
        )
        == 20
    )
    assert served.state()["requests"] == 20
