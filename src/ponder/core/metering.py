"""Counts what a preparation asks of models, such as the samples of a teacher, under the caps of the
study.

A preparation is ordinary code, in a thread or in another process, with an event loop of its own.
Whoever starts it sets the `METER`; whatever asks a model there does so through `complete`, which
reserves the most that a call may take before it is sent, and settles it with its bill.
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
    """Where the calls of a preparation are paid. Each call has a number of its own."""

    async def reserve(
        self, call: int, model: str, limit: Spend | None, prices: Prices | None, server: str = ""
    ) -> bool:
        """Wait until the most that a call may take fits under the caps; False if there is no room
        for it.

        `server` bills the call; "" if nobody does.
        """

    def settle(self, call: int, bill: Bill | None) -> None:
        """Count the bill of a call that has ended; None if it has none."""

    def lose(self, call: int, spend: Spend) -> None:
        """Count what a try may have been billed that gave no answer."""

    def retried(self, retry: Retry) -> None:
        """Report a try that gave no answer."""

    def has_room(self) -> bool:
        """Return whether what is in progress still fits under the caps, after tries were lost."""


@dataclass
class Meter:
    """Asks models, and pays for every call."""

    till: Till
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def complete(self, model: Model, request: Request) -> Completion:
        call, name = next(self._numbers), model.label or model.title()
        limit = model.turn_limit(request.prompt_limit, request.budget)
        if not await self.till.reserve(call, name, limit, model.prices, model.server()):
            raise CapReached
        calls = _Calls(model, self.till, call)
        bill: Bill | None = None
        try:
            completion = await model.complete(replace(request, observer=calls))
            bill = completion.bill
        except BaseException as error:
            bill = error.bill if isinstance(error, ModelFailure) else None
            reported = isinstance(model, Served) or not model.server()
            gone = calls.open if reported else limit or Spend(calls=1)
            if bill is None and gone.calls:
                self.till.lose(call, gone)
            raise
        finally:
            self.till.settle(call, bill)
        return completion

    @contextmanager
    def held(
        self, name: str, limit: Spend | None, prices: Prices | None
    ) -> Iterator[Callable[[Bill], None]]:
        """Reserve the most that work in processes of its own may take; the block is given where to
        tell its bill.

        Without a bill all of it counts as spent.
        """
        call, bills = next(self._numbers), list[Bill]()
        if not asyncio.run(self.till.reserve(call, name, limit, prices)):
            raise CapReached
        try:
            yield bills.append
        finally:
            if not bills and limit:
                self.till.lose(call, limit)
            self.till.settle(call, bills[0] if bills else None)


class _Calls(Observer):
    """The tries of one call: those that are sent, and neither answered nor known to have failed."""

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
    """Ask a model for a preparation; raises `CapReached` if the caps have no room for the call."""
    meter = METER.get()
    return await (model.complete(request) if meter is None else meter.complete(model, request))
