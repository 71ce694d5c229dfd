"""Stops thinking after `think` tokens and asks for the answer (budget forcing).

After s1 (Muennighoff et al. 2025), without their "Wait", so it only shortens. They append the
end-of-thinking token to the model's text. An endpoint with `provider = "vllm"`, `"sglang"` or
`"llama.cpp"` is sent `think` as its own budget, and its server does the same in one call. Other chat
endpoints accept no such prefix: there the truncated thinking is sent back as the model's own
message, and the user asks for the answer. This second call's prompt tokens are billed, because an
endpoint bills them. A reply that is cut counts as thinking, text and tokens, also of a model that
reasons in its reply. Some models go on reasoning in the answer after a forced end.

An attempt's details say which it was: `server_budget` is 1 where the server ended the thinking,
`second_calls` the second calls per turn elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ponder.core import (
    Bill,
    Completion,
    Measuring,
    Message,
    Method,
    Model,
    Request,
    Spend,
    TurnLimit,
    UserError,
    Wrapped,
)
from ponder.core.capabilities import BudgetsThinking

SECOND_CALLS = "second_calls"
SERVER_BUDGET = "server_budget"
DEMAND = (
    "Stop thinking. Give your final answer now, in the form that was asked for, and nothing else."
)


@dataclass(frozen=True)
class BudgetForce(Method, Measuring):
    think: int  # thinking tokens: the server's budget, or completion tokens of the first call
    answer: int = 2048  # further completion tokens, in the second call if there is one

    example: ClassVar[dict[str, Any]] = {"think": 100}

    def __post_init__(self) -> None:
        if self.think < 1 or self.answer < 1:
            raise UserError(
                "think and answer are numbers of tokens, at least 1", hint="think = 4096"
            )

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        # Also an upper bound on the one call to a server with a budget of its own: it may write as
        # much as the two together, and its prompt is the first one's.
        def limit(prompt_tokens: int, budget: int | None) -> Spend | None:
            think, answer = self.budgets(budget)
            first_call = inner(prompt_tokens, think)
            second_call = inner(prompt_tokens + think + len(DEMAND), answer)
            if first_call is None or second_call is None:
                return None
            return first_call.plus(second_call)

        return limit

    def budgets(self, limit: int | None) -> tuple[int, int]:
        """Return the budgets of the two calls, within a limit that another method has set."""
        if limit is None:
            return self.think, self.answer
        return min(self.think, limit), min(self.answer, limit)

    def measures(self) -> Collection[str]:
        return (SERVER_BUDGET, SECOND_CALLS)

    def apply(self, model: Model) -> Model:
        if isinstance(model, BudgetsThinking):
            think, answer = self.budgets(model.max_tokens())
            limited = model.with_think(think)
            if limited is not None:
                return _ForcedByServer(limited, replace(self, think=think, answer=answer))
        return _Forced(model, self)


class _ForcedByServer(Wrapped):
    """Leaves it to the server to end the thinking."""

    def __init__(self, inner: Model, method: BudgetForce) -> None:
        super().__init__(inner)
        self._method = method

    async def complete(self, request: Request) -> Completion:
        budget = sum(self._method.budgets(request.budget))
        reply = await self.inner.complete(replace(request, budget=budget))
        return replace(reply, measures={**reply.measures, SERVER_BUDGET: 1.0})


class _Forced(Wrapped):
    """Makes a second call if the first has not ended."""

    def __init__(self, inner: Model, method: BudgetForce) -> None:
        super().__init__(inner)
        self._method = method

    async def complete(self, request: Request) -> Completion:
        think, answer = self._method.budgets(request.budget)
        first = await self.after(Bill(), replace(request, budget=think))
        if first.stop == "end":
            return replace(first, measures={**first.measures, SECOND_CALLS: 0.0})
        truncated = Message("assistant", (first.thinking + "\n" + first.answer).strip())
        demand = Message("user", DEMAND)
        second_request = replace(
            request, messages=(*request.messages, truncated, demand), budget=answer
        )
        tokens = first.bill.thinking_tokens + first.bill.answer_tokens
        first_bill = replace(first.bill, thinking_tokens=tokens, answer_tokens=0)
        second = await self.after(first_bill, second_request)
        texts = [first.thinking, first.answer, second.thinking]
        thinking = "\n".join(text for text in texts if text)
        return replace(
            second,
            thinking=thinking,
            bill=first_bill + second.bill,
            measures={**second.measures, SECOND_CALLS: 1.0},
        )
