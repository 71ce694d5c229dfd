"""Anthropic's Messages API: the provider's own package and Ponder agree on what a server says.

The fake server is `fake_anthropic.py`. It is held to the types of the package `anthropic` first;
then Ponder talks to the same server.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from endpoint_calls import ask, request, retries

from ponder import Study
from ponder.core import Message, ModelFailure, Request, SignedMessage, UserError
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.anthropic import Anthropic, assemble, read_usage
from ponder.models.endpoint.failures import NoAnswer
from ponder.models.endpoint.reply import Malformed, Reply, Usage, bill, slack
from ponder.store.store import Store

anthropic = pytest.importorskip("anthropic")

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
THINKING = {"type": "enabled", "budget_tokens": 2000}
CREDIT = (
    "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to"
    " upgrade or purchase credits."
)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-ant-api03-1234567890")


def claude(url: str, **settings: Any) -> Endpoint:
    defaults = {"id": "claude-sonnet-4-6", "protocol": "anthropic", "budget": 4000, "key": "$KEY"}
    return Endpoint(url=url, **(defaults | settings))


def package(url: str) -> Any:
    """The provider's own client of the same server."""
    return anthropic.Anthropic(
        base_url=url.removesuffix("/v1"), api_key="sk-ant-api03-1234567890", max_retries=0
    )


def said_to_package(url: str, *, stream: bool, **settings: Any) -> Any:
    """The message that the package reads, which must have the types that it declares."""
    fields = {"model": "claude-sonnet-4-6", "max_tokens": 4000, "messages": QUESTION, **settings}
    messages = package(url).messages
    if stream:
        from pydantic import TypeAdapter

        raw = messages.with_raw_response.create(**fields, stream=True)
        adapter = TypeAdapter(anthropic.types.RawMessageStreamEvent)
        for line in raw.http_response.iter_lines():
            if line.startswith("data: ") and '"ping"' not in line:
                adapter.validate_json(line.removeprefix("data: "))
        with messages.stream(**fields) as events:
            return events.get_final_message()
    raw = messages.with_raw_response.create(**fields)
    anthropic.types.Message.model_validate_json(raw.http_response.content)
    return messages.create(**fields)


def texts(message: Any, kind: str) -> str:
    return "".join(getattr(block, kind) for block in message.content if block.type == kind)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("dial", "thinking"),
    [
        ({}, None),
        ({"think": 2000}, {**THINKING, "display": "summarized"}),
        ({"thinking": True}, {"type": "adaptive", "display": "summarized"}),
        ({"thinking": False}, {"type": "disabled"}),
    ],
)
def test_the_package_and_ponder_read_the_same(serve, stream, dial, thinking) -> None:
    served = serve(thinking="I add the two.")
    settings = {} if thinking is None else {"thinking": thinking}
    content = request().messages[0].content
    message = said_to_package(
        served.url, stream=stream, messages=[{"role": "user", "content": content}], **settings
    )
    (completion,) = ask(claude(served.url, stream=stream, **dial), 1)
    assert completion.answer == texts(message, "text") != ""
    assert completion.thinking == texts(message, "thinking")
    assert bool(completion.thinking) == bool(dial.get("think") or dial.get("thinking"))
    assert message.stop_reason == "end_turn"
    assert completion.stop == "end"
    cost, usage = completion.bill, message.usage
    assert (cost.prompt_tokens, cost.counted_by) == (usage.input_tokens, "server")
    assert cost.thinking_tokens == usage.output_tokens_details.thinking_tokens
    assert cost.thinking_tokens + cost.answer_tokens == usage.output_tokens == 120


def test_what_is_sent(serve) -> None:
    served = serve()
    model = claude(
        served.url, think=1024, effort="low", top_p=0.98, stream=True, body={"metadata": {"user_id": "x"}}
    )  # fmt: skip
    asked = replace(
        request(),
        messages=(
            Message("system", "Be brief."),
            Message("user", "What is 1 + 1?"),
            Message("assistant", " \n"),  # a turn without an answer
            Message("user", "What is 1 + 2?"),
        ),
    )
    complete(model, asked)
    state = served.state()
    (body,) = state["bodies"]
    assert body == {
        "model": "claude-sonnet-4-6", "max_tokens": 4000, "system": "Be brief.", "top_p": 0.98,
        "messages": [
            {"role": "user", "content": "What is 1 + 1?"},
            {"role": "user", "content": "What is 1 + 2?"},
        ],
        "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
        "output_config": {"effort": "low"}, "stream": True, "metadata": {"user_id": "x"},
        "authorization": None,
    }  # fmt: skip
    assert state["headers"]["x-api-key"] == "sk-ant-api03-1234567890"
    assert state["headers"]["anthropic-version"] == "2023-06-01"


def test_headers_of_the_study_and_of_other_servers(serve) -> None:
    served = serve()
    ask(claude(served.url, headers={"anthropic-version": "2099-01-01"}), 1)
    assert served.state()["headers"]["anthropic-version"] == "2099-01-01"
    ask(claude(served.url, provider="vllm"), 1)
    headers = served.state()["headers"]
    assert headers["Authorization"] == "Bearer sk-ant-api03-1234567890"
    assert "x-api-key" not in headers


def complete(model: Endpoint, asked: Request) -> Any:
    async def once() -> Any:
        async with model:
            return await model.complete(asked)

    return asyncio.run(once())


def test_a_method_that_allows_less_than_the_thinking(serve) -> None:
    served = serve()
    complete(claude(served.url, think=2000), replace(request(), budget=1500))
    (body,) = served.state()["bodies"]
    assert (body["max_tokens"], body["thinking"]["budget_tokens"]) == (1500, 1499)


# Thinking that isn't shown, or encrypted


@pytest.mark.parametrize("stream", [False, True])
def test_newer_models_show_a_summary_only_if_asked(serve, stream) -> None:
    served = serve()
    newer = claude(served.url, id="claude-opus-5", stream=stream)
    (hidden,) = ask(newer, 1)
    assert (hidden.thinking, hidden.bill.thinking_tokens) == ("", 100)
    assert json.loads(hidden.blocks)[0]["signature"]
    (summary,) = ask(replace(newer, thinking=True), 1)
    assert (summary.thinking, summary.bill.thinking_tokens) == ("adding up", 100)


REDACTED = [
    {"type": "thinking", "thinking": "First.", "signature": "a"},
    {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"},
    {"type": "thinking", "thinking": "Second.", "signature": "b"},
    {"type": "text", "text": "The sum "},
    {"type": "text", "text": "is <answer>3</answer>"},
]


@pytest.mark.parametrize("stream", [False, True])
def test_several_blocks_and_redacted_thinking(serve, stream) -> None:
    served = serve(fields={"content": REDACTED})
    message = said_to_package(served.url, stream=stream, thinking=THINKING)
    assert [block.type for block in message.content] == [block["type"] for block in REDACTED]
    (completion,) = ask(claude(served.url, stream=stream), 1)
    assert completion.thinking == "First.\n\nSecond."
    assert completion.answer == "The sum is <answer>3</answer>" == texts(message, "text")
    assert json.loads(completion.blocks) == REDACTED


# How a reply ends


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "stop", "note"),
    [
        ("end_turn", "end", ""),
        ("stop_sequence", "end", ""),
        ("tool_use", "end", ""),
        ("max_tokens", "length", ""),
        ("model_context_window_exceeded", "length", ""),
        ("pause_turn", "length", ""),
        ("refusal", "end", "refusal"),
    ],
)
def test_every_stop_reason(serve, stream, reason, stop, note) -> None:
    served = serve(fields={"stop_reason": reason})
    assert said_to_package(served.url, stream=stream).stop_reason == reason
    (completion,) = ask(claude(served.url, stream=stream), 1)
    assert (completion.stop, completion.note) == (stop, note)
    assert ("<answer>" in completion.answer) == (reason != "refusal")
    assert completion.bill.answer_tokens == 120


def test_the_package_knows_no_other_stop_reason() -> None:
    from typing import get_args

    tested = test_every_stop_reason.pytestmark[0].args[1]
    assert set(get_args(anthropic.types.StopReason)) == {reason for reason, *_ in tested}


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_without_text_has_the_explanation(serve, stream) -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "It could do harm."}
    fields = {"stop_reason": "refusal", "stop_details": details, "content": []}
    served = serve(fields=fields)
    message = said_to_package(served.url, stream=stream)
    assert message.stop_details.explanation == "It could do harm."
    (completion,) = ask(claude(served.url, stream=stream), 1)
    assert (completion.answer, completion.note) == ("", "refusal")
    assert completion.thinking == "It could do harm."


def test_an_empty_reply_and_one_cut_while_thinking(serve) -> None:
    (completion,) = ask(claude(serve(fields={"content": []}).url), 1)
    assert (completion.note, completion.stop) == ("empty reply", "end")
    served = serve(lengths={"median": 90_000, "sigma": 0.1})
    (cut,) = ask(claude(served.url, think=2000), 1)
    assert (cut.answer, cut.stop, cut.note, cut.blocks) == ("", "length", "", "")
    assert (cut.bill.thinking_tokens, cut.bill.answer_tokens) == (4000, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_content_filter(serve, stream) -> None:
    error = "Output blocked by content filtering policy"
    served = serve(always=400, text=error)
    if stream:
        served = serve(fields={"stream_error": {"type": "invalid_request_error", "message": error}})
    (completion,) = ask(claude(served.url, stream=stream), 1)
    assert completion.note == "content filter"


# Token counts


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 5, "output_tokens": 9}, Usage(prompt=5, completion=9, output=9)),
        (
            {
                "input_tokens": 21,
                "cache_creation_input_tokens": 188_086,
                "cache_read_input_tokens": 1000,
                "output_tokens": 393,
                "output_tokens_details": {"thinking_tokens": 300},
            },
            Usage(prompt=189_107, cached=1000, completion=393, reasoning=300, output=393),
        ),
        (
            {"input_tokens": 5, "cache_read_input_tokens": None, "output_tokens_details": None},
            Usage(prompt=5),
        ),
        ({"input_tokens": -1, "output_tokens": "many"}, Usage()),
    ],
)
def test_usage(usage, expected) -> None:
    assert read_usage(usage) == replace(expected, reported=True)


def test_no_usage() -> None:
    assert read_usage(None) == read_usage([1]) == read_usage({}) == Usage()


def summary(**usage: int) -> Reply:
    answer = "It is <answer>3</answer>"  # 24 characters
    counts = Usage(reported=bool(usage), **usage)
    return Reply("In short.", answer, "end", "", "", ("In short.", answer), counts, summarized=True)


def split(reply: Reply, count: Callable[[str], int] | None = None) -> tuple[int, int, str]:
    cost = bill(reply, 0.0, count)
    return cost.thinking_tokens, cost.answer_tokens, cost.counted_by


def test_thinking_that_is_only_summarized_is_what_the_answer_is_not() -> None:
    counted = summary(prompt=5, completion=1000, output=1000, reasoning=980)
    assert split(counted) == (980, 20, "server")
    uncounted = summary(prompt=5, completion=1000, output=1000)
    # A split by characters would call 727 of them the answer's.
    assert split(uncounted) == (994, 6, "estimate")
    assert split(replace(uncounted, summarized=False)) == (273, 727, "estimate")
    assert split(uncounted, lambda text: len(text.split())) == (997, 3, "tokenizer")
    hidden = replace(uncounted, thinking="")
    assert split(hidden) == (994, 6, "estimate")
    assert split(replace(hidden, summarized=False)) == (0, 1000, "server")
    assert split(replace(uncounted, answer="")) == (1000, 0, "estimate")
    short = summary(prompt=5, completion=4, output=4)
    assert split(short) == (0, 4, "estimate")


def test_a_summary_without_usage_may_have_taken_the_whole_budget() -> None:
    reply = summary()
    cost = bill(reply, 0.0)
    assert slack(reply, cost, 4000, 50).completion_tokens == 4000 - 8
    whole = replace(reply, summarized=False)
    assert slack(whole, cost, 4000, 50).completion_tokens == 9 + 24 - 8


@pytest.mark.parametrize(
    ("settings", "counted"),
    [
        ({}, (110, 10, "estimate")),
        ({"id": "claude-3-7-sonnet-20250219"}, None),
        ({"provider": "sglang"}, None),
    ],
)
def test_an_older_server_does_not_count_thinking(serve, settings, counted) -> None:
    """Claude 3.7 and servers of open models show the whole thinking, the others a summary."""
    content = [
        {"type": "thinking", "thinking": "t" * 40, "signature": "s"},
        {"type": "text", "text": "a" * 40},
    ]
    usage = {"input_tokens": 40, "output_tokens": 120}
    served = serve(usage=usage, fields={"content": content})
    (completion,) = ask(claude(served.url, **settings), 1)
    cost = completion.bill
    expected = counted or (60, 60, "estimate")
    assert (cost.thinking_tokens, cost.answer_tokens, cost.counted_by) == expected


def test_a_server_with_a_tokenizer_counts_the_answer_of_a_summary(serve) -> None:
    usage = {"input_tokens": 40, "output_tokens": 120}
    served = serve(usage=usage, tokenize="vllm")
    (completion,) = ask(claude(served.url, think=2000), 1)
    cost = completion.bill
    # The tokenizer counts < answer > 5 < / answer >, which are eight.
    assert (cost.thinking_tokens, cost.answer_tokens, cost.counted_by) == (112, 8, "server")


def test_a_study_is_billed_as_the_server_bills(serve, write, ponder) -> None:
    served = serve(lengths={"median": 600, "sigma": 0.8})
    write("s.toml", STUDY.format(url=served.url, task="", more="think = 1024\nstream = true"))
    assert ponder("run", "s.toml").exit_code == 0
    total = sum(attempt.bill.tokens for attempt in attempts("s.toml"))
    assert total == served.state()["billed_tokens"]


def test_a_cap_holds(serve, write, ponder) -> None:
    served = serve(lengths={"median": 600, "sigma": 0.8})
    text = STUDY.format(url=served.url, task="", more="think = 1024")
    write("s.toml", "max_tokens = 30000\n" + text.replace("problems = 2", "problems = 50"))
    ponder("run", "s.toml")
    assert 0 < served.state()["billed_tokens"] <= 30_000


# Conversations

STUDY = """
problems = 2
[[task]]
name = "execution"
size = 6
per_turn = 2
dictionary = 5
{task}
[[model]]
name = "endpoint"
protocol = "anthropic"
id = "claude-sonnet-4-6"
url = "{url}"
key = "$KEY"
budget = 4000
concurrency = 1
{more}
"""


def attempts(study: str) -> list[Any]:
    with Store(Path("ponder.db")) as store:
        return [done.attempt for cell in Study.load(study).cells for done in store.attempts(cell)]


def replies(body: dict[str, Any]) -> list[Any]:
    return [message["content"] for message in body["messages"] if message["role"] == "assistant"]


@pytest.mark.parametrize("more", ["think = 1024", "thinking = true\nstream = true"])
def test_signed_thinking_goes_back_unchanged(serve, write, ponder, more) -> None:
    served = serve()
    write("s.toml", STUDY.format(url=served.url, task='remember = "all"', more=more))
    assert ponder("run", "s.toml").exit_code == 0
    assert [attempt.correct for attempt in attempts("s.toml")] == [True, True]
    bodies = served.state()["bodies"]
    assert [len(replies(body)) for body in bodies] == [0, 1, 2] * 2
    for blocks in replies(bodies[-1]):
        assert [block["type"] for block in blocks] == ["thinking", "text"]
        assert blocks[0]["signature"]
    assert "system" in bodies[-1]


def test_a_changed_signature_is_refused(serve) -> None:
    """The fake checks them, so the test above shows that they came back."""
    blocks = [
        {"type": "thinking", "thinking": "t", "signature": "forged"},
        {"type": "text", "text": "3"},
    ]
    turns = (
        Message("user", "1 + 2?"),
        SignedMessage("assistant", "3", json.dumps(blocks)),
        Message("user", "What is 1 + 3?"),
    )
    with pytest.raises(ModelFailure, match="Invalid `signature` in `thinking` block"):
        complete(claude(serve().url), replace(request(), messages=turns))


def test_a_resumed_conversation_returns_stored_blocks(serve, write, running, ponder) -> None:
    served = serve(hold_after=2)
    write("s.toml", STUDY.format(url=served.url, task='remember = "all"', more="think = 1024"))
    with running("run", "s.toml") as process:
        served.wait(held=1)  # the third turn of the first conversation
        with closing(sqlite3.connect("file:ponder.db?mode=ro", uri=True)) as store:
            while store.execute("SELECT COUNT(*) FROM turn").fetchone() < (2,):
                time.sleep(0.02)
        process.kill()
    served.release()
    assert ponder("run", "s.toml").exit_code == 0
    assert [attempt.correct for attempt in attempts("s.toml")] == [True, True]
    bodies = served.state()["bodies"]
    assert len(bodies) == 7  # only the turn that was held is asked again
    held = bodies[2]
    assert len(replies(held)) == 2
    assert held["messages"] in [body["messages"] for body in bodies[3:]]


@pytest.mark.parametrize("remember", ["visible", "answers"])
def test_without_memory_of_thinking_only_texts_go_back(serve, write, ponder, remember) -> None:
    served = serve()
    task = f'remember = "{remember}"'
    write("s.toml", STUDY.format(url=served.url, task=task, more="think = 1024"))
    assert ponder("run", "s.toml").exit_code == 0
    assert all(isinstance(content, str) for content in replies(served.state()["bodies"][-1]))


def test_the_store_has_no_key(serve, write, ponder) -> None:
    write("s.toml", STUDY.format(url=serve().url, task='remember = "all"', more="think = 1024"))
    ponder("run", "s.toml")
    with closing(sqlite3.connect("ponder.db")) as store:
        dump = "\n".join(store.iterdump())
    assert "signature" in dump
    assert "sk-ant-api03" not in dump


# Faults


def error_of_package(url: str, **settings: Any) -> Any:
    fields = {"model": "claude-sonnet-4-6", "max_tokens": 4000, "messages": QUESTION, **settings}
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(package(url).messages.create(**fields))
    return caught.value


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_the_package_reads_the_errors_of_the_fake(serve, status, error) -> None:
    failure = error_of_package(serve(always=status, text="so it is").url)
    assert (failure.status_code, failure.body["error"]["type"]) == (status, error)
    assert failure.body["error"]["message"] == "so it is"


@pytest.mark.parametrize("stream", [False, True])
def test_a_rate_limit_waits_as_long_as_it_says(serve, slept, stream) -> None:
    served = serve(busy_first=2, retry_after="7")
    tries, completion = retries(claude(served.url, stream=stream))
    assert [(retry.kind, retry.billed, retry.wait) for retry in tries] == [("rate limit", False, 7.0)] * 2  # fmt: skip
    assert not isinstance(completion, str)
    assert slept == [7.0, 7.0]


@pytest.mark.parametrize("status", [500, 529])
def test_overload_is_repeated_and_not_billed(serve, slept, status) -> None:
    tries, end = retries(claude(serve(always=status, text="Overloaded").url, retries=2))
    assert [retry.billed for retry in tries] == [False] * 3
    assert end == f"HTTP {status}: Overloaded (3 tries)"


OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}


@pytest.mark.parametrize(
    ("fault", "billed", "why"),
    [
        ({"early_error": OVERLOADED}, False, "reports an overloaded_error"),
        ({"stream_error": OVERLOADED}, True, "reports an error: {'type': 'overloaded_error'"),
        ({"early_error": {"type": "new_error"}}, True, "reports an error: {'type': 'new_error'"),
    ],
)
def test_an_error_in_the_stream(serve, slept, fault, billed, why) -> None:
    """Once the reply has begun, the prompt is billed, and perhaps more."""
    served = serve(fields=fault)
    failure = error_of_package(served.url, stream=True)
    (error,) = fault.values()
    assert failure.body["error"] == error
    tries, end = retries(claude(served.url, stream=True, retries=1))
    assert [retry.billed for retry in tries] == [billed] * 2
    assert why in str(end)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["cut", "malformed", "drop"])
def test_half_a_reply_is_repeated_and_counted_as_billed(serve, slept, fault, stream) -> None:
    served = serve(**{fault: 1.0})
    tries, end = retries(claude(served.url, stream=stream, retries=1))
    assert [retry.billed for retry in tries] == [True] * 2
    assert isinstance(end, str)


def wrong_server(model: Endpoint) -> UserError:
    with pytest.raises(UserError) as caught:
        ask(model, 1)
    return caught.value


@pytest.mark.parametrize(
    ("faults", "what", "hint"),
    [
        ({"always": 401, "text": "invalid x-api-key"}, "refuses the key: HTTP 401", "key = "),
        ({"always": 400, "text": CREDIT}, "has no credit left: HTTP 400", "add credit"),
        ({"always": 402, "text": "Pay."}, "has no credit left: HTTP 402", "add credit"),
        (
            {"always": 400, "text": "You have reached your specified API usage limits."},
            "has no credit left",
            "add credit",
        ),
        (
            {"always": 200, "text": "<html><title>Log in</title>", "content_type": "text/html"},
            'a web page titled "Log in", not with a message of Anthropic\'s API',
            "speak Anthropic's protocol?",
        ),
    ],
)
def test_a_server_that_refuses_all(serve, faults, what, hint) -> None:
    error = wrong_server(claude(serve(**faults).url))
    assert what in error.what
    assert hint in error.hint


def test_an_unknown_model_and_an_unknown_page(serve) -> None:
    served = serve(lists=["claude-sonnet-4-6", "claude-opus-5"])
    assert error_of_package(served.url, model="no-such-model").status_code == 404
    error = wrong_server(claude(served.url, id="no-such-model"))
    assert "does not know the model `no-such-model`" in error.what
    assert "claude-opus-5" in error.hint
    root = served.url.removesuffix("/v1")
    assert f'url = "{root}/v1"' in wrong_server(claude(root)).hint


@pytest.mark.parametrize(
    ("settings", "what", "hint"),
    [
        ({"id": "claude-opus-5", "think": 2000}, "refuses `think`", "thinking = true and effort"),
        ({"id": "claude-opus-5", "thinking": False}, "refuses `thinking = false`", "leave it out"),
        ({"id": "claude-haiku-4-5", "thinking": True}, "refuses `thinking = true`", "think = 4096"),
        ({"id": "claude-haiku-4-5", "effort": "low"}, "refuses `effort`", "leave it out"),
        ({"think": 2000, "temperature": 0.5}, "the field `temperature`", "leave out `temp"),
        ({"id": "claude-opus-5", "temperature": 1}, "the field `temperature`", "leave out `temp"),
        ({"budget": 100_000}, "refuses a budget of 100,000 tokens", "budget = 64000"),
    ],
)
def test_a_setting_that_the_model_does_not_take(serve, settings, what, hint) -> None:
    """Every request would fail, so the run stops at the first, and says what to change."""
    error = wrong_server(claude(serve().url, **settings))
    assert what in error.what
    assert "HTTP 400" in error.what
    assert hint in error.hint


@pytest.mark.parametrize(
    "message",
    [
        "'claude-3-5-haiku-20241022' does not support thinking.",
        "thinking: Extra inputs are not permitted",
    ],
)
def test_a_model_without_thinking(serve, message) -> None:
    error = wrong_server(claude(serve(always=400, text=message).url, think=2000))
    assert "leave out `think` and `thinking`" in error.hint


def test_another_bad_request_fails_alone(serve) -> None:
    served = serve(always=400, text="prompt is too long: 208310 tokens > 200000 maximum")
    tries, end = retries(claude(served.url))
    assert [retry.billed for retry in tries] == [False]
    assert end.startswith("HTTP 400: prompt is too long")


# Wrong input


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"budget": None}, "needs a `budget`", "budget = 16000"),
        ({"think": 500}, "below Anthropic's minimum of 1024", "think = 1024"),
        ({"think": 4000}, "think = 4000 leaves no room", "set a larger one"),
        ({"think": 2000, "thinking": False}, "contradict each other", "leave out one"),
        ({"effort": "none"}, "Anthropic has no effort 'none'", "thinking = false"),
        ({"body": {"system": "Be brief."}}, "`system` can't be a field", "the task"),
        ({"body": {"max_tokens": 5}}, "`max_tokens` can't be a field", "budget"),
        ({"provider": "vllm", "effort": "low"}, "has no dial `effort`", 'protocol = "chat"'),
        ({"provider": "deepseek", "think": 2000}, "has no dial `think`", "thinking = false"),
        ({"provider": "openai"}, "openai has no protocol `anthropic`", 'protocol = "chat"'),
    ],
)
def test_wrong_settings_are_errors_before_anything_is_asked(settings, message, hint) -> None:
    with pytest.raises(UserError) as caught:
        claude("http://127.0.0.1:9/v1", **settings)
    assert message in caught.value.what
    assert hint in caught.value.hint


def test_wrong_input_in_a_study(write, ponder) -> None:
    url = "https://api.anthropic.com/v1"
    text = STUDY.format(url=url, task="", more="")
    write("s.toml", text.replace('protocol = "anthropic"', 'protocol = "messages"'))
    result = ponder("plan", "s.toml")
    assert result.exit_code != 0
    assert "there is no choice 'messages'" in result.output
    write("s.toml", text.replace("budget = 4000", ""))
    result = ponder("plan", "s.toml")
    assert result.exit_code != 0
    assert "needs a `budget`" in result.output


def test_the_address_decides_the_protocol(monkeypatch) -> None:
    url = "https://api.anthropic.com/v1"
    model = claude(url, protocol=None)
    assert model.protocol_name == "anthropic"
    model.ready()
    monkeypatch.setenv("KEY", "sk-proj-1234567890")
    with pytest.raises(UserError, match="a key of openai"):
        model.ready()
    claude("http://127.0.0.1:9/v1").ready()  # a server of your own may have any key
    with pytest.raises(UserError, match="a key of openai"):
        claude("http://127.0.0.1:9/v1", provider="anthropic").ready()


# Streams that no server of Anthropic's sends, but a proxy may


async def chunks(*events: dict[str, Any]) -> Any:
    for event in events:
        yield b"data: " + json.dumps(event).encode() + b"\n\n"


def streamed(*events: dict[str, Any]) -> Reply:
    async def read() -> Reply:
        protocol = Anthropic(claude("http://127.0.0.1:9/v1"))
        return await protocol.read_stream(request(), chunks(*events), lambda: None)

    return asyncio.run(read())


DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "3"}}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}


def test_a_stream_is_complete_once_it_says_why_it_ended() -> None:
    reply = streamed(DELTA, END)
    assert (reply.answer, reply.usage.output) == ("3", 2)
    assert streamed(DELTA, END, {"type": "error", "error": OVERLOADED}).answer == "3"
    with pytest.raises(Malformed, match="ended before the reply did"):
        streamed(DELTA)
    with pytest.raises(Malformed, match="ended before the reply did"):
        streamed(DELTA, {"type": "message_stop"})


def test_when_text_comes() -> None:
    calls = []
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}}
    signed = {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "s"}}
    thought = {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "t"}}
    events = chunks(start, thought, thought, signed, END)
    message = asyncio.run(assemble(events, lambda: calls.append(1)))
    assert len(calls) == 2
    assert message.content == [{"type": "thinking", "thinking": "tt", "signature": "s"}]


def test_an_early_error_is_not_billed_whatever_it_says() -> None:
    """Its text may hold anything, so that only its type is shown."""
    error = {"type": "rate_limit_error", "message": "sk-ant-secret"}
    with pytest.raises(NoAnswer) as caught:
        streamed({"type": "error", "error": error})
    assert (caught.value.kind, caught.value.billed) == ("rate limit", False)
    assert "secret" not in str(caught.value)
