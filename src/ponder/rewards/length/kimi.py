"""Rewards samples linearly in length, +½ for a problem's shortest, −½ for its longest (Kimi k1.5).

arXiv 2501.12599, section 2.3.3: λ = ½ − (length − shortest) / (longest − shortest), where shortest
and longest are over correct and wrong samples alike. A wrong sample gets at most 0. If all samples
are equally long, all get 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.core import LengthReward


@dataclass(frozen=True)
class Kimi(LengthReward):
    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:  # noqa: ARG002
        shortest = min(tokens)
        longest = max(tokens)
        if shortest == longest:
            return [0.0] * len(tokens)
        rewards = list[float]()
        for length, is_right in zip(tokens, right, strict=True):
            reward = 0.5 - (length - shortest) / (longest - shortest)
            if not is_right:
                reward = min(0.0, reward)
            rewards.append(reward)
        return rewards
