"""Attention functions that report queries to the cache, and a faster one for decoding over a buffer.

They are registered with transformers under the names in `ATTENTION`; `use_attention` chooses one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.models.llama.modeling_llama import eager_attention_forward

from ponder.core import Policy

if TYPE_CHECKING:
    from ponder.caches._layer import Layer


def _layer(key: Tensor) -> Layer | None:
    """The cache layer that these keys come from; None if they come from another cache."""
    return getattr(key, "layer", None)


def _grouped(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention that reads each key once for all query heads that share it; long prompts use sdpa."""
    layer = _layer(key)
    rows, heads, new, _ = query.shape
    received = None
    if new <= 8 and layer is not None:
        weights = _weights(query, key, attention_mask, scaling)
        shared, n = key.shape[1], key.shape[2]
        mixed = weights.view(rows, shared, -1, n) @ value
        out = mixed.view(rows, heads, new, -1).transpose(1, 2)
        if layer.accumulated is not None:
            received = weights.mean(2).sum(2)
    else:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        received = _received_attention(layer, query, key, attention_mask, scaling)
    if layer is not None:
        layer.observe(query, scaling, received)
    return out, None


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, start: int = 0) -> Tensor:
    """Attention weights over all keys, R × H × G × q × n; the first query is new token number `start`."""
    (rows, _, new, width), (_, shared, n, _) = query.shape, key.shape
    logits = (query * scaling).reshape(rows, shared, -1, width) @ key.mT
    logits = logits.view(rows, shared, -1, new, n)
    if mask is None and new > 1:
        mask = _causal(new, n, key)
    if mask is not None:
        part = mask[:, :, None, start : start + new]
        logits = logits.masked_fill(~part, -torch.inf) if part.dtype == torch.bool else logits + part
    return logits.softmax(-1)


def _causal(new: int, n: int, like: Tensor) -> Tensor:
    return torch.ones(new, n, dtype=torch.bool, device=like.device).tril(n - new)[None, None]


def _received_attention(
    layer: Layer | None, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float
) -> Tensor | None:
    """Attention that each key receives, summed over all queries, 64 at a time; None if the policy doesn't need it."""
    if layer is None or layer.accumulated is None:
        return None
    new, n = query.shape[2], key.shape[2]
    mask = _causal(new, n, key) if mask is None else mask
    total = torch.zeros(key.shape[:3], device=key.device)
    for start in range(0, new, 64):
        weights = _weights(query[:, :, start : start + 64], key, mask, scaling, start)
        total += weights.nan_to_num(0.0).mean(2).sum(2)  # all keys of a padding query are masked
    return total


def _observed(stock: Callable[..., Any]) -> Callable[..., Any]:
    """One of transformers' attention functions, which also reports its queries to the cache."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Any:
        result = stock(module, query, key, value, attention_mask, **kwargs)
        if (layer := _layer(key)) is not None:
            scaling = kwargs["scaling"]
            layer.observe(query, scaling, _received_attention(layer, query, key, attention_mask, scaling))
        return result

    return attend


ATTENTION: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "ponder": (_grouped, sdpa_mask),
    "ponder_sdpa": (_observed(sdpa_attention_forward), sdpa_mask),
    "ponder_eager": (_observed(eager_attention_forward), eager_mask),
}
for _name, (_function, _mask) in ATTENTION.items():
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, _mask)


def use_attention(model: Any, policy: Policy, kernel: Literal["grouped", "stock"]) -> None:
    """Switch a model to attention that gives the policy what it needs; other caches give the same results."""
    now = model.config._attn_implementation
    if kernel == "grouped":
        wanted = "ponder"
    elif policy.queries or policy.accumulates:
        wanted = {"eager": "ponder_eager", "sdpa": "ponder_sdpa", "ponder": "ponder_sdpa"}.get(now, now)
    else:
        wanted = "sdpa" if now == "ponder" else now
    if wanted != now:
        model.set_attn_implementation(wanted)
