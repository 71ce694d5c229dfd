"""Measures whether a pruned cache is exact on a model.

It is not used in runs: benchmarks and tests call it, and it made the list of tested architectures.
Its logits are compared with a recompute in which the evicted tokens are masked. The recompute reads
the whole text in one pass without a cache, with the model's own `eager` attention; only the mask is
ours, made from what the cache held at each step. So it shares neither kernels nor buffers with the
cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ponder.core import CacheBudget, Policy
from ponder.kvcache.cache import SelectCache


@dataclass(frozen=True)
class Exactness:
    """How far logits under a pruned cache are from the recompute."""

    error: float  # largest difference of a logit, in standard deviations of the logits
    effect: float  # the same between recomputes with and without eviction: what eviction changes
    prunings: int

    @property
    def exact(self) -> bool:
        """Return whether the error is that of rounding in float32, and far below the effect."""
        return self.error < 1e-3 and self.effect > 10 * max(self.error, 1e-3) and self.prunings > 0


class WatchedCache(SelectCache):
    """Records which tokens each layer and head could attend to, for every step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # For each token, the positions that it could attend to, (layers, rows, heads, columns).
        self.visible: list[Tensor] = []
        self.prunings = 0

    def after_forward(self, ids: Tensor | None, hidden: Tensor) -> None:
        start = max(self.seen_tokens, default=0)
        new = hidden.shape[1]
        tokens_before = self.tokens
        cached = self.positions[..., : self.max_length]
        for position in range(start, start + new):
            # A token sees what was cached, the earlier tokens of its own pass, and itself.
            in_pass = torch.arange(start, position + 1, device=hidden.device, dtype=torch.int32)
            if not self.max_length:
                self.visible.append(in_pass)
                continue
            visible = cached
            if self.empty is not None:
                visible = cached.masked_fill(self.empty[..., : self.max_length], position)
            self.visible.append(torch.cat([visible, in_pass.expand(*cached.shape[:-1], -1)], -1))
        super().after_forward(ids, hidden)
        if self.tokens < tokens_before + new:
            self.prunings += 1


def exactness(
    model: Any,
    policy: Policy,
    budget: CacheBudget,
    inputs: dict[str, Tensor] | None = None,
    *,
    kernel: Literal["grouped", "stock"] = "grouped",
    tokens: int = 40,
    untested: bool = False,
) -> Exactness:
    """Generate greedily with a pruned cache, and compare its logits with a recompute."""
    if inputs is None:
        inputs = ragged_prompts(model)
    cache = WatchedCache(model, policy, budget, kernel=kernel, untested=untested)
    output = model.generate(**inputs, past_key_values=cache, **_greedy(tokens))
    cached = torch.stack(output.logits, dim=1).float()
    first = inputs["input_ids"].shape[1] - 1  # the prompt's last token predicts the first new one
    texts = output.sequences[:, :-1]
    mask = _extended(inputs["attention_mask"], tokens - 1)
    full = recomputed(model, texts, mask)[:, first:]
    pruned = recomputed(model, texts, mask, cache)[:, first:]
    deviation = full.std()
    error = float((pruned - cached).abs().max() / deviation)
    effect = float((pruned - full).abs().max() / deviation)
    return Exactness(error, effect, cache.prunings)


def stock_error(model: Any, tokens: int = 20) -> float:
    """Return the same error for the model's own cache, which evicts nothing."""
    inputs = ragged_prompts(model)
    output = model.generate(**inputs, **_greedy(tokens))
    cached = torch.stack(output.logits, dim=1).float()
    first = inputs["input_ids"].shape[1] - 1
    mask = _extended(inputs["attention_mask"], tokens - 1)
    full = recomputed(model, output.sequences[:, :-1], mask)[:, first:]
    return float((cached - full).abs().max() / full.std())


def _extended(mask: Tensor, tokens: int) -> Tensor:
    """Return the attention mask of prompts, (rows, tokens), that are followed by more tokens."""
    return torch.cat([mask, mask.new_ones(len(mask), tokens)], dim=1)


def _greedy(tokens: int) -> dict[str, Any]:
    return {
        "max_new_tokens": tokens,
        "min_new_tokens": tokens,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
        "pad_token_id": 0,
    }


def ragged_prompts(model: Any, rows: int = 4, longest: int = 14) -> dict[str, Tensor]:
    """Return random prompts of different lengths, padded on the left."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, min(vocabulary, 90), (rows, longest), generator=generator)
    mask = torch.ones_like(ids)
    pads = [0, 3, 9, 5]
    for row in range(rows):
        padding = slice(0, pads[row % 4])
        ids[row, padding] = 0
        mask[row, padding] = 0
    return {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}


@torch.no_grad()
def recomputed(
    model: Any, texts: Tensor, mask: Tensor, cache: WatchedCache | None = None
) -> Tensor:
    """Return the logits of texts, (rows, tokens, vocabulary), in one pass without a cache.

    Each token sees what it saw with the cache; without one, all earlier tokens.
    """
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with ExitStack() as stack:
        stack.enter_context(_eager_attention(model))
        if cache is not None:
            stack.enter_context(_evicted_hidden(cache, texts.shape[1]))
        logits: Tensor = model(
            texts, attention_mask=mask, position_ids=positions, use_cache=False
        ).logits
    return logits.float()


@contextmanager
def _eager_attention(model: Any) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _evicted_hidden(cache: WatchedCache, tokens: int) -> Iterator[None]:
    """Hide from each token, in the attention of pruned layers, what its cache didn't hold."""
    layers, rows, heads, _ = cache.positions.shape
    hidden = torch.ones(
        layers, rows, heads, tokens, tokens, dtype=torch.bool, device=cache.positions.device
    )
    for token, positions in enumerate(cache.visible[:tokens]):
        hidden[..., token, :].scatter_(-1, positions.long().expand(layers, rows, heads, -1), False)
    if heads > 1:  # the model's own attention has a mask per query head
        config: Any = cache.decoder.config
        query_heads = int(getattr(config, "num_attention_heads", 0) or config.n_head)
        hidden = hidden.repeat_interleave(query_heads // heads, 2)

    numbers = {layer.index: layer.number for layer in cache.pruned_layers}
    with ExitStack() as stack:
        for module in cache.decoder.modules():
            number = numbers.get(_layer_of_keys(module, max(numbers)))
            if (
                number is not None
                and "attention_mask" in inspect.signature(module.forward).parameters
            ):
                hook = _HideTokens(module, hidden[number % len(hidden)])
                handle = module.register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)
        yield


def _layer_of_keys(module: Any, last_pruned: int) -> int:
    """Return the index of the layer whose keys a module attends to, or -1 if it attends to none."""
    if getattr(module, "is_kv_shared_layer", False) and not getattr(module, "is_sliding", False):
        return int(getattr(module, "kv_shared_layer_index", last_pruned))
    index = getattr(module, "layer_idx", None)
    if index is None:
        return -1
    return int(index)


class _HideTokens:
    """A hook that hides tokens, (rows, heads, queries, tokens), in a layer's attention mask."""

    def __init__(self, module: nn.Module, hidden: Tensor) -> None:
        self.parameters = list(inspect.signature(module.forward).parameters)
        self.hidden = hidden

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = dict(zip(self.parameters, args, strict=False)) | kwargs
        mask = arguments.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 4:
            lowest = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
            arguments["attention_mask"] = mask.masked_fill(self.hidden, lowest)
        return (), arguments
