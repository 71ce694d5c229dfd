"""Those that the last queries look at stay, unless a later key says the same.

R-KV (Cai et al. 2025): λ · importance − (1 − λ) · redundancy. Importance is the attention of the last 8 queries, the
largest of a head's group, max-pooled over 7 columns. Redundancy is the softmax of a key's mean cosine to the others,
where of near-duplicates (above `alike`) the newest isn't counted against. Their code takes the similarity from the
first row of a batch only; here each row has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView


@dataclass(frozen=True)
class Rkv(Policy):
    queries: int = 8
    pool: int = 7
    weight: float = 0.1  # λ, of importance
    alike: float = 0.5

    def score(self, seen: CacheView) -> Tensor:
        from torch.nn.functional import max_pool1d

        importance = max_pool1d(seen.attention().amax(2).mean(2), self.pool, stride=1, padding=self.pool // 2)
        return self.weight * importance - (1 - self.weight) * self._redundancy(seen.keys, seen.padding)

    def _redundancy(self, keys: Tensor, padding: Tensor) -> Tensor:
        import torch

        n = keys.shape[2]
        unit = torch.nn.functional.normalize(keys, dim=-1).masked_fill(padding[..., None], 0)
        cosine = unit @ unit.mT  # R × H × n × n, one layer at a time
        cosine.diagonal(dim1=-2, dim2=-1).zero_()
        # A row's newest near-duplicate is spared: the last column whose cosine is above the bar.
        columns = torch.arange(1, n + 1, device=keys.device)
        newest = (columns * (cosine > self.alike)).argmax(-1, keepdim=True)
        spared = cosine.gather(-1, newest)
        cosine.scatter_(-1, newest, torch.where(spared > self.alike, 0.0, spared))
        return cosine.mean(2).softmax(-1)
