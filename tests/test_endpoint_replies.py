"""Replies as servers write them: what is thinking, what is the answer, and what it cost."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import pytest
from endpoint_calls import ask, bill, request, retries
from endpoint_calls import texts as read
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from ponder.core import Bill, Completion, ModelFailure, Spend, UserError
from ponder.models.endpoint import Endpoint, stream
from ponder.models.endpoint.chat import decode
from ponder.models.endpoint.counting import load_tokenizer
from ponder.models.endpoint.reply import Malformed, Reply, Usage, slack, without_false_count


def said(message: Any, finish: Any = "stop", **more: Any) -> Reply:
    return read(
        decode(
            json.dumps(
                {"choices": [{"message": message, "finish_reason": finish}], **more}
            ).encode()
        )
    )


def said_in(reply: Any) -> Reply:
    return read(decode(json.dumps(reply).encode()))


@pytest.mark.parametrize(
    ("message", "thinking", "answer"),
    [
        ({"content": "a", "reasoning_content": "t"}, "t", "a"),
        ({"content": "a", "reasoning": "t"}, "t", "a"),
        ({"content": "<think>t</think>a"}, "t", "a"),
        ({"content": "a", "reasoning": {"content": "t"}}, "t", "a"),
        ({"content": "a", "reasoning": {"text": "t"}}, "t", "a"),
        ({"content": "a", "reasoning": ["t", {"text": "u"}]}, "tu", "a"),
        ({"content": "a", "reasoning": {"effort": "low"}}, "", "a"),
        ({"content": "a", "reasoning": 3, "reasoning_content": None}, "", "a"),
        (
            {"content": "a", "reasoning_details": [{"type": "reasoning.text", "text": "t"}]},
            "t",
            "a",
        ),
        (
            {"content": "a", "reasoning_details": [{"type": "reasoning.summary", "summary": "t"}]},
            "t",
            "a",
        ),
        (
            {"content": "a", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
            "",
            "a",
        ),
        ({"content": "a", "reasoning": "t", "reasoning_details": [{"text": "t"}]}, "t", "a"),
        (
            {"content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "a"}]},
            "t",
            "a",
        ),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, "a"]},
            "t",
            "a",
        ),
        (
            {"content": [{"type": "reasoning", "text": "t"}, {"type": "text", "text": "a"}]},
            "t",
            "a",
        ),
        (
            {
                "content": [
                    {"text": "a"},
                    {"type": "image_url", "image_url": {}},
                    7,
                    None,
                    {"text": "b"},
                ]
            },
            "",
            "ab",
        ),
        ({"content": {"text": "a"}}, "", "a"),
        ({"content": "<think>t</think>a", "reasoning": "\n"}, "t", "a"),
        ({"content": [{"type": "thinking", "thinking": " "}, "<think>t</think>a"]}, "t", "a"),
        ({"content": "a", "reasoning": "t", "reasoning_content": " "}, "t", "a"),
        ({"content": "a \ud83d", "reasoning": "t \ude00"}, "t \ufffd", "a \ufffd"),
    ],
)
def test_thinking_and_answer_are_found(message, thinking, answer) -> None:
    assert said(message) == Reply(thinking, answer, "end", "")


@pytest.mark.parametrize(
    ("message", "finish", "note"),
    [
        ({"content": None}, "stop", "empty reply"),
        ({"content": ""}, None, "empty reply"),
        ({"content": []}, "tool_calls", "empty reply"),
        ({}, "stop", "empty reply"),
        (None, "stop", "empty reply"),
        ({"content": None}, "content_filter", "content filter"),
        ({"content": "a few wo"}, "content_filter", "content filter"),
        ({"content": None, "refusal": "I can't."}, "stop", "refusal"),
        ({"content": [{"type": "refusal", "refusal": "I can't."}]}, "stop", "refusal"),
        ({"content": "a", "refusal": None}, "stop", ""),
        ({"content": "", "reasoning": "t"}, "stop", ""),
        ({"content": ""}, "length", ""),
    ],
)
def test_why_there_is_no_answer(message, finish, note) -> None:
    assert said(message, finish).note == note


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "refusal": "I can't."},
        {"content": [{"type": "refusal", "refusal": "I can't."}]},
    ],
)
def test_a_refusal_is_kept_where_no_grader_reads_it(serve, tmp_path, message) -> None:
    (tmp_path / "raw").write_text(
        json.dumps({"choices": [{"message": message}], "usage": {"completion_tokens": 9}})
    )
    (answer,) = ask(Endpoint(id="m", url=serve(raw_file=str(tmp_path / "raw")).url), 1)
    assert (answer.thinking, answer.answer, answer.note) == ("I can't.", "", "refusal")
    assert (answer.bill.thinking_tokens, answer.bill.answer_tokens) == (0, 9)
    assert bill(None, said(message), 0.0) == Bill(0, 0, 2, 0.0, "estimate")
    assert said({**message, "reasoning": "t"}).thinking == "t"


@pytest.mark.parametrize(
    "finish",
    [
        "length",
        "max_tokens",
        "MAX_TOKENS",
        "max_output_tokens",
        "model_length",
        "max_completion_tokens",
    ],
)
def test_the_budget_has_many_names(finish) -> None:
    assert said({"content": "half an ans"}, finish).stop == "length"


def test_a_byte_order_mark_and_other_choices_hide_nothing() -> None:
    reply = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}
    assert read(decode(b"\xef\xbb\xbf" + json.dumps(reply).encode())).answer == "a"
    for other in (None, "b", 7, {"message": "b"}):
        more = {"choices": [*reply["choices"], other]}
        assert read(decode(json.dumps(more).encode())) == Reply("", "a", "end", "")
    assert read(decode(json.dumps({"choices": [None, *reply["choices"]]}).encode())).answer == "a"


AZURE = {
    "message": "The response was filtered",
    "code": "content_filter",
    "innererror": {"code": "Other"},
}
FILTERED = [
    (400, AZURE),
    (400, {"code": "BadRequest", "innererror": {"code": "ResponsibleAIPolicyViolation"}}),
    (400, {"code": None, "type": "content_policy_violation"}),
    (403, {"code": 403, "metadata": {"reasons": ["violence"], "flagged_input": "kill -9"}}),
]


@pytest.mark.parametrize(("status", "error"), FILTERED)
def test_a_prompt_that_a_content_filter_rejects_is_an_answer(serve, status, error) -> None:
    served = serve(always=status, text=json.dumps({"error": error}))
    seen, answer = retries(Endpoint(id="m", url=served.url))
    assert isinstance(answer, Completion)
    assert (seen, answer.note, answer.answer, answer.thinking) == ([], "content filter", "", "")
    assert answer.bill.prompt_tokens > 20
    assert (answer.bill.thinking_tokens, answer.bill.answer_tokens, answer.bill.counted_by) == (
        0,
        0,
        "estimate",
    )
    assert said_in({"error": error}).note == "content filter"


@pytest.mark.parametrize(
    "error", ["content_filter", {"code": "invalid"}, {"innererror": []}, None, {"code": ["x"]}]
)
def test_other_errors_are_no_answer(serve, error) -> None:
    seen, failure = retries(
        Endpoint(id="m", url=serve(always=400, text=json.dumps({"error": error})).url)
    )
    assert str(failure).startswith("HTTP 400")
    assert len(seen) == 1


def test_a_reply_that_is_too_long_is_not_asked_for_again(serve, slept, monkeypatch) -> None:
    monkeypatch.setattr(stream, "MAX_BYTES", 1000)
    seen, failure = retries(Endpoint(id="m", url=serve(thinking="x" * 2000).url))
    assert failure.startswith("the endpoint's reply is larger than")
    assert [(r.kind, r.billed, r.wait) for r in seen] == [("error", True, 0)]


def test_the_prompt_is_estimated_if_the_server_does_not_count_it(serve, tmp_path) -> None:
    (tmp_path / "raw").write_text(json.dumps({"choices": [{"message": {"content": "x" * 40}}]}))
    (answer,) = ask(Endpoint(id="m", url=serve(raw_file=str(tmp_path / "raw")).url, budget=99), 1)
    sent = {
        "model": "m",
        "messages": [asdict(m) for m in request().messages],
        "max_tokens": 99,
        "seed": 1,
    }
    expected = len(json.dumps(sent, separators=(",", ":"))) // 3
    assert replace(answer.bill, seconds=0.0, slack=Spend()) == Bill(
        expected, 0, 10, 0.0, "estimate"
    )
    # a cap counts the whole budget: thinking may be hidden
    assert answer.bill.answer_tokens + answer.bill.slack.completion_tokens == 99
    counted = {"completion_tokens": 12}
    assert bill(counted, Reply("", "a", "end", ""), 0.0, prompt_estimate=50) == Bill(
        50, 0, 12, 0.0, "estimate"
    )
    assert bill(None, Reply("t", "a", "end", ""), 0.0, len, 50) == Bill(50, 1, 1, 0.0, "estimate")
    assert bill(
        {"prompt_tokens": 7, **counted}, Reply("", "a", "end", ""), 0.0, prompt_estimate=50
    ) == Bill(7, 0, 12)


def test_counts_under_other_names() -> None:
    usage = {
        "input_tokens": 40,
        "output_tokens": 120,
        "output_tokens_details": {"reasoning_tokens": 100},
    }
    reply = Reply("t", "a", "end", "")
    assert bill(usage, reply, 0.0) == Bill(40, 100, 20)
    cached = {**usage, "input_tokens_details": {"cached_tokens": 30}}
    assert bill(cached, reply, 0.0) == Bill(40, 100, 20, cached_tokens=30)
    beside = {**usage, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 5}
    assert bill(beside, reply, 0.0) == Bill(345, 100, 20, cached_tokens=300)


def test_an_error_with_a_lone_surrogate_can_be_shown(serve, tmp_path) -> None:
    (tmp_path / "raw").write_text(json.dumps({"choices": [], "error": "no \ud83d"}))
    _, failure = retries(Endpoint(id="m", url=serve(raw_file=str(tmp_path / "raw")).url, retries=0))
    assert "no \ufffd" in failure


def test_a_lone_surrogate_does_not_hinder_the_tokenizer(serve, tmp_path) -> None:
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    message = {"content": "<answer>1</answer>", "reasoning_content": "a \ud83d b"}
    usage = {"prompt_tokens": 5, "completion_tokens": 50}
    (tmp_path / "raw").write_text(json.dumps({"choices": [{"message": message}], "usage": usage}))
    url = serve(raw_file=str(tmp_path / "raw")).url
    (answer,) = ask(Endpoint(id="m", url=url, tokenizer=str(tmp_path / "tokenizer.json")), 1)
    assert (answer.thinking, answer.bill.counted_by, answer.bill.tokens) == (
        "a \ufffd b",
        "tokenizer",
        55,
    )


def test_only_what_is_no_reply_is_malformed() -> None:
    for content in (
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b'{"choices": []}',
        b'{"choices": null}',
        b'{"choices": {}}',
    ):
        with pytest.raises(Malformed):
            decode(content)
    with pytest.raises(Malformed, match="no credit"):
        decode(b'{"error": {"message": "no credit"}}')
    with pytest.raises(Malformed, match="overloaded"):
        said({"content": ""}, error={"message": "overloaded"})
    with pytest.raises(Malformed):
        said({"content": "half an ans"}, "error")
    assert said({"content": "a"}, error={"code": 0}).answer == "a"


ODD = (None, -1, -0.5, 1e30, 10**400, "many", "-3", True, [], {}, [12], {"n": 12}, "9" * 5000, "²")


@pytest.mark.parametrize("odd", [*ODD, float("nan"), float("inf")])
def test_a_count_that_is_none_is_as_if_not_given(odd) -> None:
    message = {"content": "x" * 100, "reasoning": "x" * 300}
    for usage in (
        odd,
        {"prompt_tokens": odd, "completion_tokens": odd},
        {"completion_tokens_details": odd, "prompt_tokens_details": odd},
        {"completion_tokens_details": {"reasoning_tokens": odd}, "prompt_cache_hit_tokens": odd},
    ):
        reply = decode(json.dumps({"choices": [{"message": message}], "usage": usage}).encode())
        assert bill(reply.usage, read(reply), 0.0) == Bill(0, 75, 25, 0.0, "estimate")


def test_a_number_of_any_length_is_read() -> None:
    digits = b"9" * 5000
    reply = decode(
        b'{"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": '
        + digits
        + b"}}"
    )
    assert read(reply).answer == "a"


@pytest.mark.parametrize("twelve", [12, 12.0, "12"])
def test_a_count_may_be_written_in_other_ways(twelve) -> None:
    assert bill(
        {"prompt_tokens": twelve, "completion_tokens": twelve}, Reply("", "a", "end", ""), 0.0
    ) == Bill(12, 0, 12)


@pytest.mark.parametrize(
    ("usage", "thinking", "answer", "expected"),
    [
        ((40, 120, 100), "text", "text", Bill(40, 100, 20, 0.0, "server")),
        # counted beside, not inside
        ((40, 20, 100), "text", "text", Bill(40, 100, 20, 0.0, "server")),
        ((40, 20, None), "", "all of it", Bill(40, 0, 20, 0.0, "server")),
        ((40, 100, None), "x" * 300, "x" * 100, Bill(40, 75, 25, 0.0, "estimate")),
        ((40, 100, 0), "x" * 300, "x" * 100, Bill(40, 75, 25, 0.0, "estimate")),
        ((0, 0, None), "x" * 300, "x" * 100, Bill(0, 75, 25, 0.0, "estimate")),
        ((0, 0, None), "", "", Bill(0, 0, 0, 0.0, "estimate")),
    ],
)
def test_bills(usage, thinking, answer, expected) -> None:
    prompt, completion, reasoning = usage
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    if reasoning is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    assert bill(counts, Reply(thinking, answer, "end", ""), 0.0) == expected


SHAPES = [
    # prompt, completion, reasoning, total: thinking, answer
    # OpenAI: reasoning inside the completion, platform.openai.com/docs
    ((None, 1000, 900, None), (900, 100)),
    ((100, 1000, 900, 1100), (900, 100)),  # the same with its total
    # xAI: beside the completion, docs.x.ai "consumption and rate limits", and
    # github.com/UKGovernmentBEIS/inspect_ai/issues/5528
    ((100, 1500, 900, 2500), (900, 1500)),
    # xAI, an answer shorter than the reasoning, without a total
    ((None, 237, 1901, None), (1901, 237)),
    # xAI's own example: github.com/sonami-tech/omni-llm-provider/issues/49
    ((32, 9, 94, 135), (94, 9)),
    ((279, 6, 89, 374), (89, 6)),  # grok-4-fast-reasoning, from the same issue
    ((20, 7, 3, 30), (3, 7)),  # github.com/sonami-tech/omni-llm-provider/issues/50
    # grok-4.5 without a total: github.com/LiveBench/LiveBench/pull/503
    ((None, 1015, 1935, None), (1935, 1015)),
    ((10120, 1499, 2809, 14428), (2809, 1499)),  # Grok 4: github.com/Wei-Shaw/sub2api/issues/5771
    ((12, 2, 317, 331), (317, 2)),  # grok-3-mini: github.com/vercel/ai/pull/12425
    ((12, 1, 386, 399), (386, 1)),  # grok-3-mini: github.com/vercel/ai/pull/12425
    # Gemini behind an OpenAI layer: thoughts only in the total
    ((100, 20, None, 1520), (1400, 20)),
    # gemini-2.5-flash: github.com/mozilla-ai/any-llm/issues/1290
    ((20, 198, None, 623), (405, 198)),
    ((20, 151, None, 553), (382, 151)),  # github.com/mozilla-ai/any-llm/pull/1291
    ((20, 424, None, 1016), (572, 424)),  # Gemini: github.com/Clarifai/clarifai-python/pull/978
    # Gemini, thoughts named too: github.com/Helicone/helicone/pull/5604
    ((15, 359, 661, 1035), (661, 359)),
    # Totals that can't be one are as if not given.
    ((40, 120, 100, 12), (100, 20)),
    ((40, 120, 100, -160), (100, 20)),
    ((40, 120, 100, float("nan")), (100, 20)),
    ((40, 120, 100, 10**12), (100, 20)),
    ((40.0, 120.0, 100.0, 160.0), (100, 20)),
    (("40", "20", None, "160"), (100, 20)),
    ((None, 20, None, 500), (0, 20)),  # nobody knows how much of it is the prompt's
]


@pytest.mark.parametrize(("usage", "expected"), SHAPES)
@pytest.mark.parametrize("stream", [False, True])
def test_output_is_what_the_server_bills(serve, usage, expected, stream) -> None:
    prompt, completion, reasoning, total = usage
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    told = bill(counts, Reply("", "a", "end", ""), 0.0)
    assert (told.thinking_tokens, told.answer_tokens, told.counted_by) == (*expected, "server")
    assert told.prompt_tokens == int(prompt or 0)
    if total in (1520, 2500):
        (answer,) = ask(
            Endpoint(id="m", url=serve(usage=counts, thinking="").url, stream=stream), 1
        )
        assert (answer.bill.thinking_tokens, answer.bill.answer_tokens, answer.bill.counted_by) == (
            *expected,
            "server",
        )


def test_a_reply_that_was_cut_while_thinking_is_billed_by_the_server(serve, tmp_path) -> None:
    """Gemini, as github.com/router-for-me/CLIProxyAPI/pull/5743 has it: thoughts, and no candidate."""
    usage = {"prompt_tokens": 21, "completion_tokens": 0, "total_tokens": 81}
    for counts in (usage, {**usage, "completion_tokens_details": {"reasoning_tokens": 60}}):
        assert bill(counts, Reply("", "", "length", ""), 0.0) == Bill(21, 60, 0)
        choice = {"message": {"content": ""}, "finish_reason": "length"}
        (tmp_path / "raw").write_text(json.dumps({"choices": [choice], "usage": counts}))
        (answer,) = ask(Endpoint(id="m", url=serve(raw_file=str(tmp_path / "raw")).url), 1)
        assert replace(answer.bill, seconds=0.0) == Bill(21, 60, 0)


def test_a_split_that_the_server_leaves_open_keeps_its_sum() -> None:
    texts = Reply("x" * 300, "x" * 100, "end", "")
    only_total = {"prompt_tokens": 100, "total_tokens": 300}
    assert bill(only_total, texts, 0.0) == Bill(100, 150, 50, 0.0, "estimate")
    assert bill(only_total, texts, 0.0, lambda text: len(text) // 5) == Bill(
        100, 60, 140, 0.0, "tokenizer"
    )
    # Gemini with its thoughts summarised: the total says that they were longer than their summary.
    summary = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 1520}
    assert bill(summary, replace(texts, thinking="x" * 100), 0.0) == Bill(
        100, 1400, 20, 0.0, "estimate"
    )


@pytest.mark.parametrize(
    "cache",
    [
        {"prompt_tokens_details": {"cached_tokens": 1000}},
        {"cache_read_input_tokens": 900, "cache_creation_input_tokens": 100},
        {"cache_creation_input_tokens": 1000},
    ],
)
def test_cached_tokens_beside_the_prompt_are_not_output(cache) -> None:
    """A proxy that leaves them out of the prompt, and has them in the total."""
    usage = {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 1060, **cache}
    told = bill(usage, Reply("", "a", "end", ""), 0.0)
    assert (told.prompt_tokens, told.thinking_tokens, told.answer_tokens) == (1010, 0, 50)


@pytest.mark.parametrize(
    ("cached", "tokens"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 30}}, 30),
        ({"prompt_cache_hit_tokens": 30, "prompt_cache_miss_tokens": 10}, 30),
        ({"cache_read_input_tokens": 30}, 30),
        ({"prompt_tokens_details": {"cached_tokens": 99}}, 40),  # never more than the prompt
        ({"prompt_tokens_details": None}, 0),
    ],
)
def test_prompt_tokens_from_the_servers_cache(cached, tokens) -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 5, **cached}
    assert bill(usage, Reply("", "a", "end", ""), 0.0) == Bill(40, 0, 5, cached_tokens=tokens)


def test_counting_with_a_tokenizer(tmp_path) -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    count = load_tokenizer(str(tmp_path / "tokenizer.json"))
    reply = Reply("one two three", "four", "end", "")
    usage = {"prompt_tokens": 9, "completion_tokens": 10}
    assert bill(usage, reply, 0.0, count) == Bill(9, 3, 7, 0.0, "tokenizer")
    assert bill(None, reply, 0.0, count) == Bill(0, 3, 1, 0.0, "tokenizer")
    with pytest.raises(UserError, match="can't load the tokenizer"):
        load_tokenizer(str(tmp_path / "none.json"))


NAMES = (
    "type", "text", "thinking", "content", "reasoning", "refusal", "summary", "prompt_tokens", "completion_tokens",
    "completion_tokens_details", "reasoning_tokens", "prompt_tokens_details", "cached_tokens", "total_tokens",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None)  # a busy machine is no failure
@given(message=st.dictionaries(st.sampled_from(NAMES), JSON), usage=JSON, finish=JSON)
def test_no_message_or_bill_is_too_odd_to_read(message, usage, finish) -> None:
    reply = decode(
        json.dumps(
            {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}
        ).encode()
    )
    if finish != "error":
        text = read(reply)
        cost = bill(reply.usage, text, 0.0)
        assert (
            min(cost.thinking_tokens, cost.answer_tokens, cost.prompt_tokens - cost.cached_tokens)
            >= 0
        )
        if isinstance(message.get("content"), str):
            assert (
                message["content"].strip() in (text.answer.strip(), "")
                or "think" in message["content"]
            )


@settings(deadline=None)  # a busy machine is no failure
@given(st.binary() | JSON.map(lambda data: json.dumps(data).encode()))
def test_whatever_a_server_sends_is_a_reply_or_malformed(content) -> None:
    with suppress(Malformed):
        read(decode(content))


def test_deep_nesting_does_not_crash() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(Malformed):
        decode(deep)
    nested = b'{"choices": [{"message": {"content": ' + b"[" * 500 + b"]" * 500 + b"}}]}"
    assert read(decode(nested)).note == "empty reply"


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (b'{"choices": [{"message": {"content": null}, "finish_reason": "stop"}]}', "empty reply"),
        (
            b'{"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}',
            "content filter",
        ),
    ],
)
def test_an_empty_reply_is_not_asked_for_again(serve, tmp_path, content, note) -> None:
    (tmp_path / "raw").write_bytes(content)
    served = serve(raw_file=str(tmp_path / "raw"))

    async def once() -> Completion:
        async with Endpoint(id="m", url=served.url) as model:
            return await model.complete(request())

    assert asyncio.run(once()).note == note
    assert served.state()["requests"] == 1


def test_a_reply_with_an_error_inside_is_asked_for_again(serve, tmp_path) -> None:
    (tmp_path / "raw").write_bytes(
        b'{"error": {"code": 502, "message": "upstream"}, "choices": []}'
    )
    served = serve(raw_file=str(tmp_path / "raw"))

    async def once() -> Completion:
        async with Endpoint(id="m", url=served.url, retries=1) as model:
            return await model.complete(request())

    with pytest.raises(ModelFailure, match=r"HTTP 502: upstream \(2 tries\)"):
        asyncio.run(once())


def test_a_reply_without_text_and_counts_may_have_taken_its_budget() -> None:
    """Hidden thinking leaves no text, so a cap counts the whole budget, as for a cut reply."""
    for reply in (Reply("", "", "end", "empty reply"), Reply("", "", "length", "")):
        assert slack(reply, Bill(), 100, 40) == Spend(40, 100)
    hidden = Reply("", "abc", "end", "", written=("", "abc", ""))
    assert slack(hidden, Bill(), 100, 40) == Spend(40, 100)
    shown = Reply("abc", "", "end", "", written=("abc", "", ""))
    assert slack(shown, Bill(), 100, 40) == Spend(40, 3)


@pytest.mark.parametrize(
    ("text", "tokens", "is_believed"),
    [
        ("plain words of prose " * 100, 400, True),
        ("plain words of prose " * 100, 200, False),
        ("обычные русские слова " * 100, 470, True),  # two bytes a letter, 4.7 letters a token
        (" " * 10_000 + "word", 100, True),  # a token may hold many spaces
        ("数学" * 800, 199, False),
    ],
)
def test_a_count_that_its_text_disproves_is_as_if_not_given(text, tokens, is_believed) -> None:
    usage = Usage(prompt=40, completion=tokens, output=tokens, reported=True)
    reply = Reply(text, "", "end", "", written=(text,), usage=usage)
    assert (without_false_count(reply).usage.output == tokens) is is_believed
    # A summary isn't what was billed.
    assert without_false_count(replace(reply, summarized=True)).usage.output == tokens
