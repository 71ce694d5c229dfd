"""Counts the model calls of a preparation, such as a teacher's samples, under the study's caps.

A preparation is ordinary code, in a thread or in another process, with its own event loop. The run
sets `METER` before it starts one; inside, every call goes through `complete`, which reserves an
upper bound before the call is sent and settles it with its bill.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Protocol

from ponder.core.capabilities import Served
from ponder.core.contracts import Model
from ponder.core.errors import ModelFailure
from ponder.core.nouns import Bill, Completion, Observer, Prices, Request, Retry, Spend


class CapReached(Exception):
    """A preparation has stopped at a cap. What it has paid for is kept."""


class Till(Protocol):
    """Where the calls of a preparation are paid, each under its own number.

    `ponder.run.caps` implements it.
    """

    async def reserve(
        self, call: int, model: str, limit: Spend | None, prices: Prices | None, server: str = ""
    ) -> bool:
        """Wait until a call's limit fits under the caps; return False if there is no room for it.

        `server` bills the call; "" if nobody does.
        """

    def settle(self, call: int, bill: Bill | None) -> None:
        """Count the bill of a call that has ended, and release its reservation."""

    def lose(self, call: int, spend: Spend) -> None:
        """Count what a try without an answer may have been billed."""

    def retried(self, retry: Retry) -> None:
        """Report a try without an answer."""

    def has_room(self) -> bool:
        """Return whether the calls in progress still fit under the caps, after lost tries."""


@dataclass
class Meter:
    """Asks models, and has the till pay for every call."""

    till: Till
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def complete(self, model: Model, request: Request) -> Completion:
        """Ask a model; raise `CapReached` if the caps have no room for the call."""
        call = next(self._numbers)
        name = model.label or model.title()
        limit = model.turn_limit(request.prompt_limit, request.budget)
        if not await self.till.reserve(call, name, limit, model.prices, model.server()):
            raise CapReached
        calls = _Calls(model, self.till, call)
        bill: Bill | None = None
        try:
            completion = await model.complete(replace(request, observer=calls))
            bill = completion.bill
        except BaseException as error:
            if isinstance(error, ModelFailure):
                bill = error.bill
            lost = limit or Spend(calls=1)
            if isinstance(model, Served) or not model.server():  # it has reported its tries
                lost = calls.open
            if bill is None and lost.calls:
                self.till.lose(call, lost)
            raise
        finally:
            self.till.settle(call, bill)
        return completion

    @contextmanager
    def held(
        self, name: str, limit: Spend | None, prices: Prices | None
    ) -> Iterator[Callable[[Bill], None]]:
        """Reserve an upper bound for work in other processes; the block is given `report_bill`.

        If the block reports no bill, all of the limit counts as spent.
        """
        call = next(self._numbers)
        bills: list[Bill] = []
        if not asyncio.run(self.till.reserve(call, name, limit, prices)):
            raise CapReached
        try:
            yield bills.append
        finally:
            if not bills and limit:
                self.till.lose(call, limit)
            self.till.settle(call, bills[0] if bills else None)


class _Calls(Observer):
    """The tries of one call that were sent, and neither answered nor known to have failed."""

    def __init__(self, model: Model, till: Till, call: int) -> None:
        self._model = model
        self._till = till
        self._call = call
        self.open = Spend()

    def sent(self, request: Request) -> None:
        self.open = self.open.plus(self._limit(request))

    def retried(self, request: Request, retry: Retry) -> None:
        limit = self._limit(request)
        self.open = self.open.minus(limit)
        self._till.retried(retry)
        if retry.billed:
            self._till.lose(self._call, limit)
        if retry.wait and not self._till.has_room():
            raise ModelFailure("no answer, and the study's cap leaves no room for another try")

    def _limit(self, request: Request) -> Spend:
        return (
            request.limit
            or self._model.turn_limit(request.prompt_limit, request.budget)
            or Spend(calls=1)
        )


METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


async def complete(model: Model, request: Request) -> Completion:
    """Ask a model for a preparation; raise `CapReached` if the caps have no room for the call."""
    meter = METER.get()
    if meter is None:
        return await model.complete(request)
    return await meter.complete(model, request)
