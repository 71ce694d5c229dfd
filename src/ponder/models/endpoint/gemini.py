"""Google's generateContent, the protocol of Gemini: requests, replies, streams and errors.

A request asks for thoughts (`includeThoughts`) if a dial turns thinking up or on: models that don't
think refuse the field, so it isn't sent unasked. Thoughts are summaries; their tokens are counted
in full, next to the answer's.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import aiohttp
import msgspec

from ponder.core import Request, SignedMessage, UserError
from ponder.core.text import encodable
from ponder.models.endpoint.failures import Refusal
from ponder.models.endpoint.protocol import Protocol
from ponder.models.endpoint.reply import Malformed, NoReply, Reply, Usage, as_count, decode_json
from ponder.models.endpoint.stream import events

LEVELS = ("minimal", "low", "medium", "high", "xhigh")  # few models have all of them
DYNAMIC = -1  # a thinkingBudget: the model decides
RESERVED_FIELDS = {
    "model": "id = …",
    "contents": "the task writes them: ponder list tasks",
    "systemInstruction": "the task writes it: ponder list tasks",
    "generationConfig.maxOutputTokens": "budget = …",
    "generationConfig.candidateCount": "samples = … in the study asks several times",
    "generation_config": "generationConfig",
}
# Fields of `generationConfig` that some models refuse, and what to change in the study.
OPTIONAL_FIELDS = {
    "maxOutputTokens": "set another `budget`",
    "temperature": "leave out `temperature`, or set one that the model accepts",
    "topP": "leave out `top_p`, or set one that the model accepts",
    "seed": "send_seed = false",
}
# Finish reasons of a reply that reached its budget, or a limit of the server.
CUT = {"MAX_TOKENS", "CONTINUATION"}
# Finish reasons of a reply that a filter has stopped.
FILTERED = {
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
}
# Finish reasons after which a reply without text is the model's own doing. After any other (OTHER,
# MALFORMED_RESPONSE, those to come), the server has failed.
ENDED = {
    "STOP",
    "MALFORMED_FUNCTION_CALL",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
}
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")


class Candidate(msgspec.Struct, rename="camel"):
    content: Any = None
    finish_reason: Any = None
    finish_message: Any = None


class Response(msgspec.Struct, rename="camel"):
    """A response, or one event of a streamed one."""

    candidates: list[Candidate] | None = None
    prompt_feedback: Any = None
    usage_metadata: Any = None
    model_version: Any = None
    error: Any = None

    def parts(self) -> list[dict[str, Any]]:
        """Return the parts of the first candidate: Ponder never requests more."""
        if not self.candidates or not isinstance(self.candidates[0].content, dict):
            return []
        parts = self.candidates[0].content.get("parts")
        if not isinstance(parts, list):
            return []
        return [part for part in parts if isinstance(part, dict)]


class ModelNames(msgspec.Struct):
    """A server's list of models."""

    models: list[Any] = []


_response_decoder = msgspec.json.Decoder(Response)
_names_decoder = msgspec.json.Decoder(ModelNames)


class Gemini(Protocol):
    """Builds generateContent requests for one endpoint and reads what it sends back."""

    reply_name = "a reply of generateContent"
    reserved_fields: ClassVar[Mapping[str, str]] = RESERVED_FIELDS

    @property
    def page(self) -> str:
        model = self._endpoint.id
        if "/" not in model:  # else it names its folder: tunedModels/…
            model = f"models/{model}"
        method = "streamGenerateContent" if self._endpoint.stream else "generateContent"
        return f"{model}:{method}"

    @property
    def query(self) -> Mapping[str, str]:
        return {"alt": "sse"} if self._endpoint.stream else {}

    def headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def dials(self) -> dict[str, Any]:
        effort, think, thinking = self._endpoint.dial
        if effort is not None and think is not None:
            message = "Google takes an effort or a number of thinking tokens, not both"
            raise UserError(message, hint="leave out `effort` or `think`")
        self._endpoint.dial.check_thinking_off("effort", "think")
        config: dict[str, Any] = {}
        if effort is not None:
            if effort.lower() not in LEVELS:
                hint = f"effort = {', '.join(LEVELS)}; thinking = false turns it off"
                raise UserError(f"Google has no effort {effort!r}", hint=hint)
            config["thinkingLevel"] = effort.upper()
        elif think is not None:
            config["thinkingBudget"] = think
        elif thinking is not None:
            config["thinkingBudget"] = DYNAMIC if thinking else 0
        if not config:
            return {}
        if thinking is not False:  # refused if there is no thinking
            config["includeThoughts"] = True
        return {"generationConfig": {"thinkingConfig": config}}

    def payload(self, request: Request, budget: int | None) -> dict[str, Any]:
        endpoint = self._endpoint
        config: dict[str, Any] = {}
        if budget is not None:
            config["maxOutputTokens"] = budget
        config |= self._sampling_fields(top_p="topP")
        if endpoint.send_seed:
            config["seed"] = request.seed % 2**31
        config |= self.dial_fields.get("generationConfig", {})
        system = list[dict[str, Any]]()
        contents = list[dict[str, Any]]()
        for message in request.messages:
            if message.role == "system":
                system.append({"text": message.content})
                continue
            role = "model" if message.role == "assistant" else "user"
            parts = [{"text": message.content}]
            if isinstance(message, SignedMessage):
                parts = json.loads(message.blocks)
            contents.append({"role": role, "parts": parts})
        payload: dict[str, Any] = {"contents": contents, "generationConfig": config}
        if system:
            payload["systemInstruction"] = {"parts": system}
        return payload

    def read_body(self, request: Request, content: bytes) -> Reply:  # noqa: ARG002 interface
        response = decode_json(content, _response_decoder)
        if response.candidates or response.prompt_feedback:
            return read(response, response.parts())
        code = 0
        if isinstance(response.error, dict):
            code = as_count(response.error.get("code"))
        raise NoReply(
            f"the endpoint's reply has no candidates: {content[:200].decode('utf-8', 'replace')}",
            status=code if 400 <= code < 600 else 0,
            other_page=not response.error and response.usage_metadata is None,
        )

    async def read_stream(
        self,
        request: Request,  # noqa: ARG002 interface
        chunks: AsyncIterator[bytes],
        on_text: Callable[[], None],
    ) -> Reply:
        response = Response()
        parts = list[dict[str, Any]]()
        usage: dict[str, Any] = {}  # the counts grow from event to event, and not all have each
        last = Candidate()
        try:
            async for data in events(chunks):
                if data.strip() == b"[DONE]":  # of a proxy
                    break
                event = decode_json(data, _response_decoder)
                if event.error:
                    # Even after STOP: https://github.com/vercel/ai/issues/5217
                    raise Malformed(f"the endpoint's stream reports an error: {event.error}")
                response.prompt_feedback = event.prompt_feedback or response.prompt_feedback
                response.model_version = event.model_version or response.model_version
                if isinstance(event.usage_metadata, dict):
                    usage |= event.usage_metadata
                if event.candidates and event.candidates[0].finish_reason:
                    last = event.candidates[0]
                parts += event.parts()
                if any(part.get("text") for part in event.parts()):
                    on_text()
        except (aiohttp.ClientError, OSError):
            if not last.finish_reason:  # else the reply is complete, and at most its bill is not
                raise
        if not last.finish_reason and not response.prompt_feedback:
            raise Malformed("the endpoint's stream ended before the reply did")
        response.candidates = [last] if last.finish_reason else None
        response.usage_metadata = usage
        return read(response, parts)

    def read_error(self, status: int, content: bytes) -> Refusal:
        refusal = super().read_error(status, content)
        error = _error(content)
        if not error:
            return refusal
        codes = [str(error.get("status", "")).lower()]
        wait = 0.0
        for detail in _tables(error.get("details")):
            codes.append(str(detail.get("reason", "")).lower())
            delay = _SECONDS.fullmatch(str(detail.get("retryDelay", "")))
            if delay:
                wait = float(delay[1])
            for violation in _tables(detail.get("violations")):
                if "PerDay" in str(violation.get("quotaId", "")):
                    codes.append("daily_quota")
        message = str(error.get("message") or refusal.message)
        return Refusal(status, message, tuple(code for code in codes if code), wait=wait)

    def setting_to_change(
        self, refusal: Refusal, payload: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        if "api_key_invalid" in refusal.codes:  # comes with status 400
            hint = 'key = "$NAME" names the environment variable that holds it'
            return "refuses the key", hint
        if "daily_quota" in refusal.codes:
            hint = "run the same command again tomorrow (Pacific time) to resume, or pay for more"
            return "has no requests left today", hint
        if "failed_precondition" in refusal.codes:
            return "refuses every request", "another key, or billing for its project"
        config = payload.get("generationConfig", {})
        message = refusal.message.lower().replace("_", "")
        if refusal.status == 400 and "thinkingConfig" in config and "think" in message:
            return "refuses the dial of thinking", _thinking_hint(message)
        for field, hint in OPTIONAL_FIELDS.items():
            if refusal.status == 400 and field in config and field.lower() in message:
                return f"refuses the field `{field}`", hint
        return super().setting_to_change(refusal, payload)

    def listed_models(self, content: bytes) -> dict[str, dict[str, Any]]:
        models = dict[str, dict[str, Any]]()
        for model in _tables(decode_json(content, _names_decoder).models):
            name = str(model.get("name", ""))
            if not self._endpoint.id.startswith("models/"):
                name = name.removeprefix("models/")
            models[name] = model
        return models

    def url_hint(self, server_url: str) -> str:
        if re.search(r"/v1(beta)?/?$", server_url):
            return f"is {server_url} the address of Google's API, or of one like it?"
        return 'Google\'s address is url = "https://generativelanguage.googleapis.com/v1beta"'


def read(response: Response, parts: Sequence[dict[str, Any]]) -> Reply:
    """Return thinking and answer of a response, how it ended, and its token counts."""
    thinking = encodable(_text(parts, thought=True))
    answer = encodable(_text(parts, thought=False))
    reason = ""
    explanation = ""
    if response.candidates:
        reason = str(response.candidates[0].finish_reason or "")
        explanation = str(response.candidates[0].finish_message or "")
    stop: Literal["end", "length"] = "end"
    note = ""
    if not response.candidates or reason in FILTERED:  # without candidates, the prompt was blocked
        note = "content filter"
    elif reason in CUT:
        stop = "length"
    elif not thinking and not answer:
        if reason not in ENDED:
            raise Malformed(f"the endpoint's reply has no text: {reason} {explanation}".rstrip())
        note = "empty reply"
    blocks = ""
    if any(part.get("thoughtSignature") or part.get("thought") for part in parts):
        blocks = json.dumps(parts)
    return Reply(
        thinking,
        answer,
        stop,
        note,
        written=(thinking, answer),
        usage=read_usage(response.usage_metadata),
        model=str(response.model_version or ""),
        summarized=bool(thinking),
        blocks=blocks,
    )


def read_usage(usage: Any) -> Usage:
    """Return the token counts in a response's `usageMetadata`.

    The total is the sum of prompt, tool results, candidates and thoughts. Where one of the last two
    is missing, it is in the total. Where the total has no room for the thoughts, the candidates
    include them.
    """
    if not isinstance(usage, dict) or not usage:
        return Usage()
    # The results of Google's own tools are input.
    prompt = as_count(usage.get("promptTokenCount")) + as_count(
        usage.get("toolUsePromptTokenCount")
    )
    candidates = as_count(usage.get("candidatesTokenCount"))
    thoughts = as_count(usage.get("thoughtsTokenCount"))
    output = candidates + thoughts
    if prompt:  # else nobody knows how much of the total is the prompt's
        without_prompt = as_count(usage.get("totalTokenCount")) - prompt
        if without_prompt > output or without_prompt == candidates >= thoughts:
            output = without_prompt
    if candidates:
        thoughts = max(thoughts, output - candidates)
    cached = min(prompt, as_count(usage.get("cachedContentTokenCount")))
    return Usage(
        prompt=prompt,
        cached=cached,
        completion=candidates,
        reasoning=thoughts,
        output=output,
        reported=True,
    )


def _text(parts: Sequence[dict[str, Any]], *, thought: bool) -> str:
    texts = [part.get("text") for part in parts if bool(part.get("thought")) == thought]
    return "".join([text for text in texts if isinstance(text, str)])


def _error(content: bytes) -> dict[str, Any]:
    """Return the error in a body, which may be a list of one; empty if there is none."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if isinstance(body, list) and body:
        body = body[0]
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _tables(items: Any) -> Iterator[dict[str, Any]]:
    """Yield the tables of a list; none if it isn't a list."""
    if isinstance(items, list):
        yield from [item for item in items if isinstance(item, dict)]


def _thinking_hint(message: str) -> str:
    if "level" in message:
        return "leave out `effort`, or set one that the model has; before Gemini 3: think = 1024"
    if "budget" in message or "disabled" in message:
        return "set a `think` that the model accepts; few models take thinking = false"
    return "this model doesn't think: leave out `effort`, `think` and `thinking`"
