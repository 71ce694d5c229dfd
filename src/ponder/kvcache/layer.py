"""One layer's keys and values, in a buffer with spare room, so that a new token copies nothing."""

from __future__ import annotations

import weakref
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from ponder.core import UserError
from ponder.kvcache.attention import Weights, by_head, received_attention

if TYPE_CHECKING:
    from ponder.kvcache.cache import SelectCache


class Layer(CacheLayerMixin):
    """The cache of one full-attention layer; how many columns each row holds is known to the `SelectCache`."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, cache: SelectCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.belongs_to(cache)
        self.index = index  # in the model
        self.number = 0  # among the layers that are pruned
        self.queries: Tensor | None = None
        self.accumulated: Tensor | None = None
        self.weigh: Weights | None = None  # known from the first forward pass on
        self.updated = self.observed = False  # in this forward pass

    def belongs_to(self, cache: SelectCache) -> None:
        # A strong reference back would keep both alive until the cycle collector runs.
        self._cache = weakref.ref(cache)

    def copy_for(self, cache: SelectCache) -> Layer:
        """The same content in another cache."""
        new = object.__new__(Layer)
        vars(new).update({k: v if k == "_cache" else deepcopy(v) for k, v in vars(self).items()})
        new.belongs_to(cache)
        return new

    @property
    def cache(self) -> SelectCache:
        cache = self._cache()
        assert cache is not None
        return cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(rows, heads, 0, width)
        self.values = value_states.new_zeros(rows, heads, 0, value_states.shape[-1])
        if "attention" in self.cache.policy.needs:
            self.accumulated = key_states.new_zeros(rows, heads, 0, dtype=torch.float32)
        self.is_initialized = True

    def reserve(self, rows: int, columns: int) -> None:
        """Grow the buffers to at least this size."""
        old_rows, old_columns = len(self.keys), self.keys.shape[2]
        if rows <= old_rows and columns <= old_columns:
            return
        rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows if old_columns else rows)
        columns = old_columns if columns <= old_columns else self.cache.capacity(columns)
        self.keys, self.values = grown(self.keys, rows, columns), grown(self.values, rows, columns)
        if self.accumulated is not None:
            self.accumulated = grown(self.accumulated, rows, columns)

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        self.cache.check_pass()
        if self.updated:
            what = f"layer {self.index} of this model writes to its cache twice in one forward pass"
            raise UserError(what, hint="use the model's own cache")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, _, new, _ = key_states.shape
        end = self.cache.max_length + new
        self.reserve(rows, end)
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            self.cache.write(buffer, states)
        self.updated = True
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def observe(self, query: Tensor, key: Tensor, value: Tensor, weights: Tensor | None, mask: Tensor | None) -> None:
        """Store what the policy needs about the queries of this forward pass."""
        wanted, new = self.cache.policy.queries, query.shape[2]
        if wanted and key.shape[-1] != self.keys.shape[-1]:
            what = f"`{self.cache.policy.plugin_name()}` needs keys, and this model caches them compressed (MLA)"
            raise UserError(what, hint="use a policy that needs no queries, or h2o")
        if wanted:
            recent = query[:, :, -wanted:]
            if self.queries is not None and new < wanted:
                self.queries = torch.cat([self.queries[: len(query), :, new - wanted :], recent], dim=2)
            else:
                self.queries = recent.clone()  # a view would keep the queries of the whole prompt
        if self.accumulated is not None:
            if weights is None or weights.shape[-1] != key.shape[2]:
                received = received_attention(self, query, key, value, mask)
            else:
                received = by_head(self, weights)
            self.accumulated[: len(query), :, : key.shape[2]] += received.nan_to_num(0.0)
        self.observed = True

    def keep(self, rows: slice | Tensor, columns: Tensor) -> None:
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

    def replace(self, rows: Tensor, columns: Tensor, last: int) -> None:
        """Overwrite one column of each row and head, R × (H or 1), with column number `last`."""
        at = rows[:, None], torch.arange(self.keys.shape[1], device=rows.device), columns
        for buffer in (self.keys, self.values):
            buffer[at] = buffer[rows, :, last]
        if self.accumulated is not None:
            self.accumulated[at] = self.accumulated[rows, :, last]
            self.accumulated[rows, :, last] = 0

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

    def batch_repeat_interleave(self, *_: Any) -> NoReturn:
        raise UserError("the rows of a cache that evicts tokens can't be repeated", hint="repeat the prompt instead")

    batch_select_indices = batch_repeat_interleave

    def offload(self) -> NoReturn:
        raise UserError("a cache that evicts tokens can't be offloaded", hint="use a smaller budget")

    def reset(self) -> NoReturn:
        raise UserError("a cache that evicts tokens serves one generation", hint="make a new SelectCache")


@torch.inference_mode(mode=False)  # else it could be written to in that mode only
def grown(tensor: Tensor, rows: int, columns: int, dim: int = 0) -> Tensor:
    """A larger buffer with the same content. `dim` is the row dimension; keys have their columns last but one."""
    shape = list(tensor.shape)
    last = 2 if tensor.ndim == 4 and dim == 0 else len(shape) - 1
    shape[dim], shape[last] = rows, columns
    new = tensor.new_zeros(shape)
    new[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return new
