"""Ways to ask an endpoint in a test."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ponder.core import Completion, Message, ModelFailure, Request, Retry
from ponder.models.endpoint import Endpoint
from ponder.tasks.chain_sum import ChainSum


def request(seed: int = 1) -> Request:
    task = ChainSum()
    problem = task.problem(2, seed)
    return Request(task, problem, (Message("user", problem.turns[0]),), seed)


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
            asked = replace(request(), on_retry=lambda _, retry: seen.append(retry))
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
