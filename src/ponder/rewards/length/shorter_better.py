"""The further from the shortest right sample of the problem, the less, down to −1.

After ShorterBetter (arXiv 2504.21370): the target is the shortest right sample or, where none is right, the mean
length. The distance is taken relative to the target, and no further than 1, so that one weight serves problems of all
lengths; the paper takes tokens times a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.core import LengthReward


@dataclass(frozen=True)
class ShorterBetter(LengthReward):
    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:  # noqa: ARG002
        target = min((n for n, ok in zip(tokens, right, strict=True) if ok), default=sum(tokens) / len(tokens))
        return [-min(1.0, abs(n - target) / target) for n in tokens]
