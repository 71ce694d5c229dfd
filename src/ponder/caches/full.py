"""Everything stays: the cache as the model made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView


@dataclass(frozen=True)
class Full(Policy):
    per_layer = False

    def score(self, seen: CacheView) -> Tensor:
        return seen.places * 0
