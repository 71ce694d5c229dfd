"""One dial for thinking: what each provider's chats are sent for it, and what they lack."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from endpoint_calls import ask, request

from ponder.core import Cell, UserError
from ponder.methods.budget_force import BudgetForce
from ponder.models.endpoint import Endpoint
from ponder.tasks.chain_sum import ChainSum

HOSTS = {
    "openai": "https://api.openai.com/v1",
    "xai": "https://api.x.ai/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "google": "https://generativelanguage.googleapis.com/v1beta/openai",
    "anthropic": "https://api.anthropic.com/v1",
}
OWN = ("vllm", "sglang", "llama.cpp")  # which run anywhere, so that a study names them
EFFORT = {"effort": "low"}
THINK = {"think": 2048}
ON = {"thinking": True}
OFF = {"thinking": False}
TEMPLATES = {True: {"enable_thinking": True, "thinking": True}, False: {"enable_thinking": False, "thinking": False}}  # fmt: skip


def endpoint(provider: str, **settings: Any) -> Endpoint:
    known = {}
    if provider in OWN:
        known["provider"] = provider
    elif provider:
        known["url"] = HOSTS[provider]
        known["protocol"] = "chat"
    return Endpoint(id="m", **known, **settings)


def fields(model: Endpoint) -> dict[str, Any]:
    """What a request holds besides what every chat has."""
    sent = model.preview(request()).body
    for name in ("model", "messages", "seed"):
        del sent[name]
    return sent


def effort(value: str) -> dict[str, str]:
    return {"reasoning_effort": value}


@pytest.mark.parametrize(
    ("provider", "dial", "sent"),
    [
        *((provider, {}, {}) for provider in ("", *HOSTS, *OWN)),
        *((provider, EFFORT, effort("low")) for provider in ("", "openai", "xai", "google", "deepseek", "vllm", "sglang")),
        *((provider, ON, effort("medium")) for provider in ("openai", "xai", "google")),
        *((provider, ON | EFFORT, effort("low")) for provider in ("openai", "xai", "google")),
        *((provider, OFF, effort("none")) for provider in ("openai", "xai", "google")),
        *((provider, ON, {"chat_template_kwargs": TEMPLATES[True]}) for provider in OWN),
        *((provider, OFF, {"chat_template_kwargs": TEMPLATES[False]}) for provider in OWN),
        ("llama.cpp", EFFORT, {"chat_template_kwargs": effort("low")}),
        ("vllm", THINK, {"thinking_token_budget": 2048}),
        ("sglang", THINK, {"custom_params": {"thinking_budget": 2048}}),
        ("llama.cpp", THINK, {"thinking_budget_tokens": 2048}),
        ("vllm", THINK | EFFORT | ON, {"thinking_token_budget": 2048, "chat_template_kwargs": TEMPLATES[True], **effort("low")}),
        ("openrouter", EFFORT, {"reasoning": {"effort": "low"}}),
        ("openrouter", THINK, {"reasoning": {"max_tokens": 2048}}),
        ("openrouter", ON, {"reasoning": {"enabled": True}}),
        ("openrouter", OFF, {"reasoning": {"enabled": False}}),
        ("openrouter", ON | EFFORT, {"reasoning": {"effort": "low", "enabled": True}}),
        ("google", THINK, {"extra_body": {"google": {"thinking_config": {"thinking_budget": 2048, "include_thoughts": True}}}}),
        ("anthropic", THINK, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("deepseek", ON, {"thinking": {"type": "enabled"}}),
        ("deepseek", OFF, {"thinking": {"type": "disabled"}}),
        ("deepseek", ON | EFFORT, {"thinking": {"type": "enabled"}, **effort("low")}),
    ],
)  # fmt: skip
def test_what_is_sent(provider: str, dial: dict[str, Any], sent: dict[str, Any]) -> None:
    assert fields(endpoint(provider, **dial)) == sent


SERVER = 'provider = "vllm", "sglang" or "llama.cpp" says which server it is'
NATIVE = 'protocol = "anthropic", with url = "https://api.anthropic.com/v1"'
ONE = "leave out one of them"


@pytest.mark.parametrize(
    ("provider", "dial", "message", "hint"),
    [
        ("", THINK, "a server that Ponder doesn't know has no dial `think`", SERVER),
        ("", ON, "a server that Ponder doesn't know has no dial `thinking`", SERVER),
        ("openai", THINK, "OpenAI has no dial `think`", 'effort = "low"; a `budget` limits the whole reply'),
        ("xai", THINK, "xAI has no dial `think`", 'effort = "low"; a `budget` limits the whole reply'),
        ("deepseek", THINK, "DeepSeek has no dial `think`", "thinking = false, or a `budget` for the whole reply"),
        ("anthropic", EFFORT, "Anthropic's OpenAI layer has no dial `effort`", NATIVE),
        ("anthropic", ON, "Anthropic's OpenAI layer has no dial `thinking`", NATIVE),
        ("anthropic", THINK | ON, "Anthropic's OpenAI layer has no dial `thinking`", NATIVE),
        ("anthropic", {"think": 1023}, "think = 1023 is below Anthropic's minimum of 1024 tokens", "think = 1024, or thinking = false"),
        ("openai", {"effort": "hgh"}, "OpenAI has no effort 'hgh'", "effort = none, minimal, low, medium, high, xhigh, max; few models have all of them"),
        ("google", THINK | EFFORT, "a request with `think` to Google has no dial `effort`", "set one of them"),
        ("openrouter", THINK | EFFORT, "OpenRouter takes an effort or a number of thinking tokens, not both", "leave out `effort` or `think`"),
        *(
            (provider, OFF | EFFORT, "thinking = false and effort = 'low' contradict each other", ONE)
            for provider in ("openai", "xai", "google", "openrouter", "deepseek", *OWN)
        ),
        *(
            (provider, OFF | THINK, "thinking = false and think = 2048 contradict each other", ONE)
            for provider in ("google", "openrouter", *OWN)
        ),
        ("vllm", {"think": 100, "budget": 100}, "think = 100 leaves no room for an answer in budget = 100", "budget counts thinking and answer: set a larger one"),
        ("vllm", {"think": 0}, "think must be a number above 0, not 0", "thinking = false turns it off"),
    ],
)  # fmt: skip
def test_what_a_route_lacks_is_an_error_before_anything_is_asked(
    provider: str, dial: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UserError) as error:
        endpoint(provider, **dial)
    assert (error.value.what, error.value.hint) == (message, hint)


def test_a_body_adds_to_what_a_dial_sends() -> None:
    body = {"chat_template_kwargs": {"style": "terse", "enable_thinking": False}, "top_k": 20}
    sent = fields(endpoint("vllm", thinking=True, body=body))
    merged = {"style": "terse", "enable_thinking": False, "thinking": True}
    assert sent == {"chat_template_kwargs": merged, "top_k": 20}


@pytest.mark.parametrize(
    ("provider", "dial", "body"),
    [
        ("openai", EFFORT, {"reasoning_effort": "high"}),
        ("vllm", THINK, {"thinking_token_budget": 9}),
        ("llama.cpp", THINK, {"thinking_budget_tokens": 9}),
        ("deepseek", ON, {"thinking": "enabled"}),
    ],
)
def test_a_dial_that_is_in_the_body_too_is_given_twice(
    provider: str, dial: dict[str, Any], body: dict[str, Any]
) -> None:
    [name] = body
    with pytest.raises(UserError, match=f"`{name}` is given twice") as error:
        endpoint(provider, **dial, body=body)
    assert error.value.hint == "leave it out of `body`"


def test_dials_are_sent_as_they_are_shown(serve) -> None:
    served = serve()
    model = Endpoint(
        id="m", url=served.url, provider="vllm", think=64, effort="low", budget=500, body={"x": 1}
    )
    shown = model.preview(request(seed=7))
    ask(model, 7)
    [body] = served.state()["bodies"]
    assert body.pop("authorization") is None
    assert shown.body == body
    assert shown.url == f"{served.url}/chat/completions"


AZURE = {"url": "https://name.openai.azure.com/openai/v1", "provider": "openai", "key": "$KEY"}
BEDROCK = {"url": "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1", "key": "$KEY"}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        (AZURE | EFFORT, {"reasoning_effort": "low"}),
        (AZURE | OFF, {"reasoning_effort": "none"}),
        (BEDROCK | EFFORT, {"reasoning_effort": "low"}),
        ({"url": "http://litellm:4000/v1", "key": "$KEY", "body": BUDGET}, BUDGET),
    ],
)
def test_servers_that_speak_chat_completions(
    settings: dict[str, Any], sent: dict[str, Any]
) -> None:
    """As docs/endpoints.md has them."""
    shown = Endpoint(id="m", budget=9000, **settings).preview(request())
    assert shown.url == f"{settings['url']}/chat/completions"
    assert shown.headers["Authorization"] == "Bearer $KEY"
    assert shown.body.items() >= sent.items()
    field = "max_completion_tokens" if "provider" in settings else "max_tokens"  # OpenAI's
    assert shown.body[field] == 9000


def test_dials_are_in_the_key() -> None:
    keys = set()
    for dial in ({}, EFFORT, {"effort": "high"}, THINK, ON, OFF):
        keys.add(Cell(ChainSum(), 2, endpoint("vllm", **dial)).key)
    assert len(keys) == 6


# Budget forcing


LENGTHS = {"median": 400, "sigma": 0.5}


@pytest.mark.parametrize("budget", [None, 250])
def test_a_server_with_a_budget_of_its_own_forces_in_one_call(serve, budget: int | None) -> None:
    served = serve(lengths=LENGTHS, honours=True)
    model = Endpoint(id="m", url=served.url, provider="vllm", budget=budget)
    method = BudgetForce(think=100, answer=300)

    async def forced() -> list[Any]:
        async with method.apply(model) as applied:
            return [await applied.complete(request(seed)) for seed in range(8)]

    replies = asyncio.run(forced())
    state = served.state()
    assert state["requests"] == 8
    limit = Cell(ChainSum(), 2, model, (method,)).turn_limit
    for body, reply in zip(state["bodies"], replies, strict=True):
        assert body["thinking_token_budget"] == 100
        # the budget of each call limits its part
        assert body["max_tokens"] == 100 + min(300, budget or 300)
        assert reply.stop == "end"
        assert reply.measures == {"server_budget": 1.0}
        assert reply.bill.thinking_tokens <= 100
        most = limit(reply.bill.prompt_tokens, None)
        assert most is not None
        assert most.completion_tokens >= body["max_tokens"]
    assert any(reply.bill.thinking_tokens == 100 for reply in replies)


@pytest.mark.parametrize(
    "settings", [{}, {"provider": "openai"}, {"provider": "vllm", "thinking": False}]
)
def test_elsewhere_a_second_call_asks_for_the_answer(serve, settings: dict[str, Any]) -> None:
    served = serve(lengths=LENGTHS)
    model = Endpoint(id="m", url=served.url, **settings)

    async def forced() -> list[Any]:
        async with BudgetForce(think=300, answer=5000).apply(model) as applied:
            return [await applied.complete(request(seed)) for seed in range(8)]

    replies = asyncio.run(forced())
    second_calls = [reply.measures["second_calls"] for reply in replies]
    assert set(second_calls) == {0.0, 1.0}
    state = served.state()
    assert state["requests"] == 8 + sum(second_calls)
    assert all("thinking_token_budget" not in body for body in state["bodies"])


def test_the_two_ways_of_forcing_have_different_keys() -> None:
    methods = (BudgetForce(think=100),)
    keys = set()
    for provider in (None, "vllm", "sglang", "llama.cpp"):
        model = Endpoint(id="m", provider=provider)  # type: ignore[arg-type]
        keys.add(Cell(ChainSum(), 2, model, methods).key)
    assert len(keys) == 4


def test_exports_say_how_thinking_was_ended(serve, write, ponder) -> None:
    served = serve(lengths=LENGTHS, honours=True)
    write(
        "s.toml",
        f"""
problems = 6
[[task]]
name = "chain_sum"
size = 2
[[model]]
name = "endpoint"
id = "m"
url = "{served.url}"
provider = "vllm"
method = [{{ name = "budget_force", think = 100 }}]
""",
    )
    assert ponder("run", "s.toml").exit_code == 0
    rows = ponder("export", "s.toml", "-o", "-").stdout
    assert rows.count('""server_budget"": 1.0') == 6
