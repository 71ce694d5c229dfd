"""Averages the model's weights with those of another model, without training (model merging).

After Kimi k1.5 (arXiv 2501.12599, section 2.4), which averages a long-thinking and a short-thinking
model. `how` also offers TIES (Yadav et al. 2023), DARE (Yu et al. 2024) and SLERP, if mergekit is
installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ponder.core import Model, Progress, UserError, renamed
from ponder.core.wrapped import making_cost
from ponder.training.made_models import (
    Input,
    MakingRecord,
    WeightMethod,
    local_weights,
    weights_folder,
)
from ponder.training.weights import average, combine


@dataclass(frozen=True, kw_only=True)
class Merge(WeightMethod):
    other: Model  # as in [[model]]: { name = "pocket", style = "short" }
    weight: float = renamed("share", 0.5)  # of the other model, from 0 to 1
    how: Literal["linear", "ties", "dare", "slerp"] = "linear"  # how the weights are combined
    base: Model | None = None  # the model that both were trained from; TIES and DARE need it

    example: ClassVar[dict[str, Any]] = {"other": {"name": "pocket", "style": "short"}}

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise UserError(f"weight is between 0 and 1, not {self.weight}", hint="weight = 0.5")

    def inputs(self, model: Model) -> Iterator[Input]:
        for source in (model, self.other, self.base):
            if source:
                yield Input(weights_folder(source, self.train_on[0].task))

    def build(self, model: Model, folder: Path, record: MakingRecord) -> Iterator[Progress]:
        yield {"with": self.other.title(), "weight": self.weight}
        task = self.train_on[0].task
        folders = [local_weights(model, task), local_weights(self.other, task)]
        weights = [1 - self.weight, self.weight]
        record.add_cost(making_cost(self.other, task))
        if self.how == "linear":
            average(folders, weights, folder)
        else:
            base = None
            if self.base:
                base = local_weights(self.base, task)
            combine(self.how, folders, weights, folder, base=base)
