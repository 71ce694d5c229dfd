"""Stops thinking after `think` tokens and asks for the answer (budget forcing).

After s1 (Muennighoff et al. 2025), without their "Wait", so it only shortens. They append the end-of-thinking token to
the model's text; a chat endpoint accepts no such prefix, so here the truncated thinking is sent back as the model's own
message, and the user asks for the answer. The second call's prompt tokens are billed, because an endpoint bills them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ponder.core import Completion, Message, Method, Model, Request, UserError, Wrapped

DEMAND = "Stop thinking. Give your final answer now, in the form that was asked for, and nothing else."


@dataclass(frozen=True)
class BudgetForce(Method):
    think: int  # completion tokens of the first call
    answer: int = 2048  # completion tokens of the second call

    example: ClassVar[dict[str, Any]] = {"think": 100}

    def __post_init__(self) -> None:
        if self.think < 1 or self.answer < 1:
            raise UserError("think and answer are numbers of tokens, at least 1", hint="think = 4096")

    def apply(self, model: Model) -> Model:
        return _Forced(model, self)


class _Forced(Wrapped):
    def __init__(self, inner: Model, method: BudgetForce) -> None:
        super().__init__(inner)
        self._method = method

    async def complete(self, request: Request) -> Completion:
        first = await self.inner.complete(replace(request, budget=self._method.think))
        if first.stop == "end":
            return first
        so_far = Message("assistant", (first.thinking + "\n" + first.answer).strip())
        messages = (*request.messages, so_far, Message("user", DEMAND))
        second = await self.inner.complete(replace(request, messages=messages, budget=self._method.answer))
        thinking = "\n".join(t for t in (first.thinking, first.answer, second.thinking) if t)
        return Completion(thinking, second.answer, second.stop, first.bill + second.bill)
