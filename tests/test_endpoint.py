"""What is sent to an endpoint, how its answers are billed, and how its limits are kept."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from ponder.core import Bill, Completion, Message, Request, UserError
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
        (Usage(40, 20, UsageDetails(100)), "text", "text", Bill(40, 100, 20, 0.0, "server")),  # counted beside, not inside
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


def test_retry_after_is_waited_for(serve) -> None:
    served = serve(**{"429": 0.5})
    started = time.monotonic()
    ask(Endpoint(id="m", url=served.url, retries=20), *range(20))
    assert served.state()["429"] > 0
    assert time.monotonic() - started > 0.05


def test_requests_per_minute(serve) -> None:
    served = serve()
    started = time.monotonic()
    ask(Endpoint(id="m", url=served.url, requests_per_minute=600), *range(11))
    assert time.monotonic() - started >= 0.99  # ten waits of a tenth of a second
    assert served.state()["requests"] == 11


def test_tokens_per_minute(serve) -> None:
    served = serve()  # 160 tokens an answer
    model = Endpoint(id="m", url=served.url, tokens_per_minute=9600)  # one answer a second, after a full bucket

    async def in_turn() -> float:
        async with model:
            model._pace._level = 160.0
            started = time.monotonic()
            for seed in range(4):
                await model.complete(request(seed))
            return time.monotonic() - started

    assert asyncio.run(in_turn()) > 1.5


def test_cancelling_closes_the_connection(serve) -> None:
    served = serve(seconds=5)

    async def given_up() -> None:
        async with Endpoint(id="m", url=served.url) as model:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(model.complete(request()), 0.2)

    started = time.monotonic()
    asyncio.run(given_up())
    assert time.monotonic() - started < 3


def test_budget_force_bills_both_calls() -> None:
    forced = BudgetForce(think=100, answer=200).apply(Oracle(tokens_at_zero=150, tokens_per_size=0, spread=0))
    said = asyncio.run(forced.complete(request()))
    assert said.stop == "end"
    assert said.bill.thinking_tokens == 250  # 100 in vain, then all 150
    assert said.bill.prompt_tokens > 2 * 15
    free = BudgetForce(think=1000).apply(Oracle(tokens_at_zero=150, tokens_per_size=0, spread=0))
    assert asyncio.run(free.complete(request())).bill.thinking_tokens == 150
