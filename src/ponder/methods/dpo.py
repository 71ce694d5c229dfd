"""Direct preference optimisation: prefer the shortest right sample to longer ones, wrong or right.

After Kimi k1.5 (arXiv 2501.12599, section 2.4): rejected are the wrong samples that are longer, and the right ones at
least `longer` times as long. The loss is that of Rafailov et al. 2023, with whole-text log-probabilities; the model
before training is the reference. Of a problem's rejected samples at most `pairs` are taken, the longest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ponder.core import UserError
from ponder.training.loop import Loss, Training, Unit
from ponder.training.making import Record, SamplingMethod
from ponder.training.rollouts import Sample


@dataclass(frozen=True, kw_only=True)
class Dpo(SamplingMethod):
    beta: float = 0.1
    longer: float = 1.5  # times as long as the chosen one a right sample must be to be rejected
    pairs: int = 4  # of a problem, at most
    epochs: int = 1

    example: ClassVar[dict[str, Any]] = {"problems": 4, "n": 4, "longer": 1.0, "rate": 1e-5}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta <= 0 or self.longer < 1 or self.pairs < 1:
            raise UserError("beta must be above 0, longer and pairs at least 1")

    def units(self, samples: Sequence[Sequence[Sample]], record: Record) -> list[Unit]:
        found: list[Unit] = []
        for some in samples:
            if best := min((s for s in some if s.right), key=lambda s: s.tokens, default=None):
                far = self.longer * best.tokens
                worse = [s for s in some if (s is not best and s.tokens >= far if s.right else s.tokens > best.tokens)]
                worse.sort(key=lambda s: s.tokens, reverse=True)
                found += [Unit((best.text, other.text)) for other in worse[: self.pairs]]
        record.notes["problems without a right sample"] = sum(not any(s.right for s in some) for some in samples)
        return found

    def loss(self, training: Training, units: Sequence[Unit]) -> tuple[Sequence[Unit], Loss]:
        reference = training.score_all(units)

        def preference(scores: Tensor, units: Sequence[Unit]) -> Tensor:
            before = torch.tensor([unit.data for unit in units], device=scores.device)
            gained = scores - before
            return -functional.logsigmoid(self.beta * (gained[:, 0] - gained[:, 1])).sum()

        return [replace(unit, data=row) for unit, row in zip(units, reference, strict=True)], preference
