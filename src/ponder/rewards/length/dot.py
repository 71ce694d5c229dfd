"""Withdraws the reward of unusually long samples if all samples of a problem are correct (DOT).

After arXiv 2601.03969, of which we know only the abstract: a problem is affected only if all its
samples are correct, and then only the samples longer than the mean by more than `deviations`
standard deviations. The paper truncates them; here they lose their reward, so with `weight = 1`
they are worth as much as wrong ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from ponder.core import LengthReward


@dataclass(frozen=True)
class Dot(LengthReward):
    # standard deviations above the mean length from which a sample is an outlier
    deviations: float = 1.0

    def rewards(self, right: Sequence[bool], tokens: Sequence[int], progress: float) -> list[float]:  # noqa: ARG002
        limit = fmean(tokens) + self.deviations * pstdev(tokens)
        if not all(right):
            return [0.0] * len(tokens)
        return [-1.0 if length > limit else 0.0 for length in tokens]
