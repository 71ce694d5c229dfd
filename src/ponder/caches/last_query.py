"""Those that the last query looks at stay.

TOVA (Oren et al. 2024), which cuts at every step (`ratio` left out) and lets a layer's heads choose together
(`share = "layer"`); both are settings here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView


@dataclass(frozen=True)
class LastQuery(Policy):
    queries = 1

    def score(self, seen: CacheView) -> Tensor:
        return seen.attention().mean((2, 3))
