"""Production logs become studies: every shape of a record, its bill, its grade, and what is left out."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ponder import Study
from ponder.results.interop import request_records as shapes
from ponder.results.interop.request_log import RequestLogs
from ponder.store.store import Store

KEY = "sk-proj-abcdEFGH1234567890abcdEFGH"
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 100,
    "total_tokens": 120,
    "completion_tokens_details": {"reasoning_tokens": 80},
}
CHAT = {
    "model": "m-2026-01-01",
    "choices": [{"message": {"content": "It is 4.", "reasoning_content": "two and two"}}],
    "usage": USAGE,
}
REQUEST = {"model": "m", "messages": ASK, "reasoning_effort": "low", "temperature": 0.5}
RESPONSES = {
    "object": "response",
    "status": "completed",
    "created_at": 100,
    "completed_at": 103,
    "model": "m",
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "adding"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "It is 4."}]},
    ],
    "usage": {
        "input_tokens": 20,
        "output_tokens": 100,
        "output_tokens_details": {"reasoning_tokens": 80},
        "total_tokens": 120,
    },
}
RESPONSES_REQUEST = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "2 + 2?"}]}],
    "reasoning": {"effort": "low"},
    "max_output_tokens": 900,
}
CLAUDE = {
    "type": "message",
    "model": "claude",
    "content": [{"type": "thinking", "thinking": "adding"}, {"type": "text", "text": "It is 4."}],
    "stop_reason": "end_turn",
    "usage": {
        "input_tokens": 20,
        "output_tokens": 100,
        "output_tokens_details": {"thinking_tokens": 80},
    },
}
CLAUDE_REQUEST = {
    "model": "claude",
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": ASK[1:],
    "max_tokens": 2000,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
GEMINI = {
    "candidates": [
        {
            "content": {"parts": [{"text": "adding", "thought": True}, {"text": "It is 4."}]},
            "finishReason": "STOP",
        }
    ],
    "usageMetadata": {
        "promptTokenCount": 20,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 80,
        "totalTokenCount": 120,
    },
    "modelVersion": "gemini",
}
GEMINI_REQUEST = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [{"role": "user", "parts": [{"text": "2 + 2?"}]}],
    "generationConfig": {"thinkingConfig": {"thinkingBudget": 0}, "maxOutputTokens": 500},
}
LITELLM = {
    "id": "1",
    "call_type": "acompletion",
    "status": "success",
    "model": "m",
    "messages": ASK,
    "model_parameters": {"reasoning_effort": "low", "extra_body": {"top_k": 5}},
    "response": CHAT,
    "response_cost": 0.25,
    "startTime": 1700000000.0,
    "completionStartTime": 1700000001.0,
    "endTime": 1700000003.0,
    "metadata": {"user_api_key_hash": KEY},
}
HELICONE = {
    "request_body": REQUEST,
    "response_body": CHAT,
    "response_status": 200,
    "delay_ms": 3000,
    "time_to_first_token": 1000,
    "costUSD": 0.25,
    "scores": {"helpful": 1},
    "request_properties": {"key": KEY},
}
LANGFUSE = {
    "type": "GENERATION",
    "start_time": "2024-05-29 13:46:19.000000",
    "completion_start_time": "2024-05-29 13:46:20.000000",
    "end_time": "2024-05-29 13:46:22.000000",
    "provided_model_name": "m",
    "model_parameters": json.dumps({"reasoning_effort": "low"}),
    "input": json.dumps({"messages": ASK}),
    "output": json.dumps({"role": "assistant", "content": "It is 4."}),
    "usage_details": {
        "input": 15, "input_cached_tokens": 5, "output": 20, "output_reasoning_tokens": 80,
        "total": 120,
    },
    "total_cost": 0.25,
}  # fmt: skip
SPLIT = (20, 80, 20, "server")
LOW = {"effort": "low"}
# Each record with its bill, seconds, cost, model and settings.
SHAPES = {
    "pair": (
        {"request": REQUEST, "response": CHAT, "latency_ms": 3000},
        (SPLIT, 3.0, None, "m", {**LOW, "temperature": 0.5}),
    ),
    "http": (
        {
            "request": {"headers": {"authorization": f"Bearer {KEY}"}, "body": json.dumps(REQUEST)},
            "response": {"status_code": 200, "headers": {}, "body": CHAT},
            "seconds": 3,
        },
        (SPLIT, 3.0, None, "m", {**LOW, "temperature": 0.5}),
    ),
    "batch": (
        {"custom_id": "a", "body": REQUEST, "response": {"status_code": 200, "body": CHAT}},
        (SPLIT, 0.0, None, "m", {**LOW, "temperature": 0.5}),
    ),
    "flat": ({**REQUEST, **CHAT, "model": "m"}, (SPLIT, 0.0, None, "m", {**LOW, "temperature": 0.5})),
    "text": (
        {"messages": ASK, "response": "It is 4.", "model": "m", "usage": USAGE},
        (SPLIT, 0.0, None, "m", {}),
    ),
    "responses": (
        {"request": RESPONSES_REQUEST, "response": RESPONSES},
        (SPLIT, 3.0, None, "m", {**LOW, "budget": 900}),
    ),
    "responses, flat": (
        {**RESPONSES_REQUEST, **RESPONSES},
        (SPLIT, 3.0, None, "m", {**LOW, "budget": 900}),
    ),
    "anthropic": (
        {"request": CLAUDE_REQUEST, "response": CLAUDE},
        (SPLIT, 0.0, None, "claude", {"think": 1024, "budget": 2000}),
    ),
    "anthropic batch": (
        {
            "custom_id": "a",
            "params": CLAUDE_REQUEST,
            "result": {"type": "succeeded", "message": CLAUDE},
        },
        (SPLIT, 0.0, None, "claude", {"think": 1024, "budget": 2000}),
    ),
    "gemini": (
        {"request": GEMINI_REQUEST, "response": GEMINI},
        (SPLIT, 0.0, None, "gemini", {"budget": 500, "thinking": False}),
    ),
    "litellm": (LITELLM, (SPLIT, 3.0, 0.25, "m", {**LOW, "top_k": 5})),
    "litellm, not streamed": (
        {**LITELLM, "completionStartTime": LITELLM["endTime"]},
        (SPLIT, 3.0, 0.25, "m", {**LOW, "top_k": 5}),
    ),
    "helicone": (HELICONE, (SPLIT, 3.0, 0.25, "m", {**LOW, "temperature": 0.5})),
    "langfuse": (LANGFUSE, (SPLIT, 3.0, 0.25, "m", LOW)),
    "reasoning beside": (
        {
            "request": REQUEST,
            "response": {
                **CHAT,
                "usage": {
                    "prompt_tokens": 20,
                    "completion_tokens": 20,
                    "total_tokens": 120,
                    "completion_tokens_details": {"reasoning_tokens": 80},
                },
            },
        },
        (SPLIT, 0.0, None, "m", {**LOW, "temperature": 0.5}),
    ),
    "reasoning in the total alone": (
        {
            "request": REQUEST,
            "response": {
                **CHAT,
                "usage": {"prompt_tokens": 20, "completion_tokens": 20, "total_tokens": 120},
            },
        },
        ((20, 80, 20, "estimate"), 0.0, None, "m", {**LOW, "temperature": 0.5}),
    ),
    "charged": (
        {"request": REQUEST, "response": {**CHAT, "usage": {**USAGE, "cost": 0.5}}, "cost": 0.25},
        (SPLIT, 0.0, 0.5, "m", {**LOW, "temperature": 0.5}),
    ),
    "no usage": (
        {"request": REQUEST, "response": {**CHAT, "usage": None}},
        ((3, 2, 2, "estimate"), 0.0, None, "m", {**LOW, "temperature": 0.5}),
    ),
}  # fmt: skip


def log(name: str, *lines: dict[str, Any] | str) -> str:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    Path(name).write_text("\n".join(texts) + "\n")
    return name


def line(effort: str = "low", question: str = "2 + 2?", answer: str = "4", **fields: Any) -> Any:
    request = {
        "model": "m",
        "messages": [{"role": "user", "content": question}],
        "reasoning_effort": effort,
    }
    response = {"choices": [{"message": {"content": answer}}], "usage": USAGE}
    return {"request": request, "response": response, "seconds": 1.5, **fields}


def imported(ponder, *words: object) -> dict[str, Any]:
    result = ponder("import", *words, "--json")
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def outcomes(study: str) -> list[Any]:
    with Store(Path("ponder.db")) as store:
        return list(store.outcomes(Study.load(study).cells))


def attempts(study: str) -> list[Any]:
    with Store(Path("ponder.db")) as store:
        return [done.attempt for cell in Study.load(study).cells for done in store.attempts(cell)]


@pytest.mark.parametrize("name", SHAPES)
def test_a_record_of_every_shape(ponder, folder, name: str) -> None:
    record, (tokens, seconds, cost, model, settings) = SHAPES[name]
    imported(ponder, log("day.jsonl", {**record, "right": True}), "--scorer", "right")
    [attempt] = attempts("day.toml")
    assert (attempt.problem.system, attempt.problem.turns) == ("Be brief.", ("2 + 2?",))
    assert attempt.completions[0].answer == "It is 4."
    bill = attempt.bill
    counts = (bill.prompt_tokens, bill.thinking_tokens, bill.answer_tokens, bill.counted_by)
    assert counts == tokens
    assert (bill.seconds, bill.cost) == (seconds, cost)
    [cell] = Study.load("day.toml").cells
    assert (cell.model.id, cell.model.settings) == (model, settings)
    first_token = attempt.completions[0].measures.get("first_token_seconds")
    assert first_token == (1.0 if name in ("litellm", "helicone", "langfuse") else None)


def test_the_same_question_has_the_same_id_in_every_shape(ponder, folder) -> None:
    records = [{**record, "right": True, "custom_id": ""} for record, _ in SHAPES.values()]
    told = imported(ponder, log("day.jsonl", *records), "--scorer", "right")
    assert told["attempts"] == len(SHAPES)
    assert len({outcome.problem for outcome in outcomes("day.toml")}) == 1


def test_settings_are_models_and_repeated_requests_are_samples(ponder, folder) -> None:
    lines = [
        line("low", answer="4", right=True),
        line("low", answer="5", right=False),
        line("high", answer="4", right=True),
        line("high", "3 + 3?", "6", right=True),
        line("high", "3 + 3?", right=None, response={"status_code": 503, "error": "busy"}),
    ]
    told = imported(ponder, log("day.jsonl", *lines))
    assert told["endings"] == {"right": 3, "wrong": 1, "failed": 1}
    found = [(o.label.model, o.sample, o.ended) for o in outcomes("day.toml")]
    assert sorted(found) == [
        ("m effort=high", 0, "right"),
        ("m effort=high", 0, "right"),
        ("m effort=high", 1, "failed"),
        ("m effort=low", 0, "right"),
        ("m effort=low", 1, "wrong"),
    ]
    efforts = [cell.model.settings["effort"] for cell in Study.load("day.toml").cells]
    assert efforts == ["low", "high"]
    report = ponder("report", "day.toml")
    assert report.exit_code == 0, report.output
    assert "incomplete: 4 of 5 attempts answered; 1 attempt failed" in report.stderr
    compared = ponder("compare", "day.toml", "m effort=low", "m effort=high")
    assert "1 problem in common" in compared.output, compared.output


def test_importing_again_changes_nothing_and_a_longer_log_adds_its_new_lines(
    ponder, folder
) -> None:
    lines = [line(answer=str(n), right=n == 4) for n in range(6)]
    assert imported(ponder, log("day.jsonl", *lines[:4]))["new"] == 4
    before = outcomes("day.toml")
    assert imported(ponder, "day.jsonl")["new"] == 0
    assert outcomes("day.toml") == before
    assert imported(ponder, log("day.jsonl", *lines))["new"] == 2
    # Another log of the same requests doesn't take the place of these, whatever its name.
    before = outcomes("day.toml")
    Path("next").mkdir()
    log("next/day.jsonl", *lines[2:])
    assert imported(ponder, "next/day.jsonl", "-o", "next.toml")["new"] == 4
    assert outcomes("day.toml") == before
    assert len(outcomes("next.toml")) == 4


def test_both_files_of_a_batch_are_joined(ponder, folder) -> None:
    names = ("a", "b", "c")
    asked = [
        {"custom_id": name, "method": "POST", "body": {**REQUEST, "user": name}} for name in names
    ]
    replies = [
        {"custom_id": "b", "response": None, "error": {"message": "expired"}, "right": None},
        {"custom_id": "a", "response": {"status_code": 200, "body": CHAT}, "right": True},
        {"custom_id": "x", "response": {"status_code": 200, "body": CHAT}, "right": True},
    ]
    files = log("in.jsonl", *asked), log("out.jsonl", *replies)
    result = ponder("import", *files)
    assert "1 line without a reply: of batches, name both files" in result.stderr, result.output
    assert "1 line without a request: of batches, name both files" in result.stderr
    found = [(o.ended, o.why) for o in outcomes("log.toml")]
    assert sorted(found) == [("failed", "expired"), ("right", "")]
    result = ponder("import", log("twice.jsonl", *asked, asked[0]))
    assert "twice.jsonl:4: the `custom_id` 'a' occurs twice" in result.stderr


TOOL_CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
UNUSABLE = {
    "with tools": [
        {"request": {**REQUEST, "tools": [{}]}, "response": CHAT},
        {"request": REQUEST, "response": {"choices": [{"message": {"tool_calls": [TOOL_CALL]}}]}},
        {
            "request": {**REQUEST, "messages": [*ASK, {"role": "tool", "content": "1"}]},
            "response": CHAT,
        },
        {
            "request": CLAUDE_REQUEST,
            "response": {**CLAUDE, "content": [{"type": "tool_use", "name": "f", "input": {}}]},
        },
        {
            "request": RESPONSES_REQUEST,
            "response": {**RESPONSES, "output": [{"type": "function_call"}]},
        },
    ],
    "with images, files or audio": [
        {
            "request": {
                **REQUEST,
                "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            },
            "response": CHAT,
        }
    ],
    "with several replies to one request (n > 1), which are billed together": [
        {"request": REQUEST, "response": {**CHAT, "choices": CHAT["choices"] * 2}}  # type: ignore[operator]
    ],
    "with a reply in pieces, as it was streamed": [
        {"request": REQUEST, "response": 'data: {"choices": []}'},
        {"request": REQUEST, "response": [{"choices": [{"delta": {"content": "4"}}]}]},
    ],
    "answered from a proxy's cache": [{**LITELLM, "cache_hit": True}],
    "whose last message is not the user's": [
        {
            "request": {**REQUEST, "messages": [*ASK, {"role": "assistant", "content": "It"}]},
            "response": CHAT,
        }
    ],
    "whose conversation is kept on the server": [
        {"request": {**RESPONSES_REQUEST, "previous_response_id": "r"}, "response": RESPONSES}
    ],
    "without a request and its reply": [
        {"level": "info", "message": "started"},
        {"request": {"model": "e", "input": ""}, "response": {"data": []}},
    ],
}  # fmt: skip


def test_lines_that_are_no_single_text_are_skipped_and_counted(ponder, folder) -> None:
    lines = [{**record, "right": True} for records in UNUSABLE.values() for record in records]
    result = ponder("import", log("day.jsonl", line(right=True), *lines))
    assert result.exit_code == 0, result.output
    for reason, records in UNUSABLE.items():
        noun = "line" if len(records) == 1 else "lines"
        assert f"{len(records)} {noun} {reason}" in result.stderr
    assert len(outcomes("day.toml")) == 1
    result = ponder("import", log("none.jsonl", *lines))
    assert result.exit_code == 2
    assert "none.jsonl: nothing in this log can be imported: 5 lines with tools; " in result.stderr


def test_fields_that_are_not_compared_are_named(ponder, folder) -> None:
    record = line(right=True)
    record["request"] |= {"logit_bias": {"1": 2}, "seed": 3, "user": "u"}
    flat = {**SHAPES["flat"][0], "right": True, "trace": "t"}
    result = ponder("import", log("day.jsonl", record, flat))
    assert "fields of requests that don't make another model: logit_bias\n" in result.stderr


def test_a_conversation_s_history_is_part_of_the_problem(ponder, folder) -> None:
    turns = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}, {"type": "text", "text": "4"}]},
        {"role": "user", "content": "And 1 more?"},
    ]  # fmt: skip
    request = {"model": "m", "messages": turns}
    record = {"request": request, "response": CHAT, "right": True}
    imported(ponder, log("day.jsonl", record, line(question="And 1 more?", right=True)))
    problems = {attempt.problem.id: attempt.problem for attempt in attempts("day.toml")}
    histories = [[m.content for m in problem.history] for problem in problems.values()]
    assert sorted(histories) == [[], ["2 + 2?", "4"]]
    asked = [json.loads(text) for text in Path("day-requests.jsonl").read_text().splitlines()]
    assert [m["role"] for m in asked[0]["history"]] == ["user", "assistant"]


def test_a_log_without_grades_asks_for_answers_and_its_requests_can_be_asked_again(
    ponder, folder, write
) -> None:
    lines = [
        line("low", "2 + 2?", "The answer is 4"),
        line("low", "3 + 3?", "The answer is 7"),
        line("high", "3 + 3?", "I can't say."),
        line("high", "5 + 5?", "The answer is 10"),
    ]
    result = ponder("import", log("day.jsonl", *lines))
    assert result.exit_code == 2
    assert "nothing in this log says which replies are right" in result.stderr
    assert "3 distinct requests" in result.stderr
    assert not Path("ponder.db").exists()
    requests = [json.loads(text) for text in Path("day-requests.jsonl").read_text().splitlines()]
    assert [request["prompt"] for request in requests] == ["2 + 2?", "3 + 3?", "5 + 5?"]
    requests[0]["answer"] = 4
    requests[1] |= {"answer": 6, "size": 3}
    log("day-requests.jsonl", *requests)
    result = ponder("import", "day.jsonl", "--answers", "day-requests.jsonl")
    assert "1 reply that `day-requests.jsonl` doesn't grade" in result.stderr, result.output
    found = [(o.size, o.label.model, o.ended) for o in outcomes("day.toml")]
    assert sorted(found) == [
        (0, "m effort=low", "right"),
        (3, "m effort=high", "unparsed"),
        (3, "m effort=low", "wrong"),
    ]
    # What a person wrote is not written over.
    written = Path("day-requests.jsonl").read_text()
    assert ponder("import", "day.jsonl").exit_code == 2
    assert Path("day-requests.jsonl").read_text() == written
    log("answered.jsonl", *requests[:2])
    study = '[[task]]\nname = "jsonl"\nfile = "answered.jsonl"\n[[model]]\nname = "oracle"\n'
    write("again.toml", study)
    assert ponder("run", "again.toml").exit_code == 0
    assert [o.ended for o in outcomes("again.toml")] == ["right", "right"]


def test_replies_without_feedback_are_left_out_and_never_wrong(ponder, folder) -> None:
    lines = [
        line(feedback="thumbs_up"),
        line(feedback={"rating": False}),
        line(feedback=None),
        line(),
        line(answer="", response={"choices": [{"message": {"content": "4"}, "finish_reason": "length"}]}, feedback="👎"),
    ]  # fmt: skip
    result = ponder("import", log("day.jsonl", *lines))
    assert (
        "2 replies that `feedback` doesn't grade: left out, not counted as wrong" in result.stderr
    )
    assert "1 reply without a full `usage`" in result.stderr
    assert [o.ended for o in outcomes("day.toml")] == ["right", "wrong", "truncated"]


def test_which_field_grades(ponder, folder) -> None:
    lines = [line(score=n, metadata={"stars": n + 1}, scores=[{"name": "tone", "value": 1}]) for n in range(3)]  # fmt: skip
    log("day.jsonl", *lines)
    result = ponder("import", "day.jsonl")
    assert "`score` gives scores above 1" in result.stderr
    assert imported(ponder, "day.jsonl", "--right", 2)["endings"] == {"wrong": 2, "right": 1}
    told = imported(ponder, "day.jsonl", "--scorer", "metadata.stars", "--right", 2)
    assert told["endings"] == {"wrong": 1, "right": 2}
    assert imported(ponder, "day.jsonl", "--scorer", "tone")["endings"] == {"right": 3}
    result = ponder("import", "day.jsonl", "--scorer", "tune")
    assert "no line of this log has a field `tune`\nhint: did you mean `tone`?" in result.stderr
    result = ponder("import", log("labels.jsonl", line(label="billing")))
    assert "`label` is `billing` in this log, which says neither right nor wrong" in result.stderr


def test_keys_never_reach_the_store_or_a_file(ponder, folder) -> None:
    record = copy.deepcopy(SHAPES["http"][0])
    leaking = line(question=f"Is {KEY} a key?", answer=f"Yes: {KEY}", right=True)
    failing = line(right=None, response={"status_code": 401, "error": f"bad key {KEY}"})
    lines = [{**record, "right": True}, {**LITELLM, "right": True}, leaking, failing]
    result = ponder("import", log("day.jsonl", *lines))
    assert result.exit_code == 0, result.output
    assert "keys of providers were removed from 1 distinct request" in result.stderr
    Path("day.jsonl").unlink()
    texts = [attempt.completions[0].answer for attempt in attempts("day.toml")]
    assert "Yes: [key]" in texts
    ponder("export", "day.toml", "--format", "jsonl")
    for file in Path().iterdir():
        assert KEY.encode() not in file.read_bytes(), file


def test_sizes_from_the_log(ponder, folder) -> None:
    lines = [line(question=f"{n} + 1?", right=True, metadata={"pages": n}) for n in (1, 2, 5)]
    imported(ponder, log("day.jsonl", *lines), "--size", "pages")
    assert [o.size for o in outcomes("day.toml")] == [1, 2, 5]


def test_an_effort_that_the_server_ignored_is_no_variant(ponder, folder) -> None:
    lines = []
    for number in range(12):
        for effort in ("low", "high"):
            lines.append(line(effort, f"{number} + 1?", "4" * number, right=number > 2))
    imported(ponder, log("day.jsonl", *lines))
    report = ponder("report", "day.toml")
    assert "`effort` has no effect on m effort=low" in report.stderr, report.output


def test_prices_of_a_maker_s_own_model_are_found_and_stay(ponder, folder) -> None:
    lines = []
    for model in ("gpt-5-mini", "my-model", "mistral-large"):
        record = line(right=True)
        record["request"]["model"] = model
        lines.append(record)
    result = ponder("import", log("day.jsonl", *lines))
    assert "prices: gpt-5-mini 0.25/2.00 USD per million tokens, from genai-prices" in result.stderr
    assert result.stderr.count("prices: ") == 1  # others may serve it at other prices
    [priced] = Study.load("day.toml").results("ponder.db").prices
    assert priced.startswith("gpt-5-mini 0.25/2.00 USD")


def test_too_many_ways_of_asking(ponder, folder) -> None:
    lines = []
    for number in range(60):
        record = line("low" if number % 2 else "high", right=True)
        record["request"]["max_tokens"] = 1000 + number
        lines.append(record)
    result = ponder("import", log("day.jsonl", *lines))
    assert result.exit_code == 2
    assert "60 ways of asking, more than 50: budget (60 values), effort (2 values)" in result.stderr
    assert "--ignore budget" in result.stderr
    imported(ponder, "day.jsonl", "--ignore", "budget")
    assert {o.label.model for o in outcomes("day.toml")} == {"m effort=low", "m effort=high"}


@pytest.mark.parametrize(
    ("lines", "words", "says"),
    [
        ([""], (), "day.jsonl is empty"),
        ([line(right=True), '{"request": {"mess'], (), "day.jsonl:2: this log can't be read"),
        (["[1, 2]"], (), "a line is one object: jq -c '.[]' makes lines of a list"),
        ([{"prompt": "2 + 2?", "answer": 4}], (), "1 line without a request and its reply"),
        ([line()], ("--answers", "none.jsonl"), "can't read none.jsonl"),
        ([line()], ("--answers", "empty.jsonl"), "no line of this file has an answer"),
        ([line()], ("--answers", "other.jsonl"), "has the answer to none of its requests"),
        ([line(right=True)], ("-o", "day-requests.toml"), "wasn't written by an import"),
        ([line(right=True)], ("--size", "pages"), "day.jsonl:1: there is no `pages`"),
    ],
)
def test_bad_input(ponder, folder, write, lines, words: tuple[str, ...], says: str) -> None:
    write("empty.jsonl", '{"prompt": "2 + 2?"}\n')
    write("other.jsonl", '{"prompt": "9 + 9?", "answer": 18}\n')
    write("day-requests.toml", "mine")
    result = ponder("import", log("day.jsonl", *lines), *words)
    assert result.exit_code == 2
    assert says in result.stderr, result.output
    assert not Path("ponder.db").exists()


def test_a_log_that_is_still_being_written(ponder, folder) -> None:
    log("day.jsonl", line(right=True), line(right=False))
    text = Path("day.jsonl").read_text()
    Path("day.jsonl").write_text(text[:-20])
    result = ponder("import", "day.jsonl")
    assert "skipped: 1 line cut off at the end of a file" in result.stderr, result.output
    assert [o.ended for o in outcomes("day.toml")] == ["right"]


def test_a_log_is_never_written_over(ponder, folder) -> None:
    log("day-requests.jsonl", line(right=True))
    result = ponder("import", "day-requests.jsonl", "-o", "day.toml")
    assert "day-requests.jsonl would be written over" in result.stderr


JUNK = (None, True, -1, 0, 1e300, "", "x", "\ud800", "{", "[1]", [], [None], [[]], {}, {"a": {}})


def _mutated(value: Any, rng: random.Random) -> Any:
    """Return a copy with one value somewhere inside replaced by junk."""
    value = copy.deepcopy(value)
    place = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return value
        key = rng.choice(keys)
        inner = place[key]
        if not isinstance(inner, dict | list) or rng.random() < 0.3:
            place[key] = rng.choice(JUNK)
            return value
        place = inner


def test_no_damaged_record_is_a_crash(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = tmp_path / "day.jsonl"
    with path.open("w") as file:
        for _ in range(4000):
            record: Any = {**SHAPES[rng.choice(list(SHAPES))][0], "right": True}
            record.pop("custom_id", None)
            for _ in range(rng.randint(1, 3)):
                record = _mutated(record, rng)
            file.write(json.dumps(record) + "\n")
    source = RequestLogs([path], scorer="right", ignore=list(shapes.SETTINGS))
    with closing(source):
        source.read()
        samples = [sample for log in source.logs for sample in log.samples()]
    assert len(samples) > 1500
    assert all(sample.completion.bill.tokens >= 0 for sample in samples)
    endings = Counter(bool(sample.error) for sample in samples)
    assert endings[False] > 10 * endings[True] > 0
