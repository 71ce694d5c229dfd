"""Runs a Llama on NumPy with continuous batching: generations join and leave the batch at any step.

Keys and values are stored in pages of 64 tokens, as in vLLM's PagedAttention (Kwon et al. 2023). Reading them from
memory is most of the work, so unused pages are never read: the pages in use are always the first of the cache.

A generation's logits don't depend on the rest of the batch, to the last bit. Attention works page by page; the rest
works on tiles of 16 rows, in matrix products of one fixed shape. A tile is stored as features × rows, so that the rows
fill the lanes of the processor's vector registers and are all computed alike. Stored as rows × features they are not:
OpenBLAS sums the first 6 rows of 12 in another order than the last 6.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from threadpoolctl import threadpool_limits

from ponder.models._batch import Floats, Generation

PAGE = 64  # tokens; larger: more of each last page is read in vain; smaller: more calls per step
TILE = 16  # rows
CAUSAL = np.triu(np.full((PAGE, PAGE), -np.inf, dtype=np.float32), 1)  # added to scores: masks later tokens


@dataclass(frozen=True)
class Layer:
    """A layer's matrices, with all constant factors multiplied in.

    Those are the norms' weights, the scale of the attention scores, and -1 for `gate` and `down`: SiLU needs exp(-x).
    """

    qkv: Floats
    out: Floats
    gate_up: Floats
    down: Floats


class Pages:
    """Attention of one step over the pages in use. `batch` has the most pages first, `owners` one entry per page."""

    def __init__(self, batch: list[Generation], owners: list[Generation], heads: tuple[int, int], width: int) -> None:
        index = {generation: n for n, generation in enumerate(batch)}
        self._owner = np.array([index[owner] for owner in owners])
        levels = [[g.pages[n] for g in batch if n < len(g.pages)] for n in range(len(batch[0].pages))]
        self._order = np.concatenate(levels)  # all first pages, all second pages, ...
        self._ends = np.cumsum([len(level) for level in levels]).tolist()
        self.last = np.array([g.pages[-1] for g in batch])
        self.offset = np.array([g.position % PAGE for g in batch])  # of the new token in its last page
        self._mask = CAUSAL[self.offset, None, None]
        # Buffers that all layers reuse, so that they stay in the processor's cache.
        self._scores = np.empty((len(owners), *heads, PAGE), dtype=np.float32)
        self._parts = np.empty((len(owners), *heads, width + 1), dtype=np.float32)

    def attend(self, q: Floats, keys: Floats, values: Floats) -> Floats:
        """The values of each generation, averaged by the softmax of its attention scores."""
        scores, parts, used = self._scores, self._parts, len(self._owner)
        np.matmul(q.reshape(len(q), *scores.shape[1:3], -1)[self._owner], keys[:used].swapaxes(2, 3), out=scores)
        scores[self.last] += self._mask
        scores -= self._per_generation(scores.max(axis=-1), np.maximum)[self._owner, ..., None]
        np.exp(scores, out=scores)
        np.matmul(scores, values[:used], out=parts[..., :-1])
        parts[..., -1] = scores @ np.ones(PAGE, dtype=np.float32)
        sums = self._per_generation(parts, np.add)
        return (sums[..., :-1] / sums[..., -1:]).reshape(len(q), -1)

    def _per_generation(self, parts: Floats, combine: np.ufunc) -> Floats:
        """One result per generation: those of its pages, combined in order."""
        combined = parts[self._order]
        for start, end in itertools.pairwise(self._ends):
            combine(combined[: end - start], combined[start:end], out=combined[: end - start])
        return combined[: self._ends[0]]


class NumpyEngine:
    """A Llama from a folder in the Hugging Face format, and a KV cache that grows with the generations in it."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        # Two BLAS threads on a busy machine mostly wait for each other, and burn CPU while they do.
        threadpool_limits(1, user_api="blas")
        config = json.loads((folder / "config.json").read_text("utf-8"))
        stored = folder / "model.safetensors"
        weights = {name: tensor.astype(np.float32) for name, tensor in load_file(stored).items()}
        self.end = int(config["eos_token_id"])
        self.positions = int(config["max_position_embeddings"])
        self._eps = float(config["rms_norm_eps"])
        # Heads of keys and values, and how many query heads share each of them.
        queries, kv = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
        self._heads, self._width = (kv, queries // kv), int(config["head_dim"])
        self._embed = weights["model.embed_tokens.weight"]
        self._head = np.ascontiguousarray(weights["model.norm.weight"][:, None] * weights["lm_head.weight"].T)
        self._layers = [_layer(weights, n, self._width) for n in range(config["num_hidden_layers"])]
        half = self._width // 2
        theta = float(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])  # transformers 5: the latter
        angles = np.outer(np.arange(self.positions), theta ** (-np.arange(half) / half))
        self._rope = np.exp(1j * angles).astype(np.complex64)
        self._limit = batch_size
        self._batch: list[Generation] = []
        self._owners: list[tuple[Generation, int]] = []  # of each page in use, and which of the owner's pages it is
        # One array per layer: long contiguous reads are faster.
        self._keys, self._values = (
            [np.zeros((0, kv, PAGE, self._width), dtype=np.float32) for _ in self._layers] for _ in "kv"
        )

    @property
    def busy(self) -> bool:
        return bool(self._batch)

    @property
    def room(self) -> bool:
        return len(self._batch) < self._limit

    def _claim(self, generation: Generation) -> None:
        """Give a generation another page."""
        for pages in (*self._keys, *self._values):
            if len(self._owners) == len(pages):
                # Resized in place: no copy where the system can remap memory. No view of the cache outlives a call.
                pages.resize((len(pages) * 5 // 4 + 16, *pages.shape[1:]), refcheck=False)
        generation.pages.append(len(self._owners))
        self._owners.append((generation, len(generation.pages) - 1))

    def _release(self, generation: Generation) -> None:
        """Free a generation's pages, and move the last pages in use into the gaps."""
        for page in sorted(generation.pages, reverse=True):
            owner, index = self._owners.pop()
            if page < len(self._owners):
                for pages in (*self._keys, *self._values):
                    pages[page] = pages[len(self._owners)]
                self._owners[page] = owner, index
                owner.pages[index] = page

    def join(self, generation: Generation) -> None:
        """Read a prompt and generate its first token."""
        self._batch.append(generation)
        length = len(generation.prompt)
        for _ in range(0, length, PAGE):
            self._claim(generation)
        x = self._embed[generation.prompt].T
        mask = np.triu(np.full((length, length), -np.inf, dtype=np.float32), 1)
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            q, k, v = (part.swapaxes(0, 1) for part in self._projected(layer, x, self._rope[:length]))
            for page, start in zip(generation.pages, range(0, length, PAGE), strict=True):
                end = min(start + PAGE, length)
                keys[page, :, : end - start], values[page, :, : end - start] = k[:, start:end], v[:, start:end]
            scores = q.reshape(*self._heads, length, -1) @ k.swapaxes(1, 2)[:, None] + mask
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            attended: Floats = weights @ v[:, None] / weights.sum(axis=-1, keepdims=True)
            x = self._fed(layer, x + layer.out.T @ attended.swapaxes(2, 3).reshape(-1, length))
        self._append(generation, self._logits(x[:, -1:])[0])

    def step(self) -> None:
        """Generate one more token of every generation."""
        for generation in self._batch:
            if generation.position % PAGE == 0:
                self._claim(generation)
        self._batch.sort(key=lambda generation: -len(generation.pages))
        batch, idle = list(self._batch), [0] * (-len(self._batch) % TILE)  # idle rows fill the last tile
        pages = Pages(batch, [owner for owner, _ in self._owners], self._heads, self._width)
        rope = self._rope[[*(g.position for g in batch), *idle]]
        attended = np.zeros((len(rope), len(self._layers[0].out)), dtype=np.float32)
        x = _tiled(self._embed[[*(g.tokens[-1] for g in batch), *idle]])
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            q, k, v = (part[: len(batch)] for part in self._projected(layer, x, rope))
            keys[pages.last, :, pages.offset], values[pages.last, :, pages.offset] = k, v
            attended[: len(batch)] = pages.attend(q, keys, values)
            x = self._fed(layer, x + layer.out.T @ _tiled(attended))
        for generation, logits in zip(batch, self._logits(x), strict=False):
            self._append(generation, logits)

    def _append(self, generation: Generation, logits: Floats) -> None:
        token = generation.choose(logits)
        generation.tokens.append(token)
        generation.ended = token == self.end
        full = len(generation.tokens) >= generation.budget or generation.position + 1 >= self.positions
        if generation.ended or full:
            self._batch.remove(generation)
            self._release(generation)
            generation.done(generation)

    def _projected(self, layer: Layer, x: Floats, rope: npt.NDArray[np.complex64]) -> list[Floats]:
        """Queries, keys and values, each tokens × heads × width; the first two with rotary positions."""
        qkv = _untiled(layer.qkv.T @ self._normed(x)).reshape(len(rope), -1, self._width)
        kv, shared = self._heads
        qkv.view(np.complex64)[:, :-kv] *= rope[:, None]
        return np.split(qkv, (kv * shared, kv * (shared + 1)), axis=1)

    def _fed(self, layer: Layer, x: Floats) -> Floats:
        both = layer.gate_up.T @ self._normed(x)
        gate, hidden = both[..., : both.shape[-2] // 2, :], both[..., both.shape[-2] // 2 :, :]
        hidden *= gate
        np.exp(gate, out=gate)
        gate += 1
        hidden /= gate
        return np.asarray(x + layer.down.T @ hidden)

    def _logits(self, x: Floats) -> Floats:
        return _untiled(self._head.T @ self._normed(x))

    def _normed(self, x: Floats) -> Floats:
        return np.asarray(x / np.sqrt((x * x).sum(axis=-2, keepdims=True) / x.shape[-2] + self._eps))


def _tiled(x: Floats) -> Floats:
    """Rows × features as tiles × features × rows of a tile."""
    return np.ascontiguousarray(x.reshape(-1, TILE, x.shape[-1]).swapaxes(1, 2))


def _untiled(x: Floats) -> Floats:
    """Tiles × features × rows of a tile, or features × tokens, as rows × features."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).reshape(-1, x.shape[-2])


def _layer(weights: dict[str, Floats], n: int, width: int) -> Layer:
    def matrix(name: str) -> Floats:
        return weights[f"model.layers.{n}.{name}.weight"].T

    def paired(m: Floats) -> Floats:
        """Interleave each head's two halves, so that applying a rotary position is one complex product."""
        return m.reshape(len(m), -1, 2, width // 2).swapaxes(2, 3).reshape(m.shape)

    norm1, norm2 = (matrix(name)[:, None] for name in ("input_layernorm", "post_attention_layernorm"))
    query, key = paired(matrix("self_attn.q_proj") * np.float32(width**-0.5)), paired(matrix("self_attn.k_proj"))
    return Layer(
        qkv=norm1 * np.concatenate([query, key, matrix("self_attn.v_proj")], axis=1),
        out=np.ascontiguousarray(matrix("self_attn.o_proj")),
        gate_up=np.ascontiguousarray(norm2 * np.concatenate([-matrix("mlp.gate_proj"), matrix("mlp.up_proj")], axis=1)),
        down=np.ascontiguousarray(-matrix("mlp.down_proj")),
    )
