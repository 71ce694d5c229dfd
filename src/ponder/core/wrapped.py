"""A model around another: what methods that change the asking return."""

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
    """Opens, closes and asks the inner model. A subclass defines `complete`."""

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
        """Return what making the model cost, as `WithWeights.made`."""
        return making_cost(self.inner, task)

    async def samples(self, request: Request, n: int) -> list[Completion]:
        """Ask the inner model n times at once, each time with another seed.

        If one call fails, so does the turn.
        """
        requests = [dataclasses.replace(request, seed=seed_from(request.seed, i)) for i in range(n)]
        replies = await asyncio.gather(
            *(self.inner.complete(r) for r in requests), return_exceptions=True
        )
        paid = sum(
            (
                reply.bill or Bill()
                for reply in replies
                if isinstance(reply, Completion | ModelFailure)
            ),
            Bill(),
        )
        for error in replies:
            if isinstance(error, ModelFailure):
                raise ModelFailure(str(error), paid) from error
            if isinstance(error, BaseException):
                raise error
        return [reply for reply in replies if isinstance(reply, Completion)]

    async def ballots(self, request: Request, samples: Sequence[Completion]) -> list[int | None]:
        """For each sample the index of the first with the same answer; None where the task finds no
        answer.
        """
        task, answers = request.task, [sample.answer for sample in samples]

        def count() -> list[int | None]:
            return equal_answers(
                task, [parse_answer(task, request.problem, answer) for answer in answers]
            )

        return await asyncio.to_thread(count) if grades_slowly(task, answers) else count()

    async def after(self, paid: Bill, request: Request) -> Completion:
        """Ask the inner model. If it fails, the failure carries what the turn has cost before."""
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
    """Return the model that answers, below all methods that change how it is asked."""
    while isinstance(model, Wrapped):
        model = model.inner
    return model


def server_of(model: Model) -> Served | None:
    """Return the part of a model that servers answer for; None if no server does."""
    while not isinstance(model, Served):
        if not isinstance(model, Wrapped):
            return None
        model = model.inner
    return model


def making_cost(model: Model, task: Task) -> Mapping[str, float]:
    """Return what making a model cost, as `WithWeights.made`; empty if Ponder didn't make it."""
    if isinstance(model, WithWeights | Wrapped):
        return model.made(task)
    return {}


def codec_name(model: Model, task: Task) -> str:
    """Return the model plugin whose codec a model's replies are read with; "" if it uses a chat
    template.
    """
    model = innermost(model)
    return model.codec_name(task) if isinstance(model, WithCodec) else ""
