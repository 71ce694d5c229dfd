"""OpenAI's chat completions, the protocol of most endpoints: requests, replies, streams and errors.

Servers differ. Thinking may be in `reasoning_content`, in `reasoning` or `reasoning_details`, in
content parts of their own, or between `<think>` tags. Token counts have several names, and thinking
may be counted inside the completion, separately, or only in the total.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar, Literal

import aiohttp
import msgspec

from ponder.core import Request
from ponder.core.text import encodable
from ponder.models.endpoint.dials import chat_fields
from ponder.models.endpoint.failures import (
    Refusal,
    budget_to_change,
    refuses_field,
    room_for_reply,
)
from ponder.models.endpoint.protocol import Protocol
from ponder.models.endpoint.reply import (
    Malformed,
    NoReply,
    Reply,
    Usage,
    as_count,
    decode_json,
    read_cost,
)
from ponder.models.endpoint.stream import events
from ponder.models.endpoint.timing import reported_measures
from ponder.tasks.reading import split_thinking

RESERVED_FIELDS = {
    "model": "id = …",
    "messages": "the task writes them: ponder list tasks",
    "max_tokens": "budget = …",
    "max_completion_tokens": "budget = …; budget_field = … names the field",
    "n": "samples = … in the study asks several times",
    "stream": "stream = true",
}
# Fields of a request that some models refuse, and what to change in the study.
OPTIONAL_FIELDS = {
    "temperature": "leave out `temperature`, or set one that the model accepts",
    "top_p": "leave out `top_p`, or set one that the model accepts",
    "reasoning_effort": "leave out `effort`, or set one that the model accepts",
    "seed": "send_seed = false",
    "stream_options": "stream = false",
}
# Finish reasons of a reply that reached its budget.
CUT = {"length", "max_tokens", "max_output_tokens", "max_completion_tokens", "model_length"}
# Error codes of content filters.
FILTERS = {"content_filter", "content_policy_violation", "responsibleaipolicyviolation"}
THINKING_PARTS = ("thinking", "reasoning", "reasoning_text", "reasoning.text")
TEXT_FIELDS = ("text", "thinking", "content", "reasoning", "summary")


class ChatMessage(msgspec.Struct):
    """Every field may be a text, an object, a list of parts, or missing."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None


class ChatChoice(msgspec.Struct):
    message: ChatMessage | None = None
    finish_reason: Any = None
    token_ids: Any = None  # of vLLM, if requested
    prompt_token_ids: Any = None  # of a text completion; in a chat the response has them


class ChatResponse(msgspec.Struct):
    choices: list[ChatChoice] | None = None
    usage: Any = None
    error: Any = None
    model: Any = None
    prompt_token_ids: Any = None
    timings: Any = None  # llama.cpp's
    metrics: Any = None  # vLLM's

    def choice(self) -> ChatChoice:
        """Return the first choice: Ponder never requests more."""
        if self.choices:
            return self.choices[0]
        return ChatChoice()


class ChatPiece(msgspec.Struct):
    delta: ChatMessage | None = None
    finish_reason: Any = None


class ChatEvent(msgspec.Struct):
    """One event of a streamed reply."""

    choices: list[ChatPiece] | None = None
    usage: Any = None
    error: Any = None
    model: Any = None
    timings: Any = None
    metrics: Any = None


_response_decoder = msgspec.json.Decoder(ChatResponse)
_event_decoder = msgspec.json.Decoder(ChatEvent)
MESSAGE_FIELDS = ChatMessage.__struct_fields__


class Chat(Protocol):
    """Builds chat requests for one endpoint and reads what it sends back."""

    reply_name = "a chat completion"
    reserved_fields: ClassVar[Mapping[str, str]] = RESERVED_FIELDS

    @property
    def page(self) -> str:
        return "chat/completions"

    @property
    def _budget_field(self) -> str:
        if self._endpoint.budget_field:
            return self._endpoint.budget_field
        if self._endpoint.provider_name == "openai":  # its models that think refuse the older name
            return "max_completion_tokens"
        return "max_tokens"

    def dials(self) -> dict[str, Any]:
        return chat_fields(self._endpoint.provider_name, self._endpoint.dial)

    def payload(self, request: Request, budget: int | None) -> dict[str, Any]:
        endpoint = self._endpoint
        payload: dict[str, Any] = {"model": endpoint.id, "messages": request.messages}
        if budget is not None:
            payload[self._budget_field] = budget
        payload |= self._sampling_fields()
        if endpoint.send_seed:
            payload["seed"] = request.seed % 2**31
        if endpoint.stream:
            payload["stream"] = True
            payload["stream_options"] = {"include_usage": True}
        payload |= self.dial_fields
        return payload

    def read(self, request: Request, response: ChatResponse) -> Reply:  # noqa: ARG002 for subclasses
        """Return the reply in a response."""
        return read(response)

    def read_body(self, request: Request, content: bytes) -> Reply:
        return self.read(request, decode(content))

    async def read_stream(
        self, request: Request, chunks: AsyncIterator[bytes], on_text: Callable[[], None]
    ) -> Reply:
        return self.read(request, await assemble(chunks, on_text))

    def is_filtered(self, content: bytes) -> bool:
        try:
            response = decode_json(content, _response_decoder, _keep_first_choice)
        except Malformed:
            return False
        return is_filter_error(response.error)

    def setting_to_change(
        self, refusal: Refusal, payload: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        change = super().setting_to_change(refusal, payload)
        if change is not None:
            return change
        if refusal.status not in (400, 422):
            return None
        budget_field = self._budget_field
        budget = payload.get(budget_field)
        change = budget_to_change(refusal, budget)
        if change is not None:
            return change
        names_limit = room_for_reply(refusal.message) is not None
        if budget is not None and refuses_field(refusal, budget_field) and not names_limit:
            other_field = "max_tokens"
            if budget_field == "max_tokens":
                other_field = "max_completion_tokens"
            return f"refuses the field `{budget_field}`", f'budget_field = "{other_field}"'
        for field, hint in OPTIONAL_FIELDS.items():
            if field in payload and refuses_field(refusal, field):
                return f"refuses the field `{field}`", hint
        return None

    def url_hint(self, server_url: str) -> str:
        url = server_url.rstrip("/")
        if url.endswith("/v1") or "?" in url:
            return f"is {server_url} the address of an OpenAI-compatible chat server?"
        return f'most addresses end in /v1: url = "{re.sub(r"/v[0-9]+$", "", url)}/v1"'


# Replies


def decode(content: bytes) -> ChatResponse:
    """Return the response in a body; raise `Malformed` or `NoReply` if it holds no reply."""
    response = decode_json(content, _response_decoder, _keep_first_choice)
    if response.choices:
        return response
    if is_filter_error(response.error):
        return ChatResponse([ChatChoice(None, "content_filter")], response.usage)
    reason = response.error or content[:200].decode("utf-8", "replace")
    raise NoReply(
        f"the endpoint's reply has no choices: {reason}",
        status=_status_of(response.error),
        other_page=not response.error and response.choices is None,
    )


def _keep_first_choice(data: Any) -> None:
    """Drop the other choices, which may be anything."""
    if isinstance(data, dict) and isinstance(data.get("choices"), list):
        data["choices"] = [choice for choice in data["choices"] if choice][:1]


def read(response: ChatResponse) -> Reply:
    """Return thinking and answer of a response, how it ended, and its token counts."""
    choice = response.choice()
    message = choice.message or ChatMessage()
    answer, thinking, refusal = _parts(message.content)
    for value in (message.reasoning_details, message.reasoning, message.reasoning_content):
        text = _text(value)
        if text.strip():
            thinking = text
    thinking = encodable(thinking)
    answer = encodable(answer)
    refusal = encodable(refusal or _text(message.refusal))
    written = (thinking, answer, refusal)
    if not thinking.strip():
        thinking, answer = split_thinking(answer)
    finish = ""
    if isinstance(choice.finish_reason, str):
        finish = choice.finish_reason.lower()
    if finish == "error" or (response.error and not (thinking or answer)):
        reason = response.error or "it does not say which"
        raise Malformed(f"the endpoint reports an error in its reply: {reason}")
    stop: Literal["end", "length"] = "end"
    if finish in CUT:
        stop = "length"
    note = ""
    if finish == "content_filter":
        note = "content filter"
        refusal = ""
    elif refusal:
        note = "refusal"
    elif not thinking and not answer and stop == "end":
        note = "empty reply"
    model = ""
    if isinstance(response.model, str):
        model = response.model
    usage = read_usage(response.usage)
    measures = reported_measures(response.usage, usage, response.timings, response.metrics)
    return Reply(thinking, answer, stop, note, refusal, written, usage, model, measures=measures)


def _parts(content: Any) -> tuple[str, str, str]:
    """Return answer, thinking and refusal in a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content, "", ""
    parts = [content]
    if isinstance(content, list):
        parts = content
    answer = ""
    thinking = ""
    refusal = ""
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else ""
        if kind == "refusal":
            refusal += _text(part.get("refusal"))
        elif kind in THINKING_PARTS:
            thinking += _text(part)
        else:
            answer += _text(part)
    return answer, thinking, refusal


def _text(value: Any, depth: int = 4) -> str:
    """Return the text of a field: a text, an object with a text in it, or a list of these."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and depth:
        return "".join([_text(item, depth - 1) for item in value])
    if isinstance(value, dict) and depth:
        for name in TEXT_FIELDS:
            text = _text(value.get(name), depth - 1)
            if text:
                return text
    return ""


# Streams


async def assemble(
    chunks: AsyncIterator[bytes], on_text: Callable[[], None] = lambda: None
) -> ChatResponse:
    """Return the whole response of a stream.

    Raise `Malformed` if the stream reports an error, is too long, or ends before the reply does.
    """
    texts: dict[str, list[Any]] = {name: [] for name in MESSAGE_FIELDS}
    finish: Any = None
    usage: Any = None
    model: Any = None
    timings: Any = None
    metrics: Any = None
    has_begun = False
    try:
        async for data in events(chunks):
            if data.strip() == b"[DONE]":
                if has_begun and not finish:  # some servers give no reason
                    finish = "stop"
                break
            event = decode_json(data, _event_decoder, _keep_first_choice)
            if is_filter_error(event.error):
                finish = "content_filter"
                break
            if event.error:
                raise Malformed(f"the endpoint's stream reports an error: {event.error}")
            usage = event.usage or usage
            model = event.model or model
            timings = event.timings or timings
            metrics = event.metrics or metrics
            if event.choices:
                has_begun = True
                piece = event.choices[0]
                finish = piece.finish_reason or finish
                if _collect(piece.delta, texts):
                    on_text()
        if finish is None:
            raise Malformed("the endpoint's stream ended before the reply did")
    except (Malformed, aiohttp.ClientError, OSError):
        if finish is None:  # else the reply is complete, and at most its bill is missing
            raise
    message = ChatMessage()
    for name, pieces in texts.items():
        setattr(message, name, _joined(pieces))
    choices = [ChatChoice(message, finish)]
    return ChatResponse(choices, usage, model=model, timings=timings, metrics=metrics)


def _collect(delta: ChatMessage | None, texts: dict[str, list[Any]]) -> bool:
    """Add a piece to `texts`; return whether it holds any text."""
    has_text = False
    if delta is None:
        return has_text
    for name, pieces in texts.items():
        value = getattr(delta, name)
        if not value:
            continue
        has_text = True
        if isinstance(value, list):
            pieces.extend(value)
        else:
            pieces.append(value)
    return has_text


def _joined(pieces: list[Any]) -> Any:
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    return pieces


# Token counts


def read_usage(usage: Any) -> Usage:
    """Return the token counts in a response's `usage`."""
    if not isinstance(usage, dict) or not usage:
        return Usage()
    prompt, cached = _prompt_tokens(usage)
    completion = _completion_tokens(usage)
    reasoning = _reasoning_tokens(usage)
    output = completion
    if prompt:  # else nobody knows how much of the total is the prompt's
        output = max(completion, as_count(usage.get("total_tokens")) - prompt)
    if output < reasoning:
        # Without a total, a completion smaller than its reasoning can't include it.
        output = completion + reasoning
    return Usage(
        prompt=prompt,
        cached=cached,
        completion=completion,
        reasoning=reasoning,
        output=output,
        reported=True,
        cost=read_cost(usage),
    )


def _prompt_tokens(usage: dict[str, Any]) -> tuple[int, int]:
    """Return prompt tokens, and how many of them came from the server's cache.

    The names are those of OpenAI and vLLM, DeepSeek, and Anthropic.
    """
    cached = (
        as_count(_inside(usage, "prompt_tokens_details", "cached_tokens"))
        or as_count(_inside(usage, "input_tokens_details", "cached_tokens"))
        or as_count(usage.get("prompt_cache_hit_tokens"))
    )
    cache_read = as_count(usage.get("cache_read_input_tokens"))
    cache_written = as_count(usage.get("cache_creation_input_tokens"))
    prompt = as_count(usage.get("prompt_tokens"))
    if prompt:
        cached = cached or cache_read
        beyond = as_count(usage.get("total_tokens")) - prompt - _completion_tokens(usage)
        is_cache = beyond in (cached, cache_written, cached + cache_written)
        if beyond > 0 and is_cache and beyond != _reasoning_tokens(usage):
            prompt += beyond  # the total shows that they are not in the prompt's count
        return prompt, min(prompt, cached)
    # Anthropic counts the tokens read from its cache, and written to it, separately.
    prompt = as_count(usage.get("input_tokens")) + cache_read + cache_written
    return prompt, min(prompt, cached or cache_read)


def _completion_tokens(usage: dict[str, Any]) -> int:
    return as_count(usage.get("completion_tokens")) or as_count(usage.get("output_tokens"))


def _reasoning_tokens(usage: dict[str, Any]) -> int:
    return as_count(_inside(usage, "completion_tokens_details", "reasoning_tokens")) or as_count(
        _inside(usage, "output_tokens_details", "reasoning_tokens")
    )


def _inside(table: dict[str, Any], name: str, field: str) -> Any:
    inner = table.get(name)
    return inner.get(field) if isinstance(inner, dict) else None


# Errors


def is_filter_error(error: Any) -> bool:
    """Return whether an error says that a content filter has stopped the prompt or the reply."""
    if not isinstance(error, dict):
        return False
    if _inside(error, "metadata", "flagged_input") is not None:  # OpenRouter's moderation
        return True
    codes = (error.get("code"), error.get("type"), _inside(error, "innererror", "code"))
    return any(isinstance(code, str) and code.lower() in FILTERS for code in codes)


def _status_of(error: Any) -> int:
    """Return the HTTP status of an error inside a response with status 200; 0 if it has none."""
    if isinstance(error, str) and error.lower().startswith("unexpected endpoint"):
        return 404  # LM Studio's, for a page that it doesn't have
    if not isinstance(error, Mapping):
        return 0
    code = error.get("code", error.get("status"))
    if isinstance(code, str) and code.isdecimal():
        code = int(code[:4])
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return 0
