"""Evicts the tokens whose keys point most nearly in the average direction of all keys (KeyDiff).

Park et al. 2025 (arXiv 2504.15364): keys that differ from the others tend to receive much
attention. The score is minus the cosine similarity between a key and the mean of all keys, each
scaled to length 1. It needs no queries, so the result doesn't depend on how long the prompt is read
at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Keydiff(Policy):
    by_order = False

    def score(self, view: CacheView) -> Tensor:
        from torch.nn.functional import cosine_similarity, normalize

        directions = normalize(view.keys, dim=-1).masked_fill(view.padding[..., None], 0)
        total = directions.sum(2, keepdim=True)  # points where the mean does
        return -cosine_similarity(view.keys, total, dim=-1)
