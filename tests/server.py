"""A chat endpoint on this machine with faults to order, in a process of its own.

Tests wait for what it has seen, not for seconds: `hold_after=100` answers a hundred requests and keeps the others
waiting, `GET /wait?held=4` returns once four are waiting, and `GET /release` lets them go.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import sys
from ast import literal_eval
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web

Faults = dict[str, Any]


def reply(answer: str, *, thinking: str = "", usage: bool = True, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer}
    if thinking:
        message["reasoning_content"] = thinking
    counts = {
        "prompt_tokens": 40,
        "completion_tokens": 120,
        "total_tokens": 160,
        "completion_tokens_details": {"reasoning_tokens": 100},
    }
    return {
        "id": "chatcmpl-7f3a9c1e5b2d4860",
        "object": "chat.completion",
        "created": 1_763_200_000,
        "model": "served",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None, **more}],
        **({"usage": counts} if usage else {}),
        "system_fingerprint": "fp_8802369eaa",
    }


def solved(messages: list[dict[str, str]]) -> str:
    """The answer to a chain sum, or to a turn of an execution: the last sum told, and what the keys add to it."""
    prompt = messages[-1]["content"]
    if table := re.search(r"The dictionary is:\n(\{.*\})", messages[0]["content"]):
        told = [m["content"] for m in messages if m["role"] == "assistant"]
        before = int(re.findall(r"<answer>(-?\d+)", told[-1])[-1]) if told else 0
        return f"So <answer>{before + sum(literal_eval(table[1])[key] for key in prompt.split(', '))}</answer>"
    chain = re.search(r"What is ([\d +-]+)\?", prompt)
    return (
        f"<answer>{sum(int(n) for n in chain[1].replace(' ', '').replace('-', '+-').split('+'))}</answer>"
        if chain
        else "?"
    )


class Server:
    """Answers chain sums and executions; `faults` says what it does instead, and how often."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.random = faults, random.Random(1)
        self.counts: Counter[str] = Counter()
        self.prompts: Counter[str] = Counter()  # of the requests that were answered
        self.bodies: list[dict[str, Any]] = []
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
            await self.changed.wait_for(lambda: all(self.counts[name] >= n for name, n in wanted.items()))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        try:
            await self.count(requests=1, in_flight=1)
            return await self.answer(request)
        except asyncio.CancelledError:  # the client has closed the connection
            await self.count(hung_up=1)
            raise
        finally:
            await self.count(in_flight=-1)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if len(self.bodies) < 100:
            self.bodies.append(body | {"authorization": request.headers.get("Authorization")})
        if self.counts["requests"] <= self.faults.get("ignore_first", 0):
            await asyncio.Event().wait()
        if together := self.faults.get("together"):  # answers none until so many are in flight
            await self.until(most_in_flight=together)
        if status := self.faults.get("always"):
            return web.Response(status=status, text=self.faults.get("text", "no"))
        if self.counts["requests"] <= self.faults.get("busy_first", 0):
            return self.fault("429", request)
        draw = self.random.random()
        for fault in ("429", "500", "drop", "malformed"):
            draw -= self.faults.get(fault, 0.0)
            if draw < 0:
                await self.count(**{fault: 1})
                return self.fault(fault, request)
        if self.counts["admitted"] >= self.faults.get("hold_after", math.inf) and not self.released:
            await self.count(held=1)
            async with self.changed:
                await self.changed.wait_for(lambda: self.released)
        self.counts["admitted"] += 1
        self.prompts[body["messages"][-1]["content"]] += 1
        await self.count(answered=1)
        if "raw_file" in self.faults:
            return web.Response(body=self.raw, content_type="application/json")
        return web.json_response(reply(solved(body["messages"]), thinking=self.faults.get("thinking", "adding up")))

    def fault(self, fault: str, request: web.Request) -> web.StreamResponse:
        if fault == "429":
            after = {"Retry-After": self.faults["retry_after"]} if "retry_after" in self.faults else {}
            return web.Response(status=429, headers=after, text="slow down")
        if fault == "500":
            return web.Response(status=500, text="oops")
        if fault == "malformed":
            return web.Response(body=b'{"choices": [{"mess', content_type="application/json")
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def state(self, request: web.Request) -> web.Response:
        repeated = sum(n - 1 for n in self.prompts.values())
        return web.json_response({**self.counts, "repeated": repeated, "bodies": self.bodies})

    async def wait(self, request: web.Request) -> web.Response:
        """Answer once each count in the query is reached."""
        await self.until(**{name: int(n) for name, n in request.query.items()})
        return await self.state(request)

    async def release(self, request: web.Request) -> web.Response:
        """Answer what is held, and hold nothing from now on."""
        self.released = True
        await self.count()
        return await self.state(request)


async def serve(faults: Faults) -> None:
    server = Server(faults)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    for page in (server.state, server.wait, server.release):
        app.router.add_get(f"/{page.__name__}", page)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 the parent reads the port
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
