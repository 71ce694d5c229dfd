"""Generates sums under the version that they had in stores of versions 1 to 3."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ponder.core import Problem
from ponder.tasks import chain_sum


@dataclass(frozen=True)
class OldSums(chain_sum.ChainSum):
    version = 1

    def problem(self, size: int, seed: int) -> Problem:
        question = "What is {}? End with the number alone in <answer></answer> tags."
        problem = super().problem(size, seed)
        return replace(problem, turns=(question.format(problem.id),))
