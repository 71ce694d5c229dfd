"""Evicts the tokens that recent queries attend to least and whose keys repeat later ones (R-KV).

Cai et al. 2025 (arXiv 2505.24133): the score is λ · importance − (1 − λ) · redundancy. Importance
is the attention of the last 8 queries, the maximum over the query heads of a key-value head,
max-pooled over 7 columns. Redundancy is the softmax of a key's mean cosine similarity to the other
keys; each key's similarity to the newest of its near-duplicates (cosine above `alike`) is not
counted, so the newest copy survives. The authors' code takes the similarities from the first row of
a batch; here each row has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Rkv(Policy):
    queries: int = 8  # recent queries whose attention counts
    pool: int = 7  # columns of the max-pooling, an odd number; 1: none
    weight: float = 0.1  # λ, the weight of importance
    alike: float = 0.5  # cosine similarity above which two keys are near-duplicates

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool < 1 or self.pool % 2 == 0:
            raise UserError(f"pool is an odd number of columns, not {self.pool}")

    def score(self, view: CacheView) -> Tensor:
        from torch.nn.functional import max_pool1d

        attention = view.attention()  # (rows, kv_heads, groups, queries, columns)
        received = attention.amax(2).mean(2)
        importance = max_pool1d(received, self.pool, stride=1, padding=self.pool // 2)
        redundancy = self._redundancy(view.keys, view.padding)
        return self.weight * importance - (1 - self.weight) * redundancy

    def _redundancy(self, keys: Tensor, padding: Tensor) -> Tensor:
        """Return each key's redundancy, (rows, kv_heads, columns)."""
        import torch
        from torch.nn.functional import normalize

        directions = normalize(keys, dim=-1).masked_fill(padding[..., None], 0)
        cosine = directions @ directions.mT  # (rows, kv_heads, columns, columns)
        cosine.diagonal(dim1=-2, dim2=-1).zero_()
        # The newest near-duplicate of a key is the last column above the threshold, if any is.
        number = torch.arange(1, keys.shape[2] + 1, device=keys.device)
        newest = (number * (cosine > self.alike)).argmax(-1, keepdim=True)
        similarity = cosine.gather(-1, newest)
        cosine.scatter_(-1, newest, torch.where(similarity > self.alike, 0.0, similarity))
        return cosine.mean(2).softmax(-1)
