"""Rewards samples linearly in their length, from +½ for a problem's shortest to −½ for its longest
(Kimi k1.5).

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
        low, high = min(tokens), max(tokens)
        if low == high:
            return [0.0] * len(tokens)
        scaled = [0.5 - (n - low) / (high - low) for n in tokens]
        return [s if ok else min(0.0, s) for s, ok in zip(scaled, right, strict=True)]
