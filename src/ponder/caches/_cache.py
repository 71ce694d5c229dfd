"""A cache for `generate()` that prunes all rows of a batch together."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicSlidingWindowLayer

from ponder.caches._attention import use_attention
from ponder.caches._layer import Layer, grown
from ponder.caches._rope import frequencies
from ponder.caches._view import CacheView
from ponder.core import CacheBudget, Policy, UserError


class SelectCache(Cache):
    """Pass it as `past_key_values`. Rows grow in step, and each loses equally many columns, padding first."""

    def __init__(
        self,
        model: nn.Module,
        policy: Policy,
        budget: CacheBudget | None,
        *,
        kernel: Literal["grouped", "stock"] = "grouped",
    ) -> None:
        self.policy, self.budget = policy, budget
        config: Any = model.config
        super().__init__(layers=self._layers(config.get_text_config(decoder=True)))
        self.heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        self.end_of_thinking: int | None = None  # id of the token after which the answer starts, if there is one
        self.lengths: list[int] = []  # columns of each row
        self.seen_tokens: list[int] = []  # tokens of each row, evicted ones included
        self.held: list[list[int]] = []  # columns of each row after each forward pass, before pruning
        self.answering = torch.zeros(0, dtype=torch.bool)
        self.seeds = torch.zeros(0, dtype=torch.long)
        # By position, R × seen tokens:
        self.ids = torch.zeros(0, 0, dtype=torch.long)
        self.protected = torch.zeros(0, 0, dtype=torch.bool)
        self.padding = torch.zeros(0, 0, dtype=torch.bool)
        self.features: Tensor | None = None
        # By column; one layer or one head if they share their decisions.
        self.positions = torch.zeros(1, 0, 1, 0, dtype=torch.int32)  # layers × rows × heads × columns
        self.frequencies = frequencies(model) if policy.needs_rope else None
        if policy.needs_rope and self.frequencies is None:
            what = f"the policy `{policy.plugin_name()}` needs rotary embeddings like Llama's; this model has others"
            raise UserError(what, hint="another policy, such as snapkv")
        use_attention(model, policy, kernel)
        _hook(model)

    def _layers(self, config: Any) -> list[Any]:
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        if unsupported := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
            raise UserError(f"the cache of {unsupported[0]} layers can't be pruned", hint="use the model's own cache")
        if "sliding_attention" in kinds:
            if "full_attention" not in kinds:
                what = "this model has only sliding-window layers, whose cache is bounded already"
                raise UserError(what, hint="use the model's own cache")
            n = kinds.count("sliding_attention")
            what = f"{n} of {len(kinds)} layers have a sliding window; only the other {len(kinds) - n} are pruned"
            warnings.warn(what, stacklevel=4)
        return [
            Layer(self, i) if kind == "full_attention" else DynamicSlidingWindowLayer(config)
            for i, kind in enumerate(kinds)
        ]

    @property
    def pruned_layers(self) -> list[Layer]:
        """The layers that this cache prunes."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    @property
    def max_length(self) -> int:
        """Columns of the longest row."""
        return max(self.lengths, default=0)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all layers together."""
        buffers = [buffer for layer in self.pruned_layers for buffer in (layer.keys, layer.values)]
        return sum(int(b.shape[1] * b.shape[-1] * b.element_size()) for b in buffers)

    def capacity(self, columns: int) -> int:
        """How large to make a buffer that must hold this many columns now."""
        if self.budget and columns <= self.budget.budget + 1:
            return self.budget.budget + 1
        return columns + columns // 2 if self.lengths else columns

    def write(self, buffer: Tensor, states: Tensor) -> None:
        """Append new columns to each row of a buffer."""
        start = self.max_length
        buffer[: len(states), :, start : start + states.shape[2]] = states

    def after_forward(self, ids: Tensor | None, hidden: Tensor, mask: Tensor | None) -> None:
        """Record the tokens of a forward pass, and prune if the budget is reached."""
        rows, new = hidden.shape[:2]
        if not self.lengths:
            padding = mask[:, :new] == 0 if mask is not None and mask.ndim == 2 else None
            self._start(rows, padding, hidden)
        tokens = ids if ids is not None else torch.full((rows, new), -1, device=hidden.device)
        self._append(tokens, self.policy.token_features(hidden, tokens))
        self._prune()

    def _start(self, rows: int, padding: Tensor | None, hidden: Tensor) -> None:
        """The first forward pass reads the prompt."""
        device = hidden.device
        self.lengths, self.seen_tokens, self.held = [0] * rows, [0] * rows, [[] for _ in range(rows)]
        self.answering = torch.zeros(rows, dtype=torch.bool, device=device)
        self.seeds = torch.arange(rows, device=device)
        new = hidden.shape[1]
        self.ids = torch.full((rows, new), -1, device=device)
        self.padding = (
            padding.to(device) if padding is not None else torch.zeros(rows, new, dtype=torch.bool, device=device)
        )
        self.protected = torch.zeros(rows, new, dtype=torch.bool, device=device)
        if self.budget:
            real = torch.arange(new, device=device) - self.padding.sum(1, keepdim=True)
            self.protected |= (real >= 0) & (self.budget.question | (real < self.budget.sinks))
            self.budget.check_prompt(int((real >= 0).sum(1).max()))
        unit = self.budget.granularity if self.budget else "model"
        layers, heads = (1 if unit == "model" else len(self.pruned_layers)), (self.heads if unit == "head" else 1)
        self.positions = torch.zeros(layers, rows, heads, 0, dtype=torch.int32, device=device)

    def _append(self, ids: Tensor, features: Tensor | None) -> None:
        """Record new tokens; their keys and values are in the buffers already."""
        rows, new = ids.shape
        start, columns = max(self.seen_tokens), self.max_length
        if start + new > self.ids.shape[1]:
            size = (start + new) * 2
            self.ids, self.padding, self.protected = (
                grown(t, len(t), size) for t in (self.ids, self.padding, self.protected)
            )
            self.features = None if self.features is None else grown(self.features, len(self.features), size)
        if columns + new > self.positions.shape[3]:
            self.positions = grown(self.positions, self.positions.shape[1], (columns + new) * 2, dim=1)
        if features is not None and self.features is None:
            self.features = features.new_zeros(self.ids.shape)
        if start and self.budget and self.budget.answer and self.end_of_thinking is not None:
            answer = ((ids == self.end_of_thinking).cumsum(1) > 0) | self.answering[:, None]
            self.answering = answer[:, -1]
        else:
            answer = torch.zeros_like(ids, dtype=torch.bool)
        self._record(ids, answer, features)
        for r in range(rows):
            self.seen_tokens[r] += new
            self.lengths[r] += new
            self.held[r].append(self.lengths[r])

    def _record(self, ids: Tensor, answer: Tensor, features: Tensor | None) -> None:
        start, column, (rows, new) = self.seen_tokens[0], self.lengths[0], ids.shape
        at = slice(start, start + new)
        self.ids[:rows, at] = ids
        self.protected[:rows, at] |= answer
        if features is not None and self.features is not None:
            self.features[:rows, at] = features
        self.positions[:, :rows, :, column : column + new] = torch.arange(start, start + new, device=ids.device)

    def _prune(self) -> None:
        if self.budget is None or self.max_length < self.budget.budget:
            return
        rows, length = list(range(len(self.lengths))), self.max_length
        kept = self.budget.kept(length, max(self._protected(r) for r in rows))
        if kept is not None and kept < length - self.budget.window:
            self._evict(rows, length, kept)

    def _protected(self, row: int) -> int:
        """How many of a row's columns before the window are never evicted."""
        assert self.budget
        before = self.positions[0, row, 0, : self.lengths[row] - self.budget.window].long()
        return int(self.protected[row, before].sum())

    def _evict(self, rows: list[int], length: int, kept: int) -> None:
        """Keep the window and the `kept` columns before it that score highest, in rows of equal length."""
        assert self.budget
        before = length - self.budget.window
        at = torch.tensor(rows, device=self.ids.device)
        positions = self.positions[:, at, :, :length]  # layers × R × heads × n
        scores = self._scores(at, positions, length)[..., :before]
        candidates = positions[..., :before].long()
        scores = scores.masked_fill(_at_positions(self.protected[at], candidates), torch.inf)
        scores = scores.masked_fill(_at_positions(self.padding[at], candidates), -torch.inf)
        best = scores.topk(kept, dim=-1).indices.sort(dim=-1).values
        window = torch.arange(before, length, device=best.device).expand(*best.shape[:-1], -1)
        columns = torch.cat([best, window], dim=-1)
        self.positions[:, at, :, : columns.shape[-1]] = positions.gather(3, columns)
        for n, layer in enumerate(self.pruned_layers):
            layer.gather(at, columns[n % len(columns)])
        for r in rows:
            self.lengths[r] = columns.shape[-1]

    def _scores(self, at: Tensor, positions: Tensor, length: int) -> Tensor:
        """The policy's scores, averaged over what shares one decision: layers × R × heads × n."""
        assert self.budget
        unit, by_layer = self.budget.granularity, []
        for n, layer in enumerate(self.pruned_layers):
            scores = self.policy.score(self._view(layer, at, positions[n % len(positions)], length)).float()
            by_layer.append(scores if unit == "head" else scores.mean(1, keepdim=True))
            if unit == "model" and not self.policy.per_layer:
                break
        if unit == "model":
            return torch.stack(by_layer).mean(0, keepdim=True)
        return torch.stack([scores.expand(-1, positions.shape[2], -1) for scores in by_layer])

    def _view(self, layer: Layer, at: Tensor, positions: Tensor, length: int) -> CacheView:
        index = positions.long()
        return CacheView(
            layer=layer.index,
            keys=layer.keys[at, :, :length],
            values=layer.values[at, :, :length],
            queries=None if layer.queries is None else layer.queries[at],
            accumulated=None if layer.accumulated is None else layer.accumulated[at, :, :length],
            scaling=layer.scaling,
            positions=positions,
            padding=_at_positions(self.padding[at], index),
            ids=_at_positions(self.ids[at], index),
            features=None if self.features is None else _at_positions(self.features[at], index),
            seen_tokens=self.seen_tokens[int(at[0])],
            seeds=self.seeds[at],
            frequencies=self.frequencies,
        )


def _at_positions(facts: Tensor, positions: Tensor) -> Tensor:
    """Look up facts about tokens, R × seen tokens, at positions, … × R × h × n."""
    wide = facts[:, None].expand(-1, positions.shape[-2], -1)
    return wide.expand(*positions.shape[:-1], -1).gather(-1, positions)


def _hook(model: Any) -> None:
    """Call `after_forward` after each forward pass; once per model. Other caches are left alone."""
    if not getattr(model.base_model, "calls_select_cache", False):
        model.base_model.register_forward_hook(_after_forward, with_kwargs=True)
        model.base_model.calls_select_cache = True


def _after_forward(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    cache = kwargs.get("past_key_values")
    if isinstance(cache, SelectCache):
        ids = kwargs.get("input_ids", args[0] if args else None)
        cache.after_forward(ids, output[0], kwargs.get("attention_mask"))
