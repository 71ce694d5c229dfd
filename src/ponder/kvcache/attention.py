"""The model's own attention, which also reports queries to the cache, and a faster one for decoding over a buffer.

Both are registered with transformers under the names in `OBSERVED`. They act only during a forward pass with a
`SelectCache`; anything else runs the model's own attention as if they weren't there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from ponder.core import UserError

if TYPE_CHECKING:
    from ponder.kvcache.layer import Layer

OBSERVED = {"sdpa": "ponder_sdpa", "eager": "ponder_eager"}  # by the model's own implementation
SHAPING = ("softcap", "s_aux")  # arguments that change the weights, and that the model's own function handles
# Arguments that change nothing in a full-attention layer of a decoder. What isn't known may, so it is refused.
NEUTRAL = {
    *("cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "dropout", "is_causal", "logits_to_keep"),
    *("max_length_k", "max_length_q", "output_attentions", "output_hidden_states", "output_router_logits"),
    *("position_embeddings", "position_ids", "return_dict", "scaling", "token_type_ids", "use_cache", *SHAPING),
}
BLOCK = 64  # queries whose attention is summed at a time


class _Pass(threading.local):
    cache: Any = None  # the SelectCache of the forward pass that this thread is in


PASS = _Pass()


def _attend(
    stock: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    layer: Layer | None = PASS.cache.layer(getattr(module, "layer_idx", None)) if PASS.cache else None
    own = sdpa_attention_forward if stock == "sdpa" else _own_eager(module)
    if layer is not None:
        attention_mask = layer.cache.hides(layer, attention_mask, query, key.shape[2])
    mask = attention_mask if stock == "sdpa" else _additive(attention_mask, query.dtype)
    if layer is None:
        assert own is not None
        result: tuple[Tensor, Tensor | None] = own(module, query, key, value, mask, **kwargs)
        return result
    _check_arguments(kwargs)
    if layer.weigh is None:
        layer.weigh = Weights(module, query, key, value, kwargs)
    weigh, weights = layer.weigh, None
    grouped = layer.cache.kernel == "grouped" and query.shape[2] <= 8 and not kwargs.get("dropout")
    if weigh.plain and grouped:
        weights = weigh.plainly(query, key, mask)
        out = _mixed(weights, value)
    else:
        assert own is not None
        out, weights = own(module, query, key, value, mask, **kwargs)
    layer.observe(query, key, value, weights, mask)
    return out, weights


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Any:
    """A mask as `eager` attention adds it."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _check_arguments(kwargs: dict[str, Any]) -> None:
    if kwargs.get("sliding_window") is not None:
        raise UserError("a layer that has a sliding window can't be pruned", hint="use the model's own cache")
    unknown = sorted(name for name, value in kwargs.items() if value is not None and name not in NEUTRAL)
    if unknown := [name for name in unknown if name != "sliding_window"]:
        what = f"this model's attention has an argument `{unknown[0]}` that a cache which evicts tokens doesn't know"
        raise UserError(what, hint="use the model's own cache")


def _own_eager(module: nn.Module) -> Callable[..., Any] | None:
    """The attention function of the file that defines a model."""
    for kind in type(module).__mro__:
        if function := getattr(sys.modules[kind.__module__], "eager_attention_forward", None):
            own: Callable[..., Any] = function
            return own
    return None


class Weights:
    """How a layer of the model turns queries and keys into attention weights."""

    def __init__(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, Any]) -> None:
        self.module, self.own = module, _own_eager(module)
        scaling = kwargs.get("scaling")
        self.scaling: float = query.shape[-1] ** -0.5 if scaling is None else scaling
        self.shaping = {name: kwargs[name] for name in SHAPING if kwargs.get(name) is not None}
        self.plain = self._is_plain(query, key, value)

    def __deepcopy__(self, _: dict[int, Any]) -> Weights:
        return self  # it holds a part of the model, and nothing that changes

    def _is_plain(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Whether the weights are a softmax of scaled products: tried on large logits, where anything else shows."""
        if self.own is None or self.shaping or query.shape[1] % key.shape[1]:
            return False
        make = torch.Generator().manual_seed(0)
        sizes = ((query, 2), (key, 8), (value, 8))
        q, k, v = (torch.randn(1, t.shape[1], n, t.shape[-1], generator=make).to(t) for t, n in sizes)
        q = q * (8 / self.scaling / query.shape[-1] ** 0.5)
        mask = q.new_zeros(1, 1, 2, 8)
        mask[..., 0, 5:] = torch.finfo(q.dtype).min
        try:
            theirs = self.own(self.module, q, k, v, mask, scaling=self.scaling)[0]
        except (TypeError, ValueError, RuntimeError, AttributeError):
            return False
        ours = _mixed(self.plainly(q, k, mask), v)
        tolerance = 1e-4 if q.dtype in (torch.float32, torch.float64) else 5e-2
        return theirs.shape == ours.shape and bool((ours - theirs).abs().max() <= tolerance * theirs.abs().max())

    def plainly(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        """Softmax of scaled products that reads each key once for all query heads that share it: R × HG × q × n."""
        (rows, heads, new, width), (_, shared, n, _) = query.shape, key.shape
        logits = (query * self.scaling).reshape(rows, shared, -1, width) @ key.mT
        logits = logits.view(rows, heads, new, n)
        if mask is None and new > 1:
            mask = _causal(new, n, key)
        if mask is not None:
            # Not -inf: a query of padding may see nothing, and its NaN would spread to the values that it mixes.
            lowest = torch.finfo(logits.dtype).min
            logits = logits.masked_fill(~mask, lowest) if mask.dtype == torch.bool else logits + mask
        return logits.softmax(-1, dtype=torch.float32).to(query.dtype)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """The weights of any layer, as the model computes them: R × HG × q × n."""
        if self.plain:
            return self.plainly(query, key, mask)
        weights = None
        if self.own is not None:
            mask = _additive(mask, query.dtype)
            weights = self.own(self.module, query, key, value, mask, scaling=self.scaling, **self.shaping)[1]
        if weights is None or weights.shape[-1] != key.shape[2]:
            raise UserError("this model doesn't reveal its attention weights", hint="use a policy that needs none")
        result: Tensor = weights
        return result


def _mixed(weights: Tensor, value: Tensor) -> Tensor:
    """Values mixed by weights, as attention functions return them: R × q × HG × D."""
    (rows, heads, new, n), shared = weights.shape, value.shape[1]
    mixed = weights.view(rows, shared, -1, n) @ value
    return mixed.view(rows, heads, new, -1).transpose(1, 2).contiguous()


def _causal(new: int, n: int, like: Tensor) -> Tensor:
    return torch.ones(new, n, dtype=torch.bool, device=like.device).tril(n - new)[None, None]


def received_attention(layer: Layer, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention that each cached token receives, summed over all real queries, R × H × n."""
    assert layer.weigh is not None
    (rows, _, new, _), n = query.shape, key.shape[2]
    mask = _causal(new, n, key) if mask is None else mask
    total = torch.zeros(rows, layer.keys.shape[1], n, device=key.device)
    for start in range(0, new, BLOCK):
        block = slice(start, start + BLOCK)
        total += by_head(layer, layer.weigh(query[:, :, block], key, value, mask[:, :, block]), start)
    return total


def by_head(layer: Layer, weights: Tensor, start: int = 0) -> Tensor:
    """Weights summed over queries, and averaged over the query heads of a cached head; padding doesn't ask."""
    rows, _, new, n = weights.shape
    padding = layer.cache.new_padding
    if padding is not None:
        weights = weights.masked_fill(padding[:, None, start : start + new, None], 0)
    return weights.float().view(rows, layer.keys.shape[1], -1, new, n).mean(2).sum(2)


_MASKS: dict[str, Callable[..., Any]] = {"sdpa": sdpa_mask, "eager": eager_mask}
for _stock, _mask in _MASKS.items():
    AttentionInterface.register(OBSERVED[_stock], partial(_attend, _stock))
    AttentionMaskInterface.register(OBSERVED[_stock], _mask)
