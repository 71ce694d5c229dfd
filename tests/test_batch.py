"""Batch jobs: half the price, no answer lost and none paid twice, whenever a process is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from endpoint_calls import request, watched

from ponder import Study
from ponder.core import Completion, Job, Jobs, ModelFailure, Request, Retry
from ponder.models.endpoint import Endpoint, batch
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
SECONDS = {"COLLECT_SECONDS": 0.05, "FIRST_POLL": 0.02, "LONGEST_POLL": 0.05, "LISTING_DELAY": 0.0}
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
    for api in ("OpenAIBatches", "AnthropicBatches"):
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


def test_calls_of_a_method_and_turns_go_in_jobs(serve, study, write, ponder) -> None:
    served = serve()
    study(served, "anthropic", problems=2, model='method = { name = "vote", n = 3 }')
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
    assert (
        ponder("run", "s.toml", "--set", "model.batch=false", "--store", "calls.db").exit_code == 0
    )
    assert attempts() == attempts("calls.db")
    assert no_jobs_left()


def test_an_interrupt_leaves_jobs_open(serve, study, ponder, running) -> None:
    served = serve(hold_jobs=True)
    study(served)
    with running("run", "s.toml", "--grace", "600", first=HURRY) as process:
        served.wait(polls=2)
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=60)  # nobody waits for the job
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted; run the same command again to resume" in talk
    assert "0/12  12 requests in batch jobs" in talk
    assert "waiting for" not in talk
    assert "may have been billed" not in talk
    assert query("SELECT COUNT(*) FROM job_request") == 12
    served.release()
    assert summary(ponder("run", "s.toml", "--json"))["right"] == 12
    assert (served.state()["jobs"], served.state()["billed"]) == (1, 12)


@pytest.mark.parametrize("route", ["chat", "anthropic"])
def test_a_job_that_was_stored_and_never_sent(serve, study, ponder, running, route) -> None:
    served = serve(hold_jobs=True)
    study(served, route)
    with running("run", "s.toml", first=HURRY) as process:
        served.wait(polls=2)
        process.kill()
    query("UPDATE job SET id = 'unsent', remote = ''")
    query("UPDATE job_request SET job = 'unsent'")
    served.release()
    tally = summary(ponder("run", "s.toml", "--json"))
    assert (tally["right"], tally["lost_calls"]) == (12, 0)
    assert served.state()["jobs"] == 2
    assert served.state()["listed_jobs"] > 0
    assert no_jobs_left()


# Caps

LONG = {"lengths": {"median": 10_000, "sigma": 0.1}}  # every reply takes its whole budget


@pytest.mark.parametrize(
    ("route", "lengths"),
    [("chat", LONG["lengths"]), ("anthropic", {"median": 300, "sigma": 1.2})],
)
def test_a_cap_holds_in_jobs(serve, study, ponder, route, lengths) -> None:
    served = serve(lengths=lengths)
    study(served, route, problems=60, more="max_tokens = 20000")
    result = ponder("run", "s.toml", "--json")
    tally = summary(result)
    assert tally["capped"]
    assert tally["tokens"] == served.state()["billed_tokens"]
    assert 20_000 - 2500 < tally["tokens"] <= 20_000
    assert served.state()["lines"] == served.state()["billed"] == tally["done"]
    assert no_jobs_left()


def test_a_cap_below_one_request_sends_no_job(serve, study, ponder) -> None:
    served = serve()
    study(served, more="max_tokens = 500")
    assert summary(ponder("run", "s.toml", "--json"))["capped"]
    assert "jobs" not in served.state()


def left_open(served, running, *words: str) -> int:
    """Kill a run that waits for a job; return what its requests hold."""
    with running("run", "s.toml", *words, first=HURRY) as process:
        served.wait(polls=2)
        process.kill()
    held: int = query("SELECT SUM(tokens) FROM job_request")
    return held


def test_requests_in_the_job_of_a_killed_run_count_once(serve, study, ponder, running) -> None:
    served = serve(**LONG, hold_jobs=True)
    study(served, more="max_tokens = 1000000")
    held = left_open(served, running)
    assert held > 12 * 2000
    assert query("SELECT SUM(held_tokens) FROM study") == 0
    planned = json.loads(ponder("plan", "s.toml", "--json").stdout)
    assert planned["spent"]["tokens"] == held
    served.release("hold_jobs")
    # There is room for those that were sent, and for nothing else.
    tally = summary(ponder("run", "s.toml", "--set", f"max_tokens={held}", "--json"))
    assert (tally["done"], tally["capped"]) == (12, False)
    assert (served.state()["jobs"], served.state()["billed"]) == (1, 12)
    assert tally["tokens"] == served.state()["billed_tokens"] <= held


@pytest.mark.parametrize("change", ["model.batch=false", "problems=20"])
def test_a_cap_counts_jobs_that_are_still_open(serve, study, ponder, running, change) -> None:
    """Whoever asks without batch jobs pays for both."""
    served = serve(**LONG, hold_jobs=True)
    study(served, problems=6)
    held = left_open(served, running)
    served.release()
    cap = held + held // 3  # for two more
    words = ("--set", f"max_tokens={cap}", "--set", change)
    result = ponder("run", "s.toml", *words, "--json")
    assert summary(result)["capped"]
    assert held < served.state()["billed_tokens"] + 6 * 100 <= cap + 6 * 100
    assert served.state()["billed"] == 8
    if change == "model.batch=false":
        assert f"{held:,} of these tokens are of requests in batch jobs" in result.stderr


# Results that are not answers


@pytest.mark.parametrize("route", ["responses", "anthropic"])
@pytest.mark.parametrize("fault", ["500", "429", "expired", "missing", "400"])
def test_lines_without_an_answer(serve, study, ponder, slept, route, fault) -> None:
    served = serve(job_errors={fault: 0.4})
    study(served, route)
    tally = summary(ponder("run", "s.toml", "--json"))
    state = served.state()
    faulty = state[f"lines_{fault}"]
    assert 0 < faulty < 12
    assert state["billed"] == tally["right"]
    lost = faulty if fault == "missing" else 0  # nobody knows whether those were billed
    assert tally["lost_calls"] == lost
    assert no_jobs_left()
    if fault == "400":
        assert (tally["failed"], tally["right"]) == (faulty, 12 - faulty)
        assert (state["jobs"], state["lines"]) == (1, 12)
        assert summary(ponder("run", "s.toml", "--json"))["right"] == faulty
    else:
        assert (tally["failed"], tally["right"]) == (0, 12)
        assert (state["jobs"], state["lines"]) == (2, 12 + faulty)
        kind = "rate limit" if fault == "429" else "error"
        assert tally["retries"] == {kind: faulty}
    assert ponder("store", "check").exit_code == 0


def test_lines_are_not_repeated_beyond_retries(serve, study, ponder) -> None:
    served = serve(job_errors={"500": 0.2, "expired": 0.2, "missing": 0.2})
    study(served, problems=30, model="retries = 0")
    tally = summary(ponder("run", "s.toml", "--json"))
    state = served.state()
    assert min(state["lines_500"], state["lines_expired"], state["lines_missing"]) > 0
    assert tally["failed"] == 30 - state["billed"] > 0
    assert state["jobs"] == 1


def test_a_refusal_of_every_request_ends_the_run_once(serve, study, ponder, slept) -> None:
    """A line in the results stays as it is; the next run asks anew."""
    served = serve(job_errors={"403": 1.0})
    study(served)
    first = ponder("run", "s.toml")
    assert first.exit_code == 2
    assert "refuses the key: HTTP 403" in first.stderr
    assert query("SELECT COUNT(*) FROM job_request") == 12
    assert summary(ponder("run", "s.toml", "--json"))["right"] == 12
    assert (served.state()["jobs"], served.state()["billed"]) == (2, 12)
    assert no_jobs_left()


# Jobs that are refused, or lost

ERROR = {"code": "invalid_request", "message": "the field is wrong", "param": None}


def test_a_job_with_refused_lines(serve, study, ponder, slept) -> None:
    served = serve(job_failed=[{**ERROR, "line": 2}, {**ERROR, "line": 5}])
    study(served)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert (tally["failed"], tally["right"]) == (2, 10)
    failed = [position for (position, _), attempt in attempts().items() if attempt[0] == "failed"]
    assert sorted(failed) == [1, 4]
    (why,) = tally["reasons"]["failed"]
    assert "the server refuses a batch job: invalid_request: the field is wrong" in why
    assert (served.state()["jobs"], served.state()["billed"]) == (2, 10)
    assert tally["lost_calls"] == 0
    assert summary(ponder("run", "s.toml", "--json"))["right"] == 2


def test_a_job_that_is_refused_as_a_whole(serve, study, ponder) -> None:
    served = serve(job_failed=[{**ERROR, "line": None}])
    study(served)
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "the server refuses a batch job: invalid_request: the field is wrong" in result.stderr
    assert (served.state()["jobs"], served.state().get("billed", 0)) == (1, 0)


@pytest.mark.parametrize("route", ["chat", "anthropic"])
def test_a_job_whose_id_is_lost_is_found_again(serve, study, ponder, monkeypatch, route) -> None:
    """On the second page of the list: the jobs after it are newer."""
    served = serve(lose_job=1)
    study(served, route)
    for api in ("OpenAIBatches", "AnthropicBatches"):
        monkeypatch.setattr(f"ponder.models.endpoint.batch_apis.{api}.max_requests", 3)
    tally = summary(ponder("run", "s.toml", "--json"))
    assert (tally["right"], tally["lost_calls"]) == (12, 0)
    assert (served.state()["jobs"], served.state()["billed"]) == (4, 12)
    assert no_jobs_left()


@pytest.mark.parametrize("fault", [{"max_job": 3}, {"max_enqueued": 6, "hold_jobs": True}])
def test_too_much_for_one_job(serve, study, ponder, running, fault) -> None:
    """Jobs get smaller, and wait for each other; that is no failed try."""
    served = serve(**fault)
    study(served, model="retries = 0")
    if "hold_jobs" in fault:
        with running("run", "s.toml", "--json", first=HURRY) as process:
            # 12 are refused, then 6 are in progress, and 6 are refused until those have ended
            assert served.wait(polls=25)["too_many"] == 2
            served.release()
            assert process.wait() == 0
        assert len(attempts()) == 12
    else:
        assert summary(ponder("run", "s.toml", "--json"))["right"] == 12
    assert served.state()["billed"] == 12
    assert no_jobs_left()


@pytest.mark.parametrize(("route", "gone"), [("chat", "results"), ("anthropic", "job")])
def test_a_job_that_can_not_be_read_is_released(serve, study, ponder, running, route, gone) -> None:
    served = serve(hold_jobs=True, gone_results=gone == "results")
    study(served, route)
    left_open(served, running)
    if gone == "job":
        query("UPDATE job SET remote = 'gone'")
    served.release()
    result = ponder("run", "s.toml")
    assert result.exit_code == 2
    assert "can't be read" in result.stderr
    assert "`ponder run --release-lost` forgets it, and asks again" in result.stderr
    assert served.state()["jobs"] == 1
    served.release("gone_results")
    released = ponder("run", "s.toml", "--release-lost", "--json")
    assert "12 requests in batch jobs are forgotten, and asked again" in released.stderr
    assert summary(released)["right"] == 12
    assert served.state()["jobs"] == 2
    assert no_jobs_left()


# Races that a run rarely meets


class Remembered(Jobs):
    """Remembers jobs in memory; `recording` is what storing a job waits for."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.asked = asyncio.Event()
        self.recording: asyncio.Event | None = None
        self.two_wait = asyncio.Event()

    def open_jobs(self, server: str) -> Sequence[Job]:
        return [job for job in self.jobs.values() if job.server == server]

    async def record(self, job: Job, requests: Mapping[str, Request]) -> None:
        assert tuple(requests) == job.requests
        self.jobs[job.id] = job
        self.asked.set()
        if self.recording:
            await self.recording.wait()

    async def confirm(self, job: Job) -> None:
        self.jobs[job.id] = job

    def waiting(self, requests: int) -> None:
        if requests == 2:
            self.two_wait.set()


def endpoint(served, jobs: Jobs, **settings: Any) -> Endpoint:
    model = Endpoint(id="served", url=served.url, provider="openai", batch=True, **settings)
    model.jobs = jobs
    return model


async def ask_all(model: Endpoint, seeds: Sequence[int]) -> list[Completion | BaseException]:
    calls = [model.complete(request(seed)) for seed in seeds]
    return await asyncio.gather(*calls, return_exceptions=True)


def test_a_request_that_comes_after_its_line_was_read(serve) -> None:
    """Results are in reverse order: the first request has the last line."""
    served = serve(hold_jobs=True, hold_results=2)
    retries: list[Retry] = []

    async def interrupted(jobs: Remembered) -> None:
        async with endpoint(served, jobs) as model:
            asking = asyncio.create_task(ask_all(model, [1, 2, 3, 4]))
            await asyncio.to_thread(served.wait, polls=1)
            asking.cancel()

    async def resumed(jobs: Remembered) -> list[Completion]:
        async with endpoint(served, jobs) as model:
            first = asyncio.create_task(model.complete(watched(request(1), retried=retries.append)))
            await asyncio.to_thread(served.wait, held_results=1)
            late = asyncio.create_task(model.complete(watched(request(4), retried=retries.append)))
            await jobs.two_wait.wait()
            served.release()
            return [await first, await late]

    jobs = Remembered()
    asyncio.run(interrupted(jobs))
    served.release("hold_jobs")
    (job,) = jobs.jobs.values()
    replies = asyncio.run(resumed(Remembered(job)))
    assert all(reply.answer for reply in replies)
    assert retries == []
    assert (served.state()["jobs"], served.state()["billed"]) == (1, 4)


def test_a_stored_job_is_sent_as_it_was_stored(serve) -> None:
    """Though some of its requests are given up while it is stored."""
    served = serve()

    async def given_up() -> None:
        jobs = Remembered()
        jobs.recording = asyncio.Event()
        async with endpoint(served, jobs) as model:
            calls = [asyncio.create_task(model.complete(request(seed))) for seed in range(4)]
            await jobs.asked.wait()
            for call in calls[:2]:
                call.cancel()
            await asyncio.sleep(0)
            jobs.recording.set()
            assert [(await call).answer for call in calls[2:]]

    asyncio.run(given_up())
    assert (served.state()["jobs"], served.state()["lines"]) == (1, 4)


def test_lines_of_a_refused_job_have_other_numbers_later(serve, slept) -> None:
    """The first request has left the store, so line 1 is not the first of those that are left."""
    served = serve(job_failed=[{**ERROR, "line": 1}])

    async def asked(jobs: Jobs, retries: int, *seeds: int) -> list[Completion | BaseException]:
        async with endpoint(served, jobs, retries=retries) as model:
            return await ask_all(model, seeds)

    jobs = Remembered()
    failures = asyncio.run(asked(jobs, 0, 1, 2, 3))
    assert [type(failure) for failure in failures] == [ModelFailure] * 3
    (job,) = jobs.jobs.values()
    later = Remembered(replace(job, requests=job.requests[1:]))
    replies = asyncio.run(asked(later, 1, 2, 3))
    assert [type(reply) for reply in replies] == [Completion] * 2
    assert served.state()["billed"] == 2


# Settings


@pytest.mark.parametrize(
    ("route", "message", "hint"),
    [
        ('protocol = "gemini"', "no batch jobs in the protocol `gemini`", "OpenAI and Anthropic"),
        ('provider = "vllm"', "vllm has no batch jobs in the protocol `chat`", 'provider = "op'),
        ("", "/v1 has no batch jobs in the protocol `chat`", 'provider = "openai" or "anthropic"'),
        (
            'provider = "openai"\nstream = true',
            "can't be streamed",
            "leave out `stream` or `batch`",
        ),
        ('provider = "openai"\nurl = ["{url}", "{url}/b"]', "go to one server", "name one `url`"),
    ],
)
def test_a_route_without_jobs_is_an_error(serve, write, ponder, route, message, hint) -> None:
    served = serve()
    text = STUDY.format(url=served.url, problems=2, more="", model=route.format(url=served.url))
    if "url = [" in route:
        text = text.replace(f'url = "{served.url}"\n', "")
    write("s.toml", text)
    for verb in ("plan", "run"):
        result = ponder(verb, "s.toml")
        assert result.exit_code == 2
        assert message in result.stderr
        assert hint in result.stderr
    assert served.state().keys() <= {"repeated", "bodies", "headers", "query", "tokenized"}
