"""`Wrapped`: a model around another, which methods such as `vote` return from `apply`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from ponder.core.capabilities import (
    Served,
    WithCodec,
    WithWeights,
    equal_answers,
    grades_slowly,
    parse_answer,
)
from ponder.core.contracts import Model, Task
from ponder.core.errors import ModelFailure
from ponder.core.keys import seed_from
from ponder.core.nouns import Bill, Completion, Request


class Wrapped(Model):
    """Opens, closes and describes the inner model. A subclass defines `complete`.

    class _Retry(Wrapped):
        async def complete(self, request):
            first = await self.inner.complete(request)
            return first if first.answer else await self.after(first.bill, request)
    """

    def __init__(self, inner: Model) -> None:
        super().__init__(label=inner.label, concurrency=inner.concurrency, prices=inner.prices)
        self.inner = inner

    def title(self) -> str:
        return self.inner.title()

    def max_tokens(self) -> int | None:
        return self.inner.max_tokens()

    def server(self) -> str:
        return self.inner.server()

    def made(self, task: Task) -> Mapping[str, float]:
        """Return what training the model cost, as `WithWeights.made`."""
        return making_cost(self.inner, task)

    async def samples(self, request: Request, n: int) -> list[Completion]:
        """Ask the inner model n times at once, each time with another seed.

        If one call fails, so does the turn: the failure carries the bills of all calls.
        """
        calls = []
        for index in range(n):
            seeded = dataclasses.replace(request, seed=seed_from(request.seed, index))
            calls.append(self.inner.complete(seeded))
        replies = await asyncio.gather(*calls, return_exceptions=True)
        paid = Bill()
        for reply in replies:
            if isinstance(reply, Completion | ModelFailure):
                paid += reply.bill or Bill()
        completions = []
        for reply in replies:
            if isinstance(reply, ModelFailure):
                raise ModelFailure(str(reply), paid) from reply
            if isinstance(reply, BaseException):
                raise reply
            completions.append(reply)
        return completions

    async def ballots(self, request: Request, samples: Sequence[Completion]) -> list[int | None]:
        """Return for each sample the index of the first with the same answer; None if unparsed."""
        task = request.task
        answers = [sample.answer for sample in samples]

        def first_equal() -> list[int | None]:
            parsed = [parse_answer(task, request.problem, answer) for answer in answers]
            return equal_answers(task, parsed)

        if grades_slowly(task, answers):
            return await asyncio.to_thread(first_equal)
        return first_equal()

    async def after(self, paid: Bill, request: Request) -> Completion:
        """Ask the inner model; a failure carries `paid`, what the turn has cost before."""
        try:
            return await self.inner.complete(request)
        except ModelFailure as error:
            raise ModelFailure(str(error), paid + (error.bill or Bill())) from error

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)


def innermost(model: Model) -> Model:
    """Return the model inside all `Wrapped` models: the one that answers."""
    while isinstance(model, Wrapped):
        model = model.inner
    return model


def server_of(model: Model) -> Served | None:
    """Return the model inside that a server answers for; None if no server does."""
    while not isinstance(model, Served):
        if not isinstance(model, Wrapped):
            return None
        model = model.inner
    return model


def making_cost(model: Model, task: Task) -> Mapping[str, float]:
    """Return what training a model cost, as `WithWeights.made`; empty if Ponder didn't train it."""
    if isinstance(model, WithWeights | Wrapped):
        return model.made(task)
    return {}


def codec_name(model: Model, task: Task) -> str:
    """Return the model plugin whose codec parses a model's replies; "" for a chat template."""
    model = innermost(model)
    if isinstance(model, WithCodec):
        return model.codec_name(task)
    return ""
