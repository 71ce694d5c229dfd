"""Evicts the tokens whose keys and values stand out least from the tokens that follow (LagKV).

Liang et al. 2025 (arXiv 2504.04704): the cache is divided into blocks of `lag` tokens. Each channel
of a block's keys is scaled by the minimum and maximum of the next block; a token's score is the
standard deviation over its channels, as a softmax within the block, plus the same for its values.
Every block loses the same fraction of its tokens. It needs no queries. The paper counts blocks from
the first token; here they are counted from the last, so that padding on the left changes nothing.
The newest block, which no other follows, is evicted last, its oldest tokens first.
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

        rows, kv_heads, columns, _ = view.keys.shape
        # The newest block scores from 1 to 2, the others from 0 to 1.
        newest_positions = view.positions[..., -self.lag :].expand(-1, kv_heads, -1)
        newest_scores = 1 + newest_positions / view.seen_tokens
        if columns <= self.lag:
            return newest_scores

        missing = -columns % self.lag  # columns that complete the oldest block
        keys = pad(view.keys.float(), (0, 0, missing, 0))
        values = pad(view.values.float(), (0, 0, missing, 0))
        padding = pad(view.padding.expand(-1, kv_heads, -1), (missing, 0), value=True)
        padding = padding.view(rows, kv_heads, -1, self.lag)[:, :, :-1]  # without the newest block
        spread = self._spread(keys, padding) + self._spread(values, padding)
        # A token's rank in its block, as a fraction of the block's real tokens.
        rank = spread.masked_fill(padding, -1).argsort(-1, descending=True).argsort(-1)
        real_tokens = (~padding).sum(-1, keepdim=True).clamp(min=1)
        scores = 1 - rank / real_tokens
        return torch.cat([scores.flatten(2), newest_scores], dim=-1)[..., -columns:]

    def _spread(self, states: Tensor, padding: Tensor) -> Tensor:
        """Return each token's standard deviation over channels, as a softmax within its block.

        Channels are scaled by the range of the following block. (rows, kv_heads, columns, head_dim)
        becomes (rows, kv_heads, blocks - 1, lag).
        """
        rows, kv_heads, _, head_dim = states.shape
        blocks = states.view(rows, kv_heads, -1, self.lag, head_dim)
        following = blocks[:, :, 1:]
        minimum = following.amin(3, keepdim=True)
        maximum = following.amax(3, keepdim=True)
        scaled = (blocks[:, :, :-1] - minimum) / (maximum - minimum).clamp(min=1e-6)
        deviation = scaled.std(-1).masked_fill(padding, float("-inf"))
        spread: Tensor = deviation.softmax(-1)
        return spread.nan_to_num()  # a block that is all padding has NaN
