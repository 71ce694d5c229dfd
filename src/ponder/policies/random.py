"""Evicts tokens at random: the control that every other policy must beat.

The same tokens are protected as under the other policies. With the question protected, random
eviction matches the best published scores on many models (*Random Attention*, arXiv 2609.03430). A
token's score is a hash of the row's seed, its position, and, if they evict for themselves, the
layer and head; so it stays the same from one pruning to the next, and what is kept is a uniform
sample of the whole text. With `redraw`, scores are drawn anew at every pruning: the older a token,
the more prunings it must survive, so most of what is kept is recent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Random(Policy):
    by_order = False
    per_layer = False
    seed: int = 0  # another seed evicts other tokens
    redraw: bool = False  # draw new scores at every pruning

    def score(self, view: CacheView) -> Tensor:
        import torch

        heads = torch.arange(view.keys.shape[1], device=view.keys.device)
        hashed = _hash(view.seeds[:, None, None] + self.seed * 7919)
        if self.redraw:
            # The row's own length, so that a reply doesn't depend on the other rows of its batch.
            newest = view.positions.amax((1, 2))
            hashed = _hash(hashed + newest[:, None, None])
        hashed = _hash(hashed + view.layer * 1009 + heads[:, None])
        return _hash(hashed + view.positions).double()


def _hash(x: Tensor) -> Tensor:
    """Return a 31-bit hash of each number."""
    x = x & 0x7FFFFFFF
    for _ in range(2):
        x = ((x >> 15) ^ x) * 0x2C1B3C6D & 0x7FFFFFFF
        x = ((x >> 13) ^ x) * 0x297A2D39 & 0x7FFFFFFF
    return (x >> 16) ^ x
