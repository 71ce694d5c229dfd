"""What is sent to an endpoint, and what happens if no answer comes."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
import pytest
from endpoint_calls import ask, reached, request, retries, watched
from yarl import URL

from ponder import Study
from ponder.core import Completion, ModelFailure, Request, Retry, UserError
from ponder.methods.budget_force import BudgetForce
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.failures import retry_after
from ponder.models.oracle import Oracle
from ponder.study.cell import Cell


def test_what_is_sent(serve) -> None:
    served = serve()
    model = Endpoint(
        id="m",
        url=served.url,
        budget=99,
        temperature=0.6,
        top_p=0.95,
        effort="low",
        body={"provider": {"only": ["x"]}},
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
    assert (
        Endpoint(id="m", url="http://b:2/v1", served_as=at).identity()
        == Endpoint(id="m", url=at).identity()
    )
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
    body = {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "reasoning_effort": "low",
        "provider": {"n": 2},
    }
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
            for name in (
                "timeout",
                "idle_timeout",
                "max_wait",
                "requests_per_minute",
                "tokens_per_minute",
            )
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
        return Study(
            task=[{"name": "chain_sum", "size": 2}], model=[{"name": "oracle", "prices": prices}]
        ).cells

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
    seen, failure = retries(
        Endpoint(id="m", url=serve(busy_first=9, retry_after="1").url, retries=2)
    )
    assert failure == "HTTP 429: slow down (3 tries)"
    assert slept == [1, 1]
    assert [r.wait for r in seen] == [1, 1, 0]


@pytest.mark.parametrize("asked", ["3600", "1e9", "inf"])
def test_a_server_that_asks_to_wait_for_too_long_ends_the_try(serve, slept, asked) -> None:
    seen, failure = retries(
        Endpoint(id="m", url=serve(busy_first=9, retry_after=asked).url, max_wait=120)
    )
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
    # without one for connecting: on a busy machine even that may take longer
    limits = aiohttp.ClientTimeout
    monkeypatch.setattr(
        aiohttp, "ClientTimeout", lambda **given: limits(**{**given, "sock_connect": None})
    )
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

    def enough(retry: Retry) -> None:
        raise ModelFailure("the cap is reached")

    async def once() -> None:
        async with Endpoint(id="m", url=served.url) as model:
            await model.complete(watched(request(), retried=enough))

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
            asked = watched(request(), sent=on_send, retried=lambda retry: seen.append(retry.kind))
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
                await model.complete(watched(request(), sent=only_once, retried=seen.append))

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
            asked = [watched(request(s), sent=lambda r: sent.append(r.seed)) for s in range(3)]
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
            # a request is counted, and its timeout begins, when it is sent
            started = len(model._client.rate_limit._charges)
            await asyncio.to_thread(served.release)
            await asyncio.gather(*asked)
            return started

    assert asyncio.run(two()) == 1
    assert served.state()["most_in_flight"] == 1


def test_retry_after() -> None:
    def asked(value: str) -> float:
        return retry_after({"Retry-After": value})

    assert asked("3") == 3
    assert asked("0.5") == 0.5
    assert 3000 < asked(format_datetime(datetime.now(UTC) + timedelta(hours=1))) <= 3600
    assert asked("soon") == retry_after({}) == asked("nan") == asked("-5") == 0
    assert retry_after({"Retry-After-Ms": "250", "Retry-After": "1"}) == 0.25


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
    forced = BudgetForce(think=100, answer=200).apply(
        Oracle(tokens_at_zero=150, tokens_per_size=0, spread=0)
    )
    said = asyncio.run(forced.complete(request()))
    assert said.stop == "end"
    assert said.bill.thinking_tokens == 250  # 100 in vain, then all 150
    assert said.bill.prompt_tokens > 2 * 15
    free = BudgetForce(think=1000).apply(Oracle(tokens_at_zero=150, tokens_per_size=0, spread=0))
    assert asyncio.run(free.complete(request())).bill.thinking_tokens == 150


def openai_error(message: str, **fields: object) -> str:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", **fields}})


NO_MAX_TOKENS = openai_error(
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    param="max_tokens",
    code="unsupported_parameter",
)
NO_TEMPERATURE = openai_error(
    "Unsupported value: 'temperature' does not support 0.6 with this model. Only the default (1) value is supported.",
    param="temperature",
    code="unsupported_value",
)
VLLM_CONTEXT = (
    "This model's maximum context length is 4096 tokens. However, you requested 9042 tokens (42 in the messages, 9000 "
    "in the completion). Please reduce the length of the messages or completion."
)
NEWER_VLLM_CONTEXT = (
    "'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's maximum context length is 4096 tokens "
    "and your request has 42 input tokens (9000 > 4096 - 42)."
)
SGLANG_CONTEXT = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 9042 "
    "tokens: 42 tokens from the input messages and 9000 tokens for the completion."
)


@pytest.mark.parametrize(
    ("status", "text", "problem", "hint"),
    [
        (
            400,
            NO_MAX_TOKENS,
            "refuses the field `max_tokens`",
            'budget_field = "max_completion_tokens"',
        ),
        (400, NO_TEMPERATURE, "refuses the field `temperature`", "leave out `temperature`"),
        (
            422,
            '{"detail": "`seed`: Extra inputs are not permitted"}',
            "refuses the field `seed`",
            "send_seed = false",
        ),
        (
            400,
            json.dumps({"object": "error", "message": VLLM_CONTEXT}),
            "a budget of 9,000 tokens",
            "budget = 4054 at",
        ),
        (
            400,
            openai_error(NEWER_VLLM_CONTEXT),
            "a budget of 9,000 tokens",
            "budget = 4054 at most",
        ),
        (400, openai_error(SGLANG_CONTEXT), "a budget of 9,000 tokens", "budget = 4054 at most"),
        (
            400,
            openai_error(
                "max_tokens is too large: 9000. This model supports at most 4096 completion tokens."
            ),
            "a budget of 9,000 tokens",
            "budget = 4096",
        ),
        (
            400,
            openai_error("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
            "9,000",
            "= 8192",
        ),
        (402, openai_error("Insufficient Balance"), "has no credit left", "add credit"),
        (
            429,
            openai_error("You exceeded your current quota", code="insufficient_quota"),
            "no credit",
            "add credit",
        ),
    ],
)
def test_a_setting_that_no_request_can_succeed_with_ends_the_run(
    serve, slept, status, text, problem, hint
) -> None:
    served = serve(always=status, text=text)
    with pytest.raises(UserError) as error:
        ask(Endpoint(id="m", url=served.url, budget=9000, temperature=0.6), 1)
    assert error.value.what.startswith(f"{served.url} ")
    assert problem in error.value.what
    body = json.loads(text)
    # all of it
    assert error.value.what.endswith(body.get("error", body).get("message") or body["detail"])
    assert hint in error.value.hint
    assert (served.state()["requests"], slept) == (1, [])


@pytest.mark.parametrize(
    ("settings", "text", "hint"),
    [
        (
            {"budget": 4000},
            openai_error(VLLM_CONTEXT),
            "(budget = 4054 at most: of its 4,096 tokens",
        ),
        (
            # llama.cpp takes any budget, and this prompt is too long for its context
            {"budget": 9000},
            openai_error(
                "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"
            ),
            "(the prompt alone has 5,000 tokens: ask smaller problems, or start the server with more context)",
        ),
        (
            {"temperature": 0.6},
            openai_error("the word temperature is unknown to the moderator"),
            "moderator",
        ),
        ({}, NO_TEMPERATURE, "is supported."),  # it was not sent
        ({}, openai_error("x" * 5000), "x" * 1900),
    ],
)
def test_a_request_that_another_prompt_may_not_meet_is_one_failed_attempt(
    serve, settings, text, hint
) -> None:
    seen, failure = retries(Endpoint(id="m", url=serve(always=400, text=text).url, **settings))
    assert hint in failure
    assert len(failure) < 2500
    assert [(retry.billed, retry.wait) for retry in seen] == [(False, 0)]


PAGE = "<!DOCTYPE html>\n<html><head><title>Open&nbsp;WebUI\n </title></head><body>…</body></html>"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "shown"),
    [(PAGE, 'a web page titled "Open WebUI"'), ('{"status": "ok"}', '{"status": "ok"}')],
)
def test_a_page_that_is_no_chat_ends_the_run_and_bills_nothing(
    serve, slept, text, shown, stream
) -> None:
    content_type = "text/html" if text is PAGE else "application/json"
    served = serve(always=200, text=text, content_type=content_type)
    with pytest.raises(UserError, match="not with a chat completion") as error:
        ask(Endpoint(id="m", url=served.url, stream=stream), 1)
    assert f" answers with {shown}, not" in error.value.what
    assert f"is {served.url} the address of" in error.value.hint
    assert (served.state()["requests"], slept) == (1, [])


def test_a_page_from_a_server_that_has_answered_is_waited_out(serve, slept, tmp_path) -> None:
    async def twice() -> list[Retry]:
        seen: list[Retry] = []
        async with Endpoint(id="m", url=serve().url, retries=1) as model:
            await model.complete(request(1))
            model._client.servers.all[0].page = URL(
                serve(always=200, text=PAGE, content_type="text/html").url + "/chat/completions"
            )
            with pytest.raises(ModelFailure, match=r"a web page.*\(2 tries\)"):
                await model.complete(watched(request(2), retried=seen.append))
        return seen

    assert [(retry.kind, retry.billed) for retry in asyncio.run(twice())] == [("error", False)] * 2


@pytest.mark.parametrize(
    ("path", "hint"),
    [("", 'url = "{root}/v1"'), ("/v2", 'url = "{root}/v1"'), ("/api/", 'url = "{root}/api/v1"')],
)
def test_an_address_without_v1_is_said(serve, path, hint) -> None:
    root = serve().url.removesuffix("/v1")
    with pytest.raises(UserError, match="knows no such page or model: HTTP 404") as error:
        ask(Endpoint(id="m", url=root + path), 1)
    assert hint.format(root=root) in error.value.hint


def test_a_model_that_the_server_does_not_know_is_said_with_those_that_it_lists(serve) -> None:
    text = openai_error("The model `llama` does not exist.", code=404)
    served = serve(always=404, text=text, lists=["qwen3-4b", "llama-3-8b"])
    with pytest.raises(
        UserError, match=r"does not know the model `llama`: HTTP 404: The model `llama`"
    ) as error:
        ask(Endpoint(id="llama", url=served.url), 1)
    assert error.value.hint == 'id = "llama-3-8b"; the server lists qwen3-4b, llama-3-8b'
    with pytest.raises(UserError, match="knows no such page or model") as error:
        ask(Endpoint(id="llama", url=served.url, probe=False), 1)
    assert "does it know the model `llama`?" in error.value.hint


@pytest.mark.parametrize(
    ("error", "kind", "billed", "why"),
    [
        (
            {"code": 429, "message": "upstream is busy"},
            "rate limit",
            False,
            "HTTP 429: upstream is busy",
        ),
        ({"code": "502", "message": "no upstream"}, "error", True, "HTTP 502: no upstream"),
        ({"message": "something broke"}, "error", True, "something broke"),
    ],
)
def test_an_error_inside_a_reply_is_read_by_its_status(
    serve, slept, error, kind, billed, why
) -> None:
    served = serve(always=200, text=json.dumps({"error": error}), content_type="application/json")
    seen, failure = retries(Endpoint(id="m", url=served.url, retries=1))
    assert why in failure
    assert {(retry.kind, retry.billed) for retry in seen} == {(kind, billed)}


def test_a_key_that_is_wanted_inside_a_reply_ends_the_run(serve) -> None:
    text = json.dumps({"error": {"code": 401, "message": "No auth credentials found"}})
    with pytest.raises(UserError, match="wants a key: HTTP 401: No auth credentials found"):
        ask(
            Endpoint(id="m", url=serve(always=200, text=text, content_type="application/json").url),
            1,
        )


def test_https_where_a_server_speaks_http_and_the_other_way_round(serve, slept) -> None:
    served = serve(
        always=400,
        text="<html><title>400 The plain HTTP request was sent to HTTPS port</title></html>",
    )
    with pytest.raises(UserError, match="no connection to https") as error:
        reached(url=served.url.replace("http", "https"))
    assert f'url = "{served.url}"' in error.value.hint
    with pytest.raises(UserError, match="HTTP 400: a web page titled") as error:
        ask(Endpoint(id="m", url=served.url), 1)
    assert error.value.hint == f'url = "{served.url.replace("http", "https")}"'


def test_llama_cpps_slots_limit_the_requests_in_progress(serve) -> None:
    slots = {"props": {"total_slots": 2}, "hold_after": 0}

    def most(**settings: object) -> int:
        one, two = serve(**slots), serve(**slots)
        model = Endpoint(id="m", url=(one.url, two.url), concurrency=6, **settings)

        async def eight() -> int:
            async with model:
                asked = [asyncio.create_task(model.complete(request(seed))) for seed in range(8)]
                each = 2 if model.probe else 3
                for served in (one, two):
                    await asyncio.to_thread(served.wait, held=each)
                    await asyncio.to_thread(served.release)
                await asyncio.gather(*asked)
            return max(served.state()["most_in_flight"] for served in (one, two))

        return asyncio.run(eight())

    assert most() == 2
    assert most(probe=False) >= 3


@pytest.mark.parametrize(
    "props", [[], {"total_slots": None}, {"total_slots": "many"}, {"total_slots": -1}]
)
def test_a_server_that_does_not_tell_its_slots_gets_as_many_requests_as_the_study_says(
    serve, props
) -> None:
    assert (
        len(ask(Endpoint(id="m", url=serve(props=props, together=5).url, concurrency=5), *range(5)))
        == 5
    )
