"""Evicts the tokens that recent queries attend to least (SnapKV).

Li et al. 2024 (arXiv 2404.14469): attention of the last 32 queries, averaged over neighbouring
columns. The paper prunes the prompt once; here, as in later work on reasoning, the cache is pruned
each time that it reaches its budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Snapkv(Policy):
    queries: int = 32  # recent queries whose attention counts
    pool: int = 7  # columns of the average-pooling, an odd number; 1: none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool < 1 or self.pool % 2 == 0:
            raise UserError(f"pool is an odd number of columns, not {self.pool}")

    def score(self, view: CacheView) -> Tensor:
        from torch.nn.functional import avg_pool1d

        received = view.attention().mean((2, 3))  # over query heads and queries
        return avg_pool1d(
            received, self.pool, stride=1, padding=self.pool // 2, count_include_pad=False
        )
