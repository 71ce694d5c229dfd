"""A Llama on NumPy that writes many texts at once: rows join and leave at any step.

A step works on a number of rows that is a multiple of 16 and on a cache length that is a multiple of 64, idle or not,
and sums by matrix products: then a row's numbers, and with them its text, don't depend on who shares the batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

Floats: TypeAlias = npt.NDArray[np.float32]
BLOCK = 64  # the cache grows, and is read, in multiples of this
TILE = 16  # and rows are worked on in multiples of this


@dataclass(eq=False)
class Row:
    """A text being written."""

    prompt: list[int]
    budget: int
    temperature: float
    seed: int
    done: Callable[[Row], object]  # called with the row when its text is written
    said: list[int] = field(default_factory=list)
    ended: bool = False  # by itself, not by the budget

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def choose(self, logits: Floats) -> int:
        if not self.temperature:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled.max()).cumsum()
        return int(np.searchsorted(weights, self._random.random() * weights[-1], side="right"))


@dataclass(frozen=True)
class Layer:
    norm1: Floats
    qkv: Floats
    out: Floats
    norm2: Floats
    gate_up: Floats
    down: Floats


class Engine:
    """Weights from a folder in the Hugging Face format, and a cache for `rows` texts."""

    def __init__(self, folder: Path, rows: int) -> None:
        # With two threads, on a busy machine, each mostly waits for the other, and burns CPU while it does.
        threadpool_limits(1, user_api="blas")
        config = json.loads((folder / "config.json").read_text("utf-8"))
        weights = safetensors(folder / "model.safetensors")
        self.end = int(config["eos_token_id"])
        self.positions = int(config["max_position_embeddings"])
        self._heads, self._eps = int(config["num_attention_heads"]), float(config["rms_norm_eps"])
        self._width = int(config["hidden_size"]) // self._heads
        self._embed = weights["model.embed_tokens.weight"]
        self._head = np.ascontiguousarray(weights["lm_head.weight"].T)
        self._norm = weights["model.norm.weight"]
        self._layers = [_layer(weights, n, self._width**-0.5) for n in range(config["num_hidden_layers"])]
        half = self._width // 2
        angles = np.outer(np.arange(self.positions), float(config["rope_theta"]) ** (-np.arange(half) / half))
        self._cos, self._sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        self._rows: list[Row | None] = [None] * rows
        self._length = np.zeros(rows, dtype=np.int64)  # tokens in the cache
        self._next = np.zeros(rows, dtype=np.int64)  # the token to read next
        self._keys, self._values = self._cache(BLOCK)

    @property
    def busy(self) -> bool:
        return any(self._rows)

    @property
    def room(self) -> bool:
        return not all(self._rows)

    def _cache(self, capacity: int) -> tuple[Floats, Floats]:
        layers, rows = len(self._layers), len(self._rows)
        shape = (2, layers, rows, self._heads, capacity, self._width)
        keys, values = np.zeros(shape, dtype=np.float32)
        return keys, values

    def _fit(self, length: int) -> int:
        """The cache length to work on, a multiple of `BLOCK` that holds `length`."""
        needed = -(-length // BLOCK) * BLOCK
        held = self._keys.shape[-2]
        if needed > held:
            keys, values = self._cache(max(needed, held * 3 // 2 // BLOCK * BLOCK))
            keys[..., :held, :], values[..., :held, :] = self._keys, self._values
            self._keys, self._values = keys, values
        return needed

    def join(self, row: Row) -> None:
        """Read a prompt into a free row and write its first token."""
        slot = self._rows.index(None)
        length = len(row.prompt)
        self._fit(length)
        self._rows[slot] = row
        x = self._embed[row.prompt]
        cos, sin = self._cos[:length, None], self._sin[:length, None]
        ahead = np.triu(np.full((length, length), -np.inf, dtype=np.float32), 1)
        for n, layer in enumerate(self._layers):
            q, k, v = self._projected(layer, x, cos, sin)
            self._keys[n, slot, :, :length] = k.transpose(1, 0, 2)
            self._values[n, slot, :, :length] = v.transpose(1, 0, 2)
            weights = _softmax(q.transpose(1, 0, 2) @ k.transpose(1, 2, 0) + ahead)
            mixed: Floats = weights @ v.transpose(1, 0, 2)
            x = self._fed(layer, x + mixed.transpose(1, 0, 2).reshape(length, -1) @ layer.out)
        self._length[slot] = length
        self._write(slot, (_normed(x[-1:], self._norm, self._eps) @ self._head)[0])

    def step(self) -> None:
        """One more token for every row, up to the last busy one."""
        busy = max(slot for slot, row in enumerate(self._rows) if row)
        rows = np.arange(min(len(self._rows), -(-(busy + 1) // TILE) * TILE))
        place = self._length[rows]
        length = self._fit(int(place.max()) + 1)
        x = self._embed[self._next[rows]]
        cos, sin = self._cos[place, None], self._sin[place, None]
        ahead = np.where(np.arange(length) > place[:, None], np.float32(-np.inf), np.float32(0))[:, None]
        for n, layer in enumerate(self._layers):
            q, k, v = self._projected(layer, x, cos, sin)
            self._keys[n, rows, :, place], self._values[n, rows, :, place] = k, v
            keys, values = (cache[n, : len(rows), :, :length] for cache in (self._keys, self._values))
            weights = _softmax((keys @ q[..., None])[..., 0] + ahead)
            mixed: Floats = weights[:, :, None] @ values
            x = self._fed(layer, x + mixed.reshape(len(rows), -1) @ layer.out)
        logits = _normed(x, self._norm, self._eps) @ self._head
        for slot, row in enumerate(self._rows[: len(rows)]):
            if row is not None:
                self._length[slot] += 1
                self._write(slot, logits[slot])

    def _write(self, slot: int, logits: Floats) -> None:
        row = self._rows[slot]
        assert row is not None
        token = row.choose(logits)
        row.said.append(token)
        row.ended = token == self.end
        full = self._length[slot] + 1 >= self.positions
        if row.ended or len(row.said) >= row.budget or full:
            self._rows[slot] = None
            self._length[slot] = self._next[slot] = 0
            row.done(row)
        else:
            self._next[slot] = token

    def _projected(self, layer: Layer, x: Floats, cos: Floats, sin: Floats) -> tuple[Floats, Floats, Floats]:
        """Queries, keys and values, tokens × heads × width, the first two turned by their place."""
        qkv = (_normed(x, layer.norm1, self._eps) @ layer.qkv).reshape(len(x), 3, self._heads, self._width)
        return _turned(qkv[:, 0], cos, sin), _turned(qkv[:, 1], cos, sin), qkv[:, 2]

    def _fed(self, layer: Layer, x: Floats) -> Floats:
        gate, up = np.split(_normed(x, layer.norm2, self._eps) @ layer.gate_up, 2, axis=1)
        return np.asarray(x + (gate / (1 + np.exp(-gate)) * up) @ layer.down)


def _softmax(scores: Floats) -> Floats:
    """Over the last axis; summed by a matrix product, whose order of summing doesn't change with zeros at the end."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= (scores @ np.ones(scores.shape[-1], dtype=np.float32))[..., None]
    return scores


def _normed(x: Floats, weight: Floats, eps: float) -> Floats:
    return np.asarray(x * (1 / np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / x.shape[1] + eps)) * weight)


def _turned(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotary positions, first half against second half."""
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _layer(weights: dict[str, Floats], n: int, scale: float) -> Layer:
    def found(name: str) -> Floats:
        return weights[f"model.layers.{n}.{name}.weight"].T

    query = found("self_attn.q_proj") * np.float32(scale)  # the scale of the scores, put in once and for all
    return Layer(
        norm1=found("input_layernorm"),
        qkv=np.concatenate([query, found("self_attn.k_proj"), found("self_attn.v_proj")], axis=1),
        out=np.ascontiguousarray(found("self_attn.o_proj")),
        norm2=found("post_attention_layernorm"),
        gate_up=np.concatenate([found("mlp.gate_proj"), found("mlp.up_proj")], axis=1),
        down=np.ascontiguousarray(found("mlp.down_proj")),
    )


def safetensors(path: Path) -> dict[str, Floats]:
    """The tensors of a file, as 32-bit floats: a JSON header that says what lies where, then the numbers."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + size])
    kinds = {"F16": np.float16, "F32": np.float32}
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            numbers = np.frombuffer(content[start:end], dtype=kinds[entry["dtype"]])
            found[name] = numbers.reshape(entry["shape"]).astype(np.float32)
    return found
