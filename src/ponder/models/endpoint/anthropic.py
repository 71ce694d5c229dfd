"""Anthropic's Messages API, of Claude and of servers that imitate it.

The thinking of Claude 4 and later is returned as a summary, or not at all (`display`); Ponder asks
for the summary. `usage` counts what the model really thought, on servers new enough to say so. A
reply that thought must come back unchanged in later turns, signatures included.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar, Literal

import aiohttp
import msgspec

from ponder.core import Request, SignedMessage, UserError
from ponder.core.text import encodable
from ponder.models.endpoint.dials import ANTHROPIC_MIN_THINK, check_anthropic_think
from ponder.models.endpoint.failures import (
    Refusal,
    budget_to_change,
    read_error,
    refused,
    refuses_field,
)
from ponder.models.endpoint.protocol import Protocol
from ponder.models.endpoint.reply import Malformed, NoReply, Reply, Usage, as_count, decode_json
from ponder.models.endpoint.stream import events
from ponder.tasks.reading import split_thinking

VERSION = "2023-06-01"
EFFORTS = ("low", "medium", "high", "xhigh", "max")
RESERVED_FIELDS = {
    "model": "id = …",
    "messages": "the task writes them: ponder list tasks",
    "system": "the task writes it: ponder list tasks",
    "max_tokens": "budget = …",
    "stream": "stream = true",
}
# Dials that a server accepts in this protocol and ignores, or has no field for.
MISSING_DIALS = {
    "vllm": ("effort", "think", "thinking"),
    "sglang": ("think",),
    "llama.cpp": ("effort", "thinking"),
    "deepseek": ("think",),
}
# Servers that show the whole thinking, and those that expect the key as a bearer token.
SHOW_THINKING = ("vllm", "sglang", "llama.cpp", "deepseek")
BEARER = ("vllm", "sglang", "openrouter")
# The HTTP status that stands for an error inside a stream.
STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
# Stop reasons of a reply that isn't complete. Only server tools, which Ponder doesn't use unless
# `body` adds some, pause a turn.
CUT = {"max_tokens", "model_context_window_exceeded", "pause_turn"}
# Both come with the type of any other invalid request.
NO_CREDIT = re.compile(r"credit balance is too low|reached your specified API usage limits")
FILTERED = re.compile(r"blocked by content filtering policy")
# How the API says that a model doesn't take a dial, which one, and what to set instead.
REFUSED_DIALS = (
    (
        r"thinking\.type\.enabled. is not supported",
        "`think`",
        'thinking = true and effort = "low", "medium" or "high": it sizes its thinking itself',
    ),
    (
        r"adaptive thinking is not supported",
        "`thinking = true`",
        f"think = 4096, or another number of tokens from {ANTHROPIC_MIN_THINK}",
    ),
    (
        r"thinking\.type\.disabled. is not supported",
        "`thinking = false`",
        'leave it out: the model always thinks; effort = "low" makes it think less',
    ),
    (r"does not support thinking", "thinking", "leave out `think` and `thinking`"),
    (
        r"does not support (?:the )?effort",
        "`effort`",
        "leave it out; think = 4096 limits the thinking of a model without efforts",
    ),
)
# Fields of a request that some models refuse, and what to change in the study.
OPTIONAL_FIELDS = {
    "temperature": "leave out `temperature`: models that think, and newer ones, take only their own",
    "top_p": "leave out `top_p`, or set one that the model accepts",
    "thinking": "leave out `think` and `thinking`",
    "output_config": "leave out `effort`",
}


class AnthropicMessage(msgspec.Struct):
    """A response: a message, or an error."""

    content: list[Any] | None = None  # blocks
    model: Any = None
    stop_reason: Any = None
    stop_details: Any = None
    usage: Any = None
    error: Any = None


class AnthropicEvent(msgspec.Struct):
    """One event of a streamed reply."""

    type: str = ""
    message: AnthropicMessage | None = None
    index: int = 0
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_message_decoder = msgspec.json.Decoder(AnthropicMessage)
_event_decoder = msgspec.json.Decoder(AnthropicEvent)


class Anthropic(Protocol):
    """Builds Messages requests for one endpoint and reads what it sends back."""

    reply_name = "a message of Anthropic's API"
    reserved_fields: ClassVar[Mapping[str, str]] = RESERVED_FIELDS

    @property
    def page(self) -> str:
        return "messages"

    def headers(self, key: str) -> dict[str, str]:
        headers = {"anthropic-version": VERSION}
        if self._endpoint.provider_name in BEARER:
            headers |= super().headers(key)
        elif key:
            headers["x-api-key"] = key
        return headers

    def dials(self) -> dict[str, Any]:
        endpoint = self._endpoint
        dial = endpoint.dial
        if endpoint.budget is None:
            message = "the protocol `anthropic` needs a `budget`: its requests must limit the reply"
            raise UserError(message, hint="budget = 16000, thinking included")
        provider = endpoint.provider_name
        missing = MISSING_DIALS.get(provider, ())
        hint = 'protocol = "chat" has it'
        if provider == "deepseek":
            hint = "thinking = false, or a `budget` for the whole reply"
        dial.refuse(f"{provider} in the protocol `anthropic`", *missing, hint=hint)
        dial.check_thinking_off("think")  # an effort is for the answer too
        fields: dict[str, Any] = {}
        if dial.think is not None:
            if provider != "llama.cpp":
                check_anthropic_think(dial.think)
            fields["thinking"] = {"type": "enabled", "budget_tokens": dial.think}
        elif dial.thinking is not None:
            fields["thinking"] = {"type": "adaptive" if dial.thinking else "disabled"}
        if "thinking" in fields and dial.thinking is not False:
            # Else newer models return thinking blocks without text.
            fields["thinking"]["display"] = "summarized"
        if dial.effort is not None:
            if dial.effort not in EFFORTS:
                hint = f"effort = {', '.join(EFFORTS)}; thinking = false for none"
                raise UserError(f"Anthropic has no effort {dial.effort!r}", hint=hint)
            fields["output_config"] = {"effort": dial.effort}
        return fields

    def payload(self, request: Request, budget: int | None) -> dict[str, Any]:
        endpoint = self._endpoint
        system = list[str]()
        messages = list[dict[str, Any]]()
        for message in request.messages:
            content: Any = message.content
            if isinstance(message, SignedMessage):
                content = json.loads(message.blocks)
            elif message.role == "system":
                system.append(message.content)
                continue
            elif not message.content.strip():
                # A reply without an answer. The API refuses empty texts, and takes two messages of
                # one role in a row as one.
                continue
            messages.append({"role": message.role, "content": content})
        payload: dict[str, Any] = {
            "model": endpoint.id,
            "max_tokens": budget,
            "messages": messages,
            **self.dial_fields,
        }
        if system:
            payload["system"] = "\n\n".join(system)
        payload |= self._sampling_fields()
        if endpoint.stream:
            payload["stream"] = True
        if endpoint.think and budget and endpoint.think >= budget:
            # A method allows less than the study does; the API wants the thinking's limit below it.
            payload["thinking"] = payload["thinking"] | {"budget_tokens": budget - 1}
        return payload

    def read_body(self, request: Request, content: bytes) -> Reply:  # noqa: ARG002 the base's
        message = decode_json(content, _message_decoder)
        if message.content is not None:
            return self._read(message)
        if _is_filter_error(message.error):
            return Reply("", "", "end", "content filter")
        reason = message.error or content[:200].decode("utf-8", "replace")
        raise NoReply(
            f"the endpoint's reply has no content: {reason}",
            status=STATUS.get(_error_type(message.error), 0),
            other_page=not message.error,
        )

    async def read_stream(
        self,
        request: Request,  # noqa: ARG002 the base's
        chunks: AsyncIterator[bytes],
        on_text: Callable[[], None],
    ) -> Reply:
        return self._read(await assemble(chunks, on_text))

    def _read(self, message: AnthropicMessage) -> Reply:
        """Return thinking and answer of a message, how it ended, and its token counts."""
        thoughts = list[str]()
        answer = ""
        for block in message.content or []:
            kind = block.get("type") if isinstance(block, dict) else ""
            if kind == "text":
                answer += _text(block, "text")
            elif kind in ("thinking", "redacted_thinking"):  # the latter has only encrypted data
                thoughts.append(_text(block, "thinking"))
        thinking = encodable("\n\n".join(thought for thought in thoughts if thought))
        answer = encodable(answer)
        written = (thinking, answer)
        if not thoughts:
            thinking, answer = split_thinking(answer)
        stop_reason = message.stop_reason if isinstance(message.stop_reason, str) else ""
        stop: Literal["end", "length"] = "length" if stop_reason in CUT else "end"
        note = ""
        refusal = ""
        if stop_reason == "refusal":
            note = "refusal"
            refusal = answer or encodable(_text(message.stop_details, "explanation"))
            answer = ""
        elif stop_reason == "content_filter":
            note = "content filter"
        elif not thinking and not answer and stop == "end":
            note = "empty reply"
        blocks = ""
        # The API refuses a message of thinking alone.
        if thoughts and answer.strip():
            blocks = encodable(json.dumps(message.content, ensure_ascii=False))
        model = message.model if isinstance(message.model, str) else ""
        # Claude 3.7 was the last to show all of it.
        shows_thinking = self._endpoint.provider_name in SHOW_THINKING or re.search(
            r"claude-3[-.]7", f"{self._endpoint.id} {model}"
        )
        return Reply(
            thinking,
            answer,
            stop,
            note,
            refusal,
            written,
            read_usage(message.usage),
            model,
            summarized=bool(thoughts) and not shows_thinking,
            blocks=blocks,
        )

    def is_filtered(self, content: bytes) -> bool:
        return FILTERED.search(read_error(400, content).message) is not None

    def read_error(self, status: int, content: bytes) -> Refusal:
        refusal = read_error(status, content)
        if NO_CREDIT.search(refusal.message):
            return refusal._replace(codes=(*refusal.codes, "insufficient_balance"))
        return refusal

    def setting_to_change(
        self, refusal: Refusal, payload: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        change = super().setting_to_change(refusal, payload)
        if change is not None or refusal.status not in (400, 422):
            return change
        change = budget_to_change(refusal, payload.get("max_tokens"))
        if change is not None:
            return change
        for pattern, setting, hint in REFUSED_DIALS:
            if re.search(pattern, refusal.message, re.IGNORECASE):
                return f"refuses {setting}", hint
        for field, hint in OPTIONAL_FIELDS.items():
            takes_some_values = re.search(
                rf"`{field}` (?:may only|must|and|cannot)", refusal.message
            )
            if field in payload and (takes_some_values or refuses_field(refusal, field)):
                return f"refuses the field `{field}`", hint
        return None

    def url_hint(self, server_url: str) -> str:
        url = server_url.rstrip("/").removesuffix("/messages")
        if url.endswith("/v1") and url == server_url.rstrip("/"):
            return f"does {server_url} speak Anthropic's protocol?"
        return f'most addresses end in /v1: url = "{url.removesuffix("/v1")}/v1"'


async def assemble(chunks: AsyncIterator[bytes], on_text: Callable[[], None]) -> AnthropicMessage:
    """Return the whole message of a stream.

    Raise `Malformed` if the stream reports an error, is too long, or ends before the reply does,
    and `NoAnswer` for an error before the reply began, which isn't billed.
    """
    message: AnthropicMessage | None = None
    blocks: dict[int, dict[str, Any]] = {}
    pieces: dict[tuple[int, str], list[str]] = {}  # by block and field
    usage: dict[str, Any] = {}
    stop_reason = None
    stop_details = None
    try:
        async for data in events(chunks):
            event = decode_json(data, _event_decoder)
            delta = event.delta or {}
            if event.type == "message_start" and event.message:
                message = event.message
                usage |= _counts(message.usage)
            elif event.type == "content_block_start" and event.content_block:
                blocks[event.index] = event.content_block
            elif event.type == "content_block_delta":
                for field in ("text", "thinking", "signature"):
                    piece = _text(delta, field)
                    if piece:
                        pieces.setdefault((event.index, field), []).append(piece)
                if delta.get("text") or delta.get("thinking"):
                    on_text()
            elif event.type == "message_delta":
                usage |= _counts(event.usage)
                stop_reason = delta.get("stop_reason") or stop_reason
                stop_details = delta.get("stop_details")
            elif event.type == "error" and _is_filter_error(event.error):
                stop_reason = "content_filter"
                break
            elif event.type == "error":
                status = STATUS.get(_error_type(event.error), 0)
                has_begun = message is not None or pieces
                if status >= 429 and not has_begun:
                    why = f"the endpoint's stream reports an {_error_type(event.error)}"
                    raise refused(status, why, 0.0)
                raise Malformed(f"the endpoint's stream reports an error: {event.error}")
            elif event.type == "message_stop":
                break
        if stop_reason is None:
            raise Malformed("the endpoint's stream ended before the reply did")
    except (Malformed, aiohttp.ClientError, OSError):
        if stop_reason is None:  # else the reply is complete
            raise
    for (index, field), texts in pieces.items():
        block = blocks.setdefault(index, {"type": field})
        block[field] = _text(block, field) + "".join(texts)
    content = [block for _, block in sorted(blocks.items())]
    model = message.model if message else None
    return AnthropicMessage(content, model, stop_reason, stop_details, usage)


def read_usage(usage: Any) -> Usage:
    """Return the token counts in a message's `usage`."""
    if not isinstance(usage, dict) or not usage:
        return Usage()
    cached = as_count(usage.get("cache_read_input_tokens"))
    written_to_cache = as_count(usage.get("cache_creation_input_tokens"))
    output = as_count(usage.get("output_tokens"))
    thinking = 0
    if isinstance(usage.get("output_tokens_details"), dict):
        thinking = as_count(usage["output_tokens_details"].get("thinking_tokens"))
    return Usage(
        prompt=as_count(usage.get("input_tokens")) + cached + written_to_cache,
        cached=cached,
        completion=output,
        reasoning=min(thinking, output),
        output=output,
        reported=True,
    )


def _counts(usage: Any) -> dict[str, Any]:
    """Return the counts of an event's `usage`; a later event has some of them as null."""
    if not isinstance(usage, dict):
        return {}
    return {name: value for name, value in usage.items() if value is not None}


def _text(table: Any, field: str) -> str:
    text = table.get(field) if isinstance(table, dict) else None
    return text if isinstance(text, str) else ""


def _error_type(error: Any) -> str:
    return _text(error, "type")


def _is_filter_error(error: Any) -> bool:
    return FILTERED.search(_text(error, "message")) is not None
