"""Penalises samples by distance from the shortest correct one's length, to −1 (ShorterBetter).

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
        right_lengths = [length for length, ok in zip(tokens, right, strict=True) if ok]
        target = min(right_lengths, default=sum(tokens) / len(tokens))
        return [-min(1.0, abs(length - target) / target) for length in tokens]
