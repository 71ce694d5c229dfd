"""What an eviction policy sees of one layer's cache when it scores tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ponder.caches import _rope


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
    padding: Tensor  # R × h × n: True for padding
    ids: Tensor  # R × h × n: token ids; -1 if the model was called without them
    features: Tensor | None  # R × h × n: the policy's `token_features`
    seen_tokens: int  # tokens so far, evicted ones included
    seeds: Tensor  # R: one per row, for policies that draw at random
    frequencies: Tensor | None = None  # D/2: rotary angle per position, if the policy asks for it (`needs_rope`)

    def attention(self) -> Tensor:
        """Attention weights of the recent queries over all columns, R × H × G × w × n."""
        assert self.queries is not None
        rows, heads, n, width = self.keys.shape
        w = min(self.queries.shape[2], self.seen_tokens)
        logits = self.queries[:, :, -w:].reshape(rows, heads, -1, width) @ self.keys.mT * self.scaling
        logits = logits.view(rows, heads, -1, w, n)
        asking = torch.arange(self.seen_tokens - w, self.seen_tokens, device=logits.device)
        hidden = (self.positions[:, :, None] > asking[:, None]) | self.padding[:, :, None]  # R × h × w × n
        return logits.masked_fill(hidden[:, :, None], -torch.inf).softmax(-1)

    def future_queries(self, distances: Tensor) -> Tensor:
        """The recent queries as if asked this many tokens after the last one, averaged over the distances.

        R × H × G × w × D. Only distances matter, so the result is the same wherever the text starts.
        """
        assert self.queries is not None
        assert self.frequencies is not None
        w = min(self.queries.shape[2], self.seen_tokens)
        queries = self.queries[:, :, -w:].unflatten(1, (self.keys.shape[1], -1))
        to_last = torch.arange(w - 1, -1, -1, device=queries.device)[:, None] * self.frequencies  # w × D/2
        onward = _rope.rotation(distances[:, None] * self.frequencies).mean(0)
        return _rope.channels(_rope.pairs(queries) * _rope.rotation(to_last) * onward).to(self.keys.dtype)

    @staticmethod
    def pairs(states: Tensor) -> Tensor:
        """Channels that rotate together, as complex numbers: … × D/2."""
        return _rope.pairs(states)
