"""Evicts the tokens whose values have the smallest norm."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ponder.caches import CacheView
from ponder.core import Policy


@dataclass(frozen=True)
class Mine(Policy):
    def score(self, view: CacheView) -> Tensor:
        """Rows × heads × tokens; the lowest scores are evicted first."""
        norms: Tensor = view.values.norm(dim=-1)
        return norms
