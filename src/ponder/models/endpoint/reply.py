"""Holds a reply of an endpoint, the same for all protocols, and computes its bill.

A reply with an answer is never rejected because of the server's bookkeeping: an impossible token
count is treated as not reported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import msgspec

from ponder.core import Bill, Prices, Spend
from ponder.core.nouns import CountedBy

T = TypeVar("T")
MAX_PRICE = 0.01  # dollars per token: more is in another unit
TICKS_PER_DOLLAR = 10**10  # xAI's
MAX_TOKENS = 10**9  # no single call has more: such a count is an error
# Characters: no text has longer tokens on average. English prose has 4 to 5, Russian about as many.
LONGEST_TOKEN = 8


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
    return Bill(
        prompt, thinking, output - thinking, seconds, counted_by, usage.cached, cost=usage.cost
    )


def without_false_count(reply: Reply) -> Reply:
    """Return a reply; if its text has more tokens than the server counts, without that count."""
    usage = reply.usage
    most_characters = LONGEST_TOKEN * usage.output
    # The first is true of nearly every reply, and fast.
    if sum(map(len, reply.written)) <= most_characters or fewest_tokens(reply) <= usage.output:
        return reply
    return replace(reply, usage=replace(usage, completion=0, reasoning=0, output=0))


def fewest_tokens(reply: Reply) -> int:
    """Return a lower bound on the tokens of a reply, from its text.

    A summary of the thinking isn't part of the reply's tokens. Spaces may be many to a token.
    """
    texts = reply.written
    if reply.summarized:
        texts = (reply.answer, reply.refusal)
    characters = 0
    for text in texts:
        characters += len(" ".join(text.split()))
    return characters // LONGEST_TOKEN


def slack(reply: Reply, bill: Bill, budget: int | None, prompt_limit: int) -> Spend:
    """Return what to add to a bill for an upper bound where the server doesn't report its tokens.

    A reply whose whole thinking is shown has at most one token per byte of its text. Any other may
    have taken its whole budget: one that was cut off, whose thinking may be hidden, or whose count
    can't be one. A reply that must be longer than its budget shows that the server ignores it.
    """
    usage = reply.usage
    prompt = 0
    if not usage.prompt:
        prompt = prompt_limit - bill.prompt_tokens
    completion = 0
    if not usage.output:
        limit = sum(len(text.encode()) for text in reply.written)
        if budget is not None and fewest_tokens(reply) <= budget:
            shows_all = reply.thinking and not reply.summarized and reply.stop == "end"
            if usage.reported or not shows_all:
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


def read_cost(usage: Mapping[str, Any]) -> float | None:
    """Return the cost in a response's `usage`, in US dollars; None if it is missing or can't be one.

    OpenRouter reports `cost`; with the user's own key at a provider, that is its fee alone, and
    `cost_details` has what the provider charges. xAI reports ticks, of which a dollar has 10^10.
    """
    dollars = _as_amount(usage.get("cost"))
    if dollars is not None:
        details = usage.get("cost_details")
        if usage.get("is_byok") is True and isinstance(details, Mapping):
            dollars += _as_amount(details.get("upstream_inference_cost")) or 0.0
        return dollars
    ticks = _as_amount(usage.get("cost_in_usd_ticks"))
    if ticks is not None:
        return ticks / TICKS_PER_DOLLAR
    return None


def _as_amount(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if 0 <= value < math.inf:  # never true of nan
        return float(value)
    return None


def read_prices(pricing: Any) -> Prices | None:
    """Return the prices of a model in OpenRouter's list, which are dollars per token, as texts.

    Return None for anything else: other servers' lists have other names and units, a router's
    price is -1, and a price per request can't be told as one per token.
    """
    if not isinstance(pricing, Mapping):
        return None
    prompt = _per_million(pricing.get("prompt"))
    completion = _per_million(pricing.get("completion"))
    if prompt is None or completion is None or _per_million(pricing.get("request", 0)) != 0:
        return None
    return Prices(prompt, completion, _per_million(pricing.get("input_cache_read")))


def _per_million(price: Any) -> float | None:
    if isinstance(price, str):
        try:
            price = float(price)
        except ValueError:
            return None
    dollars = _as_amount(price)
    if dollars is None or dollars > MAX_PRICE:
        return None
    return round(1e6 * dollars, 9)  # without the last digits of a binary fraction


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
