"""Keeps every token: the model's full cache, the reference that eviction is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import KeepsAll, Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Full(Policy, KeepsAll):
    by_order = False
    per_layer = False

    def score(self, view: CacheView) -> Tensor:
        return view.positions * 0
