"""Evicts tokens by `mine`: say here in one sentence which tokens are evicted.

As it stands they are those whose values have the smallest norm. Write your own `score`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ponder.core import Policy
from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Mine(Policy):
    def score(self, view: CacheView) -> Tensor:
        """Rows × heads × tokens; the lowest scores are evicted first."""
        norms: Tensor = view.values.norm(dim=-1)
        return norms
