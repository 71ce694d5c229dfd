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

    from ponder.caches import Seen


@dataclass(frozen=True)
class LastQuery(Policy):
    queries = 1

    def score(self, seen: Seen) -> Tensor:
        return seen.attention().mean((2, 3))
