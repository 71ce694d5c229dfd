"""Merging: average the weights of the model with those of another, without training.

After Kimi k1.5 (arXiv 2501.12599, section 2.4), who average a long-thinking and a short-thinking model. `how` also
offers TIES (Yadav et al. 2023), DARE (Yu et al. 2024) and SLERP, through mergekit where it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ponder.core import Model, Progress, UserError, renamed
from ponder.models import making_cost
from ponder.training.making import Record, WeightMethod, local_weights
from ponder.training.weights import average, combine


@dataclass(frozen=True, kw_only=True)
class Merge(WeightMethod):
    other: Model  # as in [[model]]: { name = "pocket", style = "short" }
    weight: float = renamed("share", 0.5)  # of the other model, from 0 to 1
    how: Literal["linear", "ties", "dare", "slerp"] = "linear"
    base: Model | None = None  # the ancestor of both, from which TIES and DARE take differences

    example: ClassVar[dict[str, Any]] = {"other": {"name": "pocket", "style": "short"}}

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise UserError(f"weight is between 0 and 1, not {self.weight}", hint="weight = 0.5")

    def build(self, model: Model, folder: Path, record: Record) -> Iterator[Progress]:
        yield {"merging": f"{1 - self.weight:g} of it with {self.weight:g} of {self.other.title()}"}
        task = self.train_on[0].task
        folders, shares = [local_weights(m, task) for m in (model, self.other)], [1 - self.weight, self.weight]
        spent = making_cost(folders[1])  # the model's own is counted for every method
        record.rollout_tokens += int(spent.get("rollout_tokens", 0))
        record.training_tokens += int(spent.get("training_tokens", 0))
        if self.how == "linear":
            average(folders, shares, folder)
        else:
            base = local_weights(self.base, task) if self.base else None
            combine(self.how, folders, shares, folder, base=base)
