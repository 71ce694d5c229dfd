"""Scores steps by `mine`: say here in one sentence what makes a step good.

As it stands it is the fraction of a step's words that no earlier step contains. Write your own
`rate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.core import Reward, Scores, Steps


@dataclass(frozen=True, kw_only=True)
class Mine(Reward):
    case: bool = False  # whether upper and lower case differ; each field is a key: --set case=true

    def rate(self, traces: Sequence[Steps]) -> list[Scores]:
        return [Scores(tuple(self._new(trace.part(self.of)))) for trace in traces]

    def _new(self, steps: Sequence[str]) -> list[float]:
        earlier_words = set[str]()
        scores = list[float]()
        for step in steps:
            text = step if self.case else step.casefold()
            words = set(text.split())
            new_words = words - earlier_words
            scores.append(len(new_words) / max(1, len(words)))  # from 0 to 1, one per step
            earlier_words |= words
        return scores
