"""Runs a Llama on NumPy with continuous batching: generations join and leave at any step.

Keys and values are stored in pages of 64 tokens, as in vLLM's PagedAttention (Kwon et al. 2023).
Reading them from memory is most of the work, so unused pages are never read: the pages in use are
always the first of the cache.

A generation's logits don't depend on the rest of the batch, to the last bit. Attention works page
by page; all else works on tiles of 16 rows, in matrix products of one fixed shape. A tile is stored
as features × rows, so that the rows fill the lanes of the processor's vector registers and are all
computed alike. Stored as rows × features they are not: OpenBLAS sums the first 6 rows of 12 in
another order than the last 6.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits

from ponder.models._batch import Floats, Generation

PAGE = 64  # tokens; larger: more of each last page is read in vain; smaller: more calls per step
TILE = 16  # rows


def _causal_mask(length: int) -> Floats:
    """Return the mask that is added to attention scores, (length, length)."""
    return np.triu(np.full((length, length), -np.inf, dtype=np.float32), 1)


PAGE_MASK = _causal_mask(PAGE)


@dataclass(frozen=True)
class Layer:
    """A layer's matrices, with all constant factors multiplied in.

    Those are the norms' weights, the scale of the attention scores, and -1 for `gate` and `down`:
    SiLU needs exp(-x).
    """

    qkv: Floats  # (features, queries + keys + values)
    out: Floats  # (attended features, features)
    gate_up: Floats  # (features, 2 · hidden)
    down: Floats  # (hidden, features)


class Pages:
    """Attention of one step over the pages in use.

    `batch` is sorted by number of pages, the most first; `owners` has an entry per page.
    """

    def __init__(
        self, batch: list[Generation], owners: list[Generation], heads: tuple[int, int], width: int
    ) -> None:
        row_of = {generation: row for row, generation in enumerate(batch)}
        self._owner_rows = np.array([row_of[owner] for owner in owners])
        # All first pages, all second pages, …: each level is at most as long as the one before.
        levels: list[list[int]] = [[] for _ in batch[0].pages]
        for generation in batch:
            for level, page in zip(levels, generation.pages, strict=False):
                level.append(page)
        self._order = np.concatenate(levels)
        self._ends = np.cumsum([len(level) for level in levels]).tolist()
        self.last = np.array([generation.pages[-1] for generation in batch])
        # The offset of each new token in its last page.
        self.offset = np.array([generation.position % PAGE for generation in batch])
        self._mask = PAGE_MASK[self.offset, None, None]
        # Buffers that all layers reuse, so that they stay in the processor's cache.
        self._scores = np.empty((len(owners), *heads, PAGE), dtype=np.float32)
        self._sums = np.empty((len(owners), *heads, width + 1), dtype=np.float32)

    def attend(self, queries: Floats, keys: Floats, values: Floats) -> Floats:
        """Return each generation's values, averaged by the softmax of its attention scores.

        Queries are (generations, query heads, width), keys and values (pages, heads, PAGE, width);
        the result is (generations, query heads · width).
        """
        owner_rows = self._owner_rows
        used = len(owner_rows)
        scores = self._scores
        heads = scores.shape[1:3]
        page_queries = queries.reshape(len(queries), *heads, -1)[owner_rows]
        np.matmul(page_queries, keys[:used].swapaxes(2, 3), out=scores)
        scores[self.last] += self._mask
        largest = self._per_generation(scores.max(axis=-1), np.maximum)
        scores -= largest[owner_rows, ..., None]
        np.exp(scores, out=scores)
        # The weighted values of each page, and in the last column its sum of weights.
        np.matmul(scores, values[:used], out=self._sums[..., :-1])
        self._sums[..., -1] = scores @ np.ones(PAGE, dtype=np.float32)
        sums = self._per_generation(self._sums, np.add)
        averages = sums[..., :-1] / sums[..., -1:]
        return averages.reshape(len(queries), -1)

    def _per_generation(self, per_page: Floats, combine: np.ufunc) -> Floats:
        """Combine entries of each generation's pages, in order: (pages, …) → (generations, …)."""
        combined = per_page[self._order]
        for start, end in itertools.pairwise(self._ends):
            count = end - start
            combine(combined[:count], combined[start:end], out=combined[:count])
        return combined[: self._ends[0]]


class NumpyEngine:
    """A Llama from a folder in the Hugging Face format, and a KV cache that grows with the batch.

    Activations `x` are (tiles, features, TILE) in a step, and (features, tokens) while a prompt is
    read.
    """

    def __init__(self, folder: Path, batch_size: int) -> None:
        # Two BLAS threads on a busy machine mostly wait for each other, and burn CPU while they do.
        threadpool_limits(1, user_api="blas")
        config = json.loads((folder / "config.json").read_text("utf-8"))
        tensors = load_file(folder / "model.safetensors")
        weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
        self.end = int(config["eos_token_id"])
        self.positions = int(config["max_position_embeddings"])
        self._eps = float(config["rms_norm_eps"])
        self._width = int(config["head_dim"])
        query_heads = int(config["num_attention_heads"])
        kv_heads = int(config["num_key_value_heads"])
        self._heads = (kv_heads, query_heads // kv_heads)  # and how many query heads share each
        self._embed = weights["model.embed_tokens.weight"]
        norm = weights["model.norm.weight"][:, None]
        self._head = np.ascontiguousarray(norm * weights["lm_head.weight"].T)
        self._layers = [_layer(weights, n, self._width) for n in range(config["num_hidden_layers"])]
        self._rope = self._rotations(config)
        self._limit = batch_size
        self._batch: list[Generation] = []
        # The owner of each page in use, and which of the owner's pages it is.
        self._owners: list[tuple[Generation, int]] = []
        # One array per layer: long contiguous reads are faster.
        no_pages = (0, kv_heads, PAGE, self._width)
        self._keys = [np.zeros(no_pages, dtype=np.float32) for _ in self._layers]
        self._values = [np.zeros(no_pages, dtype=np.float32) for _ in self._layers]

    def _rotations(self, config: dict[str, Any]) -> npt.NDArray[np.complex64]:
        """Return rotary positions as complex numbers, (positions, width / 2)."""
        theta = config.get("rope_theta")
        if not theta:  # transformers 5
            theta = config["rope_parameters"]["rope_theta"]
        half = self._width // 2
        frequencies = float(theta) ** (-np.arange(half) / half)
        angles = np.outer(np.arange(self.positions), frequencies)
        rotations: npt.NDArray[np.complex64] = np.exp(1j * angles).astype(np.complex64)
        return rotations

    @property
    def busy(self) -> bool:
        return bool(self._batch)

    @property
    def room(self) -> bool:
        return len(self._batch) < self._limit

    def _add_page(self, generation: Generation) -> None:
        """Give a generation another page."""
        for pages in (*self._keys, *self._values):
            if len(self._owners) == len(pages):
                # Resized in place: no copy where the system can remap memory. No view of the cache
                # outlives a call.
                pages.resize((len(pages) * 5 // 4 + 16, *pages.shape[1:]), refcheck=False)
        generation.pages.append(len(self._owners))
        self._owners.append((generation, len(generation.pages) - 1))

    def _release(self, generation: Generation) -> None:
        """Free a generation's pages, and move the last pages in use into the gaps."""
        for page in sorted(generation.pages, reverse=True):
            owner, index = self._owners.pop()
            last = len(self._owners)
            if page < last:
                for pages in (*self._keys, *self._values):
                    pages[page] = pages[last]
                self._owners[page] = (owner, index)
                owner.pages[index] = page

    def join(self, generation: Generation) -> None:
        """Read a prompt and generate its first token."""
        self._batch.append(generation)
        length = len(generation.prompt)
        starts = range(0, length, PAGE)
        for _ in starts:
            self._add_page(generation)
        x = self._embed[generation.prompt].T
        mask = _causal_mask(length)
        for layer, key_pages, value_pages in zip(
            self._layers, self._keys, self._values, strict=True
        ):
            projected = self._projected(layer, x, self._rope[:length])
            # (heads, tokens, width).
            queries, keys, values = (states.swapaxes(0, 1) for states in projected)
            for page, start in zip(generation.pages, starts, strict=True):
                end = min(start + PAGE, length)
                key_pages[page, :, : end - start] = keys[:, start:end]
                value_pages[page, :, : end - start] = values[:, start:end]
            grouped = queries.reshape(*self._heads, length, -1)
            scores = grouped @ keys.swapaxes(1, 2)[:, None] + mask
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            attended: Floats = weights @ values[:, None] / weights.sum(axis=-1, keepdims=True)
            x = x + layer.out.T @ attended.swapaxes(2, 3).reshape(-1, length)
            x = self._feed_forward(layer, x)
        self._append(generation, self._logits(x[:, -1:])[0])

    def step(self) -> None:
        """Generate one more token of every generation."""
        for generation in self._batch:
            if generation.position % PAGE == 0:
                self._add_page(generation)
        self._batch.sort(key=lambda generation: -len(generation.pages))
        batch = list(self._batch)
        count = len(batch)
        owners = [owner for owner, _ in self._owners]
        pages = Pages(batch, owners, self._heads, self._width)
        idle_rows = [0] * (-count % TILE)  # they fill the last tile
        positions = [generation.position for generation in batch] + idle_rows
        tokens = [generation.tokens[-1] for generation in batch] + idle_rows
        rope = self._rope[positions]
        x = _tiled(self._embed[tokens])
        attended = np.zeros((len(tokens), len(self._layers[0].out)), dtype=np.float32)
        for layer, key_pages, value_pages in zip(
            self._layers, self._keys, self._values, strict=True
        ):
            queries, keys, values = self._projected(layer, x, rope)
            key_pages[pages.last, :, pages.offset] = keys[:count]
            value_pages[pages.last, :, pages.offset] = values[:count]
            attended[:count] = pages.attend(queries[:count], key_pages, value_pages)
            x = x + layer.out.T @ _tiled(attended)
            x = self._feed_forward(layer, x)
        for generation, logits in zip(batch, self._logits(x), strict=False):
            self._append(generation, logits)

    def _append(self, generation: Generation, logits: Floats) -> None:
        """Choose a generation's next token, and end it at an end token or at its budget."""
        token = generation.choose(logits)
        generation.tokens.append(token)
        generation.ended = token == self.end
        full = (
            len(generation.tokens) >= generation.budget or generation.position + 1 >= self.positions
        )
        if generation.ended or full:
            self._batch.remove(generation)
            self._release(generation)
            generation.done(generation)

    def _projected(self, layer: Layer, x: Floats, rope: npt.NDArray[np.complex64]) -> list[Floats]:
        """Return queries, keys and values, each (tokens, heads, width).

        Queries and keys have their rotary positions.
        """
        qkv = _untiled(layer.qkv.T @ self._normed(x)).reshape(len(rope), -1, self._width)
        kv_heads, shared = self._heads
        qkv.view(np.complex64)[:, :-kv_heads] *= rope[:, None]
        return np.split(qkv, (kv_heads * shared, kv_heads * (shared + 1)), axis=1)

    def _feed_forward(self, layer: Layer, x: Floats) -> Floats:
        """Return activations after the gated feed-forward layer."""
        gate_and_up = layer.gate_up.T @ self._normed(x)
        middle = gate_and_up.shape[-2] // 2
        gate = gate_and_up[..., :middle, :]
        hidden = gate_and_up[..., middle:, :]
        hidden *= gate
        np.exp(gate, out=gate)
        gate += 1
        hidden /= gate
        return np.asarray(x + layer.down.T @ hidden)

    def _logits(self, x: Floats) -> Floats:
        """Return logits, (tokens, vocabulary)."""
        return _untiled(self._head.T @ self._normed(x))

    def _normed(self, x: Floats) -> Floats:
        mean_square = (x * x).sum(axis=-2, keepdims=True) / x.shape[-2]
        return np.asarray(x / np.sqrt(mean_square + self._eps))


def _tiled(x: Floats) -> Floats:
    """Reorder (rows, features) to (tiles, features, TILE)."""
    return np.ascontiguousarray(x.reshape(-1, TILE, x.shape[-1]).swapaxes(1, 2))


def _untiled(x: Floats) -> Floats:
    """Reorder (tiles, features, TILE) or (features, tokens) to (rows, features)."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).reshape(-1, x.shape[-2])


def _layer(weights: dict[str, Floats], n: int, width: int) -> Layer:
    """Return the matrices of layer `n`, whose heads have `width` features."""

    def matrix(name: str) -> Floats:
        return weights[f"model.layers.{n}.{name}.weight"].T

    def paired(m: Floats) -> Floats:
        """Interleave each head's halves, so that a rotary position is one complex product."""
        halves = m.reshape(len(m), -1, 2, width // 2)
        return halves.swapaxes(2, 3).reshape(m.shape)

    attention_norm = matrix("input_layernorm")[:, None]
    feed_forward_norm = matrix("post_attention_layernorm")[:, None]
    query = paired(matrix("self_attn.q_proj") * np.float32(width**-0.5))
    key = paired(matrix("self_attn.k_proj"))
    value = matrix("self_attn.v_proj")
    gate_up = np.concatenate([-matrix("mlp.gate_proj"), matrix("mlp.up_proj")], axis=1)
    return Layer(
        qkv=attention_norm * np.concatenate([query, key, value], axis=1),
        out=np.ascontiguousarray(matrix("self_attn.o_proj")),
        gate_up=np.ascontiguousarray(feed_forward_norm * gate_up),
        down=np.ascontiguousarray(-matrix("mlp.down_proj")),
    )
