"""Evicts the tokens whose keys and values stand out least, measured by the range of the tokens that follow (LagKV).

Liang et al. 2025 (arXiv 2504.04704): the cache is divided into blocks of `lag` tokens. Each channel of a block's keys
is scaled by the minimum and maximum of the next block; a token's score is the standard deviation over its channels, as
a softmax within the block, plus the same for its values. Every block loses the same fraction of its tokens. It needs no
queries. The paper counts blocks from the first token; here they are counted from the last, so that padding on the left
changes nothing. The newest block, which no other follows, is evicted last, its oldest tokens first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ponder.core import Policy, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from ponder.kvcache import CacheView


@dataclass(frozen=True)
class Lagkv(Policy):
    lag: int = 128  # tokens per block; it should be well below the budget

    def __post_init__(self) -> None:
        if self.lag < 2:
            raise UserError(f"lag is a number of tokens, at least 2, not {self.lag}")

    def score(self, view: CacheView) -> Tensor:
        import torch
        from torch.nn.functional import pad

        rows, heads, n, _ = view.keys.shape
        newest = 1 + view.positions[..., -self.lag :].expand(-1, heads, -1) / view.seen_tokens
        if n <= self.lag:
            return newest
        spare = -n % self.lag  # columns that complete the oldest block
        hidden = pad(view.padding.expand(-1, heads, -1), (spare, 0), value=True)
        hidden = hidden.view(rows, heads, -1, self.lag)[:, :, :-1]
        keys, values = (pad(states.float(), (0, 0, spare, 0)) for states in (view.keys, view.values))
        spread = self._spread(keys, hidden) + self._spread(values, hidden)
        # Ranked from the block's best, as a fraction of its real tokens: padding doesn't count.
        rank = spread.masked_fill(hidden, -1).argsort(-1, descending=True).argsort(-1)
        kept_last = 1 - rank / (~hidden).sum(-1, keepdim=True).clamp(min=1)
        return torch.cat([kept_last.flatten(2), newest], dim=-1)[..., -n:]

    def _spread(self, states: Tensor, hidden: Tensor) -> Tensor:
        """Softmax within each block of the deviation over channels, scaled by the range of the block that follows."""
        blocks = states.view(*states.shape[:2], -1, self.lag, states.shape[-1])
        following = blocks[:, :, 1:]
        least, most = following.amin(3, keepdim=True), following.amax(3, keepdim=True)
        scaled = (blocks[:, :, :-1] - least) / (most - least).clamp(min=1e-6)
        spread: Tensor = scaled.std(-1).masked_fill(hidden, float("-inf")).softmax(-1)
        return spread.nan_to_num()  # of a block that is all padding
