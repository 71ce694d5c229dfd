"""Puts a streamed reply together: server-sent events in, one reply out, with the time of its first
token.

Each event is a line `data: {…}` with a piece of the reply; `data: [DONE]` ends them. Lines may end
in CRLF, comments (`: keep-alive`) come in between, and a chunk from the network may end anywhere,
in the middle of a character too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec

from ponder.models.endpoint.reply import (
    MOST_STREAMED,
    Choice,
    Malformed,
    Reply,
    ReplyMessage,
    decode_json,
    filtered,
    limited,
)

TEXTS = ReplyMessage.__struct_fields__


class Piece(msgspec.Struct):
    delta: ReplyMessage | None = None
    finish_reason: Any = None


class Event(msgspec.Struct):
    choices: list[Piece] | None = None
    usage: Any = None
    error: Any = None
    model: Any = None


_decoder = msgspec.json.Decoder(Event)


class Deadline:
    """Limits one streamed reply: `timeout` seconds until its first text, and as many from there to
    its end.

    So the wait in a server's queue takes nothing from the time for the reply. From the first text
    on, `idle_timeout` limits the seconds without any data.
    """

    def __init__(self, timeout: float, idle_timeout: float) -> None:
        self._timeout, self._idle_timeout = timeout, idle_timeout
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + timeout
        self._begun = False

    def begin(self) -> None:
        """Note that the first text has come."""
        self._begun = True
        self._end = self._clock() + self._timeout

    async def watch(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the same chunks; raise `TimeoutError` if one comes too late."""
        while True:
            idle_end = self._clock() + self._idle_timeout
            end = min(self._end, idle_end) if self._begun else self._end
            try:
                async with asyncio.timeout_at(end):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise TimeoutError(self.reason(idle=end == idle_end)) from None
            yield chunk

    def reason(self, *, idle: bool = False) -> str:
        """Return why the reply is given up."""
        if not self._begun:
            return f"no reply began within {self._timeout:g} seconds"
        if idle:
            return f"no data for {self._idle_timeout:g} seconds"
        return f"the reply did not end within {self._timeout:g} seconds of its first token"


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event; the last is `[DONE]`, unless the stream is cut."""
    data = list[bytes]()
    async for line in _lines(chunks):
        field, _, value = line.partition(b":")
        if field in (b"data", b"\xef\xbb\xbfdata"):  # a byte order mark may open the stream
            data.append(value.removeprefix(b" "))
        elif not line and data:  # an empty line ends an event
            yield b"\n".join(data)
            data = []


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    # pieces of a line, joined once, so that a line of 10 MB takes linear time
    begun = list[bytes]()
    async for chunk in chunks:
        first, *more = chunk.split(b"\n")
        begun.append(first)
        for following in more:
            yield b"".join(begun).removesuffix(b"\r")
            begun = [following]
    yield b"".join(begun)
    yield b""  # ends the last event, if the server didn't


async def assemble(
    chunks: AsyncIterator[bytes], on_first_text: Callable[[], None] = lambda: None
) -> tuple[Reply, float | None]:
    """The whole reply, and when its first token came.

    Raises `Malformed` if the stream reports an error, is too long, or ends before the reply does.
    """
    texts: dict[str, list[Any]] = {name: [] for name in TEXTS}
    finish: Any = None
    usage: Any = None
    model: Any = None
    first: float | None = None
    begun = False
    try:
        async for data in events(limited(chunks, MOST_STREAMED)):
            if data.strip() == b"[DONE]":
                finish = finish or ("stop" if begun else None)  # some servers give no reason
                break
            event = decode_json(data, _decoder)
            if filtered(event.error):
                finish = "content_filter"
                break
            if event.error:
                raise Malformed(f"the endpoint's stream reports an error: {event.error}")
            usage, model = event.usage or usage, event.model or model
            for piece in (event.choices or [])[:1]:
                begun, finish = True, piece.finish_reason or finish
                if _collect(piece.delta, texts) and first is None:
                    first = time.monotonic()
                    on_first_text()
        if finish is None:
            raise Malformed("the endpoint's stream ended before the reply did")
    except (Malformed, aiohttp.ClientError, OSError):
        if finish is None:  # else the reply is complete, and at most its bill is missing
            raise
    message = ReplyMessage(**{name: _joined(parts) for name, parts in texts.items()})
    return Reply([Choice(message, finish)], usage, model=model), first


def _collect(delta: ReplyMessage | None, texts: dict[str, list[Any]]) -> bool:
    """Add a piece; whether it holds any text."""
    some = False
    for name in TEXTS if delta else ():
        if part := getattr(delta, name):
            texts[name] += part if isinstance(part, list) else [part]
            some = True
    return some


def _joined(parts: list[Any]) -> Any:
    return "".join(parts) if all(isinstance(part, str) for part in parts) else parts
