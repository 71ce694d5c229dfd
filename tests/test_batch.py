"""Batch jobs: half the price, no answer lost and none paid twice, whenever a process is killed."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from ponder import Study
from ponder.models.endpoint import batch
from ponder.store.store import Store

ROUTES = {
    "chat": 'provider = "openai"\nprotocol = "chat"',
    "responses": 'provider = "openai"\nprotocol = "responses"',
    "anthropic": 'provider = "anthropic"',
}
STUDY = """
problems = {problems}
{more}
[[task]]
name = "chain_sum"
size = 2
[[model]]
name = "endpoint"
id = "served"
url = "{url}"
key = "$KEY"
budget = 2000
prices = {{ input = 2.0, output = 10.0 }}
batch = true
{model}
"""
LENGTHS = {"median": 300, "sigma": 0.4}
SECONDS = {"QUIET": 0.05, "FIRST_POLL": 0.02, "LONGEST_POLL": 0.05, "LISTED": 0.0}
# The same for a process of its own.
HURRY = "; ".join(
    ["from ponder.models.endpoint import batch"]
    + [f"batch.{name} = {value}" for name, value in SECONDS.items()]
)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECONDS.items():
        monkeypatch.setattr(batch, name, value)
    monkeypatch.setenv("KEY", "a key")


@pytest.fixture
def study(write) -> Callable[..., None]:
    """Write a study of an endpoint that takes batch jobs."""

    def study(served, route: str = "chat", problems: int = 12, more: str = "", model: str = ""):
        settings = f"{ROUTES[route]}\n{model}"
        text = STUDY.format(url=served.url, problems=problems, more=more, model=settings)
        write("s.toml", text)

    return study


def summary(result) -> dict[str, Any]:
    assert result.exit_code in (0, 1), result.stderr
    tally: dict[str, Any] = json.loads(result.stdout)
    return tally


def attempts(store: str = "ponder.db") -> dict[tuple[int, int], tuple[Any, ...]]:
    """What a store has of each attempt, without the seconds, which nobody knows of a job."""
    stored = {}
    with Store(Path(store)) as opened:
        for cell in Study.load("s.toml").cells:
            for done in opened.attempts(cell):
                attempt = done.attempt
                turns = []
                for turn in attempt.completions:
                    bill = turn.bill
                    tokens = (bill.prompt_tokens, bill.thinking_tokens, bill.answer_tokens)
                    turns.append((turn.thinking, turn.answer, turn.stop, tokens))
                stored[done.position, attempt.sample] = (attempt.ended, attempt.why, *turns)
    return stored


def query(sql: str) -> Any:
    with closing(sqlite3.connect("ponder.db")) as db:
        result = db.execute(sql).fetchone()
        db.commit()
        return result and result[0]


def wait_for(sql: str, value: int) -> None:
    """Until a query of the store returns at least a value."""
    while query(sql) < value:
        time.sleep(0.01)


def no_jobs_left() -> bool:
    return query("SELECT COUNT(*) FROM job") == query("SELECT COUNT(*) FROM job_request") == 0


# The fake server, as the providers' own clients see it

CHAT_LINE = {"model": "served", "messages": [{"role": "user", "content": "What is 1 + 2?"}]}


@pytest.mark.parametrize("page", ["/v1/chat/completions", "/v1/responses"])
def test_openais_client_reads_the_fake(serve, page) -> None:
    body: dict[str, Any] = CHAT_LINE
    if page == "/v1/responses":
        body = {"model": "served", "input": "What is 1 + 2?"}
    lines = []
    for number in range(3):
        line = {"custom_id": f"job-{number}", "method": "POST", "url": page, "body": body}
        lines.append(json.dumps(line))
    served = serve()
    with openai.OpenAI(base_url=served.url, api_key="k", max_retries=0) as client:
        file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
        created = []
        for _ in range(3):
            job = client.batches.create(
                input_file_id=file.id,
                endpoint=page,  # type: ignore[arg-type]
                completion_window="24h",
                metadata={"name": "value"},
            )
            created.append(job.id)
        job = client.batches.retrieve(created[0])
        assert job.status == "completed"
        assert job.metadata == {"name": "value"}
        assert job.request_counts is not None
        assert (job.request_counts.total, job.request_counts.completed) == (3, 3)
        assert [job.id for job in client.batches.list()] == created[::-1]  # of two pages
        assert job.output_file_id is not None
        content = client.files.content(job.output_file_id).text
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_unknown")
    results = [json.loads(line) for line in content.splitlines()]
    assert [result["custom_id"] for result in results] == ["job-2", "job-1", "job-0"]
    for result in results:
        assert result["response"]["status_code"] == 200
        if page == "/v1/responses":
            openai.types.responses.Response.model_validate(result["response"]["body"])
        else:
            openai.types.chat.ChatCompletion.model_validate(result["response"]["body"])
    assert served.state()["billed"] == 9


def test_anthropics_client_reads_the_fake(serve) -> None:
    served = serve(job_errors={"expired": 0.3, "500": 0.3})
    requests = []
    for number in range(9):
        params = {**CHAT_LINE, "max_tokens": 100}
        requests.append({"custom_id": f"job-{number}", "params": params})
    url = served.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
        created = []
        for _ in range(3):
            created.append(client.messages.batches.create(requests=requests).id)  # type: ignore[arg-type]
        job = client.messages.batches.retrieve(created[0])
        assert job.processing_status == "ended"
        assert [job.id for job in client.messages.batches.list()] == created[::-1]
        results = list(client.messages.batches.results(created[0]))
        with pytest.raises(anthropic.NotFoundError):
            client.messages.batches.retrieve("msgbatch_unknown")
    assert [result.custom_id for result in results] == [f"job-{n}" for n in range(8, -1, -1)]
    kinds = [result.result.type for result in results]
    counts = job.request_counts
    assert (counts.succeeded, counts.errored, counts.expired) == tuple(
        kinds.count(kind) for kind in ("succeeded", "errored", "expired")
    )
    assert min(counts.succeeded, counts.errored, counts.expired) > 0
    for result in results:
        if result.result.type == "succeeded":
            assert result.result.message.usage.output_tokens > 0
        elif result.result.type == "errored":
            assert result.result.error.error.type == "api_error"


@pytest.mark.parametrize("fault", ["hold_jobs", "job_failed"])
def test_openais_client_reads_jobs_that_have_no_results(serve, fault) -> None:
    error = {"code": "invalid_json_line", "message": "not JSON", "line": 1, "param": None}
    served = serve(**{fault: [error]})
    line = {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT_LINE}
    with openai.OpenAI(base_url=served.url, api_key="k") as client:
        content = json.dumps(line).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        job = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        job = client.batches.retrieve(job.id)
    assert job.output_file_id is None
    if fault == "hold_jobs":
        assert job.status == "in_progress"
    else:
        assert job.status == "failed"
        assert job.errors is not None
        assert job.errors.data is not None
        assert job.errors.data[0].line == 1


# A run


@pytest.mark.parametrize("route", ROUTES)
def test_a_study_in_jobs_costs_half(serve, study, ponder, monkeypatch, route) -> None:
    """Results come in reverse order, and of several jobs at once."""
    served = serve(lengths=LENGTHS)
    study(served, route)
    api = {"anthropic": "AnthropicBatches"}.get(route, "OpenAIBatches")
    monkeypatch.setattr(f"ponder.models.endpoint.batch_apis.{api}.max_requests", 5)
    planned = ponder("plan", "s.toml").stdout
    in_jobs = summary(ponder("run", "s.toml", "--json"))
    state = served.state()
    assert (state["jobs"], state["lines"], state["billed"]) == (3, 12, 12)
    assert "requests" not in state  # no ordinary call
    again = ponder("run", "s.toml", "--set", "model.batch=false", "--store", "calls.db", "--json")
    ordinary = summary(again)
    assert served.state()["requests"] == 12
    assert in_jobs["right"] == 12
    assert attempts() == attempts("calls.db")
    assert in_jobs["tokens"] == ordinary["tokens"] == state["billed_tokens"]
    assert in_jobs["cost"] == pytest.approx(ordinary["cost"] / 2)
    assert no_jobs_left()
    # 12 times 2,000 tokens at 10 per million, and the prompts
    assert "served 1.00/5.00 USD per million tokens in batch jobs" in planned
    assert "`served` costs half with batch = true; answers within 24 hours: at most 0.12" in planned
    assert "USD instead of 0.24" in planned


def test_a_plan_without_batch_says_what_jobs_would_cost(serve, study, ponder) -> None:
    study(serve())
    planned = ponder("plan", "s.toml", "--set", "model.batch=false").stdout
    assert "at most 0.12" in planned
    assert "USD instead of 0.24" in planned
    assert "in batch jobs" not in planned


def test_equal_requests_are_answered_each(serve, study, ponder) -> None:
    """Without a seed, samples of one problem are the same request."""
    served = serve()
    study(served, "anthropic", problems=3, more="samples = 4")
    assert summary(ponder("run", "s.toml", "--json"))["right"] == 12
    assert served.state()["billed"] == 12
    assert served.state()["repeated"] == 9


@pytest.mark.parametrize("route", ROUTES)
def test_calls_of_a_method_and_turns_go_in_jobs(serve, study, write, ponder, route) -> None:
    served = serve()
    study(served, route, problems=2, model='method = { name = "vote", n = 3 }')
    text = Path("s.toml").read_text().replace("chain_sum", "execution")
    write("s.toml", text.replace("size = 2", "size = 4\nper_turn = 2\ndictionary = 5"))
    tally = summary(ponder("run", "s.toml", "--json"))
    assert (tally["done"], tally["failed"]) == (2, 0)
    assert served.state()["billed"] == 2 * 2 * 3
    assert served.state()["jobs"] == 2  # one per turn
    assert no_jobs_left()


# Killed


@pytest.mark.parametrize("route", ROUTES)
def test_killed_three_times(serve, study, ponder, running, route) -> None:
    served = serve(lengths=LENGTHS, lose_job=1, hold_lost=True, hold_jobs=True, hold_results=5)
    study(served, route)
    with running("run", "s.toml", first=HURRY) as process:
        served.wait(lost_job=1)  # the job is there, and its id isn't known
        process.kill()
    assert query("SELECT remote FROM job") == ""
    with running("run", "s.toml", first=HURRY) as process:
        # Anthropic's jobs are recognised when they have ended.
        served.wait(**({"listed_jobs": 4} if route == "anthropic" else {"polls": 4}))
        process.kill()
    served.release("hold_jobs")
    with running("run", "s.toml", first=HURRY) as process:
        served.wait(held_results=1 + (route == "anthropic"))
        wait_for("SELECT COUNT(*) FROM attempt", 5)
        process.kill()
    assert query("SELECT COUNT(*) FROM job_request") == 7
    assert len(attempts()) == 5
    served.release()
    tally = summary(ponder("run", "s.toml", "--json"))
    assert (tally["stored_before"], tally["right"]) == (5, 7)
    state = served.state()
    assert (state["jobs"], state["lines"], state["billed"]) == (1, 12, 12)
    assert tally["lost_calls"] == 0
    assert ponder("store", "check").exit_code == 0
    assert ponder("run", "s.toml", "--set", "model.batch=false", "--store", "calls.db").exit_code == 0
    assert attempts() == attempts("calls.db")
    assert no_jobs_left()


def test_an_interrupt_leaves_jobs_open(serve, study, ponder, running) -> None:
    served = serve(hold_jobs=True)
    study(served)
    with running("run", "s.toml", "--grace", "600", first=HURRY) as process:
        served.wait(polls=2)
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted; run the same command again to resume" in talk
    assert "may have been billed" not in talk
    assert query("SELECT COUNT(*) FROM job_request") == 12
    served.release()
    assert summary(ponder("run", "s.toml", "--json"))["right"] == 12
    assert (served.state()["jobs"], served.state()["billed"]) == (1, 12)
