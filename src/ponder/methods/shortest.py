"""Trains on the shortest right sample of each problem (shortest rejection sampling).

After Kimi k1.5 (arXiv 2501.12599, section 2.4), with their n = 8. The optimizer's settings are ours: theirs are not
published. Problems without a right sample are left out, and counted in `made.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ponder.training.loop import Loss, Trainer, Unit, likelihood, reply_tokens
from ponder.training.made_models import MakingRecord
from ponder.training.rollouts import Sample
from ponder.training.weight_methods import SamplingMethod


@dataclass(frozen=True, kw_only=True)
class Shortest(SamplingMethod):
    example: ClassVar[dict[str, Any]] = {"problems": 4, "n": 2, "epochs": 1, "rate": 1e-5}

    def units(self, samples: Sequence[Sequence[Sample]], record: MakingRecord) -> list[Unit]:
        right = [[sample for sample in drawn if sample.right] for drawn in samples]
        best = [min(drawn, key=lambda sample: sample.tokens) for drawn in right if drawn]
        record.notes["problems without a right sample"] = len(samples) - len(best)
        return [Unit((sample.text,)) for sample in best]

    def over(self, units: Sequence[Unit]) -> float:
        return reply_tokens(units)

    def loss(self, trainer: Trainer, units: Sequence[Unit]) -> tuple[Sequence[Unit], Loss]:  # noqa: ARG002
        return units, likelihood
