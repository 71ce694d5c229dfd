"""Trains on the shortest right sample of each problem (shortest rejection sampling).

After Kimi k1.5 (arXiv 2501.12599, section 2.4), with their n = 8. The optimizer's settings are
ours: theirs are not published. Problems without a right sample are left out, and counted in
`made.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ponder.core import Model, Progress
from ponder.training.fit import (
    SampleSettings,
    check_usable,
    draw_samples,
    fit,
    samples_of,
    weights_to_train,
)
from ponder.training.loop import SUPERVISED, Unit, reply_tokens
from ponder.training.made_models import Input, MakingRecord, WeightMethod
from ponder.training.rollouts import Sample


@dataclass(frozen=True, kw_only=True)
class Shortest(SampleSettings, WeightMethod):
    example: ClassVar[dict[str, Any]] = {"problems": 4, "n": 2, "epochs": 1, "rate": 1e-5}

    def inputs(self, model: Model) -> Iterator[Input]:
        yield from super().inputs(model)
        yield samples_of(self, self.train_on, model)

    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        source = weights_to_train(model, self.train_on)
        samples = yield from draw_samples(self, self.train_on, model, source, record)
        units = self.units(samples, record)
        check_usable(units, samples, self.n)
        yield from fit(source, units, SUPERVISED, self, folder, record, divisor=reply_tokens)

    def units(self, samples: Sequence[Sequence[Sample]], record: MakingRecord) -> list[Unit]:
        """Return the shortest right sample of each problem that has one."""
        units = []
        for problem_samples in samples:
            right = [sample for sample in problem_samples if sample.right]
            if right:
                best = min(right, key=lambda sample: sample.tokens)
                units.append(Unit((best.text,)))
        record.notes["problems without a right sample"] = len(samples) - len(units)
        return units
