"""The protocol `gemini`: Google's own SDK and Ponder ask the same server and agree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from endpoint_calls import ask, request, retries
from fake_gemini import RETRY, SPEED_LIMIT, camel, error_body, signature_of
from google import genai
from google.genai import errors, types

from ponder.core import Completion, Message, Request, SignedMessage, UserError
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.gemini import Gemini, read_usage
from ponder.models.endpoint.reply import Malformed, Reply, bill

PROMPT = "What is 3 + 4?"
FLASH = "gemini-2.5-flash"
CLIENTS = list[genai.Client]()  # a client that nobody holds closes its connections


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE", "AIzaSyA-not-a-real-key-000000000000000")
    monkeypatch.setenv("BAD", "bad-key-of-nobody")


def address(server: Any) -> str:
    return str(server.url).replace("/v1", "/v1beta")


def endpoint(server: Any, model: str = FLASH, **settings: Any) -> Endpoint:
    settings = {"key": "$GOOGLE", "retries": 0, **settings}
    return Endpoint(id=model, url=address(server), protocol="gemini", **settings)


def sdk(server: Any, key: str = "AIzaSyA-not-a-real-key") -> genai.Client:
    options = types.HttpOptions(
        base_url=server.url.removesuffix("/v1"),
        api_version="v1beta",
        retry_options=types.HttpRetryOptions(attempts=1),
    )
    client = genai.Client(api_key=key, http_options=options)
    CLIENTS.append(client)
    return client


def sdk_reply(server: Any, model: str = FLASH, **config: Any) -> types.GenerateContentResponse:
    return sdk(server).models.generate_content(
        model=model, contents=PROMPT, config=types.GenerateContentConfig(**config)
    )


def sdk_stream(
    server: Any, model: str = FLASH, **config: Any
) -> list[types.GenerateContentResponse]:
    chunks = sdk(server).models.generate_content_stream(
        model=model, contents=PROMPT, config=types.GenerateContentConfig(**config)
    )
    return list(chunks)


def sdk_texts(replies: list[types.GenerateContentResponse]) -> tuple[str, str]:
    """Thinking and answer, as the SDK reads them."""
    texts = {True: "", False: ""}
    for reply in replies:
        for candidate in reply.candidates or []:
            for part in (candidate.content and candidate.content.parts) or []:
                texts[bool(part.thought)] += part.text or ""
    return texts[True], texts[False]


def turn(*messages: Message, seed: int = 1) -> Request:
    asked = request(seed)
    return Request(asked.task, asked.problem, messages, seed)


def complete(model: Endpoint, *messages: Message) -> Completion:
    async def once() -> Completion:
        async with model:
            return await model.complete(turn(*messages))

    return asyncio.run(once())


def tokens(done: Completion) -> tuple[int, int, int, str]:
    cost = done.bill
    return cost.prompt_tokens, cost.thinking_tokens, cost.answer_tokens, cost.counted_by


# The SDK and Ponder agree


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", [FLASH, "gemini-3-pro-preview", "models/gemini-2.5-pro"])
def test_the_sdk_and_ponder_read_the_same(serve: Any, model: str, *, stream: bool) -> None:
    server = serve(thinking="adding up, naïvely")
    thinking_config = types.ThinkingConfig(include_thoughts=True, thinking_budget=-1)
    settings: dict[str, Any] = {"thinking_config": thinking_config, "max_output_tokens": 500}
    settings |= {"temperature": 0.5, "top_p": 0.9, "seed": 1, "system_instruction": "Be brief."}
    if stream:
        replies = sdk_stream(server, model, **settings)
    else:
        replies = [sdk_reply(server, model, **settings)]
    wanted = camel(server.state()["bodies"][-1])
    assert sdk_texts(replies) == ("adding up, naïvely", "<answer>7</answer>")
    last = replies[-1]
    assert last.candidates is not None
    assert last.candidates[0].finish_reason == types.FinishReason.STOP
    usage = last.usage_metadata
    assert usage is not None
    assert usage.total_token_count == 160

    asked = endpoint(
        server, model, thinking=True, budget=500, temperature=0.5, top_p=0.9, stream=stream
    )
    done = complete(asked, Message("system", "Be brief."), Message("user", PROMPT))
    sent = server.state()["bodies"][-1]
    # The SDK calls the system's role "user", which the API ignores.
    wanted["systemInstruction"].pop("role")
    assert sent == wanted
    assert (done.thinking, done.answer) == sdk_texts(replies)
    assert (done.stop, done.note) == ("end", "")
    assert tokens(done) == (
        usage.prompt_token_count,
        usage.thoughts_token_count,
        usage.candidates_token_count,
        "server",
    )
    assert ("first_token_seconds" in done.measures) == stream
    assert server.state()["query"] == ({"alt": "sse"} if stream else {})
    assert server.state()["headers"]["x-goog-api-key"].startswith("AIza")
    assert "Authorization" not in server.state()["headers"]


def test_a_tuned_model_has_its_own_folder(serve: Any) -> None:
    (done,) = ask(endpoint(serve(), "tunedModels/sums-x1"), 1)
    assert done.answer.startswith("<answer>")


def test_the_sdk_reads_the_model_list(serve: Any) -> None:
    server = serve(lists=[FLASH, "gemini-2.5-pro"])
    names = [model.name for model in sdk(server).models.list()]
    assert names == [f"models/{FLASH}", "models/gemini-2.5-pro"]


# Conversations


@pytest.mark.parametrize("stream", [False, True])
def test_signatures_go_back_unchanged(serve: Any, *, stream: bool) -> None:
    server = serve()
    model = endpoint(server, "gemini-3-pro-preview", effort="low", stream=stream)
    first = complete(model, Message("user", PROMPT))
    reply = SignedMessage("assistant", first.answer, first.blocks)
    second = complete(model, Message("user", PROMPT), reply, Message("user", "What is 2 + 2?"))
    assert second.answer == "<answer>4</answer>"
    returned = server.state()["bodies"][-1]["contents"][1]
    assert returned["role"] == "model"
    assert returned["parts"][-1]["thoughtSignature"] == signature_of(first.answer)
    assert returned["parts"][0]["thought"] is True
    # The server would know a signature that belongs to other text.
    changed = SignedMessage("assistant", "8", first.blocks.replace("7", "8"))
    with pytest.raises(Exception, match="Corrupted thought signature"):
        complete(model, Message("user", PROMPT), changed, Message("user", "And now?"))

    chat = sdk(server).chats.create(model="gemini-3-pro-preview")
    assert chat.send_message(PROMPT).text == "<answer>7</answer>"
    assert chat.send_message("What is 2 + 2?").text == "<answer>4</answer>"
    assert "thoughtSignature" in server.state()["bodies"][-1]["contents"][1]["parts"][0]


def test_without_thoughts_the_text_is_enough(serve: Any) -> None:
    server = serve()
    model = endpoint(server)
    first = complete(model, Message("user", PROMPT))
    assert first.blocks == ""
    complete(model, Message("user", PROMPT), Message("assistant", "7"), Message("user", PROMPT))
    assert server.state()["bodies"][-1]["contents"][1] == {
        "role": "model",
        "parts": [{"text": "7"}],
    }


# Finish reasons

FILTERED = [
    "SAFETY",
    "RECITATION",
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "IMAGE_SAFETY",
    "IMAGE_PROHIBITED_CONTENT",
    "IMAGE_RECITATION",
    "ESCALATION",
    "MODEL_ARMOR",
]
OWN_DOING = ["STOP", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"]
CUT = ["MAX_TOKENS", "CONTINUATION"]
FAILED = [
    "FINISH_REASON_UNSPECIFIED",
    "OTHER",
    "IMAGE_OTHER",
    "NO_IMAGE",
    "MISSING_THOUGHT_SIGNATURE",
    "MALFORMED_RESPONSE",
    "PUP_LIMITED_DISABLED",
]


def read(*bodies: dict[str, Any], stream: bool = False) -> Reply:
    """What Ponder reads in a response, or in the events of a stream."""
    protocol = Gemini(Endpoint(id=FLASH, protocol="gemini"))

    async def chunks() -> AsyncIterator[bytes]:
        for body in bodies:
            yield b"data: " + json.dumps(body).encode() + b"\r\n\r\n"

    if stream:
        return asyncio.run(protocol.read_stream(request(), chunks(), lambda: None))
    return protocol.read_body(request(), json.dumps(bodies[0]).encode())


def ended(reason: str, *parts: dict[str, Any]) -> dict[str, Any]:
    content = {"role": "model", "parts": list(parts)}
    return {"candidates": [{"content": content, "finishReason": reason, "index": 0}]}


def test_every_finish_reason_of_the_sdk_is_known() -> None:
    known = {*FILTERED, *OWN_DOING, *CUT, *FAILED}
    assert known == {reason.value for reason in types.FinishReason}


@pytest.mark.parametrize("stream", [False, True])
def test_every_finish_reason(*, stream: bool) -> None:
    for reason in FILTERED:
        reply = read(ended(reason), stream=stream)
        assert (reply.stop, reply.note) == ("end", "content filter")
    for reason in OWN_DOING:
        reply = read(ended(reason), stream=stream)
        assert (reply.stop, reply.note) == ("end", "empty reply")
    for reason in CUT:
        reply = read(ended(reason, {"text": "so"}), stream=stream)
        assert (reply.stop, reply.note, reply.answer) == ("length", "", "so")
    for reason in [*FAILED, "OF_NEXT_YEAR"]:
        with pytest.raises(Malformed, match=reason):
            read(ended(reason), stream=stream)
        reply = read(ended(reason, {"text": "7"}), stream=stream)
        assert (reply.stop, reply.note, reply.answer) == ("end", "", "7")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["MAX_TOKENS", "SAFETY", "TOO_MANY_TOOL_CALLS", "OTHER"])
def test_the_sdk_reads_the_same_finish_reason(serve: Any, reason: str, *, stream: bool) -> None:
    content = {"role": "model", "parts": [{"text": "so"}]}
    server = serve(
        fields={"candidates": [{"content": content, "finishReason": reason, "index": 0}]}
    )
    reply = sdk_stream(server)[-1] if stream else sdk_reply(server)
    assert reply.candidates is not None
    assert reply.candidates[0].finish_reason == types.FinishReason(reason)
    (done,) = ask(endpoint(server, stream=stream), 1)
    assert done.stop == ("length" if reason in CUT else "end")
    assert done.note == ("content filter" if reason in FILTERED else "")


@pytest.mark.parametrize("stream", [False, True])
def test_a_blocked_prompt(serve: Any, *, stream: bool) -> None:
    blocked = {"blockReason": "PROHIBITED_CONTENT"}
    counts = {"promptTokenCount": 40, "totalTokenCount": 40}
    fields = {"candidates": [], "promptFeedback": blocked, "usageMetadata": counts}
    server = serve(fields=fields)
    reply = sdk_stream(server)[-1] if stream else sdk_reply(server)
    assert reply.prompt_feedback is not None
    assert reply.prompt_feedback.block_reason == types.BlockedReason.PROHIBITED_CONTENT
    (done,) = ask(endpoint(server, stream=stream), 1)
    assert (done.answer, done.note, done.stop) == ("", "content filter", "end")
    assert done.bill.prompt_tokens == 40


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_cut_while_thinking(serve: Any, *, stream: bool) -> None:
    server = serve(lengths={"median": 4000, "sigma": 0.01})
    reply = (
        sdk_stream(server, max_output_tokens=300)[-1]
        if stream
        else sdk_reply(server, max_output_tokens=300)
    )
    assert reply.usage_metadata is not None
    assert reply.usage_metadata.candidates_token_count is None
    assert reply.usage_metadata.thoughts_token_count == 300
    done = complete(endpoint(server, budget=300, stream=stream), Message("user", PROMPT))
    assert (done.stop, done.answer, done.note) == ("length", "", "")
    assert tokens(done)[1:] == (300, 0, "server")


# Bills


@pytest.mark.parametrize(
    ("counts", "prompt", "thinking", "answer"),
    [
        # prompt, candidates, thoughts, total, tools
        # https://github.com/mozilla-ai/any-llm/issues/1290
        ((20, 198, 405, 623, None), 20, 405, 198),
        # https://github.com/Helicone/helicone/pull/5604
        ((15, 359, 661, 1035, None), 15, 661, 359),
        # https://github.com/agentscope-ai/agentscope-java/issues/3033: tools' results are input
        ((500, 120, 10, 930, 300), 800, 10, 120),
        # https://github.com/adcontextprotocol/adcp/pull/7359: cut while thinking
        ((8, None, 99, 107, None), 8, 99, 0),
        # https://github.com/simonw/llm-gemini/issues/75: candidates that include the thoughts
        ((264, 1093, 989, 1357, None), 264, 989, 104),
        # the thoughts only in the total, as behind Google's OpenAI layer
        ((100, 20, None, 1520, None), 100, 1400, 20),
        # a total without the thoughts, which can't be inside the candidates
        ((264, 104, 989, 368, None), 264, 989, 104),
        # no total
        ((6, 104, 989, None, None), 6, 989, 104),
    ],
)
def test_bills(counts: tuple[int | None, ...], prompt: int, thinking: int, answer: int) -> None:
    names = (
        "promptTokenCount",
        "candidatesTokenCount",
        "thoughtsTokenCount",
        "totalTokenCount",
        "toolUsePromptTokenCount",
    )
    usage = {name: n for name, n in zip(names, counts, strict=True) if n is not None}
    said = "7" if answer else ""
    reply = Reply("", said, "end", "", usage=read_usage(usage))
    cost = bill(reply, 1.0)
    assert (cost.prompt_tokens, cost.thinking_tokens, cost.answer_tokens) == (
        prompt,
        thinking,
        answer,
    )
    assert cost.counted_by == "server"


def test_cached_tokens_are_inside_the_prompt() -> None:
    usage = read_usage({"promptTokenCount": 2000, "cachedContentTokenCount": 1024})
    assert (usage.prompt, usage.cached) == (2000, 1024)


@pytest.mark.parametrize("usage", [None, {}, {"trafficType": "ON_DEMAND"}])
def test_a_reply_without_counts_is_estimated(serve: Any, usage: Any) -> None:
    """https://github.com/neuron-core/neuron-ai/pull/443"""
    server = serve(fields={"usageMetadata": usage})
    (done,) = ask(endpoint(server), 1)
    assert done.answer.startswith("<answer>")
    assert done.bill.counted_by == "estimate"
    assert done.bill.answer_tokens > 0


def test_a_stream_counts_up() -> None:
    """https://github.com/diegosouzapw/OmniRoute/issues/4177: every event has the tokens so far."""
    thought = {"content": {"parts": [{"text": "Hm", "thought": True}], "role": "model"}}
    end = {"content": {"parts": [{"text": "7"}], "role": "model"}, "finishReason": "STOP"}
    counts = {"promptTokenCount": 22786, "totalTokenCount": 22800, "thoughtsTokenCount": 14}
    # the last event repeats no thoughts
    last = {"promptTokenCount": 22786, "candidatesTokenCount": 2, "totalTokenCount": 22826}
    reply = read(
        {"candidates": [thought], "usageMetadata": counts},
        {"candidates": [thought], "usageMetadata": counts | {"thoughtsTokenCount": 38}},
        {"candidates": [end], "usageMetadata": last},
        stream=True,
    )
    assert (reply.thinking, reply.answer, reply.summarized) == ("HmHm", "7", True)
    usage = reply.usage
    assert (usage.prompt, usage.completion, usage.reasoning, usage.output) == (22786, 2, 38, 40)


# Dials


@pytest.mark.parametrize(
    ("dials", "config"),
    [
        ({}, None),
        ({"think": 1024}, {"thinkingBudget": 1024, "includeThoughts": True}),
        ({"think": 1024, "thinking": True}, {"thinkingBudget": 1024, "includeThoughts": True}),
        ({"thinking": True}, {"thinkingBudget": -1, "includeThoughts": True}),
        ({"thinking": False}, {"thinkingBudget": 0}),
    ],
)
def test_dials(serve: Any, dials: dict[str, Any], config: dict[str, Any] | None) -> None:
    server = serve()
    (done,) = ask(endpoint(server, **dials), 1)
    assert server.state()["bodies"][-1]["generationConfig"].get("thinkingConfig") == config
    # The tokens of thinking are counted, whether or not the thoughts are shown.
    assert done.bill.thinking_tokens == (0 if dials.get("thinking") is False else 100)
    assert bool(done.thinking) == (config is not None and "includeThoughts" in config)


@pytest.mark.parametrize("effort", ["low", "HIGH", "minimal"])
def test_efforts_are_levels(serve: Any, effort: str) -> None:
    server = serve()
    ask(endpoint(server, "gemini-3-flash-preview", effort=effort), 1)
    sent = server.state()["bodies"][-1]["generationConfig"]["thinkingConfig"]
    assert sent == {"thinkingLevel": effort.upper(), "includeThoughts": True}
    assert types.ThinkingConfig.model_validate(sent).thinking_level == types.ThinkingLevel(
        effort.upper()
    )


def test_thoughts_can_be_asked_for_in_the_body(serve: Any) -> None:
    server = serve()
    body = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}, "topK": 5}}
    (done,) = ask(endpoint(server, body=body, budget=500), 1)
    sent = server.state()["bodies"][-1]["generationConfig"]
    assert done.thinking == "adding up"
    assert (sent["topK"], sent["maxOutputTokens"]) == (5, 500)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"think": 1024, "effort": "low"}, "an effort or a number of thinking tokens, not both"),
        ({"think": 2000, "budget": 1000}, "leaves no room for an answer"),
        ({"thinking": False, "effort": "low"}, "contradict"),
        ({"thinking": False, "think": 100}, "contradict"),
        ({"effort": "hard"}, "Google has no effort 'hard'"),
        ({"effort": "none"}, "Google has no effort 'none'"),
        ({"body": {"contents": []}}, "`contents` can't be a field of the body"),
        (
            {"body": {"generationConfig": {"maxOutputTokens": 9}}},
            "`generationConfig.maxOutputTokens` can't be a field of the body",
        ),
        ({"body": {"generation_config": {"topK": 9}}}, "`generation_config` can't be a field"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Endpoint(id=FLASH, provider="google", **settings)


def test_a_key_of_another_provider_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER", "sk-ant-api03-000000000000")
    model = Endpoint(id=FLASH, provider="google", key="$OTHER")
    assert model.urls == ("https://generativelanguage.googleapis.com/v1beta",)
    with pytest.raises(UserError, match="a key of anthropic"):
        model.ready()


def test_only_google_s_own_host_decides_the_protocol() -> None:
    """Vertex AI serves Anthropic's and OpenAI's protocols from the same host."""
    google = "https://generativelanguage.googleapis.com/v1beta"
    assert Endpoint(id=FLASH, url=google).protocol_name == "gemini"
    assert Endpoint(id=FLASH, url=f"{google}/openai").protocol_name == "chat"
    vertex = "https://us-central1-aiplatform.googleapis.com/v1/publishers/google"
    assert Endpoint(id=FLASH, url=vertex).protocol_name == "chat"
    assert Endpoint(id=FLASH, url=vertex, protocol="gemini").protocol_name == "gemini"


@pytest.mark.parametrize(
    ("model", "settings", "message", "hint"),
    [
        ("gemini-2.0-flash", {"think": 512}, "thinking_config is not supported", "doesn't think"),
        ("gemini-2.0-flash", {"thinking": False}, "is not supported", "doesn't think"),
        (FLASH, {"effort": "low"}, "Thinking level is not supported", "leave out `effort`"),
        ("gemini-2.5-pro", {"thinking": False}, "only works in thinking mode", "a `think`"),
        ("gemini-2.5-pro", {"think": 100}, "between 128 and 32768", "a `think`"),
        (FLASH, {"budget": 100_000}, "maxOutputTokens value of 100000", "another `budget`"),
        (FLASH, {"temperature": 3.0}, "temperature: must be in", "leave out `temperature`"),
    ],
)
def test_a_setting_that_the_model_refuses(
    serve: Any, model: str, settings: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UserError, match=message) as refused:
        ask(endpoint(serve(), model, **settings), 1)
    assert hint in refused.value.hint


def test_a_model_without_thinking_answers_without_dials(serve: Any) -> None:
    (done,) = ask(endpoint(serve(), "gemini-2.0-flash"), 1)
    assert tokens(done) == (40, 0, 20, "server")


# Faults


def daily() -> dict[str, Any]:
    quota = json.loads(json.dumps(SPEED_LIMIT))
    quota["violations"][0]["quotaId"] = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
    return error_body(429, "You exceeded your current quota.", quota, RETRY)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, errors.ClientError), (500, errors.ServerError), (503, errors.ServerError)],
)
def test_the_sdk_reads_errors(serve: Any, status: int, kind: type[errors.APIError]) -> None:
    server = serve(always=status, text="The model is overloaded.")
    for call in (sdk_reply, sdk_stream):
        with pytest.raises(kind) as failed:
            call(server)
        assert failed.value.code == status
        assert failed.value.message == "The model is overloaded."
        assert failed.value.status in ("RESOURCE_EXHAUSTED", "INTERNAL", "UNAVAILABLE")


@pytest.mark.parametrize("stream", [False, True])
def test_a_rate_limit_says_how_long_to_wait(serve: Any, *, stream: bool) -> None:
    server = serve(busy_first=2)
    seen, done = retries(endpoint(server, retries=5, stream=stream))
    assert isinstance(done, Completion)
    assert [(retry.kind, retry.wait, retry.billed) for retry in seen] == [
        ("rate limit", 0.05, False)
    ] * 2


def test_a_wait_beyond_max_wait_fails(serve: Any) -> None:
    body = error_body(429, "Quota exceeded.", SPEED_LIMIT, RETRY | {"retryDelay": "34.07s"})
    server = serve(always=429, text=json.dumps(body))
    (_,), end = retries(endpoint(server, retries=5, max_wait=10))
    assert "asks to wait 34 seconds, more than max_wait = 10" in str(end)
    assert server.state()["requests"] == 1


def test_a_daily_quota_ends_the_run(serve: Any) -> None:
    server = serve(always=429, text=json.dumps(daily()))
    with pytest.raises(errors.ClientError):
        sdk_reply(server)
    with pytest.raises(UserError, match="has no requests left today: HTTP 429") as refused:
        ask(endpoint(server, retries=5), 1)
    assert "resume" in refused.value.hint
    assert server.state()["requests"] == 2


@pytest.mark.parametrize(("status", "billed"), [(500, False), (503, False), (504, True)])
def test_an_overload_is_retried(serve: Any, status: int, *, billed: bool) -> None:
    server = serve(always=status, text="The model is overloaded. Please try again later.")
    seen, end = retries(endpoint(server, retries=1))
    assert [retry.billed for retry in seen] == [billed] * 2
    assert f"HTTP {status}: The model is overloaded" in str(end)


def test_an_error_in_a_list(serve: Any) -> None:
    """https://github.com/google-gemini/gemini-cli/issues/14831"""
    protocol = Gemini(Endpoint(id=FLASH, protocol="gemini"))
    refusal = protocol.read_error(429, json.dumps([daily()]).encode())
    assert refusal.message == "You exceeded your current quota."
    assert refusal.wait == 0.05
    assert "daily_quota" in refusal.codes


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["cut", "malformed", "drop"])
def test_half_a_reply_is_none(serve: Any, fault: str, *, stream: bool) -> None:
    server = serve(**{fault: 1.0})
    seen, end = retries(endpoint(server, retries=1, stream=stream))
    assert isinstance(end, str)
    assert [retry.billed for retry in seen] == [True] * 2


OVERLOADED = {
    "code": 503,
    "message": "The model is overloaded. Please try again later.",
    "status": "UNAVAILABLE",
}


def test_an_error_in_the_stream(serve: Any) -> None:
    """https://github.com/diegosouzapw/OmniRoute/issues/4177"""
    server = serve(fields={"error": OVERLOADED})
    with pytest.raises(errors.APIError, match="overloaded"):
        sdk_stream(server)
    seen, end = retries(endpoint(server, retries=1, stream=True))
    assert "stream reports an error" in str(end)
    assert "overloaded" in str(end)
    assert [retry.billed for retry in seen] == [True] * 2


def test_an_error_after_the_end_of_the_stream() -> None:
    """https://github.com/vercel/ai/issues/5217: STOP after one word, and then the error."""
    protocol = Gemini(Endpoint(id=FLASH, protocol="gemini"))
    word = b'data: {"candidates": [{"content": {"parts": [{"text": "Okay"}],"role": "model"}}]}\n\n'
    stop = b'data: {"candidates": [{"content": {"parts": [{"text": ""}],"role": "model"},"finishReason": "STOP"}]}\n\n'
    error = json.dumps({"error": OVERLOADED}, indent=2).encode()

    async def chunks() -> AsyncIterator[bytes]:
        for piece in (word, stop, error[:20], error[20:]):
            yield piece

    with pytest.raises(Malformed, match="overloaded"):
        asyncio.run(protocol.read_stream(request(), chunks(), lambda: None))


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_that_google_refuses(serve: Any, *, stream: bool) -> None:
    server = serve()
    with pytest.raises(errors.ClientError, match="API key not valid"):
        sdk(server, "bad-key-of-nobody").models.generate_content(model=FLASH, contents=PROMPT)
    with pytest.raises(UserError, match="refuses the key: HTTP 400: API key not valid") as bad:
        ask(endpoint(server, key="$BAD", stream=stream), 1)
    assert "key = " in bad.value.hint
    with pytest.raises(UserError, match="wants a key: HTTP 403"):
        ask(endpoint(server, key=None, stream=stream), 1)


def test_a_model_that_does_not_exist(serve: Any) -> None:
    server = serve(lists=[FLASH, "gemini-2.5-pro"])
    with pytest.raises(errors.ClientError, match="is not found for API version"):
        sdk_reply(server, "gemni-2.5-flash")
    with pytest.raises(UserError, match="does not know the model `gemni") as refused:
        ask(endpoint(server, "gemni-2.5-flash"), 1)
    assert f'id = "{FLASH}"' in refused.value.hint
    with pytest.raises(UserError) as refused:
        ask(endpoint(server, "models/gemni-2.5-flash"), 1)
    assert f'id = "models/{FLASH}"' in refused.value.hint


def test_a_place_without_gemini(serve: Any) -> None:
    body = error_body(400, "User location is not supported for the API use.")
    body["error"]["status"] = "FAILED_PRECONDITION"
    with pytest.raises(UserError, match="User location is not supported"):
        ask(endpoint(serve(always=400, text=json.dumps(body))), 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_web_page(serve: Any, tmp_path: Path, *, stream: bool) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>Sign in</title>")
    server = serve(raw_file=str(page))
    with pytest.raises(UserError, match="not with a reply of generateContent"):
        ask(endpoint(server, stream=stream), 1)


def test_another_api_at_the_address(serve: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"choices": []}')
    with pytest.raises(UserError, match="not with a reply of generateContent"):
        ask(endpoint(serve(raw_file=str(other))), 1)


def test_a_reply_without_candidates_is_retried(serve: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"usageMetadata": {"promptTokenCount": 5}, "modelVersion": "gemini-2.5-pro"}')
    seen, end = retries(endpoint(serve(raw_file=str(empty)), retries=1))
    assert "has no candidates" in str(end)
    assert len(seen) == 2


# The fake refuses what Google refuses


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"contents": []},
        {"contents": [{"role": "assistant", "parts": [{"text": "hi"}]}]},
        {"contents": [{"role": "user", "parts": []}]},
        {"contents": [{"parts": [{"text": "hi"}]}], "temperature": 1},
        {"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {"max_tokens": 1}},
        {"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {"seed": 0.5}},
    ],
)
def test_the_fake_checks_requests(serve: Any, body: dict[str, Any]) -> None:
    async def post() -> tuple[int, dict[str, Any]]:
        page = f"{address(serve())}/models/{FLASH}:generateContent?key=AIza"
        async with aiohttp.ClientSession() as session, session.post(page, json=body) as response:
            return response.status, await response.json()

    status, answer = asyncio.run(post())
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
