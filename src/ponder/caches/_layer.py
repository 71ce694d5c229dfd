"""One layer's keys and values, in a buffer with spare room, so that a new token copies nothing."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from ponder.core import UserError

if TYPE_CHECKING:
    from ponder.caches._cache import SelectCache

BLOCK = 64  # buffers grow in multiples of this


class Layer(CacheLayerMixin):
    """The cache of one full-attention layer; how many columns each row holds is known to the `SelectCache`."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, cache: SelectCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A strong reference back would keep both alive until the cycle collector runs.
        self._cache = weakref.ref(cache)
        self.index, self.scaling = index, 1.0
        self.queries: Tensor | None = None
        self.accumulated: Tensor | None = None

    @property
    def cache(self) -> SelectCache:
        cache = self._cache()
        assert cache is not None
        return cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(rows, heads, 0, width)
        self.values = value_states.new_zeros(rows, heads, 0, value_states.shape[-1])
        if self.cache.policy.accumulates:
            self.accumulated = key_states.new_zeros(rows, heads, 0, dtype=torch.float32)
        self.is_initialized = True

    def reserve(self, rows: int, columns: int) -> None:
        """Grow the buffers to at least this size."""
        old_rows, old_columns = len(self.keys), self.keys.shape[2]
        if rows <= old_rows and columns <= old_columns:
            return
        rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows if old_columns else rows)
        columns = old_columns if columns <= old_columns else -(-self.cache.capacity(columns) // BLOCK) * BLOCK
        self.keys, self.values = grown(self.keys, rows, columns), grown(self.values, rows, columns)
        if self.accumulated is not None:
            self.accumulated = grown(self.accumulated, rows, columns)

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, _, new, _ = key_states.shape
        end = self.cache.max_length + new
        self.reserve(rows, end)
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            self.cache.write(buffer, states)
        keys, values = self.keys[:rows, :, :end], self.values[:rows, :, :end]
        keys.layer = self  # type: ignore[attr-defined] # the attention function finds this layer through its keys
        return keys, values

    def observe(self, query: Tensor, scaling: float, received: Tensor | None) -> None:
        """Store what the policy needs about the queries of this forward pass."""
        self.scaling, wanted = scaling, self.cache.policy.queries
        if wanted:
            old = self.queries if self.queries is not None else query[:, :, :0]
            self.queries = torch.cat([old[: len(query)], query], dim=2)[:, :, -wanted:]
        if received is not None and self.accumulated is not None:
            self.accumulated[: len(query), :, : received.shape[2]] += received

    def gather(self, rows: Tensor, columns: Tensor) -> None:
        """Keep only these columns of these rows, in this order: R × (H or 1) × k."""
        heads, kept = self.keys.shape[1], columns.shape[-1]
        columns = columns.expand(-1, heads, -1)
        for buffer in (self.keys, self.values):
            wide = columns[..., None].expand(-1, -1, -1, buffer.shape[-1])
            buffer[rows, :, :kept] = buffer[rows].gather(2, wide)
        if self.accumulated is not None:
            remaining = self.accumulated[rows].gather(2, columns)
            self.accumulated[rows] = 0
            self.accumulated[rows, :, :kept] = remaining

    def get_seq_length(self) -> int:
        return self.cache.seen_tokens[0] if self.cache.seen_tokens else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # The mask's columns stand for positions; the offset is the number of evicted columns.
        return self.cache.max_length + query_length, self.get_seq_length() - self.cache.max_length

    def get_max_length(self) -> int:
        return -1

    def crop(self, *_: Any) -> NoReturn:
        raise UserError("a cache that evicts tokens can't be cropped", hint="don't use assisted decoding")

    def reorder_cache(self, *_: Any) -> NoReturn:
        raise UserError("a cache that evicts tokens can't be used with beam search", hint="num_beams = 1")

    def reset(self) -> NoReturn:
        raise UserError("a cache that evicts tokens serves one generation", hint="make a new SelectCache")


def grown(tensor: Tensor, rows: int, columns: int, dim: int = 0) -> Tensor:
    """A larger buffer with the same content. `dim` is the row dimension; keys have their columns last but one."""
    shape = list(tensor.shape)
    last = 2 if tensor.ndim == 4 and dim == 0 else len(shape) - 1
    shape[dim], shape[last] = rows, columns
    new = tensor.new_zeros(shape)
    new[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return new
