"""How a model's attention tells its cache what was asked, and attention that suits a cache in a buffer."""

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
    from ponder.caches._cache import Layer


def _layer(key: Tensor) -> Layer | None:
    """The cache's layer that these keys come from."""
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
    """Attention that reads each key once for all the queries that share it, masked or not; long prompts go to sdpa."""
    layer = _layer(key)
    rows, heads, new, _ = query.shape
    received = None
    if new <= 8 and layer is not None:
        weights = _weights(query, key, attention_mask, scaling)
        shared, n = key.shape[1], key.shape[2]
        mixed = weights.view(rows, shared, -1, n) @ value
        out = mixed.view(rows, heads, new, -1).transpose(1, 2)
        if layer.received is not None:
            received = weights.mean(2).sum(2)
    else:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        received = _received(layer, query, key, attention_mask, scaling)
    if layer is not None:
        layer.observe(query, scaling, received)
    return out, None


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, start: int = 0) -> Tensor:
    """Of queries, the first of which is the `start`-th new one, to all keys: R × H × G × q × n."""
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


def _received(layer: Layer | None, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> Tensor | None:
    """Attention summed over many queries, a few at a time, for a policy that accumulates it."""
    if layer is None or layer.received is None:
        return None
    new, n = query.shape[2], key.shape[2]
    mask = _causal(new, n, key) if mask is None else mask
    total = torch.zeros(key.shape[:3], device=key.device)
    for start in range(0, new, 64):
        weights = _weights(query[:, :, start : start + 64], key, mask, scaling, start)
        total += weights.nan_to_num(0.0).mean(2).sum(2)  # a padding token's row is masked whole
    return total


def _observed(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A stock attention that tells the cache what was asked."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Any:
        result = stock(module, query, key, value, attention_mask, **kwargs)
        if (layer := _layer(key)) is not None:
            scaling = kwargs["scaling"]
            layer.observe(query, scaling, _received(layer, query, key, attention_mask, scaling))
        return result

    return attend


KERNELS = {"ponder": "grouped", "ponder_sdpa": "stock", "ponder_eager": "stock"}
AttentionInterface.register("ponder", _grouped)
AttentionInterface.register("ponder_sdpa", _observed(sdpa_attention_forward))
AttentionInterface.register("ponder_eager", _observed(eager_attention_forward))
for _name, _mask in (("ponder", sdpa_mask), ("ponder_sdpa", sdpa_mask), ("ponder_eager", eager_mask)):
    AttentionMaskInterface.register(_name, _mask)


def prepare(model: Any, policy: Policy, kernel: Literal["grouped", "stock"]) -> None:
    """Let a model tell its cache what happens in it. Done once a model; without such a cache nothing changes."""
    now = model.config._attn_implementation
    if kernel == "grouped":
        wanted = "ponder"
    elif policy.queries or policy.accumulates:
        wanted = {"eager": "ponder_eager", "sdpa": "ponder_sdpa", "ponder": "ponder_sdpa"}.get(now, now)
    else:
        wanted = "sdpa" if now == "ponder" else now
    if wanted != now:
        model.set_attn_implementation(wanted)
    base = model.base_model
    if not getattr(base, "tells_its_cache", False):
        base.register_forward_hook(_tell, with_kwargs=True)
        base.tells_its_cache = True


def _tell(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    cache = kwargs.get("past_key_values")
    if cache is not None and hasattr(cache, "settle"):
        ids = kwargs.get("input_ids", args[0] if args else None)
        cache.settle(ids, output[0], kwargs.get("attention_mask"))
