"""Evicts tokens at random: the control that every other policy must beat.

The same tokens are protected as under the other policies. With the question protected, random eviction matches the best
published scores on many models (*Random Attention*, arXiv 2609.03430). A token's score is a hash of the row's seed, its
position, and, if they evict for themselves, the layer and head; so it stays the same from one pruning to the next, and
what is kept is a uniform sample of the whole text. With `redraw`, scores are drawn anew at every pruning: the older a
token, the more prunings it must survive, so most of what is kept is recent.
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
        drawn = _mixed(view.seeds[:, None, None] + self.seed * 7919)
        if self.redraw:  # by the row's own length, so that a reply doesn't depend on the others in its batch
            drawn = _mixed(drawn + view.positions.amax((1, 2))[:, None, None])
        drawn = _mixed(drawn + view.layer * 1009 + heads[:, None])
        return _mixed(drawn + view.positions).double()


def _mixed(x: Tensor) -> Tensor:
    """A 31-bit hash."""
    x = x & 0x7FFFFFFF
    for _ in range(2):
        x = ((x >> 15) ^ x) * 0x2C1B3C6D & 0x7FFFFFFF
        x = ((x >> 13) ^ x) * 0x297A2D39 & 0x7FFFFFFF
    return (x >> 16) ^ x
