"""Reads the reply of a chat endpoint, whatever dialect it speaks: thinking, answer, why it ended, and its bill.

Thinking may be in `reasoning_content`, in `reasoning` or `reasoning_details`, in content parts of their own, or between
`<think>` tags. Servers differ in their bookkeeping too. A reply with an answer is never rejected because of it: a token
count that can't be one is treated as not given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from ponder.core import Bill, UserError
from ponder.core.answers import split_thinking

T = TypeVar("T")
MOST_TOKENS = 10**9  # no single call has more: such a count is an error
_THINKING_PARTS = ("thinking", "reasoning", "reasoning_text", "reasoning.text")
_TEXT_FIELDS = ("text", "thinking", "content", "reasoning", "summary")


class Malformed(ValueError):
    """The server has answered, but not with a reply."""


class ReplyMessage(msgspec.Struct):
    """Every field may be a text, an object, a list of parts, or missing."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None


class Choice(msgspec.Struct):
    message: ReplyMessage | None = None
    finish_reason: Any = None


class Reply(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None


class Said(NamedTuple):
    """What a reply says."""

    thinking: str
    answer: str
    stop: Literal["end", "length"]
    note: str  # why there is no answer; "" if there is one


_decoder = msgspec.json.Decoder(Reply)


def decode(content: bytes) -> Reply:
    """The reply in the body of a response."""
    reply = decode_json(content, _decoder)
    if not reply.choices:
        raise Malformed(f"the endpoint's reply has no choices: {reply.error or ''}")
    return reply


def decode_json(content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # Python's own parser also takes invalid UTF-8, half a surrogate pair, NaN, and numbers of any length.
    try:
        data = json.loads(content.decode("utf-8", "replace"), parse_int=float)
        reply: T = msgspec.convert(data, decoder.type)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the endpoint's reply is malformed JSON: {error}") from None
    return reply


def read(reply: Reply) -> Said:
    """Thinking and answer of a reply, and how it ended."""
    choice = (reply.choices or [Choice()])[0]
    message = choice.message or ReplyMessage()
    answer, thinking, refusal = _parts(message.content)
    for given in (message.reasoning_details, message.reasoning, message.reasoning_content):
        thinking = _text(given) or thinking
    if not thinking:
        thinking, answer = split_thinking(answer)
    if choice.finish_reason == "error" or (reply.error and not (thinking or answer)):
        raise Malformed(f"the endpoint reports an error in its reply: {reply.error or ''}")
    stop: Literal["end", "length"] = "length" if choice.finish_reason in ("length", "max_tokens") else "end"
    if choice.finish_reason == "content_filter":
        return Said(thinking, answer, stop, "content filter")
    if refusal or _text(message.refusal):
        return Said(thinking, answer, stop, "refusal")
    return Said(thinking, answer, stop, "" if thinking or answer or stop == "length" else "empty reply")


def _parts(content: Any) -> tuple[str, str, str]:
    """Answer, thinking and refusal in a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content, "", ""
    texts = {"answer": "", "thinking": "", "refusal": ""}
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else ""
        if kind == "refusal":
            texts["refusal"] += _text(part.get("refusal"))
        else:
            texts["thinking" if kind in _THINKING_PARTS else "answer"] += _text(part)
    return texts["answer"], texts["thinking"], texts["refusal"]


def _text(value: Any, depth: int = 4) -> str:
    """The text of a field that is a text, an object with a text in it, or a list of these."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and depth:
        return "".join([_text(one, depth - 1) for one in value])
    if isinstance(value, dict) and depth:
        return next((text for name in _TEXT_FIELDS if (text := _text(value.get(name), depth - 1))), "")
    return ""


def bill(usage: Any, said: Said, seconds: float, count: Callable[[str], int] | None = None) -> Bill:
    """What a reply cost: counted by the server, else by a tokenizer, else estimated from the characters."""
    usage = usage if isinstance(usage, dict) else {}
    prompt, total = _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens"))
    thought = _tokens(_inside(usage, "completion_tokens_details", "reasoning_tokens"))
    cached = min(prompt, _cached(usage))
    if total and (thought or not said.thinking):
        # Some servers include the thinking in completion_tokens, some don't.
        return Bill(prompt, thought, total - thought if total >= thought else total, seconds, "server", cached)
    if count:
        thought = count(said.thinking)
        answered = max(0, total - thought) if total else count(said.answer)
        return Bill(prompt, thought, answered, seconds, "tokenizer", cached)
    characters = len(said.thinking) + len(said.answer)
    total = total or characters // 4
    thought = round(total * len(said.thinking) / max(1, characters))
    return Bill(prompt, thought, total - thought, seconds, "estimate", cached)


def _cached(usage: dict[str, Any]) -> int:
    """Prompt tokens from the server's cache, as OpenAI and vLLM, DeepSeek, or proxies for Anthropic name them."""
    return (
        _tokens(_inside(usage, "prompt_tokens_details", "cached_tokens"))
        or _tokens(usage.get("prompt_cache_hit_tokens"))
        or _tokens(usage.get("cache_read_input_tokens"))
    )


def _inside(usage: dict[str, Any], name: str, field: str) -> Any:
    details = usage.get(name)
    return details.get(field) if isinstance(details, dict) else None


def _tokens(value: Any) -> int:
    """A count from outside; 0 if it isn't given or can't be one."""
    if isinstance(value, str):
        value = float(value) if value.isdecimal() and len(value) < 20 else None
    countable = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if countable and 0 <= value <= MOST_TOKENS else 0  # not nan: no comparison with it is true


def load_tokenizer(name: str) -> Callable[[str], int]:
    """A function that counts the tokens of a text."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        what = "counting with a tokenizer needs a package that isn't installed: tokenizers"
        raise UserError(what, hint="pip install tokenizers") from None
    try:
        tokenizer = Tokenizer.from_file(name) if name.endswith(".json") else Tokenizer.from_pretrained(name)
    except Exception as error:  # its errors have no common type
        what = f"can't load the tokenizer `{name}`: {error}"
        raise UserError(what, hint="a tokenizer.json, or a model's id on the hub") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
