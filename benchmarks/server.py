"""A chat endpoint that takes almost no CPU time: every answer takes equally long, however many are
in flight.

HTTP is written by hand on asyncio's protocols, because a framework would take more CPU than the
clients that are measured. The server records what only a server can see: the most requests in
flight, the bytes that it served, and the CPU time that the client had used before its first
request.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from functools import partial
from urllib.parse import parse_qs, urlsplit

THOUGHTS = 997  # different ones; a prime, so that they don't repeat in step with the prompts

CHAIN = re.compile(rb"What is ([\d +-]+)\?")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
BODY = (
    b'{"id":"chatcmpl-%016x","object":"chat.completion","created":%d,"model":"served",'
    b'"choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"Adding from left to right gives <answer>%d</answer>","refusal":null,'
    b'"annotations":null,"audio":null,"function_call":null,"tool_calls":[],'
    b'"reasoning_content":%b},"logprobs":null,'
    b'"finish_reason":"stop","stop_reason":null}],"service_tier":null,"system_fingerprint":null,'
    b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":0},'
    b'"completion_tokens_details":{"reasoning_tokens":%d}},'
    b'"prompt_logprobs":null,"kv_transfer_params":null}'
)

STEPS = (
    "Adding {b} to {a} gives {sum}.",
    "So far I have {a}, and the next number is {b}, which makes {sum}.",
    (
        "Wait, let me check the carry: {a} + {b}, the last digits first, then the tens. "
        "It comes out at {sum}."
    ),
    "Hmm, {a} plus {b} is {sum}, not {off}; I nearly dropped a one there.",
    (
        "Let me split it: {b} is {tens} and {ones}, so first {a} + {tens}, then the {ones}. "
        "That is {sum}."
    ),
    "Next comes {b}. The running total was {a}, therefore it is now {sum}.",
    "Just to be sure I do it backwards: {sum} - {b} = {a}. Good, that matches what I had before.",
    "The sign matters here, {b} is added and not taken away, hence {sum} rather than {off}.",
)


def thought(rng: random.Random) -> str:
    """1.5 to 3 KB of thinking about a sum, which compresses about as well as real traces do."""
    parts, total = (
        ["Okay, the user wants a chain of numbers added up. Let me go through it step by step.\n"],
        0,
    )
    wanted = rng.randrange(1500, 3000)
    while sum(map(len, parts)) < wanted:
        a, b = (total or rng.randrange(10, 10_000)), rng.randrange(10, 1000)
        words = {"a": a, "b": b, "sum": a + b, "off": a + b + rng.choice((-10, -1, 1, 10))}
        parts.append(
            rng.choice(STEPS).format(**words, tens=b // 10 * 10, ones=b % 10)
            + rng.choice((" ", "\n", "\n\n"))
        )
        total = a + b if total < 100_000 else 0
    return "".join(parts)


class State:
    """What the server has seen since the last `/watch`."""

    def __init__(self, seconds: float) -> None:
        self.seconds, rng = seconds, random.Random(1)
        self.thoughts = [thought(rng) for _ in range(THOUGHTS)]
        self.quoted = [json.dumps(t).encode() for t in self.thoughts]
        self.watch(0)

    def watch(self, pid: int) -> None:
        self.pid, self.first_request_cpu = pid, 0.0
        self.requests = self.body_bytes = self.in_flight = self.most_in_flight = 0

    def seen(self) -> dict[str, float]:
        names = ("requests", "body_bytes", "most_in_flight", "first_request_cpu")
        return {name: getattr(self, name) for name in names}

    def arrived(self) -> None:
        if not self.requests and self.pid:
            # The kernel's CPU clock of another process, over all its threads.
            self.first_request_cpu = time.clock_gettime((~self.pid << 3) | 2)
        self.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def completion(self, prompt: bytes) -> bytes:
        chain = CHAIN.search(prompt)
        total = (
            sum(map(int, chain[1].replace(b" ", b"").replace(b"-", b"+-").split(b"+")))
            if chain
            else 0
        )
        index = self.requests % THOUGHTS
        prompted, thinking = len(prompt) // 4, len(self.thoughts[index]) // 4
        counts = (prompted, thinking + 14, prompted + thinking + 14, thinking)
        body = BODY % (hash(prompt) & (2**64 - 1), time.time(), total, self.quoted[index], *counts)
        self.body_bytes += len(body)
        return body


class Connection(asyncio.Protocol):
    """One keep-alive connection; a client sends its next request only after the answer."""

    def __init__(self, state: State, loop: asyncio.AbstractEventLoop) -> None:
        self.state, self.loop, self.buffer = state, loop, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        length = LENGTH.search(self.buffer, 0, end)
        body_end = end + 4 + int(length[1] if length else 0)
        if len(self.buffer) < body_end:
            return
        head, body, self.buffer = (
            self.buffer[:end],
            self.buffer[end + 4 : body_end],
            self.buffer[body_end:],
        )
        if head.startswith(b"POST"):
            self.state.arrived()
            self.loop.call_later(self.state.seconds, self.answer, body)
        else:
            self.send(json.dumps(self.look(head.split(maxsplit=2)[1].decode())).encode())

    def answer(self, prompt: bytes) -> None:
        self.state.in_flight -= 1
        self.send(self.state.completion(prompt))

    def look(self, target: str) -> dict[str, float]:
        url = urlsplit(target)
        if url.path == "/watch":
            self.state.watch(int(parse_qs(url.query)["pid"][0]))
        return self.state.seen()

    def send(self, body: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(HEAD % len(body) + body)


async def serve(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        partial(Connection, State(seconds), loop), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)  # the parent reads the port
    # It ends with its parent: the pipe closes however the parent ends.
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
