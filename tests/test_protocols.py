"""All four protocols in one study: dials, bills, conversations and faults are the same in each."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from conftest import Served
from endpoint_calls import ask, retries

from ponder import Study
from ponder.core import UserError
from ponder.models.endpoint import Endpoint
from ponder.results.results import Results

PRICES = {
    "gpt-5-mini": {"input": 0.25, "output": 2.0},
    "claude-haiku-4-5": {"input": 3.0, "output": 15.0},
    "gemini-2.5-flash": {"input": 0.3, "output": 2.5},
    "Qwen/Qwen3-8B": {"input": 0.05, "output": 0.1},
}
LABELS = [
    "gpt-5-mini effort=low",
    "gpt-5-mini effort=medium",
    "gpt-5-mini effort=high",
    "claude-haiku-4-5 think=1024",
    "claude-haiku-4-5 think=2048",
    "claude-haiku-4-5 think=16384",
    "gemini-2.5-flash thinking=False",
    "gemini-2.5-flash thinking=True",
    "Qwen/Qwen3-8B think=512",
    "Qwen/Qwen3-8B think=2048",
]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-not-a-real-key-0000000000")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-api03-not-a-real-key-00000")
    monkeypatch.setenv("GEMINI_API_KEY", "AIzaSyA-not-a-real-key-000000000000000")


def models(url: str) -> list[dict[str, Any]]:
    """The models of the built-in study `thinking`, and one on a server of your own."""
    tables = [
        {
            "id": "gpt-5-mini",
            "url": url,
            "provider": "openai",
            "protocol": "responses",
            "key": "$OPENAI_API_KEY",
            "effort": ["low", "medium", "high"],
        },
        {
            "id": "claude-haiku-4-5",
            "url": url,
            "provider": "anthropic",
            "key": "$ANTHROPIC_API_KEY",
            "think": [1024, 2048, 16384],
        },
        {
            "id": "gemini-2.5-flash",
            "url": url.replace("/v1", "/v1beta"),
            "provider": "google",
            "key": "$GEMINI_API_KEY",
            "thinking": [False, True],
        },
        {
            "id": "Qwen/Qwen3-8B",
            "url": url,
            "provider": "vllm",
            "think": [512, 2048],
        },
    ]
    for table in tables:
        table |= {"name": "endpoint", "budget": 32768, "prices": PRICES[table["id"]]}
    return tables


@pytest.fixture
def served() -> list[Served]:
    """The servers that a test has started with `study`."""
    return []


@pytest.fixture
def study(serve, served: list[Served], tmp_path: Path) -> Callable[..., Results]:
    def run(problems: int, **faults: Any) -> Results:
        server = serve(lengths={"median": 4000, "sigma": 0.15}, **faults)
        served.append(server)
        made = Study(
            task={"name": "chain_sum", "size": 3},
            model=models(server.url),
            figure=[{"name": "frontier"}, {"name": "accuracy"}, {"name": "latency"}],
            problems=problems,
            samples=2,
        )
        return made.run(store=tmp_path / "thinking.db", progress=False)

    return run


def thinking_tokens(results: Results) -> dict[str, float]:
    """The median thinking of each variant."""
    tokens: dict[str, list[int]] = {}
    for outcome in results.outcomes:
        tokens.setdefault(outcome.label.model, []).append(outcome.thinking_tokens)
    return {model: statistics.median(counts) for model, counts in tokens.items()}


def test_every_dial_changes_what_is_thought_and_paid(study, served, capsys) -> None:
    results = study(20, honours=True)
    assert {outcome.ended for outcome in results.outcomes} == {"right"}
    assert {outcome.counted_by for outcome in results.outcomes} == {"server"}
    thinking = thinking_tokens(results)
    assert list(thinking) == LABELS
    by_dial: dict[str, list[float]] = {}
    for label, tokens in thinking.items():
        by_dial.setdefault(label.partition(" ")[0], []).append(tokens)
    for rising in by_dial.values():
        assert all(1.5 * less < more for less, more in itertools.pairwise(rising))
    # the budgets in thinking tokens are obeyed to the token
    assert thinking["claude-haiku-4-5 think=1024"] == 1024
    assert thinking["gemini-2.5-flash thinking=False"] == 0
    assert thinking["Qwen/Qwen3-8B think=512"] == 512
    assert results.dial_notes == []
    # what is counted is what the server has billed, at the study's prices
    total = sum(outcome.bill.tokens for outcome in results.outcomes)
    assert total == served[0].state()["billed_tokens"]
    for model, prices in PRICES.items():
        labels = [label for label in LABELS if label.startswith(f"{model} ")]
        spent = 0.0
        for label in labels:
            spent += sum(transcript.cost for transcript in results.attempts(model=label))
        read = 0
        written = 0
        for outcome in results.outcomes:
            if outcome.label.model in labels:
                read += outcome.prompt_tokens
                written += outcome.thinking_tokens + outcome.answer_tokens
        assert spent == pytest.approx((read * prices["input"] + written * prices["output"]) / 1e6)
        assert spent > 0
    assert "gemini-2.5-flash 0.30/2.50 USD" in capsys.readouterr().err


def test_one_figure_has_all_variants_under_short_names(study, tmp_path: Path) -> None:
    results = study(20, honours=True)
    rows = results.estimates("frontier")["variants"]
    assert [row["label"] for row in rows] == LABELS
    assert {row["panel"] for row in rows} == {"chain_sum"}
    results.report(tmp_path / "report")
    for figure in ("frontier", "latency"):
        drawn = (tmp_path / "report" / f"{figure}.svg").read_text("utf-8")
        for label in LABELS:
            model, _, dial = label.partition(" ")
            assert model in drawn
            assert dial in drawn
        assert "body." not in drawn
        assert (tmp_path / "report" / f"{figure}.png").stat().st_size > 10_000
    quantiles = results.estimates("latency")["quantiles"]
    assert {row["series"] for row in quantiles} == set(LABELS)


def test_dials_that_every_server_ignores_are_drawn_once(study) -> None:
    results = study(60, ignores=True)
    thinking = thinking_tokens(results)
    assert min(thinking.values()) > 0.9 * max(thinking.values())
    notes = [note.partition(" wrote ")[0] for note in results.dial_notes]
    assert notes == [
        "`effort` has no effect on gpt-5-mini: effort=low and effort=medium",
        "`effort` has no effect on gpt-5-mini: effort=low and effort=high",
        "`think` has no effect on claude-haiku-4-5: think=1024 and think=2048",
        "`think` has no effect on claude-haiku-4-5: think=1024 and think=16384",
        "`thinking` has no effect on gemini-2.5-flash: thinking=False and thinking=True",
        "`think` has no effect on Qwen/Qwen3-8B: think=512 and think=2048",
    ]
    rows = results.estimates("frontier")["variants"]
    assert [row["label"] for row in rows] == [
        "gpt-5-mini effort=low",
        "claude-haiku-4-5 think=1024",
        "gemini-2.5-flash thinking=False",
        "Qwen/Qwen3-8B think=512",
    ]


def test_the_built_in_study_has_these_models(ponder) -> None:
    """So that what is tested here is what users run."""
    built_in = Study.load("thinking").resolved()
    for table, tested in zip(built_in["model"], models("http://127.0.0.1:9/v1"), strict=False):
        for name in ("id", "provider", "key", "budget"):
            assert table[name] == tested[name]
        assert table.get("protocol") == tested.get("protocol")
        assert {"effort", "think", "thinking"} & table.keys() == {
            "effort",
            "think",
            "thinking",
        } & tested.keys()
    figures = {figure["name"] for figure in built_in["figure"]}
    assert figures == {"frontier", "accuracy", "latency"}


# Conversations and streams


PROTOCOLS = ("responses", "anthropic", "gemini", "chat")


def endpoint(protocol: str, url: str, **settings: Any) -> Endpoint:
    """A model of the study above, without the sweep."""
    return Endpoint(**{**plain_settings(protocol, url), **settings})


def plain_settings(protocol: str, url: str) -> dict[str, Any]:
    table = models(url)[PROTOCOLS.index(protocol)]
    kept = ("id", "url", "provider", "protocol", "key", "budget")
    return {name: table[name] for name in kept if name in table}


DIALS: dict[str, dict[str, Any]] = {
    "responses": {"effort": "high"},
    "anthropic": {"think": 2048},
    "gemini": {"thinking": True},
    "chat": {"think": 2048},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_streamed_conversation_has_the_bill_of_a_plain_one(
    serve, tmp_path: Path, protocol: str
) -> None:
    server = serve(lengths={"median": 900, "sigma": 0.4}, honours=True)
    bills = []
    for stream in (False, True):
        model = {"name": "endpoint", "stream": stream, "concurrency": 4}
        model |= plain_settings(protocol, server.url) | DIALS[protocol]
        task = {
            "name": "execution",
            "size": 6,
            "per_turn": 2,
            "dictionary": 5,
            "remember": "all",
        }
        made = Study(task=task, model=model, problems=3)
        results = made.run(store=tmp_path / f"{stream}.db", progress=False)
        assert {outcome.ended for outcome in results.outcomes} == {"right"}
        turns = []
        for transcript in results.attempts():
            assert len(transcript.attempt.completions) == 3
            for completion in transcript.attempt.completions:
                cost = completion.bill
                counts = (cost.prompt_tokens, cost.thinking_tokens, cost.answer_tokens)
                turns.append((*counts, cost.counted_by, completion.thinking, completion.answer))
        bills.append(turns)
    plain, streamed = bills
    assert plain == streamed
    assert len({turn[1] for turn in plain}) > 3  # not all of one length
    total = sum(sum(turn[:3]) for turn in plain + streamed)
    assert total == server.state()["billed_tokens"]


# Faults: those that the tests of the protocols leave to this table, as docs/endpoints.md has them


class Fault(NamedTuple):
    """A server's fault, what each try is counted as, and how the request ends."""

    faults: dict[str, Any]
    kind: str
    billed: bool
    tries: int  # of two
    why: str


def inside(body: Any) -> dict[str, Any]:
    """A response of status 200 with this body."""
    return {"body": body if isinstance(body, str) else json.dumps(body)}


OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}
BUSY = {"type": "rate_limit_error", "message": "slow down"}
TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input."
TOO_LONG_GEMINI = (
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
)
FAULTS = {
    # an error inside a reply: as its status
    "anthropic-overloaded-in-200": Fault(
        inside({"type": "error", "error": OVERLOADED}), "error", False, 2, "HTTP 529: Overloaded"
    ),
    "anthropic-busy-in-200": Fault(
        inside({"type": "error", "error": BUSY}), "rate limit", False, 2, "HTTP 429: slow down"
    ),
    "gemini-overloaded-in-200": Fault(
        inside({"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}),
        "error",
        False,
        2,
        "HTTP 503: overloaded",
    ),
    "gemini-timeout-in-200": Fault(
        inside({"error": {"code": 504, "message": "Deadline", "status": "DEADLINE_EXCEEDED"}}),
        "timeout",
        True,
        2,
        "HTTP 504: Deadline",
    ),
    # one without a status: may have been billed
    "anthropic-unknown-in-200": Fault(
        inside({"type": "error", "error": {"type": "new_error"}}), "error", True, 2, "new_error"
    ),
    "gemini-unknown-in-200": Fault(
        inside({"error": {"message": "strange"}}), "error", True, 2, "strange"
    ),
    "responses-unknown-in-200": Fault(
        inside({"object": "response", "error": {"code": "new", "message": "strange"}}),
        "error",
        True,
        2,
        "strange",
    ),
    # a gateway's errors
    "responses-502": Fault({"always": 502}, "error", True, 2, "HTTP 502"),
    "responses-504": Fault({"always": 504}, "timeout", True, 2, "HTTP 504"),
    "anthropic-502": Fault({"always": 502}, "error", True, 2, "HTTP 502"),
    "anthropic-504": Fault({"always": 504}, "timeout", True, 2, "HTTP 504"),
    "gemini-502": Fault({"always": 502}, "error", True, 2, "HTTP 502"),
    # no reply in time
    "responses-silent": Fault({"ignore": 1.0}, "timeout", True, 2, "within 0.3 seconds"),
    "anthropic-silent": Fault({"ignore": 1.0}, "timeout", True, 2, "within 0.3 seconds"),
    "gemini-silent": Fault({"ignore": 1.0}, "timeout", True, 2, "within 0.3 seconds"),
    # requests that no repeating helps
    "responses-too-long": Fault(
        {"always": 400, "text": TOO_LONG}, "error", False, 1, "exceeds the context window"
    ),
    "gemini-too-long": Fault(
        {"always": 400, "text": TOO_LONG_GEMINI}, "error", False, 1, "input token count"
    ),
    "responses-413": Fault({"always": 413}, "error", False, 1, "HTTP 413"),
    "anthropic-413": Fault({"always": 413}, "error", False, 1, "HTTP 413"),
    "gemini-413": Fault({"always": 413}, "error", False, 1, "HTTP 413"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_as_documented(
    serve, slept, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, *, stream: bool
) -> None:
    # without a limit for connecting: on a busy machine even that may take longer
    limits = aiohttp.ClientTimeout
    monkeypatch.setattr(
        aiohttp, "ClientTimeout", lambda **given: limits(**{**given, "sock_connect": None})
    )
    fault = FAULTS[name]
    faults = dict(fault.faults)
    if "body" in faults:
        (tmp_path / "body.json").write_text(faults.pop("body"), "utf-8")
        faults["raw_file"] = str(tmp_path / "body.json")
    timeout = 0.3 if "ignore" in faults else 600.0
    url = serve(**faults).url
    model = endpoint(name.partition("-")[0], url, retries=1, timeout=timeout, stream=stream)
    tries, end = retries(model)
    assert isinstance(end, str)
    assert fault.why in end
    assert [(a_try.kind, a_try.billed) for a_try in tries] == [
        (fault.kind, fault.billed)
    ] * fault.tries


def test_gemini_waits_as_long_as_a_header_says(serve, slept) -> None:
    """Its own hint, which the tests of the protocol have, is in the body."""
    url = serve(busy_first=1, retry_after="7").url
    [a_try], completion = retries(endpoint("gemini", url))
    assert (a_try.kind, a_try.billed, a_try.wait) == ("rate limit", False, 7.0)
    assert not isinstance(completion, str)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_without_credit_ends_the_run(serve, protocol: str) -> None:
    with pytest.raises(UserError, match="has no credit left: HTTP 402") as error:
        ask(endpoint(protocol, serve(always=402, text="Pay.").url), 1)
    assert "add credit" in error.value.hint


@pytest.mark.parametrize("stream", [False, True])
def test_faults_are_survived_and_counted(serve, slept, tmp_path: Path, *, stream: bool) -> None:
    """Every second request of each protocol meets one, and all attempts end right."""
    faults = {"429": 0.1, "500": 0.1, "drop": 0.1, "cut": 0.1, "malformed": 0.1}
    server = serve(lengths={"median": 900, "sigma": 0.4}, **faults)
    tables = []
    for protocol in PROTOCOLS:
        table = {"name": "endpoint", "stream": stream, "retries": 40}
        tables.append(table | plain_settings(protocol, server.url) | DIALS[protocol])
    made = Study(task={"name": "chain_sum", "size": 3}, model=tables, problems=20)
    results = made.run(store=tmp_path / "faults.db", progress=False)
    assert [outcome.ended for outcome in results.outcomes] == ["right"] * 80
    state = server.state()
    assert all(state[fault] for fault in faults)
    assert state["answered"] == 80
