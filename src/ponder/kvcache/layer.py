"""One layer's keys and values, in a buffer with spare columns: a new token copies nothing."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from ponder.core import UserError
from ponder.kvcache.attention import AttentionWeightsFunction, causal_mask

if TYPE_CHECKING:
    from ponder.kvcache.cache import SelectCache

BLOCK = 64  # queries whose attention is summed at a time


class Layer(CacheLayerMixin):
    """The cache of one full-attention layer; the `SelectCache` counts the columns of each row."""

    is_sliding = False
    keys: Tensor  # (rows, kv_heads, capacity, head_dim)
    values: Tensor  # (rows, kv_heads, capacity, head_dim)

    def __init__(self, cache: SelectCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A strong reference back would keep both alive until the cycle collector runs.
        self._cache = weakref.ref(cache)
        self.index = index  # among all layers of the model
        self.number = 0  # among the layers that are pruned
        self.queries: Tensor | None = None  # (rows, heads, recent queries, head_dim)
        # Attention received so far, (rows, kv_heads, capacity).
        self.accumulated: Tensor | None = None
        self.attention_weights_function: AttentionWeightsFunction | None = (
            None  # set in the first forward pass
        )
        self.updated = False  # whether this forward pass has written its keys and values
        self.observed = False  # whether this forward pass has reported its queries

    def copy_for(self, cache: SelectCache) -> Layer:
        """Return a layer of another cache with the same content."""
        copied = object.__new__(Layer)
        for name, attribute in vars(self).items():
            if name != "_cache":
                setattr(copied, name, deepcopy(attribute))
        copied._cache = weakref.ref(cache)
        return copied

    @property
    def cache(self) -> SelectCache:
        cache = self._cache()
        assert cache is not None
        return cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, kv_heads, _, head_dim = key_states.shape
        self.keys = key_states.new_zeros(rows, kv_heads, 0, head_dim)
        self.values = value_states.new_zeros(rows, kv_heads, 0, value_states.shape[-1])
        if "attention" in self.cache.policy.needs:
            self.accumulated = key_states.new_zeros(rows, kv_heads, 0, dtype=torch.float32)
        self.is_initialized = True

    def reserve(self, rows: int, columns: int) -> None:
        """Grow the buffers to at least this size."""
        row_capacity = len(self.keys)
        column_capacity = self.keys.shape[2]
        if rows <= row_capacity and columns <= column_capacity:
            return
        if rows > row_capacity and column_capacity:
            row_capacity = max(rows, 2 * row_capacity)
        elif rows > row_capacity:
            row_capacity = rows
        if columns > column_capacity:
            column_capacity = self.cache.capacity(columns)
        shape = (row_capacity, self.keys.shape[1], column_capacity)
        self.keys = grown(self.keys, (*shape, self.keys.shape[-1]))
        self.values = grown(self.values, (*shape, self.values.shape[-1]))
        if self.accumulated is not None:
            self.accumulated = grown(self.accumulated, shape)

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values, (rows, kv_heads, new, head_dim); return all that are cached."""
        self.cache.check_pass()
        if self.updated:
            raise UserError(
                f"layer {self.index} of this model writes to its cache twice in one forward pass",
                hint="use the model's own cache",
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, _, new, _ = key_states.shape
        columns = self.cache.max_length + new
        self.reserve(rows, columns)
        self.cache.write(self.keys, key_states)
        self.cache.write(self.values, value_states)
        self.updated = True
        return self.keys[:rows, :, :columns], self.values[:rows, :, :columns]

    def observe(
        self, query: Tensor, key: Tensor, value: Tensor, weights: Tensor | None, mask: Tensor | None
    ) -> None:
        """Store what the policy needs about the queries of this forward pass.

        `weights` are (rows, heads, new, columns), if the attention has computed them.
        """
        policy = self.cache.policy
        if policy.queries and key.shape[-1] != self.keys.shape[-1]:
            raise UserError(
                f"`{policy.plugin_name()}` needs keys, and this model caches them compressed (MLA)",
                hint="use a policy that needs no queries, or h2o",
            )
        if policy.queries:
            self._store_queries(query, policy.queries)
        if self.accumulated is not None:
            columns = key.shape[2]
            if weights is not None and weights.shape[-1] == columns:
                received = self._sum_over_queries(weights)
            else:
                received = self._received_attention(query, key, value, mask)
            self.accumulated[: len(query), :, :columns] += received.nan_to_num(0.0)
        self.observed = True

    def _store_queries(self, query: Tensor, count: int) -> None:
        """Keep the `count` most recent queries."""
        new = query.shape[2]
        recent = query[:, :, -count:]
        if self.queries is not None and new < count:
            earlier = self.queries[: len(query), :, new - count :]
            self.queries = torch.cat([earlier, recent], dim=2)
        else:
            self.queries = recent.clone()  # a view would keep the queries of the whole prompt alive

    def _received_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return the attention that each column receives, (rows, kv_heads, columns)."""
        assert self.attention_weights_function is not None
        rows, _, new, _ = query.shape
        columns = key.shape[2]
        if mask is None:
            mask = causal_mask(new, columns, key.device)
        total = torch.zeros(rows, self.keys.shape[1], columns, device=key.device)
        for start in range(0, new, BLOCK):
            block = slice(start, start + BLOCK)
            weights = self.attention_weights_function(
                query[:, :, block], key, value, mask[:, :, block]
            )
            total += self._sum_over_queries(weights, start)
        return total

    def _sum_over_queries(self, weights: Tensor, start: int = 0) -> Tensor:
        """Sum weights over queries and average them over the query heads of each KV head.

        (rows, heads, block, columns) becomes (rows, kv_heads, columns). The block's first query is
        number `start` of this forward pass. Queries of padding don't count.
        """
        rows, _, block, columns = weights.shape
        padding = self.cache.new_padding
        if padding is not None:
            weights = weights.masked_fill(padding[:, None, start : start + block, None], 0)
        by_group = weights.float().view(rows, self.keys.shape[1], -1, block, columns)
        return by_group.mean(2).sum(2)

    def keep(self, rows: slice | Tensor, columns: Tensor) -> None:
        """Keep only these columns, (rows, kv_heads or 1, kept), in this order."""
        columns = columns.expand(-1, self.keys.shape[1], -1)
        kept = columns.shape[-1]
        for buffer in (self.keys, self.values):
            index = columns[..., None].expand(-1, -1, -1, buffer.shape[-1])
            buffer[rows, :, :kept] = buffer[rows].gather(2, index)
        if self.accumulated is not None:
            remaining = self.accumulated[rows].gather(2, columns)
            self.accumulated[rows] = 0
            self.accumulated[rows, :, :kept] = remaining

    def replace(self, rows: Tensor, columns: Tensor, newest: int) -> None:
        """Overwrite one column of each head, (rows, kv_heads or 1), with the column `newest`."""
        heads = torch.arange(self.keys.shape[1], device=rows.device)
        evicted = (rows[:, None], heads, columns)
        self.keys[evicted] = self.keys[rows, :, newest]
        self.values[evicted] = self.values[rows, :, newest]
        if self.accumulated is not None:
            self.accumulated[evicted] = self.accumulated[rows, :, newest]
            self.accumulated[rows, :, newest] = 0

    def get_seq_length(self) -> int:
        """Return how many tokens were read, evicted ones included."""
        if not self.cache.seen_tokens:
            return 0
        return self.cache.seen_tokens[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the width of the attention mask and the position of its first column.

        The mask's columns stand for positions; the offset is the number of evicted columns.
        """
        columns = self.cache.max_length
        return columns + query_length, self.get_seq_length() - columns

    def get_max_length(self) -> int:
        return -1

    def crop(self, *_: Any) -> NoReturn:
        raise UserError(
            "a cache that evicts tokens can't be cropped", hint="don't use assisted decoding"
        )

    def reorder_cache(self, *_: Any) -> NoReturn:
        raise UserError(
            "a cache that evicts tokens can't be used with beam search", hint="num_beams = 1"
        )

    def batch_repeat_interleave(self, *_: Any) -> NoReturn:
        raise UserError(
            "the rows of a cache that evicts tokens can't be repeated",
            hint="repeat the prompt instead",
        )

    batch_select_indices = batch_repeat_interleave

    def offload(self) -> NoReturn:
        raise UserError(
            "a cache that evicts tokens can't be offloaded", hint="use a smaller budget"
        )

    def reset(self) -> NoReturn:
        raise UserError(
            "a cache that evicts tokens serves one generation", hint="make a new SelectCache"
        )


@torch.inference_mode(mode=False)  # else it could be written to in that mode only
def grown(buffer: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a larger buffer with the same content, and zeros in what is new."""
    larger = buffer.new_zeros(shape)
    larger[tuple(slice(0, size) for size in buffer.shape)] = buffer
    return larger
