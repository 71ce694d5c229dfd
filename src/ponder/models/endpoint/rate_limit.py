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
    """What a request counts for: the most it may take until its bill arrives, then what it took."""

    started: float
    tokens: int
    counts: bool = True  # until its minute has passed


class RateLimit:
    def __init__(self, requests: float | None, tokens: float | None) -> None:
        self._requests, self._limit = requests, tokens
        self._next = 0.0  # when the next request may start
        self._opened: float | None = None  # when the first one started
        self._charges: deque[Charge] = deque()  # those that count at the moment, oldest first
        self._total = 0  # their tokens
        self._longest = 0  # completion tokens of the longest reply so far
        self._turn, self._settled = asyncio.Lock(), asyncio.Event()

    async def start(
        self, prompt: int, budget: int | None, send: Callable[[], None]
    ) -> Charge | None:
        """Wait until a request may start, call `send`, and count the request, unless `send` raises."""
        if not (self._requests or self._limit):
            send()
            return None
        async with self._turn:  # first come, first served
            if self._requests:
                await asyncio.sleep(self._next - _now())
            most = prompt + (budget or max(self._longest, LONG_REPLY))
            while self._limit and (wait := self._wait(most, self._limit)) > 0:
                self._settled.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._settled.wait(), wait)
            send()
            if self._requests:
                self._next = max(self._next, _now()) + MINUTE / self._requests
            return self._count(most) if self._limit else None

    def end(self, charge: Charge | None, bill: Bill | None) -> None:
        """Count what the request has taken, in place of the most that it might have; None: the
        server refused it.
        """
        if charge is None:
            return
        if bill:
            self._longest = max(self._longest, bill.thinking_tokens + bill.answer_tokens)
        tokens = bill.tokens if bill else 0
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

    def _wait(self, most: int, limit: float) -> float:
        """Seconds until it is worth asking again whether so many tokens may be taken; 0 if they may
        be now.
        """
        now = _now()
        self._opened = now if self._opened is None else self._opened
        self._expire()
        ramp = BURST + now - self._opened  # seconds' worth that the first minute allows so far
        if not self._charges or self._total + most <= limit * min(1.0, ramp / MINUTE):
            return 0.0
        waits = [self._end(self._charges[0]) - now]
        if self._total + most <= limit:
            waits.append((self._total + most) / limit * MINUTE - ramp)
        return max(0.001, min(w for w in waits if w > 0))

    def _expire(self) -> None:
        while self._charges and self._end(self._charges[0]) <= _now():
            charge = self._charges.popleft()
            charge.counts = False
            self._total -= charge.tokens

    def _end(self, charge: Charge) -> float:
        """Until when a charge counts: for a minute, or longer if it is more than a minute's worth."""
        assert self._limit is not None
        return charge.started + MINUTE * max(1.0, charge.tokens / self._limit)


def _now() -> float:
    return asyncio.get_running_loop().time()
