"""A cache for continuous batching.

Each row has its own length, and joins, leaves and is pruned independently.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ponder.core import UserError
from ponder.kvcache.cache import Rows, SelectCache
from ponder.kvcache.layer import Layer


class SlotCache(SelectCache):
    """Decodes one token per row and step.

    A prompt is read with its own `SelectCache`, which then joins as a row.
    """

    # Row numbers and lengths, each (rows,); the same for all layers of a step.
    _row_ends: tuple[Tensor, Tensor] | None = None

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        text_only = model.config.get_text_config(decoder=True) is model.config
        takes_positions = "position_ids" in inspect.signature(self.decoder.forward).parameters
        full_attention = len(self.pruned_layers) == len(self.layers)
        if not (self.observes and text_only and takes_positions and full_attention):
            raise UserError(
                "rows can join and leave only if a model reads text with full attention and"
                " takes `position_ids`",
                hint="serve it with vLLM and ask it through `endpoint`, or use a SelectCache",
            )

    def mask(self) -> Tensor | None:
        """Return which columns each row may attend to in the next step, or None if all.

        Shape: (rows, 1, 1, columns + 1).
        """
        if min(self.lengths) == self.max_length:
            return None
        lengths = torch.tensor(self.lengths, device=self.ids.device)
        columns = torch.arange(self.max_length + 1, device=lengths.device)
        return (columns <= lengths[:, None])[:, None, None]

    def join(self, prompt: SelectCache, seed: int) -> None:
        """Add a row: the only row of a cache that has read a prompt."""
        self._row_ends = None
        self._check_rotation(prompt.rope_buffers or [])
        row = len(self.lengths)
        length = prompt.lengths[0]
        seen = prompt.seen_tokens[0]

        self.lengths.append(length)
        self.extra.append(prompt.extra[0])
        self.peaks.append(prompt.peaks[0])
        self.seen_tokens.append(seen)
        self.real_tokens.append(seen)
        self.held.append(prompt.held[0])
        self.seeds = torch.cat([self.seeds[:row], prompt.seeds.new_tensor([seed])])
        self.answering = torch.cat([self.answering[:row], prompt.answering])
        self.reading = False
        for layer, prompt_layer in zip(self.pruned_layers, prompt.pruned_layers, strict=True):
            self._join_layer(layer, prompt_layer, row, length)

        self.ids = _with_row(self.ids, prompt.ids[:, :seen], row)
        self.padding = _with_row(self.padding, prompt.padding[:, :seen], row)
        self.protected = _with_row(self.protected, prompt.protected[:, :seen], row)
        if prompt.features is not None:
            self.features = _with_row(self.features, prompt.features[:, :seen], row)
        # By column, rows are the second dimension.
        positions = prompt.positions[..., :length].transpose(0, 1)
        self.positions = _with_row(self.positions.transpose(0, 1), positions, row).transpose(0, 1)
        if prompt.empty is not None:
            empty = prompt.empty[..., :length].transpose(0, 1)
            earlier = None if self.empty is None else self.empty.transpose(0, 1)
            self.empty = _with_row(earlier, empty, row).transpose(0, 1)

    def _join_layer(self, layer: Layer, prompt: Layer, row: int, length: int) -> None:
        """Copy the only row of a prompt's layer to a row of this cache's."""
        if not layer.is_initialized:
            layer.lazy_initialization(prompt.keys, prompt.values)
        layer.reserve(row + 1, length)
        layer.keys[row, :, :length] = prompt.keys[0, :, :length]
        layer.values[row, :, :length] = prompt.values[0, :, :length]
        layer.attention_weights_function = prompt.attention_weights_function
        if layer.accumulated is not None and prompt.accumulated is not None:
            layer.accumulated[row] = 0
            layer.accumulated[row, :, :length] = prompt.accumulated[0, :, :length]
        if prompt.queries is not None:
            # A short prompt has fewer queries than the policy asks for; zeros come before them.
            _, heads, count, head_dim = prompt.queries.shape
            queries = prompt.queries.new_zeros(1, heads, self.policy.queries, head_dim)
            queries[:, :, self.policy.queries - count :] = prompt.queries
            if layer.queries is not None:
                queries = torch.cat([layer.queries[:row], queries])
            layer.queries = queries

    def leave(self, row: int) -> None:
        """Remove a row; the last row takes its number."""
        self._row_ends = None
        last = len(self.lengths) - 1
        buffers: list[Tensor | None] = [self.ids, self.padding, self.protected, self.features]
        buffers += [self.seeds, self.answering, self.positions.transpose(0, 1)]
        if self.empty is not None:
            buffers.append(self.empty.transpose(0, 1))
        for layer in self.pruned_layers:
            buffers += [layer.keys, layer.values, layer.accumulated, layer.queries]
        for buffer in buffers:
            if buffer is not None:
                buffer[row] = buffer[last]
        self.seeds = self.seeds[:last]
        self.answering = self.answering[:last]
        counts: list[list[Any]] = [self.lengths, self.extra, self.peaks]
        counts += [self.seen_tokens, self.real_tokens, self.held]
        for count in counts:
            count[row] = count[last]
            count.pop()

    def _new_padding(self, rows: int, new: int, seen: int, mask: Any) -> None:  # noqa: ARG002 the parent's
        if new > 1:
            raise UserError(
                "a SlotCache reads one token per row and step",
                hint="read the prompt with a SelectCache",
            )

    def write(self, buffer: Tensor, states: Tensor) -> None:
        if self._row_ends is None:
            lengths = torch.tensor(self.lengths, device=states.device)
            self._row_ends = (torch.arange(len(lengths), device=states.device), lengths)
        rows, lengths = self._row_ends
        buffer[rows, :, lengths] = states[:, :, 0]

    def after_forward(self, ids: Tensor | None, hidden: Tensor) -> None:
        super().after_forward(ids, hidden)
        self._row_ends = None

    def _record(self, ids: Tensor, protected: Tensor, features: Tensor | None) -> None:
        rows = torch.arange(len(ids), device=ids.device)
        seen = torch.tensor(self.seen_tokens, device=ids.device)
        columns = torch.tensor(self.lengths, device=ids.device)
        self.ids[rows, seen] = ids[:, 0]
        self.protected[rows, seen] = protected[:, 0]
        self.padding[rows, seen] = False
        if features is not None and self.features is not None:
            self.features[rows, seen] = features[:, 0]
        self.positions[:, rows, :, columns] = seen.to(torch.int32)[:, None, None]

    def _prune(self) -> None:
        """Evict columns of the rows that have reached the budget, equal rows together."""
        if self.budget is None:
            return
        by_length: dict[tuple[int, int], list[int]] = {}
        for row, (length, extra) in enumerate(zip(self.lengths, self.extra, strict=True)):
            if length - extra >= self.budget.budget:
                by_length.setdefault((length, extra), []).append(row)
        for (length, extra), rows in by_length.items():
            tokens = length - extra
            protected = self._count_protected(self._index(rows), length)
            by_kept: dict[int, list[int]] = {}
            for row, row_protected in zip(rows, protected, strict=True):
                kept = self.budget.kept(tokens, row_protected)
                if kept is not None and kept < tokens - self.budget.window:
                    by_kept.setdefault(kept, []).append(row)
            for kept, equal_rows in by_kept.items():
                self._evict(self._index(equal_rows), length, kept)

    def _index(self, rows: list[int]) -> Rows:
        """Return an index of these rows; for all of them a slice, which copies nothing."""
        if len(rows) == len(self.lengths):
            return slice(0, len(rows))
        return torch.tensor(rows, device=self.ids.device)


def _with_row(buffer: Tensor | None, new_row: Tensor, row: int) -> Tensor:
    """Return a buffer, (rows, …, columns), in which `new_row`, (1, …, columns), has this number.

    It is made longer and wider as needed.
    """
    if buffer is None or not buffer.numel():
        buffer = new_row[:0]
    rows = max(len(buffer), row + 1)
    columns = max(buffer.shape[-1], new_row.shape[-1])
    larger = new_row.new_zeros(rows, *new_row.shape[1:-1], columns)
    larger[: len(buffer), ..., : buffer.shape[-1]] = buffer
    larger[row] = 0
    larger[row, ..., : new_row.shape[-1]] = new_row[0]
    return larger
