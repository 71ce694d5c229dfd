"""Ways to ask an endpoint in a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ponder.core import Bill, Completion, Message, ModelFailure, Observer, Request, Retry
from ponder.models.endpoint import Endpoint, chat
from ponder.models.endpoint.reply import Reply, Usage
from ponder.models.endpoint.reply import bill as reply_bill
from ponder.tasks.chain_sum import ChainSum


def request(seed: int = 1) -> Request:
    task = ChainSum()
    problem = task.problem(2, seed)
    return Request(task, problem, (Message("user", problem.turns[0]),), seed)


def texts(response: chat.ChatResponse) -> Reply:
    """Return the reply in a response, without its token counts."""
    return replace(chat.read(response), usage=Usage())


def bill(usage: Any, reply: Reply, *arguments: Any, **more: Any) -> Bill:
    """Return the bill of a reply with these token counts, as a server writes them."""
    return reply_bill(replace(reply, usage=chat.read_usage(usage)), *arguments, **more)


class _Watching(Observer):
    def __init__(self, **listeners: Callable[..., Any]) -> None:
        self._listeners = listeners

    def sent(self, request: Request) -> None:
        self._listeners.get("sent", _ignore)(request)

    def retried(self, request: Request, retry: Retry) -> None:
        self._listeners.get("retried", _ignore)(retry)

    def warned(self, text: str) -> None:
        self._listeners.get("warned", _ignore)(text)


def _ignore(report: object) -> None:
    pass


def watched(asked: Request, **listeners: Callable[..., Any]) -> Request:
    """Return the request with functions that hear of its calls: `sent`, `retried`, `warned`."""
    return replace(asked, observer=_Watching(**listeners))


def ask(model: Endpoint, *seeds: int) -> list[Completion]:
    async def together() -> list[Completion]:
        async with model:
            return await asyncio.gather(*(model.complete(request(s)) for s in seeds))

    return asyncio.run(together())


def retries(model: Endpoint) -> tuple[list[Retry], Completion | str]:
    """The tries of one request that gave no answer, and how it ended."""
    seen: list[Retry] = []

    async def once() -> Completion | str:
        async with model:
            asked = watched(request(), retried=seen.append)
            try:
                return await model.complete(asked)
            except ModelFailure as failure:
                return str(failure)

    return seen, asyncio.run(once())


def reached(**settings: Any) -> None:
    async def once() -> None:
        async with Endpoint(id="m", **settings) as model:
            await model.reach()

    asyncio.run(once())
