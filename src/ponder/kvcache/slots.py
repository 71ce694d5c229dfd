"""A cache for continuous batching: each row has its own length, and joins, leaves and is pruned independently."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ponder.core import UserError
from ponder.kvcache.cache import SelectCache


class SlotCache(SelectCache):
    """Decodes one token per row and step. A prompt is read with a `SelectCache` of its own, which then joins."""

    _ends: tuple[Tensor, Tensor] | None = None  # row numbers and lengths, the same for all layers of a step

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        text_only = model.config.get_text_config(decoder=True) is model.config
        positions = "position_ids" in inspect.signature(self.decoder.forward).parameters
        if not (self.observes and text_only and positions and len(self.pruned_layers) == len(self.layers)):
            what = "rows can join and leave only if a model reads text with full attention and takes `position_ids`"
            raise UserError(what, hint="serve it with vLLM and ask it through `endpoint`, or use a SelectCache")

    def write(self, buffer: Tensor, states: Tensor) -> None:
        if self._ends is None:
            lengths = torch.tensor(self.lengths, device=states.device)
            self._ends = torch.arange(len(lengths), device=states.device), lengths
        rows, lengths = self._ends
        buffer[rows, :, lengths] = states[:, :, 0]

    def after_forward(self, ids: Tensor | None, hidden: Tensor) -> None:
        super().after_forward(ids, hidden)
        self._ends = None

    def _new_padding(self, rows: int, new: int, seen: int, mask: Any) -> None:  # noqa: ARG002 the parent's
        if new > 1:
            raise UserError("a SlotCache reads one token per row and step", hint="read the prompt with a SelectCache")

    def mask(self) -> Tensor | None:
        """Which columns each row may attend to in the next step; None if all of them."""
        if min(self.lengths) == self.max_length:
            return None
        lengths = torch.tensor(self.lengths, device=self.ids.device)
        return (torch.arange(self.max_length + 1, device=lengths.device) <= lengths[:, None])[:, None, None]

    def join(self, one: SelectCache, seed: int) -> None:
        """Add a row: the only row of another cache, which has read its prompt."""
        self._ends = None
        self._check_rotation(one.rotated or [])
        row, length, seen = len(self.lengths), one.lengths[0], one.seen_tokens[0]
        self.lengths.append(length)
        self.extra.append(one.extra[0])
        self.peaks.append(one.peaks[0])
        for mine, other in zip(self.pruned_layers, one.pruned_layers, strict=True):
            if not mine.is_initialized:
                mine.lazy_initialization(other.keys, other.values)
            mine.reserve(row + 1, length)
            mine.keys[row, :, :length] = other.keys[0, :, :length]
            mine.values[row, :, :length] = other.values[0, :, :length]
            mine.weigh = other.weigh
            if mine.accumulated is not None and other.accumulated is not None:
                mine.accumulated[row] = 0
                mine.accumulated[row, :, :length] = other.accumulated[0, :, :length]
            if other.queries is not None:
                recent = other.queries.new_zeros(1, other.queries.shape[1], self.policy.queries, other.queries.shape[3])
                recent[:, :, self.policy.queries - other.queries.shape[2] :] = other.queries
                mine.queries = recent if mine.queries is None else torch.cat([mine.queries[:row], recent])
        self.ids = _with_row(self.ids, one.ids[:, :seen], row)
        self.padding = _with_row(self.padding, one.padding[:, :seen], row)
        self.protected = _with_row(self.protected, one.protected[:, :seen], row)
        self.features = None if one.features is None else _with_row(self.features, one.features[:, :seen], row)
        positions = self.positions.transpose(0, 1), one.positions[..., :length].transpose(0, 1)
        self.positions = _with_row(*positions, row).transpose(0, 1)
        if one.empty is not None:
            empty = None if self.empty is None else self.empty.transpose(0, 1)
            self.empty = _with_row(empty, one.empty[..., :length].transpose(0, 1), row).transpose(0, 1)
        self.seeds = torch.cat([self.seeds[:row], one.seeds.new_tensor([seed])])
        self.answering = torch.cat([self.answering[:row], one.answering])
        self.reading = False
        self.seen_tokens.append(seen)
        self.real_tokens.append(seen)
        self.held.append(one.held[0])

    def leave(self, row: int) -> None:
        """Remove a row; the last row takes its number."""
        self._ends = None
        last = len(self.lengths) - 1
        buffers = [self.ids, self.padding, self.protected, self.seeds, self.answering, self.positions.transpose(0, 1)]
        buffers += [self.features] if self.features is not None else []
        buffers += [self.empty.transpose(0, 1)] if self.empty is not None else []
        for layer in self.pruned_layers:
            buffers += [t for t in (layer.keys, layer.values, layer.accumulated, layer.queries) if t is not None]
        for buffer in buffers:
            buffer[row] = buffer[last]
        counts: tuple[list[Any], ...] = (
            *(self.lengths, self.extra, self.peaks),
            *(self.seen_tokens, self.real_tokens, self.held),
        )
        for count in counts:
            count[row] = count[last]
            count.pop()
        self.seeds, self.answering = self.seeds[:last], self.answering[:last]

    def _record(self, ids: Tensor, protects: Tensor, features: Tensor | None) -> None:
        rows = torch.arange(len(ids), device=ids.device)
        seen, columns = (torch.tensor(counts, device=ids.device) for counts in (self.seen_tokens, self.lengths))
        self.ids[rows, seen] = ids[:, 0]
        self.protected[rows, seen] = protects[:, 0]
        self.padding[rows, seen] = False
        if features is not None and self.features is not None:
            self.features[rows, seen] = features[:, 0]
        self.positions[:, rows, :, columns] = seen.to(torch.int32)[:, None, None]

    def _prune(self) -> None:
        if self.budget is None:
            return
        of_length: dict[tuple[int, int], list[int]] = {}
        for row, (length, extra) in enumerate(zip(self.lengths, self.extra, strict=True)):
            if length - extra >= self.budget.budget:
                of_length.setdefault((length, extra), []).append(row)
        for (length, extra), rows in of_length.items():
            alike: dict[int, list[int]] = {}
            for row, protected in zip(rows, self._protected(self._at(rows), length), strict=True):
                kept = self.budget.kept(length - extra, protected)
                if kept is not None and kept < length - extra - self.budget.window:
                    alike.setdefault(kept, []).append(row)
            for kept, each in alike.items():
                self._evict(self._at(each), length, kept)

    def _at(self, rows: list[int]) -> slice | Tensor:
        """These rows as an index: all of them as a slice, which copies nothing."""
        every = len(rows) == len(self.lengths)
        return slice(0, len(rows)) if every else torch.tensor(rows, device=self.ids.device)


def _with_row(rows: Tensor | None, one: Tensor, row: int) -> Tensor:
    """A buffer with one more row, widened if needed; columns are the last dimension."""
    rows = one[:0] if rows is None or not rows.numel() else rows
    columns = max(rows.shape[-1], one.shape[-1])
    new = one.new_zeros(max(len(rows), row + 1), *one.shape[1:-1], columns)
    new[: len(rows), ..., : rows.shape[-1]] = rows
    new[row] = 0
    new[row, ..., : one.shape[-1]] = one[0]
    return new
