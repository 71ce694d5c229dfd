"""Any of them stay: the control that every score must beat, with the same protection as the others.

With the question protected this equals the best score on many models (*Random Attention*, arXiv 2609.03430). A token's
lot is drawn once, from the row's seed, its place, and where heads choose for themselves the layer and head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView


@dataclass(frozen=True)
class Random(Policy):
    per_layer = False
    seed: int = 0

    def score(self, seen: CacheView) -> Tensor:
        import torch

        heads = torch.arange(seen.keys.shape[1], device=seen.keys.device)
        drawn = _mixed(seen.seeds[:, None, None] + self.seed * 7919)
        drawn = _mixed(drawn + seen.layer * 1009 + heads[:, None])
        return _mixed(drawn + seen.places).double()


def _mixed(x: Tensor) -> Tensor:
    """A number of 31 bits that says nothing of x."""
    x = x & 0x7FFFFFFF
    for _ in range(2):
        x = ((x >> 15) ^ x) * 0x2C1B3C6D & 0x7FFFFFFF
        x = ((x >> 13) ^ x) * 0x297A2D39 & 0x7FFFFFFF
    return (x >> 16) ^ x
