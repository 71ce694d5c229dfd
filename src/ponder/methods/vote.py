"""Samples n answers and returns the most frequent one (self-consistency, majority vote).

After Wang et al. 2022, voting in every turn as in Sinha et al. 2025. All n samples are asked and
billed (the published code reads at most five). Answers that the task parses to the same value vote
together; in a benchmark of mathematics, those that are equal as mathematics. Truncated and unparsed
samples don't vote. A tie goes to the answer that was sampled first. An attempt's details hold the
`agreement`: the fraction of the n samples that voted for the winner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ponder.core import (
    Completion,
    Measuring,
    Method,
    Model,
    Request,
    Spend,
    TurnLimit,
    UserError,
    Wrapped,
)

AGREEMENT = "agreement"


@dataclass(frozen=True)
class Vote(Method, Measuring):
    n: int  # samples per turn

    example: ClassVar[dict[str, Any]] = {"n": 3}

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"n is a number of samples, at least 1, not {self.n}")

    def turn_limit(self, inner: TurnLimit) -> TurnLimit:
        def limit(prompt_tokens: int, budget: int | None) -> Spend | None:
            sample = inner(prompt_tokens, budget)
            if sample is None:
                return None
            return sample.times(self.n)

        return limit

    def measures(self) -> Collection[str]:
        return (AGREEMENT,)

    def apply(self, model: Model) -> Model:
        return _Voting(model, self.n)


class _Voting(Wrapped):
    def __init__(self, inner: Model, n: int) -> None:
        super().__init__(inner)
        self._n = n

    async def complete(self, request: Request) -> Completion:
        samples = await self.samples(request, self._n)
        answers = await self.ballots(request, samples)
        votes: Counter[int] = Counter()
        first_sample: dict[int, Completion] = {}
        for sample, answer in zip(samples, answers, strict=True):
            if sample.stop == "end" and answer is not None:
                votes[answer] += 1
                first_sample.setdefault(answer, sample)
        winner = samples[0]
        most_votes = 0
        if votes:
            most_frequent, most_votes = votes.most_common(1)[0]
            winner = first_sample[most_frequent]
        bill = samples[0].bill
        for sample in samples[1:]:
            bill += sample.bill
        measures = {**winner.measures, AGREEMENT: most_votes / self._n}
        return replace(winner, bill=bill, measures=measures)
