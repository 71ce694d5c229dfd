"""Those that have received the most attention so far stay.

H2O (Zhang et al. 2023): attention summed over all queries, the question's too, averaged over the queries that share a
head. Half of their budget is recent tokens; here the window is. Two published reimplementations overwrite the sum with
the current query's attention, which is `last_query`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView


@dataclass(frozen=True)
class H2o(Policy):
    accumulates = True

    def score(self, seen: CacheView) -> Tensor:
        assert seen.received is not None
        return seen.received
