"""A Llama on NumPy that writes many texts at once: rows join and leave at any step.

A row's keys and values lie in pages of 64 tokens, as in vLLM (Kwon et al. 2023). Reading them from memory is most of
the work, so nothing else is read: the pages in use are always the first of the cache, whoever they belong to.

A row's numbers, and with them its text, don't depend on who shares the batch, to the last bit: attention works page by
page, and the rest on tiles of 16 rows, each in products of one shape. In a tile, numbers × rows, the rows lie in the
lanes of the processor's vectors and so are treated alike. In products of rows × numbers they are not: OpenBLAS sums the
first 6 rows of 12 in another order than the last.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

Floats: TypeAlias = npt.NDArray[np.float32]
PAGE = 64  # tokens; half a page of each row is read in vain, and each page costs a few calls
TILE = 16  # rows
AHEAD = np.triu(np.full((PAGE, PAGE), -np.inf, dtype=np.float32), 1)  # added to scores, hides what comes after a token


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
        self.pages: list[int] = []  # of the engine's cache, from the first token to the last

    @property
    def place(self) -> int:
        """Of the last token, which is the one to read next."""
        return len(self.prompt) + len(self.said) - 1

    def choose(self, logits: Floats) -> int:
        if not self.temperature:
            return int(logits.argmax())
        scaled = logits.astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled.max()).cumsum()
        return int(np.searchsorted(weights, self._random.random() * weights[-1], side="right"))


@dataclass(frozen=True)
class Layer:
    """A layer's matrices, with what can be multiplied in once and for all.

    That is the weights of the norms, the scale of the scores, and -1 for `gate` and `down`, because SiLU takes exp(-x).
    """

    qkv: Floats
    out: Floats
    gate_up: Floats
    down: Floats


class Pages:
    """Attention in one step, over the pages in use; `rows` have the most pages first, `owners` are the pages' rows."""

    def __init__(self, rows: list[Row], owners: list[Row], heads: tuple[int, int], width: int) -> None:
        number = {row: n for n, row in enumerate(rows)}
        self._owner = np.array([number[row] for row in owners])
        levels = [[row.pages[n] for row in rows if n < len(row.pages)] for n in range(len(rows[0].pages))]
        self._order = np.concatenate(levels)  # all first pages, all second pages, ...
        self._ends = np.cumsum([len(level) for level in levels]).tolist()
        self.last = np.array([row.pages[-1] for row in rows])
        self.offset = np.array([row.place % PAGE for row in rows])  # of the new token in the last page
        self._ahead = AHEAD[self.offset, None, None]
        # Room to work in, the same for all layers, and so in the processor's cache.
        self._scores = np.empty((len(owners), *heads, PAGE), dtype=np.float32)
        self._parts = np.empty((len(owners), *heads, width + 1), dtype=np.float32)

    def mixed(self, q: Floats, keys: Floats, values: Floats) -> Floats:
        """For each row, its values as far as its queries care for their keys."""
        scores, parts, used = self._scores, self._parts, len(self._owner)
        np.matmul(q.reshape(len(q), *scores.shape[1:3], -1)[self._owner], keys[:used].swapaxes(2, 3), out=scores)
        scores[self.last] += self._ahead
        scores -= self._whole(scores.max(axis=-1), np.maximum)[self._owner, ..., None]
        np.exp(scores, out=scores)
        np.matmul(scores, values[:used], out=parts[..., :-1])
        parts[..., -1] = scores @ np.ones(PAGE, dtype=np.float32)
        sums = self._whole(parts, np.add)
        return (sums[..., :-1] / sums[..., -1:]).reshape(len(q), -1)

    def _whole(self, parts: Floats, combine: np.ufunc) -> Floats:
        """What the rows' pages come to, combined one after the other."""
        found = parts[self._order]
        for start, end in itertools.pairwise(self._ends):
            combine(found[: end - start], found[start:end], out=found[: end - start])
        return found[: self._ends[0]]


class Engine:
    """Weights from a folder in the Hugging Face format, and a cache for up to `rows` texts, as large as they need."""

    def __init__(self, folder: Path, rows: int) -> None:
        # With two threads, on a busy machine, each mostly waits for the other, and burns CPU while it does.
        threadpool_limits(1, user_api="blas")
        config = json.loads((folder / "config.json").read_text("utf-8"))
        weights = safetensors(folder / "model.safetensors")
        self.end = int(config["eos_token_id"])
        self.positions = int(config["max_position_embeddings"])
        self._eps = float(config["rms_norm_eps"])
        # Heads of keys and values, and how many heads of queries share each of them.
        queries, kv = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
        self._heads, self._width = (kv, queries // kv), int(config["head_dim"])
        self._embed = weights["model.embed_tokens.weight"]
        self._head = np.ascontiguousarray(weights["model.norm.weight"][:, None] * weights["lm_head.weight"].T)
        self._layers = [_layer(weights, n, self._width) for n in range(config["num_hidden_layers"])]
        half = self._width // 2
        turn = float(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])  # transformers 5 writes those
        angles = np.outer(np.arange(self.positions), turn ** (-np.arange(half) / half))
        self._turns = np.exp(1j * angles).astype(np.complex64)
        self._limit = rows
        self._rows: list[Row] = []
        self._owners: list[tuple[Row, int]] = []  # of each page in use: the row, and which of its pages it is
        # An array for each layer, because memory is read the faster, the longer the stretch.
        self._keys, self._values = (
            [np.zeros((0, kv, PAGE, self._width), dtype=np.float32) for _ in self._layers] for _ in "kv"
        )

    @property
    def busy(self) -> bool:
        return bool(self._rows)

    @property
    def room(self) -> bool:
        return len(self._rows) < self._limit

    def _claim(self, row: Row) -> None:
        """Another page for a row."""
        for pages in (*self._keys, *self._values):
            if len(self._owners) == len(pages):
                # In place, without a copy where the system can move memory; no view of the cache outlives a call.
                pages.resize((len(pages) * 5 // 4 + 16, *pages.shape[1:]), refcheck=False)
        row.pages.append(len(self._owners))
        self._owners.append((row, len(row.pages) - 1))

    def _release(self, row: Row) -> None:
        """Fill the gaps that a row leaves with the last pages in use."""
        for page in sorted(row.pages, reverse=True):
            owner, index = self._owners.pop()
            if page < len(self._owners):
                for pages in (*self._keys, *self._values):
                    pages[page] = pages[len(self._owners)]
                self._owners[page] = owner, index
                owner.pages[index] = page

    def join(self, row: Row) -> None:
        """Read a prompt and write its first token."""
        self._rows.append(row)
        length = len(row.prompt)
        for _ in range(0, length, PAGE):
            self._claim(row)
        x = self._embed[row.prompt].T
        ahead = np.triu(np.full((length, length), -np.inf, dtype=np.float32), 1)
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            q, k, v = (part.swapaxes(0, 1) for part in self._projected(layer, x, self._turns[:length]))
            for page, start in zip(row.pages, range(0, length, PAGE), strict=True):
                end = min(start + PAGE, length)
                keys[page, :, : end - start], values[page, :, : end - start] = k[:, start:end], v[:, start:end]
            scores = q.reshape(*self._heads, length, -1) @ k.swapaxes(1, 2)[:, None] + ahead
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed: Floats = weights @ v[:, None] / weights.sum(axis=-1, keepdims=True)
            x = self._fed(layer, x + layer.out.T @ mixed.swapaxes(2, 3).reshape(-1, length))
        self._write(row, self._logits(x[:, -1:])[0])

    def step(self) -> None:
        """One more token for every row."""
        for row in self._rows:
            if row.place % PAGE == 0:
                self._claim(row)
        self._rows.sort(key=lambda row: -len(row.pages))
        rows, idle = list(self._rows), [0] * (-len(self._rows) % TILE)
        pages = Pages(rows, [owner for owner, _ in self._owners], self._heads, self._width)
        turns = self._turns[[*(row.place for row in rows), *idle]]
        mixed = np.zeros((len(turns), len(self._layers[0].out)), dtype=np.float32)
        x = _tiled(self._embed[[*(row.said[-1] for row in rows), *idle]])
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            q, k, v = (part[: len(rows)] for part in self._projected(layer, x, turns))
            keys[pages.last, :, pages.offset], values[pages.last, :, pages.offset] = k, v
            mixed[: len(rows)] = pages.mixed(q, keys, values)
            x = self._fed(layer, x + layer.out.T @ _tiled(mixed))
        for row, logits in zip(rows, self._logits(x), strict=False):
            self._write(row, logits)

    def _write(self, row: Row, logits: Floats) -> None:
        token = row.choose(logits)
        row.said.append(token)
        row.ended = token == self.end
        if row.ended or len(row.said) >= row.budget or row.place + 1 >= self.positions:
            self._rows.remove(row)
            self._release(row)
            row.done(row)

    def _projected(self, layer: Layer, x: Floats, turns: npt.NDArray[np.complex64]) -> list[Floats]:
        """Queries, keys and values, each tokens × heads × width, the first two turned by their place."""
        qkv = _untiled(layer.qkv.T @ self._normed(x)).reshape(len(turns), -1, self._width)
        kv, shared = self._heads
        qkv.view(np.complex64)[:, :-kv] *= turns[:, None]
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
    """Rows × numbers as tiles × numbers × rows of a tile."""
    return np.ascontiguousarray(x.reshape(-1, TILE, x.shape[-1]).swapaxes(1, 2))


def _untiled(x: Floats) -> Floats:
    """Tiles × numbers × rows of a tile, or numbers × tokens, as rows × numbers."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).reshape(-1, x.shape[-2])


def _layer(weights: dict[str, Floats], n: int, width: int) -> Layer:
    def found(name: str) -> Floats:
        return weights[f"model.layers.{n}.{name}.weight"].T

    def paired(matrix: Floats) -> Floats:
        """Each head's two halves one by one in turn, so that a rotary position is a product of complex numbers."""
        return matrix.reshape(len(matrix), -1, 2, width // 2).swapaxes(2, 3).reshape(matrix.shape)

    norm1, norm2 = (found(name)[:, None] for name in ("input_layernorm", "post_attention_layernorm"))
    query, key = paired(found("self_attn.q_proj") * np.float32(width**-0.5)), paired(found("self_attn.k_proj"))
    return Layer(
        qkv=norm1 * np.concatenate([query, key, found("self_attn.v_proj")], axis=1),
        out=np.ascontiguousarray(found("self_attn.o_proj")),
        gate_up=np.ascontiguousarray(norm2 * np.concatenate([-found("mlp.gate_proj"), found("mlp.up_proj")], axis=1)),
        down=np.ascontiguousarray(-found("mlp.down_proj")),
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
