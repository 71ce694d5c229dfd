"""Evicts the oldest tokens, except for the first few, the attention sinks (StreamingLLM).

Xiao et al. 2024 (arXiv 2309.17453). The cache itself protects the sinks (`sinks`), so the score is
only the position. Unlike in the paper, keys keep the rotary embedding of their true position: a
reasoning trace is shorter than the model's context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Streaming(Policy):
    by_order = False
    per_layer = False

    def score(self, view: CacheView) -> Tensor:
        return view.positions
