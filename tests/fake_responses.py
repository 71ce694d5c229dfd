"""OpenAI's Responses API for the fake server: checks requests as the API does, and writes its replies.

That it is faithful is shown by the package `openai`, which talks to it in
`test_protocol_responses.py`. Error messages are those of the API, as public threads quote them.

The name of the model decides how it thinks: `gpt-4o` doesn't, and refuses every field about it;
`gpt-oss` shows its thinking, as vLLM does; `grok` encrypts it only if asked; any other encrypts it
always, and summarizes it if asked. `gpt-5-unverified` is that of an organization that may not ask.
`no-such-model` isn't known, and every model has 128,000 tokens for a reply.

The fault `fields` overrides fields of a reply; its field `stream_error` is an error event in the
middle of the stream, and `early_error` one before any text.
"""

from __future__ import annotations

import hashlib
import json
import math
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from server import Length

MIN_TOKENS = 16
MAX_TOKENS = 128_000
ENCRYPTED = "reasoning.encrypted_content"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
FIELDS = {
    "model", "input", "instructions", "max_output_tokens", "store", "stream", "temperature", "top_p",
    "reasoning", "include", "metadata", "service_tier", "text", "truncation", "user",
}  # fmt: skip
PLAIN = "gpt-4o"
OPEN = "gpt-oss"
ENCRYPTS_IF_ASKED = "grok"
UNVERIFIED = "gpt-5-unverified"
CODES = {
    400: (None, "invalid_request_error"),
    401: ("invalid_api_key", "invalid_request_error"),
    404: ("model_not_found", "invalid_request_error"),
    429: ("rate_limit_exceeded", "requests"),
    500: (None, "server_error"),
    503: (None, "service_unavailable_error"),
}


def identifier(prefix: str, *parts: Any) -> str:
    return f"{prefix}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:50]}"


def encrypted(item_id: str) -> str:
    digest = hashlib.sha512(item_id.encode()).digest()
    return "gAAAAAB" + urlsafe_b64encode(digest).decode()


def pieces(text: str) -> Iterator[str]:
    for at in range(0, len(text), 4):
        yield text[at : at + 4]


class Fake:
    """The page /v1/responses; the methods are those of `server.Chat`."""

    pages = ("/v1/responses",)
    lists = ()

    # Requests

    def messages(self, body: dict[str, Any]) -> list[dict[str, str]]:
        self.check(body)
        messages = []
        if body.get("instructions"):
            messages.append({"role": "system", "content": body["instructions"]})
        items = body["input"]
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        for item in items:
            if item.get("type", "message") == "message":
                messages.append({"role": item["role"], "content": text_of(item["content"])})
        return messages

    def budget(self, body: dict[str, Any]) -> float:
        return body.get("max_output_tokens", math.inf)

    def streams(self, request: web.Request, body: dict[str, Any]) -> bool:
        if not request.headers.get("Authorization", "").startswith("Bearer "):
            missing = "You didn't provide an API key."
            self.refuse(401, missing, code=None)
        return bool(body.get("stream"))

    def check(self, body: dict[str, Any]) -> None:
        """Refuse what the API refuses."""
        for name in ("model", "input"):
            if name not in body:
                problem = f"Missing required parameter: '{name}'."
                self.refuse(400, problem, name, "missing_required_parameter")
        for name in sorted(body.keys() - FIELDS):
            self.refuse(400, f"Unknown parameter: '{name}'.", name, "unknown_parameter")
        model = body["model"]
        if model == "no-such-model":
            problem = f"The model '{model}' does not exist or you do not have access to it."
            self.refuse(404, problem, code="model_not_found")
        most = body.get("max_output_tokens", MAX_TOKENS)
        if most < MIN_TOKENS:
            problem = f"integer below minimum value. Expected a value >= {MIN_TOKENS}, but got {most} instead."
            self.refuse_field("max_output_tokens", f"Invalid 'max_output_tokens': {problem}", "integer_below_min_value")  # fmt: skip
        if most > MAX_TOKENS:
            problem = f"max_tokens is too large: {most}. This model supports at most {MAX_TOKENS} completion tokens, whereas you provided {most}."
            self.refuse_field("max_output_tokens", problem, "invalid_value")
        self.check_reasoning(body)
        if isinstance(body["input"], list):
            self.check_items(body["input"])

    def check_reasoning(self, body: dict[str, Any]) -> None:
        model = body["model"]
        reasoning = body.get("reasoning") or {}
        for name in reasoning:
            if model == PLAIN:
                problem = (
                    f"Unsupported parameter: 'reasoning.{name}' is not supported with this model."
                )
                self.refuse_field(f"reasoning.{name}", problem, "unsupported_parameter")
        for name, values in (("effort", EFFORTS), ("summary", SUMMARIES)):
            value = reasoning.get(name)
            if value is not None and value not in values:
                accepted = ", ".join(f"'{one}'" for one in values[:-1])
                problem = f"Invalid value: '{value}'. Supported values are: {accepted}, and '{values[-1]}'."
                self.refuse_field(f"reasoning.{name}", problem, "invalid_value")
        if reasoning.get("effort") == "none" and model == "o3":
            problem = "Unsupported value: 'none' is not supported with the 'o3' model. Supported values are: 'low', 'medium', and 'high'."
            self.refuse_field("reasoning.effort", problem, "unsupported_value")
        if reasoning.get("summary") and model == UNVERIFIED:
            problem = "Your organization must be verified to generate reasoning summaries."
            self.refuse_field("reasoning.summary", problem, "unsupported_value")
        if ENCRYPTED in body.get("include", []) and model == PLAIN:
            problem = "Encrypted content is not supported with this model."
            self.refuse_field("include", problem, None)
        if "temperature" in body and model == "o3":
            problem = "Unsupported parameter: 'temperature' is not supported with this model."
            self.refuse_field("temperature", problem, "unsupported_parameter")

    def check_items(self, items: list[dict[str, Any]]) -> None:
        for at, item in enumerate(items):
            kind = item.get("type", "message")
            if kind == "message":
                if item["role"] not in ("user", "assistant", "system", "developer"):
                    problem = f"Invalid value: '{item['role']}'."
                    self.refuse_field(f"input[{at}].role", problem, "invalid_value")
                continue
            if kind != "reasoning":
                self.refuse_field(f"input[{at}].type", f"Invalid value: '{kind}'.", "invalid_value")
            name = item["id"]
            if not item.get("encrypted_content") and not item.get("content"):
                problem = f"Item with id '{name}' not found. Items are not persisted when `store` is set to false."
                self.refuse(404, problem, "input")
            if item.get("encrypted_content") not in (None, encrypted(name)):
                problem = f"The encrypted content for item {name} could not be verified."
                self.refuse(400, problem, code="invalid_encrypted_content")
            following = items[at + 1] if at + 1 < len(items) else {}
            if following.get("role") != "assistant":
                problem = f"Item '{name}' of type 'reasoning' was provided without its required following item."
                self.refuse(400, problem, "input")

    def refuse_field(self, field: str, message: str, code: str | None) -> None:
        self.refuse(400, message, field, code)

    def refuse(
        self, status: int, message: str, field: str | None = None, code: str | None = None
    ) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": field, "code": code}
        response = type("Refused", (web.HTTPException,), {"status_code": status})
        raise response(text=json.dumps({"error": error}), content_type="application/json")

    # Replies

    def reply(
        self, answer: str, thinking: str, length: Length, body: dict[str, Any]
    ) -> dict[str, Any]:
        model = body["model"]
        reasoning = body.get("reasoning") or {}
        thinks = bool(thinking) and model != PLAIN and reasoning.get("effort") != "none"
        state = "incomplete" if length.cut else "completed"
        output = []
        if thinks:
            output.append(self.reasoning_item(thinking, body))
        if not length.cut:
            output.append(message_item(identifier("msg", body, answer), answer))
        hidden = length.thinking if thinks else 0
        return {
            "id": identifier("resp", body),
            "object": "response",
            "created_at": 1_763_200_000,
            "status": state,
            "background": False,
            "completed_at": None if length.cut else 1_763_200_004,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if length.cut else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "max_tool_calls": None,
            "model": model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "prompt_cache_key": None,
            "reasoning": {
                "effort": reasoning.get("effort", None if model == PLAIN else "medium"),
                "summary": reasoning.get("summary"),
            },
            "safety_identifier": None,
            "service_tier": "default",
            "store": body.get("store", True),
            "temperature": body.get("temperature", 1.0),
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": body.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": {
                "input_tokens": length.prompt,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": hidden + length.answer,
                "output_tokens_details": {"reasoning_tokens": hidden},
                "total_tokens": length.prompt + hidden + length.answer,
            },
            "user": None,
            "metadata": {},
        }

    def reasoning_item(self, thinking: str, body: dict[str, Any]) -> dict[str, Any]:
        model = body["model"]
        name = identifier("rs", body, thinking)
        item: dict[str, Any] = {"id": name, "type": "reasoning", "summary": []}
        if model == OPEN:
            item["content"] = [{"type": "reasoning_text", "text": thinking}]
            return item
        if (body.get("reasoning") or {}).get("summary"):
            item["summary"] = [{"type": "summary_text", "text": thinking}]
        if model != ENCRYPTS_IF_ASKED or ENCRYPTED in body.get("include", []):
            item["encrypted_content"] = encrypted(name)
        return item

    def events(self, said: dict[str, Any]) -> Iterator[bytes]:
        for number, (name, fields) in enumerate(self.numbered(dict(said))):
            data = json.dumps({"type": name, "sequence_number": number, **fields})
            yield f"event: {name}\ndata: {data}\n\n".encode()

    def numbered(self, said: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        early_error = said.pop("early_error", None)
        stream_error = said.pop("stream_error", None)
        leaves_out_output = said.pop("no_final_output", False)
        opening = {**said, "status": "in_progress", "output": [], "usage": None, "error": None}
        opening["completed_at"] = opening["incomplete_details"] = None
        yield "response.created", {"response": opening}
        yield "response.in_progress", {"response": opening}
        if early_error:
            yield "error", early_error
            return
        for index, item in enumerate(said["output"]):
            yield from item_events(index, item)
            if stream_error:
                yield "error", stream_error
                return
        if leaves_out_output:
            said["output"] = []
        yield f"response.{said['status']}", {"response": said}

    def error(self, status: int, text: str) -> dict[str, Any]:
        code, kind = CODES.get(status, (None, "server_error"))
        if "quota" in text:
            code = kind = "insufficient_quota"
        return {"error": {"message": text, "type": kind, "param": None, "code": code}}

    def models(self, names: list[str]) -> dict[str, Any]:
        raise NotImplementedError("the page is that of chats")


def message_item(name: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {"id": name, "type": "message", "role": "assistant", "status": "completed"}
    return {**message, "content": [part]}


def item_events(index: int, item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of one item: it is added, its parts are, their texts come in pieces, all is done."""
    place = {"item_id": item["id"], "output_index": index}
    empty = {**item, "status": "in_progress"}
    for name in ("summary", "content"):
        if name in item:
            empty[name] = []
    yield "response.output_item.added", {"output_index": index, "item": empty}
    for at, part in enumerate(item.get("summary", [])):
        place_of_part = {**place, "summary_index": at}
        blank = {**part, "text": ""}
        yield "response.reasoning_summary_part.added", {**place_of_part, "part": blank}
        for piece in pieces(part["text"]):
            yield "response.reasoning_summary_text.delta", {**place_of_part, "delta": piece}
        text = {"text": part["text"]}
        yield "response.reasoning_summary_text.done", {**place_of_part, **text}
        yield "response.reasoning_summary_part.done", {**place_of_part, "part": part}
    for at, part in enumerate(item.get("content", [])):
        place_of_part = {**place, "content_index": at}
        field = "refusal" if part["type"] == "refusal" else "text"
        more = {"logprobs": []} if part["type"] == "output_text" else {}
        yield "response.content_part.added", {**place_of_part, "part": {**part, field: ""}}
        for piece in pieces(part[field]):
            yield f"response.{part['type']}.delta", {**place_of_part, **more, "delta": piece}
        yield f"response.{part['type']}.done", {**place_of_part, **more, field: part[field]}
        yield "response.content_part.done", {**place_of_part, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
