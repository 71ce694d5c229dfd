"""OpenAI's Responses API, which xAI, OpenRouter, vLLM and others speak too.

A reply is a list of items: `reasoning`, with a summary of the thinking or, from servers of open
models, its text, and `message`. OpenAI returns a summary only if it is requested, which an
organization must be verified for: `body = { reasoning = { summary = "auto" } }`. The API has no
seed, and `store` is false: nothing stays on the server. In a conversation, reasoning items return
with their encrypted content.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from ponder.core import Request, SignedMessage, UserError
from ponder.core.text import encodable
from ponder.models.endpoint.chat import is_filter_error, read_usage
from ponder.models.endpoint.dials import chat_fields, openai_effort
from ponder.models.endpoint.failures import (
    Refusal,
    budget_to_change,
    refused,
    refuses_field,
)
from ponder.models.endpoint.protocol import Protocol
from ponder.models.endpoint.reply import Malformed, NoReply, Reply, decode_json
from ponder.models.endpoint.stream import events
from ponder.tasks.reading import split_thinking

MIN_BUDGET = 16  # tokens; OpenAI's
ENCRYPTED = "reasoning.encrypted_content"
# OpenAI sends the encrypted content unasked, and its models without reasoning refuse the request
# for it; these send it only if it is requested.
ENCRYPT_IF_ASKED = ("xai", "openrouter")
RESERVED_FIELDS = {
    "model": "id = …",
    "input": "the task writes it: ponder list tasks",
    "instructions": "the task writes them: ponder list tasks",
    "max_output_tokens": "budget = …",
    "stream": "stream = true",
    "background": "leave it out: Ponder waits for each reply",
    "previous_response_id": "leave it out: Ponder sends the whole conversation",
    "conversation": "leave it out: Ponder sends the whole conversation",
}
# Fields of a request that some models refuse, and what to change in the study.
OPTIONAL_FIELDS = {
    "temperature": "leave out `temperature`, or set one that the model accepts",
    "top_p": "leave out `top_p`, or set one that the model accepts",
    "reasoning.effort": "leave out `effort` and `thinking`, or set one that the model accepts",
    "reasoning.max_tokens": "leave out `think`",
    "reasoning.summary": "leave `summary` out of `body`: the bill counts the thinking without it",
    "reasoning": "leave out `effort`, `think` and `thinking`",
    "include": 'body = { include = [] }, and remember = "visible" in conversations',
}
REFUSED_FIELD = {
    "unsupported_parameter",
    "unsupported_value",
    "unknown_parameter",
    "invalid_value",
}
# The HTTP status that stands for an error inside a reply.
STATUS = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "server_error": 500,
    "vector_store_timeout": 500,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
}
FILTERS = {"bio_policy", "misalignment_policy_violation"}
FLAGGED = re.compile(r"flagged|usage policy|content (?:policy|filter)", re.IGNORECASE)
DELTAS = {
    "response.output_text.delta",
    "response.refusal.delta",
    "response.reasoning_summary_text.delta",
    "response.reasoning_text.delta",
}
FINAL = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


class ResponseObject(msgspec.Struct):
    """A response; any field may be missing or of another type."""

    object: Any = None
    status: Any = None
    error: Any = None
    incomplete_details: Any = None
    output: Any = None
    usage: Any = None
    model: Any = None


class ResponseEvent(msgspec.Struct):
    """One event of a streamed response."""

    type: Any = None
    delta: Any = None
    item: Any = None
    response: ResponseObject | None = None
    error: Any = None
    code: Any = None
    message: Any = None


_response_decoder = msgspec.json.Decoder(ResponseObject)
_event_decoder = msgspec.json.Decoder(ResponseEvent)


class Responses(Protocol):
    """Builds Responses requests for one endpoint and reads what it sends back."""

    reply_name = "a response of OpenAI's Responses API"
    reserved_fields: ClassVar[Mapping[str, str]] = RESERVED_FIELDS

    @property
    def page(self) -> str:
        return "responses"

    def dials(self) -> dict[str, Any]:
        endpoint = self._endpoint
        dial = endpoint.dial
        provider = endpoint.provider_name
        budget = endpoint.budget
        if provider == "openai" and budget is not None and budget < MIN_BUDGET:
            message = f"budget = {budget} is below OpenAI's minimum of {MIN_BUDGET} tokens"
            raise UserError(message, hint=f"budget = {MIN_BUDGET} or more, thinking included")
        if provider == "openrouter":  # the same table as in its chats
            return chat_fields(provider, dial)
        if provider in ("openai", "xai"):
            effort = openai_effort(provider, dial)
        else:
            route = f"{provider or 'this server'} in the protocol `responses`"
            dial.refuse(route, "think", "thinking", hint='protocol = "chat" may have it')
            effort = dial.effort
        if effort is None:
            return {}
        return {"reasoning": {"effort": effort}}

    def payload(self, request: Request, budget: int | None) -> dict[str, Any]:
        endpoint = self._endpoint
        items = list[Any]()
        for message in request.messages:
            if isinstance(message, SignedMessage):
                items.extend(json.loads(message.blocks))
            else:
                items.append({"role": message.role, "content": message.content})
        payload: dict[str, Any] = {"model": endpoint.id, "input": items, "store": False}
        if budget is not None:
            payload["max_output_tokens"] = budget
        payload |= self._sampling_fields()
        if endpoint.stream:
            payload["stream"] = True
        if len(request.problem.turns) > 1 and endpoint.provider_name in ENCRYPT_IF_ASKED:
            payload["include"] = [ENCRYPTED]
        payload |= self.dial_fields
        return payload

    def read_body(self, request: Request, content: bytes) -> Reply:
        response = decode_json(content, _response_decoder)
        if _is_filtered(response.error):
            return Reply("", "", "end", "content filter", usage=read_usage(response.usage))
        if isinstance(response.output, list) and not response.error:
            return read(request, response)
        reason = response.error or content[:200].decode("utf-8", "replace")
        raise NoReply(
            f"the endpoint's reply has no output: {reason}",
            status=_status_of(response.error),
            other_page=not response.error and response.object != "response",
        )

    async def read_stream(
        self, request: Request, chunks: AsyncIterator[bytes], on_text: Callable[[], None]
    ) -> Reply:
        response = await assemble(chunks, on_text)
        if _is_filtered(response.error):
            return Reply("", "", "end", "content filter", usage=read_usage(response.usage))
        return read(request, response)

    def is_filtered(self, content: bytes) -> bool:
        try:
            return _is_filtered(decode_json(content, _response_decoder).error)
        except Malformed:
            return False

    def setting_to_change(
        self, refusal: Refusal, payload: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        change = super().setting_to_change(refusal, payload)
        if change is not None or refusal.status not in (400, 422):
            return change
        budget = payload.get("max_output_tokens")
        change = budget_to_change(refusal, budget)
        if change is not None:
            return change
        if refusal.field == "max_output_tokens" and "integer_below_min_value" in refusal.codes:
            return f"refuses a budget of {budget} tokens", f"budget = {MIN_BUDGET} or more"
        for field, hint in OPTIONAL_FIELDS.items():
            is_sent = field.partition(".")[0] in payload
            by_code = refusal.field == field and REFUSED_FIELD.intersection(refusal.codes)
            if is_sent and (by_code or refuses_field(refusal, field)):
                return f"refuses the field `{field}`", hint
        return None

    def url_hint(self, server_url: str) -> str:
        url = server_url.rstrip("/").removesuffix("/responses")
        if url.endswith("/v1") and url == server_url.rstrip("/"):
            return f'protocol = "chat", or does {server_url} speak the Responses API?'
        return f'most addresses end in /v1: url = "{url.removesuffix("/v1")}/v1"'


# Replies


def read(request: Request, response: ResponseObject) -> Reply:
    """Return thinking and answer of a response, how it ended, and its token counts."""
    if response.status not in ("completed", "incomplete", None):
        raise Malformed(f"the endpoint's reply has the status {response.status!r}")
    items = [item for item in response.output or [] if isinstance(item, dict)]
    thinking, summarized = _thinking(items)
    answers = list[str]()
    refusal = ""
    for item in items:
        if item.get("type") == "message":
            answers.append(_texts(item.get("content"), "text"))
            refusal += _texts(item.get("content"), "refusal")
    thinking = encodable(thinking)
    answer = encodable("\n\n".join(answer for answer in answers if answer))
    refusal = encodable(refusal)
    written = (thinking, answer, refusal)
    if not thinking.strip() and not summarized:
        thinking, answer = split_thinking(answer)
    stop: Literal["end", "length"] = "end"
    note = ""
    details = response.incomplete_details
    reason = details.get("reason") if isinstance(details, dict) else None
    if reason == "content_filter":
        note = "content filter"
        refusal = ""
    elif response.status == "incomplete":
        stop = "length"
    elif refusal:
        note = "refusal"
    elif not thinking and not answer:
        note = "empty reply"
    has_later_turns = request.turn + 1 < len(request.problem.turns)
    blocks = ""
    if has_later_turns and answer.strip() and any(map(_must_return, items)):
        # A reasoning item without its encrypted content would be looked up, and nothing is stored.
        returned = [item for item in items if item.get("type") == "message" or _must_return(item)]
        blocks = encodable(json.dumps(returned, ensure_ascii=False))
    return Reply(
        thinking,
        answer,
        stop,
        note,
        refusal,
        written,
        read_usage(response.usage),
        response.model if isinstance(response.model, str) else "",
        summarized=summarized,
        blocks=blocks,
    )


def _thinking(items: list[dict[str, Any]]) -> tuple[str, bool]:
    """Return the text of the reasoning items, and whether it is a summary, or missing."""
    texts = list[str]()
    summaries = list[str]()
    has_reasoning = False
    for item in items:
        if item.get("type") != "reasoning":
            continue
        has_reasoning = True
        texts.append(_texts(item.get("content"), "text"))
        parts = item.get("summary")
        if isinstance(parts, list):
            summaries.extend(_texts([part], "text") for part in parts)
    text = "\n\n".join(text for text in texts if text)
    if text:
        return text, False
    return "\n\n".join(summary for summary in summaries if summary), has_reasoning


def _texts(parts: Any, field: str) -> str:
    """Return the text that a field has in all parts together."""
    if not isinstance(parts, list):
        return ""
    texts = [part.get(field) for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _must_return(item: dict[str, Any]) -> bool:
    """Return whether later turns can and should contain this reasoning item."""
    if item.get("type") != "reasoning":
        return False
    return bool(item.get("encrypted_content") or item.get("content"))


# Streams


async def assemble(chunks: AsyncIterator[bytes], on_text: Callable[[], None]) -> ResponseObject:
    """Return the whole response of a stream, which its last event holds.

    Raise `Malformed` if the stream reports an error, is too long, or ends before the reply does,
    and `NoAnswer` if the server is too busy to begin.
    """
    finished_items = list[Any]()
    has_text = False
    async for data in events(chunks):
        if data.strip() == b"[DONE]":
            break
        event = decode_json(data, _event_decoder)
        if event.type in DELTAS and event.delta:
            has_text = True
            on_text()
        elif event.type == "response.output_item.done":
            finished_items.append(event.item)
        error = event.error
        if event.type == "error" and not error:
            error = {"code": event.code, "message": event.message}
        if event.type in FINAL and event.response is not None:
            if not event.response.error:
                # Some servers leave the output out of the last event.
                event.response.output = event.response.output or finished_items
                return event.response
            error = event.response.error
        if _is_filtered(error):
            return ResponseObject(error=error)
        if error:
            status = _status_of(error)
            if status >= 429 and not has_text:
                why = f"the endpoint's stream reports an error of status {status}"
                raise refused(status, why, 0.0)
            raise Malformed(f"the endpoint's stream reports an error: {error}")
    raise Malformed("the endpoint's stream ended before the reply did")


# Errors


def _is_filtered(error: Any) -> bool:
    """Return whether an error says that a content filter has stopped the prompt or the reply."""
    if is_filter_error(error):
        return True
    if not isinstance(error, dict):
        return False
    flagged = FLAGGED.search(str(error.get("message"))) is not None
    return error.get("code") in FILTERS or (error.get("code") == "invalid_prompt" and flagged)


def _status_of(error: Any) -> int:
    """Return the HTTP status that an error inside a response stands for; 0 if unknown."""
    if not isinstance(error, dict):
        return 0
    code = error.get("code")
    if isinstance(code, str):
        return STATUS.get(code, 0)
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return 0
