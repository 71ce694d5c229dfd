"""Evicts the tokens that the most recent query attends to least (TOVA).

Oren et al. 2024 (arXiv 2401.06104). The paper prunes at every step and lets the heads of a layer
share one decision; here both are settings of `compress`: leave out `ratio`, and set `granularity =
"layer"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class LastQuery(Policy):
    by_order = False
    queries = 1

    def score(self, view: CacheView) -> Tensor:
        return view.attention().mean((2, 3))  # over query heads and the only query
