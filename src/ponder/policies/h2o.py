"""Evicts the tokens that have received the least attention so far (H2O).

Zhang et al. 2023 (arXiv 2306.14048): attention summed over all queries, including those of the
prompt, and averaged over the query heads of a key-value head. The paper spends half of its budget
on recent tokens; here that is `window`. Two published reimplementations overwrite the sum with the
current query's attention, which is the policy `last_query`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class H2o(Policy):
    by_order = False
    needs = ("attention",)

    def score(self, view: CacheView) -> Tensor:
        assert view.accumulated is not None
        return view.accumulated
