"""Samples n answers and returns the one that a process reward scores highest (best-of-n).

After Lightman et al. 2023 and ReasonFlux-PRM (arXiv 2506.18896, use c). `pick = "vote"` instead sums the rewards of
samples with the same answer, as in Math-Shepherd (Wang et al. 2023). All n samples are billed. What the reward reads
and writes is billed apart, at its own prices (`reward_prompt_tokens`, `reward_completion_tokens`, `reward_cost`), and
counts towards the study's caps. A truncated sample, or one without a score, is returned only if there is no other. If a
judge gives no answer, the attempt is `failed`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from ponder.core import (
    Bill,
    Completion,
    Method,
    Model,
    ModelFailure,
    Prices,
    Request,
    Reward,
    Scores,
    Spend,
    TurnLimit,
    UserError,
    Wrapped,
)
from ponder.traces import steps, trace_of


@dataclass(frozen=True, kw_only=True)
class BestOf(Method):
    reward: Reward  # `ponder list rewards`: { name = "qwen", id = "Qwen/Qwen2.5-Math-PRM-7B" }
    n: int = 8  # samples per turn
    pick: Literal["best", "vote"] = "best"  # the best sample, or the answer with the largest sum of rewards
    cut: Literal["blank", "sentence", "task"] = "blank"  # where to split steps: blank line, sentence, as the task does

    example: ClassVar[dict[str, Any]] = {"reward": {"name": "oracle"}, "n": 3, "cut": "task"}
    tried_on: ClassVar[Any] = ({"name": "pocket", "temperature": 1.0}, {"name": "execution", "dictionary": 6}, 2)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"n is a number of samples, at least 1, not {self.n}")

    def title(self) -> str:
        return f"{self.pick} of n by {self.reward.title()}"

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        def limit(prompt_tokens: int, budget: int | None) -> Spend | None:
            if (one := inner(prompt_tokens, budget)) is None:
                return None
            return one.plus(self.reward.limit(one.tokens).as_reward(self.reward_prices)).times(self.n)

        return limit

    def asks(self) -> tuple[Model, ...]:
        return (judge,) if (judge := self.reward.asks()) else ()

    @property
    def reward_prices(self) -> Prices | None:
        return judge.prices if (judge := self.reward.asks()) else None

    def ready(self) -> None:
        self.reward.ready()

    def apply(self, model: Model) -> Model:
        return _Picking(model, self)


class _Picking(Wrapped):
    def __init__(self, inner: Model, method: BestOf) -> None:
        super().__init__(inner)
        self._method = method

    async def complete(self, request: Request) -> Completion:
        method = self._method
        samples = await self.samples(request, method.n)
        codec = self.inner.codec_name(request.task)
        traces = [trace_of(request, completion.thinking, completion.answer, codec) for completion in samples]
        asked = sum((c.bill for c in samples[1:]), samples[0].bill)
        try:
            scores = await self._score([steps(trace, method.cut) for trace in traces], request)
        except ModelFailure as error:
            raise ModelFailure(str(error), asked + (error.bill or Bill()).as_reward(method.reward_prices)) from error
        ballots = await self.ballots(request, samples) if method.pick == "vote" else []
        best = samples[self._pick(samples, scores, ballots)]
        read = sum((s.bill for s in scores), Bill())
        return replace(best, bill=asked + read.as_reward(method.reward_prices))

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.inner)
            self._score = await stack.enter_async_context(self._method.reward.opened())
            self._opened = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.__aexit__(kind, error, trace)

    def _pick(self, samples: Sequence[Completion], scores: Sequence[Scores], ballots: Sequence[int | None]) -> int:
        """The index of the sample to return; `ballots` are their parsed answers, if they vote."""
        totals = {
            index: score.total
            for index, (sample, score) in enumerate(zip(samples, scores, strict=True))
            if score.total is not None and sample.stop == "end"
        }
        if not totals:
            return 0
        best = max(totals, key=lambda index: totals[index])
        if self._method.pick == "best":
            return best
        votes: defaultdict[int | None, float] = defaultdict(float)
        for index, total in totals.items():
            votes[ballots[index]] += total if ballots[index] is not None else 0.0
        most = max(votes.values())
        return next(index for index in totals if votes[ballots[index]] == most)
