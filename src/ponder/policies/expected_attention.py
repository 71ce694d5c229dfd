"""Evicts the tokens that future queries are expected to attend to least (Expected Attention).

Devoto et al. 2025 (arXiv 2510.00636): future queries are taken as normally distributed, with the
mean and covariance of the recent ones, rotated to each of the next `ahead` positions and averaged.
A key's expected weight is then exp(μ·k + k·Σk / 2), normalised over the cache; the score is that
weight times the norm of the token's value. The paper estimates μ and Σ from the prompt's hidden
states; here they come from the last `queries` queries, because a reasoning model's queries change
as it thinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class ExpectedAttention(Policy):
    needs = ("rope",)
    by_order = False
    queries: int = 128  # recent queries that μ and Σ are estimated from
    ahead: int = 512  # future positions that are averaged over
    covariance: bool = True  # false: only the mean counts
    floor: float = 0.0  # added to each weight before it is multiplied by the value's norm

    def score(self, view: CacheView) -> Tensor:
        import torch

        distances = torch.arange(1, self.ahead + 1, device=view.keys.device)
        queries = view.future_queries(distances)  # (rows, kv_heads, groups, queries, head_dim)
        logits = queries @ view.keys[:, :, None].mT * view.scaling  # (…, groups, queries, columns)
        mean = view.over_queries(logits)  # μ·k, (rows, kv_heads, groups, columns)
        expected = mean
        if self.covariance:
            variance = view.over_queries((logits - mean[:, :, :, None]) ** 2)  # k·Σk
            expected = mean + variance / 2
        expected = expected.masked_fill(view.padding[:, :, None], -torch.inf)
        weights = expected.softmax(-1).mean(2)  # over the query heads of a KV head
        norms: Tensor = view.values.norm(dim=-1)
        return (weights + self.floor) * norms
