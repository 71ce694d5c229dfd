"""Withdraws the reward of correct samples beyond a limit that tightens in rounds (ThinkPrune).

After arXiv 2504.01296. The limits are in tokens, one for each equal part of the training. With
`weight = 1` a correct sample beyond the limit is worth as much as a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ponder.core import LengthReward, UserError


@dataclass(frozen=True)
class Truncate(LengthReward):
    limits: tuple[int, ...]  # tokens, from the first round to the last

    example: ClassVar[dict[str, Any]] = {"limits": [400, 300, 200]}

    def __post_init__(self) -> None:
        if not self.limits or min(self.limits) < 1:
            message = "limits must be a list of numbers of tokens, each at least 1"
            raise UserError(message, hint="limits = [4096, 3072, 2048]")

    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:
        rounds = len(self.limits)
        limit = self.limits[min(int(progress * rounds), rounds - 1)]
        too_long = [ok and length > limit for length, ok in zip(tokens, right, strict=True)]
        return [-1.0 if penalized else 0.0 for penalized in too_long]
