"""Sinks and the most recent tokens stay.

StreamingLLM (Xiao et al. 2024). The sinks are protected by the engine, so recency is all that is said here. Unlike the
paper, keys keep the rotation of their true place: a reasoning trace is shorter than the context that a model knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView


@dataclass(frozen=True)
class Streaming(Policy):
    per_layer = False

    def score(self, seen: CacheView) -> Tensor:
        return seen.places
