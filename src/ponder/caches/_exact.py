"""Is a pruned cache exact on a model? Its logits beside a recompute that masks the evicted tokens.

The recompute reads the whole text in one pass without a cache, with the model's own `eager` attention; only the mask is
ours, made from what the cache says it held at each step. So it shares neither kernels nor buffers with the cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ponder.caches._cache import SelectCache
from ponder.core import CacheBudget, Policy


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


class _Watched(SelectCache):
    """Records which tokens each layer and head could attend to, for every step."""

    visible: list[Tensor]  # layers × rows × heads × columns: positions
    prunings = 0

    def after_forward(self, ids: Tensor | None, hidden: Tensor) -> None:
        held, new = self.max_length, hidden.shape[1]
        if held:
            self.visible += [self.positions[..., :held].clone()] * new
        else:
            self.visible = []
        super().after_forward(ids, hidden)
        self.prunings += self.max_length < held + new


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
    cache = _Watched(model, policy, budget, kernel=kernel, untested=untested)
    out = model.generate(
        **inputs,
        past_key_values=cache,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        pad_token_id=0,
    )
    ours, texts = torch.stack(out.logits, dim=1).float(), out.sequences[:, :-1]
    pruned, full = (recomputed(model, texts, inputs, cache, v) for v in (cache.visible, None))
    real = slice(prompt - 1, None)
    scale = float(full[:, real].std())
    error, effect = ((pruned[:, real] - other).abs().max() for other in (ours, full[:, real]))
    return Exactness(float(error) / scale, float(effect) / scale, cache.prunings)


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
def recomputed(
    model: Any, texts: Tensor, inputs: dict[str, Tensor], cache: SelectCache, visible: list[Tensor] | None
) -> Tensor:
    """The logits of texts in one pass; `visible` has the positions that each step after the prompt could attend to."""
    (rows, n), prompt = texts.shape, inputs["input_ids"].shape[1]
    mask = torch.cat([inputs["attention_mask"], texts.new_ones(rows, n - prompt)], dim=1)
    hidden = None
    if visible is not None:
        layers, _, heads, _ = visible[0].shape
        shown = torch.ones(layers, rows, heads, n, n, dtype=torch.bool, device=texts.device)
        for step, positions in enumerate(visible[: n - prompt]):
            shown[..., prompt + step, : prompt + step] = False
            shown[..., prompt + step, :].scatter_(-1, positions.long(), True)
        hidden = ~shown
    with _own_attention(model), ExitStack() as stack:
        if hidden is not None:
            stack.enter_context(_hidden(cache, hidden))
        positions = (mask.cumsum(1) - 1).clamp(min=0)
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
def _hidden(cache: SelectCache, hidden: Tensor) -> Iterator[None]:
    """Hide tokens from the attention of pruned layers: layers × rows × heads × queries × keys."""
    numbers = {layer.index: n for n, layer in enumerate(cache.pruned_layers)}
    with ExitStack() as stack:
        for module in cache.decoder.modules():
            number = numbers.get(getattr(module, "layer_idx", None))  # type: ignore[arg-type] # None isn't in it
            if number is not None and "attention_mask" in inspect.signature(module.forward).parameters:
                hook = _Hide(module, hidden[number % len(hidden)])
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


class _Hide:
    def __init__(self, module: nn.Module, hidden: Tensor) -> None:
        self.parameters, self.hidden = list(inspect.signature(module.forward).parameters), hidden

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(self.parameters, args, strict=False)) | kwargs
        mask = given.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 4:
            heads = self.hidden.shape[1]
            if heads > 1:  # of the cache; the model's own attention has a row per query head
                config: Any = module.config
                queries = int(getattr(config, "num_attention_heads", 0) or config.n_head)
                hidden = self.hidden.repeat_interleave(queries // heads, 1)
            else:
                hidden = self.hidden
            lowest = torch.finfo(mask.dtype).min
            given["attention_mask"] = mask.masked_fill(hidden, lowest)
        return (), given
