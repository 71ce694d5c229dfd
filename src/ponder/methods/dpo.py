"""Trains to prefer the shortest right sample to longer samples, right or wrong (direct preference
optimization).

After Kimi k1.5 (arXiv 2501.12599, section 2.4): rejected are wrong samples that are longer than the
shortest right one, and right samples at least `longer` times as long. The loss is that of Rafailov
et al. 2023 on the log-probabilities of whole replies, with the model before training as the
reference. Per problem at most `pairs` rejected samples are used, the longest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ponder.core import Model, Progress, UserError
from ponder.training.fit import (
    SampleSettings,
    check_usable,
    draw_samples,
    fit,
    samples_of,
    weights_to_train,
)
from ponder.training.loop import Loss, Trainer, Unit, check_first_dpo_loss
from ponder.training.made_models import MakingRecord
from ponder.training.rollouts import Sample
from ponder.training.weight_methods import Input, WeightMethod


@dataclass(frozen=True, kw_only=True)
class Dpo(SampleSettings, WeightMethod):
    # strength of the preference; a smaller beta allows a larger change from the reference
    beta: float = 0.1
    # a right sample is rejected if it is this many times as long as the chosen one
    longer: float = 1.5
    pairs: int = 4  # per problem, at most
    epochs: int = 1  # passes over the pairs

    trl_trainer = "dpo"
    example: ClassVar[dict[str, Any]] = {"problems": 4, "n": 4, "longer": 1.0, "rate": 1e-5}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta <= 0 or self.longer < 1 or self.pairs < 1:
            raise UserError("beta must be above 0, longer and pairs at least 1")

    def inputs(self, model: Model) -> Iterator[Input]:
        yield from super().inputs(model)
        yield samples_of(self, self.train_on, model)

    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        source = weights_to_train(model, self.train_on)
        samples = yield from draw_samples(self, self.train_on, model, source, record)
        units = self.units(samples, record)
        check_usable(units, samples, self.n)
        yield from fit(source, units, self.loss, self, folder, record)

    def units(self, samples: Sequence[Sequence[Sample]], record: MakingRecord) -> list[Unit]:
        """Return pairs of the shortest right sample of a problem and one that is rejected."""
        units: list[Unit] = []
        unsolved = 0
        for drawn in samples:
            right = [sample for sample in drawn if sample.right]
            if not right:
                unsolved += 1
                continue
            chosen = min(right, key=lambda sample: sample.tokens)
            rejected = [sample for sample in drawn if self._rejected(sample, chosen)]
            rejected.sort(key=lambda sample: sample.tokens, reverse=True)
            units += [Unit((chosen.text, sample.text)) for sample in rejected[: self.pairs]]
        record.notes["problems without a right sample"] = unsolved
        return units

    def _rejected(self, sample: Sample, chosen: Sample) -> bool:
        if not sample.right:
            return sample.tokens > chosen.tokens
        return sample is not chosen and sample.tokens >= self.longer * chosen.tokens

    def trl_job(self) -> dict[str, Any]:
        return {"beta": self.beta}

    def loss(self, trainer: Trainer, units: Sequence[Unit]) -> tuple[Sequence[Unit], Loss]:
        """Return each pair with its log-probabilities under the reference, and the loss."""
        reference = trainer.score_all(units)

        def preference(scores: Tensor, units: Sequence[Unit]) -> Tensor:
            before = torch.tensor([unit.data for unit in units], device=scores.device)
            gained = scores - before
            total = -functional.logsigmoid(self.beta * (gained[:, 0] - gained[:, 1])).sum()
            if trainer.step == 0:
                hint = "the same weights must give the same log-probabilities twice: is a part of the model random?"
                mean = total.item() / len(units)
                check_first_dpo_loss(mean, self, str(trainer.loaded.model.dtype), hint)
            return total

        return [
            replace(unit, data=row) for unit, row in zip(units, reference, strict=True)
        ], preference
