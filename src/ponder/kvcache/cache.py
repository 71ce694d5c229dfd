"""A cache for `generate()` that prunes all rows of a batch together.

A decoding step, in order: `before_forward` checks the pass and its mask; each layer appends the new
keys and values to its buffer (`Layer.update`) and reports its queries (`Layer.observe`);
`after_forward` records the new tokens, and, if the budget is reached, evicts the columns that the
policy scores lowest.

Shapes: rows are the sequences of a batch, columns the cached tokens. Tensors by column are
(layers, rows, heads, columns), with a single layer or head if all of them share their decisions
(`granularity`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ponder.core import CacheBudget, Fitted, KeepsAll, Policy, UserError
from ponder.kvcache.allocation import columns_per_head
from ponder.kvcache.attention import PASS, causal_mask
from ponder.kvcache.hooks import SelectCacheBase, attach, stock_attention
from ponder.kvcache.layer import Layer, grown
from ponder.kvcache.rope import frequencies, length_dependent
from ponder.kvcache.supported import (
    STOCK_CACHE,
    cache_layers,
    check_tested,
    decoder_of,
    restarts,
    reveals_attention,
)
from ponder.kvcache.view import CacheView

Rows: TypeAlias = slice | Tensor  # row numbers; a slice indexes without a copy
EVEN = 'allocation = "even"'
NEW_CONVERSATION = "a cache serves one conversation: make a new SelectCache for another prompt"


class SelectCache(SelectCacheBase):
    """Pass it as `past_key_values`. All rows lose equally many columns, padding first.

    The prompt, which `question` protects, is what is read before the first pass of a single token,
    unless its length is given. `answer` protects what follows the token `end_of_thinking`.
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
        if not isinstance(policy, Policy):
            raise UserError(f"a SelectCache needs an object such as Snapkv(), not {policy!r}")
        if not isinstance(budget, CacheBudget | None):
            example = "CacheBudget(budget=1024, window=256)"
            raise UserError(f"a SelectCache needs an object such as {example}, not {budget!r}")
        if kernel not in ("grouped", "stock"):
            raise UserError(f"the kernel `{kernel}` is unknown", hint='"grouped" or "stock"')
        if isinstance(policy, KeepsAll):
            budget = None
        self.policy = policy
        self.budget = budget
        self.kernel = kernel
        self.end_of_thinking = end_of_thinking
        self.prompt = prompt

        self.decoder, self.outer_module = decoder_of(model)
        self.outer_inputs: dict[str, Any] = {}
        super().__init__(layers=cache_layers(self.decoder, lambda index: Layer(self, index)))
        for number, layer in enumerate(self.pruned_layers):
            layer.number = number
        if not untested:
            check_tested(model)
        self.allocates = budget is not None and budget.allocation != "even"
        self.needs_attention = bool(policy.queries or "attention" in policy.needs or self.allocates)
        # Whether the attention reports to this cache.
        self.observes = reveals_attention(self.decoder) and (
            self.needs_attention or kernel == "grouped"
        )
        if self.needs_attention and not self.observes:
            raise self._unrevealed()
        if self.allocates and not self._prunes_all_layers():
            raise UserError(
                "only a model with full attention in all layers can divide a budget", hint=EVEN
            )
        stock_attention(self.decoder.config)  # raises an error if it can't be observed

        self.shape = (0, 0)  # rows and new tokens of this forward pass
        self.failed = ""  # why the cache can't be used any more
        # By row:
        self.lengths: list[int] = []  # columns
        self.extra: list[int] = []  # columns beyond the mean tokens per head
        self.peaks: list[int] = []  # the most columns so far
        self.seen_tokens: list[int] = []  # tokens, evicted ones included
        self.held: list[list[int]] = []  # tokens per head after each forward pass, before pruning
        self.real_tokens: list[int] = []  # not padding; counted while some may be sinks
        self.answering = torch.zeros(0, dtype=torch.bool)  # whether thinking has ended
        self.seeds = torch.zeros(0, dtype=torch.long)  # for policies that draw at random
        self.reading = True  # whether the prompt is being read
        # By position, (rows, seen tokens):
        self.ids = torch.zeros(0, 0, dtype=torch.long)
        self.protected = torch.zeros(0, 0, dtype=torch.bool)
        self.padding = torch.zeros(0, 0, dtype=torch.bool)
        self.features: Tensor | None = None
        # By column, (layers, rows, heads, columns):
        self.positions = torch.zeros(1, 0, 1, 0, dtype=torch.int32)  # of each column's token
        self.empty: Tensor | None = None  # columns without a token; None if allocation is even
        # Padding:
        self.new_padding: Tensor | None = None  # (rows, new); None if there is none
        self.padded = False  # whether any column is padding
        self.shifted = True  # whether the remaining padding is the model's mask, shifted

        self.frequencies: Tensor | None = None
        if "rope" in policy.needs:
            self.frequencies = frequencies(self.decoder)
            if self.frequencies is None:
                raise UserError(
                    f"the policy `{policy.plugin_name()}` needs rotary embeddings like Llama's;"
                    " this model has others",
                    hint="another policy, such as snapkv",
                )
        self.changing_rope = length_dependent(self.decoder)
        self.rope_buffers: list[Tensor] | None = None  # of `changing_rope`, when keys were cached
        attach(self, self.outer_module)

    def _prunes_all_layers(self) -> bool:
        indices = {layer.index for layer in self.pruned_layers}
        return all(getattr(module, "layer_idx", 0) in indices for module in self.decoder.modules())

    def __deepcopy__(self, memo: dict[int, Any]) -> SelectCache:
        copied = object.__new__(type(self))
        shared = {"decoder", "outer_module", "changing_rope", "policy", "budget", "layers"}
        for name, attribute in vars(self).items():
            vars(copied)[name] = attribute if name in shared else deepcopy(attribute, memo)
        copied.layers = []
        for layer in self.layers:
            if isinstance(layer, Layer):
                copied.layers.append(layer.copy_for(copied))
            else:
                copied.layers.append(deepcopy(layer, memo))
        attach(copied, copied.outer_module)
        return copied

    def __repr__(self) -> str:
        policy = type(self.policy).__name__
        seen = max(self.seen_tokens, default=0)
        tokens = self.tokens
        size = "empty"
        if tokens:
            size = f"{tokens * self.token_bytes * len(self.lengths) / 1e6:.3g} MB"
        return f"SelectCache({policy}: holds {tokens:,} of {seen:,} tokens in each row, {size})"

    def __copy__(self) -> NoReturn:
        raise UserError("two caches can't share their buffers", hint="copy.deepcopy(cache)")

    def __reduce__(self) -> NoReturn:
        raise UserError(
            "a cache belongs to a model in memory and can't be pickled",
            hint="store the text instead",
        )

    @property
    def pruned_layers(self) -> list[Layer]:
        """Return the layers that this cache prunes."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def layer(self, index: int | None) -> Layer | None:
        """Return the layer with this index in the model, or None if it isn't pruned."""
        if index is None or index >= len(self.layers):
            return None
        layer = self.layers[index]
        if not isinstance(layer, Layer):
            return None
        return layer

    @property
    def max_length(self) -> int:
        """Return the columns of the longest row."""
        return max(self.lengths, default=0)

    @property
    def token_bytes(self) -> int:
        """Return the bytes that a token takes in all layers together."""
        total = 0
        for layer in self.pruned_layers:
            for buffer in (layer.keys, layer.values):
                _, kv_heads, _, head_dim = buffer.shape
                total += kv_heads * head_dim * buffer.element_size()
        return total

    @property
    def tokens(self) -> int:
        """Return the tokens of the longest row, averaged over heads."""
        return max(
            (length - extra for length, extra in zip(self.lengths, self.extra, strict=True)),
            default=0,
        )

    # A forward pass

    def before_forward(
        self, shape: Sequence[int], mask: Tensor | None, position_ids: Tensor | None
    ) -> Tensor | None:
        rows, new = shape[:2]
        seen = max(self.seen_tokens, default=0)
        if self.failed:
            raise UserError(self.failed, hint="make a new SelectCache")
        if not new:
            raise UserError(
                f"this cache has read {seen} tokens already, and there is no new one",
                hint=NEW_CONVERSATION,
            )
        if self.lengths and rows != len(self.lengths):
            raise UserError(
                f"this cache has {len(self.lengths)} rows, and the batch has {rows}",
                hint="make a new SelectCache for each batch",
            )
        if seen and new > 1 and restarts(self.decoder):
            raise UserError(
                "the recurrent layers of this model forget the text when several further tokens"
                " are read at once",
                hint="read the prompt in one pass, and what follows token by token",
            )
        self.shape = (rows, new)
        self.new_padding = self._new_padding(rows, new, seen, mask)
        for layer in self.pruned_layers:
            layer.updated = False
            layer.observed = False
        if self.shifted or mask is None:
            return mask
        if position_ids is None or len(self.pruned_layers) < len(self.layers):
            raise UserError(
                "padding in the middle of a text needs `position_ids`, and a model with full"
                " attention in all layers",
                hint="pad on the left, once",
            )
        mask = mask.clone()
        mask[:, seen - self.max_length : seen] = ~self._padding_columns()
        return mask

    def _new_padding(self, rows: int, new: int, seen: int, mask: Any) -> Tensor | None:
        """Return which new tokens are padding, (rows, new), or None if none is."""
        if mask is None:
            if self.padded:
                raise UserError(
                    "padding was read before", hint="pass the attention mask of the whole text"
                )
            return None
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            raise UserError(
                "a cache that evicts tokens needs an attention mask of rows × tokens",
                hint="leave it out if there is no padding",
            )
        if mask.shape != (rows, seen + new):
            raise UserError(
                f"the attention mask has {mask.shape[1]} columns; {seen} tokens were read"
                f" before, and {new} are new",
                hint=NEW_CONVERSATION,
            )
        padding = mask == 0
        if seen and not torch.equal(
            padding[:, :seen].to(self.padding.device), self.padding[:, :seen]
        ):
            raise UserError(
                "the attention mask hides other tokens than before", hint="repeat the earlier mask"
            )
        new_padding = padding[:, seen:]
        if not new_padding.any():
            return None
        return new_padding

    def check_pass(self) -> None:
        """Raise `UserError` if this cache isn't informed of the forward pass that writes to it."""
        if PASS.cache is not self:
            raise UserError(
                "this cache was made for another model, or for a part of one that isn't called",
                hint="make it for the model that is called",
            )

    def capacity(self, columns: int) -> int:
        """Return how large to make a buffer that must hold this many columns now."""
        if self.budget and columns <= self.budget.budget + 1:
            return min(2 * columns, self.budget.budget + 1)
        if not self.lengths:
            return columns
        return columns + max(32, columns // 16)

    def write(self, buffer: Tensor, states: Tensor) -> None:
        """Append states, (rows, kv_heads, new, head_dim), to the rows of a buffer."""
        start = self.max_length
        buffer[: len(states), :, start : start + states.shape[2]] = states

    def hide_empty_columns(
        self, layer: Layer, mask: Tensor | None, query: Tensor, columns: int
    ) -> Tensor | None:
        """Return a layer's attention mask, in which the empty columns of each head are hidden.

        `query` is (rows, query heads, new, head_dim); `columns` include the new tokens.
        """
        if self.empty is None:
            return mask
        rows, query_heads, new, _ = query.shape
        empty = self.empty[layer.number, :rows, :, :columns]
        empty = pad(empty, (0, columns - empty.shape[-1]))  # new tokens aren't in it yet
        empty = empty[:, :, None].repeat_interleave(query_heads // empty.shape[1], 1)
        if mask is None:
            mask = causal_mask(new, columns, query.device)
        if mask.dtype == torch.bool:
            return mask & ~empty
        return mask.masked_fill(empty, torch.finfo(mask.dtype).min)

    def after_forward(self, ids: Tensor | None, hidden: Tensor) -> None:
        rows, new = self.shape
        output_rows, output_tokens = hidden.shape[:2]
        if (output_rows, output_tokens) != (rows, new):
            raise UserError(
                f"this model read {rows} × {new} tokens and returned {output_rows} ×"
                f" {output_tokens} hidden states",
                hint=STOCK_CACHE,
            )
        self._check_layers()
        self._check_rotation(
            [buffer for module in self.changing_rope for buffer in module.buffers()]
        )
        if not self.lengths:
            self._start(rows, hidden.device)
        if ids is None:
            ids = torch.full((rows, new), -1, device=hidden.device)
        features = None
        if isinstance(self.policy, Fitted):
            features = self.policy.token_features(hidden, ids)
        self._append(ids, features)
        self._prune()

    def _check_layers(self) -> None:
        """Raise `UserError` if a layer didn't take part in a forward pass as it should have."""
        for layer in self.pruned_layers:
            if not layer.updated:
                raise UserError(
                    f"layer {layer.index} of this model didn't use its cache", hint=STOCK_CACHE
                )
            if self.needs_attention and not layer.observed:
                raise self._unrevealed()

    def _check_rotation(self, rope_buffers: list[Tensor]) -> None:
        """Raise `UserError` if new keys are rotated by other frequencies than cached ones."""
        if self.rope_buffers is None:
            self.rope_buffers = rope_buffers
        if not all(map(torch.equal, self.rope_buffers, rope_buffers)):
            raise UserError(
                "the rotary embeddings of this model changed with the length of the text, after"
                " keys were cached",
                hint="a shorter text, or `rope_parameters` that don't depend on it, like yarn's",
            )

    def _unrevealed(self) -> UserError:
        if self.allocates:
            return UserError(
                "a budget can be divided only if a model reveals its attention", hint=EVEN
            )
        return UserError(
            f"`{self.policy.plugin_name()}` needs attention, which this model doesn't reveal",
            hint="use `streaming` or `random`",
        )

    # New tokens

    def _start(self, rows: int, device: torch.device) -> None:
        """Make empty records for this many rows, in the first forward pass."""
        self.lengths = [0] * rows
        self.extra = [0] * rows
        self.peaks = [0] * rows
        self.seen_tokens = [0] * rows
        self.real_tokens = [0] * rows
        self.held = [[] for _ in range(rows)]
        self.answering = torch.zeros(rows, dtype=torch.bool, device=device)
        self.seeds = torch.arange(rows, device=device)
        self.ids = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self.protected = torch.zeros(rows, 0, dtype=torch.bool, device=device)
        self.padding = torch.zeros(rows, 0, dtype=torch.bool, device=device)

        layers = self.pruned_layers
        if any(layer.keys.device != device for layer in layers):
            raise UserError(
                "the layers of this model are on several devices", hint="load it on one"
            )
        deciding_layers = 1
        deciding_heads = 1
        if self.budget and self.budget.granularity != "model":
            deciding_layers = len(layers)
        if self.budget and self.budget.granularity == "head":
            deciding_heads = layers[0].keys.shape[1]
            if any(layer.keys.shape[1] != deciding_heads for layer in layers):
                raise UserError(
                    "the layers of this model have different numbers of key-value heads",
                    hint='granularity = "layer"',
                )
        shape = (deciding_layers, rows, deciding_heads, 0)
        self.positions = torch.zeros(shape, dtype=torch.int32, device=device)
        if self.allocates:
            self.empty = torch.zeros(shape, dtype=torch.bool, device=device)

    def _append(self, ids: Tensor, features: Tensor | None) -> None:
        """Record new tokens, (rows, new); their keys and values are in the buffers already."""
        rows, new = ids.shape
        start = max(self.seen_tokens)
        self._reserve(start + new, self.max_length + new)
        if features is not None and self.features is None:
            self.features = grown(features[:, :0], (rows, self.ids.shape[1]))
        self._record(ids, self._protect(ids, start), features)
        for row in range(rows):
            self.seen_tokens[row] += new
            self.lengths[row] += new
            self.held[row].append(self.lengths[row] - self.extra[row])
            self.peaks[row] = max(self.peaks[row], self.lengths[row])

    def _reserve(self, tokens: int, columns: int) -> None:
        """Grow the records by position and by column to at least this size."""
        if tokens > self.ids.shape[1]:
            shape = (len(self.ids), 2 * tokens)
            self.ids = grown(self.ids, shape)
            self.padding = grown(self.padding, shape)
            self.protected = grown(self.protected, shape)
            if self.features is not None:
                self.features = grown(self.features, shape)
        if columns > self.positions.shape[3]:
            wider = (*self.positions.shape[:3], 2 * columns)
            self.positions = grown(self.positions, wider)
            if self.empty is not None:
                self.empty = grown(self.empty, wider)

    def _protect(self, ids: Tensor, start: int) -> Tensor:
        """Return which of the new tokens are never evicted, (rows, new): sinks, prompt, answer."""
        protected = torch.zeros_like(ids, dtype=torch.bool)
        if self.budget is None:
            return protected
        new = ids.shape[1]
        if self.prompt is not None:
            self.reading = start < self.prompt
        elif start and new == 1:
            self.reading = False

        if self.reading or min(self.real_tokens) < self.budget.sinks:
            is_token = torch.ones_like(ids)
            if self.new_padding is not None:
                is_token = (~self.new_padding).long()
            earlier = torch.tensor(self.real_tokens, device=ids.device)[:, None]
            # Each token's number in its row; padding isn't counted.
            number = earlier + is_token.cumsum(1) - 1
            protected |= number < self.budget.sinks
            if self.reading and self.budget.question:
                positions = torch.arange(start, start + new, device=ids.device)
                prompt_end = start + new if self.prompt is None else self.prompt
                protected |= positions < prompt_end
            protected &= is_token.bool()
            self.real_tokens = (number[:, -1] + 1).tolist()
            if self.reading:
                longest = max(self.real_tokens)
                self.budget.check_prompt(min(longest, self.prompt or longest))

        if start and self.budget.answer and self.end_of_thinking is not None:
            ended = (ids == self.end_of_thinking).cumsum(1) > 0
            answer = ended | self.answering[:, None]
            self.answering = answer[:, -1]
            protected |= answer
        return protected

    def _record(self, ids: Tensor, protected: Tensor, features: Tensor | None) -> None:
        """Write what is known of the new tokens, each (rows, new), to the records."""
        rows, new = ids.shape
        start = self.seen_tokens[0]
        at_positions = slice(start, start + new)
        at_columns = slice(self.lengths[0], self.lengths[0] + new)
        self.ids[:rows, at_positions] = ids
        self.protected[:rows, at_positions] = protected
        if self.new_padding is not None:
            self.padding[:rows, at_positions] = self.new_padding
            self.padded = True
            if self.empty is not None:
                self.empty[:, :rows, :, at_columns] = self.new_padding[:, None]
        if features is not None and self.features is not None:
            self.features[:rows, at_positions] = features
        self.positions[:, :rows, :, at_columns] = torch.arange(
            start, start + new, device=ids.device
        )

    # Eviction

    def _prune(self) -> None:
        """Evict columns if the budget is reached."""
        if self.budget is None or self.tokens < self.budget.budget:
            return
        rows = slice(0, len(self.lengths))
        length = self.max_length
        kept = self.budget.kept(self.tokens, max(self._count_protected(rows, length)))
        if kept is None or kept >= self.tokens - self.budget.window:
            return
        self._evict(rows, length, kept)
        if self.padded:
            padding = self._padding_columns()
            seen = self.seen_tokens[0]
            self.padded = bool(padding.any())
            self.shifted = torch.equal(padding, self.padding[:, seen - padding.shape[1] : seen])

    def _padding_columns(self) -> Tensor:
        """Return which columns are padding, (rows, columns).

        It is the same in all layers and heads, because the oldest padding is evicted first.
        """
        if self.empty is not None:  # padding counts as empty
            return torch.zeros_like(self.padding[:, : self.max_length])
        positions = self.positions[0, :, :1, : self.max_length].long()
        return _at_positions(self.padding, positions)[:, 0]

    def _count_protected(self, rows: Rows, length: int) -> list[int]:
        """Return how many columns of each row, outside the window, are never evicted."""
        positions = self.positions[0, rows, :1, :length].long()
        protected = _at_positions(self.protected[rows], positions) & ~self._in_window(
            rows, positions
        )
        counts: list[int] = protected.sum((1, 2)).tolist()
        return counts

    def _in_window(self, rows: Rows, positions: Tensor) -> Tensor:
        """Return which positions, (…, rows, heads, columns), are in the window."""
        assert self.budget
        return positions >= (self._seen_by_row(rows) - self.budget.window)[:, None, None]

    def _seen_by_row(self, rows: Rows) -> Tensor:
        return torch.tensor(
            [self.seen_tokens[row] for row in self._row_numbers(rows)], device=self.ids.device
        )

    def _row_numbers(self, rows: Rows) -> list[int]:
        if isinstance(rows, slice):
            return list(range(len(self.lengths)))[rows]
        numbers: list[int] = rows.tolist()
        return numbers

    def _evict(self, rows: Rows, length: int, kept: int) -> None:
        """Keep the window and the `kept` columns that score highest, in rows of this length."""
        assert self.budget
        tokens = kept + self.budget.window  # per head, on average
        columns = tokens  # of the longest head
        scores = self._scores(rows, length)
        if self.empty is not None:
            columns = self._keep_unevenly(rows, length, scores, tokens)
        elif tokens == length - 1 and not self.padded and not self.policy.by_order:
            # Only one column is evicted, and the order of columns doesn't matter.
            self._replace(rows, scores.argmin(-1), length - 1)
        else:
            self._keep(rows, length, _best_columns(scores, tokens).sort(dim=-1).values)
        for row in self._row_numbers(rows):
            self.lengths[row] = columns
            self.extra[row] = max(0, columns - tokens)

    def _keep(self, rows: Rows, length: int, columns: Tensor) -> None:
        """Keep these columns, (layers, rows, heads, kept), in this order."""
        positions = self.positions[:, rows, :, :length]
        self.positions[:, rows, :, : columns.shape[-1]] = positions.gather(3, columns)
        for layer in self.pruned_layers:
            layer.keep(rows, _of_layer(columns, layer))

    def _replace(self, rows: Rows, columns: Tensor, newest: int) -> None:
        """Overwrite one evicted column of each head, (layers, rows, heads), with the newest.

        Nothing else is copied. The order of columns is lost; a new token sees all of them, so no
        mask depends on it.
        """
        row_numbers = torch.arange(len(self.lengths), device=columns.device)[rows]
        newest_positions = self.positions[:, row_numbers, :, newest : newest + 1]
        index = columns[..., None].long()
        if isinstance(rows, slice):
            self.positions[:, rows].scatter_(3, index, newest_positions)
        else:
            self.positions[:, rows] = self.positions[:, rows].scatter(3, index, newest_positions)
        for layer in self.pruned_layers:
            layer.replace(row_numbers, _of_layer(columns, layer), newest)

    def _keep_unevenly(self, rows: Rows, length: int, scores: Tensor, tokens: int) -> int:
        """Keep `tokens` columns per head on average, and return how many the longest head has.

        The other heads get empty columns, which come first.
        """
        assert self.budget
        assert self.empty is not None
        assert self.budget.allocation != "even"
        counts = columns_per_head(self.budget.allocation, scores, tokens)
        longest = int(counts.max())
        columns = _best_columns(scores, longest)
        empty = torch.arange(longest, device=columns.device) >= counts[..., None]
        order = columns.masked_fill(empty, -1).argsort(-1)  # empty ones first, the others in order
        self._keep(rows, length, columns.gather(-1, order))
        self.empty[:, rows] = False
        self.empty[:, rows, :, :longest] = empty.gather(-1, order)
        return longest

    # Scores

    def _scores(self, rows: Rows, length: int) -> Tensor:
        """Return the score of each column, (layers, rows, heads, columns).

        It is the policy's, but +inf for what is never evicted, and -inf for padding and empty
        columns.
        """
        positions = self.positions[:, rows, :, :length].long()
        scores = self._policy_scores(rows, length)
        finite = scores.isfinite()
        if self.padded:
            padding = _at_positions(self.padding[rows], positions)
            finite |= padding
            scores = scores.masked_fill(padding, -torch.inf)
        if self.empty is not None:
            finite |= self.empty[:, rows, :, :length]
        if not finite.all():
            raise UserError(
                f"the policy `{self.policy.plugin_name()}` returned a score that isn't a finite"
                " number"
            )
        protected = _at_positions(self.protected[rows], positions)
        scores = scores.masked_fill(protected | self._in_window(rows, positions), torch.inf)
        if self.empty is not None:  # last: such a column has the position of an earlier token
            scores = scores.masked_fill(self.empty[:, rows, :, :length], -torch.inf)
        return scores

    def _policy_scores(self, rows: Rows, length: int) -> Tensor:
        """Return the policy's scores, averaged over the heads or layers that share one decision.

        Shape: (layers, rows, heads, columns).
        """
        assert self.budget
        granularity = self.budget.granularity
        positions = self.positions[:, rows, :, :length]
        by_layer = []
        for layer in self.pruned_layers:
            view = self._view(layer, rows, _of_layer(positions, layer), length)
            scores = self.policy.score(view).float()
            self._check_shape(scores, view)
            if granularity == "head":
                scores = scores.expand(-1, positions.shape[2], -1)
            else:
                scores = scores.mean(1, keepdim=True)
            by_layer.append(scores)
            if granularity == "model" and not self.policy.per_layer:
                break  # the other layers would have the same scores
        stacked = torch.stack(by_layer)
        if granularity == "model":
            return stacked.mean(0, keepdim=True)
        return stacked

    def _check_shape(self, scores: Tensor, view: CacheView) -> None:
        """Raise `UserError` unless scores are (rows, kv_heads, columns) or (rows, 1, columns)."""
        rows, kv_heads, columns, _ = view.keys.shape
        shape = tuple(scores.shape)
        if shape not in ((rows, kv_heads, columns), (rows, 1, columns)):
            raise UserError(
                f"the policy `{self.policy.plugin_name()}` returned scores of {shape}, "
                f"not of {rows} rows × {kv_heads} heads × {columns} tokens"
            )

    def _view(self, layer: Layer, rows: Rows, positions: Tensor, length: int) -> CacheView:
        """Return what a policy sees of a layer; `positions` are (rows, heads, columns)."""
        index = positions.long()
        padding = _at_positions(self.padding[rows], index)
        if self.empty is not None:
            padding = padding | self.empty[layer.number, rows, :, :length]
        features = None
        if self.features is not None:
            features = _at_positions(self.features[rows], index)
        queries = None
        query_positions = None
        if layer.queries is not None:
            queries = layer.queries[rows]
            query_positions = self._query_positions(rows, queries.shape[2])
        accumulated = None
        if layer.accumulated is not None:
            accumulated = layer.accumulated[rows, :, :length]
        scaling = 1.0
        if layer.attention_weights_function is not None:
            scaling = layer.attention_weights_function.scaling
        return CacheView(
            layer=layer.index,
            keys=layer.keys[rows, :, :length],
            values=layer.values[rows, :, :length],
            queries=queries,
            accumulated=accumulated,
            scaling=scaling,
            positions=positions,
            padding=padding,
            ids=_at_positions(self.ids[rows], index),
            features=features,
            seen_tokens=max(self.seen_tokens[row] for row in self._row_numbers(rows)),
            seeds=self.seeds[rows],
            attention_weights=layer.attention_weights_function,
            frequencies=self.frequencies,
            query_positions=query_positions,
        )

    def _query_positions(self, rows: Rows, count: int) -> Tensor:
        """Return the positions of the most recent queries, (rows, count).

        They are negative for padding, and before the first token.
        """
        seen = self._seen_by_row(rows)[:, None]
        positions = seen - torch.arange(count, 0, -1, device=self.ids.device)
        is_padding = self.padding[rows].gather(1, positions.clamp(min=0))
        return positions.masked_fill(is_padding, -1)


def _best_columns(scores: Tensor, count: int) -> Tensor:
    """Return the columns with the highest scores, (…, count), the best first.

    Sorted from the newest on, so that the oldest of equal scores are left out.
    """
    newest_first = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices
    return scores.shape[-1] - 1 - newest_first[..., :count]


def _of_layer(by_layer: Tensor, layer: Layer) -> Tensor:
    """Return a layer's entry of a tensor that has one for each pruned layer, or one for all."""
    return by_layer[layer.number % len(by_layer)]


def _at_positions(by_position: Tensor, positions: Tensor) -> Tensor:
    """Look up a record, (rows, seen tokens), at positions, (…, rows, heads, columns)."""
    by_head = by_position[:, None].expand(-1, positions.shape[-2], -1)
    return by_head.expand(*positions.shape[:-1], -1).gather(-1, positions)
