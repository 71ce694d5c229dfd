"""Reads the reply of a chat endpoint, whatever dialect it speaks: thinking, answer, why it ended,
and its bill.

Thinking may be in `reasoning_content`, in `reasoning` or `reasoning_details`, in content parts of
their own, or between `<think>` tags. Servers differ in their bookkeeping too. A reply with an
answer is never rejected because of it: a token count that can't be one is treated as not given.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from ponder.core import Bill, Spend, UserError
from ponder.core.nouns import CountedBy
from ponder.core.text import encodable
from ponder.tasks.reading import split_thinking

T = TypeVar("T")
MOST_TOKENS = 10**9  # no single call has more: such a count is an error
MOST_BYTES = 64 * 2**20  # of a response; a million tokens take some 5 MB
MOST_STREAMED = 8 * MOST_BYTES  # an event takes 200 to 500 bytes for each token
# finish reasons
_CUT = {"length", "max_tokens", "max_output_tokens", "max_completion_tokens", "model_length"}
# error codes
_FILTERS = {"content_filter", "content_policy_violation", "responsibleaipolicyviolation"}
_THINKING_PARTS = ("thinking", "reasoning", "reasoning_text", "reasoning.text")
_TEXT_FIELDS = ("text", "thinking", "content", "reasoning", "summary")


class Malformed(ValueError):
    """The server has answered, but not with a reply."""


class NoChoices(Malformed):
    """The server has answered with JSON that has no choices; `error` is what it says is wrong, if
    anything.
    """

    def __init__(self, reply: Reply, content: bytes) -> None:
        self.error = reply.error
        self.empty = reply.choices is not None  # a chat endpoint's reply, but without an answer
        start = content[:200].decode("utf-8", "replace")
        super().__init__(f"the endpoint's reply has no choices: {reply.error or start}")


class TooLong(Malformed):
    """The response goes on and on."""


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
    token_ids: Any = None  # vLLM's, if asked for them
    prompt_token_ids: Any = None  # where a text is completed; in a chat the reply has them


class Reply(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None
    model: Any = None
    prompt_token_ids: Any = None


@dataclass(frozen=True, slots=True)
class Said:
    """What a reply says."""

    thinking: str
    answer: str
    stop: Literal["end", "length"]
    note: str  # why there is no answer; "" if there is one
    refusal: str = ""  # its text, which is no answer to grade
    # the texts as they came, with spaces and tags
    written: tuple[str, ...] = field(default=(), compare=False)


_decoder = msgspec.json.Decoder(Reply)


async def whole(chunks: AsyncIterator[bytes]) -> bytes:
    """The body of a response; raises `TooLong` if it is too long."""
    return b"".join([chunk async for chunk in limited(chunks, MOST_BYTES)])


async def limited(chunks: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    """The same chunks; raises `TooLong` if they have more than so many bytes."""
    left = most
    async for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            raise TooLong(f"the endpoint's reply is larger than {most / 2**20:g} MB")
        yield chunk


def decode(content: bytes) -> Reply:
    """The reply in the body of a response."""
    reply = decode_json(content, _decoder)
    if not reply.choices:
        if filtered(reply.error):
            return Reply([Choice(None, "content_filter")], reply.usage)
        raise NoChoices(reply, content)
    return reply


def decode_json(content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # Python's own parser also takes invalid UTF-8, half a surrogate pair, NaN, and numbers of any
    # length.
    try:
        data = json.loads(content.decode("utf-8-sig", "replace"), parse_int=float)
        if isinstance(data, dict) and isinstance(data.get("choices"), list):
            # the others may be anything
            data["choices"] = [choice for choice in data["choices"] if choice][:1]
        reply: T = msgspec.convert(data, decoder.type)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the endpoint's reply is malformed JSON: {error}") from None
    return reply


def rejected(content: bytes) -> bool:
    """Whether the body of a response says that a content filter has stopped the prompt."""
    try:
        return filtered(decode_json(content, _decoder).error)
    except Malformed:
        return False


def filtered(error: Any) -> bool:
    """Whether an error says that a content filter has stopped the prompt or the reply."""
    if not isinstance(error, dict):
        return False
    codes = (error.get("code"), error.get("type"), _inside(error, "innererror", "code"))
    flagged = _inside(error, "metadata", "flagged_input")  # OpenRouter's moderation
    return flagged is not None or any(
        isinstance(code, str) and code.lower() in _FILTERS for code in codes
    )


def read(reply: Reply) -> Said:
    """Thinking and answer of a reply, and how it ended."""
    choice = (reply.choices or [Choice()])[0]
    message = choice.message or ReplyMessage()
    answer, thinking, refusal = _parts(message.content)
    for given in (message.reasoning_details, message.reasoning, message.reasoning_content):
        thinking = text if (text := _text(given)).strip() else thinking
    thinking, answer, refusal = (
        encodable(thinking),
        encodable(answer),
        encodable(refusal or _text(message.refusal)),
    )
    written = (thinking, answer, refusal)
    if not thinking.strip():
        thinking, answer = split_thinking(answer)
    finish = choice.finish_reason.lower() if isinstance(choice.finish_reason, str) else ""
    if finish == "error" or (reply.error and not (thinking or answer)):
        raise Malformed(
            f"the endpoint reports an error in its reply: {reply.error or 'it does not say which'}"
        )
    stop: Literal["end", "length"] = "length" if finish in _CUT else "end"
    if finish == "content_filter":
        return Said(thinking, answer, stop, "content filter", written=written)
    if refusal:
        return Said(thinking, answer, stop, "refusal", refusal, written)
    note = "" if thinking or answer or stop == "length" else "empty reply"
    return Said(thinking, answer, stop, note, written=written)


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
        return next(
            (text for name in _TEXT_FIELDS if (text := _text(value.get(name), depth - 1))), ""
        )
    return ""


def bill(
    usage: Any, said: Said, seconds: float, count: Callable[[str], int] | None = None, sent: int = 0
) -> Bill:
    """Return what a reply cost: counted by the server, else by a tokenizer, else estimated from the
    characters.

    Some servers include the thinking in `completion_tokens`, some count it beside them, and some
    only in the total. So the output is what the total leaves beside the prompt, and what it has
    more than the completion is thinking. `sent` is an estimate of the prompt's tokens, used if the
    server doesn't count them.
    """
    usage = usage if isinstance(usage, dict) else {}
    prompt, cached = _prompt(usage)
    visible = said.answer or said.refusal
    output, hidden = output_tokens(usage), 0
    if (completion := completion_tokens(usage)) or not visible:
        hidden = output - completion
    thought = max(reasoning_tokens(usage), hidden)
    by: CountedBy = "server"
    if (
        not output
        or (said.thinking and not reasoning_tokens(usage))
        or (visible and not completion and not thought)
    ):
        # What the server counts stays the sum.
        if count:
            by, thought = "tokenizer", max(hidden, count(said.thinking))
            output = output or thought + count(visible)
        else:
            characters = len(said.thinking) + len(visible)
            output = output or characters // 4
            by, thought = (
                "estimate",
                max(hidden, round(output * len(said.thinking) / max(1, characters))),
            )
        thought = min(thought, output)
    return Bill(
        prompt or sent,
        thought,
        output - thought,
        seconds,
        by if prompt or not sent else "estimate",
        cached,
    )


def slack(usage: Any, said: Said, bill: Bill, budget: int | None, prompt_limit: int) -> Spend:
    """Return what to add to a bill for an upper bound, where the server doesn't report its tokens.

    A reply that was cut off, or whose count can't be one, may have taken its whole budget. Any
    other has at most one token per byte of its text.
    """
    usage = usage if isinstance(usage, dict) else {}
    prompt = completion = 0
    if not prompt_tokens(usage):
        prompt = prompt_limit - bill.prompt_tokens
    if not output_tokens(usage):
        limit = sum(len(text.encode()) for text in said.written)
        if budget is not None:
            limit = budget if usage or said.stop == "length" else min(limit, budget)
        completion = limit - bill.thinking_tokens - bill.answer_tokens
    return Spend(prompt, completion)


def output_tokens(usage: dict[str, Any]) -> int:
    """Return the tokens that a server bills as output, thinking included; 0 if it doesn't count
    them.
    """
    completion, reasoning = completion_tokens(usage), reasoning_tokens(usage)
    output = completion
    # without it, nobody knows how much of the total is the prompt's
    if prompt := prompt_tokens(usage):
        output = max(completion, as_count(usage.get("total_tokens")) - prompt)
    # Without a total, a completion smaller than its reasoning can't include it.
    return output if output >= reasoning else completion + reasoning


def completion_tokens(usage: dict[str, Any]) -> int:
    return as_count(usage.get("completion_tokens")) or as_count(usage.get("output_tokens"))


def reasoning_tokens(usage: dict[str, Any]) -> int:
    return _either(
        usage, ("completion_tokens_details", "output_tokens_details"), "reasoning_tokens"
    )


def prompt_tokens(usage: dict[str, Any]) -> int:
    return _prompt(usage)[0]


def _prompt(usage: dict[str, Any]) -> tuple[int, int]:
    """Prompt tokens, and those of them from the server's cache, as OpenAI and vLLM, DeepSeek or
    Anthropic name them.
    """
    cached = _either(usage, ("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    cached = cached or as_count(usage.get("prompt_cache_hit_tokens"))
    if prompt := as_count(usage.get("prompt_tokens")):
        cached = cached or as_count(usage.get("cache_read_input_tokens"))
        beyond = as_count(usage.get("total_tokens")) - prompt - completion_tokens(usage)
        created = as_count(usage.get("cache_creation_input_tokens"))
        if (
            beyond > 0
            and beyond != reasoning_tokens(usage)
            and beyond in (cached, created, cached + created)
        ):
            prompt += beyond  # the total says that they are counted beside the prompt
        return prompt, min(prompt, cached)
    # Anthropic counts what it reads from its cache, and what it writes to it, beside the input
    # tokens.
    beside = [as_count(usage.get(f"cache_{kind}_input_tokens")) for kind in ("read", "creation")]
    prompt = as_count(usage.get("input_tokens")) + sum(beside)
    return prompt, min(prompt, cached or beside[0])


def _either(usage: dict[str, Any], names: tuple[str, ...], field: str) -> int:
    """A count inside one of these fields."""
    return next((tokens for name in names if (tokens := as_count(_inside(usage, name, field)))), 0)


def _inside(usage: dict[str, Any], name: str, field: str) -> Any:
    details = usage.get(name)
    return details.get(field) if isinstance(details, dict) else None


def as_count(value: Any) -> int:
    """A count from outside; 0 if it isn't given or can't be one."""
    if isinstance(value, str):
        value = float(value) if value.isdecimal() and len(value) < 20 else None
    countable = isinstance(value, int | float) and not isinstance(value, bool)
    # not nan: no comparison with it is true
    return int(value) if countable and 0 <= value <= MOST_TOKENS else 0


def load_tokenizer(name: str) -> Callable[[str], int]:
    """A function that counts the tokens of a text."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        what = "counting with a tokenizer needs a package that isn't installed: tokenizers"
        raise UserError(what, hint="pip install tokenizers") from None
    try:
        tokenizer = (
            Tokenizer.from_file(name) if name.endswith(".json") else Tokenizer.from_pretrained(name)
        )
    except Exception as error:  # its errors have no common type
        what = f"can't load the tokenizer `{name}`: {error}"
        raise UserError(what, hint="a tokenizer.json, or a model's id on the hub") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
