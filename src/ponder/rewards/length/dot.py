"""Where every sample of a problem is right, the outliers among the long ones earn nothing.

After DOT (arXiv 2601.03969), of which we know the abstract: only groups that are right throughout are touched, and of
them only lengths beyond the mean by more than `deviations` standard deviations. There such samples are cut off; here
they lose their reward, so with `weight = 1` they are worth as much as wrong ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from ponder.core import LengthReward


@dataclass(frozen=True)
class Dot(LengthReward):
    deviations: float = 1.0

    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:  # noqa: ARG002
        limit = fmean(tokens) + self.deviations * pstdev(tokens)
        return [-1.0 if all(right) and n > limit else 0.0 for n in tokens]
