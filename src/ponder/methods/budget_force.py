"""Stops thinking after `think` tokens and asks for the answer (budget forcing).

After s1 (Muennighoff et al. 2025), without their "Wait", so it only shortens. They append the
end-of-thinking token to the model's text; a chat endpoint accepts no such prefix, so here the
truncated thinking is sent back as the model's own message, and the user asks for the answer. The
second call's prompt tokens are billed, because an endpoint bills them. A reply that is cut counts
as thinking, text and tokens, also of a model that reasons in its reply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ponder.core import (
    Bill,
    Completion,
    Message,
    Method,
    Model,
    Request,
    Spend,
    TurnLimit,
    UserError,
    Wrapped,
)

DEMAND = (
    "Stop thinking. Give your final answer now, in the form that was asked for, and nothing else."
)


@dataclass(frozen=True)
class BudgetForce(Method):
    think: int  # completion tokens of the first call
    answer: int = 2048  # completion tokens of the second call

    example: ClassVar[dict[str, Any]] = {"think": 100}

    def __post_init__(self) -> None:
        if self.think < 1 or self.answer < 1:
            raise UserError(
                "think and answer are numbers of tokens, at least 1", hint="think = 4096"
            )

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        def limit(prompt_tokens: int, budget: int | None) -> Spend | None:
            first, second = self._within(budget)
            thinking = inner(prompt_tokens, first)
            answer = inner(prompt_tokens + first + len(DEMAND), second)
            return thinking.plus(answer) if thinking and answer else None

        return limit

    def _within(self, budget: int | None) -> tuple[int, int]:
        """The budgets of the two calls, where another method has set one for both."""
        return (
            (self.think, self.answer)
            if budget is None
            else (min(self.think, budget), min(self.answer, budget))
        )

    def apply(self, model: Model) -> Model:
        return _Forced(model, self)


class _Forced(Wrapped):
    def __init__(self, inner: Model, method: BudgetForce) -> None:
        super().__init__(inner)
        self._method = method

    async def complete(self, request: Request) -> Completion:
        think, answer = self._method._within(request.budget)
        first = await self.after(Bill(), replace(request, budget=think))
        if first.stop == "end":
            return first
        so_far = Message("assistant", (first.thinking + "\n" + first.answer).strip())
        messages = (*request.messages, so_far, Message("user", DEMAND))
        spent = first.bill.thinking_tokens + first.bill.answer_tokens
        cut = replace(first.bill, thinking_tokens=spent, answer_tokens=0)
        second = await self.after(cut, replace(request, messages=messages, budget=answer))
        thinking = "\n".join(t for t in (first.thinking, first.answer, second.thinking) if t)
        return replace(second, thinking=thinking, bill=cut + second.bill)
