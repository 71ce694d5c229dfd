"""A chat endpoint on this machine with faults to order: a process of its own, so that killing a client is like life."""

from __future__ import annotations

import asyncio
import json
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
    """Answers chain sums; `faults` says how often it does something else."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.random = faults, random.Random(1)
        self.counts: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.in_flight = self.most_in_flight = 0
        self.arrived = asyncio.Condition()
        self.raw = Path(faults["raw_file"]).read_bytes() if "raw_file" in faults else b""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.answer(request)
        finally:
            self.in_flight -= 1

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.counts["requests"] += 1
        if len(self.bodies) < 100:
            self.bodies.append(body | {"authorization": request.headers.get("Authorization")})
        prompt = body["messages"][-1]["content"]
        if self.faults.get("slow_once") and not self.counts["slow"]:
            self.counts["slow"] += 1
            await asyncio.sleep(self.faults["slow_once"])
        await asyncio.sleep(self.faults.get("seconds", 0.0))
        if together := self.faults.get("together"):  # answer none until so many are in flight
            async with asyncio.timeout(60), self.arrived:
                self.arrived.notify_all()
                await self.arrived.wait_for(lambda: self.most_in_flight >= together)
        if status := self.faults.get("always"):
            return web.Response(status=status, text=self.faults.get("text", "no"))
        draw = self.random.random()
        for fault in ("429", "500", "drop", "malformed"):
            draw -= self.faults.get(fault, 0.0)
            if draw < 0:
                self.counts[fault] += 1
                return self.fault(fault, request)
        self.counts["answered"] += 1
        self.counts[f"prompt {prompt}"] += 1
        if "raw_file" in self.faults:
            return web.Response(body=self.raw, content_type="application/json")
        return web.json_response(reply(solved(body["messages"]), thinking=self.faults.get("thinking", "adding up")))

    def fault(self, fault: str, request: web.Request) -> web.StreamResponse:
        if fault == "429":
            return web.Response(status=429, headers={"Retry-After": "0.05"}, text="slow down")
        if fault == "500":
            return web.Response(status=500, text="oops")
        if fault == "malformed":
            return web.Response(body=b'{"choices": [{"mess', content_type="application/json")
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def state(self, request: web.Request) -> web.Response:
        repeated = sum(n - 1 for k, n in self.counts.items() if k.startswith("prompt ") and n > 1)
        counts = {k: n for k, n in self.counts.items() if not k.startswith("prompt ")}
        return web.json_response(
            {**counts, "repeated": repeated, "most_in_flight": self.most_in_flight, "bodies": self.bodies}
        )


async def serve(faults: Faults) -> None:
    server = Server(faults)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_get("/state", server.state)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 the parent reads the port
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
