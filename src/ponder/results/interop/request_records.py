"""Reads one record of a production log: a request to a model, and its reply.

Loggers use different names for the two, and keep them in different places:

- `request` and `response`, or `body` and `response`, as OpenAI's batches have them in two files
  whose lines share a `custom_id`; Anthropic's batches have `params` and `result` (platform.openai
  .com/docs/guides/batch, docs.anthropic.com/en/docs/build-with-claude/batch-processing);
- one flat table with `messages`, and `choices` or another reply beside them;
- LiteLLM's `StandardLoggingPayload`: `messages`, `model_parameters`, `response`, `response_cost`,
  `startTime` and `endTime` (docs.litellm.ai/docs/proxy/logging_spec);
- Helicone's export: `request_body`, `response_body`, `delay_ms`, `costUSD`, `scores`
  (docs.helicone.ai/tools/export; `HeliconeRequest` in github.com/Helicone/helicone);
- Langfuse's observations: `input`, `output`, `model_parameters`, `usage_details`, whose buckets
  don't overlap, `total_cost` (langfuse.com/docs/api-and-data-platform/features/
  blob-storage-export-fields; its API writes the same names in camel case).

Bodies are chat completions, OpenAI's Responses, Anthropic's Messages or Google's generateContent,
each found by its own fields, so one log may mix them. Headers are never read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from ponder.core import Message
from ponder.models.endpoint.providers import ProtocolName
from ponder.models.endpoint.reply import as_count

Table = dict[str, Any]

# The names of request and reply, in the order in which they are tried.
PAIRS = (
    ("request", "response"),
    ("request_body", "response_body"),
    ("body", "response"),
    ("params", "result"),
    ("input", "output"),
    ("messages", "response"),
    ("messages", "completion"),
    ("messages", "output"),
    ("prompt", "response"),
    ("prompt", "completion"),
)
# Fields of a reply that show its protocol.
REPLY_FIELDS: dict[str, ProtocolName] = {
    "choices": "chat",
    "candidates": "gemini",
    "promptFeedback": "gemini",
    "stop_reason": "anthropic",
}
REPLY_TEXTS = ("choices", "content", "output", "candidates")
STATUSES = ("status_code", "statusCode", "response_status", "http_status", "status")
# The field of a reply that holds its parts.
PARTS: dict[ProtocolName, str] = {
    "chat": "choices",
    "responses": "output",
    "anthropic": "content",
    "gemini": "candidates",
}
# The fields of a request for each of Ponder's settings; a dot leads into a table.
SETTINGS = {
    "effort": (
        "reasoning_effort",
        "reasoning.effort",
        "output_config.effort",
        "chat_template_kwargs.reasoning_effort",
        "generationConfig.thinkingConfig.thinkingLevel",
    ),
    "think": (
        "thinking.budget_tokens",
        "reasoning.max_tokens",
        "thinking_token_budget",
        "thinking_budget_tokens",
        "custom_params.thinking_budget",
        "google.thinking_config.thinking_budget",
        "generationConfig.thinkingConfig.thinkingBudget",
    ),
    "thinking": (
        "thinking.type",
        "reasoning.enabled",
        "chat_template_kwargs.enable_thinking",
        "chat_template_kwargs.thinking",
    ),
    "budget": (
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "generationConfig.maxOutputTokens",
    ),
    "temperature": ("temperature", "generationConfig.temperature"),
    "top_p": ("top_p", "generationConfig.topP"),
    "top_k": ("top_k", "generationConfig.topK"),
    "min_p": ("min_p",),
    "presence_penalty": ("presence_penalty",),
    "frequency_penalty": ("frequency_penalty",),
    "repetition_penalty": ("repetition_penalty",),
    "verbosity": ("verbosity", "text.verbosity"),
    "response_format": ("response_format.type", "text.format.type"),
    "service_tier": ("service_tier",),
}
SWITCHES = {"enabled": True, "adaptive": True, "disabled": False}
# Fields of a request that aren't settings of the model.
UNIMPORTANT = {
    "model", "messages", "system", "input", "instructions", "prompt", "contents",
    "systemInstruction", "system_instruction", "seed", "stream", "stream_options", "n", "user",
    "metadata", "store", "include", "safety_identifier", "prompt_cache_key", "extra_body",
    "extra_headers", "background", "truncation", "custom_llm_provider",
}  # fmt: skip
# Fields with a duration, and the number of its units in a second.
DURATIONS = {
    "seconds": 1, "latency_seconds": 1, "latency_s": 1, "duration_seconds": 1, "duration_s": 1,
    "elapsed_seconds": 1, "elapsed_s": 1,
    "latency_ms": 1000, "latencyMs": 1000, "duration_ms": 1000, "durationMs": 1000,
    "elapsed_ms": 1000, "delay_ms": 1000, "response_time_ms": 1000, "response_ms": 1000,
    "_response_ms": 1000,
}  # fmt: skip
# Fields with the times of a request and of its reply.
SPANS = (
    ("startTime", "endTime"),
    ("start_time", "end_time"),
    ("request_created_at", "response_created_at"),
    ("requestedAt", "receivedAt"),
    ("created_at", "completed_at"),  # of OpenAI's Responses
)
FIRST_TOKEN = {"completionStartTime", "completion_start_time"}
COSTS = (
    "response_cost", "costUSD", "cost_usd", "total_cost", "totalCost", "calculatedTotalCost",
    "cost_details.total", "costDetails.total", "cost",
)  # fmt: skip
# Fields that may say whether a reply was right, the most certain first.
GRADES = (
    "right", "correct", "is_correct", "passed", "score", "grade", "label", "feedback", "rating",
    "feedback_rating",
)  # fmt: skip
GOOD = {
    "right", "correct", "true", "yes", "pass", "passed", "good", "positive", "like", "liked", "up",
    "thumbs_up", "thumbs up", "thumbsup", "thumb_up", "accepted", "resolved", "c", "👍", "+1",
}  # fmt: skip
BAD = {
    "wrong", "incorrect", "false", "no", "fail", "failed", "bad", "negative", "dislike", "disliked",
    "down", "thumbs_down", "thumbs down", "thumbsdown", "thumb_down", "rejected", "unresolved", "i",
    "👎", "-1",
}  # fmt: skip
TEXT_PARTS = ("text", "input_text", "output_text")
# Parts of earlier replies that the model's later replies don't need.
THOUGHT_PARTS = ("thinking", "redacted_thinking", "reasoning")
TOOL_PARTS = (
    "tool_use", "tool_result", "function_call", "function_call_output", "server_tool_use",
    "web_search_tool_result", "functionCall", "functionResponse", "mcp_call",
)  # fmt: skip

NOT_AN_EXCHANGE = "without a request and its reply"
TOOLS = "with tools"
NO_TEXT = "with images, files or audio"
NO_QUESTION = "whose last message is not the user's"
ON_SERVER = "whose conversation is kept on the server"
SEVERAL = "with several replies to one request (n > 1), which are billed together"
STREAMED = "with a reply in pieces, as it was streamed"
CACHED = "answered from a proxy's cache"
NO_REPLY = "without a reply: of batches, name both files"
NO_REQUEST = "without a request: of batches, name both files"
MILLISECONDS_FROM = 1e11  # a moment above is in milliseconds since 1970, not in seconds
MAX_SECONDS = 1e7


class Unusable(ValueError):
    """A record that can't become an attempt; its text completes "3 lines …"."""


class Prompt(NamedTuple):
    """The texts of a request."""

    system: str
    history: tuple[Message, ...]
    question: str


class Exchange(NamedTuple):
    """A request and its reply, in the fields of a protocol."""

    request: Table
    reply: Table | None  # None if there is none
    protocol: ProtocolName
    error: str  # why there is no reply
    record: Table  # the whole record, which has times, costs and grades too


def id_of(record: Table) -> str:
    """Return the id that request and reply of a batch share; "" for other records."""
    name = record.get("custom_id")
    return name if isinstance(name, str) else ""


def half_of(record: Table) -> Literal["request", "reply", ""]:
    """Return whether a record is the request or the reply of a batch; "" if both, or neither."""
    if not id_of(record):
        return ""
    has_request = any(isinstance(record.get(name), dict) for name in ("body", "params", "request"))
    has_reply = any(name in record for name in ("response", "result", "error"))
    if has_request and not has_reply:
        return "request"
    if has_reply and not has_request:
        return "reply"
    return ""


def exchange(record: Table) -> Exchange:
    """Return the request and the reply of a record; raise `Unusable` if it isn't a pair of them."""
    inner = record.get("standard_logging_object")  # LiteLLM's, in a record of another logger
    if isinstance(inner, dict):
        record = inner
    if record.get("cache_hit") is True:
        raise Unusable(CACHED)
    request, reply = _pair(record)
    request = _request(request, record)
    error = _error(record, reply)
    if not any(request.get(name) for name in ("messages", "input", "contents", "prompt")):
        raise Unusable(NOT_AN_EXCHANGE)
    _check_tools(request, record)
    if error:
        return Exchange(request, None, "chat", error, record)
    body, protocol = _reply(reply, record)
    _check_reply(body, protocol)
    return Exchange(request, body, protocol, "", record)


def _pair(record: Table) -> tuple[Any, Any]:
    """Return the request and the reply of a record, unchanged."""
    if "choices" in record and "messages" in record:
        return record, record
    if record.get("object") == "response" and "input" in record:
        return record, record
    for request_name, reply_name in PAIRS:
        if record.get(request_name) and reply_name in record:
            request = _unpacked(record[request_name])
            if request_name in ("messages", "prompt"):
                request = {request_name: request}
            elif request_name == "input":
                request = _langfuse_request(request)
            return request, _unpacked(record[reply_name])
    if record.get("messages") and _error(record, None):
        return {"messages": record["messages"]}, None
    raise Unusable(NOT_AN_EXCHANGE)


def _unpacked(value: Any) -> Any:
    """Return a value, decoded if it is JSON in a text."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return value
    return value


def _langfuse_request(value: Any) -> Any:
    if isinstance(value, list):
        return {"messages": value}
    if isinstance(value, str):
        return {"messages": [{"role": "user", "content": value}]}
    return value


def _request(request: Any, record: Table) -> Table:
    """Return the body of a request, with the settings that the record has next to it."""
    for name in ("body", "json"):
        inner = _unpacked(request.get(name)) if isinstance(request, dict) else None
        if isinstance(inner, dict):
            request = inner
    if not isinstance(request, dict):
        raise Unusable(NOT_AN_EXCHANGE)
    body: dict[str, Any] = {}
    for name in ("model_parameters", "modelParameters", "optional_params", "parameters"):
        parameters = _unpacked(record.get(name))
        if isinstance(parameters, dict):
            body |= parameters
    body |= request
    for name in ("extra_body", "generation_config"):  # as the SDKs write them
        inner = body.pop(name, None)
        if name == "generation_config" and inner:
            body["generationConfig"] = inner
        elif isinstance(inner, dict):
            body = {**inner, **body}
    if not isinstance(body.get("model"), str):
        for name in ("model", "provided_model_name", "request_model", "model_id", "modelId"):
            if isinstance(record.get(name), str) and record[name]:
                body["model"] = record[name]
                break
    return body


def _error(record: Table, reply: Any) -> str:
    """Return why a request has no reply; "" if it has one."""
    status = max(_status(record), _status(reply))
    body = reply
    if isinstance(reply, dict) and reply.get("body"):
        body = _unpacked(reply["body"])
    has_text = isinstance(body, str) and bool(body)
    error: Any = None
    if isinstance(body, dict):
        has_text = any(body.get(name) for name in REPLY_TEXTS)
        error = body.get("error")
        if body.get("type") in ("expired", "canceled"):
            error = f"the batch job has {body['type']}"
    if not error and not has_text:
        error = _error_beside(record)
    if status >= 400:
        return f"status {status}: {_message(error)}" if error else f"status {status}"
    if error and not has_text:
        return _message(error)
    return ""


def _status(table: Any) -> int:
    """Return the HTTP status in a table; 0 if it has none."""
    if isinstance(table, dict):
        for name in STATUSES:
            if type(table.get(name)) is int:
                return int(table[name])
    return 0


def _error_beside(record: Table) -> Any:
    """Return the error that the record has next to the request; None if there is none."""
    for name in ("error", "error_str", "errorMessage"):
        if record.get(name):
            return record[name]
    if record.get("level") == "ERROR":  # Langfuse's
        return record.get("status_message") or record.get("statusMessage") or "error"
    if record.get("status") in ("failure", "error"):
        return record["status"]
    return None


def _message(error: Any) -> str:
    """Return the text of an error, which may be a table in a table."""
    while isinstance(error, dict):
        inner = error.get("message") or error.get("error") or error.get("type")
        if inner is None:
            return "error"
        error = inner
    return str(error)


def _check_tools(request: Table, record: Table) -> None:
    for name in ("tools", "functions"):
        if request.get(name):
            raise Unusable(TOOLS)
    if record.get("tool_calls") or record.get("tool_definitions"):  # Langfuse's
        raise Unusable(TOOLS)
    if request.get("previous_response_id") or request.get("conversation"):
        raise Unusable(ON_SERVER)


def _reply(reply: Any, record: Table) -> tuple[Table, ProtocolName]:
    """Return a reply as the body of a response in a protocol."""
    if isinstance(reply, dict):
        for name in ("body", "json", "message"):
            inner = _unpacked(reply.get(name))
            is_wrapper = name != "message" or reply.get("type") == "succeeded"
            if is_wrapper and isinstance(inner, dict):
                reply = inner
    if isinstance(reply, list) and reply and isinstance(reply[0], dict):
        if any(item.get("type") == "message" for item in reply if isinstance(item, dict)):
            return _with_usage({"output": reply}, record, "responses"), "responses"
        if "delta" in str(reply[0].get("choices")) or "chunk" in str(reply[0].get("object")):
            raise Unusable(STREAMED)
        if len(reply) > 1:
            raise Unusable(SEVERAL)
        reply = reply[0]
    if isinstance(reply, str):
        if reply.startswith("data:"):
            raise Unusable(STREAMED)
        reply = {"role": "assistant", "content": reply}
    if not isinstance(reply, dict) or not reply:
        raise Unusable(NOT_AN_EXCHANGE)
    for name, protocol in REPLY_FIELDS.items():
        if name in reply:
            return _with_usage(reply, record, protocol), protocol
    if reply.get("object") == "response" or isinstance(reply.get("output"), list):
        return _with_usage(reply, record, "responses"), "responses"
    if "content" in reply or "tool_calls" in reply:  # only the message
        choice = {"message": reply, "finish_reason": record.get("finish_reason")}
        return _with_usage({"choices": [choice]}, record, "chat"), "chat"
    raise Unusable(NOT_AN_EXCHANGE)


def _with_usage(reply: Table, record: Table, protocol: ProtocolName) -> Table:
    """Return a reply with the record's token counts if it has none itself."""
    field = "usageMetadata" if protocol == "gemini" else "usage"
    if reply.get(field) or protocol == "gemini":
        return reply
    usage = _usage(record)
    if not usage:
        return reply
    if protocol == "anthropic":
        usage = {
            "input_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
            "output_tokens": usage.get("completion_tokens", usage.get("output_tokens")),
        }
    return {**reply, field: usage}


def _usage(record: Table) -> Table:
    """Return the token counts of a record, by OpenAI's names."""
    for name in ("usage_details", "usageDetails", "usage"):
        usage = _unpacked(record.get(name))
        if isinstance(usage, dict) and usage:
            if "input" in usage or "output" in usage:
                return _langfuse_usage(usage)
            return usage
    counts = {}
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        if as_count(record.get(name)):
            counts[name] = record[name]
    return counts


def _langfuse_usage(usage: Table) -> Table:
    """Return Langfuse's counts by OpenAI's names.

    Its buckets don't overlap, except in records of older versions, which the total shows.
    """
    counts = {str(name): as_count(value) for name, value in usage.items()}
    prompt = sum(value for name, value in counts.items() if "input" in name)
    completion = 0
    reasoning = 0
    cached = 0
    for name, value in counts.items():
        if "output" in name or "reasoning" in name:
            completion += value
        if "reasoning" in name:
            reasoning += value
        if "cached" in name or "cache_read" in name:
            cached += value
    total = counts.get("total", 0)
    if total and prompt + completion > total:
        prompt = counts.get("input", 0)
        completion = counts.get("output", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _check_reply(reply: Table, protocol: ProtocolName) -> None:
    """Raise `Unusable` for a reply that is more than one text."""
    if reply.get("object") == "chat.completion.chunk":
        raise Unusable(STREAMED)
    parts = reply.get(PARTS[protocol])
    if protocol in ("chat", "gemini") and isinstance(parts, list):
        if len(parts) > 1:
            raise Unusable(SEVERAL)
        choice = parts[0] if parts and isinstance(parts[0], dict) else {}
        if "delta" in choice and "message" not in choice:
            raise Unusable(STREAMED)
        message = choice.get("message", choice.get("content"))
        if not isinstance(message, dict):
            return
        if message.get("tool_calls") or message.get("function_call"):
            raise Unusable(TOOLS)
        if message.get("audio"):
            raise Unusable(NO_TEXT)
        parts = message.get("content", message.get("parts"))
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and _is_tool(part):
            raise Unusable(TOOLS)


def _is_tool(part: Table) -> bool:
    kind = str(part.get("type", ""))
    if kind in TOOL_PARTS or kind.endswith("_call"):
        return True
    return any(name in part for name in ("functionCall", "functionResponse"))


# Requests


def prompt(request: Table) -> Prompt:
    """Return what a request asks; raise `Unusable` if it isn't text alone."""
    system = [_text(request.get("instructions")), _text(request.get("system"))]
    system.append(_text(_inside(request, "systemInstruction.parts")))
    chat: list[Message] = []
    for message in _messages(request):
        role = message.get("role", "user")
        kind = message.get("type", "message")
        if kind == "reasoning":
            continue
        if role in ("tool", "function") or message.get("tool_calls") or _is_tool(message):
            raise Unusable(TOOLS)
        text = _text(message.get("content", message.get("parts")))
        if role in ("system", "developer"):
            system.append(text)
        elif role in ("assistant", "model"):
            chat.append(Message("assistant", text))
        else:
            chat.append(Message("user", text))
    if not chat or chat[-1].role != "user":
        raise Unusable(NO_QUESTION)
    instructions = "\n\n".join(text for text in system if text)
    return Prompt(instructions, tuple(chat[:-1]), chat[-1].content)


def _messages(request: Table) -> Iterator[Table]:
    """Yield the messages of a request, whatever its protocol calls them."""
    for name in ("messages", "input", "contents", "prompt"):
        messages = request.get(name)
        if isinstance(messages, str):
            yield {"role": "user", "content": messages}
        elif isinstance(messages, list):
            for message in messages:
                if not isinstance(message, dict):
                    raise Unusable(NOT_AN_EXCHANGE)
                yield message
        if messages:
            return


def _text(content: Any) -> str:
    """Return the text of a message; raise `Unusable` if it holds anything else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise Unusable(NOT_AN_EXCHANGE)
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise Unusable(NOT_AN_EXCHANGE)
        kind = part.get("type", "text")
        if _is_tool(part):
            raise Unusable(TOOLS)
        if kind in THOUGHT_PARTS or part.get("thought"):
            continue
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        elif kind in TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise Unusable(NO_TEXT)
    return "".join(texts)


def settings(request: Table) -> dict[str, Any]:
    """Return the settings of a request: the dials of thinking, the budget and the sampling."""
    table: dict[str, Any] = {}
    for name, paths in SETTINGS.items():
        for path in paths:
            value = _inside(request, path)
            if isinstance(value, bool | int | float | str):
                table[name] = value
                break
    switch = table.get("thinking", request.get("thinking"))
    table.pop("thinking", None)
    if isinstance(switch, str):
        switch = SWITCHES.get(switch.lower())
    if "think" in table and table["think"] == 0:  # Google's way to turn it off
        del table["think"]
        switch = False
    if isinstance(switch, bool) and "think" not in table:
        table["thinking"] = switch
    if isinstance(table.get("effort"), str):
        table["effort"] = table["effort"].lower()
    return table


def other_fields(request: Table) -> Iterator[str]:
    """Yield the fields of a request that are neither its prompt nor one of the settings."""
    if "usage" in request or "choices" in request or "output" in request:
        return  # one table with the reply, whose fields can't be told from the request's
    read_fields = set(UNIMPORTANT)
    for paths in SETTINGS.values():
        read_fields.update(path.partition(".")[0] for path in paths)
    for name, value in request.items():
        if name not in read_fields and value not in (None, "", [], {}):
            yield str(name)


def _inside(table: Any, path: str) -> Any:
    """Return the value at a path; a dot leads into a table."""
    for name in path.split("."):
        if not isinstance(table, dict):
            return None
        table = table.get(name)
    return table


# The other fields of a record


def seconds(pair: Exchange) -> tuple[float, float]:
    """Return the seconds from request to reply, and to its first token; 0 where they are unknown."""
    record = pair.record
    duration = 0.0
    first = _amount(record.get("time_to_first_token"))
    if "delay_ms" in record:  # Helicone's
        first /= 1000
    for table in (record, record.get("metadata"), record.get("response"), pair.reply):
        if not isinstance(table, dict):
            continue
        for name in DURATIONS.keys() & table.keys():
            duration = duration or _amount(table[name]) / DURATIONS[name]
        for begin_name, end_name in SPANS:
            if begin_name not in table:
                continue
            begin = moment(table[begin_name])
            end = moment(table.get(end_name))
            if begin is None:
                continue
            if end is not None and end > begin:
                duration = duration or end - begin
            for name in FIRST_TOKEN & table.keys():
                first = first or (moment(table[name]) or 0.0) - begin
    if duration > MAX_SECONDS:
        duration = 0.0
    if not 0 < first < duration:  # LiteLLM writes the end where nothing was streamed
        first = 0.0
    return duration, first


def latency_without_unit(record: Table) -> bool:
    """Return whether a record has a duration that may be in seconds or in milliseconds."""
    return any(_amount(record.get(name)) for name in ("latency", "duration", "elapsed"))


def moment(value: Any) -> float | None:
    """Return a moment in seconds since 1970, from a number or a text; None if it isn't one."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return None
        if parsed.tzinfo is None:
            parsed = parsed.replace(tzinfo=UTC)
        return parsed.timestamp()
    amount = _amount(value)
    if amount > MILLISECONDS_FROM:
        amount /= 1000
    return amount or None


def cost(record: Table) -> float | None:
    """Return what a request cost in US dollars; None if the record doesn't say.

    A proxy that doesn't know a model's price writes 0.
    """
    for name in COSTS:
        amount = _amount(_inside(record, name))
        if amount:
            return amount
    return None


def grades(record: Table, scorer: str = "") -> dict[str, Any]:
    """Return the fields of a record that may say whether its reply was right, by name.

    `scorer` is another field, which the user names; a dot leads into a table.
    """
    fields: dict[str, Any] = {}
    if scorer and _inside(record, scorer) is not None:
        fields[scorer] = _inside(record, scorer)
    for table in (record, record.get("metadata")):
        for name in GRADES:
            if isinstance(table, dict) and table.get(name) is not None:
                fields.setdefault(name, table[name])
    scores = record.get("scores")
    if isinstance(scores, dict):
        for name, value in scores.items():
            fields.setdefault(str(name), value)
    elif isinstance(scores, list):
        for score in scores:
            if isinstance(score, dict) and isinstance(score.get("name"), str):
                fields.setdefault(score["name"], score)
    return fields


def grade(value: Any) -> float | None:
    """Return a grade as a number, 1 for right and 0 for wrong; None if it says neither."""
    while isinstance(value, dict):
        value = next((value[name] for name in ("value", "score", "rating") if name in value), None)
    if isinstance(value, str):
        text = value.strip().casefold()
        if text in GOOD:
            return 1.0
        if text in BAD:
            return 0.0
        try:
            value = float(text)
        except ValueError:
            return None
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None


def _amount(value: Any) -> float:
    """Return a positive number; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    if 0 < value < math.inf:
        return float(value)
    return 0.0
