"""Evicts the tokens whose keys have the largest norm (L2 norm of keys).

Devoto et al. 2024 (arXiv 2406.11430): in trained models, keys with a small norm tend to receive
much attention. It needs neither queries nor attention weights. The paper leaves the first two
layers unpruned; here all are pruned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Knorm(Policy):
    by_order = False

    def score(self, view: CacheView) -> Tensor:
        norms: Tensor = view.keys.norm(dim=-1)
        return -norms
