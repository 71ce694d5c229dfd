"""Evicts the tokens that the answer will attend to least: the upper bound for `dynts`.

It must know the whole text in advance, so it can only be measured on a given text (`fidelity =
"only"`), not used to generate one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ponder.core import Policy, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Oracle(Policy):
    by_order = False
    per_layer = False
    importance: Any = field(default=None, compare=False)  # (tokens,): attention from the answer

    def score(self, view: CacheView) -> Tensor:
        if self.importance is None:
            raise UserError(
                "the eviction policy `oracle` must know the whole text in advance, so it can't"
                " generate one",
                hint='fidelity = "only" measures it on the full cache\'s text',
            )
        scores: Tensor = self.importance[view.positions.long()]
        return scores
