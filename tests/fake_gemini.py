"""Google's generateContent and streamGenerateContent, for `server.py`.

It checks requests as the API does: key, model, names and types of fields, roles, and which model
has which dial of thinking. Sources are Google's SDK (`google.genai.types`), its reference, and
answers in public threads; `test_protocol_gemini.py` has the SDK read all that it writes.

Gemini 3 signs its replies. A signature that comes back must belong to the text that it comes with,
so that a client which changes either is refused.

`fields = {"error": …}` breaks a stream off in its middle, with that error the way Google sends it:
not as an event. `text` of the fault `always` may be the whole body of an error, as JSON.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from aiohttp import web
from server import Length

STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
FIELDS = {
    "contents",
    "systemInstruction",
    "generationConfig",
    "safetySettings",
    "tools",
    "toolConfig",
    "cachedContent",
    "serviceTier",
}
CONFIG = {
    "stopSequences": list,
    "responseMimeType": str,
    "responseSchema": dict,
    "responseJsonSchema": dict,
    "responseModalities": list,
    "candidateCount": int,
    "maxOutputTokens": int,
    "temperature": (int, float),
    "topP": (int, float),
    "topK": (int, float),
    "seed": int,
    "presencePenalty": (int, float),
    "frequencyPenalty": (int, float),
    "responseLogprobs": bool,
    "logprobs": int,
    "enableEnhancedCivicAnswers": bool,
    "speechConfig": dict,
    "thinkingConfig": dict,
    "imageConfig": dict,
    "mediaResolution": str,
}
THINKING = {"includeThoughts": bool, "thinkingBudget": int, "thinkingLevel": str}
LEVELS = ("MINIMAL", "LOW", "MEDIUM", "HIGH", "XHIGH")
SPEED_LIMIT = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [
        {
            "quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests",
            "quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
            "quotaDimensions": {"location": "global", "model": "gemini-2.5-flash"},
            "quotaValue": "10",
        }
    ],
}
RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.05s"}


def error_body(status: int, message: str, *details: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = {"code": status, "message": message, "status": STATUS[status]}
    if details:
        error["details"] = list(details)
    return {"error": error}


def refuse(status: int, message: str, *details: dict[str, Any]) -> NoReturn:
    kinds = {
        400: web.HTTPBadRequest,
        403: web.HTTPForbidden,
        404: web.HTTPNotFound,
    }
    text = json.dumps(error_body(status, message, *details))
    raise kinds[status](text=text, content_type="application/json")


def check_names(table: dict[str, Any], known: Any, place: str) -> None:
    for name in table:
        if name not in known:
            at = f" at '{place}'" if place else ""
            refuse(
                400,
                f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.',
            )


def check_types(table: dict[str, Any], types: dict[str, Any], place: str) -> None:
    check_names(table, types, place)
    for name, value in table.items():
        is_right = isinstance(value, types[name])
        if types[name] is not bool:
            is_right = is_right and not isinstance(value, bool)
        if not is_right:
            refuse(400, f"Invalid value at '{place}.{name}', {json.dumps(value)}")


def camel(value: Any) -> Any:
    """The same JSON with names as the reference writes them: the API takes max_output_tokens too,
    and Google's SDK sends some names so.
    """
    if isinstance(value, list):
        return [camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub("_([a-z])", lambda match: match[1].upper(), name): camel(inner)
        for name, inner in value.items()
    }


def text_of(content: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in content["parts"] if not part.get("thought"))


def signature_of(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def check_contents(contents: Any) -> None:
    if not contents:
        refuse(400, "* GenerateContentRequest.contents: contents is not specified\n")
    for content in contents:
        check_names(content, {"role", "parts"}, "contents[0]")
        if content.get("role", "user") not in ("user", "model"):
            refuse(400, "Please use a valid role: user, model.")
        if not content.get("parts"):
            refuse(
                400,
                "* GenerateContentRequest.contents[0].parts: contents.parts must not be empty.\n",
            )
        for part in content["parts"]:
            check_names(part, {"text", "thought", "thoughtSignature"}, "contents[0].parts[0]")
            # in either alphabet of base64
            signature = part.get("thoughtSignature", "").replace("-", "+").replace("_", "/")
            if signature and signature != signature_of(text_of(content)):
                refuse(400, "Corrupted thought signature.")


def check_thinking(model: str, config: dict[str, Any]) -> None:
    """Refuse a dial that the model doesn't have, in the API's words."""
    check_types(config, THINKING, "generation_config.thinking_config")
    budget = config.get("thinkingBudget")
    level = config.get("thinkingLevel")
    if level is not None and level.upper() not in LEVELS:
        kind = (
            "type.googleapis.com/google.ai.generativelanguage.v1beta.ThinkingConfig.ThinkingLevel"
        )
        place = "generation_config.thinking_config.thinking_level"
        refuse(400, f"Invalid value at '{place}' ({kind}), \"{level}\"")
    if model.startswith("gemini-2.0"):
        refuse(400, "thinking_config is not supported.")
    if budget is not None and level is not None:
        refuse(400, "You can only set only one of thinking budget and thinking level.")
    if level is not None and model.startswith("gemini-2"):
        refuse(400, "Thinking level is not supported for this model.")
    if budget == 0 and ("pro" in model or model.startswith("gemini-3")):
        refuse(400, "Budget 0 is invalid. This model only works in thinking mode.")
    if budget is not None and budget not in (0, -1):
        lowest, highest = (128, 32768) if "pro" in model else (1, 24576)
        if "lite" in model:
            lowest = 512
        if not lowest <= budget <= highest:
            refuse(
                400,
                f"The thinking budget {budget} is invalid. Please choose a value between"
                f" {lowest} and {highest}.",
            )
    if budget == 0 and config.get("includeThoughts"):
        refuse(
            400,
            "Unable to submit request because Thinking_config.include_thoughts is only enabled"
            " when thinking is enabled.",
        )


class Fake:
    pages = (
        "/v1beta/{folder:models|tunedModels}/{model}:{method:generateContent|streamGenerateContent}",
    )
    lists = ("/v1beta/models",)

    def messages(self, body: dict[str, Any]) -> list[dict[str, str]]:
        for name, value in camel(dict(body)).items():
            body.pop(name, None)
            body[name] = value
        check_names(body, FIELDS, "")
        check_contents(body.get("contents"))
        config = body.get("generationConfig", {})
        check_types(config, CONFIG, "generation_config")
        if not 0 <= config.get("temperature", 1) <= 2:
            refuse(
                400, "* GenerateContentRequest.generation_config.temperature: must be in [0, 2].\n"
            )
        if not 0 < config.get("maxOutputTokens", 1) <= 65536:
            refuse(
                400,
                "Unable to submit request because it has a maxOutputTokens value of"
                f" {config['maxOutputTokens']} but the supported range is from 1 (inclusive) to"
                " 65537 (exclusive). Update the value and try again.",
            )
        body["seed"] = config.get("seed")  # where the server looks for it
        messages = list[dict[str, str]]()
        if "systemInstruction" in body:
            messages.append({"role": "system", "content": text_of(body["systemInstruction"])})
        for content in body["contents"]:
            role = "assistant" if content.get("role") == "model" else "user"
            messages.append({"role": role, "content": text_of(content)})
        return messages

    def budget(self, body: dict[str, Any]) -> float:
        return body.get("generationConfig", {}).get("maxOutputTokens", math.inf)

    def streams(self, request: web.Request, body: dict[str, Any]) -> bool:
        """Check what isn't in the body, key and model, and whether the page is the streaming one."""
        key = request.headers.get("x-goog-api-key") or request.query.get("key")
        if not key:
            refuse(
                403,
                "Method doesn't allow unregistered callers (callers without established identity)."
                " Please use API Key or other form of API consumer identity to call this API.",
            )
        if key.startswith("bad"):
            invalid = {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID",
                "domain": "googleapis.com",
                "metadata": {"service": "generativelanguage.googleapis.com"},
            }
            refuse(400, "API key not valid. Please pass a valid API key.", invalid)
        model = request.match_info["model"]
        if request.match_info["folder"] == "models" and not model.startswith("gemini-"):
            refuse(
                404,
                f"models/{model} is not found for API version v1beta, or is not supported for"
                " generateContent. Call ListModels to see the list of available models and their"
                " supported methods.",
            )
        config = body.get("generationConfig", {}).get("thinkingConfig")
        if config is not None:
            check_thinking(model, config)
        body["model"] = model  # for the reply
        streams = request.match_info["method"] == "streamGenerateContent"
        assert not streams or request.query.get("alt") == "sse", "else it is a JSON array"
        return streams

    def reply(
        self, answer: str, thinking: str, length: Length, body: dict[str, Any]
    ) -> dict[str, Any]:
        model = body["model"]
        config = body.get("generationConfig", {}).get("thinkingConfig", {})
        thoughts = length.thinking
        budget = config.get("thinkingBudget", -1)
        if model.startswith("gemini-2.0"):
            budget = 0
        if "lite" in model and "thinkingBudget" not in config:  # off unless asked for
            budget = 0
        if budget >= 0:
            thoughts = min(thoughts, budget)
        parts = list[dict[str, Any]]()
        if config.get("includeThoughts") and thoughts:
            parts.append({"text": thinking, "thought": True})
        if not length.cut:
            parts.append({"text": answer})
            if model.startswith("gemini-3"):
                parts[-1]["thoughtSignature"] = signature_of(answer)
        content: dict[str, Any] = {"role": "model"}
        if parts:
            content["parts"] = parts
        usage = {
            "promptTokenCount": length.prompt,
            "candidatesTokenCount": length.answer,
            "totalTokenCount": length.prompt + length.answer + thoughts,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": length.prompt}],
            "thoughtsTokenCount": thoughts,
            "serviceTier": "standard",
        }
        # as in all JSON of Google's, a count of 0 is left out
        usage = {name: count for name, count in usage.items() if count}
        stop = "MAX_TOKENS" if length.cut else "STOP"
        return {
            "candidates": [{"content": content, "finishReason": stop, "index": 0}],
            "usageMetadata": usage,
            "modelVersion": model,
            "responseId": "JPozaonvK7yzvdIPrJ7FyAk",
        }

    def events(self, said: dict[str, Any]) -> Iterator[bytes]:
        """Texts in pieces of four characters; each event counts the tokens so far."""
        every = {name: said[name] for name in ("modelVersion", "responseId")}
        usage = said["usageMetadata"]
        begun = {
            name: usage[name]
            for name in ("promptTokenCount", "thoughtsTokenCount", "promptTokensDetails")
            if name in usage
        }
        begun["totalTokenCount"] = sum(v for v in begun.values() if isinstance(v, int))
        end = {"usageMetadata": usage, **every}
        if "promptFeedback" in said:
            end["promptFeedback"] = said["promptFeedback"]
        if not said["candidates"]:
            yield event(end)
            return
        (candidate,) = said["candidates"]
        parts = candidate.get("content", {}).get("parts", [])
        for part in parts:
            kind = {"thought": True} if part.get("thought") else {}
            for at in range(0, len(part["text"]), 4):
                content = {"parts": [{"text": part["text"][at : at + 4], **kind}], "role": "model"}
                piece = {"content": content, "index": 0}
                yield event({"candidates": [piece], "usageMetadata": begun, **every})
        if "error" in said:
            yield json.dumps({"error": said["error"]}, indent=2).encode()
            return
        signatures = [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]
        last = {name: value for name, value in candidate.items() if name != "content"}
        if signatures:  # in a part of its own, without text
            signed = {"text": "", "thoughtSignature": signatures[-1]}
            last["content"] = {"parts": [signed], "role": "model"}
        yield event({"candidates": [last], **end})

    def error(self, status: int, text: str) -> dict[str, Any] | None:
        if text.startswith("{"):
            body: dict[str, Any] = json.loads(text)
            return body
        if status not in STATUS:
            return None
        return error_body(status, text, *([SPEED_LIMIT, RETRY] if status == 429 else []))

    def models(self, names: list[str]) -> dict[str, Any]:
        listed = list[dict[str, Any]]()
        for name in names:
            model = {
                "name": f"models/{name}",
                "version": "001",
                "displayName": name,
                "description": "",
                "inputTokenLimit": 1048576,
                "outputTokenLimit": 65536,
                "supportedGenerationMethods": ["generateContent", "countTokens"],
                "temperature": 1,
                "topP": 0.95,
                "topK": 64,
                "maxTemperature": 2,
                "thinking": not name.startswith("gemini-2.0"),
            }
            listed.append(model)
        return {"models": listed}


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\r\n\r\n"
