"""Is a pruned cache exact on a model? Its logits beside a recompute that masks the evicted tokens.

The recompute reads the whole text in one pass without a cache, with the model's own `eager` attention; only the mask is
ours, made from what the cache says it held at each step. So it shares neither kernels nor buffers with the cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
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
    effect: float  # the same between the recompute and one in which nothing is evicted: what eviction changes
    prunings: int

    @property
    def exact(self) -> bool:
        """Rounding in float32 is far below the bound; the effect of evicting tokens must be far above."""
        return self.error < 1e-3 and self.effect > 10 * max(self.error, 1e-3) and self.prunings > 0


class WatchedCache(SelectCache):
    """Records which tokens each layer and head could attend to, for every step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.visible = list[Tensor]()  # of each token, positions: layers × rows × heads × columns
        self.prunings = 0

    def after_forward(self, ids: Tensor | None, hidden: Tensor) -> None:
        held, seen, new, tokens = self.max_length, max(self.seen_tokens, default=0), hidden.shape[1], self.tokens
        for n in range(new):  # a token sees what the cache held, and the earlier tokens of its own pass
            before = self.positions[..., :held]
            if self.empty is not None:
                before = before.masked_fill(self.empty[..., :held], seen + n)  # itself
            among = torch.arange(seen, seen + n + 1, device=hidden.device, dtype=torch.int32)
            self.visible.append(torch.cat([before, among.expand(*before.shape[:-1], -1)], -1) if held else among)
        super().after_forward(ids, hidden)
        self.prunings += self.tokens < tokens + new


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
    inputs = ragged_prompts(model) if inputs is None else inputs
    prompt = inputs["input_ids"].shape[1]
    cache = WatchedCache(model, policy, budget, kernel=kernel, untested=untested)
    out = model.generate(**inputs, past_key_values=cache, **_greedy(tokens))
    ours, mask = torch.stack(out.logits, dim=1).float(), _extended(inputs["attention_mask"], tokens - 1)
    full, pruned = (recomputed(model, out.sequences[:, :-1], mask, c)[:, prompt - 1 :] for c in (None, cache))
    error, effect = (float((pruned - other).abs().max() / full.std()) for other in (ours, full))
    return Exactness(error, effect, cache.prunings)


def _extended(mask: Tensor, tokens: int) -> Tensor:
    return torch.cat([mask, mask.new_ones(len(mask), tokens)], dim=1)


def stock_error(model: Any, tokens: int = 20) -> float:
    """The same for the model's own cache, which evicts nothing."""
    inputs = ragged_prompts(model)
    out = model.generate(**inputs, **_greedy(tokens))
    mask = _extended(inputs["attention_mask"], tokens - 1)
    full = recomputed(model, out.sequences[:, :-1], mask)[:, inputs["input_ids"].shape[1] - 1 :]
    ours = torch.stack(out.logits, dim=1).float()
    return float((ours - full).abs().max() / full.std())


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
    """Random prompts of different lengths, padded on the left."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, min(vocabulary, 90), (rows, longest), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(rows):
        pads = [0, 3, 9, 5][row % 4]
        ids[row, :pads], mask[row, :pads] = 0, 0
    return {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}


@torch.no_grad()
def recomputed(model: Any, texts: Tensor, mask: Tensor, cache: WatchedCache | None = None) -> Tensor:
    """The logits of texts in one pass, where each token sees what it saw with the cache; without one, everything."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with _own_attention(model), nullcontext() if cache is None else _hidden(cache, texts.shape[1]):
        logits: Tensor = model(texts, attention_mask=mask, position_ids=positions, use_cache=False).logits
        return logits.float()


@contextmanager
def _own_attention(model: Any) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _hidden(cache: WatchedCache, n: int) -> Iterator[None]:
    """Hide from each token, in the attention of pruned layers, what its cache didn't hold."""
    layers, rows, heads, _ = cache.positions.shape
    hidden = torch.ones(layers, rows, heads, n, n, dtype=torch.bool, device=cache.positions.device)
    for token, positions in enumerate(cache.visible[:n]):
        hidden[..., token, :].scatter_(-1, positions.long().expand(layers, rows, heads, -1), False)
    if heads > 1:  # the model's own attention has a row per query head
        config: Any = cache.decoder.config
        queries = int(getattr(config, "num_attention_heads", 0) or config.n_head)
        hidden = hidden.repeat_interleave(queries // heads, 2)
    numbers = {layer.index: n for n, layer in enumerate(cache.pruned_layers)}
    with ExitStack() as stack:
        for module in cache.decoder.modules():
            number = numbers.get(_layer_of_keys(module, max(numbers)))
            if number is not None and "attention_mask" in inspect.signature(module.forward).parameters:
                hook = _Hide(module, hidden[number % len(hidden)])
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def _layer_of_keys(module: Any, last: int) -> int:
    """The number of the layer whose keys a module attends to; `last` is the last that is pruned."""
    if getattr(module, "is_kv_shared_layer", False) and not getattr(module, "is_sliding", False):
        return int(getattr(module, "kv_shared_layer_index", last))
    index = getattr(module, "layer_idx", None)
    return -1 if index is None else int(index)


class _Hide:
    def __init__(self, module: nn.Module, hidden: Tensor) -> None:
        self.parameters, self.hidden = list(inspect.signature(module.forward).parameters), hidden

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(self.parameters, args, strict=False)) | kwargs
        mask = given.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 4:
            lowest = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
            given["attention_mask"] = mask.masked_fill(self.hidden, lowest)
        return (), given
