"""Streamed replies: the same answer as in one piece, however the network cuts it, and nothing taken
for a reply that isn't one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
import virtual_time
from endpoint_calls import ask, request, retries
from endpoint_calls import texts as read
from hypothesis import given, settings
from hypothesis import strategies as st

from ponder.core import Completion
from ponder.models.endpoint import Endpoint, stream
from ponder.models.endpoint.chat import ChatResponse, assemble
from ponder.models.endpoint.reply import Malformed, Reply, TooLong
from ponder.models.endpoint.timing import StreamTimes

USAGE = {"prompt_tokens": 9, "completion_tokens": 7}


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def piece(finish: str | None = None, **delta: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


WHOLE = (
    b": keep-alive\n\nevent: message\n"
    + piece(role="assistant", content="")
    + piece(reasoning_content="Hm, naïve 数")
    + b": keep-alive\n\n"
    + piece(reasoning_content="学.")
    + piece(content="So <answer>é")
    + piece(content="42</answer>")
    + piece(finish="stop")
    + event({"choices": [], "usage": USAGE})
    + b"data: [DONE]\n\n"
)


def assembled(*chunks: bytes, error: Exception | None = None) -> tuple[ChatResponse, int]:
    """The response of a stream, and how many of its events hold text."""
    texts = list[None]()

    async def network() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
        if error:
            raise error

    response = asyncio.run(assemble(network(), lambda: texts.append(None)))
    return response, len(texts)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.integers(0, len(WHOLE)), max_size=40), st.booleans())
def test_the_network_may_cut_anywhere(cuts, crlf) -> None:
    content = WHOLE.replace(b"\n", b"\r\n") if crlf else WHOLE
    marks = [0, *sorted(cuts), len(content)]
    reply, texts = assembled(*(content[a:b] for a, b in pairwise(marks)))
    assert read(reply) == Reply("Hm, naïve 数学.", "So <answer>é42</answer>", "end", "")
    assert reply.usage == USAGE
    assert texts == 4


def test_byte_by_byte() -> None:
    reply, _ = assembled(*(WHOLE[n : n + 1] for n in range(len(WHOLE))))
    assert read(reply).answer == "So <answer>é42</answer>"


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(0, WHOLE.index(b'"stop"')))
def test_a_stream_that_is_cut_is_no_reply(at) -> None:
    with pytest.raises(Malformed):
        assembled(WHOLE[:at])
    with pytest.raises((Malformed, aiohttp.ClientPayloadError)):
        assembled(WHOLE[:at], error=aiohttp.ClientPayloadError("cut"))


def test_what_is_lost_after_the_reply_is_only_its_bill() -> None:
    complete = WHOLE[: WHOLE.index(b'data: {"choices": [], "usage"')]
    for error in (None, aiohttp.ClientPayloadError("cut"), TimeoutError()):
        reply, _ = assembled(complete, error=error)
        assert (read(reply).answer, reply.usage) == ("So <answer>é42</answer>", None)
    reply, _ = assembled(complete.removesuffix(b"\n\n"))
    assert read(reply).answer == "So <answer>é42</answer>"
    reply, _ = assembled(complete + b'data: {"choices": [], "us')
    assert reply.usage is None


@pytest.mark.parametrize(
    "trouble",
    [
        b'data: {"error": {"message": "overloaded", "code": 502}}\n\n',
        b'event: error\ndata: {"error": "overloaded"}\n\n',
        b'data: {"error": {"message": "overloaded"}, "choices": [{"delta": {}, "finish_reason": "error"}]}\n\n',
    ],
)
def test_an_error_in_mid_stream_is_no_reply(trouble) -> None:
    with pytest.raises(Malformed, match="overloaded"):
        assembled(piece(content="So"), trouble, b"data: [DONE]\n\n")


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.lists(
        st.binary()
        | st.sampled_from([b"\n", b"\r\n", b"data: ", b"data: {}", b'{"choices": [{}]}', WHOLE])
    )
)
def test_whatever_a_server_streams_is_a_reply_or_malformed(chunks) -> None:
    with suppress(Malformed):
        read(assembled(*chunks)[0])


def test_garbage_in_mid_stream_is_no_reply() -> None:
    with pytest.raises(Malformed):
        assembled(piece(content="So"), b"data: {]\n\n", piece(finish="stop"))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([{"content": "<think>t</think>a"}], Reply("t", "a", "end", "")),
        ([{"reasoning": "t"}, {"reasoning": "u"}, {"content": "a"}], Reply("tu", "a", "end", "")),
        (
            [{"reasoning_details": [{"text": "t"}]}, {"reasoning_details": [{"text": "u"}]}],
            Reply("tu", "", "end", ""),
        ),
        (
            [{"content": [{"type": "thinking", "thinking": "t"}]}, {"content": "a"}],
            Reply("t", "a", "end", ""),
        ),
        ([{"refusal": "I can"}, {"refusal": "'t"}], Reply("", "", "end", "refusal", "I can't")),
        ([{"role": "assistant"}], Reply("", "", "end", "empty reply")),
    ],
)
def test_dialects(pieces, expected) -> None:
    reply, _ = assembled(*(piece(**delta) for delta in pieces), piece(finish="stop"))
    assert read(reply) == expected


def test_a_stream_that_is_done_is_a_reply_even_if_no_reason_is_given() -> None:
    content = piece(content="So <answer>1</answer>") + event({"choices": [], "usage": USAGE})
    for end in (b"data: [DONE]\n\n", b"data: [DONE]", b"data:[DONE]\r\n\r\n"):
        reply, _ = assembled(content + end)
        assert read(reply) == Reply("", "So <answer>1</answer>", "end", "")
        assert reply.usage == USAGE
    for nothing in (b"data: [DONE]\n\n", event({"choices": []}) + b"data: [DONE]\n\n"):
        with pytest.raises(Malformed, match="ended before the reply did"):
            assembled(nothing)


def test_a_byte_order_mark_and_a_choice_that_is_null_hide_nothing() -> None:
    odd = event({"choices": [{"delta": {"content": "b"}}, None]})
    reply, _ = assembled(b"\xef\xbb\xbf" + piece(content="a"), odd, piece(finish="stop"))
    assert read(reply).answer == "ab"


def test_a_character_that_is_parted_is_put_together() -> None:
    halves = (
        json.dumps({"choices": [{"delta": {"content": text}}]}).encode()
        for text in ("a \ud83d", "\ude00 b \ud83d")
    )
    reply, _ = assembled(*(b"data: " + half + b"\n\n" for half in halves), piece(finish="stop"))
    assert read(reply).answer == "a 😀 b \ufffd"


def test_a_content_filter_may_end_a_stream() -> None:
    stopped = event({"error": {"code": "content_filter", "message": "filtered"}})
    assert read(assembled(piece(content="a few wo"), stopped)[0]) == Reply(
        "", "a few wo", "end", "content filter"
    )


def test_a_stream_without_end_is_cut(monkeypatch) -> None:
    monkeypatch.setattr(stream, "MAX_STREAMED", 2**20)
    for endless in (piece(content="and "), b": keep-alive\n\n", b"x" * 100):
        with pytest.raises(TooLong, match="larger than 1 MB"):
            assembled(*[endless] * (2**20 // len(endless) + 1))
    reply, _ = assembled(WHOLE, *[b": keep-alive\n\n"] * 100_000)
    assert read(reply).answer == "So <answer>é42</answer>"


def test_the_first_token_is_the_first_text() -> None:
    _, texts = assembled(piece(role="assistant", content=""), piece(finish="length"))
    assert texts == 0


def test_a_stream_gives_the_same_completion(serve) -> None:
    plain, streaming = serve(), serve()
    (whole,) = ask(Endpoint(id="m", url=plain.url, budget=99), 1)
    (streamed,) = ask(Endpoint(id="m", url=streaming.url, budget=99, stream=True), 1)
    first = streamed.measures["first_token_seconds"]
    assert 0 < first <= streamed.bill.seconds
    seconds = replace(streamed.bill, seconds=whole.bill.seconds)
    assert replace(streamed, bill=seconds, measures={}) == whole
    (body,) = streaming.state()["bodies"]
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_a_server_may_ignore_the_wish(serve) -> None:
    (answer,) = ask(Endpoint(id="m", url=serve(no_stream=True).url, stream=True), 1)
    assert (answer.thinking, answer.bill.tokens, answer.measures) == ("adding up", 160, {})


@pytest.mark.parametrize(
    ("fault", "kind", "timeout"), [("cut", "error", 600), ("ignore", "timeout", 0.3)]
)
def test_a_stream_that_breaks_may_have_been_billed(serve, fault, kind, timeout) -> None:
    model = Endpoint(id="m", url=serve(**{fault: 1.0}).url, stream=True, retries=0, timeout=timeout)
    seen, failure = retries(model)
    assert [(r.kind, r.billed) for r in seen] == [(kind, True)]
    assert kind == "error" or failure == "no reply began within 0.3 seconds (1 try)"


def watched(*chunks: tuple[float, bytes], timeout: float = 1800, idle: float = 600) -> str:
    """The answer in a stream whose chunks come after so many seconds each, or why it is given up."""

    async def network() -> AsyncIterator[bytes]:
        for seconds, chunk in chunks:
            await asyncio.sleep(seconds)
            yield chunk

    async def reply() -> str:
        deadline = stream.Deadline(timeout, idle)
        try:
            return read(
                await assemble(deadline.watch(network()), StreamTimes(deadline).on_text)
            ).answer
        except TimeoutError as error:
            return str(error)

    return virtual_time.run(reply())


COMMENT, TEXT, END = b": processing\n\n", piece(content="a"), piece(finish="stop")


def test_the_wait_in_a_servers_queue_takes_nothing_from_the_time_for_the_reply() -> None:
    queue = [(500.0, COMMENT), (500.0, piece(role="assistant", content="")), (700.0, TEXT)]
    assert watched(*queue, *[(500.0, TEXT)] * 3, (200.0, END)) == "aaaa"
    assert watched((1700.0, TEXT), (599.0, TEXT), (599.0, END)) == "aa"


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ([(1000.0, COMMENT), (801.0, TEXT), (1.0, END)], "no reply began within 1800 seconds"),
        ([(1.0, TEXT), (601.0, END)], "no data for 600 seconds"),
        (
            [(1.0, TEXT), *[(500.0, COMMENT)] * 4],
            "the reply did not end within 1800 seconds of its first token",
        ),
    ],
)
def test_each_part_of_a_streamed_reply_has_its_limit(chunks, why) -> None:
    assert watched(*chunks) == why


def test_a_reply_that_has_ended_is_kept_though_its_bill_comes_too_late() -> None:
    assert watched((1.0, TEXT), (1.0, END), (601.0, event({"choices": [], "usage": USAGE}))) == "a"


def test_faults_are_survived(serve, slept) -> None:
    served = serve(cut=0.3, malformed=0.2, drop=0.1)

    async def many() -> list[Completion]:
        async with Endpoint(id="m", url=served.url, stream=True, retries=20) as model:
            return await asyncio.gather(*(model.complete(request(s)) for s in range(20)))

    answers = asyncio.run(many())
    assert all("<answer>" in a.answer and a.bill.tokens == 160 for a in answers)


def test_streaming_is_not_part_of_the_key() -> None:
    assert Endpoint(id="m", stream=True).identity() == Endpoint(id="m").identity()
