"""Trains to prefer the shortest right sample to longer samples (direct preference optimization).

After Kimi k1.5 (arXiv 2501.12599, section 2.4): rejected are wrong samples that are longer than the
shortest right one, and right samples at least `longer` times as long. The loss is that of Rafailov
et al. 2023 on the log-probabilities of whole replies, with the model before training as the
reference. Per problem at most `pairs` rejected samples are used, the longest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
from ponder.training.loop import Objective, Unit
from ponder.training.made_models import Input, MakingRecord, WeightMethod
from ponder.training.rollouts import Sample


@dataclass(frozen=True, kw_only=True)
class Dpo(SampleSettings, WeightMethod):
    # strength of the preference; a smaller beta allows a larger change from the reference
    beta: float = 0.1
    # a right sample is rejected if it is this many times as long as the chosen one
    longer: float = 1.5
    pairs: int = 4  # per problem, at most
    epochs: int = 1  # passes over the pairs

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
        pairs = self.units(samples, record)
        check_usable(pairs, samples, self.n)
        yield from fit(source, pairs, self.objective(), self, folder, record)

    def units(self, samples: Sequence[Sequence[Sample]], record: MakingRecord) -> list[Unit]:
        """Return pairs of the shortest right sample of a problem and one that is rejected."""
        pairs: list[Unit] = []
        unsolved = 0
        for problem_samples in samples:
            right = [sample for sample in problem_samples if sample.right]
            if not right:
                unsolved += 1
                continue
            chosen = min(right, key=lambda sample: sample.tokens)
            rejected = [sample for sample in problem_samples if self._rejected(sample, chosen)]
            rejected.sort(key=lambda sample: sample.tokens, reverse=True)
            pairs += [Unit((chosen.text, sample.text)) for sample in rejected[: self.pairs]]
        record.notes["problems without a right sample"] = unsolved
        return pairs

    def _rejected(self, sample: Sample, chosen: Sample) -> bool:
        if not sample.right:
            return sample.tokens > chosen.tokens
        return sample is not chosen and sample.tokens >= self.longer * chosen.tokens

    def objective(self) -> Objective:
        """Return the loss, which is -log sigmoid(0) while the model still is its own reference."""
        loss = partial(preference_loss, self.beta)
        return Objective(loss, reference=True, first_loss=math.log(2))


def preference_loss(beta: float, scores: Tensor, pairs: Sequence[Unit]) -> Tensor:
    """Return the summed loss of pairs.

    `scores` are the log-probabilities of the chosen and the rejected reply (pairs × 2); a pair's
    `data` are those under the reference.
    """
    reference = torch.tensor([pair.data for pair in pairs], device=scores.device)
    gained = scores - reference
    margin = gained[:, 0] - gained[:, 1]
    return -functional.logsigmoid(beta * margin).sum()
