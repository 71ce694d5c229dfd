"""Pays for what preparations ask of models, from the ledger of the run or of `ponder prepare`.

In the run's own process each call of a preparation is reserved in the run's ledger, like the turn
of an attempt. Another process (`--jobs`, `--ray`) can't see that ledger: it is given an allowance,
all of which counts as in progress, and has a ledger of its own under it. At its end the run counts
what was spent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ponder.core import Bill, Prices, Retry, Spend, UserError
from ponder.run.caps import NOTHING, Claim, Ledger, Money

T = TypeVar("T")


class Account(NamedTuple):
    """What another process has spent of its allowance."""

    spent: Money = NOTHING  # `lost` included
    lost: Money = NOTHING
    lost_calls: int = 0
    refused: Money | None = None  # the first call for which there was no room
    overbilled: str = ""


async def _unrecorded() -> None:
    pass


def _unheard(retry: Retry) -> None:
    pass


@dataclass
class LedgerTill:
    """Pays from a ledger in the same event loop."""

    ledger: Ledger
    # puts on record what is held, before a call is sent
    record: Callable[[], Awaitable[None]] = _unrecorded
    on_retry: Callable[[Retry], None] = _unheard
    _claims: dict[int, Claim] = field(default_factory=dict)

    async def reserve(
        self, call: int, model: str, limit: Spend | None, prices: Prices | None, server: str = ""
    ) -> bool:
        self._check(model, limit)
        claim = self.ledger.open(prices, server=server, preparing=True)
        try:
            granted = not self.ledger.capped and await self.ledger.reserve(claim, limit)
            if granted and self.ledger.limited:
                await self.record()
        except BaseException:
            self.ledger.close(claim)
            raise
        if granted:
            self._claims[call] = claim
        return granted

    def _check(self, model: str, limit: Spend | None) -> None:
        """Raise `UserError` for a call that no cap can hold: before it is sent."""
        if self.ledger.limited and limit is None:
            key = "max_cost" if self.ledger.max_tokens is None else "max_tokens"
            what = f"{key} can't be kept: a reply of `{model}`, which a method asks, has no limit"
            raise UserError(what, hint="give it a `budget`, in completion tokens")

    def settle(self, call: int, bill: Bill | None) -> None:
        claim = self._claims.pop(call)
        self.ledger.settle(claim, bill)
        self.ledger.close(claim)

    def lose(self, call: int, spend: Spend) -> None:
        self.ledger.lose(self._claims[call], spend)

    def retried(self, retry: Retry) -> None:
        self.on_retry(retry)

    def has_room(self) -> bool:
        return self.ledger.has_room()

    def account(self) -> Account:
        ledger = self.ledger
        return Account(
            ledger.spent, ledger.lost, ledger.lost_calls, ledger.refused, ledger.overbilled
        )


@dataclass
class LoopTill:
    """Pays from the ledger of another thread's event loop."""

    till: LedgerTill
    loop: asyncio.AbstractEventLoop

    async def reserve(
        self, call: int, model: str, limit: Spend | None, prices: Prices | None, server: str = ""
    ) -> bool:
        reserved = asyncio.run_coroutine_threadsafe(
            self.till.reserve(call, model, limit, prices, server), self.loop
        )
        return await asyncio.wrap_future(reserved)

    def _there(self, work: Callable[..., T], *arguments: Any) -> T:
        async def done() -> T:
            return work(*arguments)

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result()

    def settle(self, call: int, bill: Bill | None) -> None:
        self._there(self.till.settle, call, bill)

    def lose(self, call: int, spend: Spend) -> None:
        self._there(self.till.lose, call, spend)

    def retried(self, retry: Retry) -> None:
        self._there(self.till.retried, retry)

    def has_room(self) -> bool:
        return self._there(self.till.has_room)
