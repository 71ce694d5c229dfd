"""What an eviction policy sees of one layer's cache when it scores tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ponder.kvcache import rope


@dataclass(frozen=True)
class CacheView:
    """One layer's cache, for rows of the batch that have equally many columns.

    Shapes use these names:

    - rows: sequences of the batch
    - columns: cached tokens, padding included
    - kv_heads, head_dim: as in the model; `groups` is the number of query heads per KV head
    - decisions: kv_heads if each head evicts on its own (`granularity = "head"`), else 1
    - queries: the most recent queries, as many as the policy asks for
    """

    layer: int
    keys: Tensor  # (rows, kv_heads, columns, head_dim)
    values: Tensor  # (rows, kv_heads, columns, head_dim)
    queries: Tensor | None  # (rows, kv_heads * groups, queries, head_dim)
    # Attention received from all queries so far, if the policy needs "attention".
    accumulated: Tensor | None  # (rows, kv_heads, columns)
    scaling: float  # factor of the attention logits
    # How many tokens came before this one, evicted ones included.
    positions: Tensor  # (rows, decisions, columns)
    # True for padding, and for empty columns of a head that keeps fewer tokens than others.
    padding: Tensor  # (rows, decisions, columns)
    ids: Tensor  # (rows, decisions, columns): token ids; -1 if the model was called without them
    features: Tensor | None  # (rows, decisions, columns): the policy's `token_features`
    seen_tokens: int  # tokens so far of the row that has read most, evicted ones included
    seeds: Tensor  # (rows,): for policies that draw at random
    # Computes the model's attention weights from queries, keys, values and a mask.
    # None: they are a softmax of scaled products.
    attention_weights: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    # Rotary angle per position, if the policy needs "rope".
    frequencies: Tensor | None = None  # (head_dim / 2,)
    # Positions of the recent queries, -1 for padding. None: the last positions.
    query_positions: Tensor | None = None  # (rows, queries)

    def attention(self) -> Tensor:
        """Return the attention weights of the recent queries over all columns, 0 for padding.

        Shape: (rows, kv_heads, groups, queries, columns).
        """
        queries = self._recent_queries()
        rows, kv_heads, columns, head_dim = self.keys.shape
        count = queries.shape[2]
        if self.query_positions is None:
            query_positions = torch.arange(
                self.seen_tokens - count, self.seen_tokens, device=queries.device
            )[None]
        else:
            query_positions = self.query_positions[:, -count:]

        causal = self.positions[:, :, None] <= query_positions[:, None, :, None]
        visible = causal & ~self.padding[:, :, None]  # (rows, decisions, queries, columns)
        visible = visible.repeat_interleave(queries.shape[1] // visible.shape[1], 1)
        if self.attention_weights is None:
            logits = queries.reshape(rows, kv_heads, -1, head_dim) @ self.keys.mT * self.scaling
            logits = logits.view(rows, -1, count, columns).masked_fill(~visible, -torch.inf)
            weights = logits.softmax(-1)
        else:
            weights = self.attention_weights(queries, self.keys, self.values, visible)
        weights = weights.masked_fill(~visible, 0)  # a query of padding sees nothing: NaN
        return weights.view(rows, kv_heads, -1, count, columns)

    def future_queries(self, distances: Tensor) -> Tensor:
        """Return the recent queries as if asked `distances` tokens after the last one, averaged.

        Only distances matter, so the result is the same wherever the text starts.

        Shape: (rows, kv_heads, groups, queries, head_dim).
        """
        assert self.frequencies is not None
        queries = self._recent_queries()
        rows, kv_heads, _, head_dim = self.keys.shape
        count = queries.shape[2]
        queries = queries.reshape(rows, kv_heads, -1, count, head_dim)
        steps_to_last = torch.arange(count - 1, -1, -1, device=queries.device)
        to_last = rope.rotation(steps_to_last[:, None] * self.frequencies)
        onward = rope.rotation(distances[:, None] * self.frequencies).mean(0)  # (head_dim / 2,)
        rotated = rope.pairs(queries) * to_last * onward
        return rope.channels(rotated).to(self.keys.dtype)

    def _recent_queries(self) -> Tensor:
        """Return the recent queries, without those from before the first token."""
        assert self.queries is not None
        count = min(self.queries.shape[2], self.seen_tokens)
        return self.queries[:, :, -count:]

    @staticmethod
    def pairs(states: Tensor) -> Tensor:
        """Return channels that rotate together as complex numbers: (…, head_dim / 2)."""
        return rope.pairs(states)

    def over_queries(self, states: Tensor) -> Tensor:
        """Return the mean over the recent queries that aren't padding.

        (rows, kv_heads, groups, queries, …) becomes (rows, kv_heads, groups, …).
        """
        if self.query_positions is None:
            return states.mean(3)
        real = self.query_positions[:, -states.shape[3] :] >= 0
        weights = real / real.sum(1, keepdim=True).clamp(min=1)
        return torch.einsum("rw,rhgwd->rhgd", weights.to(states.dtype), states)
