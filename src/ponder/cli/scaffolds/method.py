"""Applies `mine`: say here in one sentence how it makes answers cheaper.

As it stands it tells the model to be brief, in a system message. Write your own `apply` and
`complete`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ponder.core import Completion, Message, Method, Model, Request, Wrapped


@dataclass(frozen=True)
class Mine(Method):
    # what the model is told; each field is a key in a study's `method`
    instruction: str = "Be brief."

    def apply(self, model: Model) -> Model:
        return _Told(model, self.instruction)


class _Told(Wrapped):
    def __init__(self, inner: Model, instruction: str) -> None:
        super().__init__(inner)
        self._instruction = instruction

    async def complete(self, request: Request) -> Completion:
        messages = (Message("system", self._instruction), *request.messages)
        return await self.inner.complete(replace(request, messages=messages))
