"""Attention functions for transformers that report their queries to a `SelectCache`.

One is registered for each of the implementations `sdpa` and `eager`, under the names in `OBSERVED`.
In a forward pass with a `SelectCache`, prompts go through the implementation that the model is set
to, and decoding through a faster one (`kernel="grouped"`). Any other pass runs the model's own.

Shapes, as in transformers: queries are (rows, heads, new, head_dim), keys and values are
(rows, kv_heads, columns, head_dim), weights are (rows, heads, new, columns).
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

# Names of the attention functions that report to the cache, by the implementation they replace.
OBSERVED = {"sdpa": "ponder_sdpa", "eager": "ponder_eager"}
# Arguments that change the attention weights. With them, the model's own function computes these.
WEIGHT_ARGUMENTS = ("softcap", "s_aux")
# `WEIGHT_ARGUMENTS`, and arguments without effect in a full-attention layer of a decoder. All
# others are refused, because they may change what a layer attends to.
KNOWN_ARGUMENTS = {
    *WEIGHT_ARGUMENTS,
    "cache_position",
    "cu_seq_lens_k",
    "cu_seq_lens_q",
    "deterministic",
    "dropout",
    "is_causal",
    "logits_to_keep",
    "max_length_k",
    "max_length_q",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_embeddings",
    "position_ids",
    "return_dict",
    "scaling",
    "token_type_ids",
    "use_cache",
}
MAX_NEW_TOKENS = 8  # of a forward pass, for the grouped kernel; longer ones are prompts


class _Pass(threading.local):
    cache: Any = None  # the SelectCache of the forward pass that this thread is in


PASS = _Pass()


def _attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return a layer's attention output and weights, and report the queries to its cache."""
    layer: Layer | None = None
    if PASS.cache is not None:
        layer = PASS.cache.layer(getattr(module, "layer_idx", None))
    mask = attention_mask
    if layer is not None:
        mask = layer.cache.hide_empty_columns(layer, mask, query, key.shape[2])
    if implementation == "eager":
        mask = _additive(mask, query.dtype)
    if layer is None:
        return _run_stock(implementation, module, query, key, value, mask, **kwargs)

    _check_arguments(kwargs)
    if layer.attention_weights_function is None:
        layer.attention_weights_function = AttentionWeightsFunction(
            module, query, key, value, kwargs
        )
    decodes = query.shape[2] <= MAX_NEW_TOKENS and not kwargs.get("dropout")
    weights: Tensor | None
    if layer.cache.kernel == "grouped" and layer.attention_weights_function.is_softmax and decodes:
        weights = layer.attention_weights_function.softmax(query, key, mask)
        output = _weighted_values(weights, value)
    else:
        output, weights = _run_stock(implementation, module, query, key, value, mask, **kwargs)
    layer.observe(query, key, value, weights, mask)
    return output, weights


def _run_stock(
    implementation: str, module: nn.Module, *tensors: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Run the attention that the model is set to."""
    function: Callable[..., Any] | None = sdpa_attention_forward
    if implementation == "eager":
        function = _eager_attention(module)
    assert function is not None
    result: tuple[Tensor, Tensor | None] = function(module, *tensors, **kwargs)
    return result


def _eager_attention(module: nn.Module) -> Callable[..., Any] | None:
    """Return `eager_attention_forward` of transformers' file for this model, or None."""
    for base in type(module).__mro__:
        modeling_file = sys.modules[base.__module__]
        if hasattr(modeling_file, "eager_attention_forward"):
            function: Callable[..., Any] = modeling_file.eager_attention_forward
            return function
    return None


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Convert a boolean mask to the one that `eager` attention adds to the logits."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _check_arguments(kwargs: dict[str, Any]) -> None:
    """Raise `UserError` for an argument that may change what a layer attends to."""
    if kwargs.get("sliding_window") is not None:
        raise UserError(
            "a layer that has a sliding window can't be pruned", hint="use the model's own cache"
        )
    unknown = [
        name for name, value in kwargs.items() if value is not None and name not in KNOWN_ARGUMENTS
    ]
    if unknown:
        raise UserError(
            f"this model's attention has an argument `{min(unknown)}` that a cache which evicts"
            " tokens doesn't know",
            hint="use the model's own cache",
        )


class AttentionWeightsFunction:
    """Computes a layer's attention weights from queries and keys, as the model does.

    It is made once per layer, in the first forward pass, and called like a function.
    """

    def __init__(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, Any]
    ) -> None:
        self.module = module
        self.eager_attention = _eager_attention(module)
        self.scaling: float = query.shape[-1] ** -0.5
        if kwargs.get("scaling") is not None:
            self.scaling = kwargs["scaling"]
        self.weight_arguments = {
            name: kwargs[name] for name in WEIGHT_ARGUMENTS if kwargs.get(name) is not None
        }
        self.is_softmax = self._is_softmax(query, key, value)

    def __deepcopy__(self, _: dict[int, Any]) -> AttentionWeightsFunction:
        return self  # it refers to a module of the model, and never changes

    def _is_softmax(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Return whether the model's attention weights are softmax(scaling · query · key).

        Both are computed for random states with large logits, so that a difference would show.
        """
        if self.eager_attention is None or self.weight_arguments or query.shape[1] % key.shape[1]:
            return False
        generator = torch.Generator().manual_seed(0)
        query = _random_like(query, 2, generator)
        key = _random_like(key, 8, generator)
        value = _random_like(value, 8, generator)
        query = query * (8 / self.scaling / query.shape[-1] ** 0.5)
        mask = query.new_zeros(1, 1, 2, 8)
        mask[..., 0, 5:] = torch.finfo(query.dtype).min
        try:
            theirs = self.eager_attention(
                self.module, query, key, value, mask, scaling=self.scaling
            )[0]
        except (TypeError, ValueError, RuntimeError, AttributeError):
            return False
        ours = _weighted_values(self.softmax(query, key, mask), value)
        if ours.shape != theirs.shape:
            return False
        tolerance = 5e-2
        if query.dtype in (torch.float32, torch.float64):
            tolerance = 1e-4
        return bool((ours - theirs).abs().max() <= tolerance * theirs.abs().max())

    def softmax(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        """Return softmax(scaling · query · key), (rows, heads, new, columns).

        Each key is read once for all query heads that share it.
        """
        rows, heads, new, head_dim = query.shape
        kv_heads, columns = key.shape[1:3]
        logits = (query * self.scaling).reshape(rows, kv_heads, -1, head_dim) @ key.mT
        logits = logits.view(rows, heads, new, columns)
        if mask is None and new > 1:
            mask = causal_mask(new, columns, key.device)
        if mask is not None and mask.dtype == torch.bool:
            # Not -inf: a query of padding may see nothing, and its NaN would spread to the output.
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        elif mask is not None:
            logits = logits + mask
        return logits.softmax(-1, dtype=torch.float32).to(query.dtype)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Return the weights, (rows, heads, new, columns), as the model computes them."""
        if self.is_softmax:
            return self.softmax(query, key, mask)
        weights: Tensor | None = None
        if self.eager_attention is not None:
            additive = _additive(mask, query.dtype)
            weights = self.eager_attention(
                self.module,
                query,
                key,
                value,
                additive,
                scaling=self.scaling,
                **self.weight_arguments,
            )[1]
        if weights is None or weights.shape[-1] != key.shape[2]:
            raise UserError(
                "this model doesn't reveal its attention weights",
                hint="use a policy that needs none",
            )
        return weights


def _random_like(states: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Return random states of one row and this length, (1, heads, length, head_dim)."""
    shape = (1, states.shape[1], length, states.shape[-1])
    return torch.randn(shape, generator=generator).to(states)


def _weighted_values(weights: Tensor, value: Tensor) -> Tensor:
    """Return each query's weighted mean of values, (rows, new, heads, head_dim)."""
    rows, heads, new, columns = weights.shape
    kv_heads = value.shape[1]
    output = weights.view(rows, kv_heads, -1, columns) @ value
    return output.view(rows, heads, new, -1).transpose(1, 2).contiguous()


def causal_mask(new: int, columns: int, device: torch.device) -> Tensor:
    """Return which columns each of the `new` last tokens may attend to, (1, 1, new, columns)."""
    return torch.ones(new, columns, dtype=torch.bool, device=device).tril(columns - new)[None, None]


AttentionInterface.register(OBSERVED["sdpa"], partial(_attend, "sdpa"))
AttentionInterface.register(OBSERVED["eager"], partial(_attend, "eager"))
AttentionMaskInterface.register(OBSERVED["sdpa"], sdpa_mask)
AttentionMaskInterface.register(OBSERVED["eager"], eager_mask)
