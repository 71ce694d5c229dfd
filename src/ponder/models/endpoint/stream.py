"""Reads the bytes of a response: limits their number and their time, and splits a stream's events.

Server-sent events: each is a line `data: {…}`, or several, followed by an empty line. Lines may end
in CRLF, comments (`: keep-alive`) come in between, and a chunk from the network may end anywhere,
in the middle of a character too. Google's servers report an error as JSON over several lines,
without `data:`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ponder.models.endpoint.reply import TooLong

MAX_BYTES = 64 * 2**20  # of a response; a million tokens take some 5 MB
MAX_STREAMED = 8 * MAX_BYTES  # an event takes 200 to 500 bytes for each token


async def read_all(chunks: AsyncIterator[bytes]) -> bytes:
    """Return the body of a response; raise `TooLong` if it is too long."""
    return b"".join([chunk async for chunk in limited(chunks, MAX_BYTES)])


async def limited(chunks: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the same chunks; raise `TooLong` if together they exceed `max_bytes`."""
    remaining = max_bytes
    async for chunk in chunks:
        remaining -= len(chunk)
        if remaining < 0:
            raise TooLong(f"the endpoint's reply is larger than {max_bytes / 2**20:g} MB")
        yield chunk


class Deadline:
    """Limits the time of one streamed reply.

    The first text may take `timeout` seconds, and the reply as many from there to its end, so the
    wait in a server's queue takes nothing from the time for the reply. From the first text on,
    `idle_timeout` limits the seconds without any data.
    """

    def __init__(self, timeout: float, idle_timeout: float) -> None:
        self._timeout = timeout
        self._idle_timeout = idle_timeout
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + timeout
        self.arrived = 0.0  # when the latest chunk came, on the clock of the event loop
        self._has_begun = False

    def begin(self) -> None:
        """Note that the first text has come."""
        self._has_begun = True
        self._end = self._clock() + self._timeout

    async def watch(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the same chunks; raise `TimeoutError` if one comes too late."""
        while True:
            idle_end = self._clock() + self._idle_timeout
            end = self._end
            if self._has_begun:
                end = min(self._end, idle_end)
            try:
                async with asyncio.timeout_at(end):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise TimeoutError(self._reason(idle=end == idle_end)) from None
            self.arrived = self._clock()
            yield chunk

    def _reason(self, *, idle: bool) -> str:
        if not self._has_begun:
            return f"no reply began within {self._timeout:g} seconds"
        if idle:
            return f"no data for {self._idle_timeout:g} seconds"
        return f"the reply did not end within {self._timeout:g} seconds of its first token"


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the data of each event of a stream; raise `TooLong` if the stream is too long."""
    data = list[bytes]()
    is_bare = False  # JSON without `data:`
    async for line in lines(limited(chunks, MAX_STREAMED)):
        field, _, value = line.partition(b":")
        if field in (b"data", b"\xef\xbb\xbfdata"):  # a byte order mark may open the stream
            data.append(value.removeprefix(b" "))
        elif not line and data:  # an empty line ends an event
            yield b"\n".join(data)
            data = []
            is_bare = False
        elif is_bare or line.startswith(b"{"):
            is_bare = True
            data.append(line)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a response, and an empty one at its end."""
    # pieces of a line, joined once, so that a line of 10 MB takes linear time
    unfinished = list[bytes]()
    async for chunk in chunks:
        first, *following = chunk.split(b"\n")
        unfinished.append(first)
        for piece in following:
            yield b"".join(unfinished).removesuffix(b"\r")
            unfinished = [piece]
    yield b"".join(unfinished)
    yield b""  # ends the last event, if the server didn't
