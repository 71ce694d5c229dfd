"""Times the tokens of a reply: by the arrival of a stream's texts, and by the server's own report.

`first_token_seconds` run from the request to the first text, `decode_seconds` from the first token
to the last, and `tokens_per_second` are those after the first, divided by `decode_seconds`.
`work_seconds` are the time in which the server computed the reply, by its own report; the client
derives `wait_seconds`, the remainder of the call: the server's queue and the network.
"""

from __future__ import annotations

from typing import Any

from ponder.core import Bill
from ponder.models.endpoint.reply import Reply, Usage, as_count
from ponder.models.endpoint.stream import Deadline

# Tokens per second of one reply. The fastest hosted models reach a few thousand: a stream that
# seems faster was held back on its way, and its times are those of a proxy.
MAX_RATE = 20_000
MAX_SECONDS = 1e7  # a server that reports more reports something else


class StreamTimes:
    """When the texts of a streamed reply came, on the clock of the event loop.

    Events that the network brings together count as one moment: the time between them is the
    parser's, not the model's.
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self.first: float | None = None
        self.last = 0.0
        self.events = 0
        self.first_events = 0  # those that came together with the first

    def on_text(self) -> None:
        self.last = self._deadline.arrived
        if self.first is None:
            self.first = self.last
            self._deadline.begin()
        self.events += 1
        if self.last == self.first:
            self.first_events += 1


def stream_measures(
    times: StreamTimes, started: float, reply: Reply, bill: Bill
) -> dict[str, float]:
    """Return the times of a streamed reply, whose request was sent at `started`.

    Thinking that is billed but hidden, or shown as a summary, was written before or between the
    texts: then there is no decoding time. Nor is there if all texts came together.
    """
    if times.first is None:
        return {}
    measures = {"first_token_seconds": times.first - started}
    is_whole = not bill.thinking_tokens or (reply.thinking and not reply.summarized)
    decode_seconds = times.last - times.first
    # An event may hold several tokens, so the first moment's are counted by its events.
    fraction = (times.events - times.first_events) / times.events
    tokens = (bill.thinking_tokens + bill.answer_tokens) * fraction
    if not is_whole or decode_seconds <= 0 or tokens > MAX_RATE * decode_seconds:
        return measures
    measures["decode_seconds"] = decode_seconds
    if tokens and (reply.usage.output or bill.counted_by == "tokenizer"):
        measures["tokens_per_second"] = tokens / decode_seconds
    return measures


def reported_measures(
    reported_usage: Any, usage: Usage, timings: Any = None, metrics: Any = None
) -> dict[str, float]:
    """Return the times that a server reports next to its reply; none if it reports none.

    `timings` are llama.cpp's; `metrics` are vLLM's, if it was started with
    `--enable-per-request-metrics`; Groq's are in its usage.
    """
    measures = {}
    if isinstance(timings, dict):
        prompt = _seconds(timings.get("prompt_ms"), 1000)
        decode = _seconds(timings.get("predicted_ms"), 1000)
        if prompt is not None and decode is not None:
            measures["work_seconds"] = prompt + decode
            measures |= _decoding(decode, as_count(timings.get("predicted_n")))
    elif isinstance(metrics, dict):
        # from its scheduling, so without the queue
        first_token = _seconds(metrics.get("time_to_first_token_ms"), 1000)
        decode = _seconds(metrics.get("generation_time_ms"), 1000)
        if first_token is not None and decode is not None:
            measures["work_seconds"] = first_token + decode
            measures |= _decoding(decode, usage.output)
    elif isinstance(reported_usage, dict):
        prompt = _seconds(reported_usage.get("prompt_time"))
        completion = _seconds(reported_usage.get("completion_time"))
        if prompt is not None and completion is not None:
            # Whether the first token belongs to the completion isn't documented, so no rate.
            measures["work_seconds"] = prompt + completion
    return measures


def _decoding(seconds: float, tokens: int) -> dict[str, float]:
    """Return the measures of decoding; none for a single token, which is part of the prefill."""
    if tokens < 2 or seconds <= 0:
        return {}
    return {"decode_seconds": seconds, "tokens_per_second": (tokens - 1) / seconds}


def _seconds(value: Any, per_second: float = 1) -> float | None:
    """Return a time from outside in seconds; None if it is missing or can't be a time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if 0 <= value <= MAX_SECONDS * per_second:  # never true of nan
        return value / per_second
    return None
