"""Rewards short answers by `mine`: say here in one sentence which answers are rewarded.

As it stands they are right answers shorter than the mean of their problem's right answers, and the
reward grows as training proceeds. Write your own `rewards`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.core import LengthReward


@dataclass(frozen=True)
class Mine(LengthReward):
    # the largest reward, at the end of the training; each field is a key of the length reward
    weight: float = 0.5

    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:
        right_lengths = [n for n, correct in zip(tokens, right, strict=True) if correct]
        mean = sum(right_lengths) / max(1, len(right_lengths))
        rewards = []
        for length, correct in zip(tokens, right, strict=True):
            reward = 0.0
            if correct:
                reward = progress * self.weight * max(0.0, 1 - length / mean)
            rewards.append(reward)
        return rewards
