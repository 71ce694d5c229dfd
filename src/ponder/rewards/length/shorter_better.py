"""Penalises samples by their distance from the shortest correct sample's length, down to −1
(ShorterBetter).

After arXiv 2504.21370: the target is the length of the problem's shortest correct sample or, if
none is correct, the mean length. Here the distance is relative to the target and at most 1, so that
one weight serves problems of all lengths; the paper multiplies tokens by a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponder.core import LengthReward


@dataclass(frozen=True)
class ShorterBetter(LengthReward):
    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:  # noqa: ARG002
        target = min(
            (n for n, ok in zip(tokens, right, strict=True) if ok),
            default=sum(tokens) / len(tokens),
        )
        return [-min(1.0, abs(n - target) / target) for n in tokens]
