"""The caches themselves: where keys and values lie, which of them are whose, and which leave."""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicSlidingWindowLayer

from ponder.caches._attention import prepare
from ponder.core import CacheBudget, Policy, UserError

BLOCK = 64  # buffers grow in multiples of this


@dataclass(frozen=True)
class CacheView:
    """What a policy may look at, in one layer, of rows that are as long as each other.

    R rows, H heads of the cache, G queries a head, n columns, w last queries, D numbers; h is H or, where heads choose
    together, 1.
    """

    layer: int
    keys: Tensor  # R × H × n × D
    values: Tensor
    queries: Tensor | None  # R × HG × w × D, as many as the policy asks for
    received: Tensor | None  # R × H × n: attention summed over all queries so far, if the policy asks for it
    scaling: float
    places: Tensor  # R × h × n: how many tokens came before this one
    padding: Tensor  # R × h × n
    ids: Tensor  # R × h × n: the tokens; -1 where the model was called without them
    born: Tensor | None  # R × h × n: what the policy said of each token when it came
    seen: int  # tokens so far, those that left too
    seeds: Tensor  # R

    def attention(self) -> Tensor:
        """Of the last queries to every column: R × H × G × w × n."""
        assert self.queries is not None
        rows, heads, n, width = self.keys.shape
        w = min(self.queries.shape[2], self.seen)
        logits = self.queries[:, :, -w:].reshape(rows, heads, -1, width) @ self.keys.mT * self.scaling
        logits = logits.view(rows, heads, -1, w, n)
        asked = torch.arange(self.seen - w, self.seen, device=logits.device)
        hidden = (self.places[:, :, None] > asked[:, None]) | self.padding[:, :, None]  # R × h × w × n
        return logits.masked_fill(hidden[:, :, None], -torch.inf).softmax(-1)


class Layer(CacheLayerMixin):
    """One layer's keys and values, in a buffer that is larger than they are."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, cache: SelectCache, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # The cache owns the layer; a plain reference back would keep both alive until the garbage collector comes.
        self._cache = weakref.ref(cache)
        self.index, self.scaling = index, 1.0
        self.queries: Tensor | None = None
        self.received: Tensor | None = None

    @property
    def cache(self) -> SelectCache:
        cache = self._cache()
        assert cache is not None
        return cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(rows, heads, 0, width)
        self.values = value_states.new_zeros(rows, heads, 0, value_states.shape[-1])
        if self.cache.policy.accumulates:
            self.received = key_states.new_zeros(rows, heads, 0, dtype=torch.float32)
        self.is_initialized = True

    def room(self, rows: int, columns: int) -> None:
        """Make the buffers at least so large."""
        held_rows, held = len(self.keys), self.keys.shape[2]
        if rows <= held_rows and columns <= held:
            return
        rows = held_rows if rows <= held_rows else max(rows, 2 * held_rows if held else rows)
        columns = held if columns <= held else -(-self.cache.expected(columns) // BLOCK) * BLOCK
        self.keys, self.values = _grown(self.keys, rows, columns), _grown(self.values, rows, columns)
        if self.received is not None:
            self.received = _grown(self.received, rows, columns)

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, _, new, _ = key_states.shape
        end = self.cache.longest + new
        self.room(rows, end)
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            self.cache.write(buffer, states)
        keys, values = self.keys[:rows, :, :end], self.values[:rows, :, :end]
        keys.layer = self  # type: ignore[attr-defined] # how the attention below finds its way back here
        return keys, values

    def observe(self, query: Tensor, scaling: float, received: Tensor | None) -> None:
        """Remember what the policy wants to know of the queries that were just asked."""
        self.scaling, wanted = scaling, self.cache.policy.queries
        if wanted:
            old = self.queries if self.queries is not None else query[:, :, :0]
            self.queries = torch.cat([old[: len(query)], query], dim=2)[:, :, -wanted:]
        if received is not None and self.received is not None:
            self.received[: len(query), :, : received.shape[2]] += received

    def gather(self, rows: Tensor, columns: Tensor) -> None:
        """Let only these columns stay, in this order: R × (H or 1) × k."""
        heads, stay = self.keys.shape[1], columns.shape[-1]
        columns = columns.expand(-1, heads, -1)
        for buffer in (self.keys, self.values):
            wide = columns[..., None].expand(-1, -1, -1, buffer.shape[-1])
            buffer[rows, :, :stay] = buffer[rows].gather(2, wide)
        if self.received is not None:
            stayed = self.received[rows].gather(2, columns)
            self.received[rows] = 0
            self.received[rows, :, :stay] = stayed

    def get_seq_length(self) -> int:
        return self.cache.seen[0] if self.cache.seen else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # Columns of the mask stand for logical places, counted from those that left.
        return self.cache.longest + query_length, self.get_seq_length() - self.cache.longest

    def get_max_length(self) -> int:
        return -1

    def crop(self, *_: Any) -> NoReturn:
        raise UserError("a cache that forgets can't be wound back", hint="leave out assisted decoding")

    def reorder_cache(self, *_: Any) -> NoReturn:
        raise UserError("beams can't share a cache that forgets", hint="num_beams = 1")

    def reset(self) -> NoReturn:
        raise UserError("a cache that forgets serves one generation", hint="make a new SelectCache")


class SelectCache(Cache):
    """A cache for `generate()`: rows go in step, and each loses equally many columns, padding first."""

    def __init__(
        self,
        model: nn.Module,
        policy: Policy,
        keep: CacheBudget | None,
        *,
        kernel: Literal["grouped", "stock"] = "grouped",
    ) -> None:
        self.policy, self.keep = policy, keep
        config: Any = model.config
        super().__init__(layers=self._layers(config.get_text_config(decoder=True)))
        self.heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        self.end_of_thinking: int | None = None  # the id of the token after which the answer stands, if there is one
        self.lengths: list[int] = []  # columns of each row
        self.seen: list[int] = []  # tokens of each row, those that left too
        self.held: list[list[int]] = []  # columns of each row after each step, before it was cut
        self.answering = torch.zeros(0, dtype=torch.bool)
        self.seeds = torch.zeros(0, dtype=torch.long)
        self.ids = torch.zeros(0, 0, dtype=torch.long)
        self.protected = torch.zeros(0, 0, dtype=torch.bool)
        self.padding = torch.zeros(0, 0, dtype=torch.bool)
        self.born: Tensor | None = None
        self.places = torch.zeros(1, 0, 1, 0, dtype=torch.int32)  # layers × rows × heads × columns
        prepare(model, policy, kernel)

    def _layers(self, config: Any) -> list[Any]:
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        if strange := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
            raise UserError(
                f"layers of the kind {strange[0]} have no cache that could be cut", hint="use its own cache"
            )
        if "sliding_attention" in kinds:
            if "full_attention" not in kinds:
                raise UserError("all layers of this model slide already", hint="use its own cache")
            n = kinds.count("sliding_attention")
            warnings.warn(f"{n} of {len(kinds)} layers slide already; the other {len(kinds) - n} are cut", stacklevel=4)
        return [
            Layer(self, i) if kind == "full_attention" else DynamicSlidingWindowLayer(config)
            for i, kind in enumerate(kinds)
        ]

    @property
    def cut(self) -> list[Layer]:
        """The layers that this cache cuts."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    @property
    def token_bytes(self) -> int:
        """Of one token in all layers."""
        buffers = [buffer for layer in self.cut for buffer in (layer.keys, layer.values)]
        return sum(int(b.shape[1] * b.shape[-1] * b.element_size()) for b in buffers)

    def expected(self, columns: int) -> int:
        """How large to make a buffer that must hold so many columns."""
        if self.keep and columns <= self.keep.budget + 1:
            return self.keep.budget + 1
        return columns + columns // 2 if self.lengths else columns

    def write(self, buffer: Tensor, states: Tensor) -> None:
        """Put new columns after each row's last."""
        start = self.longest
        buffer[: len(states), :, start : start + states.shape[2]] = states

    def settle(self, ids: Tensor | None, hidden: Tensor, mask: Tensor | None) -> None:
        """After a forward pass: take in what was said, and cut what has grown too long."""
        rows, new = hidden.shape[:2]
        if not self.lengths:
            padding = mask[:, :new] == 0 if mask is not None and mask.ndim == 2 else None
            self._begin(rows, padding, hidden)
        tokens = ids if ids is not None else torch.full((rows, new), -1, device=hidden.device)
        self._take(tokens, self.policy.token_features(hidden, tokens))
        self._cut()

    def _begin(self, rows: int, padding: Tensor | None, hidden: Tensor) -> None:
        """The first pass reads the question."""
        device = hidden.device
        self.lengths, self.seen, self.held = [0] * rows, [0] * rows, [[] for _ in range(rows)]
        self.answering = torch.zeros(rows, dtype=torch.bool, device=device)
        self.seeds = torch.arange(rows, device=device)
        new = hidden.shape[1]
        self.ids = torch.full((rows, new), -1, device=device)
        self.padding = (
            padding.to(device) if padding is not None else torch.zeros(rows, new, dtype=torch.bool, device=device)
        )
        self.protected = torch.zeros(rows, new, dtype=torch.bool, device=device)
        if self.keep:
            real = torch.arange(new, device=device) - self.padding.sum(1, keepdim=True)
            self.protected |= (real >= 0) & (self.keep.question | (real < self.keep.sinks))
            self._refuse_if_full(int(self.protected.sum(1).max()))
        shared = self.keep.granularity if self.keep else "model"
        layers, heads = (1 if shared == "model" else len(self.cut)), (self.heads if shared == "head" else 1)
        self.places = torch.zeros(layers, rows, heads, 0, dtype=torch.int32, device=device)

    def _refuse_if_full(self, protected: int) -> None:
        assert self.keep
        if protected + self.keep.window >= self.keep.budget:
            what = (
                f"{protected} tokens of the prompt are protected and the window holds {self.keep.window}: "
                f"a budget of {self.keep.budget} leaves none to choose"
            )
            raise UserError(what, hint=f"budget = {2 * (protected + self.keep.window)}, or question = false")

    def _take(self, ids: Tensor, born: Tensor | None) -> None:
        """Note the tokens that came."""
        rows, new = ids.shape
        start, columns = max(self.seen), self.longest
        if start + new > self.ids.shape[1]:
            size = (start + new) * 2
            self.ids, self.padding, self.protected = (
                _grown(t, len(t), size) for t in (self.ids, self.padding, self.protected)
            )
            self.born = None if self.born is None else _grown(self.born, len(self.born), size)
        if columns + new > self.places.shape[3]:
            self.places = _grown(self.places, self.places.shape[1], (columns + new) * 2, dim=1)
        if born is not None and self.born is None:
            self.born = born.new_zeros(self.ids.shape)
        if start and self.keep and self.keep.answer and self.end_of_thinking is not None:
            ends = ((ids == self.end_of_thinking).cumsum(1) > 0) | self.answering[:, None]
            self.answering = ends[:, -1]
        else:
            ends = torch.zeros_like(ids, dtype=torch.bool)
        self._note(ids, ends, born)
        for r in range(rows):
            self.seen[r] += new
            self.lengths[r] += new
            self.held[r].append(self.lengths[r])

    def _note(self, ids: Tensor, answer: Tensor, born: Tensor | None) -> None:
        """The same for every row: they go in step."""
        start, column, (rows, new) = self.seen[0], self.lengths[0], ids.shape
        came = slice(start, start + new)
        self.ids[:rows, came] = ids
        self.protected[:rows, came] |= answer
        if born is not None and self.born is not None:
            self.born[:rows, came] = born
        self.places[:, :rows, :, column : column + new] = torch.arange(start, start + new, device=ids.device)

    def _cut(self) -> None:
        if self.keep is None or self.longest < self.keep.budget:
            return
        rows, length = list(range(len(self.lengths))), self.longest
        kept = self.keep.kept(length, max(self._protected(r) for r in rows))
        if kept is not None and kept < length - self.keep.window:
            self._evict(rows, length, kept)

    def _protected(self, row: int) -> int:
        """How many of a row's columns before the window may not leave."""
        assert self.keep
        before = self.places[0, row, 0, : self.lengths[row] - self.keep.window].long()
        return int(self.protected[row, before].sum())

    def _evict(self, rows: list[int], length: int, kept: int) -> None:
        """Let the `kept` best columns before the window stay, in rows that are `length` long."""
        assert self.keep
        before = length - self.keep.window
        at = torch.tensor(rows, device=self.ids.device)
        places = self.places[:, at, :, :length]  # layers × R × heads × n
        scores = self._scores(at, places, length)[..., :before]
        logical = places[..., :before].long()
        scores = scores.masked_fill(_looked_up(self.protected[at], logical), torch.inf)
        scores = scores.masked_fill(_looked_up(self.padding[at], logical), -torch.inf)
        best = scores.topk(kept, dim=-1).indices.sort(dim=-1).values
        window = torch.arange(before, length, device=best.device).expand(*best.shape[:-1], -1)
        columns = torch.cat([best, window], dim=-1)
        self.places[:, at, :, : columns.shape[-1]] = places.gather(3, columns)
        for n, layer in enumerate(self.cut):
            layer.gather(at, columns[n % len(columns)])
        for r in rows:
            self.lengths[r] = columns.shape[-1]

    def _scores(self, at: Tensor, places: Tensor, length: int) -> Tensor:
        """The policy's scores, averaged over those who choose together: layers × R × heads × n."""
        assert self.keep
        found = []
        for n, layer in enumerate(self.cut):
            where = places[n % len(places)]
            logical = where.long()
            queries = layer.queries
            seen = CacheView(
                layer=layer.index,
                keys=layer.keys[at, :, :length],
                values=layer.values[at, :, :length],
                queries=None if queries is None else queries[at],
                received=None if layer.received is None else layer.received[at, :, :length],
                scaling=layer.scaling,
                places=where,
                padding=_looked_up(self.padding[at], logical),
                ids=_looked_up(self.ids[at], logical),
                born=None if self.born is None else _looked_up(self.born[at], logical),
                seen=self.seen[int(at[0])],
                seeds=self.seeds[at],
            )
            scores = self.policy.score(seen).float()
            found.append(scores if self.keep.granularity == "head" else scores.mean(1, keepdim=True))
            if self.keep.granularity == "model" and not self.policy.per_layer:
                break
        if self.keep.granularity == "model":
            return torch.stack(found).mean(0, keepdim=True)
        return torch.stack([scores.expand(-1, places.shape[2], -1) for scores in found])


class SlotCache(SelectCache):
    """A cache whose rows have lengths of their own: they join and leave at any step, and are cut each for itself."""

    _ends: tuple[Tensor, Tensor] | None = None  # rows and their lengths, the same for all layers of a step

    def write(self, buffer: Tensor, states: Tensor) -> None:
        if self._ends is None:
            lengths = torch.tensor(self.lengths, device=states.device)
            self._ends = torch.arange(len(lengths), device=states.device), lengths
        rows, lengths = self._ends
        buffer[rows, :, lengths] = states[:, :, 0]

    def settle(self, ids: Tensor | None, hidden: Tensor, mask: Tensor | None) -> None:
        super().settle(ids, hidden, mask)
        self._ends = None

    def mask(self) -> Tensor | None:
        """Which columns each row may look at in the next step; None if all of them."""
        if min(self.lengths) == self.longest:
            return None
        lengths = torch.tensor(self.lengths, device=self.ids.device)
        return (torch.arange(self.longest + 1, device=lengths.device) <= lengths[:, None])[:, None, None]

    def join(self, one: SelectCache, seed: int) -> None:
        """Take in the only row of another cache, which has read its question."""
        self._ends = None
        row, length, seen = len(self.lengths), one.lengths[0], one.seen[0]
        self.lengths.append(length)
        for mine, other in zip(self.cut, one.cut, strict=True):
            if not mine.is_initialized:
                mine.lazy_initialization(other.keys, other.values)
            mine.room(row + 1, length)
            mine.keys[row, :, :length] = other.keys[0, :, :length]
            mine.values[row, :, :length] = other.values[0, :, :length]
            mine.scaling = other.scaling
            if mine.received is not None and other.received is not None:
                mine.received[row] = 0
                mine.received[row, :, :length] = other.received[0, :, :length]
            if other.queries is not None:
                asked = other.queries.new_zeros(1, other.queries.shape[1], self.policy.queries, other.queries.shape[3])
                asked[:, :, self.policy.queries - other.queries.shape[2] :] = other.queries
                mine.queries = asked if mine.queries is None else torch.cat([mine.queries[:row], asked])
        self.ids = _joined(self.ids, one.ids[:, :seen], row)
        self.padding = _joined(self.padding, one.padding[:, :seen], row)
        self.protected = _joined(self.protected, one.protected[:, :seen], row)
        self.born = None if one.born is None else _joined(self.born, one.born[:, :seen], row)
        self.places = _joined(self.places.transpose(0, 1), one.places[..., :length].transpose(0, 1), row).transpose(
            0, 1
        )
        self.seeds = torch.cat([self.seeds[:row], one.seeds.new_tensor([seed])])
        self.answering = torch.cat([self.answering[:row], one.answering])
        self.seen.append(seen)
        self.held.append(one.held[0])

    def leave(self, row: int) -> None:
        """Let a row go; the last one takes its place."""
        self._ends = None
        last = len(self.lengths) - 1
        buffers = [self.ids, self.padding, self.protected, self.seeds, self.answering, self.places.transpose(0, 1)]
        buffers += [self.born] if self.born is not None else []
        for layer in self.cut:
            buffers += [t for t in (layer.keys, layer.values, layer.received, layer.queries) if t is not None]
        for buffer in buffers:
            buffer[row] = buffer[last]
        facts: tuple[list[Any], ...] = (self.lengths, self.seen, self.held)
        for fact in facts:
            fact[row] = fact[last]
            fact.pop()
        self.seeds, self.answering = self.seeds[:last], self.answering[:last]

    def _note(self, ids: Tensor, answer: Tensor, born: Tensor | None) -> None:
        rows = torch.arange(len(ids), device=ids.device)
        seen, columns = (torch.tensor(facts, device=ids.device) for facts in (self.seen, self.lengths))
        self.ids[rows, seen] = ids[:, 0]
        self.protected[rows, seen] = answer[:, 0]
        self.padding[rows, seen] = False
        if born is not None and self.born is not None:
            self.born[rows, seen] = born[:, 0]
        self.places[:, rows, :, columns] = seen.to(torch.int32)[:, None, None]

    def _cut(self) -> None:
        if self.keep is None:
            return
        alike: dict[tuple[int, int], list[int]] = {}
        for row, length in enumerate(self.lengths):
            if length >= self.keep.budget:
                kept = self.keep.kept(length, self._protected(row))
                if kept is not None and kept < length - self.keep.window:
                    alike.setdefault((length, kept), []).append(row)
        for (length, kept), rows in alike.items():
            self._evict(rows, length, kept)


def _joined(rows: Tensor | None, one: Tensor, row: int) -> Tensor:
    """A buffer with one more row, as long as it needs to be; columns are the last dimension."""
    rows = one[:0] if rows is None or not rows.numel() else rows
    columns = max(rows.shape[-1], one.shape[-1])
    new = one.new_zeros(max(len(rows), row + 1), *one.shape[1:-1], columns)
    new[: len(rows), ..., : rows.shape[-1]] = rows
    new[row] = 0
    new[row, ..., : one.shape[-1]] = one[0]
    return new


def _grown(tensor: Tensor, rows: int, columns: int, dim: int = 0) -> Tensor:
    """A larger buffer with the same content; columns are the last dimension but one of keys, else the last."""
    shape = list(tensor.shape)
    last = 2 if tensor.ndim == 4 and dim == 0 else len(shape) - 1
    shape[dim], shape[last] = rows, columns
    new = tensor.new_zeros(shape)
    new[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return new


def _looked_up(facts: Tensor, places: Tensor) -> Tensor:
    """Facts about tokens, R × seen, at the places of columns, … × R × h × n."""
    wide = facts[:, None].expand(-1, places.shape[-2], -1)
    return wide.expand(*places.shape[:-1], -1).gather(-1, places)
