"""Token counts from the server's own tokenizer, where its replies' `usage` leaves something out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from endpoint_calls import ask, request
from server import templated, tokens_of

from ponder.core import Bill
from ponder.models.endpoint import Endpoint, counting

THINKING = "First 8 - 2 , then the rest . Hmm !"
TOTAL = {"prompt_tokens": 40, "completion_tokens": 60}
DIALECTS = ["llama.cpp", "vllm", "sglang"]


def counts(bill: Bill) -> tuple[int, int, int, str]:
    return bill.prompt_tokens, bill.thinking_tokens, bill.answer_tokens, bill.counted_by


def prompt() -> int:
    """Tokens of the test's request in the server's template."""
    return len(
        tokens_of(templated([{"role": m.role, "content": m.content} for m in request().messages]))
    )


@pytest.fixture
def replies(serve, tmp_path):
    """Start a server whose replies are this text."""

    def start(content: str, finish: str = "stop", **faults: Any):
        choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish}
        (tmp_path / "raw").write_text(json.dumps({"choices": [choice]}))
        return serve(raw_file=str(tmp_path / "raw"), **faults)

    return start


@pytest.mark.parametrize("dialect", DIALECTS)
def test_thinking_is_counted_by_the_server_and_the_total_stays(serve, dialect) -> None:
    served = serve(tokenize=dialect, usage=TOTAL, thinking=THINKING)
    answers = ask(Endpoint(id="served", url=served.url), *range(5))
    thought = len(tokens_of(THINKING))
    assert {counts(a.bill) for a in answers} == {(40, thought, 60 - thought, "server")}
    assert served.state()["counted"] == 5


def test_a_stream_is_counted_too(serve) -> None:
    served = serve(tokenize="vllm", usage=TOTAL, thinking=THINKING)
    (answer,) = ask(Endpoint(id="served", url=served.url, stream=True), 1)
    assert counts(answer.bill)[1:] == (
        len(tokens_of(THINKING)),
        60 - len(tokens_of(THINKING)),
        "server",
    )


def test_thinking_is_never_more_than_the_total(serve) -> None:
    served = serve(tokenize="vllm", usage=TOTAL, thinking="so " * 90)
    (answer,) = ask(Endpoint(id="served", url=served.url), 1)
    assert counts(answer.bill) == (40, 60, 0, "server")


@pytest.mark.parametrize(("finish", "ending"), [("stop", 1), ("length", 0)])
@pytest.mark.parametrize("dialect", ["llama.cpp", "vllm"])
def test_a_reply_without_usage_is_counted_as_it_was_written(
    replies, dialect, finish, ending
) -> None:
    content = f"<think>\n{THINKING}\n</think>\n\nIt is <answer>6</answer>."
    (answer,) = ask(Endpoint(id="m", url=replies(content, finish, tokenize=dialect).url), 1)
    total, thought = len(tokens_of(content)) + ending, len(tokens_of(THINKING))
    assert (answer.thinking, answer.answer) == (THINKING, "It is <answer>6</answer>.")
    assert counts(answer.bill) == (prompt(), thought, total - thought, "server")


def test_what_the_template_adds_is_unknown_where_only_text_is_counted(replies) -> None:
    (answer,) = ask(Endpoint(id="m", url=replies("Six", tokenize="sglang").url), 1)
    text = "\n".join(m.content for m in request().messages)
    assert counts(answer.bill) == (len(tokens_of(text)), 0, 2, "estimate")


def test_only_the_prompt_may_be_missing(serve) -> None:
    served = serve(tokenize="llama.cpp", usage={"output_tokens": 7}, thinking="")
    (answer,) = ask(Endpoint(id="m", url=served.url), 1)
    assert counts(answer.bill) == (prompt(), 0, 7, "server")
    served = serve(tokenize="llama.cpp", usage={"input_tokens": 9}, thinking="")
    (answer,) = ask(Endpoint(id="m", url=served.url), 1)
    assert counts(answer.bill) == (9, 0, len(tokens_of(answer.answer)) + 1, "server")


def test_a_complete_usage_needs_no_count(serve) -> None:
    served = serve(tokenize="vllm")
    assert {a.bill.counted_by for a in ask(Endpoint(id="m", url=served.url), 1, 2)} == {"server"}
    assert "counted" not in served.state()


def test_a_tokenizer_of_ones_own_comes_first(serve, tmp_path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(
        str(tmp_path / "tokenizer.json")
    )
    served = serve(tokenize="vllm", usage=TOTAL, thinking=THINKING)
    (answer,) = ask(Endpoint(id="m", url=served.url, tokenizer=str(tmp_path / "tokenizer.json")), 1)
    assert answer.bill.counted_by == "tokenizer"
    assert "counted" not in served.state()


def test_without_the_probe_the_server_is_asked_for_nothing_but_replies(serve) -> None:
    served = serve(tokenize="vllm", usage=TOTAL)
    (answer,) = ask(Endpoint(id="m", url=served.url, probe=False), 1)
    assert answer.bill.counted_by == "estimate"
    assert "counted" not in served.state()


NO_COUNT = [
    404, 405, 401, 500, {"raw": "<html>"}, {"raw": "[]"}, {"raw": "null"}, {"raw": '{"tokens": []}'}, {"raw": "{}"},
    {"raw": '{"count": -4}'}, {"raw": '{"count": "many", "tokens": {"a": 1}}'}, {"raw": '{"count": 1e99}'},
    {"raw": '{"count": NaN}'}, {"raw": "[" * 100_000}, {"raw": "\x00"},
]  # fmt: skip


@pytest.mark.parametrize("page", NO_COUNT, ids=lambda page: str(page)[:40])
def test_a_server_without_a_tokenizer_is_asked_once_and_its_replies_are_estimated(
    serve, page
) -> None:
    served = serve(tokenize=page, usage=TOTAL, thinking=THINKING)
    answers = ask(Endpoint(id="m", url=served.url), *range(6))
    assert {a.bill.counted_by for a in answers} == {"estimate"}
    assert {a.bill.thinking_tokens + a.bill.answer_tokens for a in answers} == {60}
    assert served.state()["counted"] == 1


def test_a_redirect_is_not_followed(serve) -> None:
    other = serve(tokenize="vllm")
    to = other.url.replace("/v1", "/tokenize")
    served = serve(tokenize={"redirect": to}, usage=TOTAL)
    (answer,) = ask(Endpoint(id="m", url=served.url), 1)
    assert answer.bill.counted_by == "estimate"
    assert "counted" not in other.state()


def test_a_server_that_is_silent_is_given_up(serve, monkeypatch) -> None:
    monkeypatch.setattr(counting, "SECONDS", 0.05)
    served = serve(tokenize="silent", usage=TOTAL)
    answers = ask(Endpoint(id="m", url=served.url), *range(9))
    assert {a.bill.counted_by for a in answers} == {"estimate"}
    assert served.state()["counted"] <= counting.MAX_FAILURES


def test_a_count_holds_up_no_other_reply(serve, monkeypatch) -> None:
    monkeypatch.setattr(counting, "SECONDS", 1000.0)
    served = serve(tokenize="silent", usage=TOTAL)

    async def two() -> None:
        async with Endpoint(id="m", url=served.url, concurrency=1) as model:
            asked = [asyncio.create_task(model.complete(request(s))) for s in range(2)]
            # the second, while the first is counted
            await asyncio.to_thread(served.wait, counted=1, answered=2)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(two())


@pytest.mark.parametrize("path", ["/v1", "/v1/"])
def test_the_page_is_beside_v1_on_the_same_server_with_the_same_key(
    serve, monkeypatch, path
) -> None:
    monkeypatch.setenv("A_KEY", "sk-0123456789abcdef")
    served = serve(tokenize="vllm", usage=TOTAL, thinking="the key is sk-0123456789abcdef")
    (answer,) = ask(Endpoint(id="m", url=served.url.replace("/v1", path), key="$A_KEY"), 1)
    (asked,) = served.state()["tokenized"]
    assert (asked["page"], asked["authorization"]) == ("/tokenize", "Bearer sk-0123456789abcdef")
    assert answer.bill.counted_by == "server"
    assert answer.thinking == "the key is $A_KEY"


def test_a_count_is_not_a_request_of_the_rate_limit(serve) -> None:
    served = serve(tokenize="vllm", usage=TOTAL)

    async def once() -> int:
        async with Endpoint(
            id="m", url=served.url, requests_per_minute=1e9, tokens_per_minute=1e12
        ) as model:
            await model.complete(request())
            return model._client.rate_limit._total

    assert asyncio.run(once()) == 100
