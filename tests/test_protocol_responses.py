"""OpenAI's Responses API: the provider's own package and Ponder agree on what a server says.

The fake server is `fake_responses.py`. It is held to the types of the package `openai` first; then
Ponder talks to the same server. So is the fake of chat completions, in `server.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from endpoint_calls import ask, request, retries

from ponder.core import Message, ModelFailure, Problem, Request, SignedMessage, UserError
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.chat import read_usage
from ponder.models.endpoint.failures import NoAnswer
from ponder.models.endpoint.reply import Malformed, Reply, bill
from ponder.models.endpoint.responses import assemble

openai = pytest.importorskip("openai")

KEY = "sk-1234567890"
SUMMARY = {"reasoning": {"summary": "auto"}}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", KEY)


def gpt(url: str, **settings: Any) -> Endpoint:
    defaults = {"id": "gpt-5", "protocol": "responses", "provider": "openai", "key": "$KEY"}
    return Endpoint(url=url, **(defaults | settings))


def package(url: str) -> Any:
    """The provider's own client of the same server."""
    return openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)


def said_to_package(url: str, *, stream: bool, **settings: Any) -> Any:
    """The response that the package reads, which must have the types that it declares."""
    content = request().messages[0].content
    fields = {"model": "gpt-5", "input": content, "store": False, **settings}
    with package(url) as client:
        return _said(client.responses, fields, stream=stream)


def _said(responses: Any, fields: dict[str, Any], *, stream: bool) -> Any:
    from pydantic import TypeAdapter

    if not stream:
        raw = responses.with_raw_response.create(**fields)
        openai.types.responses.Response.model_validate_json(raw.http_response.content)
        return responses.create(**fields)
    raw = responses.with_raw_response.create(**fields, stream=True)
    adapter = TypeAdapter(openai.types.responses.ResponseStreamEvent)
    for line in raw.http_response.iter_lines():
        if line.startswith("data: "):
            adapter.validate_json(line.removeprefix("data: "))
    raw.http_response.close()
    events = list(responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    pieces = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(pieces) == events[-1].response.output_text
    with responses.stream(**fields) as whole:
        for _ in whole:
            pass
    return events[-1].response


def thinking_of(response: Any) -> str:
    parts = []
    for item in response.output:
        if item.type == "reasoning":
            parts += [part.text for part in (item.content or item.summary)]
    return "\n\n".join(parts)


# Both read the same


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "settings", "fields", "thinking", "summarized"),
    [
        ("gpt-5", {}, {}, "", None),
        ("gpt-5", {"body": SUMMARY}, SUMMARY, "I add the two.", 1.0),
        ("gpt-5", {"thinking": False}, {"reasoning": {"effort": "none"}}, "", None),
        ("gpt-oss", {"provider": "vllm"}, {}, "I add the two.", None),
        ("gpt-4o", {}, {}, "", None),
    ],
)
def test_the_package_and_ponder_read_the_same(
    serve, stream, model, settings, fields, thinking, summarized
) -> None:
    served = serve(thinking="I add the two.")
    response = said_to_package(served.url, stream=stream, model=model, **fields)
    (completion,) = ask(gpt(served.url, id=model, stream=stream, **settings), 1)
    assert completion.answer == response.output_text != ""
    assert completion.thinking == thinking_of(response) == thinking
    assert completion.measures.get("summarized") == summarized
    assert (response.status, completion.stop, completion.note) == ("completed", "end", "")
    cost, usage = completion.bill, response.usage
    assert (cost.prompt_tokens, cost.counted_by) == (usage.input_tokens, "server")
    assert cost.thinking_tokens == usage.output_tokens_details.reasoning_tokens
    assert cost.thinking_tokens + cost.answer_tokens == usage.output_tokens
    assert ("first_token_seconds" in completion.measures) == stream


@pytest.mark.parametrize("stream", [False, True])
def test_the_package_reads_the_fake_of_chats(serve, stream) -> None:
    from pydantic import TypeAdapter

    served = serve()
    (message,) = request().messages
    fields = {"model": "m", "messages": [{"role": "user", "content": message.content}]}
    completions = package(served.url).chat.completions
    (completion,) = ask(Endpoint(id="m", url=served.url, stream=stream), 1)
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        raw = completions.with_raw_response.create(**fields)
        adapter = TypeAdapter(openai.types.chat.ChatCompletionChunk)
        for line in raw.http_response.iter_lines():
            if line.startswith("data: {"):
                adapter.validate_json(line.removeprefix("data: "))
        chunks = list(completions.create(**fields))
        pieces = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        text = "".join(piece.content or "" for piece in pieces)
        thinking = "".join(getattr(piece, "reasoning_content", "") for piece in pieces)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        assert reasons == [None] * (len(reasons) - 1) + ["stop"]
        usage = chunks[-1].usage
    else:
        raw = completions.with_raw_response.create(**fields)
        openai.types.chat.ChatCompletion.model_validate_json(raw.http_response.content)
        whole = completions.create(**fields)
        text = whole.choices[0].message.content
        thinking = whole.choices[0].message.reasoning_content
        assert whole.choices[0].finish_reason == "stop"
        usage = whole.usage
    assert (completion.answer, completion.thinking) == (text, thinking)
    assert completion.bill.prompt_tokens == usage.prompt_tokens
    assert completion.bill.thinking_tokens == usage.completion_tokens_details.reasoning_tokens
    assert completion.bill.answer_tokens == usage.completion_tokens - 100


# What is sent


def sent(served: Any) -> dict[str, Any]:
    (body,) = served.state()["bodies"]
    assert body.pop("authorization") == f"Bearer {KEY}"
    return body


def test_what_is_sent(serve) -> None:
    served = serve()
    model = gpt(
        served.url,
        budget=99,
        temperature=0.6,
        top_p=0.95,
        effort="low",
        stream=True,
        body={"reasoning": {"summary": "auto"}, "service_tier": "flex"},
    )
    ask(model, 1)
    body = sent(served)
    assert body.pop("input") == [{"role": "user", "content": request().messages[0].content}]
    assert body == {
        "model": "gpt-5", "max_output_tokens": 99, "temperature": 0.6, "top_p": 0.95, "store": False,
        "reasoning": {"effort": "low", "summary": "auto"}, "stream": True, "service_tier": "flex",
    }  # fmt: skip


def test_nothing_is_sent_that_was_not_set(serve) -> None:
    served = serve()
    ask(gpt(served.url), 1)
    assert set(sent(served)) == {"model", "input", "store"}


@pytest.mark.parametrize(
    ("provider", "dial", "fields"),
    [
        ("openai", {"effort": "high"}, {"effort": "high"}),
        ("openai", {"thinking": True}, {"effort": "medium"}),
        ("openai", {"thinking": False}, {"effort": "none"}),
        ("xai", {"effort": "low"}, {"effort": "low"}),
        ("openrouter", {"think": 2000}, {"max_tokens": 2000}),
        ("openrouter", {"thinking": False}, {"enabled": False}),
        ("vllm", {"effort": "low"}, {"effort": "low"}),
    ],
)
def test_the_dial(provider, dial, fields) -> None:
    model = gpt("http://127.0.0.1:1/v1", provider=provider, **dial)
    from ponder.models.endpoint.responses import Responses

    assert Responses(model).payload(request(), None)["reasoning"] == fields


# How replies end


def filled(**parts: str) -> list[dict[str, Any]]:
    part = {**parts, "type": "refusal"} if "refusal" in parts else {**parts, "type": "output_text"}
    if part["type"] == "output_text":
        part |= {"annotations": [], "logprobs": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    return [{**message, "content": [part]}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "stop", "note", "answer"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": filled(text="So")}, "length", "", "So"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}, "output": filled(text="So")}, "end", "content filter", "So"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_messages"}, "output": filled(text="So")}, "length", "", "So"),
        ({"output": filled(refusal="I can't help.")}, "end", "refusal", ""),
        ({"output": filled(text="<think>hm</think>3")}, "end", "", "3"),
        ({"output": []}, "end", "empty reply", ""),
        ({"status": "failed", "error": {"code": "invalid_prompt", "message": "Invalid prompt: your prompt was flagged."}, "output": []}, "end", "content filter", ""),
        ({"status": "failed", "error": {"code": "bio_policy", "message": "no"}, "output": []}, "end", "content filter", ""),
    ],
)  # fmt: skip
def test_every_stop_reason(serve, stream, fields, stop, note, answer) -> None:
    served = serve(fields=fields)
    response = said_to_package(served.url, stream=stream)  # the package has a type for it
    assert response.status == fields.get("status", "completed")
    (completion,) = ask(gpt(served.url, stream=stream), 1)
    assert (completion.stop, completion.note, completion.answer) == (stop, note, answer)
    if note == "refusal":  # stands where no grader reads it
        assert completion.thinking == "I can't help."


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_cut_while_thinking(serve, stream) -> None:
    served = serve(lengths={"median": 4000, "sigma": 0.0})
    response = said_to_package(served.url, stream=stream, max_output_tokens=50)
    assert response.incomplete_details.reason == "max_output_tokens"
    (completion,) = ask(gpt(served.url, stream=stream, budget=50), 1)
    assert (completion.stop, completion.answer) == ("length", "")
    assert (completion.bill.thinking_tokens, completion.bill.answer_tokens) == (50, 0)


@pytest.mark.parametrize("status", ["cancelled", "queued", "in_progress"])
def test_a_reply_that_is_not_finished_is_repeated(serve, slept, status) -> None:
    served = serve(fields={"status": status})
    seen, failure = retries(gpt(served.url, retries=1))
    assert [retry.billed for retry in seen] == [True, True]
    assert status in failure


def test_several_summaries_and_messages(serve) -> None:
    summary = [{"type": "summary_text", "text": text} for text in ("one", "two")]
    reasoning = {"id": "rs_1", "type": "reasoning", "summary": summary}
    output = [reasoning, *filled(text="First."), *filled(text="Then 3.")]
    (completion,) = ask(gpt(serve(fields={"output": output}).url), 1)
    assert completion.thinking == "one\n\ntwo"
    assert completion.answer == "First.\n\nThen 3."


def test_the_last_event_may_leave_out_the_output(serve) -> None:
    served = serve(fields={"no_final_output": True})
    (completion,) = ask(gpt(served.url, stream=True, body=SUMMARY), 1)
    assert completion.thinking == "adding up"
    assert completion.answer.startswith("<answer>")


# Bills


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        # OpenAI: reasoning inside the output
        ({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 1000,
          "output_tokens_details": {"reasoning_tokens": 900}, "total_tokens": 1100}, (100, 64, 900, 100)),
        # xAI: beside it, the answer longer than the thinking, and shorter
        ({"input_tokens": 100, "output_tokens": 1500, "output_tokens_details": {"reasoning_tokens": 900},
          "total_tokens": 2500}, (100, 0, 900, 1500)),
        ({"input_tokens": 100, "output_tokens": 237, "output_tokens_details": {"reasoning_tokens": 1901},
          "total_tokens": 2238}, (100, 0, 1901, 237)),
        # thinking only in the total
        ({"input_tokens": 100, "output_tokens": 20, "total_tokens": 1520}, (100, 0, 1400, 20)),
        # cut while thinking
        ({"input_tokens": 21, "output_tokens": 0, "output_tokens_details": {"reasoning_tokens": 60},
          "total_tokens": 81}, (21, 0, 60, 0)),
        # written to the cache and read from it, both inside the input
        ({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 60},
          "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 150}, (100, 40, 0, 50)),
    ],
)  # fmt: skip
def test_bills(usage, tokens) -> None:
    answer = "" if not usage["output_tokens"] else "<answer>3</answer>"
    cost = bill(Reply("", answer, "end", "", usage=read_usage(usage)), 1.0)
    counts = (cost.prompt_tokens, cost.cached_tokens, cost.thinking_tokens, cost.answer_tokens)
    assert counts == tokens
    assert cost.counted_by == "server"


def test_a_server_without_usage_is_estimated(serve) -> None:
    served = serve(usage=None, thinking="I add the two. " * 20)
    (completion,) = ask(gpt(served.url, id="gpt-oss", provider="vllm", probe=False), 1)
    assert completion.bill.counted_by == "estimate"
    assert completion.bill.thinking_tokens > completion.bill.answer_tokens > 0


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
id = "{model}"
url = "{url}"
provider = "{provider}"
protocol = "responses"
key = "$KEY"
{more}
"""


def kinds(body: dict[str, Any]) -> list[str]:
    return [item.get("type", item.get("role")) for item in body["input"]]


@pytest.mark.parametrize("more", ["", "stream = true"])
@pytest.mark.parametrize(
    ("provider", "model", "asks"),
    [("openai", "gpt-5", False), ("xai", "grok", True), ("vllm", "gpt-oss", False)],
)
def test_reasoning_goes_back_unchanged(serve, write, ponder, more, provider, model, asks) -> None:
    served = serve()
    study = STUDY.format(
        task='remember = "all"', url=served.url, provider=provider, model=model, more=more
    )
    write("s.toml", study)
    result = ponder("run", "s.toml")
    assert result.exit_code == 0, result.output
    bodies = [body for body in served.state()["bodies"] if len(body["input"]) > 4]
    assert len(bodies) == 4  # two problems, and their second and third turns
    for body in bodies:
        turn = ["reasoning", "message", "user"]
        assert kinds(body)[:2] == ["system", "user"]
        assert kinds(body)[2:] in (turn, turn * 2)
        for item in body["input"]:
            if item.get("type") == "reasoning":
                assert item["id"].startswith("rs_")
                assert item.get("encrypted_content") or item["content"][0]["text"] == "adding up"
        assert (body.get("include") == ["reasoning.encrypted_content"]) == asks


@pytest.mark.parametrize("remember", ["answers", "visible"])
def test_without_memory_of_thinking_only_texts_go_back(serve, write, ponder, remember) -> None:
    served = serve()
    task = f'remember = "{remember}"'
    write(
        "s.toml", STUDY.format(task=task, url=served.url, provider="openai", model="gpt-5", more="")
    )
    assert ponder("run", "s.toml").exit_code == 0
    for body in served.state()["bodies"]:
        assert set(kinds(body)) <= {"system", "user", "assistant"}


def conversation(turn: int = 0, *messages: Message) -> Request:
    first = request()
    problem = Problem("p", 1, (first.messages[0].content, "What is 1 + 1?"))
    return replace(first, problem=problem, turn=turn, messages=messages or first.messages)


def completed(model: Endpoint, asked: Request) -> Any:
    async def once() -> Any:
        async with model:
            return await model.complete(asked)

    return asyncio.run(once())


def test_what_is_kept_of_a_turn(serve) -> None:
    model = gpt(serve().url)
    first = completed(model, conversation())
    reasoning, message = json.loads(first.blocks)
    assert reasoning["encrypted_content"].startswith("gAAAA")
    assert message["content"][0]["text"] == first.answer
    # nothing where it can't be used: in the last turn, without encrypted content, without an answer
    assert completed(model, conversation(turn=1)).blocks == ""
    assert completed(gpt(model.urls[0], id="grok"), conversation()).blocks == ""
    cut = serve(lengths={"median": 4000, "sigma": 0.0})
    assert completed(gpt(cut.url, budget=50), conversation()).blocks == ""


def test_changed_reasoning_is_refused(serve) -> None:
    model = gpt(serve().url)
    question = request().messages[0]
    first = completed(model, conversation())
    again = Message("user", "What is 1 + 1?")
    reply = SignedMessage("assistant", first.answer, first.blocks)
    assert completed(model, conversation(1, question, reply, again)).answer
    changed = SignedMessage("assistant", first.answer, first.blocks.replace("gAAAAAB", "gAAAAAC"))
    with pytest.raises(ModelFailure, match="could not be verified"):
        completed(model, conversation(1, question, changed, again))


# Faults


@pytest.mark.parametrize("stream", [False, True])
def test_a_rate_limit_waits_as_long_as_it_says(serve, slept, stream) -> None:
    served = serve(busy_first=2, retry_after="7")
    with pytest.raises(openai.RateLimitError, match="slow down"):
        package(served.url).responses.create(model="gpt-5", input="hi")
    seen, completion = retries(gpt(served.url, stream=stream))
    assert [(retry.kind, retry.billed) for retry in seen] == [("rate limit", False)]
    assert slept == [7.0]
    assert completion.answer.startswith("<answer>")


@pytest.mark.parametrize("status", [500, 503])
def test_overload_is_repeated_and_not_billed(serve, slept, status) -> None:
    served = serve(always=status, text="The server had an error")
    seen, failure = retries(gpt(served.url, retries=2))
    assert [(retry.kind, retry.billed) for retry in seen] == [("error", False)] * 3
    assert f"HTTP {status}: The server had an error" in failure


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["cut", "malformed", "drop"])
def test_half_a_reply_is_repeated_and_counted_as_billed(serve, slept, fault, stream) -> None:
    served = serve(**{fault: 1.0})
    seen, failure = retries(gpt(served.url, stream=stream, retries=1))
    assert isinstance(failure, str)
    assert [retry.billed for retry in seen] == [True, True]


FAILED = {"status": "failed", "output": [], "usage": None}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "kind", "tries"),
    [
        ("rate_limit_exceeded", "rate limit", 3),
        ("server_error", "error", 3),
        ("vector_store_timeout", "error", 3),
    ],
)
def test_a_failed_response(serve, slept, stream, code, kind, tries) -> None:
    fields = {**FAILED, "error": {"code": code, "message": "try again"}}
    served = serve(fields=fields)
    assert said_to_package(served.url, stream=stream).error.code == code
    seen, failure = retries(gpt(served.url, stream=stream, retries=2))
    assert isinstance(failure, str)
    assert [(retry.kind, retry.billed) for retry in seen] == [(kind, False)] * tries


def test_a_failed_response_that_waiting_does_not_cure(serve, slept) -> None:
    error = {"code": "invalid_prompt", "message": "the prompt has no text"}
    seen, failure = retries(gpt(serve(fields={**FAILED, "error": error}).url))
    assert len(seen) == 1
    assert "the prompt has no text" in failure


@pytest.mark.parametrize(
    ("fault", "kind", "billed"),
    [("early_error", "rate limit", False), ("stream_error", "error", True)],
)
def test_an_error_event(serve, slept, fault, kind, billed) -> None:
    error = {"code": "rate_limit_exceeded", "message": "slow down", "param": None}
    served = serve(fields={fault: error})
    seen, failure = retries(gpt(served.url, stream=True, retries=1, body=SUMMARY))
    assert [(retry.kind, retry.billed) for retry in seen] == [(kind, billed)] * 2
    assert "stream reports an error" in failure


@pytest.mark.parametrize(
    ("faults", "what", "hint"),
    [
        ({"always": 401, "text": "Incorrect API key provided"}, "refuses the key", "key = "),
        ({"always": 429, "text": "You exceeded your current quota"}, "no credit left", "add credit"),
        ({"always": 404, "text": "Not Found", "models": 404}, "no such page", 'protocol = "chat"'),
        ({"always": 200, "text": "<html><title>Welcome</title>", "content_type": "text/html"}, 'titled "Welcome"', "protocol"),
        ({"fields": {"object": "x", "output": None, "error": None}}, "not with a response", "protocol"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_refuses_all(serve, faults, what, hint, stream) -> None:
    if stream and "fields" in faults:
        faults = {**faults, "no_stream": True}
    with pytest.raises(UserError, match=what) as error:
        ask(gpt(serve(**faults).url, stream=stream), 1)
    assert hint in error.value.hint


def test_an_unknown_model(serve) -> None:
    served = serve(lists=["gpt-5"])
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        package(served.url).responses.create(model="no-such-model", input="hi")
    with pytest.raises(UserError, match="does not know the model `no-such-model`") as error:
        ask(gpt(served.url, id="no-such-model"), 1)
    assert 'id = "gpt-5"' in error.value.hint


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("settings", "field", "hint"),
    [
        ({"id": "gpt-4o", "effort": "low"}, "reasoning.effort", "leave out `effort`"),
        ({"provider": "vllm", "effort": "silly"}, "reasoning.effort", "set one that the model accepts"),
        ({"id": "o3", "thinking": False}, "reasoning.effort", "`thinking`"),
        ({"id": "o3", "temperature": 0.5}, "temperature", "leave out `temperature`"),
        ({"id": "gpt-4o", "body": SUMMARY}, "reasoning.summary", "leave `summary` out"),
        ({"id": "gpt-5-unverified", "body": SUMMARY}, "reasoning.summary", "leave `summary` out"),
        ({"id": "gpt-4o", "body": {"include": ["reasoning.encrypted_content"]}}, "include", "include = []"),
        ({"provider": "vllm", "budget": 8}, "budget of 8", "budget = 16"),
        ({"budget": 200_000}, "budget of 200,000", "budget = 128000"),
    ],
)  # fmt: skip
def test_a_setting_that_the_model_does_not_take(serve, stream, settings, field, hint) -> None:
    with pytest.raises(UserError, match=f"refuses .*{field}") as error:
        ask(gpt(serve().url, stream=stream, **settings), 1)
    assert hint in error.value.hint


def test_another_bad_request_fails_alone(serve, slept) -> None:
    served = serve(always=400, text="Something about this prompt")
    seen, failure = retries(gpt(served.url))
    assert len(seen) == 1
    assert "Something about this prompt" in failure


def test_a_prompt_that_a_filter_stops(serve) -> None:
    error = {"code": "invalid_prompt", "message": "Invalid prompt: flagged", "param": None}
    served = serve(always=400, text=json.dumps({"error": error}), content_type="application/json")
    (completion,) = ask(gpt(served.url), 1)
    assert (completion.note, completion.answer) == ("content filter", "")


# Wrong input


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"budget": 8}, "below OpenAI's minimum of 16", "budget = 16"),
        ({"think": 2000}, "OpenAI has no dial `think`", 'effort = "low"'),
        ({"provider": "vllm", "think": 2000}, "vllm in the protocol `responses` has no dial `think`", 'protocol = "chat"'),
        ({"provider": "vllm", "thinking": False}, "has no dial `thinking`", 'protocol = "chat"'),
        ({"provider": None, "thinking": True}, "this server in the protocol", 'protocol = "chat"'),
        ({"thinking": False, "effort": "low"}, "contradict", "leave out one"),
        ({"provider": "openrouter", "think": 9, "effort": "low"}, "not both", "leave out"),
        ({"body": {"max_output_tokens": 9}}, "`max_output_tokens` can't be", "budget"),
        ({"body": {"input": "hi"}}, "`input` can't be", "the task"),
        ({"body": {"background": True}}, "`background` can't be", "waits"),
        ({"body": {"previous_response_id": "x"}}, "can't be", "whole conversation"),
        ({"provider": "deepseek"}, "deepseek has no protocol `responses`", 'protocol = "chat"'),
    ],
)  # fmt: skip
def test_wrong_settings_are_errors_before_anything_is_asked(settings, message, hint) -> None:
    with pytest.raises(UserError, match=message) as error:
        gpt("http://127.0.0.1:1/v1", **settings)
    assert hint in error.value.hint


# Streams


async def chunks(*events: dict[str, Any]) -> AsyncIterator[bytes]:
    for event in events:
        yield b"data: " + json.dumps(event).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


DONE = {"type": "response.completed", "response": {"status": "completed", "output": []}}


def test_when_text_comes() -> None:
    seen = list[None]()
    deltas = [
        "response.reasoning_summary_text.delta",
        "response.reasoning_text.delta",
        "response.output_text.delta",
        "response.refusal.delta",
    ]
    events = [{"type": name, "delta": "x"} for name in deltas]
    events += [{"type": "response.output_text.delta", "delta": ""}, {"type": "response.queued"}]
    asyncio.run(assemble(chunks(*events, DONE), lambda: seen.append(None)))
    assert len(seen) == 4


@pytest.mark.parametrize(
    "error",
    [
        {"type": "error", "code": "server_error", "message": "sk-secret", "param": None},
        {"type": "error", "error": {"code": "server_error", "message": "sk-secret"}},
        {"error": {"code": 503, "message": "sk-secret"}},
    ],
)
def test_an_early_error_is_not_billed_and_quotes_nothing(error) -> None:
    with pytest.raises(NoAnswer) as failure:
        asyncio.run(assemble(chunks({"type": "response.created"}, error), lambda: None))
    assert not failure.value.billed
    assert "secret" not in str(failure.value)  # the client redacts only what is `Malformed`


@pytest.mark.parametrize("events", [[], [{"type": "response.created"}]])
def test_a_stream_that_ends_early(events) -> None:
    with pytest.raises(Malformed, match="ended before the reply did"):
        asyncio.run(assemble(chunks(*events), lambda: None))
