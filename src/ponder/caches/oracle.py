"""Those stay that the answer really looks at: the upper bound of `dynts`.

It must know the whole trace beforehand, so it serves where a text is given (`fidelity`), not where one is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ponder.core import Policy, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.caches import CacheView


@dataclass(frozen=True)
class Oracle(Policy):
    per_layer = False
    importance: Any = field(default=None, compare=False)  # of each token, by its place

    def score(self, seen: CacheView) -> Tensor:
        if self.importance is None:
            what = "the oracle must know the text beforehand, and this one is being written"
            raise UserError(what, hint="fidelity = true measures it on the full cache's text; accuracy it can't")
        found: Tensor = self.importance[seen.places.long()]
        return found
