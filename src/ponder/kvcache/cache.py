"""A cache for `generate()` that prunes all rows of a batch together."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ponder.core import CacheBudget, Fitted, KeepsAll, Policy, UserError
from ponder.kvcache.allocation import allotted
from ponder.kvcache.attention import PASS
from ponder.kvcache.hooks import SelectCacheBase, attach, own_attention
from ponder.kvcache.layer import Layer, grown
from ponder.kvcache.rope import changing, frequencies
from ponder.kvcache.supported import (
    OWN,
    check_tested,
    decoder_of,
    layers_of,
    restarts,
    reveals_attention,
)
from ponder.kvcache.view import CacheView

EVEN, BUDGET = 'allocation = "even"', "CacheBudget(budget=1024, window=256)"


class SelectCache(SelectCacheBase):
    """Pass it as `past_key_values`. Rows grow in step, and each loses equally many columns, padding first.

    The prompt, which `question` protects, is what is read before the first pass of a single token, unless its length is
    given. `answer` protects what follows the token `end_of_thinking`.
    """

    def __init__(
        self,
        model: nn.Module,
        policy: Policy,
        budget: CacheBudget | None,
        *,
        kernel: Literal["grouped", "stock"] = "grouped",
        end_of_thinking: int | None = None,
        prompt: int | None = None,
        untested: bool = False,
    ) -> None:
        for argument, kind, example in ((policy, Policy, "Snapkv()"), (budget, CacheBudget | None, BUDGET)):
            if not isinstance(argument, kind):
                raise UserError(f"a SelectCache needs an object such as {example}, not {argument!r}")
        if kernel not in ("grouped", "stock"):
            raise UserError(f"the kernel `{kernel}` is unknown", hint='"grouped" or "stock"')
        if isinstance(policy, KeepsAll):
            budget = None
        self.policy, self.budget, self.kernel = policy, budget, kernel
        self.decoder, self.outer_module = decoder_of(model)
        self.outer: dict[str, Any] = {}
        self.end_of_thinking, self.prompt = end_of_thinking, prompt
        super().__init__(layers=layers_of(self.decoder, lambda index: Layer(self, index)))
        for number, layer in enumerate(self.pruned_layers):
            layer.number = number
        if not untested:
            check_tested(model)
        self.allocates = budget is not None and budget.allocation != "even"
        needs = bool(policy.queries or "attention" in policy.needs or self.allocates)
        self.observes = reveals_attention(self.decoder) and (needs or kernel == "grouped")
        if needs and not self.observes:
            raise self._unrevealed()
        numbers = {layer.index for layer in self.pruned_layers}
        if self.allocates and any(getattr(m, "layer_idx", 0) not in numbers for m in self.decoder.modules()):
            raise UserError("only a model with full attention in all layers can divide a budget", hint=EVEN)
        own_attention([self.decoder.config])
        self.shape = 0, 0  # rows and new tokens of this forward pass
        self.failed = ""  # why the cache can't be used any more
        self.lengths: list[int] = []  # columns of each row
        self.extra: list[int] = []  # how many columns each row has beyond its tokens per head: some heads have more
        self.peaks: list[int] = []  # the most columns that each row had
        self.seen_tokens: list[int] = []  # tokens of each row, evicted ones included
        self.held: list[list[int]] = []  # tokens per head of each row after each forward pass, before pruning
        self.answering = torch.zeros(0, dtype=torch.bool)
        self.seeds = torch.zeros(0, dtype=torch.long)
        self.reading = True  # the prompt
        self.real_tokens: list[int] = []  # of each row, counted as long as some may be sinks
        self.new_padding: Tensor | None = None  # of this forward pass, R × new tokens; None: there is none
        # By position, R × seen tokens:
        self.ids = torch.zeros(0, 0, dtype=torch.long)
        self.protected = torch.zeros(0, 0, dtype=torch.bool)
        self.padding = torch.zeros(0, 0, dtype=torch.bool)
        self.features: Tensor | None = None
        # By column; one layer or one head if they share their decisions.
        self.positions = torch.zeros(1, 0, 1, 0, dtype=torch.int32)  # layers × rows × heads × columns
        self.empty: Tensor | None = None  # which columns hold nothing; None: heads have equally many tokens
        self.frequencies = frequencies(self.decoder) if "rope" in policy.needs else None
        if "rope" in policy.needs and self.frequencies is None:
            what = f"the policy `{policy.plugin_name()}` needs rotary embeddings like Llama's; this model has others"
            raise UserError(what, hint="another policy, such as snapkv")
        self.rotary = changing(self.decoder)
        self.rotated: list[Tensor] | None = None  # the frequencies that the cached keys have, of what may change
        self.padded = False  # whether any column is padding
        self.shifted = True  # whether the padding that is left is what the model's mask says, shifted
        attach(self, self.outer_module)

    def __deepcopy__(self, memo: dict[int, Any]) -> SelectCache:
        new = object.__new__(type(self))
        shared = {"decoder", "outer_module", "rotary", "policy", "budget", "layers"}
        vars(new).update({k: v if k in shared else deepcopy(v, memo) for k, v in vars(self).items()})
        new.layers = [
            layer.copy_for(new) if isinstance(layer, Layer) else deepcopy(layer, memo) for layer in self.layers
        ]
        attach(new, new.outer_module)
        return new

    def __repr__(self) -> str:
        seen, held = max(self.seen_tokens, default=0), self.tokens
        size = f"{held * self.token_bytes * len(self.lengths) / 1e6:.3g} MB" if held else "empty"
        return f"SelectCache({type(self.policy).__name__}: holds {held:,} of {seen:,} tokens in each row, {size})"

    def __copy__(self) -> NoReturn:
        raise UserError("two caches can't share their buffers", hint="copy.deepcopy(cache)")

    def __reduce__(self) -> NoReturn:
        raise UserError("a cache belongs to a model in memory and can't be pickled", hint="store the text instead")

    @property
    def pruned_layers(self) -> list[Layer]:
        """The layers that this cache prunes."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def layer(self, index: int | None) -> Layer | None:
        """The pruned layer of this number, if it is one."""
        layer = self.layers[index] if index is not None and index < len(self.layers) else None
        return layer if isinstance(layer, Layer) else None

    @property
    def max_length(self) -> int:
        """Columns of the longest row."""
        return max(self.lengths, default=0)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all layers together."""
        buffers = [buffer for layer in self.pruned_layers for buffer in (layer.keys, layer.values)]
        return sum(int(b.shape[1] * b.shape[-1] * b.element_size()) for b in buffers)

    @property
    def tokens(self) -> int:
        """Tokens of the longest row, on average over heads; columns, if its heads have equally many."""
        return max((n - extra for n, extra in zip(self.lengths, self.extra, strict=True)), default=0)

    def capacity(self, columns: int) -> int:
        """How large to make a buffer that must hold this many columns now."""
        if self.budget and columns <= self.budget.budget + 1:
            return min(2 * columns, self.budget.budget + 1)
        return columns + max(32, columns // 16) if self.lengths else columns

    def write(self, buffer: Tensor, states: Tensor) -> None:
        """Append new columns to each row of a buffer."""
        start = self.max_length
        buffer[: len(states), :, start : start + states.shape[2]] = states

    def check_pass(self) -> None:
        """Raise `UserError` if the model that writes to this cache doesn't tell it about its forward passes."""
        if PASS.cache is not self:
            what = "this cache was made for another model, or for a part of one that isn't called"
            raise UserError(what, hint="make it for the model that is called")

    def before_forward(self, shape: Sequence[int], mask: Tensor | None, position_ids: Tensor | None) -> Tensor | None:
        rows, new, seen = *shape[:2], max(self.seen_tokens, default=0)
        if self.failed:
            raise UserError(self.failed, hint="make a new SelectCache")
        if not new:
            what = f"this cache has read {seen} tokens already, and there is no new one"
            raise UserError(what, hint="a cache serves one conversation: make a new SelectCache for another prompt")
        if self.lengths and rows != len(self.lengths):
            what = f"this cache has {len(self.lengths)} rows, and the batch has {rows}"
            raise UserError(what, hint="make a new SelectCache for each batch")
        if seen and new > 1 and restarts(self.decoder):
            what = "the recurrent layers of this model forget the text when several further tokens are read at once"
            raise UserError(what, hint="read the prompt in one pass, and what follows token by token")
        self.shape = rows, new
        self.new_padding = self._new_padding(rows, new, seen, mask)
        for layer in self.pruned_layers:
            layer.updated = layer.observed = False
        if self.shifted or mask is None:
            return mask
        if position_ids is None or len(self.pruned_layers) < len(self.layers):
            what = "padding in the middle of a text needs `position_ids`, and a model with full attention in all layers"
            raise UserError(what, hint="pad on the left, once")
        mask, offset = mask.clone(), seen - self.max_length
        mask[:, offset:seen] = ~self._padding_columns()
        return mask

    def _new_padding(self, rows: int, new: int, seen: int, mask: Any) -> Tensor | None:
        if mask is None and self.padded:
            raise UserError("padding was read before", hint="pass the attention mask of the whole text")
        if mask is None:
            return None
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            what = "a cache that evicts tokens needs an attention mask of rows × tokens"
            raise UserError(what, hint="leave it out if there is no padding")
        if mask.shape != (rows, seen + new):
            what = f"the attention mask has {mask.shape[1]} columns; {seen} tokens were read before, and {new} are new"
            raise UserError(what, hint="a cache serves one conversation: make a new SelectCache for another prompt")
        if seen and not torch.equal((mask[:, :seen] == 0).to(self.padding.device), self.padding[:, :seen]):
            raise UserError("the attention mask hides other tokens than before", hint="repeat the earlier mask")
        padding = mask[:, seen:] == 0
        return padding if padding.any() else None

    def after_forward(self, ids: Tensor | None, hidden: Tensor) -> None:
        (rows, new), given = self.shape, tuple(hidden.shape[:2])
        if given != self.shape:
            what = f"this model read {rows} × {new} tokens and returned {given[0]} × {given[1]} hidden states"
            raise UserError(what, hint=OWN)
        self._check_layers()
        self._check_rotation([buffer for module in self.rotary for buffer in module.buffers()])
        if not self.lengths:
            self._start(rows, hidden)
        tokens = ids if ids is not None else torch.full((rows, new), -1, device=hidden.device)
        features = self.policy.token_features(hidden, tokens) if isinstance(self.policy, Fitted) else None
        self._append(tokens, features)
        self._prune()

    def _check_layers(self) -> None:
        """Raise `UserError` if a layer didn't take part in a forward pass as it should have."""
        observed = bool(self.policy.queries or "attention" in self.policy.needs or self.allocates)
        for layer in self.pruned_layers:
            if not layer.updated:
                raise UserError(f"layer {layer.index} of this model didn't use its cache", hint=OWN)
            if observed and not layer.observed:
                raise self._unrevealed()

    def _check_rotation(self, now: list[Tensor]) -> None:
        """Raise `UserError` if new keys are rotated by other frequencies than those in the cache."""
        self.rotated = now if self.rotated is None else self.rotated
        if not all(map(torch.equal, self.rotated, now)):
            what = "the rotary embeddings of this model changed with the length of the text, after keys were cached"
            raise UserError(what, hint="a shorter text, or `rope_parameters` that don't depend on it, like yarn's")

    def _unrevealed(self) -> UserError:
        if self.allocates:
            return UserError("a budget can be divided only if a model reveals its attention", hint=EVEN)
        what = f"`{self.policy.plugin_name()}` needs attention, which this model doesn't reveal"
        return UserError(what, hint="use `streaming` or `random`")

    def _start(self, rows: int, hidden: Tensor) -> None:
        """The first forward pass reads the prompt, or a part of it."""
        device = hidden.device
        self.lengths, self.seen_tokens, self.held = [0] * rows, [0] * rows, [[] for _ in range(rows)]
        self.real_tokens, self.extra, self.peaks = [0] * rows, [0] * rows, [0] * rows
        self.answering = torch.zeros(rows, dtype=torch.bool, device=device)
        self.seeds = torch.arange(rows, device=device)
        self.ids = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self.padding, self.protected = torch.zeros(2, rows, 0, dtype=torch.bool, device=device)
        unit, layers, heads = self.budget.granularity if self.budget else "model", self.pruned_layers, 1
        if any(layer.keys.device != device for layer in layers):
            raise UserError("the layers of this model are on several devices", hint="load it on one")
        if unit == "head":
            heads = layers[0].keys.shape[1]
            if any(layer.keys.shape[1] != heads for layer in layers):
                what = "the layers of this model have different numbers of key-value heads"
                raise UserError(what, hint='granularity = "layer"')
        count = 1 if unit == "model" else len(layers)
        self.positions = torch.zeros(count, rows, heads, 0, dtype=torch.int32, device=device)
        self.empty = torch.zeros_like(self.positions, dtype=torch.bool) if self.allocates else None

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
            size = (columns + new) * 2
            self.positions = grown(self.positions, self.positions.shape[1], size, dim=1)
            self.empty = None if self.empty is None else grown(self.empty, self.empty.shape[1], size, dim=1)
        if features is not None and self.features is None:
            self.features = grown(features[:, :0], rows, self.ids.shape[1])
        self._record(ids, self._protects(ids, start), features)
        for r in range(rows):
            self.seen_tokens[r] += new
            self.lengths[r] += new
            self.held[r].append(self.lengths[r] - self.extra[r])
            self.peaks[r] = max(self.peaks[r], self.lengths[r])

    def _protects(self, ids: Tensor, start: int) -> Tensor:
        """Which of the new tokens are never evicted: sinks, the prompt, the answer."""
        new, padding = ids.shape[1], self.new_padding
        protects = torch.zeros_like(ids, dtype=torch.bool)
        if self.budget is None:
            return protects
        self.reading = self.reading and (new > 1 or not start) if self.prompt is None else start < self.prompt
        if self.reading or min(self.real_tokens) < self.budget.sinks:
            real = torch.ones_like(ids) if padding is None else (~padding).long()
            number = torch.tensor(self.real_tokens, device=ids.device)[:, None] + real.cumsum(1) - 1
            protects |= number < self.budget.sinks
            if self.reading and self.budget.question:
                at = torch.arange(start, start + new, device=ids.device)
                protects |= at < self.prompt if self.prompt is not None else at >= 0
            protects &= real.bool()
            self.real_tokens = (number[:, -1] + 1).tolist()
            if self.reading:
                self.budget.check_prompt(min(max(self.real_tokens), self.prompt or max(self.real_tokens)))
        if start and self.budget.answer and self.end_of_thinking is not None:
            answer = ((ids == self.end_of_thinking).cumsum(1) > 0) | self.answering[:, None]
            self.answering = answer[:, -1]
            protects |= answer
        return protects

    def _record(self, ids: Tensor, protects: Tensor, features: Tensor | None) -> None:
        start, column, (rows, new) = self.seen_tokens[0], self.lengths[0], ids.shape
        at = slice(start, start + new)
        self.ids[:rows, at] = ids
        self.protected[:rows, at] = protects
        if self.new_padding is not None:
            self.padding[:rows, at] = self.new_padding
            self.padded = True
            if self.empty is not None:
                self.empty[:, :rows, :, column : column + new] = self.new_padding[:, None]
        if features is not None and self.features is not None:
            self.features[:rows, at] = features
        self.positions[:, :rows, :, column : column + new] = torch.arange(start, start + new, device=ids.device)

    def _prune(self) -> None:
        if self.budget is None or self.tokens < self.budget.budget:
            return
        rows, length = slice(0, len(self.lengths)), self.max_length
        kept = self.budget.kept(self.tokens, max(self._protected(rows, length)))
        if kept is not None and kept < self.tokens - self.budget.window:
            self._evict(rows, length, kept)
            if self.padded:
                left, seen = self._padding_columns(), self.seen_tokens[0]
                self.padded = bool(left.any())
                self.shifted = torch.equal(left, self.padding[:, seen - left.shape[1] : seen])

    def _padding_columns(self) -> Tensor:
        """Which columns are padding, R × n: the same in all layers and heads, because the oldest is evicted first."""
        if self.empty is not None:  # where padding counts as empty
            return self.padding[:, : self.max_length] & False
        columns = self.positions[0, :, :1, : self.max_length].long()
        return _at_positions(self.padding, columns)[:, 0]

    def _protected(self, rows: slice | Tensor, length: int) -> list[int]:
        """How many columns of each row outside the window are never evicted."""
        columns = self.positions[0, rows, :1, :length].long()
        protected = _at_positions(self.protected[rows], columns) & ~self._recent(rows, columns)
        counts: list[int] = protected.sum((1, 2)).tolist()
        return counts

    def _recent(self, rows: slice | Tensor, positions: Tensor) -> Tensor:
        """Which columns are in the window; `positions` are … × R × h × n."""
        assert self.budget
        return positions >= (self._seen(rows) - self.budget.window)[:, None, None]

    def _numbers(self, rows: slice | Tensor) -> list[int]:
        numbers: list[int] = rows.tolist() if isinstance(rows, Tensor) else list(range(len(self.lengths)))[rows]
        return numbers

    def _seen(self, rows: slice | Tensor) -> Tensor:
        return torch.tensor([self.seen_tokens[r] for r in self._numbers(rows)], device=self.ids.device)

    def _evict(self, rows: slice | Tensor, length: int, kept: int) -> None:
        """Keep the window and `kept` more columns, those that score highest, in rows of equal length."""
        assert self.budget
        positions = self.positions[:, rows, :, :length]  # layers × R × heads × n
        at, left = positions.long(), kept + self.budget.window
        scores = self._scores(rows, positions, length)
        padding = _at_positions(self.padding[rows], at) if self.padded else None
        if self.empty is not None:
            empty = self.empty[:, rows, :, :length]
            padding = empty if padding is None else empty | padding
        finite = scores.isfinite() if padding is None else scores.isfinite() | padding
        if not finite.all():
            raise UserError(f"the policy `{self.policy.plugin_name()}` returned a score that isn't a finite number")
        if padding is not None:
            scores = scores.masked_fill(padding, -torch.inf)
        scores = scores.masked_fill(_at_positions(self.protected[rows], at) | self._recent(rows, at), torch.inf)
        columns = left
        if self.empty is not None:
            columns = self._divide(rows, length, scores.masked_fill(self.empty[:, rows, :, :length], -torch.inf), left)
        elif left == length - 1 and padding is None and not self.policy.by_order:
            self._replace(rows, scores.argmin(-1), length - 1)
        else:
            # Sorted from the newest to the oldest, so that the oldest of equal scores leave first.
            best = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., :left]
            self._keep(rows, length, (length - 1 - best).sort(dim=-1).values)
        for r in self._numbers(rows):
            self.lengths[r], self.extra[r] = columns, max(0, columns - left)

    def _divide(self, rows: slice | Tensor, length: int, scores: Tensor, left: int) -> int:
        """Keep `left` columns on average, and return how many the longest head has; empty ones come first."""
        assert self.budget
        assert self.empty is not None
        assert self.budget.allocation != "even"
        counts = allotted(self.budget.allocation, scores, left)
        longest = int(counts.max())
        newest = scores.flip(-1).sort(dim=-1, descending=True, stable=True)
        columns = length - 1 - newest.indices[..., :longest]
        empty = torch.arange(longest, device=columns.device) >= counts[..., None]
        order = columns.masked_fill(empty, -1).argsort(-1)
        self._keep(rows, length, columns.gather(-1, order))
        self.empty[:, rows] = False
        self.empty[:, rows, :, :longest] = empty.gather(-1, order)
        return longest

    def hides(self, layer: Layer, mask: Tensor | None, query: Tensor, columns: int) -> Tensor | None:
        """A layer's attention mask, which also hides the empty columns of each head."""
        if self.empty is None:
            return mask
        new, empty = query.shape[2], self.empty[layer.number, : len(query), :, :columns]
        empty = pad(empty, (0, columns - empty.shape[-1]))[:, :, None]
        empty = empty.repeat_interleave(query.shape[1] // empty.shape[1], 1)
        if mask is None:
            mask = torch.ones(new, columns, dtype=torch.bool, device=query.device).tril(columns - new)
        return mask & ~empty if mask.dtype == torch.bool else mask.masked_fill(empty, torch.finfo(mask.dtype).min)

    def _replace(self, rows: slice | Tensor, columns: Tensor, last: int) -> None:
        """Move the newest column to where one is evicted, layers × R × heads: nothing else is copied.

        The order of columns is lost. A new token sees all of them, so no mask depends on it.
        """
        numbers = torch.arange(len(self.lengths), device=columns.device)[rows]
        new = self.positions[:, numbers, :, last : last + 1]
        index = columns[..., None].long()
        if isinstance(rows, slice):
            self.positions[:, rows].scatter_(3, index, new)
        else:
            self.positions[:, rows] = self.positions[:, rows].scatter(3, index, new)
        for n, layer in enumerate(self.pruned_layers):
            layer.replace(numbers, columns[n % len(columns)], last)

    def _keep(self, rows: slice | Tensor, length: int, columns: Tensor) -> None:
        """Keep columns, layers × R × heads × k, in this order."""
        self.positions[:, rows, :, : columns.shape[-1]] = self.positions[:, rows, :, :length].gather(3, columns)
        for n, layer in enumerate(self.pruned_layers):
            layer.keep(rows, columns[n % len(columns)])

    def _scores(self, rows: slice | Tensor, positions: Tensor, length: int) -> Tensor:
        """The policy's scores, averaged over what shares one decision: layers × R × heads × n."""
        assert self.budget
        unit, by_layer = self.budget.granularity, []
        for n, layer in enumerate(self.pruned_layers):
            scores = self._score(self._view(layer, rows, positions[n % len(positions)], length))
            by_layer.append(scores if unit == "head" else scores.mean(1, keepdim=True))
            if unit == "model" and not self.policy.per_layer:
                break
        if unit == "model":
            return torch.stack(by_layer).mean(0, keepdim=True)
        return torch.stack([scores.expand(-1, positions.shape[2], -1) for scores in by_layer])

    def _score(self, view: CacheView) -> Tensor:
        scores = self.policy.score(view).float()
        (rows, heads, n, _), own = view.keys.shape, tuple(scores.shape)
        if own not in ((rows, heads, n), (rows, 1, n)):
            what = f"the policy `{self.policy.plugin_name()}` returned scores of {own}"
            raise UserError(f"{what}, not of {rows} rows × {heads} heads × {n} tokens")
        return scores

    def _view(self, layer: Layer, rows: slice | Tensor, positions: Tensor, length: int) -> CacheView:
        index = positions.long()
        padding = _at_positions(self.padding[rows], index)
        if self.empty is not None:
            padding = padding | self.empty[layer.number, rows, :, :length]
        return CacheView(
            layer=layer.index,
            keys=layer.keys[rows, :, :length],
            values=layer.values[rows, :, :length],
            queries=None if layer.queries is None else layer.queries[rows],
            accumulated=None if layer.accumulated is None else layer.accumulated[rows, :, :length],
            scaling=1.0 if layer.weigh is None else layer.weigh.scaling,
            positions=positions,
            padding=padding,
            ids=_at_positions(self.ids[rows], index),
            features=None if self.features is None else _at_positions(self.features[rows], index),
            seen_tokens=max(self.seen_tokens[r] for r in self._numbers(rows)),
            seeds=self.seeds[rows],
            weigh=layer.weigh,
            frequencies=self.frequencies,
            asking=None if layer.queries is None else self._asking(rows, layer.queries.shape[2]),
        )

    def _asking(self, rows: slice | Tensor, w: int) -> Tensor:
        """The position of each row's most recent queries, R × w: negative for padding, and before the first token."""
        at = self._seen(rows)[:, None] - torch.arange(w, 0, -1, device=self.ids.device)
        return at.masked_fill(self.padding[rows].gather(1, at.clamp(min=0)), -1)


def _at_positions(facts: Tensor, positions: Tensor) -> Tensor:
    """Look up facts about tokens, R × seen tokens, at positions, … × R × h × n."""
    wide = facts[:, None].expand(-1, positions.shape[-2], -1)
    return wide.expand(*positions.shape[:-1], -1).gather(-1, positions)
