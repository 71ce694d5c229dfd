"""Keeps an endpoint's rate limits: requests per minute, and tokens per minute.

Tokens are reserved: a request counts in full, prompt and longest possible reply, from the moment it
starts, and its unused part is given back when its bill arrives. The requests that start in any
minute take no more than a minute's worth. The first minute is no exception: its allowance grows
from five seconds' worth at the start, since a run that resumes another must not add a second
minute's worth to that of the first. A request that is larger than the whole allowance starts alone,
and those after it wait until its share has passed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ponder.core import Bill

MINUTE = 60.0
BURST = 5.0  # seconds' worth that may start at once when a run begins
LONG_REPLY = 8192  # tokens reserved for a reply without a budget, unless a longer one was seen


@dataclass(slots=True)
class Charge:
    """The tokens that a request counts for: its limit until its bill arrives, then its bill's."""

    started: float
    tokens: int
    counts: bool = True  # until its minute has passed


class RateLimit:
    """Makes requests wait until they may start."""

    def __init__(self, requests: float | None, tokens: float | None) -> None:
        self._requests = requests
        self._limit = tokens
        self._next = 0.0  # when the next request may start
        self._opened: float | None = None  # when the first one started
        self._charges: deque[Charge] = deque()  # those that count at the moment, oldest first
        self._total = 0  # their tokens
        self._longest = 0  # completion tokens of the longest reply so far
        self._turn = asyncio.Lock()
        self._settled = asyncio.Event()

    async def start(
        self, prompt: int, budget: int | None, send: Callable[[], None]
    ) -> Charge | None:
        """Wait until a request may start, call `send`, and count it, unless `send` raises."""
        if not self._requests and not self._limit:
            send()
            return None
        async with self._turn:  # first come, first served
            if self._requests:
                await asyncio.sleep(self._next - _now())
            reserved = prompt + (budget or max(self._longest, LONG_REPLY))
            if self._limit:
                await self._wait_for(reserved, self._limit)
            send()
            if self._requests:
                self._next = max(self._next, _now()) + MINUTE / self._requests
            if self._limit:
                return self._count(reserved)
            return None

    def end(self, charge: Charge | None, bill: Bill | None) -> None:
        """Count a request's bill instead of its reservation; None: the server refused it."""
        if charge is None:
            return
        tokens = 0
        if bill:
            tokens = bill.tokens
            self._longest = max(self._longest, bill.thinking_tokens + bill.answer_tokens)
        self._expire()
        if charge.counts:
            self._total += tokens - charge.tokens
            charge.tokens = tokens
        elif tokens > charge.tokens:  # its minute has passed, but not for what exceeds the estimate
            self._count(tokens - charge.tokens)
        self._settled.set()

    def _count(self, tokens: int) -> Charge:
        charge = Charge(_now(), tokens)
        self._charges.append(charge)
        self._total += tokens
        return charge

    async def _wait_for(self, tokens: int, limit: float) -> None:
        """Wait until so many tokens may be taken."""
        while True:
            seconds = self._seconds_until(tokens, limit)
            if not seconds:
                return
            self._settled.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), seconds)

    def _seconds_until(self, tokens: int, limit: float) -> float:
        """Return the seconds until so many tokens may fit; 0 if they fit now."""
        now = _now()
        if self._opened is None:
            self._opened = now
        self._expire()
        ramp = BURST + now - self._opened  # seconds' worth that the first minute allows so far
        total = self._total + tokens
        if not self._charges or total <= limit * min(1.0, ramp / MINUTE):
            return 0.0
        waits = [self._end(self._charges[0]) - now]
        if total <= limit:
            waits.append(total / limit * MINUTE - ramp)
        return max(0.001, min(wait for wait in waits if wait > 0))

    def _expire(self) -> None:
        while self._charges and self._end(self._charges[0]) <= _now():
            charge = self._charges.popleft()
            charge.counts = False
            self._total -= charge.tokens

    def _end(self, charge: Charge) -> float:
        """Return until when a charge counts: a minute, or more if it is over a minute's worth."""
        assert self._limit is not None
        return charge.started + MINUTE * max(1.0, charge.tokens / self._limit)


def _now() -> float:
    return asyncio.get_running_loop().time()
