"""What an eviction policy sees of one layer's cache when it scores tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ponder.kvcache import rope


@dataclass(frozen=True)
class CacheView:
    """One layer's cache, for rows of equal length.

    Dimensions: R rows, H key-value heads, G query heads per key-value head, n columns (cached tokens, padding
    included), w recent queries, D head width. h is H if each head evicts for itself, else 1.
    """

    layer: int
    keys: Tensor  # R × H × n × D
    values: Tensor
    queries: Tensor | None  # R × HG × w × D: the most recent queries, as many as the policy asks for
    accumulated: Tensor | None  # R × H × n: attention received from all queries so far, if the policy asks for it
    scaling: float  # of the attention logits
    positions: Tensor  # R × h × n: how many tokens came before this one, evicted ones included
    padding: Tensor  # R × h × n: True for padding, and for columns of a head that keeps fewer tokens than others
    ids: Tensor  # R × h × n: token ids; -1 if the model was called without them
    features: Tensor | None  # R × h × n: the policy's `token_features`
    seen_tokens: int  # tokens so far of the row that has read most, evicted ones included
    seeds: Tensor  # R: one per row, for policies that draw at random
    # The model's own attention weights, from queries, keys, values and a mask; None: a softmax of scaled products.
    weigh: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    frequencies: Tensor | None = None  # D/2: rotary angle per position, if the policy needs "rope"
    asking: Tensor | None = None  # R × w: positions of the recent queries, -1 for padding; None: the last ones

    def attention(self) -> Tensor:
        """Attention weights of the recent queries over all columns, R × H × G × w × n; those of padding are 0."""
        assert self.queries is not None
        (rows, heads, n, width), w = self.keys.shape, min(self.queries.shape[2], self.seen_tokens)
        queries = self.queries[:, :, -w:]
        asking = torch.arange(self.seen_tokens - w, self.seen_tokens, device=queries.device)[None]
        asking = asking if self.asking is None else self.asking[:, -w:]
        visible = (self.positions[:, :, None] <= asking[:, None, :, None]) & ~self.padding[:, :, None]  # R × h × w × n
        visible = visible.repeat_interleave(queries.shape[1] // visible.shape[1], 1)
        if self.weigh is None:
            logits = queries.reshape(rows, heads, -1, width) @ self.keys.mT * self.scaling
            weights = logits.view(rows, -1, w, n).masked_fill(~visible, -torch.inf).softmax(-1)
        else:
            weights = self.weigh(queries, self.keys, self.values, visible)
        return weights.masked_fill(~visible, 0).view(rows, heads, -1, w, n)

    def future_queries(self, distances: Tensor) -> Tensor:
        """The recent queries as if asked this many tokens after the last one, averaged over the distances.

        R × H × G × w × D. Only distances matter, so the result is the same wherever the text starts.
        """
        assert self.queries is not None
        assert self.frequencies is not None
        w = min(self.queries.shape[2], self.seen_tokens)
        (rows, heads, _, width), queries = self.keys.shape, self.queries[:, :, -w:]
        queries = queries.reshape(rows, heads, -1, w, width)
        to_last = torch.arange(w - 1, -1, -1, device=queries.device)[:, None] * self.frequencies  # w × D/2
        onward = rope.rotation(distances[:, None] * self.frequencies).mean(0)
        return rope.channels(rope.pairs(queries) * rope.rotation(to_last) * onward).to(self.keys.dtype)

    @staticmethod
    def pairs(states: Tensor) -> Tensor:
        """Channels that rotate together, as complex numbers: … × D/2."""
        return rope.pairs(states)

    def over_queries(self, states: Tensor) -> Tensor:
        """The mean over the recent queries, R × H × G × w × … becomes R × H × G × …; padding doesn't count."""
        if self.asking is None:
            return states.mean(3)
        real = self.asking[:, -states.shape[3] :] >= 0
        weights = real / real.sum(1, keepdim=True).clamp(min=1)
        return torch.einsum("rw,rhgwd->rhgd", weights.to(states.dtype), states)
