"""Evicts the tokens that recent queries attend to least and whose keys repeat later ones (R-KV).

Cai et al. 2025: the score is λ · importance − (1 − λ) · redundancy. Importance is the attention of the last 8 queries,
the maximum over the query heads of a key-value head, max-pooled over 7 columns. Redundancy is the softmax of a key's
mean cosine similarity to the other keys; each key's similarity to the newest of its near-duplicates (cosine above
`alike`) is not counted, so the newest copy survives. The authors' code takes the similarities from the first row of a
batch; here each row has its own.
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

        importance = max_pool1d(view.attention().amax(2).mean(2), self.pool, stride=1, padding=self.pool // 2)
        return self.weight * importance - (1 - self.weight) * self._redundancy(view.keys, view.padding)

    def _redundancy(self, keys: Tensor, padding: Tensor) -> Tensor:
        import torch

        n = keys.shape[2]
        unit = torch.nn.functional.normalize(keys, dim=-1).masked_fill(padding[..., None], 0)
        cosine = unit @ unit.mT  # R × H × n × n, one layer at a time
        cosine.diagonal(dim1=-2, dim2=-1).zero_()
        # The newest near-duplicate of each key is the last column whose similarity is above the threshold.
        columns = torch.arange(1, n + 1, device=keys.device)
        newest = (columns * (cosine > self.alike)).argmax(-1, keepdim=True)
        spared = cosine.gather(-1, newest)
        cosine.scatter_(-1, newest, torch.where(spared > self.alike, 0.0, spared))
        return cosine.mean(2).softmax(-1)
