"""Samples n answers and returns the most frequent one (self-consistency, majority vote).

After Wang et al. 2022, voting in every turn as in Sinha et al. 2025. All n samples are asked and
billed (the published code reads at most five). Answers that the task parses to the same value vote
together; in a benchmark of mathematics, those that are equal as mathematics. Truncated and unparsed
samples don't vote. A tie goes to the answer that was sampled first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ponder.core import Completion, Method, Model, Request, Spend, TurnLimit, UserError, Wrapped


@dataclass(frozen=True)
class Vote(Method):
    n: int  # samples per turn

    example: ClassVar[dict[str, Any]] = {"n": 3}

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"n is a number of samples, at least 1, not {self.n}")

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        def limit(prompt_tokens: int, budget: int | None) -> Spend | None:
            return one.times(self.n) if (one := inner(prompt_tokens, budget)) else None

        return limit

    def apply(self, model: Model) -> Model:
        return _Voting(model, self.n)


class _Voting(Wrapped):
    def __init__(self, inner: Model, n: int) -> None:
        super().__init__(inner)
        self._n = n

    async def complete(self, request: Request) -> Completion:
        samples = await self.samples(request, self._n)
        votes: Counter[int] = Counter()
        first: dict[int, Completion] = {}
        for completion, ballot in zip(samples, await self.ballots(request, samples), strict=True):
            if completion.stop == "end" and ballot is not None:
                votes[ballot] += 1
                first.setdefault(ballot, completion)
        winner = first[votes.most_common(1)[0][0]] if votes else samples[0]
        return replace(winner, bill=sum((c.bill for c in samples[1:]), samples[0].bill))
