"""Evicts the tokens whose keys lie farthest from where a head's queries point (TriAttention).

arXiv 2604.04921: before rotation, a head's queries gather around one centre. For each rotary
frequency, a key's score is what a query at the centre would give it, averaged over distances of 1,
2, 4, … up to 65,536 further tokens, plus the length of the key times how far the queries scatter
around the centre. The paper measures the centre beforehand on other texts; here it is measured on
the last `queries` queries, so that nothing has to be fitted to a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Triattention(Policy):
    needs = ("rope",)
    by_order = False
    queries: int = 128  # recent queries that the centre is measured on
    doublings: int = 16  # distances: 1, 2, 4, … up to 2 to this power

    def score(self, view: CacheView) -> Tensor:
        import torch

        distances = 2 ** torch.arange(self.doublings + 1, device=view.keys.device)
        centre = view.over_queries(view.future_queries(distances))  # (…, groups, head_dim)
        from_centre = centre @ view.keys.mT  # (rows, kv_heads, groups, columns)
        no_distance = torch.zeros_like(distances[:1])
        queries = view.pairs(view.future_queries(no_distance))  # complex numbers
        mean_length = view.over_queries(queries.abs())
        scatter = mean_length - view.over_queries(queries).abs()  # (…, groups, head_dim / 2)
        from_scatter = scatter @ view.pairs(view.keys).abs().mT
        logits = (from_centre + from_scatter) * view.scaling
        return logits.mean(2)
