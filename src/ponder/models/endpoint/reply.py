"""A reply of an endpoint in whatever protocol it came, the tokens it took, and its bill.

A reply with an answer is never rejected because of the server's bookkeeping: a token count that
can't be one is treated as not reported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from ponder.core import Bill, Spend
from ponder.core.nouns import CountedBy

T = TypeVar("T")
MAX_TOKENS = 10**9  # no single call has more: such a count is an error
LONGEST_TOKEN = 8  # bytes: no text has longer tokens on average; English prose has 4 to 5


class Malformed(ValueError):
    """The server has answered, but not with a reply."""


class TooLong(Malformed):
    """The response is longer than any reply can be."""


class NoReply(Malformed):
    """The server has answered with JSON that holds no reply."""

    def __init__(self, message: str, *, status: int, other_page: bool) -> None:
        super().__init__(message)
        self.status = status  # the HTTP status that the error in it names; 0 if it names none
        self.other_page = other_page  # whether nothing in it looks like a page of this protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A server's token counts; 0 where it reports none."""

    prompt: int = 0
    cached: int = 0  # prompt tokens read from the server's cache
    completion: int = 0  # as reported: with or without the thinking
    reasoning: int = 0
    output: int = 0  # all that is billed as output, thinking included
    reported: bool = False  # whether the server sent any usage
    cost: float | None = None  # the price of the reply in US dollars, if the server reports it


@dataclass(frozen=True, slots=True)
class Reply:
    """The texts of a reply, why it ended, and what the server reports about it."""

    thinking: str
    answer: str
    stop: Literal["end", "length"]
    note: str  # why there is no answer; "" if there is one
    refusal: str = ""  # its text, which is not an answer to grade
    # the texts as they came, with spaces and tags
    written: tuple[str, ...] = field(default=(), compare=False)
    usage: Usage = Usage()
    model: str = ""  # the name under which the server answers
    tokens: Sequence[int] = ()  # token ids of the reply, if the server returns them
    prompt: Sequence[int] = ()  # token ids of the prompt, if the server returns them
    # whether the thinking's text is only a summary of what the model thought, or missing
    summarized: bool = False
    # the reply as its server must get it back in later turns, as JSON: thinking blocks with their
    # signatures; "" if the texts are enough
    blocks: str = ""
    # other measurements that the server reports, such as its own computing time
    measures: Mapping[str, float] = field(default_factory=dict)


def bill(
    reply: Reply,
    seconds: float,
    count: Callable[[str], int] | None = None,
    prompt_estimate: int = 0,
) -> Bill:
    """Return a reply's bill: counted by the server, else by `count`, else estimated by characters.

    Some servers include the thinking in the completion tokens, some count it separately, and some
    only in the total. So the output is the total minus the prompt, and output beyond the completion
    is thinking. If the thinking is summarized, its text says nothing about its tokens, so all that
    isn't the answer's is thinking. `prompt_estimate` is used if the server doesn't count the prompt.
    """
    usage = reply.usage
    visible = reply.answer or reply.refusal
    output = usage.output
    hidden = 0
    if usage.completion or not visible:
        hidden = output - usage.completion
    thinking = max(usage.reasoning, hidden)
    counted_by: CountedBy = "server"
    has_thinking = reply.thinking or reply.summarized
    thinking_uncounted = has_thinking and not usage.reasoning
    answer_uncounted = visible and not usage.completion and not thinking
    if not output or thinking_uncounted or answer_uncounted:
        # The server's output count, if any, stays the sum.
        if count:
            counted_by = "tokenizer"
            thinking = max(hidden, count(reply.thinking))
            output = output or thinking + count(visible)
        else:
            counted_by = "estimate"
            characters = len(reply.thinking) + len(visible)
            output = output or characters // 4
            thinking = max(hidden, round(output * len(reply.thinking) / max(1, characters)))
        if reply.summarized and usage.output:
            answer_estimate = count(visible) if count else math.ceil(len(visible) / 4)
            thinking = max(hidden, output - answer_estimate)
        thinking = min(thinking, output)
    if prompt_estimate and not usage.prompt:
        counted_by = "estimate"
    prompt = usage.prompt or prompt_estimate
    return Bill(prompt, thinking, output - thinking, seconds, counted_by, usage.cached)


def slack(reply: Reply, bill: Bill, budget: int | None, prompt_limit: int) -> Spend:
    """Return what to add to a bill for an upper bound, where the server doesn't report its tokens.

    A reply that was cut off or has no text, whose thinking isn't all shown, or whose count can't be
    one, may have taken its whole budget. Any other has at most one token per byte of its text, and
    no more than its budget, unless the text is so long that the server has ignored it.
    """
    usage = reply.usage
    prompt = 0
    if not usage.prompt:
        prompt = prompt_limit - bill.prompt_tokens
    completion = 0
    if not usage.output:
        limit = sum(len(text.encode()) for text in reply.written)
        if budget is not None and limit <= LONGEST_TOKEN * budget:
            is_partial = reply.stop == "length" or reply.summarized
            if usage.reported or is_partial or not limit:
                limit = budget
            limit = min(limit, budget)
        completion = limit - bill.thinking_tokens - bill.answer_tokens
    return Spend(prompt, completion)


def as_count(value: Any) -> int:
    """Return a count from outside; 0 if it is missing or can't be a count."""
    if isinstance(value, str):
        value = float(value) if value.isdecimal() and len(value) < 20 else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if 0 <= value <= MAX_TOKENS:  # never true of nan
        return int(value)
    return 0


def decode_json(
    content: bytes, decoder: msgspec.json.Decoder[T], tidy: Callable[[Any], None] | None = None
) -> T:
    """Decode JSON from outside; raise `Malformed` if it doesn't have the decoder's type.

    `tidy` may change the data in place before its type is checked again.
    """
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # Python's own parser also takes invalid UTF-8, half a surrogate pair, NaN, and numbers of any
    # length.
    try:
        data = json.loads(content.decode("utf-8-sig", "replace"), parse_int=float)
        if tidy:
            tidy(data)
        decoded: T = msgspec.convert(data, decoder.type)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the endpoint's reply is malformed JSON: {error}") from None
    return decoded
