"""What is sent to an endpoint, how its answers are billed, and how its limits are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from ponder.core import Bill, Completion, Message, ModelFailure, Request, UserError
from ponder.methods.budget_force import BudgetForce
from ponder.models import endpoint
from ponder.models.endpoint import Endpoint, Usage, UsageDetails
from ponder.models.oracle import Oracle
from ponder.tasks.chain_sum import ChainSum


def request(seed: int = 1) -> Request:
    task = ChainSum()
    problem = task.problem(2, seed)
    return Request(task, problem, (Message("user", problem.turns[0]),), seed)


def ask(model: Endpoint, *seeds: int) -> list[Completion]:
    async def together() -> list[Completion]:
        async with model:
            return await asyncio.gather(*(model.complete(request(s)) for s in seeds))

    return asyncio.run(together())


def test_what_is_sent(serve) -> None:
    served = serve()
    model = Endpoint(
        id="m", url=served.url, budget=99, temperature=0.6, top_p=0.95, effort="low", body={"provider": {"only": ["x"]}}
    )
    ask(model, 2**40 + 5)
    (body,) = served.state()["bodies"]
    assert body.pop("messages")[0]["role"] == "user"
    assert body == {
        "model": "m", "max_tokens": 99, "temperature": 0.6, "top_p": 0.95, "reasoning_effort": "low", "seed": 5,
        "provider": {"only": ["x"]}, "authorization": None,
    }  # fmt: skip


def test_nothing_is_sent_that_was_not_set(serve) -> None:
    served = serve()
    ask(Endpoint(id="m", url=served.url, send_seed=False), 1)
    (body,) = served.state()["bodies"]
    assert set(body) == {"model", "messages", "authorization"}


def test_a_method_can_only_lower_the_budget(serve) -> None:
    served = serve()
    forced = BudgetForce(think=50).apply(
        Endpoint(id="m", url=served.url, budget=80, budget_field="max_completion_tokens")
    )

    async def once() -> None:
        async with forced:
            await forced.complete(request())

    asyncio.run(once())
    assert [b["max_completion_tokens"] for b in served.state()["bodies"]] == [50]


@pytest.mark.parametrize(
    ("usage", "thinking", "answer", "bill"),
    [
        (Usage(40, 120, UsageDetails(100)), "text", "text", Bill(40, 100, 20, 0.0, "server")),
        (
            Usage(40, 20, UsageDetails(100)),
            "text",
            "text",
            Bill(40, 100, 20, 0.0, "server"),
        ),  # counted beside, not inside
        (Usage(40, 20), "", "all of it", Bill(40, 0, 20, 0.0, "server")),
        (Usage(40, 100), "x" * 300, "x" * 100, Bill(40, 75, 25, 0.0, "estimate")),
        (Usage(40, 100, UsageDetails(0)), "x" * 300, "x" * 100, Bill(40, 75, 25, 0.0, "estimate")),
        (None, "x" * 300, "x" * 100, Bill(0, 75, 25, 0.0, "estimate")),
        (None, "", "", Bill(0, 0, 0, 0.0, "estimate")),
    ],
)
def test_bills(usage, thinking, answer, bill) -> None:
    model = Endpoint(id="m")
    model._count = None
    assert model._bill(usage, thinking, answer, 0.0) == bill


def test_counting_with_a_tokenizer(tmp_path) -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    model = Endpoint(id="m")
    model._count = endpoint._load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert model._bill(Usage(9, 10), "one two three", "four", 0.0) == Bill(9, 3, 7, 0.0, "tokenizer")
    assert model._bill(None, "one two three", "four", 0.0) == Bill(0, 3, 1, 0.0, "tokenizer")
    with pytest.raises(UserError, match="can't load the tokenizer"):
        endpoint._load_tokenizer(str(tmp_path / "none.json"))


def test_retry_after() -> None:
    assert endpoint._seconds("3") == 3
    assert endpoint._seconds("0.5") == 0.5
    assert 50 < endpoint._seconds(format_datetime(datetime.now(UTC) + timedelta(seconds=60))) <= 60
    assert endpoint._seconds("soon") == endpoint._seconds(None) == 0


class Clock:
    """Time for the endpoint alone: it passes only where the endpoint sleeps, and then at once."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += max(0.0, seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("time", "asyncio"):
        monkeypatch.setattr(endpoint, module, clock)
    return clock


def in_turn(model: Endpoint, requests: int) -> None:
    async def one_by_one() -> None:
        async with model:
            for seed in range(requests):
                await model.complete(request(seed))

    asyncio.run(one_by_one())


def test_retry_after_is_waited_for(serve, clock) -> None:
    served = serve(busy_first=2, retry_after="17")
    in_turn(Endpoint(id="m", url=served.url), 1)
    assert clock.slept == [17, 17]
    assert served.state()["requests"] == 3


def test_without_retry_after_the_wait_doubles(serve, clock) -> None:
    in_turn(Endpoint(id="m", url=serve(busy_first=3).url), 1)
    assert len(clock.slept) == 3
    for wait, least in zip(clock.slept, (0.25, 0.5, 1.0), strict=True):
        assert least <= wait <= 3 * least


def test_the_last_try_is_not_waited_for(serve, clock) -> None:
    with pytest.raises(ModelFailure, match=r"HTTP 429: slow down \(3 tries\)"):
        in_turn(Endpoint(id="m", url=serve(busy_first=9, retry_after="1").url, retries=2), 1)
    assert clock.slept == [1, 1]


def test_requests_per_minute(serve, clock) -> None:
    served = serve()
    in_turn(Endpoint(id="m", url=served.url, requests_per_minute=600), 11)
    assert clock.slept == [0] + [0.1] * 10
    assert served.state()["requests"] == 11


def test_tokens_per_minute(serve, clock) -> None:
    served = serve()  # 160 tokens per answer: two fill the first minute, and then each takes half of one
    in_turn(Endpoint(id="m", url=served.url, tokens_per_minute=320), 5)
    assert clock.slept == [0, 0, 30, 30, 30]


def test_a_try_that_fails_is_not_charged(serve, clock) -> None:
    model = Endpoint(id="m", url=serve(busy_first=2, retry_after="1").url, tokens_per_minute=320)

    async def after_an_answer() -> None:
        async with model:
            model._pace._mean = 160.0
            await model.complete(request())

    asyncio.run(after_an_answer())
    assert clock.slept == [0, 1, 0, 1, 0]


def test_cancelling_closes_the_connection(serve) -> None:
    served = serve(hold_after=0)

    async def given_up(wait: Callable[..., object]) -> None:
        async with Endpoint(id="m", url=served.url) as model:
            asked = asyncio.create_task(model.complete(request()))
            await asyncio.to_thread(wait, held=1)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            await asyncio.to_thread(wait, hung_up=1)

    asyncio.run(given_up(served.wait))
    assert served.state()["in_flight"] == 0


def test_budget_force_bills_both_calls() -> None:
    forced = BudgetForce(think=100, answer=200).apply(Oracle(tokens_at_zero=150, tokens_per_size=0, spread=0))
    said = asyncio.run(forced.complete(request()))
    assert said.stop == "end"
    assert said.bill.thinking_tokens == 250  # 100 in vain, then all 150
    assert said.bill.prompt_tokens > 2 * 15
    free = BudgetForce(think=1000).apply(Oracle(tokens_at_zero=150, tokens_per_size=0, spread=0))
    assert asyncio.run(free.complete(request())).bill.thinking_tokens == 150
