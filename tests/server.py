"""A chat endpoint on this machine with faults to order, in a process of its own.

Tests wait for what it has seen, not for seconds: `hold_after=100` answers a hundred requests and
keeps the others waiting, `GET /wait?held=4` returns once four are waiting, and `GET /release` lets
them go.

`lengths = {"median": 400, "sigma": 1.0}` draws the length of each reply from a lognormal
distribution, capped by the request's budget; with `seconds_per_token` long replies take longer than
short ones. `honours = true` makes these lengths follow the dial of thinking, in the fields that each
protocol has for it. `ignores = true` removes the dial from a request once it is checked, as a server
does that accepts such fields and has no use for them. `GET /state` tells what the server has billed
(`billed_tokens`): every request that it didn't refuse, whether or not its answer arrived.

Faults that are fractions of the requests: `429`, `500`, `drop` (no response), `cut` (half of one),
`malformed`, and `ignore` (none, and the connection stays). Faults of every request: `always` (a
status), `echo` (a status, with the request's headers in the text), `redirect` (to a URL), `models`
(a status, for the model list).

`tokenize = "llama.cpp"`, `"vllm"` or `"sglang"` gives it that server's pages for its tokenizer,
which counts words and marks; a status, `{"redirect": url}`, `{"raw": text}` or `"silent"` (no
response) is what such a page answers instead. `props` is what llama.cpp's page about itself
answers; `content_type` is that of the response to `always`. `usage` replaces the bill in every
reply, `model` the name of the model; `lists` are the names in the model list, and
`pricing` is what its entries say of prices, by name. Batch jobs and their faults are in
`batch_server.py`.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import random
import re
import sys
from ast import literal_eval
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from batch_server import BatchServer

Faults = dict[str, Any]
EFFORTS = {"low": 0.5, "high": 2.0}  # factors of the median length, under the fault `honours`
# The dial of thinking in each protocol's requests; a dot leads into a table.
EFFORT_FIELDS = (
    "reasoning_effort",
    "reasoning.effort",
    "output_config.effort",
    "generationConfig.thinkingConfig.thinkingLevel",
)
BUDGET_FIELDS = (
    "thinking_token_budget",
    "thinking.budget_tokens",
    "generationConfig.thinkingConfig.thinkingBudget",
)
REFUSALS = ("429", "500")  # faults before the model has read the request, so that nothing is billed


class Length(NamedTuple):
    """The tokens of one exchange."""

    prompt: int = 40
    thinking: int = 100
    answer: int = 20
    cut: bool = False  # whether the budget ended it

    @property
    def tokens(self) -> int:
        return self.prompt + self.thinking + self.answer


def length_of(
    messages: list[dict[str, str]], seed: Any, budget: float, lengths: dict[str, float] | None
) -> Length:
    """What a request takes.

    It is drawn from the request alone, so that order, repeats and faults don't change it.
    """
    if lengths is None:
        return Length()
    prompt = sum(len(m["content"]) // 4 + 4 for m in messages)
    drawn = random.Random(json.dumps([messages, seed]))
    wanted = max(10, round(drawn.lognormvariate(math.log(lengths["median"]), lengths["sigma"])))
    wanted = min(wanted, lengths.get("think", math.inf) + 10)
    if wanted > budget:
        return Length(prompt, budget, 0, cut=True)
    return Length(prompt, wanted - 10, 10)


def field_of(body: dict[str, Any], name: str) -> Any:
    """A field of a request; a dot in its name leads into a table. None if there is none."""
    value: Any = body
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def dialled(lengths: dict[str, float], body: dict[str, Any]) -> dict[str, float]:
    """The lengths as the request's dial of thinking wants them."""
    scale = 1.0
    think = math.inf
    for name in EFFORT_FIELDS:
        effort = field_of(body, name)
        if effort == "none":
            think = 0
        elif effort:
            scale = EFFORTS.get(effort.lower(), 1.0)
    for name in BUDGET_FIELDS:
        budget = field_of(body, name)
        if budget is not None and budget >= 0:  # -1: the model decides
            think = budget
    return lengths | {"median": lengths["median"] * scale, "think": think}


def undialled(body: dict[str, Any]) -> dict[str, Any]:
    """The same request without efforts and budgets."""
    body = copy.deepcopy(body)
    for name in (*EFFORT_FIELDS, *BUDGET_FIELDS):
        *tables, field = name.split(".")
        table = field_of(body, ".".join(tables)) if tables else body
        if isinstance(table, dict):
            table.pop(field, None)
    return body


def reply(
    answer: str,
    *,
    thinking: str = "",
    length: Length = Length(),  # noqa: B008
    **more: Any,
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "" if length.cut else answer}
    if thinking:
        message["reasoning_content"] = thinking
    stop = "length" if length.cut else "stop"
    return {
        "id": "chatcmpl-7f3a9c1e5b2d4860",
        "object": "chat.completion",
        "created": 1_763_200_000,
        "model": "served",
        "choices": [
            {"index": 0, "message": message, "finish_reason": stop, "logprobs": None, **more}
        ],
        "usage": {
            "prompt_tokens": length.prompt,
            "completion_tokens": length.thinking + length.answer,
            "total_tokens": length.tokens,
            "completion_tokens_details": {"reasoning_tokens": length.thinking},
        },
        "system_fingerprint": "fp_8802369eaa",
    }


def solved(messages: list[dict[str, str]]) -> str:
    """The answer to a chain sum, or to a turn of an execution: the last sum told, and what the keys
    add to it.

    A judge's scores are all the same; its verdict is whether the reply has the reference answer.
    """
    prompt = messages[-1]["content"]
    if judged := re.search(r"<reply-(\w+)>\n(.*)\n</reply-\1>", prompt, re.DOTALL):
        reference = re.search(r"The reference answer:\n(.*)\n", prompt)
        if "Say nothing." in prompt:
            return "VERDICT: RIGHT, or is it?"
        right = bool(reference) and reference[1] in judged[2]
        return f"It compares.\nVERDICT: {'RIGHT' if right else 'WRONG'}"
    if judged := re.search(r'with (\d+) numbers in "steps"', prompt):
        return json.dumps({"steps": [0.5] * int(judged[1]), "whole": 0.5})
    if table := re.search(r"The dictionary is:\n(\{.*\})", messages[0]["content"]):
        told = re.findall(
            r"<answer>(-?\d+)", " ".join(m["content"] for m in messages if m["role"] == "assistant")
        )
        before = int(told[-1]) if told else 0
        keys = prompt.partition("\n\n")[0].split(", ")  # an instruction may follow
        return f"So <answer>{before + sum(literal_eval(table[1])[key] for key in keys)}</answer>"
    chain = re.search(r"What is ([\d +-]+)\?", prompt)
    return (
        f"<answer>{sum(int(n) for n in chain[1].replace(' ', '').replace('-', '+-').split('+'))}</answer>"
        if chain
        else "?"
    )


def tokens_of(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def templated(messages: list[dict[str, str]]) -> str:
    return "".join([f"[{m['role']}] {m['content']} [end]" for m in messages]) + "[assistant]"


class Chat:
    """OpenAI's chat completions. A module `fake_NAME` has the same methods for the protocol NAME.

    The server draws faults, lengths and answers; a protocol knows how they are written.
    """

    pages = ("/v1/chat/completions",)  # as aiohttp's router reads them
    lists = ("/v1/models",)

    def messages(self, body: dict[str, Any]) -> list[dict[str, str]]:
        """The messages of a request, the system message included, as roles and texts."""
        return body["messages"]

    def budget(self, body: dict[str, Any]) -> float:
        return body.get("max_tokens", body.get("max_completion_tokens", math.inf))

    def streams(self, request: web.Request, body: dict[str, Any]) -> bool:
        return bool(body.get("stream"))

    def reply(
        self, answer: str, thinking: str, length: Length, body: dict[str, Any]
    ) -> dict[str, Any]:
        """The body of a response. The fault `usage` replaces its field of that name."""
        return reply(answer, thinking=thinking, length=length) | {"model": body["model"]}

    def events(self, said: dict[str, Any]) -> Iterator[bytes]:
        """The body of a response as server-sent events: thinking and answer in pieces of four
        characters, why it ended, and its bill.
        """
        yield b": processing\n\n"
        (choice,) = said["choices"]
        chunk = {name: said[name] for name in ("id", "created", "model", "system_fingerprint")}
        chunk |= {"object": "chat.completion.chunk", "usage": None}
        place = {"index": 0, "logprobs": None, "finish_reason": None}
        opening = {**place, "delta": {"role": "assistant", "content": ""}}
        yield event({**chunk, "choices": [opening]})
        for name in ("reasoning_content", "content"):
            text = choice["message"].get(name, "")
            for at in range(0, len(text), 4):
                piece = {**place, "delta": {name: text[at : at + 4]}}
                yield event({**chunk, "choices": [piece]})
        end = {**place, "delta": {}, "finish_reason": choice["finish_reason"]}
        yield event({**chunk, "choices": [end]})
        times = {name: said[name] for name in ("timings", "metrics") if name in said}
        bill = {**chunk, "choices": [], "usage": said["usage"], **times}
        yield event(bill) + b"data: [DONE]\n\n"

    def error(self, status: int, text: str) -> dict[str, Any] | None:
        """The body of an error; None for the plain text."""
        return None

    def models(self, names: list[str]) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}


def protocols() -> Iterator[Any]:
    """Every protocol that there is a fake of."""
    yield Chat()
    for path in sorted(Path(__file__).parent.glob("fake_*.py")):
        yield import_module(path.stem).Fake()


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


async def cut(request: web.Request, events: list[bytes]) -> web.StreamResponse:
    """Half a response, and then the connection is gone; `events` if it is a stream."""
    content = b"".join(events[: len(events) // 2])
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    if not events:
        content = b'{"choices": [{"mess'
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Content-Length": "900"}
        )
    await response.prepare(request)
    await response.write(content)
    assert request.transport is not None
    request.transport.close()
    return response


class Server:
    """Answers chain sums and executions; `faults` says what it does instead, and how often."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.random = faults, random.Random(1)
        self.counts: Counter[str] = Counter()
        self.prompts: Counter[str] = Counter()  # of the requests that were answered
        self.bodies: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}  # of the last request
        self.counted: list[dict[str, Any]] = []  # what the tokenizer's pages were asked
        self.query: dict[str, str] = {}
        self.changed = asyncio.Condition()
        self.released = False
        self.raw = Path(faults["raw_file"]).read_bytes() if "raw_file" in faults else b""

    async def count(self, **changes: int) -> None:
        self.counts.update(changes)
        self.counts["most_in_flight"] = max(self.counts["most_in_flight"], self.counts["in_flight"])
        async with self.changed:
            self.changed.notify_all()

    async def until(self, **wanted: int) -> None:
        async with self.changed:
            await self.changed.wait_for(
                lambda: all(self.counts[name] >= n for name, n in wanted.items())
            )

    async def ask(self, protocol: Any, request: web.Request) -> web.StreamResponse:
        try:
            await self.count(requests=1, in_flight=1)
            return await self.answer(protocol, request)
        except asyncio.CancelledError:  # the client has closed the connection
            await self.count(hung_up=1)
            raise
        finally:
            await self.count(in_flight=-1)

    async def answer(self, protocol: Any, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.headers, self.query = dict(request.headers), dict(request.query)
        if len(self.bodies) < 100:
            self.bodies.append(body | {"authorization": request.headers.get("Authorization")})
        if together := self.faults.get("together"):  # answers none until so many are in flight
            await self.until(most_in_flight=together)
        if refused := self.refused(protocol):
            return refused
        messages = protocol.messages(body)
        streams = protocol.streams(request, body) and not self.faults.get("no_stream")
        if self.faults.get("ignores"):
            body = undialled(body)
        length = self.length(protocol, messages, body)
        fault = self.drawn_fault()
        if fault not in REFUSALS:
            await self.count(billed=1, billed_tokens=length.tokens)
        if fault:
            await self.count(**{fault: 1})
            return await self.fault(fault, protocol, request, body, streams=streams)
        await asyncio.sleep(
            self.faults.get("seconds_per_token", 0.0) * (length.thinking + length.answer)
        )
        await self.hold()
        await self.count(answered=1)
        said = self.said(protocol, messages, length, body)
        if "raw_file" in self.faults:
            return web.Response(body=self.raw, content_type="application/json")
        if not streams:
            return web.json_response(said)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for written in protocol.events(said):
            await response.write(written)
        return response

    def length(self, protocol: Any, messages: list[Any], body: dict[str, Any]) -> Length:
        """How much the reply to a request thinks and says."""
        lengths = self.faults.get("lengths")
        if lengths and self.faults.get("honours"):
            lengths = dialled(lengths, body)
        return length_of(messages, body.get("seed"), protocol.budget(body), lengths)

    def said(
        self, protocol: Any, messages: list[Any], length: Length, body: dict[str, Any]
    ) -> dict[str, Any]:
        """The body of the response to a request."""
        self.prompts[messages[-1]["content"]] += 1
        thinking = self.faults.get("thinking", "adding up")
        said = protocol.reply(solved(messages), thinking, length, body)
        for name in ("usage", "model"):
            if name in self.faults:
                said[name] = self.faults[name]
        # further fields of the reply, to override what the protocol writes
        said |= self.faults.get("fields", {})
        return said

    def refused(self, protocol: Any) -> web.Response | None:
        """The response to a request that meets a fault of every request."""
        if status := self.faults.get("always"):
            body = protocol.error(status, self.faults.get("text", "no"))
            if body is not None and "content_type" not in self.faults:
                headers = self.faults.get("headers", {})
                return web.json_response(body, status=status, headers=headers)
            content_type = self.faults.get("content_type", "text/plain")
            return web.Response(
                status=status, text=self.faults.get("text", "no"), content_type=content_type
            )
        if status := self.faults.get("echo"):
            return web.Response(status=status, text=f"rejected: {self.headers}")
        if to := self.faults.get("redirect"):
            return web.Response(status=307, headers={"Location": to})
        if self.counts["requests"] <= self.faults.get("busy_first", 0):
            return self.busy(protocol)
        return None

    def busy(self, protocol: Any) -> web.Response:
        after = {"Retry-After": self.faults["retry_after"]} if "retry_after" in self.faults else {}
        body = protocol.error(429, "slow down")
        if body is not None:
            return web.json_response(body, status=429, headers=after)
        return web.Response(status=429, headers=after, text="slow down")

    async def hold(self) -> None:
        if self.counts["admitted"] >= self.faults.get("hold_after", math.inf) and not self.released:
            await self.count(held=1)
            async with self.changed:
                await self.changed.wait_for(lambda: self.released)
        self.counts["admitted"] += 1

    def drawn_fault(self) -> str:
        """Which fault this request meets, if any."""
        if self.counts["requests"] <= self.faults.get("ignore_first", 0):
            return "ignore"
        draw = self.random.random()
        for fault in ("429", "500", "drop", "cut", "malformed", "ignore"):
            draw -= self.faults.get(fault, 0.0)
            if draw < 0:
                return fault
        return ""

    async def fault(
        self,
        fault: str,
        protocol: Any,
        request: web.Request,
        body: dict[str, Any],
        *,
        streams: bool,
    ) -> web.StreamResponse:
        if fault == "429":
            return self.busy(protocol)
        if fault == "500":
            return web.Response(status=500, text="oops")
        if fault == "malformed":
            return web.Response(body=b'{"choices": [{"mess', content_type="application/json")
        if fault == "cut":
            said = protocol.reply("<answer>1</answer>", "adding up", Length(), body)
            return await cut(request, list(protocol.events(said)) if streams else [])
        if fault == "ignore":
            await asyncio.Event().wait()  # until the client closes the connection
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def models(self, protocol: Any, request: web.Request) -> web.Response:
        """The model list; the fault `models` is the status with which it is refused instead."""
        self.counts["listed"] += 1
        if status := self.faults.get("models"):
            return web.Response(status=status, text="no")
        names = self.faults.get("lists", ["served"])
        models = protocol.models(names)
        for name, pricing in self.faults.get("pricing", {}).items():
            models["data"][names.index(name)]["pricing"] = pricing
        return web.json_response(models)

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.counted.append(
            {"page": request.path, "authorization": request.headers.get("Authorization"), **body}
        )
        await self.count(counted=1)
        match self.faults.get("tokenize", 404):
            case "silent":
                await asyncio.Event().wait()  # until the client closes the connection
            case int(status):
                return web.Response(status=status, text="no")
            case {"redirect": to}:
                return web.Response(status=307, headers={"Location": to})
            case {"raw": text}:
                return web.Response(text=text, content_type="application/json")
            case "llama.cpp" if request.path == "/apply-template":
                return web.json_response({"prompt": templated(body["messages"])})
            case "llama.cpp":
                return web.json_response(
                    {"tokens": list(range(len(tokens_of(body.get("content", "")))))}
                )
            case "vllm" | "sglang" as dialect if request.path == "/tokenize" and (
                "prompt" in body or dialect == "vllm"
            ):
                ids = list(range(len(tokens_of(body.get("prompt") or templated(body["messages"])))))
                return web.json_response({"count": len(ids), "max_model_len": 4096, "tokens": ids})
        return web.Response(status=404, text="no such page")

    async def props(self, request: web.Request) -> web.Response:
        return web.json_response(
            self.faults.get("props"), status=200 if "props" in self.faults else 404
        )

    async def state(self, request: web.Request) -> web.Response:
        repeated = sum(n - 1 for n in self.prompts.values())
        seen = {
            "repeated": repeated,
            "bodies": self.bodies,
            "headers": self.headers,
            "query": self.query,
        }
        seen["tokenized"] = self.counted
        return web.json_response({**self.counts, **seen})

    async def wait(self, request: web.Request) -> web.Response:
        """Answer once each count in the query is reached."""
        await self.until(**{name: int(n) for name, n in request.query.items()})
        return await self.state(request)

    async def calm(self, request: web.Request) -> web.Response:
        """No faults from now on; the replies stay as they are."""
        kept = ("lengths", "honours", "ignores", "seconds_per_token", "thinking")
        self.faults = {name: self.faults[name] for name in kept if name in self.faults}
        return await self.state(request)

    async def release(self, request: web.Request) -> web.Response:
        """Answer what is held, and hold nothing from now on.

        `GET /release?fault=hold_jobs` ends only that fault.
        """
        if "fault" in request.query:
            self.faults.pop(request.query["fault"], None)
        else:
            self.released = True
        await self.count()
        return await self.state(request)


async def serve(faults: Faults) -> None:
    server = Server(faults)
    app = web.Application(client_max_size=2**30)
    by_page = {page: protocol for protocol in protocols() for page in protocol.pages}
    BatchServer(server, by_page).add_to(app.router)
    for protocol in protocols():
        for page in protocol.pages:
            app.router.add_post(page, partial(server.ask, protocol))
        for page in protocol.lists:
            app.router.add_get(page, partial(server.models, protocol))
    for page in ("/tokenize", "/apply-template"):
        app.router.add_post(page, server.tokenize)
    for handler in (server.props, server.state, server.wait, server.calm, server.release):
        app.router.add_get(f"/{handler.__name__}", handler)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 the parent reads the port
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
