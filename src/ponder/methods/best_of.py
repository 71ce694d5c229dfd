"""Best of n: ask n times, and let a process reward pick the answer.

After Lightman et al. 2023 and ReasonFlux-PRM (arXiv 2506.18896, use c). `pick = "vote"` adds up the rewards of samples
that agree, as in Math-Shepherd (Wang et al. 2023), instead of taking the best one. All n samples are billed, and so are
the tokens that the reward reads. A sample that didn't end, or that can't be scored, is picked only for lack of others.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ponder.core import Bill, Completion, Method, Model, Request, Reward, Scores, UserError, Wrapped, seed_from
from ponder.traces import steps, trace_of


@dataclass(frozen=True, kw_only=True)
class BestOf(Method):
    reward: Reward  # `ponder list rewards`: { name = "qwen", id = "Qwen/Qwen2.5-Math-PRM-7B" }
    n: int = 8  # samples a turn
    pick: Literal["best", "vote"] = "best"
    cut: Literal["blank", "sentence", "task"] = "blank"  # where a step begins

    example: ClassVar[dict[str, Any]] = {"reward": {"name": "oracle"}, "n": 3, "cut": "task"}
    tried_on: ClassVar[Any] = ({"name": "pocket", "temperature": 1.0}, {"name": "execution", "dictionary": 6}, 2)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"n is a number of samples, at least 1, not {self.n}")

    def title(self) -> str:
        return f"{self.pick} of n by {self.reward.title()}"

    def apply(self, model: Model) -> Model:
        return _Picking(model, self)


class _Picking(Wrapped):
    def __init__(self, inner: Model, method: BestOf) -> None:
        super().__init__(inner)
        self._method = method

    async def complete(self, request: Request) -> Completion:
        method = self._method
        requests = [replace(request, seed=seed_from(request.seed, i)) for i in range(method.n)]
        said = await asyncio.gather(*(self.inner.complete(r) for r in requests))
        codec = self.inner.codec_name(request.task)
        traces = [trace_of(request, completion.thinking, completion.answer, codec) for completion in said]
        cut = [steps(trace, method.cut) for trace in traces]
        scores = await asyncio.to_thread(method.reward.score, cut)
        best = said[self._picked(request, said, scores)]
        asked = sum((c.bill for c in said[1:]), said[0].bill)
        read = sum((s.bill for s in scores), Bill(counted_by=asked.counted_by))
        return replace(best, bill=asked + read)

    def _picked(self, request: Request, said: Sequence[Completion], scores: Sequence[Scores]) -> int:
        """The place of the answer to give."""
        totals = [
            s.total if s.total is not None and c.stop == "end" else None for c, s in zip(said, scores, strict=True)
        ]
        known = {place: total for place, total in enumerate(totals) if total is not None}
        if not known:
            return 0
        best = max(known, key=lambda place: known[place])
        if self._method.pick == "best":
            return best
        votes: defaultdict[str, float] = defaultdict(float)
        ballots = {place: json.dumps(request.task.parse(request.problem, said[place].answer)) for place in known}
        for place, ballot in ballots.items():
            votes[ballot] += known[place] if ballot != "null" else 0.0
        most = max(votes.values())
        return next(place for place, ballot in ballots.items() if votes[ballot] == most)
