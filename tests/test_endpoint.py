"""What is sent to an endpoint, and what happens if no answer comes."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
import pytest
from endpoint_calls import ask, reached, request, retries

from ponder.core import Completion, ModelFailure, Request, Retry, UserError
from ponder.methods.budget_force import BudgetForce
from ponder.models._failures import retry_after
from ponder.models.endpoint import Endpoint
from ponder.models.oracle import Oracle
from ponder.runner.cells import Cell
from ponder.runner.study import Study


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


def test_a_model_that_has_moved_is_the_same_if_the_study_says_so(serve, write, ponder) -> None:
    at, default = "http://a:1/v1", Endpoint(id="m")
    assert Endpoint(id="m", url="http://b:2/v1", served_as=at).identity() == Endpoint(id="m", url=at).identity()
    assert (
        Endpoint(id="m", url=at, served_as=default.url).identity()
        == default.identity()
        == {"name": "endpoint", "id": "m"}
    )
    assert Endpoint(id="m", served_as=at).identity() == Endpoint(id="m", url=at).identity()
    with pytest.raises(UserError, match="must not contain a password"):
        Endpoint(id="m", served_as="http://user:secret@host/v1")
    old, new = serve(), serve()
    study = 'problems = 5\n[[task]]\nname = "chain_sum"\nsize = 2\n[[model]]\nname = "endpoint"\nid = "served"\n'
    write("s.toml", study + f'url = "{old.url}"\n')
    assert ponder("run", "s.toml").exit_code == 0
    write("s.toml", study + f'url = "{new.url}"\nserved_as = "{old.url}"\n')
    assert ponder("run", "s.toml").exit_code == 0
    assert "requests" not in new.state()
    assert ponder("run", "s.toml", "--set", "problems=6").exit_code == 0
    assert (old.state()["requests"], new.state()["requests"]) == (5, 1)


def test_nothing_is_sent_that_was_not_set(serve) -> None:
    served = serve()
    ask(Endpoint(id="m", url=served.url, send_seed=False), 1)
    (body,) = served.state()["bodies"]
    assert set(body) == {"model", "messages", "authorization"}


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("max_tokens", "budget ="), ("max_completion_tokens", "budget ="), ("n", "samples ="), ("stream", "stream ="),
        ("model", "id ="), ("messages", "task"),
    ],
)  # fmt: skip
def test_a_body_can_not_override_what_has_a_setting(field, hint) -> None:
    with pytest.raises(UserError, match=f"`{field}` can't be a field of the body") as error:
        Endpoint(id="m", body={field: 1})
    assert hint in error.value.hint


def test_decoding_may_be_in_the_body_if_it_is_not_given_twice(serve) -> None:
    served = serve()
    body = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "reasoning_effort": "low", "provider": {"n": 2}}
    model = Endpoint(id="m", url=served.url, body=body)
    assert model.identity() == {"name": "endpoint", "id": "m", "url": served.url, "body": body}
    ask(model, 1)
    (sent,) = served.state()["bodies"]
    assert {name: sent[name] for name in body} == body
    for name in ("temperature", "top_p"):
        with pytest.raises(UserError, match=f"{name} is given twice"):
            Endpoint(id="m", body=body, **{name: 0.5})


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("retries", (0, 5000), (-1,)),
        ("temperature", (0.0, 2.0), (-0.1, math.nan, math.inf)),
        ("top_p", (0.0, 1.0), (-0.1, math.nan, math.inf)),
        ("concurrency", (1,), (0, -1)),
        ("budget", (None, 1), (0, -1)),
        *(
            (name, (0.1, 1e6), (0.0, -1.0, math.nan, math.inf))
            for name in ("timeout", "idle_timeout", "max_wait", "requests_per_minute", "tokens_per_minute")
        ),
    ],
)
def test_numbers_are_checked_before_a_run(name, allowed, refused) -> None:
    for value in allowed:
        Endpoint(id="m", **{name: value})
    for value in refused:
        with pytest.raises(UserError, match=f"{name} must be"):
            Endpoint(id="m", **{name: value})


@pytest.mark.parametrize("name", ["input", "output", "cached_input"])
def test_prices_are_checked_before_a_run(name) -> None:
    def cells(price: float) -> tuple[Cell, ...]:
        prices = {"input": 0.0, "output": 2.0, name: price}
        return Study(task=[{"name": "chain_sum", "size": 2}], model=[{"name": "oracle", "prices": prices}]).cells

    for price in (-1.0, math.nan, math.inf):
        with pytest.raises(UserError, match=f"the price `{name}` must be 0 or more") as error:
            cells(price)
        assert "prices" in error.value.where
    assert len(cells(0.0)) == 1


@pytest.mark.parametrize("url", ["http://", "http:///v1", "https://:80/v1", "http://host:99999/v1"])
def test_a_url_without_a_server_is_said_before_a_run(url) -> None:
    with pytest.raises(UserError, match=r"names no server|not a valid URL"):
        Endpoint(id="m", url=url).ready()


def test_any_number_of_tries_can_be_waited_for(serve, slept) -> None:
    seen, _ = retries(Endpoint(id="m", url=serve(busy_first=1100).url, retries=1099))
    assert len(seen) == 1100
    assert 30 <= max(slept) <= 90


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


def test_retry_after_is_waited_for(serve, slept) -> None:
    served = serve(busy_first=2, retry_after="17")
    seen, answer = retries(Endpoint(id="m", url=served.url))
    assert isinstance(answer, Completion)
    assert seen == [Retry("rate limit", "HTTP 429: slow down", False, 17.0)] * 2
    assert slept == [17, 17]
    assert served.state()["requests"] == 3


def test_without_retry_after_the_wait_doubles(serve, slept) -> None:
    retries(Endpoint(id="m", url=serve(busy_first=3).url))
    assert len(slept) == 3
    for wait, least in zip(slept, (0.25, 0.5, 1.0), strict=True):
        assert least <= wait <= 3 * least


def test_the_last_try_is_reported_but_not_waited_for(serve, slept) -> None:
    seen, failure = retries(Endpoint(id="m", url=serve(busy_first=9, retry_after="1").url, retries=2))
    assert failure == "HTTP 429: slow down (3 tries)"
    assert slept == [1, 1]
    assert [r.wait for r in seen] == [1, 1, 0]


@pytest.mark.parametrize("asked", ["3600", "1e9", "inf"])
def test_a_server_that_asks_to_wait_for_too_long_ends_the_try(serve, slept, asked) -> None:
    seen, failure = retries(Endpoint(id="m", url=serve(busy_first=9, retry_after=asked).url, max_wait=120))
    assert re.search(r"HTTP 429.*asks to wait \S+ seconds, more than max_wait = 120", failure)
    assert [(r.wait, r.billed) for r in seen] == [(0, False)]
    assert slept == []


@pytest.mark.parametrize(
    ("faults", "kind", "billed"),
    [
        ({"always": 500}, "error", False),
        ({"always": 502}, "error", True),
        ({"always": 503}, "error", False),
        ({"always": 504}, "timeout", True),
        ({"always": 408}, "timeout", True),
        ({"always": 429}, "rate limit", False),
        ({"always": 400}, "error", False),
        ({"drop": 1.0}, "error", True),
        ({"cut": 1.0}, "error", True),
        ({"malformed": 1.0}, "error", True),
        ({"ignore": 1.0}, "timeout", True),
    ],
)
def test_which_tries_may_have_been_billed(serve, slept, monkeypatch, faults, kind, billed) -> None:
    limits = aiohttp.ClientTimeout  # without one for connecting: on a busy machine even that may take longer
    monkeypatch.setattr(aiohttp, "ClientTimeout", lambda **given: limits(**{**given, "sock_connect": None}))
    timeout = 0.3 if "ignore" in faults else 1800
    seen, failure = retries(Endpoint(id="m", url=serve(**faults).url, retries=1, timeout=timeout))
    assert isinstance(failure, str)
    assert {(r.kind, r.billed) for r in seen} == {(kind, billed)}
    assert len(seen) == (1 if faults == {"always": 400} else 2)


def test_a_connection_that_never_stood_is_not_billed(slept) -> None:
    seen, failure = retries(Endpoint(id="m", url="http://127.0.0.1:9", retries=0))
    assert failure.startswith("no connection to http://127.0.0.1:9")
    assert [(r.kind, r.billed) for r in seen] == [("error", False)]


def test_the_caller_can_end_the_tries(serve, slept) -> None:
    served = serve(busy_first=9)

    def enough(asked: Request, retry: Retry) -> None:
        raise ModelFailure("the cap is reached")

    async def once() -> None:
        async with Endpoint(id="m", url=served.url) as model:
            await model.complete(replace(request(), on_retry=enough))

    with pytest.raises(ModelFailure, match="the cap is reached"):
        asyncio.run(once())
    assert served.state()["requests"] == 1


def test_every_try_is_announced_right_before_it_is_sent(serve, slept) -> None:
    served = serve(busy_first=2, retry_after="17")
    seen: list[object] = []

    def on_send(asked: Request) -> None:
        seen.append(("sent before", served.state().get("requests", 0), "slept", len(slept)))

    async def once() -> None:
        async with Endpoint(id="m", url=served.url) as model:
            asked = replace(request(), on_send=on_send, on_retry=lambda _, retry: seen.append(retry.kind))
            await model.complete(asked)

    asyncio.run(once())
    tries = [("sent before", n, "slept", n) for n in range(3)]
    assert seen == [tries[0], "rate limit", tries[1], "rate limit", tries[2]]


class Stopping(Exception):
    pass


def test_a_try_that_may_not_be_sent_is_neither_sent_nor_reported(serve, slept) -> None:
    served = serve(busy_first=9)
    sent: list[Request] = []
    seen: list[Retry] = []

    def only_once(asked: Request) -> None:
        if sent:
            raise Stopping
        sent.append(asked)

    async def once() -> None:
        async with Endpoint(id="m", url=served.url) as model:
            with pytest.raises(Stopping):
                await model.complete(replace(request(), on_send=only_once, on_retry=lambda _, r: seen.append(r)))

    asyncio.run(once())
    assert served.state()["requests"] == len(seen) == 1


@pytest.mark.parametrize(
    "limits",
    [{"concurrency": 1}, {"requests_per_minute": 0.1}, {"tokens_per_minute": 100}],
    ids=lambda one: next(iter(one)),
)
def test_what_waits_for_its_turn_is_not_announced(serve, limits) -> None:
    served = serve(hold_after=0)
    sent: list[int] = []

    async def three() -> list[int]:
        async with Endpoint(id="m", url=served.url, **limits) as model:
            asked = [replace(request(s), on_send=lambda r: sent.append(r.seed)) for s in range(3)]
            tasks = [asyncio.create_task(model.complete(one)) for one in asked]
            await asyncio.to_thread(served.wait, held=1)
            so_far = list(sent)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return so_far

    assert asyncio.run(three()) == [0]


def test_what_waits_for_a_connection_has_not_started(serve) -> None:
    served = serve(hold_after=0)

    async def two() -> int:
        async with Endpoint(id="m", url=served.url, concurrency=1, tokens_per_minute=1e12) as model:
            asked = [asyncio.create_task(model.complete(request(s))) for s in range(2)]
            await asyncio.to_thread(served.wait, held=1)
            started = len(model._pace._charges)  # a request is counted, and its timeout begins, when it is sent
            await asyncio.to_thread(served.release)
            await asyncio.gather(*asked)
            return started

    assert asyncio.run(two()) == 1
    assert served.state()["most_in_flight"] == 1


def test_retry_after() -> None:
    assert retry_after("3") == 3
    assert retry_after("0.5") == 0.5
    assert 3000 < retry_after(format_datetime(datetime.now(UTC) + timedelta(hours=1))) <= 3600
    assert retry_after("soon") == retry_after(None) == retry_after("nan") == retry_after("-5") == 0


def test_a_server_that_is_down_is_said_after_two_tries(slept) -> None:
    with pytest.raises(UserError, match=r"no connection to http://127\.0\.0\.1:9") as error:
        reached(url="http://127.0.0.1:9")
    assert "is the server running" in error.value.hint
    assert slept == [0.5]
    reached(url="http://127.0.0.1:9", probe=False)


@pytest.mark.parametrize("url", ["http://no-such-host.invalid/v1", "https://127.0.0.1:{port}/v1"])
def test_an_address_or_a_protocol_that_is_wrong_is_said(serve, slept, url) -> None:
    port = serve().url.split(":")[2].removesuffix("/v1")
    with pytest.raises(UserError, match="no connection to"):
        reached(url=url.format(port=port))


@pytest.mark.parametrize("status", [None, 403, 404, 405, 429, 500, 501, 503])
def test_a_server_without_a_model_list_passes(serve, status) -> None:
    served = serve(models=status)
    reached(url=served.url)
    state = served.state()
    assert (state["listed"], "requests" in state) == (1, False)


def test_a_refused_key_is_said_before_anything_is_asked(serve) -> None:
    with pytest.raises(UserError, match="wants a key: HTTP 401"):
        reached(url=serve(models=401).url)


def test_a_redirect_is_refused(serve) -> None:
    other = serve()
    with pytest.raises(UserError, match=f"redirects to {other.url}") as error:
        ask(Endpoint(id="m", url=serve(redirect=f"{other.url}/chat/completions").url), 1)
    assert "`url`" in error.value.hint
    assert "requests" not in other.state()


def test_models_on_different_servers_and_of_different_names_wait_for_different_things() -> None:
    servers = [Endpoint(id=i, url=f"http://{host}/v1").server() for i in "ab" for host in "xy"]
    assert len(set(servers)) == 4
    assert Endpoint(id="a", url="http://x/v1", temperature=1.0).server() == servers[0]


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
