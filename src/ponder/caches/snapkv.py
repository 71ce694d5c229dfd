"""Those that the last queries look at stay, with their neighbours.

SnapKV (Li et al. 2024): attention of the last 32 queries, pooled over 7 columns. The paper cuts the prompt once; here,
as in later work on reasoning, thinking is cut each time that the budget is reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView


@dataclass(frozen=True)
class Snapkv(Policy):
    queries: int = 32
    pool: int = 7  # columns, an odd number; 1: none

    def score(self, seen: CacheView) -> Tensor:
        from torch.nn.functional import avg_pool1d

        received = seen.attention().mean((2, 3))
        return avg_pool1d(received, self.pool, stride=1, padding=self.pool // 2, count_include_pad=False)
