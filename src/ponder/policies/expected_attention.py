"""Evicts the tokens that future queries are expected to attend to least, given the recent ones (Expected Attention).

Devoto et al. 2025 (arXiv 2510.00636): future queries are taken as normally distributed, with the mean and covariance of
the recent ones, rotated to each of the next `ahead` positions and averaged. A key's expected weight is then
exp(μ·k + k·Σk / 2), normalised over the cache; the score is that weight times the norm of the token's value. The paper
estimates μ and Σ from the prompt's hidden states; here they come from the last `queries` queries, because a reasoning
model's queries change as it thinks.
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

        future = view.future_queries(torch.arange(1, self.ahead + 1, device=view.keys.device))  # R × H × G × w × D
        logits = future @ view.keys[:, :, None].mT * view.scaling  # R × H × G × w × n
        expected = view.over_queries(logits)
        if self.covariance:
            expected = expected + view.over_queries((logits - expected[:, :, :, None]) ** 2) / 2
        weights = expected.masked_fill(view.padding[:, :, None], -torch.inf).softmax(-1).mean(2)
        lengths: Tensor = view.values.norm(dim=-1)
        return (weights + self.floor) * lengths
