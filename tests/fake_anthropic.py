"""Anthropic's Messages API for the fake server: checks requests as the API does, and writes its replies.

That it is faithful is shown by the package `anthropic`, which talks to it in
`test_protocol_anthropic.py`. Error messages are those of the API, as public threads quote them.

The name of the model decides which thinking it takes: `claude-haiku-4-5` only a budget, and no
effort; `claude-opus-5` none, it sizes its thinking itself, and shows none of it unless `display`
asks; any other takes both. `no-such-model` isn't known, and every model has 64,000 tokens for a
reply. A thinking block is signed, and a block that comes back must have its signature.

The fault `fields` overrides fields of a reply; its field `stream_error` is an error that ends the
stream half-way, and `early_error` one that comes before anything else.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from server import Length

MAX_TOKENS = 64_000
MIN_THINKING = 1024
EFFORTS = ("low", "medium", "high", "xhigh", "max")
FIELDS = {
    "model", "max_tokens", "messages", "system", "metadata", "stop_sequences", "stream", "temperature",
    "top_k", "top_p", "thinking", "output_config", "tools", "tool_choice", "service_tier",
}  # fmt: skip
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
MANUAL_ONLY = "claude-haiku-4-5"
ADAPTIVE_ONLY = "claude-opus-5"


def signature(text: str) -> str:
    return b64encode(hashlib.sha512(text.encode()).digest()).decode()


def event(name: str, **fields: Any) -> bytes:
    data = json.dumps({"type": name, **fields})
    return f"event: {name}\ndata: {data}\n\n".encode()


class Fake:
    """The page /v1/messages; the methods are those of `server.Chat`."""

    pages = ("/v1/messages",)
    lists = ()

    def messages(self, body: dict[str, Any]) -> list[dict[str, str]]:
        self.check(body)
        messages = [{"role": m["role"], "content": text_of(m["content"])} for m in body["messages"]]
        if "system" in body:
            messages.insert(0, {"role": "system", "content": text_of(body["system"])})
        return messages

    def budget(self, body: dict[str, Any]) -> float:
        return body["max_tokens"]

    def streams(self, request: web.Request, body: dict[str, Any]) -> bool:
        # The API's documentation has the first; the package has the second since version 2.
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not request.headers.get("x-api-key", bearer):
            self.refuse(401, "x-api-key header is required")
        if "anthropic-version" not in request.headers:
            self.refuse(400, "anthropic-version: header is required")
        return bool(body.get("stream"))

    def check(self, body: dict[str, Any]) -> None:
        """Refuse what the API refuses."""
        for name in ("model", "max_tokens", "messages"):
            if name not in body:
                self.refuse(400, f"{name}: Field required")
        for name in body.keys() - FIELDS:
            self.refuse(400, f"{name}: Extra inputs are not permitted")
        model = body["model"]
        most = body["max_tokens"]
        if model == "no-such-model":
            self.refuse(404, f"model: {model}")
        if most > MAX_TOKENS:
            limit = (
                f"{MAX_TOKENS}, which is the maximum allowed number of output tokens for {model}"
            )
            self.refuse(400, f"max_tokens: {most} > {limit}")
        self.check_thinking(body)
        effort = body.get("output_config", {}).get("effort")
        if effort and model == MANUAL_ONLY:
            self.refuse(400, "This model does not support the effort parameter.")
        if effort and effort not in EFFORTS:
            self.refuse(
                400,
                "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
            )
        self.check_messages(body["messages"])

    def check_thinking(self, body: dict[str, Any]) -> None:
        thinking = body.get("thinking", {"type": "disabled"})
        kind, model = thinking["type"], body["model"]
        if kind == "enabled" and model == ADAPTIVE_ONLY:
            instead = 'Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'
            self.refuse(400, f'"thinking.type.enabled" is not supported for this model. {instead}')
        if kind == "adaptive" and model == MANUAL_ONLY:
            self.refuse(400, "adaptive thinking is not supported on this model")
        if kind == "disabled" and "thinking" in body and model == ADAPTIVE_ONLY:
            self.refuse(400, '"thinking.type.disabled" is not supported for this model.')
        if kind == "enabled":
            least = thinking["budget_tokens"]
            if least < MIN_THINKING:
                problem = f"Input should be greater than or equal to {MIN_THINKING}"
                self.refuse(400, f"thinking.enabled.budget_tokens: {problem}")
            if least >= body["max_tokens"]:
                self.refuse(400, "`max_tokens` must be greater than `thinking.budget_tokens`.")
        if kind != "disabled" and body.get("temperature", 1) != 1:
            self.refuse(
                400,
                "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode.",
            )
        if body["model"] == ADAPTIVE_ONLY and "temperature" in body:
            self.refuse(400, "`temperature` is deprecated for this model.")

    def check_messages(self, messages: list[dict[str, Any]]) -> None:
        if not messages:
            self.refuse(400, "messages: at least one message is required")
        for number, message in enumerate(messages):
            place = f"messages.{number}"
            if message["role"] not in ("user", "assistant"):
                self.refuse(400, f"{place}.role: Input should be 'user' or 'assistant'")
            blocks = message["content"]
            if isinstance(blocks, str):
                blocks = [{"type": "text", "text": blocks}]
            for at, block in enumerate(blocks):
                if block["type"] == "text" and not block["text"].strip():
                    self.refuse(400, "messages: text content blocks must be non-empty")
                if block["type"] == "thinking" and not is_signed(block):
                    problem = "Invalid `signature` in `thinking` block"
                    self.refuse(400, f"{place}.content.{at}: {problem}")
            if blocks[-1]["type"] in ("thinking", "redacted_thinking"):
                problem = "The final block in an assistant message cannot be `thinking`."
                self.refuse(400, f"{place}: {problem}")

    def refuse(self, status: int, message: str) -> None:
        body = json.dumps(self.error(status, message))
        response = type("Refused", (web.HTTPException,), {"status_code": status})
        raise response(text=body, content_type="application/json")

    def reply(
        self, answer: str, thinking: str, length: Length, body: dict[str, Any]
    ) -> dict[str, Any]:
        asked = body.get("thinking", {"type": "disabled"})
        always = body["model"] == ADAPTIVE_ONLY
        thinks = bool(thinking) and (always or asked["type"] != "disabled")
        content: list[dict[str, Any]] = []
        if thinks:
            default = "omitted" if always else "summarized"
            shown = thinking if asked.get("display", default) == "summarized" else ""
            block = {"type": "thinking", "thinking": shown, "signature": signature(shown)}
            content.append(block)
        if not length.cut:
            content.append({"type": "text", "text": answer, "citations": None})
        return {
            "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "max_tokens" if length.cut else "end_turn",
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": {
                "input_tokens": length.prompt,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
                "output_tokens": length.thinking + length.answer,
                "output_tokens_details": {"thinking_tokens": length.thinking if thinks else 0},
                "server_tool_use": None,
                "service_tier": "standard",
                "inference_geo": "global",
            },
        }

    def events(self, said: dict[str, Any]) -> Iterator[bytes]:
        if "early_error" in said:
            yield event(
                "error", error=said["early_error"], request_id="req_011CSHoEeqs5C35K2UUqR7Fy"
            )
            return
        usage = said["usage"]
        opening = {**said, "content": [], "stop_reason": None, "stop_details": None}
        opening["usage"] = {**usage, "output_tokens": 1, "output_tokens_details": None}
        fault = opening.pop("stream_error", None)
        yield event("message_start", message=opening)
        for index, block in enumerate(said["content"]):
            kind = block["type"]
            if kind == "redacted_thinking":  # whole, it has no deltas
                yield event("content_block_start", index=index, content_block=block)
            else:
                blank = {"type": kind, kind: ""}
                if kind == "thinking":
                    blank["signature"] = ""
                yield event("content_block_start", index=index, content_block=blank)
                yield event("ping")
                for at in range(0, len(block[kind]), 4):
                    delta = {"type": f"{kind}_delta", kind: block[kind][at : at + 4]}
                    yield event("content_block_delta", index=index, delta=delta)
                if kind == "thinking":
                    delta = {"type": "signature_delta", "signature": block["signature"]}
                    yield event("content_block_delta", index=index, delta=delta)
            if fault:
                yield event("error", error=fault, request_id="req_011CSHoEeqs5C35K2UUqR7Fy")
                return
            yield event("content_block_stop", index=index)
        delta = {name: said[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
        late = {name: usage.get(name) for name in ("output_tokens", "output_tokens_details")}
        yield event("message_delta", delta=delta, usage={**late, "input_tokens": None})
        yield event("message_stop")

    def error(self, status: int, text: str) -> dict[str, Any]:
        error = {"type": TYPES.get(status, "api_error"), "message": text}
        return {"type": "error", "error": error, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}

    def models(self, names: list[str]) -> dict[str, Any]:
        raise NotImplementedError("the page is that of chats")


def is_signed(block: dict[str, Any]) -> bool:
    return block.get("signature") == signature(block["thinking"])


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block["type"] == "text")
