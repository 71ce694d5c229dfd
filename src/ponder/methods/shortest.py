"""Shortest rejection sampling: of n samples take the shortest right one, and train on those.

After Kimi k1.5 (arXiv 2501.12599, section 2.4), with their n = 8. The optimiser's settings are ours: theirs are not
published. A problem without a right sample teaches nothing; it is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ponder.training.loop import Loss, Training, Unit, likelihood, said
from ponder.training.making import Record, SamplingMethod
from ponder.training.rollouts import Sample


@dataclass(frozen=True, kw_only=True)
class Shortest(SamplingMethod):
    example: ClassVar[dict[str, Any]] = {"problems": 4, "n": 2, "epochs": 1, "rate": 1e-5}

    def units(self, samples: Sequence[Sequence[Sample]], record: Record) -> list[Unit]:
        best = [min(right, key=lambda s: s.tokens) for some in samples if (right := [s for s in some if s.right])]
        record.notes["problems without a right sample"] = len(samples) - len(best)
        return [Unit((sample.text,)) for sample in best]

    def over(self, units: Sequence[Unit]) -> float:
        return said(units)

    def loss(self, training: Training, units: Sequence[Unit]) -> tuple[Sequence[Unit], Loss]:  # noqa: ARG002
        return units, likelihood
